// SPDX-License-Identifier: BSD-3-Clause
// The host executor: its queues, its worker, and what it tells about all of them.
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/thread.h"
#include "semaphore/queue_state.h"
#include "semaphore/record.h"

enum { SPINS_AT_FIRST = 4096 };

static struct phi_host_executor *host_of(struct phi_executor *executor)
{
    return (struct phi_host_executor *)executor;
}

// find_queue answers from the address alone, which may be anything; NULL: not a queue in use.
static struct ph_queue *find_queue(struct phi_host_executor *host, void *stream)
{
    uintptr_t at = (uintptr_t)stream - (uintptr_t)host->queues;
    struct ph_queue *queue = stream ? stream : &host->queues[0];

    if (stream && (at >= sizeof(host->queues) || at % sizeof(*queue)))
        return NULL;
    return queue->in_use ? queue : NULL;
}

// The default queue may be anybody's: its producers take turns. The others have one producer, by
// contract.
static void producer_enter(struct ph_queue *queue)
{
    while (queue->shared && atomic_exchange_explicit(&queue->producing, 1, memory_order_acquire))
        sched_yield(); // who is inside is about to leave, but may have lost its core
}

static void producer_leave(struct ph_queue *queue)
{
    if (queue->shared)
        atomic_store_explicit(&queue->producing, 0, memory_order_release);
}

static int host_issue(struct phi_executor *executor, void *stream, const struct phi_work *work,
                      size_t n, bool *partial)
{
    struct phi_host_executor *host = host_of(executor);
    struct ph_queue *queue = find_queue(host, stream);
    int rc;

    *partial = false;
    if (!queue)
        return phi_fail(host->params.report, -EINVAL, "%p is not a queue of this context", stream);
    if (n > PHI_RING_MOST)
        return phi_fail(host->params.report, -EINVAL, "an operation of %zu steps; a queue holds %d",
                        n, PHI_RING_MOST);
    producer_enter(queue);
    rc = phi_queue_enqueue(queue, work, n, NULL);
    producer_leave(queue);
    return rc;
}

int phi_queue_host(struct ph_queue *queue, void (*fn)(void *), void *opaque)
{
    struct phi_work work = {.kind = PHI_STEP_COPY, .span.destination = opaque};
    struct phi_host_executor *host = queue->executor;

    if (!fn)
        return phi_fail(host->params.report, -EINVAL, "no function to call");
    return phi_queue_enqueue(queue, &work, 1, fn);
}

struct phi_executor *phi_queue_executor(struct ph_queue *queue)
{
    return &queue->executor->base;
}

struct phi_report *phi_queue_report(struct ph_queue *queue)
{
    return queue->executor->params.report;
}

int64_t phi_queue_deadline(struct ph_queue *queue)
{
    return phi_deadline(queue->executor->params.config->deadline_ms);
}

static uint32_t used(struct phi_host_executor *host)
{
    return atomic_load_explicit(&host->used, memory_order_acquire);
}

static int describe(uint32_t queues, char *why, size_t why_size)
{
    return why ? snprintf(why, why_size, "%u %s", queues, queues == 1 ? "queue" : "queues") : 0;
}

static uint32_t queues_with(struct phi_host_executor *host, struct phi_uses *uses)
{
    uint32_t queues = 0;

    for (uint32_t i = 0; i < used(host); i++) {
        // seq_cst: pairs with the store in claim(), see struct phi_uses.
        uint64_t number = atomic_load_explicit(&uses->number[i], memory_order_seq_cst);

        queues += atomic_load_explicit(&host->queues[i].done, memory_order_acquire) < number;
    }
    return queues;
}

static void host_left(struct phi_executor *executor, struct phi_uses *uses, struct phi_left *left)
{
    *left = (struct phi_left){.streams = queues_with(host_of(executor), uses)};
}

static bool host_drained(struct phi_executor *executor, struct phi_uses *uses, char *why,
                         size_t why_size)
{
    uint32_t queues = queues_with(host_of(executor), uses);

    if (queues > 0)
        describe(queues, why, why_size);
    return queues == 0;
}

