// SPDX-License-Identifier: BSD-3-Clause
// Giving buffers back: what may be reused or freed, when, and what becomes of those who use it.
#include <csignal>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include <malloc.h>
#include <unistd.h>

#include "e2e/bytes.h"
#include "e2e/exchanging.h"
#include "support/entries.h"
#include "support/watched.h"

class Release : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_NET(Release);

class ReleaseOnCuda : public EveryDevice
{
};
INSTANTIATE_CUDA_DEVICES(ReleaseOnCuda);

static const size_t size = 100000;
static const int64_t LONG_MS = patience(20000).count(); // for what must succeed

// What the application of a peer does at a quiet moment, until `value` says that it may stop.
static void reap_until(Rank &rank, const std::atomic<uint64_t> &value, uint64_t least)
{
    while (value < least) {
        CHECK_OK(ph_reap(rank.context, 0));
        sleep_ms(1);
    }
}

// ---- the life of a buffer

// Rank 0 owns the buffer; rank 1 puts into it.
RANK_FUNCTION(gives_back_and_again)
{
    rank.open();
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(size, rank.argument);
    ph_role role = role_of(rank, 1);
    ph_channel *last = nullptr;
    for (int round = 0; round < 3; round++) {
        ph_channel *channel = rank.channel(!rank.rank, 1, role, memory, size);
        CHECK(channel != last);
        last = channel;
        pass(rank, channel, role, memory, size, round, stream);
        rank.barrier();
        if (rank.rank == 0) {
            release_to(rank, memory, size, PH_RELEASE_DRAINED);
            CHECK_OK(ph_release_test(rank.context, memory, size, PH_RELEASE_REVOKED));
        }
        rank.barrier();
        // Both ends say so, for every call.
        CHECK_RC(ph_channel_ended(channel), -ESTALE);
        if (rank.rank == 1) {
            CHECK_RC(ph_put(channel, 0, 0, 8, stream), -ESTALE);
            CHECK_RC(ph_put_signal(channel, 0, 0, 8, stream), -ESTALE);
            CHECK_RC(ph_send(channel, 8, stream), -ESTALE);
            ph_group_op group = {PH_GROUP_PUT, channel, 0, 0, 8};
            CHECK_RC(ph_group(&group, 1, stream), -ESTALE);
        } else {
            CHECK_RC(ph_recv(channel, 8, stream), -ESTALE);
            CHECK_RC(ph_wait(channel, 8, stream), -ESTALE);
        }
    }
    // All is given back: the peer unmaps it.
    rank.barrier();
    if (rank.rank == 0) {
        CHECK_OK(ph_release_wait(rank.context, memory, size, PH_RELEASE_CLOSED, LONG_MS));
        rank.device->release(memory);
        rank.shared->value[0] = 1;
    } else {
        reap_until(rank, rank.shared->value[0], 1);
    }
    rank.close();
}

TEST_P(Release, TheSameBufferAgainAndAgain)
{
    for (const char *kind : {"", "vmm", "pool"}) {
        if (*kind && on_host())
            continue;
        SCOPED_TRACE(kind);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("gives_back_and_again", kind), "");
    }
}

// Frameworks: parts of one allocation come and go, their neighbours stay.
RANK_FUNCTION(gives_back_a_part)
{
    rank.open();
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(4 * size);
    ph_role role = role_of(rank, 1);
    void *keeps = at(memory, 0), *goes = at(memory, size), *next = at(memory, 3 * size);
    ph_channel *neighbour = rank.channel(!rank.rank, 1, role, keeps, size);
    ph_channel *behind = rank.channel(!rank.rank, 2, role, next, size);
    for (int round = 0; round < 10; round++) {
        // A part that overlaps the one before.
        void *part = at(goes, 1000 * static_cast<size_t>(round));
        ph_channel *channel = rank.channel(!rank.rank, 3, role, part, size);
        pass(rank, channel, role, part, size, round, stream);
        rank.barrier();
        if (rank.rank == 0)
            release_to(rank, at(part, 500), 10, PH_RELEASE_DRAINED);
        rank.barrier();
        CHECK_RC(ph_channel_ended(channel), -ESTALE);
        pass(rank, neighbour, role, keeps, size, 100 + round, stream);
        pass(rank, behind, role, next, size, 200 + round, stream);
    }
    rank.barrier();
    if (rank.rank == 0) {
        rank.ends_with(-ETIMEDOUT, "other buffers are not released", [&] {
            return ph_release_wait(rank.context, goes, size, PH_RELEASE_CLOSED, 20);
        });
        CHECK_SAYS(rank.error(), "rank 1");
        CHECK_RC(ph_release_test(rank.context, memory, 4 * size, PH_RELEASE_DRAINED), -EINVAL);
        CHECK_SAYS(rank.error(), "ph_release_start");
        release_to(rank, memory, 4 * size, PH_RELEASE_DRAINED);
        rank.shared->value[0] = 1;
        rank.barrier();
        CHECK_OK(ph_release_wait(rank.context, memory, 4 * size, PH_RELEASE_CLOSED, LONG_MS));
        rank.shared->value[0] = 2;
    } else {
        CHECK(reaches(rank.shared->value[0], 1));
        CHECK_RC(ph_channel_ended(neighbour), -ESTALE);
        rank.barrier();
        reap_until(rank, rank.shared->value[0], 2);
    }
    rank.close();
}

TEST_P(Release, PartsWhileTheirNeighboursGoOn)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("gives_back_a_part"), "");
}

// The owner does not wait for its release before it offers the same memory again, while a neighbour
// keeps the allocation in use: what is told of the release later is not about the new channel.
RANK_FUNCTION(takes_back_at_once)
{
    rank.open();
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(2 * size);
    ph_role role = role_of(rank, 1);
    rank.channel(!rank.rank, 1, role, at(memory, size), size);
    ph_channel *former = nullptr;
    for (int round = 0; round < 60; round++) {
        ph_channel *channel = rank.channel(!rank.rank, 2, role, memory, size);
        CHECK(channel != former);
        if (former != nullptr)
            CHECK_RC(end_of(former), -ESTALE);
        CHECK_OK(ph_channel_ended(channel));
        pass(rank, channel, role, memory, size, round, stream);
        rank.barrier(); // else the release would be of what is still under way
        if (rank.rank == 0)
            CHECK_OK(ph_release_start(rank.context, memory, size));
        former = channel;
    }
    rank.barrier();
    rank.close();
}

