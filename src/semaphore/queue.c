// SPDX-License-Identifier: BSD-3-Clause
#include "semaphore/queue_state.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "semaphore/record.h"
#include "semaphore/staged.h"

enum {
    INLINE_BYTES = PHI_COPY_PIECE - 1,
    INLINE_ITEMS = 64, // of those that were enqueued before
    EAGER_SPINS = 64,  // looks at a word without a pause between them
    SPINS_MIN = 32,    // more ranks than cores: whoever is waited for needs this core
    SPINS_MAX = 4096,
    NAP_AFTER_MS = 10, // of waiting
    NAP_PART = 64,     // a nap costs so little of what has passed already ...
    NAP_MOST_MS = 1,   // ... and at most that
    ROLE_MS = 10,      // until another thread leaves the queue to who needs room
};

static bool interrupted(struct ph_queue *queue, const struct phi_run *run)
{
    if (run->gives_way && atomic_load_explicit(&queue->wanted, memory_order_relaxed))
        return true;
    return run->deadline != PHI_FOREVER && phi_now() >= run->deadline;
}

// Into a bounce buffer, or out of it: its head, before bytes are copied. Returns whether these may
// be. As the kernel does, which finds PHI_LEFT_OUT in a part that was left out.
static bool may_bounce(const struct phi_work *work)
{
    if (work->head == PHI_HEAD_WRITE) {
        if (phi_work_broken(work))
            return false;
        *(uint64_t *)((char *)work->span.destination - PHI_BOUNCE_HEAD) = work->span.message;
        return true;
    }
    if (!phi_work_came(work) || phi_line_mismatched(work->over.undone))
        return false;
    // If a post was left out, the word still shows the part before.
    if (atomic_load_explicit(work->over.undone, memory_order_relaxed))
        return false;
    const uint64_t got = *(const uint64_t *)((const char *)work->span.source - PHI_BOUNCE_HEAD);
    if (got == work->span.message)
        return true;
    phi_line_mismatch(work->over.undone, work->span.message, got);
    return false;
}

// copy moves the bytes piece by piece; queue->copied remembers how far it came for the next runner.
static bool copy(struct ph_queue *queue, const struct phi_work *work, struct phi_run *run)
{
    if (work->span.size - queue->copied > run->bytes)
        return false;
    run->bytes -= work->span.size - queue->copied;
    const bool takes = work->head == PHI_HEAD_CHECK; // what has come, whatever has ended since
    if (work->head && queue->copied == 0 && !may_bounce(work)) {
        phi_queue_cut(queue, work);
        return true;
    }
    while (queue->copied < work->span.size && (takes || !phi_work_broken(work))) {
        size_t n = work->span.size - queue->copied;

        if (n > PHI_COPY_PIECE)
            n = PHI_COPY_PIECE;
        memcpy((char *)work->span.destination + queue->copied,
               (const char *)work->span.source + queue->copied, n);
        queue->copied += n;
        if (queue->copied < work->span.size && interrupted(queue, run))
            return false;
    }
    if (queue->copied < work->span.size)
        phi_queue_cut(queue, work);
    queue->copied = 0;
    return true;
}

// pages copies a list row by row; queue->copied is the next row.
static bool pages(struct ph_queue *queue, const struct phi_work *work, struct phi_run *run)
{
    const struct phi_page_list *list = work->pages;
    if (list->bytes > run->bytes)
        return false;
    run->bytes -= list->bytes;
    while (!phi_work_broken(work)) {
        if (phi_page_list_run(list, &queue->copied, PHI_COPY_PIECE)) {
            queue->copied = 0;
            return true;
        }
        if (interrupted(queue, run))
            return false;
    }
    phi_queue_cut(queue, work);
    queue->copied = 0;
    return true;
}

// relay: of a mapped end the processor copies, which is nothing for an enqueue where it is much.
static bool relay(struct ph_queue *queue, const struct phi_work *to, const struct phi_work *from,
                  const struct phi_run *run)
{
    uint64_t steps;
    bool over;

    assert(from != NULL);
    if ((!to->remote.route || !from->remote.route) && to->span.size > run->bytes)
        return false;
    steps = phi_relay_steps(queue);
    over = phi_relay_run(queue, to, from);
    if (steps != phi_relay_steps(queue))
        queue->blocked_since = 0;
    return over;
}

static bool is_landed(struct ph_queue *queue)
{
    phi_flight_rest(queue);
    return phi_flight_landed(queue);
}

