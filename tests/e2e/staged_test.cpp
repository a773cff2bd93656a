// SPDX-License-Identifier: BSD-3-Clause
// Memory of devices over the net: what is special about messages that are staged through slots.
// That they are messages like others, the suites of every device show.
#include <random>

#include "e2e/bytes.h"

// "standinnet", "gpunet": both ranks have devices; "mixed": rank 1 has host memory only.
class Staged : public testing::TestWithParam<std::string>
{
  protected:
    void SetUp() override
    {
        std::string why;
        if (!net_available())
            GTEST_SKIP() << "libfabric is left out of this build";
        if (!device_available(GetParam() == "gpunet" ? "gpu" : "standin", &why))
            GTEST_SKIP() << why;
    }
    std::string run(const char *function, const std::string &argument = "", int ranks = 2,
                    const std::map<std::string, std::string> &environment = {})
    {
        Job job(GetParam() == "gpunet" ? "gpunet" : "standinnet", ranks);
        if (GetParam() == "mixed")
            job.environment(1, "PEERHOP_TEST_DEVICE", "host");
        for (const auto &[name, value] : environment)
            job.environment(name, value);
        return job.run(function, argument);
    }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Staged, testing::Values("standinnet", "mixed", "gpunet"),
                         [](const auto &info) { return info.param; });

// ---- what the report says, and what is refused

RANK_FUNCTION(reports)
{
    rank.open();
    void *buffer = rank.device->alloc(100), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, buffer, 100);
    for (int outgoing = 0; outgoing < 2; outgoing++) {
        ph_path_report report;
        CHECK_OK(ph_channel_path(channel, outgoing, &report, sizeof report));
        CHECK(report.path == std::string("net"));
        CHECK(report.method == std::string("staged"));
        CHECK(report.kind == std::string("slots"));
        CHECK(!reason_against(report, "ipc").empty());
        CHECK(!reason_against(report, "dmabuf").empty()); // the better ways
        CHECK(!reason_against(report, "hmem").empty());
        CHECK(report.flush == std::string("none"));
    }
    CHECK_RC(ph_get(channel, 0, 0, 10, stream), PH_ENOPATH);
    CHECK(rank.error().find("its owner's stream sends") != std::string::npos);
    ph_group_op get = {PH_GROUP_GET, channel, 0, 0, 10};
    CHECK_RC(ph_group(&get, 1, stream), PH_ENOPATH);
    rank.barrier();
    rank.close();
}

TEST_P(Staged, ReportsAndRefuses)
{
    EXPECT_EQ(run("reports"), "");
}

// ---- messages of many more records than there are slots

RANK_FUNCTION(large_messages)
{
    const size_t size = (size_t(1) << 20) + 12345; // each slot serves 16 times and more
    rank.open();
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    ph_protocol protocol = rank.argument == "get" ? PH_PROTOCOL_GET : PH_PROTOCOL_PUT;
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size, protocol);
    for (int round = 0; round < 6; round++) {
        const bool sends = round % 2 == rank.rank;
        if (sends)
            rank.device->fill(memory, size, round);
        else
            set_value(rank, memory, size, 7);
        if (sends && rank.argument == "put_signal")
            CHECK_OK(ph_put_signal(channel, 0, 0, size, stream));
        else if (rank.argument == "put_signal")
            CHECK_OK(ph_wait(channel, size, stream));
        else if (sends)
            CHECK_OK(ph_send(channel, size, stream));
        else
            CHECK_OK(ph_recv(channel, size, stream));
        CHECK_OK(ph_complete(channel, stream));
        rank.synchronize(stream);
        rank.verify(memory, size, round, "of many records");
        rank.barrier();
    }
    CHECK(rank.counter("net_bytes") == 3 * size);
    rank.close();
}

TEST_P(Staged, MessagesOfManyRecords)
{
    for (const char *kind : {"put_signal", "put", "get"})
        EXPECT_EQ(run("large_messages", kind, 2, {{"PEERHOP_NET_CHUNK", "4096"}}), "") << kind;
}

