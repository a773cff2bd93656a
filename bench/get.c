// SPDX-License-Identifier: BSD-3-Clause
// get: ph_get. The rank that reads is told by ph_signal that there is something to read.
#include "cases.h"

static int latency_lead(struct bench_run *run)
{
    struct bench *bench = run->bench;
    int rc = BENCH_ISSUE(bench, ph_signal(run->forward[0], bench->stream));
    if (rc == 0)
        rc = BENCH_ISSUE(bench, ph_wait(run->backward[0], 0, bench->stream));
    if (rc == 0)
        rc = BENCH_ISSUE(bench, ph_get(run->backward[0], 0, 0, run->size, bench->stream));
    return rc;
}

static int latency_follow(struct bench_run *run)
{
    struct bench *bench = run->bench;
    int rc = BENCH_ISSUE(bench, ph_wait(run->forward[0], 0, bench->stream));
    if (rc == 0)
        rc = BENCH_ISSUE(bench, ph_get(run->forward[0], 0, 0, run->size, bench->stream));
    if (rc == 0)
        rc = BENCH_ISSUE(bench, ph_signal(run->backward[0], bench->stream));
    return rc;
}

static int latency_once(struct bench_run *run)
{
    return run->bench->leader ? latency_lead(run) : latency_follow(run);
}

const struct bench_case bench_get_latency = {
    .name = "get-latency",
    .what = "half a round trip of signal, wait and get",
    .metric = BENCH_HALF_ROUND_TRIP_US,
    .sizes = {8, 65536},
    .ways = BENCH_FORWARD | BENCH_BACKWARD,
    .raw = BENCH_RAW_FLAGS,
    .get = true,
    .channels = 1,
    .samples = 50,
    .once = latency_once,
    .end = bench_meet, // the other rank may not write anew what the last get still reads
};

static int get_channels(struct bench_run *run, struct ph_channel **channels)
{
    struct bench *bench = run->bench;
    for (size_t i = 0; i < run->channels; i++) {
        int rc = BENCH_ISSUE(bench, ph_get(channels[i], 0, 0, run->size, bench->stream));
        if (rc)
            return rc;
    }
    return 0;
}

static int leader_once(struct bench_run *run)
{
    return run->bench->leader ? get_channels(run, run->backward) : 0;
}

const struct bench_case bench_get_bandwidth = {
    .name = "get-bandwidth",
    .what = "gets one after the other, one way",
    .metric = BENCH_BANDWIDTH_GBPS,
    .sizes = {65536, 1 << 20, 64 << 20},
    .ways = BENCH_BACKWARD,
    .raw = BENCH_RAW_COPY,
    .get = true,
    .channels = 1,
    .samples = 20,
    .once = leader_once,
    .end = bench_meet,
    .kernel = BENCH_KERNEL_GET,
};

static int bidirectional_once(struct bench_run *run)
{
    return get_channels(run, run->bench->leader ? run->backward : run->forward);
}

const struct bench_case bench_get_bidirectional = {
    .name = "get-bidirectional",
    .what = "gets both ways at once, the sum of both",
    .metric = BENCH_BANDWIDTH_GBPS,
    .sizes = {1 << 20, 64 << 20},
    .ways = BENCH_FORWARD | BENCH_BACKWARD,
    .raw = BENCH_RAW_COPY,
    .get = true,
    .combine = BENCH_SUM,
    .channels = 1,
    .samples = 20,
    .begin = bench_meet,
    .once = bidirectional_once,
    .end = bench_meet,
};

const struct bench_case bench_get_rate = {
    .name = "get-rate",
    .what = "gets a second over several channels",
    .metric = BENCH_RATE_MOPS,
    .sizes = {8},
    .ways = BENCH_BACKWARD,
    .get = true,
    .channels = 16,
    .samples = 50,
    .once = leader_once,
    .end = bench_meet,
};