static bool wait(struct ph_queue *queue, const struct phi_work *work)
{
    if (!(work->remote.route ? phi_flight_await(work) : phi_queue_arrived(work)))
        return false;
    atomic_thread_fence(memory_order_acquire); // behind the look at `broken`
    queue->cut = false;
    if (!phi_work_came(work))
        phi_queue_cut(queue, work);
    return true;
}

// A broken channel copied nothing: a post would tell the peer that it did. But the next wait is not
// to find what this program's has taken. The release pairs with the acquire of the peer's wait.
static void post(struct ph_queue *queue, const struct phi_work *work)
{
    if (!phi_work_broken(work) || phi_post_answers(queue, work))
        atomic_store_explicit(work->word.host, work->word.value, memory_order_release);
}

static bool is_done(const struct ph_queue *queue, uint64_t target)
{
    return atomic_load_explicit(&queue->done, memory_order_relaxed) >= target;
}

// run_item returns false where the item is not over. next: the item after it of the same operation,
// or NULL.
static bool run_item(struct ph_queue *queue, const struct phi_work *work,
                     const struct phi_work *next, void (*fn)(void *), struct phi_run *run)
{
    if (!fn && work->kind == PHI_STEP_HOLD)
        return true;
    if (!fn && work->kind == PHI_STEP_WAIT)
        return wait(queue, work);
    if (!fn && work->remote.route && work->kind != PHI_STEP_RELAY)
        return phi_flight_run(queue, work, next);
    // This thread does the item itself, which takes time. The item comes behind the copies under
    // way.
    // A runner that waits for operations before the item's ends where these have landed.
    if (queue->airborne && (!is_landed(queue) || is_done(queue, run->target)))
        return false;
    if (fn) {
        fn(work->span.destination);
        return true;
    }
    if (phi_step_staged(work->kind))
        return phi_staged_run(work, &queue->copied);
    if (work->kind == PHI_STEP_RELAY)
        return relay(queue, work, next, run);
    if (work->kind == PHI_STEP_COPY)
        return copy(queue, work, run);
    if (work->kind == PHI_STEP_PAGES)
        return pages(queue, work, run);
    post(queue, work);
    return true;
}

static uint64_t left(struct ph_queue *queue)
{
    return atomic_load_explicit(&queue->issued, memory_order_relaxed) -
           atomic_load_explicit(&queue->done, memory_order_relaxed);
}

static bool is_empty(const struct ph_queue *queue)
{
    // Acquire: pairs with the producer's release of the items.
    return atomic_load_explicit(&queue->head, memory_order_relaxed) ==
           atomic_load_explicit(&queue->tail, memory_order_acquire);
}

// help lets a STAGE that cannot go on at the head wait beside the HELPs that go with it. True where
// one of them took something. Those of later operations must not begin.
static bool help(struct ph_queue *queue, uint64_t head)
{
    const uint64_t end = head + PHI_TOGETHER_MAX;
    const uint64_t tail = atomic_load_explicit(&queue->tail, memory_order_acquire);
    bool helped = false;

    for (uint64_t at = head; at < end && at < tail; at++) {
        const struct phi_item *item = phi_queue_item(queue, at);

        if (item->work.kind == PHI_STEP_HELP)
            helped = phi_staged_help(&item->work) || helped;
        else if (item->work.kind != PHI_STEP_STAGE)
            break;
        if (item->last)
            break;
    }
    return helped;
}

// run_items goes as far as it can: false where the head is not over.
static bool run_items(struct ph_queue *queue, struct phi_run *run)
{
    uint64_t head = atomic_load_explicit(&queue->head, memory_order_relaxed);

    while (!is_empty(queue)) {
        struct phi_item *item = phi_queue_item(queue, head);
        bool last = item->last;
        const struct phi_work *next = last ? NULL : &phi_queue_item(queue, head + 1)->work;

        if (is_done(queue, run->target))
            return true;
        if (run->items == 0)
            return false;
        run->items--;
        if (!run_item(queue, &item->work, next, item->fn, run)) {
            if (!item->fn && item->work.kind == PHI_STEP_STAGE && help(queue, head))
                continue;
            return false;
        }
        queue->blocked_since = 0;
        if (!item->fn && item->work.kind == PHI_STEP_PAGES)
            phi_page_list_drop(item->work.pages);
        atomic_store_explicit(&queue->head, ++head, memory_order_release);
        if (last) {
            phi_count(queue->executor->params.counters, in_flight, UINT64_MAX);
            phi_flight_finish(queue);
        }
    }
    return true;
}

