// SPDX-License-Identifier: BSD-3-Clause
// One measurement: channels, warm-up, as many blocks as samples are wanted, each beside one of the
// raw limit.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "beside.h"
#include "block.h"
#include "cases.h"
#include "nccl.h"

#define WARMUP_US       50000.0
#define COUNT_MAX       ((size_t)1 << 20)
#define STAGED_CHANNELS 16            // for which a group waits in one launch
#define GRAPH_MAX       ((size_t)100) // iterations in one graph

struct samples {
    size_t n;     // blocks
    size_t count; // iterations in each
    double ours[BENCH_SAMPLES_MAX];
    double raw[BENCH_SAMPLES_MAX];
};

static void describe_operations(struct bench_run *run, struct ph_operation *ops)
{
    struct bench *bench = run->bench;
    const uint64_t first = run->channels == 1 ? BENCH_OP_LONE : bench->next_op;
    if (run->channels > 1)
        bench->next_op += 2 * run->channels;
    for (size_t i = 0; i < 2 * run->channels; i++) {
        bool forward = i < run->channels;
        bool sender = forward == bench->leader;
        size_t channel = forward ? i : i - run->channels;
        ops[i] = (struct ph_operation){
            .op_id = first + i,
            .peer = bench->peer,
            .role = sender ? PH_ROLE_SENDER : PH_ROLE_RECEIVER,
            .protocol =
                strcmp(bench->options->protocol, "get") == 0 ? PH_PROTOCOL_GET : PH_PROTOCOL_PUT,
            .buffer =
                (char *)bench->arena.base + (sender ? run->out : run->in) + channel * run->stride,
            .size = run->stride,
        };
        if (run->test->unbound) {
            ops[i].buffer = NULL;
            ops[i].size = 0;
        }
    }
}

static void describe_copies(struct bench_run *run)
{
    for (size_t i = 0; i < run->channels; i++)
        run->copies[i] = (struct bench_raw_copy){
            .device = run->bench->device,
            .get = run->test->get,
            .local_offset = (run->test->get ? run->in : run->out) + i * run->stride,
            .peer_offset = (run->test->get ? run->out : run->in) + i * run->stride,
            .size = run->size,
        };
}

// The path of the way that the data takes from or to this rank.
static int path_of(struct bench_run *run, struct ph_path_report *report)
{
    struct bench *bench = run->bench;
    struct ph_channel *channel = run->exchanged                    ? run->exchanged[0]
                                 : run->test->ways & BENCH_FORWARD ? run->forward[0]
                                                                   : run->backward[0];
    bool outgoing = run->exchanged || bench->leader == !!(run->test->ways & BENCH_FORWARD);
    int rc = ph_channel_path(channel, outgoing, report, sizeof(*report));
    return rc ? bench_fail(bench, rc, "ph_channel_path") : 0;
}

static bool stalls(const struct bench_run *run)
{
    return run->test->blind || (run->test->end == bench_tell && run->channels > STAGED_CHANNELS);
}

// Staged memory has been sent when it is in slots, of which there are many. A half round trip has
// its answer in it.
static int look_at_slots(struct bench_run *run)
{
    struct ph_path_report report;
    int rc = path_of(run, &report);
    if (rc || strcmp(report.method, "staged") != 0)
        return rc;
    if (stalls(run))
        return bench_fail(
            run->bench, -ENOTSUP,
            "staged puts go on with the other rank's waits, which come too late here; "
            "see the send cases, or put-bandwidth with no more than %d channels",
            STAGED_CHANNELS);
    run->buffered =
        run->test->metric == BENCH_BANDWIDTH_GBPS || run->test->metric == BENCH_RATE_MOPS;
    return 0;
}

static int open_channels(struct bench_run *run)
{
    struct bench *bench = run->bench;
    size_t n = 2 * run->channels;
    struct ph_operation *ops = calloc(n, sizeof(*ops));
    run->forward = calloc(n, sizeof(struct ph_channel *));
    run->group = calloc(n, sizeof(*run->group));
    run->copies = calloc(run->channels, sizeof(*run->copies));
    int rc = ops && run->forward && run->group && run->copies ? 0 : -ENOMEM;
    if (rc == 0 && bench->peer >= 0) {
        run->backward = run->forward + run->channels;
        describe_operations(run, ops);
        describe_copies(run);
        rc = ph_exchange(bench->context, ops, n, run->forward);
    }
    free(ops);
    if (rc)
        return bench_fail(bench, rc, "exchange of the channels");
    return bench->peer >= 0 ? look_at_slots(run) : 0;
}

