// SPDX-License-Identifier: BSD-3-Clause
// The CUDA executor, with both ends of an operation in one process on one device.
#define _Alignas alignas
#include "support/atomic_compat.h"

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "support/gpu.h"
#include "support/patience.h"

extern "C" {
#include "semaphore/executor.h"
}

namespace
{

// Words of the page that both ends share.
enum { TURN, NOTE, BROKEN, WHOLE, FIRST_FREE = WHOLE + PHI_UNDONE_BEHIND / 4 + 1 };

const uint32_t READY = PHI_BIT_READY, FULL = PHI_BIT_FULL, NOTED = PHI_BIT_NOTED,
               FREE = PHI_BIT_FREE;

class Executor : public GpuTest, public testing::WithParamInterface<const char *>
{
  protected:
    phi_executor *executor = nullptr;
    uint32_t *words = nullptr;
    uint64_t words_device = 0;
    phi_uses uses{};
    std::vector<CUstream> streams;
    std::vector<std::string> settings;

    void SetUp() override
    {
        begin({std::string("PEERHOP_WAIT=") + GetParam()});
    }
    void begin(std::vector<std::string> with)
    {
        finish();
        settings = std::move(with);
        std::vector<const char *> texts;
        for (const std::string &text : settings)
            texts.push_back(text.c_str());
        texts.push_back(nullptr);
        open(texts.data());
        if (IsSkipped())
            return;
        if (!gpu->info().kernels && settings[0].find("kernel") != std::string::npos)
            GTEST_SKIP() << "no kernels in this build";
        phi_executor_params params{&gpu->context.report, &gpu->context.counters,
                                   &gpu->context.config};
        ASSERT_EQ(phi_cuda_executor_open(&params, gpu->device, &executor), 0)
            << gpu->context.error();
        words = static_cast<uint32_t *>(gpu->words(&words_device));
        words[NOTE] = FREE;
    }
    void TearDown() override
    {
        finish();
    }
    void finish()
    {
        if (executor) {
            EXPECT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0)
                << gpu->context.error();
            executor->ops->close(executor);
        }
        executor = nullptr;
        for (CUstream stream : streams)
            gpu->cu->cuStreamDestroy_v2(stream);
        streams.clear();
    }
    CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING)
    {
        CUstream made = nullptr;
        CU_EXPECT(gpu->cu->cuStreamCreate(&made, flags));
        streams.push_back(made);
        return made;
    }
    phi_work step(uint8_t kind, int word, uint32_t bit = 0)
    {
        phi_work work{};
        work.kind = kind;
        work.call = PHI_CALL_TRANSFER;
        work.peer = 3;
        work.op_id = 77;
        work.word.value = bit;
        work.word.host = &words[word];
        work.word.device = words_device + 4 * (uint64_t)word;
        work.over.broken = &words[BROKEN];
        work.over.broken_device = words_device + 4 * BROKEN;
        work.uses = &uses;
        return work;
    }
    phi_work wait(int word, uint32_t bit)
    {
        return step(PHI_STEP_WAIT, word, bit);
    }
    phi_work post(int word, uint32_t bit)
    {
        return step(PHI_STEP_POST, word, bit);
    }
    phi_work copy(CUdeviceptr destination, CUdeviceptr source, size_t size)
    {
        phi_work work = step(PHI_STEP_COPY, 0);
        work.span.destination = reinterpret_cast<void *>(destination);
        work.span.source = reinterpret_cast<void *>(source);
        work.span.size = size;
        return work;
    }
    int issue(CUstream on, const std::vector<phi_work> &work)
    {
        bool partial = true;
        int rc = executor->ops->issue(executor, on, work.data(), work.size(), &partial);
        EXPECT_FALSE(partial);
        return rc;
    }
    void expect_drained()
    {
        EXPECT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0) << gpu->context.error();
        EXPECT_TRUE(executor->ops->drained(executor, &uses, nullptr, 0));
        EXPECT_FALSE(executor->ops->busy(executor, nullptr, 0));
        EXPECT_EQ(gpu->context.counters.in_flight, 0u);
    }
    std::string left()
    {
        char why[64] = "";
        executor->ops->drained(executor, &uses, why, sizeof why);
        return why;
    }
    void set(int word, uint32_t value)
    {
        __atomic_store_n(&words[word], value, __ATOMIC_RELEASE);
    }
    bool kernels_wait() const
    {
        return gpu->info().kernels && std::string(GetParam()) != "memory_operation";
    }
};

TEST_P(Executor, CopiesOnTheStreamAndSaysWhenDone)
{
    const size_t sizes[] = {100003, (8 << 20) + 3};
    CUdeviceptr a = gpu->alloc(sizes[1]), b = gpu->alloc(sizes[1]);
    CUstream s = stream();
    uint64_t operations = 0, bytes = 0;
    for (size_t size : sizes) {
        gpu->fill(a, size, operations + 1);
        ASSERT_EQ(issue(s, {copy(b, a, size)}), 0);
        expect_drained();
        EXPECT_EQ(gpu->errors(b, size, operations + 1), 0u);
        EXPECT_EQ(gpu->context.counters.ipc_operations, ++operations);
        EXPECT_EQ(gpu->context.counters.ipc_bytes, bytes += size);
        EXPECT_EQ(gpu->context.counters.copy_kernels, gpu->info().kernels ? 1u : 0u)
            << "a small copy goes with its number, a large one is the copy engine's";
    }
}