// ---- puts arrive with the signal after them, wherever they go and however many there are

RANK_FUNCTION(many_puts)
{
    const size_t each = 1000, count = 40;
    rank.open();
    void *memory = rank.device->alloc(each * count), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, each * count);
    for (int round = 0; round < 5; round++) {
        const bool sends = round % 2 == rank.rank;
        if (sends) {
            rank.device->fill(memory, each * count, round);
            for (size_t i = 0; i < count; i++) { // 7 and 40 have no common part: each once
                const size_t at = i * 7 % count * each;
                CHECK_OK(ph_put(channel, at, at, each, stream));
            }
            CHECK_OK(ph_put(channel, 0, 0, 0, stream)); // of nothing: takes no slot
            CHECK_OK(ph_signal(channel, stream));
        } else {
            set_value(rank, memory, each * count, 7);
            CHECK_OK(ph_wait(channel, 0, stream));
        }
        rank.synchronize(stream);
        rank.verify(memory, each * count, round, "of many puts");
        rank.barrier();
    }
    rank.close();
}

TEST_P(Staged, ManyPutsBeforeASignal)
{
    EXPECT_EQ(run("many_puts"), "");
}

// ---- all to all by groups, of messages larger than all slots: one rank's sends go on while it
// takes

RANK_FUNCTION(large_all_to_all)
{
    const size_t size = 400000;
    rank.open();
    std::vector<void *> out(rank.ranks), in(rank.ranks);
    std::vector<ph_operation> ops;
    void *stream = rank.device->stream();
    for (int peer = 0; peer < rank.ranks; peer++) {
        if (peer == rank.rank)
            continue;
        out[peer] = rank.device->alloc(size);
        in[peer] = rank.device->alloc(size);
        rank.device->fill(out[peer], size, 10 * rank.rank + peer);
        ops.push_back({1, peer, PH_ROLE_SENDER, protocol_of(rank.argument), out[peer], size});
        ops.push_back({1, peer, PH_ROLE_RECEIVER, PH_PROTOCOL_DEFAULT, in[peer], size});
    }
    std::vector<ph_channel *> channels(ops.size());
    CHECK_OK(ph_exchange(rank.context, ops.data(), ops.size(), channels.data()));
    for (int round = 0; round < 3; round++) {
        std::vector<ph_group_op> group;
        for (size_t i = 0; i < ops.size(); i++)
            group.push_back({i % 2 ? PH_GROUP_RECV : PH_GROUP_SEND, channels[i], 0, 0, size});
        CHECK_OK(ph_group(group.data(), group.size(), stream));
        rank.synchronize(stream);
        for (int peer = 0; peer < rank.ranks; peer++)
            if (peer != rank.rank) {
                rank.verify(in[peer], size, 10 * peer + rank.rank, "of all to all");
                set_value(rank, in[peer], size, 7);
            }
        rank.barrier();
    }
    rank.close();
}

TEST_P(Staged, GroupsOfMessagesLargerThanAllSlots)
{
    for (const char *protocol : {"put", "get"})
        EXPECT_EQ(run("large_all_to_all", protocol, 3, {{"PEERHOP_NET_CHUNK", "4096"}}), "")
            << protocol;
}

// ---- a group of more puts than there are slots, and a signal, at both ranks at once: no rank's
// wait is reached before its puts are over, unless they go on together

