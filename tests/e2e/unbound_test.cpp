// SPDX-License-Identifier: BSD-3-Clause
// Unbound channels: each call names its own memory.
#include <cerrno>

#include "e2e/unbound.h"

class Unbound : public UnboundSuite
{
};
INSTANTIATE_DEVICES_AND_ALL_NETS(Unbound);

static const size_t sizes[] = {0,
                               1,
                               7,
                               8,
                               100,
                               4096,
                               8192,
                               8193,
                               65537,
                               (1 << 20) - 128,
                               1 << 20,
                               (1 << 20) + 1,
                               (3 << 20) + 5,
                               9 << 20};

// ---- one message after the other, each in other memory

RANK_FUNCTION(another_each_time)
{
    open(rank);
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    void *stream = rank.device->stream();
    uint64_t seed = 1;
    for (const size_t size : sizes)
        for (const size_t lead : {0, 1, 12}) {
            Memory memory(rank, size, lead);
            memory.fill(rank.rank == 0 ? seed : ~seed);
            for (int sender = 0; sender < 2; sender++) {
                if (rank.rank == sender)
                    CHECK_OK(ph_send_from(channel, memory.data, size, stream));
                else
                    CHECK_OK(ph_recv_into(channel, memory.data, size, stream));
            }
            rank.synchronize(stream);
            memory.verify(seed++, "what went there and back");
        }
    CHECK_OK(ph_channel_status(channel));
    rank.barrier();
}

TEST_P(Unbound, AnotherTensorEachTime)
{
    run("another_each_time");
}

// Behind ph_send_from on the stream its memory is the caller's again.
RANK_FUNCTION(reuses)
{
    const size_t size = 300001;
    const int times = 40;
    open(rank);
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    void *stream = rank.device->stream();
    Memory out(rank, size), table(rank, times * size);
    if (rank.rank == 0)
        table.fill(5);
    for (int i = 0; i < times; i++) {
        void *row = at(table.data, i * size);
        if (rank.rank == 0) {
            rank.device->copy(stream, out.data, row, size);
            CHECK_OK(ph_send_from(channel, out.data, size, stream));
        } else {
            CHECK_OK(ph_recv_into(channel, row, size, stream));
        }
    }
    rank.synchronize(stream);
    table.verify(5, "all messages");
    rank.barrier();
}

TEST_P(Unbound, WhatIsSentMayBeWrittenBehindIt)
{
    run("reuses");
}

// ---- groups

// All to all and to itself, several messages for each, of sizes that go in one part and in many.
RANK_FUNCTION(all_to_all_unbound)
{
    const size_t each[] = {5, 2000003, 0, 70000, 1 << 20};
    open(rank);
    std::vector<ph_operation> ops;
    for (int peer = 0; peer < rank.ranks; peer++)
        ops.push_back({.op_id = op_id, .peer = peer, .role = PH_ROLE_BOTH});
    const std::vector<ph_channel *> got = exchange_all(rank, ops);
    for (int peer = 0; peer < rank.ranks; peer++)
        CHECK(ph_channel_peer(got[peer]) == peer && ph_channel_op_id(got[peer]) == op_id);
    void *stream = rank.device->stream();
    for (uint64_t round = 0; round < 3; round++) {
        std::vector<std::unique_ptr<Memory>> out, in;
        std::vector<ph_group_op> group;
        for (size_t i = 0; i < ops.size(); i++)
            for (const size_t size : each) {
                const uint64_t seed = round * 1000 + out.size() % std::size(each);
                out.push_back(std::make_unique<Memory>(rank, size));
                in.push_back(std::make_unique<Memory>(rank, size));
                out.back()->fill(seed + rank.rank * 100 + ops[i].peer * 10);
                group.push_back({PH_GROUP_SEND, got[i], 0, 0, size, out.back()->data});
                group.push_back({PH_GROUP_RECV, got[i], 0, 0, size, in.back()->data});
            }
        if (rank.rank % 2) // of different directions the order means nothing
            for (size_t i = 0; i + 1 < group.size(); i += 2)
                std::swap(group[i], group[i + 1]);
        CHECK_OK(ph_group(group.data(), group.size(), stream));
        rank.synchronize(stream);
        for (size_t i = 0; i < in.size(); i++) {
            const int peer = ops[i / std::size(each)].peer;
            in[i]->verify(round * 1000 + i % std::size(each) + peer * 100 + rank.rank * 10,
                          "of a group");
        }
    }
    rank.barrier();
}

