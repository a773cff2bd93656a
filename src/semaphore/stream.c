// SPDX-License-Identifier: BSD-3-Clause
// The CUDA executor: work on the caller's own streams. Nothing here waits for the device; what
// waits is on the device.
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/clock.h"
#include "cuda/driver.h"
#include "cuda/kernel_args.h"
#include "semaphore/capture.h"
#include "semaphore/enqueue.h"
#include "semaphore/executor.h"
#include "semaphore/page_launch.h"
#include "semaphore/queue_state.h"
#include "semaphore/record.h"

// The struct phi_transfer_syncs: one for each record, then one for each branch of a graph that has
// one.
#define SYNC_COUNT (PHI_STREAMS_MAX + PHI_GRAPH_SYNCS)
#define SYNC_BYTES (SYNC_COUNT * sizeof(struct phi_transfer_sync))

// Behind the numbers of the streams, in the memory that host and device share.
#define SKIPS_AT (PHI_STREAMS_MAX * sizeof(uint64_t))
#define LISTS_AT (SKIPS_AT + PHI_SKIPS_MAX * sizeof(uint64_t))

struct cuda_executor {
    struct phi_executor base;
    struct phi_executor_params params;
    struct phi_enqueuer to;
    _Atomic uint32_t shared;
    _Atomic uint32_t dead; // CUresult after which the context runs nothing any more
    uint64_t done_device;  // address of records.done
    size_t done_size;
    struct phi_captures captures;
    struct phi_records records;
    struct phi_list_memory lists;
};

static struct cuda_executor *executor_of(struct phi_executor *base)
{
    return (struct cuda_executor *)base; // its first member
}

// driver_failed tells of a failed driver call, and remembers errors after which nothing runs any
// more.
static int driver_failed(struct cuda_executor *x, const struct phi_enqueue *q)
{
    const struct phi_work *work = q->failed ? q->failed : q->work;
    assert(work != NULL);
    if (phi_cuda_sticky(q->result))
        atomic_store_explicit(&x->dead, (uint32_t)q->result, memory_order_relaxed);
    if (work->call == PHI_CALL_BEHIND)
        return phi_cuda_result(x->params.report, x->to.driver, q->result,
                               "a wait for a request on a stream");
    if (q->unreached != NULL)
        return phi_fail(x->params.report, -EINVAL,
                        "%s of operation %llu with rank %d: kernels of cuda:%d do not reach memory "
                        "at %p",
                        phi_program_name(work->call), (unsigned long long)work->op_id, work->peer,
                        x->to.info->ordinal, q->unreached);
    return phi_cuda_result(x->params.report, x->to.driver, q->result,
                           "%s of operation %llu with rank %d", phi_program_name(work->call),
                           (unsigned long long)work->op_id, work->peer);
}

static int too_many(struct cuda_executor *x, const struct phi_enqueue *q)
{
    const struct phi_policy *policy = &x->to.policy;
    char why[80] = "no graph may wait";
    if (!q->captured)
        snprintf(why, sizeof why, "%u streams wait in kernels already, and %u may",
                 q->others.kernels, phi_eager_waits(policy));
    return phi_refuse(x->params.report, -EAGAIN,
                      "%s of operation %llu with rank %d: %s (PEERHOP_KERNEL_WAITS %u on this "
                      "device, of which PEERHOP_GRAPH_BRANCHES %u)",
                      phi_program_name(q->work[0].call), (unsigned long long)q->work[0].op_id,
                      q->work[0].peer, why, policy->kernel_waits, policy->graph_branches);
}

// Half of the hardware queues that messages without kernels ask for: what waits in one holds up
// what shares it.
#define ZERO_SM_STREAMS 16u

