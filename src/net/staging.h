// SPDX-License-Identifier: BSD-3-Clause
// Staged records over a link (base/stage.h). A record that a stream has filled here goes by RMA to
// the peer's slot of the same place. Credit for a record that a stream has emptied here goes back.
// A thread that polls the net moves on the active lanes. The proxy spins for them, and backs off.
//
// Threads: as in net.h. phi_lane_kick may be called on the data path: it takes no lock, and makes a
// system call only where the proxy sleeps.
#ifndef PHI_NET_STAGING_H
#define PHI_NET_STAGING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/stage.h"
#include "net/net.h"

struct phi_lane;

// Memory of a pair, given to the link before it is connected. `out` has the slots that are filled
// here, `in` those that the peer may write, and nothing else. side: of this end, as in mirrored
// segments. Both stay as long as the link.
struct phi_staging_params {
    void *out, *in;
    size_t out_size, in_size;
    int side;
};

// phi_link_stage registers the memory (may block), and fills what the peer needs of `in`.
// -ECONNRESET: the link has ended. Other errors are reported.
int phi_link_stage(struct phi_link *link, const struct phi_staging_params *params,
                   struct phi_net_target *in);

// phi_link_stage_peer tells a connected link where the peer's `in` is, before any lane is opened.
int phi_link_stage_peer(struct phi_link *link, const struct phi_net_target *theirs);

// phi_net_chunk returns the most bytes of data that one record may have with this provider.
uint32_t phi_net_chunk(const struct phi_net *net);

// One lane: of a line, in one direction, of one word. Outgoing: like, control and slots lie here,
// and offset says where in the peer's `in` its slots are. Incoming: offset is not used.
//
// Bells: `like` has no bytes, and each direction has one lane. Its records say what to move over
// `route`, which is copied, and which post follows. The peer has no part in it. A peer that has put
// its slots over them can write them, so only bytes of this end's buffer are moved: [local, local +
// local_size). When the link ends, all that was rung and has not landed is over. `broken` is set
// before that, and `undone` where some of it was to be copied.
struct phi_lane_params {
    uint32_t line;
    uint8_t life; // of the line
    uint8_t word; // 0 or 1
    bool outgoing;
    uint64_t like;                  // PHI_STAGE_LIKE
    struct phi_stage_lane *control; // all zero
    uint8_t *slots;
    uint64_t offset;
    const struct phi_route *route;
    const void *local;
    uint64_t local_size;
    _Atomic uint32_t *broken, *undone;
    // busy: whether a stream may still fill or empty. It is asked when nothing has moved for a
    // while, and must not block.
    bool (*busy)(void *opaque);
    void *opaque;
};

// phi_lane_make allocates a lane. NULL: out of memory.
// phi_lane_open begins it at record 1. Records that the peer sent before this end opened its lane
// are not lost.
struct phi_lane *phi_lane_make(void);
void phi_lane_open(struct phi_lane *lane, struct phi_link *link,
                   const struct phi_lane_params *params);

// phi_lane_close ends and frees it. No kick may come any more. Its slots may be used for something
// else where the lane is at rest, or its link has ended. NULL is fine, and so is a lane that was
// never opened.
void phi_lane_close(struct phi_lane *lane);

// phi_lane_kick tells that a stream was given work on the lane. The thread that polls next takes
// it, whatever the state of the link.
void phi_lane_kick(struct phi_lane *lane);

// phi_lane_rests: whether all records filled here were emptied there; or all that came were emptied
// here and the peer was told; or all bells have landed. of_use false: the channel has ended. Then
// it is enough that nothing is on its way from here: records that were not taken are nobody's.
bool phi_lane_rests(struct phi_lane *lane, bool of_use);

#endif
