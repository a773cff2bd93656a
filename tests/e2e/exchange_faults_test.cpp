// SPDX-License-Identifier: BSD-3-Clause
// Exchanges that do not end well, and what comes after them.
#include <algorithm>
#include <csignal>
#include <map>
#include <thread>

#include "e2e/bytes.h"
#include "e2e/exchanging.h"

class ExchangeFaults : public EveryDevice
{
};
INSTANTIATE_DEVICES(ExchangeFaults);

static const size_t size = 5000;

// Faults of the protocol above any memory.
class ExchangeFaultsHost : public testing::Test
{
  protected:
    void SetUp() override
    {
        if (!store_available())
            GTEST_SKIP() << "no redis-server";
    }
};

// ---- crossed order

// Each rank has two threads, of which one waits for the other rank's second one: no circle, as the
// thread that is awaited comes later.
RANK_FUNCTION(waits_in_one_of_two_threads)
{
    rank.open({"PEERHOP_DEADLINE_MS=400"}, 0);
    void *memory = rank.device->alloc(2 * size);
    ph_context *context = rank.context;
    auto exchange = [&](int op) {
        auto one = operation(op, !rank.rank, PH_ROLE_BOTH, at(memory, (op % 2) * size), size);
        ph_channel *channel;
        int rc;
        do
            rc = ph_exchange(context, &one, 1, &channel);
        while (rc == -ETIMEDOUT);
        CHECK_OK(rc);
    };
    auto in_threads = [&](int first, int second, int64_t late_ms) {
        std::thread other([&] {
            sleep_ms(rank.rank ? 0 : late_ms);
            exchange(second);
        });
        sleep_ms(rank.rank ? late_ms : 0);
        exchange(first);
        other.join();
    };
    rank.barrier();
    in_threads(2, 3, 0);
    rank.barrier();
    in_threads(4, 5, 700); // half of a deadline and more
    rank.barrier();
}

TEST_F(ExchangeFaultsHost, ThreadsThatWaitForEachOthersRankAreNotCrossed)
{
    Job job("host", 2);
    EXPECT_EQ(job.run("waits_in_one_of_two_threads"), "");
}

RANK_FUNCTION(started_in_any_order)
{
    rank.open();
    char *memory = static_cast<char *>(rank.device->alloc(8 * size));
    std::vector<ph_exchange_request *> requests(8);
    std::vector<ph_channel *> channels(8);
    for (int i = 0; i < 8; i++) {
        int op = rank.rank == 0 ? i : 7 - i;
        auto one = operation(op, !rank.rank, role_of(rank, op % 2), memory + op * size, size);
        CHECK_OK(ph_exchange_start(rank.context, &one, 1, &requests[op]));
    }
    for (int i = 0; i < 8; i++) // 0 to 7 here, 3, 6, 1, 4, 7, 2, 5, 0 there
        CHECK_OK(ph_exchange_finish(&requests[rank.rank ? (i + 1) * 3 % 8 : i],
                                    &channels[rank.rank ? (i + 1) * 3 % 8 : i], 0));
    void *stream = rank.device->stream();
    for (int op = 0; op < 8; op++) {
        CHECK_EQUAL(ph_channel_op_id(channels[op]), op);
        pass(rank, channels[op], role_of(rank, op % 2), memory + op * size, size, op, stream);
    }
    rank.barrier();
}

TEST_P(ExchangeFaults, StartForAllThenFinishIsFreeOfOrder)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("started_in_any_order"), "");
}

// ---- bad calls

RANK_FUNCTION(keys_in_use)
{
    rank.open();
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(2 * size);
    auto op = operation(7, !rank.rank, role_of(rank, 0), memory, size);
    auto other =
        operation(8, !rank.rank, role_of(rank, 0), static_cast<char *>(memory) + size, size);
    ph_exchange_request *request = nullptr, *second = nullptr;
    ph_channel *channel = nullptr;
    CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
    CHECK_RC(ph_exchange_start(rank.context, &op, 1, &second), -EALREADY);
    CHECK(second == nullptr);
    CHECK_SAYS(rank.error(), "operation 7 with rank");
    CHECK_SAYS(rank.error(), "is in another unfinished exchange");
    CHECK_SAYS(exchange_fails(rank, {other, op}, -EALREADY), "operation 7");
    CHECK_SAYS(exchange_fails(rank, {other, other}, -EALREADY), "operation 8");
    CHECK_OK(ph_exchange_finish(&request, &channel, 0));
    CHECK(exchange_all(rank, {other, op})[1] == channel); // the keys of what failed are free again
    pass(rank, channel, role_of(rank, 0), memory, size, 3, stream);
    rank.barrier();
}

