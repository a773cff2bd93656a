// SPDX-License-Identifier: BSD-3-Clause
// Long messages of unbound channels, by a ring: where they end in it, what stands beside them in a
// group, and a peer that comes late or not at all. The other ways run the same.
#include "e2e/unbound.h"

class UnboundLong : public UnboundSuite
{
};
INSTANTIATE_DEVICES_AND_NET(UnboundLong);

using Memories = std::vector<std::unique_ptr<Memory>>;

static void move_one(Rank &rank, ph_channel *channel, int sender, const Memory &memory,
                     void *stream)
{
    if (rank.rank == sender)
        CHECK_OK(ph_send_from(channel, memory.data, memory.size, stream));
    else
        CHECK_OK(ph_recv_into(channel, memory.data, memory.size, stream));
}

// ---- where a message ends

static const size_t mib = 1 << 20, unit = 960, row = 4 * unit, lap = 496 * row;

// One behind the other on one channel, so that laps begin anywhere; short ones, and none, between.
RANK_FUNCTION(ends_anywhere)
{
    const size_t between[] = {0, 1, 5000, mib};
    std::vector<size_t> sizes = {mib,           mib + 1,          lap - 1,        lap,
                                 lap + 1,       lap + unit,       lap + unit + 1, lap + unit + row,
                                 lap + 2 * row, lap + row + 7777, 2 * lap,        2 * lap + unit,
                                 3 * lap + 5};
    open(rank);
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    void *stream = rank.device->stream();
    Memories all;
    for (size_t i = 0; i < sizes.size(); i++) {
        all.push_back(std::make_unique<Memory>(rank, sizes[i], i % 3 * 8 + i % 2));
        all.push_back(std::make_unique<Memory>(rank, between[i % std::size(between)]));
    }
    for (size_t i = 0; rank.rank == 0 && i < all.size(); i++)
        all[i]->fill(i);
    for (const auto &memory : all)
        move_one(rank, channel, 0, *memory, stream);
    rank.synchronize(stream);
    for (size_t i = 0; i < all.size(); i++)
        all[i]->verify(i, ("message " + std::to_string(i)).c_str());
    CHECK_OK(ph_channel_status(channel));
    rank.barrier();
}

TEST_P(UnboundLong, EndsAnywhereInTheRing)
{
    run("ends_anywhere");
}

// ---- groups

// Rank 0 names both directions in a group, rank 1 one after the other. argument: "two": on two
// channels; "first": rank 1 sends first.
RANK_FUNCTION(against_call_by_call)
{
    const size_t size = 5000000;
    open(rank);
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH), *back = channel;
    if (rank.argument.find("two") != std::string::npos)
        back = unbound(rank, !rank.rank, PH_ROLE_BOTH, op_id + 1);
    void *stream = rank.device->stream();
    Memory forth(rank, size), answer(rank, size + 1);
    (rank.rank == 0 ? forth : answer).fill(3 + rank.rank);
    if (rank.rank == 0) {
        const ph_group_op group[] = {{PH_GROUP_SEND, channel, 0, 0, forth.size, forth.data},
                                     {PH_GROUP_RECV, back, 0, 0, answer.size, answer.data}};
        CHECK_OK(ph_group(group, 2, stream));
    } else if (rank.argument.find("first") != std::string::npos) {
        CHECK_OK(ph_send_from(back, answer.data, answer.size, stream));
        CHECK_OK(ph_recv_into(channel, forth.data, forth.size, stream));
    } else {
        CHECK_OK(ph_recv_into(channel, forth.data, forth.size, stream));
        CHECK_OK(ph_send_from(back, answer.data, answer.size, stream));
    }
    rank.synchronize(stream);
    forth.verify(3, "forth");
    answer.verify(4, "back");
    rank.barrier();
}

TEST_P(UnboundLong, AGroupMeetsCallsOneByOne)
{
    if (on_host() || on_net())
        GTEST_SKIP()
            << "both directions go in parts, in turns, which both ranks have to name in a group";
    for (const char *how : {"ring", "two ring", "first ring", "two first ring"}) {
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("against_call_by_call", how), "") << how;
    }
}

