// SPDX-License-Identifier: BSD-3-Clause
// Ranks that exit, stop and come again: who notices, when, and what survivors may go on with.
#include <cstdio>
#include <sstream>

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "e2e/dying.h"
#include "support/watched.h"

class Death : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_ALL_NETS(Death);

static uint64_t now_us()
{
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                     std::chrono::steady_clock::now().time_since_epoch())
                                     .count());
}

// One message each way, data verified.
static void talk(Rank &rank, const Link &link, uint64_t seed, void *stream)
{
    rank.device->fill(link.out, size, seed + static_cast<uint64_t>(rank.rank));
    ph_group_op group[] = {{PH_GROUP_SEND, link.to, 0, 0, size},
                           {PH_GROUP_RECV, link.from, 0, 0, size}};
    CHECK_OK(ph_group(group, 2, stream));
    rank.synchronize(stream);
    rank.verify(link.in, size, seed + static_cast<uint64_t>(link.peer), "from the peer");
}

// Kills a rank and waits for its end; returns when that was, on the clock of now_us().
static uint64_t kill_rank(Job &job, int rank)
{
    job.expect_failure(rank);
    kill(job.pid(rank), SIGKILL);
    siginfo_t info;
    waitid(P_PID, static_cast<id_t>(job.pid(rank)), &info, WEXITED | WNOWAIT);
    uint64_t end = now_us();
    job.status(rank, 1000);
    return end;
}

// ---- exits

// value[0]: how many survivors wait; value[8 + rank]: when the status said so; value[16 + rank]:
// when its stream went on.
RANK_FUNCTION(notices_an_exit)
{
    rank.open();
    auto links = meet_all(rank);
    rank.barrier();
    if (rank.rank == rank.ranks - 1)
        pause();
    const Link &dead = links.back();
    void *stream = rank.device->stream();
    CHECK_OK(ph_wait(dead.from, 8, stream));
    rank.shared->value[0]++;
    CHECK_RC(end_of(dead.from), PH_EPEER);
    rank.shared->value[8 + rank.rank] = now_us();
    rank.synchronize(stream);
    rank.shared->value[16 + rank.rank] = now_us();
    CHECK(report_of(rank, dead.peer).code == PH_EPEER);
    // Of several failures the first one is told, and how many more there are.
    char *memory = static_cast<char *>(rank.device->alloc(3 * size));
    std::vector<ph_operation> ops;
    for (uint64_t i = 0; i < 3; i++)
        ops.push_back(operation(20 + i, dead.peer, PH_ROLE_BOTH, memory + i * size, size));
    std::string sentence = exchange_fails(rank, ops, PH_EPEER);
    CHECK_SAYS(sentence, "rank 2 (process ");
    CHECK_SAYS(sentence, "; 2 more of 3 operations failed");
    if (rank.argument == "net") {
        CHECK_SAYS(sentence, "; its link has ended: ");
        CHECK_SAYS(rank.log, "the link to rank 2 (process ");
    }
    CHECK(becomes(rank, dead.peer, PH_PEER_GONE));
    CHECK(becomes(rank, links[0].peer, PH_PEER_LIVE)); // it may fall silent for a moment
    rank.barrier();
}

// PEERHOP_TEST_BARS=1 holds it to the bars, for a machine that does nothing else.
TEST_P(Death, AnExitIsNoticedAtOnceAndItsStreamsGoOn)
{
    const int ranks = 3;
    Job job(GetParam(), ranks);
    job.start("notices_an_exit", on_net() ? "net" : "");
    ASSERT_TRUE(reaches(job.shared()->value[0], ranks - 1)) << job.wait(100);
    uint64_t end = kill_rank(job, ranks - 1);
    job.shared()->arrived[1]++; // it will not come to the barrier
    EXPECT_EQ(job.wait(), "");
    for (int rank = 0; rank < ranks - 1; rank++) {
        int64_t noticed = static_cast<int64_t>(job.shared()->value[8 + rank] - end);
        int64_t released = static_cast<int64_t>(job.shared()->value[16 + rank] - end);
        printf("rank %d: exit noticed after %.2f ms (bar 100), stream went on after %.2f ms (bar "
               "1000)\n",
               rank, noticed / 1e3, released / 1e3);
        // Over the net that the connection is gone takes a while to be sure of.
        const bool bars = getenv("PEERHOP_TEST_BARS") && !on_net();
        EXPECT_LT(noticed, bars ? 100000 : 1000 * patience(15000).count());
        EXPECT_LT(released, bars ? 1000000 : 1000 * patience(20000).count());
    }
}

// A child of the dead rank keeps what it has inherited open: its connections over the net.
RANK_FUNCTION(leaves_a_child)
{
    rank.open({"PEERHOP_SUSPECT_MS=60000"});
    auto links = meet_all(rank);
    rank.barrier();
    if (rank.rank == 1) {
        pid_t child = fork();
        if (child == 0) {
            reaches(rank.shared->value[1], 1, 60000);
            _exit(0);
        }
        rank.shared->value[0] = 1;
        pause();
    }
    void *stream = rank.device->stream();
    CHECK_OK(ph_wait(links[0].from, 8, stream));
    rank.shared->value[2] = 1;
    CHECK_RC(end_of(links[0].from), PH_EPEER);
    rank.shared->value[8] = now_us();
    rank.synchronize(stream);
    CHECK(becomes(rank, 1, PH_PEER_GONE));
}

TEST_P(Death, AnExitIsNoticedWhileAChildLives)
{
    Job job(GetParam(), 2);
    job.start("leaves_a_child");
    ASSERT_TRUE(reaches(job.shared()->value[0], 1)) << job.wait(100);
    ASSERT_TRUE(reaches(job.shared()->value[2], 1)) << job.wait(100);
    uint64_t end = kill_rank(job, 1);
    const bool noticed = reaches(job.shared()->value[8], 1);
    EXPECT_TRUE(noticed);
    if (noticed)
        printf("exit noticed after %.2f ms\n",
               static_cast<double>(job.shared()->value[8] - end) / 1e3);
    else
        job.shared()->value[1] = 1;
    EXPECT_EQ(job.status(0, 20000), 0);
    job.shared()->value[1] = 1;
}

