// SPDX-License-Identifier: BSD-3-Clause
// Unbound channels of a rank with itself.
#include <cerrno>

#include <peerhop/device_types.h>

#include "e2e/unbound.h"

class UnboundSelf : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_ALL_NETS(UnboundSelf);

// The channel of an operation of the rank with itself: no other rank is asked.
static ph_channel *with_itself(Rank &rank, uint64_t op = op_id)
{
    return unbound(rank, rank.rank, PH_ROLE_BOTH, op);
}

static ph_group_op half(ph_group_kind kind, ph_channel *channel, const Memory &memory)
{
    return {kind, channel, 0, 0, memory.size, memory.data};
}

// The k-th send of a channel matches its k-th receive, whatever stands between.
RANK_FUNCTION(matches_itself)
{
    const size_t sizes[] = {0, 1, 8, 100, 8193, 65537, 1 << 20, (3 << 20) + 5};
    const size_t count = std::size(sizes);
    rank.open();
    ph_channel *channels[] = {with_itself(rank), with_itself(rank, 5)};
    void *stream = rank.device->stream();
    std::vector<std::unique_ptr<Memory>> out, in;
    std::vector<ph_group_op> sends, receives;
    for (size_t i = 0; i < 2 * count; i++) {
        out.push_back(std::make_unique<Memory>(rank, sizes[i % count], i % 3));
        in.push_back(std::make_unique<Memory>(rank, sizes[i % count], i % 5));
        out[i]->fill(i);
        sends.push_back(half(PH_GROUP_SEND, channels[i % 2], *out[i]));
        receives.push_back(half(PH_GROUP_RECV, channels[i % 2], *in[i]));
    }
    std::vector<ph_group_op> group(receives.begin(), receives.begin() + count);
    group.insert(group.end(), sends.begin(), sends.end());
    group.insert(group.end(), receives.begin() + count, receives.end());
    CHECK_OK(ph_group(group.data(), group.size(), stream));
    rank.synchronize(stream);
    for (size_t i = 0; i < in.size(); i++)
        in[i]->verify(i, "from this rank itself");
    const ph_group_op same[] = {half(PH_GROUP_SEND, channels[0], *out[3]),
                                half(PH_GROUP_RECV, channels[0], *out[3])};
    CHECK_OK(ph_group(same, 2, stream));
    rank.synchronize(stream);
    out[3]->verify(3, "from where it is");
    CHECK_OK(ph_channel_status(channels[0]));
    CHECK_OK(ph_channel_ended(channels[1]));
}

TEST_P(UnboundSelf, MatchesItsOwnMessagesInOrder)
{
    Job job(GetParam(), 1);
    EXPECT_EQ(job.run("matches_itself"), "");
}

// It stands in the order of the stream, and in graphs.
RANK_FUNCTION(itself_in_order)
{
    const size_t size = 700001;
    rank.open();
    ph_channel *channel = with_itself(rank);
    void *stream = rank.device->stream();
    Memory from(rank, size), to(rank, size, 1), after(rank, size);
    const ph_group_op group[] = {half(PH_GROUP_SEND, channel, from),
                                 half(PH_GROUP_RECV, channel, to)};
    const auto enqueue = [&] {
        CHECK_OK(ph_group(group, 2, stream));
        rank.device->copy(stream, after.data, to.data, size);
    };
    void *graph = rank.device->capture(stream, enqueue);
    CHECK((graph == nullptr) == rank.device->host());
    for (uint64_t i = 0; i < 6; i++) {
        from.fill(i);
        if (graph != nullptr && i % 2)
            rank.device->launch(graph, stream);
        else
            enqueue();
        rank.synchronize(stream);
        after.verify(i, "behind the group");
    }
    if (graph != nullptr)
        rank.device->destroy(graph);
}

TEST_P(UnboundSelf, CopiesToItselfInTheOrderOfTheStream)
{
    Job job(GetParam(), 1);
    EXPECT_EQ(job.run("itself_in_order"), "");
}

