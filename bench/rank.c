// SPDX-License-Identifier: BSD-3-Clause
// How a rank begins and ends: device, context, arena.
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cases.h"
#include "launch.h"
#include "nccl.h"

#define CHANNELS_DEFAULT 16384 // of PEERHOP_CHANNELS

bool bench_on_host(const char *kind, char *why, size_t why_size)
{
    snprintf(why, why_size, "-k host");
    const char *wanted = getenv("PEERHOP_DEVICE");
    if (strcmp(kind, "auto") == 0 && wanted && strcmp(wanted, "host") == 0) {
        snprintf(why, why_size, "PEERHOP_DEVICE=host");
        return true;
    }
    return strcmp(kind, "host") == 0 ||
           (bench_cuda_count(why, why_size) == 0 && strcmp(kind, "cuda") != 0);
}

// How many operation keys a pair of ranks needs, at most.
static uint64_t keys_needed(const struct bench_options *options)
{
    uint64_t keys = 16;
    for (size_t i = 0; i < options->case_count; i++) {
        const struct bench_case *test = options->cases[i];
        uint64_t sizes = options->sizes.n ? options->sizes.n : 4;
        uint64_t samples = options->iterations ? (uint64_t)options->iterations : test->samples;
        uint64_t rounds = test->sample ? samples + (uint64_t)options->warmup + 2 : 1;
        uint64_t each = test->open ? (uint64_t)options->ops : bench_case_channels(test, options);
        keys += sizes * rounds * 2 * each;
    }
    return keys;
}

// Errors are told by bench_fail.
static void print_line(void *opaque, enum ph_log_level level, const char *line)
{
    (void)opaque;
    if (level != PH_LOG_ERROR)
        fprintf(stderr, "peerhop-perf: %s\n", line);
}

static int create_context(struct bench *bench)
{
    const struct bench_options *options = bench->options;
    char method[64], wait[64], channels[64], error[1024] = "";
    const char *settings[BENCH_SETTINGS + 5] = {0};
    size_t n = 0;
    while (bench->settings && n < BENCH_SETTINGS && bench->settings[n]) {
        settings[n] = bench->settings[n];
        n++;
    }
    snprintf(method, sizeof(method), "PEERHOP_METHOD=%s", options->method ? options->method : "");
    snprintf(wait, sizeof(wait), "PEERHOP_WAIT=%s", options->wait ? options->wait : "");
    snprintf(channels, sizeof(channels), "PEERHOP_CHANNELS=%llu",
             (unsigned long long)keys_needed(options));
    if (strcmp(options->path, "net") == 0)
        settings[n++] = "PEERHOP_PATH=net";
    if (options->method)
        settings[n++] = method;
    if (options->wait)
        settings[n++] = wait;
    if (keys_needed(options) > CHANNELS_DEFAULT)
        settings[n++] = channels;

    struct ph_context_params params = {
        .struct_size = sizeof(params),
        .device = bench->device->name,
        .store = options->store,
        .deadline_ms = options->deadline_s * 750, // its sentence before the end of the run
        .log = print_line,
        .settings = settings,
        .error = error,
        .error_size = sizeof(error),
    };
    int rc = ph_context_create(&params, &bench->context);
    if (rc)
        return bench_fail(bench, rc, "ph_context_create: %s", error);
    bench->rank = ph_context_rank(bench->context);
    bench->ranks = ph_context_ranks(bench->context);
    if (bench->ranks < 2 || bench->ranks > BENCH_RANKS_MAX)
        return bench_fail(bench, -EINVAL, "%d ranks: 2 to %d can be measured", bench->ranks,
                          BENCH_RANKS_MAX);
    bench->leader = bench->rank % 2 == 0;
    bench->peer = bench->rank ^ 1;
    if (bench->peer >= bench->ranks)
        bench->peer = -1;
    return 0;
}

// On host memory this thread moves the data: it keeps a core of its own where there are enough, for
// two that share one take turns of milliseconds. Threads of the library were made before and stay
// free.
static void bind_to_core(const struct bench *bench)
{
    cpu_set_t allowed, one;
    if (strcmp(bench->device->ops->kind, "host") != 0 ||
        sched_getaffinity(0, sizeof(allowed), &allowed) || CPU_COUNT(&allowed) < bench->ranks)
        return;
    int left = bench->rank;
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed) || left-- > 0)
            continue;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        sched_setaffinity(0, sizeof(one), &one);
        return;
    }
}