// The store answers nothing while its keys are refreshed.
static bool is_refreshing()
{
    for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string name;
        std::getline(std::ifstream(task.path() / "comm"), name);
        if (name == "peerhop-refresh")
            return true;
    }
    return false;
}

// value[9]: a refresh is under way; value[8]: it still was when the exit was noticed (1), or not
// (2).
RANK_FUNCTION(notices_an_exit_without_a_store)
{
    rank.open({"PEERHOP_EXPIRY_S=10"}); // refreshed every 3.3 s, for at most 2 s
    auto links = meet_all(rank);
    rank.shared->value[0]++;
    if (rank.rank == 1)
        pause();
    CHECK(reaches(rank.shared->value[1], 1)); // the store has stopped
    for (Stopwatch watch; !is_refreshing(); sleep_ms(1))
        CHECK(watch.ms() < kWait);
    rank.shared->value[9] = 1;
    CHECK_RC(end_of(links[0].from), PH_EPEER);
    rank.shared->value[8] = is_refreshing() ? 1 : 2;
    CHECK(reaches(rank.shared->value[2], 1));
}

static bool is_noticed_without_a_store(const std::string &device)
{
    Job job(device, 2);
    job.start("notices_an_exit_without_a_store");
    EXPECT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    job.redis().pause();
    job.shared()->value[1] = 1;
    EXPECT_TRUE(reaches(job.shared()->value[9], 1)) << job.wait(100);
    kill_rank(job, 1);
    EXPECT_TRUE(reaches(job.shared()->value[8], 1, 45000));
    job.redis().resume();
    job.shared()->value[2] = 1;
    EXPECT_EQ(job.wait(), "");
    return job.shared()->value[8] == 1;
}

TEST_P(Death, AnExitIsNoticedWhileTheStoreDoesNotAnswer)
{
    if (GetParam() != "host")
        GTEST_SKIP() << "the store knows no devices";
    bool noticed = false;
    for (int i = 0; i < 8 && !noticed && !HasFailure(); i++) // a busy machine is late, too
        noticed = is_noticed_without_a_store(GetParam());
    EXPECT_TRUE(noticed);
}

enum { IDLE_US = 0, IDLE_SLEEPS = 2 }; // where a rank tells of its service thread and of its net's

// argument: fast (heartbeats), pinned (with a graph), or default.
RANK_FUNCTION(is_idle)
{
    rank.open(rank.argument == "fast" ? fast : std::vector<std::string>{});
    auto links = meet_all(rank);
    void *graph = nullptr;
    if (rank.argument == "pinned") { // it may be replayed at any time, and nobody says so
        void *stream = rank.device->stream();
        graph = rank.device->capture(
            stream, [&] { CHECK_OK(ph_put_signal(links[0].to, 0, 0, size, stream)); });
    }
    rank.barrier();
    sleep_ms(graph ? 1000 : 100); // what the exchange has left to do
    const char *const names[] = {"peerhop-service", "peerhop-net"};
    Work least[2] = {{UINT64_MAX, UINT64_MAX}, {UINT64_MAX, UINT64_MAX}};
    for (int i = 0; i < 3; i++) {
        const Work before[] = {work_of_thread(names[0]), work_of_thread(names[1])};
        CHECK(before[0].us > 0);
        Stopwatch watch;
        sleep_ms(1000);
        for (int j = 0; j < 2; j++) {
            const Work after = work_of_thread(names[j]);
            const auto ms = static_cast<uint64_t>(watch.ms());
            least[j].us = std::min(least[j].us, (after.us - before[j].us) * 1000 / ms);
            least[j].sleeps =
                std::min(least[j].sleeps, (after.sleeps - before[j].sleeps) * 1000 / ms);
        }
    }
    for (int j = 0; j < 2 && rank.rank == 0; j++) {
        rank.shared->value[IDLE_US + j] = least[j].us;
        rank.shared->value[IDLE_SLEEPS + j] = least[j].sleeps;
    }
    CHECK(becomes(rank, !rank.rank, PH_PEER_LIVE));
    if (rank.argument == "default") {
        CHECK_RC(ph_context_expel(rank.context, !rank.rank), -EBUSY);
        CHECK_SAYS(rank.error(), "it is no SUSPECT");
    }
    if (graph)
        rank.device->destroy(graph);
    rank.barrier();
}

// How often a thread wakes is the library's alone: a busy machine makes it less. What a look costs
// is the machine's, too: the bar of time is held to on one that does nothing else. What holds
// anywhere is that it sleeps between two looks, each of which takes some 20 microseconds.
static void expect_rest(Job &job, const char *what, int thread, double share, uint64_t sleeps)
{
    const uint64_t us = job.shared()->value[IDLE_US + thread],
                   slept = job.shared()->value[IDLE_SLEEPS + thread];

    printf("%s: %d us of a second on a core, %d sleeps\n", what, static_cast<int>(us),
           static_cast<int>(slept));
    EXPECT_LT(us, 5000 * (slept + 1)) << what << " spins";
    EXPECT_LT(slept, sleeps) << what;
    if (getenv("PEERHOP_TEST_BARS")) {
        EXPECT_LT(static_cast<double>(us) / 1e6, share) << what;
    }
}

// What a graph may ring the net has to look at, but not all the time: as seldom as the parameter
// says.
TEST_P(Death, AGraphAtRestBurnsLittle)
{
    if (on_host() || !on_net())
        GTEST_SKIP() << "nothing looks after graphs but the net";
    for (const bool longer : {false, true}) {
        Job job(GetParam(), 2);
        if (longer)
            job.environment("PEERHOP_NET_BACKOFF_US", "20000");
        EXPECT_EQ(job.run("is_idle", "pinned"), "");
        EXPECT_GT(job.shared()->value[IDLE_US + 1], 0u);
        if (longer)
            expect_rest(job, "the net with longer pauses", 1, 0.03, 400); // 50, and 140 a heartbeat
        else
            expect_rest(job, "the net", 1, 0.05, 2400); // 2000, and 140 a heartbeat
    }
}

TEST_P(Death, AnIdleRankBurnsNoCore)
{
    for (const bool quick : {false, true}) {
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("is_idle", quick ? "fast" : "default"), "");
        if (quick) { // 50 beats from here and 50 from there
            expect_rest(job, "the service, fast heartbeats", 0, 0.02, 200);
            expect_rest(job, "the net, fast heartbeats", 1, 0.03, 700);
        } else {
            expect_rest(job, "the service", 0, 0.02, 20);
            expect_rest(job, "the net", 1, 0.01, 250); // it looks in every 20 ms
        }
    }
}