TEST_P(Release, TakenBackAtOnce)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("takes_back_at_once"), "");
}

// ---- what is under way

// The peer has copies under way: nothing of them comes after DRAINED.
RANK_FUNCTION(drains_copies)
{
    rank.open();
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(size);
    ph_channel *channel = rank.channel(!rank.rank, 1, role_of(rank, 1), memory, size);
    for (int round = 0; round < 20; round++) {
        if (rank.rank == 1) {
            // Copies until the channel is taken away.
            rank.device->fill(memory, size, round);
            rank.device->slow_fill(stream, at(memory, size - 8), 8, 1, 2000);
            int rc = 0;
            for (int i = 0; rc == 0; i++) {
                rc = ph_put(channel, 0, 0, size, stream);
                if (i == 3)
                    rank.shared->value[0] = round + 1;
                if (i % 16 == 15)
                    rank.synchronize(stream);
            }
            CHECK_RC(rc, -ESTALE);
        } else {
            CHECK(reaches(rank.shared->value[0], round + 1));
            release_to(rank, memory, size, PH_RELEASE_DRAINED);
            set_value(rank, memory, size, 77); // it is ours again
            sleep_ms(3);
            check_value(rank, memory, size, 77, "after DRAINED");
        }
        rank.synchronize(stream);
        channel = rank.channel(!rank.rank, 1, role_of(rank, 1), memory, size);
    }
    rank.close();
}

TEST_P(Release, WhilePeersCopy)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("drains_copies"), "");
}

// A release needs nothing of the peer's application: all its threads may be stuck.
RANK_FUNCTION(is_stuck_in_a_call)
{
    rank.open();
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(size), *other = rank.device->alloc(size);
    ph_channel *stuck = rank.channel(!rank.rank, 1, role_of(rank, 0), memory, size);
    ph_channel *channel = rank.channel(!rank.rank, 2, role_of(rank, 1), other, size);
    pass(rank, channel, role_of(rank, 1), other, size, 5, stream);
    rank.barrier();
    if (rank.rank == 1) {
        void *freed = rank.device->alloc(size);
        CHECK_OK(ph_wait(stuck, 8, stream));
        rank.shared->value[0] = 1;
        rank.device->release(freed); // blocks behind the stream that waits, where there is a driver
        rank.synchronize(stream);
        CHECK_RC(ph_channel_ended(channel), -ESTALE);
    } else {
        CHECK(reaches(rank.shared->value[0], 1));
        sleep_ms(30);
        release_to(rank, other, size, PH_RELEASE_DRAINED);
        CHECK_OK(ph_put_signal(stuck, 0, 0, 8, stream));
        rank.synchronize(stream);
    }
    rank.barrier();
    rank.close();
}

TEST_P(Release, WhileThePeersThreadsAreStuck)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("is_stuck_in_a_call"), "");
}

// ---- a drain that waits for the releaser

static void enqueue_wait(Rank &rank, const std::string &how, ph_channel *channel, void *stream)
{
    if (how == "wait") {
        CHECK_OK(ph_wait(channel, 8, stream));
    } else if (how.find("send") == 0) {
        CHECK_OK(ph_send(channel, size, stream));
        CHECK_OK(ph_complete(channel, stream));
    } else if (how.find("recv") == 0) {
        CHECK_OK(ph_recv(channel, size, stream));
        CHECK_OK(ph_complete(channel, stream));
    } else { // the second waits until the first is consumed
        CHECK_OK(ph_signal(channel, stream));
        CHECK_OK(ph_put_signal(channel, 0, 0, size, stream));
    }
}

// By words everywhere, or as it comes, but that what is large goes by sm where there are flags: a
// send by ll waits for nobody.
static void open_by(Rank &rank, bool words)
{
    if (words)
        rank.open({"PEERHOP_LL_MAX=0", "PEERHOP_SM_MAX=0"});
    else
        rank.open({"PEERHOP_LL_MAX=8192"});
}

RANK_FUNCTION(waits_for_the_releaser)
{
    const bool words = rank.argument.find("words") != std::string::npos;
    open_by(rank, words);
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(size);
    ph_channel *channel =
        rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size, protocol_of(rank.argument));
    rank.barrier();
    if (rank.rank == 1) {
        enqueue_wait(rank, rank.argument, channel, stream);
        if (words) // the next message's post, without its complete
            CHECK_OK(ph_recv(channel, size, stream));
        else
            enqueue_wait(rank, rank.argument == "wait" ? "wait" : "signals", channel, stream);
        CHECK(!rank.device->synchronize(stream, 20));
        rank.shared->value[0] = 1;
        rank.synchronize(stream, 10000);
        CHECK_RC(end_of(channel), PH_EBROKEN); // the data of its last operations is undefined
        CHECK_RC(ph_wait(channel, 8, stream), PH_EBROKEN);
    } else {
        CHECK(reaches(rank.shared->value[0], 1));
        release_to(rank, memory, size, PH_RELEASE_DRAINED);
        CHECK_RC(ph_channel_ended(channel), -ESTALE);
    }
    // The pair is whole: the same operation goes on with a channel of its own.
    channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size);
    pass(rank, channel, role_of(rank, 1), memory, size, 3, stream);
    rank.close();
}

TEST_P(Release, ThatThePeersStreamWaitsFor)
{
    for (const char *how :
         {"wait", "send put", "send get", "recv put", "recv get", "signals", "recv put words"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("waits_for_the_releaser", how), "");
    }
}