static int too_many_operations(struct cuda_executor *x, const struct phi_enqueue *q)
{
    if (q->work[0].kind == PHI_STEP_BEHIND)
        return phi_refuse(x->params.report, -EAGAIN,
                          "a stream cannot wait for a request: %u wait by memory operations "
                          "already, and %u may",
                          q->others.memory_operations, ZERO_SM_STREAMS);
    return phi_refuse(x->params.report, -EAGAIN,
                      "%s of operation %llu with rank %d, which has PH_ZERO_SM: %u streams wait by "
                      "memory operations already, and %u may",
                      phi_program_name(q->work[0].call), (unsigned long long)q->work[0].op_id,
                      q->work[0].peer, q->others.memory_operations, ZERO_SM_STREAMS);
}

// decide chooses how this work waits. -EAGAIN where too many kernels wait.
static int decide(struct cuda_executor *x, struct phi_enqueue *q)
{
    struct phi_policy policy = x->to.policy;
    policy.shared = atomic_load_explicit(&x->shared, memory_order_relaxed) != 0;
    bool engine = false, zero_sm = false;
    for (size_t i = 0; i < q->n; i++) {
        // Flags are waited for by kernels alone.
        if (phi_step_hops(q->work[i].kind))
            policy.wait = PHI_WAIT_KERNEL;
        engine = engine || q->work[i].engine;
        zero_sm = zero_sm || (q->work[i].zero_sm && q->work[i].kind == PHI_STEP_WAIT) ||
                  q->work[i].kind == PHI_STEP_BEHIND;
    }
    if (q->work[0].kind == PHI_STEP_BEHIND && !policy.batches)
        return phi_fail(x->params.report, -ENOTSUP,
                        "a stream of cuda:%d cannot wait for a request: the device has no memory "
                        "operations",
                        x->to.info->ordinal);
    if (zero_sm && q->others.memory_operations >= ZERO_SM_STREAMS && !q->work[0].continues)
        return too_many_operations(x, q);
    if (zero_sm)
        policy.wait = PHI_WAIT_MEMORY_OPERATION;
    int mode = q->waits > 0 ? phi_wait_mode(&policy, &q->others, q->captured) : 0;
    // Too late to refuse: peers were told of what comes now.
    if (mode == -EAGAIN && q->work[0].continues)
        mode = 1;
    if (mode < 0)
        return too_many(x, q);
    q->plan = (struct phi_plan){
        .work = q->work,
        .n = q->n,
        .kernel_waits = mode == 1,
        .fuse = mode == 1 && !engine && phi_copy_mode(&policy, true),
        .batches = policy.batches,
        .gather = phi_gather_mode(&policy),
        .together = phi_enqueue_together(q),
        .engine = {!phi_copy_mode(&policy, q->waited), !phi_copy_mode(&policy, true)},
        .done = q->done != 0};
    if (mode == 1)
        phi_count(x->params.counters, waits_kernel, q->waits);
    else if (q->waits > 0)
        phi_count(x->params.counters, waits_memory_operation, q->waits);
    return 0;
}

// finish_number makes the number of a half enqueued issue come all the same, so that what was
// enqueued can be waited for.
static void finish_number(struct cuda_executor *x, struct phi_enqueue *q, int index)
{
    CUresult result = phi_enqueue_number(q);
    // A context that takes nothing more has nothing under way that will end by itself.
    if (result != CUDA_SUCCESS && phi_cuda_sticky(q->result))
        atomic_store_explicit(&x->records.done[index], q->number, memory_order_release);
}

static void mark_waits(struct cuda_executor *x, struct phi_enqueue *q, struct phi_record *record,
                       int index)
{
    struct phi_records *records = &x->records;
    if (q->waits > 0) {
        _Atomic uint64_t *mark = q->plan.kernel_waits ? &record->kernel_wait : &record->memory_wait;
        const struct phi_work *work = q->work;
        while (!phi_step_waits(work->kind))
            work++;
        atomic_store_explicit(mark, q->number, memory_order_relaxed);
        // The other stream has a note of what it waits for itself.
        if (work->kind != PHI_STEP_BEHIND)
            phi_record_note(records, index, q->number, work);
    }
}

