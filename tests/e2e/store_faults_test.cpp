// SPDX-License-Identifier: BSD-3-Clause
// Stores that are absent, late, closed, forgetful, stopped, full or full of nonsense, as ranks meet
// them.
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <sys/stat.h>
#include <unistd.h>

#include "e2e/exchanging.h"
#include "support/store_proxy.h"
#include "support/memory_store.h"

class StoreFaults : public testing::Test
{
  protected:
    void SetUp() override
    {
        if (!RedisServer::available())
            GTEST_SKIP() << "no redis-server";
        ASSERT_EQ(signal(SIGPIPE, SIG_DFL),
                  SIG_DFL); // a library that raised it would end the test here
    }
};

// Ranks that are connected on one node exchange without a store: who is to need it meets over the
// net.
static const size_t size = 2000;

// One message from rank 0 to rank 1 under an id, on new memory.
static void send_one(Rank &rank, uint64_t op_id)
{
    void *memory = rank.device->alloc(size);
    ph_channel *channel = rank.channel(!rank.rank, op_id, role_of(rank, 0), memory, size);
    pass(rank, channel, role_of(rank, 0), memory, size, op_id, rank.device->stream());
}

// ---- absent, late, closed

RANK_FUNCTION(meets_an_absent_store)
{
    std::string sentence;
    Stopwatch watch;
    CHECK_RC(rank.try_open({}, 250, &sentence), -ETIMEDOUT);
    CHECK(watch.ms() >= 240 && watch.ms() < 10000);
    CHECK_SAYS(sentence, getenv("PEERHOP_STORE"));
}

TEST_F(StoreFaults, AnAbsentStoreIsNamed)
{
    RedisServer absent; // never started
    Job job("host", 2, absent.uri());
    EXPECT_EQ(job.run("meets_an_absent_store"), "");
}

RANK_FUNCTION(sends_one)
{
    rank.open();
    send_one(rank, 1);
    rank.barrier();
}

TEST_F(StoreFaults, ALateStoreIsWaitedFor)
{
    RedisServer late;
    Job job("host", 2, late.uri());
    job.start("sends_one");
    sleep_ms(300);
    ASSERT_TRUE(late.start());
    EXPECT_EQ(job.wait(), "");
}

RANK_FUNCTION(is_not_let_in)
{
    std::string sentence;
    Stopwatch watch;
    CHECK_RC(rank.try_open({}, 30000, &sentence), PH_ESTORE);
    CHECK(watch.ms() < patience(20000).count());
    CHECK_SAYS(sentence, rank.argument);
    CHECK(sentence.find("guess") == std::string::npos);
}

TEST_F(StoreFaults, PasswordsAreAsked)
{
    RedisServer closed({"--requirepass", "right"});
    ASSERT_TRUE(closed.start());
    std::string file = closed.socket() + ".password";
    FILE *out = fopen(file.c_str(), "w");
    fchmod(fileno(out), 0600);
    fputs("right\n", out);
    fclose(out);
    Job right("host", 2, "unix://:right@" + closed.socket());
    EXPECT_EQ(right.run("sends_one"), "");
    Job from_file("host", 2, closed.uri());
    from_file.environment("PEERHOP_STORE_PASSWORD_FILE", file);
    EXPECT_EQ(from_file.run("sends_one"), "");
    Job wrong("host", 1, "unix://:guess@" + closed.socket());
    EXPECT_EQ(wrong.run("is_not_let_in", "WRONGPASS"), "");
    Job none("host", 1, closed.uri());
    EXPECT_EQ(none.run("is_not_let_in", "NOAUTH"), "");
    unlink(file.c_str());
}

// ---- forgets

RANK_FUNCTION(goes_on_after_a_restart)
{
    rank.open();
    rank.shared->value[0]++;
    if (rank.rank == 1)
        CHECK(reaches(rank.shared->value[1],
                      1)); // rank 0 has offered, and the store has forgotten it
    send_one(rank, 1);
    rank.barrier();
}