// The other way round: a stream of the releaser's waits for a peer that may not answer any more.
RANK_FUNCTION(waits_for_what_it_released)
{
    rank.open();
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(size);
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size);
    rank.barrier();
    if (rank.rank == 0) {
        if (rank.argument == "both") {
            CHECK_OK(ph_recv(channel, size, stream));
            CHECK_OK(ph_complete(channel, stream));
        }
        CHECK_OK(ph_wait(channel, 8, stream));
        CHECK(!rank.device->synchronize(stream, 20));
        release_to(rank, memory, size, PH_RELEASE_DRAINED);
        rank.synchronize(stream, 10000);
        CHECK_RC(end_of(channel), PH_EBROKEN);
    }
    rank.barrier();
    rank.close();
}

TEST_P(Release, ByARankWhoseStreamWaits)
{
    for (const char *how : {"both", "wait"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("waits_for_what_it_released", how), "");
    }
}

// What the releaser has issued still answers: nothing is broken.
RANK_FUNCTION(answers_behind_the_release)
{
    open_by(rank, false);
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(size), *busy = rank.device->alloc(size);
    ph_channel *channel = rank.channel(!rank.rank, 1, role_of(rank, 1), memory, size);
    if (rank.rank == 1) {
        rank.device->fill(memory, size, 8);
        CHECK_OK(ph_send(channel, size, stream)); // waits for the receiver's post
        CHECK_OK(ph_complete(channel, stream));
        CHECK(!rank.device->synchronize(stream, 20));
        rank.barrier();
        rank.synchronize(stream);
        CHECK_RC(end_of(channel), -ESTALE);
        rank.barrier();
    } else {
        rank.barrier();
        rank.device->slow_fill(stream, busy, size, 1, 100000);
        CHECK_OK(ph_recv(channel, size, stream));
        CHECK_OK(ph_complete(channel, stream));
        release_to(rank, memory, size, PH_RELEASE_DRAINED);
        rank.synchronize(stream);
        rank.verify(memory, size, 8, "what came before the buffer was given back");
        rank.barrier();
    }
    rank.close();
}

TEST_P(Release, BehindOperationsOfTheReleaser)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("answers_behind_the_release"), "");
}

// A group has taken what a buffer's owner said before it gave it back, and still waits for
// something else: the channel of the buffer is not broken.
RANK_FUNCTION(is_taken_by_a_group)
{
    open_by(rank, rank.argument == "words");
    void *stream = rank.device->stream();
    void *memory[2] = {rank.device->alloc(size), rank.device->alloc(size)};
    ph_channel *channel[2];
    for (int i = 0; i < 2; i++)
        channel[i] = rank.channel(!rank.rank, 1 + i, role_of(rank, 0), memory[i], size);
    if (rank.rank == 0) {
        rank.barrier();
        CHECK_OK(ph_signal(channel[0], stream));
        rank.synchronize(stream);
        CHECK_OK(ph_release_start(rank.context, memory[0], size));
        CHECK_OK(ph_release_wait(rank.context, memory[0], size, PH_RELEASE_REVOKED, LONG_MS));
        CHECK_RC(ph_release_wait(rank.context, memory[0], size, PH_RELEASE_DRAINED, 200),
                 -ETIMEDOUT); // the peer says that it waits, and is told that nothing more comes
        CHECK_OK(ph_signal(channel[1], stream));
        CHECK_OK(ph_release_wait(rank.context, memory[0], size, PH_RELEASE_DRAINED, LONG_MS));
    } else {
        const ph_group_op group[] = {{PH_GROUP_WAIT, channel[0], 0, 0, 0},
                                     {PH_GROUP_WAIT, channel[1], 0, 0, 0}};
        CHECK_OK(ph_group(group, 2, stream));
        rank.barrier();
        rank.synchronize(stream);
        CHECK_RC(ph_channel_ended(channel[0]), -ESTALE);
        CHECK_OK(ph_channel_ended(channel[1]));
    }
    rank.barrier();
    rank.close();
}

TEST_P(Release, OfWhatAGroupHasTaken)
{
    for (const char *how : {"flags", "words"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("is_taken_by_a_group", how), "");
    }
}

// All has come when the buffer is given back, but a stream takes it later: nothing is broken.
RANK_FUNCTION(takes_after_the_release)
{
    rank.open();
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(size);
    const size_t bytes = rank.argument == "few" ? 256 : size;
    ph_channel *channel = rank.channel(!rank.rank, 1, role_of(rank, 0), memory, size);
    if (rank.rank == 0) {
        rank.device->fill(memory, bytes, 8);
        CHECK_OK(ph_put_signal(channel, 0, 0, bytes, stream));
        rank.synchronize(stream);
        rank.barrier();
        CHECK_OK(ph_release_start(rank.context, memory, size));
        CHECK_OK(ph_release_wait(rank.context, memory, size, PH_RELEASE_REVOKED, LONG_MS));
        CHECK_RC(ph_release_wait(rank.context, memory, size, PH_RELEASE_DRAINED, 100), -ETIMEDOUT);
        rank.shared->value[0] = 1;
        CHECK_OK(ph_release_wait(rank.context, memory, size, PH_RELEASE_DRAINED, LONG_MS));
    } else {
        auto &given = rank.shared->value[0];
        rank.device->call(stream, [&given] { reaches(given, 1); });
        CHECK_OK(ph_wait(channel, bytes, stream));
        rank.barrier();
        rank.synchronize(stream);
        rank.verify(memory, bytes, 8, "what came before the buffer was given back");
    }
    CHECK_RC(end_of(channel), -ESTALE);
    rank.barrier();
    rank.close();
}

TEST_P(ReleaseOnCuda, OfWhatIsTakenLater)
{
    for (const char *how : {"few", "many"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("takes_after_the_release", how), "");
    }
}

// ---- graphs

