// SPDX-License-Identifier: BSD-3-Clause
// A bounded cache: what nobody needs makes way, what somebody needs stays, and both ranks agree.
#include <csignal>
#include <pthread.h>
#include <random>

#include "e2e/bytes.h"
#include "e2e/exchanging.h"

class Retire : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_NETS(Retire);

static const size_t size = 4096, LARGE = 1200000;
static const char *const SMALL = "PEERHOP_CHANNELS=16";

// Every operation of a working set of `ops` in turn, each with its own buffer, which it closes
// after `open` more.
static void cycle(Rank &rank, int ops, int rounds, size_t open, bool one_key)
{
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(ops * size);
    std::vector<ph_channel *> held;
    ph_role role = role_of(rank, 0);
    for (int round = 0; round < rounds; round++)
        for (int op = 0; op < ops; op++) {
            void *buffer = at(memory, op * size);
            ph_channel *channel = rank.channel(!rank.rank, one_key ? 1 : op, role, buffer, size);
            CHECK_EQUAL(ph_channel_op_id(channel), one_key ? 1 : op);
            pass(rank, channel, role, buffer, size, round * 1000 + op, stream);
            held.push_back(channel);
            if (held.size() <= open)
                continue;
            CHECK_OK(ph_channel_close(held.front()));
            held.erase(held.begin());
        }
    for (ph_channel *channel : held)
        CHECK_OK(ph_channel_close(channel));
}

RANK_FUNCTION(has_a_small_cache)
{
    rank.open({SMALL});
    bool one_key = rank.argument == "one key";
    cycle(rank, 50, 4, 5, one_key);
    CHECK(rank.counter("retired") > 100);
    cycle(rank, 16, 4, 0, one_key); // fits
    CHECK_OK(ph_reap(rank.context, 0));
    rank.barrier();
    rank.close();
}

TEST_P(Retire, AWorkingSetLargerThanTheCache)
{
    for (const char *how : {"many keys", "one key"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("has_a_small_cache", how), "");
    }
}

// Of two keys of a call, the second is dropped before the same call comes again.
RANK_FUNCTION(names_a_pair_again)
{
    rank.open({SMALL});
    const int ops = 40;
    void *memory = rank.device->alloc(ops * size), *stream = rank.device->stream();
    const ph_role role = role_of(rank, 0);
    auto op = [&](int i) { return operation(i, !rank.rank, role, at(memory, i * size), size); };
    std::vector<ph_channel *> kept;
    for (int round = 0; round < 4; round++) {
        const auto pair = exchange_all(rank, {op(0), op(1)});
        kept.push_back(pair[0]);
        CHECK(pair[0] == kept[0] && ph_channel_op_id(pair[1]) == 1);
        pass(rank, pair[1], role, at(memory, size), size, round, stream);
        CHECK_OK(ph_channel_close(pair[1]));
        for (int i = 2; i < ops; i++)
            CHECK_OK(ph_channel_close(exchange_all(rank, {op(i)})[0]));
    }
    CHECK(rank.counter("retired") > 100);
    rank.close();
}

TEST_P(Retire, APairOfWhichOneIsDropped)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("names_a_pair_again"), "");
}

// ---- what is in flight when room is needed: trap 3

// Operations are in flight on all channels of the cache when another one is needed.
RANK_FUNCTION(has_a_small_cache_in_flight)
{
    rank.open({SMALL});
    const int ops = 40, deep = 16;
    const size_t big = 200000;
    void *memory = rank.device->alloc(ops * big);
    ph_role role = role_of(rank, rank.argument == "higher");
    std::vector<void *> streams;
    for (int i = 0; i < deep; i++)
        streams.push_back(rank.device->stream());
    for (int round = 0; round < 5; round++) {
        for (int op = 0; op < ops; op++) {
            void *buffer = at(memory, op * big), *stream = streams[op % deep];
            ph_channel *channel = rank.channel(!rank.rank, op, role, buffer, big);
            if (role == PH_ROLE_SENDER) {
                rank.device->slow_fill(stream, buffer, big, static_cast<uint8_t>(round * ops + op),
                                       3000);
                CHECK_OK(ph_put_signal(channel, 0, 0, big, stream));
            } else {
                CHECK_OK(ph_wait(channel, big, stream));
            }
            CHECK_OK(ph_channel_close(channel)); // what is enqueued goes on
        }
        for (void *stream : streams)
            rank.synchronize(stream);
        for (int op = 0; role == PH_ROLE_RECEIVER && op < ops; op++)
            check_value(rank, at(memory, op * big), big, static_cast<uint8_t>(round * ops + op),
                        "operation " + std::to_string(op));
        rank.barrier();
    }
    CHECK(rank.counter("retired") > 100);
    rank.close();
}