// argument: kind of stream, how it waits, what it waits for.
RANK_FUNCTION(stream_is_stuck)
{
    std::string kind, mode, how;
    std::istringstream(rank.argument) >> kind >> mode >> how;
    std::vector<std::string> settings = {"PEERHOP_WAIT=" + mode};
    if (mode == "memory_operation") // else nearly all is by flags, which kernels wait for
        settings.insert(settings.end(), {"PEERHOP_LL_MAX=0", "PEERHOP_SM_MAX=0"});
    rank.open(settings);
    auto links = meet_all(rank);
    rank.barrier();
    if (rank.rank == 1)
        pause();
    const Link &dead = links[0];
    void *stream = rank.device->stream(kind == "non-blocking" ? "" : kind);
    if (how == "two") { // the second is reached when the first is released
        CHECK_OK(ph_wait(dead.from, 8, stream));
        CHECK_OK(ph_signal(dead.to, stream));
        CHECK_OK(ph_wait(dead.from, 8, stream));
    } else {
        CHECK_OK(ph_recv(dead.from, size, stream));
        CHECK_OK(ph_send(dead.to, size, stream));
        CHECK_OK(ph_complete(dead.from, stream));
    }
    if (!rank.device->host())
        CHECK(rank.counter(("waits_" + mode).c_str()) > 0);
    CHECK(!rank.device->synchronize(stream, 20));
    rank.shared->value[0] = 1;
    rank.goes_on_without(1, stream);
    rank.shared->value[16] = now_us();
    CHECK_RC(end_of(dead.from), PH_EPEER);
}

// All at the same time: over the net a stream is released only after the peer has been silent for
// long.
TEST_P(Death, StuckStreamsOfEveryKindAreReleased)
{
    std::map<std::string, std::unique_ptr<Job>> jobs;
    for (const char *kind : {"non-blocking", "blocking", "legacy", "per-thread"}) {
        for (const char *mode : {"kernel", "memory_operation"}) {
            if (on_host() && strcmp(kind, "non-blocking") != 0)
                continue; // queues are of one kind
            if ((on_host() || on_net()) && strcmp(mode, "kernel") != 0)
                continue; // wait in one way
            for (const char *how : {"two", "transfer"}) {
                const std::string what = std::string(kind) + " " + mode + " " + how;
                jobs[what] = std::make_unique<Job>(GetParam(), 2);
                jobs[what]->start("stream_is_stuck", what);
            }
        }
    }
    for (auto &[what, job] : jobs)
        ASSERT_TRUE(reaches(job->shared()->value[0], 1)) << what << ": " << job->wait(100);
    for (auto &[what, job] : jobs)
        job->signal(1, SIGKILL);
    std::map<std::string, uint64_t> ends;
    for (auto &[what, job] : jobs)
        ends[what] = kill_rank(*job, 1);
    for (auto &[what, job] : jobs) {
        EXPECT_EQ(job->wait(), "") << what;
        const auto took = static_cast<int64_t>(job->shared()->value[16] - ends[what]);
        printf("%s: released after %.2f ms\n", what.c_str(), static_cast<double>(took) / 1e3);
    }
}

// A process that exits closes its sockets first. What waits for it goes on when it is gone, or when
// it is found to live on.
RANK_FUNCTION(loses_its_connections)
{
    const bool lives = rank.argument == "lives";
    // Where it is to be gone, it is stopped between two beats.
    rank.open({lives ? "PEERHOP_HEARTBEAT_MS=20" : "PEERHOP_HEARTBEAT_MS=20000",
               "PEERHOP_SUSPECT_MS=80000"});
    auto links = meet_all(rank);
    rank.barrier();
    void *stream = rank.device->stream();
    CHECK_OK(ph_wait(links[0].from, 8, stream));
    if (rank.rank == 1) {
        CHECK(reaches(rank.shared->value[0], 1));
        end_connections();
        if (!lives)
            raise(SIGSTOP);
    } else {
        rank.shared->value[0] = 1;
    }
    CHECK_RC(end_of(links[0].from), PH_EPEER);
    if (!lives) {
        CHECK(!rank.device->synchronize(stream, 300));
        rank.shared->value[1] = 1;
    }
    rank.synchronize(stream);
    if (lives)
        rank.barrier();
}

