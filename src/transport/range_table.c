// SPDX-License-Identifier: BSD-3-Clause
#include "transport/range_table.h"

#include <errno.h>
#include <stdlib.h>

#include "cuda/device.h"

// Copies the entries of an end, with the addresses as kernels know them. An address of 0 is a range
// that this rank does not reach.
static int fill(struct phi_device *device, const struct phi_range_entries *end,
                struct phi_range_entry *entries)
{
    int rc = 0;
    for (uint32_t i = 0; i < end->count && rc == 0; i++) {
        entries[i] = end->list[i];
        if (end->host && entries[i].address != 0)
            rc = phi_device_view(device, entries[i].address, &entries[i].address);
    }
    return rc;
}

int phi_range_table_open(struct phi_device *device, const struct phi_range_entries ends[2],
                         int64_t deadline, uint64_t *address)
{
    const size_t size = ((size_t)ends[0].count + ends[1].count) * sizeof(struct phi_range_entry);
    struct phi_range_entry *entries = malloc(size);
    void *memory = NULL;
    int rc = entries ? 0 : -ENOMEM;
    if (rc == 0)
        rc = fill(device, &ends[0], entries);
    if (rc == 0)
        rc = fill(device, &ends[1], entries + ends[0].count);
    if (rc == 0)
        rc = phi_device_alloc(device, size, &memory);
    if (rc == 0)
        rc = phi_device_write(device, memory, entries, size, deadline);
    if (rc == 0)
        *address = (uintptr_t)memory;
    else
        phi_device_free(device, memory);
    free(entries);
    return rc;
}

void phi_range_table_close(struct phi_device *device, uint64_t address)
{
    phi_device_free(device, (void *)(uintptr_t)address); // NOLINT(performance-no-int-to-ptr)
}
