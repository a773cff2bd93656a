// SPDX-License-Identifier: BSD-3-Clause
// Lists of ranges of the peer's memory, and the tables of a channel of which an end has several
// ranges. With the lock held.
#ifndef PHI_PEER_RANGES_H
#define PHI_PEER_RANGES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/ranges.h"

struct phi_device;
struct phi_remote_export;

// A range of the peer's memory, which lies in one export.
struct phi_peer_range {
    struct phi_remote_export *export_; // NULL: forgotten
    uint64_t offset, size;
};

// The ranges of a buffer of the peer: one, or a list of several.
struct phi_peer_ranges {
    struct phi_peer_range first;
    struct phi_peer_range *rest; // behind the first one, or NULL
    uint32_t count;
};

static inline struct phi_peer_range *phi_peer_range(const struct phi_peer_ranges *ranges,
                                                    uint32_t i)
{
    return i == 0 ? (struct phi_peer_range *)&ranges->first : &ranges->rest[i - 1];
}

// phi_peer_ranges_has returns whether a range lies in an export; of NULL: whether one is forgotten.
// phi_peer_ranges_forget takes the export away from the ranges that lie in it.
bool phi_peer_ranges_has(const struct phi_peer_ranges *ranges, const struct phi_remote_export *e);
void phi_peer_ranges_forget(struct phi_peer_ranges *ranges, const struct phi_remote_export *e);

// The tables of a channel between two buffers: the entries of the own one, then those of the
// peer's. An end of one range has none.
struct phi_channel_ranges {
    uint32_t mine, theirs; // the numbers of the two buffers
    uint32_t count[2];     // of entries: of the own end, and of the peer's
    struct phi_device *device;
    uint64_t address;              // of the copy that kernels read, or 0
    uint64_t *bases;               // of the own allocations behind the first one
    struct phi_peer_range *remote; // of the peer's ranges behind the first one
    struct phi_range_entry entries[];
};

// phi_ranges_free frees tables. NULL is fine.
void phi_ranges_free(struct phi_channel_ranges *tables);

#endif