// A kernel that hangs is to end before the run does.
#define KERNEL_TIMEOUT_NS 20000000000u

static int open_device(struct bench_run *run)
{
    struct bench *bench = run->bench;
    struct bench_kernel_args *kernel = &run->kernel;
    if (bench->options->issue != BENCH_ISSUE_DEVICE || run->backward == NULL)
        return 0;
    struct ph_channel *to = bench->leader ? run->forward[0] : run->backward[0];
    struct ph_channel *from = bench->leader ? run->backward[0] : run->forward[0];
    int rc = ph_channel_device(to, &kernel->to, sizeof(kernel->to));
    if (rc == 0)
        rc = ph_channel_device(from, &kernel->from, sizeof(kernel->from));
    if (rc)
        return bench_fail(bench, rc, "ph_channel_device");
    kernel->to.timeout_ns = kernel->from.timeout_ns = KERNEL_TIMEOUT_NS;
    const bool large = run->test->kernel == BENCH_KERNEL_LL && run->size > PH_DEVICE_LL_MAX;
    kernel->kind = large ? BENCH_KERNEL_PUT_SIGNAL : run->test->kernel;
    kernel->leader = bench->leader;
    kernel->size = run->size;
    return 0;
}

static void close_device(struct bench_run *run)
{
    struct bench_kernel_args *kernel = &run->kernel;
    bool leader = run->bench->leader;
    if (run->backward == NULL)
        return;
    if (kernel->to.local_size)
        ph_channel_device_release(leader ? run->forward[0] : run->backward[0], &kernel->to);
    if (kernel->from.local_size)
        ph_channel_device_release(leader ? run->backward[0] : run->forward[0], &kernel->from);
}

void bench_run_close(struct bench_run *run)
{
    close_device(run);
    if (run->graph)
        run->bench->device->ops->destroy_graph(run->bench->device, run->graph);
    if (run->nccl_graph)
        run->bench->device->ops->destroy_graph(run->bench->device, run->nccl_graph);
    bench_live_destroy(run);
    if (run->test->close)
        run->test->close(run);
    for (size_t i = 0; run->forward != NULL && i < 2 * run->channels; i++)
        if (run->forward[i] != NULL)
            ph_channel_close(run->forward[i]);
    free(run->forward);
    free(run->group);
    free(run->copies);
}

int bench_run_open(struct bench_run *run)
{
    struct bench *bench = run->bench;
    run->channels = bench_case_channels(run->test, bench->options);
    // A lone channel is the same for every size, as a program's: the first ones of a pair have
    // slots for wide lines, and others have not.
    run->stride = run->channels == 1 ? bench->area_size / 2 & ~(size_t)4095
                                     : ((run->size ? run->size : 1) + 4095) & ~(size_t)4095;
    run->out = bench->area_offset;
    run->in = run->out + run->channels * run->stride;
    if (run->test->open)
        return run->test->open(run);
    int rc = open_channels(run);
    return rc ? rc : open_device(run);
}

// All ranks take the same decisions: by the slowest.
static int slowest(struct bench *bench, double mine, double *us)
{
    double all[BENCH_RANKS_MAX];
    int rc = bench_allgather(bench, &mine, all, sizeof(mine));
    *us = 0;
    for (int i = 0; i < bench->ranks && rc == 0; i++)
        *us = all[i] > *us ? all[i] : *us;
    return rc;
}

// Blocks long enough that their start and end do not count.
static double block_us(const struct bench_run *run)
{
    return run->test->metric == BENCH_BANDWIDTH_GBPS ||
                   run->bench->options->issue == BENCH_ISSUE_DEVICE
               ? 10000
               : 2000;
}

int bench_run_warm_up(struct bench_run *run, double *per_iteration)
{
    struct bench *bench = run->bench;
    double total = 0;
    uint64_t done = 0;
    for (size_t count = 1;;) {
        double us;
        int rc = bench_block_run(run, BENCH_BLOCK_WARMUP, count, &us);
        if (rc == 0)
            rc = slowest(bench, us, &us);
        if (rc)
            return rc;
        total += us;
        done += count;
        *per_iteration = us / (double)count;
        if (total >= WARMUP_US && done >= (uint64_t)bench->options->warmup)
            return 0;
        if (us < block_us(run) && count < COUNT_MAX)
            count *= 2;
    }
}

