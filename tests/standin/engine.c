// SPDX-License-Identifier: BSD-3-Clause
// The engine of a device: one thread that looks at the head of every stream in turn and moves it on
// where it may.
//
// What it holds back is what the hardware was measured to hold back. A waiting memory operation
// takes one of the CUDA_DEVICE_MAX_CONNECTIONS hardware queues: while it waits, other streams'
// memory operations of the same queue do not start where queues are few, and when all queues wait,
// nothing but copies between devices does. A copy between devices next behind a wait of any kind
// takes a copy queue in the same way. Waiting kernels hold up nobody.
#include "standin.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

#define YIELDS   4 // rounds without progress before the engine sleeps
#define SLEEP_NS 50000
#define TIRED    32 // rounds without progress before it sleeps longer: a stream waits for a while
#define TIRED_NS 500000

// Up to so many queues, streams share them from the start; with 32, nothing was held up before all
// were taken.
#define FEW_QUEUES 8

static unsigned copy_queues(void)
{
    if (si.connections > FEW_QUEUES)
        return si.connections;
    return si.connections > 1 ? si.connections / 2 : 1;
}

static unsigned queue_of(const struct CUstream_st *stream)
{
    return stream->index % si.connections;
}

struct held {
    unsigned waits;      // value waits of other streams
    unsigned same_queue; // those of them in the stream's own queue
    unsigned copies;     // other streams with a peer copy next behind a wait
};

static struct held held_by_others(const struct CUstream_st *stream)
{
    struct held held = {0};
    for (const struct CUstream_st *s = stream->context->streams; s; s = s->next) {
        if (s == stream)
            continue;
        held.waits += s->waits;
        if (si.connections <= FEW_QUEUES && queue_of(s) == queue_of(stream))
            held.same_queue += s->waits;
        held.copies += s->copy_waits;
    }
    return held;
}

static bool hardware_busy(const struct CUstream_st *stream, const struct si_op *op)
{
    struct held held;
    switch (op->kind) {
    case SI_OP_RECORD:
    case SI_OP_AWAIT:
    case SI_OP_FREE:
    case SI_OP_NOTHING:
        return false;
    case SI_OP_COPY:
        held = held_by_others(stream);
        return op->u.copy.peer ? held.copies >= copy_queues() : held.waits >= si.connections;
    case SI_OP_MEMOPS:
        held = held_by_others(stream);
        return held.same_queue > 0 || held.waits >= si.connections;
    default:
        return held_by_others(stream).waits >= si.connections;
    }
}

// The legacy stream and the blocking ones wait for each other's earlier work.
static bool legacy_before(const struct CUstream_st *stream, const struct si_op *op)
{
    if (stream->flags & CU_STREAM_NON_BLOCKING)
        return false;
    for (const struct CUstream_st *s = stream->context->streams; s; s = s->next) {
        bool related = stream->legacy ? !(s->flags & CU_STREAM_NON_BLOCKING) : s->legacy;
        if (s != stream && related && s->head && s->head->number < op->number)
            return true;
    }
    return false;
}

// Notes on the stream what its head waits for.
static void note_waits(struct CUstream_st *stream, const struct si_op *op, bool waiting)
{
    stream->waits = 0;
    stream->copy_waits = false;
    if (!waiting)
        return;
    if (op->kind == SI_OP_GRAPH) {
        stream->waits = si_run_waits(op->u.run, &stream->copy_waits);
    } else if (op->kind == SI_OP_MEMOPS || op->kind == SI_OP_KERNEL) {
        const struct si_op *next = op->next;
        stream->waits = op->kind == SI_OP_MEMOPS;
        stream->copy_waits = next && next->kind == SI_OP_COPY && next->u.copy.peer;
    }
}

static void pop(struct CUstream_st *stream)
{
    struct si_op *op = stream->head;
    stream->head = op->next;
    if (!stream->head)
        stream->tail = &stream->head;
    stream->depth--;
    si_op_free(op);
    pthread_cond_broadcast(&si.changed);
}

// Whether anything moved.
static bool serve(struct CUstream_st *stream)
{
    struct si_op *op = stream->head;
    if (!op->started && (legacy_before(stream, op) || hardware_busy(stream, op)))
        return false;
    op->started = true;
    si_check_begin(op, stream);
    enum si_progress progress = si_op_step(op, stream);
    note_waits(stream, op, progress == SI_WAITING);
    if (progress == SI_DONE) {
        si_check_end(op, stream);
        pop(stream);
    }
    return progress != SI_WAITING;
}

static bool serve_all(struct si_context *context)
{
    bool moved = false;
    // All that may run now is announced before any of it runs: it is in no order.
    for (struct CUstream_st *s = context->streams; s; s = s->next)
        if (s->head && !legacy_before(s, s->head))
            si_check_begin(s->head, s);
    for (struct CUstream_st *s = context->streams; s; s = s->next)
        if (s->head)
            moved |= serve(s);
    si_stream_reap(context);
    return moved;
}

// Looked at right before the engine sleeps: steps and reaping may give up the lock, and what is
// enqueued on a stream that was served before wakes nobody then.
static bool has_work(const struct si_context *context)
{
    for (const struct CUstream_st *s = context->streams; s; s = s->next)
        if (s->head)
            return true;
    return false;
}

static void doze(struct si_context *context, long ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ns;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&context->work, &si.lock, &until);
}

static void breathe(void)
{
    pthread_mutex_unlock(&si.lock);
    sched_yield();
    pthread_mutex_lock(&si.lock);
}

static void *engine(void *data)
{
    struct si_context *context = data;
    int idle = 0;
    prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
    pthread_mutex_lock(&si.lock);
    while (!context->engine_stops) {
        idle = serve_all(context) ? 0 : idle + 1;
        if (!has_work(context) && !context->engine_stops)
            pthread_cond_wait(&context->work, &si.lock);
        else if (idle < YIELDS)
            breathe();
        else
            doze(context, idle < TIRED ? SLEEP_NS : TIRED_NS);
    }
    si_stream_reap(context);
    pthread_mutex_unlock(&si.lock);
    return NULL;
}

void si_engine_start(struct si_context *context)
{
    if (context->engine_runs)
        return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // the application's signals are not for the engine
    if (pthread_create(&context->engine, NULL, engine, context))
        abort();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    context->engine_runs = true;
}

void si_engine_stop(struct si_context *context)
{
    if (!context->engine_runs) {
        si_stream_reap(context);
        return;
    }
    context->engine_stops = true;
    pthread_cond_signal(&context->work);
    pthread_mutex_unlock(&si.lock);
    pthread_join(context->engine, NULL);
    pthread_mutex_lock(&si.lock);
    context->engine_stops = false;
    context->engine_runs = false;
}
