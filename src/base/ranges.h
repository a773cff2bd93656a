// SPDX-License-Identifier: BSD-3-Clause
// The memory of one end of a channel where its operation names several ranges: a table of entries,
// one for each range, by growing offsets. An offset counts over all ranges in their order.
//
// Plain C types: the kernels see this, too.
#ifndef PHI_BASE_RANGES_H
#define PHI_BASE_RANGES_H

#include <stdint.h>

#define PHI_RANGES_MAX 1024

// One range: the offset of its first byte, and where that byte lies in this process (or for this
// process's device). The range ends where the next one begins, and the last one at the size of all.
struct phi_range_entry {
    uint64_t begin;
    uint64_t address;
};

// phi_range_of returns the index of the range that an offset lies in, which is less than the size of
// all. count > 0.
static inline uint32_t phi_range_of(const struct phi_range_entry *ranges, uint32_t count,
                                    uint64_t offset)
{
    uint32_t low = 0, high = count; // the last range that begins at `offset` or before
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (ranges[middle].begin <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#endif
