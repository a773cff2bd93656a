// SPDX-License-Identifier: BSD-3-Clause
// Requests (peerhop/request.h): places on streams that the host asks about.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>

#include "e2e/held.h"

class Request : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_ALL_NETS(Request);

static const size_t size = 3000;

static ph_request record(Rank &rank, void *stream)
{
    ph_request request;
    CHECK_OK(ph_request_record(rank.context, stream, &request));
    return request;
}

// A channel each way, of one buffer.
static ph_channel *channel_of_both(Rank &rank, uint64_t op_id, void *memory)
{
    return rank.channel(!rank.rank, op_id, PH_ROLE_BOTH, memory, size);
}

// What another stream of this rank has in between is not waited for.
RANK_FUNCTION(marks)
{
    rank.open();
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    ph_channel *channel = channel_of_both(rank, 1, memory);
    if (rank.rank == 1) {
        CHECK_OK(ph_wait(channel, size, stream));
        const ph_request request = record(rank, stream);
        CHECK_OK(ph_request_wait(&request, kWait));
        rank.verify(memory, size, 7, "what the request was waited for");
        return;
    }
    rank.device->fill(memory, size, 7);
    const ph_request none = record(rank, stream);
    CHECK_OK(ph_request_test(&none)); // nothing of the library was there
    {
        Held held(rank, stream);
        CHECK_OK(ph_put_signal(channel, 0, 0, size, stream));
        const ph_request request = record(rank, stream), copy = request;
        CHECK_RC(ph_request_test(&request), -EAGAIN);
        CHECK_RC(ph_request_wait(&copy, 50), -ETIMEDOUT);
        CHECK_OK(ph_request_test(&none));
        held.let_go();
        CHECK_OK(ph_request_wait(&request, kWait));
        CHECK_OK(ph_request_test(&copy));
        CHECK_OK(ph_request_wait(&copy, 1));
    }
    rank.synchronize(stream);
}
TEST_P(Request, IsDoneWhenWhatStandsBeforeItIs)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("marks"), "");
}

RANK_FUNCTION(names_who)
{
    rank.open();
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    ph_channel *channel = channel_of_both(rank, 77, memory);
    if (rank.rank == 1) {
        CHECK(reaches(rank.shared->value[0], 1));
        CHECK_OK(ph_signal(channel, stream));
        rank.synchronize(stream);
        return;
    }
    CHECK_OK(ph_wait(channel, 0, stream));
    const ph_request request = record(rank, stream);
    rank.ends_with(-ETIMEDOUT, "rank 1 has", [&] { return ph_request_wait(&request, 100); });
    CHECK_SAYS(rank.error(), "operation 77 (wait)");
    CHECK_RC(ph_request_wait(&request, -1), -EINVAL);
    rank.shared->value[0] = 1;
    CHECK_OK(ph_request_wait(&request, kWait));
    rank.synchronize(stream);
}
TEST_P(Request, SaysAtTheDeadlineWhomItWaitedFor)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("names_who"), "");
}

// The second stream tells rank 1 something once the first one has heard of it.
RANK_FUNCTION(orders)
{
    rank.open();
    void *memory = rank.device->alloc(size), *first = rank.device->stream(),
         *second = rank.device->stream();
    ph_channel *asks = channel_of_both(rank, 1, memory), *says = channel_of_both(rank, 2, memory);
    if (rank.rank == 1) {
        CHECK(reaches(rank.shared->value[0], 1));
        CHECK_OK(ph_signal(asks, first));
        CHECK_OK(ph_wait(says, 0, second));
        rank.synchronize(first);
        rank.synchronize(second);
        return;
    }
    CHECK_OK(ph_wait(asks, 0, first));
    const ph_request heard = record(rank, first);
    CHECK_OK(ph_request_wait_on(&heard, first)); // the stream itself: its order is enough
    CHECK_OK(ph_request_wait_on(&heard, second));
    CHECK_OK(ph_signal(says, second));
    const ph_request said = record(rank, second);
    sleep_ms(30); // long enough for a stream that does not wait
    CHECK_RC(ph_request_test(&said), -EAGAIN);
    CHECK_RC(ph_request_wait(&said, 30), -ETIMEDOUT);
    rank.shared->value[0] = 1;
    CHECK_OK(ph_request_wait(&said, kWait));
    CHECK_OK(ph_request_test(&heard));
    CHECK_OK(ph_request_wait_on(&heard, second)); // done: nothing is enqueued
    CHECK_OK(ph_request_test(&said));
    const ph_request still = record(rank, second);
    CHECK_OK(ph_request_test(&still));
    rank.synchronize(first);
    rank.synchronize(second);
}
TEST_P(Request, OrdersAnotherStream)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("orders"), "");
}

