// SPDX-License-Identifier: BSD-3-Clause
// --graphs: captured graphs that exist while a case is measured.
#include <stdlib.h>
#include <string.h>

#include "beside.h"
#include "block.h"

int bench_live_capture(struct bench_run *run)
{
    struct bench *bench = run->bench;
    const struct bench_options *options = bench->options;
    const size_t n =
        (size_t)options->graphs - (options->graphs > 0 && options->issue == BENCH_ISSUE_GRAPH);
    if (n == 0 || bench->peer < 0)
        return 0;
    run->live = calloc(n, sizeof(*run->live));
    if (!run->live)
        return bench_fail(bench, -ENOMEM, "graphs");

    char doing[sizeof(bench->doing)];
    memcpy(doing, bench->doing, sizeof(doing));
    int rc = 0;
    while (run->live_count < n && rc == 0) {
        snprintf(bench->doing, sizeof(bench->doing), "%.60s, graph %zu of %lld", doing,
                 run->live_count + 1, (long long)options->graphs);
        rc = bench_block_capture(run, NULL, BENCH_LIVE_ITERATIONS, &run->live[run->live_count]);
        run->live_count += rc == 0;
    }
    memcpy(bench->doing, doing, sizeof(doing));
    return rc;
}

void bench_live_destroy(struct bench_run *run)
{
    struct bench_device *device = run->bench->device;
    while (run->live_count > 0)
        device->ops->destroy_graph(device, run->live[--run->live_count]);
    free(run->live);
}