bool phi_queue_run(struct ph_queue *queue, struct phi_run *run)
{
    bool ran = run_items(queue, run);

    if (queue->airborne && !is_landed(queue))
        return ran && is_done(queue, run->target);
    return ran;
}

// unclaim takes a number back that was not used: what claimed it first keeps the number before,
// which is done no later.
static void unclaim(const struct ph_queue *queue, const struct phi_work *work, size_t n,
                    uint64_t number)
{
    for (size_t i = 0; i < n; i++) {
        if (work[i].uses && atomic_load_explicit(&work[i].uses->number[queue->index],
                                                 memory_order_relaxed) == number)
            atomic_store_explicit(&work[i].uses->number[queue->index], number - 1,
                                  memory_order_seq_cst);
    }
}

// claim enters the operation's number wherever it touches something. Store, then look at revoked,
// both seq_cst: pairs with a revoker's store of revoked and its look at the numbers (struct
// phi_uses).
static int claim(const struct ph_queue *queue, const struct phi_work *work, size_t n,
                 uint64_t number)
{
    for (size_t i = 0; i < n; i++) {
        _Atomic uint64_t *own;
        uint64_t before;

        if (!work[i].uses)
            continue;
        own = &work[i].uses->number[queue->index];
        before = atomic_load_explicit(own, memory_order_relaxed);
        if (before == number)
            continue;
        atomic_store_explicit(own, number, memory_order_seq_cst);
        if (!atomic_load_explicit(&work[i].uses->revoked, memory_order_seq_cst))
            continue;
        atomic_store_explicit(own, before, memory_order_seq_cst);
        unclaim(queue, work, i, number);
        return phi_fail(queue->executor->params.report, PH_EBROKEN,
                        "operation %llu with rank %d: the channel is being given back",
                        (unsigned long long)work[i].op_id, work[i].peer);
    }
    return 0;
}

static void count(struct ph_queue *queue, const struct phi_work *work, size_t n)
{
    struct phi_counters *counters = queue->executor->params.counters;

    for (size_t i = 0; i < n; i++) {
        if (work[i].kind == PHI_STEP_WAIT || work[i].kind == PHI_STEP_UNSTAGE) {
            phi_count(counters, waits_host, 1);
        } else if (work[i].kind == PHI_STEP_COPY || work[i].kind == PHI_STEP_STAGE ||
                   work[i].kind == PHI_STEP_RELAY || work[i].kind == PHI_STEP_PAGES) {
            const bool net = work[i].remote.route != NULL || work[i].kind == PHI_STEP_STAGE ||
                             work[i].kind == PHI_STEP_RELAY;

            phi_count(counters, ipc_operations, !net);
            phi_count(counters, ipc_bytes, net ? 0 : work[i].span.size);
            phi_count(counters, net_operations, net);
            phi_count(counters, net_bytes, net ? work[i].span.size : 0);
        }
    }
}

// push puts items into the ring, for a runner. With the role and an empty ring it starts at the
// ring's first slot, so that a queue that is never deep stays in a few cache lines.
static void push(struct ph_queue *queue, const struct phi_work *work, size_t n, void (*fn)(void *),
                 bool restart)
{
    uint64_t tail = atomic_load_explicit(&queue->tail, memory_order_relaxed);

    if (restart && (tail & queue->mask)) {
        tail = (tail | queue->mask) + 1;
        atomic_store_explicit(&queue->head, tail, memory_order_relaxed);
    }
    for (size_t i = 0; i < n; i++) {
        struct phi_item *item = phi_queue_item(queue, tail + i);

        item->work = work[i];
        if (!fn && work[i].kind == PHI_STEP_PAGES)
            phi_page_list_hold(work[i].pages);
        item->fn = fn;
        item->last = i + 1 == n;
    }
    phi_count(queue->executor->params.counters, in_flight, 1);
    // Pairs with the acquire in phi_queue_run.
    atomic_store_explicit(&queue->tail, tail + n, memory_order_release);
}

static bool has_room(struct ph_queue *queue, size_t n)
{
    // The acquire pairs with the runner's release of head: it has read the slots that are written
    // next.
    return atomic_load_explicit(&queue->tail, memory_order_relaxed) -
               atomic_load_explicit(&queue->head, memory_order_acquire) + n <=
           (uint64_t)queue->mask + 1;
}

