// SPDX-License-Identifier: BSD-3-Clause
#include "block.h"

#include <stdlib.h>

#include "nccl.h"
#include "verify.h"

#define STAGE_SIZE ((size_t)4 << 20)

// Of the kernel that copies.
#define COPY_BLOCKS  64
#define COPY_THREADS 512

int bench_tell(struct bench_run *run)
{
    struct bench *bench = run->bench;
    for (size_t i = 0; i < run->channels; i++)
        run->group[i] = (struct ph_group_op){
            .kind = bench->leader ? PH_GROUP_SIGNAL : PH_GROUP_WAIT,
            .channel = run->forward[i],
        };
    return BENCH_ISSUE(bench, ph_group(run->group, run->channels, bench->stream));
}

int bench_meet(struct bench_run *run)
{
    struct bench *bench = run->bench;
    struct ph_channel *mine = bench->leader ? run->forward[0] : run->backward[0];
    struct ph_channel *theirs = bench->leader ? run->backward[0] : run->forward[0];
    int rc = BENCH_ISSUE(bench, ph_signal(mine, bench->stream));
    return rc ? rc : BENCH_ISSUE(bench, ph_wait(theirs, 0, bench->stream));
}

static int device_call(struct bench *bench, int rc)
{
    return rc ? bench_fail(bench, rc, "%s", bench->device->error) : 0;
}

// Data goes forward from the leader's `out` to the other rank's `in`, and backward the other way.
static bool sends(const struct bench_run *run)
{
    return run->test->ways & (run->bench->leader ? BENCH_FORWARD : BENCH_BACKWARD);
}

static bool receives(const struct bench_run *run)
{
    return run->test->ways & (run->bench->leader ? BENCH_BACKWARD : BENCH_FORWARD);
}

