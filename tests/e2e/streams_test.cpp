// SPDX-License-Identifier: BSD-3-Clause
// Many streams that wait at once, their limits, and threads.
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "e2e/bytes.h"

class Streams : public EveryDevice
{
};
INSTANTIATE_DEVICES(Streams);
class StreamsOfCuda : public EveryDevice
{
};
INSTANTIATE_CUDA_DEVICES(StreamsOfCuda);

// ---- 32 streams with a channel each

static const int STREAMS = 32;
static const size_t EACH = 20003;

static uint64_t waits_of(Rank &rank)
{
    return rank.counter("waits_host") + rank.counter("waits_kernel") +
           rank.counter("waits_memory_operation");
}

static void others_move(Rank &rank, const std::vector<void *> &streams, void *memory, size_t size)
{
    for (size_t i = 0; i < streams.size(); i++)
        move_beside(rank, streams[i], memory, size, uint8_t(i + 1));
}

// What waited, and what copied behind it: nothing that holds up other streams.
static void check_modes(Rank &rank, bool copies, uint64_t streams)
{
    if (rank.device->host()) {
        CHECK(rank.counter("waits_host") == streams);
        return;
    }
    CHECK(rank.counter("waits_memory_operation") == 0);
    CHECK(rank.counter("waits_kernel") == streams);
    CHECK(rank.counter("copy_kernels") == (copies ? streams : 0));
}

// Rank 1 waits on all its streams; rank 0 lets them go on one by one, the last first.
RANK_FUNCTION(all_wait)
{
    bool sends = rank.argument ==
                 "send"; // of rank 1, with a copy behind each wait; else it waits for signals
    rank.open({"PEERHOP_LL_MAX=0"}); // a send by ll waits for nobody
    void *memory = rank.device->alloc(STREAMS * EACH);
    void *scratch = rank.device->alloc(2 * EACH);
    std::vector<ph_operation> ops;
    std::vector<void *> streams;
    std::vector<ph_channel *> channels(STREAMS);
    for (int i = 0; i < STREAMS; i++) {
        ops.push_back(
            {uint64_t(i), !rank.rank, PH_ROLE_BOTH, PH_PROTOCOL_PUT, at(memory, i * EACH), EACH});
        streams.push_back(rank.rank == 0 && i > 0 ? streams[0] : rank.device->stream());
    }
    CHECK_OK(ph_exchange(rank.context, ops.data(), ops.size(), channels.data()));
    uint64_t seed = sends ? 1 : 0; // of the rank whose data moves
    rank.device->fill(memory, STREAMS * EACH, rank.rank);
    // A driver loads what it fills and copies with at the first use, and may need a new channel for
    // a new stream: both block behind waits.
    std::vector<void *> others;
    for (int i = 0; i < 4; i++)
        others.push_back(rank.device->stream());
    others_move(rank, others, scratch, EACH);
    rank.barrier();
    for (int i = 0; i < STREAMS && rank.rank == 1; i++) {
        // Nothing of ours stands behind it: what an application puts behind a wait holds up the
        // hardware queue that its stream shares with others.
        CHECK_OK(sends ? ph_send(channels[i], EACH, streams[i])
                       : ph_wait(channels[i], EACH, streams[i]));
    }
    if (rank.rank == 1) {
        CHECK(waits_of(rank) == STREAMS);
        check_modes(rank, sends, STREAMS);
        others_move(rank, others, scratch, EACH);
        for (void *stream : streams)
            CHECK(!rank.device->synchronize(stream, 0));
    }
    for (int i = STREAMS - 1; i >= 0; i--) {
        rank.barrier();
        if (rank.rank == 1) {
            rank.synchronize(streams[i]);
            CHECK(i == 0 || !rank.device->synchronize(streams[i - 1], 0));
        } else if (sends) {
            CHECK_OK(ph_recv(channels[i], EACH, streams[0]));
            CHECK_OK(ph_complete(channels[i], streams[0]));
            rank.synchronize(streams[0]);
        } else {
            CHECK_OK(ph_put_signal(channels[i], 0, 0, EACH, streams[0]));
            rank.synchronize(streams[0]);
        }
        rank.barrier();
    }
    if (rank.rank == (sends ? 0 : 1))
        rank.verify(memory, STREAMS * EACH, seed, "on 32 streams");
}