RANK_FUNCTION(puts_both_ways)
{
    const size_t each = 6000, count = rank.argument == "few" ? 20 : 150; // of two records each
    rank.open();
    void *out = rank.device->alloc(each * count), *in = rank.device->alloc(each * count);
    void *stream = rank.device->stream();
    ph_operation ops[] = {
        {1, !rank.rank, PH_ROLE_SENDER, PH_PROTOCOL_DEFAULT, out, each * count},
        {1, !rank.rank, PH_ROLE_RECEIVER, PH_PROTOCOL_DEFAULT, in, each * count},
    };
    ph_channel *channels[2];
    CHECK_OK(ph_exchange(rank.context, ops, 2, channels));
    std::vector<ph_group_op> group;
    for (size_t i = 0; i < count; i++)
        group.push_back({PH_GROUP_PUT, channels[0], i * each, i * each, each});
    // The wait's place says nothing, a signal is for the puts before it.
    group.insert(rank.rank ? group.begin() : group.end(), {PH_GROUP_WAIT, channels[1], 0, 0, 0});
    group.push_back({PH_GROUP_SIGNAL, channels[0], 0, 0, 0});
    const auto issue = [&] { CHECK_OK(ph_group(group.data(), group.size(), stream)); };
    void *graph = rank.argument == "graph" ? rank.device->capture(stream, issue) : nullptr;
    for (int round = 0; round < 3; round++) {
        rank.device->fill(out, each * count, 2 * round + rank.rank);
        set_value(rank, in, each * count, 7);
        rank.barrier();
        if (graph != nullptr)
            rank.device->launch(graph, stream);
        else
            issue();
        rank.synchronize(stream);
        rank.verify(in, each * count, 2 * round + !rank.rank, "of puts both ways");
    }
    if (graph != nullptr)
        rank.device->destroy(graph);
    rank.close();
}

TEST_P(Staged, GroupsOfMorePutsThanSlotsBothWays)
{
    for (const char *argument : {"few", "many", "graph"})
        EXPECT_EQ(run("puts_both_ways", argument, 2, {{"PEERHOP_NET_CHUNK", "4096"}}), "")
            << argument;
}

// Groups as they come: between three ranks each pair and direction has a message of some kind and
// size, or none, in another order at each rank.
RANK_FUNCTION(groups_at_random)
{
    const size_t page = 3000, most = 40 * page;
    rank.open();
    std::vector<void *> out(rank.ranks), in(rank.ranks);
    std::vector<ph_operation> ops;
    void *stream = rank.device->stream();
    for (int peer = 0; peer < rank.ranks; peer++) {
        if (peer == rank.rank)
            continue;
        const ph_protocol protocol = (rank.rank + 2 * peer) % 3 ? PH_PROTOCOL_PUT : PH_PROTOCOL_GET;
        out[peer] = rank.device->alloc(most);
        in[peer] = rank.device->alloc(most);
        ops.push_back({1, peer, PH_ROLE_SENDER, protocol, out[peer], most});
        ops.push_back({1, peer, PH_ROLE_RECEIVER, PH_PROTOCOL_DEFAULT, in[peer], most});
    }
    std::vector<ph_channel *> channels(ops.size());
    CHECK_OK(ph_exchange(rank.context, ops.data(), ops.size(), channels.data()));
    std::mt19937 job(std::stoul(rank.argument)), own(100 + rank.rank);
    for (int round = 0; round < 15; round++) {
        std::vector<std::vector<ph_group_op>> parts;
        std::vector<size_t> comes(rank.ranks);
        for (int from = 0; from < rank.ranks; from++)
            for (int to = 0; to < rank.ranks; to++) {
                const unsigned kind = job() % 4, pages = 1 + job() % 40;
                const bool sends = from == rank.rank;
                if (from == to || kind == 3 || (!sends && to != rank.rank))
                    continue;
                size_t i = 0;
                while (ops[i].peer != (sends ? to : from))
                    i++;
                ph_channel *channel = channels[i + !sends];
                const size_t size = pages * page;
                std::vector<ph_group_op> part;
                if (!sends)
                    comes[from] = size;
                if (kind == 0)
                    part = {{sends ? PH_GROUP_SEND : PH_GROUP_RECV, channel, 0, 0, size}};
                else if (!sends)
                    part = {{PH_GROUP_WAIT, channel, 0, 0, size}};
                else if (kind == 1)
                    part = {{PH_GROUP_PUT_SIGNAL, channel, 0, 0, size}};
                else
                    for (size_t at = 0; at < size; at += page)
                        part.push_back({at + page < size ? PH_GROUP_PUT : PH_GROUP_PUT_SIGNAL,
                                        channel, at, at, page});
                if (sends)
                    rank.device->fill(out[to], size, 100 * round + 10 * from + to);
                parts.push_back(part);
            }
        std::shuffle(parts.begin(), parts.end(), own);
        std::vector<ph_group_op> group;
        for (const auto &part : parts)
            group.insert(group.end(), part.begin(), part.end());
        CHECK_OK(ph_group(group.data(), group.size(), stream));
        rank.synchronize(stream);
        for (int from = 0; from < rank.ranks; from++)
            if (comes[from] > 0)
                rank.verify(in[from], comes[from], 100 * round + 10 * from + rank.rank,
                            "at random");
        rank.barrier();
    }
    rank.close();
}