TEST_P(ExchangeFaults, AKeyIsInOneExchangeAtATime)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("keys_in_use"), "");
}

// A thread of rank 0 waits for rank 2, and meanwhile works for the exchange that another thread has
// started: it asks rank 1, which is stopped. So the other thread's finish returns before that ends.
RANK_FUNCTION(finished_and_tried_again)
{
    rank.open();
    void *memory = rank.device->alloc(2 * size);
    auto op = operation(7, !rank.rank, role_of(rank, 0), memory, size);
    ph_exchange_request *request = nullptr;
    ph_channel *channel = nullptr;
    rank.barrier();
    if (rank.rank == 2)
        CHECK(reaches(rank.shared->value[1], 1, 60000)); // comes late
    if (rank.rank == 1)
        CHECK(reaches(rank.shared->value[1], 1, 60000)); // stopped meanwhile
    if (rank.rank != 0) {
        auto late = operation(8, 0, PH_ROLE_RECEIVER, memory, size);
        exchange_all(rank, {rank.rank == 1 ? op : late});
        rank.barrier();
        return;
    }
    rank.shared->value[0] = 1;
    CHECK(reaches(rank.shared->value[2], 1)); // rank 1 is stopped
    CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
    std::thread other([&] {
        rank.device->enter_thread();
        auto late = operation(8, 2, PH_ROLE_SENDER, static_cast<char *>(memory) + size, size);
        exchange_all(rank, {late});
    });
    sleep_ms(100);
    int first = ph_exchange_finish(&request, &channel, 50);
    int again = ph_exchange_start(rank.context, &op, 1, &request);
    rank.shared->value[1] = 1;
    int rc = again == 0 ? ph_exchange_finish(&request, &channel, 0) : 0;
    other.join();
    CHECK_RC(first, -ETIMEDOUT);
    CHECK_OK(again);
    CHECK_OK(rc);
    rank.barrier();
}

TEST_P(ExchangeFaults, WhatWasFinishedMayBeTriedAgainAtOnce)
{
    Job job(GetParam(), 3);
    job.start("finished_and_tried_again");
    ASSERT_TRUE(reaches(job.shared()->value[0], 1)) << job.wait(100);
    job.signal(1, SIGSTOP);
    job.shared()->value[2] = 1;
    EXPECT_TRUE(reaches(job.shared()->value[1], 1)) << job.wait(100);
    job.signal(1, SIGCONT);
    EXPECT_EQ(job.wait(), "");
}

