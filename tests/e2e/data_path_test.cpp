// SPDX-License-Identifier: BSD-3-Clause
// What the data path costs: no allocation, no lock but the stream record's own, no system call.
//
// A driver makes system calls and takes locks as it likes. So what counts here is what the library
// itself calls: this binary is linked so that each function that the library imports counts its
// calls first (imports.py has the few that need not be counted).
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "e2e/bytes.h"
#include "support/system_calls.h"

class DataPath : public EveryDevice
{
};
INSTANTIATE_DEVICES(DataPath);
class DataPathOfCuda : public EveryDevice
{
};
INSTANTIATE_CUDA_DEVICES(DataPathOfCuda);

// ---- imports of this binary and of the library in it. Of a thread: the library's own threads may
// call what they need.

extern "C" {
__thread long imported_calls;
__thread const char *imported_latest; // name of the one called last
}

// ---- allocations, of all threads

static std::atomic<long> allocations;

extern "C" {
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *memory, size_t size);
int __real_posix_memalign(void **memory, size_t alignment, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);

void *__wrap_malloc(size_t size)
{
    allocations++;
    return __real_malloc(size);
}
void *__wrap_calloc(size_t n, size_t size)
{
    allocations++;
    return __real_calloc(n, size);
}
void *__wrap_realloc(void *memory, size_t size)
{
    allocations++;
    return __real_realloc(memory, size);
}
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size)
{
    allocations++;
    return __real_posix_memalign(memory, alignment, size);
}
void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    allocations++;
    return __real_aligned_alloc(alignment, size);
}
}

// ---- the calls

// Each call of the data path once, at this rank's end.
struct Calls {
    Rank &rank;
    ph_channel *put, *get, *group, *signal, *unbound;
    void *stream, *memory; // of messages on the unbound one
    std::atomic<int> failed{0};

    void expect(int rc)
    {
        failed = rc && !failed ? rc : failed.load();
    }
    void issue()
    {
        ph_group_op ops[] = {{PH_GROUP_SEND, group, 0, 0, 100}, {PH_GROUP_WAIT, signal, 0, 0, 0}};
        const ph_group_op both[] = {{PH_GROUP_SEND, unbound, 0, 0, 300, memory},
                                    {PH_GROUP_RECV, unbound, 0, 0, 300, at(memory, 300)},
                                    {PH_GROUP_SEND, unbound, 0, 0, 0, nullptr},
                                    {PH_GROUP_RECV, unbound, 0, 0, 0, nullptr}};
        if (rank.rank == 0) {
            expect(ph_put(put, 0, 0, 1000, stream));
            expect(ph_copy(put, 100, signal, 0, 50, stream));
            expect(ph_put_signal(put, 0, 0, 1000, stream));
            expect(ph_send(put, 1000, stream));
            expect(ph_send(get, 1000, stream));
            expect(ph_complete(get, stream));
            expect(ph_send_from(unbound, memory, 1000, stream));
        } else {
            ops[0].kind = PH_GROUP_RECV;
            ops[1].kind = PH_GROUP_SIGNAL;
            expect(ph_wait(put, 1000, stream));
            expect(ph_recv(put, 1000, stream));
            expect(ph_complete(put, stream));
            expect(ph_recv(get, 1000, stream));
            expect(ph_get(get, 0, 0, 10, stream));
            expect(ph_recv_into(unbound, memory, 1000, stream));
        }
        expect(ph_group(both, 4, stream));
        expect(ph_group(ops, 2, stream));
    }
};

// Two channels each way, one without buffers, and one stream; the buffers lie in one allocation.
static Calls make_calls(Rank &rank)
{
    void *memory = rank.device->alloc(4000), *stream = rank.device->stream();
    auto forth = rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER,
         back = rank.rank ? PH_ROLE_SENDER : PH_ROLE_RECEIVER;
    ph_operation ops[] = {{1, !rank.rank, forth, PH_PROTOCOL_PUT, memory, 1000},
                          {2, !rank.rank, forth, PH_PROTOCOL_GET, at(memory, 1000), 1000},
                          {3, !rank.rank, forth, PH_PROTOCOL_PUT, at(memory, 2000), 1000},
                          {4, !rank.rank, back, PH_PROTOCOL_PUT, at(memory, 3000), 1000},
                          {.op_id = 5, .peer = !rank.rank, .role = PH_ROLE_BOTH}};
    ph_channel *channels[5];
    CHECK_OK(ph_exchange(rank.context, ops, 5, channels));
    return {rank,        channels[0], channels[1], channels[2],
            channels[3], channels[4], stream,      rank.device->alloc(1000)};
}

// rounds_of issues for some rounds and hands each to measure(), but for the first rounds: those are
// the first use.
template <typename Measure> static void rounds_of(Rank &rank, Calls &calls, Measure measure)
{
    const int rounds = 60, first = 4;
    for (int round = 0; round < rounds; round++) {
        // Every other round finds the peer's messages there, or does not.
        if (round % 2)
            rank.barrier();
        if (round < first)
            calls.issue();
        else
            measure();
        rank.synchronize(calls.stream);
    }
    CHECK_OK(calls.failed.load());
}

// ---- on every device, by what the library imports