// note_head copies what the head of a queue waits for. Without the role, which a thread that
// synchronises keeps: the item stays as it is until the head has moved on.
static void note_head(const struct ph_queue *queue, struct phi_wait_note *note)
{
    uint64_t head = atomic_load_explicit(&queue->head, memory_order_acquire);
    // Pairs with the producer's release: the item is whole.
    uint64_t tail = atomic_load_explicit(&queue->tail, memory_order_acquire);
    const struct phi_work *work;

    if (!queue->in_use || head >= tail)
        return;
    work = &phi_queue_item(queue, head)->work;
    if (work->kind != PHI_STEP_WAIT)
        return;
    *note = (struct phi_wait_note){
        .number = atomic_load_explicit(&queue->done, memory_order_relaxed) + 1,
        .op_id = work->op_id,
        .peer = work->peer,
        .call = work->call,
    };
    atomic_thread_fence(memory_order_acquire); // the item is read before the head again
    if (atomic_load_explicit(&queue->head, memory_order_relaxed) != head)
        note->number = 0;
}

static bool host_progress(struct phi_executor *executor, uint32_t index,
                          struct phi_progress *progress, struct phi_wait_note *note)
{
    struct phi_host_executor *host = host_of(executor);
    const struct ph_queue *queue = &host->queues[index];

    if (index >= used(host))
        return false;
    phi_queue_progress(queue, progress);
    if (!note)
        return true;
    *note = (struct phi_wait_note){0};
    // The lock keeps the ring from being freed.
    if (pthread_mutex_trylock(&host->lock) == 0) {
        note_head(queue, note);
        pthread_mutex_unlock(&host->lock);
    }
    return true;
}

static bool host_busy(struct phi_executor *executor, char *why, size_t why_size)
{
    struct phi_host_executor *host = host_of(executor);
    uint32_t queues = 0;

    for (uint32_t i = 0; i < used(host); i++)
        queues += phi_queue_busy(&host->queues[i]);
    if (queues > 0)
        describe(queues, why, why_size);
    return queues > 0;
}

// turn runs what can be run of a queue on which nobody else is; true if that was something.
static bool turn(struct ph_queue *queue, int64_t deadline)
{
    struct phi_run run = {UINT64_MAX, SIZE_MAX, UINT32_MAX, deadline, true};
    uint64_t head, done, steps;
    bool ran;

    if (!phi_queue_busy(queue) || atomic_load_explicit(&queue->wanted, memory_order_relaxed) ||
        !phi_queue_take(queue))
        return false;
    head = atomic_load_explicit(&queue->head, memory_order_relaxed);
    done = atomic_load_explicit(&queue->done, memory_order_relaxed);
    steps = phi_relay_steps(queue);
    if (!phi_queue_run(queue, &run) && !queue->blocked_since)
        queue->blocked_since = phi_now();
    ran = head != atomic_load_explicit(&queue->head, memory_order_relaxed) ||
          done != atomic_load_explicit(&queue->done, memory_order_relaxed) ||
          steps != phi_relay_steps(queue);
    phi_queue_drop(queue);
    return ran;
}

static bool turn_all(struct phi_host_executor *host, int64_t deadline)
{
    bool ran = false;

    for (uint32_t i = 0; i < used(host); i++)
        ran |= turn(&host->queues[i], deadline);
    return ran;
}

// late_elsewhere is late where other threads run all queues that are busy: what one of them waits
// for.
static int late_elsewhere(struct phi_host_executor *host)
{
    struct phi_progress progress;
    struct phi_wait_note note;

    for (uint32_t i = 0; i < used(host); i++)
        if (host_progress(&host->base, i, &progress, &note) && note.number)
            return phi_fail(host->params.report, -ETIMEDOUT,
                            "rank %d has not written '%s' for operation %llu (%s); another thread "
                            "runs the queue",
                            note.peer, phi_program_awaits(note.call),
                            (unsigned long long)note.op_id, phi_program_name(note.call));
    return phi_fail(host->params.report, -ETIMEDOUT, "queues of the context still run");
}