TEST_P(Staged, GroupsAtRandom)
{
    for (const char *seed : {"1", "2"})
        EXPECT_EQ(run("groups_at_random", seed, 3, {{"PEERHOP_NET_CHUNK", "4096"}}), "") << seed;
}

// A ping-pong of groups, of which one rank is a recv ahead: messages larger than all slots.
RANK_FUNCTION(groups_one_recv_ahead)
{
    const size_t size = 150000;
    const int rounds = 6;
    rank.open();
    void *out = rank.device->alloc(size), *in = rank.device->alloc(rounds * size);
    void *stream = rank.device->stream();
    ph_protocol protocol = protocol_of(rank.argument);
    std::vector<ph_channel *> sends, takes;
    for (int round = 0; round < rounds; round++) { // each of a channel of its own
        ph_operation ops[] = {{uint64_t(round), !rank.rank, PH_ROLE_SENDER, protocol, out, size},
                              {uint64_t(round), !rank.rank, PH_ROLE_RECEIVER, PH_PROTOCOL_DEFAULT,
                               at(in, round * size), size}};
        ph_channel *made[2];
        CHECK_OK(ph_exchange(rank.context, ops, 2, made));
        sends.push_back(made[0]);
        takes.push_back(made[1]);
    }
    rank.device->fill(out, size, rank.rank);
    const int ahead = rank.rank;
    if (ahead) {
        CHECK_OK(ph_recv(takes[0], size, stream));
        CHECK_OK(ph_complete(takes[0], stream));
    }
    for (int round = 0; round < rounds; round++) {
        std::vector<ph_group_op> group = {{PH_GROUP_SEND, sends[round], 0, 0, size}};
        if (round + ahead < rounds)
            group.push_back({PH_GROUP_RECV, takes[round + ahead], 0, 0, size});
        CHECK_OK(ph_group(group.data(), group.size(), stream));
    }
    rank.synchronize(stream);
    for (int round = 0; round < rounds; round++)
        rank.verify(at(in, round * size), size, !rank.rank, "one recv ahead");
    rank.close();
}

TEST_P(Staged, GroupsOneRecvAhead)
{
    for (const char *protocol : {"put", "get"})
        EXPECT_EQ(run("groups_one_recv_ahead", protocol, 2, {{"PEERHOP_NET_CHUNK", "4096"}}), "")
            << protocol;
}

