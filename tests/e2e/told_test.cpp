// SPDX-License-Identifier: BSD-3-Clause
// Streams of a pair that has ended are held while its applications do not know of that: whatever
// calls these make, they come to know, and nobody waits for ever.
#include <cerrno>
#include <csignal>
#include <cstring>

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "e2e/dying.h"

class Told : public EveryDevice
{
  protected:
    void SetUp() override
    {
        EveryDevice::SetUp();
        if (!IsSkipped() && is_staged())
            GTEST_SKIP() << "what is staged is written by its receiver's stream alone";
    }
};
INSTANTIATE_DEVICES_AND_ALL_NETS(Told);

static const int64_t SHORT_MS = patience(300).count();  // of what does not happen
static const int64_t LONG_MS = patience(20000).count(); // for what must succeed

// Where the test and its ranks tell each other how far they are; 10 is stop_rank's.
enum Value { READY, KNOWN, GO_ON, EXPELLED, TOLD, DONE, SAID, STOPPED };

static void open(Rank &rank)
{
    // By words: what waits for flags need not be held, since it copies nothing when it ends.
    std::vector<std::string> settings(fast);
    settings.insert(settings.end(), {"PEERHOP_LL_MAX=0", "PEERHOP_SM_MAX=0"});
    rank.open(settings);
}

static bool says(const Rank &rank, const char *what)
{
    return rank.argument.find(what) != std::string::npos;
}

// A stream with a copy into the peer's buffer, which waits until the peer has opened that. It does
// not.
static void *send_in_vain(Rank &rank, const Link &link)
{
    void *stream = rank.device->stream();
    CHECK_OK(ph_send(link.to, size, stream));
    CHECK(!rank.device->synchronize(stream, 20));
    return stream;
}

static bool has_pidfds()
{
    const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
    if (pidfd >= 0)
        close(pidfd);
    return pidfd >= 0;
}

// ---- by a release

// How rank 0 comes to know that its pair with rank 1 has ended, before rank 1's application does.
static void is_parted(Rank &rank, const Link &link)
{
    if (says(rank, "connection"))
        end_connections();
    if (says(rank, "expelled"))
        CHECK(reaches(rank.shared->value[GO_ON], 1, 60000)); // stopped meanwhile, and expelled
    if (says(rank, "life")) {
        CHECK(reaches(rank.shared->value[GO_ON], 1));
        exchange_fails(rank, {operation(7, 1, PH_ROLE_BOTH, rank.device->alloc(size), size)},
                       PH_EPEER);
    }
    CHECK_RC(end_of(link.to), says(rank, "expelled") ? PH_EFENCED : PH_EPEER);
}

// Rank 0 has a copy into rank 1's memory pending when their pair ends, and behind it one into other
// memory. Rank 1 does not call but to give the latter back: by rank 0's word alone it comes to know
// of the end. Rank 2, where there is one, expels rank 0, and is not connected to rank 1.
RANK_FUNCTION(gives_back_what_is_held)
{
    open(rank);
    if (rank.rank == 1 && rank.shared->value[READY] != 0) { // its next life
        rank.shared->value[GO_ON] = 1;
        CHECK(reaches(rank.shared->value[DONE], 1));
        return;
    }
    if (rank.rank == 2) {
        meet(rank, 0, 2);
        CHECK(stops(rank, 0));
        CHECK_OK(ph_context_expel(rank.context, 0));
        rank.shared->value[EXPELLED] = 1;
        CHECK(reaches(rank.shared->value[DONE], 1, 60000));
        return;
    }
    Link link = meet(rank, !rank.rank, 1), more = meet(rank, !rank.rank, 3);
    if (rank.ranks == 3 && rank.rank == 0)
        meet(rank, 2, 2);
    if (rank.rank == 1) {
        rank.device->fill(link.in, size, 900);
        rank.shared->value[KNOWN] = 1;
        CHECK(reaches(rank.shared->value[TOLD], 1, 60000));
        sleep_ms(100);
        rank.verify(link.in, size, 900, "before this application was told");
        CHECK_OK(ph_release_start(rank.context, more.in, size));
        CHECK_RC(is_released(rank, more.in), PH_EPEER);
        CHECK_SAYS(rank.error(), "rank 0 ");
        CHECK_OK(ph_release_wait(rank.context, more.in, size, PH_RELEASE_DRAINED, LONG_MS));
        CHECK(reaches(rank.shared->value[DONE], 1));
        return;
    }
    CHECK(reaches(rank.shared->value[KNOWN], 1));
    void *stream = send_in_vain(rank, link);
    CHECK_OK(ph_put(more.to, 0, 0, size, stream));
    rank.shared->value[READY] = 1;
    is_parted(rank, link);
    CHECK(!rank.device->synchronize(stream, SHORT_MS)); // held
    rank.shared->value[TOLD] = 1;
    rank.synchronize(stream);
    rank.shared->value[DONE] = 1;
}

