// SPDX-License-Identifier: BSD-3-Clause
// The end of contexts: in any order, while peers copy and streams wait. Nothing hangs and nothing
// is left.
#include <csignal>
#include <map>
#include <memory>

#include "e2e/bytes.h"
#include "e2e/meeting.h"
#include "support/entries.h"

class Destroy : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_NETS(Destroy);

static const size_t size = 50000;

// ---- in any order

RANK_FUNCTION(leaves_in_turn)
{
    rank.open();
    auto channels = meet_all(rank, size);
    rank.barrier();
    uint64_t turn = rank.argument.find(static_cast<char>('0' + rank.rank));
    CHECK(reaches(rank.shared->value[0], turn));
    if (turn > 0) // those that left are gone for those that stay
        CHECK_RC(
            end_of(channels[2 * (rank.argument[0] - '0' - (rank.argument[0] - '0' > rank.rank))]),
            PH_EPEER);
    if (rank.argument.size() > 4)
        sleep_ms(60);
    Stopwatch watch;
    rank.close(); // the others are not inside the library
    CHECK(watch.ms() < patience(10000).count());
    rank.shared->value[0]++;
    CHECK(reaches(rank.shared->value[0], 4)); // the process outlives its context
}

TEST_P(Destroy, InAnyOrderOfRanks)
{
    EXPECT_EQ(keys_after([] {
                  std::map<std::string, std::unique_ptr<Job>> jobs; // at once: they mostly wait
                  std::string keys;
                  for (const char *order : {"0123", "3210", "2031 late"}) {
                      jobs[order] = std::make_unique<Job>(GetParam(), 4);
                      jobs[order]->start("leaves_in_turn", order);
                  }
                  for (auto &[order, job] : jobs) {
                      EXPECT_EQ(job->wait(), "") << order;
                      keys += job->keys();
                  }
                  return keys;
              }),
              "");
}

RANK_FUNCTION(leaves_at_once)
{
    rank.open();
    meet_all(rank, size);
    if (rank.argument == "barrier")
        rank.barrier();
    rank.close();
}

TEST_P(Destroy, AllAtOnce)
{
    for (const char *how : {"barrier", "any time"})
        EXPECT_EQ(keys_after([how] {
                      Job job(GetParam(), 4);
                      EXPECT_EQ(job.run("leaves_at_once", how), "");
                      return job.keys();
                  }),
                  "");
}

RANK_FUNCTION(leaves_a_started_exchange)
{
    rank.open();
    meet_all(rank, size);
    void *memory = rank.device->alloc(size);
    auto op = operation(9, !rank.rank, PH_ROLE_BOTH, memory, size);
    ph_exchange_request *request = nullptr;
    CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
    if (rank.rank == 1) { // what is pending ends with the context
        rank.close();
        rank.shared->value[0] = 1;
        return;
    }
    ph_channel *channel = nullptr;
    CHECK(reaches(rank.shared->value[0], 1));
    int rc = ph_exchange_finish(&request, &channel, patience(20000).count());
    CHECK(rc == PH_EPEER && request == nullptr && channel == nullptr);
}

TEST_P(Destroy, WithAnExchangeStarted)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("leaves_a_started_exchange"), "");
}

// ---- while a peer copies: trap 3

