// SPDX-License-Identifier: BSD-3-Clause
// Streams: order, memory operations, events, host functions, kernels.
#include <thread>
#include <vector>

#include "standin/driver_under_test.h"
#include "support/test_kernels.h"

namespace
{

class Streams : public DriverTest
{
  protected:
    CUresult wait(CUstream s, const void *word, uint32_t value, unsigned flags)
    {
        return d->cuStreamWaitValue32_v2(s, device(word), value, flags);
    }
    CUresult write(CUstream s, const void *word, uint32_t value)
    {
        return d->cuStreamWriteValue32_v2(s, device(word), value, 0);
    }
    CUresult launch_spin(CUfunction function, CUstream s, const void *word)
    {
        test_spin_args args = {device(word)};
        void *params[] = {&args};
        return d->cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, s, params, nullptr);
    }
    // Whether the stream is still busy after a while.
    bool held(CUstream s)
    {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        return d->cuStreamQuery(s) == CUDA_ERROR_NOT_READY;
    }
};

TEST_F(Streams, WaitsCompareAsTheirFlagsSay)
{
    auto *words = pinned<uint32_t>(2);
    CUstream s = stream();
    struct {
        unsigned flags;
        uint32_t before, value, after;
    } cases[] = {
        {CU_STREAM_WAIT_VALUE_GEQ, 0, 1, 1},
        {CU_STREAM_WAIT_VALUE_GEQ, 0xffffffff, 2, 3}, // cyclic: -1 is below 2
        {CU_STREAM_WAIT_VALUE_EQ, 9, 5, 5},
        {CU_STREAM_WAIT_VALUE_AND, 1, 6, 4},
        {CU_STREAM_WAIT_VALUE_NOR, 0xffffffff, 0, 0xfffffffe},
    };
    for (const auto &c : cases) {
        words[0] = c.before;
        words[1] = 0;
        CU_OK(wait(s, &words[0], c.value, c.flags));
        CU_OK(write(s, &words[1], 7));
        EXPECT_TRUE(held(s)) << c.flags;
        EXPECT_EQ(words[1], 0u);
        words[0] = c.after;
        EXPECT_TRUE(eventually([&] { return words[1] == 7u; })) << c.flags;
        EXPECT_TRUE(finishes(s));
    }
    CU_OK(d->cuStreamDestroy_v2(s));
    CU_OK(d->cuMemFreeHost(words));
}

