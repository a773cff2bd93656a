// SPDX-License-Identifier: BSD-3-Clause
#include "transport/slab.h"

#include "cuda/device.h"

// What one copy of the device's takes.
#define PART ((size_t)65536)

int phi_slab_read(struct phi_device *device, uint64_t at, void *into, size_t size, int64_t deadline)
{
    return phi_device_read(device, into, (const void *)(uintptr_t)at, size, deadline);
}

int phi_slab_write(struct phi_device *device, uint64_t at, const void *from, size_t size,
                   int64_t deadline)
{
    int rc = 0;
    for (size_t done = 0; done < size && rc == 0; done += PART) {
        const size_t part = size - done < PART ? size - done : PART;
        rc = phi_device_write(device, (void *)(uintptr_t)(at + done), (const char *)from + done,
                              part, deadline);
    }
    return rc;
}

int phi_slab_open(struct phi_memory *memory, struct phi_device *device, const void *image,
                  size_t size, int64_t deadline, struct phi_slab *slab)
{
    struct phi_allocation allocation;
    uint64_t offset;
    int rc = phi_device_alloc(device, size, &slab->address);
    if (rc)
        return rc;
    rc = phi_slab_write(device, (uint64_t)(uintptr_t)slab->address, image, size, deadline);
    if (rc == 0)
        rc = phi_memory_describe(memory, slab->address, size, &allocation, &offset);
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