// Streams of which more were used than there are records.
struct Streams {
    Rank &rank;
    ph_queue *queue = nullptr;

    void *make()
    {
        if (!rank.device->host())
            return rank.device->stream();
        CHECK_OK(ph_queue_create(rank.context, &queue));
        return queue;
    }
    void end()
    {
        CHECK_OK(ph_queue_destroy(&queue));
    }
};

RANK_FUNCTION(reuses)
{
    rank.open();
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    ph_channel *channel = channel_of_both(rank, 1, memory);
    if (rank.rank == 0) {
        // A GPU's streams share its queues: a function on one of them holds up every eighth.
        const bool holds = rank.argument != "gpu";
        std::vector<ph_request> requests;
        std::optional<Held> held;
        if (holds)
            held.emplace(rank, stream);
        CHECK_OK(ph_put(channel, 0, 0, 8, stream));
        const ph_request late = record(rank, stream);
        Streams streams{rank};
        for (int i = 0; i < 300; i++) {
            void *one = streams.make();
            CHECK_OK(ph_put(channel, 0, 0, 8, one));
            CHECK_OK(ph_put(channel, 8, 8, 8, one));
            requests.push_back(record(rank, one));
            CHECK_OK(ph_request_wait(&requests.back(), kWait));
            streams.end();
            for (const ph_request &old : requests)
                CHECK_OK(ph_request_test(&old));
        }
        if (holds) {
            CHECK_RC(ph_request_test(&late), -EAGAIN);
            held->let_go();
        }
        CHECK_OK(ph_request_wait(&late, kWait));
        rank.synchronize(stream);
    }
    rank.barrier();
}
TEST_P(Request, StaysDoneWhenItsRecordIsAnotherStreams)
{
    // The puts before a signal fill slots for ever.
    if (is_staged())
        GTEST_SKIP() << "of staged puts without a signal 16 may be under way";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("reuses", GetParam()), "");
}

RANK_FUNCTION(refused)
{
    rank.open();
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    ph_channel *channel = channel_of_both(rank, 1, memory);
    ph_request request = {};
    int local = 0;
    CHECK_OK(ph_request_test(&request));
    CHECK_OK(ph_request_wait(&request, 1));
    CHECK_OK(ph_request_wait_on(&request, stream));
    CHECK_RC(ph_request_test(nullptr), -EINVAL);
    CHECK_RC(ph_request_wait(nullptr, 1), -EINVAL);
    CHECK_RC(ph_request_wait_on(nullptr, stream), -EINVAL);
    CHECK_RC(ph_request_record(nullptr, stream, &request), -EINVAL);
    CHECK_RC(ph_request_record(rank.context, stream, nullptr), -EINVAL);
    if (rank.device->host())
        CHECK_RC(ph_request_record(rank.context, &local, &request), -EINVAL);
    Held held(rank, stream);
    if (rank.rank == 0)
        CHECK_OK(ph_signal(channel, stream));
    const ph_request pending = record(rank, stream);
    void *other = rank.device->stream();
    void *graph = rank.device->capture(other, [&] {
        CHECK_RC(ph_request_record(rank.context, other, &request), -ENOTSUP);
        CHECK_SAYS(rank.error(), "captures");
        if (rank.rank == 0)
            CHECK_RC(ph_request_wait_on(&pending, other), -ENOTSUP);
    });
    if (graph != nullptr)
        rank.device->destroy(graph);
    held.let_go();
    if (rank.rank == 1)
        CHECK_OK(ph_wait(channel, 0, stream));
    rank.synchronize(stream);
    rank.barrier();
}
TEST_P(Request, IsRefusedWithASentence)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("refused"), "");
}

