// SPDX-License-Identifier: BSD-3-Clause
// signal: ph_signal and ph_wait, or from kernels a value of 8 bytes.
#include "cases.h"

static int latency_once(struct bench_run *run)
{
    struct bench *bench = run->bench;
    struct ph_channel *forward = run->forward[0], *backward = run->backward[0];
    int rc = bench->leader ? BENCH_ISSUE(bench, ph_signal(forward, bench->stream))
                           : BENCH_ISSUE(bench, ph_wait(forward, 0, bench->stream));
    if (rc)
        return rc;
    return bench->leader ? BENCH_ISSUE(bench, ph_wait(backward, 0, bench->stream))
                         : BENCH_ISSUE(bench, ph_signal(backward, bench->stream));
}

const struct bench_case bench_signal_latency = {
    .name = "signal-latency",
    .what = "half a round trip of signal and wait; -i device: of a value of 8 bytes",
    .metric = BENCH_HALF_ROUND_TRIP_US,
    .sizes = {8},
    .raw = BENCH_RAW_FLAGS,
    .channels = 1,
    .samples = 50,
    .once = latency_once,
    .kernel = BENCH_KERNEL_VALUE,
};
