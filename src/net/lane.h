// SPDX-License-Identifier: BSD-3-Clause
// A lane as its proxy sees it: for records through slots (records.c), or for bells (bells.c).
#ifndef PHI_NET_LANE_H
#define PHI_NET_LANE_H

#include "net/staging.h"
#include "net/state.h"

// Lanes of a line: by direction and word.
#define PHI_LANES_PER_LINE 4

struct phi_record_op {
    struct phi_net_op op; // first: what the provider knows
    struct phi_lane *lane;
    bool assures; // that all records up to this one are delivered
    uint32_t record;
};

struct phi_lane {
    struct phi_link *link;
    struct phi_lane_params params;
    uint32_t chunk, blocks; // chunk 0: of bells
    uint32_t sent;          // outgoing: records posted; incoming: credit posted; bells begun
    uint32_t credited;      // outgoing: records that the peer has emptied; bells landed
    uint32_t assured;       // outgoing: records that are delivered when their operations are over
    struct phi_route route; // of bells
    struct phi_move moves[PHI_STAGE_SLOTS]; // ... what became of each
    uint32_t asks[PHI_STAGE_SLOTS];         // ... and what is left to be done: PHI_BELL_*
    uint32_t immediates[PHI_STAGE_SLOTS];
    uint32_t reach; // as in control
    struct phi_record_op ops[PHI_STAGE_SLOTS];
    bool flushing;             // what the oldest bell has read is being made visible
    bool active;               // in link->staging.active
    bool closed;               // in link->records.closed: kept for the provider
    int64_t moved_at;          // when it last made progress
    struct phi_lane *next;     // of the active ones, or of those that are closed
    struct phi_lane *kicked;   // the next of net->kicked
    _Atomic uint32_t awaiting; // kicked, or active
};

// Arrivals for a lane, also before the lane is open here.
struct phi_arrivals {
    struct phi_lane *lane;
    uint32_t arrived;
    uint16_t present; // slots whose record has come, but not yet one before it
    uint8_t life;
};

// phi_lane_slot returns the slot of the record that comes after so many.
static inline uint32_t phi_lane_slot(uint32_t before)
{
    return before & (PHI_STAGE_SLOTS - 1);
}

// Release: pairs with the acquire of the stream (or queue) that waits for it.
static inline void phi_lane_publish(struct phi_lane *lane, uint32_t reach)
{
    lane->reach = reach;
    __atomic_store_n(&lane->params.control->reach, reach, __ATOMIC_RELEASE);
}

// phi_lane_done returns how far all blocks are. The acquires pair with their releases: the bytes of
// the slots are there, or are not needed any more.
static inline uint32_t phi_lane_done(const struct phi_lane *lane)
{
    const uint32_t *done = lane->params.control->done;
    uint32_t least = __atomic_load_n(&done[0], __ATOMIC_ACQUIRE);

    for (uint32_t i = 1; i < lane->blocks; i++) {
        uint32_t other = __atomic_load_n(&done[i], __ATOMIC_ACQUIRE);

        if ((int32_t)(other - least) < 0)
            least = other;
    }
    return least;
}

#endif
