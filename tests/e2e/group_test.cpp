// SPDX-License-Identifier: BSD-3-Clause
// Groups: whatever the order inside them, matching groups do not deadlock, and every byte arrives.
#include <cerrno>
#include <cstring>

#include "e2e/bytes.h"
#include "e2e/exchanging.h"

class Group : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_ALL_NETS(Group);

// ---- rings and all-to-all

RANK_FUNCTION(group_ring)
{
    const size_t size = 40003;
    const int rounds = 32;
    rank.open();
    ph_protocol protocol = protocol_of(rank.argument);
    int next = (rank.rank + 1) % rank.ranks, last = (rank.rank + rank.ranks - 1) % rank.ranks;
    void *out = rank.device->alloc(size), *in = rank.device->alloc(size);
    void *table = rank.device->alloc(rounds * size), *log = rank.device->alloc(rounds * size);
    void *stream = rank.device->stream();
    ph_operation ops[] = {{1, next, PH_ROLE_SENDER, protocol, out, size},
                          {1, last, PH_ROLE_RECEIVER, PH_PROTOCOL_DEFAULT, in, size}};
    ph_channel *channels[2];
    CHECK_OK(ph_exchange(rank.context, ops, 2, channels));
    rank.device->fill(table, rounds * size, rank.rank);
    // Without a look at the host: each round's data is put and taken by the stream.
    for (int round = 0; round < rounds; round++) {
        ph_group_op group[] = {{PH_GROUP_SEND, channels[0], 0, 0, size},
                               {PH_GROUP_RECV, channels[1], 0, 0, size}};
        rank.device->copy(stream, out, at(table, round * size), size);
        if (round % 2) // the order inside a group means nothing
            std::swap(group[0], group[1]);
        CHECK_OK(ph_group(group, 2, stream));
        rank.device->copy(stream, at(log, round * size), in, size);
    }
    rank.synchronize(stream);
    rank.verify(log, rounds * size, last, "from the rank before");
}

TEST_P(Group, Ring)
{
    for (const char *protocol : {"put", "get"}) {
        Job job(GetParam(), 4);
        EXPECT_EQ(job.run("group_ring", protocol), "") << protocol;
    }
}

RANK_FUNCTION(all_to_all)
{
    const size_t size = 20001;
    rank.open();
    std::vector<void *> out(rank.ranks), in(rank.ranks);
    std::vector<Pair> pairs;
    std::vector<int> peers;
    void *stream = rank.device->stream();
    for (int peer = 0; peer < rank.ranks; peer++) {
        out[peer] = rank.device->alloc(size);
        in[peer] = rank.device->alloc(size);
    }
    // In the order of the pairs, so that exchanges do not cross.
    for (int a = 0; a < rank.ranks; a++) {
        for (int b = a + 1; b < rank.ranks; b++) {
            if (a != rank.rank && b != rank.rank)
                continue;
            int peer = a + b - rank.rank;
            peers.push_back(peer);
            pairs.emplace_back(rank, peer, 1, peer % 2 ? PH_PROTOCOL_PUT : PH_PROTOCOL_GET,
                               out[peer], in[peer], size);
        }
    }
    for (int round = 0; round < 10; round++) {
        std::vector<ph_group_op> group;
        for (size_t i = 0; i < peers.size(); i++) {
            rank.device->fill(out[peers[i]], size, round * 100 + rank.rank * 10 + peers[i]);
            group.push_back({PH_GROUP_SEND, pairs[i].to, 0, 0, size});
            group.push_back({PH_GROUP_RECV, pairs[i].from, 0, 0, size});
        }
        std::rotate(group.begin(), group.begin() + (rank.rank + round) % int(group.size()),
                    group.end());
        CHECK_OK(ph_group(group.data(), group.size(), stream));
        rank.synchronize(stream);
        for (int peer : peers)
            rank.verify(in[peer], size, round * 100 + peer * 10 + rank.rank, "all to all");
    }
}

TEST_P(Group, AllToAll)
{
    Job job(GetParam(), 4);
    EXPECT_EQ(job.run("all_to_all"), "");
}

// ---- both ranks begin with the end that copies

