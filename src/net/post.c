// SPDX-License-Identifier: BSD-3-Clause
// Posts: how they are written into immediate data, and what they do where they arrive.
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "net/state.h"

// Bits of an immediate: line 0-19, side 20, word 21, which 22, life 23-28, parts 29-31 (as a power
// of two; 5: no post but of staging.c). Data of 8 bytes have room for two; NO_POST stands where
// there is no second one: no post is of 128 parts.
#define NO_POST 0xffffffffu

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

// ---- arriving

// Whether all parts are in. Those of a message that never became whole are of a former life.
static bool is_whole(struct phi_link *link, const struct phi_net_post *post, uint32_t life)
{
    struct phi_arrival *arrival =
        &link->arrivals[(size_t)post->line * 4 + (size_t)post->side * 2 + post->word];

    if (post->parts == 1)
        return true;
    if (arrival->life != life)
        *arrival = (struct phi_arrival){.life = life};
    if (++arrival->count < post->parts)
        return false;
    arrival->count = 0;
    return true;
}

static void apply(struct phi_link *link, uint32_t immediate)
{
    struct phi_net_post post;
    uint32_t life;
    char *line;

    if ((immediate & PHI_STAGED_ALL) == PHI_STAGED) {
        phi_staging_apply(link, immediate);
        return;
    }
    if (!phi_net_post_decode(immediate, &post) || post.line >= link->mirror.capacity)
        return;
    line = link->mirror.lines[post.side] + (size_t)post.line * PHI_LINE_SIZE;
    life = atomic_load_explicit((_Atomic uint32_t *)(line + PHI_LINE_LIFE), memory_order_relaxed);
    // Of a channel that had the line before: it comes to nothing.
    if ((life & PHI_LIFE_MASK) != post.life || !is_whole(link, &post, life))
        return;
    if (phi_flush_covers(link, &post)) {
        phi_flush_hold(link, &(struct phi_held){.line = post.line,
                                                .life = life,
                                                .value = 1u << (2 * post.word + post.which),
                                                .side = post.side,
                                                .word = post.word});
        return;
    }
    // Release: who acquires the word sees the data that came with the post or before it.
    atomic_store_explicit((_Atomic uint32_t *)line + post.word, 1u << (2 * post.word + post.which),
                          memory_order_release);
}

void phi_posts_arrive(struct phi_link *link, uint64_t data)
{
    link->posts_come++;
    apply(link, (uint32_t)data);
    if (link->net->wire.immediate == 8 && data >> 32 != NO_POST)
        apply(link, (uint32_t)(data >> 32));
}

// ---- going out

struct phi_net_op *phi_op_free(struct phi_net_op *ops, int n)
{
    for (int i = 0; i < n; i++)
        if (!ops[i].busy)
            return &ops[i];
    return NULL;
}

// A post that is held goes along with another one, but with nothing of a staged lane, which may be
// over before it is delivered: posts are delivered when their operations are over.
static bool takes_along(const struct phi_link *link, const struct phi_rma *rma)
{
    return link->holds && rma->route != &link->staging.route;
}

static uint64_t data_of(const struct phi_link *link, const struct phi_rma *rma)
{
    if (link->net->wire.immediate != 8)
        return rma->immediate;
    return rma->immediate | (uint64_t)(takes_along(link, rma) ? link->held : NO_POST) << 32;
}

static uint64_t delivery(const struct phi_link *link, const struct phi_rma *rma)
{
    if (rma->loose)
        return 0;
    return rma->size > 0 ? FI_DELIVERY_COMPLETE : link->net->told;
}

static ssize_t post_on(struct phi_link *link, uint32_t rail, const struct phi_rma *rma,
                       struct phi_net_op *op)
{
    const struct phi_rail *on = &link->rails[rail];
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