TEST_P(Death, WhatWaitsForAProcessThatExitsGoesOnWhenItIsGone)
{
    if (on_net())
        GTEST_SKIP() << "over the net there are no such connections";
    int pidfd = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
    if (pidfd < 0)
        GTEST_SKIP() << "pidfd_open: " << strerror(errno) << " (valgrind has none)";
    close(pidfd);
    for (const char *how : {"exits", "lives"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        job.start("loses_its_connections", how);
        if (strcmp(how, "exits") == 0) {
            ASSERT_TRUE(reaches(job.shared()->value[1], 1)) << job.wait(100);
            kill_rank(job, 1);
        }
        EXPECT_EQ(job.wait(), "");
    }
}

RANK_FUNCTION(replays_a_graph)
{
    rank.open();
    auto links = meet_all(rank);
    rank.barrier();
    if (rank.rank == 1)
        pause();
    const Link &dead = links[0];
    void *stream = rank.device->stream();
    void *graph = rank.device->capture(stream, [&] {
        CHECK_OK(ph_put_signal(dead.to, 0, 0, size, stream));
        CHECK_OK(ph_wait(dead.from, 8, stream));
    });
    rank.device->launch(graph, stream);
    CHECK(!rank.device->synchronize(stream, 20));
    rank.shared->value[0] = 1;
    rank.goes_on_without(1, stream);
    // Each replay waits again for what was released, and what it posts takes a release away.
    for (int replay = 0; replay < 10; replay++) {
        rank.device->launch(graph, stream);
        rank.synchronize(stream);
    }
    CHECK_RC(end_of(dead.from), PH_EPEER);
    rank.device->destroy(graph);
    rank.close();
}

TEST_P(Death, AGraphIsReplayedTenTimesAfterwards)
{
    if (on_host())
        GTEST_SKIP() << "queues have no graphs";
    Job job(GetParam(), 2);
    job.start("replays_a_graph");
    ASSERT_TRUE(reaches(job.shared()->value[0], 1)) << job.wait(100);
    kill_rank(job, 1);
    EXPECT_EQ(job.wait(), "");
}

// Four ranks loop over a group with all others; the last one dies somewhere in it.
RANK_FUNCTION(group_loses_a_rank)
{
    rank.open();
    auto links = meet_all(rank);
    void *stream = rank.device->stream();
    std::vector<ph_group_op> group;
    for (const Link &link : links) {
        group.push_back({PH_GROUP_SEND, link.to, 0, 0, size});
        group.push_back({PH_GROUP_RECV, link.from, 0, 0, size});
    }
    rank.barrier();
    int last = rank.ranks - 1;
    for (int round = 0;; round++) {
        if (rank.rank == last && round == 3) {
            // In the middle: of this group it does a part only.
            CHECK_OK(ph_recv(links[0].from, size, stream));
            rank.shared->value[0] = 1;
            pause();
        }
        if (ph_group(group.data(), group.size(), stream))
            break;
        rank.goes_on_without(last, stream);
        if (ph_channel_ended(links.back().from))
            break;
    }
    CHECK_RC(end_of(links.back().from), PH_EPEER);
    // The survivors are not in step any more: each group ended with what had come. New operations
    // bring them together.
    for (const Link &old : links) {
        if (old.peer == last)
            continue;
        CHECK_RC(ph_channel_ended(old.to), 0);
        Link link = meet(rank, old.peer, 2);
        for (int round = 0; round < 3; round++)
            talk(rank, link, 10 * round, stream);
    }
    rank.shared->value[1]++;
    CHECK(reaches(rank.shared->value[1], static_cast<uint64_t>(last)));
    rank.close();
}

TEST_P(Death, OneOfFourInTheMiddleOfAGroup)
{
    Job job(GetParam(), 4);
    job.start("group_loses_a_rank");
    ASSERT_TRUE(reaches(job.shared()->value[0], 1)) << job.wait(100);
    sleep_ms(20);
    kill_rank(job, 3);
    EXPECT_EQ(job.wait(), "");
}

// ---- what survivors keep

// Bytes per second of messages that go to and fro. side: 0 sends first.
static double bandwidth(Rank &rank, int side, ph_channel *to, ph_channel *from, size_t bytes,
                        void *stream)
{
    const uint64_t begin = now_us();
    const int messages = 6;
    for (int i = 0; i < messages; i++) {
        if (side == 0)
            CHECK_OK(ph_put_signal(to, 0, 0, bytes, stream));
        CHECK_OK(ph_wait(from, bytes, stream));
        if (side == 1)
            CHECK_OK(ph_put_signal(to, 0, 0, bytes, stream));
    }
    rank.synchronize(stream);
    return 2.0 * messages * static_cast<double>(bytes) / static_cast<double>(now_us() - begin) *
           1e6;
}

// Ranks 0 and 1 survive rank 2. Ranks 3 and 4 never met it: what they reach in windows between the
// survivors' says what the machine gives just then, whatever else it does. What holds anywhere is
// that no message waits for the dead; PEERHOP_TEST_BARS=1 is for a machine that does nothing else.
static double bar()
{
    return getenv("PEERHOP_TEST_BARS") ? 0.95 : 0.6;
}

enum { MEASURED = 1, CONTROL = 2, OVER = 3, STARTED = 0, ENDED = 4, TURN = 5 };

// The best of both pairs by turns: survivors, then the others, until the bar is reached or time is
// up.
static void measure(Rank &rank, ph_channel *to, ph_channel *from, size_t bytes, void *stream)
{
    const bool control = rank.rank >= 3, tells = rank.rank == 0 || rank.rank == 3;
    std::atomic<uint64_t> *value = rank.shared->value;
    double best = 0;
    Stopwatch watch;
    for (uint64_t turn = 1; value[OVER] == 0; turn++) {
        CHECK(reaches(value[TURN], 2 * turn - 2 + control));
        if (value[OVER] != 0)
            break;
        const int in_step = rank.rank % 3; // 0, 1 and 0, 1
        best = std::max(best, bandwidth(rank, in_step, to, from, bytes, stream));
        if (!tells)
            continue;
        value[control ? CONTROL : MEASURED] = static_cast<uint64_t>(best / 1e6);
        const double ratio = static_cast<double>(value[MEASURED]) /
                             static_cast<double>(std::max<uint64_t>(value[CONTROL], 1));
        if (control && ((turn > 5 && ratio >= bar()) || watch.ms() > kWait))
            value[OVER] = 1;
        value[TURN] = value[OVER] != 0 ? UINT64_MAX : 2 * turn - 1 + control;
    }
}

RANK_FUNCTION(measures_survivors)
{
    const size_t bytes = rank.argument == "gpu" ? 64u << 20 : 8u << 20;
    rank.open();
    const bool control = rank.rank >= 3;
    std::vector<Link> links;
    for (int peer = 0; peer < 3; peer++)
        if (!control && peer != rank.rank)
            links.push_back(meet(rank, peer, 1));
    const int other = control ? 7 - rank.rank : !rank.rank;
    std::vector<ph_channel *> channels;
    void *stream = rank.device->stream(), *stuck = rank.device->stream();
    if (rank.rank != 2) {
        char *memory = static_cast<char *>(rank.device->alloc(2 * bytes));
        channels =
            exchange_all(rank, {operation(7, other, PH_ROLE_SENDER, memory, bytes),
                                operation(7, other, PH_ROLE_RECEIVER, memory + bytes, bytes)});
    }
    rank.barrier();
    if (rank.rank == 2)
        pause();
    bandwidth(rank, rank.rank % 3, channels[0], channels[1], bytes, stream); // to warm up
    if (!control)
        CHECK_OK(ph_wait(links.back().from, 8, stuck));
    rank.shared->value[STARTED]++;
    if (!control) {
        CHECK_RC(end_of(links.back().from), PH_EPEER);
        rank.synchronize(stuck);
    }
    measure(rank, channels[0], channels[1], bytes, stream);
    rank.shared->value[ENDED]++;
    CHECK(reaches(rank.shared->value[ENDED], 4));
}

TEST_P(Death, SurvivorsKeepTheirBandwidth)
{
    if (watched())
        GTEST_SKIP() << "a sanitizer's own cost is measured here";
    Job job(GetParam(), 5);
    job.start("measures_survivors", GetParam());
    ASSERT_TRUE(reaches(job.shared()->value[STARTED], 4, 60000)) << job.wait(100);
    kill_rank(job, 2);
    EXPECT_EQ(job.wait(), "");
    const double survivors = static_cast<double>(job.shared()->value[MEASURED]);
    const double others = static_cast<double>(job.shared()->value[CONTROL]);
    printf(
        "survivors: %.2f GB/s, ranks that never met the dead: %.2f GB/s: ratio %.3f (bar %.2f)\n",
        survivors / 1e3, others / 1e3, survivors / others, bar());
    EXPECT_GE(survivors / others, bar());
}

// By the call that the application happens to make.
static void is_told_of_an_abort(Rank &rank, const Link &link)
{
    if (rank.argument.find("release") == std::string::npos) {
        CHECK_RC(end_of(link.from), PH_EBROKEN);
        return;
    }
    CHECK_OK(ph_release_start(rank.context, link.in, size));
    CHECK_RC(is_released(rank, link.in), PH_EBROKEN);
    CHECK_SAYS(rank.error(), "rank 0 ");
    CHECK_OK(ph_release_wait(rank.context, link.in, size, PH_RELEASE_DRAINED, 30000));
}

// Rank 0 has copies into rank 1's memory enqueued, of both kinds, and aborts. Rank 1 does not call.
RANK_FUNCTION(aborts_with_copies_pending)
{
    std::string mode = rank.argument.substr(0, rank.argument.find(' '));
    bool get = rank.argument.find("get") != std::string::npos;
    // By words: what waits for flags need not be held, since it copies nothing when it ends.
    rank.open({"PEERHOP_WAIT=" + mode, "PEERHOP_LL_MAX=0", "PEERHOP_SM_MAX=0"});
    Link link = meet(rank, !rank.rank, 1, get ? PH_PROTOCOL_GET : PH_PROTOCOL_PUT);
    Link more = meet(rank, !rank.rank, 2);
    void *streams[2] = {rank.device->stream(), rank.device->stream()};
    if (rank.rank == 1) {
        rank.device->fill(link.out, size, 100);
        rank.device->fill(link.in, size, 101);
        rank.device->fill(more.in, size, 102);
        rank.barrier();
        // The signal before the put_signal: it is not consumed, so the latter waits.
        CHECK(reaches(rank.shared->value[0], 1));
        for (int i = 0; i < 30; i++) { // what comes may take a while
            sleep_ms(10);
            rank.verify(link.out, size, 100, "out of a live rank that was not told");
            rank.verify(link.in, size, 101, "of a live rank that was not told");
            rank.verify(more.in, size, 102, "of a live rank that was not told (put_signal)");
        }
        CHECK(reaches(rank.shared->value[3], 1)); // held all the time
        rank.shared->value[1] = 1;
        is_told_of_an_abort(rank, more);
        CHECK(reaches(rank.shared->value[2], 1));
    } else {
        rank.device->fill(link.out, size, 200);
        rank.device->fill(more.out, size, 201);
        rank.barrier();
        CHECK_OK(ph_send(link.to, size, streams[0]));
        if (get)
            CHECK_OK(ph_recv(link.from, size, streams[0]));
        CHECK_OK(ph_signal(more.to, streams[1]));
        CHECK_OK(ph_put_signal(more.to, 0, 0, size, streams[1]));
        CHECK(!rank.device->synchronize(streams[0], 20));
        CHECK(!rank.device->synchronize(streams[1], 20));
        CHECK_OK(ph_context_abort(rank.context, "the test says so"));
        rank.shared->value[0] = 1;
        CHECK(!rank.device->synchronize(streams[1], 250)); // held
        rank.shared->value[3] = 1;
        CHECK(reaches(rank.shared->value[1], 1));
        rank.synchronize(streams[0]);
        rank.synchronize(streams[1]);
        rank.shared->value[2] = 1;
    }
    rank.barrier();
    rank.close();
}

TEST_P(Death, AnAbortChangesNoByteOfALiveRankThatWasNotTold)
{
    if (is_staged())
        GTEST_SKIP() << "what is staged is written by its receiver's stream alone";
    for (const char *how :
         {"kernel put", "kernel get", "memory_operation put", "memory_operation get",
          "kernel put release_wait", "kernel get release_test"}) {
        if (on_host() && how[0] == 'm')
            continue; // queues wait in one way
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("aborts_with_copies_pending", how), "");
    }
}