TEST_P(Told, AReleaseTellsOfAnEndThatThePeerKnewFirst)
{
    for (const char *how : {"expelled release_wait", "expelled release_test", "life release_wait",
                            "connection release_wait"}) {
        const bool expelled = how[0] == 'e', life = how[0] == 'l';
        if (how[0] == 'c' && (on_net() || !has_pidfds()))
            continue; // over the net a link that is given up is over; without pidfds so is a peer
        SCOPED_TRACE(how);
        Job job(GetParam(), expelled ? 3 : 2);
        job.start("gives_back_what_is_held", how);
        ASSERT_TRUE(reaches(job.shared()->value[READY], 1)) << job.wait(100);
        if (expelled) {
            stop_rank(job, 0);
            EXPECT_TRUE(reaches(job.shared()->value[EXPELLED], 1)) << job.wait(100);
            job.shared()->value[GO_ON] = 1;
            job.signal(0, SIGCONT);
        }
        const pid_t former = job.pid(1);
        if (life)
            job.start_rank(1, "gives_back_what_is_held", how);
        EXPECT_EQ(job.wait(), "");
        int status = 0;
        if (life) {
            waitpid(former, &status, 0);
            EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << job.shared()->text[1];
        }
    }
}

// ---- by whatever call both make

// Of two that are expelled, one may learn of the other's expulsion first.
static bool is_end(const Rank &rank, int rc)
{
    return rc == PH_EPEER || (rc == PH_EFENCED && says(rank, "expelled"));
}

static int wait_for_streams(Rank &rank, void *stream)
{
    void *host = nullptr;
    if (says(rank, "synchronize"))
        return ph_queue_synchronize(static_cast<ph_queue *>(stream), LONG_MS);
    if (says(rank, "reap"))
        return ph_reap(rank.context, LONG_MS);
    CHECK_OK(ph_host_alloc(rank.context, size, &host));
    const int rc = ph_host_free(rank.context, host, LONG_MS);
    const std::string why = rank.error();
    CHECK_RC(ph_host_free(rank.context, host, LONG_MS), -EINVAL); // it was given back
    if (rc)
        CHECK_SAYS(why, "rank ");
    return rc;
}

// One of the two at least: what the other one waits for goes on then.
static void is_told(Rank &rank, const Link &link, void *stream)
{
    Stopwatch watch;
    const int rc = wait_for_streams(rank, stream);
    CHECK(rc == 0 || is_end(rank, rc));
    rank.shared->value[SAID] += rc != 0;
    CHECK(watch.ms() < LONG_MS / 2); // at once
    CHECK(is_end(rank, ph_channel_ended(link.to)));
    CHECK_OK(wait_for_streams(rank, stream));
    rank.synchronize(stream);
    rank.shared->value[TOLD]++;
    CHECK(reaches(rank.shared->value[TOLD], 2)); // a destroy tells, too
    CHECK(rank.shared->value[SAID] >= 1);
}

// Ranks 0 and 1 each have a copy into the other's memory pending when their pair ends: none goes on
// before the other one's application knows. Rank 2, where there is one, expels both.
RANK_FUNCTION(hold_each_other)
{
    open(rank);
    if (rank.rank == 2) {
        char *memory = static_cast<char *>(rank.device->alloc(2 << 20));
        for (int peer = 0; peer < 2; peer++)
            rank.channel(peer, 2, PH_ROLE_SENDER, memory, size);
        release_to(rank, memory, 2 << 20, PH_RELEASE_DRAINED);
        rank.shared->value[KNOWN] = 1;
        CHECK(stops(rank, 0) && stops(rank, 1));
        CHECK_OK(ph_context_expel(rank.context, 0));
        CHECK_OK(ph_context_expel(rank.context, 1));
        rank.shared->value[EXPELLED] = 1;
        CHECK(reaches(rank.shared->value[DONE], 2, 60000));
        return;
    }
    Link link = meet(rank, !rank.rank, 1);
    if (rank.ranks == 3) {
        rank.channel(2, 2, PH_ROLE_RECEIVER, rank.device->alloc(size), size);
        CHECK(reaches(rank.shared->value[KNOWN], 1)); // what rank 2 gave back is to be reaped
    }
    void *stream = send_in_vain(rank, link);
    if (rank.shared->value[READY].fetch_add(1) == 1 && rank.ranks == 2) {
        end_connections();
        rank.shared->value[GO_ON] = 1;
    }
    if (says(rank, "inside")) {
        rank.close(LONG_MS); // stopped meanwhile, and expelled
        rank.shared->value[DONE]++;
        return;
    }
    CHECK(reaches(rank.shared->value[GO_ON], 1, 60000)); // stopped meanwhile, and expelled
    for (Stopwatch watch; report_of(rank, !rank.rank).code == 0; sleep_ms(1))
        CHECK(watch.ms() < LONG_MS);
    if (!says(rank, "destroy"))
        is_told(rank, link, stream);
    rank.close(LONG_MS);
    rank.shared->value[DONE]++;
}