// Rank 0 leaves while rank 1 copies to and from its memory, and comes again.
RANK_FUNCTION(copies_while_the_peer_leaves)
{
    void *memory = nullptr, *stream = nullptr;
    for (uint64_t life = 0; life < 4; life++) {
        if (rank.rank == 0 || life == 0)
            rank.open();
        if (life == 0 || (rank.rank == 0 && rank.device->host())) {
            memory = rank.device->alloc(size); // a host context's memory ends with it
            stream = rank.device->stream();
        }
        auto op = operation(1, !rank.rank, PH_ROLE_BOTH, memory, size);
        ph_channel *channel = nullptr;
        int rc = PH_EPEER; // of a former life
        for (Stopwatch watch; rc == PH_EPEER && watch.ms() < patience(20000).count(); sleep_ms(1))
            rc = ph_exchange(rank.context, &op, 1, &channel);
        CHECK_OK(rc);
        if (rank.rank == 0) {
            CHECK(reaches(rank.shared->value[0], life + 1));
            rank.close();
            CHECK_EQUAL(rank.shared->value[2], life + 1); // the copies came before the end
            if (!rank.device->host()) {
                set_value(rank, memory, size, 77); // nobody copies any more
                sleep_ms(3);
                check_value(rank, memory, size, 77, "after destroy");
            }
            rank.shared->value[1] = life + 1;
            continue;
        }
        auto &begun = rank.shared->value[2];
        rank.device->slow_fill(stream, memory, size, 1, 50000);
        rank.device->call(stream, [&begun, life] { begun = life + 1; });
        for (int i = 1; rc == 0; i++) {
            const bool gets = i % 2 && !rank.staged();
            rc = gets ? ph_get(channel, 0, 0, size, stream) : ph_put(channel, 0, 0, size, stream);
            if (i == 8)
                rank.shared->value[0] = life + 1;
            if (i % 16 == 0)
                rank.synchronize(stream);
        }
        CHECK_RC(rc, PH_EPEER);
        rank.synchronize(stream);
        CHECK(reaches(rank.shared->value[1], life + 1));
        CHECK_OK(ph_channel_close(channel));
    }
}

TEST_P(Destroy, WhileAPeerCopies)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("copies_while_the_peer_leaves"), "");
}

// ---- while streams wait

RANK_FUNCTION(leaves_while_the_peer_waits)
{
    rank.open();
    auto channels = meet_all(rank, size);
    void *stream = rank.device->stream();
    if (rank.rank == 0) {
        CHECK(reaches(rank.shared->value[0], 1));
        sleep_ms(20);
        rank.close();
        rank.shared->value[1] = 1;
    } else {
        CHECK_OK(ph_wait(channels[1], 8, stream));
        rank.shared->value[0] = 1;
        rank.synchronize(stream);
        CHECK(reaches(rank.shared->value[1], 1));
        CHECK_RC(ph_channel_ended(channels[1]), PH_EPEER);
        CHECK_RC(ph_wait(channels[1], 8, stream), PH_EPEER);
    }
}

TEST_P(Destroy, WhileThePeersStreamWaitsForUs)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("leaves_while_the_peer_waits"), "");
}

RANK_FUNCTION(leaves_while_it_waits)
{
    rank.open();
    auto channels = meet_all(rank, size);
    void *stream = rank.device->stream();
    if (rank.rank == 0) {
        CHECK_OK(ph_wait(channels[1], 0, stream));
        Stopwatch watch;
        CHECK_RC(ph_context_destroy(&rank.context, 200), -ETIMEDOUT);
        CHECK(watch.ms() >= 190 && watch.ms() < 10000);
        CHECK(rank.context != nullptr);
        CHECK_SAYS(rank.error(), "rank 1");
        rank.shared->value[0] = 1;
        rank.close(); // the peer signals now
        rank.shared->value[1] = 1;
    } else {
        CHECK(reaches(rank.shared->value[0], 1));
        CHECK_OK(ph_signal(channels[0], stream));
        rank.synchronize(stream);
        CHECK(reaches(rank.shared->value[1], 1));
    }
}

TEST_P(Destroy, WaitsForItsOwnStreams)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("leaves_while_it_waits"), "");
}

RANK_FUNCTION(peer_is_stopped)
{
    rank.open();
    meet_all(rank, size);
    rank.barrier();
    if (rank.rank == 1) {
        CHECK(reaches(rank.shared->value[1], 1, 60000));
        return;
    }
    rank.shared->value[0] = 1;
    CHECK(reaches(rank.shared->value[2], 1));
    // What a stopped process's device still does is not known.
    CHECK_RC(ph_context_destroy(&rank.context, 200), -ETIMEDOUT);
    // Over the net it may be stopped before it has taken the last post.
    CHECK_SAYS(rank.error(), "rank 0 cannot leave: ");
    CHECK_SAYS(rank.error(), "rank 1");
    rank.shared->value[3] = 1;
    rank.close(45000); // the kernel may take half a minute to end the one that is killed
    rank.shared->value[1] = 1;
}