// Each reads what the one before it wrote, and may begin before that has ended: alone and by eight,
// also behind a wait and with more of them than may begin early.
TEST_P(Executor, CopiesThatBeginEarlyComeOneAfterAnother)
{
    const size_t size = 1 << 20, parts = 8, part = size / parts;
    const CUdeviceptr place[] = {gpu->alloc(size), gpu->alloc(size), gpu->alloc(size)};
    CUstream s = stream();
    for (uint32_t round = 1; round <= 20; round++) {
        gpu->fill(place[0], size, round);
        ASSERT_EQ(issue(s, {wait(TURN, READY), post(TURN, FULL)}), 0);
        for (size_t i = 0; i < 40; i++) {
            const CUdeviceptr from = place[i % 3], to = place[(i + 1) % 3];
            std::vector<phi_work> work;
            for (size_t k = 0; k < (i % 4 < 2 ? 1 : parts); k++)
                work.push_back(i % 4 < 2 ? copy(to, from, size)
                                         : copy(to + k * part, from + k * part, part));
            work[0].linked = 1; // so that one of this size is a launch
            ASSERT_EQ(issue(s, work), 0);
        }
        set(TURN, READY);
        expect_drained();
        ASSERT_EQ(gpu->errors(place[1], size, round), 0u) << "round " << round;
    }
}

// Of one call for many copies nobody says how far it came: it counts as begun, and its number comes
// all the same.
TEST_P(Executor, ManyCopiesOfWhichOneFailsHaveBegun)
{
    begin({"PEERHOP_METHOD=ce", std::string("PEERHOP_WAIT=") + GetParam()});
    if (IsSkipped())
        return;
    if (!gpu->info().copy_batches)
        GTEST_SKIP() << "no cuMemcpyBatchAsync";
    if (!strstr(gpu->info().name, "Stand-in"))
        GTEST_SKIP() << "what a driver does with a wrong address is its own";
    const CUdeviceptr a = gpu->alloc(4096), b = gpu->alloc(4096);
    const phi_work good[] = {copy(b, a, 1000), copy(b + 1000, a + 1000, 1000)},
                   bad[] = {copy(b, a, 1000), copy(b + 1000, a + 1000, 5000)};
    CUstream s = stream();
    gpu->fill(a, 4096, 1);
    bool partial = false;
    EXPECT_EQ(executor->ops->issue(executor, s, bad, 2, &partial), PH_EDRIVER);
    EXPECT_TRUE(partial);
    expect_drained();
    EXPECT_EQ(executor->ops->issue(executor, s, good, 2, &partial), 0) << gpu->context.error();
    EXPECT_FALSE(partial);
    expect_drained();
    EXPECT_EQ(gpu->errors(b, 2000, 1), 0u);
}

TEST_P(Executor, NothingToCopyIsStillAnOperation)
{
    CUstream s = stream();
    ASSERT_EQ(issue(s, {copy(0, 0, 0)}), 0);
    expect_drained();
}

TEST_P(Executor, NotDoneUntilTheWordComes)
{
    CUstream s = stream();
    EXPECT_EQ(left(), "");
    ASSERT_EQ(issue(s, {wait(NOTE, NOTED), post(NOTE, FREE), post(TURN, READY)}), 0);
    EXPECT_EQ(left(), "1 stream");
    EXPECT_TRUE(executor->ops->busy(executor, nullptr, 0));
    EXPECT_EQ(gpu->context.counters.in_flight, 1u);
    EXPECT_EQ(executor->ops->flush(executor, phi_deadline(50)), -ETIMEDOUT);
    EXPECT_NE(gpu->context.error().find("rank 3"), std::string::npos) << gpu->context.error();
    EXPECT_NE(gpu->context.error().find("operation 77"), std::string::npos) << gpu->context.error();
    EXPECT_EQ(words[TURN], 0u);
    set(NOTE, NOTED);
    expect_drained();
    EXPECT_EQ(words[NOTE], FREE);
    EXPECT_EQ(words[TURN], READY);
    phi_counters &counters = gpu->context.counters;
    EXPECT_EQ(kernels_wait() ? counters.waits_kernel : counters.waits_memory_operation, 1u);
    EXPECT_EQ(kernels_wait() ? counters.waits_memory_operation : counters.waits_kernel, 0u);
}

// The words of all programs end at rest, whatever overlaps.
TEST_P(Executor, RoundsOfEveryProgramLeaveTheWordsAtRest)
{
    const size_t size = 4096;
    const int rounds = 50;
    CUdeviceptr a = gpu->alloc(size), b = gpu->alloc(size);
    CUstream active = stream(), passive = stream();
    for (int i = 0; i < rounds; i++) {
        gpu->fill(a, size, (uint64_t)i);
        ASSERT_EQ(issue(passive, {post(TURN, READY)}), 0);
        ASSERT_EQ(issue(active, {wait(TURN, READY), copy(b, a, size), post(TURN, FULL)}), 0);
        ASSERT_EQ(issue(passive, {wait(TURN, FULL)}), 0);
        ASSERT_EQ(issue(active, {wait(NOTE, FREE), copy(b, a, size), post(NOTE, NOTED)}), 0);
        ASSERT_EQ(issue(passive, {wait(NOTE, NOTED), post(NOTE, FREE)}), 0);
        CU_OK(gpu->cu->cuStreamSynchronize(passive));
        ASSERT_EQ(gpu->errors(b, size, (uint64_t)i), 0u) << "round " << i;
    }
    expect_drained();
    EXPECT_EQ(words[TURN], FULL);
    EXPECT_EQ(words[NOTE], FREE);
}

