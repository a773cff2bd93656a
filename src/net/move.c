// SPDX-License-Identifier: BSD-3-Clause
// Moves and posts: the data path.
#include <errno.h>
#include <string.h>

#include "net/internal.h"

// ---- posts

uint32_t phi_net_post_encode(const struct phi_net_post *post)
{
    return (post->line & 0xfffffu) | (uint32_t)(post->side & 1) << 20 |
           (uint32_t)(post->word & 1) << 21 | (uint32_t)(post->which & 1) << 22 |
           (uint32_t)post->life << 23;
}

struct phi_net_post phi_net_post_decode(uint32_t immediate)
{
    return (struct phi_net_post){
        .line = immediate & 0xfffffu,
        .side = immediate >> 20 & 1,
        .word = immediate >> 21 & 1,
        .which = immediate >> 22 & 1,
        .life = immediate >> 23 & 0xff,
    };
}

void phi_post_apply(struct phi_link *link, uint32_t immediate)
{
    const struct phi_net_post post = phi_net_post_decode(immediate);
    char *line;

    if (post.line >= link->mirror.capacity)
        return;
    line = link->mirror.lines[post.side] + (size_t)post.line * PHI_LINE_SIZE;
    // Of a channel that had the line before: it comes to nothing.
    if (atomic_load_explicit((_Atomic uint8_t *)(line + PHI_LINE_LIFE), memory_order_relaxed) !=
        post.life)
        return;
    // Release: who acquires the word sees the data that came with the post or before it.
    atomic_store_explicit((_Atomic uint32_t *)line + post.word, 1u << (2 * post.word + post.which),
                          memory_order_release);
}

static struct phi_slot_op *free_op(struct phi_slot_op *ops, int n)
{
    for (int i = 0; i < n; i++)
        if (!ops[i].busy)
            return &ops[i];
    return NULL;
}

int phi_link_post(const struct phi_route *route, uint32_t immediate)
{
    struct phi_link *link = route->link;
    struct phi_net *net = link->net;
    struct fi_rma_iov remote = {.addr = route->remote, .len = 0, .key = route->key};
    struct iovec local = {.iov_base = link->buffers->nothing, .iov_len = 0};
    void *desc = link->buffers_mr ? fi_mr_desc(link->buffers_mr) : NULL;
    struct fi_msg_rma message = {.msg_iov = &local,
                                 .desc = &desc,
                                 .iov_count = 1,
                                 .rma_iov = &remote,
                                 .rma_iov_count = 1,
                                 .data = immediate};
    struct phi_slot_op *slot;
    ssize_t rc = -EAGAIN;

    if (!phi_net_trylock(net))
        return -EAGAIN;
    slot = link->ep ? free_op(link->posts, PHI_POSTS) : NULL;
    if (slot) {
        message.addr = link->peer;
        message.context = &slot->op;
        rc = fi_writemsg(link->ep, &message,
                         FI_COMPLETION | FI_DELIVERY_COMPLETE | FI_REMOTE_CQ_DATA);
        slot->busy = rc == 0;
        link->posting += rc == 0;
    }
    if (slot && rc && rc != -FI_EAGAIN)
        phi_link_fail(link, -ECONNRESET, phi_net_error(net, (int)rc));
    if (!link->ep)
        rc = -ECONNRESET;
    else if (rc)
        phi_link_poll(link); // makes room
    pthread_mutex_unlock(&net->lock);
    return rc == 0 ? 0 : rc == -ECONNRESET ? -ECONNRESET : -EAGAIN;
}

// ---- moves

// Posts the next part. The last one of a write carries the move's post: it is posted when all
// others are delivered, so that on no fabric the post is seen before the data.
static ssize_t post_part(struct phi_move *move)
{
    struct phi_link *link = move->route->link;
    size_t left = move->size - move->moved;
    size_t size = left < link->net->part ? left : link->net->part;
    struct fi_rma_iov remote = {.addr = move->route->remote + move->offset + move->moved,
                                .len = size,
                                .key = move->route->key};
    struct iovec local = {.iov_base = (char *)move->local + move->moved, .iov_len = size};
    void *desc = move->route->desc;
    struct fi_msg_rma message = {.msg_iov = &local,
                                 .desc = &desc,
                                 .iov_count = 1,
                                 .addr = link->peer,
                                 .rma_iov = &remote,
                                 .rma_iov_count = 1,
                                 .context = &move->op,
                                 .data = move->immediate};
    const bool last = size == left && move->posts;
    ssize_t rc;

    if (move->read)
        rc = fi_readmsg(link->ep, &message, FI_COMPLETION);
    else
        rc = fi_writemsg(link->ep, &message,
                         FI_COMPLETION | FI_DELIVERY_COMPLETE | (last ? FI_REMOTE_CQ_DATA : 0));
    move->part = rc ? 0 : size;
    return rc;
}

static void set_state(struct phi_move *move, enum phi_move_state state)
{
    // Release: what the move has brought is seen by who reads the state.
    atomic_store_explicit(&move->state, state, memory_order_release);
}

static void unlink_move(struct phi_move *move)
{
    struct phi_move **at = &move->op.link->moves;

    while (*at != move)
        at = &(*at)->next;
    *at = move->next;
}

int phi_move_start(struct phi_move *move)
{
    struct phi_link *link = move->route->link;
    struct phi_net *net = link->net;
    ssize_t rc = -ECONNRESET;

    if (!phi_net_trylock(net))
        return -EAGAIN;
    move->op.link = link;
    move->op.kind = PHI_OP_MOVE;
    move->moved = 0;
    if (link->ep)
        rc = post_part(move);
    if (link->ep && rc && rc != -FI_EAGAIN)
        phi_link_fail(link, -ECONNRESET, phi_net_error(net, (int)rc));
    if (rc == 0) {
        move->next = link->moves;
        link->moves = move;
        set_state(move, PHI_MOVE_POSTED);
    } else if (link->ep) {
        phi_link_poll(link);
    }
    pthread_mutex_unlock(&net->lock);
    return rc == 0 ? 0 : rc == -FI_EAGAIN ? -EAGAIN : -ECONNRESET;
}

void phi_move_completed(struct phi_move *move)
{
    move->moved += move->part;
    move->part = 0;
    if (move->moved < move->size)
        return; // phi_link_poll posts the next part
    unlink_move(move);
    set_state(move, PHI_MOVE_DONE);
}

void phi_moves_fail(struct phi_link *link)
{
    while (link->moves) {
        struct phi_move *move = link->moves;

        link->moves = move->next;
        set_state(move, PHI_MOVE_FAILED);
    }
}

void phi_moves_go(struct phi_link *link)
{
    for (struct phi_move *move = link->moves; move; move = move->next) {
        ssize_t rc = move->part == 0 ? post_part(move) : 0;

        if (rc && rc != -FI_EAGAIN) {
            phi_link_fail(link, -ECONNRESET, phi_net_error(link->net, (int)rc));
            return;
        }
    }
}
