// SPDX-License-Identifier: BSD-3-Clause
// The end of contexts whose peers do not leave: they are killed, or the job is aborted. Nothing
// hangs and nothing is left.
#include <csignal>
#include <map>
#include <memory>

#include <unistd.h>

#include "e2e/bytes.h"
#include "e2e/meeting.h"

class Destroy : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_NETS(Destroy);

static const size_t size = 50000;

// ---- with a peer that is killed: trap 13

// Enqueues something that waits for the peer. Returns false where the device has no such thing.
static bool enqueue_wait(Rank &rank, const std::string &how, ph_channel *to, ph_channel *from,
                         void *stream)
{
    if (how == "wait") {
        CHECK_OK(ph_wait(from, 8, stream));
    } else if (how == "recv") {
        CHECK_OK(ph_recv(from, size, stream));
        CHECK_OK(ph_complete(from, stream));
    } else if (how == "send") {
        for (int i = 0; i < (rank.staged() ? STAGE_SLOTS + 1 : 1); i++)
            CHECK_OK(ph_send(to, size, stream));
    } else if (how == "signals") { // the second waits until the peer has consumed the first
        for (int i = 0; i < (rank.staged() ? STAGE_SLOTS : 1); i++)
            CHECK_OK(ph_signal(to, stream));
        CHECK_OK(ph_put_signal(to, 0, 0, 8, stream));
    } else if (how == "graph") {
        void *graph = rank.device->capture(stream, [&] { CHECK_OK(ph_wait(from, 8, stream)); });
        if (graph == nullptr)
            return false;
        rank.device->launch(graph, stream);
        CHECK(!rank.device->synchronize(stream, 20));
        rank.shared->value[0] = 1;
        rank.goes_on_without(1, stream);
        rank.device->destroy(graph);
    }
    return true;
}

RANK_FUNCTION(peer_is_killed)
{
    // By ll one more message would wait for nobody. An exchange has time until the peer has ended.
    rank.open({"PEERHOP_LL_MAX=0"}, 45000);
    auto channels = meet_all(rank, size);
    ph_channel *to = channels[0], *from = channels[1];
    rank.barrier();
    if (rank.rank == 1)
        pause();
    void *stream = rank.device->stream();
    if (rank.argument == "exchange") {
        void *memory = rank.device->alloc(size);
        rank.shared->value[0] = 1;
        CHECK_SAYS(exchange_fails(rank, {operation(7, 1, PH_ROLE_BOTH, memory, size)}, PH_EPEER),
                   "rank 1");
    } else {
        bool there = enqueue_wait(rank, rank.argument, to, from, stream);
        if (there && rank.argument != "idle" && rank.argument != "graph")
            CHECK(!rank.device->synchronize(stream, 20));
        rank.shared->value[0] = 1;
        rank.goes_on_without(1, stream);
    }
    // Later calls say so.
    CHECK_RC(end_of(from), PH_EPEER);
    CHECK_RC(ph_put(to, 0, 0, 8, stream), PH_EPEER);
    CHECK_RC(ph_wait(from, 0, stream), PH_EPEER);
    CHECK_RC(ph_recv(from, 8, stream), PH_EPEER);
    ph_group_op group = {PH_GROUP_SEND, to, 0, 0, 8};
    CHECK_RC(ph_group(&group, 1, stream), PH_EPEER);
    void *memory = rank.device->alloc(size);
    CHECK_SAYS(exchange_fails(rank, {operation(8, 1, PH_ROLE_BOTH, memory, size)}, PH_EPEER),
               "rank 1");
    Stopwatch watch;
    rank.close();
    CHECK(watch.ms() < patience(10000).count());
}

TEST_P(Destroy, AfterThePeerWasKilled)
{
    // At once: over the net a rank takes seconds to be sure of a loss.
    std::map<std::string, std::unique_ptr<Job>> jobs;
    for (const char *when : {"idle", "exchange", "wait", "recv", "send", "signals", "graph"}) {
        jobs[when] = std::make_unique<Job>(GetParam(), 2);
        jobs[when]->expect_failure(1);
        jobs[when]->start("peer_is_killed", when);
    }
    for (auto &[when, job] : jobs)
        ASSERT_TRUE(reaches(job->shared()->value[0], 1)) << when << ": " << job->wait(100);
    sleep_ms(30);
    for (auto &[when, job] : jobs)
        job->signal(1, SIGKILL);
    for (auto &[when, job] : jobs)
        EXPECT_EQ(job->status(1, 60000), 128 + SIGKILL) << when;
    for (auto &[when, job] : jobs)
        EXPECT_EQ(job->wait(), "") << when;
}

