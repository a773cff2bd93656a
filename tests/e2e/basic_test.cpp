// SPDX-License-Identifier: BSD-3-Clause
// The main job: two ranks, one channel, every call once, data verified.
#include <cstdlib>
#include <fstream>

#include "e2e/meeting.h"

class Basic : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_ALL_NETS(Basic);

static const size_t size = 100000;

RANK_FUNCTION(put_then_signal)
{
    rank.open();
    void *buffer = rank.device->alloc(size);
    void *stream = rank.device->stream();
    rank.device->fill(buffer, size, 100 + rank.rank);
    ph_channel *channel = rank.channel(
        !rank.rank, 7, rank.rank == 0 ? PH_ROLE_SENDER : PH_ROLE_RECEIVER, buffer, size);
    for (int round = 0; round < 5; round++) {
        if (rank.rank == 0) {
            rank.device->fill(buffer, size, round);
            CHECK_OK(ph_put(channel, 3, 3, size - 3, stream));
            CHECK_OK(ph_put_signal(channel, 0, 0, 3, stream));
            rank.synchronize(stream);
        } else {
            CHECK_OK(ph_wait(channel, 3, stream));
            rank.synchronize(stream);
            rank.verify(buffer, size, round, "after wait");
        }
        rank.barrier();
    }
}

TEST_P(Basic, PutThenSignal)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("put_then_signal"), "");
}

RANK_FUNCTION(get_after_signal)
{
    rank.open();
    void *buffer = rank.device->alloc(size);
    void *stream = rank.device->stream();
    ph_channel *channel = rank.channel(
        !rank.rank, 7, rank.rank == 0 ? PH_ROLE_SENDER : PH_ROLE_RECEIVER, buffer, size);
    for (int round = 0; round < 5; round++) {
        if (rank.rank == 0) {
            rank.device->fill(buffer, size, round);
            CHECK_OK(ph_signal(channel, stream));
            rank.synchronize(stream);
        } else {
            CHECK_OK(ph_wait(channel, 0, stream));
            CHECK_OK(ph_get(channel, 0, 0, size, stream));
            rank.synchronize(stream);
            rank.verify(buffer, size, round, "after get");
        }
        rank.barrier();
    }
}

TEST_P(Basic, GetAfterSignal)
{
    SKIP_GETS_OF_STAGED();
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("get_after_signal"), "");
}

RANK_FUNCTION(send_and_recv)
{
    rank.open();
    ph_protocol protocol = rank.argument == "get" ? PH_PROTOCOL_GET : PH_PROTOCOL_PUT;
    void *out = rank.device->alloc(size), *in = rank.device->alloc(size);
    void *stream = rank.device->stream();
    int peer = !rank.rank;
    ph_operation ops[] = {
        {uint64_t(10 + rank.rank), peer, PH_ROLE_SENDER, protocol, out, size},
        {uint64_t(10 + peer), peer, PH_ROLE_RECEIVER, PH_PROTOCOL_DEFAULT, in, size}};
    ph_channel *channels[2];
    CHECK_OK(ph_exchange(rank.context, ops, 2, channels));
    ph_channel *to = channels[0], *from = channels[1];
    for (int round = 0; round < 5; round++) {
        rank.device->fill(out, size, 1000 * rank.rank + round);
        ph_channel *first = rank.rank == 0 ? to : from, *second = rank.rank == 0 ? from : to;
        for (ph_channel *channel : {first, second}) {
            CHECK_OK(channel == to ? ph_send(channel, size, stream)
                                   : ph_recv(channel, size, stream));
            CHECK_OK(ph_complete(channel, stream));
        }
        rank.synchronize(stream);
        rank.verify(in, size, 1000 * peer + round, "received");
        rank.barrier();
    }
}

TEST_P(Basic, SendAndRecvByPut)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("send_and_recv", "put"), "");
}

TEST_P(Basic, SendAndRecvByGet)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("send_and_recv", "get"), "");
}