RANK_FUNCTION(holds_a_graph)
{
    rank.open();
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(size);
    ph_channel *channel = rank.channel(!rank.rank, 7, role_of(rank, 1), memory, size);
    if (rank.rank == 1) {
        void *graph =
            rank.device->capture(stream, [&] { CHECK_OK(ph_put(channel, 0, 0, size, stream)); });
        rank.device->launch(graph, stream);
        rank.synchronize(stream);
        rank.barrier();
        CHECK(reaches(rank.shared->value[0], 1));
        CHECK_RC(end_of(channel), -ESTALE);
        rank.device->launch(graph, stream); // the buffer is not drained, so it may be
        rank.synchronize(stream);
        rank.device->destroy(graph);
    } else {
        rank.barrier();
        CHECK_OK(ph_release_start(rank.context, memory, size));
        CHECK_OK(ph_release_wait(rank.context, memory, size, PH_RELEASE_REVOKED, LONG_MS));
        rank.ends_with(-EBUSY, "graph", [&] {
            return ph_release_wait(rank.context, memory, size, PH_RELEASE_DRAINED, 50);
        });
        for (const char *part : {"rank 1", "operation 7", "not DRAINED"})
            CHECK_SAYS(rank.error(), part);
        CHECK_RC(ph_release_test(rank.context, memory, size, PH_RELEASE_DRAINED), -EBUSY);
        rank.shared->value[0] = 1;
        CHECK_OK(ph_release_wait(rank.context, memory, size, PH_RELEASE_DRAINED, LONG_MS));
    }
    rank.barrier();
    rank.close();
}

TEST_P(ReleaseOnCuda, HeldByACapturedGraph)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("holds_a_graph"), "");
}

// ---- exchanges under way

// A release of a buffer that a started exchange names: that exchange fails, and the peer's goes on
// to the next one.
RANK_FUNCTION(releases_in_an_exchange)
{
    rank.open();
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(size), *second = rank.device->alloc(size);
    ph_role role = role_of(rank, 1);
    ph_channel *channel = rank.channel(!rank.rank, 1, role, memory, size);
    for (int round = 0; round < 10; round++) {
        auto op = operation(2, !rank.rank, role, rank.rank ? memory : second, size);
        ph_exchange_request *request = nullptr;
        if (rank.rank == 0) {
            CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
            if (round % 2)
                sleep_ms(3); // the peer is there
            CHECK_OK(ph_release_start(rank.context, second, size));
            int rc = ph_exchange_finish(&request, &channel, LONG_MS);
            CHECK(rc == 0 || rc == -ESTALE);
            if (rc == 0)
                CHECK_RC(ph_channel_ended(channel), -ESTALE);
            rank.shared->value[round] = 1 + (rc == 0); // 2: the peer has a channel of it, too
            release_to(rank, second, size, PH_RELEASE_DRAINED);
            channel = rank.channel(1, 2, role, second, size);
        } else {
            CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
            CHECK_OK(ph_exchange_finish(&request, &channel, LONG_MS));
            CHECK(reaches(rank.shared->value[round], 1));
            if (rank.shared->value[round] == 2) {
                CHECK_RC(end_of(channel), -ESTALE);
                channel = rank.channel(0, 2, role, memory, size);
            }
        }
        pass(rank, channel, role, rank.rank ? memory : second, size, round, stream);
        rank.barrier();
    }
    rank.close();
}

TEST_P(Release, DuringAnExchange)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("releases_in_an_exchange"), "");
}

// ---- memory that comes and goes, under load: trap 1

// docs/lifetime.md shows this.
static void give_back(Rank &rank, struct ph_context *context, const void *buffer, size_t size)
{
    CHECK_OK(ph_release_start(context, buffer, size));
    CHECK_OK(ph_release_wait(context, buffer, size, PH_RELEASE_DRAINED, 10000));
    // no peer's stream touches the buffer any more: reuse it
    CHECK_OK(ph_release_wait(context, buffer, size, PH_RELEASE_CLOSED, LONG_MS));
    // no peer maps the allocation any more: free it
}

// How many of a rank's allocations begin where a former one did, and how many cover a smaller one's
// place.
class Places
{
  public:
    int again = 0, over = 0;
    void take(const void *memory, size_t bytes)
    {
        const auto begin = reinterpret_cast<uintptr_t>(memory);
        const auto former = former_.lower_bound(begin);
        again += former != former_.end() && former->first == begin;
        for (auto other = former; other != former_.end() && other->first < begin + bytes; ++other)
            if (other->first + other->second < begin + bytes) {
                over++;
                break;
            }
        former_[begin] = bytes;
    }

  private:
    std::map<uintptr_t, size_t> former_; // address, size
};

// Rank 0 allocates, exchanges, uses and frees; other channels copy meanwhile.
RANK_FUNCTION(allocates_and_frees)
{
    const bool releases = rank.argument.find("release") != std::string::npos;
    const bool idle = rank.argument.find("idle") != std::string::npos;
    const std::string kind = rank.argument.find("vmm") != std::string::npos ? "vmm" : "";
    rank.open({idle ? "PEERHOP_REAP=idle" : "PEERHOP_REAP=manual"});
    void *stream = rank.device->stream();
    void *own = rank.device->alloc(3 << 20), *load = rank.device->alloc(size);
    ph_channel *other = rank.channel(!rank.rank, 2, PH_ROLE_BOTH, load, size);
    rank.device->fill(load, size / 2, 900 + rank.rank);
    const InPlace goes = releases ? InPlace::NEVER
                         : idle   ? InPlace::BY_ITSELF
                                  : InPlace::BY_REAPING;
    Places places;
    std::atomic<bool> stop{idle}; // idle is when nothing copies
    std::thread copies([&] {
        rank.device->enter_thread();
        void *busy = rank.device->stream();
        for (bool first = !idle; first || !stop; first = false) {
            CHECK_OK(ph_put(other, size / 2, 0, size / 2, busy)); // from one half to the other
            rank.synchronize(busy);
        }
    });
    std::mt19937 dice(5); // both ranks throw the same
    std::vector<void *> garbage;
    for (int round = 0; round < 60; round++) {
        const size_t sizes[] = {1000, 70000, 200000, 1 << 20, 5 << 19};
        size_t bytes = sizes[round % 3 == 2 ? 3 + dice() % 2 : dice() % 3];
        void *memory = rank.rank ? own : rank.device->alloc(bytes, kind);
        places.take(memory, bytes);
        ph_role role = role_of(rank, 1);
        ph_channel *channel =
            exchange_in_place(rank, operation(1, !rank.rank, role, memory, bytes), goes);
        pass(rank, channel, role, memory, bytes, round, stream);
        CHECK_OK(ph_channel_close(channel));
        if (rank.rank == 0) {
            if (releases)
                give_back(rank, rank.context, memory, bytes);
            rank.device->release(memory);
            rank.shared->value[0] = round + 1;
        } else if (releases && !idle) {
            reap_until(rank, rank.shared->value[0], round + 1);
        }
        CHECK(reaches(rank.shared->value[0], round + 1));
    }
    stop = true;
    copies.join();
    rank.barrier();
    if (!idle)
        rank.verify(at(load, size / 2), size / 2, 900 + !rank.rank, "put meanwhile");
    if (rank.rank == 0) {
        rank.shared->value[10] = places.again;
        rank.shared->value[11] = places.over;
    }
    rank.close();
}