static int refuse_full(struct ph_queue *queue)
{
    return phi_refuse(queue->executor->params.report, -EAGAIN,
                      "the queue is full: %llu operations wait in it",
                      (unsigned long long)left(queue));
}

// grow makes room for n items more, with the role.
static int grow(struct ph_queue *queue, size_t n)
{
    struct phi_report *report = queue->executor->params.report;
    const uint64_t tail = atomic_load_explicit(&queue->tail, memory_order_relaxed);
    const uint64_t head = atomic_load_explicit(&queue->head, memory_order_relaxed);
    struct phi_item *ring, *old = queue->ring;
    uint64_t slots = queue->mask + UINT64_C(1);

    while (slots < tail - head + n)
        slots *= 2;
    if (slots > PHI_RING_MOST)
        return refuse_full(queue);
    ring = malloc(slots * sizeof(*ring));
    if (!ring)
        return phi_fail(report, -ENOMEM, "no memory for %llu steps of a queue",
                        (unsigned long long)slots);
    for (uint64_t at = head; at < tail; at++)
        ring[at & (slots - 1)] = *phi_queue_item(queue, at);
    pthread_mutex_lock(&queue->executor->lock);
    queue->ring = ring;
    queue->mask = (uint32_t)(slots - 1);
    pthread_mutex_unlock(&queue->executor->lock);
    free(old);
    return 0;
}

// A thread that synchronises may have the role, and makes room as it goes; the worker gives way.
static int make_room(struct ph_queue *queue, size_t n, bool *role)
{
    const int64_t since = phi_now(), soon = since + ROLE_MS * PHI_MS;
    int rc = 0;

    if (has_room(queue, n))
        return 0;
    atomic_fetch_add_explicit(&queue->wanted, 1, memory_order_relaxed);
    while (!rc && !*role && !has_room(queue, n) && !(*role = phi_queue_take(queue)))
        rc = phi_queue_rest(since) >= soon ? refuse_full(queue) : 0;
    atomic_fetch_sub_explicit(&queue->wanted, 1, memory_order_relaxed);
    return rc || has_room(queue, n) ? rc : grow(queue, n);
}

// start runs an operation that nothing is before, and rings from the first item that cannot be run
// at once.
static void start(struct ph_queue *queue, const struct phi_work *work, size_t n, void (*fn)(void *),
                  struct phi_run *run)
{
    size_t i = 0;

    while (i < n && run_item(queue, &work[i], i + 1 < n ? &work[i + 1] : NULL, fn, run))
        i++;
    if (i == n)
        phi_flight_finish(queue);
    else
        push(queue, work + i, n - i, fn, true);
    if (queue->airborne)
        phi_flight_rest(queue);
}

int phi_queue_enqueue(struct ph_queue *queue, const struct phi_work *work, size_t n,
                      void (*fn)(void *opaque))
{
    struct phi_run run = {UINT64_MAX, INLINE_BYTES, INLINE_ITEMS, PHI_FOREVER, false};
    uint64_t number = atomic_load_explicit(&queue->issued, memory_order_relaxed) + 1;
    bool role = phi_queue_take(queue);
    bool first = false;
    int rc;

    if (role) {
        phi_queue_run(queue, &run);
        first = is_empty(queue); // what is under way may have others beside it
    }

    rc = make_room(queue, n, &role);
    if (!rc)
        rc = claim(queue, work, n, number);
    if (rc)
        goto drop_role;
    rc = phi_relay_prepare(queue, work, n);
    if (rc) {
        unclaim(queue, work, n, number);
        goto drop_role;
    }
    atomic_store_explicit(&queue->issued, number, memory_order_relaxed);
    if (first)
        start(queue, work, n, fn, &run);
    else
        push(queue, work, n, fn, false);

drop_role:
    if (role)
        phi_queue_drop(queue);
    // After the role is free: what counts is not what the peer waits for.
    if (!rc && !fn)
        count(queue, work, n);
    return rc;
}

// route: of what is waited for, or NULL: while it moves large data the sleep is none.
static int64_t rest(int64_t since, const struct phi_route *route)
{
    int64_t now, nap;

    sched_yield();
    now = phi_now();
    nap = (now - since) / NAP_PART;
    if (nap > NAP_MOST_MS * PHI_MS)
        nap = NAP_MOST_MS * PHI_MS;
    if (now - since > NAP_AFTER_MS * PHI_MS && !(route && phi_route_nap(route, nap)))
        nanosleep(&(struct timespec){.tv_nsec = nap}, NULL);
    return now;
}

