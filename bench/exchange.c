// SPDX-License-Identifier: BSD-3-Clause
// exchange and import: how ranks find each other's buffers. All ranks with all others, --ops
// operations for each pair of ranks, which lie in --segments allocations.
#include <stdlib.h>

#include "cases.h"

#define SEGMENTS_MAX 4096

static size_t peers(const struct bench_run *run)
{
    return (size_t)run->bench->ranks - 1;
}

static int open_operations(struct bench_run *run, size_t per_peer, size_t segments)
{
    run->channels = 1;
    run->segment_count = segments;
    run->op_count = per_peer * peers(run);
    run->ops = calloc(run->op_count, sizeof(*run->ops));
    run->exchanged = calloc(run->op_count, sizeof(struct ph_channel *));
    return run->ops && run->exchanged ? 0 : bench_fail(run->bench, -ENOMEM, "operations");
}

static void close_operations(struct bench_run *run)
{
    free(run->ops);
    free(run->exchanged);
}

static int allocate(struct bench_run *run, size_t size, char **base)
{
    struct bench_device *device = run->bench->device;
    void *address;
    int rc = device->ops->alloc(device, false, size, &address);
    if (rc)
        return bench_fail(run->bench, rc, "%s", device->error);
    *base = address;
    return 0;
}

// Names new operations, the same ones at every rank. Operation i of each peer lies in segment i %
// segments.
static void name_operations(struct bench_run *run, char *const *segments)
{
    struct bench *bench = run->bench;
    size_t per_peer = run->op_count / peers(run), n = run->segment_count;
    size_t size = run->size ? run->size : 1;
    for (size_t i = 0; i < run->op_count; i++) {
        size_t op = i % per_peer;
        int peer = (int)(i / per_peer);
        run->ops[i] = (struct ph_operation){
            .op_id = bench->next_op + op,
            .peer = peer < bench->rank ? peer : peer + 1,
            .role = PH_ROLE_BOTH,
            .protocol = PH_PROTOCOL_PUT,
            .buffer = segments[op % n] + op / n * size,
            .size = size,
        };
    }
    bench->next_op += per_peer;
}

static int exchange(struct bench_run *run)
{
    int rc = ph_exchange(run->bench->context, run->ops, run->op_count, run->exchanged);
    return rc ? bench_fail(run->bench, rc, "ph_exchange") : 0;
}

static int exchange_timed(struct bench_run *run, double *us)
{
    int rc = bench_barrier(run->bench);
    int64_t start = bench_now_ns();
    if (rc == 0)
        rc = exchange(run);
    *us = (double)(bench_now_ns() - start) / 1e3;
    return rc;
}

// New operations in new memory.
static int name_fresh(struct bench_run *run)
{
    char *segments[SEGMENTS_MAX];
    size_t n = run->segment_count, per_peer = run->op_count / peers(run);
    size_t size = (per_peer + n - 1) / n * (run->size ? run->size : 1);
    for (size_t i = 0; i < n; i++) {
        int rc = allocate(run, size, &segments[i]);
        if (rc)
            return rc;
    }
    name_operations(run, segments);
    return 0;
}

static int cold_open(struct bench_run *run)
{
    const struct bench_options *options = run->bench->options;
    return open_operations(run, (size_t)options->ops, (size_t)options->segments);
}

static int cold_sample(struct bench_run *run, double *us)
{
    int rc = name_fresh(run);
    return rc ? rc : exchange_timed(run, us);
}

const struct bench_case bench_exchange_cold = {
    .name = "exchange-cold",
    .what = "one exchange of --ops new operations in --segments new allocations",
    .metric = BENCH_EXCHANGE_US,
    .sizes = {4096},
    .combine = BENCH_SLOWEST,
    .samples = 20,
    .exchange = true,
    .open = cold_open,
    .close = close_operations,
    .sample = cold_sample,
};

static int hit_open(struct bench_run *run)
{
    int rc = cold_open(run);
    if (rc == 0)
        rc = name_fresh(run);
    return rc ? rc : exchange(run);
}

const struct bench_case bench_exchange_hit = {
    .name = "exchange-hit",
    .what = "the same exchange again: every rank has everything in its cache",
    .metric = BENCH_EXCHANGE_US,
    .sizes = {4096},
    .combine = BENCH_SLOWEST,
    .samples = 50,
    .wall = true,
    .exchange = true,
    .open = hit_open,
    .close = close_operations,
    .once = exchange,
};

static int import_open(struct bench_run *run)
{
    int rc = open_operations(run, 1, 1);
    char *base = NULL;
    if (rc == 0)
        rc = allocate(run, run->size ? run->size : 1, &base);
    if (rc == 0)
        name_operations(run, &base);
    return rc ? rc : exchange(run);
}

// An exchange of one operation in memory that the peers have not seen, and one in memory that they
// have: the difference is what the import costs.
static int import_sample(struct bench_run *run, double *us)
{
    double seen = 0, unseen = 0;
    char *base = run->ops[0].buffer;
    name_operations(run, &base);
    int rc = exchange_timed(run, &seen);
    if (rc == 0)
        rc = allocate(run, run->size ? run->size : 1, &base);
    if (rc)
        return rc;
    name_operations(run, &base);
    rc = exchange_timed(run, &unseen);
    *us = unseen - seen;
    return rc;
}

const struct bench_case bench_import = {
    .name = "import",
    .what = "what the first exchange of an allocation costs beyond the next one",
    .metric = BENCH_IMPORT_US,
    .sizes = {4 << 20},
    .combine = BENCH_SLOWEST,
    .samples = 20,
    .exchange = true,
    .open = import_open,
    .close = close_operations,
    .sample = import_sample,
};