TEST_P(Release, AddressesComeBackWhileOthersCopy)
{
    for (const char *how :
         {"release", "release vmm", "release idle", "free", "free vmm", "free idle"}) {
        bool host = on_host();
        if (host && std::string(how) != "release")
            continue; // ph_host_free refuses what was not released
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("allocates_and_frees", how), "");
        const uint64_t again = job.shared()->value[10], over = job.shared()->value[11];
        printf(
            "%s: of 60 allocations %d came back in the place of a former one, %d over a smaller\n",
            how, static_cast<int>(again), static_cast<int>(over));
        EXPECT_TRUE(GetParam() != "standin" || (again > 5 && over > 5)); // others may differ
    }
}

// ---- unmapping that takes long

static std::atomic<bool> slow_close;

extern "C" {
struct phi_import;
void __real_phi_memory_import_close(struct phi_import *import);
void __wrap_phi_memory_import_close(struct phi_import *import);
void __wrap_phi_memory_import_close(struct phi_import *import)
{
    if (slow_close && import != nullptr)
        sleep_ms(40);
    __real_phi_memory_import_close(import);
}
}

// Rank 1 maps many allocations of rank 0, and can unmap them all at the same moment.
RANK_FUNCTION(unmaps_many_at_once)
{
    const int many = 20;
    rank.open({"PEERHOP_REAP=idle", "PEERHOP_HEARTBEAT_MS=20", "PEERHOP_SUSPECT_MS=300"});
    std::vector<void *> memory;
    std::vector<ph_channel *> channels;
    ph_channel *start = rank.channel(!rank.rank, 100, role_of(rank, 0), rank.device->alloc(64), 64);
    for (int op = 0; op < many; op++) {
        memory.push_back(rank.device->alloc(2 << 20));
        channels.push_back(rank.channel(!rank.rank, op, role_of(rank, 0), memory[op], size));
    }
    void *stream = rank.device->stream();
    if (rank.rank == 1) {
        CHECK_OK(ph_wait(start, 0, stream));
        for (ph_channel *channel : channels)
            CHECK_OK(ph_get(channel, 0, 0, 64, stream));
        slow_close = true;
    }
    rank.barrier();
    if (rank.rank == 0) {
        for (void *one : memory)
            CHECK_OK(ph_release_start(rank.context, one, size));
        for (void *one : memory)
            CHECK_OK(ph_release_wait(rank.context, one, size, PH_RELEASE_REVOKED, LONG_MS));
        sleep_ms(100); // the ends of the allocations are told by then as well
        CHECK_OK(ph_signal(start, stream));
        for (void *one : memory)
            CHECK_OK(ph_release_wait(rank.context, one, size, PH_RELEASE_CLOSED, LONG_MS));
        rank.shared->value[0] = rank.log.find("SUSPECT") == std::string::npos;
    }
    rank.synchronize(stream);
    rank.barrier();
    slow_close = false;
    rank.close();
}

TEST_P(Release, WhoUnmapsManyStillBeats)
{
    bool lives = false;
    for (int i = 0; i < 8 && !lives && !HasFailure(); i++) { // a busy machine has silent ranks, too
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("unmaps_many_at_once"), "");
        lives = job.shared()->value[0] == 1;
    }
    EXPECT_TRUE(lives);
}

// ---- contexts that come and go

// 0 under sanitizers and valgrind, which keep what is freed: they look for leaks themselves.
// What of the heap is in use; what is resident says more of the allocator than of who asks it.
static size_t heap_kib()
{
    if (watched())
        return 0;
    const struct mallinfo2 info = mallinfo2();
    return (info.uordblks + info.hblkhd) / 1024;
}

// Rank 1 reads each offer when the allocation that it tells of is gone: nothing of it is kept.
RANK_FUNCTION(ends_before_it_is_read)
{
    const int rounds = 300, warm = 100;
    mallopt(M_ARENA_MAX, 1); // mallinfo2 knows of one
    rank.open();
    rank.channel(!rank.rank, 1, PH_ROLE_BOTH, rank.device->alloc(size), size);
    size_t kib = 0;
    for (int round = 0; round < rounds; round++) {
        ph_exchange_request *request = nullptr;
        void *memory = rank.rank ? nullptr : rank.device->alloc(size);
        if (rank.rank == 0) {
            const ph_operation op = operation(2, 1, PH_ROLE_BOTH, memory, size);
            CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
            release_to(rank, memory, size, PH_RELEASE_CLOSED);
        }
        rank.barrier();
        ph_channel *channel;
        if (rank.rank == 0) {
            CHECK_RC(ph_exchange_finish(&request, &channel, LONG_MS), -ESTALE);
            rank.device->release(memory);
        }
        memory = rank.device->alloc(size);
        CHECK_OK(ph_channel_close(rank.channel(!rank.rank, 2, PH_ROLE_BOTH, memory, size)));
        release_to(rank, memory, size, PH_RELEASE_CLOSED);
        rank.device->release(memory);
        if (round == warm)
            kib = heap_kib();
    }
    CHECK(watched() || heap_kib() < kib + 40); // of an export 400 bytes are kept
    rank.barrier();
    rank.close();
}

