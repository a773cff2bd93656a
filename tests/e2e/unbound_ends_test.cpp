// SPDX-License-Identifier: BSD-3-Clause
// Unbound channels that end while messages are under way, and between ranks of two kinds.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "e2e/dying.h"
#include "e2e/unbound.h"

class UnboundEnds : public UnboundSuite
{
  protected:
    // Into slots, which all have whose messages go over the net to a device or from one.
    static bool waits_for_nobody()
    {
        return on_net() && !on_host();
    }
};
INSTANTIATE_DEVICES_AND_ALL_NETS(UnboundEnds);

// ---- the end at any time

// As many messages both ways as a lane holds several times over, in groups that help, while the
// other rank aborts the channel: whatever was under way, both streams come to their end.
RANK_FUNCTION(aborts_under_way)
{
    const size_t size = 1000003;
    open(rank);
    void *stream = rank.device->stream();
    const int rounds = 12;
    for (int round = 0; round < rounds; round++) {
        ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
        Memory out(rank, size), in(rank, size);
        const ph_group_op both[] = {{PH_GROUP_SEND, channel, 0, 0, size, out.data},
                                    {PH_GROUP_RECV, channel, 0, 0, size, in.data},
                                    {PH_GROUP_SEND, channel, 0, 0, 8, out.data},
                                    {PH_GROUP_RECV, channel, 0, 0, 8, in.data}};
        rank.barrier();
        int rc = 0;
        for (int i = 0; i < 4 && rc == 0; i++)
            rc = ph_group(both, std::size(both), stream);
        CHECK(rc == 0 || rc == PH_EABORTED || rc == PH_EBROKEN);
        if (round % 2 == rank.rank) {
            std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
            CHECK_OK(ph_channel_abort(channel, "under way"));
        }
        CHECK_RC(end_of(channel), PH_EABORTED);
        CHECK_SAYS(rank.error(), "has aborted it: under way");
        rank.synchronize(stream);
        CHECK_RC(ph_channel_status(channel), PH_EABORTED);
        CHECK_OK(ph_channel_close(channel));
        rank.barrier();
    }
    stays_good(rank, unbound(rank, !rank.rank, PH_ROLE_BOTH), stream);
    rank.barrier();
}

TEST_P(UnboundEnds, AbortOfWhatIsUnderWay)
{
    for (const std::string &way : ways()) {
        Job job(GetParam(), 2);
        job.environment("PEERHOP_NET_CHUNK", "4096");
        EXPECT_EQ(job.run("aborts_under_way", way), "") << way;
    }
}

// The other rank's exchange may not be over when the channel has its end.
RANK_FUNCTION(aborts_at_once)
{
    open(rank);
    for (uint64_t op = 1; op < 60; op++) {
        ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH, op);
        if (op % 2 == static_cast<uint64_t>(rank.rank))
            CHECK_OK(ph_channel_abort(channel, nullptr));
        CHECK_RC(end_of(channel), PH_EABORTED);
        CHECK_SAYS(rank.error(), "has aborted it: no reason given");
    }
    rank.barrier();
}

TEST_P(UnboundEnds, AbortRightBehindTheExchange)
{
    run("aborts_at_once");
}

// A rank may be in its next exchange of the operation, with what it had before, when it is told.
RANK_FUNCTION(exchanges_again)
{
    open(rank);
    void *stream = rank.device->stream();
    for (int round = 0; round < 30; round++) {
        ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
        if (round % 2 == rank.rank)
            CHECK_OK(ph_channel_abort(channel, "again"));
        ph_channel *anew = unbound(rank, !rank.rank, PH_ROLE_BOTH);
        CHECK(anew != channel);
        stays_good(rank, anew, stream);
        CHECK_RC(end_of(channel), PH_EABORTED);
        CHECK_OK(ph_channel_close(channel));
        CHECK_OK(ph_channel_close(anew));
    }
    rank.barrier();
}

TEST_P(UnboundEnds, ExchangedAgainAtOnce)
{
    run("exchanges_again");
}