// The word says FULL since the message before: a wait in the same brace sees the own post first.
TEST_P(Executor, AStreamsWaitSeesItsOwnPost)
{
    CUstream passive = stream();
    set(TURN, FULL);
    for (int i = 0; i < 20; i++) {
        ASSERT_EQ(issue(passive, {post(TURN, READY), wait(TURN, FULL)}), 0);
        int64_t until = phi_deadline(kWait);
        while (__atomic_load_n(&words[TURN], __ATOMIC_ACQUIRE) != READY && phi_now() < until)
            std::this_thread::yield();
        EXPECT_EQ(executor->ops->flush(executor, phi_deadline(5)), -ETIMEDOUT) << "round " << i;
        set(TURN, FULL);
        CU_OK(gpu->cu->cuStreamSynchronize(passive));
    }
    expect_drained();
}

TEST_P(Executor, IsOrderedWithTheCallersOwnWork)
{
    const size_t size = 1 << 20;
    CUdeviceptr a = gpu->alloc(size), b = gpu->alloc(size), c = gpu->alloc(size);
    CUstream s = stream();
    CU_OK(gpu->cu->cuMemsetD8Async(a, 1, size, s));
    for (uint8_t i = 2; i < 40; i++) {
        CU_OK(gpu->cu->cuMemsetD8Async(a, i, size, s));
        ASSERT_EQ(issue(s, {copy(b, a, size)}), 0);
        CU_OK(gpu->cu->cuMemcpyAsync(c, b, size, s));
        CU_OK(gpu->cu->cuStreamSynchronize(s));
        uint8_t ends[2];
        CU_OK(gpu->cu->cuMemcpyDtoH_v2(&ends[0], c, 1));
        CU_OK(gpu->cu->cuMemcpyDtoH_v2(&ends[1], c + size - 1, 1));
        ASSERT_EQ(ends[0], i);
        ASSERT_EQ(ends[1], i);
    }
    expect_drained();
}

TEST_P(Executor, EveryKindOfStream)
{
    const size_t size = 1000;
    CUdeviceptr a = gpu->alloc(size), b = gpu->alloc(size);
    std::vector<CUstream> all = {nullptr, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD,
                                 stream(CU_STREAM_DEFAULT), stream(CU_STREAM_NON_BLOCKING)};
    for (size_t i = 0; i < all.size(); i++) {
        gpu->fill(a, size, i);
        // Released before it is issued: a wait on the legacy stream holds up the others, by CUDA's
        // rules.
        set(NOTE, NOTED);
        ASSERT_EQ(issue(all[i],
                        {wait(NOTE, NOTED), post(NOTE, FREE), copy(b, a, size), post(TURN, FULL)}),
                  0)
            << i << ": " << gpu->context.error();
        expect_drained();
        EXPECT_EQ(gpu->errors(b, size, i), 0u) << i;
        EXPECT_EQ(words[TURN], FULL) << i;
        words[TURN] = 0;
    }
}

// Braces longer than a batch or a kernel takes: a group of many channels.
TEST_P(Executor, LongBraces)
{
    if (gpu->info().connections == 1)
        GTEST_SKIP() << "both ends are here: behind the one's waits the other's posts never come";
    const int many = 600;
    CUstream passive = stream(), active = stream();
    std::vector<phi_work> posts, waits;
    for (int i = 0; i < many; i++) {
        posts.push_back(post(FIRST_FREE + i, NOTED));
        waits.push_back(wait(FIRST_FREE + i, NOTED));
        waits.push_back(post(FIRST_FREE + i, FREE));
    }
    ASSERT_EQ(issue(passive, waits), 0) << gpu->context.error();
    EXPECT_EQ(left(), "1 stream");
    ASSERT_EQ(issue(active, posts), 0);
    expect_drained();
    for (int i = 0; i < many; i++)
        ASSERT_EQ(words[FIRST_FREE + i], FREE) << i;
}

TEST_P(Executor, RevokedUsesAreRefused)
{
    CUdeviceptr a = gpu->alloc(8);
    CUstream s = stream();
    uses.revoked = 1;
    EXPECT_EQ(issue(s, {copy(a, a + 4, 4)}), PH_EBROKEN);
    EXPECT_NE(gpu->context.error().find("revoked"), std::string::npos);
    expect_drained();
    uses.revoked = 0;
    EXPECT_EQ(issue(s, {copy(a, a + 4, 4)}), 0);
    expect_drained();
}

