// SPDX-License-Identifier: BSD-3-Clause
// unbound: ph_send_from and ph_recv_into, of memory that was not exchanged.
#include "cases.h"

static char *data_of(const struct bench_run *run, bool sends, size_t channel)
{
    return (char *)run->bench->arena.base + (sends ? run->out : run->in) + channel * run->stride;
}

// The way from the leader, or to it, of one channel.
static int move_one(struct bench_run *run, bool forward, size_t channel)
{
    struct bench *bench = run->bench;
    const bool sends = forward == bench->leader;
    struct ph_channel *way = (forward ? run->forward : run->backward)[channel];
    char *data = data_of(run, sends, channel);
    return sends ? BENCH_ISSUE(bench, ph_send_from(way, data, run->size, bench->stream))
                 : BENCH_ISSUE(bench, ph_recv_into(way, data, run->size, bench->stream));
}

static int latency_once(struct bench_run *run)
{
    const int rc = move_one(run, true, 0);
    return rc ? rc : move_one(run, false, 0);
}

const struct bench_case bench_unbound_latency = {
    .name = "unbound-latency",
    .what = "half a round trip of send_from and recv_into",
    .metric = BENCH_HALF_ROUND_TRIP_US,
    .sizes = {8, 65536},
    .ways = BENCH_FORWARD | BENCH_BACKWARD,
    .raw = BENCH_RAW_FLAGS,
    .channels = 1,
    .samples = 50,
    .unbound = true,
    .once = latency_once,
    .nccl = true,
};

static int one_way_once(struct bench_run *run)
{
    int rc = 0;
    for (size_t i = 0; i < run->channels && rc == 0; i++)
        rc = move_one(run, true, i);
    return rc;
}

const struct bench_case bench_unbound_bandwidth = {
    .name = "unbound-bandwidth",
    .what = "sends from memory that was not exchanged, one after the other, one way",
    .metric = BENCH_BANDWIDTH_GBPS,
    .sizes = {65536, 1 << 20, 64 << 20},
    .ways = BENCH_FORWARD,
    .raw = BENCH_RAW_COPY,
    .channels = 1,
    .samples = 20,
    .unbound = true,
    .nccl = true,
    .once = one_way_once,
};

// Both ways of all channels in one group.
static int both_once(struct bench_run *run)
{
    struct bench *bench = run->bench;
    for (size_t i = 0; i < 2 * run->channels; i++) {
        const bool sends = i % 2 == 0;
        const bool forward = sends == bench->leader;
        run->group[i] = (struct ph_group_op){
            .kind = sends ? PH_GROUP_SEND : PH_GROUP_RECV,
            .channel = (forward ? run->forward : run->backward)[i / 2],
            .size = run->size,
            .data = data_of(run, sends, i / 2),
        };
    }
    return BENCH_ISSUE(bench, ph_group(run->group, 2 * run->channels, bench->stream));
}

const struct bench_case bench_unbound_bidirectional = {
    .name = "unbound-bidirectional",
    .what = "groups of a send and a recv of such memory, both ways at once, the sum of both",
    .metric = BENCH_BANDWIDTH_GBPS,
    .sizes = {1 << 20, 64 << 20},
    .ways = BENCH_FORWARD | BENCH_BACKWARD,
    .raw = BENCH_RAW_COPY,
    .combine = BENCH_SUM,
    .channels = 1,
    .samples = 20,
    .unbound = true,
    .begin = bench_meet,
    .once = both_once,
};