TEST_P(Retire, AWorkingSetLargerThanTheCacheInFlight)
{
    for (const char *sender : {"lower", "higher"}) {
        SCOPED_TRACE(sender);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("has_a_small_cache_in_flight", sender), "");
    }
}

// A service thread that gets no memory still answers.
static std::atomic<bool> service_starves;

extern "C" {
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size)
{
    char name[16] = "";
    if (service_starves)
        pthread_getname_np(pthread_self(), name, sizeof name);
    return strcmp(name, "peerhop-service") == 0 ? nullptr : __real_calloc(n, size);
}
}

RANK_FUNCTION(makes_room_without_memory)
{
    rank.open({SMALL}, 3000);
    CHECK_OK(ph_channel_close( // connected
        rank.channel(!rank.rank, 99, PH_ROLE_BOTH, rank.device->alloc(size), size)));
    service_starves = true;
    cycle(rank, 40, 1, 0, rank.argument == "one key");
    service_starves = false;
    CHECK(rank.counter("retired") >= 20);
    rank.barrier();
    rank.close();
}

TEST_P(Retire, WithoutMemoryForAnswers)
{
    for (const char *how : {"many keys", "one key"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("makes_room_without_memory", how), "");
    }
}

// What is held stays, and the sentence says by whom.
RANK_FUNCTION(holds_everything)
{
    rank.open({SMALL});
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(20 * size);
    ph_role role = role_of(rank, 0);
    std::vector<ph_channel *> held;
    const bool holder = rank.argument == (rank.rank ? "higher" : "lower");
    for (int op = 0; op < 16; op++) {
        held.push_back(rank.channel(!rank.rank, op, role, at(memory, op * size), size));
        if (!holder)
            CHECK_OK(ph_channel_close(held.back()));
    }
    rank.barrier();
    std::vector<ph_operation> more = {operation(16, !rank.rank, role, at(memory, 16 * size), size)};
    // Rank 0 gives the slots. The other comes with it, or later.
    for (int attempt = 0; attempt < 2; attempt++) {
        Stopwatch watch;
        sleep_ms(rank.rank && attempt ? 50 : 0);
        std::string sentence = exchange_fails(rank, more, -ENOSPC);
        CHECK_SAYS(sentence, "PEERHOP_CHANNELS");
        CHECK_SAYS(sentence, "ph_channel_close");
        CHECK_SAYS(sentence, holder ? "16 held by handles of rank " + std::to_string(rank.rank)
                                    : "16 by handles of rank " + std::to_string(!rank.rank));
        CHECK(watch.ms() < patience(10000).count());
        rank.barrier();
    }
    for (ph_channel *channel : held) // hits, and they work
        if (holder)
            CHECK_OK(ph_channel_ended(channel));
    ph_channel *again = rank.channel(!rank.rank, 3, role, at(memory, 3 * size), size);
    pass(rank, again, role, at(memory, 3 * size), size, 3, stream);
    if (holder)
        CHECK(again == held[3]);
    CHECK_OK(ph_channel_close(again));
    rank.barrier();
    if (holder)
        CHECK_OK(ph_channel_close(held[7]));
    rank.barrier();
    ph_channel *seventeenth = exchange_all(rank, more)[0];
    pass(rank, seventeenth, role, at(memory, 16 * size), size, 4, stream);
    rank.barrier();
    rank.close();
}

TEST_P(Retire, NothingThatIsHeld)
{
    for (const char *holder : {"lower", "higher"}) {
        SCOPED_TRACE(holder);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("holds_everything", holder), "");
    }
}