static void plan(const struct bench_run *run, double per_iteration, size_t *blocks, size_t *count)
{
    const struct bench_options *options = run->bench->options;
    uint64_t wanted = (uint64_t)options->iterations;
    *blocks = run->test->samples;
    if (wanted && wanted < *blocks)
        *blocks = wanted;
    size_t most = options->issue == BENCH_ISSUE_GRAPH && !run->test->wall ? GRAPH_MAX : COUNT_MAX;
    if (wanted) {
        // More blocks where one cannot hold its part.
        while (wanted / *blocks > most && *blocks < BENCH_SAMPLES_MAX)
            (*blocks)++;
        *count = wanted / *blocks < most ? wanted / *blocks : most;
        return;
    }
    double fit = block_us(run) / per_iteration;
    *count = fit < 1 ? 1 : fit > (double)most ? most : (size_t)fit;
}

int bench_run_prepare(struct bench_run *run, size_t *blocks, size_t *count)
{
    double per_iteration;
    int rc = bench_run_warm_up(run, &per_iteration);
    if (rc == 0)
        plan(run, per_iteration, blocks, count);
    return rc;
}

static bool compares(const struct bench_run *run)
{
    const struct bench_options *options = run->bench->options;
    return options->compare == BENCH_COMPARE_NCCL ||
           (options->compare == BENCH_COMPARE_RAW && run->test->raw != BENCH_RAW_NONE);
}

void bench_run_progress(const struct bench *bench, size_t i, size_t n, int64_t start)
{
    static int64_t told; // the last line; of rank 0's only thread
    const bool terminal = isatty(STDERR_FILENO);
    const int64_t now = bench_now_ns();
    if (bench->rank != 0 || (!terminal && !bench->options->progress) || now - start < 500000000)
        return;
    if (!terminal) {
        if (now - told >= 1000000000)
            fprintf(stderr, "peerhop-perf: %s: %zu of %zu blocks\n", bench->doing, i, n);
        told = now - told >= 1000000000 ? now : told;
        return;
    }
    if (i < n)
        fprintf(stderr, "\r%s: %zu of %zu blocks ", bench->doing, i, n);
    else
        fputs("\r\033[K", stderr);
    fflush(stderr);
}

static int take_blocks(struct bench_run *run, struct samples *samples)
{
    int64_t start = bench_now_ns();
    for (size_t i = 0; i < samples->n; i++) {
        int rc = bench_block_run(run, BENCH_BLOCK_TIMED, samples->count, &samples->ours[i]);
        if (rc == 0 && compares(run))
            rc = bench_block_run(run, BENCH_BLOCK_RAW, samples->count, &samples->raw[i]);
        if (rc)
            return rc;
        bench_run_progress(run->bench, i + 1, samples->n, start);
    }
    return 0;
}

static int measure_blocks(struct bench_run *run, struct samples *samples)
{
    double ignored;
    int rc = bench_run_prepare(run, &samples->n, &samples->count);
    if (rc)
        return rc;

    // The first launch of a graph and the first raw block are not measured either.
    const bool graph = run->bench->options->issue == BENCH_ISSUE_GRAPH && !run->test->wall;
    if (graph) {
        rc = bench_block_capture(run, NULL, samples->count, &run->graph);
        if (rc == 0)
            rc = bench_block_run(run, BENCH_BLOCK_TIMED, samples->count, &ignored);
    }
    if (rc == 0 && compares(run))
        rc = bench_block_run(run, BENCH_BLOCK_RAW, samples->count, &ignored);
    // Its connections are made now.
    if (rc == 0 && graph && run->bench->nccl) {
        rc = bench_block_capture(run, bench_nccl_once, samples->count, &run->nccl_graph);
        if (rc == 0)
            rc = bench_block_run(run, BENCH_BLOCK_RAW, samples->count, &ignored);
    }
    return rc ? rc : take_blocks(run, samples);
}

static int measure_samples(struct bench_run *run, struct samples *samples)
{
    const struct bench_options *options = run->bench->options;
    samples->n = options->iterations ? (size_t)options->iterations : run->test->samples;
    if (samples->n > BENCH_SAMPLES_MAX)
        samples->n = BENCH_SAMPLES_MAX;
    samples->count = 1;
    double ignored;
    int rc = run->test->sample(run, &ignored);
    for (int64_t i = 1; i < options->warmup && rc == 0; i++)
        rc = run->test->sample(run, &ignored);
    int64_t start = bench_now_ns();
    for (size_t i = 0; i < samples->n && rc == 0; i++) {
        rc = run->test->sample(run, &samples->ours[i]);
        bench_run_progress(run->bench, i + 1, samples->n, start);
    }
    return rc;
}