// ---- what is read meanwhile

// Reads the peer's buffer until the channel has ended; what came before is what lay there.
template <typename Function>
static void read_until_it_ends(Rank &rank, const Link &link, int end, Function has_read)
{
    void *stream = rank.device->stream();
    for (;;) {
        int rc = ph_get(link.from, 0, 0, size, stream);
        // Who waits meanwhile is told of the end there, once.
        if (!rank.device->synchronize(stream, patience(20000).count())) {
            rc = ph_channel_ended(link.from);
            CHECK(rc != 0);
        }
        rc = rc ? rc : ph_channel_status(link.from);
        if (rc) {
            CHECK_RC(rc, end);
            return;
        }
        rank.verify(link.in, size, 100, "and the channel is whole");
        has_read();
    }
}

// Rank 1 reads rank 0's buffer again and again. Rank 0 aborts, and uses the buffer for something
// else at once: rank 1 may come by those bytes, but is not told then that all is well.
RANK_FUNCTION(is_read_when_it_aborts)
{
    const uint64_t rounds = 20;
    for (uint64_t round = 0; round < rounds; round++) {
        rank.open();
        Link link = meet(rank, !rank.rank, 1, PH_PROTOCOL_GET);
        if (rank.rank == 0) {
            rank.device->fill(link.out, size, 100);
            rank.barrier();
            CHECK(reaches(rank.shared->value[0], round + 1));
            sleep_ms(static_cast<int64_t>(round % 4));
            CHECK_OK(ph_context_abort(rank.context, "the test says so"));
            rank.device->fill(link.out, size, 200);
        } else {
            rank.barrier();
            read_until_it_ends(rank, link, PH_EBROKEN, [&] { rank.shared->value[0] = round + 1; });
        }
        if (round % 2 == 0) // else it leaves at once
            rank.barrier();
        rank.close();
        rank.barrier();
    }
}