TEST_P(Release, BeforeItsOfferIsRead)
{
    if (!on_host())
        GTEST_SKIP() << "the same with other memory";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("ends_before_it_is_read"), "");
}

// Channels that are not retired. 0 at once is not asked for: the last ones go when the peer says
// so.
static bool few_are_left(Rank &rank, uint64_t most)
{
    for (Stopwatch watch; watch.ms() < LONG_MS; sleep_ms(1))
        if (rank.counter("channels") - rank.counter("retired") <= most)
            return true;
    return false;
}

// What was released and closed is gone, without any other room: the owner's side, the peer's, or
// both release; the key has another channel all the time, which stays.
RANK_FUNCTION(closes_what_it_released)
{
    const int rounds = 600, warm = 200;
    mallopt(M_ARENA_MAX, 1); // mallinfo2 knows of one
    rank.open();
    void *memory = rank.device->alloc(2 * size);
    void *kept = at(memory, size);
    ph_channel *stays = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, kept, size);
    const bool releases = rank.argument == "both" || rank.argument == (rank.rank ? "1" : "0");
    size_t kib = 0;
    for (int round = 0; round < rounds; round++) {
        ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size);
        if (releases)
            release_to(rank, memory, size, PH_RELEASE_DRAINED);
        CHECK(end_of(channel) == -ESTALE);
        CHECK_OK(ph_channel_close(channel));
        if (round % 100 == 0) {
            CHECK(rank.channel(!rank.rank, 1, PH_ROLE_BOTH, kept, size) == stays);
            CHECK_OK(ph_channel_close(stays));
        }
        if (round == warm)
            kib = heap_kib();
    }
    rank.barrier();
    CHECK(few_are_left(rank, 1));
    CHECK_OK(ph_channel_ended(stays));
    CHECK(watched() || heap_kib() < kib + 100); // a channel has 700 bytes and more
    rank.barrier();
    rank.close();
}

TEST_P(Release, WhatIsClosedIsGone)
{
    for (const char *who : {"0", "1", "both"}) {
        SCOPED_TRACE(who);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("closes_what_it_released", who), "");
    }
}

// Two ranks make and end contexts, each with an exchange, a message and a release.
RANK_FUNCTION(comes_and_goes)
{
    const int rounds = std::stoi(rank.argument), warm = rounds / 4;
    mallopt(M_ARENA_MAX, 1); // mallinfo2 knows of one
    int descriptors = 0, threads = 0;
    size_t kib = 0;
    void *memory = nullptr, *stream = nullptr;
    for (int round = 0; round < rounds; round++) {
        // Each pair of lives has a job of its own: nobody waits for the end of a former one.
        rank.open({"PEERHOP_EPOCH=" + std::to_string(round + 1)});
        if (rank.device->host() || round == 0) { // queues and host memory end with the context
            memory = rank.device->alloc(size);
            stream = rank.device->stream();
        }
        ph_channel *channel = rank.channel(!rank.rank, 1, role_of(rank, 0), memory, size);
        pass(rank, channel, role_of(rank, 0), memory, size, round, stream);
        if (rank.rank == round % 2)
            CHECK_OK(ph_release_start(rank.context, memory, size));
        rank.close();
        if (round == warm) {
            descriptors = entries("/proc/self/fd");
            threads = thread_entries();
            kib = heap_kib();
        }
    }
    CHECK_EQUAL(entries("/proc/self/fd"), descriptors);
    CHECK_EQUAL(thread_entries(), threads);
    // What contexts leave behind would be seen in a long run: 100 bytes of each of ten thousand.
    // libfabric keeps 7 KiB of each itself (tests/lsan.supp).
    const bool net = rank.argument.find("net") != std::string::npos;
    size_t grown = heap_kib() > kib ? heap_kib() - kib : 0;
    // A driver may keep some of each kernel that was loaded (on an H100, driver 580: 5 KiB).
    kib = heap_kib();
    rank.device->load_kernels(rounds - warm);
    const size_t drivers = heap_kib() > kib ? heap_kib() - kib : 0;
    const size_t most = 64 + static_cast<size_t>(rounds) * (net ? 10 : 0) + drivers;
    if (grown > most)
        rank_failed(__FILE__, __LINE__, std::to_string(grown) + " KiB more than before");
}

TEST_P(Release, ContextsThatComeAndGo)
{
    const char *rounds = getenv("TEST_CONTEXT_ROUNDS");
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("comes_and_goes",
                      std::string(rounds ? rounds : "40") + (on_net() ? " net" : ""), 3600000),
              "");
}

// Rank 1 begins anew between the use of a buffer and its release: its former life keeps nothing.
RANK_FUNCTION(releases_what_a_former_life_used)
{
    rank.open();
    void *memory = rank.device->alloc(size);
    for (int peer = 1; peer < 3 && rank.rank == 0; peer++)
        rank.channel(peer, 1, PH_ROLE_BOTH, memory, size);
    if (rank.rank > 0)
        rank.channel(0, 1, PH_ROLE_BOTH, memory, size);
    rank.barrier();
    if (rank.rank == 1) {
        rank.close();
        rank.open();
    }
    rank.barrier();
    if (rank.rank < 2) {
        // Until its former life is over, rank 1 is one that has left.
        ph_operation op = operation(2, !rank.rank, PH_ROLE_BOTH, rank.device->alloc(size), size);
        ph_channel *channel = nullptr;
        int rc = PH_EPEER;
        for (Stopwatch watch; rc == PH_EPEER && watch.ms() < LONG_MS; sleep_ms(1))
            rc = ph_exchange(rank.context, &op, 1, &channel);
        CHECK_OK(rc);
    }
    rank.barrier();
    if (rank.rank == 0) {
        release_to(rank, memory, size, PH_RELEASE_CLOSED);
        rank.shared->value[0] = 1;
    } else {
        reap_until(rank, rank.shared->value[0], 1);
    }
    rank.barrier();
    rank.close();
}