static double value_of(const struct bench_run *run, size_t count, double us)
{
    double operations = (double)(count * run->channels);
    switch (run->test->metric) {
    case BENCH_HALF_ROUND_TRIP_US:
        return us / (double)count / 2;
    case BENCH_BANDWIDTH_GBPS:
        return us > 0 ? (double)run->size * operations / us / 1e3 : 0;
    case BENCH_RATE_MOPS:
        return us > 0 ? operations / us : 0;
    default:
        return us / (double)count;
    }
}

// all: n values of each rank. Writes at most ranks * n values to out, and returns how many.
static size_t combine(const struct bench *bench, enum bench_combine how, const double *all,
                      size_t n, double *out)
{
    size_t made = 0;
    if (how == BENCH_SLOWEST) {
        for (size_t i = 0; i < n; i++, made++) {
            out[i] = all[i];
            for (int rank = 1; rank < bench->ranks; rank++)
                if (all[(size_t)rank * n + i] > out[i])
                    out[i] = all[(size_t)rank * n + i];
        }
        return made;
    }
    for (int leader = 0; leader + 1 < bench->ranks; leader += 2)
        for (size_t i = 0; i < n; i++) {
            const double *one = &all[(size_t)leader * n + i];
            out[made++] = how == BENCH_SUM ? one[0] + one[n] : one[0];
        }
    return made;
}

int bench_run_gather(struct bench_run *run, const double *mine, size_t n, struct bench_stats *stats)
{
    struct bench *bench = run->bench;
    const bool more =
        run->test->metric == BENCH_BANDWIDTH_GBPS || run->test->metric == BENCH_RATE_MOPS;
    const size_t most = n > 0 ? n * (size_t)bench->ranks : 1;
    double *all = calloc(2 * most, sizeof(*all)), *combined = all + most;
    int rc = all ? bench_allgather(bench, mine, all, n * sizeof(*all))
                 : bench_fail(bench, -ENOMEM, "samples");
    if (rc == 0)
        bench_stats_compute(combined, combine(bench, run->test->combine, all, n, combined), more,
                            stats);
    free(all);
    return rc;
}

static int gather(struct bench_run *run, double *mine, const struct samples *samples,
                  struct bench_stats *stats)
{
    for (size_t i = 0; i < samples->n; i++)
        mine[i] = value_of(run, samples->count, mine[i]);
    return bench_run_gather(run, mine, samples->n, stats);
}

static const char *metric_name(enum bench_metric metric)
{
    static const char *const names[] = {"half_round_trip_us", "bandwidth_GBps", "rate_Mops",
                                        "exchange_us",        "import_us",      "kernel_us",
                                        "one_way_us",         "fresh_us"};
    return names[metric];
}

static const char *wait_name(const struct ph_counters *a, const struct ph_counters *b)
{
    uint64_t memory_operation = b->waits_memory_operation - a->waits_memory_operation;
    uint64_t kernel = b->waits_kernel - a->waits_kernel;
    if (memory_operation + kernel == 0)
        return b->waits_host != a->waits_host ? "host" : NULL;
    return memory_operation > kernel ? "memory_operation" : "kernel";
}

static int describe_path(struct bench_run *run, struct bench_result *result)
{
    struct bench *bench = run->bench;
    if (bench->peer < 0)
        return 0;
    struct ph_path_report report;
    int rc = path_of(run, &report);
    if (rc)
        return rc;
    if (strcmp(bench->options->path, "auto") != 0 && strcmp(bench->options->path, report.path) != 0)
        return bench_fail(bench, PH_ENOPATH, "-p %s, but the path is %s", bench->options->path,
                          report.path);
    result->path = report.path;
    result->method = report.method;
    result->ll_max = report.ll_max;
    result->sm_max = report.sm_max;
    return 0;
}