RANK_FUNCTION(bad_arguments)
{
    rank.open();
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(size);
    auto good = operation(1, !rank.rank, role_of(rank, 0), memory, size);
    auto bad = operation(2, !rank.rank, role_of(rank, 0), memory, size);
    struct {
        ph_operation op;
        int result;
        const char *sentence;
    } cases[] = {
        {bad, -EINVAL, "there is no rank 2 (2 ranks)"},
        {bad, -EINVAL, "there is no rank -1"},
        {bad, -EINVAL, "names itself as the peer"},
        {bad, -EINVAL, "role 0 is none"},
        {bad, -EINVAL, "role 4 is none"},
        {bad, -EINVAL, "protocol 3 is none"},
        {bad, -EINVAL, "no buffer, but a size of"},
        {bad, -EINVAL, "a buffer of no bytes"},
        {bad, -EINVAL, "pass"},
        {bad, -EINVAL, "memory of ph_host_alloc"},
    };
    static char plain[100]; // memory that cannot be exported
    cases[0].op.peer = 2;
    cases[1].op.peer = -1;
    cases[2].op.peer = rank.rank;
    cases[3].op.role = static_cast<ph_role>(0);
    cases[4].op.role = static_cast<ph_role>(4);
    cases[5].op.protocol = static_cast<ph_protocol>(3);
    cases[6].op.buffer = nullptr;
    cases[7].op.size = 0;
    cases[8].op.size = size_t(1) << 40;
    cases[9].op.buffer = plain;
    cases[9].op.size = sizeof plain;
    for (auto &c : cases) {
        // Alone, and behind a good one, of which nothing may be lost.
        std::string sentence = exchange_fails(rank, {c.op}, c.result);
        CHECK_SAYS(sentence, c.sentence);
        CHECK(exchange_fails(rank, {good, c.op}, c.result) != "");
    }
    ph_channel *channel = nullptr;
    ph_exchange_request *request = nullptr;
    CHECK_RC(ph_exchange(nullptr, &good, 1, &channel), -EINVAL);
    CHECK_RC(ph_exchange(rank.context, nullptr, 1, &channel), -EINVAL);
    CHECK_RC(ph_exchange(rank.context, &good, 1, nullptr), -EINVAL);
    CHECK_RC(ph_exchange_start(rank.context, &good, 1, nullptr), -EINVAL);
    CHECK_RC(ph_exchange_finish(nullptr, &channel, 0), -EINVAL);
    CHECK_RC(ph_exchange_finish(&request, &channel, 0), -EINVAL);
    CHECK_RC(ph_channel_status(nullptr), -EINVAL);
    CHECK_RC(ph_channel_ended(nullptr), -EINVAL);
    CHECK_OK(ph_exchange(rank.context, nullptr, 0, nullptr)); // of nothing: nothing
    channel = exchange_all(rank, {good})[0];
    pass(rank, channel, role_of(rank, 0), memory, size, 3, stream);
    CHECK_EQUAL(rank.counter("offers"), 1);
    rank.barrier();
}

TEST_P(ExchangeFaults, BadArgumentsAreNamedAndLoseNothing)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("bad_arguments"), "");
}

// ---- limits

RANK_FUNCTION(too_many_keys)
{
    rank.open({"PEERHOP_CHANNELS=16"});
    void *stream = rank.device->stream();
    char *memory = static_cast<char *>(rank.device->alloc(20 * size));
    std::vector<ph_operation> ops;
    for (int op = 0; op < 16; op++)
        ops.push_back(operation(op, !rank.rank, role_of(rank, 0), memory + op * size, size));
    auto channels = exchange_all(rank, ops);
    auto more = operation(16, !rank.rank, role_of(rank, 0), memory + 16 * size, size);
    CHECK_SAYS(exchange_fails(rank, {more}, -ENOSPC), "PEERHOP_CHANNELS");
    CHECK(exchange_all(rank, ops) == channels);
    pass(rank, channels[15], role_of(rank, 0), ops[15].buffer, size, 1, stream);
    // A key whose buffers change needs a channel more, and there is none.
    rank.barrier();
    auto moved = operation(3, !rank.rank, role_of(rank, 0), memory + 17 * size, size);
    CHECK_SAYS(exchange_fails(rank, {moved}, -ENOSPC), "PEERHOP_CHANNELS");
    CHECK(exchange_all(rank, ops) == channels);
    rank.barrier();
}

TEST_F(ExchangeFaultsHost, TheLimitOfChannels)
{
    Job job("host", 2);
    EXPECT_EQ(job.run("too_many_keys"), "");
}

RANK_FUNCTION(other_limits)
{
    rank.open({rank.rank == 0 ? "PEERHOP_CHANNELS=32" : "PEERHOP_CHANNELS=64"}, 30000);
    void *memory = rank.device->alloc(size);
    Stopwatch watch;
    std::string sentence =
        exchange_fails(rank, {operation(1, !rank.rank, PH_ROLE_BOTH, memory, size)}, PH_EMISMATCH);
    CHECK_SAYS(sentence, "PEERHOP_CHANNELS=");
    CHECK_SAYS(sentence, "32");
    CHECK_SAYS(sentence, "64");
    CHECK_SAYS(sentence, "they must be equal");
    CHECK(watch.ms() < 20000);
    rank.barrier();
}

TEST_F(ExchangeFaultsHost, DifferentLimitsAreAMismatchAtBothEnds)
{
    Job job("host", 2);
    EXPECT_EQ(job.run("other_limits"), "");
}

// ---- what ranks must name alike