static bool has(const struct phi_enqueue *q, unsigned kind)
{
    for (size_t i = 0; i < q->n; i++)
        if (q->work[i].kind == kind)
            return true;
    return false;
}

// issue_locked enqueues on a stream whose record is locked.
static int issue_locked(struct cuda_executor *x, struct phi_enqueue *q, int index, bool *partial)
{
    struct phi_records *records = &x->records;
    struct phi_record *record = &records->record[index];
    q->number = atomic_load_explicit(&record->issued, memory_order_relaxed) + 1;
    q->done = x->done_device + (uint64_t)index * sizeof(uint64_t);
    q->waited = phi_record_waits(records, index);
    q->sync = (uint32_t)index + 1;
    if (q->waits > 0) // what others do matters to nothing else
        phi_records_waiting(records, index, &q->others);
    const struct phi_list_reader reader = {q->number, (uint32_t)index, false};
    int rc = decide(x, q);
    if (rc == 0)
        rc = phi_pages_place(x->to.driver, &x->lists, q->work, q->n, reader, x->params.report);
    if (rc)
        return rc;
    if (!phi_uses_take(records, index, q->work, q->n)) {
        phi_pages_unplace(&x->lists, q->work, q->n, reader);
        return phi_fail(x->params.report, PH_EBROKEN,
                        "%s of operation %llu with rank %d: its buffer was revoked",
                        phi_program_name(q->work[0].call), (unsigned long long)q->work[0].op_id,
                        q->work[0].peer);
    }
    phi_enqueue_all(q);
    if (q->result != CUDA_SUCCESS && !q->started) {
        phi_pages_unplace(&x->lists, q->work, q->n, reader);
        phi_uses_give_back(records, index, q->work, q->n);
        return driver_failed(x, q);
    }
    mark_waits(x, q, record, index);
    atomic_store_explicit(&record->issued, q->number, memory_order_release);
    if (q->result == CUDA_SUCCESS)
        return 0;
    *partial = true;
    finish_number(x, q, index);
    return driver_failed(x, q);
}