// Code for an older device does not wait for the kernel before it: it may not begin early.
TEST(BasicStandin, KernelsOfOldCode)
{
    Job job("standin", 2);
    job.environment("PEERHOP_STANDIN_PTX", "75");
    EXPECT_EQ(job.run("send_and_recv", "put"), "");
}

RANK_FUNCTION(ring_of_groups)
{
    rank.open();
    void *out = rank.device->alloc(size), *in = rank.device->alloc(size);
    void *stream = rank.device->stream();
    int next = (rank.rank + 1) % rank.ranks, last = (rank.rank + rank.ranks - 1) % rank.ranks;
    ph_operation ops[] = {{1, next, PH_ROLE_SENDER, PH_PROTOCOL_DEFAULT, out, size},
                          {1, last, PH_ROLE_RECEIVER, PH_PROTOCOL_DEFAULT, in, size}};
    ph_channel *channels[2];
    CHECK_OK(ph_exchange(rank.context, ops, 2, channels));
    for (int round = 0; round < 32; round++) {
        rank.device->fill(out, size, 1000 * rank.rank + round);
        ph_group_op group[] = {{PH_GROUP_SEND, channels[0], 0, 0, size},
                               {PH_GROUP_RECV, channels[1], 0, 0, size}};
        CHECK_OK(ph_group(group, 2, stream));
        rank.synchronize(stream);
        rank.verify(in, size, 1000 * last + round, "from the ring");
    }
}

TEST_P(Basic, RingOfGroups)
{
    Job job(GetParam(), 3);
    EXPECT_EQ(job.run("ring_of_groups"), "");
}

// Whether this process maps the files of shm's endpoints.
static bool maps_shm()
{
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
        if (line.find("/dev/shm/peerhop-") != std::string::npos)
            return true;
    return false;
}

RANK_FUNCTION(meets_over_a_provider)
{
    rank.open();
    rank.channel(!rank.rank, 7, PH_ROLE_BOTH, rank.device->alloc(size), size);
    CHECK(maps_shm() == (rank.argument == "shm"));
    rank.barrier();
}

// A run of these suites may ask for another one than tcp.
TEST_P(Basic, OverTheProviderThatIsAskedFor)
{
    const char *asked = getenv("PEERHOP_NET_PROVIDER");
    if (!on_net() || GetParam() == "standinhmem")
        GTEST_SKIP() << "not over the net, or over a provider of its own";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("meets_over_a_provider", asked ? asked : "tcp"), "");
}

// ---- more ranks than any other test has

RANK_FUNCTION(all_to_all)
{
    rank.open();
    void *stream = rank.device->stream();
    char *memory = static_cast<char *>(rank.device->alloc(2 * rank.ranks * size));
    for (int round = 0; round < 3; round++) {
        meet_all(rank, size, memory, stream); // the channels of the first round
        rank.barrier();
    }
    CHECK_EQUAL(rank.counter("channels"), 2 * (rank.ranks - 1));
}

class Many : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_NET(Many);

TEST_P(Many, TwelveRanksAllToAll)
{
    Job job(GetParam(), 12);
    EXPECT_EQ(job.run("all_to_all"), "");
}

RANK_FUNCTION(hit_without_store)
{
    rank.open();
    void *buffer = rank.device->alloc(size);
    auto role = rank.rank == 0 ? PH_ROLE_SENDER : PH_ROLE_RECEIVER;
    ph_channel *first = rank.channel(!rank.rank, 7, role, buffer, size);
    rank.barrier();
    uint64_t commands = rank.counter("store_commands"), hits = rank.counter("hits");
    for (int round = 0; round < 100; round++)
        CHECK(rank.channel(!rank.rank, 7, role, buffer, size) == first);
    CHECK(rank.counter("store_commands") == commands);
    CHECK(rank.counter("hits") == hits + 100);
    CHECK(rank.counter("imports") == 1);
}

TEST_P(Basic, HitWithoutStore)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("hit_without_store"), "");
}