TEST_P(Release, OfWhatAFormerLifeUsed)
{
    Job job(GetParam(), 3);
    EXPECT_EQ(job.run("releases_what_a_former_life_used"), "");
}

// ---- arguments and ends

RANK_FUNCTION(releases_what_is_not_there)
{
    rank.open();
    void *memory = rank.device->alloc(size), *never = rank.device->alloc(size);
    char unknown[64];
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size);
    rank.barrier();
    CHECK_RC(ph_release_start(nullptr, memory, size), -EINVAL);
    CHECK_RC(ph_release_start(rank.context, nullptr, size), -EINVAL);
    CHECK_RC(ph_release_start(rank.context, memory, 0), -EINVAL);
    CHECK_RC(ph_release_start(rank.context, memory, SIZE_MAX), -EINVAL);
    CHECK_SAYS(rank.error(), "18446744073709551615 bytes at ");
    CHECK_SAYS(rank.error(), " are no buffer");
    auto *last = reinterpret_cast<char *>(UINTPTR_MAX - 63); // NOLINT: nobody looks there
    CHECK_RC(ph_release_start(rank.context, last, 65), -EINVAL);
    CHECK_RC(ph_release_test(rank.context, last, 65, PH_RELEASE_CLOSED), -EINVAL);
    CHECK_RC(ph_release_wait(rank.context, last, 65, PH_RELEASE_CLOSED, 1), -EINVAL);
    CHECK_RC(ph_release_start(rank.context, unknown, sizeof unknown), -EINVAL);
    CHECK_RC(ph_release_test(rank.context, memory, size, ph_release_state(0)), -EINVAL);
    CHECK_RC(ph_release_wait(rank.context, memory, size, ph_release_state(4), 0), -EINVAL);
    CHECK_RC(ph_release_wait(rank.context, memory, size, PH_RELEASE_DRAINED, -1), -EINVAL);
    CHECK_RC(ph_reap(nullptr, 0), -EINVAL);
    CHECK_RC(ph_release_wait(rank.context, memory, size, PH_RELEASE_DRAINED, 10), -EINVAL);
    CHECK_SAYS(rank.error(), "ph_release_start first");
    // Memory that was never exchanged.
    CHECK_OK(ph_release_start(rank.context, never, size));
    CHECK_OK(ph_release_wait(rank.context, never, size, PH_RELEASE_CLOSED, LONG_MS));
    // Twice, and from both ends at once.
    CHECK_OK(ph_release_start(rank.context, memory, size));
    CHECK_OK(ph_release_start(rank.context, memory, size));
    CHECK_OK(ph_release_wait(rank.context, memory, size, PH_RELEASE_DRAINED, LONG_MS));
    CHECK_OK(ph_release_start(rank.context, at(memory, 10), 10));
    CHECK_OK(ph_release_wait(rank.context, memory, size, PH_RELEASE_DRAINED, 1));
    CHECK_RC(ph_channel_ended(channel), -ESTALE);
    rank.barrier();
    // Each reaps until both are closed: the peer's word of its end may come late.
    bool closed = false;
    Stopwatch watch;
    while (rank.shared->value[0] < 2) {
        CHECK(watch.ms() < LONG_MS);
        CHECK_OK(ph_reap(rank.context, 0));
        if (closed || ph_release_wait(rank.context, memory, size, PH_RELEASE_CLOSED, 20) != 0)
            continue;
        closed = true;
        rank.shared->value[0]++;
    }
    CHECK_OK(ph_release_start(rank.context, memory, size));
    CHECK_OK(ph_release_wait(rank.context, memory, size, PH_RELEASE_CLOSED, 1));
    rank.barrier();
    rank.close();
}

TEST_P(Release, OfAnything)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("releases_what_is_not_there"), "");
}

// An exchange that is refused because another one has a key of it makes no channel of what it names
// besides.
RANK_FUNCTION(releases_what_was_refused)
{
    rank.open();
    void *memory = rank.device->alloc(size), *spare = rank.device->alloc(size);
    ph_operation busy = operation(1, !rank.rank, PH_ROLE_BOTH, memory, size);
    ph_operation both[] = {operation(2, !rank.rank, PH_ROLE_BOTH, spare, size), busy};
    ph_exchange_request *request, *refused;
    ph_channel *channel = nullptr;
    CHECK_OK(ph_exchange_start(rank.context, &busy, 1, &request));
    CHECK_RC(ph_release_test(rank.context, memory, size, PH_RELEASE_DRAINED), -EINVAL);
    CHECK_RC(ph_exchange_start(rank.context, both, 2, &refused), -EALREADY);
    CHECK_OK(ph_release_test(rank.context, spare, size, PH_RELEASE_CLOSED));
    CHECK_OK(ph_release_start(rank.context, spare, size));
    CHECK_OK(ph_release_wait(rank.context, spare, size, PH_RELEASE_CLOSED, LONG_MS));
    CHECK_OK(ph_exchange_finish(&request, &channel, LONG_MS));
    CHECK_RC(ph_release_test(rank.context, memory, size, PH_RELEASE_DRAINED), -EINVAL);
    rank.barrier();
    rank.close();
}

TEST_P(Release, OfWhatAnExchangeThatWasRefusedNamed)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("releases_what_was_refused"), "");
}

// A peer that never exchanged has mapped nothing, and needs no telling.
RANK_FUNCTION(releases_to_who_never_came)
{
    rank.open();
    void *memory = rank.device->alloc(size);
    rank.barrier();
    if (std::to_string(rank.rank) == rank.argument) {
        ph_operation op = operation(1, !rank.rank, PH_ROLE_BOTH, memory, size);
        ph_exchange_request *request;
        ph_channel *channel = nullptr;
        CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
        CHECK_RC(ph_exchange_finish(&request, &channel, 300), -ETIMEDOUT);
        release_to(rank, memory, size, PH_RELEASE_CLOSED);
    }
    rank.barrier();
    // And later it comes.
    void *other = rank.device->alloc(size);
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, other, size);
    CHECK_OK(ph_channel_ended(channel));
    rank.barrier();
    rank.close();
}

