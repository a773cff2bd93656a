// SPDX-License-Identifier: BSD-3-Clause
// Copies between the buffers of two peers, of which one at least is reached over the net: piece by
// piece into memory of ours and out of it again. The pieces follow one another: while one goes out,
// those after it come in.
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "semaphore/queue_state.h"

enum {
    PIECES = 4, // under way at once
    PIECE_LEAST = 64 << 10,
    PIECE_MOST = 1 << 20, // a peer that only looks in now and then takes about one at a time
    PAGE = 4096,
};

// A queue has one of these from its first relay on. A piece is fetched, then stored, then landed;
// each piece has a place, and one move at a time. A move that is IDLE is over, or was a copy by the
// processor.
struct phi_relay {
    uint64_t steps; // so far, of all items
    bool begun;     // the item at the head, with these:
    bool given_up;
    size_t piece;                     // bytes of each but the last
    struct phi_route to, from;        // with our memory, where they are over the net
    uint64_t fetched, stored, landed; // pieces of which that has begun; has begun; is over
    struct phi_move moves[PIECES];
    uint8_t memory[PIECES][PIECE_MOST];
};

// Both ends of the item at the head.
struct ends {
    const struct phi_work *to, *from;
};

static struct phi_relay *relay_of(const struct ph_queue *queue)
{
    return atomic_load_explicit(&queue->executor->relays[queue->index], memory_order_acquire);
}

// ---- before it is enqueued

static uint32_t region_of(const struct ph_queue *queue)
{
    return PHI_LENT_IDS + queue->index;
}

static int lend(const struct ph_queue *queue, const struct phi_work *work, struct phi_route *lent)
{
    struct phi_relay *relay = relay_of(queue);

    if (!work->remote.route)
        return 0;
    return phi_route_lend(work->remote.route, region_of(queue), relay->memory,
                          sizeof(relay->memory), lent);
}

// If the memory is not there, or the provider does not know it, this call fails: no later one does.
// If a link has ended, its channel will say so.
static int make_known(const struct ph_queue *queue, const struct phi_work *work)
{
    struct phi_route lent;
    int rc;

    while ((rc = lend(queue, work, &lent)) == -EAGAIN)
        sched_yield(); // who polls the net is about to be done
    return rc == -ECONNRESET ? 0 : rc;
}

static int make_memory(struct ph_queue *queue)
{
    struct phi_host_executor *host = queue->executor;
    struct phi_relay *relay = relay_of(queue);

    if (relay)
        return 0;
    relay = calloc(1, sizeof(*relay));
    if (!relay)
        return phi_fail(host->params.report, -ENOMEM, "no memory for copies over the net");
    // Pairs with the acquire of whoever runs the queue meanwhile.
    atomic_store_explicit(&host->relays[queue->index], relay, memory_order_release);
    return 0;
}

int phi_relay_prepare(struct ph_queue *queue, const struct phi_work *work, size_t n)
{
    int rc = 0;

    for (size_t i = 0; i + 1 < n && !rc; i++) {
        if (work[i].kind != PHI_STEP_RELAY)
            continue;
        rc = make_memory(queue);
        if (!rc)
            rc = make_known(queue, &work[i]);
        if (!rc)
            rc = make_known(queue, &work[i + 1]);
    }
    return rc;
}

void phi_relay_free(struct phi_relay *relay)
{
    free(relay);
}

// ---- pieces

static struct phi_move *move_of(struct phi_relay *relay, uint64_t piece)
{
    return &relay->moves[piece % PIECES];
}

// So large that one goes out while the next ones come in.
static size_t piece_of(size_t size)
{
    const size_t piece = (size / PIECES / PAGE + 1) * PAGE;

    return piece < PIECE_LEAST ? PIECE_LEAST : piece < PIECE_MOST ? piece : PIECE_MOST;
}

static uint64_t pieces_of(const struct phi_relay *relay, size_t size)
{
    return size / relay->piece + (size % relay->piece != 0);
}

// Acquire: pairs with the release of who polled; what a read has brought is here.
static bool is_posted(struct phi_relay *relay, uint64_t piece)
{
    return atomic_load_explicit(&move_of(relay, piece)->state, memory_order_acquire) ==
           PHI_MOVE_POSTED;
}

static void break_end(struct phi_relay *relay, const struct phi_work *end)
{
    atomic_store(end->over.broken, 1); // what follows on the channel is skipped
    phi_work_undo(end);
    relay->given_up = true;
}

// is_broken returns whether one of the ends is broken. If only one is broken the other one stays
// good.
static bool is_broken(const struct phi_work *to, const struct phi_work *from)
{
    const struct phi_work *both[] = {to, from};
    bool broken = false;

    for (int i = 0; i < 2; i++) {
        if (!phi_work_broken(both[i]))
            continue;
        phi_work_undo(both[i]);
        broken = true;
    }
    return broken;
}

// is_over takes the end of a piece's move.
static bool is_over(struct phi_relay *relay, uint64_t piece, const struct phi_work *end)
{
    struct phi_move *move = move_of(relay, piece);

    if (is_posted(relay, piece))
        return false;
    if (atomic_load_explicit(&move->state, memory_order_relaxed) == PHI_MOVE_FAILED)
        break_end(relay, end);
    atomic_store_explicit(&move->state, PHI_MOVE_IDLE, memory_order_relaxed);
    return true;
}

