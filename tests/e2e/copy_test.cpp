// SPDX-License-Identifier: BSD-3-Clause
// ph_copy, from one peer's buffer to another's: every size and offset, what it refuses, what it
// holds.
#include "e2e/third.h"

class Copy : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_NET(Copy);
class CopyOnCuda : public EveryDevice
{
};
INSTANTIATE_CUDA_DEVICES(CopyOnCuda);

// ---- sizes and offsets

struct Span {
    size_t size, from, to;
};

static const Span spans[] = {
    {0, 0, 0},         {0, 77, 5},
    {1, 0, 0},         {7, 13, 4096},
    {8, 1, 0},         {16, 4095, 1},
    {4095, 0, 3},      {4096, 0, 0},
    {4096, 4095, 1},   {4097, 1, 4090},
    {65535, 5, 0},     {65537, 5, 0},
    {262144, 3, 9},    {(1 << 20) + 3, 3, 9},
    {512 << 10, 0, 0}, {(512 << 10) + 1, 16, 48},
    {BIG, 0, 0},       {BIG, 13, 4096},
};

static uint64_t seed_of(const Span &span)
{
    return span.size * 31 + span.from * 7 + span.to;
}

static void verify_target(Third &third, const Span &span)
{
    Rank &rank = third.rank;
    const std::string what = std::to_string(span.size) + " bytes from " +
                             std::to_string(span.from) + " to " + std::to_string(span.to);
    std::string wrong =
        rank.device->verify(at(third.target.data, span.to), span.size, seed_of(span), span.from);
    if (!wrong.empty())
        rank_failed(__FILE__, __LINE__, what + ": " + wrong);
    third.target.check(span.to, span.size, third.size, what);
}

// By the streams alone: the copy is enqueued before its data is there, and the source is written
// over as soon as it may be.
static void copy_in_order(Third &third, const Span &span)
{
    Rank &rank = third.rank;
    void *stream = third.stream;
    if (third.copies) {
        CHECK_OK(ph_wait(third.from, 0, stream));
        CHECK_OK(ph_wait(third.to, 0, stream));
        CHECK_OK(ph_copy(third.to, span.to, third.from, span.from, span.size, stream));
        CHECK_OK(ph_signal(third.from, stream));
        CHECK_OK(ph_signal(third.to, stream));
    }
    if (third.has_source) {
        rank.device->fill(third.source.data, span.from + span.size, seed_of(span));
        CHECK_OK(ph_signal(third.from, stream));
    }
    if (third.has_target) {
        third.target.poison(third.size);
        CHECK_OK(ph_signal(third.to, stream));
    }
    if (third.has_source) {
        CHECK_OK(ph_wait(third.from, 0, stream));
        rank.device->slow_fill(stream, third.source.data, third.size, 0xee, 0);
    }
    if (third.has_target)
        CHECK_OK(ph_wait(third.to, 0, stream));
    rank.synchronize(stream);
    if (third.has_target)
        verify_target(third, span);
}

// By barriers: nothing waits on a stream.
static void copy_alone(Third &third, const Span &span)
{
    Rank &rank = third.rank;
    if (third.has_source)
        rank.device->fill(third.source.data, span.from + span.size, seed_of(span));
    if (third.has_target)
        third.target.poison(third.size);
    rank.barrier();
    if (third.copies) {
        CHECK_OK(ph_copy(third.to, span.to, third.from, span.from, span.size, third.stream));
        rank.synchronize(third.stream);
    }
    rank.barrier();
    if (third.has_source)
        rank.device->slow_fill(third.stream, third.source.data, third.size, 0xee, 0);
    if (third.has_target)
        verify_target(third, span);
    rank.synchronize(third.stream);
}

RANK_FUNCTION(every_size)
{
    rank.open();
    Third third(rank);
    for (const Span &span : spans) {
        if (rank.argument == "alone")
            copy_alone(third, span);
        else
            copy_in_order(third, span);
    }
    third.check_own();
    rank.barrier();
}