int bench_run_describe(struct bench_run *run, struct bench_result *result)
{
    const struct bench *bench = run->bench;
    const struct bench_case *test = run->test;
    bool send = strncmp(test->name, "send", 4) == 0;
    result->test = test->name;
    result->protocol = test->exchange ? NULL
                       : send         ? bench->options->protocol
                                      : (test->get ? "get" : "put");
    const bool waits = test->exchange || bench->options->fresh;
    result->issue = bench_issue_name(waits ? BENCH_ISSUE_HOST : bench->options->issue);
    result->group = bench->options->group;
    result->graphs = (uint64_t)bench->options->graphs;
    result->fresh = bench->options->fresh;
    result->kind = bench->device->ops->kind;
    result->device = ph_context_device(bench->context);
    result->metric = metric_name(test->metric);
    result->ranks = bench->ranks;
    result->bytes = run->size;
    result->channels = run->channels;
    result->verified = bench->options->verify && !test->exchange;
    result->exchange = test->exchange;
    result->nccl_version = bench_nccl_version(bench);
    result->nccl_path = bench_nccl_path(bench);
    result->ops = run->op_count / (size_t)(bench->ranks - 1);
    result->segments = run->segment_count;
    return describe_path(run, result);
}

void bench_run_describe_counters(const struct ph_counters *a, const struct ph_counters *b,
                                 struct bench_result *result)
{
    double calls = (double)(b->exchanges - a->exchanges);
    result->wait = wait_name(a, b);
    if (calls == 0)
        return;
    result->imports = (double)(b->imports - a->imports) / calls;
    result->offers = (double)(b->offers - a->offers) / calls;
    result->store_commands = (double)(b->store_commands - a->store_commands) / calls;
}

static int measure_run(struct bench_run *run, struct samples *samples, bench_row *row)
{
    struct bench_result made = {0}, *result = &made;
    struct bench *bench = run->bench;
    struct ph_counters before, after;
    int rc = bench_live_capture(run);
    ph_context_counters(bench->context, &before, sizeof(before));
    if (rc == 0)
        rc = run->test->sample ? measure_samples(run, samples) : measure_blocks(run, samples);
    ph_context_counters(bench->context, &after, sizeof(after));
    if (rc == 0)
        rc = gather(run, samples->ours, samples, &result->stats);
    if (rc == 0 && compares(run)) {
        struct bench_stats limit = {0};
        rc = gather(run, samples->raw, samples, &limit);
        result->compared = rc == 0;
        result->limit_of = bench->nccl ? "nccl" : "raw";
        result->limit = limit.median;
        result->ratio = limit.median > 0 ? result->stats.median / limit.median : 0;
    }
    if (rc == 0)
        rc = bench_run_describe(run, result);
    result->iterations = (uint64_t)samples->n * samples->count;
    bench_run_describe_counters(&before, &after, result);
    if (rc == 0)
        row(bench, result);
    return rc;
}

// The next size has other channels, and only the first ones of a pair have lanes, and of these only
// some wide slots: so these end, and lone ones that lie there are made anew. What was captured
// keeps its lane for ever.
static int release_channels(struct bench_run *run)
{
    struct bench *bench = run->bench;
    const bool captured = bench->options->issue == BENCH_ISSUE_GRAPH || bench->options->graphs;
    if (run->channels == 1 || run->test->open || captured)
        return 0;
    int rc = bench_barrier(bench); // the peer is through with them, too
    if (rc || bench->peer < 0)
        return rc;
    const void *buffers = (char *)bench->arena.base + run->out;
    const size_t size = 2 * run->channels * run->stride;
    rc = ph_release_start(bench->context, buffers, size);
    if (rc == 0)
        rc = ph_release_wait(bench->context, buffers, size, PH_RELEASE_DRAINED, 0);
    return rc ? bench_fail(bench, rc, "release of the channels") : 0;
}

int bench_measure(struct bench *bench, const struct bench_case *test, size_t size, bench_row *row)
{
    char text[32];
    snprintf(bench->doing, sizeof(bench->doing), "%s, %s bytes", test->name,
             bench_size_text(size, text, sizeof(text)));
    struct bench_run run = {.bench = bench, .test = test, .size = size};
    struct samples *samples = calloc(1, sizeof(*samples));
    if (!samples)
        return bench_fail(bench, -ENOMEM, "samples");
    int rc = bench_run_open(&run);
    if (rc == 0)
        rc = test->rows ? test->rows(&run, row) : measure_run(&run, samples, row);
    bench_run_close(&run);
    if (rc == 0)
        rc = release_channels(&run);
    free(samples);
    return rc;
}
