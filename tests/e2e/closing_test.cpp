// SPDX-License-Identifier: BSD-3-Clause
// What the driver ends only when every stream of the device is done: while one waits, the calls
// that want it keep their deadlines, say what is in the way, and hold up nothing else of the
// process.
#include <fstream>

#include "e2e/bytes.h"
#include "e2e/exchanging.h"

class Closing : public EveryDevice
{
};
INSTANTIATE_CUDA_DEVICES(Closing);

static const size_t size = 100000;
static const int64_t SHORT_MS = 200;
static const int64_t LONG_MS = patience(20000).count(); // for what must succeed

// A stream of the application's that waits until it is let go, at the latest with the rank.
class Held
{
  public:
    explicit Held(Rank &rank) : rank_(rank), stream_(rank.device->stream())
    {
        rank.device->call(stream_, [this] {
            while (!go_)
                sleep_ms(1);
        });
    }
    void let_go()
    {
        go_ = true;
        rank_.synchronize(stream_);
    }

  private:
    Rank &rank_;
    std::atomic<bool> go_{false};
    void *stream_;
};

static bool is_mapped(const void *address)
{
    std::ifstream maps("/proc/self/maps");
    uintptr_t begin, end;
    char dash;
    for (std::string rest; maps >> std::hex >> begin >> dash >> end; std::getline(maps, rest))
        if (begin <= reinterpret_cast<uintptr_t>(address) &&
            reinterpret_cast<uintptr_t>(address) < end)
            return true;
    return false;
}

static void is_unmapped_soon(const void *address)
{
    Stopwatch watch;
    while (is_mapped(address)) {
        CHECK(watch.ms() < LONG_MS);
        sleep_ms(1);
    }
}

// Ends with -ETIMEDOUT, not before its time, and long before a driver's call that blocks would end.
static void times_out(Rank &rank, const std::string &why, const std::function<int()> &call)
{
    Stopwatch watch;
    CHECK_RC(call(), -ETIMEDOUT);
    CHECK(watch.ms() >= SHORT_MS - 1);
    CHECK(watch.ms() < LONG_MS);
    CHECK_SAYS(rank.error(), why);
}

// The same, of a reap: from when the peer has told what it gives back, until when it ends at once.
static void reap_times_out(Rank &rank, const std::string &why)
{
    int rc = 0;
    for (Stopwatch all; rc == 0 && all.ms() < LONG_MS; sleep_ms(1))
        rc = ph_reap(rank.context, patience(SHORT_MS).count());
    CHECK(rc == -ETIMEDOUT);
    times_out(rank, why, [&] { return ph_reap(rank.context, patience(SHORT_MS).count()); });
}

// What each test begins with: rank 1's stream waits for operation 7 of rank 0.
struct Waiting {
    ph_channel *channel;
    void *stream;
    std::string says; // of that wait

    explicit Waiting(Rank &rank) : stream(rank.device->stream())
    {
        channel = rank.channel(!rank.rank, 7, role_of(rank, 0), rank.device->alloc(64), 64);
        says = "rank 0 has not written the word ";
        if (rank.rank == 1)
            CHECK_OK(ph_wait(channel, 0, stream));
    }
};

// Nothing is held up: other streams of the process launch, copy and pass messages. Rank 1 says so
// by `value`, and then rank 0 answers the wait.
static void goes_on_beside(Rank &rank, const Waiting &waiting)
{
    void *stream = rank.device->stream();
    void *memory = rank.device->alloc(2 * size), *buffer = rank.device->alloc(size);
    ph_channel *channel = rank.channel(!rank.rank, 8, role_of(rank, 1), buffer, size);
    pass(rank, channel, role_of(rank, 1), buffer, size, 5, stream);
    if (rank.rank == 1) {
        move_beside(rank, stream, memory, size, 3);
        CHECK(!rank.device->synchronize(waiting.stream, 0));
    }
    rank.barrier();
    if (rank.rank == 0)
        CHECK_OK(ph_signal(waiting.channel, waiting.stream));
    rank.synchronize(waiting.stream);
}

RANK_FUNCTION(frees_host_memory)
{
    rank.open();
    Waiting waiting(rank);
    void *host = nullptr;
    CHECK_OK(ph_host_alloc(rank.context, size, &host));
    rank.barrier();
    if (rank.rank == 1) {
        times_out(rank, waiting.says,
                  [&] { return ph_host_free(rank.context, host, patience(SHORT_MS).count()); });
        CHECK_SAYS(rank.error(), "host memory at 0x");
        CHECK_SAYS(rank.error(), "of operation 7 (wait)");
        CHECK(is_mapped(host));
        CHECK_RC(ph_host_free(rank.context, host, SHORT_MS), -EINVAL); // given back already
        CHECK_RC(ph_host_free(rank.context, host, -1), -EINVAL);
    } else {
        CHECK_OK(ph_host_free(rank.context, host, LONG_MS));
        CHECK(!is_mapped(host));
    }
    goes_on_beside(rank, waiting);
    is_unmapped_soon(host); // without another call
    rank.barrier();
}

