// SPDX-License-Identifier: BSD-3-Clause
// The ring of a queue and who runs it. Only for queue.c, flight.c, relay.c and host_executor.c.
//
// A producer (one thread at a time) enqueues; a runner, the holder of the role, runs items in
// order. The producer itself, the thread that synchronises and the executor's worker all become
// runners by a try-lock; nobody waits inside it but the thread that synchronises.
#ifndef PHI_SEMAPHORE_QUEUE_STATE_H
#define PHI_SEMAPHORE_QUEUE_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "semaphore/executor.h"

enum {
    // Powers of two: what a queue has room for at first, and at most.
    PHI_RING_ITEMS = 8192,
    PHI_RING_MOST = 1 << 18,
    // Nothing of this size is copied inside an enqueue; copies are cut into pieces of it, between
    // which the runner looks whether the channel broke, its time is over or another thread wants
    // the role.
    PHI_COPY_PIECE = 256 << 10,
};

struct phi_item {
    struct phi_work work;
    void (*fn)(void *opaque); // instead of work: called with work.destination
    bool last;                // of its operation
};

// A queue takes 256 bytes: the address alone says whether a stream is a queue of the executor.
struct ph_queue {
    // The producer's line.
    _Alignas(256) struct phi_item *ring; // grows under the role and the lock; NULL: not in use
    struct phi_host_executor *executor;
    uint32_t index; // of the record: in phi_uses.number
    bool in_use;    // changes under the lock
    bool shared;    // the default queue: any thread may enqueue, so they take turns by `producing`
    _Atomic uint32_t producing;
    uint32_t mask;           // slots of the ring less one; changes with it
    _Atomic uint64_t tail;   // items enqueued (release; pairs with the runner's acquire)
    _Atomic uint64_t issued; // operations enqueued

    // The runner's line. The role: exchange (acquire), store 0 (release).
    _Alignas(64) _Atomic uint32_t role;
    _Atomic uint32_t wanted; // threads that synchronise and do not have the role yet
    _Atomic uint64_t
        head;      // items run (release; pairs with the producer's acquire: the slot is free again)
    size_t copied; // of the copy at the head, by whoever had the role
    int64_t
        blocked_since; // the head waits since then, as far as anybody looked; 0: not seen to wait
    uint32_t spins;    // how long the next wait spins before it yields
    bool told;         // the post at the head went with the copy before it
    bool cut;          // of the program at the head: its wait got nothing, or its copy was skipped
    bool airborne;     // its flight has copies under way, or holds a post

    // The operations done (release; pairs with the acquire of who synchronises or drains).
    _Alignas(64) _Atomic uint64_t done;
};
_Static_assert(sizeof(struct ph_queue) == 256, "see phi_host_executor.queues");

// Copies over the net that are under way, oldest first. An operation is done when its last copy,
// and all before it, are delivered: each copy ends the operations that end behind it and before the
// next one. A post may wait for the next one to the same peer (phi_link_hold), no longer than the
// runner has the role; `ends` then are the operations that wait for it.
enum { PHI_FLYING_MAX = 8 };

struct phi_flying {
    struct phi_move move;
    struct phi_work work;
    uint32_t ends;
};

struct phi_flight {
    uint32_t first, count;
    uint32_t ends;
    const struct phi_route *held; // or NULL
    struct phi_flying slots[PHI_FLYING_MAX];
};

struct phi_relay; // copies between two peers, of a queue

struct phi_host_executor {
    struct phi_executor base;
    struct phi_executor_params params;
    pthread_mutex_t lock; // guards which queues are in use, their rings, and stopping
    pthread_cond_t stop;
    bool stopping;
    pthread_t worker;
    _Atomic uint32_t used;                      // queues[0 .. used) have been in use
    struct phi_flight flights[PHI_STREAMS_MAX]; // by queue
    _Atomic(struct phi_relay *)
        relays[PHI_STREAMS_MAX];             // by queue; NULL before its first such copy
    struct ph_queue queues[PHI_STREAMS_MAX]; // [0] stands for the NULL stream
};

// How far a runner may go.
struct phi_run {
    uint64_t target;  // until this operation is done
    size_t bytes;     // to be copied, at most
    uint32_t items;   // to be run, at most
    int64_t deadline; // looked at between the pieces of a copy
    bool gives_way;   // to a thread that synchronises
};

static inline bool phi_queue_take(struct ph_queue *queue)
{
    return !atomic_load_explicit(&queue->role, memory_order_relaxed) &&
           !atomic_exchange_explicit(&queue->role, 1, memory_order_acquire);
}

static inline void phi_queue_drop(struct ph_queue *queue)
{
    atomic_store_explicit(&queue->role, 0, memory_order_release);
}

static inline struct phi_item *phi_queue_item(const struct ph_queue *queue, uint64_t position)
{
    return &queue->ring[position & queue->mask];
}