// Rank 0 believes in a job of two ranks, the others in one of three.
RANK_FUNCTION(other_sizes)
{
    setenv("PEERHOP_RANKS", rank.rank ? "3" : "2", 1);
    rank.open({}, 30000);
    void *memory = rank.device->alloc(size);
    const int peer = rank.rank ? 0 : 1;
    Stopwatch watch;
    std::string sentence =
        exchange_fails(rank, {operation(1, peer, PH_ROLE_BOTH, memory, size)}, PH_EMISMATCH);
    CHECK_SAYS(sentence, rank.rank ? "rank 0 is of a job of 2 ranks" : "rank 1 is of a job of 3");
    CHECK_SAYS(sentence, "they must be equal");
    CHECK(watch.ms() < 20000);
    rank.barrier();
}

TEST_F(ExchangeFaultsHost, JobsOfDifferentSizesAreAMismatchAtBothEnds)
{
    Job job("host", 3);
    EXPECT_EQ(job.run("other_sizes"), "");
}

// Both are told long before their deadlines, and then go on in the right roles.
RANK_FUNCTION(same_roles)
{
    rank.open({}, 60000);
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    void *stream = rank.device->stream();
    const int peer = !rank.rank;
    ph_role role = rank.argument == "receivers" ? PH_ROLE_RECEIVER : PH_ROLE_SENDER;
    if (rank.argument == "both" && rank.rank == 1)
        role = PH_ROLE_BOTH;
    const ph_operation right = operation(7, peer, role_of(rank, 0), memory, size),
                       wrong = operation(7, peer, role, memory, size),
                       other = operation(8, peer, PH_ROLE_BOTH, memory + size, size);
    if (rank.argument == "again")
        exchange_all(rank, {right});
    if (rank.argument == "later" && rank.rank == 1)
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
    Stopwatch watch;
    std::string sentence = exchange_fails(
        rank, rank.argument == "of_several" ? std::vector{other, wrong} : std::vector{wrong},
        PH_EMISMATCH);
    CHECK(watch.ms() < 30000);
    CHECK_SAYS(sentence,
               "operation 7: rank " + std::to_string(rank.rank) + " names itself PH_ROLE_");
    CHECK_SAYS(sentence, "rank " + std::to_string(peer) + " names itself " +
                             (rank.argument == "receivers"            ? "PH_ROLE_RECEIVER"
                              : rank.argument == "both" && !rank.rank ? "PH_ROLE_BOTH"
                                                                      : "PH_ROLE_SENDER"));
    rank.barrier(); // else who is told last may find that the other one has come
    pass(rank, exchange_all(rank, {other, right})[1], right.role, memory, size, 3, stream);
    rank.barrier();
}

TEST_F(ExchangeFaultsHost, RolesThatDoNotMatchAreNamedAtOnce)
{
    for (const char *how : {"senders", "receivers", "both", "later", "again", "of_several"}) {
        SCOPED_TRACE(how);
        Job job("host", 2);
        EXPECT_EQ(job.run("same_roles", how), "");
    }
    if (net_available()) {
        Job job("hostnet", 2);
        EXPECT_EQ(job.run("same_roles", "senders"), "");
    }
}

// Of a rank with another thread nobody knows whether that one will come in the role that matches:
// the log says at once what both wait for, and the call its deadline.
RANK_FUNCTION(same_roles_of_threads)
{
    rank.open({}, 60000);
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    const int peer = !rank.rank;
    ph_channel *channels[2] = {};
    std::atomic<bool> over{false};
    std::thread other([&] {
        while (!over && rank.argument == "never")
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (rank.argument == "never")
            return;
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        const ph_operation op = operation(7, peer, PH_ROLE_RECEIVER, memory + size, size);
        CHECK_OK(ph_exchange(rank.context, &op, 1, &channels[1]));
    });
    const ph_operation op = operation(7, peer, PH_ROLE_SENDER, memory, size);
    rank.barrier();
    if (rank.argument == "never") {
        ph_exchange_request *request = nullptr;
        CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
        CHECK_RC(ph_exchange_finish(&request, channels, patience(1000).count()), PH_EMISMATCH);
        CHECK_SAYS(rank.error(), "operation 7: rank ");
        CHECK_SAYS(rank.log, "both wait for another thread to come in the role that matches");
    } else {
        CHECK_OK(ph_exchange(rank.context, &op, 1, channels));
    }
    over = true;
    other.join();
    rank.barrier();
}