TEST_P(Death, WhatAPeerTookBackIsNotReadWithSuccess)
{
    SKIP_GETS_OF_STAGED();
    Job job(GetParam(), 2);
    job.environment("PEERHOP_STANDIN_CHECK", "0"); // it is a race
    EXPECT_EQ(job.run("is_read_when_it_aborts"), "");
}

// Rank 1 is stopped while it reads, and rank 0 expels it.
RANK_FUNCTION(is_expelled_when_it_reads)
{
    rank.open(fast);
    Link link = meet(rank, !rank.rank, 1, PH_PROTOCOL_GET);
    if (rank.rank == 0) {
        rank.device->fill(link.out, size, 100);
        rank.barrier();
        CHECK(stops(rank, 1));
        CHECK_OK(ph_context_expel(rank.context, 1));
        rank.device->fill(link.out, size, 200);
        rank.shared->value[1] = 1;
        CHECK(reaches(rank.shared->value[2], 1, 60000));
        rank.close();
        return;
    }
    rank.barrier();
    read_until_it_ends(rank, link, PH_EFENCED, [&] { rank.shared->value[0]++; });
    rank.shared->value[2] = 1;
    rank.close();
}

TEST_P(Death, AnExpelledRankReadsNothingWithSuccess)
{
    SKIP_GETS_OF_STAGED();
    Job job(GetParam(), 2);
    job.environment("PEERHOP_STANDIN_CHECK", "0"); // it is a race
    job.start("is_expelled_when_it_reads");
    ASSERT_TRUE(reaches(job.shared()->value[0], 5)) << job.wait(100);
    stop_rank(job, 1);
    EXPECT_TRUE(reaches(job.shared()->value[1], 1)) << job.wait(100);
    job.signal(1, SIGCONT);
    EXPECT_EQ(job.wait(), "");
}

// ---- silence

// Several threads at once wait for a rank that does not answer: operations that were exchanged
// before (its service thread is asked in the end), and one that is new. Returns whether all ended
// within half a second of their deadlines, as they do where the machine has time for them.
static bool threads_keep_their_deadlines(Rank &rank, const Link &link)
{
    const int64_t ms[] = {200, 300, 400};
    int64_t took[3];
    int results[3];
    bool in_time = true;
    std::vector<std::thread> threads;
    void *memory = rank.device->alloc(size);
    for (int i = 0; i < 3; i++)
        threads.emplace_back([&, i] {
            rank.device->enter_thread();
            Stopwatch watch;
            auto op = i == 0   ? operation(1, link.peer, PH_ROLE_SENDER, link.out, size)
                      : i == 1 ? operation(1, link.peer, PH_ROLE_RECEIVER, link.in, size)
                               : operation(4, link.peer, PH_ROLE_BOTH, memory, size);
            ph_exchange_request *request = nullptr;
            ph_channel *channel = nullptr;
            results[i] = ph_exchange_start(rank.context, &op, 1, &request);
            if (results[i] == 0)
                results[i] = ph_exchange_finish(&request, &channel, ms[i]);
            took[i] = watch.ms();
        });
    for (int i = 0; i < 3; i++) {
        threads[i].join();
        CHECK_RC(results[i], -ETIMEDOUT);
        in_time = in_time && took[i] < ms[i] + 500; // an answer is waited for 1 s at most
    }
    return in_time;
}

RANK_FUNCTION(is_stopped_for_a_while)
{
    rank.open(fast);
    auto links = meet_all(rank);
    void *stream = rank.device->stream();
    talk(rank, links[0], 5, stream);
    rank.barrier();
    if (rank.rank == 1) {
        CHECK(reaches(rank.shared->value[3], 1, 60000)); // stopped meanwhile
        // What the other one gave up is exchanged as if it had not been tried.
        exchange_all(rank, {operation(1, 0, PH_ROLE_SENDER, links[0].out, size),
                            operation(1, 0, PH_ROLE_RECEIVER, links[0].in, size)});
        Link more = meet(rank, 0, 2);
        CHECK_OK(ph_put_signal(links[0].to, 0, 0, size, stream));
        talk(rank, more, 7, stream);
        rank.synchronize(stream);
        rank.barrier();
        return;
    }
    const Link &link = links[0];
    rank.device->fill(link.in, size, 77);
    CHECK_OK(ph_wait(link.from, size, stream));
    rank.shared->value[0] = 1;
    CHECK(stops(rank, 1));
    CHECK_SAYS(rank.log, "rank 1 (process ");
    CHECK_SAYS(rank.log, "is SUSPECT: no heartbeat for ");
    CHECK(report_of(rank, 1).silent_ms >= 390);
    CHECK_EQUAL(report_of(rank, 1).code, 0);
    // Nothing of it is released, and its channels are what they were.
    CHECK(!rank.device->synchronize(stream, 100));
    CHECK_RC(ph_channel_ended(link.from), 0);
    rank.verify(link.in, size, 77, "untouched");
    void *memory = rank.device->alloc(2 * size);
    ph_exchange_request *request = nullptr;
    ph_channel *none = nullptr;
    auto op = operation(3, 1, PH_ROLE_BOTH, memory, size);
    CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
    CHECK_RC(ph_exchange_finish(&request, &none, 200), -ETIMEDOUT);
    CHECK_SAYS(rank.error(), "waits for rank 1");
    CHECK_SAYS(rank.error(), "it is SUSPECT: no heartbeat for ");
    if (rank.device->host()) {
        CHECK_RC(ph_queue_synchronize(static_cast<ph_queue *>(stream), 50), -ETIMEDOUT);
        CHECK_SAYS(rank.error(), "it is SUSPECT: no heartbeat for ");
    }
    bool in_time = false;
    for (int i = 0; i < 10 && !in_time; i++)
        in_time = threads_keep_their_deadlines(rank, link);
    CHECK(in_time);
    rank.shared->value[1] = 1; // it goes on now
    CHECK(becomes(rank, 1, PH_PEER_LIVE));
    rank.shared->value[3] = 1;
    auto again = exchange_all(rank, {operation(1, 1, PH_ROLE_SENDER, link.out, size),
                                     operation(1, 1, PH_ROLE_RECEIVER, link.in, size)});
    CHECK(again[0] == link.to && again[1] == link.from);
    Link more = meet(rank, 1, 2);
    rank.synchronize(stream);
    rank.verify(link.in, size, 5 + 1, "of the message that was awaited");
    talk(rank, more, 7, stream);
    rank.barrier();
}