static uint64_t seed_of(const struct bench_run *run, size_t channel, bool outgoing)
{
    bool forward = outgoing == run->bench->leader;
    return bench_pattern_seed((unsigned)channel, !forward, run->bench->block);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static int fill_channel(struct bench_run *run, size_t channel, void *stage)
{
    struct bench *bench = run->bench;
    char *base = (char *)bench->arena.base + run->out + channel * run->stride;
    for (size_t at = 0; at < run->size; at += STAGE_SIZE) {
        size_t n = least(STAGE_SIZE, run->size - at);
        bench_pattern_fill(stage, at, n, seed_of(run, channel, true));
        int rc = device_call(bench, bench->device->ops->write(bench->device, base + at, stage, n));
        if (rc)
            return rc;
    }
    return 0;
}

static int check_channel(struct bench_run *run, size_t channel, void *stage)
{
    struct bench *bench = run->bench;
    const char *base = (char *)bench->arena.base + run->in + channel * run->stride;
    for (size_t at = 0; at < run->size; at += STAGE_SIZE) {
        size_t n = least(STAGE_SIZE, run->size - at);
        int rc = device_call(bench, bench->device->ops->read(bench->device, stage, base + at, n));
        if (rc)
            return rc;
        size_t good = bench_pattern_check(stage, at, n, seed_of(run, channel, false));
        if (good < n)
            return bench_fail(bench, -EIO, "byte %zu of channel %zu is wrong in block %llu",
                              at + good, channel, (unsigned long long)bench->block);
    }
    return 0;
}

static int each_channel(struct bench_run *run, int (*visit)(struct bench_run *, size_t, void *))
{
    void *stage = malloc(STAGE_SIZE);
    int rc = stage ? 0 : bench_fail(run->bench, -ENOMEM, "verify");
    for (size_t i = 0; i < run->channels && rc == 0; i++)
        rc = visit(run, i, stage);
    free(stage);
    return rc;
}

// A value is a thread's, small messages are a warp's; larger ones, and copies, take blocks of as
// many threads as they have use for. Copies go one way: the other rank has none.
static int run_kernel(struct bench_run *run, size_t count)
{
    struct bench *bench = run->bench;
    const bool copies = run->test->kernel >= BENCH_KERNEL_PUT;
    const unsigned threads = run->test->kernel == BENCH_KERNEL_VALUE ? 1
                             : run->size <= 512                      ? 32
                             : run->size <= 4096                     ? 512
                                                                     : 1024;
    if (copies && !bench->leader)
        return 0;
    run->kernel.count = count;
    return device_call(bench, bench->device->ops->run_kernel(bench->device, &run->kernel,
                                                             copies ? COPY_BLOCKS : 1,
                                                             copies ? COPY_THREADS : threads));
}

static int once(struct bench_run *run)
{
    if (run->by_nccl)
        return bench_nccl_once(run);
    return run->bench->options->issue == BENCH_ISSUE_DEVICE ? run_kernel(run, 1)
                                                            : run->test->once(run);
}

static int wait_for_request(struct bench *bench)
{
    struct ph_request request;
    int rc = ph_request_record(bench->context, bench->stream, &request);
    if (rc == 0)
        rc = ph_request_wait(&request, bench->options->deadline_s * 1000);
    return rc ? bench_fail(bench, rc, "waiting for a request") : 0;
}

static int issue(struct bench_run *run, size_t count, bool graph)
{
    struct bench *bench = run->bench;
    if (bench->options->issue == BENCH_ISSUE_DEVICE)
        return run_kernel(run, count);
    if (graph)
        return device_call(bench, bench->device->ops->launch_graph(
                                      bench->device, run->by_nccl ? run->nccl_graph : run->graph));
    int rc = 0;
    for (size_t i = 0; i < count && rc == 0; i++) {
        rc = once(run);
        if (rc == 0 && bench->options->issue == BENCH_ISSUE_HOST)
            rc = bench_synchronize(bench);
        if (rc == 0 && bench->options->issue == BENCH_ISSUE_REQUEST)
            rc = wait_for_request(bench);
    }
    return rc;
}

static int hook(struct bench_run *run, int (*call)(struct bench_run *))
{
    return call ? call(run) : 0;
}

static int mark(struct bench *bench, unsigned index)
{
    return device_call(bench, BENCH_AGAIN(bench, bench->device->ops->mark(bench->device, index)));
}

// Until the other rank has all that this one has sent.
static int settle(struct bench_run *run)
{
    struct bench *bench = run->bench;
    if (!run->buffered || run->by_nccl)
        return 0;
    int rc = bench_tell(run);
    if (rc)
        return rc;
    return bench->leader ? BENCH_ISSUE(bench, ph_wait(run->backward[0], 0, bench->stream))
                         : BENCH_ISSUE(bench, ph_signal(run->backward[0], bench->stream));
}

// The first iteration is not timed: it brings the ranks into step after the barrier.
static int marked(struct bench_run *run, size_t count, bool graph, double *us)
{
    struct bench *bench = run->bench;
    int rc = hook(run, run->by_nccl ? bench_nccl_begin : run->test->begin);
    if (rc == 0)
        rc = once(run);
    if (rc == 0)
        rc = settle(run);
    if (rc == 0)
        rc = mark(bench, 0);
    if (rc == 0)
        rc = issue(run, count, graph);
    if (rc == 0)
        rc = settle(run);
    if (rc == 0)
        rc = mark(bench, 1);
    if (rc == 0)
        rc = hook(run, run->by_nccl ? bench_nccl_end : run->test->end);
    if (rc == 0)
        rc = bench_synchronize(bench);
    if (rc == 0 && bench->options->issue == BENCH_ISSUE_DEVICE)
        rc = device_call(bench, bench->device->ops->kernel_result(bench->device));
    return rc ? rc : device_call(bench, bench->device->ops->elapsed(bench->device, us));
}

static int clocked(struct bench_run *run, size_t count, double *us)
{
    int rc = run->test->once(run);
    int64_t start = bench_now_ns();
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = run->test->once(run);
    *us = (double)(bench_now_ns() - start) / 1e3;
    return rc;
}

static int raw_copies(struct bench_run *run, size_t count)
{
    struct bench *bench = run->bench;
    if (!bench->leader && run->test->combine != BENCH_SUM)
        return 0;
    for (size_t i = 0; i < count * run->channels; i++) {
        struct bench_raw_copy *copy = &run->copies[i % run->channels];
        int rc = BENCH_AGAIN(bench, bench->device->ops->raw_copy(bench->device, copy));
        if (rc)
            return device_call(bench, rc);
    }
    return 0;
}

static int raw_once(struct bench_run *run, size_t count)
{
    struct bench *bench = run->bench;
    if (run->test->raw == BENCH_RAW_COPY)
        return raw_copies(run, count);
    return device_call(bench, bench->device->ops->raw_flags(bench->device, bench->leader, count));
}

static int raw_marked(struct bench_run *run, size_t count, double *us)
{
    struct bench *bench = run->bench;
    int rc = run->test->combine == BENCH_SUM ? bench_meet(run) : 0;
    if (rc == 0)
        rc = raw_once(run, 1);
    if (rc == 0)
        rc = mark(bench, 0);
    if (rc == 0)
        rc = raw_once(run, count);
    if (rc == 0)
        rc = mark(bench, 1);
    if (rc == 0 && bench->device->ops->raw_finish)
        rc = device_call(bench, bench->device->ops->raw_finish(bench->device));
    if (rc == 0)
        rc = bench_synchronize(bench);
    return rc ? rc : device_call(bench, bench->device->ops->elapsed(bench->device, us));
}

static int block_body(struct bench_run *run, enum bench_block_kind kind, size_t count, double *us)
{
    *us = 0;
    if (run->test->wall)
        return clocked(run, count, us);
    if (run->bench->peer < 0)
        return 0;
    if (run->by_nccl)
        return marked(run, count, run->nccl_graph, us);
    if (kind == BENCH_BLOCK_RAW)
        return raw_marked(run, count, us);
    return marked(run, count, kind == BENCH_BLOCK_TIMED && run->graph, us);
}

static bool verifies(const struct bench_run *run, bool timed)
{
    return run->bench->options->verify && timed && run->bench->peer >= 0 && !run->test->exchange;
}

int bench_block_fill(struct bench_run *run)
{
    return sends(run) ? each_channel(run, fill_channel) : 0;
}

int bench_block_check(struct bench_run *run)
{
    return receives(run) ? each_channel(run, check_channel) : 0;
}

int bench_block_begin(struct bench_run *run, bool timed)
{
    run->bench->block++;
    int rc = verifies(run, timed) ? bench_block_fill(run) : 0;
    return rc ? rc : bench_barrier(run->bench);
}

int bench_block_end(struct bench_run *run, bool timed)
{
    return verifies(run, timed) ? bench_block_check(run) : 0;
}

int bench_block_run(struct bench_run *run, enum bench_block_kind kind, size_t count, double *us)
{
    run->by_nccl = kind == BENCH_BLOCK_RAW && run->bench->options->compare == BENCH_COMPARE_NCCL;
    const bool timed = kind == BENCH_BLOCK_TIMED || run->by_nccl;
    int rc = bench_block_begin(run, timed);
    if (rc == 0)
        rc = block_body(run, kind, count, us);
    run->by_nccl = false;
    return rc ? rc : bench_block_end(run, timed);
}

int bench_block_capture(struct bench_run *run, int (*call)(struct bench_run *run), size_t count,
                        void **graph)
{
    struct bench *bench = run->bench;
    struct bench_device *device = bench->device;
    if (bench->peer < 0)
        return 0;
    int rc = device_call(bench, device->ops->begin_graph(device));
    if (rc)
        return rc;
    bench->held = true;
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = call ? call(run) : run->test->once(run);
    bench->held = false;
    void *captured = NULL;
    int ended = device->ops->end_graph(device, &captured);
    if (rc == 0 && (rc = device_call(bench, ended)) == 0)
        *graph = captured;
    else if (ended == 0)
        device->ops->destroy_graph(device, captured);
    return rc;
}