RANK_FUNCTION(outlives)
{
    rank.open();
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    ph_channel *channel = channel_of_both(rank, 1, memory);
    rank.barrier();
    if (rank.rank == 1)
        pause(); // until it is killed
    CHECK_OK(ph_wait(channel, 0, stream));
    const ph_request request = record(rank, stream);
    CHECK_RC(ph_request_test(&request), -EAGAIN);
    rank.shared->value[0] = 1;
    rank.goes_on_without(1, stream);
    CHECK_OK(ph_request_test(&request));
    CHECK_OK(ph_request_wait(&request, 1));
    const int status = ph_channel_status(channel);
    CHECK(status == PH_EPEER || status == PH_EBROKEN);
}
TEST_P(Request, IsDoneWhereThePeerHasDied)
{
    Job job(GetParam(), 2);
    job.start("outlives");
    EXPECT_TRUE(reaches(job.shared()->value[0], 1));
    job.signal(1, SIGKILL);
    job.expect_failure(1);
    EXPECT_EQ(job.wait(), "");
}

// The best of many turns: of a busy machine only some are disturbed.
static double ns_of_a_test([[maybe_unused]] Rank &rank, const ph_request &request, int expected)
{
    const int turns = 200, tests = 1000;
    double best = 1e9;
    for (int turn = 0; turn < turns; turn++) {
        const auto begin = std::chrono::steady_clock::now();
        int right = 0;
        for (int i = 0; i < tests; i++)
            right += ph_request_test(&request) == expected;
        const std::chrono::duration<double, std::nano> took =
            std::chrono::steady_clock::now() - begin;
        CHECK(right == tests);
        best = std::min(best, took.count() / tests);
    }
    return best;
}

RANK_FUNCTION(is_cheap)
{
    rank.open();
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    ph_channel *channel = channel_of_both(rank, 1, memory);
    if (rank.rank == 1) {
        CHECK_OK(ph_wait(channel, 8, stream));
        rank.synchronize(stream);
        return;
    }
    Held held(rank, stream);
    CHECK_OK(ph_put_signal(channel, 0, 0, 8, stream));
    const ph_request request = record(rank, stream);
    const double pending = ns_of_a_test(rank, request, -EAGAIN);
    held.let_go();
    CHECK_OK(ph_request_wait(&request, kWait));
    const double done = ns_of_a_test(rank, request, 0);
    printf("a test takes %.1f ns before it is done, and %.1f ns then\n", pending, done);
    CHECK(std::max(pending, done) < static_cast<double>(patience(100).count()));
    rank.synchronize(stream);
}
TEST_P(Request, IsTestedInLessThan100Ns)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("is_cheap"), "");
}

// Any number of threads wait for one request while another enqueues.
RANK_FUNCTION(many_wait)
{
    rank.open();
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    ph_channel *channel = channel_of_both(rank, 1, memory);
    for (int round = 0; round < 20; round++) {
        if (rank.rank == 0)
            CHECK_OK(ph_put_signal(channel, 0, 0, size, stream));
        else
            CHECK_OK(ph_wait(channel, size, stream));
        const ph_request request = record(rank, stream);
        std::atomic<int> failed{0};
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; i++)
            threads.emplace_back([&] {
                rank.device->enter_thread();
                failed += ph_request_wait(&request, kWait) != 0;
            });
        for (std::thread &thread : threads)
            thread.join();
        CHECK(failed == 0);
        CHECK_OK(ph_request_test(&request));
    }
    rank.synchronize(stream);
    rank.barrier();
}
TEST_P(Request, IsWaitedForByThreads)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("many_wait"), "");
}