// late names the oldest wait of all queues. It keeps the role of the oldest one seen so far.
static int late(struct phi_host_executor *host)
{
    struct ph_queue *queues = host->queues;
    int oldest = -1;
    int rc;

    for (int i = 0; i < (int)used(host); i++) {
        if (!phi_queue_take(&queues[i]))
            continue;
        if (!phi_queue_busy(&queues[i]) ||
            (oldest >= 0 && queues[i].blocked_since >= queues[oldest].blocked_since)) {
            phi_queue_drop(&queues[i]);
            continue;
        }
        if (oldest >= 0)
            phi_queue_drop(&queues[oldest]);
        oldest = i;
    }
    if (oldest < 0)
        return late_elsewhere(host);
    rc = phi_queue_late(&queues[oldest]);
    phi_queue_drop(&queues[oldest]);
    return rc;
}

static int host_flush(struct phi_executor *executor, int64_t deadline)
{
    struct phi_host_executor *host = host_of(executor);
    int64_t since = phi_now();

    while (host_busy(executor, NULL, 0)) {
        const bool ran = turn_all(host, deadline);
        const int64_t now = ran ? phi_now() : phi_queue_rest(since);

        if (ran)
            since = now;
        if (now >= deadline && host_busy(executor, NULL, 0))
            return late(host);
    }
    return 0;
}

// work_on runs what nobody synchronises on. After something could be run, more may soon follow: it
// looks again for as long as a blocking call would spin, and only then parks.
static void work_on(struct phi_host_executor *host)
{
    int64_t spin = host->params.config->spin_us * 1000;
    int64_t now = phi_now();
    int64_t ran_at = now - spin;

    do {
        if (turn_all(host, PHI_FOREVER))
            ran_at = now;
        now = phi_queue_rest(now);
    } while (now - ran_at < spin && host_busy(&host->base, NULL, 0));
}

static void *worker_main(void *opaque)
{
    struct phi_host_executor *host = opaque;
    struct timespec at;

    pthread_mutex_lock(&host->lock);
    while (!host->stopping) {
        pthread_mutex_unlock(&host->lock);
        work_on(host);
        clock_gettime(CLOCK_MONOTONIC, &at);
        at.tv_nsec += host->params.config->worker_park_us * 1000;
        at.tv_sec += at.tv_nsec / 1000000000;
        at.tv_nsec %= 1000000000;
        pthread_mutex_lock(&host->lock);
        // Nobody signals but close: an enqueue that woke the worker would make a system call.
        if (!host->stopping)
            pthread_cond_timedwait(&host->stop, &host->lock, &at);
    }
    pthread_mutex_unlock(&host->lock);
    return NULL;
}

static int start_worker(struct phi_host_executor *host)
{
    int rc = phi_thread_start(&host->worker, "peerhop-queues", worker_main, host);

    if (rc)
        return phi_fail(host->params.report, rc, "the worker of the queues cannot start: %s",
                        ph_strerror(rc));
    return 0;
}

static void stop_worker(struct phi_host_executor *host)
{
    pthread_mutex_lock(&host->lock);
    host->stopping = true;
    pthread_cond_signal(&host->stop);
    pthread_mutex_unlock(&host->lock);
    pthread_join(host->worker, NULL);
}

// open_queue gives a free queue its ring. Its numbers go on where the one before it ended, so that
// phi_uses stay right.
static int open_queue(struct phi_host_executor *host, struct ph_queue *queue)
{
    struct phi_item *ring = calloc(PHI_RING_ITEMS, sizeof(*ring));
    uint32_t index = (uint32_t)(queue - host->queues);

    if (!ring)
        return phi_fail(host->params.report, -ENOMEM, "no memory for a queue");
    queue->executor = host;
    queue->index = index;
    queue->shared = index == 0;
    queue->spins = SPINS_AT_FIRST;
    queue->ring = ring;
    queue->in_use = true;
    queue->mask = PHI_RING_ITEMS - 1;
    if (index >= used(host))
        atomic_store_explicit(&host->used, index + 1, memory_order_release);
    return 0;
}