TEST_P(Copy, EverySizeAmongThreeRanks)
{
    for (const char *how : {"alone", "in order"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 3);
        EXPECT_EQ(job.run("every_size", how), "");
    }
}

TEST_P(Copy, EverySizeInsideOnePeer)
{
    for (const char *how : {"alone", "in order"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("every_size", how), "");
    }
}

TEST_P(Copy, EverySizeWhereOneIsReachedOverTheNet)
{
    if (GetParam() != "host" || !net_available())
        GTEST_SKIP() << "over the net together with ipc on host memory alone";
    for (int net : {1, 2}) {
        SCOPED_TRACE(net);
        Job job("host", 3);
        job.environment("PEERHOP_NET_PROVIDER", "tcp");
        job.environment(net, "PEERHOP_PATH", "net");
        EXPECT_EQ(job.run("every_size", "in order"), "");
    }
}

TEST_P(CopyOnCuda, EverySizeInEachMode)
{
    for (const char *method : {"ce", "copy_kernel"}) {
        for (const char *wait : {"kernel", "memory_operation"}) {
            SCOPED_TRACE(std::string(method) + " " + wait);
            Job job(GetParam(), 3);
            job.environment("PEERHOP_METHOD", method);
            job.environment("PEERHOP_WAIT", wait);
            EXPECT_EQ(job.run("every_size", "in order"), "");
        }
    }
}

// The counters know each copy once, and its bytes.
RANK_FUNCTION(is_counted)
{
    rank.open();
    Third third(rank);
    rank.barrier();
    if (third.copies) {
        CHECK_OK(ph_copy(third.to, 0, third.from, 0, 1000, third.stream));
        CHECK_OK(ph_copy(third.to, 0, third.from, 5, 600 << 10, third.stream));
        rank.synchronize(third.stream);
        CHECK_EQUAL(rank.counter(rank.argument == "net" ? "net_operations" : "ipc_operations"), 2);
        CHECK_EQUAL(rank.counter(rank.argument == "net" ? "ipc_operations" : "net_operations"), 0);
        CHECK_EQUAL(rank.counter(rank.argument == "net" ? "net_bytes" : "ipc_bytes"),
                    1000 + (600 << 10));
        // Nothing waits: the larger one is the copy engine's.
        CHECK_EQUAL(rank.counter("copy_kernels"),
                    rank.device->host() || rank.argument == "net" ? 0 : 1);
        CHECK_EQUAL(rank.counter("in_flight"), 0);
    }
    rank.barrier();
}

TEST_P(Copy, IsCounted)
{
    Job job(GetParam(), 3);
    EXPECT_EQ(job.run("is_counted", on_net() ? "net" : ""), "");
}

// ---- within one buffer, by one channel

RANK_FUNCTION(within_one_buffer)
{
    const size_t size = 10000;
    rank.open();
    Buffer buffer(rank, rank.rank ? size : 8);
    void *stream = rank.device->stream();
    buffer.poison(buffer.size);
    if (rank.rank == 1)
        rank.device->fill(buffer.data, 5000, 3);
    ph_channel *one = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, buffer.data, buffer.size);
    ph_channel *other = rank.channel(!rank.rank, 2, PH_ROLE_BOTH, buffer.data, buffer.size);
    if (rank.rank == 0) {
        CHECK_RC(ph_copy(one, 4999, one, 0, 5000, stream), -EINVAL);
        CHECK_SAYS(rank.error(), "overlap");
        CHECK_RC(ph_copy(one, 0, other, 4999, 5000, stream), -EINVAL);
        CHECK_RC(ph_copy(other, 7, one, 7, 1, stream), -EINVAL);
        CHECK_OK(ph_copy(one, 7, one, 7, 0, stream));
        CHECK_OK(ph_copy(one, 5000, one, 0, 5000, stream));
        rank.synchronize(stream);
    }
    rank.barrier();
    if (rank.rank == 1) {
        rank.verify(buffer.data, 5000, 3, "the first half");
        rank.verify(at(buffer.data, 5000), 5000, 3, "the second half");
        buffer.check(0, size, size, "around both");
    }
    rank.barrier();
}

