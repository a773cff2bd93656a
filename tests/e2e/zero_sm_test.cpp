// SPDX-License-Identifier: BSD-3-Clause
// Operations that are to take no multiprocessor: what their calls launch, and what is refused.
#include "e2e/bytes.h"
#include "e2e/exchanging.h"

class ZeroSm : public EveryDevice
{
  protected:
    // The variable is read when CUDA is initialised.
    static std::string run(const std::string &function, const std::string &argument = "",
                           const char *connections = "32")
    {
        Job job(GetParam(), 2);
        job.environment("CUDA_DEVICE_MAX_CONNECTIONS", connections);
        return job.run(function, argument);
    }
};
INSTANTIATE_TEST_SUITE_P(Device, ZeroSm, testing::Values("host", "standin", "gpu"),
                         [](const auto &info) { return info.param; });

static const size_t SIZES[] = {1, 8, 5000, 300000, 20 << 20};
static const size_t most = 20 << 20;

struct Ends {
    ph_channel *channel;
    uint8_t *out, *in; // halves of one buffer
    void *stream;
};

static Ends open_ends(Rank &rank, uint32_t flags)
{
    auto *memory = static_cast<uint8_t *>(rank.device->alloc(2 * most));
    ph_operation op = {};
    op.op_id = 1;
    op.peer = !rank.rank;
    op.role = PH_ROLE_BOTH;
    op.buffer = memory;
    op.size = 2 * most;
    op.flags = flags;
    return {exchange_all(rank, {op})[0], memory, memory + most, rank.device->stream()};
}

// What is put lies behind what the peer has in its first half.
static void put_and_get(Rank &rank, const Ends &ends, size_t size)
{
    rank.device->fill(ends.out, size, 10 + rank.rank);
    rank.barrier();
    CHECK_OK(ph_put(ends.channel, most, 0, size, ends.stream));
    rank.synchronize(ends.stream);
    rank.barrier();
    rank.verify(ends.in, size, 10 + !rank.rank, "what was put");
    rank.barrier();
    CHECK_OK(ph_get(ends.channel, most, 0, size, ends.stream));
    rank.synchronize(ends.stream);
    rank.verify(ends.in, size, 10 + !rank.rank, "what was got");
    rank.barrier();
    ph_group_op pages[8] = {};
    for (size_t i = 0; i < 8; i++)
        pages[i] = {PH_GROUP_PUT, ends.channel, i * (size / 8), most + i * (size / 8), size / 8};
    CHECK_OK(ph_group(pages, 8, ends.stream));
    rank.synchronize(ends.stream);
    rank.barrier();
    rank.verify(ends.in, size / 8 * 8, 10 + !rank.rank, "what a group put");
    rank.barrier();
}

// Both ways: a signal behind a put, and messages call by call, in a group and in a graph.
static void send_and_wait(Rank &rank, const Ends &ends, size_t size)
{
    rank.device->fill(ends.out, size, 20 + rank.rank);
    CHECK_OK(ph_put_signal(ends.channel, most, 0, size, ends.stream));
    CHECK_OK(ph_wait(ends.channel, size, ends.stream));
    rank.synchronize(ends.stream);
    rank.verify(ends.in, size, 20 + !rank.rank, "what a signal told of");
    rank.barrier();
    // The one that receives has its message in the first half.
    const auto message = [&] {
        if (rank.rank == 0)
            CHECK_OK(ph_send(ends.channel, size, ends.stream));
        else
            CHECK_OK(ph_recv(ends.channel, size, ends.stream));
        CHECK_OK(ph_complete(ends.channel, ends.stream));
    };
    const auto group = [&] {
        const ph_group_op op = {rank.rank == 0 ? PH_GROUP_SEND : PH_GROUP_RECV, ends.channel, 0, 0,
                                size};
        CHECK_OK(ph_group(&op, 1, ends.stream));
    };
    message();
    group();
    rank.synchronize(ends.stream);
    rank.verify(ends.out, size, 20, "what was sent");
    if (rank.device->host())
        return;
    void *graph = rank.device->capture(ends.stream, message);
    for (int i = 0; i < 3; i++)
        rank.device->launch(graph, ends.stream);
    rank.synchronize(ends.stream);
    rank.device->destroy(graph);
    rank.barrier();
}