// The lower rank holds everything, and says so by more messages than the socket of a higher one
// that does not read takes. None is lost: not a refusal, and not an abort behind them.
RANK_FUNCTION(tells_much)
{
    const int held = 256, refused = 700;
    const bool aborts = rank.argument == "an abort";
    rank.open({"PEERHOP_CHANNELS=256", "PEERHOP_HEARTBEAT_MS=100"});
    void *memory = rank.device->alloc(size);
    std::vector<ph_operation> first, more;
    for (int op = 0; op < held + refused; op++)
        (op < held ? first : more)
            .push_back(operation(op, !rank.rank, role_of(rank, 0), memory, size));
    std::vector<ph_channel *> channels = exchange_all(rank, first);
    for (int op = 1; rank.rank && op < held; op++)
        CHECK_OK(ph_channel_close(channels[op]));
    rank.barrier();
    if (rank.rank == 0) {
        rank.shared->value[0] = 1;
        CHECK(reaches(rank.shared->value[1], 1));
        exchange_fails(rank, more, -ENOSPC);
        if (aborts)
            CHECK_OK(ph_context_abort(rank.context, "behind a full socket"));
        rank.shared->value[2] = 1;
    } else {
        CHECK(reaches(rank.shared->value[2], 1));
        if (aborts)
            CHECK_RC(end_of(channels[0]), PH_EBROKEN);
        else
            CHECK_SAYS(exchange_fails(rank, {more.back()}, -ENOSPC), "256 by handles of rank 0");
    }
    rank.barrier();
}

TEST_P(Retire, WhatFindsTheSocketFullIsSaidLater)
{
    for (const char *what : {"refusals", "an abort"}) {
        SCOPED_TRACE(what);
        Job job(GetParam(), 2);
        job.start("tells_much", what);
        ASSERT_TRUE(reaches(job.shared()->value[0], 1)) << job.wait(100);
        job.signal(1, SIGSTOP);
        job.shared()->value[1] = 1;
        EXPECT_TRUE(reaches(job.shared()->value[2], 1)) << job.wait(100);
        job.signal(1, SIGCONT);
        EXPECT_EQ(job.wait(), "");
    }
}

// One call that names more than fits.
RANK_FUNCTION(exchanges_too_many_at_once)
{
    rank.open({SMALL}, 2000); // the others of them are waited for
    void *memory = rank.device->alloc(20 * size);
    std::vector<ph_operation> ops;
    for (int op = 0; op < 20; op++)
        ops.push_back(operation(op, !rank.rank, role_of(rank, 0), at(memory, op * size), size));
    rank.barrier();
    if (rank.rank == 0)
        rank.ends_with(-ENOSPC, ", 16 named by this exchange", [&] {
            ph_channel *channels[20];
            return ph_exchange(rank.context, ops.data(), ops.size(), channels);
        });
    rank.barrier();
    rank.close();
}

TEST_P(Retire, NotWhatTheSameExchangeNames)
{
    if (on_net())
        GTEST_SKIP() << "over the net two ranks meet only where both exchange";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("exchanges_too_many_at_once"), "");
}

// Many more than fit cost little more: what stands in the way is looked for once.
RANK_FUNCTION(exchanges_far_too_many_at_once)
{
    const int fit = 3000, all = 9000;
    rank.open({"PEERHOP_CHANNELS=" + std::to_string(fit)}, 4000);
    void *memory = rank.device->alloc(16);
    std::vector<ph_operation> ops;
    for (int op = 0; op < all; op++)
        ops.push_back(operation(op, !rank.rank, role_of(rank, 0), memory, 16));
    rank.barrier();
    if (rank.rank == 0) {
        Stopwatch watch;
        CHECK_SAYS(exchange_fails(rank, ops, -ENOSPC), ", 3000 named by this exchange");
        CHECK(watch.ms() < patience(14000).count());
    }
    rank.barrier();
    rank.close();
}

TEST_P(Retire, FarTooManyAtOnceEndInTime)
{
    if (GetParam() == "gpu")
        GTEST_SKIP() << "the same as on the stand-in";
    if (on_net())
        GTEST_SKIP() << "one rank alone exchanges, and over the net ranks meet when both do";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("exchanges_far_too_many_at_once"), "");
}

// Buffers that are given back after each use need new channels each time, for ever.
RANK_FUNCTION(releases_for_ever)
{
    rank.open({SMALL});
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(4 * size);
    ph_role role = role_of(rank, 0);
    std::vector<ph_channel *> retired;
    for (int round = 0; round < 120; round++) {
        void *buffer = at(memory, static_cast<size_t>(round % 4) * size);
        ph_channel *channel = rank.channel(!rank.rank, round % 3, role, buffer, size);
        pass(rank, channel, role, buffer, size, round, stream);
        rank.barrier();
        if (rank.rank == round % 2) {
            CHECK_OK(ph_release_start(rank.context, buffer, size));
            CHECK_OK(ph_release_wait(rank.context, buffer, size, PH_RELEASE_DRAINED, 10000));
        }
        rank.barrier();
        CHECK_RC(ph_channel_ended(channel), -ESTALE);
        if (rank.argument == "closes")
            CHECK_OK(ph_channel_close(channel));
        else
            retired.push_back(channel);
    }
    for (ph_channel *channel : retired) {
        CHECK_RC(ph_channel_ended(channel), -ESTALE);
        CHECK_EQUAL(ph_channel_peer(channel), !rank.rank);
        CHECK(ph_channel_op_id(channel) < 3);
        CHECK_OK(ph_channel_close(channel));
    }
    rank.barrier();
    rank.close();
}