TEST_P(Release, ToAPeerThatNeverCame)
{
    for (const char *owner : {"0", "1"}) {
        SCOPED_TRACE(owner);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("releases_to_who_never_came", owner), "");
    }
}

// An offer that is read when its allocation has been given back already, which the peer knew: the
// round that its sender has begun ends, and the next one is met.
RANK_FUNCTION(releases_before_the_offer_is_read)
{
    rank.open();
    void *memory = rank.device->alloc(2 * size), *other = rank.device->alloc(2 * size);
    rank.channel(!rank.rank, 1, PH_ROLE_BOTH, at(memory, size), size); // the allocation is known
    rank.channel(!rank.rank, 2, PH_ROLE_BOTH, other, size);
    const ph_operation op = operation(3, !rank.rank, PH_ROLE_BOTH, memory, size);
    const bool owns = std::to_string(rank.rank) == rank.argument;
    ph_exchange_request *request;
    if (owns) {
        CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
        release_to(rank, memory, 2 * size, PH_RELEASE_CLOSED);
        rank.shared->value[0] = 1;
    }
    while (!reaches(rank.shared->value[0], 1, 1))
        CHECK_OK(ph_reap(rank.context, 0));
    rank.channel(!rank.rank, 2, PH_ROLE_BOTH, other, size); // what is over is cleared away
    if (owns) {
        ph_channel *channel = nullptr;
        CHECK_RC(ph_exchange_finish(&request, &channel, LONG_MS), -ESTALE);
        CHECK_SAYS(rank.error(), "was released during its exchange");
    }
    ph_channel *channel = rank.channel(!rank.rank, 3, PH_ROLE_BOTH, other, size);
    pass(rank, channel, role_of(rank, 0), other, size, 1, rank.device->stream());
    rank.barrier();
    rank.close();
}

TEST_P(Release, BeforeTheOfferIsRead)
{
    for (const char *owner : {"0", "1"}) {
        SCOPED_TRACE(owner);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("releases_before_the_offer_is_read", owner), "");
    }
}

// Stops a process, and waits until it is.
static void stop(uint64_t pid)
{
    const std::string path = "/proc/" + std::to_string(pid) + "/stat";
    char state = 0;
    CHECK(kill(static_cast<pid_t>(pid), SIGSTOP) == 0);
    for (Stopwatch watch; state != 'T' && watch.ms() < LONG_MS;) {
        std::string line;
        std::getline(std::ifstream(path), line);
        size_t name = line.rfind(')');
        state = name == std::string::npos ? '?' : line.at(name + 2);
        if (state != 'T')
            sleep_ms(1);
    }
    CHECK(state == 'T');
}

RANK_FUNCTION(releases_to_the_dead)
{
    rank.open();
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(size);
    ph_channel *channel = rank.channel(!rank.rank, 1, role_of(rank, 1), memory, size);
    rank.barrier();
    if (rank.rank == 1) {
        if (rank.argument == "leaves") {
            rank.close();
            rank.shared->value[0] = 1;
            CHECK(reaches(rank.shared->value[1], 1));
            return;
        }
        rank.shared->value[2] = getpid();
        pause();
    }
    CHECK(rank.argument == "leaves" || reaches(rank.shared->value[2], 1));
    if (rank.argument == "in between")
        stop(rank.shared->value[2]);
    if (rank.argument == "in between") {
        CHECK_OK(ph_release_start(rank.context, memory, size));
        CHECK_RC(ph_release_wait(rank.context, memory, size, PH_RELEASE_DRAINED, 100), -ETIMEDOUT);
        CHECK_SAYS(rank.error(), "rank 1");
        CHECK_SAYS(rank.error(), "has not answered");
    }
    rank.shared->value[0]++;
    if (rank.argument != "in between")
        CHECK_RC(end_of(channel), PH_EPEER);
    release_to(rank, memory, size, PH_RELEASE_CLOSED);
    CHECK_RC(ph_put(channel, 0, 0, 8, stream), PH_EPEER);
    rank.shared->value[1] = 1;
    rank.close();
}

TEST_P(Release, ToAPeerThatIsGone)
{
    for (const char *how : {"before", "in between", "leaves"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        bool dies = std::string(how) != "leaves";
        if (dies)
            job.expect_failure(1);
        job.start("releases_to_the_dead", how);
        EXPECT_TRUE(reaches(job.shared()->value[0], 1));
        if (dies)
            job.signal(1, SIGKILL);
        EXPECT_EQ(job.wait(), "");
    }
}

RANK_FUNCTION(releases_what_nobody_took_up)
{
    rank.open();
    rank.barrier();
    if (rank.rank == rank.argument[0] - '0') { // offers to a rank that names nobody
        void *memory = rank.device->alloc(size);
        auto op = operation(1, !rank.rank, PH_ROLE_SENDER, memory, size);
        ph_channel *channel = nullptr;
        ph_exchange_request *request = nullptr;
        CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
        CHECK_RC(ph_exchange_finish(&request, &channel, 300), -ETIMEDOUT);
        release_to(rank, memory, size, PH_RELEASE_CLOSED);
    }
    rank.barrier();
    // The operation goes on with other memory.
    void *memory = rank.device->alloc(size);
    ph_role role = role_of(rank, rank.argument[0] - '0');
    ph_channel *channel = rank.channel(!rank.rank, 1, role, memory, size);
    pass(rank, channel, role, memory, size, 3, rank.device->stream());
    rank.barrier();
}

TEST_P(Release, OfWhatThePeerNeverConnectedFor)
{
    for (const char *releaser : {"0", "1"}) {
        SCOPED_TRACE(releaser);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("releases_what_nobody_took_up", releaser), "");
    }
}