// One bound message and many unbound ones, of which each has a round of its own, while another
// thread ends their channel. Returns what the group says.
static int group_that_ends(Rank &rank, ph_channel *bound, ph_channel *channel, void *stream, int us)
{
    Memory memory(rank, 8);
    std::vector<ph_group_op> ops(60, {PH_GROUP_SEND, channel, 0, 0, memory.size, memory.data});
    ops[0] = {PH_GROUP_SEND, bound, 0, 0, ph_channel_local_size(bound), nullptr};
    std::atomic<bool> begun{false};
    std::thread other([&] {
        rank.device->enter_thread();
        while (!begun)
            ;
        const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(us);
        while (std::chrono::steady_clock::now() < until)
            ;
        CHECK_OK(ph_channel_abort(channel, "amid a group"));
    });
    begun = true;
    const int rc = ph_group(ops.data(), ops.size(), stream);
    other.join();
    CHECK(rc == 0 || rc == PH_EABORTED || rc == PH_EBROKEN);
    if (rc == PH_EABORTED) { // nothing was enqueued
        CHECK_OK(ph_send(bound, ph_channel_local_size(bound), stream));
        CHECK_OK(ph_complete(bound, stream));
    }
    rank.synchronize(stream);
    return rc;
}

// A group that fails half-way breaks what it has enqueued half of. Of bound channels that is
// nothing.
RANK_FUNCTION(ends_amid_a_group)
{
    open(rank);
    const size_t size = 4096;
    void *stream = rank.device->stream(), *buffer = rank.device->alloc(size);
    ph_channel *bound = rank.channel(!rank.rank, 5, role_of(rank, 0), buffer, size);
    std::atomic<uint64_t> &broken = rank.shared->value[0];
    for (int i = 0; i < 400 && broken == 0; i++) {
        ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
        if (rank.rank == 0) {
            rank.device->fill(buffer, size, i);
            const int us = i % 20 * (i % 20);
            broken += group_that_ends(rank, bound, channel, stream, us) == PH_EBROKEN;
        } else {
            CHECK_OK(ph_recv(bound, size, stream));
            CHECK_OK(ph_complete(bound, stream));
            rank.synchronize(stream);
            rank.verify(buffer, size, i, "beside a channel that ended");
        }
        CHECK_OK(ph_channel_status(bound));
        CHECK_OK(ph_channel_ended(bound));
        CHECK_RC(end_of(channel), PH_EABORTED);
        CHECK_OK(ph_channel_close(channel));
        rank.barrier();
    }
    CHECK(broken != 0);
}

TEST_P(UnboundEnds, AGroupHalfWayLeavesBoundChannels)
{
    if (waits_for_nobody())
        GTEST_SKIP() << "a group is enqueued at once";
    run("ends_amid_a_group");
}

// Who ends a channel often leaves at once, in order or by exit. Why it ended is told all the same,
// and does not change when its peer is seen to be gone.
RANK_FUNCTION(goes_then)
{
    open(rank);
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    void *stream = rank.device->stream();
    const bool mismatch = rank.argument.find("mismatch") != std::string::npos;
    const bool sender_stays = rank.argument.find("sender stays") != std::string::npos;
    const bool exits = rank.argument.find("exits") != std::string::npos;
    const int end = mismatch ? PH_EMISMATCH : PH_EABORTED;
    const char *why = mismatch ? "sent 8 bytes where rank" : "has aborted it: and goes";
    const bool sends = rank.rank == (sender_stays ? 1 : 0);
    Memory memory(rank, 16);
    rank.barrier();
    if (rank.rank == 1 || mismatch) {
        const int rc = sends ? ph_send_from(channel, memory.data, 8, stream)
                             : ph_recv_into(channel, memory.data, 16, stream);
        CHECK(rc == 0 || rc == end); // the other rank may have been quicker
    }
    if (rank.rank == 0) {
        if (!mismatch)
            CHECK_OK(ph_channel_abort(channel, "and goes"));
        if (exits || !sender_stays) // else it asks nothing, and leaves
            CHECK_RC(end_of(channel), end);
        if (exits)
            _exit(0);
        rank.synchronize(stream);
        rank.close();
        return;
    }
    Stopwatch watch;
    int ended = 0;
    while ((ended = ph_channel_ended(channel)) == 0 && watch.ms() < patience(20000).count())
        ;
    CHECK_RC(ended, end);
    CHECK(becomes(rank, 0, PH_PEER_GONE));
    rank.synchronize(stream);
    for (int i = 0; i < 2; i++) {
        CHECK_RC(ph_channel_ended(channel), end);
        CHECK_SAYS(rank.error(), why);
        CHECK_RC(ph_channel_status(channel), end);
        CHECK_SAYS(rank.error(), why);
        CHECK_RC(ph_send_from(channel, memory.data, 8, stream), end);
        sleep_ms(50);
    }
}