TEST_P(Copy, WithinOneBuffer)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("within_one_buffer"), "");
}

// ---- in graphs: the data changes with each replay

RANK_FUNCTION(replayed)
{
    const int replays = 100;
    const size_t size = 5003;
    rank.open();
    Third third(rank, size);
    void *stream = third.stream, *graph = nullptr;
    void *table = rank.device->alloc(replays * size), *log = rank.device->alloc(replays * size);
    rank.device->fill(table, replays * size, 7);
    if (third.copies)
        graph = rank.device->capture(stream, [&] {
            CHECK_OK(ph_wait(third.from, 0, stream));
            CHECK_OK(ph_wait(third.to, 0, stream));
            CHECK_OK(ph_copy(third.to, 3, third.from, 0, size - 3, stream));
            CHECK_OK(ph_copy(third.to, 0, third.from, size - 3, 3, stream));
            CHECK_OK(ph_signal(third.from, stream));
            CHECK_OK(ph_signal(third.to, stream));
        });
    for (int i = 0; i < replays; i++) {
        if (third.copies)
            rank.device->launch(graph, stream);
        if (third.has_source) {
            rank.device->copy(stream, third.source.data, at(table, i * size), size);
            CHECK_OK(ph_signal(third.from, stream));
        }
        if (third.has_target) {
            rank.device->slow_fill(stream, third.target.data, size, 0x33, 0);
            CHECK_OK(ph_signal(third.to, stream));
        }
        if (third.has_source) {
            CHECK_OK(ph_wait(third.from, 0, stream));
            rank.device->slow_fill(stream, third.source.data, size, 0xee, 0);
        }
        if (third.has_target) {
            CHECK_OK(ph_wait(third.to, 0, stream));
            rank.device->copy(stream, at(log, i * size), at(third.target.data, 3), size - 3);
            rank.device->copy(stream, at(log, i * size + size - 3), third.target.data, 3);
        }
    }
    rank.synchronize(stream);
    if (third.has_target)
        rank.verify(log, replays * size, 7, "over all replays");
    if (third.copies)
        rank.device->destroy(graph);
    rank.barrier();
}

TEST_P(CopyOnCuda, InGraphs)
{
    for (int ranks : {2, 3}) {
        Job job(GetParam(), ranks);
        EXPECT_EQ(job.run("replayed"), "") << ranks << " ranks";
    }
}

// ---- what it refuses

RANK_FUNCTION(refused)
{
    const size_t size = 1000;
    rank.open();
    void *memory = rank.device->alloc(2 * size), *stream = rank.device->stream();
    const int last = rank.ranks - 1;
    rank.device->fill(memory, 2 * size, static_cast<uint64_t>(rank.rank));
    if (rank.rank == 0) {
        auto channels =
            exchange_all(rank, {operation(1, 1, PH_ROLE_RECEIVER, memory, 10),
                                operation(2, last, PH_ROLE_SENDER, at(memory, 10), 10)});
        ph_channel *from = channels[0], *to = channels[1];
        CHECK_RC(ph_copy(nullptr, 0, from, 0, 1, stream), -EINVAL);
        CHECK_RC(ph_copy(to, 0, nullptr, 0, 1, stream), -EINVAL);
        CHECK_RC(ph_copy(from, 0, from, 0, 1, stream), -EINVAL);
        CHECK_SAYS(rank.error(), "operation 1 with rank 1: this rank is not its sender");
        CHECK_RC(ph_copy(to, 0, to, 100, 1, stream), -EINVAL);
        CHECK_SAYS(rank.error(), "operation 2 with rank 2: this rank is not its receiver");
        for (size_t offset : {size, size + 1, size - 5, SIZE_MAX, SIZE_MAX - 5}) {
            CHECK_RC(ph_copy(to, offset, from, 0, 6, stream), -EINVAL);
            CHECK_SAYS(rank.error(), "operation 2 with rank 2: 6 bytes at offset");
            CHECK_RC(ph_copy(to, 0, from, offset, 6, stream), -EINVAL);
            CHECK_SAYS(rank.error(), "operation 1 with rank 1: 6 bytes at offset");
        }
        CHECK_RC(ph_copy(to, 0, from, 0, SIZE_MAX, stream), -EINVAL);
        CHECK_RC(ph_copy(to, 1, from, 1, size, stream), -EINVAL);
        if (rank.device->host())
            CHECK_RC(ph_copy(to, 0, from, 0, 1, memory), -EINVAL); // no queue
        CHECK(rank.device->synchronize(stream, 0));
        CHECK(rank.counter("ipc_operations") == 0 && rank.counter("net_operations") == 0);
        CHECK_EQUAL(rank.counter("in_flight"), 0);
        CHECK_OK(ph_copy(to, size - 6, from, size - 6, 6, stream));
        CHECK_OK(ph_copy(to, size, from, size, 0, stream));
        rank.synchronize(stream);
    } else {
        exchange_all(rank, {operation(uint64_t(rank.rank), 0, role_of(rank, 1), memory, size)});
    }
    rank.barrier();
    if (rank.rank == last) {
        rank.verify(memory, size - 6, uint64_t(last), "before it");
        std::string wrong = rank.device->verify(at(memory, size - 6), 6, 1, size - 6);
        CHECK_EQUAL(wrong.size(), 0);
    }
    rank.barrier();
}