// Many channels both ways: what the steps that go on together cannot be is refused, and nothing of
// it is enqueued; without large messages there is no such limit.
RANK_FUNCTION(many_channels_both_ways)
{
    const size_t size = 100000, channels = rank.argument == "refused" ? 16 : 15;
    rank.open();
    std::vector<void *> out(channels), in(channels);
    std::vector<ph_operation> ops;
    void *stream = rank.device->stream();
    for (size_t i = 0; i < channels; i++) {
        out[i] = rank.device->alloc(size);
        in[i] = rank.device->alloc(size);
        rank.device->fill(out[i], size, 100 * rank.rank + i);
        ops.push_back({i, !rank.rank, PH_ROLE_SENDER, PH_PROTOCOL_DEFAULT, out[i], size});
        ops.push_back({i, !rank.rank, PH_ROLE_RECEIVER, PH_PROTOCOL_DEFAULT, in[i], size});
    }
    std::vector<ph_channel *> made(ops.size());
    CHECK_OK(ph_exchange(rank.context, ops.data(), ops.size(), made.data()));
    std::vector<ph_group_op> group;
    for (size_t i = 0; i < made.size(); i++)
        group.push_back({i % 2 ? PH_GROUP_RECV : PH_GROUP_SEND, made[i], 0, 0, size});
    if (rank.argument == "refused") {
        CHECK_RC(ph_group(group.data(), group.size(), stream), -E2BIG);
        CHECK(rank.error().find("make several groups") != std::string::npos);
        for (ph_group_op &op : group)
            op.size = 60000; // 15 records
    }
    CHECK_OK(ph_group(group.data(), group.size(), stream));
    rank.synchronize(stream);
    for (size_t i = 0; i < channels; i++)
        rank.verify(in[i], group[0].size, 100 * !rank.rank + i, "of many channels");
    rank.barrier();
    rank.close();
}

TEST_P(Staged, GroupsOfManyChannelsBothWays)
{
    for (const char *argument : {"taken", "refused"})
        EXPECT_EQ(run("many_channels_both_ways", argument, 2, {{"PEERHOP_NET_CHUNK", "4096"}}), "")
            << argument;
}

// What two ranks name in opposite orders, and more than goes on at the same time: 17 puts and more
// on one channel, signals on others.
RANK_FUNCTION(groups_in_opposite_orders)
{
    const size_t each = 100, puts = 40;
    const bool both_ways = rank.argument == "both_ways";
    const size_t signals = both_ways ? 10 : 20; // with more than 15 one way only
    rank.open();
    void *out = rank.device->alloc(each * puts), *in = rank.device->alloc(each * puts);
    void *stream = rank.device->stream();
    std::vector<ph_operation> ops;
    for (size_t i = 0; i < signals; i++) {
        ops.push_back({i, !rank.rank, PH_ROLE_SENDER, PH_PROTOCOL_DEFAULT, out, each * puts});
        ops.push_back({i, !rank.rank, PH_ROLE_RECEIVER, PH_PROTOCOL_DEFAULT, in, each * puts});
    }
    std::vector<ph_channel *> channels(ops.size());
    CHECK_OK(ph_exchange(rank.context, ops.data(), ops.size(), channels.data()));
    for (size_t round = 0; round < 8; round++) {
        const bool sends = both_ways || rank.rank == int(round % 2), takes = both_ways || !sends;
        const bool first = round / 2 % 2; // the full channel among those of the round
        const size_t full = first ? 0 : signals - 1;
        std::vector<ph_group_op> group;
        rank.device->fill(out, each * puts, 10 * round + rank.rank);
        for (size_t i = 0; sends && i < puts; i++)
            group.push_back({PH_GROUP_PUT, channels[2 * full], i * each, i * each, each});
        for (size_t i = 0; sends && i < signals; i++)
            group.push_back({PH_GROUP_SIGNAL, channels[2 * ((full + i) % signals)], 0, 0, 0});
        for (size_t i = 1; takes && i <= signals; i++) {
            const size_t at = rank.rank == 0 ? i - 1 : full + i; // the full one last
            group.push_back({PH_GROUP_WAIT, channels[2 * (at % signals) + 1], 0, 0, 0});
        }
        CHECK_OK(ph_group(group.data(), group.size(), stream));
        rank.synchronize(stream);
        if (takes)
            rank.verify(in, each * puts, 10 * round + !rank.rank, "of opposite orders");
        rank.barrier();
    }
    rank.close();
}