// More than one launch takes, named in another order at each rank.
RANK_FUNCTION(more_than_a_launch)
{
    const int each = rank.ranks == 2 ? 10 : 4; // channels with a peer, both ways
    open(rank);
    std::vector<ph_operation> ops;
    for (int peer = 0; peer < rank.ranks; peer++)
        for (int i = 0; peer != rank.rank && i < each; i++)
            ops.push_back(
                {.op_id = op_id + static_cast<uint64_t>(i), .peer = peer, .role = PH_ROLE_BOTH});
    const std::vector<ph_channel *> channels = exchange_all(rank, ops);
    void *stream = rank.device->stream();
    Memories out, in;
    std::vector<ph_group_op> group;
    const auto seed_of = [&](int from, int to, size_t i) { return 100 * from + 10 * to + i; };
    for (size_t i = 0; i < ops.size(); i++) {
        const size_t size = 1100000 + 400000 * (ops[i].op_id - op_id) + 7;
        out.push_back(std::make_unique<Memory>(rank, size));
        in.push_back(std::make_unique<Memory>(rank, size));
        out.back()->fill(seed_of(rank.rank, ops[i].peer, ops[i].op_id));
        group.push_back({PH_GROUP_SEND, channels[i], 0, 0, size, out.back()->data});
        group.push_back({PH_GROUP_RECV, channels[i], 0, 0, size, in.back()->data});
    }
    if (rank.rank == 1)
        std::reverse(group.begin(), group.end());
    if (rank.rank == 2)
        std::rotate(group.begin(), group.begin() + 5, group.end());
    for (int round = 0; round < 2; round++) {
        CHECK_OK(ph_group(group.data(), group.size(), stream));
        rank.synchronize(stream);
        for (size_t i = 0; i < in.size(); i++)
            in[i]->verify(seed_of(ops[i].peer, rank.rank, ops[i].op_id), "of a large group");
    }
    rank.barrier();
}

TEST_P(UnboundLong, MoreInAGroupThanALaunchTakes)
{
    for (const int ranks : {2, 3})
        run("more_than_a_launch", ranks);
}

// ---- graphs

RANK_FUNCTION(replayed_and_eager)
{
    open(rank);
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    void *stream = rank.device->stream();
    Memory forth(rank, 3 * lap + 11), back(rank, 2 * mib), eager(rank, lap + 5);
    void *graph = rank.device->capture(stream, [&] {
        move_one(rank, channel, 0, forth, stream);
        move_one(rank, channel, 1, back, stream);
    });
    for (uint64_t i = 0; i < 5; i++) {
        (rank.rank ? back : forth).fill(10 + i);
        if (rank.rank == 0)
            eager.fill(20 + i);
        rank.device->launch(graph, stream);
        move_one(rank, channel, 0, eager, stream);
        rank.synchronize(stream);
        (rank.rank ? forth : back).verify(10 + i, "replayed");
        eager.verify(20 + i, "between replays");
    }
    rank.device->destroy(graph);
    rank.barrier();
}

TEST_P(UnboundLong, InGraphsAndBesideThem)
{
    if (on_host())
        GTEST_SKIP() << "no graphs";
    run("replayed_and_eager");
}

// ---- a peer that comes late, or not

// argument: who is late.
RANK_FUNCTION(comes_late)
{
    open(rank);
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    void *stream = rank.device->stream();
    const bool late = rank.argument.find("late " + std::to_string(rank.rank)) != std::string::npos;
    Memory first(rank, 7000003), second(rank, 2 * mib);
    for (uint64_t i = 0; i < 3; i++) {
        if (rank.rank == 0) {
            first.fill(i);
            second.fill(10 + i);
        }
        rank.barrier();
        if (late)
            sleep_ms(100);
        move_one(rank, channel, 0, first, stream);
        if (late)
            sleep_ms(20);
        move_one(rank, channel, 0, second, stream);
        rank.synchronize(stream);
        first.verify(i, "of who is late");
        second.verify(10 + i, "behind it");
    }
    rank.barrier();
}

TEST_P(UnboundLong, WaitsForAPeerThatIsLate)
{
    for (const char *who : {"late 0", "late 1"})
        run("comes_late", 2, who);
}