TEST_P(Unbound, SeveralMessagesToEachInOneGroup)
{
    for (const int ranks : {1, 2, 3})
        run("all_to_all_unbound", ranks);
}

// Of messages that fill a ring the next one waits for room in the same group as its peer's.
// "large": each fills more slots than the net has, and the next one is another.
RANK_FUNCTION(full_both_ways)
{
    std::vector<size_t> sizes_of = {1 << 20, 1 << 20, 854000,  1 << 20,
                                    856000,  1 << 20, 5 << 20, 1 << 20};
    if (rank.argument.find("large") != std::string::npos)
        sizes_of = {(9 << 20) + 1, 12 << 20, 7, 17 << 20};
    open(rank);
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    void *stream = rank.device->stream();
    std::vector<std::unique_ptr<Memory>> out, in;
    std::vector<ph_group_op> group;
    for (const size_t size : sizes_of) {
        out.push_back(std::make_unique<Memory>(rank, size));
        in.push_back(std::make_unique<Memory>(rank, size));
        out.back()->fill(10 * out.size() + rank.rank);
        group.push_back({PH_GROUP_SEND, channel, 0, 0, size, out.back()->data});
        group.push_back({PH_GROUP_RECV, channel, 0, 0, size, in.back()->data});
    }
    CHECK_OK(ph_group(group.data(), group.size(), stream));
    rank.synchronize(stream);
    for (size_t i = 0; i < in.size(); i++)
        in[i]->verify(10 * (i + 1) + !rank.rank, "of a full ring");
    rank.barrier();
}

TEST_P(Unbound, FullBothWaysInOneGroup)
{
    for (const char *how : {"", "large"})
        run("full_both_ways", 2, how);
}

// What is enqueued before the peer has come, call by call and as one group.
RANK_FUNCTION(enqueues_far_ahead)
{
    open(rank);
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    void *stream = rank.device->stream();
    const size_t size = 8, calls = 20000, grouped = 3000;
    Memory memory(rank, size * (calls + grouped));
    memory.fill(rank.rank ? 1 : 5);
    if (rank.rank == 1)
        rank.barrier();
    for (size_t i = 0; i < calls; i++)
        CHECK_OK(rank.rank == 0 ? ph_send_from(channel, at(memory.data, size * i), size, stream)
                                : ph_recv_into(channel, at(memory.data, size * i), size, stream));
    std::vector<ph_group_op> group;
    for (size_t i = calls; i < calls + grouped; i++)
        group.push_back({rank.rank ? PH_GROUP_RECV : PH_GROUP_SEND, channel, 0, 0, size,
                         at(memory.data, size * i)});
    CHECK_OK(ph_group(group.data(), group.size(), stream));
    if (rank.rank == 0)
        rank.barrier();
    rank.synchronize(stream);
    memory.verify(5, "of messages that were enqueued far ahead");
    CHECK_OK(ph_channel_status(channel));
    rank.barrier();
}

TEST_P(Unbound, EnqueuedFarAhead)
{
    if (!on_host())
        GTEST_SKIP() << "a stream's queue is the driver's, which lets the caller wait";
    run("enqueues_far_ahead");
}

