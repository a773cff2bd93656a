// SPDX-License-Identifier: BSD-3-Clause
// Two ranks of one node that see only their own devices, or live in two containers: whether ipc
// serves them is tried. Both take the same path, whoever comes first, and whatever becomes of one
// of them meanwhile.
#include <unistd.h>

#include "e2e/trial_lies.h"
#include "e2e/conversing.h"
#include "e2e/own_pids.h"

class Trial : public testing::Test
{
  protected:
    void SetUp() override
    {
        std::string why;
        if (!RedisServer::available())
            GTEST_SKIP() << "no redis-server";
        if (!net_available() || !device_available("standin", &why))
            GTEST_SKIP() << "needs libfabric and the stand-in. " << why;
    }

    // Rank 0 has device 0, the others have device 1. far: neither reaches the other's.
    static void apart(Job &job, int processes, bool far)
    {
        for (int process = 0; process < processes; process++)
            job.environment(process, "CUDA_VISIBLE_DEVICES", process ? "1" : "0");
        if (far)
            job.environment("PEERHOP_STANDIN_NO_PEER", "0-1");
    }
};

// Steps, in shared->value.
enum { WAITED, CAME, GO, OVER, MADE };

static bool is_far(const Rank &rank)
{
    return rank.argument.find("net") == 0;
}

static bool says(const Rank &rank, const char *word)
{
    return rank.argument.find(word) != std::string::npos;
}

static void meet(Rank &rank, const std::vector<ph_operation> &ops)
{
    auto channels = exchange_all(rank, ops);
    check_report(channels[0], 1, is_far(rank) ? "net" : "ipc",
                 is_far(rank) ? "no peer access" : not_needed);
    converse(rank, !rank.rank, channels, static_cast<char *>(ops[0].buffer));
}

static int exchange_for(Rank &rank, const std::vector<ph_operation> &ops, int64_t ms)
{
    ph_exchange_request *request = nullptr;
    std::vector<ph_channel *> channels(ops.size());
    CHECK_OK(ph_exchange_start(rank.context, ops.data(), ops.size(), &request));
    return ph_exchange_finish(&request, channels.data(), ms);
}

// Whoever comes first knows the path without the other's application.
RANK_FUNCTION(comes_first)
{
    rank.open();
    const auto ops = both_ways(!rank.rank, static_cast<char *>(rank.device->alloc(2 * size)));
    if (std::to_string(rank.rank) == rank.argument.substr(rank.argument.size() - 1)) {
        CHECK(reaches(rank.shared->value[CAME], 1));
        rank.ends_with(-ETIMEDOUT,
                       is_far(rank)     ? "its hello for the net path has not come"
                       : rank.rank == 0 ? "has not come to this exchange"
                                        : "it has not offered this operation",
                       [&] { return exchange_for(rank, ops, patience(500).count()); });
        if (is_far(rank))
            CHECK_SAYS(rank.error(), "ipc: this device has no peer access to the other device");
        rank.shared->value[WAITED] = 1;
    }
    rank.shared->value[CAME] = 1;
    CHECK(reaches(rank.shared->value[WAITED], 1));
    meet(rank, ops);
    rank.barrier();
}

TEST_F(Trial, NobodyWaitsForTheOthersApplication)
{
    for (const std::string how : {"ipc 0", "ipc 1", "net 0", "net 1"}) {
        SCOPED_TRACE(how);
        Job job("standin", 2);
        apart(job, 2, how.find("net") == 0);
        EXPECT_EQ(job.run("comes_first", how), "");
    }
}

// One of two devices reaches the other, which does not reach it.
RANK_FUNCTION(one_reaches)
{
    rank.open();
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    const bool reaches_it = rank.argument.find(std::to_string(rank.rank)) == std::string::npos;
    const bool first = says(rank, "first") == reaches_it;
    if (first)
        CHECK_RC(exchange_for(rank, both_ways(!rank.rank, memory), patience(300).count()),
                 -ETIMEDOUT);
    rank.barrier();
    auto channels = exchange_all(rank, both_ways(!rank.rank, memory));
    check_report(channels[0], 1, "net",
                 reaches_it ? "the other device has no peer access to this device"
                            : "this device has no peer access to the other device");
    converse(rank, !rank.rank, channels, memory);
    CHECK(imports_made() == reaches_it);
    CHECK(imports_open() == reaches_it);
    CHECK_OK(ph_reap(rank.context, 0));
    CHECK(imports_open() == 0);
    rank.barrier();
}