static void run_all_wait(const std::string &device, const char *connections)
{
    for (const char *what : {"wait", "send"}) {
        for (const char *devices : {"2", "1"}) {
            if (device != "standin" && *devices == '1')
                continue; // the machine has what it has
            Job job(device, 2);
            if (connections != nullptr)
                job.environment("CUDA_DEVICE_MAX_CONNECTIONS", connections);
            job.environment("PEERHOP_STANDIN_DEVICES", devices);
            EXPECT_EQ(job.run("all_wait", what), "") << what << ", " << devices << " devices";
        }
    }
}

TEST_P(Streams, AllWait)
{
    run_all_wait(GetParam(), nullptr);
}

TEST_P(StreamsOfCuda, AllWaitWith1Connection)
{
    run_all_wait(GetParam(), "1");
}

TEST_P(StreamsOfCuda, AllWaitWith8Connections)
{
    run_all_wait(GetParam(), "8");
}

TEST_P(StreamsOfCuda, AllWaitWith32Connections)
{
    run_all_wait(GetParam(), "32");
}

// ---- the limit of waiting kernels

RANK_FUNCTION(kernel_limit)
{
    const int limit = 4;
    rank.open({"PEERHOP_WAIT=kernel", "PEERHOP_KERNEL_WAITS=7", "PEERHOP_GRAPH_BRANCHES=3"});
    void *memory = rank.device->alloc(EACH);
    std::vector<void *> streams;
    std::vector<ph_operation> ops;
    std::vector<ph_channel *> channels(limit + 1);
    for (int i = 0; i <= limit; i++) {
        ops.push_back({uint64_t(i), !rank.rank, PH_ROLE_BOTH, PH_PROTOCOL_PUT, memory, EACH});
        streams.push_back(rank.device->stream());
    }
    CHECK_OK(ph_exchange(rank.context, ops.data(), ops.size(), channels.data()));
    for (int round = 0; round < 3; round++) {
        if (rank.rank == 0) {
            rank.barrier();
            for (ph_channel *channel : channels)
                CHECK_OK(ph_signal(channel, streams[0]));
            rank.synchronize(streams[0]);
            rank.barrier();
            continue;
        }
        for (int i = 0; i < limit; i++)
            CHECK_OK(ph_wait(channels[i], 0, streams[i]));
        CHECK_RC(ph_wait(channels[limit], 0, streams[limit]), -EAGAIN);
        CHECK(rank.error().find("PEERHOP_KERNEL_WAITS 7") != std::string::npos);
        CHECK(rank.error().find("PEERHOP_GRAPH_BRANCHES 3") != std::string::npos);
        CHECK_RC(ph_send(channels[limit], 1, streams[limit]), -EAGAIN);
        CHECK(rank.device->synchronize(streams[limit], 0)); // nothing was enqueued
        CHECK(ph_channel_ended(channels[limit]) == 0);
        CHECK_OK(ph_put(channels[limit], 0, 0, 100,
                        streams[limit])); // what does not wait is not limited
        CHECK_OK(ph_put(channels[limit], 0, 0, 100, streams[0])); // nor what stands behind a wait
        rank.barrier();
        for (void *stream : streams)
            rank.synchronize(stream);
        CHECK_OK(ph_wait(channels[limit], 0, streams[limit]));
        rank.synchronize(streams[limit]);
        rank.barrier();
    }
}

TEST_P(StreamsOfCuda, KernelLimit)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("kernel_limit"), "");
}