TEST_P(Destroy, WithAPeerThatIsStopped)
{
    for (int number : {SIGCONT, SIGKILL}) {
        Job job(GetParam(), 2);
        job.start("peer_is_stopped");
        ASSERT_TRUE(reaches(job.shared()->value[0], 1)) << job.wait(100);
        job.signal(1, SIGSTOP);
        sleep_ms(50); // a stop is not at once
        job.shared()->value[2] = 1;
        EXPECT_TRUE(reaches(job.shared()->value[3], 1)) << job.wait(100);
        job.signal(1, number);
        if (number == SIGKILL)
            job.expect_failure(1);
        EXPECT_EQ(job.wait(), "");
    }
}

// ---- nothing is left

static int shared_mappings()
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024];
    int n = 0;
    while (fgets(line, sizeof line, maps))
        n += strstr(line, "memfd:peerhop") != nullptr;
    fclose(maps);
    return n;
}

RANK_FUNCTION(lives_often)
{
    int descriptors = 0, threads = 0, mappings = 0;
    const int lives = 25;
    char *memory = nullptr;
    void *stream = nullptr;
    for (int life = 0; life < lives; life++) {
        // Without waiting for each other: a life may meet the last one of its peer.
        rank.open();
        if (rank.device->host() || life == 0) { // memory and queues of host contexts end with them
            memory = static_cast<char *>(rank.device->alloc(2 * rank.ranks * size));
            stream = rank.device->stream();
        }
        meet_all(rank, size, memory, stream);
        rank.close();
        if (life == 4) { // by now drivers and heaps have what they keep
            descriptors = entries("/proc/self/fd");
            threads = thread_entries();
            mappings = shared_mappings();
        }
    }
    CHECK_EQUAL(entries("/proc/self/fd"), descriptors);
    CHECK_EQUAL(thread_entries(), threads);
    CHECK_EQUAL(shared_mappings(), mappings);
}

TEST_P(Destroy, ManyLivesLeaveNothing)
{
    EXPECT_EQ(keys_after([] {
                  Job job(GetParam(), 2);
                  EXPECT_EQ(job.run("lives_often"), "");
                  return job.keys();
              }),
              "");
}

RANK_FUNCTION(two_hundred_contexts)
{
    int descriptors = 0, threads = 0;
    for (int i = 0; i < 200; i++) {
        rank.open();
        rank.close();
        if (i == 4) {
            descriptors = entries("/proc/self/fd");
            threads = thread_entries();
        }
    }
    CHECK_EQUAL(entries("/proc/self/fd"), descriptors);
    CHECK_EQUAL(thread_entries(), threads);
    CHECK_EQUAL(shared_mappings(), 1); // the test's own
}

TEST_P(Destroy, TwoHundredContextsInARow)
{
    EXPECT_EQ(keys_after([] {
                  Job job(GetParam(), 1);
                  EXPECT_EQ(job.run("two_hundred_contexts"), "");
                  return job.keys();
              }),
              "");
}

RANK_FUNCTION(fails_to_open)
{
    std::string sentence;
    int before = entries("/proc/self/fd"), threads = thread_entries();
    for (int i = 0; i < 20; i++) {
        CHECK(rank.try_open({}, 20, &sentence) != 0);
        CHECK(rank.try_open({"PEERHOP_SOCKET_DIRECTORY=/nonexistent"}, 20, &sentence) != 0);
    }
    CHECK_EQUAL(entries("/proc/self/fd"), before);
    CHECK_EQUAL(thread_entries(), threads);
}

TEST(DestroyHost, AFailedCreationLeavesNothing)
{
    RedisServer absent;
    Job job("host", 1, absent.uri());
    EXPECT_EQ(job.run("fails_to_open"), "");
}