RANK_FUNCTION(active_first)
{
    const size_t size = 10000;
    rank.open({"PEERHOP_LL_MAX=0"}); // a send by ll waits for nobody
    ph_protocol protocol = protocol_of(rank.argument);
    void *out = rank.device->alloc(size), *in = rank.device->alloc(size);
    void *stream = rank.device->stream(), *other = rank.device->stream();
    Pair pair(rank, !rank.rank, 1, protocol, out, in, size);
    auto active = [&](void *on) {
        return protocol == PH_PROTOCOL_PUT ? ph_send(pair.to, size, on)
                                           : ph_recv(pair.from, size, on);
    };
    auto passive = [&](void *on) {
        return protocol == PH_PROTOCOL_PUT ? ph_recv(pair.from, size, on)
                                           : ph_send(pair.to, size, on);
    };
    ph_channel *completes = protocol == PH_PROTOCOL_PUT ? pair.from : pair.to;
    rank.device->fill(out, size, rank.rank);
    // Plain calls: what would help the peer stands behind what waits for the peer.
    // Only what is staged is sent into slots.
    const bool waits = !rank.staged() || protocol == PH_PROTOCOL_GET;
    CHECK_OK(active(stream));
    if (waits)
        CHECK(!rank.device->synchronize(stream, 200));
    else
        rank.synchronize(stream);
    if (rank.device->host())
        CHECK(rank.error().find("'ready'") != std::string::npos);
    rank.barrier();
    CHECK(rank.device->synchronize(stream, 1) == !waits);
    rank.barrier();
    CHECK_OK(passive(other)); // the way out: another stream
    CHECK_OK(ph_complete(completes, other));
    rank.synchronize(other);
    rank.synchronize(stream);
    rank.verify(in, size, !rank.rank, "after the way out");
    rank.barrier();

    for (int round = 0; round < 20; round++) {
        ph_group_op group[] = {{PH_GROUP_SEND, pair.to, 0, 0, size},
                               {PH_GROUP_RECV, pair.from, 0, 0, size}};
        if (protocol == PH_PROTOCOL_GET)
            std::swap(group[0], group[1]);
        rank.device->fill(out, size, 10 + round + rank.rank);
        CHECK_OK(ph_group(group, 2, stream));
        rank.synchronize(stream);
        rank.verify(in, size, 10 + round + !rank.rank, "by groups");
        rank.barrier();
    }
}

TEST_P(Group, ActiveEndsFirst)
{
    for (const char *protocol : {"put", "get"}) {
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("active_first", protocol), "") << protocol;
    }
}

// Rank 1 answers: its group sends the answer to one message and receives the next.
RANK_FUNCTION(shifted)
{
    const size_t size = 3000;
    const int rounds = 60;
    rank.open();
    void *out = rank.device->alloc(size), *in = rank.device->alloc(size);
    void *table = rank.device->alloc(rounds * size), *log = rank.device->alloc(rounds * size);
    void *stream = rank.device->stream();
    Pair pair(rank, !rank.rank, 1, protocol_of(rank.argument), out, in, size);
    ph_group_op send = {PH_GROUP_SEND, pair.to, 0, 0, size},
                recv = {PH_GROUP_RECV, pair.from, 0, 0, size};
    ph_group_op both[] = {send, recv};
    rank.device->fill(table, rounds * size, 5);
    if (rank.rank == 1)
        CHECK_OK(ph_group(&recv, 1, stream));
    for (int round = 0; round < rounds; round++) {
        rank.device->copy(stream, out, rank.rank ? in : at(table, round * size), size);
        CHECK_OK(ph_group(both, rank.rank == 1 && round == rounds - 1 ? 1 : 2, stream));
        if (rank.rank == 0)
            rank.device->copy(stream, at(log, round * size), in, size);
    }
    rank.synchronize(stream);
    if (rank.rank == 0)
        rank.verify(log, rounds * size, 5, "to the peer and back");
}

TEST_P(Group, LoopsShiftedByOneRecv)
{
    for (const char *protocol : {"put", "get"}) {
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("shifted", protocol), "") << protocol;
    }
}

// ---- mixed operations