TEST_P(UnboundEnds, IsToldWhyAndNotThatThePeerLeft)
{
    for (const char *what : {"abort", "abort, exits", "mismatch", "mismatch, sender stays",
                             "mismatch, sender stays, exits"})
        run("goes_then", 2, what);
}

// ---- what was sent before the peer left

// Where a send waits for nobody: two messages, then the end of their sender.
RANK_FUNCTION(is_left)
{
    rank.open();
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    void *stream = rank.device->stream();
    const size_t each[] = {8, 200001};
    if (rank.rank == 0) {
        for (const size_t size : each) {
            Memory memory(rank, size);
            memory.fill(size);
            CHECK_OK(ph_send_from(channel, memory.data, size, stream));
            rank.synchronize(stream);
        }
        rank.close();
        return;
    }
    CHECK_RC(end_of(channel), PH_EPEER);
    for (const size_t size : each) {
        Memory memory(rank, size, 3);
        memory.fill(1);
        CHECK_OK(ph_recv_into(channel, memory.data, size, stream));
        rank.synchronize(stream);
        memory.verify(size, "sent before its sender left");
        CHECK_OK(ph_channel_status(channel));
    }
    Memory none(rank, 8);
    CHECK_RC(ph_recv_into(channel, none.data, 8, stream), PH_EPEER);
    CHECK_OK(ph_channel_status(channel));
}

TEST_P(UnboundEnds, WhatWasSentBeforeThePeerLeft)
{
    if (!waits_for_nobody())
        GTEST_SKIP() << "a send waits for its receiver";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("is_left"), "");
}

// ... of another size than is named then: nothing is written but what was named.
RANK_FUNCTION(is_left_with_another_size)
{
    rank.open();
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    void *stream = rank.device->stream();
    Memory memory(rank, 100000);
    memory.fill(rank.rank);
    if (rank.rank == 0) {
        CHECK_OK(ph_send_from(channel, memory.data, memory.size, stream));
        rank.synchronize(stream);
        rank.close();
        return;
    }
    CHECK_RC(end_of(channel), PH_EPEER);
    CHECK_OK(ph_recv_into(channel, memory.data, 0, stream));
    rank.synchronize(stream);
    memory.verify(1, "beyond what was named");
    CHECK_RC(ph_channel_status(channel), PH_EPEER);
}

TEST_P(UnboundEnds, AnotherSizeWasSentBeforeThePeerLeft)
{
    if (!waits_for_nobody())
        GTEST_SKIP() << "a send waits for its receiver";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("is_left_with_another_size"), "");
}

// ---- sizes that differ in a group, whose lanes are too small for it

RANK_FUNCTION(sizes_differ_in_a_group)
{
    open(rank);
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    void *stream = rank.device->stream();
    const size_t size = 300000, other = static_cast<size_t>(std::stoul(rank.argument));
    Memory out(rank, size), in(rank, size);
    set_value(rank, in.data, size, 9);
    const ph_group_op both[] = {
        {PH_GROUP_SEND, channel, 0, 0, size, out.data},
        {PH_GROUP_RECV, channel, 0, 0, rank.rank == 0 ? size : other, in.data}};
    CHECK_OK(ph_group(both, 2, stream));
    CHECK_RC(end_of(channel), PH_EMISMATCH);
    CHECK_SAYS(rank.error(),
               "rank 0 sent 300000 bytes where rank 1 named " + std::to_string(other));
    rank.synchronize(stream);
    CHECK_RC(ph_channel_status(channel), PH_EMISMATCH);
    if (rank.rank == 1)
        check_value(rank, at(in.data, other), size - other, 9, "behind what was named");
    stays_good(rank, unbound(rank, !rank.rank, PH_ROLE_BOTH, 5), stream);
    rank.barrier();
}

TEST_P(UnboundEnds, SizesThatDifferInAGroup)
{
    for (const std::string &way : ways())
        for (const char *other : {"8", "299999", "200000"}) {
            Job job(GetParam(), 2);
            job.environment("PEERHOP_NET_CHUNK", "4096");
            EXPECT_EQ(job.run("sizes_differ_in_a_group", other + way), "") << other << way;
        }
}

// ---- a device at one end, and none at the other