TEST_F(StoreFaults, ARestartInMidExchangeLosesNothing)
{
    for (bool early : {true, false}) // whether rank 1 has come before the restart
        EXPECT_EQ(keys_after([early] {
                      Job job("hostnet", 2);
                      job.start_rank(0, "goes_on_after_a_restart");
                      if (early)
                          job.start_rank(1, "goes_on_after_a_restart");
                      EXPECT_TRUE(reaches(job.shared()->value[0], 1 + early)) << job.wait(100);
                      sleep_ms(100);
                      EXPECT_TRUE(job.redis().restart());
                      job.shared()->value[1] = 1;
                      if (!early)
                          job.start_rank(1, "goes_on_after_a_restart");
                      EXPECT_EQ(job.wait(), "");
                      return job.redis().cli("KEYS ph:*");
                  }),
                  "");
}

// Who leaves does not wait for long, and says so: keys that stay without that are not to be there.
RANK_FUNCTION(leaves_without_the_store)
{
    rank.open();
    rank.shared->value[0]++;
    CHECK(reaches(rank.shared->value[1], 1));
    rank.close();
}

TEST_F(StoreFaults, WhoLeavesConnectsOnceMore)
{
    EXPECT_EQ(keys_after([] {
                  Job job("host", 2);
                  job.start("leaves_without_the_store");
                  EXPECT_TRUE(reaches(job.shared()->value[0], 2));
                  job.redis().cli("CLIENT KILL TYPE normal");
                  job.shared()->value[1] = 1;
                  EXPECT_EQ(job.wait(), "");
                  return job.redis().cli("KEYS ph:*");
              }),
              "");
}

TEST_F(StoreFaults, KeysStayWhereTheStoreDoesNotAnswerWhoLeaves)
{
    int runs = 0;
    EXPECT_EQ(keys_after(
                  [&] {
                      RedisServer redis;
                      EXPECT_TRUE(redis.start());
                      StoreProxy proxy(redis.socket());
                      Job job("host", 2, proxy.uri());
                      job.start("leaves_without_the_store");
                      EXPECT_TRUE(reaches(job.shared()->value[0], 2));
                      if (runs++ == 0)
                          // what is asked for is not done later either
                          proxy.set(StoreProxy::SILENT);
                      job.shared()->value[1] = 1;
                      EXPECT_EQ(job.wait(), "");
                      return redis.cli("KEYS ph:*");
                  },
                  [] { return true; }), // the test sees to that
              "");
    EXPECT_GE(runs, 2); // a busy machine may miss the deadline once more
    // Neither is an excuse without the other.
    for (bool says : {false, true}) {
        runs = 0;
        auto leaves = [&] {
            unanswered_lines += says;
            return runs++ ? "" : "of another reason";
        };
        EXPECT_EQ(keys_after(leaves, [&] { return !says; }), "of another reason");
    }
}

RANK_FUNCTION(sleeps_over_a_restart)
{
    rank.open();
    send_one(rank, 1);
    rank.shared->value[0]++;
    CHECK(reaches(rank.shared->value[1], 1));
    send_one(rank, 2);
    rank.barrier();
}

TEST_F(StoreFaults, ARestartBetweenExchangesIsSurvived)
{
    Job job("host", 2);
    job.start("sleeps_over_a_restart");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    ASSERT_TRUE(job.redis().restart());
    job.shared()->value[1] = 1;
    EXPECT_EQ(job.wait(), "");
}