RANK_FUNCTION(mixed)
{
    const size_t half = 30000, size = 2 * half; // of each buffer: what goes out, and what comes in
    enum { PUT, PUT_SIGNAL, SIGNAL, GET, SEND, COUNT };
    rank.open();
    void *stream = rank.device->stream();
    void *buffers[COUNT];
    ph_operation ops[COUNT];
    ph_channel *channels[COUNT];
    for (int i = 0; i < COUNT; i++) {
        buffers[i] = rank.device->alloc(size);
        ops[i] = {uint64_t(i),  !rank.rank,
                  PH_ROLE_BOTH, rank.rank ? PH_PROTOCOL_GET : PH_PROTOCOL_PUT,
                  buffers[i],   size};
    }
    CHECK_OK(ph_exchange(rank.context, ops, COUNT, channels));
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < COUNT; i++)
            rank.device->fill(buffers[i], half, round * 100 + rank.rank * 10 + i);
        rank.barrier();
        std::vector<ph_group_op> group = {
            {PH_GROUP_WAIT, channels[PUT_SIGNAL], 0, 0, half},
            {PH_GROUP_PUT, channels[PUT], half, 0, 1},
            {PH_GROUP_PUT, channels[PUT], half + 1, 1, 10000},
            {PH_GROUP_PUT, channels[PUT], half + 10001, 10001, half - 10001},
            {PH_GROUP_WAIT, channels[SIGNAL], 0, 0, 0},
            {PH_GROUP_GET, channels[GET], 0, half, half},
            {PH_GROUP_RECV, channels[SEND], 0, 0,
             0}, // both directions begin where the buffers begin: no bytes
            {PH_GROUP_SEND, channels[SEND], 0, 0, 0},
            {PH_GROUP_SIGNAL, channels[SIGNAL], 0, 0, 0},
            {PH_GROUP_PUT_SIGNAL, channels[PUT_SIGNAL], half, 0, half},
        };
        if (rank.staged()) // no gets
            group.erase(group.begin() + 5);
        std::rotate(group.begin(), group.begin() + (round + 3 * rank.rank) % int(group.size()),
                    group.end());
        CHECK_OK(ph_group(group.data(), group.size(), stream));
        CHECK_OK(ph_signal(channels[PUT], stream)); // plain puts tell nobody
        CHECK_OK(ph_wait(channels[PUT], 0, stream));
        rank.synchronize(stream);
        for (int i : {PUT, PUT_SIGNAL, GET})
            if (i != GET || !rank.staged())
                rank.verify(at(buffers[i], half), half, round * 100 + !rank.rank * 10 + i, "mixed");
        rank.barrier();
    }
}

TEST_P(Group, MixedOperations)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("mixed"), "");
}

// ---- pages: many small puts or gets on one channel, by one call

RANK_FUNCTION(pages)
{
    const bool put = rank.argument == "put";
    const size_t page = 4099, n = 200, size = n * page;
    rank.open();
    void *memory = rank.device->alloc(size);
    void *stream = rank.device->stream();
    ph_channel *channel =
        rank.channel(!rank.rank, 1, rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER, memory, size);
    std::vector<ph_group_op> group;
    for (size_t i = 0; i < n; i++) // in another order than they lie in memory
        group.push_back({put ? PH_GROUP_PUT : PH_GROUP_GET, channel, i * 77 % n * page,
                         i * 77 % n * page, page});
    for (int round = 0; round < 3; round++) {
        rank.device->fill(memory, size, 2 * round + rank.rank);
        rank.barrier();
        if (rank.rank == !put) {
            CHECK_OK(ph_group(group.data(), group.size(), stream));
            rank.synchronize(stream);
        }
        rank.barrier();
        if (rank.rank == 1)
            rank.verify(memory, size, 2 * round, "pages");
        rank.barrier();
    }
    rank.close();
}

TEST_P(Group, Pages)
{
    if (is_staged())
        GTEST_SKIP() << "staged, puts arrive with a wait, and gets are refused";
    for (const char *what : {"put", "get"}) {
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("pages", what), "") << what;
    }
}

// ---- pieces of many sizes: what goes by one launch, by the copy engine, or alone