RANK_FUNCTION(one_of_three_is_killed)
{
    rank.open();
    auto channels = meet_all(rank, size);
    rank.barrier();
    if (rank.rank == 2)
        pause();
    void *stream = rank.device->stream();
    CHECK_OK(ph_wait(channels[3], 8, stream)); // of rank 2
    rank.shared->value[0]++;
    rank.goes_on_without(2, stream);
    // The survivors go on with each other.
    CHECK_RC(ph_channel_ended(channels[0]), 0);
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    for (int round = 0; round < 5; round++) {
        ph_role role = role_of(rank, round % 2);
        ph_channel *channel = rank.channel(!rank.rank, 20 + round, role, memory, size);
        pass(rank, channel, role, memory, size, round, stream);
    }
    rank.shared->value[1]++;
    CHECK(reaches(rank.shared->value[1], 2));
}

TEST_P(Destroy, SurvivorsGoOn)
{
    Job job(GetParam(), 3);
    job.expect_failure(2);
    job.start("one_of_three_is_killed");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    job.signal(2, SIGKILL);
    EXPECT_EQ(job.status(2, 60000), 128 + SIGKILL);
    EXPECT_EQ(job.wait(), "");
}

// ---- one is killed in the midst of the survivors' teardown: trap 13

// Rank 2 copies into the memory of both others all the time. Their streams wait for it, and so does
// an exchange: they are inside destroy when it dies.
RANK_FUNCTION(leaves_while_one_is_killed)
{
    rank.open();
    auto *memory = static_cast<char *>(rank.device->alloc(8 * size));
    void *stream = rank.device->stream();
    auto channels = meet_all(rank, size, memory, stream);
    rank.barrier();
    while (rank.rank == 2) { // until it is killed
        for (int peer = 0; peer < 2; peer++)
            CHECK_OK(ph_put(channels[2 * peer], 0, 0, size, stream));
        rank.synchronize(stream);
        rank.shared->value[0]++;
    }
    auto op = operation(7, 2, PH_ROLE_BOTH, memory + 6 * size, size);
    ph_exchange_request *request = nullptr;
    CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
    CHECK_OK(ph_wait(channels[3], 8, stream));
    CHECK(reaches(rank.shared->value[0], 20));
    rank.shared->value[1]++;
    rank.close(45000); // the kernel may take half a minute to end the one that is killed
    CHECK_EQUAL(rank.shared->value[2], 1); // not before
    if (rank.device->host())
        return; // its memory ended with the context
    set_value(rank, memory, 6 * size, 77);
    sleep_ms(3);
    check_value(rank, memory, 6 * size, 77, "after destroy");
}

TEST_P(Destroy, WhileOneIsKilled)
{
    std::map<std::string, std::unique_ptr<Job>> jobs; // at once: they mostly wait
    for (const char *how : {"running", "stopped"}) {
        jobs[how] = std::make_unique<Job>(GetParam(), 3);
        jobs[how]->expect_failure(2);
        jobs[how]->start("leaves_while_one_is_killed");
    }
    for (auto &[how, job] : jobs) {
        ASSERT_TRUE(reaches(job->shared()->value[1], 2)) << how << ": " << job->wait(100);
        if (how == "stopped")
            job->signal(2, SIGSTOP);
    }
    sleep_ms(50);
    for (auto &[how, job] : jobs) {
        job->shared()->value[2] = 1;
        job->signal(2, SIGKILL);
    }
    for (auto &[how, job] : jobs)
        EXPECT_EQ(job->wait(), "") << how;
}

// ---- abort