TEST_F(Trial, BothTakeTheNetWhereOneOfThemCannotMapAndNothingStaysMapped)
{
    for (const std::string how : {"0, the one that reaches first", "1, the one that reaches first",
                                  "0, the other", "1, the other"}) {
        SCOPED_TRACE(how);
        Job job("standin", 2);
        apart(job, 2, false);
        job.environment(how[0] - '0', "PEERHOP_STANDIN_NO_PEER", "1");
        EXPECT_EQ(job.run("one_reaches", how), "");
    }
}

RANK_FUNCTION(counts_imports)
{
    rank.open();
    meet(rank, both_ways(!rank.rank, static_cast<char *>(rank.device->alloc(2 * size))));
    rank.shared->value[MADE + rank.rank] = imports_made();
    rank.barrier();
}

// Memory that the try has mapped serves the verify step.
TEST_F(Trial, NothingIsMappedThatWouldNotBeWhereTheTwoSeeEachOther)
{
    uint64_t made[2][2];
    for (int sees : {0, 1}) {
        Job job("standin", 2);
        if (!sees)
            apart(job, 2, false);
        EXPECT_EQ(job.run("counts_imports", "ipc"), "");
        for (int rank : {0, 1})
            made[sees][rank] = job.shared()->value[MADE + rank];
    }
    for (int rank : {0, 1}) {
        EXPECT_GT(made[1][rank], 0u);
        EXPECT_EQ(made[0][rank], made[1][rank]);
    }
}

TEST(TrialOnCuda, GpusThatReachEachOtherMeetByIpc)
{
    std::string why;
    if (!RedisServer::available() || !net_available() || !gpus_linked(&why))
        GTEST_SKIP() << "needs redis-server, libfabric and two GPUs. " << why;
    Job job("gpu", 2);
    for (int rank : {0, 1})
        job.environment(rank, "CUDA_VISIBLE_DEVICES", std::to_string(rank));
    EXPECT_EQ(job.run("counts_imports", "ipc"), "");
}

// ---- ends

static Rank *here;

static bool is_over()
{
    return here->shared->value[OVER] != 0;
}

// Rank 0 waits for rank 1, which comes to its end instead: it aborts, leaves, or is killed. "held":
// while its driver is busy, so that it has not tried yet.
RANK_FUNCTION(one_ends)
{
    const bool killed = says(rank, "killed"); // to which the kernel may take half a minute
    rank.open({}, killed ? 60000 : 20000);
    const auto ops = both_ways(!rank.rank, static_cast<char *>(rank.device->alloc(2 * size)));
    here = &rank;
    if (rank.rank == 1) {
        if (says(rank, "held"))
            hold_imports(is_over);
        rank.shared->value[CAME] = 1;
        for (Stopwatch watch; !was_asked(); sleep_ms(1)) // else it is nobody whom rank 0 knows
            CHECK(watch.ms() < patience(20000).count());
        sleep_ms(200); // rank 0 waits by now, or it is too late to see more than the end
        if (says(rank, "aborts"))
            CHECK_OK(ph_context_abort(rank.context, "of the test's own accord"));
        else if (says(rank, "leaves"))
            rank.close();
        else
            raise(SIGKILL);
        CHECK(reaches(rank.shared->value[OVER], 1));
        return;
    }
    CHECK(reaches(rank.shared->value[CAME], 1));
    Stopwatch watch;
    std::string sentence = exchange_fails(rank, ops, says(rank, "aborts") ? PH_EBROKEN : PH_EPEER);
    CHECK(watch.ms() < patience(killed ? 50000 : 10000).count()); // of 60000, or 20000
    CHECK_SAYS(sentence, "rank 1 (process ");
    rank.shared->value[OVER] = 1;
}

TEST_F(Trial, TheEndOfTheOtherIsSeenAtOnce)
{
    for (const std::string how :
         {"ipc, leaves", "ipc, is killed", "net, aborts", "net, leaves", "net, is killed",
          "ipc, held, aborts", "ipc, held, leaves", "ipc, held, is killed"}) {
        SCOPED_TRACE(how);
        Job job("standin", 2);
        apart(job, 2, how.find("net") == 0);
        if (how.find("killed") != std::string::npos)
            job.expect_failure(1);
        EXPECT_EQ(job.run("one_ends", how), "");
    }
}