static inline bool phi_queue_busy(struct ph_queue *queue)
{
    return atomic_load_explicit(&queue->done, memory_order_acquire) <
           atomic_load_explicit(&queue->issued, memory_order_relaxed);
}

// phi_work_broken: whether the end of the peer has let its wait go, so that nothing is to be
// copied.
static inline bool phi_work_broken(const struct phi_work *work)
{
    return work->over.broken && atomic_load_explicit(work->over.broken, memory_order_relaxed);
}

// arrived tells whether a wait is over. The acquire pairs with the release of the peer's post: what
// the peer copied before it is seen by whatever runs after this.
static inline bool phi_queue_arrived(const struct phi_work *work)
{
    return (atomic_load_explicit(work->word.host, memory_order_acquire) & work->word.value) != 0 ||
           phi_work_broken(work);
}

// phi_work_came returns whether the peer has posted, for a wait that is over. The caller has looked
// at `broken` before: a post from before `broken` was set has come.
static inline bool phi_work_came(const struct phi_work *work)
{
    const uint32_t word = atomic_load_explicit(work->word.host, memory_order_acquire);

    return (word & (work->word.value | PHI_BIT_ADDED(work->word.value))) == work->word.value;
}

// phi_work_undo notes that some of an operation's work was left out; before its number.
static inline void phi_work_undo(const struct phi_work *work)
{
    if (work->over.undone)
        atomic_store_explicit(work->over.undone, 1, memory_order_relaxed);
}

// phi_queue_cut does so of a wait or a copy; the post behind it in its program is left out, too.
static inline void phi_queue_cut(struct ph_queue *queue, const struct phi_work *work)
{
    queue->cut = true;
    phi_work_undo(work);
}

// phi_post_answers: of a post on a broken channel, whether it only says that what its program has
// waited for was taken, and that was so. One that does not leaves out some of its operation.
static inline bool phi_post_answers(const struct ph_queue *queue, const struct phi_work *work)
{
    if (!work->answers)
        phi_work_undo(work);
    return work->answers && !queue->cut;
}

// phi_queue_run runs items until the run's limits (false), or until there is none left and no copy
// under way, or the target is done (true). Under the role.
bool phi_queue_run(struct ph_queue *queue, struct phi_run *run);

// ---- flight.c: items over the net. All under the role.

// phi_flight_run, of a copy or a post, returns false where the item is not over; a copy is when it
// is posted. next: the item after it of the same operation, or NULL. await: a wait; it polls.
bool phi_flight_run(struct ph_queue *queue, const struct phi_work *work,
                    const struct phi_work *next);
bool phi_flight_await(const struct phi_work *work);
// phi_flight_finish: the last item of an operation is over.
void phi_flight_finish(struct ph_queue *queue);
// phi_flight_look polls, and takes the copies that are delivered; true where there were some.
// landed: none is left.
bool phi_flight_look(struct ph_queue *queue);
bool phi_flight_landed(struct ph_queue *queue);
const struct phi_work *phi_flight_oldest(const struct ph_queue *queue); // or NULL
// phi_flight_rest sends the post that is held.
void phi_flight_rest(struct ph_queue *queue);

// ---- relay.c: RELAY items, with the HOLD that follows. All under the role, but for the first two.

// phi_relay_prepare gets what the items' RELAYs need, before they are enqueued; it allocates for
// the first one of a queue. -ENOMEM, or the provider refuses. free: NULL is fine.
int phi_relay_prepare(struct ph_queue *queue, const struct phi_work *work, size_t n);
void phi_relay_free(struct phi_relay *relay);

// phi_relay_run returns false where the item is not over: all bytes are delivered, or one of the
// channels is broken and nothing is under way.
bool phi_relay_run(struct ph_queue *queue, const struct phi_work *to, const struct phi_work *from);
// phi_relay_look polls; whether run would find something to do. steps: what run has done so far, of
// any item. awaits: whose peer is waited for.
bool phi_relay_look(struct ph_queue *queue, const struct phi_work *to, const struct phi_work *from);
uint64_t phi_relay_steps(const struct ph_queue *queue);
const struct phi_work *phi_relay_awaits(const struct ph_queue *queue, const struct phi_work *to,
                                        const struct phi_work *from);

// phi_queue_enqueue takes n items, or the call fn(work->destination) with n == 1, as one operation:
// runs what can be run at once if nothing is before it. By the producer. Results of
// phi_executor_ops.issue.
int phi_queue_enqueue(struct ph_queue *queue, const struct phi_work *work, size_t n,
                      void (*fn)(void *opaque));

// phi_queue_rest lets others run after looks at the queue that brought nothing: yields, and sleeps
// when that has been so since long. Returns the time.
int64_t phi_queue_rest(int64_t since);

// phi_queue_late reports what the head of the queue waits for and returns -ETIMEDOUT. Under the
// role.
int phi_queue_late(struct ph_queue *queue);

#endif