RANK_FUNCTION(pieces)
{
    const auto has = [&](const char *word) {
        return rank.argument.find(word) != std::string::npos;
    };
    const bool put = !has("get");
    // 43 MiB, then 2 MiB.
    const size_t large[] = {1, 600001, 300, 40, 5 << 20, (33 << 20) + 1, 17, 4000000},
                 small[] = {700003, 1, 524288, 524289, 16, 100000, 300000};
    std::vector<size_t> sizes(std::begin(large), std::end(large));
    if (has("some"))
        sizes.assign(std::begin(small), std::end(small));
    size_t size = 0;
    std::vector<ph_group_op> group;
    rank.open({has("ce") ? "PEERHOP_METHOD=ce" : "PEERHOP_METHOD=auto"});
    for (size_t each : sizes) {
        group.push_back({put ? PH_GROUP_PUT : PH_GROUP_GET, nullptr, size, size, each});
        size += each;
    }
    // The two ends are not aligned alike in half of the ways.
    void *memory = at(rank.device->alloc(size + 1), has("askew") && rank.rank ? 1 : 0);
    void *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size);
    for (ph_group_op &op : group)
        op.channel = channel;
    const bool gives = rank.rank == !put;
    const auto give = [&] {
        if (has("behind"))
            CHECK_OK(ph_wait(channel, 0, stream));
        CHECK_OK(ph_group(group.data(), group.size(), stream));
    };
    void *graph = gives && has("graph") ? rank.device->capture(stream, give) : nullptr;
    for (int round = 0; round < 2; round++) {
        rank.device->fill(memory, size, 2 * round + rank.rank);
        rank.barrier();
        if (gives && graph)
            rank.device->launch(graph, stream);
        else if (gives)
            give();
        rank.barrier(); // it waits by now
        if (!gives && has("behind"))
            CHECK_OK(ph_signal(channel, stream));
        rank.synchronize(stream);
        rank.barrier();
        if (rank.rank == 1)
            rank.verify(memory, size, 2 * round, "pieces");
        rank.barrier();
    }
    if (graph)
        rank.device->destroy(graph);
    rank.close();
}

TEST_P(Group, PiecesOfManySizes)
{
    if (is_staged())
        GTEST_SKIP() << "staged, puts arrive with a wait, and gets are refused";
    const bool net = GetParam() == "hostnet" || GetParam() == "standinhmem";
    for (const char *how : {"put", "get askew", "put behind", "get behind askew", "put graph",
                            "put graph behind askew", "put some askew", "get some behind",
                            "put some graph", "put ce askew", "get ce behind"}) {
        if (net && !strstr(how, "some"))
            continue; // there each is a move of its own, whatever its size
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("pieces", how), "");
    }
}

// ---- pages and the signal that ends them, by one call

RANK_FUNCTION(pages_and_signal)
{
    const bool large = rank.argument.find("large") != std::string::npos;
    const bool huge = rank.argument.find("huge") != std::string::npos;
    const size_t page = huge    ? 600000
                        : large ? 100000
                                : 8192 + 16,
                 n = huge    ? 20
                     : large ? 100
                             : 60;
    const size_t size = n * page;
    const int rounds = 20;
    if (rank.argument.find(" ce") != std::string::npos)
        rank.open({"PEERHOP_METHOD=ce"}); // together, where the driver takes them so
    else
        rank.open();
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(size), *table = rank.device->alloc(rounds * page);
    void *log = rank.device->alloc(rounds * n * 8);
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size);
    rank.device->fill(table, rounds * page, 1);
    std::vector<ph_group_op> group;
    for (size_t i = 0; i < n; i++)
        group.push_back({PH_GROUP_PUT, channel, i * page, i * page, page});
    group.push_back({PH_GROUP_SIGNAL, channel, 0, 0, 0});
    auto give = [&] { CHECK_OK(ph_group(group.data(), group.size(), stream)); };
    const bool replays = rank.argument.find("graph") != std::string::npos;
    void *graph = replays ? rank.device->capture(stream, give) : nullptr;
    for (int round = 0; round < rounds; round++) {
        const char *source = static_cast<const char *>(table) + round * page;
        if (rank.rank == 1) {
            CHECK_OK(ph_wait(channel, 0, stream));
            for (size_t i = 0; i < n; i++) // the last bytes of each page
                rank.device->copy(stream, static_cast<char *>(log) + (round * n + i) * 8,
                                  static_cast<char *>(memory) + (i + 1) * page - 8, 8);
            CHECK_OK(ph_signal(channel, stream));
            continue;
        }
        for (size_t i = 0; i < n; i++)
            rank.device->copy(stream, static_cast<char *>(memory) + i * page, source, page);
        if (graph)
            rank.device->launch(graph, stream);
        else
            give();
        CHECK_OK(ph_wait(channel, 0, stream));
    }
    rank.synchronize(stream);
    for (int round = 0; rank.rank == 1 && round < rounds; round++)
        for (size_t i = 0; i < n; i++) {
            const std::string wrong = rank.device->verify(
                static_cast<char *>(log) + (round * n + i) * 8, 8, 1, (round + 1) * page - 8);
            CHECK(wrong.empty());
        }
    if (graph)
        rank.device->destroy(graph);
    rank.close();
}