// Another life of rank 1 takes the place of one that was killed, or that is there and was never
// connected to. It asks rank 0 before that one has its record.
RANK_FUNCTION(meets_the_next_life)
{
    rank.open();
    const auto ops = both_ways(!rank.rank, static_cast<char *>(rank.device->alloc(2 * size)));
    rank.shared->value[CAME]++;
    if (says(rank, "first"))
        pause(); // until it is killed
    if (rank.rank == 0)
        CHECK(reaches(rank.shared->value[CAME], 2));
    CHECK_RC(exchange_for(rank, ops, patience(400).count()), -ETIMEDOUT);
    rank.shared->value[rank.rank == 0 ? WAITED : GO] = 1;
    CHECK(reaches(rank.shared->value[GO], 1));
    // The former life is all that there is until the next one's record has come.
    std::vector<ph_channel *> channels(ops.size());
    int rc = PH_EPEER;
    while (rc == PH_EPEER) {
        rc = ph_exchange(rank.context, ops.data(), ops.size(), channels.data());
        sleep_ms(rc ? 1 : 0);
    }
    CHECK_OK(rc);
    check_report(channels[0], 1, is_far(rank) ? "net" : "ipc",
                 is_far(rank) ? "no peer access" : not_needed);
    converse(rank, !rank.rank, channels, static_cast<char *>(ops[0].buffer));
    rank.barrier();
}

TEST_F(Trial, ALaterLifeIsTriedAnew)
{
    const char *function = "meets_the_next_life";
    for (const std::string how :
         {"ipc, killed", "net, killed", "net, replaced", "ipc after net, killed"}) {
        SCOPED_TRACE(how);
        Job job("standin", 3); // the third process is rank 1 as well
        auto &value = job.shared()->value;
        job.environment("PEERHOP_RANKS", "2");
        job.environment(2, "PEERHOP_RANK", "1");
        apart(job, 3, how.find("net") == 0);
        if (how.find("after") != std::string::npos)
            job.environment(1, "PEERHOP_STANDIN_NO_PEER", "1");
        job.start_rank(0, function, how);
        job.start_rank(1, function, how + ", the first");
        ASSERT_TRUE(reaches(value[WAITED], 1)) << job.wait(100);
        if (how.find("killed") != std::string::npos) {
            job.signal(1, SIGKILL);
            EXPECT_EQ(job.status(1, 60000), 128 + SIGKILL);
        }
        job.start_rank(2, function, how);
        EXPECT_EQ(job.status(0, 60000), 0) << job.shared()->text[0];
        EXPECT_EQ(job.status(2, 60000), 0) << job.shared()->text[2];
    }
}

// ---- silence

// Rank 1 is stopped when rank 0 comes; then rank 0 waits until it goes on.
RANK_FUNCTION(waits_for_a_stopped_one)
{
    rank.open();
    const auto ops = both_ways(!rank.rank, static_cast<char *>(rank.device->alloc(2 * size)));
    if (rank.rank == 1) {
        rank.shared->value[CAME] = 1;
        CHECK(reaches(rank.shared->value[WAITED], 1));
    } else {
        CHECK(reaches(rank.shared->value[GO], 1));
        rank.ends_with(-ETIMEDOUT, "it does not answer at its socket", [&] {
            Stopwatch watch;
            const int rc = exchange_for(rank, ops, 1500);
            CHECK(watch.ms() >= 1400); // not when the first question went without an answer
            return rc;
        });
        rank.shared->value[WAITED] = 1;
    }
    meet(rank, ops);
    rank.barrier();
}

TEST_F(Trial, AProcessThatIsStoppedIsAskedAgain)
{
    for (const std::string how : {"ipc", "net"}) {
        SCOPED_TRACE(how);
        Job job("standin", 2);
        auto &value = job.shared()->value;
        apart(job, 2, how == "net");
        job.start("waits_for_a_stopped_one", how);
        ASSERT_TRUE(reaches(value[CAME], 1)) << job.wait(100);
        job.signal(1, SIGSTOP);
        value[GO] = 1;
        EXPECT_TRUE(reaches(value[WAITED], 1));
        sleep_ms(1200); // rank 0 waits again, for longer than for one answer
        job.signal(1, SIGCONT);
        EXPECT_EQ(job.wait(), "");
    }
}

static bool may_go()
{
    return here->shared->value[GO] != 0;
}