class UnboundMixed : public EveryDevice
{
};
INSTANTIATE_CUDA_DEVICES_AND_NET(UnboundMixed);

// argument: which rank has no device.
RANK_FUNCTION(has_a_device_or_not)
{
    if (rank.argument == std::to_string(rank.rank))
        rank.device = make_host_device(&rank.context);
    rank.open();
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    void *stream = rank.device->stream();
    uint64_t seed = 1;
    for (const size_t size : {0, 1, 8, 17, 5000, 1500001, 9 << 20}) {
        Memory out(rank, size, 5), in(rank, size);
        for (int sender = 0; sender < 2; sender++, seed++) {
            out.fill(seed);
            in.fill(0);
            if (rank.rank == sender)
                CHECK_OK(ph_send_from(channel, out.data, size, stream));
            else
                CHECK_OK(ph_recv_into(channel, in.data, size, stream));
            rank.synchronize(stream);
            if (rank.rank != sender)
                in.verify(seed, "one way");
        }
        out.fill(seed + rank.rank);
        const ph_group_op both[] = {{PH_GROUP_RECV, channel, 0, 0, size, in.data},
                                    {PH_GROUP_SEND, channel, 0, 0, size, out.data}};
        CHECK_OK(ph_group(both, 2, stream));
        rank.synchronize(stream);
        in.verify(seed + !rank.rank, "both ways");
        seed += 2;
    }
    CHECK_OK(ph_channel_status(channel));
    // And its end.
    if (rank.rank == 0)
        CHECK_OK(ph_send_from(channel, &seed, 0, stream));
    else
        CHECK_OK(ph_recv_into(channel, Memory(rank, 8).data, 8, stream));
    CHECK_RC(end_of(channel), PH_EMISMATCH);
    CHECK_SAYS(rank.error(), "rank 0 sent 0 bytes where rank 1 named 8");
    rank.synchronize(stream);
    rank.barrier();
}

TEST_P(UnboundMixed, ADeviceAtOneEnd)
{
    for (const char *host : {"0", "1"}) {
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("has_a_device_or_not", host), "") << host;
    }
}

// Memory that peers cannot map, and host memory, in device contexts.
RANK_FUNCTION(sends_from_any_memory)
{
    rank.open();
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    void *stream = rank.device->stream();
    const size_t size = 3000001;
    uint64_t seed = 1;
    for (const char *from : {"", "pinned", "default-pool", "vmm", "pool"})
        for (const char *to : {"pinned", "default-pool", "vmm"}) {
            void *out = rank.device->alloc(size, from), *in = rank.device->alloc(size, to);
            rank.device->fill(out, size, seed + rank.rank);
            const ph_group_op both[] = {{PH_GROUP_SEND, channel, 0, 0, size, out},
                                        {PH_GROUP_RECV, channel, 0, 0, size, in}};
            CHECK_OK(ph_group(both, 2, stream));
            rank.synchronize(stream);
            rank.verify(in, size, seed + !rank.rank, to);
            rank.device->release(out);
            rank.device->release(in);
            seed += 2;
        }
    void *host;
    CHECK_OK(ph_host_alloc(rank.context, size, &host));
    memset(host, 5 + rank.rank, size);
    for (const size_t bytes : {(size_t)8, size}) {
        Memory in(rank, bytes);
        const ph_group_op both[] = {{PH_GROUP_SEND, channel, 0, 0, bytes, host},
                                    {PH_GROUP_RECV, channel, 0, 0, bytes, in.data}};
        CHECK_OK(ph_group(both, 2, stream));
        rank.synchronize(stream);
        check_value(rank, in.data, bytes, static_cast<uint8_t>(5 + !rank.rank), "of host memory");
    }
    // Memory that ends before the message does is refused as a whole: no part of it was sent.
    Memory little(rank, 3 << 20);
    const size_t beyond = size_t{1} << 40;
    CHECK_RC(ph_send_from(channel, little.data, beyond, stream), -EINVAL);
    CHECK_RC(ph_recv_into(channel, little.data, beyond, stream), -EINVAL);
    CHECK_OK(ph_channel_ended(channel));
    stays_good(rank, channel, stream);
    rank.barrier();
    CHECK_OK(ph_host_free(rank.context, host, 0));
}

TEST_P(UnboundMixed, MemoryOfAnyKind)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("sends_from_any_memory"), "");
}