TEST_P(Group, PagesAndASignal)
{
    if (is_staged())
        GTEST_SKIP() << "staged, puts arrive with a wait";
    for (const char *how : {"stream", "stream large", "stream huge", "stream large ce", "graph",
                            "graph large", "graph huge", "graph ce"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("pages_and_signal", how), "");
    }
}

// ---- many operations: several batches, and more memory operations than one call of the driver
// takes (trap 15)

static const int MANY = 300;

RANK_FUNCTION(many)
{
    const size_t each = 129;
    ph_group_kind out_kind = rank.argument == "signal" ? PH_GROUP_SIGNAL : PH_GROUP_SEND;
    ph_group_kind in_kind = rank.argument == "signal" ? PH_GROUP_WAIT : PH_GROUP_RECV;
    size_t moved = rank.argument == "put" || rank.argument == "get" ? each : 0;
    rank.open();
    void *memory = rank.device->alloc(MANY * each);
    void *stream = rank.device->stream();
    std::vector<ph_operation> ops;
    std::vector<ph_group_op> group;
    std::vector<ph_channel *> channels(MANY);
    for (int i = 0; i < MANY; i++)
        ops.push_back({uint64_t(i), !rank.rank, rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER,
                       protocol_of(rank.argument), at(memory, i * each), each});
    CHECK_OK(ph_exchange(rank.context, ops.data(), ops.size(), channels.data()));
    CHECK(rank.counter("imports") == 1);
    for (int i = 0; i < MANY; i++)
        group.push_back(
            {rank.rank ? in_kind : out_kind, channels[rank.rank ? i : MANY - 1 - i], 0, 0, moved});
    for (int round = 0; round < 5; round++) {
        rank.device->fill(memory, MANY * each, 10 * round + rank.rank);
        rank.barrier();
        CHECK_OK(ph_group(group.data(), group.size(), stream));
        rank.synchronize(stream);
        if (rank.rank == 1)
            rank.verify(memory, MANY * each, 10 * round + (moved ? 0 : 1), "300 operations");
        rank.barrier();
    }
    CHECK(rank.counter("in_flight") == 0 || !rank.device->host());
}

TEST_P(Group, ManyOperations)
{
    for (const char *what : {"put", "get", "nothing", "signal"}) {
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("many", what), "") << what;
    }
}

// ---- what is refused

static void refuse(Rank &rank, std::vector<ph_group_op> group, int expected, const char *sentence)
{
    int rc = ph_group(group.data(), group.size(), nullptr);
    if (rc != expected || rank.error().find(sentence) == std::string::npos)
        rank_failed(__FILE__, __LINE__,
                    std::string(sentence) + ": " + ph_strerror(rc) + ": " + rank.error());
}