TEST_F(Streams, BatchesRunInOrder)
{
    auto *words = pinned<uint64_t>(4);
    CUstream s = stream();
    CUstreamBatchMemOpParams ops[4] = {};
    ops[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    ops[0].waitValue.address = device(&words[0]);
    ops[0].waitValue.value = 1;
    ops[0].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    ops[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    ops[1].writeValue.address = device(&words[0]);
    ops[1].writeValue.value = 0;
    ops[2].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    ops[2].writeValue.address = device(&words[1]);
    ops[2].writeValue.value64 = 0x100000002;
    ops[3].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    ops[3].waitValue.address = device(&words[2]);
    ops[3].waitValue.value64 = 0x300000000;
    ops[3].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    CU_OK(d->cuStreamBatchMemOp_v2(s, 4, ops, 0));
    EXPECT_TRUE(held(s));
    EXPECT_EQ(words[1], 0u);
    words[0] = 1;
    EXPECT_TRUE(eventually([&] { return words[1] == 0x100000002u; }));
    EXPECT_EQ(words[0], 0u);
    EXPECT_TRUE(held(s));
    words[2] = 0x300000000;
    EXPECT_TRUE(finishes(s));
    CU_OK(d->cuStreamDestroy_v2(s));
    CU_OK(d->cuMemFreeHost(words));
}

TEST_F(Streams, MemoryOperationsAreChecked)
{
    auto *word = pinned<uint64_t>(2);
    CUstream s = stream();
    uint32_t local = 0;
    CU_EXPECT(write(s, &local, 1), CUDA_ERROR_INVALID_VALUE);
    CU_EXPECT(d->cuStreamWriteValue32_v2(s, device(word) + 2, 1, 0), CUDA_ERROR_INVALID_VALUE);
    CU_EXPECT(
        d->cuStreamWriteValue32_v2(s, device(word), 1, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER),
        CUDA_ERROR_INVALID_VALUE);
    std::vector<CUstreamBatchMemOpParams> ops(256);
    for (auto &op : ops) {
        op = {};
        op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        op.writeValue.address = device(word);
        op.writeValue.value = 3;
    }
    CU_EXPECT(d->cuStreamBatchMemOp_v2(s, 256, ops.data(), 0), CUDA_ERROR_INVALID_VALUE);
    CU_OK(d->cuStreamBatchMemOp_v2(s, 255, ops.data(), 0));
    EXPECT_TRUE(finishes(s));
    EXPECT_EQ(word[0], 3u);
    int flush = 0;
    CU_OK(d->cuDeviceGetAttribute(&flush, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, 0));
    if (!flush) {
        CU_EXPECT(wait(s, word, 3, CU_STREAM_WAIT_VALUE_GEQ | CU_STREAM_WAIT_VALUE_FLUSH),
                  CUDA_ERROR_NOT_SUPPORTED);
    }
    CU_OK(d->cuStreamDestroy_v2(s));
    CU_OK(d->cuMemFreeHost(word));
}

TEST_F(Streams, CopiesAndFillsInOrder)
{
    CUstream s = stream();
    CUdeviceptr a = alloc(8192), b = alloc(8192);
    std::vector<uint32_t> out(2048);
    CU_OK(d->cuMemsetD32Async(a, 0xabcd0123, 2048, s));
    CU_OK(d->cuMemsetD8Async(a + 4, 0x7f, 4, s));
    CU_OK(d->cuMemcpyAsync(b, a, 8192, s));
    CU_OK(d->cuMemsetD32Async(a, 0, 2048, s));
    CU_OK(d->cuMemcpyDtoHAsync_v2(out.data(), b, 8192, s));
    CU_OK(d->cuStreamSynchronize(s));
    EXPECT_EQ(out[0], 0xabcd0123u);
    EXPECT_EQ(out[1], 0x7f7f7f7fu);
    EXPECT_EQ(out[2047], 0xabcd0123u);
    CU_EXPECT(d->cuMemsetD32Async(a + 2, 0, 1, s), CUDA_ERROR_INVALID_VALUE);
    CU_EXPECT(d->cuMemcpyAsync(b, a, size_t{1} << 40, s), CUDA_ERROR_INVALID_VALUE);
    CU_OK(d->cuMemcpyHtoD_v2(a, out.data(), 8192));
    std::vector<uint32_t> back(2048);
    CU_OK(d->cuMemcpyDtoH_v2(back.data(), a, 8192));
    EXPECT_EQ(out, back);
    CU_OK(d->cuMemFree_v2(a));
    CU_OK(d->cuMemFree_v2(b));
    CU_OK(d->cuStreamDestroy_v2(s));
}

TEST_F(Streams, PageableSourcesAreFreeWhenTheCallReturns)
{
    auto *word = pinned<uint32_t>();
    CUstream s = stream();
    CUdeviceptr a = alloc(4096);
    std::vector<uint8_t> source(4096, 5);
    CU_OK(wait(s, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    CU_OK(d->cuMemcpyHtoDAsync_v2(a, source.data(), 4096, s));
    std::fill(source.begin(), source.end(), 9);
    *word = 1;
    EXPECT_TRUE(finishes(s));
    EXPECT_EQ(value(a), 0x0505050505050505u);
    CU_OK(d->cuMemFree_v2(a));
    CU_OK(d->cuStreamDestroy_v2(s));
    CU_OK(d->cuMemFreeHost(word));
}

TEST_F(Streams, CopiesBetweenDevices)
{
    if (!second_device())
        GTEST_SKIP() << "one device";
    CUcontext other = nullptr;
    CU_OK(d->cuDevicePrimaryCtxRetain(&other, 1));
    CU_OK(d->cuCtxPushCurrent_v2(other));
    CUdeviceptr b = alloc(4096);
    CU_OK(d->cuCtxPopCurrent_v2(nullptr));
    CUdeviceptr a = alloc(4096);
    set_value(a, 606);
    CUstream s = stream();
    CU_OK(d->cuMemcpyPeerAsync(b, other, a, context_, 4096, s));
    CU_OK(d->cuMemcpyAsync(a + 8, b, 8, s));
    CU_OK(d->cuStreamSynchronize(s));
    EXPECT_EQ(value(a + 8), 606u);
    CU_OK(d->cuStreamDestroy_v2(s));
    CU_OK(d->cuMemFree_v2(a));
    CU_OK(d->cuMemFree_v2(b));
    CU_OK(d->cuDevicePrimaryCtxRelease_v2(1));
}

TEST_F(Streams, TheLegacyStreamOrdersBlockingStreamsOnly)
{
    auto *words = pinned<uint32_t>(4);
    CUstream blocking = stream(CU_STREAM_DEFAULT), free_stream = stream();
    CU_OK(wait(blocking, &words[0], 1, CU_STREAM_WAIT_VALUE_GEQ));
    CU_OK(write(nullptr, &words[1], 1));     // behind the blocking stream
    CU_OK(write(blocking, &words[2], 1));    // behind the legacy stream
    CU_OK(write(free_stream, &words[3], 1)); // behind nothing
    EXPECT_TRUE(eventually([&] { return words[3] == 1u; }));
    EXPECT_TRUE(held(blocking));
    CU_EXPECT(d->cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(words[1], 0u);
    words[0] = 1;
    EXPECT_TRUE(eventually([&] { return words[2] == 1u; }));
    EXPECT_EQ(words[1], 1u);
    CU_OK(d->cuStreamSynchronize(nullptr));

    // The stream of the thread is a blocking one.
    words[0] = words[1] = 0;
    CU_OK(wait(CU_STREAM_PER_THREAD, &words[0], 1, CU_STREAM_WAIT_VALUE_GEQ));
    CU_OK(write(CU_STREAM_LEGACY, &words[1], 1));
    EXPECT_TRUE(held(CU_STREAM_LEGACY));
    EXPECT_EQ(words[1], 0u);
    words[0] = 1;
    EXPECT_TRUE(eventually([&] { return words[1] == 1u; }));
    CU_OK(d->cuStreamDestroy_v2(blocking));
    CU_OK(d->cuStreamDestroy_v2(free_stream));
    CU_OK(d->cuMemFreeHost(words));
}

TEST_F(Streams, EventsOrderAndTellTime)
{
    auto *words = pinned<uint32_t>(2);
    CUstream a = stream(), b = stream();
    CUevent start = nullptr, end = nullptr;
    CU_OK(d->cuEventCreate(&start, CU_EVENT_DEFAULT));
    CU_OK(d->cuEventCreate(&end, CU_EVENT_DEFAULT));
    CU_OK(d->cuEventQuery(start)); // never recorded
    CU_OK(d->cuEventRecord(start, a));
    CU_OK(d->cuEventSynchronize(start));
    CU_OK(wait(a, &words[0], 1, CU_STREAM_WAIT_VALUE_GEQ));
    CU_OK(d->cuEventRecord(end, a));
    CU_OK(d->cuStreamWaitEvent(b, end, 0));
    CU_OK(write(b, &words[1], 1));
    EXPECT_TRUE(held(b));
    CU_EXPECT(d->cuEventQuery(end), CUDA_ERROR_NOT_READY);
    float ms = -1;
    CU_EXPECT(d->cuEventElapsedTime(&ms, start, end), CUDA_ERROR_NOT_READY);
    words[0] = 1;
    CU_OK(d->cuEventSynchronize(end));
    EXPECT_TRUE(eventually([&] { return words[1] == 1u; }));
    CU_OK(d->cuEventElapsedTime(&ms, start, end));
    EXPECT_GE(ms, 25.0f); // it was held for 30 ms
    CU_OK(d->cuEventDestroy_v2(start));
    CU_OK(d->cuEventDestroy_v2(end));
    CU_OK(d->cuStreamDestroy_v2(a));
    CU_OK(d->cuStreamDestroy_v2(b));
    CU_OK(d->cuMemFreeHost(words));
}

struct HostCall {
    const phi_driver *d;
    std::atomic<uint32_t> *word;
    std::atomic<int> result;
};

void CUDA_CB host_call(void *data)
{
    auto *call = static_cast<HostCall *>(data);
    CUdeviceptr address;
    call->result = call->d->cuMemAlloc_v2(&address, 8);
    *call->word = 1;
}

TEST_F(Streams, HostFunctionsRunInOrderAndMayNotCallTheDriver)
{
    auto *words = pinned<uint32_t>(2);
    CUstream s = stream();
    HostCall call = {d, &words[1], {-1}};
    CU_OK(wait(s, &words[0], 1, CU_STREAM_WAIT_VALUE_GEQ));
    CU_OK(d->cuLaunchHostFunc(s, host_call, &call));
    EXPECT_TRUE(held(s));
    EXPECT_EQ(call.result, -1);
    words[0] = 1;
    EXPECT_TRUE(finishes(s));
    EXPECT_EQ(words[1], 1u);
    CU_EXPECT(static_cast<CUresult>(call.result.load()), CUDA_ERROR_NOT_PERMITTED);
    CU_OK(d->cuStreamDestroy_v2(s));
    CU_OK(d->cuMemFreeHost(words));
}

TEST_F(Streams, KernelsWait)
{
    CUfunction spin = spin_kernel();
    auto *words = pinned<uint32_t>(2);
    CUstream s = stream();
    CU_OK(launch_spin(spin, s, &words[0]));
    CU_OK(write(s, &words[1], 1));
    EXPECT_TRUE(held(s));
    EXPECT_EQ(words[1], 0u);
    words[0] = 1;
    EXPECT_TRUE(finishes(s));
    EXPECT_EQ(words[1], 1u);
    int threads = 0;
    CU_OK(d->cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, spin));
    EXPECT_EQ(threads, 1024);
    test_spin_args args = {device(&words[0])};
    void *params[] = {&args};
    CU_EXPECT(d->cuLaunchKernel(spin, 1, 1, 1, 2048, 1, 1, 0, s, params, nullptr),
              CUDA_ERROR_INVALID_VALUE);
    CU_OK(d->cuStreamDestroy_v2(s));
    CU_OK(d->cuMemFreeHost(words));
}

TEST_F(Streams, WaitingKernelsHoldUpNobody)
{
    CUfunction spin = spin_kernel();
    auto *words = pinned<uint32_t>(65);
    std::vector<CUstream> waiting(64);
    for (CUstream &s : waiting)
        s = stream();
    CUstream other = stream();
    CUdeviceptr a = alloc(4096);
    CU_OK(d->cuMemsetD8Async(a, 1, 4096, other)); // what is loaded at first use is loaded now
    EXPECT_TRUE(finishes(other));
    std::thread watchdog([&] {
        eventually([&] { return words[2] != 0u; }, 10000);
        words[0] = 1;
    });
    for (CUstream s : waiting)
        CU_EXPECT(launch_spin(spin, s, &words[0]), CUDA_SUCCESS);
    CU_EXPECT(write(other, &words[1], 1), CUDA_SUCCESS);
    CU_EXPECT(d->cuMemsetD8Async(a, 1, 4096, other), CUDA_SUCCESS);
    EXPECT_TRUE(finishes(other));
    EXPECT_EQ(words[0], 0u); // the watchdog had nothing to do
    words[2] = 1;
    watchdog.join();
    for (CUstream s : waiting) {
        EXPECT_TRUE(finishes(s));
        CU_OK(d->cuStreamDestroy_v2(s));
    }
    CU_OK(d->cuStreamDestroy_v2(other));
    CU_OK(d->cuMemFree_v2(a));
    CU_OK(d->cuMemFreeHost(words));
}

TEST_F(Streams, IdsAreNeverGivenTwice)
{
    unsigned long long last = 0;
    std::vector<unsigned long long> seen;
    for (int i = 0; i < 20; i++) {
        CUstream s = stream();
        CU_OK(d->cuStreamGetId(s, &last));
        EXPECT_EQ(std::count(seen.begin(), seen.end(), last), 0);
        seen.push_back(last);
        CU_OK(d->cuStreamDestroy_v2(s));
    }
    unsigned long long legacy = 0, none = 0, own = 0, others = 0;
    CU_OK(d->cuStreamGetId(CU_STREAM_LEGACY, &legacy));
    CU_OK(d->cuStreamGetId(nullptr, &none));
    CU_OK(d->cuStreamGetId(CU_STREAM_PER_THREAD, &own));
    std::thread([&] {
        EXPECT_EQ(d->cuCtxSetCurrent(context_), CUDA_SUCCESS);
        EXPECT_EQ(d->cuStreamGetId(CU_STREAM_PER_THREAD, &others), CUDA_SUCCESS);
    }).join();
    EXPECT_EQ(legacy, none);
    EXPECT_NE(own, legacy);
    EXPECT_NE(own, others);
    CUcontext context = nullptr;
    CU_OK(d->cuStreamGetCtx(nullptr, &context));
    EXPECT_EQ(context, context_);
}

TEST_F(Streams, AStreamsOwnHandleNeedsNoCurrentContext)
{
    auto *word = pinned<uint32_t>();
    CUstream s = stream();
    CUstreamCaptureStatus status;
    CU_OK(d->cuCtxSetCurrent(nullptr));
    CU_EXPECT(write(s, word, 1), CUDA_SUCCESS);
    CU_EXPECT(d->cuMemsetD8Async(device(word) + 1, 1, 1, s), CUDA_SUCCESS);
    CU_EXPECT(d->cuStreamIsCapturing(s, &status), CUDA_SUCCESS);
    CU_EXPECT(d->cuStreamIsCapturing(nullptr, &status), CUDA_ERROR_INVALID_CONTEXT);
    CU_OK(d->cuCtxSetCurrent(context_));
    EXPECT_TRUE(finishes(s));
    EXPECT_EQ(*word, 0x101u);
    CU_OK(d->cuStreamDestroy_v2(s));
    CU_OK(d->cuMemFreeHost(word));
}

TEST_F(Streams, DestroyedStreamsFinishTheirWork)
{
    auto *words = pinned<uint32_t>(2);
    CUstream s = stream();
    CU_OK(wait(s, &words[0], 1, CU_STREAM_WAIT_VALUE_GEQ));
    CU_OK(write(s, &words[1], 1));
    CU_OK(d->cuStreamDestroy_v2(s));
    words[0] = 1;
    EXPECT_TRUE(eventually([&] { return words[1] == 1u; }));
    CU_OK(d->cuCtxSynchronize());
    CU_OK(d->cuMemFreeHost(words));
}

TEST_F(Streams, AFullStreamBlocksItsCallerOnly)
{
    auto *words = pinned<uint32_t>(3);
    CUstream s = stream(), other = stream();
    CU_OK(wait(s, &words[0], 1, CU_STREAM_WAIT_VALUE_GEQ));
    std::atomic<int> issued{0};
    std::thread filler([&] {
        EXPECT_EQ(d->cuCtxSetCurrent(context_), CUDA_SUCCESS);
        for (; issued < 5000; issued++) {
            if (d->cuMemsetD8Async(device(&words[1]), 1, 4, s) != CUDA_SUCCESS)
                break;
        }
    });
    EXPECT_TRUE(eventually([&] { return issued > 500; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_LT(issued, 5000);
    CU_OK(write(other, &words[2], 1));
    EXPECT_TRUE(eventually([&] { return words[2] == 1u; }));
    words[0] = 1;
    filler.join();
    EXPECT_EQ(issued, 5000);
    EXPECT_TRUE(finishes(s));
    CU_OK(d->cuStreamDestroy_v2(s));
    CU_OK(d->cuStreamDestroy_v2(other));
    CU_OK(d->cuMemFreeHost(words));
}

} // namespace
