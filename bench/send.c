// SPDX-License-Identifier: BSD-3-Clause
// send: ph_send, ph_recv and ph_complete, in the protocol of --protocol; with --group, ph_group.
#include "cases.h"

static int send_one(struct bench_run *run, struct ph_channel *channel)
{
    struct bench *bench = run->bench;
    int rc = BENCH_ISSUE(bench, ph_send(channel, run->size, bench->stream));
    return rc ? rc : BENCH_ISSUE(bench, ph_complete(channel, bench->stream));
}

static int post_one(struct bench_run *run, struct ph_channel *channel)
{
    return BENCH_ISSUE(run->bench, ph_recv(channel, run->size, run->bench->stream));
}

static int take_one(struct bench_run *run, struct ph_channel *channel)
{
    return BENCH_ISSUE(run->bench, ph_complete(channel, run->bench->stream));
}

static int recv_one(struct bench_run *run, struct ph_channel *channel)
{
    int rc = post_one(run, channel);
    return rc ? rc : take_one(run, channel);
}

// Both ways of all channels in one group.
static int both_group(struct bench_run *run)
{
    struct bench *bench = run->bench;
    for (size_t i = 0; i < run->channels; i++) {
        run->group[2 * i] = (struct ph_group_op){
            .kind = PH_GROUP_SEND,
            .channel = bench->leader ? run->forward[i] : run->backward[i],
            .size = run->size,
        };
        run->group[2 * i + 1] = (struct ph_group_op){
            .kind = PH_GROUP_RECV,
            .channel = bench->leader ? run->backward[i] : run->forward[i],
            .size = run->size,
        };
    }
    return BENCH_ISSUE(bench, ph_group(run->group, 2 * run->channels, bench->stream));
}

// By groups the other rank is one receive ahead: its first comes before the loop, the leader's last
// send after it, so that each of its groups sends what the group before has received.
static int latency_begin(struct bench_run *run)
{
    return run->bench->options->group && !run->bench->leader ? recv_one(run, run->forward[0]) : 0;
}

static int latency_once(struct bench_run *run)
{
    if (run->bench->options->group)
        return both_group(run);
    bool leader = run->bench->leader;
    int rc = leader ? send_one(run, run->forward[0]) : recv_one(run, run->forward[0]);
    if (rc)
        return rc;
    return leader ? recv_one(run, run->backward[0]) : send_one(run, run->backward[0]);
}

static int latency_end(struct bench_run *run)
{
    return run->bench->options->group && run->bench->leader ? send_one(run, run->forward[0]) : 0;
}

const struct bench_case bench_send_latency = {
    .name = "send-latency",
    .what = "half a round trip of send and recv",
    .metric = BENCH_HALF_ROUND_TRIP_US,
    .sizes = {8, 65536},
    .ways = BENCH_FORWARD | BENCH_BACKWARD,
    .raw = BENCH_RAW_FLAGS,
    .channels = 1,
    .samples = 50,
    .begin = latency_begin,
    .once = latency_once,
    .end = latency_end,
    .give = send_one,
    .post = post_one,
    .take = take_one,
    .kernel = BENCH_KERNEL_LL,
    .nccl = true,
};

static int one_way_group(struct bench_run *run)
{
    struct bench *bench = run->bench;
    for (size_t i = 0; i < run->channels; i++)
        run->group[i] = (struct ph_group_op){
            .kind = bench->leader ? PH_GROUP_SEND : PH_GROUP_RECV,
            .channel = run->forward[i],
            .size = run->size,
        };
    return BENCH_ISSUE(bench, ph_group(run->group, run->channels, bench->stream));
}

// All channels are posted before the first is completed, so that one's handshake hides behind
// another's copy.
static int one_way_once(struct bench_run *run)
{
    struct bench *bench = run->bench;
    if (bench->options->group)
        return one_way_group(run);
    int rc = 0;
    for (size_t i = 0; i < run->channels && rc == 0; i++)
        rc = bench->leader ? BENCH_ISSUE(bench, ph_send(run->forward[i], run->size, bench->stream))
                           : BENCH_ISSUE(bench, ph_recv(run->forward[i], run->size, bench->stream));
    for (size_t i = 0; i < run->channels && rc == 0; i++)
        rc = BENCH_ISSUE(bench, ph_complete(run->forward[i], bench->stream));
    return rc;
}

const struct bench_case bench_send_bandwidth = {
    .name = "send-bandwidth",
    .what = "sends one after the other, one way, over two channels in turn",
    .metric = BENCH_BANDWIDTH_GBPS,
    .sizes = {65536, 1 << 20, 64 << 20},
    .ways = BENCH_FORWARD,
    .raw = BENCH_RAW_COPY,
    .channels = 2,
    .samples = 20,
    .nccl = true,
    .once = one_way_once,
};

const struct bench_case bench_send_bidirectional = {
    .name = "send-bidirectional",
    .what = "groups of a send and a recv, both ways at once, the sum of both",
    .metric = BENCH_BANDWIDTH_GBPS,
    .sizes = {1 << 20, 64 << 20},
    .ways = BENCH_FORWARD | BENCH_BACKWARD,
    .raw = BENCH_RAW_COPY,
    .combine = BENCH_SUM,
    .channels = 2,
    .samples = 20,
    .begin = bench_meet,
    .once = both_group,
};

const struct bench_case bench_send_rate = {
    .name = "send-rate",
    .what = "sends a second over several channels, each received",
    .metric = BENCH_RATE_MOPS,
    .sizes = {8},
    .ways = BENCH_FORWARD,
    .channels = 16,
    .samples = 50,
    .once = one_way_once,
};
