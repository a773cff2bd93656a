// SPDX-License-Identifier: BSD-3-Clause
// put: ph_put, ph_put_signal and ph_wait.
#include "cases.h"

static int give_one(struct bench_run *run, struct ph_channel *channel)
{
    return BENCH_ISSUE(run->bench, ph_put_signal(channel, 0, 0, run->size, run->bench->stream));
}

static int take_one(struct bench_run *run, struct ph_channel *channel)
{
    return BENCH_ISSUE(run->bench, ph_wait(channel, run->size, run->bench->stream));
}

// One round trip: each rank answers the other's put with one of its own.
static int latency_once(struct bench_run *run)
{
    const bool leader = run->bench->leader;
    int rc = leader ? give_one(run, run->forward[0]) : take_one(run, run->forward[0]);
    if (rc)
        return rc;
    return leader ? take_one(run, run->backward[0]) : give_one(run, run->backward[0]);
}

const struct bench_case bench_put_latency = {
    .name = "put-latency",
    .what = "half a round trip of put_signal and wait",
    .metric = BENCH_HALF_ROUND_TRIP_US,
    .sizes = {8, 65536},
    .ways = BENCH_FORWARD | BENCH_BACKWARD,
    .raw = BENCH_RAW_FLAGS,
    .channels = 1,
    .samples = 50,
    .once = latency_once,
    .give = give_one,
    .take = take_one,
    .kernel = BENCH_KERNEL_PUT_SIGNAL,
};

// All channels' puts by one group, and a signal.
static int give_batch(struct bench_run *run, struct ph_channel **channels)
{
    struct bench *bench = run->bench;
    for (size_t i = 0; i < run->channels; i++)
        run->group[i] =
            (struct ph_group_op){.kind = PH_GROUP_PUT, .channel = channels[i], .size = run->size};
    int rc = BENCH_ISSUE(bench, ph_group(run->group, run->channels, bench->stream));
    return rc ? rc : BENCH_ISSUE(bench, ph_signal(channels[0], bench->stream));
}

static int batch_once(struct bench_run *run)
{
    struct bench *bench = run->bench;
    int rc;
    if (bench->leader) {
        rc = give_batch(run, run->forward);
        return rc ? rc : BENCH_ISSUE(bench, ph_wait(run->backward[0], 0, bench->stream));
    }
    rc = BENCH_ISSUE(bench, ph_wait(run->forward[0], 0, bench->stream));
    return rc ? rc : give_batch(run, run->backward);
}

const struct bench_case bench_put_batch = {
    .name = "put-batch",
    .what = "half a round trip of puts over several channels by one group, and a signal",
    .metric = BENCH_HALF_ROUND_TRIP_US,
    .sizes = {8192},
    .ways = BENCH_FORWARD | BENCH_BACKWARD,
    .blind = true,
    .channels = 64,
    .samples = 50,
    .once = batch_once,
};

static int put_channels(struct bench_run *run, struct ph_channel **channels)
{
    struct bench *bench = run->bench;
    for (size_t i = 0; i < run->channels; i++) {
        int rc = BENCH_ISSUE(bench, ph_put(channels[i], 0, 0, run->size, bench->stream));
        if (rc)
            return rc;
    }
    return 0;
}

static int bandwidth_once(struct bench_run *run)
{
    return run->bench->leader ? put_channels(run, run->forward) : 0;
}

const struct bench_case bench_put_bandwidth = {
    .name = "put-bandwidth",
    .what = "puts one after the other, one way",
    .metric = BENCH_BANDWIDTH_GBPS,
    .sizes = {65536, 1 << 20, 64 << 20},
    .ways = BENCH_FORWARD,
    .raw = BENCH_RAW_COPY,
    .channels = 1,
    .samples = 20,
    .once = bandwidth_once,
    .end = bench_tell,
    .kernel = BENCH_KERNEL_PUT,
};

static int bidirectional_once(struct bench_run *run)
{
    return put_channels(run, run->bench->leader ? run->forward : run->backward);
}

const struct bench_case bench_put_bidirectional = {
    .name = "put-bidirectional",
    .what = "puts both ways at once, the sum of both",
    .metric = BENCH_BANDWIDTH_GBPS,
    .sizes = {1 << 20, 64 << 20},
    .ways = BENCH_FORWARD | BENCH_BACKWARD,
    .raw = BENCH_RAW_COPY,
    .combine = BENCH_SUM,
    .blind = true,
    .channels = 1,
    .samples = 20,
    .begin = bench_meet,
    .once = bidirectional_once,
    .end = bench_meet,
};

static int rate_group(struct bench_run *run)
{
    struct bench *bench = run->bench;
    for (size_t i = 0; i < run->channels; i++)
        run->group[i] = (struct ph_group_op){
            .kind = bench->leader ? PH_GROUP_PUT_SIGNAL : PH_GROUP_WAIT,
            .channel = run->forward[i],
            .size = run->size,
        };
    return BENCH_ISSUE(bench, ph_group(run->group, run->channels, bench->stream));
}

static int rate_once(struct bench_run *run)
{
    struct bench *bench = run->bench;
    if (bench->options->group)
        return rate_group(run);
    for (size_t i = 0; i < run->channels; i++) {
        struct ph_channel *channel = run->forward[i];
        int rc = bench->leader
                     ? BENCH_ISSUE(bench, ph_put_signal(channel, 0, 0, run->size, bench->stream))
                     : BENCH_ISSUE(bench, ph_wait(channel, run->size, bench->stream));
        if (rc)
            return rc;
    }
    return 0;
}

const struct bench_case bench_put_rate = {
    .name = "put-rate",
    .what = "put_signals a second over several channels, each waited for",
    .metric = BENCH_RATE_MOPS,
    .sizes = {8},
    .ways = BENCH_FORWARD,
    .channels = 16,
    .samples = 50,
    .once = rate_once,
};
