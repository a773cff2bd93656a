// SPDX-License-Identifier: BSD-3-Clause
// Posts: how they are written as immediate data, and how they go out.
#include "net/post.h"

#include "base/clock.h"
#include "net/rail.h"

// Bits of an immediate: line 0-19, side 20, word 21, which 22, life 23-28, parts 29-31 (as a power
// of two; 5: no post but of records.c).

static uint32_t log2_of(uint32_t parts)
{
    uint32_t power = 0;

    while (parts >> (power + 1))
        power++;
    return power;
}

uint32_t phi_net_post_encode(const struct phi_net_post *post)
{
    return (post->line & 0xfffffu) | (uint32_t)(post->side & 1) << 20 |
           (uint32_t)(post->word & 1) << 21 | (uint32_t)(post->which & 1) << 22 |
           (uint32_t)(post->life & PHI_LIFE_MASK) << 23 | log2_of(post->parts) << 29;
}

bool phi_net_post_decode(uint32_t immediate, struct phi_net_post *post)
{
    *post = (struct phi_net_post){
        .line = immediate & 0xfffffu,
        .side = immediate >> 20 & 1,
        .word = immediate >> 21 & 1,
        .which = immediate >> 22 & 1,
        .life = immediate >> 23 & PHI_LIFE_MASK,
        .parts = (uint8_t)(1u << (immediate >> 29)),
    };
    return post->parts <= PHI_NET_PARTS_MAX;
}

// ---- going out

// takes_along: whether an operation takes the held post along. One of a staged lane does not: posts
// are delivered when their operations are over, and it may be over before it is delivered.
static bool takes_along(const struct phi_link *link, const struct phi_rma *rma)
{
    return link->hold.any && rma->route != &link->staging.route;
}

static uint64_t data_of(const struct phi_link *link, const struct phi_rma *rma)
{
    if (link->net->provider.wire.immediate != 8)
        return rma->immediate;
    return rma->immediate | (uint64_t)(takes_along(link, rma) ? link->hold.index : PHI_NO_POST)
                                << 32;
}

static uint64_t delivery(const struct phi_link *link, const struct phi_rma *rma)
{
    if (rma->loose)
        return 0;
    return rma->size > 0 ? FI_DELIVERY_COMPLETE : link->net->provider.told;
}

static ssize_t post_on(struct phi_link *link, uint32_t rail, const struct phi_rma *rma,
                       struct phi_net_op *op)
{
    const struct phi_rail *on = &link->rails.list[rail];
    const struct phi_route *route = rma->route;
    struct fi_rma_iov remote = {
        .addr = route->remote + rma->offset, .len = rma->size, .key = route->rails[rail].key};
    struct iovec local = {.iov_base = rma->local, .iov_len = rma->size};
    void *desc = route->rails[rail].desc;
    struct fi_msg_rma message = {.msg_iov = &local,
                                 .desc = &desc,
                                 .iov_count = 1,
                                 .addr = on->peer,
                                 .rma_iov = &remote,
                                 .rma_iov_count = 1,
                                 .context = op};

    if (!rma->local) {
        local.iov_base = link->buffers->nothing;
        desc = phi_rail_desc(on);
    }
    if (rma->tells)
        message.data = data_of(link, rma);
    if (rma->read)
        return fi_readmsg(on->ep, &message, FI_COMPLETION);
    return fi_writemsg(on->ep, &message,
                       FI_COMPLETION | delivery(link, rma) | (rma->tells ? FI_REMOTE_CQ_DATA : 0));
}

ssize_t phi_rail_post(struct phi_link *link, const struct phi_rma *rma, struct phi_net_op *op)
{
    ssize_t rc = -FI_EAGAIN;

    for (uint32_t i = 0; !link->failing.doubt && i < link->rails.used && rc == -FI_EAGAIN; i++) {
        const uint32_t rail = link->rails.turn++ % link->rails.used;

        if (rail == 0 ? link->rails.list[0].greets : link->rails.list[rail].ready)
            rc = post_on(link, rail, rma, op);
    }
    op->busy = rc == 0;
    if (rc == 0)
        op->number = ++link->ops.numbered;
    if (rc == 0 && rma->tells) {
        link->hold.any = link->hold.any && !takes_along(link, rma);
        link->counts.sent++;
    }
    // An operation under way shows that there is a connection. Soon there is room.
    if (rc == 0)
        phi_was_taken(&link->patience.data);
    else if (link->ops.flying == 0 && link->ops.posting == 0) {
        phi_was_refused(&link->patience.data);
        // It was connected once. Where the peer has connected, data goes before the own greeting is
        // delivered.
        if (link->net->provider.told && (link->rails.list[0].ready || link->ops.numbered > 0) &&
            phi_now() - link->patience.data.refused > PHI_STALL_MS * PHI_MS)
            phi_link_doubt(link, phi_stall);
    }
    if (rc == 0 || rc == -FI_EAGAIN)
        return rc;
    phi_link_doubt(link, phi_net_error(link->net, (int)rc));
    return -FI_EAGAIN;
}

// Sends a post without data. The lock is held. A caller that holds a post sends that one before
// another of 4 bytes.
ssize_t phi_post_send(struct phi_link *link, const struct phi_route *route, uint32_t immediate)
{
    const struct phi_rma rma = {.route = route, .tells = true, .immediate = immediate};
    struct phi_net_op *op = phi_op_free(link->ops.posts, PHI_POSTS);
    ssize_t rc = op ? phi_rail_post(link, &rma, op) : -FI_EAGAIN;

    link->ops.posting += rc == 0;
    return rc;
}

void phi_posts_go(struct phi_link *link)
{
    const struct phi_route route = link->hold.route;

    link->hold.any = false;
    if (phi_post_send(link, &route, link->hold.index))
        link->hold.any = true;
}

void phi_link_unhold(const struct phi_route *route)
{
    struct phi_link *link = route->link;
    struct phi_net *net = link->net;

    phi_net_lock(net);
    if (link->hold.any)
        phi_posts_go(link);
    pthread_mutex_unlock(&net->lock);
}

// ---- delivered

bool phi_link_mark(struct phi_link *link, uint64_t *mark)
{
    struct phi_net *net = link->net;
    bool all;

    phi_net_lock(net);
    if (link->hold.any)
        phi_posts_go(link);
    all = !link->hold.any;
    *mark = link->ops.numbered;
    pthread_mutex_unlock(&net->lock);
    return all;
}

static bool has_older(const struct phi_net_op *ops, int n, uint64_t mark)
{
    for (int i = 0; i < n; i++)
        if (ops[i].busy && ops[i].number <= mark)
            return true;
    return false;
}

bool phi_link_delivered(struct phi_link *link, uint64_t mark)
{
    struct phi_net *net = link->net;
    bool older;

    phi_net_lock(net);
    // A post that was held may have gone with a part.
    older = link->carries && (has_older(link->ops.posts, PHI_POSTS, mark) ||
                              has_older(link->ops.parts, PHI_PARTS, mark));
    pthread_mutex_unlock(&net->lock);
    return !older;
}