TEST_P(Closing, HostMemoryIsFreedInTime)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("frees_host_memory"), "");
}

// Rank 0 gives back what rank 1 maps.
RANK_FUNCTION(reaps_behind_a_wait)
{
    rank.open();
    void *memory = rank.device->alloc(2 << 20, rank.argument);
    rank.channel(!rank.rank, 1, role_of(rank, 0), memory, size);
    Waiting waiting(rank);
    if (rank.rank == 1)
        CHECK_OK(ph_reap(rank.context, SHORT_MS)); // nothing to be done is done at once
    rank.barrier();
    if (rank.rank == 0)
        release_to(rank, memory, 2 << 20, PH_RELEASE_DRAINED);
    rank.barrier();
    if (rank.rank == 1) {
        reap_times_out(rank, waiting.says);
        CHECK_SAYS(rank.error(), "not all is unmapped: 1 stream of cuda:");
        CHECK_RC(ph_reap(rank.context, -1), -EINVAL);
    }
    goes_on_beside(rank, waiting);
    if (rank.rank == 1)
        CHECK_OK(ph_reap(rank.context, LONG_MS));
    else
        CHECK_OK(ph_release_wait(rank.context, memory, 2 << 20, PH_RELEASE_CLOSED, LONG_MS));
    rank.barrier();
}

TEST_P(Closing, AReapEndsInTime)
{
    for (const char *kind : {"", "pool"}) {
        SCOPED_TRACE(kind);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("reaps_behind_a_wait", kind), "");
    }
}

// ---- streams of the application's, of which the library does not know that they wait

RANK_FUNCTION(reaps_behind_the_application)
{
    const bool idle = rank.argument == "idle";
    rank.open({idle ? "PEERHOP_REAP=idle" : "PEERHOP_REAP=manual", "PEERHOP_HEARTBEAT_MS=20",
               "PEERHOP_SUSPECT_MS=" + std::to_string(patience(1000).count())});
    void *memory = rank.device->alloc(2 << 20);
    rank.channel(!rank.rank, 1, role_of(rank, 0), memory, size);
    if (rank.rank == 1) {
        Held held(rank);
        rank.barrier();
        rank.barrier();
        if (!idle) {
            reap_times_out(rank, "a stream or a graph of the application's on cuda:");
            CHECK_SAYS(rank.error(), "it will be, behind that");
        }
        rank.barrier();
        held.let_go();
    } else {
        rank.barrier();
        release_to(rank, memory, 2 << 20, PH_RELEASE_DRAINED);
        rank.barrier();
        // Meanwhile its threads are none the worse.
        for (Stopwatch watch; idle && watch.ms() < patience(1500).count(); sleep_ms(20)) {
            ph_peer_report report;
            CHECK_OK(ph_context_peer(rank.context, 1, &report, sizeof report));
            CHECK_EQUAL(report.state, PH_PEER_LIVE);
        }
        CHECK_RC(ph_release_test(rank.context, memory, 2 << 20, PH_RELEASE_CLOSED), -EAGAIN);
        rank.barrier();
        CHECK_OK(ph_release_wait(rank.context, memory, 2 << 20, PH_RELEASE_CLOSED, LONG_MS));
    }
    rank.barrier();
}

TEST_P(Closing, WhatWasBegunGoesOn)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("reaps_behind_the_application", "manual"), "");
}

TEST_P(Closing, TheServiceThreadIsNotHeldUp)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("reaps_behind_the_application", "idle"), "");
}

RANK_FUNCTION(destroys_behind_the_application)
{
    rank.open();
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, rank.device->alloc(size), size);
    Held held(rank);
    for (int i = 0; i < 2; i++)
        times_out(rank, "what was imported of peers is not unmapped yet: a stream or a graph",
                  [&] { return ph_context_destroy(&rank.context, patience(SHORT_MS).count()); });
    CHECK(rank.context != nullptr);
    CHECK(ph_channel_ended(channel) != 0);
    held.let_go();
    rank.close();
    CHECK(rank.context == nullptr);
}

TEST_P(Closing, DestroyEndsInTime)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("destroys_behind_the_application"), "");
}

RANK_FUNCTION(begins_behind_the_application)
{
    std::string error;
    Held held(rank);
    Stopwatch watch;
    CHECK(rank.try_open({}, SHORT_MS, &error) == -ETIMEDOUT);
    CHECK(watch.ms() < LONG_MS);
    CHECK_SAYS(error, "the driver has not loaded the kernels in time: a stream of this process");
    held.let_go();
    rank.open();
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, rank.device->alloc(size), size);
    CHECK_OK(ph_channel_ended(channel));
    rank.barrier();
}

TEST_P(Closing, CreateEndsInTime)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("begins_behind_the_application"), "");
}