TEST_P(Copy, WhatItRefuses)
{
    Job job(GetParam(), 3);
    EXPECT_EQ(job.run("refused"), "");
}

// Ranks 0 and 1 are of one process: a channel of the one and a channel of the other.
TEST(CopyOnHost, OfTwoContextsIsRefused)
{
    if (!RedisServer::available())
        GTEST_SKIP() << "no redis-server";
    RedisServer redis;
    redis.start();
    const std::string store = redis.uri();
    std::atomic<ph_channel *> channels[2] = {};
    std::atomic<int> at_end{0};
    as_threads(
        3,
        [&](int rank, ph_context *context) {
            void *memory = nullptr;
            ph_channel *both[2] = {};
            ASSERT_EQ(ph_host_alloc(context, 100, &memory), 0);
            ph_operation ops[] = {operation(1, rank == 2 ? 0 : 2, PH_ROLE_BOTH, memory, 100),
                                  operation(1, 1, PH_ROLE_BOTH, memory, 100)};
            ASSERT_EQ(ph_exchange(context, ops, rank == 2 ? 2 : 1, both), 0);
            if (rank < 2)
                channels[rank] = both[0];
            if (rank == 0) {
                while (channels[1] == nullptr)
                    std::this_thread::yield();
                char text[512] = "";
                EXPECT_EQ(ph_copy(channels[0], 0, channels[1], 50, 10, nullptr), -EINVAL);
                ph_context_error(context, text, sizeof text);
                EXPECT_NE(std::string(text).find("two contexts"), std::string::npos) << text;
            }
            at_end++;
            while (at_end < 3)
                std::this_thread::yield();
        },
        [&](ph_context_params &params) { params.store = store.c_str(); });
}

// Rank 0 cannot map the one buffer, though its owner can send.
RANK_FUNCTION(not_mapped)
{
    const size_t size = 1000;
    const bool source = rank.argument == "source";
    rank.open();
    void *memory = rank.device->alloc(2 * size), *stream = rank.device->stream();
    std::vector<ph_operation> ops;
    if (rank.rank == 0)
        ops = {operation(1, 1, PH_ROLE_RECEIVER, memory, size),
               operation(2, 2, PH_ROLE_SENDER, at(memory, size), size, PH_PROTOCOL_GET)};
    else
        ops = {operation(uint64_t(rank.rank), 0, role_of(rank, 1), memory, size)};
    auto channels = exchange_all(rank, ops);
    if (rank.rank == 0) {
        CHECK_RC(ph_copy(channels[1], 0, channels[0], 0, 8, stream), PH_ENOPATH);
        CHECK_SAYS(rank.error(), source ? "rank 1's buffer, which is to be read, is not mapped here"
                                        : "rank 2's buffer, which is to be written, is not mapped "
                                          "here");
    }
    rank.barrier();
}

