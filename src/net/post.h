// SPDX-License-Identifier: BSD-3-Clause
// Posts: how they go out. Also operations of data, which take posts along.
#ifndef PHI_NET_POST_H
#define PHI_NET_POST_H

#include "net/state.h"

// Data of 8 bytes has room for two posts. This stands where there is no second one: no post is of
// 128 parts.
#define PHI_NO_POST 0xffffffffu

// phi_rail_post posts an operation on the next rail that takes it, with the held post if there is
// room for that. -FI_EAGAIN: no rail takes it now. The operation is busy until it completes.
struct phi_rma {
    const struct phi_route *route;
    uint64_t offset;
    void *local; // NULL: no bytes
    size_t size;
    bool read, tells; // tells: with `immediate`
    bool loose;       // it is over when `local` may be written again; else when it is delivered
    uint32_t immediate;
};
ssize_t phi_rail_post(struct phi_link *link, const struct phi_rma *rma, struct phi_net_op *op);

// phi_post_send sends a post without data. -FI_EAGAIN: try later.
ssize_t phi_post_send(struct phi_link *link, const struct phi_route *route, uint32_t immediate);
void phi_posts_go(struct phi_link *link); // the one that is held

#endif