// A GPU may map all of an allocation that is no multiple of 2 MiB by smaller pages, and copies
// slower then (docs/measurements/2026-11-20.md, "Whole pages").
static size_t whole_pages(size_t size)
{
    const size_t page = (size_t)2 << 20;
    return (size + page - 1) / page * page;
}

static int allocate_arena(struct bench *bench)
{
    const struct bench_options *options = bench->options;
    bench->area_offset = whole_pages(bench_control_size(bench->ranks));
    for (size_t i = 0; i < options->case_count; i++) {
        size_t area = bench_case_area(options->cases[i], options);
        if (area > bench->area_size)
            bench->area_size = area;
    }
    bench->arena.size = bench->area_offset + whole_pages(bench->area_size);
    int rc = bench->device->ops->alloc(bench->device, true, bench->arena.size, &bench->arena.base);
    return rc ? bench_fail(bench, rc, "%s", bench->device->error) : 0;
}

static int open_raw(struct bench *bench)
{
    struct bench_raw_handle mine = {0}, all[BENCH_RANKS_MAX];
    int rc = bench->device->ops->raw_handle(bench->device, &mine);
    if (rc)
        return bench_fail(bench, rc, "--compare: %s", bench->device->error);
    rc = bench_allgather(bench, &mine, all, sizeof(mine));
    if (rc || bench->peer < 0)
        return rc;
    rc = bench->device->ops->raw_open(bench->device, &all[bench->peer]);
    return rc ? bench_fail(bench, rc, "--compare: %s", bench->device->error) : 0;
}

// Host memory is copied in one way, and waited for in one.
static int check_wish(struct bench *bench, const char *option, const char *word)
{
    if (word == NULL || strcmp(word, "auto") == 0 || strcmp(bench->device->ops->kind, "host") != 0)
        return 0;
    return bench_fail(bench, -ENOTSUP, "%s %s needs GPUs (-k cuda)", option, word);
}

int bench_start(struct bench *bench, char *why, size_t why_size)
{
    bench->device = bench_on_host(bench->options->kind, why, why_size) ? bench_host_device()
                                                                       : bench_cuda_device();
    bench->device->net = strcmp(bench->options->path, "net") == 0;
    struct bench_place place = {0};
    bench_place(&place);
    bench->rank = place.rank;
    if (bench->options->issue == BENCH_ISSUE_GRAPH && !bench->device->ops->begin_graph)
        return bench_fail(bench, -ENOTSUP, "-i graph needs GPUs (-k cuda)");
    if (bench->options->graphs && !bench->device->ops->begin_graph)
        return bench_fail(bench, -ENOTSUP, "--graphs needs GPUs (-k cuda)");
    int rc = check_wish(bench, "-m", bench->options->method);
    if (rc || (rc = check_wish(bench, "--wait", bench->options->wait)))
        return rc;
    if (bench->options->compare == BENCH_COMPARE_NCCL &&
        strcmp(bench->device->ops->kind, "host") == 0)
        return bench_fail(bench, -ENOTSUP, "--compare nccl needs GPUs (-k cuda)");
    const bool kernels = bench->options->issue == BENCH_ISSUE_DEVICE;
    if (kernels && !bench->device->ops->open_kernels)
        return bench_fail(bench, -ENOTSUP, "-i device needs GPUs (-k cuda)");
    rc = bench->device->ops->open(bench->device, place.local_rank);
    if (rc == 0 && kernels)
        rc = bench->device->ops->open_kernels(bench->device);
    if (rc)
        return bench_fail(bench, rc, "%s", bench->device->error);
    rc = create_context(bench);
    if (rc)
        return rc;
    rc = bench->device->ops->attach(bench->device, bench->context, &bench->stream);
    if (rc)
        return bench_fail(bench, rc, "%s", bench->device->error);
    rc = allocate_arena(bench);
    if (rc == 0)
        rc = bench_control_open(bench);
    if (rc == 0 && bench->options->compare == BENCH_COMPARE_RAW)
        rc = open_raw(bench);
    if (rc == 0 && bench->options->compare == BENCH_COMPARE_NCCL)
        rc = bench_nccl_open(bench);
    bind_to_core(bench);
    return rc;
}

int bench_finish(struct bench *bench, int rc)
{
    if (rc && bench->context)
        ph_context_abort(bench->context, "this rank of the bench has failed");
    bench_nccl_close(bench, rc);
    bench->device->ops->detach(bench->device);
    int destroyed = ph_context_destroy(&bench->context, rc ? 2000 : 0);
    if (destroyed && rc == 0)
        rc = bench_fail(bench, destroyed, "ph_context_destroy");
    if (!bench->context)
        bench->device->ops->close(bench->device);
    return rc;
}