TEST_P(Copy, NeedsBothBuffersMapped)
{
    if (GetParam() != "standin")
        GTEST_SKIP() << "only the stand-in's devices can be made to refuse";
    for (const char *end : {"source", "target"}) {
        SCOPED_TRACE(end);
        Job job(GetParam(), 3);
        job.environment("PEERHOP_STANDIN_DEVICES", "3");
        job.environment(0, "PEERHOP_STANDIN_NO_PEER", *end == 's' ? "0-1" : "0-2");
        job.environment("PEERHOP_PATH", "ipc");
        EXPECT_EQ(job.run("not_mapped", end), "");
    }
}

// ---- what it holds: neither buffer is given back while a copy is under way

// A channel whose signal lets rank 0's stream go on.
static ph_channel *gate_of(Rank &rank)
{
    const int keeper = 3 - who_goes(rank);
    if (rank.rank != 0 && rank.rank != keeper)
        return nullptr;
    void *memory = rank.device->alloc(64);
    return rank.channel(rank.rank ? 0 : keeper, 9, role_of(rank, keeper), memory, 64);
}

// value[0]: how far rank 0 is; value[1]: the buffer was looked at.
RANK_FUNCTION(holds_both)
{
    const int goes = who_goes(rank);
    const bool graph = rank.argument.find("graph") != std::string::npos;
    rank.open();
    Third third(rank);
    ph_channel *gate = gate_of(rank);
    void *launched = nullptr;
    if (third.has_source)
        rank.device->fill(third.source.data, BIG, 5);
    rank.barrier();
    if (third.copies) {
        ph_channel *gone = goes == 1 ? third.from : third.to;
        auto copy = [&] { CHECK_OK(ph_copy(third.to, 0, third.from, 0, BIG, third.stream)); };
        if (graph) {
            launched = rank.device->capture(third.stream, copy);
        } else {
            CHECK_OK(ph_wait(gate, 0, third.stream));
            copy();
        }
        rank.shared->value[0] = 1;
        if (graph) {
            CHECK(reaches(rank.shared->value[1], 1));
            rank.device->launch(launched, third.stream);
            rank.synchronize(third.stream);
            rank.device->destroy(launched);
        }
        rank.synchronize(third.stream);
        CHECK_RC(end_of(gone), -ESTALE);
        CHECK_RC(ph_copy(third.to, 0, third.from, 0, 8, third.stream), -ESTALE);
        CHECK_SAYS(rank.error(), "operation " + std::to_string(goes) + " with rank " +
                                     std::to_string(goes) +
                                     ": a buffer of the channel was released");
        expect_good(third, goes == 2);
    } else if (rank.rank == goes) {
        void *memory = goes == 1 ? third.source.data : third.target.data;
        CHECK(reaches(rank.shared->value[0], 1));
        CHECK_OK(ph_release_start(rank.context, memory, third.size));
        rank.ends_with(graph ? -EBUSY : -ETIMEDOUT, graph ? "1 captured graph" : "1 stream", [&] {
            return ph_release_wait(rank.context, memory, third.size, PH_RELEASE_DRAINED, 50);
        });
        rank.shared->value[1] = 1;
        CHECK_OK(ph_release_wait(rank.context, memory, third.size, PH_RELEASE_DRAINED, 10000));
        if (goes == 2)
            rank.verify(memory, BIG, 5, "copied before it was given back");
        set_value(rank, memory, BIG, 0x77); // of no matter to anybody
    } else {
        CHECK(reaches(rank.shared->value[1], 1));
        if (!graph)
            CHECK_OK(ph_signal(gate, third.stream));
        rank.synchronize(third.stream);
    }
    rank.barrier();
    if (third.has_target && goes == 1) {
        rank.device->read(std::vector<char>(8).data(), third.target.data, 8);
        std::string wrong = rank.device->verify(at(third.target.data, 8), BIG - 8, 5, 8);
        CHECK_EQUAL(wrong.size(), 0);
    }
    rank.barrier();
}