// A driver that is busy at rank 1, in calls that another thread makes, holds up nothing but the
// try.
RANK_FUNCTION(has_a_busy_driver)
{
    rank.open();
    here = &rank;
    const auto ops = both_ways(!rank.rank, static_cast<char *>(rank.device->alloc(2 * size)));
    if (rank.rank == 1)
        hold_imports(may_go);
    rank.barrier();
    if (rank.rank == 0) {
        rank.ends_with(-ETIMEDOUT,
                       "it has not found out so far whether its device reaches this one",
                       [&] { return exchange_for(rank, ops, 1500); });
        rank.shared->value[GO] = 1;
    }
    meet(rank, ops);
    rank.barrier();
}

TEST_F(Trial, ABusyDriverIsWaitedFor)
{
    Job job("standin", 2);
    apart(job, 2, false);
    EXPECT_EQ(job.run("has_a_busy_driver", "ipc"), "");
}

// ---- what no rank says

static const trial_lie lies[] = {
    {-EXDEV, 0, 0, false},     {-EINPROGRESS, 0, 0, false},
    {PH_EPEER, 0, 0, false},   {5, 0, 0, false},
    {0, 100, 0, false},        {0, 7, 0, false}, // PHI_REASON_TRIAL_BYTES: no outcome of a try
    {0, UINT64_MAX, 0, false}, {0, 0, 3, false},
};

// Rank 1 lies in its answers, and then in its questions; rank 0 names it, and both go on.
RANK_FUNCTION(lies_about_its_try)
{
    rank.open();
    const auto ops = both_ways(!rank.rank, static_cast<char *>(rank.device->alloc(2 * size)));
    for (const trial_lie &lie : lies) {
        if (rank.rank == 1)
            lie_in_trials(lie);
        rank.barrier();
        if (rank.rank == 0)
            CHECK_SAYS(exchange_fails(rank, ops, -EBADMSG), "cannot reach rank 1 (process ");
        rank.barrier();
        if (rank.rank == 1 && lie.a != 0) // what it is told so, nobody takes up
            exchange_fails(rank, ops, -EBADMSG);
        rank.barrier();
    }
    if (rank.rank == 1)
        lie_in_trials({0, 0, 0, false});
    rank.barrier();
    meet(rank, ops);
    rank.barrier();
}

TEST_F(Trial, WhatNoRankSaysIsAnErrorThatNamesTheRank)
{
    Job job("standin", 2);
    apart(job, 2, false);
    EXPECT_EQ(job.run("lies_about_its_try", "ipc"), "");
}

// A record of nonsense says nothing of the two devices. Nor does it do harm.
RANK_FUNCTION(shows_nonsense)
{
    if (rank.rank == 1)
        lie_in_trials({0, 0, 0, true});
    rank.open();
    meet(rank, both_ways(!rank.rank, static_cast<char *>(rank.device->alloc(2 * size))));
    rank.barrier();
}

TEST_F(Trial, ARecordOfNonsenseIsNoOutcome)
{
    Job job("standin", 2);
    apart(job, 2, false);
    EXPECT_EQ(job.run("shows_nonsense", "ipc"), "");
}

// ---- providers

// Rank 1's provider frames what it sends in another way than that of the others, or has addresses
// that the others' endpoints do not take, or its library is of another version.
RANK_FUNCTION(by_providers_of_their_own)
{
    const bool frames = rank.argument == "frames", version = rank.argument == "version";
    rank.open({frames && rank.rank == 1 ? "PEERHOP_NET_PROVIDER=tcp;ofi_rxm"
                                        : "PEERHOP_NET_PROVIDER=tcp"});
    if (rank.rank == 1 && rank.argument == "addresses")
        have_other_addresses();
    if (rank.rank == 1 && version)
        have_another_version();
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    for (int peer : {0, 1, 2}) {
        if (peer == rank.rank)
            continue;
        if (peer == 1 || rank.rank == 1)
            CHECK_SAYS(exchange_fails(rank, both_ways(peer, memory), PH_ENOPATH),
                       "providers, formats of addresses or versions of the net path are not alike");
        else
            converse(rank, peer, exchange_all(rank, both_ways(peer, memory)), memory);
    }
    if (version && rank.rank != 1)
        CHECK_SAYS(rank.log, "rank 1 speaks version 999 of the net path, and not " +
                                 std::to_string(version_of_others()));
    rank.barrier();
}

