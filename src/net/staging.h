// SPDX-License-Identifier: BSD-3-Clause
// Staged records over a link (base/stage.h): what a stream has filled here goes to the peer's slot
// of the same place by RMA, and credit for what a stream has emptied here goes back. Whoever polls
// the net moves the lanes on that are active; the proxy spins for them, and backs off.
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

// Memory of a pair, given to the link before it is connected: `out` has the slots that are filled
// here, `in` those that the peer may write, and nothing else. side: of this end, as in mirrored
// segments. Both stay while the link does.
struct phi_staging_params {
    void *out, *in;
    size_t out_size, in_size;
    int side;
};

// phi_link_stage registers the memory (may block), and fills what the peer needs of `in`.
// -ECONNRESET: the link has ended; else reported.
int phi_link_stage(struct phi_link *link, const struct phi_staging_params *params,
                   struct phi_net_target *in);

// phi_link_stage_peer tells a connected link where the peer's `in` is. Before any lane is opened.
int phi_link_stage_peer(struct phi_link *link, const struct phi_net_target *theirs);

// phi_net_chunk: the most bytes of data that one record may have with this provider.
uint32_t phi_net_chunk(const struct phi_net *net);

// One lane: of a line, in one direction, of one word. Outgoing: like, control and slots lie here,
// offset says where in the peer's `in` its slots are. Incoming: offset is not used.
//
// Of bells, where like has no bytes: one lane for each direction, whose records say what is to be
// moved over `route`, which is copied, and which post follows. The peer has no part in it; where it
// has put its slots over them what they say is its word, so nothing is moved but what lies in the
// buffer of this end, [local, local + local_size). When the link ends, all that was rung and has
// not landed is over, after `broken` was set, and `undone` where some of it was to be copied.
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
    // Whether a stream may still fill or empty: looked at when nothing has moved for a while. Must
    // not block.
    bool (*busy)(void *opaque);
    void *opaque;
};

// phi_lane_make allocates a lane (NULL: out of memory), phi_lane_open begins it at record 1. What
// the peer sent before this end opened its lane is not lost.
struct phi_lane *phi_lane_make(void);
void phi_lane_open(struct phi_lane *lane, struct phi_link *link,
                   const struct phi_lane_params *params);

// phi_lane_close ends and frees it. Its slots may be used for something else where it is at rest,
// or its link has ended. No kick may come any more. NULL is fine, and one that was never opened.
void phi_lane_close(struct phi_lane *lane);

// phi_lane_kick tells that a stream was given work on the lane. Whoever polls next takes it,
// whatever the state of the link.
void phi_lane_kick(struct phi_lane *lane);

// phi_lane_rests: whether all records filled here were emptied there, or all that came were emptied
// here and the peer was told, or all bells have landed. of_use false: the channel has ended. Then
// it is enough that nothing is on its way from here: what was not taken is nobody's.
bool phi_lane_rests(struct phi_lane *lane, bool of_use);

#endif