TEST_P(Death, AStoppedRankIsSuspectAndComesBackWithoutLoss)
{
    Job job(GetParam(), 2);
    job.start("is_stopped_for_a_while");
    ASSERT_TRUE(reaches(job.shared()->value[0], 1)) << job.wait(100);
    stop_rank(job, 1);
    EXPECT_TRUE(reaches(job.shared()->value[1], 1)) << job.wait(100);
    job.signal(1, SIGCONT);
    EXPECT_EQ(job.wait(), "");
}

// Both stop, as on a machine whose processes are all frozen; the watcher wakes first.
RANK_FUNCTION(watcher_was_stopped)
{
    rank.open(fast);
    auto links = meet_all(rank);
    rank.barrier();
    rank.shared->value[0]++;
    CHECK(reaches(rank.shared->value[1], 1));
    if (rank.rank == 0) {
        CHECK(becomes(rank, 1, PH_PEER_SUSPECT));
        rank.shared->value[4] = now_us() - rank.shared->value[2];
        rank.shared->value[3] = 1;
        CHECK(becomes(rank, 1, PH_PEER_LIVE));
    }
    rank.barrier();
}

// Returns after how many microseconds it was suspected.
static uint64_t suspicion_of_who_slept(const std::string &device)
{
    Job job(device, 2);
    job.start("watcher_was_stopped");
    EXPECT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    sleep_ms(50);
    job.signal(0, SIGSTOP);
    job.signal(1, SIGSTOP);
    sleep_ms(1000);
    job.shared()->value[1] = 1;
    job.shared()->value[2] = now_us();
    job.signal(0, SIGCONT);
    EXPECT_TRUE(reaches(job.shared()->value[3], 1)) << job.wait(100);
    job.signal(1, SIGCONT);
    EXPECT_EQ(job.wait(), "");
    return job.shared()->value[4];
}

// A fresh period: not SUSPECT at once, though the other one is silent since long.
TEST_P(Death, AWatcherThatSleptSuspectsNobodyAtOnce)
{
    uint64_t after = 0; // on a busy machine it may have been SUSPECT before
    for (int i = 0; i < 8 && after < 300000 && !HasFailure(); i++)
        after = suspicion_of_who_slept(GetParam());
    EXPECT_GE(after, 300000u);
}

// ---- expulsion

// An application learns that it is fenced, and of every pair, by the call that it happens to make.
static void is_told(Rank &rank, const std::vector<Link> &links)
{
    if (rank.argument == "status") {
        CHECK_RC(end_of(links[0].from), PH_EFENCED);
        return;
    }
    CHECK_OK(ph_release_start(rank.context, links[1].in, size));
    int rc = is_released(rank, links[1].in);
    if (rc == 0 && rank.staged()) // nobody copies into it: nothing is in the way
        rc = end_of(links[0].from);
    CHECK_RC(rc, PH_EFENCED);
    CHECK_SAYS(rank.error(), "expelled by");
}

// Rank 2 is stopped with a wait of rank 0 and a send of rank 1 pending on it. Rank 0 expels it.
RANK_FUNCTION(is_expelled)
{
    // By words: what waits for flags need not be held, since it copies nothing when it ends.
    std::vector<std::string> settings(fast);
    settings.insert(settings.end(), {"PEERHOP_LL_MAX=0", "PEERHOP_SM_MAX=0"});
    rank.open(settings);
    auto links = meet_all(rank);
    void *stream = rank.device->stream();
    rank.barrier();
    if (rank.rank == 2) {
        rank.device->fill(links[1].in, size, 900); // rank 1 sends there
        rank.shared->value[4] = 1;
        CHECK(reaches(rank.shared->value[3], 1, 60000)); // stopped meanwhile, and expelled
        sleep_ms(50);
        rank.verify(links[1].in, size, 900, "before this application was told");
        is_told(rank, links);
        rank.shared->value[5] = 1;
        CHECK(reaches(rank.shared->value[6], 2));
        CHECK_RC(ph_put(links[0].to, 0, 0, 8, stream), PH_EFENCED);
        void *memory = rank.device->alloc(size);
        CHECK_SAYS(exchange_fails(rank, {operation(9, 0, PH_ROLE_BOTH, memory, size)}, PH_EFENCED),
                   "expelled by");
        CHECK_RC(ph_context_expel(rank.context, 0), PH_EFENCED);
        Stopwatch watch;
        rank.close();
        CHECK(watch.ms() < patience(10000).count());
        return;
    }
    CHECK(reaches(rank.shared->value[4], 1));
    const Link &suspect = links.back();
    if (rank.rank == 0)
        CHECK_OK(ph_wait(suspect.from, 8, stream));
    for (int i = 0; rank.rank == 1 && i < (rank.staged() ? STAGE_SLOTS + 1 : 1); i++)
        CHECK_OK(ph_send(suspect.to, size, stream));
    CHECK(!rank.device->synchronize(stream, 20));
    rank.shared->value[0]++;
    CHECK(stops(rank, 2));
    rank.shared->value[1]++;
    CHECK(reaches(rank.shared->value[1], 2));
    if (rank.rank == 0) {
        CHECK_OK(ph_context_expel(rank.context, 2));
        CHECK_OK(ph_context_expel(rank.context, 2));
    }
    // All survivors learn it.
    CHECK_RC(end_of(suspect.from), PH_EPEER);
    CHECK_EQUAL(report_of(rank, 2).state, PH_PEER_EXPELLED);
    if (rank.rank == 0 || rank.staged()) // nothing of ours follows in its memory
        rank.synchronize(stream);
    else // its buffer may be in use
        CHECK(!rank.device->synchronize(stream, 200));
    void *memory = rank.device->alloc(size);
    CHECK_SAYS(exchange_fails(rank, {operation(8, 2, PH_ROLE_BOTH, memory, size)}, PH_EPEER),
               "has neither acknowledged nor exited");
    // Its memory and words are in quarantine.
    CHECK_RC(ph_context_destroy(&rank.context, 100), -ETIMEDOUT);
    rank.shared->value[2]++;
    CHECK(reaches(rank.shared->value[5], 1)); // it knows now
    rank.synchronize(stream);
    rank.shared->value[6]++;
    Stopwatch watch;
    rank.close();
    CHECK(watch.ms() < patience(10000).count());
}