// What a group lacks is named, and nothing of the group is enqueued.
RANK_FUNCTION(itself_refuses)
{
    rank.open();
    ph_channel *self = with_itself(rank);
    void *stream = rank.device->stream();
    Memory from(rank, 64), to(rank, 64), other(rank, 64);
    from.fill(1);
    to.fill(2);
    const auto fails = [&](std::vector<ph_group_op> group, const char *says) {
        CHECK_RC(ph_group(group.data(), group.size(), stream), -EINVAL);
        CHECK_SAYS(rank.error(), says);
    };
    const ph_group_op send = half(PH_GROUP_SEND, self, from),
                      receive = half(PH_GROUP_RECV, self, to);
    ph_group_op shorter = receive, inside = receive, nowhere = receive;
    shorter.size = 63;
    inside.data = at(from.data, 1);
    nowhere.data = nullptr;
    fails({send, receive, send}, "the send of 64 bytes at place 2, of operation 77 with rank 0, "
                                 "which is this rank, has no receive in it");
    fails({receive, receive, send}, "the receive of 64 bytes at place 1");
    fails({send, shorter}, "a send of 64 bytes matches a receive of 63");
    fails({send, inside}, "overlap");
    fails({send, nowhere}, "data is NULL");
    fails({send, receive, {PH_GROUP_SIGNAL, self}}, "needs another one");
    fails({{PH_GROUP_PUT, self, 0, 0, 8}}, "needs another one");
    const auto alone = [&](int rc, const std::string &what) {
        CHECK_RC(rc, -EINVAL);
        CHECK_SAYS(rank.error(), what + " needs another one");
    };
    alone(ph_send_from(self, from.data, 64, stream), "ph_send_from");
    alone(ph_recv_into(self, to.data, 64, stream), "ph_recv_into");
    alone(ph_signal(self, stream), "ph_signal");
    alone(ph_wait(self, 0, stream), "ph_wait");
    CHECK_RC(ph_send(self, 8, stream), -EINVAL);
    CHECK_RC(ph_put(self, 0, 0, 8, stream), -EINVAL);
    CHECK_RC(ph_copy(self, 0, self, 0, 8, stream), -EINVAL);
    rank.synchronize(stream);
    to.verify(2, "what no group has written");
    const ph_operation bound = operation(9, rank.rank, PH_ROLE_BOTH, from.data, 64),
                       sends = operation(9, rank.rank, PH_ROLE_SENDER, nullptr, 0);
    CHECK_SAYS(exchange_fails(rank, {bound}, -EINVAL), "names itself as the peer, and a buffer");
    CHECK_SAYS(exchange_fails(rank, {sends}, -EINVAL), "names itself as the peer in role 1");
}

TEST_P(UnboundSelf, NamesWhatAMessageToItselfLacks)
{
    Job job(GetParam(), 1);
    EXPECT_EQ(job.run("itself_refuses"), "");
}

// By kernel and by copy engine, alone and before others.
RANK_FUNCTION(itself_in_any_memory)
{
    rank.open();
    ph_channel *self = with_itself(rank);
    void *stream = rank.device->stream();
    uint64_t seed = 1;
    for (const size_t size : {200003, 3 << 20})
        for (const char *kind : {"", "vmm", "default-pool", "pinned"}) {
            Memory near(rank, size);
            std::vector<char> pageable(size);
            void *far = rank.device->alloc(size, kind);
            ph_group_op group[] = {{PH_GROUP_SEND, self, 0, 0, size, far},
                                   {PH_GROUP_RECV, self, 0, 0, size, pageable.data()},
                                   {PH_GROUP_SEND, self, 0, 0, size, near.data},
                                   {PH_GROUP_RECV, self, 0, 0, size, far}};
            for (const size_t count : {2, 4}) {
                CHECK_RC(ph_group(group, count, stream), -EINVAL);
                CHECK_SAYS(rank.error(), "do not reach memory at");
            }
            CHECK_OK(ph_channel_ended(self));
            near.fill(seed);
            CHECK_OK(ph_group(group + 2, 2, stream));
            rank.synchronize(stream);
            rank.verify(far, size, seed++, kind);
        }
    CHECK_OK(ph_channel_status(self));
}

TEST_P(UnboundSelf, ToItselfInAnyMemoryThatKernelsReach)
{
    if (on_host())
        GTEST_SKIP() << "any memory is reached";
    Job job(GetParam(), 1);
    EXPECT_EQ(job.run("itself_in_any_memory"), "");
}

static void passes_to_itself(Rank &rank, ph_channel *channel, void *stream, uint64_t seed)
{
    Memory from(rank, 1001), to(rank, 1001);
    from.fill(seed);
    const ph_group_op group[] = {half(PH_GROUP_RECV, channel, to),
                                 half(PH_GROUP_SEND, channel, from)};
    CHECK_OK(ph_group(group, 2, stream));
    rank.synchronize(stream);
    to.verify(seed, "from this rank itself");
}