// What PEERHOP_METHOD asks for is what the messages of Calls take; false where there are no flags.
static bool by_flags(const Calls &calls, const std::string &method)
{
    Rank &rank = calls.rank;
    for (ph_channel *channel : {calls.put, calls.get, calls.group, calls.signal}) {
        const bool outgoing = (channel == calls.signal) == (rank.rank == 1);
        ph_path_report report = {};
        CHECK_OK(ph_channel_path(channel, outgoing, &report, sizeof report));
        if (report.sm_max == 0)
            return false;
        CHECK(report.sm_max >= 1000 &&
              (method == "ll" ? report.ll_max >= 1000 : report.ll_max == 0));
    }
    return true;
}

// argument: "sm" or "ll" where that is the method, which this checks.
RANK_FUNCTION(counted)
{
    rank.open();
    Calls calls = make_calls(rank);
    if (!rank.argument.empty() && !by_flags(calls, rank.argument)) {
        rank.shared->value[4] = 1;
        return;
    }
    CHECK(allocations > 0 && imported_calls > 0); // they count
    rounds_of(rank, calls, [&] {
        long allocated = allocations, called = imported_calls;
        calls.issue();
        allocated = allocations - allocated;
        if (imported_calls != called)
            snprintf(rank.shared->text[rank.rank], sizeof rank.shared->text[0], "%s",
                     imported_latest);
        rank.shared->value[rank.rank] += uint64_t(imported_calls - called);
        rank.shared->value[2 + rank.rank] += uint64_t(allocated);
    });
    rank.barrier();
}

static void expect_nothing(Job &job, const std::string &what, const std::string &flags = "")
{
    ASSERT_EQ(job.run("counted", flags), "") << what;
    for (int rank = 0; rank < 2; rank++) {
        EXPECT_EQ(job.shared()->value[rank], 0u)
            << what << ", rank " << rank << ": calls that may lock or enter the kernel, the last "
            << job.shared()->text[rank];
        EXPECT_EQ(job.shared()->value[2 + rank], 0u) << what << ", rank " << rank << ": allocated";
    }
}

TEST_P(DataPath, NeitherAllocatesNorLocksNorEntersTheKernel)
{
    Job job(GetParam(), 2);
    expect_nothing(job, "as configured");
}

TEST_P(DataPath, BeatsCostItNothing)
{
    Job job(GetParam(), 2);
    job.environment("PEERHOP_HEARTBEAT_MS", "5");
    expect_nothing(job, "with a beat each 5 ms");
}

TEST_P(DataPathOfCuda, CostsNothingInAnyMode)
{
    for (const char *wait : {"kernel", "memory_operation"}) {
        for (const char *method : {"ce", "copy_kernel"}) {
            Job job(GetParam(), 2);
            job.environment("PEERHOP_WAIT", wait);
            job.environment("PEERHOP_METHOD", method);
            expect_nothing(job, std::string(wait) + ", " + method);
        }
    }
}

TEST_P(DataPathOfCuda, CostsNothingByFlags)
{
    for (const char *wait : {"auto", "kernel"}) {
        for (const char *method : {"sm", "ll"}) {
            Job job(GetParam(), 2);
            job.environment("PEERHOP_WAIT", wait);
            job.environment("PEERHOP_METHOD", method);
            expect_nothing(job, std::string(wait) + ", " + method, method);
            if (job.shared()->value[4])
                GTEST_SKIP() << "two ranks on one device: their messages go by words";
        }
    }
}

// Capture is not the data path: each captured call takes a mutex, and notes what it touches. A
// replay of the graph is the driver's alone; no code of the library runs.
RANK_FUNCTION(captured)
{
    rank.open();
    Calls calls = make_calls(rank);
    if (rank.rank == 0) {
        long called = 0;
        void *graph = rank.device->capture(calls.stream, [&] {
            CHECK_OK(ph_put(calls.put, 0, 0, 1000, calls.stream));
            called = imported_calls;
            CHECK_OK(ph_put(calls.put, 0, 0, 1000, calls.stream));
            called = imported_calls - called;
        });
        CHECK(called > 0 && strcmp(imported_latest, "pthread_mutex_unlock") == 0);
        called = imported_calls;
        rank.device->launch(graph, calls.stream);
        CHECK(imported_calls == called);
        rank.synchronize(calls.stream);
        rank.device->destroy(graph);
    }
    rank.barrier();
}

TEST_P(DataPathOfCuda, CaptureLocksAndReplayDoesNot)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("captured"), "");
}

// ---- on host memory, where no driver is, by a system call trap

RANK_FUNCTION(trapped)
{
    rank.open();
    Calls calls = make_calls(rank);
    rounds_of(rank, calls, [&] {
        long made = system_calls_of([&] { calls.issue(); });
        rank.shared->value[rank.rank] += uint64_t(made < 0 ? 0 : made);
        rank.shared->value[2 + rank.rank] = made < 0; // could not be counted
    });
    rank.barrier();
}

TEST(DataPathOfHost, MakesNoSystemCall)
{
    Job job("host", 2);
    ASSERT_EQ(job.run("trapped"), "");
    if (job.shared()->value[2] || job.shared()->value[3])
        GTEST_SKIP() << "system calls cannot be counted here";
    EXPECT_EQ(job.shared()->value[0], 0u);
    EXPECT_EQ(job.shared()->value[1], 0u);
}