TEST_P(Told, RanksThatHoldEachOthersStreamsGoOn)
{
    for (const char *how : {"expelled synchronize", "expelled reap", "expelled free",
                            "expelled destroy", "expelled inside destroy", "connection synchronize",
                            "connection free", "connection destroy"}) {
        const bool expelled = how[0] == 'e';
        if (!expelled && (on_net() || !has_pidfds()))
            continue; // over the net a link that is given up is over; without pidfds so is a peer
        const std::string call = strrchr(how, ' ') + 1;
        if (call != "destroy" && on_host() != (call == "synchronize"))
            continue; // streams of a device are synchronised by CUDA; queues are in no reap's way
        if (call == "reap" && on_net())
            continue; // there is nothing to unmap
        SCOPED_TRACE(how);
        Job job(GetParam(), expelled ? 3 : 2);
        job.start("hold_each_other", how);
        ASSERT_TRUE(reaches(job.shared()->value[READY], 2)) << job.wait(100);
        if (expelled) {
            sleep_ms(50); // they may be inside
            stop_rank(job, 0);
            stop_rank(job, 1);
            EXPECT_TRUE(reaches(job.shared()->value[EXPELLED], 1)) << job.wait(100);
            job.shared()->value[GO_ON] = 1;
            job.signal(0, SIGCONT);
            job.signal(1, SIGCONT);
        }
        EXPECT_EQ(job.wait(), "");
    }
}

// ---- by a call that waits for something else

// What rank 1 does, which does not come to an end by itself.
static int wait_for_rank_2(Rank &rank, void *stream, const Link &link)
{
    void *host = nullptr;
    if (says(rank, "release"))
        return ph_release_wait(rank.context, link.in, size, PH_RELEASE_DRAINED, SHORT_MS);
    if (rank.device->host())
        return ph_queue_synchronize(static_cast<ph_queue *>(stream), SHORT_MS);
    CHECK_OK(ph_host_alloc(rank.context, size, &host));
    return ph_host_free(rank.context, host, SHORT_MS);
}

// Rank 0 has a copy into rank 1's memory pending and aborts. Rank 1 waits for rank 2 alone, and is
// told when its time is over: rank 2 might wait for rank 0.
RANK_FUNCTION(waits_for_another_one)
{
    open(rank);
    auto links = meet_all(rank);
    rank.barrier();
    if (rank.rank == 0) {
        void *stream = send_in_vain(rank, links[0]);
        CHECK_OK(ph_context_abort(rank.context, "the test says so"));
        rank.shared->value[READY] = 1;
        CHECK(reaches(rank.shared->value[TOLD], 1));
        rank.synchronize(stream);
    } else if (rank.rank == 1) {
        void *stream = rank.device->stream();
        CHECK(reaches(rank.shared->value[READY], 1));
        CHECK(becomes(rank, 0, PH_PEER_BROKEN));
        if (says(rank, "release")) {
            CHECK(reaches(rank.shared->value[STOPPED], 1));
            CHECK_OK(ph_release_start(rank.context, links[1].in, size));
        } else {
            CHECK_OK(ph_wait(links[1].from, 0, stream));
        }
        Stopwatch watch;
        CHECK_RC(wait_for_rank_2(rank, stream, links[1]), PH_EBROKEN);
        CHECK(watch.ms() >= SHORT_MS - 1); // it is none of this call's
        CHECK_SAYS(rank.error(), "rank 0 ");
        CHECK_RC(wait_for_rank_2(rank, stream, links[1]), -ETIMEDOUT);
        rank.shared->value[TOLD] = 1;
        if (!says(rank, "release"))
            rank.synchronize(stream);
    } else if (!says(rank, "release")) {
        CHECK(reaches(rank.shared->value[TOLD], 1));
        CHECK_OK(ph_signal(links[1].to, rank.device->stream()));
    }
    rank.barrier();
}

TEST_P(Told, ACallTellsWhenItsTimeIsOver)
{
    for (const char *how : {"streams", "release"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 3);
        job.start("waits_for_another_one", how);
        ASSERT_TRUE(reaches(job.shared()->value[READY], 1)) << job.wait(100);
        if (how[0] == 'r') {
            siginfo_t info;
            job.signal(2, SIGSTOP);
            waitid(P_PID, static_cast<id_t>(job.pid(2)), &info, WSTOPPED | WNOWAIT); // all threads
            job.shared()->value[STOPPED] = 1;
            EXPECT_TRUE(reaches(job.shared()->value[TOLD], 1)) << job.wait(100);
            job.signal(2, SIGCONT);
        }
        EXPECT_EQ(job.wait(), "");
    }
}