// A group too large for one operation may begin with posts alone. Then its waits come, whatever
// else waits; a group that begins with waits is refused as a whole.
RANK_FUNCTION(limit_in_group)
{
    const size_t many = 120;
    // By ll a receive has no post to begin with.
    rank.open({"PEERHOP_WAIT=kernel", "PEERHOP_KERNEL_WAITS=1", "PEERHOP_GRAPH_BRANCHES=0",
               "PEERHOP_LL_MAX=0"});
    void *memory = rank.device->alloc(many * 10);
    void *stream = rank.device->stream(), *other = rank.device->stream();
    std::vector<ph_operation> ops;
    std::vector<ph_channel *> channels(many + 1);
    std::vector<ph_group_op> group;
    for (size_t i = 0; i <= many; i++)
        ops.push_back(
            {i, !rank.rank, PH_ROLE_BOTH, PH_PROTOCOL_PUT, at(memory, i % many * 10), 10});
    CHECK_OK(ph_exchange(rank.context, ops.data(), ops.size(), channels.data()));
    rank.device->fill(memory, many * 10, rank.rank);
    for (size_t i = 0; i < many; i++)
        group.push_back({rank.rank ? PH_GROUP_RECV : PH_GROUP_SEND, channels[i], 0, 0, 10});
    if (rank.rank == 1) {
        CHECK_OK(ph_wait(channels[many], 0, other));
        CHECK_OK(ph_group(group.data(), many, stream));
        for (ph_group_op &op : group)
            op.kind = PH_GROUP_SEND;
        CHECK_RC(ph_group(group.data(), many, rank.device->stream()), -EAGAIN);
        for (ph_channel *channel : channels)
            CHECK(ph_channel_ended(channel) == 0);
        CHECK(!rank.device->synchronize(stream, 5) && !rank.device->synchronize(other, 0));
        rank.barrier();
        rank.synchronize(stream);
        rank.verify(memory, many * 10, 0, "by a group beyond the limit");
        rank.barrier();
    } else {
        rank.barrier();
        CHECK_OK(ph_group(group.data(), many, stream));
        rank.synchronize(stream);
        rank.barrier();
        CHECK_OK(ph_signal(channels[many], stream));
    }
    rank.synchronize(stream);
    rank.synchronize(other);
}

TEST_P(StreamsOfCuda, KernelLimitInsideAGroup)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("limit_in_group"), "");
}

// A full queue takes nothing; one that fills up in the middle of a group breaks the group's
// channels, and no others.
RANK_FUNCTION(full_queue)
{
    const int many = 300;
    rank.open();
    void *memory = rank.device->alloc(1000), *stream = rank.device->stream();
    std::vector<ph_operation> ops;
    std::vector<ph_channel *> channels(many + 1);
    std::vector<ph_group_op> group;
    for (int i = 0; i <= many; i++)
        ops.push_back({uint64_t(i), !rank.rank, PH_ROLE_BOTH, PH_PROTOCOL_PUT, memory, 1000});
    CHECK_OK(ph_exchange(rank.context, ops.data(), ops.size(), channels.data()));
    ph_channel *good = channels[many];
    for (int i = 0; i < many; i++)
        group.push_back({PH_GROUP_SIGNAL, channels[i], 0, 0, 0});
    int room = 0;
    for (int round = 0; round < 2; round++) {
        if (rank.rank == 1) {
            rank.barrier();
            CHECK_OK(ph_signal(good, stream));
            rank.synchronize(stream);
            rank.barrier();
            continue;
        }
        int rc = 0, puts = 0;
        CHECK_OK(ph_wait(good, 0, stream)); // holds up what follows
        for (; rc == 0 && (round == 0 || puts < room - 250); puts++)
            rc = ph_put(good, 0, 0, 1, stream);
        if (round == 0) {
            room = puts - 1;
            CHECK(rc == -EAGAIN && rank.error().find("the queue is full") != std::string::npos);
            CHECK_RC(ph_group(group.data(), many, stream), -EAGAIN);
            CHECK(ph_channel_ended(channels[0]) == 0);
        } else {
            CHECK_RC(ph_group(group.data(), many, stream), -EAGAIN);
            for (int i = 0; i < many; i++)
                CHECK_RC(ph_channel_ended(channels[i]), PH_EBROKEN);
            CHECK_RC(ph_signal(channels[many - 1], stream), PH_EBROKEN);
        }
        rank.barrier();
        rank.synchronize(stream);
        CHECK(ph_channel_ended(good) == 0);
        rank.barrier();
    }
}

TEST_P(Streams, FullQueue)
{
    if (GetParam() != "host")
        GTEST_SKIP() << "a stream's queue is the driver's, which lets the caller wait";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("full_queue"), "");
}

// ---- counters of each mode

RANK_FUNCTION(modes)
{
    const uint64_t rounds = 10, bytes = 5000;
    rank.open();
    void *memory = rank.device->alloc(bytes), *stream = rank.device->stream();
    ph_channel *channel =
        rank.channel(!rank.rank, 1, rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER, memory, bytes);
    for (uint64_t round = 0; round < rounds; round++) {
        if (rank.rank == 0)
            rank.device->fill(memory, bytes, round);
        CHECK_OK(rank.rank ? ph_wait(channel, bytes, stream)
                           : ph_put_signal(channel, 0, 0, bytes, stream));
        rank.synchronize(stream);
        rank.barrier();
        if (rank.rank == 1)
            rank.verify(memory, bytes, round, "received");
        rank.barrier();
    }
    bool kernels = rank.argument.find("kernel waits") != std::string::npos;
    bool copied = rank.argument.find("copy_kernel") != std::string::npos && rank.rank == 0;
    bool host = rank.device->host();
    CHECK(rank.counter("waits_kernel") == (kernels && !host ? rounds : 0));
    CHECK(rank.counter("waits_memory_operation") == (!kernels && !host ? rounds : 0));
    CHECK(rank.counter("waits_host") == (host ? rounds : 0));
    CHECK(rank.counter("copy_kernels") == (copied && !host ? rounds : 0));
    CHECK(rank.counter("ipc_operations") == (rank.rank == 0 ? rounds : 0));
    CHECK(rank.counter("ipc_bytes") == (rank.rank == 0 ? rounds * bytes : 0));
}