// argument: which ranks ask for it; those launch nothing.
RANK_FUNCTION(launches_nothing)
{
    const bool asks = rank.argument.find(std::to_string(rank.rank)) != std::string::npos;
    rank.open();
    const Ends ends = open_ends(rank, asks ? PH_ZERO_SM : 0);
    const uint64_t before = rank.counter("launches"), waits = rank.counter("waits_kernel");
    for (size_t size : SIZES) {
        put_and_get(rank, ends, size);
        send_and_wait(rank, ends, size);
    }
    if (asks) {
        CHECK_EQUAL(rank.counter("launches"), before);
        CHECK_EQUAL(rank.counter("waits_kernel"), waits);
    }
    ph_path_report report;
    CHECK_OK(ph_channel_path(ends.channel, 1, &report, sizeof report));
    if (!rank.device->host()) {
        CHECK(std::string(report.method) == "ce");
        CHECK_SAYS(reason_against(report, "sm"), "PH_ZERO_SM");
    }
    rank.barrier();
    rank.close();
}

TEST_P(ZeroSm, LaunchesNothing)
{
    for (const char *who : {"0 1", "0", "1"})
        EXPECT_EQ(run("launches_nothing", who), "") << "asked for by " << who;
}

// The counter counts: without the flag the same calls launch.
RANK_FUNCTION(launches)
{
    rank.open();
    const Ends ends = open_ends(rank, 0);
    const uint64_t before = rank.counter("launches");
    send_and_wait(rank, ends, 5000);
    CHECK(rank.counter("launches") > before);
    rank.barrier();
}

TEST_P(ZeroSm, OthersLaunch)
{
    if (on_host())
        GTEST_SKIP() << "nothing is launched on host memory";
    EXPECT_EQ(run("launches"), "");
}

RANK_FUNCTION(needs_connections)
{
    rank.open();
    const Ends ends = open_ends(rank, PH_ZERO_SM);
    put_and_get(rank, ends, 5000);
    const ph_group_op send = {PH_GROUP_SEND, ends.channel, 0, 0, 8};
    CHECK_RC(ph_send(ends.channel, 8, ends.stream), -ENOTSUP);
    CHECK_SAYS(rank.error(), "CUDA_DEVICE_MAX_CONNECTIONS=32");
    CHECK_SAYS(rank.error(), "it is 8");
    CHECK_RC(ph_recv(ends.channel, 8, ends.stream), -ENOTSUP);
    CHECK_RC(ph_signal(ends.channel, ends.stream), -ENOTSUP);
    CHECK_RC(ph_wait(ends.channel, 8, ends.stream), -ENOTSUP);
    CHECK_RC(ph_put_signal(ends.channel, most, 0, 8, ends.stream), -ENOTSUP);
    CHECK_RC(ph_group(&send, 1, ends.stream), -ENOTSUP);
    put_and_get(rank, ends, 5000); // nothing is lost
    rank.close();
}

TEST_P(ZeroSm, MessagesNeedConnections)
{
    if (on_host())
        GTEST_SKIP() << "host memory has no hardware queues";
    EXPECT_EQ(run("needs_connections", "", "8"), "");
}

RANK_FUNCTION(is_refused)
{
    rank.open();
    const Ends ends = open_ends(rank, PH_ZERO_SM);
    ph_operation op = {};
    op.op_id = 2;
    op.peer = !rank.rank;
    op.role = PH_ROLE_BOTH;
    op.flags = PH_ZERO_SM;
    CHECK_SAYS(exchange_fails(rank, {op}, -EINVAL), "PH_ZERO_SM without a buffer");
    op.buffer = ends.out;
    op.size = 100;
    op.flags = 8;
    CHECK_SAYS(exchange_fails(rank, {op}, -EINVAL), "flags 0x8");
    op.flags = 0;
    ph_channel *other = exchange_all(rank, {op})[0];
    const ph_group_op both[] = {{PH_GROUP_SIGNAL, ends.channel, 0, 0, 0},
                                {PH_GROUP_SIGNAL, other, 0, 0, 0}};
    if (!rank.device->host()) {
        CHECK_RC(ph_group(both, 2, ends.stream), -ENOTSUP);
        CHECK_SAYS(rank.error(), "make two groups");
    }
    // Of the same operation with and without it there are two channels.
    op.op_id = 1;
    op.buffer = ends.out;
    op.size = 2 * most;
    CHECK(exchange_all(rank, {op})[0] != ends.channel);
    op.flags = PH_ZERO_SM;
    CHECK(exchange_all(rank, {op})[0] == ends.channel);
    rank.barrier();
    rank.close();
}

TEST_P(ZeroSm, RefusesWhatNeedsKernels)
{
    EXPECT_EQ(run("is_refused"), "");
}