TEST_P(Executor, BrokenLineEndsWaitsAndStores)
{
    CUdeviceptr a = gpu->alloc(64), b = gpu->alloc(64);
    CUstream s = stream();
    gpu->fill(a, 64, 1);
    gpu->fill(b, 64, 2);
    ASSERT_EQ(issue(s, {wait(TURN, READY), copy(b, a, 64), post(TURN, FULL)}), 0);
    __atomic_store_n(&words[BROKEN], 1u, __ATOMIC_RELEASE);
    if (!kernels_wait())
        set(TURN, READY); // a memory operation looks at its word only
    expect_drained();
    if (gpu->context.counters.copy_kernels == 1) {
        EXPECT_EQ(gpu->errors(b, 64, 2), 0u) << "a copy kernel behind a broken wait copies nothing";
    }
}

TEST_P(Executor, StreamOfAnotherDeviceIsRefused)
{
    Gpu other(1);
    if (!other.ok())
        GTEST_SKIP() << "needs two devices";
    CUstream foreign;
    CU_OK(other.cu->cuStreamCreate(&foreign, CU_STREAM_NON_BLOCKING));
    EXPECT_EQ(issue(foreign, {post(TURN, READY)}), -EINVAL);
    EXPECT_NE(gpu->context.error().find("stream"), std::string::npos);
    CU_EXPECT(other.cu->cuStreamDestroy_v2(foreign));
}

TEST_P(Executor, WorksFromAThreadWithoutAContext)
{
    CUstream s = stream();
    std::thread([&] {
        CUcontext current = nullptr;
        EXPECT_EQ(issue(s, {post(TURN, READY)}), 0) << gpu->context.error();
        CU_EXPECT(gpu->cu->cuCtxGetCurrent(&current));
        EXPECT_EQ(current, nullptr) << "the thread's context is left as it was";
    }).join();
    expect_drained();
    EXPECT_EQ(words[TURN], READY);
}