TEST_F(Trial, RanksWhoseProvidersAreNotAlikeAreRefusedByName)
{
    for (const char *what : {"frames", "addresses", "version"}) {
        SCOPED_TRACE(what);
        Job job("hostnet", 3);
        EXPECT_EQ(job.run("by_providers_of_their_own", what), "");
    }
}

// An exchange that ends at its deadline.
static void is_too_late(Rank &rank, const std::vector<ph_operation> &ops, int64_t ms)
{
    ph_exchange_request *request = nullptr;
    std::vector<ph_channel *> channels(ops.size());
    CHECK_OK(ph_exchange_start(rank.context, ops.data(), ops.size(), &request));
    CHECK_RC(ph_exchange_finish(&request, channels.data(), ms), -ETIMEDOUT);
}

// A provider that is too slow is no provider that does not serve: it is tried again, until the
// deadline of the exchange, and by later ones.
RANK_FUNCTION(by_a_slow_provider)
{
    rank.open({"PEERHOP_NET_PROVIDER=tcp;ofi_rxm"}); // which is one provider
    rank.barrier();
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    const auto ops = both_ways(!rank.rank, memory);
    if (rank.rank == 1) {
        be_slow(1000000, 0);
        is_too_late(rank, ops, patience(5000).count());
        CHECK_SAYS(rank.error(), "its provider of libfabric was too slow to be judged");
        be_slow(3, 0); // each time that it is tried there are two probes
    }
    converse(rank, !rank.rank, exchange_all(rank, ops), memory);
    rank.barrier();
}

TEST_F(Trial, AProviderThatIsSlowIsTriedAgain)
{
    Job job("hostnet", 2);
    EXPECT_EQ(job.run("by_a_slow_provider"), "");
}

// However long a provider takes, calls have their deadlines, and what it comes to is not lost.
RANK_FUNCTION(by_a_provider_that_takes_long)
{
    rank.open({"PEERHOP_NET_PROVIDER=tcp;ofi_rxm"});
    rank.barrier();
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    const auto ops = both_ways(!rank.rank, memory);
    if (rank.rank == 1) {
        const auto begin = std::chrono::steady_clock::now();
        be_slow(1, int(patience(4000).count())); // and then once more, at once
        is_too_late(rank, ops, patience(300).count());
        CHECK_SAYS(rank.error(), "its provider of libfabric has not begun to serve");
        CHECK_RC(ph_context_destroy(&rank.context, patience(300).count()), -ETIMEDOUT);
        CHECK_SAYS(rank.error(), "rank 1 cannot leave: its provider of libfabric");
        CHECK(std::chrono::steady_clock::now() - begin < patience(3000));
    }
    converse(rank, !rank.rank, exchange_all(rank, ops), memory);
    rank.barrier();
}

TEST_F(Trial, AProviderThatTakesLongHoldsUpNoCall)
{
    Job job("hostnet", 2);
    EXPECT_EQ(job.run("by_a_provider_that_takes_long"), "");
}

// ---- containers

// In a PID namespace of its own a process has another id than its peers know, and handles that name
// it are refused.
RANK_FUNCTION(in_a_container)
{
    rank.open({"PEERHOP_PATH=" + rank.argument});
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    CHECK(rank.rank == 0 || getpid() == 2);
    if (rank.argument == "auto") {
        auto channels = exchange_all(rank, both_ways(!rank.rank, memory));
        check_report(channels[0], 1, "net", "system refused the handle");
        converse(rank, !rank.rank, channels, memory);
    } else {
        std::string sentence = exchange_fails(rank, both_ways(!rank.rank, memory), PH_ENOPATH);
        CHECK_SAYS(sentence, "rank 0 to rank 1 by ipc: the system refused the handle");
        CHECK_SAYS(sentence, "by net: the configuration asks for another");
    }
    rank.barrier();
}

TEST_F(Trial, DevicesInOtherContainersMeetOverTheNet)
{
    for (const char *path : {"auto", "ipc"}) {
        SCOPED_TRACE(path);
        auto job = std::make_unique<Job>("standin", 2);
        const pid_t first = start_in_a_container(*job, 1, "in_a_container", path);
        if (first < 0)
            GTEST_SKIP() << "this process may not make namespaces";
        job->start_rank(0, "in_a_container", path);
        EXPECT_EQ(job->wait(), "");
        job.reset(); // a namespace ends when all in it are reaped
        end_container(first);
    }
}