TEST_F(ExchangeFaultsHost, RolesOfSeveralThreadsMayMatchLater)
{
    for (const char *how : {"later", "never"}) {
        SCOPED_TRACE(how);
        Job job("host", 2);
        EXPECT_EQ(job.run("same_roles_of_threads", how), "");
    }
}

// What was started is coming: the roles match when the second exchange is finished.
RANK_FUNCTION(starts_both_ways)
{
    rank.open({}, 60000);
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    const ph_operation ops[] = {operation(7, !rank.rank, PH_ROLE_SENDER, memory, size),
                                operation(7, !rank.rank, PH_ROLE_RECEIVER, memory + size, size)};
    ph_exchange_request *requests[2] = {};
    ph_channel *channel = nullptr;
    for (int i = 0; i < 2; i++) {
        if (rank.rank == 1 && i == 1)
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
        CHECK_OK(ph_exchange_start(rank.context, &ops[i], 1, &requests[i]));
    }
    for (int i = 0; i < 2; i++)
        CHECK_OK(ph_exchange_finish(&requests[i], &channel, 0));
    rank.barrier();
}

TEST_F(ExchangeFaultsHost, OperationsThatAreStartedBothWaysMatch)
{
    Job job("host", 2);
    EXPECT_EQ(job.run("starts_both_ways"), "");
}

// An operation goes one way, its buffer is released, and then it is to go the other way: who comes
// first is only early.
RANK_FUNCTION(turns_the_other_way)
{
    rank.open({}, 400);
    void *memory = rank.device->alloc(2 * size);
    auto one = [&](int sender, size_t offset) {
        return operation(7, !rank.rank, role_of(rank, sender), at(memory, offset), size);
    };
    ph_channel *channel = nullptr;
    for (int rc = -1; rc;) {
        ph_operation op = one(0, 0);
        rc = ph_exchange(rank.context, &op, 1, &channel);
        CHECK(rc == 0 || rc == -ETIMEDOUT);
    }
    rank.barrier();
    if (rank.rank == 1)
        release_to(rank, memory, size, PH_RELEASE_DRAINED);
    rank.barrier();
    if (rank.rank == 1)
        CHECK_SAYS(exchange_fails(rank, {one(1, size)}, -ETIMEDOUT), "waits for rank 0");
    rank.barrier();
}

TEST_F(ExchangeFaultsHost, AnOperationThatTurnsIsNoMismatch)
{
    Job job("host", 2);
    EXPECT_EQ(job.run("turns_the_other_way"), "");
}

// One rank offers an operation that the other never comes to, gives it up, and is to come in the
// other role next: who is there before it is only early, whatever was offered.
RANK_FUNCTION(gives_up_and_turns)
{
    rank.open({}, 400);
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(size);
    const bool turns = rank.rank == (rank.argument == "higher");
    rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size); // they have met
    const ph_operation op =
        operation(7, !rank.rank, turns ? PH_ROLE_SENDER : PH_ROLE_RECEIVER, memory, size);
    if (turns)
        exchange_fails(rank, {operation(7, !rank.rank, PH_ROLE_RECEIVER, memory, size)},
                       -ETIMEDOUT);
    rank.barrier();
    if (!turns)
        CHECK_SAYS(exchange_fails(rank, {op}, -ETIMEDOUT), "waits for rank");
    rank.barrier();
    ph_channel *channel = nullptr;
    for (int rc = -1; rc;) {
        rc = ph_exchange(rank.context, &op, 1, &channel);
        CHECK(rc == 0 || rc == -ETIMEDOUT);
    }
    pass(rank, channel, op.role, memory, size, 3, stream);
    rank.barrier();
}

TEST_F(ExchangeFaultsHost, AnOperationThatWasGivenUpAndTurnsIsNoMismatch)
{
    for (const char *who : {"lower", "higher"}) {
        SCOPED_TRACE(who);
        Job job("host", 2);
        EXPECT_EQ(job.run("gives_up_and_turns", who), "");
    }
}

// ---- what is said of it