static void run_holds_both(const std::string &device, const std::string &what)
{
    for (const char *end : {"source", "target"}) {
        SCOPED_TRACE(end);
        Job job(device, 3);
        EXPECT_EQ(job.run("holds_both", end + what), "");
    }
}

TEST_P(Copy, HoldsBothBuffersWhileItIsUnderWay)
{
    run_holds_both(GetParam(), "");
}

TEST_P(CopyOnCuda, HoldsBothBuffersInAGraph)
{
    run_holds_both(GetParam(), " graph");
}

// ---- the death of one owner leaves the channel with the other one whole

RANK_FUNCTION(loses_one)
{
    const int goes = who_goes(rank);
    rank.open();
    Third third(rank);
    ph_channel *gate = gate_of(rank);
    if (third.has_source)
        rank.device->fill(third.source.data, BIG, 5);
    rank.barrier();
    if (rank.rank == goes) {
        CHECK(reaches(rank.shared->value[0], 1));
        kill(getpid(), SIGKILL);
    } else if (third.copies) {
        ph_channel *gone = goes == 1 ? third.from : third.to;
        CHECK_OK(ph_wait(gate, 0, third.stream));
        CHECK_OK(ph_copy(third.to, 0, third.from, 0, BIG, third.stream));
        rank.shared->value[0] = 1;
        CHECK_RC(end_of(gone), PH_EPEER);
        rank.shared->value[1] = 1;
        rank.synchronize(third.stream);
        CHECK_RC(ph_copy(third.to, 0, third.from, 0, 8, third.stream), PH_EPEER);
        CHECK_SAYS(rank.error(),
                   "operation " + std::to_string(goes) + " with rank " + std::to_string(goes));
        expect_good(third, goes == 2);
        rank.shared->value[2] = 1;
    } else { // the kernel may take half a minute to end the one that is killed
        CHECK(reaches(rank.shared->value[1], 1, 60000));
        CHECK_OK(ph_signal(gate, third.stream));
        rank.synchronize(third.stream);
        CHECK(reaches(rank.shared->value[2], 1));
    }
}

TEST_P(Copy, AnOwnerThatDiesLeavesTheOtherChannelGood)
{
    for (const char *end : {"source", "target"}) {
        SCOPED_TRACE(end);
        Job job(GetParam(), 3);
        job.expect_failure(*end == 's' ? 1 : 2);
        EXPECT_EQ(job.run("loses_one", end), "");
    }
}

// Copies run when it dies: what is under way ends, and all memory can be used again.
RANK_FUNCTION(loses_one_meanwhile)
{
    const int goes = who_goes(rank);
    rank.open();
    Third third(rank);
    rank.barrier();
    if (rank.rank == goes) {
        CHECK(reaches(rank.shared->value[0], 1));
        kill(getpid(), SIGKILL);
    } else if (third.copies) {
        int rc = 0;
        for (int i = 0; rc == 0; i++) {
            rc = ph_copy(third.to, 0, third.from, 0, BIG, third.stream);
            rank.shared->value[0] = i >= 3;
            if (i % 4 == 3)
                rank.synchronize(third.stream, 45000); // as above
        }
        CHECK_RC(rc, PH_EPEER);
        rank.synchronize(third.stream);
        expect_good(third, goes == 2);
        rank.shared->value[1] = 1;
    } else {
        CHECK(reaches(rank.shared->value[1], 1, 60000));
    }
}

TEST_P(Copy, AnOwnerThatDiesWhileCopiesRun)
{
    for (const char *end : {"source", "target"}) {
        SCOPED_TRACE(end);
        Job job(GetParam(), 3);
        job.expect_failure(*end == 's' ? 1 : 2);
        EXPECT_EQ(job.run("loses_one_meanwhile", end), "");
    }
}