// first_use looks at a stream that has no record yet, and gives it one.
static int first_use(struct cuda_executor *x, CUstream stream, uint64_t key)
{
    CUcontext context = NULL;
    if (x->to.driver->cuStreamGetCtx != NULL &&
        (uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD) {
        CUresult result = x->to.driver->cuStreamGetCtx(stream, &context);
        if (result != CUDA_SUCCESS)
            return phi_cuda_result(x->params.report, x->to.driver, result, "a stream");
        if (context != phi_device_context(x->to.device))
            return phi_fail(x->params.report, -EINVAL,
                            "the stream is not one of the context's device cuda:%d (its primary "
                            "context)",
                            x->to.info->ordinal);
    }
    int index = phi_record_claim(&x->records, key);
    if (index < 0)
        phi_fail(x->params.report, index, "%d streams have operations in flight", PHI_STREAMS_MAX);
    return index;
}

static int issue_eager(struct cuda_executor *x, struct phi_enqueue *q, uint64_t key, bool *partial)
{
    struct phi_records *records = &x->records;
    int index;
    do {
        index = phi_record_find(records, key);
        if (index < 0)
            index = first_use(x, q->stream, key);
        if (index < 0)
            return index;
    } while (!phi_record_lock(records, index, key));
    int rc = issue_locked(x, q, index, partial);
    phi_record_unlock(records, index);
    return rc;
}

static int issue_captured(struct cuda_executor *x, struct phi_enqueue *q, uint64_t key,
                          bool *partial)
{
    struct phi_captures *captures = &x->captures;
    struct phi_capture *capture;
    int rc = phi_capture_begin(captures, q->stream, q->work, q->n, &capture);
    if (rc)
        return rc;
    struct phi_branch branch = phi_capture_branch(captures, capture, key);
    q->waited = branch.waited;
    rc = decide(x, q);
    if (rc == 0)
        rc = phi_pages_place(x->to.driver, &x->lists, q->work, q->n,
                             (struct phi_list_reader){.captured = true}, x->params.report);
    if (rc)
        return rc;
    const bool helps = has(q, PHI_STEP_HELP);
    if (helps || has(q, PHI_STEP_PAGES) ||
        ((q->plan.fuse || q->waited || q->waits > 0) && has(q, PHI_STEP_COPY)))
        rc = phi_capture_sync(captures, capture, &branch);
    if (helps && rc == -EAGAIN)
        return phi_refuse(x->params.report, rc,
                          "a group of more parts than the net holds: live graphs have %d branches "
                          "already",
                          PHI_GRAPH_SYNCS);
    if (helps && rc)
        return phi_fail(x->params.report, rc, "no memory for a branch of a graph");
    q->sync = branch.sync ? PHI_STREAMS_MAX + branch.sync : 0;
    phi_enqueue_all(q);
    branch.waited = branch.waited || q->waits > 0;
    phi_capture_update(captures, capture, &branch);
    phi_count(x->params.counters, captured, 1);
    if (q->result == CUDA_SUCCESS)
        return 0;
    *partial = q->started;
    return driver_failed(x, q);
}

// handle_key names a stream while it lives. Per-thread streams share a handle; NULL and the legacy
// handle are one stream.
static uint64_t handle_key(CUstream stream)
{
    if (stream == CU_STREAM_PER_THREAD)
        return ~(uint64_t)(uintptr_t)pthread_self();
    return stream == NULL ? (uintptr_t)CU_STREAM_LEGACY : (uintptr_t)stream;
}

// stream_key names a stream for ever: handles of destroyed streams come back, ids do not. Never of
// a stream that captures: asking for its id invalidates the capture (driver 580).
static uint64_t stream_key(const struct cuda_executor *x, CUstream stream)
{
    unsigned long long id;
    if (x->to.driver->cuStreamGetId != NULL &&
        x->to.driver->cuStreamGetId(stream, &id) == CUDA_SUCCESS)
        return id + 1;
    return handle_key(stream); // a driver before 12.0
}

// look_at_stream finds out whether a stream captures. -EINVAL (reported): it is none of this
// device's. Else *result says whether the driver could tell.
static int look_at_stream(struct cuda_executor *x, CUstream stream, bool *captures,
                          CUresult *result)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    *result = x->to.driver->cuStreamIsCapturing(stream, &status);
    if (*result == CUDA_ERROR_INVALID_HANDLE || *result == CUDA_ERROR_CONTEXT_IS_DESTROYED)
        return phi_fail(x->params.report, -EINVAL, "%p is not a stream of cuda:%d", (void *)stream,
                        x->to.info->ordinal);
    if (*result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        *result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    *captures = status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return 0;
}

static int issue_entered(struct cuda_executor *x, struct phi_enqueue *q, bool *partial)
{
    const int rc = look_at_stream(x, q->stream, &q->captured, &q->result);
    if (rc)
        return rc;
    if (q->result != CUDA_SUCCESS || !phi_enqueue_reaches(q))
        return driver_failed(x, q);
    // Within one capture the handle names the branch.
    return q->captured ? issue_captured(x, q, (uintptr_t)q->stream, partial)
                       : issue_eager(x, q, stream_key(x, q->stream), partial);
}

static uint32_t count_waits(const struct phi_work *work, size_t n)
{
    uint32_t waits = 0;
    for (size_t i = 0; i < n; i++)
        waits += (uint32_t)phi_step_waits(work[i].kind);
    return waits;
}

// push_context makes the device's context the thread's, until pop_context. Not phi_device_enter:
// nothing of what follows can disturb a capture, so the thread's capture mode stays.
static CUresult push_context(const struct cuda_executor *x, bool *pushed)
{
    CUcontext current = NULL;
    CUresult result = x->to.driver->cuCtxGetCurrent(&current);
    *pushed = result == CUDA_SUCCESS && current != phi_device_context(x->to.device);
    if (*pushed)
        result = x->to.driver->cuCtxPushCurrent_v2(phi_device_context(x->to.device));
    *pushed = *pushed && result == CUDA_SUCCESS;
    return result;
}

static void pop_context(const struct cuda_executor *x, bool pushed)
{
    CUcontext popped;
    if (pushed)
        x->to.driver->cuCtxPopCurrent_v2(&popped);
}

static int stream_issue(struct phi_executor *base, void *stream, const struct phi_work *work,
                        size_t n, bool *partial)
{
    struct cuda_executor *x = executor_of(base);
    assert(work != NULL && n > 0);
    struct phi_enqueue q = {
        .to = &x->to, .stream = stream, .work = work, .n = n, .waits = count_waits(work, n)};
    bool pushed;
    *partial = false;
    q.result = push_context(x, &pushed);
    if (q.result != CUDA_SUCCESS)
        return driver_failed(x, &q);
    int rc = issue_entered(x, &q, partial);
    pop_context(x, pushed);
    return rc;
}

static int mark_entered(struct cuda_executor *x, CUstream stream, struct phi_mark *mark)
{
    CUresult result;
    bool captures;
    int rc = look_at_stream(x, stream, &captures, &result);
    if (rc)
        return rc;
    if (result != CUDA_SUCCESS)
        return phi_cuda_result(x->params.report, x->to.driver, result, "a stream");
    if (captures)
        return phi_fail(x->params.report, -ENOTSUP,
                        "the stream captures: what a graph will do has no place on it yet");
    const uint64_t key = stream_key(x, stream);
    const int index = phi_record_find(&x->records, key);
    *mark = (struct phi_mark){0};
    if (index >= 0)
        phi_record_mark(&x->records, index, key, mark);
    return 0;
}

static int stream_mark(struct phi_executor *base, void *stream, struct phi_mark *mark)
{
    struct cuda_executor *x = executor_of(base);
    bool pushed;
    const CUresult result = push_context(x, &pushed);
    if (result != CUDA_SUCCESS)
        return phi_cuda_result(x->params.report, x->to.driver, result, "a stream");
    const int rc = mark_entered(x, stream, mark);
    pop_context(x, pushed);
    return rc;
}

static int stream_behind(struct phi_executor *base, void *stream, const struct phi_mark *mark)
{
    struct cuda_executor *x = executor_of(base);
    const struct phi_work work = {
        .kind = PHI_STEP_BEHIND,
        .call = PHI_CALL_BEHIND,
        .peer = -1,
        .word.device = x->done_device + mark->index * sizeof(uint64_t),
        .span.message = mark->number,
    };
    struct phi_mark own = {0};
    bool partial;
    int rc = stream_mark(base, stream, &own);
    if (rc || phi_mark_done(mark) || own.done == mark->done)
        return rc;
    return stream_issue(base, stream, &work, 1, &partial);
}

static bool is_dead(const struct cuda_executor *x)
{
    return atomic_load_explicit(&x->dead, memory_order_relaxed) != 0;
}

static void add_count(char *why, size_t size, uint32_t n, const char *of)
{
    const size_t at = strlen(why);
    if (n > 0)
        snprintf(why + at, size - at, ", %u %s%s", n, of, n == 1 ? "" : "s");
}

static void say(char *why, size_t size, const struct phi_left *left)
{
    if (why == NULL)
        return;
    snprintf(why, size, "%u stream%s", left->streams, left->streams == 1 ? "" : "s");
    add_count(why, size, left->graphs, "graph");
    add_count(why, size, left->devices, "device channel");
}

static void count_left(const struct cuda_executor *x, struct phi_uses *uses, struct phi_left *left)
{
    *left = (struct phi_left){
        .streams = is_dead(x) ? 0 : phi_uses_streams(&x->records, uses),
        .graphs = atomic_load_explicit(&uses->pins, memory_order_seq_cst),
        .devices = atomic_load_explicit(&uses->devices, memory_order_seq_cst),
    };
}

static bool stream_drained(struct phi_executor *base, struct phi_uses *uses, char *why,
                           size_t why_size)
{
    struct phi_left left;
    count_left(executor_of(base), uses, &left);
    if (left.streams == 0 && left.graphs == 0 && left.devices == 0)
        return true;
    say(why, why_size, &left);
    return false;
}

static void stream_left(struct phi_executor *base, struct phi_uses *uses, struct phi_left *left)
{
    struct cuda_executor *x = executor_of(base);
    count_left(x, uses, left);
    if (left->graphs > 0)
        left->graph = phi_captures_holder(&x->captures, uses);
}

static bool stream_progress(struct phi_executor *base, uint32_t index,
                            struct phi_progress *progress, struct phi_wait_note *note)
{
    return phi_record_progress(&executor_of(base)->records, index, progress, note);
}

static bool stream_busy(struct phi_executor *base, char *why, size_t why_size)
{
    struct cuda_executor *x = executor_of(base);
    struct phi_left left = {0};
    uint64_t in_flight = phi_records_in_flight(&x->records, &left.streams);
    left.graphs = atomic_load_explicit(&x->captures.live, memory_order_acquire);
    atomic_store_explicit(&x->params.counters->in_flight, in_flight, memory_order_relaxed);
    if (is_dead(x))
        left.streams = 0;
    if (left.streams == 0 && left.graphs == 0)
        return false;
    say(why, why_size, &left);
    return true;
}

// Says why `what` is not done: of the library's operations, the oldest wait.
static void explain(struct cuda_executor *x, const char *what, char *text, size_t size)
{
    struct phi_wait_note note;
    char suspicion[80];
    snprintf(text, size, "%s of cuda:%d not done in time", what, x->to.info->ordinal);
    const size_t used = strlen(text);
    if (!phi_records_oldest(&x->records, &note))
        return;
    phi_executor_suspicion(&x->base, note.peer, suspicion, sizeof suspicion);
    snprintf(text + used, size - used,
             ": rank %d has not written the word '%s' of operation %llu (%s)%s", note.peer,
             phi_program_awaits(note.call), (unsigned long long)note.op_id,
             phi_program_name(note.call), suspicion);
}

static int flush_failed(struct cuda_executor *x, const char *why)
{
    char text[256];
    explain(x, why, text, sizeof text);
    return phi_fail(x->params.report, -ETIMEDOUT, "%s%s", text,
                    atomic_load_explicit(&x->captures.live, memory_order_acquire) == 0
                        ? ""
                        : "; graphs that captured calls on the context's channels, and their "
                          "executables, must be destroyed first");
}

static int stream_flush(struct phi_executor *base, int64_t deadline)
{
    struct cuda_executor *x = executor_of(base);
    const int64_t spin = phi_now() + x->params.config->spin_us * 1000;
    char why[64];
    while (stream_busy(base, why, sizeof why)) {
        const int64_t now = phi_now();
        if (now >= deadline)
            return flush_failed(x, why);
        if (now < spin)
            phi_pause();
        else
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    return 0;
}

static int await_late(struct cuda_executor *x, const struct phi_mark *mark)
{
    struct phi_progress progress;
    struct phi_wait_note note;
    char suspicion[80];
    phi_record_progress(&x->records, mark->index, &progress, &note);
    if (note.number == 0 || note.number > mark->number)
        return phi_fail(x->params.report, -ETIMEDOUT,
                        "%llu operations before the request are not done on a stream of cuda:%d",
                        (unsigned long long)(mark->number - progress.done), x->to.info->ordinal);
    phi_executor_suspicion(&x->base, note.peer, suspicion, sizeof suspicion);
    return phi_fail(x->params.report, -ETIMEDOUT,
                    "rank %d has not written the word '%s' of operation %llu (%s)%s; a stream of "
                    "cuda:%d has %llu operations before the request",
                    note.peer, phi_program_awaits(note.call), (unsigned long long)note.op_id,
                    phi_program_name(note.call), suspicion, x->to.info->ordinal,
                    (unsigned long long)(mark->number - progress.done));
}

static int stream_await(struct phi_executor *base, const struct phi_mark *mark, int64_t deadline)
{
    struct cuda_executor *x = executor_of(base);
    const int64_t since = phi_now(), spin = since + x->params.config->spin_us * 1000;
    while (!phi_mark_done(mark)) {
        const int64_t now = phi_now();
        if (is_dead(x))
            return phi_cuda_result(x->params.report, x->to.driver, (CUresult)atomic_load(&x->dead),
                                   "a request");
        if (now >= deadline)
            return await_late(x, mark);
        if (phi_executor_untold(base))
            return -EINTR;
        if (now < spin)
            phi_pause();
        else
            phi_queue_rest(since); // a nap, however short, takes 50 us and more
    }
    return 0;
}

// Graphs that may be launched do not count: nobody sees whether they run.
static bool is_quiet(void *opaque)
{
    const struct cuda_executor *x = opaque;
    uint32_t streams;
    phi_records_in_flight(&x->records, &streams);
    return streams == 0 || is_dead(x);
}

bool phi_cuda_executor_quiet(struct phi_executor *base, int64_t deadline)
{
    struct cuda_executor *x = executor_of(base);
    while (!is_quiet(x)) {
        if (phi_now() >= deadline)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    return true;
}

void phi_cuda_executor_explain(struct phi_executor *base, char *text, size_t size)
{
    struct cuda_executor *x = executor_of(base);
    struct phi_left left = {0};
    char what[64];
    phi_records_in_flight(&x->records, &left.streams);
    if (left.streams == 0) {
        snprintf(text, size, "a stream or a graph of the application's on cuda:%d is not done",
                 x->to.info->ordinal);
        return;
    }
    say(what, sizeof what, &left);
    explain(x, what, text, size);
}

static void stream_close(struct phi_executor *base)
{
    struct cuda_executor *x = executor_of(base);
    if (base == NULL)
        return;
    phi_device_gate(x->to.device, NULL, NULL);
    phi_device_free(x->to.device, x->to.sync);
    phi_device_unmap(x->to.device, (void *)x->records.done, x->done_size);
    phi_captures_fini(&x->captures);
    phi_records_fini(&x->records);
    pthread_mutex_destroy(&x->lists.lock);
    free(x);
}

static const struct phi_executor_ops stream_ops = {
    .size = sizeof(struct phi_executor_ops),
    .name = "cuda",
    .issue = stream_issue,
    .drained = stream_drained,
    .left = stream_left,
    .progress = stream_progress,
    .mark = stream_mark,
    .behind = stream_behind,
    .await = stream_await,
    .busy = stream_busy,
    .flush = stream_flush,
    .close = stream_close,
};

// check_forced: what the configuration asks for must be there.
static int check_forced(const struct cuda_executor *x)
{
    const struct phi_config *config = x->params.config;
    if (!x->to.info->kernels &&
        (config->wait == PHI_WAIT_KERNEL || config->method == PHI_METHOD_COPY_KERNEL))
        return phi_fail(
            x->params.report, -ENOTSUP,
            "PEERHOP_WAIT or PEERHOP_METHOD ask for kernels, which cuda:%d runs without",
            x->to.info->ordinal);
    if (!x->to.info->memory_operations && config->wait == PHI_WAIT_MEMORY_OPERATION)
        return phi_fail(x->params.report, -ENOTSUP,
                        "PEERHOP_WAIT asks for memory operations, which cuda:%d has not",
                        x->to.info->ordinal);
    return 0;
}

static void log_limits(const struct cuda_executor *x)
{
    phi_log(
        x->params.report, PH_LOG_INFO,
        "cuda:%d, CUDA_DEVICE_MAX_CONNECTIONS=%d: where ranks share the device, at most %u streams "
        "wait by memory operation, the others by kernel",
        x->to.info->ordinal, x->to.info->connections, x->to.policy.memory_waits);
}

static int make_syncs(struct cuda_executor *x)
{
    static const char zeros[SYNC_BYTES];
    int rc = phi_device_alloc(x->to.device, SYNC_BYTES, &x->to.sync);
    if (rc)
        return rc;
    rc = phi_device_write(x->to.device, x->to.sync, zeros, SYNC_BYTES,
                          phi_deadline(x->params.config->deadline_ms));
    if (rc)
        phi_device_free(x->to.device, x->to.sync);
    return rc;
}

// What lies behind the numbers of the streams in the memory that host and device share.
static void share_out(struct cuda_executor *x)
{
    uint8_t *shared = (uint8_t *)x->records.done;
    x->base.skips.words = (_Atomic uint64_t *)(void *)(shared + SKIPS_AT);
    x->base.skips.device = x->done_device + SKIPS_AT;
    pthread_mutex_init(&x->lists.lock, NULL);
    x->lists.bytes = shared + LISTS_AT;
    x->lists.device = x->done_device + LISTS_AT;
    x->lists.records = &x->records;
    x->to.lists = &x->lists;
}

int phi_cuda_executor_open(const struct phi_executor_params *params, struct phi_device *device,
                           struct phi_executor **executor)
{
    struct cuda_executor *x = NULL;
    if (posix_memalign((void **)&x, 64, sizeof *x) != 0)
        return phi_fail(params->report, -ENOMEM, "the streams' records: out of memory");
    *x = (struct cuda_executor){.base.ops = &stream_ops, .params = *params};
    x->to.counters = params->counters;
    x->to.device = device;
    x->to.driver = phi_device_driver(device);
    x->to.info = phi_device_info(device);
    x->to.policy = phi_policy_of(params->config);
    x->to.policy.kernels = x->to.info->kernels;
    x->to.policy.batches = x->to.info->memory_operations;
    x->to.policy.blocks = (uint32_t)x->to.info->multiprocessors;
    // A kernel that waits takes a multiprocessor from a kernel that needs all of one.
    const uint32_t most = x->to.policy.blocks > 1 ? x->to.policy.blocks / 2 : 1;
    if (x->to.policy.blocks > 0 && x->to.policy.kernel_waits > most) { // 0: the driver did not say
        x->to.policy.graph_branches =
            x->to.policy.graph_branches * most / x->to.policy.kernel_waits;
        x->to.policy.kernel_waits = most;
    }
    int rc = check_forced(x);
    if (rc)
        goto free_executor;

    x->done_size = LISTS_AT + PHI_LIST_BYTES;
    // Shared, so that a fork of the application cannot give this process other pages than the
    // device has.
    void *done =
        mmap(NULL, x->done_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (done == MAP_FAILED) {
        rc = phi_fail(params->report, -ENOMEM, "the streams' numbers: out of memory");
        goto free_executor;
    }
    rc = phi_device_register(device, done, x->done_size, &x->done_device);
    if (rc == 0 && x->to.info->kernels)
        rc = make_syncs(x);
    if (rc)
        goto unmap_done;
    phi_records_init(&x->records, done);
    share_out(x);
    phi_captures_init(&x->captures, params->report, x->to.driver);
    phi_device_gate(device, is_quiet, x);
    log_limits(x);
    *executor = &x->base;
    return 0;

unmap_done:
    phi_device_unmap(device, done, x->done_size);
free_executor:
    free(x);
    return rc;
}

void phi_cuda_executor_share(struct phi_executor *executor, bool device_shared)
{
    atomic_store_explicit(&executor_of(executor)->shared, device_shared, memory_order_relaxed);
}