// Rank 1 is killed, the store is restarted, and a later life of rank 1 comes. Rank 0 only ever asks
// for it, and is told at once that the former one is gone: it has to find out all the same.
RANK_FUNCTION(asks_until_it_comes_back)
{
    rank.open();
    send_one(rank, 1);
    rank.shared->value[0]++;
    if (rank.rank == 1) {
        CHECK(reaches(rank.shared->value[1], 1, 60000));
        return;
    }
    CHECK(reaches(rank.shared->value[2], 1));
    void *memory = rank.device->alloc(64);
    struct ph_operation ask = operation(1, 1, PH_ROLE_SENDER, memory, 64);
    struct ph_channel *channel = nullptr;
    Stopwatch watch;
    int rc;
    while ((rc = ph_exchange(rank.context, &ask, 1, &channel)) == PH_EPEER &&
           watch.ms() < patience(30000).count())
        sleep_ms(1);
    CHECK_OK(rc);
    rank.shared->value[1] = 1;
}

RANK_FUNCTION(comes_back)
{
    rank.open();
    void *memory = rank.device->alloc(64);
    exchange_all(rank, {operation(1, 0, PH_ROLE_RECEIVER, memory, 64)});
    CHECK(reaches(rank.shared->value[1], 1));
}

TEST_F(StoreFaults, ALaterLifeIsMetAfterARestartToo)
{
    Job job("host", 2);
    job.expect_failure(1);
    job.start("asks_until_it_comes_back");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    job.signal(1, SIGKILL);
    ASSERT_EQ(job.status(1, 60000), 128 + SIGKILL);
    ASSERT_TRUE(job.redis().restart());
    job.shared()->value[2] = 1;
    job.start_rank(1, "comes_back");
    EXPECT_EQ(job.wait(), "");
}

RANK_FUNCTION(sends_many)
{
    rank.open();
    for (int op = 0; op < 150; op++) {
        if (op == 50 || op == 100) // not all between two restarts
            CHECK(reaches(rank.shared->value[1], static_cast<uint64_t>(op / 50)));
        send_one(rank, op);
    }
    rank.shared->value[0] = 1;
    rank.barrier();
}

TEST_F(StoreFaults, ManyRestartsInManyExchanges)
{
    Job job("host", 2);
    job.start("sends_many");
    int restarts = 0;
    while (restarts < 60 && job.shared()->value[0] == 0) {
        sleep_ms(15);
        EXPECT_TRUE(job.redis().restart());
        job.shared()->value[1] = ++restarts;
    }
    EXPECT_GT(restarts, 1);
    EXPECT_EQ(job.wait(), "");
}

// ---- stops

RANK_FUNCTION(meets_a_stopped_store)
{
    rank.open({}, 600);
    void *memory = rank.device->alloc(size);
    void *stream = rank.device->stream();
    ph_role role = role_of(rank, 0);
    ph_channel *channel = rank.channel(!rank.rank, 1, role, memory, size);
    rank.shared->value[0]++;
    CHECK(reaches(rank.shared->value[1], 1));
    // What is known needs no store ...
    CHECK(rank.channel(!rank.rank, 1, role, memory, size) == channel);
    pass(rank, channel, role, memory, size, 1, stream);
    // ... what is new cannot be told.
    Stopwatch watch;
    auto op = operation(2, !rank.rank, role, memory, size);
    std::string sentence = exchange_fails(rank, {op}, -ETIMEDOUT);
    CHECK(watch.ms() < patience(10000).count());
    rank.barrier();
    rank.shared->value[2]++;
    if (rank.argument == "destroy") {
        Stopwatch closing;
        rank.close();
        CHECK(closing.ms() < patience(10000).count());
        return;
    }
    CHECK(reaches(rank.shared->value[3], 1)); // the store goes on
    ph_exchange_request *request;
    CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
    CHECK_OK(ph_exchange_finish(&request, &channel, patience(20000).count()));
    pass(rank, channel, role, memory, size, 2, stream);
    rank.barrier();
}

TEST_F(StoreFaults, AStoppedStoreEndsAtTheDeadline)
{
    Job job("hostnet", 2);
    job.start("meets_a_stopped_store");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    job.redis().pause();
    job.shared()->value[1] = 1;
    EXPECT_TRUE(reaches(job.shared()->value[2], 2)) << job.wait(100);
    job.redis().resume();
    job.shared()->value[3] = 1;
    EXPECT_EQ(job.wait(), "");
}