TEST_P(Retire, WhatWasReleased)
{
    for (const char *how : {"closes", "keeps handles"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("releases_for_ever", how), "");
    }
}

// The sender of a round sends by each method, and a signal.
static void converse(Rank &rank, ph_channel *channel, void *buffer, int sender, uint64_t seed,
                     void *stream)
{
    for (size_t bytes : {size_t{8}, size_t{5000}, size_t{100000}, LARGE}) {
        if (rank.rank == sender)
            rank.device->fill(buffer, bytes, seed + bytes);
        CHECK_OK(rank.rank == sender ? ph_send(channel, bytes, stream)
                                     : ph_recv(channel, bytes, stream));
        CHECK_OK(ph_complete(channel, stream));
        rank.synchronize(stream);
        rank.verify(buffer, bytes, seed + bytes, "sent over lanes that others have had");
    }
    if (rank.rank == sender)
        rank.device->fill(buffer, LARGE, seed + 1);
    const ph_group_op op = {rank.rank == sender ? PH_GROUP_SEND : PH_GROUP_RECV, channel, 0, 0,
                            LARGE};
    CHECK_OK(ph_group(&op, 1, stream));
    rank.synchronize(stream);
    rank.verify(buffer, LARGE, seed + 1, "sent by a group over lanes that others have had");
    if (rank.rank == sender)
        rank.device->fill(buffer, size, seed);
    CHECK_OK(rank.rank == sender ? ph_put_signal(channel, 0, 0, size, stream)
                                 : ph_wait(channel, size, stream));
    rank.synchronize(stream);
    rank.verify(buffer, size, seed, "put over lanes that others have had");
}

// Channels that are given back leave their lanes to others, with the numbers where they are; but
// not where a message is left there, was taken late, or a graph has run nobody knows how often. The
// first lanes of a pair have slots for wide lines.
RANK_FUNCTION(gives_lanes_back)
{
    rank.open({Rank::wide()});
    const bool leaves = rank.argument == "a message", captures = rank.argument == "a graph";
    const bool late = rank.argument == "late", keeps = leaves || captures || late;
    const ph_protocol protocol = rank.argument == "get" ? PH_PROTOCOL_GET : PH_PROTOCOL_PUT;
    const int rounds = keeps ? 20 : 200;
    void *stream = rank.device->stream(), *buffer = rank.device->alloc(LARGE);
    uint64_t first = 0;
    for (int round = 0; round < rounds; round++) {
        const int sender = round % 2;
        ph_channel *channel =
            rank.channel(!rank.rank, round % 3, PH_ROLE_BOTH, buffer, LARGE, protocol);
        ph_path_report report = {};
        CHECK_OK(ph_channel_path(channel, 1, &report, sizeof report));
        if (report.ll_max == 0) {
            rank.shared->text[0][0] = '1';
            return;
        }
        first = round == 0 ? report.ll_max : first;
        if (keeps)
            CHECK(round < 17 || report.ll_max < first);
        else
            CHECK_EQUAL(report.ll_max, first);
        converse(rank, channel, buffer, sender, 1000000ull * round, stream);
        if ((leaves || late) && rank.rank == sender) {
            rank.device->fill(buffer, size, 77);
            CHECK_OK(ph_put_signal(channel, 0, 0, size, stream));
            rank.synchronize(stream);
        }
        if (captures) {
            void *graph = rank.device->capture(stream, [&] {
                CHECK_OK(rank.rank == sender ? ph_send(channel, size, stream)
                                             : ph_recv(channel, size, stream));
                CHECK_OK(ph_complete(channel, stream));
            });
            rank.device->launch(graph, stream);
            rank.device->launch(graph, stream);
            rank.synchronize(stream);
            rank.device->destroy(graph);
        }
        rank.barrier();
        if (rank.rank == (late ? sender : round / 2 % 2))
            release_to(rank, buffer, LARGE, PH_RELEASE_DRAINED);
        rank.barrier();
        CHECK_RC(ph_channel_ended(channel), -ESTALE);
        if (late && rank.rank != sender) {
            CHECK_OK(ph_wait(channel, size, stream));
            rank.synchronize(stream);
            rank.verify(buffer, size, 77, "put before the release");
        }
        CHECK_OK(ph_channel_close(channel));
    }
    rank.barrier();
    rank.close();
}