// begin moves a piece between our memory and one end; false: later.
static bool begin(struct phi_relay *relay, uint64_t piece, const struct ends *ends, bool fetch)
{
    const struct phi_work *end = fetch ? ends->from : ends->to;
    uint8_t *memory = relay->memory[piece % PIECES];
    struct phi_move *move = move_of(relay, piece);
    const size_t offset = (size_t)piece * relay->piece, left = ends->to->span.size - offset;
    const size_t size = left < relay->piece ? left : relay->piece;
    int rc;

    if (!end->remote.route && fetch)
        memcpy(memory, (const uint8_t *)end->span.source + offset, size);
    else if (!end->remote.route)
        memcpy((uint8_t *)end->span.destination + offset, memory, size);
    if (!end->remote.route)
        return true;
    *move = (struct phi_move){
        .route = fetch ? &relay->from : &relay->to,
        .local = memory,
        .offset = end->remote.offset + offset,
        .size = size,
        .read = fetch,
    };
    rc = phi_move_start(move);
    if (rc && rc != -EAGAIN)
        break_end(relay, end);
    return rc == 0;
}

static bool land(struct phi_relay *relay, const struct ends *ends)
{
    if (relay->landed == relay->stored || !is_over(relay, relay->landed, ends->to))
        return false;
    relay->landed++;
    return true;
}

static bool store(struct phi_relay *relay, const struct ends *ends)
{
    if (relay->stored == relay->fetched || !is_over(relay, relay->stored, ends->from) ||
        relay->given_up || !begin(relay, relay->stored, ends, false))
        return false;
    relay->stored++;
    return true;
}

static bool has_place(const struct phi_relay *relay, const struct ends *ends)
{
    return relay->fetched < pieces_of(relay, ends->to->span.size) &&
           relay->fetched - relay->landed < PIECES;
}

static bool fetch(struct phi_relay *relay, const struct ends *ends)
{
    if (!has_place(relay, ends) || relay->given_up || !begin(relay, relay->fetched, ends, true))
        return false;
    relay->fetched++;
    return true;
}

// ---- the item

// Begins with the item; false: later.
static bool start(struct ph_queue *queue, const struct ends *ends)
{
    struct phi_relay *relay = relay_of(queue);
    const struct phi_work *both[] = {ends->to, ends->from};
    struct phi_route *lent[] = {&relay->to, &relay->from};

    for (int i = 0; i < 2; i++) {
        int rc = lend(queue, both[i], lent[i]);

        if (rc == -EAGAIN)
            return false;
        if (rc)
            break_end(relay, both[i]);
    }
    relay->piece = piece_of(ends->to->span.size);
    relay->fetched = relay->stored = relay->landed = 0;
    relay->begun = true;
    return true;
}

static void poll(const struct ends *ends)
{
    if (ends->from->remote.route)
        phi_route_poll(ends->from->remote.route);
    if (ends->to->remote.route)
        phi_route_poll(ends->to->remote.route);
}

// rests returns whether no move is under way. A relay that was given up may have moves in any
// place.
static bool rests(struct phi_relay *relay)
{
    for (uint64_t i = 0; i < PIECES; i++)
        if (is_posted(relay, i))
            return false;
    return true;
}

static bool finish(struct phi_relay *relay)
{
    for (uint64_t i = 0; i < PIECES; i++)
        atomic_store_explicit(&relay->moves[i].state, PHI_MOVE_IDLE, memory_order_relaxed);
    relay->begun = relay->given_up = false;
    return true;
}

bool phi_relay_run(struct ph_queue *queue, const struct phi_work *to, const struct phi_work *from)
{
    struct phi_relay *relay = relay_of(queue);
    const struct ends ends = {to, from};
    bool moved = true;

    if (!relay->begun && (to->span.size == 0 || is_broken(to, from)))
        return true;
    if (!relay->begun && !start(queue, &ends))
        return false;
    poll(&ends);
    while (moved) {
        if (!relay->given_up && relay->landed < pieces_of(relay, to->span.size))
            relay->given_up = is_broken(to, from);
        moved = land(relay, &ends);
        moved = store(relay, &ends) || moved;
        moved = fetch(relay, &ends) || moved;
        relay->steps += moved;
    }
    if (relay->given_up ? rests(relay) : relay->landed == pieces_of(relay, to->span.size))
        return finish(relay);
    return false;
}

bool phi_relay_look(struct ph_queue *queue, const struct phi_work *to, const struct phi_work *from)
{
    struct phi_relay *relay = relay_of(queue);
    const struct ends ends = {to, from};

    if (!relay->begun)
        return true;
    poll(&ends);
    if (relay->given_up)
        return rests(relay);
    return (relay->landed < relay->stored && !is_posted(relay, relay->landed)) ||
           (relay->stored < relay->fetched && !is_posted(relay, relay->stored)) ||
           has_place(relay, &ends);
}

uint64_t phi_relay_steps(const struct ph_queue *queue)
{
    const struct phi_relay *relay = relay_of(queue);

    return relay ? relay->steps : 0;
}

const struct phi_work *phi_relay_awaits(const struct ph_queue *queue, const struct phi_work *to,
                                        const struct phi_work *from)
{
    const struct phi_relay *relay = relay_of(queue);

    return relay->landed < relay->stored || !from->remote.route ? to : from;
}