// One rank names in a group what the other one names call by call, and beside a bound channel.
RANK_FUNCTION(as_others_say)
{
    const size_t size = 1300000;
    open(rank);
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    void *bound = rank.device->alloc(size), *stream = rank.device->stream();
    Pair pair(rank, !rank.rank, 3, PH_PROTOCOL_PUT, bound, bound, size);
    Memory first(rank, size), second(rank, 100);
    if (rank.rank == 0) {
        first.fill(1);
        second.fill(2);
        rank.device->fill(bound, size, 3);
        const ph_group_op group[] = {{PH_GROUP_SEND, channel, 0, 0, size, first.data},
                                     {PH_GROUP_SEND, pair.to, 0, 0, size},
                                     {PH_GROUP_SEND, channel, 0, 0, 100, second.data}};
        CHECK_OK(ph_group(group, 3, stream));
    } else {
        CHECK_OK(ph_recv(pair.from, size, stream));
        CHECK_OK(ph_recv_into(channel, first.data, size, stream));
        CHECK_OK(ph_complete(pair.from, stream));
        CHECK_OK(ph_recv_into(channel, second.data, 100, stream));
    }
    rank.synchronize(stream);
    first.verify(1, "the first one");
    second.verify(2, "the second one");
    rank.verify(bound, size, 3, "the bound one");
    rank.barrier();
}

TEST_P(Unbound, BesideBoundOnesAndCallByCall)
{
    run("as_others_say");
}

// ---- graphs

RANK_FUNCTION(replayed)
{
    const size_t size = 1500000;
    open(rank);
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    void *stream = rank.device->stream();
    Memory memory(rank, size), small(rank, 64);
    void *graph = rank.device->capture(stream, [&] {
        const ph_group_op group[] = {
            {rank.rank ? PH_GROUP_RECV : PH_GROUP_SEND, channel, 0, 0, size, memory.data},
            {rank.rank ? PH_GROUP_SEND : PH_GROUP_RECV, channel, 0, 0, 64, small.data}};
        CHECK_OK(ph_group(group, 2, stream));
    });
    for (uint64_t i = 0; i < 5; i++) {
        (rank.rank ? small : memory).fill(i);
        rank.device->launch(graph, stream);
        rank.synchronize(stream);
        (rank.rank ? memory : small).verify(i, "replayed");
        // An eager call goes on where the graph has come to.
        if (rank.rank)
            CHECK_OK(ph_send_from(channel, small.data, 64, stream));
        else
            CHECK_OK(ph_recv_into(channel, small.data, 64, stream));
        rank.synchronize(stream);
        small.verify(i, "between");
    }
    rank.device->destroy(graph);
    rank.barrier();
}

TEST_P(Unbound, InGraphs)
{
    if (on_host())
        GTEST_SKIP() << "no graphs";
    run("replayed");
}

// ---- what is refused, and what else such a channel does

RANK_FUNCTION(refuses)
{
    open(rank);
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    void *stream = rank.device->stream();
    void *buffer = rank.device->alloc(64);
    Pair pair(rank, !rank.rank, 3, PH_PROTOCOL_PUT, buffer, buffer, 64);
    const struct {
        int rc;
        const char *says;
    } wrong[] = {
        {ph_send(channel, 8, stream), "ph_send"},
        {ph_recv(channel, 8, stream), "ph_recv"},
        {ph_put(channel, 0, 0, 8, stream), "a put"},
        {ph_get(channel, 0, 0, 8, stream), "a put or a get"},
        {ph_put_signal(channel, 0, 0, 8, stream), "a put"},
        {ph_wait(channel, 8, stream), "a wait for bytes"},
        {ph_copy(channel, 0, channel, 0, 8, stream), "ph_copy"},
        {ph_send_from(pair.to, buffer, 8, stream), "without buffers"},
        {ph_recv_into(pair.from, buffer, 8, stream), "without buffers"},
        {ph_send_from(channel, nullptr, 8, stream), "data is NULL"},
        {ph_send_from(nullptr, buffer, 8, stream), ""},
    };
    for (const auto &w : wrong)
        CHECK_RC(w.rc, -EINVAL);
    CHECK_RC(ph_send(channel, 8, stream), -EINVAL);
    CHECK_SAYS(rank.error(), "ph_send is for channels with buffers");
    CHECK_SAYS(rank.error(), "operation 77 with rank");
    const ph_group_op named = {PH_GROUP_SEND, pair.to, 0, 0, 8, buffer};
    CHECK_RC(ph_group(&named, 1, stream), -EINVAL);
    CHECK_SAYS(rank.error(), "has buffers, and its data is named as well");
    const ph_operation half = {
        .op_id = 9, .peer = !rank.rank, .role = PH_ROLE_BOTH, .buffer = buffer};
    ph_channel *none;
    CHECK_RC(ph_exchange(rank.context, &half, 1, &none), -EINVAL);
    // Nothing was lost by it: signals, then a message.
    if (rank.rank == 0) {
        CHECK_OK(ph_signal(channel, stream));
        CHECK_OK(ph_send_from(channel, buffer, 64, stream));
    } else {
        CHECK_OK(ph_wait(channel, 0, stream));
        CHECK_OK(ph_recv_into(channel, buffer, 64, stream));
    }
    rank.synchronize(stream);
    // The same operation yields the same channel.
    CHECK(unbound(rank, !rank.rank, PH_ROLE_BOTH) == channel);
    rank.barrier();
}