int64_t phi_queue_rest(int64_t since)
{
    return rest(since, NULL);
}

// The other end of the RELAY at the head.
static const struct phi_work *from_of(const struct ph_queue *queue)
{
    uint64_t head = atomic_load_explicit(&queue->head, memory_order_relaxed);

    return &phi_queue_item(queue, head + 1)->work;
}

// front returns the oldest copy under way, or else the head.
static const struct phi_work *front(const struct ph_queue *queue, bool *host)
{
    const struct phi_work *oldest = phi_flight_oldest(queue);
    uint64_t head = atomic_load_explicit(&queue->head, memory_order_relaxed);
    const struct phi_item *item = phi_queue_item(queue, head);

    *host = !oldest && item->fn;
    if (!oldest && !item->fn && item->work.kind == PHI_STEP_RELAY)
        return phi_relay_awaits(queue, &item->work, from_of(queue));
    return oldest ? oldest : &item->work;
}

int phi_queue_late(struct ph_queue *queue)
{
    bool host;
    const struct phi_work *work = front(queue, &host);
    struct phi_report *report = queue->executor->params.report;
    double seconds = queue->blocked_since ? (double)(phi_now() - queue->blocked_since) / 1e9 : 0.0;
    unsigned long long operations = left(queue);
    char suspicion[80];

    phi_executor_suspicion(&queue->executor->base, work->peer, suspicion, sizeof(suspicion));
    if (!host && work->remote.route && work->kind != PHI_STEP_WAIT)
        return phi_fail(report, -ETIMEDOUT,
                        "operation %llu (%s) with rank %d: %zu bytes are not delivered by the net "
                        "for %.3f s%s; %llu operations are left in the queue",
                        (unsigned long long)work->op_id, phi_program_name(work->call), work->peer,
                        work->span.size, seconds, suspicion, operations);
    if (!host && phi_step_staged(work->kind))
        return phi_fail(report, -ETIMEDOUT,
                        "rank %d has %s operation %llu (%s) for %.3f s%s; %llu operations are left "
                        "in the queue",
                        work->peer,
                        work->kind == PHI_STEP_STAGE ? "taken nothing of" : "sent nothing for",
                        (unsigned long long)work->op_id, phi_program_name(work->call), seconds,
                        suspicion, operations);
    if (host || work->kind != PHI_STEP_WAIT)
        return phi_fail(report, -ETIMEDOUT, "a queue still runs; %llu operations are left in it",
                        operations);
    return phi_fail(report, -ETIMEDOUT,
                    "rank %d has not written '%s' for operation %llu (%s) for %.3f s%s; %llu "
                    "operations are left in the queue",
                    work->peer, phi_program_awaits(work->call), (unsigned long long)work->op_id,
                    work->call < PHI_CALL_COUNT ? phi_programs[work->call].name : "unknown",
                    seconds, suspicion, operations);
}

// looked_for returns the work that the head waits for, as long as looking for it makes sense, or
// NULL.
static const struct phi_work *looked_for(const struct ph_queue *queue)
{
    uint64_t head = atomic_load_explicit(&queue->head, memory_order_relaxed);
    const struct phi_item *item = phi_queue_item(queue, head);

    if (is_empty(queue) || item->fn ||
        (item->work.kind != PHI_STEP_WAIT && item->work.kind != PHI_STEP_RELAY &&
         !item->work.remote.route))
        return NULL;
    return &item->work;
}

static bool is_over(struct ph_queue *queue, const struct phi_work *work)
{
    if (phi_flight_look(queue))
        return true;
    if (!work)
        return false;
    if (work->kind == PHI_STEP_RELAY) // unless it waits for what is before it
        return !phi_flight_oldest(queue) && phi_relay_look(queue, work, from_of(queue));
    if (!work->remote.route)
        return phi_queue_arrived(work);
    if (work->kind == PHI_STEP_WAIT)
        return phi_flight_await(work);
    phi_route_poll(work->remote.route);
    return !phi_flight_oldest(queue); // else it waits for that one
}

