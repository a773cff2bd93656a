// SPDX-License-Identifier: BSD-3-Clause
// The copies of a queue that are under way over the net: they were posted and are not delivered
// yet, while the queue's runner goes on with work that need not wait for them.
#include <errno.h>

#include "semaphore/queue_state.h"

static struct phi_flight *flight_of(const struct ph_queue *queue)
{
    return &queue->executor->flights[queue->index];
}

static struct phi_flying *flying(struct phi_flight *flight, uint32_t i)
{
    return &flight->slots[(flight->first + i) % PHI_FLYING_MAX];
}

static void finish(struct ph_queue *queue, uint32_t operations)
{
    uint64_t done = atomic_load_explicit(&queue->done, memory_order_relaxed) + operations;

    if (operations > 0)
        atomic_store_explicit(&queue->done, done, memory_order_release);
}

// ---- posts that are held

static void let_go(struct ph_queue *queue, struct phi_flight *flight)
{
    flight->held = NULL;
    finish(queue, flight->ends);
    flight->ends = 0;
    queue->airborne = flight->count > 0;
}

void phi_flight_rest(struct ph_queue *queue)
{
    struct phi_flight *flight = flight_of(queue);

    if (!flight->held)
        return;
    phi_link_unhold(flight->held);
    let_go(queue, flight);
}

// send_post: the own copy of the word first, which the peer's answer replaces.
static bool send_post(struct ph_queue *queue, const struct phi_work *work)
{
    struct phi_flight *flight = flight_of(queue);
    int rc;

    if (queue->told) {
        queue->told = false;
        return true;
    }
    // The peer takes a post as the word that all before it is there.
    if (!phi_flight_landed(queue))
        return false;
    if (phi_work_broken(work)) {
        if (phi_post_answers(queue, work)) // for the own waits alone
            atomic_store_explicit(work->word.host, work->word.value, memory_order_release);
        return true;
    }
    if (flight->held && flight->held->link != work->remote.route->link)
        phi_flight_rest(queue);
    atomic_store_explicit(work->word.host, work->word.value, memory_order_release);
    rc = phi_link_hold(work->remote.route, work->remote.immediate);
    if (rc == 0) {
        flight->held = work->remote.route;
        queue->airborne = true;
    }
    return rc != -EAGAIN;
}

// ---- copies

static bool overlap(uint64_t a, size_t a_size, uint64_t b, size_t b_size)
{
    return a < b + b_size && b < a + a_size;
}

// conflict returns whether two copies touch the same bytes and one of them writes those, so that
// the later copy waits. Writes that keep their order by themselves do not conflict.
static bool conflict(const struct phi_move *earlier, const struct phi_move *later)
{
    const struct phi_route *a = earlier->route, *b = later->route;
    const bool here =
        overlap((uintptr_t)earlier->local, earlier->size, (uintptr_t)later->local, later->size);
    const bool there =
        a->link == b->link && a->rails[0].key == b->rails[0].key &&
        overlap(a->remote + earlier->offset, earlier->size, b->remote + later->offset, later->size);

    if (earlier->read || later->read)
        return here || (there && !(earlier->read && later->read));
    return there && (earlier->posts || !phi_route_in_order(b));
}

// may_fly returns whether a copy may be under way beside those that are. A copy that tells the peer
// something comes behind all operations before its own (docs/protocols.md, "What a post tells of").
static bool may_fly(struct phi_flight *flight, const struct phi_move *move)
{
    if (flight->count == PHI_FLYING_MAX)
        return false;
    for (uint32_t i = 0; i < flight->count; i++) {
        const struct phi_flying *other = flying(flight, i);

        if (conflict(&other->move, move) || (move->posts && other->ends > 0))
            return false;
    }
    return true;
}

// has_plain returns whether a put or a get of the same channel is under way. A put or a get of an
// earlier operation is over when a copy tells the peer something (may_fly).
static bool has_plain(struct phi_flight *flight, const struct phi_route *route)
{
    for (uint32_t i = 0; i < flight->count; i++) {
        const struct phi_work *other = &flying(flight, i)->work;

        if (other->remote.route == route &&
            (other->call == PHI_CALL_PUT || other->call == PHI_CALL_GET))
            return true;
    }
    return false;
}