TEST_P(Unbound, RefusesWhatNeedsBuffers)
{
    run("refuses");
}

RANK_FUNCTION(one_names_a_buffer)
{
    open(rank);
    void *buffer = rank.device->alloc(64);
    const ph_operation operation = {.op_id = 5,
                                    .peer = !rank.rank,
                                    .role = PH_ROLE_BOTH,
                                    .buffer = rank.rank ? buffer : nullptr,
                                    .size = rank.rank ? 64u : 0u};
    ph_channel *channel;
    CHECK_RC(ph_exchange(rank.context, &operation, 1, &channel), PH_EMISMATCH);
    CHECK_SAYS(rank.error(), "rank 1 names a buffer for it and rank 0 none");
    unbound(rank, !rank.rank, PH_ROLE_BOTH);
    rank.barrier();
}

TEST_P(Unbound, OneEndNamesABuffer)
{
    run("one_names_a_buffer");
}

// Beyond the budget of device memory they are slow, and right.
RANK_FUNCTION(beyond_the_budget)
{
    const size_t size = 1000003;
    open(rank, {"PEERHOP_DEVICE_BYTES=4194304"});
    void *stream = rank.device->stream();
    Memory memory(rank, size);
    for (uint64_t op = 100; op < 105; op++) {
        ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH, op);
        ph_path_report report;
        CHECK_OK(ph_channel_path(channel, 1, &report, sizeof report));
        const bool ring = rank.argument.find("ring") != std::string::npos;
        if (std::string(report.path) == "ipc" && !rank.device->host()) {
            CHECK(std::string(report.method) == (ring && op < 102 ? "ring" : "bounce"));
            const bool little =
                reason_against(report, "ring").find("DEVICE_BYTES") != std::string::npos;
            CHECK(little == (op >= 102));
        }
        memory.fill(rank.rank ? 0 : op);
        if (rank.rank == 0)
            CHECK_OK(ph_send_from(channel, memory.data, size, stream));
        else
            CHECK_OK(ph_recv_into(channel, memory.data, size, stream));
        rank.synchronize(stream);
        memory.verify(op, "beyond the budget");
    }
    rank.barrier();
}

TEST_P(Unbound, BeyondTheBudget)
{
    run("beyond_the_budget");
}

// Memory that kernels do not reach is refused, and nothing is lost; what no peer can map is as good
// as any.
RANK_FUNCTION(any_memory)
{
    const size_t size = 200003;
    open(rank);
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    void *stream = rank.device->stream();
    std::vector<char> pageable(size);
    CHECK_RC(ph_send_from(channel, pageable.data(), size, stream), -EINVAL);
    CHECK_SAYS(rank.error(), "do not reach memory at");
    CHECK_RC(ph_recv_into(channel, pageable.data(), size, stream), -EINVAL);
    uint64_t seed = 1;
    for (const char *out_kind : {"", "vmm", "default-pool", "pinned"})
        for (const char *in_kind : {"pinned", "default-pool", "vmm"}) {
            void *out = rank.device->alloc(size, out_kind), *in = rank.device->alloc(size, in_kind);
            rank.device->fill(out, size, seed + rank.rank);
            const ph_group_op group[] = {{PH_GROUP_SEND, channel, 0, 0, size, out},
                                         {PH_GROUP_RECV, channel, 0, 0, size, in}};
            CHECK_OK(ph_group(group, 2, stream));
            rank.synchronize(stream);
            rank.verify(in, size, seed + !rank.rank, "from any memory into any");
            seed += 2;
        }
    CHECK_OK(ph_channel_status(channel));
    rank.barrier();
}