// Thousands of operations and of calls find one rank dead: that is one event.
RANK_FUNCTION(names_a_dead_rank)
{
    rank.open();
    char *memory = static_cast<char *>(rank.device->alloc(size));
    rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size);
    rank.barrier();
    if (rank.rank == 1)
        raise(SIGKILL);
    CHECK(reaches(rank.shared->value[0], 1));
    Stopwatch watch;
    std::vector<ph_operation> ops;
    for (int op = 0; op < 4000; op++)
        ops.push_back(operation(2 + op, 1, PH_ROLE_BOTH, memory, size));
    int ended = 0;
    for (int call = 0; ended < 1000; call++) {
        std::vector<ph_channel *> channels(ops.size());
        const int rc =
            ph_exchange(rank.context, ops.data(), call ? 1 : ops.size(), channels.data());
        CHECK(rc == PH_EPEER || rc == -ETIMEDOUT);
        ended += rc == PH_EPEER;
    }
    CHECK_SAYS(rank.error(), "rank 1 (process ");
    const auto lines = std::count(rank.log.begin(), rank.log.end(), '\n');
    if (lines >
        3 * (2 + watch.ms() / 1000)) // its end, the first call's, the others': each once a second
        rank_failed(__FILE__, __LINE__,
                    std::to_string(lines) + " lines: " + rank.log.substr(0, 500));
}

TEST_F(ExchangeFaultsHost, ADeadRankIsOneLineOfTheLog)
{
    for (const char *device : {"host", "hostnet"}) {
        if (!net_available() && strcmp(device, "hostnet") == 0)
            continue;
        SCOPED_TRACE(device);
        Job job(device, 2);
        job.expect_failure(1);
        job.start("names_a_dead_rank");
        job.status(1, 60000);
        job.shared()->value[0] = 1;
        EXPECT_EQ(job.wait(), "");
    }
}

// ---- memory

static std::atomic<int> offers_starve; // this many times

extern "C" {
int __real_phi_offer_file(struct phi_peer *peer, const void *bytes, size_t size);
int __wrap_phi_offer_file(struct phi_peer *peer, const void *bytes, size_t size);
int __wrap_phi_offer_file(struct phi_peer *peer, const void *bytes, size_t size)
{
    return offers_starve-- > 0 ? -ENOMEM : __real_phi_offer_file(peer, bytes, size);
}
}

// An offer that there is no memory for, for a while, is neither lost nor waited for in vain.
RANK_FUNCTION(files_offers_late)
{
    rank.open({}, 30000);
    void *stream = rank.device->stream();
    char *memory = static_cast<char *>(rank.device->alloc(4 * size));
    for (int op = 0; op < 3; op++) {
        Stopwatch watch;
        ph_role role = role_of(rank, op % 2);
        offers_starve = std::to_string(rank.rank) == rank.argument ? 1 + 2 * op : 0;
        ph_channel *channel = rank.channel(!rank.rank, op, role, memory + op * size, size);
        CHECK(watch.ms() < 20000);
        pass(rank, channel, role, memory + op * size, size, op, stream);
    }
    if (std::to_string(rank.rank) == rank.argument)
        CHECK_SAYS(rank.log, "is taken later");
    CHECK_EQUAL(rank.counter("offers"), 3);
    rank.barrier();
    rank.close();
}

TEST_P(ExchangeFaults, AnOfferWithoutMemoryIsTakenLater)
{
    for (const char *receiver : {"0", "1"}) {
        SCOPED_TRACE(receiver);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("files_offers_late", receiver), "");
    }
}

// ---- deadlines and retries