static void describe(struct phi_flight *flight, struct phi_move *move, const struct phi_work *work,
                     const struct phi_work *next)
{
    const bool tells = next && next->kind == PHI_STEP_POST &&
                       next->remote.route == work->remote.route && work->span.source != NULL;

    *move = (struct phi_move){
        .route = work->remote.route,
        .local = work->span.source ? (void *)work->span.source : work->span.destination,
        .offset = work->remote.offset,
        .size = work->span.size,
        .read = work->span.source == NULL,
        .posts = tells,
        // Others of its group, of its channel alone: the link holds it back, and nothing else.
        .behind = work->call == PHI_CALL_PUT_SIGNAL && has_plain(flight, work->remote.route),
        .immediate = tells ? next->remote.immediate : 0,
    };
}

// start_copy posts the copy, and with it the post that follows it (next, or NULL).
static bool start_copy(struct ph_queue *queue, const struct phi_work *work,
                       const struct phi_work *next)
{
    struct phi_flight *flight = flight_of(queue);
    struct phi_flying *slot = flying(flight, flight->count);
    struct phi_move move;
    int rc;

    if (work->span.size == 0)
        return true;
    if (phi_work_broken(work)) {
        phi_queue_cut(queue, work);
        return true;
    }
    describe(flight, &move, work, next);
    if (!may_fly(flight, &move)) {
        phi_flight_look(queue);
        if (!may_fly(flight, &move))
            return false;
        slot = flying(flight, flight->count);
    }
    // A held post goes with this one, or before it.
    if (flight->held && (!move.posts || flight->held->link != move.route->link))
        phi_flight_rest(queue);
    *slot = (struct phi_flying){.move = move, .work = *work};
    if (move.posts)
        atomic_store_explicit(next->word.host, next->word.value, memory_order_release);
    rc = phi_move_start(&slot->move);
    if (rc == -EAGAIN)
        return false;
    if (rc) { // the link is lost: what follows on the channel is skipped
        atomic_store(work->over.broken, 1);
        phi_queue_cut(queue, work);
        return true;
    }
    queue->told = move.posts;
    let_go(queue, flight);
    flight->count++;
    queue->airborne = true;
    return true;
}

// ---- landing

// reap takes the oldest copies that are over; true where there was one.
static bool reap(struct ph_queue *queue)
{
    struct phi_flight *flight = flight_of(queue);
    bool any = false;

    while (flight->count > 0) {
        struct phi_flying *oldest = flying(flight, 0);
        // Acquire: pairs with the release of who polled; a read's bytes are here.
        uint32_t state = atomic_load_explicit(&oldest->move.state, memory_order_acquire);

        if (state == PHI_MOVE_POSTED)
            break;
        if (state == PHI_MOVE_FAILED) {
            atomic_store(oldest->work.over.broken, 1);
            phi_work_undo(&oldest->work);
        }
        flight->first++;
        flight->count--;
        finish(queue, oldest->ends);
        any = true;
    }
    if (any)
        queue->blocked_since = 0;
    queue->airborne = flight->count > 0 || flight->held;
    return any;
}

bool phi_flight_look(struct ph_queue *queue)
{
    struct phi_flight *flight = flight_of(queue);

    if (flight->count == 0)
        return false;
    if (reap(queue))
        return true;
    phi_route_poll(flying(flight, 0)->move.route);
    return reap(queue);
}

bool phi_flight_landed(struct ph_queue *queue)
{
    phi_flight_look(queue);
    return flight_of(queue)->count == 0;
}

const struct phi_work *phi_flight_oldest(const struct ph_queue *queue)
{
    struct phi_flight *flight = flight_of(queue);

    return flight->count > 0 ? &flying(flight, 0)->work : NULL;
}

void phi_flight_finish(struct ph_queue *queue)
{
    struct phi_flight *flight = flight_of(queue);

    if (flight->count > 0)
        flying(flight, flight->count - 1)->ends++;
    else if (flight->held)
        flight->ends++;
    else
        finish(queue, 1);
}

// ---- items

bool phi_flight_await(const struct phi_work *work)
{
    if (phi_queue_arrived(work))
        return true;
    phi_route_poll(work->remote.route);
    return phi_queue_arrived(work);
}

bool phi_flight_run(struct ph_queue *queue, const struct phi_work *work,
                    const struct phi_work *next)
{
    return work->kind == PHI_STEP_COPY ? start_copy(queue, work, next) : send_post(queue, work);
}