RANK_FUNCTION(refused)
{
    const size_t size = 1000;
    rank.open();
    void *stream = rank.device->stream();
    void *one = rank.device->alloc(size), *two = rank.device->alloc(size);
    ph_operation ops[] = {
        {1, !rank.rank, PH_ROLE_BOTH, PH_PROTOCOL_PUT, one, size},
        {2, !rank.rank, rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER, PH_PROTOCOL_PUT, two, size}};
    ph_channel *channels[2];
    CHECK_OK(ph_exchange(rank.context, ops, 2, channels));
    ph_channel *both = channels[0], *way = channels[1];
    ph_group_kind wrong = rank.rank ? PH_GROUP_PUT : PH_GROUP_GET;
    ph_group_op good = {PH_GROUP_SIGNAL, both, 0, 0, 0};

    for (ph_group_op op :
         {ph_group_op{PH_GROUP_SEND, both, 0, 0, 10}, ph_group_op{PH_GROUP_RECV, both, 0, 0, 10},
          ph_group_op{PH_GROUP_PUT_SIGNAL, both, 0, 0, 10},
          ph_group_op{PH_GROUP_WAIT, both, 0, 0, 0}})
        refuse(rank, {op, {PH_GROUP_PUT, both, 0, 0, 10}, op}, -EINVAL,
               "two messages of one kind on operation 1");
    refuse(rank, {good, {PH_GROUP_PUT_SIGNAL, both, 0, 0, 10}}, -EINVAL,
           "two messages of one kind");
    refuse(rank, {good, {wrong, way, 0, 0, 1}}, -EINVAL, "this rank is not the");
    refuse(rank, {good, {PH_GROUP_PUT, both, 1, 0, size}}, -EINVAL, "do not fit");
    refuse(rank, {good, {PH_GROUP_GET, both, 0, SIZE_MAX, 2}}, -EINVAL, "do not fit");
    refuse(rank, {good, {PH_GROUP_SEND, both, 0, 0, size + 1}}, -EINVAL, "do not fit");
    refuse(rank, {good, {PH_GROUP_PUT, nullptr, 0, 0, 0}}, -EINVAL, "kind 3 on no channel");
    CHECK_RC(ph_group(nullptr, 1, stream), -EINVAL);
    CHECK_OK(ph_group(nullptr, 0, stream));
    ph_group_op bad[] = {
        good, {PH_GROUP_PUT, nullptr, 0, 0, 0}, {ph_group_kind(0), both, 0, 0, 0}, good};
    const int no_kind = 99;
    memcpy(&bad[3].kind, &no_kind, sizeof no_kind);
    for (int i = 1; i < 4; i++) {
        std::swap(bad[1], bad[i]);
        CHECK_RC(ph_group(bad, 2, stream), -EINVAL);
        CHECK_RC(ph_group(bad + 1, 1, stream), -EINVAL);
    }
    CHECK(rank.counter("ipc_operations") == 0 && rank.counter("in_flight") == 0);
    rank.barrier();

    // A post outside, not completed yet, stands in the way of one inside.
    // Of no bytes: the buffer is that of both ways.
    CHECK_OK(ph_recv(both, 0, stream));
    refuse(rank, {{PH_GROUP_RECV, both, 0, 0, 0}}, -EALREADY, "post without its complete");
    CHECK_OK(ph_send(both, 0, stream));
    CHECK_OK(ph_complete(both, stream));
    ph_group_op again[] = {{PH_GROUP_SEND, both, 0, 0, 0}, {PH_GROUP_RECV, both, 0, 0, 0}};
    CHECK_OK(ph_group(again, 2, stream));
    rank.synchronize(stream);
}

TEST_P(Group, RefusedGroupsEnqueueNothing)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("refused"), "");
}

// ---- what a peer sent before it left

static bool left(Rank &rank, int peer)
{
    struct ph_peer_report report = {};
    Stopwatch watch;
    while (report.state != PH_PEER_GONE && watch.ms() < patience(20000).count()) {
        sleep_ms(1);
        CHECK_OK(ph_context_peer(rank.context, peer, &report, sizeof report));
    }
    return report.state == PH_PEER_GONE;
}

