// SPDX-License-Identifier: BSD-3-Clause
// Moves are the data path. A move goes in parts, which are under way together, on any rail, and
// arrive in any order. Each of the last parts carries the move's post, which counts at the peer
// when it has come with all of them. If there are more parts, the ones before are delivered first.
// So are the moves before this one that its post covers, too.
#include "net/move.h"

#include <errno.h>
#include <string.h>

#include "net/post.h"

enum {
    STRIPE_MIN = 128 << 10, // a smaller move goes over one rail
    STRIPE_PAGE = 4096,
};

static void set_state(struct phi_move *move, enum phi_move_state state)
{
    // Release: a reader of the state sees the bytes that the move has brought.
    atomic_store_explicit(&move->state, state, memory_order_release);
}

// ---- into how many parts

static uint32_t power_of_two(uint32_t n)
{
    uint32_t power = 1;

    while (power < n)
        power *= 2;
    return power;
}

static size_t divide(size_t size, size_t by)
{
    return size / by + (size % by != 0);
}

static void plan(struct phi_move *move, const struct phi_link *link)
{
    const size_t most = link->net->provider.part;
    size_t parts = divide(move->size, most), page;

    if (move->size >= STRIPE_MIN && parts < link->rails.used)
        parts = link->rails.used;
    move->posts = move->posts && !move->read;
    if (move->posts && parts <= PHI_NET_PARTS_MAX)
        parts = power_of_two((uint32_t)parts);
    move->counted = move->posts ? (uint32_t)parts : 0;
    if (move->counted > PHI_NET_PARTS_MAX)
        move->counted = PHI_NET_PARTS_MAX;
    move->part = divide(move->size, parts);
    page = divide(move->part, STRIPE_PAGE) * STRIPE_PAGE;
    if (parts > 1 && page <= most && move->size >= STRIPE_MIN)
        move->part = page;
    move->parts = (uint32_t)parts;
    move->posted = move->delivered = 0;
}

// ---- posting them

// Small sizes and whole pages may leave no bytes for the last parts. These go all the same: the
// peer counts them.
static ssize_t post_part(struct phi_link *link, struct phi_move *move, struct phi_net_op *op)
{
    const size_t begin = (size_t)move->posted * move->part;
    const size_t at = begin < move->size ? begin : move->size;
    const size_t left = move->size - at;
    struct phi_rma rma = {.route = move->route,
                          .offset = move->offset + at,
                          .local = (char *)move->local + at,
                          .size = left < move->part ? left : move->part,
                          .read = move->read,
                          .tells = move->posted + move->counted >= move->parts};
    ssize_t rc;

    if (rma.tells) {
        struct phi_net_post post;

        phi_net_post_decode(move->immediate, &post);
        post.parts = (uint8_t)move->counted;
        rma.immediate = phi_net_post_encode(&post);
    }
    rc = phi_rail_post(link, &rma, op);
    if (rc == 0) {
        op->move = move;
        move->posted++;
        link->ops.flying++;
    }
    return rc;
}

// is_awaited: whether a move before this one may still be under way when this one's post is
// delivered, though the post covers it. A link lists its moves in the order in which they were
// started, until they are delivered.
static bool is_awaited(const struct phi_link *link, const struct phi_move *move)
{
    for (const struct phi_move *other = link->moves.first; other != move; other = other->next)
        if (other->route == move->route && !other->posts &&
            (other->read || !phi_route_in_order(move->route)))
            return true;
    return false;
}

static bool has_to_wait(const struct phi_link *link, const struct phi_move *move)
{
    return move->behind && move->posted == 0 && is_awaited(link, move);
}

// The peer does not know of parts that carry no post. These are delivered before the others go.
static bool may_go(const struct phi_link *link, const struct phi_move *move)
{
    const uint32_t before = move->parts - move->counted;

    return move->posted < move->parts &&
           (!move->posts || move->posted < before || move->delivered >= before) &&
           !has_to_wait(link, move);
}

void phi_moves_go(struct phi_link *link)
{
    link->moves.due = false;
    for (struct phi_move *move = link->moves.first; move; move = move->next) {
        while (may_go(link, move)) {
            struct phi_net_op *op = phi_op_free(link->ops.parts, PHI_PARTS);
            ssize_t rc = op ? post_part(link, move, op) : -FI_EAGAIN;

            if (rc) {
                link->moves.due = true;
                return;
            }
        }
    }
}

void phi_move_post(struct phi_link *link, struct phi_move *move)
{
    plan(move, link);
    move->next = NULL;
    *link->moves.end = move;
    link->moves.end = &move->next;
    set_state(move, PHI_MOVE_POSTED);
    if (!link->moves.due) // else others are before it
        phi_moves_go(link);
}

int phi_move_start(struct phi_move *move)
{
    struct phi_link *link = move->route->link;
    struct phi_net *net = link->net;
    int rc = -ECONNRESET;

    if (!phi_net_trylock(net))
        return -EAGAIN;
    if (link->carries) {
        phi_move_post(link, move);
        rc = 0;
    }
    pthread_mutex_unlock(&net->lock);
    return rc;
}

// Moves are posted in the order in which they were started, and over one rail they keep it. Nobody
// has looked at how the provider gets to memory of a device.
bool phi_route_in_order(const struct phi_route *route)
{
    return route->link->net->provider.in_order && route->link->rails.used == 1 && !route->to_device;
}

// ---- what became of them

static void unlink_move(struct phi_link *link, struct phi_move *move)
{
    struct phi_move **at = &link->moves.first;

    while (*at != move)
        at = &(*at)->next;
    *at = move->next;
    if (link->moves.end == &move->next)
        link->moves.end = at;
}

// has_waited: whether a move of a route may have waited for another one that is over.
static bool has_waited(const struct phi_link *link, const struct phi_route *route)
{
    for (const struct phi_move *move = link->moves.first; move; move = move->next)
        if (move->behind && move->posted == 0 && move->route == route)
            return true;
    return false;
}

void phi_part_completed(struct phi_link *link, struct phi_net_op *op)
{
    struct phi_move *move = op->move;

    link->ops.flying--;
    move->delivered++;
    if (move->delivered == move->parts) {
        unlink_move(link, move);
        link->moves.due = link->moves.due || has_waited(link, move->route);
        set_state(move, PHI_MOVE_DONE);
    } else if (may_go(link, move)) {
        link->moves.due = true;
    }
}

void phi_moves_fail(struct phi_link *link)
{
    while (link->moves.first) {
        struct phi_move *move = link->moves.first;

        link->moves.first = move->next;
        set_state(move, PHI_MOVE_FAILED);
    }
    link->moves.end = &link->moves.first;
    link->ops.flying = 0;
    link->moves.due = false;
}