TEST_P(Retire, LanesOfWhatWasReleased)
{
    if (GetParam() != "standin" && GetParam() != "gpu")
        GTEST_SKIP() << "lanes are of ipc between devices";
    for (const char *how : {"put", "get", "a message", "a graph", "late"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("gives_lanes_back", how), "");
        if (job.shared()->text[0][0] == '1')
            GTEST_SKIP() << "two ranks on one device: their messages go by words";
    }
}

// What came before a release waits for the application that keeps its handle, also where room is
// short.
RANK_FUNCTION(takes_it_late)
{
    rank.open({SMALL});
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(4 * size), *much = rank.device->alloc(4 * size);
    ph_role role = role_of(rank, 0);
    ph_channel *channel = rank.channel(!rank.rank, 100, role, memory, size);
    if (rank.rank == 0) {
        rank.device->fill(memory, size, 5);
        CHECK_OK(ph_send(channel, size, stream));
        rank.synchronize(stream);
        rank.barrier();
        release_to(rank, memory, size, PH_RELEASE_DRAINED);
    } else {
        CHECK_OK(ph_recv(channel, size, stream));
        rank.synchronize(stream);
        rank.barrier();
    }
    rank.barrier();
    for (int round = 0; round < 40; round++) {
        ph_channel *next = rank.channel(!rank.rank, round, role, much, size);
        CHECK_OK(ph_channel_close(next));
    }
    if (rank.rank == 1) {
        CHECK_RC(ph_channel_ended(channel), -ESTALE);
        CHECK_OK(ph_complete(channel, stream));
        rank.synchronize(stream);
        rank.verify(memory, size, 5, "what was sent before the release");
    }
    rank.barrier();
    rank.close();
}

TEST_P(Retire, NotWhatIsStillToBeTaken)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("takes_it_late"), "");
}

// Both ranks run the same random walk over a working set, with threads that exchange at once.
RANK_FUNCTION(walks)
{
    rank.open({SMALL});
    std::mt19937 dice(std::stoi(rank.argument));
    void *stream = rank.device->stream();
    const int ops = 24;
    void *memory = rank.device->alloc(2 * static_cast<size_t>(ops) * size);
    std::vector<std::vector<ph_channel *>> held(ops);
    int open = 0;
    for (int step = 0; step < 400; step++) {
        int op = static_cast<int>(dice() % ops), which = static_cast<int>(dice() % 2),
            sender = static_cast<int>(dice() % 2);
        bool closes = dice() % 8 != 0 || open > 8;
        void *buffer = at(memory, (2 * op + which) * size);
        ph_role role = role_of(rank, sender);
        ph_channel *channel = rank.channel(!rank.rank, op, role, buffer, size);
        pass(rank, channel, role, buffer, size, step, stream);
        held[op].push_back(channel);
        open++;
        while (closes && !held[op].empty()) {
            CHECK_OK(ph_channel_close(held[op].back()));
            held[op].pop_back();
            open--;
        }
    }
    rank.barrier();
    rank.close();
}

TEST_P(Retire, ARandomWalk)
{
    const char *rounds = getenv("PEERHOP_RETIRE_ROUNDS");
    for (int seed = 1; seed <= (rounds ? atoi(rounds) : 2); seed++) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("walks", std::to_string(seed)), "");
    }
}

RANK_FUNCTION(closes_too_often)
{
    rank.open();
    void *memory = rank.device->alloc(size);
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size);
    CHECK(rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size) == channel);
    CHECK_RC(ph_channel_close(nullptr), -EINVAL);
    CHECK_OK(ph_channel_close(channel));
    CHECK_OK(ph_channel_close(channel));
    CHECK_RC(ph_channel_close(channel), -EINVAL); // it is in the cache still
    CHECK_SAYS(rank.error(), "no handle left");
    CHECK(rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size) == channel);
    rank.barrier();
    rank.close();
}

TEST_P(Retire, HandlesAreCounted)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("closes_too_often"), "");
}