// More streams in the life of a context than it has records, and handles that come back after a
// destroy.
TEST_P(Executor, StreamsComeAndGo)
{
    for (int i = 0; i < 2 * PHI_STREAMS_MAX; i++) {
        CUstream s;
        CU_OK(gpu->cu->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
        ASSERT_EQ(issue(s, {post(TURN, READY)}), 0) << i << ": " << gpu->context.error();
        CU_OK(gpu->cu->cuStreamSynchronize(s));
        CU_OK(gpu->cu->cuStreamDestroy_v2(s));
        ASSERT_EQ(words[TURN], READY);
        words[TURN] = 0;
    }
    expect_drained();
}

TEST_P(Executor, OneStreamFromManyThreads)
{
    const int threads = 4, each = 200;
    CUdeviceptr a = gpu->alloc(64);
    CUstream s = stream();
    std::vector<std::thread> all;
    for (int t = 0; t < threads; t++)
        all.emplace_back([&] {
            for (int i = 0; i < each; i++)
                EXPECT_EQ(issue(s, {copy(a, a + 32, 32)}), 0);
        });
    for (std::thread &thread : all)
        thread.join();
    expect_drained();
    EXPECT_EQ(gpu->context.counters.ipc_operations, (uint64_t)threads * each);
}

// ---- Graphs ----

class Captured : public Executor
{
  protected:
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;

    void capture(CUstream s, const std::vector<std::vector<phi_work>> &issues)
    {
        CU_OK(gpu->cu->cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
        for (const std::vector<phi_work> &work : issues)
            EXPECT_EQ(issue(s, work), 0) << gpu->context.error();
        CU_OK(gpu->cu->cuStreamEndCapture(s, &graph));
        CU_OK(gpu->cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    }
    // The user object's destructor runs on a thread of the driver's.
    bool unpinned()
    {
        for (int i = 0; i < 5000 && !executor->ops->drained(executor, &uses, nullptr, 0); i++)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return executor->ops->drained(executor, &uses, nullptr, 0);
    }
};

TEST_P(Captured, ReplaysWaitAndCopyEachTime)
{
    const size_t size = 5000;
    CUdeviceptr a = gpu->alloc(size), b = gpu->alloc(size);
    CUstream s = stream();
    capture(s, {{wait(TURN, READY), copy(b, a, size), post(TURN, FULL)}});
    EXPECT_EQ(gpu->context.counters.captured, 1u);
    EXPECT_EQ(left(), "0 streams, 1 graph");
    for (uint64_t i = 0; i < 20; i++) {
        gpu->fill(a, size, i);
        CU_OK(gpu->cu->cuGraphLaunch(exec, s));
        EXPECT_EQ(gpu->cu->cuStreamQuery(s), CUDA_ERROR_NOT_READY) << "every replay waits anew";
        set(TURN, READY);
        CU_OK(gpu->cu->cuStreamSynchronize(s));
        ASSERT_EQ(gpu->errors(b, size, i), 0u) << i;
        ASSERT_EQ(words[TURN], FULL);
    }
    CU_EXPECT(gpu->cu->cuGraphDestroy(graph));
    EXPECT_EQ(left(), "0 streams, 1 graph") << "the executable holds it too";
    CU_EXPECT(gpu->cu->cuGraphExecDestroy(exec));
    EXPECT_TRUE(unpinned());
    expect_drained();
}

TEST_P(Captured, PinsOncePerGraph)
{
    CUdeviceptr a = gpu->alloc(64);
    CUstream s = stream();
    capture(s, {{copy(a, a + 32, 32)}, {copy(a, a + 32, 32)}, {post(TURN, READY)}});
    EXPECT_EQ(uses.pins, 1u);
    EXPECT_EQ(gpu->context.counters.captured, 3u);
    EXPECT_TRUE(executor->ops->busy(executor, nullptr, 0));
    CU_EXPECT(gpu->cu->cuGraphExecDestroy(exec));
    CU_EXPECT(gpu->cu->cuGraphDestroy(graph));
    EXPECT_TRUE(unpinned());
}

TEST_P(Captured, RevokedUsesAreRefusedAndNotPinned)
{
    CUdeviceptr a = gpu->alloc(64);
    CUstream s = stream();
    phi_uses other{};
    uses.revoked = 1;
    CU_OK(gpu->cu->cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_EQ(issue(s, {copy(a, a + 32, 32)}), PH_EBROKEN);
    EXPECT_EQ(uses.pins, 0u);
    phi_work work = copy(a, a + 32, 32);
    work.uses = &other;
    EXPECT_EQ(issue(s, {work}), 0);
    CU_OK(gpu->cu->cuStreamEndCapture(s, &graph));
    EXPECT_EQ(other.pins, 1u);
    CU_EXPECT(gpu->cu->cuGraphDestroy(graph));
    EXPECT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0) << gpu->context.error();
    EXPECT_EQ(other.pins, 0u);
}

// A capture that joins two streams: the branches count as two waiting streams, and are one graph.
TEST_P(Captured, BranchesOfOneGraph)
{
    CUstream s = stream(), t = stream();
    CUevent fork, join;
    CU_OK(gpu->cu->cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    CU_OK(gpu->cu->cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    CU_OK(gpu->cu->cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU_OK(gpu->cu->cuEventRecord(fork, s));
    CU_OK(gpu->cu->cuStreamWaitEvent(t, fork, 0));
    EXPECT_EQ(issue(s, {wait(TURN, READY)}), 0);
    EXPECT_EQ(issue(t, {wait(NOTE, NOTED), post(NOTE, FREE)}), 0);
    CU_OK(gpu->cu->cuEventRecord(join, t));
    CU_OK(gpu->cu->cuStreamWaitEvent(s, join, 0));
    CU_OK(gpu->cu->cuStreamEndCapture(s, &graph));
    EXPECT_EQ(uses.pins, 1u);
    CU_OK(gpu->cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU_OK(gpu->cu->cuGraphLaunch(exec, s));
    set(NOTE, NOTED);
    set(TURN, READY);
    CU_OK(gpu->cu->cuStreamSynchronize(s));
    EXPECT_EQ(words[TURN], READY);
    EXPECT_EQ(words[NOTE], FREE);
    CU_EXPECT(gpu->cu->cuGraphExecDestroy(exec));
    CU_EXPECT(gpu->cu->cuGraphDestroy(graph));
    EXPECT_TRUE(unpinned());
    CU_EXPECT(gpu->cu->cuEventDestroy_v2(fork));
    CU_EXPECT(gpu->cu->cuEventDestroy_v2(join));
}

INSTANTIATE_TEST_SUITE_P(Waits, Executor, testing::Values("kernel", "memory_operation", "auto"),
                         [](const auto &info) { return std::string(info.param); });
INSTANTIATE_TEST_SUITE_P(Waits, Captured, testing::Values("kernel", "memory_operation", "auto"),
                         [](const auto &info) { return std::string(info.param); });

// ---- Limits and methods ----

class Limits : public Executor
{
};

TEST_P(Limits, TooManyWaitingKernelsIsEAGAIN)
{
    begin({"PEERHOP_WAIT=kernel", "PEERHOP_KERNEL_WAITS=5", "PEERHOP_GRAPH_BRANCHES=2"});
    if (IsSkipped())
        return;
    for (int i = 0; i < 3; i++)
        ASSERT_EQ(issue(stream(), {wait(FIRST_FREE + i, NOTED), post(FIRST_FREE + i, FREE)}), 0);
    CUstream s = stream();
    EXPECT_EQ(issue(s, {wait(NOTE, NOTED), post(NOTE, FREE)}), -EAGAIN);
    EXPECT_NE(gpu->context.error().find("KERNEL_WAITS"), std::string::npos) << gpu->context.error();
    // More on a stream that waits already is no further waiting kernel; what does not wait is free.
    EXPECT_EQ(issue(streams[0], {wait(FIRST_FREE + 3, NOTED), post(FIRST_FREE + 3, FREE)}), 0);
    EXPECT_EQ(issue(s, {post(TURN, READY)}), 0);
    for (int i = 0; i < 4; i++)
        set(FIRST_FREE + i, NOTED);
    expect_drained();
    EXPECT_EQ(words[TURN], READY);
    EXPECT_EQ(issue(s, {wait(TURN, READY)}), 0) << "when they are done there is room again";
}

// Nobody sees which of them run: so many as may are left out of what streams have.
TEST_P(Limits, LiveGraphsCountNowhere)
{
    begin({"PEERHOP_WAIT=kernel", "PEERHOP_KERNEL_WAITS=2", "PEERHOP_GRAPH_BRANCHES=1"});
    if (IsSkipped())
        return;
    std::vector<CUgraph> graphs(40);
    for (CUgraph &graph : graphs) {
        CUstream s = stream();
        CU_OK(gpu->cu->cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
        EXPECT_EQ(issue(s, {wait(TURN, READY)}), 0) << gpu->context.error();
        CU_OK(gpu->cu->cuStreamEndCapture(s, &graph));
    }
    EXPECT_EQ(issue(stream(), {wait(NOTE, NOTED), post(NOTE, FREE)}), 0) << gpu->context.error();
    EXPECT_EQ(issue(stream(), {wait(TURN, READY)}), -EAGAIN);
    set(NOTE, NOTED);
    for (CUgraph graph : graphs)
        CU_EXPECT(gpu->cu->cuGraphDestroy(graph));
    expect_drained();
}

TEST_P(Limits, WhereNoGraphMayWaitNoneIsMade)
{
    begin({"PEERHOP_WAIT=kernel", "PEERHOP_GRAPH_BRANCHES=0"});
    if (IsSkipped())
        return;
    CUgraph graph;
    CUstream s = stream();
    CU_OK(gpu->cu->cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_EQ(issue(s, {wait(TURN, READY)}), -EAGAIN);
    EXPECT_NE(gpu->context.error().find("PEERHOP_GRAPH_BRANCHES 0"), std::string::npos)
        << gpu->context.error();
    CU_OK(gpu->cu->cuStreamEndCapture(s, &graph));
    CU_EXPECT(gpu->cu->cuGraphDestroy(graph));
    EXPECT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0) << gpu->context.error();
}

TEST_P(Limits, SharedDeviceWaitsByMemoryOperationUpToTheLimit)
{
    begin({"PEERHOP_WAIT=auto", "PEERHOP_MEMORY_OPERATION_STREAMS=2"});
    if (IsSkipped() || !gpu->info().kernels || !gpu->info().memory_operations)
        return;
    phi_counters &counters = gpu->context.counters;
    phi_cuda_executor_share(executor, true);
    for (int i = 0; i < 3; i++)
        ASSERT_EQ(issue(stream(), {wait(FIRST_FREE + i, NOTED), post(FIRST_FREE + i, FREE)}), 0);
    EXPECT_EQ(counters.waits_memory_operation, 2u);
    EXPECT_EQ(counters.waits_kernel, 1u);
    phi_cuda_executor_share(executor, false);
    ASSERT_EQ(issue(stream(), {wait(FIRST_FREE + 3, NOTED), post(FIRST_FREE + 3, FREE)}), 0);
    EXPECT_EQ(counters.waits_kernel, 2u);
    for (int i = 0; i < 4; i++)
        set(FIRST_FREE + i, NOTED);
    expect_drained();
}

TEST_P(Limits, CopyKernelCopiesEverySizeAndAlignment)
{
    begin({"PEERHOP_METHOD=copy_kernel"});
    if (IsSkipped())
        return;
    if (!gpu->info().kernels)
        GTEST_SKIP() << "no kernels in this build";
    const size_t room = 300000;
    CUdeviceptr a = gpu->alloc(room), b = gpu->alloc(room);
    CUstream s = stream();
    uint64_t copies = 0;
    for (size_t size : {(size_t)1, (size_t)7, (size_t)15, (size_t)16, (size_t)17, (size_t)100,
                        (size_t)4096, (size_t)262147})
        for (size_t from : {(size_t)0, (size_t)1, (size_t)2, (size_t)4, (size_t)8, (size_t)15})
            for (size_t to : {(size_t)0, (size_t)1, (size_t)3, (size_t)8, (size_t)16}) {
                gpu->fill(b, room, 9);
                gpu->fill(a + from, size, ++copies);
                ASSERT_EQ(issue(s, {copy(b + 64 + to, a + from, size)}), 0) << gpu->context.error();
                CU_OK(gpu->cu->cuStreamSynchronize(s));
                ASSERT_EQ(gpu->errors(b + 64 + to, size, copies), 0u)
                    << size << " bytes from +" << from << " to +" << to;
                // Nothing beside it was written.
                std::vector<uint8_t> all(room), wanted = Gpu::pattern(room, 9);
                CU_OK(gpu->cu->cuMemcpyDtoH_v2(all.data(), b, room));
                ASSERT_EQ(memcmp(all.data(), wanted.data(), 64 + to), 0);
                ASSERT_EQ(
                    memcmp(&all[64 + to + size], &wanted[64 + to + size], room - 64 - to - size),
                    0);
            }
    EXPECT_EQ(gpu->context.counters.copy_kernels, copies);
    expect_drained();
}

// Warps draw what they copy, again and again from the same counter.
TEST_P(Limits, CopyKernelCopiesLargeOnes)
{
    begin({"PEERHOP_METHOD=copy_kernel"});
    if (IsSkipped())
        return;
    if (!gpu->info().kernels)
        GTEST_SKIP() << "no kernels in this build";
    if (strstr(gpu->info().name, "Stand-in"))
        GTEST_SKIP() << "the stand-in copies without warps";
    const size_t most = (33 << 20) + 4111, room = most + 256;
    CUdeviceptr a = gpu->alloc(room), b = gpu->alloc(room);
    CUstream s = stream();
    uint64_t seed = 0;
    for (size_t size : {(size_t)(8 << 20) + 4096, most})
        for (size_t from : {(size_t)0, (size_t)1, (size_t)8})
            for (size_t to : {(size_t)0, (size_t)3}) {
                gpu->fill(b, room, 1000);
                gpu->fill(a + from, size, ++seed);
                ASSERT_EQ(issue(s, {copy(b + 64 + to, a + from, size)}), 0) << gpu->context.error();
                CU_OK(gpu->cu->cuStreamSynchronize(s));
                ASSERT_EQ(gpu->errors(b + 64 + to, size, seed), 0u)
                    << size << " bytes from +" << from << " to +" << to;
            }
    expect_drained();
}

// Pages of many sizes and alignments from one buffer to another, as one group brings them.
TEST_P(Limits, SmallCopiesGoTogether)
{
    begin({"PEERHOP_METHOD=auto"});
    if (IsSkipped())
        return;
    const bool kernels = gpu->info().kernels;
    const size_t room = 24 << 20;
    CUdeviceptr a = gpu->alloc(room), b = gpu->alloc(room);
    CUstream s = stream();
    for (size_t n : {2u, 3u, 64u, 120u, 121u, 191u}) {
        std::vector<phi_work> work;
        std::vector<std::pair<size_t, size_t>> pages; // offset, size
        size_t at = 0, small = 0;
        for (size_t i = 0; i < n; i++) {
            const size_t page = i % 61 == 60 ? 600000 : i % 7 == 3 ? 0 : (i * 7919) % 70000;
            pages.push_back({at, page});
            small += page > 0 && page <= 512 << 10;
            work.push_back(copy(b + at, a + room - 1 - at - page, page));
            at += page + 1 + i % 16;
        }
        ASSERT_LT(at, room);
        gpu->fill(a, room, n);
        gpu->fill(b, room, n + 1);
        const uint64_t before = gpu->context.counters.copy_kernels;
        ASSERT_EQ(issue(s, work), 0) << gpu->context.error();
        CU_OK(gpu->cu->cuStreamSynchronize(s));
        const std::vector<uint8_t> from = Gpu::pattern(room, n);
        std::vector<uint8_t> all(room), wanted = Gpu::pattern(room, n + 1);
        for (auto [offset, size] : pages)
            memcpy(&wanted[offset], &from[room - 1 - offset - size], size);
        CU_OK(gpu->cu->cuMemcpyDtoH_v2(all.data(), b, room));
        ASSERT_EQ(memcmp(all.data(), wanted.data(), room), 0) << n << " copies";
        const uint64_t by_kernel = gpu->context.counters.copy_kernels - before;
        EXPECT_LE(by_kernel, kernels ? small : 0) << n << " copies";
        EXPECT_GE(by_kernel + 4, kernels ? small : 0) << n << " copies"; // one that is alone is not
    }
    expect_drained();
}

// Copies behind a wait that ended because its line broke: one that has many blocks, one that has
// one, and several in one launch, of which only those of the broken line are left out.
TEST_P(Limits, CopiesBehindABrokenWaitAreLeftOut)
{
    begin({"PEERHOP_METHOD=auto"});
    if (IsSkipped() || !gpu->info().kernels)
        return;
    const size_t size = 1 << 20, page = 20000;
    CUdeviceptr a = gpu->alloc(size), b = gpu->alloc(size);
    CUstream s = stream();
    gpu->fill(a, size, 1);
    auto other = [&](phi_work work) { // of another line, which stands
        work.over.broken = &words[WHOLE];
        work.over.broken_device = words_device + 4 * WHOLE;
        return work;
    };
    for (bool broken : {false, true}) {
        auto behind_a_wait = [&](const std::vector<phi_work> &work) {
            words[TURN] = words[BROKEN] = 0;
            ASSERT_EQ(issue(s, {wait(TURN, READY)}), 0);
            ASSERT_EQ(issue(s, work), 0);
            set(broken ? BROKEN : TURN, READY);
            expect_drained();
        };
        for (size_t n : {size, page, size_t(9)}) {
            gpu->fill(b, size, 2);
            behind_a_wait({copy(b, a, n)});
            EXPECT_EQ(gpu->errors(b, n, broken ? 2 : 1), 0u) << n;
        }
        gpu->fill(b, size, 2);
        std::vector<phi_work> work;
        for (size_t i = 0; i < 40; i++) {
            const phi_work one = copy(b + i * page, a + i * page, page);
            work.push_back(i % 3 ? one : other(one));
        }
        behind_a_wait(work);
        std::vector<uint8_t> all(size), wanted = Gpu::pattern(size, 2),
                                        from = Gpu::pattern(size, 1);
        for (size_t i = 0; i < 40; i++)
            if (!broken || i % 3 == 0)
                memcpy(&wanted[i * page], &from[i * page], page);
        CU_OK(gpu->cu->cuMemcpyDtoH_v2(all.data(), b, size));
        EXPECT_EQ(memcmp(all.data(), wanted.data(), size), 0) << (broken ? "broken" : "whole");
        behind_a_wait({copy(b, a, 9), copy(b, a, 0)}); // one block, which leaves no gate open
    }
}

TEST_P(Limits, CopiesBehindWaitsGoToKernels)
{
    begin({"PEERHOP_WAIT=auto"});
    if (IsSkipped() || !gpu->info().kernels)
        return;
    phi_counters &counters = gpu->context.counters;
    CUdeviceptr a = gpu->alloc(17 * 64);
    for (int i = 0; i < 17; i++)
        ASSERT_EQ(issue(stream(), {wait(FIRST_FREE + i, NOTED), post(FIRST_FREE + i, FREE),
                                   copy(a + 64 * i, a + 64 * i + 32, 32)}),
                  0);
    EXPECT_EQ(counters.copy_kernels, 17u);
    // On a stream that waits, a copy of its own waits as well.
    ASSERT_EQ(issue(streams[0], {copy(a, a + 32, 32)}), 0);
    EXPECT_EQ(counters.copy_kernels, 18u);
    for (int i = 0; i < 17; i++)
        set(FIRST_FREE + i, NOTED);
    expect_drained();
}

// The library never holds up a program that is right: with every allowed wait outstanding, other
// work moves.
TEST_P(Limits, OthersMoveWhileAllMayWait)
{
    begin({"PEERHOP_WAIT=auto"});
    if (IsSkipped() || !gpu->info().kernels)
        return;
    const int waiting = 32;
    const size_t size = 100000;
    CUdeviceptr a = gpu->alloc(size), b = gpu->alloc(size);
    // The driver loads what it fills and copies with at the first use, and that blocks behind
    // waits: not what this looks for.
    CU_OK(gpu->cu->cuMemsetD8Async(a, 1, size, nullptr));
    CU_OK(gpu->cu->cuMemcpyAsync(b, a, size, nullptr));
    // A new stream may need a new channel of the driver's, and that blocks behind waits as well.
    for (int i = 0; i < waiting + 16; i++)
        stream();
    CU_OK(gpu->cu->cuStreamSynchronize(nullptr));
    // Whatever fails below, nothing waits on: or the end of the test would block behind it.
    auto release = [&](void *) {
        for (int i = 0; i < waiting; i++)
            set(FIRST_FREE + i, NOTED);
    };
    std::unique_ptr<void, decltype(release)> guard(&a, release);
    for (int i = 0; i < waiting; i++)
        ASSERT_EQ(issue(streams[size_t(i)],
                        {wait(FIRST_FREE + i, NOTED), post(FIRST_FREE + i, FREE), copy(a, a, 0)}),
                  0);
    gpu->context.counters.ipc_operations = 0;
    for (int i = 0; i < 16; i++) {
        CUstream s = streams[size_t(waiting + i)];
        CU_OK(gpu->cu->cuMemsetD8Async(a, (unsigned char)i, size, s));
        ASSERT_EQ(issue(s, {copy(b, a, size), post(TURN, READY)}), 0);
        for (int ms = 0; ms < 10000 && gpu->cu->cuStreamQuery(s) == CUDA_ERROR_NOT_READY; ms++)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ASSERT_EQ(gpu->cu->cuStreamQuery(s), CUDA_SUCCESS) << "stream " << i << " was held up";
    }
    guard.reset();
    expect_drained();
}

TEST_P(Limits, MoreThanFourGiB)
{
    begin({std::string("PEERHOP_METHOD=") + GetParam()});
    if (IsSkipped())
        return;
    const size_t size = ((size_t)4 << 30) + 4099;
    CUdeviceptr a = 0, b = 0;
    if (strstr(gpu->info().name, "Stand-in"))
        GTEST_SKIP() << "a real device's memory is needed";
    if (gpu->cu->cuMemAlloc_v2(&a, size) != CUDA_SUCCESS ||
        gpu->cu->cuMemAlloc_v2(&b, size) != CUDA_SUCCESS)
        GTEST_SKIP() << "not enough device memory";
    CUstream s = stream();
    CU_OK(gpu->cu->cuMemsetD8Async(a, 0x11, size, s));
    CU_OK(gpu->cu->cuMemsetD8Async(a + size - 4096, 0x22, 4096, s));
    CU_OK(gpu->cu->cuMemsetD8Async(b, 0, size, s));
    ASSERT_EQ(issue(s, {copy(b, a, size)}), 0);
    CU_OK(gpu->cu->cuStreamSynchronize(s));
    uint8_t bytes[4];
    CU_OK(gpu->cu->cuMemcpyDtoH_v2(&bytes[0], b, 1));
    CU_OK(gpu->cu->cuMemcpyDtoH_v2(&bytes[1], b + ((size_t)4 << 30) - 1, 1));
    CU_OK(gpu->cu->cuMemcpyDtoH_v2(&bytes[2], b + size - 4097, 1));
    CU_OK(gpu->cu->cuMemcpyDtoH_v2(&bytes[3], b + size - 1, 1));
    EXPECT_EQ(bytes[0], 0x11);
    EXPECT_EQ(bytes[1], 0x11);
    EXPECT_EQ(bytes[2], 0x11);
    EXPECT_EQ(bytes[3], 0x22);
    expect_drained();
    CU_EXPECT(gpu->cu->cuMemFree_v2(a));
    CU_EXPECT(gpu->cu->cuMemFree_v2(b));
}

INSTANTIATE_TEST_SUITE_P(Methods, Limits, testing::Values("auto"),
                         [](const auto &info) { return std::string(info.param); });

} // namespace