TEST_F(StoreFaults, AStoppedStoreDoesNotHoldUpDestroyForLong)
{
    Job job("hostnet", 2);
    job.start("meets_a_stopped_store", "destroy");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    job.redis().pause();
    job.shared()->value[1] = 1;
    EXPECT_EQ(job.wait(), "");
    job.redis().resume();
}

TEST_F(StoreFaults, AStoppedStoreThatGoesOnIsWaitedFor)
{
    Job job("hostnet", 2);
    job.start_rank(0, "goes_on_after_a_restart");
    job.start_rank(1, "goes_on_after_a_restart");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    job.redis().pause();
    job.shared()->value[1] = 1;
    sleep_ms(300);
    job.redis().resume();
    EXPECT_EQ(job.wait(), "");
}

// ---- refuses

RANK_FUNCTION(meets_a_store_that_refuses)
{
    rank.open({}, 3000);
    send_one(rank, 1);
    rank.shared->value[0]++;
    CHECK(reaches(rank.shared->value[1], 1));
    void *memory = rank.device->alloc(size);
    auto op = operation(2, !rank.rank, role_of(rank, 0), memory, size);
    CHECK_SAYS(exchange_fails(rank, {op}, PH_ESTORE), rank.argument);
    rank.shared->value[2]++;
    CHECK(reaches(rank.shared->value[3], 1));
    send_one(rank, 2);
    rank.barrier();
}

static void refuses(const char *begin, const char *end, const char *word)
{
    Job job("hostnet", 2);
    job.start("meets_a_store_that_refuses", word);
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    ASSERT_EQ(job.redis().cli(begin), "OK");
    job.shared()->value[1] = 1;
    EXPECT_TRUE(reaches(job.shared()->value[2], 2)) << job.wait(100);
    ASSERT_EQ(job.redis().cli(end), "OK");
    job.shared()->value[3] = 1;
    EXPECT_EQ(job.wait(), "");
}