    for (uint32_t i = 0; !link->doubt && i < link->rails_used && rc == -FI_EAGAIN; i++) {
        const uint32_t rail = link->turn++ % link->rails_used;

        if (rail == 0 ? link->rails[0].greets : link->rails[rail].ready)
            rc = post_on(link, rail, rma, op);
    }
    op->busy = rc == 0;
    if (rc == 0)
        op->number = ++link->numbered;
    if (rc == 0 && rma->tells) {
        link->holds = link->holds && !takes_along(link, rma);
        link->posts_sent++;
    }
    // Where something is on its way there is a connection, and soon room.
    if (rc == 0)
        phi_was_taken(&link->data);
    else if (link->flying == 0 && link->posting == 0) {
        phi_was_refused(&link->data);
        // It was connected once: data goes before the own greeting is delivered where the peer has
        // connected.
        if (link->net->told && (link->rails[0].ready || link->numbered > 0) &&
            phi_now() - link->data.refused > PHI_STALL_MS * PHI_MS)
            phi_link_doubt(link, phi_stall);
    }
    if (rc == 0 || rc == -FI_EAGAIN)
        return rc;
    phi_link_doubt(link, phi_net_error(link->net, (int)rc));
    return -FI_EAGAIN;
}

// Without data; the lock is held. Who holds a post sends it before another one of 4 bytes.
ssize_t phi_post_send(struct phi_link *link, const struct phi_route *route, uint32_t immediate)
{
    const struct phi_rma rma = {.route = route, .tells = true, .immediate = immediate};
    struct phi_net_op *op = phi_op_free(link->posts, PHI_POSTS);
    ssize_t rc = op ? phi_rail_post(link, &rma, op) : -FI_EAGAIN;

    link->posting += rc == 0;
    return rc;
}

static ssize_t hold(struct phi_link *link, const struct phi_route *route, uint32_t immediate)
{
    link->holds = true;
    link->held = immediate;
    link->held_route = *route;
    return 0;
}

static int post_or_hold(const struct phi_route *route, uint32_t immediate, bool may_wait)
{
    struct phi_link *link = route->link;
    struct phi_net *net = link->net;
    ssize_t rc = -ECONNRESET;

    if (!phi_net_trylock(net))
        return -EAGAIN;
    if (link->carries) {
        if (may_wait && net->wire.immediate == 8 && !link->holds)
            rc = hold(link, route, immediate);
        else
            rc = phi_post_send(link, route, immediate);
        if (rc)
            phi_link_poll(link); // makes room
    }
    if (!link->carries)
        rc = -ECONNRESET;
    pthread_mutex_unlock(&net->lock);
    return rc == 0 ? 0 : rc == -ECONNRESET ? -ECONNRESET : -EAGAIN;
}

int phi_link_post(const struct phi_route *route, uint32_t immediate)
{
    return post_or_hold(route, immediate, false);
}

int phi_link_hold(const struct phi_route *route, uint32_t immediate)
{
    return post_or_hold(route, immediate, true);
}

void phi_posts_go(struct phi_link *link)
{
    const struct phi_route route = link->held_route;

    link->holds = false;
    if (phi_post_send(link, &route, link->held))
        link->holds = true;
}

void phi_link_unhold(const struct phi_route *route)
{
    struct phi_link *link = route->link;
    struct phi_net *net = link->net;

    phi_net_lock(net);
    if (link->holds)
        phi_posts_go(link);
    pthread_mutex_unlock(&net->lock);
}

// ---- delivered

bool phi_link_mark(struct phi_link *link, uint64_t *mark)
{
    struct phi_net *net = link->net;
    bool all;

    phi_net_lock(net);
    if (link->holds)
        phi_posts_go(link);
    all = !link->holds;
    *mark = link->numbered;
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
    older = link->carries &&
            (has_older(link->posts, PHI_POSTS, mark) || has_older(link->parts, PHI_PARTS, mark));
    pthread_mutex_unlock(&net->lock);
    return !older;
}