// Channels, handles, and the ends of one.
RANK_FUNCTION(itself_ends)
{
    rank.open();
    void *stream = rank.device->stream();
    ph_channel *self = with_itself(rank);
    CHECK(with_itself(rank) == self); // one for each operation, with a handle for each exchange
    CHECK(with_itself(rank, 5) != self);
    ph_path_report report;
    CHECK_OK(ph_channel_path(self, 1, &report, sizeof report));
    CHECK(report.path == std::string("self") && report.protocol == std::string("put"));
    ph_device_channel device;
    CHECK_RC(ph_channel_device(self, &device, sizeof device), -ENOTSUP);
    passes_to_itself(rank, self, stream, 1);
    CHECK_OK(ph_channel_close(self));
    CHECK_OK(ph_channel_close(self));
    CHECK_RC(ph_channel_close(self), -EINVAL);
    self = with_itself(rank);
    passes_to_itself(rank, self, stream, 2);
    CHECK_OK(ph_channel_abort(self, "the test says so"));
    CHECK_RC(ph_channel_ended(self), PH_EABORTED);
    CHECK_SAYS(rank.error(), "rank 0 has aborted it: the test says so");
    CHECK_RC(ph_channel_status(self), PH_EABORTED);
    CHECK_SAYS(rank.error(), "rank 0 has aborted it: the test says so");
    uint8_t byte = 0;
    const ph_group_op refused[] = {{PH_GROUP_SEND, self, 0, 0, 0, &byte},
                                   {PH_GROUP_RECV, self, 0, 0, 0, &byte}};
    CHECK_RC(ph_group(refused, 2, stream), PH_EABORTED);
    ph_channel *anew = with_itself(rank);
    CHECK(anew != self);
    passes_to_itself(rank, anew, stream, 3);
    CHECK_OK(ph_channel_close(self));
    CHECK_OK(ph_context_abort(rank.context, "enough"));
    CHECK_RC(ph_channel_ended(anew), PH_EABORTED);
    CHECK_RC(ph_channel_status(anew), PH_EABORTED);
    const ph_operation op = operation(op_id, rank.rank, PH_ROLE_BOTH, nullptr, 0);
    exchange_fails(rank, {op}, PH_EABORTED);
}

TEST_P(UnboundSelf, ChannelsWithItselfEnd)
{
    Job job(GetParam(), 1);
    EXPECT_EQ(job.run("itself_ends"), "");
}

// Among operations with other ranks, also where the two halves of an exchange stand apart.
RANK_FUNCTION(itself_among_others)
{
    rank.open();
    void *stream = rank.device->stream();
    const int other = !rank.rank;
    void *buffer = rank.device->alloc(64);
    const ph_operation ops[] = {operation(1, rank.rank, PH_ROLE_BOTH, nullptr, 0),
                                operation(2, other, PH_ROLE_BOTH, nullptr, 0),
                                operation(3, rank.rank, PH_ROLE_BOTH, nullptr, 0),
                                operation(4, other, PH_ROLE_BOTH, buffer, 64),
                                operation(5, rank.rank, PH_ROLE_BOTH, nullptr, 0)};
    ph_channel *channels[std::size(ops)];
    ph_exchange_request *request;
    CHECK_OK(ph_exchange_start(rank.context, ops, std::size(ops), &request));
    CHECK_OK(ph_exchange_finish(&request, channels, 0));
    for (size_t i = 0; i < std::size(ops); i++)
        CHECK(ph_channel_op_id(channels[i]) == ops[i].op_id &&
              ph_channel_peer(channels[i]) == ops[i].peer);
    for (const size_t i : {0, 2, 4})
        passes_to_itself(rank, channels[i], stream, i);
    stays_good(rank, channels[1], stream);
    // Its handle goes back where the exchange fails: nobody comes.
    if (rank.rank == 0) {
        const ph_operation alone[] = {ops[0], operation(9, other, PH_ROLE_BOTH, nullptr, 0)};
        ph_channel *none[2] = {};
        CHECK_OK(ph_exchange_start(rank.context, alone, 2, &request));
        CHECK_RC(ph_exchange_finish(&request, none, 100), -ETIMEDOUT);
        CHECK(none[0] == nullptr && none[1] == nullptr);
    }
    CHECK_OK(ph_channel_close(channels[0]));
    CHECK_RC(ph_channel_close(channels[0]), -EINVAL);
    rank.barrier();
}

TEST_P(UnboundSelf, ExchangesItselfAmongOthers)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("itself_among_others"), "");
}
