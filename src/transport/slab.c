// SPDX-License-Identifier: BSD-3-Clause
#include "transport/slab.h"

#include "cuda/device.h"

int phi_slab_read(struct phi_device *device, uint64_t at, void *into, size_t size, int64_t deadline)
{
    return phi_device_read(device, into, (const void *)(uintptr_t)at, size, deadline);
}

int phi_slab_write(struct phi_device *device, uint64_t at, const void *from, size_t size,
                   int64_t deadline)
{
    return phi_device_write(device, (void *)(uintptr_t)at, from, size, deadline);
}

int phi_slab_zero(struct phi_device *device, void *address, size_t size, int64_t deadline)
{
    static const char zeros[4 << 10];
    const size_t times = size / sizeof zeros, rest = size % sizeof zeros;
    int rc = 0;
    if (times > 0)
        rc = phi_device_write(device, address, zeros, sizeof zeros, deadline);
    if (times > 1 && rc == 0)
        rc = phi_device_repeat(device, address, sizeof zeros, times, deadline);
    if (rest > 0 && rc == 0)
        rc = phi_device_write(device, (char *)address + size - rest, zeros, rest, deadline);
    return rc;
}

int phi_slab_open(struct phi_memory *memory, struct phi_device *device,
                  const struct phi_slab_image *image, int64_t deadline, struct phi_slab *slab)
{
    struct phi_allocation allocation;
    uint64_t offset;
    int rc = phi_device_alloc(device, image->size, &slab->address);
    if (rc)
        return rc;
    if (image->lines > 0)
        rc = phi_device_write(device, slab->address, image->line, image->line_size, deadline);
    if (image->lines > 1 && rc == 0)
        rc = phi_device_repeat(device, slab->address, image->line_size, image->lines, deadline);
    const size_t lines = image->line_size * image->lines;
    if (rc == 0)
        rc = phi_slab_zero(device, (char *)slab->address + lines, image->size - lines, deadline);
    if (rc == 0)
        rc = phi_memory_describe(memory, slab->address, image->size, &allocation, &offset);
    if (rc == 0)
        rc = phi_memory_export(memory, &allocation, &slab->export_);
    if (rc)
        phi_device_free(device, slab->address);
    return rc;
}

void phi_slab_close(struct phi_device *device, struct phi_slab *slab)
{
    phi_memory_export_close(&slab->export_);
    phi_device_free(device, slab->address);
}