// What only one rank has named is aborted by it, or by the other one; then the operation is
// exchanged again. argument: which rank names it, and which one aborts.
RANK_FUNCTION(is_aborted)
{
    const bool names =
        rank.argument.find("names " + std::to_string(rank.rank)) != std::string::npos;
    const bool aborts =
        rank.argument.find("aborts " + std::to_string(rank.rank)) != std::string::npos;
    open(rank);
    ph_channel *channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    ph_channel *other = unbound(rank, !rank.rank, PH_ROLE_BOTH, op_id + 1);
    void *stream = rank.device->stream();
    Memory memory(rank, 9000000);
    memory.fill(rank.rank ? 1 : 5);
    if (names)
        move_one(rank, channel, 0, memory, stream);
    rank.barrier();
    sleep_ms(50);
    if (aborts)
        CHECK_OK(ph_channel_abort(channel, "nobody comes"));
    rank.synchronize(stream); // it goes on
    CHECK_RC(end_of(channel), PH_EABORTED);
    stays_good(rank, other, stream);
    rank.barrier();
    channel = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    move_one(rank, channel, 0, memory, stream);
    rank.synchronize(stream);
    memory.verify(5, "by a new channel");
    CHECK_OK(ph_channel_status(channel));
    rank.barrier();
}

TEST_P(UnboundLong, EndsAlone)
{
    for (const char *names : {"names 0", "names 1"})
        for (const char *aborts : {" aborts 0", " aborts 1"})
            run("is_aborted", 2, std::string(names) + aborts);
}

// Of two channels in one group one has messages of two sizes, all of them long.
RANK_FUNCTION(differs)
{
    open(rank);
    ph_channel *wrong = unbound(rank, !rank.rank, PH_ROLE_BOTH);
    ph_channel *right = unbound(rank, !rank.rank, PH_ROLE_BOTH, op_id + 1);
    void *stream = rank.device->stream();
    Memory of_wrong(rank, 3000000), of_right(rank, 8000000);
    of_right.fill(rank.rank ? 1 : 6);
    const ph_group_kind kind = rank.rank ? PH_GROUP_RECV : PH_GROUP_SEND;
    const ph_group_op group[] = {
        {kind, wrong, 0, 0, of_wrong.size - static_cast<size_t>(rank.rank), of_wrong.data},
        {kind, right, 0, 0, of_right.size, of_right.data}};
    CHECK_OK(ph_group(group, 2, stream));
    rank.synchronize(stream);
    of_right.verify(6, "beside one of two sizes");
    CHECK_RC(end_of(wrong), PH_EMISMATCH);
    CHECK_OK(ph_channel_status(right));
    stays_good(rank, right, stream);
    rank.barrier();
}

TEST_P(UnboundLong, SizesThatDifferEndOneChannelOfAGroup)
{
    run("differs");
}

// ---- many at once

// Streams that send and streams that receive, more than have places for the hands of all: hands
// that wait for rows keep theirs, and each message that has begun has a block at either end.
// argument: behind the way, how many of either kind.
RANK_FUNCTION(many_streams)
{
    const int n = atoi(rank.argument.c_str() + rank.argument.find(' '));
    open(rank);
    std::vector<ph_operation> ops;
    for (int i = 0; i < n; i++)
        ops.push_back(operation(op_id + i, !rank.rank, PH_ROLE_BOTH, nullptr, 0));
    const std::vector<ph_channel *> channels = exchange_all(rank, ops);
    Memories out, in;
    std::vector<void *> streams;
    for (int i = 0; i < 2 * n; i++)
        streams.push_back(rank.device->stream());
    for (int i = 0; i < n; i++) {
        out.push_back(std::make_unique<Memory>(rank, 8 * mib));
        in.push_back(std::make_unique<Memory>(rank, 8 * mib));
        out.back()->fill(10 * rank.rank + i);
    }
    rank.barrier();
    for (int i = 0; i < n; i++)
        CHECK_OK(ph_recv_into(channels[i], in[i]->data, in[i]->size, streams[i]));
    for (int i = 0; i < n; i++)
        CHECK_OK(ph_send_from(channels[i], out[i]->data, out[i]->size, streams[n + i]));
    for (void *stream : streams)
        rank.synchronize(stream);
    for (int i = 0; i < n; i++)
        in[i]->verify(10 * !rank.rank + i, "of many streams");
    rank.barrier();
}

TEST_P(UnboundLong, OfMoreStreamsThanHavePlaces)
{
    if (on_host())
        GTEST_SKIP() << "host memory has no multiprocessors";
    const struct {
        const char *multiprocessors, *argument;
    } cases[] = {{"132", "ring 22"}, {"1", "ring 1"}, {"8", "ring 8"}};
    for (const auto &c : cases) {
        if (GetParam() == "gpu" && &c != cases)
            break; // it has as many as it has
        Job job(GetParam(), 2);
        job.environment("PEERHOP_STANDIN_MULTIPROCESSORS", c.multiprocessors);
        EXPECT_EQ(job.run("many_streams", c.argument), "") << c.multiprocessors;
    }
}
