// SPDX-License-Identifier: BSD-3-Clause
// A copy of a table of ranges (base/ranges.h) in memory of the device, which kernels read.
#ifndef PHI_TRANSPORT_RANGE_TABLE_H
#define PHI_TRANSPORT_RANGE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/ranges.h"

struct phi_device;

// Entries of one end. host: they lie in host memory, which kernels know by another address.
struct phi_range_entries {
    struct phi_range_entry *list;
    uint32_t count;
    bool host;
};

// phi_range_table_open copies the entries of both ends, one behind the other. Blocks until the
// deadline, not behind the application's streams. -ENOMEM, PH_EDRIVER, -ETIMEDOUT. close leaves the
// end of it to the device's closer; 0 is fine.
int phi_range_table_open(struct phi_device *device, const struct phi_range_entries ends[2],
                         int64_t deadline, uint64_t *address);
void phi_range_table_close(struct phi_device *device, uint64_t address);

#endif