// spin looks at the head for a while. What is waited for usually comes within a few looks;
// where it did not, the next wait gives the core away sooner.
static bool spin(struct ph_queue *queue, const struct phi_work *work)
{
    for (uint32_t i = 0; i < queue->spins; i++) {
        if (is_over(queue, work)) {
            if (i > 0 && queue->spins < SPINS_MAX)
                queue->spins *= 2;
            return true;
        }
        if (i >= EAGER_SPINS)
            phi_pause();
    }
    if (queue->spins > SPINS_MIN)
        queue->spins /= 2;
    return false;
}

// await waits until the head can go on, or a copy under way is over. -EINTR: there is something to
// tell the application first.
static int await(struct ph_queue *queue, int64_t deadline)
{
    const struct phi_work *work = looked_for(queue), *oldest = phi_flight_oldest(queue);

    if ((work || oldest) && spin(queue, work)) {
        // A relay has something to do again and again.
        if (work && work->kind == PHI_STEP_RELAY && phi_now() >= deadline)
            return phi_queue_late(queue);
        return 0;
    }
    if (!queue->blocked_since)
        queue->blocked_since = phi_now();
    oldest = phi_flight_oldest(queue);
    if (rest(queue->blocked_since, oldest ? oldest->remote.route
                                   : work ? work->remote.route
                                          : NULL) >= deadline)
        return phi_queue_late(queue);
    return phi_executor_untold(&queue->executor->base) ? -EINTR : 0;
}

// late_role reports the message for which the thread that runs the queue waits, if it waits.
static int late_role(struct ph_queue *queue)
{
    struct phi_host_executor *host = queue->executor;
    struct phi_progress progress;
    struct phi_wait_note note = {0};
    char waits[160] = "";

    host->base.ops->progress(&host->base, (uint32_t)(queue - host->queues), &progress, &note);
    if (note.number)
        snprintf(waits, sizeof(waits), ": rank %d has not written '%s' for operation %llu (%s)",
                 note.peer, phi_program_awaits(note.call), (unsigned long long)note.op_id,
                 phi_program_name(note.call));
    return phi_fail(host->params.report, -ETIMEDOUT,
                    "another thread runs the queue%s; %llu operations are left in it", waits,
                    (unsigned long long)left(queue));
}

// As is_done, and what the operations brought is seen, too.
static bool has_run(const struct ph_queue *queue, uint64_t target)
{
    return atomic_load_explicit(&queue->done, memory_order_acquire) >= target;
}

// take_role waits for the role; the worker that has it gives way. It ends without the role (false)
// where the target is done meanwhile, by whoever had it.
static int take_role(struct ph_queue *queue, uint64_t target, int64_t deadline, bool *role)
{
    int64_t since;
    int rc = 0;

    *role = phi_queue_take(queue);
    if (*role)
        return 0;
    since = phi_now();
    atomic_fetch_add_explicit(&queue->wanted, 1, memory_order_relaxed);
    while (!(*role = phi_queue_take(queue)) && !has_run(queue, target)) {
        if (phi_queue_rest(since) >= deadline) {
            rc = late_role(queue);
            break;
        }
    }
    atomic_fetch_sub_explicit(&queue->wanted, 1, memory_order_relaxed);
    return rc;
}

void phi_queue_progress(const struct ph_queue *queue, struct phi_progress *progress)
{
    progress->done = atomic_load_explicit(&queue->done, memory_order_acquire);
    progress->issued = atomic_load_explicit(&queue->issued, memory_order_relaxed);
    // An operation may be done before it is counted as issued.
    if (progress->issued < progress->done)
        progress->issued = progress->done;
}

int phi_queue_wait(struct ph_queue *queue, uint64_t target, int64_t deadline)
{
    struct phi_run run = {target, SIZE_MAX, UINT32_MAX, deadline, false};
    bool role = false;
    int rc;

    if (has_run(queue, target))
        return 0;
    rc = take_role(queue, target, deadline, &role);
    if (rc || !role)
        return rc;
    const int64_t since = phi_now();
    while (!rc) {
        const bool ran = phi_queue_run(queue, &run);
        if (has_run(queue, target))
            break;
        run.bytes = SIZE_MAX;
        run.items = UINT32_MAX;
        // A thread that enqueues counts the operation before it puts the items into the ring.
        if (!ran)
            rc = await(queue, deadline);
        else if (phi_queue_rest(since) >= deadline)
            rc = phi_fail(queue->executor->params.report, -ETIMEDOUT,
                          "another thread enqueues on the queue, and has not ended that");
    }
    phi_queue_drop(queue);
    return rc;
}