RANK_FUNCTION(aborts)
{
    rank.open();
    auto channels = meet_all(rank, size);
    ph_channel *to = channels[0], *from = channels[1];
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(size);
    auto op = operation(7, !rank.rank, PH_ROLE_BOTH, memory, size);
    ph_channel *channel = nullptr;
    CHECK_OK(ph_wait(from, 8, stream)); // of each for the other
    rank.barrier();
    if (rank.rank == 0) {
        int rc = 0;
        std::thread exchanging([&] { rc = ph_exchange(rank.context, &op, 1, &channel); });
        sleep_ms(50);
        CHECK_OK(ph_context_abort(rank.context, "the test says so"));
        rank.synchronize(stream);
        exchanging.join();
        CHECK_RC(rc, PH_EABORTED);
        CHECK_RC(ph_channel_ended(to), PH_EABORTED);
        CHECK_RC(ph_put(to, 0, 0, 8, stream), PH_EABORTED);
        CHECK_RC(ph_exchange(rank.context, &op, 1, &channel), PH_EABORTED);
        CHECK_OK(ph_context_abort(rank.context, "again"));
    } else {
        rank.synchronize(stream);
        CHECK_RC(end_of(from), PH_EBROKEN);
        CHECK_RC(ph_put(to, 0, 0, 8, stream), PH_EBROKEN);
        CHECK_RC(ph_exchange(rank.context, &op, 1, &channel), PH_EBROKEN);
    }
    rank.barrier();
    Stopwatch watch;
    rank.close();
    CHECK(watch.ms() < patience(10000).count());
}

TEST_P(Destroy, AfterAbort)
{
    EXPECT_EQ(keys_after([] {
                  Job job(GetParam(), 2);
                  EXPECT_EQ(job.run("aborts"), "");
                  return job.redis().cli("KEYS ph:*");
              }),
              "");
}

// An abort ends a life as leaving does: the next one is met.
RANK_FUNCTION(begins_anew_after_an_abort)
{
    rank.open();
    auto channels = meet_all(rank, size);
    if (rank.rank == 0)
        CHECK_OK(ph_context_abort(rank.context, "the test says so"));
    else
        CHECK_RC(end_of(channels[0]), PH_EBROKEN);
    rank.barrier();
    if (rank.rank == 0) {
        rank.close();
        rank.open();
    }
    auto op = operation(2, !rank.rank, PH_ROLE_BOTH, rank.device->alloc(size), size);
    ph_channel *channel = nullptr;
    int rc = PH_EBROKEN;
    for (Stopwatch watch; rc == PH_EBROKEN && watch.ms() < patience(20000).count(); sleep_ms(1))
        rc = ph_exchange(rank.context, &op, 1, &channel);
    CHECK_OK(rc);
    CHECK_OK(ph_channel_ended(channel));
    rank.barrier();
}

TEST_P(Destroy, ALifeAfterAnAbort)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("begins_anew_after_an_abort"), "");
}

RANK_FUNCTION(aborts_a_send)
{
    // By words: what waits for flags need not be held, since it copies nothing when it ends.
    rank.open({"PEERHOP_LL_MAX=0", "PEERHOP_SM_MAX=0"});
    auto channels = meet_all(rank, size);
    ph_channel *to = channels[0], *from = channels[1];
    void *stream = rank.device->stream();
    rank.barrier();
    if (rank.rank == 0) {
        CHECK_OK(ph_send(to, size, stream)); // waits for the recv, which does not come
        CHECK(!rank.device->synchronize(stream, 20));
        CHECK_OK(ph_context_abort(rank.context, "the test says so"));
        // The copy may be let go only when the peer's application knows that its buffer is not its
        // own any more.
        CHECK(!rank.device->synchronize(stream, 100));
        rank.shared->value[0] = 1;
        rank.synchronize(stream);
    } else {
        CHECK(reaches(rank.shared->value[0], 1));
        CHECK_RC(end_of(from), PH_EBROKEN); // now it knows
        CHECK_RC(ph_recv(from, size, stream), PH_EBROKEN);
    }
    rank.barrier();
}

TEST_P(Destroy, AnAbortedSendIsHeldUntilThePeerKnows)
{
    if (is_staged())
        GTEST_SKIP() << "what is staged is sent into slots, not into the peer's buffer";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("aborts_a_send"), "");
}