TEST_F(StoreFaults, AReadOnlyStoreIsNamed)
{
    refuses("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "READONLY");
}

TEST_F(StoreFaults, AFullStoreIsNamed)
{
    refuses("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "OOM");
}

RANK_FUNCTION(is_not_announced)
{
    std::string sentence;
    CHECK_RC(rank.try_open({}, 3000, &sentence), PH_ESTORE);
    CHECK_SAYS(sentence, "OOM");
}

TEST_F(StoreFaults, AFullStoreFailsCreation)
{
    Job job("host", 1);
    ASSERT_EQ(job.redis().cli("CONFIG SET maxmemory 1"), "OK");
    EXPECT_EQ(job.run("is_not_announced"), "");
}

// ---- a store of the user's own

TEST_F(StoreFaults, ADictionaryIsAStore)
{
    MemoryStore dictionary;
    ph_store_callbacks callbacks = dictionary.callbacks();
    auto body = [](int rank, ph_context *context) {
        ph_queue *queue = nullptr;
        ASSERT_EQ(ph_queue_create(context, &queue), 0);
        for (int round = 0; round < 20; round++)
            all_to_all_of_threads(rank, 4, context, queue, round);
    };
    as_threads(4, body, [&](ph_context_params &params) {
        params.store_callbacks = &callbacks;
        params.job = nullptr; // the dictionary is the job's own
    });
    EXPECT_EQ(dictionary.keys(), "");
    EXPECT_FALSE(dictionary.overwritten());
}

TEST_F(StoreFaults, ADictionaryThatFailsIsNamed)
{
    MemoryStore dictionary;
    ph_store_callbacks callbacks = dictionary.callbacks();
    std::atomic<int> arrived{0};
    auto wait_for = [&](int count) {
        arrived++;
        while (arrived < count)
            sleep_ms(1);
    };
    auto body = [&](int rank, ph_context *context) {
        void *memory = nullptr;
        ASSERT_EQ(ph_host_alloc(context, 100, &memory), 0);
        auto op = operation(1, !rank, PH_ROLE_BOTH, memory, 100);
        ph_channel *channel = nullptr;
        char text[512] = "";
        wait_for(2);
        if (rank == 0)
            dictionary.fail_sets(2, -EIO, false); // one for each rank's offer
        wait_for(4);
        EXPECT_EQ(ph_exchange(context, &op, 1, &channel), PH_ESTORE);
        ph_context_error(context, text, sizeof text);
        EXPECT_NE(std::string(text).find("Input/output error"), std::string::npos) << text;
        wait_for(6);
        EXPECT_EQ(ph_exchange(context, &op, 1, &channel), 0);
        EXPECT_NE(channel, nullptr);
        wait_for(8);
    };
    setenv("PEERHOP_PATH", "net", 1);
    as_threads(2, body, [&](ph_context_params &params) { params.store_callbacks = &callbacks; });
    unsetenv("PEERHOP_PATH");
}

TEST_F(StoreFaults, ADictionaryThatCannotBeReadFailsTheExchange)
{
    MemoryStore dictionary;
    ph_store_callbacks callbacks = dictionary.callbacks();
    auto body = [&](int, ph_context *context) {
        void *memory = nullptr;
        ASSERT_EQ(ph_host_alloc(context, 100, &memory), 0);
        auto op = operation(1, 1, PH_ROLE_BOTH, memory, 100);
        ph_channel *channel = nullptr;
        dictionary.get_result = -EACCES;
        EXPECT_EQ(ph_exchange(context, &op, 1, &channel), PH_ESTORE);
        dictionary.get_result = 0;
    };
    as_threads(1, body, [&](ph_context_params &params) {
        params.store_callbacks = &callbacks;
        params.ranks = 2;
    });
}

// ---- a directory

TEST_F(StoreFaults, ADirectoryIsAStoreOfSeveralJobs)
{
    Folder folder;
    const std::string store = folder.store();
    auto body = [](int rank, ph_context *context) {
        ph_queue *queue = nullptr;
        ASSERT_EQ(ph_queue_create(context, &queue), 0);
        for (int round = 0; round < 10; round++)
            all_to_all_of_threads(rank, 3, context, queue, round);
    };
    std::vector<std::thread> jobs;
    for (const char *job : {"one", "two/with:a>slash", ".three"})
        jobs.emplace_back([&, job] {
            as_threads(3, body, [&](ph_context_params &params) {
                params.store = store.c_str();
                params.job = job;
            });
        });
    for (std::thread &job : jobs)
        job.join();
    EXPECT_EQ(folder.list(), "");
}

TEST_F(StoreFaults, ADirectoryThatIsRemovedFailsTheExchangeAndHoldsUpNoEnd)
{
    Folder folder;
    const std::string store = folder.store();
    std::atomic<int> arrived{0};
    auto wait_for = [&](int count) {
        arrived++;
        while (arrived < count)
            sleep_ms(1);
    };
    auto body = [&](int rank, ph_context *context) {
        void *memory = nullptr;
        ASSERT_EQ(ph_host_alloc(context, 100, &memory), 0);
        auto op = operation(1, !rank, PH_ROLE_BOTH, memory, 100);
        ph_channel *channel = nullptr;
        char text[512] = "";
        wait_for(2);
        if (rank == 0)
            std::filesystem::remove_all(folder.path() + "/store");
        wait_for(4);
        EXPECT_EQ(ph_exchange(context, &op, 1, &channel), PH_ESTORE);
        ph_context_error(context, text, sizeof text);
        EXPECT_NE(std::string(text).find("its directory " + folder.path() + "/store was removed"),
                  std::string::npos)
            << text;
        wait_for(6);
    };
    as_threads(2, body, [&](ph_context_params &params) { params.store = store.c_str(); });
}