TEST_P(Streams, CountersOfEachMode)
{
    for (const char *wait : {"kernel", "memory_operation"}) {
        for (const char *method : {"ce", "copy_kernel"}) {
            Job job(GetParam(), 2);
            if (GetParam() != "host" || strcmp(method, "ce") == 0) {
                job.environment("PEERHOP_WAIT", wait);
                job.environment("PEERHOP_METHOD", method);
            }
            EXPECT_EQ(job.run("modes", std::string(wait) + " waits, " + method), "")
                << wait << " " << method;
        }
    }
}

// ---- threads

RANK_FUNCTION(threads)
{
    const int count = 4, rounds = 50;
    const size_t size = 3001;
    bool one_stream = rank.argument == "one stream"; // for what goes out
    rank.open();
    void *common = rank.device->stream();
    std::vector<std::thread> all;
    std::vector<Pair> pairs;
    std::vector<void *> out, in, streams, table, log;
    for (int i = 0; i < count; i++) {
        out.push_back(rank.device->alloc(size));
        in.push_back(rank.device->alloc(size));
        table.push_back(rank.device->alloc(rounds * size));
        log.push_back(rank.device->alloc(rounds * size));
        streams.push_back(rank.device->stream());
        pairs.emplace_back(rank, !rank.rank, i, PH_PROTOCOL_PUT, out[i], in[i], size);
        rank.device->fill(table[i], rounds * size, 10 * rank.rank + i);
    }
    auto work = [&](int i) {
        rank.device->enter_thread();
        for (int round = 0; round < rounds; round++) {
            ph_group_op ops[] = {{PH_GROUP_SEND, pairs[i].to, 0, 0, size},
                                 {PH_GROUP_RECV, pairs[i].from, 0, 0, size}};
            if (one_stream) {
                // Every thread's signals on the same stream; its waits on its own.
                CHECK_OK(ph_put_signal(pairs[i].to, 0, 0, size, common));
                CHECK_OK(ph_wait(pairs[i].from, size, streams[i]));
                continue;
            }
            rank.device->copy(streams[i], out[i], at(table[i], round * size), size);
            CHECK_OK(ph_group(ops, 2, streams[i]));
            rank.device->copy(streams[i], at(log[i], round * size), in[i], size);
            if (round % 10 == 0)
                rank.synchronize(streams[i]);
        }
        rank.synchronize(streams[i]);
    };
    for (int i = 0; i < count; i++) {
        if (one_stream)
            rank.device->fill(out[i], size, 10 * rank.rank + i);
    }
    for (int i = 0; i < count; i++)
        all.emplace_back(work, i);
    for (std::thread &thread : all)
        thread.join();
    rank.synchronize(common);
    for (int i = 0; i < count; i++)
        rank.verify(one_stream ? in[i] : log[i], one_stream ? size : rounds * size,
                    10 * !rank.rank + i, "of a thread");
    rank.barrier();
}

// Each stream has work of the test's own behind waits. With one hardware queue for all of them the
// first wait holds up the rest, on both ranks: no library can change that
// (docs/decisions/010-waits-by-kernel.md).
static bool one_queue(const std::string &device)
{
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    return device != "host" && connections != nullptr && atoi(connections) == 1;
}

TEST_P(Streams, ThreadsOnTheirOwn)
{
    if (one_queue(GetParam()))
        GTEST_SKIP() << "streams with work behind waits, and one hardware queue";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("threads", "own streams"), "");
}

TEST_P(StreamsOfCuda, ThreadsOnOneStream)
{
    if (one_queue(GetParam()))
        GTEST_SKIP() << "streams with work behind waits, and one hardware queue";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("threads", "one stream"), "");
}