RANK_FUNCTION(late_rank)
{
    rank.open({"PEERHOP_DEADLINE_MS=150"}, 0);
    void *stream = rank.device->stream();
    char *memory = static_cast<char *>(rank.device->alloc(4 * size));
    ph_role role = role_of(rank, 0);
    auto op = operation(7, !rank.rank, role, memory, size);
    auto retry = [&](ph_operation what) {
        ph_channel *channel = nullptr;
        Stopwatch watch;
        int rc;
        do
            rc = ph_exchange(rank.context, &what, 1, &channel);
        while (rc == -ETIMEDOUT && watch.ms() < patience(20000).count());
        CHECK_OK(rc);
        return channel;
    };
    ph_channel *channel;
    if (rank.rank == 0) {
        // The other has published its record, and does not come.
        for (int i = 0; i < 3; i++) {
            Stopwatch watch;
            std::string sentence = exchange_fails(rank, {op}, -ETIMEDOUT);
            CHECK(watch.ms() >= 140 && watch.ms() < patience(10000).count());
            CHECK_SAYS(sentence, "waits for rank 1: operation 7");
            CHECK_SAYS(sentence, "(1 of 1 operations open)");
        }
        rank.shared->value[0] = 1;
        channel = retry(op);
    } else {
        CHECK(reaches(rank.shared->value[0], 1));
        channel = retry(op);
    }
    pass(rank, channel, role, memory, size, 1, stream);
    rank.barrier();
    // Again with a key that both know: first a hit that one is late for, then with another buffer
    // than at first.
    if (rank.rank == 1)
        CHECK_SAYS(exchange_fails(rank, {op}, -ETIMEDOUT),
                   "has not come to this exchange of the operation");
    rank.barrier();
    auto moved = operation(7, !rank.rank, role, memory + (1 + rank.rank) * size, size);
    if (rank.rank == 1)
        exchange_fails(rank, {op}, -ETIMEDOUT);
    rank.barrier();
    channel = retry(moved);
    pass(rank, channel, role, moved.buffer, size, 2, stream);
    rank.barrier();
    CHECK(retry(moved) == channel);
    rank.barrier();
}

TEST_P(ExchangeFaults, ALateRankIsMetByARetry)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("late_rank"), "");
}

RANK_FUNCTION(part_of_a_batch_is_late)
{
    rank.open();
    void *stream = rank.device->stream();
    char *memory = static_cast<char *>(rank.device->alloc(3 * size));
    auto first = operation(1, !rank.rank, role_of(rank, 0), memory, size);
    auto second = operation(2, !rank.rank, role_of(rank, 0), memory + size, size);
    rank.barrier();
    if (rank.rank == 0) {
        ph_channel *channels[2];
        ph_operation both[2] = {first, second};
        auto exchange = [&](int64_t ms) {
            ph_exchange_request *request;
            CHECK_OK(ph_exchange_start(rank.context, both, 2, &request));
            return ph_exchange_finish(&request, channels, ms);
        };
        // Rank 1 comes to the first operation only.
        rank.ends_with(-ETIMEDOUT, "operation 2", [&] { return exchange(2000); });
        rank.shared->value[0] = 1;
        CHECK_OK(exchange(patience(20000).count()));
        pass(rank, channels[0], PH_ROLE_SENDER, first.buffer, size, 1, stream);
        pass(rank, channels[1], PH_ROLE_SENDER, second.buffer, size, 2, stream);
    } else {
        ph_channel *one = exchange_all(rank, {first})[0];
        CHECK(reaches(rank.shared->value[0], 1));
        ph_channel *two = exchange_all(rank, {second})[0];
        pass(rank, one, PH_ROLE_RECEIVER, first.buffer, size, 1, stream);
        pass(rank, two, PH_ROLE_RECEIVER, second.buffer, size, 2, stream);
    }
    rank.barrier();
}

TEST_P(ExchangeFaults, ABatchWithOneLateOperationIsRetriedAsAWhole)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("part_of_a_batch_is_late"), "");
}

// Deadlines that pass at every point of an exchange: whatever happens, both ranks end with the same
// channels.
RANK_FUNCTION(deadlines_everywhere)
{
    rank.open({}, 10000);
    void *stream = rank.device->stream();
    char *memory = static_cast<char *>(rank.device->alloc(4 * size));
    ph_role role = role_of(rank, 0);
    uint64_t random = 88172645463325252u + rank.rank;
    for (int round = 0; round < 60; round++) {
        auto op = operation(round % 3, !rank.rank, role,
                            memory + (round * (rank.rank + 1) % 4) * size, size);
        ph_channel *channel = nullptr;
        int rc = -ETIMEDOUT;
        for (int tries = 0; rc == -ETIMEDOUT && tries < 2000; tries++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            ph_exchange_request *request;
            std::this_thread::sleep_for(std::chrono::microseconds(random % 1500));
            CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
            // Longer each time: on a busy machine neither is there when the other comes.
            rc = ph_exchange_finish(&request, &channel, 1 + random / 7 % 3 + tries / 10);
        }
        CHECK_OK(rc);
        pass(rank, channel, role, op.buffer, size, round, stream);
    }
    rank.barrier();
}

TEST_P(ExchangeFaults, DeadlinesAtEveryPoint)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("deadlines_everywhere"), "");
}