TEST_P(Death, AnExpelledRankFindsItselfFenced)
{
    for (const char *told_by : {"status", "release_wait", "release_test"}) {
        SCOPED_TRACE(told_by);
        Job job(GetParam(), 3);
        job.start("is_expelled", told_by);
        ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
        stop_rank(job, 2);
        EXPECT_TRUE(reaches(job.shared()->value[2], 2)) << job.wait(100);
        job.shared()->value[3] = 1;
        job.signal(2, SIGCONT);
        EXPECT_EQ(job.wait(), "");
    }
}

// The expelled one is replaced: argument "exits" or "acknowledges".
RANK_FUNCTION(rejoins)
{
    rank.open(fast, 60000); // the kernel may take half a minute to end the one that is killed
    void *stream = rank.device->stream();
    if (rank.rank == 1) {
        bool second = rank.shared->value[4] == 1;
        auto links = meet_all(rank);
        talk(rank, links[0], second ? 50 : 5, stream);
        if (second) {
            rank.shared->value[5] = 1;
            CHECK(reaches(rank.shared->value[6], 1, 60000));
            return;
        }
        CHECK(reaches(rank.shared->value[7], 1)); // over the net it may still have been sending
        rank.shared->value[0] = 1;
        CHECK(reaches(rank.shared->value[3], 1, 60000)); // stopped meanwhile
        CHECK_RC(end_of(links[0].from), PH_EFENCED);
        CHECK(reaches(rank.shared->value[6], 1, 60000));
        return;
    }
    auto links = meet_all(rank);
    talk(rank, links[0], 5, stream);
    rank.shared->value[7] = 1;
    CHECK(stops(rank, 1));
    uint64_t incarnation = report_of(rank, 1).incarnation;
    CHECK_OK(ph_context_expel(rank.context, 1));
    rank.shared->value[1] = 1;
    // Until the former one is over the later one is not met.
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    std::vector<ph_operation> ops = {operation(1, 1, PH_ROLE_SENDER, memory, size),
                                     operation(1, 1, PH_ROLE_RECEIVER, memory + size, size)};
    CHECK_SAYS(exchange_fails(rank, ops, PH_EPEER), "expelled");
    rank.shared->value[2] = 1;
    ph_channel *channels[2];
    Stopwatch watch;
    int rc;
    while ((rc = ph_exchange(rank.context, ops.data(), 2, channels)) == PH_EPEER &&
           watch.ms() < patience(50000).count())
        sleep_ms(5);
    CHECK_RC(rc, 0);
    CHECK(report_of(rank, 1).incarnation > incarnation);
    CHECK(becomes(rank, 1, PH_PEER_LIVE)); // on a busy machine it may fall silent for a moment
    CHECK_RC(ph_channel_ended(links[0].to), PH_EPEER); // the former one's stay what they are
    talk(rank, {1, channels[0], channels[1], memory, memory + size}, 50, stream);
    CHECK(reaches(rank.shared->value[5], 1));
    rank.shared->value[6] = 1;
}

TEST_P(Death, ALaterLifeJoinsAfterTheExpulsion)
{
    for (const char *how : {"exits", "acknowledges"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        job.start("rejoins");
        ASSERT_TRUE(reaches(job.shared()->value[0], 1)) << job.wait(100);
        stop_rank(job, 1);
        ASSERT_TRUE(reaches(job.shared()->value[1], 1)) << job.wait(100);
        pid_t former = job.pid(1);
        job.shared()->value[4] = 1;
        job.start_rank(1, "rejoins");
        EXPECT_TRUE(reaches(job.shared()->value[2], 1)) << job.wait(100);
        job.shared()->value[3] = 1;
        kill(former, strcmp(how, "exits") == 0 ? SIGKILL : SIGCONT);
        EXPECT_EQ(job.wait(), "");
        int status = -1;
        waitpid(former, &status, 0);
        if (strcmp(how, "exits") != 0) {
            EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << job.shared()->text[1];
        }
    }
}

// A rank that never met the expelled one, nor who expelled it until now.
RANK_FUNCTION(learns_of_an_expulsion)
{
    rank.open(fast);
    if (rank.rank == 1) {
        meet(rank, 0, 1);
        rank.shared->value[0] = 1;
        pause();
    }
    if (rank.rank == 0) {
        Link link = meet(rank, 1, 1);
        CHECK(stops(rank, 1));
        CHECK_RC(ph_context_expel(rank.context, 2), -ENOTCONN);
        CHECK_RC(ph_context_expel(rank.context, 0), -EINVAL);
        CHECK_RC(ph_context_expel(rank.context, 3), -EINVAL);
        CHECK_OK(ph_context_expel(rank.context, 1));
        CHECK_RC(ph_channel_ended(link.to), PH_EPEER);
        rank.shared->value[1] = 1;
        meet(rank, 2, 5);
    } else {
        CHECK(reaches(rank.shared->value[1], 1, 60000));
        meet(rank, 0, 5);
        ph_exchange_request *request = nullptr;
        ph_channel *none = nullptr;
        auto op = operation(4, 1, PH_ROLE_BOTH, rank.device->alloc(size), size);
        rank.ends_with(-ETIMEDOUT, "it was expelled, and has not joined again", [&] {
            CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
            return ph_exchange_finish(&request, &none, 2000);
        });
    }
    rank.barrier();
}

TEST_P(Death, ANewcomerLearnsOfAnExpulsionFromTheStore)
{
    Job job(GetParam(), 3);
    job.start("learns_of_an_expulsion");
    ASSERT_TRUE(reaches(job.shared()->value[0], 1)) << job.wait(100);
    stop_rank(job, 1);
    job.shared()->arrived[0]++; // it will not come
    EXPECT_TRUE(reaches(job.shared()->value[1], 1)) << job.wait(100);
    job.expect_failure(1);
    job.signal(1, SIGKILL);
    EXPECT_EQ(job.wait(), "");
}