TEST_P(Staged, GroupsInOppositeOrders)
{
    for (const char *argument : {"one_way", "both_ways"})
        EXPECT_EQ(run("groups_in_opposite_orders", argument, 2, {{"PEERHOP_NET_CHUNK", "4096"}}),
                  "")
            << argument;
}

// ---- the pinned memory is bounded: an exchange that finds no room says so

RANK_FUNCTION(uses_up_the_slots)
{
    const size_t size = 1 << 20; // each channel: 2 lanes of 16 slots of 4 KiB and more, of 512 KiB
    rank.open({"PEERHOP_NET_STAGING=1048576", "PEERHOP_NET_CHUNK=4096"});
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    ph_role role = rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER;
    ph_channel *channel = nullptr, *last = nullptr;
    int made = 0, rc = 0;
    for (; rc == 0 && made < 10; made += rc == 0) {
        ph_operation op = {uint64_t(made), !rank.rank, role, PH_PROTOCOL_DEFAULT, memory, size};
        rc = ph_exchange(rank.context, &op, 1, &channel);
        last = rc == 0 ? channel : last;
    }
    CHECK_RC(rc, -ENOSPC);
    CHECK(rank.error().find("PEERHOP_NET_STAGING") != std::string::npos);
    CHECK(made == 3);
    // What there is goes on.
    if (rank.rank == 0) {
        rank.device->fill(memory, size, 5);
        CHECK_OK(ph_put_signal(last, 0, 0, size, stream));
    } else {
        CHECK_OK(ph_wait(last, size, stream));
    }
    rank.synchronize(stream);
    rank.verify(memory, size, 5, "of the last channel");
    rank.barrier();
    rank.close();
}

TEST_P(Staged, SlotsAreBounded)
{
    EXPECT_EQ(run("uses_up_the_slots"), "");
}

// Many streams wait, each for two channels: four blocks for each of them would be more than a
// device holds, and its other work would wait until they end.
RANK_FUNCTION(waits_on_many_streams)
{
    const size_t channels_count = 96, size = 64 << 10; // enough for the most threads of a block
    rank.open({"PEERHOP_NET_STAGING=536870912"});
    void *memory = rank.device->alloc(channels_count * size),
         *scratch = rank.device->alloc(2 * size);
    std::vector<ph_operation> ops;
    std::vector<ph_channel *> channels(channels_count);
    std::vector<void *> streams;
    for (size_t i = 0; i < channels_count; i++) {
        ops.push_back({i, !rank.rank, rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER,
                       PH_PROTOCOL_DEFAULT, at(memory, i * size), size});
        if (i % 2 == 0)
            streams.push_back(rank.rank == 0 && i > 0 ? streams[0] : rank.device->stream());
    }
    CHECK_OK(ph_exchange(rank.context, ops.data(), ops.size(), channels.data()));
    void *other = rank.device->stream();
    // A driver loads what it fills and copies with at the first use.
    move_beside(rank, other, scratch, size, 1);
    rank.device->fill(memory, channels_count * size, rank.rank == 0);
    rank.barrier();
    for (size_t i = 0; i < channels_count && rank.rank == 1; i += 2) {
        const ph_group_op waits[] = {{PH_GROUP_WAIT, channels[i], 0, 0, size},
                                     {PH_GROUP_WAIT, channels[i + 1], 0, 0, size}};
        CHECK_OK(ph_group(waits, 2, streams[i / 2]));
    }
    if (rank.rank == 1)
        move_beside(rank, other, scratch, size, 2);
    rank.barrier();
    for (size_t i = channels_count; i-- > 0 && rank.rank == 0;)
        CHECK_OK(ph_put_signal(channels[i], 0, 0, size, streams[0]));
    for (void *stream : streams)
        rank.synchronize(stream);
    rank.verify(memory, channels_count * size, 1, "on 48 streams");
    rank.barrier();
    rank.close();
}