int phi_queue_create(struct phi_executor *executor, struct ph_queue **queue)
{
    struct phi_host_executor *host = host_of(executor);
    struct ph_queue *free_queue = NULL;
    int rc;

    pthread_mutex_lock(&host->lock);
    for (uint32_t i = 0; i < PHI_STREAMS_MAX && !free_queue; i++)
        if (!host->queues[i].in_use)
            free_queue = &host->queues[i];
    if (free_queue)
        rc = open_queue(host, free_queue);
    else
        rc = phi_fail(host->params.report, -EAGAIN, "the context has %d queues already",
                      PHI_STREAMS_MAX);
    pthread_mutex_unlock(&host->lock);
    if (!rc)
        *queue = free_queue;
    return rc;
}

int phi_queue_destroy(struct ph_queue *queue)
{
    struct phi_host_executor *host = queue->executor;

    if (phi_queue_busy(queue))
        return phi_fail(host->params.report, -EBUSY, "operations are left in the queue");
    // The worker may be having a look at it; it does not stay.
    while (!phi_queue_take(queue))
        sched_yield();
    pthread_mutex_lock(&host->lock);
    free(queue->ring);
    queue->ring = NULL;
    queue->in_use = false;
    pthread_mutex_unlock(&host->lock);
    phi_queue_drop(queue);
    return 0;
}

// The items that a queue is left with.
static void drop_items(const struct ph_queue *queue)
{
    const uint64_t tail = atomic_load_explicit(&queue->tail, memory_order_relaxed);
    uint64_t at = atomic_load_explicit(&queue->head, memory_order_relaxed);

    for (; queue->ring != NULL && at < tail; at++) {
        const struct phi_item *item = phi_queue_item(queue, at);

        if (!item->fn && item->work.kind == PHI_STEP_PAGES)
            phi_page_list_drop(item->work.pages);
    }
}

static void free_executor(struct phi_host_executor *host)
{
    for (uint32_t i = 0; i < used(host); i++) {
        drop_items(&host->queues[i]);
        free(host->queues[i].ring);
    }
    free((void *)host->base.skips.words);
    for (uint32_t i = 0; i < used(host); i++)
        phi_relay_free(host->relays[i]);
    pthread_cond_destroy(&host->stop);
    pthread_mutex_destroy(&host->lock);
    free(host);
}

static void host_close(struct phi_executor *executor)
{
    if (!executor)
        return;
    stop_worker(host_of(executor));
    free_executor(host_of(executor));
}

static const struct phi_executor_ops host_ops = {
    .size = sizeof(struct phi_executor_ops),
    .name = "host",
    .issue = host_issue,
    .drained = host_drained,
    .left = host_left,
    .progress = host_progress,
    .busy = host_busy,
    .flush = host_flush,
    .close = host_close,
};

int phi_host_executor_open(const struct phi_executor_params *params, struct phi_executor **executor)
{
    struct phi_host_executor *host =
        aligned_alloc(_Alignof(struct phi_host_executor), sizeof(*host));
    pthread_condattr_t monotonic;
    int rc;

    if (!host)
        return phi_fail(params->report, -ENOMEM, "no memory for the queues of a context");
    memset(host, 0, sizeof(*host));
    host->base.ops = &host_ops;
    host->params = *params;
    host->base.skips.words = calloc(PHI_SKIPS_MAX, sizeof(*host->base.skips.words));
    if (!host->base.skips.words) {
        free(host);
        return phi_fail(params->report, -ENOMEM, "no memory for the queues of a context");
    }
    pthread_mutex_init(&host->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&host->stop, &monotonic);
    pthread_condattr_destroy(&monotonic);
    rc = open_queue(host, &host->queues[0]);
    if (!rc)
        rc = start_worker(host);
    if (rc) {
        free_executor(host);
        return rc;
    }
    *executor = &host->base;
    return 0;
}