TEST_P(Unbound, AnyMemoryThatKernelsReach)
{
    if (on_host())
        GTEST_SKIP() << "any memory is reached";
    run("any_memory");
}

// ---- the end of one channel

// argument: what is sent, and what is received.
RANK_FUNCTION(sizes_differ)
{
    open(rank);
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    ph_channel *other = unbound(rank, !rank.rank, PH_ROLE_BOTH, 5);
    void *stream = rank.device->stream();
    size_t sent, named;
    CHECK(sscanf(rank.argument.c_str(), "%zu %zu", &sent, &named) == 2);
    stays_good(rank, channel, stream);
    Memory memory(rank, rank.rank ? named : sent, 64);
    set_value(rank, at(memory.data, 0), memory.size, 1);
    if (rank.rank == 0) {
        CHECK_OK(ph_send_from(channel, memory.data, sent, stream));
    } else {
        CHECK_OK(ph_recv_into(channel, memory.data, named, stream));
        rank.synchronize(stream);
        CHECK_RC(ph_channel_status(channel), PH_EMISMATCH);
    }
    const std::string says = "rank 0 sent " + std::to_string(sent) + " bytes where rank 1 named " +
                             std::to_string(named);
    CHECK_RC(end_of(channel), PH_EMISMATCH);
    CHECK_SAYS(rank.error(), says);
    CHECK_SAYS(rank.error(), "operation 77 with rank");
    CHECK_RC(ph_channel_status(channel), PH_EMISMATCH);
    CHECK_SAYS(rank.error(), says);
    CHECK_RC(ph_send_from(channel, memory.data, 1, stream), PH_EMISMATCH);
    CHECK_SAYS(rank.error(), says);
    rank.synchronize(stream);
    stays_good(rank, other, stream);
    rank.barrier();
    ph_channel *anew = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    CHECK(anew != channel);
    stays_good(rank, anew, stream);
    rank.barrier();
}

TEST_P(Unbound, SizesThatDifferEndTheChannelAtBothEnds)
{
    for (const char *how : {"8 16", "16 8", "0 8", "8 0", "3000000 8", "8 3000000",
                            "3000000 3000001", "2097152 1048576"})
        run("sizes_differ", 2, how);
}

RANK_FUNCTION(aborts_one)
{
    open(rank);
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    ph_channel *other = unbound(rank, !rank.rank, PH_ROLE_BOTH, 5);
    void *stream = rank.device->stream(), *second = rank.device->stream();
    Memory memory(rank, 3000000), more(rank, 3000000);
    // Both wait for what does not come, more than once.
    for (int i = 0; i < 2; i++)
        CHECK_OK(ph_recv_into(channel, memory.data, memory.size, stream));
    rank.barrier();
    if (rank.rank == 0)
        CHECK_OK(ph_channel_abort(channel, "the test says so"));
    CHECK_RC(end_of(channel), PH_EABORTED);
    CHECK_SAYS(rank.error(), "rank 0 has aborted it: the test says so");
    rank.synchronize(stream);
    CHECK_RC(ph_channel_status(channel), PH_EABORTED);
    CHECK_RC(ph_recv_into(channel, memory.data, 8, stream), PH_EABORTED);
    CHECK_OK(ph_channel_abort(channel, "again"));
    stays_good(rank, other, second);
    rank.barrier();
    ph_channel *anew = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    stays_good(rank, anew, stream);
    CHECK_RC(ph_channel_ended(channel), PH_EABORTED);
    CHECK_OK(ph_channel_close(channel));
    rank.barrier();
}

TEST_P(Unbound, AbortEndsOneChannel)
{
    run("aborts_one");
}