TEST_P(Staged, ManyStreamsThatWaitLeaveRoom)
{
    EXPECT_EQ(run("waits_on_many_streams"), "");
}

// What nobody holds makes way for others, and its slots serve them.
RANK_FUNCTION(exchanges_for_ever)
{
    const size_t size = 1 << 20;
    rank.open({"PEERHOP_NET_STAGING=1048576", "PEERHOP_NET_CHUNK=4096"});
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    ph_role role = rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER;
    for (int round = 0; round < 20; round++) {
        ph_channel *channel = rank.channel(!rank.rank, round, role, memory, size);
        if (rank.rank == 0) {
            rank.device->fill(memory, size, round);
            CHECK_OK(ph_send(channel, size, stream));
        } else {
            CHECK_OK(ph_recv(channel, size, stream));
        }
        CHECK_OK(ph_complete(channel, stream));
        rank.synchronize(stream);
        rank.verify(memory, size, round, "through slots that others had");
        CHECK_OK(ph_channel_close(channel));
        rank.barrier();
    }
    CHECK(rank.counter("retired") >= 17);
    rank.close();
}

TEST_P(Staged, SlotsServeOneChannelAfterAnother)
{
    EXPECT_EQ(run("exchanges_for_ever"), "");
}

// ---- messages of channels whose buffer the sender has released: who still holds a handle may take
// them, which keeps their slots; what nobody can take any more makes way

RANK_FUNCTION(releases_what_was_not_taken)
{
    const size_t size = 1 << 20, each = 30000; // there is room for three channels
    rank.open({"PEERHOP_NET_STAGING=1048576", "PEERHOP_NET_CHUNK=4096"});
    const bool sends = rank.argument == std::to_string(rank.rank);
    const ph_role role = sends ? PH_ROLE_SENDER : PH_ROLE_RECEIVER;
    void *memory = rank.device->alloc(size), *later = rank.device->alloc(size);
    void *stream = rank.device->stream();
    ph_channel *channels[3];
    for (int i = 0; i < 3; i++)
        channels[i] = rank.channel(!rank.rank, i, role, memory, size);
    rank.device->fill(memory, size, sends ? 5 : 6);
    for (int i = 0; sends && i < 3; i++)
        CHECK_OK(ph_put_signal(channels[i], i * each, i * each, each, stream));
    rank.synchronize(stream);
    rank.barrier();
    if (sends) {
        CHECK_OK(ph_release_start(rank.context, memory, size));
        CHECK_OK(ph_release_wait(rank.context, memory, size, PH_RELEASE_DRAINED, 10000));
    }
    rank.barrier();
    CHECK_RC(ph_channel_ended(channels[0]), -ESTALE);
    if (!sends) {
        CHECK_OK(ph_wait(channels[0], each, stream));
        CHECK_RC(ph_wait(channels[0], each, stream), -ESTALE); // there was one
        rank.synchronize(stream);
        rank.verify(memory, each, 5, "of a released channel");
        CHECK_OK(ph_channel_close(channels[1])); // nobody will take its message
    }
    rank.barrier();
    for (int i = 3; i < 6; i++) {
        ph_operation op = {uint64_t(i), !rank.rank, role, PH_PROTOCOL_DEFAULT, later, size};
        ph_channel *made;
        CHECK_RC(ph_exchange(rank.context, &op, 1, &made), i < 5 ? 0 : -ENOSPC);
    }
    if (!sends) {
        CHECK_OK(ph_wait(channels[2], each, stream));
        rank.synchronize(stream);
        CHECK(rank.device->verify(at(memory, 2 * each), each, 5, 2 * each) == "");
    }
    rank.barrier();
    rank.close();
}

TEST_P(Staged, ReleasedChannelsKeepWhatMayBeTaken)
{
    for (const char *sender : {"0", "1"})
        EXPECT_EQ(run("releases_what_was_not_taken", sender), "") << sender;
}