// Rank 0 sends what needs nobody, and leaves; rank 1 takes it in a group with a send to rank 2.
RANK_FUNCTION(sends_and_leaves)
{
    // By ll where the devices can, or by sm; into slots where staged.
    const bool large = rank.argument.find("large") != std::string::npos;
    const size_t size = large ? 100000 : 1000;
    rank.open(rank.argument.find("lines") != std::string::npos
                  ? std::vector<std::string>{Rank::wide()}
                  : std::vector<std::string>{});
    const ph_protocol protocol = protocol_of(rank.argument.substr(0, rank.argument.find(' ')));
    void *stream = rank.device->stream();
    void *memory[3];
    ph_channel *send = nullptr, *signal = nullptr, *on = nullptr;
    bool alone = false; // a send waits for nobody
    for (void *&one : memory)
        one = rank.device->alloc(size);
    if (rank.rank < 2) {
        const ph_role role = rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER;
        ph_operation ops[] = {{1, !rank.rank, role, protocol, memory[0], size},
                              {2, !rank.rank, role, protocol, memory[1], size}};
        ph_channel *channels[2];
        CHECK_OK(ph_exchange(rank.context, ops, 2, channels));
        send = channels[0], signal = channels[1];
        alone = rank.sends_alone(send, rank.rank == 0, size);
        if (rank.argument.find("lines") != std::string::npos && rank.by_flags(send, rank.rank == 0))
            CHECK(alone);
    }
    if (rank.rank > 0)
        on = rank.channel(3 - rank.rank, 3, rank.rank == 2 ? PH_ROLE_RECEIVER : PH_ROLE_SENDER,
                          memory[2], size, protocol);
    if (rank.rank == 0) {
        rank.device->fill(memory[0], size, 1);
        rank.device->fill(memory[1], size, 2);
        CHECK_OK(ph_put_signal(signal, 0, 0, size, stream));
        if (alone)
            CHECK_OK(ph_send(send, size, stream));
        rank.synchronize(stream);
        rank.close();
        return;
    }
    if (rank.rank == 1) {
        rank.device->fill(memory[2], size, 3);
        CHECK(left(rank, 0));
        std::vector<ph_group_op> group = {{PH_GROUP_WAIT, signal, 0, 0, size},
                                          {PH_GROUP_SEND, on, 0, 0, size}};
        if (alone)
            group.push_back({PH_GROUP_RECV, send, 0, 0, size});
        else
            refuse(rank, {group[0], group[1], {PH_GROUP_RECV, send, 0, 0, size}}, PH_EPEER,
                   "operation 1 with rank 0");
        refuse(rank, {group[0], group[1], {PH_GROUP_PUT, on, 0, 0, size + 1}}, -EINVAL,
               "do not fit");
        rank.device->slow_fill(stream, rank.device->alloc(size), size, 0, 100000);
        CHECK_OK(ph_group(group.data(), group.size(), stream));
        // It is taken once, also where the stream has not come to it.
        refuse(rank, {group[1], group[0]}, PH_EPEER, "operation 2 with rank 0");
        rank.synchronize(stream);
        rank.verify(memory[1], size, 2, "put before it left");
        if (alone)
            rank.verify(memory[0], size, 1, "sent before it left");
        rank.device->fill(memory[2], size, 4);
        CHECK_OK(ph_send(on, size, stream));
        CHECK_OK(ph_complete(on, stream));
        rank.synchronize(stream);
    }
    for (int round = 0; rank.rank == 2 && round < 2; round++) {
        CHECK_OK(ph_recv(on, size, stream));
        CHECK_OK(ph_complete(on, stream));
        rank.synchronize(stream);
        rank.verify(memory[2], size, 3 + round, "sent by who took it");
    }
}

// What a peer has left of a message is not all of it: here by a message that was shorter.
RANK_FUNCTION(sends_a_part_and_leaves)
{
    const size_t size = 100000, part = 8192;
    rank.open({Rank::wide()});
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    ph_channel *channel =
        rank.channel(!rank.rank, 1, rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER, memory, size);
    if (!rank.by_flags(channel, rank.rank == 0)) {
        rank.shared->text[0][0] = '1';
        return;
    }
    CHECK(rank.sends_alone(channel, rank.rank == 0, size));
    if (rank.rank == 0) {
        rank.device->fill(memory, part, 5);
        CHECK_OK(ph_send(channel, part, stream));
        rank.synchronize(stream);
        rank.close();
        return;
    }
    CHECK(left(rank, 0));
    CHECK_RC(ph_recv(channel, size, stream), PH_EPEER);
    CHECK_OK(ph_recv(channel, part, stream));
    CHECK_OK(ph_complete(channel, stream));
    rank.synchronize(stream);
    rank.verify(memory, part, 5, "sent before it left");
}

TEST_P(Group, TakesNoPartOfAMessage)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("sends_a_part_and_leaves"), "");
    if (job.shared()->text[0][0] == '1')
        GTEST_SKIP() << "messages by flags are of GPUs of their own, over ipc";
}

TEST_P(Group, TakesWhatCameBeforeThePeerLeft)
{
    for (const char *how :
         {"put", "get", "put large", "get large", "put large lines", "get large lines"}) {
        Job job(GetParam(), 3);
        EXPECT_EQ(job.run("sends_and_leaves", how), "") << how;
    }
}
