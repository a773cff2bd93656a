// SPDX-License-Identifier: BSD-3-Clause
// Stream capture, graphs, and the calls that disturb a capture.
#include <sys/mman.h>

#include <thread>

#include "standin/driver_under_test.h"
#include "support/test_kernels.h"

namespace
{

class Capture : public DriverTest
{
  protected:
    CUgraphExec instantiate(CUgraph graph)
    {
        CUgraphExec exec = nullptr;
        CU_EXPECT(d->cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
        return exec;
    }
    CUstreamCaptureStatus status(CUstream s)
    {
        CUstreamCaptureStatus got = CU_STREAM_CAPTURE_STATUS_NONE;
        CU_EXPECT(d->cuStreamIsCapturing(s, &got), CUDA_SUCCESS);
        return got;
    }
};

TEST_F(Capture, ReplaysCopiesAndWordsWithChangedData)
{
    auto *words = pinned<uint32_t>(2);
    CUdeviceptr a = alloc(4096), b = alloc(4096);
    CUstream s = stream();
    CUgraph graph = nullptr;
    EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_NONE);
    CU_OK(d->cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CU_OK(d->cuStreamWaitValue32_v2(s, device(&words[0]), 1, CU_STREAM_WAIT_VALUE_GEQ));
    CU_OK(d->cuStreamWriteValue32_v2(s, device(&words[0]), 0, 0));
    CU_OK(d->cuMemcpyAsync(b, a, 8, s));
    CU_OK(d->cuStreamWriteValue32_v2(s, device(&words[1]), 1, 0));
    CU_OK(d->cuStreamEndCapture(s, &graph));
    EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_NONE);
    CUgraphExec exec = instantiate(graph);
    CU_OK(d->cuGraphDestroy(graph));
    for (uint64_t round = 1; round <= 3; round++) {
        set_value(a, round);
        words[1] = 0;
        CU_OK(d->cuGraphLaunch(exec, s));
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        EXPECT_EQ(words[1], 0u);
        words[0] = 1;
        EXPECT_TRUE(eventually([&] { return words[1] == 1u; }));
        EXPECT_TRUE(finishes(s));
        EXPECT_EQ(words[0], 0u);
        EXPECT_EQ(value(b), round);
    }
    CU_OK(d->cuGraphExecDestroy(exec));
    CU_OK(d->cuStreamDestroy_v2(s));
    CU_OK(d->cuMemFree_v2(a));
    CU_OK(d->cuMemFree_v2(b));
    CU_OK(d->cuMemFreeHost(words));
}

TEST_F(Capture, EventsCarryItToOtherStreams)
{
    auto *words = pinned<uint32_t>(4);
    CUstream a = stream(), b = stream();
    CUevent fork = nullptr, join = nullptr;
    CU_OK(d->cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    CU_OK(d->cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    CUgraph graph = nullptr;
    CU_OK(d->cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU_OK(d->cuEventRecord(fork, a));
    CU_OK(d->cuStreamWaitEvent(b, fork, 0));
    EXPECT_EQ(status(b), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    // Each branch waits for the other's word: they must run side by side.
    CU_OK(d->cuStreamWriteValue32_v2(a, device(&words[0]), 1, 0));
    CU_OK(d->cuStreamWaitValue32_v2(a, device(&words[1]), 1, CU_STREAM_WAIT_VALUE_GEQ));
    CU_OK(d->cuStreamWaitValue32_v2(b, device(&words[0]), 1, CU_STREAM_WAIT_VALUE_GEQ));
    CU_OK(d->cuStreamWriteValue32_v2(b, device(&words[1]), 1, 0));
    CU_OK(d->cuEventRecord(join, b));
    CU_OK(d->cuStreamWaitEvent(a, join, 0));
    CU_OK(d->cuStreamWriteValue32_v2(a, device(&words[2]), 1, 0));
    cuuint64_t id = 0, other = 1;
    CUgraph partial = nullptr;
    CUstreamCaptureStatus state;
    CU_OK(d->cuStreamGetCaptureInfo_v2(a, &state, &id, &partial, nullptr, nullptr));
    CU_OK(d->cuStreamGetCaptureInfo_v2(b, &state, &other, nullptr, nullptr, nullptr));
    EXPECT_EQ(id, other);
    EXPECT_NE(partial, nullptr);
    CU_OK(d->cuStreamEndCapture(a, &graph));
    CUgraphExec exec = instantiate(graph);
    CU_OK(d->cuGraphLaunch(exec, a));
    EXPECT_TRUE(finishes(a));
    EXPECT_EQ(words[2], 1u);
    CU_OK(d->cuGraphExecDestroy(exec));
    CU_OK(d->cuGraphDestroy(graph));
    CU_OK(d->cuEventDestroy_v2(fork));
    CU_OK(d->cuEventDestroy_v2(join));
    CU_OK(d->cuStreamDestroy_v2(a));
    CU_OK(d->cuStreamDestroy_v2(b));
    CU_OK(d->cuMemFreeHost(words));
}

TEST_F(Capture, AskingForTheIdEndsIt)
{
    CUstream s = stream();
    CUgraph graph = nullptr;
    unsigned long long id = 0;
    CU_OK(d->cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU_EXPECT(d->cuStreamGetId(s, &id), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CU_EXPECT(d->cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CU_OK(d->cuStreamDestroy_v2(s));
}

TEST_F(Capture, BranchesMustComeBack)
{
    auto *word = pinned<uint32_t>();
    CUstream a = stream(), b = stream();
    CUevent fork = nullptr;
    CU_OK(d->cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    CUgraph graph = nullptr;
    CU_OK(d->cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU_OK(d->cuEventRecord(fork, a));
    CU_OK(d->cuStreamWaitEvent(b, fork, 0));
    CU_OK(d->cuStreamWriteValue32_v2(b, device(word), 1, 0));
    CU_EXPECT(d->cuEventQuery(fork), CUDA_ERROR_CAPTURED_EVENT);
    CU_EXPECT(d->cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CU_EXPECT(d->cuEventQuery(fork), CUDA_ERROR_INVALID_VALUE);
    CU_EXPECT(d->cuStreamWaitEvent(b, fork, 0), CUDA_ERROR_INVALID_VALUE);
    CU_OK(d->cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU_OK(d->cuEventRecord(fork, a));
    CU_OK(d->cuStreamWaitEvent(b, fork, 0));
    CU_OK(d->cuStreamWriteValue32_v2(b, device(word), 1, 0));
    CU_EXPECT(d->cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(status(b), CU_STREAM_CAPTURE_STATUS_NONE);
    // Ending it at the wrong stream breaks it.
    CU_OK(d->cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU_OK(d->cuEventRecord(fork, a));
    CU_OK(d->cuStreamWaitEvent(b, fork, 0));
    CU_EXPECT(d->cuStreamEndCapture(b, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    CU_EXPECT(d->cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CU_OK(d->cuEventDestroy_v2(fork));
    CU_OK(d->cuStreamDestroy_v2(a));
    CU_OK(d->cuStreamDestroy_v2(b));
    CU_OK(d->cuMemFreeHost(word));
}

TEST_F(Capture, WrongCallsOfTheOwnThread)
{
    CUstream s = stream();
    CUgraph graph = nullptr;
    CU_EXPECT(d->cuStreamEndCapture(s, &graph), CUDA_ERROR_ILLEGAL_STATE);
    CU_EXPECT(d->cuStreamBeginCapture_v2(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED),
              CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CU_OK(d->cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU_EXPECT(d->cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
              CUDA_ERROR_ILLEGAL_STATE);
    std::thread([&] {
        EXPECT_EQ(d->cuCtxSetCurrent(context_), CUDA_SUCCESS);
        CU_EXPECT(d->cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }).join();
    EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_NONE); // and yet it is over
    CU_OK(d->cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU_EXPECT(d->cuStreamSynchronize(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    CU_EXPECT(d->cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CU_OK(d->cuStreamDestroy_v2(s));
}

TEST_F(Capture, WorkFromOutsideMayNotComeIn)
{
    CUstream a = stream(), b = stream();
    CUevent event = nullptr;
    CUgraph graph = nullptr;
    CU_OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU_OK(d->cuEventRecord(event, b));
    CU_OK(d->cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU_EXPECT(d->cuStreamWaitEvent(a, event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    CU_EXPECT(d->cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    CU_OK(d->cuStreamBeginCapture_v2(b, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU_OK(d->cuStreamEndCapture(b, &graph));
    CUgraphExec exec = instantiate(graph);
    CU_OK(d->cuGraphDestroy(graph));
    CU_OK(d->cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUdeviceptr memory = 0;
    CU_EXPECT(d->cuMemAlloc_v2(&memory, 4096), CUDA_SUCCESS); // relaxed
    CU_OK(d->cuMemsetD8Async(memory, 0, 8, a));
    CU_OK(d->cuStreamEndCapture(a, &graph));
    CU_OK(d->cuGraphDestroy(graph));
    CU_OK(d->cuGraphExecDestroy(exec));
    CU_OK(d->cuMemFree_v2(memory));
    CU_OK(d->cuEventDestroy_v2(event));
    CU_OK(d->cuStreamDestroy_v2(a));
    CU_OK(d->cuStreamDestroy_v2(b));
}

TEST_F(Capture, TheLegacyStreamMayNotDependOnACapturingStream)
{
    auto *word = pinned<uint32_t>();
    CUstream s = stream(CU_STREAM_DEFAULT);
    CUgraph graph = nullptr;
    CUstreamCaptureStatus state;
    CU_OK(d->cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU_EXPECT(d->cuStreamIsCapturing(nullptr, &state), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CU_EXPECT(d->cuStreamWriteValue32_v2(nullptr, device(word), 1, 0),
              CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    CU_EXPECT(d->cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CU_OK(d->cuStreamDestroy_v2(s));
    CU_OK(d->cuMemFreeHost(word));
}

void CUDA_CB nothing(void *)
{
}

// What another thread may do while this one captures in global mode, by that thread's own mode.
TEST_F(Capture, CallsOfOtherThreadsThatDisturbIt)
{
    CUstream s = stream(), other = stream();
    CUevent event = nullptr;
    CU_OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU_OK(d->cuEventRecord(event, other));
    CU_OK(d->cuStreamSynchronize(other));
    CUdeviceptr victims[2] = {alloc(4096), alloc(4096)}, target = alloc(4096);
    void *host_victim = pinned<uint64_t>();
    void *shared = mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CUmodule module = nullptr;
    CUdeviceptr pooled = 0;
    CUipcMemHandle handle;
    CUmemGenericAllocationHandle physical = 0;
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUgraph empty = nullptr;
    CUgraphExec exec = nullptr, spare = nullptr;
    CU_OK(d->cuStreamBeginCapture_v2(other, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU_OK(d->cuStreamEndCapture(other, &empty));
    CU_OK(d->cuGraphInstantiateWithFlags(&spare, empty, 0));
    int victim = 0;
    uint64_t local = 0;
    struct {
        const char *name;
        std::function<CUresult()> call;
        bool disturbs, always;
    } calls[] = {
        {"cuMemAlloc",
         [&] {
             CUdeviceptr a;
             return d->cuMemAlloc_v2(&a, 4096);
         },
         true, false},
        {"cuMemFree", [&] { return d->cuMemFree_v2(victims[victim++]); }, true, false},
        {"cuMemHostAlloc",
         [&] {
             void *p;
             return d->cuMemHostAlloc(&p, 4096, 0);
         },
         true, false},
        {"cuEventQuery", [&] { return d->cuEventQuery(event); }, true, false},
        {"cuStreamQuery", [&] { return d->cuStreamQuery(other); }, true, false},
        {"cuStreamSynchronize", [&] { return d->cuStreamSynchronize(other); }, true, false},
        {"cuCtxSynchronize", [&] { return d->cuCtxSynchronize(); }, true, true},
        {"cuEventSynchronize", [&] { return d->cuEventSynchronize(event); }, true, false},
        {"cuMemFreeHost", [&] { return d->cuMemFreeHost(host_victim); }, true, false},
        {"cuMemHostRegister", [&] { return d->cuMemHostRegister_v2(shared, 65536, 0); }, true,
         false},
        {"cuMemHostUnregister", [&] { return d->cuMemHostUnregister(shared); }, true, false},
        {"cuMemAllocAsync", [&] { return d->cuMemAllocAsync(&pooled, 4096, other); }, true, false},
        {"cuMemFreeAsync", [&] { return d->cuMemFreeAsync(pooled, other); }, true, false},
        {"cuGraphInstantiate", [&] { return d->cuGraphInstantiateWithFlags(&exec, empty, 0); },
         true, false},
        {"cuGraphExecDestroy", [&] { return d->cuGraphExecDestroy(spare); }, true, false},
        {"cuModuleLoadData", [&] { return d->cuModuleLoadData(&module, SPIN_PTX); }, false, false},
        {"cuModuleUnload", [&] { return d->cuModuleUnload(module); }, true, false},
        {"cuIpcGetMemHandle", [&] { return d->cuIpcGetMemHandle(&handle, target); }, false, false},
        {"cuMemCreate", [&] { return d->cuMemCreate(&physical, 2 << 20, &prop, 0); }, false, false},
        {"cuMemRelease", [&] { return d->cuMemRelease(physical); }, false, false},
        {"cuMemcpyHtoD", [&] { return d->cuMemcpyHtoD_v2(target, &local, 8); }, false, false},
        {"cuLaunchHostFunc", [&] { return d->cuLaunchHostFunc(other, nothing, &local); }, false,
         false},
        {"cuEventCreate",
         [&] {
             CUevent e;
             return d->cuEventCreate(&e, 0);
         },
         false, false},
        {"cuMemsetD8Async", [&] { return d->cuMemsetD8Async(target, 0, 8, other); }, false, false},
        {"cuMemcpyHtoDAsync", [&] { return d->cuMemcpyHtoDAsync_v2(target, &local, 8, other); },
         false, false},
        {"cuEventRecord", [&] { return d->cuEventRecord(event, other); }, false, false},
        {"cuStreamCreate",
         [&] {
             CUstream t;
             return d->cuStreamCreate(&t, 1);
         },
         false, false},
    };
    for (CUstreamCaptureMode mode :
         {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
        for (const auto &c : calls) {
            SCOPED_TRACE(std::string(c.name) + ", mode " + std::to_string(mode));
            CU_OK(d->cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
            CUresult result = CUDA_SUCCESS;
            std::thread([&] {
                CUstreamCaptureMode swap = mode;
                EXPECT_EQ(d->cuCtxSetCurrent(context_), CUDA_SUCCESS);
                EXPECT_EQ(d->cuThreadExchangeStreamCaptureMode(&swap), CUDA_SUCCESS);
                EXPECT_EQ(swap, CU_STREAM_CAPTURE_MODE_GLOBAL);
                result = c.call();
            }).join();
            bool disturbs = c.always || (c.disturbs && mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
            CU_EXPECT(result, disturbs ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
            CUgraph graph = nullptr;
            CU_EXPECT(d->cuStreamEndCapture(s, &graph),
                      disturbs ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
            if (graph) {
                CU_OK(d->cuGraphDestroy(graph));
            }
        }
    }
    munmap(shared, 65536);
    CU_OK(d->cuGraphExecDestroy(exec));
    CU_OK(d->cuGraphDestroy(empty));
    CU_OK(d->cuEventDestroy_v2(event));
    CU_OK(d->cuStreamDestroy_v2(s));
    CU_OK(d->cuStreamDestroy_v2(other));
}

void CUDA_CB count_up(void *data)
{
    ++*static_cast<std::atomic<int> *>(data);
}

TEST_F(Capture, UserObjectsLiveAsLongAsTheLastLaunch)
{
    auto *words = pinned<uint32_t>(2);
    CUstream s = stream();
    std::atomic<int> gone{0};
    CUuserObject object = nullptr;
    CU_OK(d->cuUserObjectCreate(&object, &gone, count_up, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    CUgraph graph = nullptr, partial = nullptr;
    CUstreamCaptureStatus state;
    cuuint64_t id;
    CU_OK(d->cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU_OK(d->cuStreamWaitValue32_v2(s, device(&words[0]), 1, CU_STREAM_WAIT_VALUE_GEQ));
    CU_OK(d->cuStreamGetCaptureInfo_v2(s, &state, &id, &partial, nullptr, nullptr));
    CU_OK(d->cuGraphRetainUserObject(partial, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    CU_OK(d->cuStreamEndCapture(s, &graph));
    CUgraphExec exec = instantiate(graph);
    CU_OK(d->cuGraphLaunch(exec, s));
    CU_OK(d->cuGraphDestroy(graph));
    CU_OK(d->cuGraphExecDestroy(exec));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(gone, 0);
    words[0] = 1;
    EXPECT_TRUE(finishes(s));
    EXPECT_TRUE(eventually([&] { return gone == 1; }));

    // A capture that fails lets go of it too, and so does the last reference of the caller.
    CU_OK(d->cuUserObjectCreate(&object, &gone, count_up, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    CU_OK(d->cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU_OK(d->cuStreamGetCaptureInfo_v2(s, &state, &id, &partial, nullptr, nullptr));
    CU_OK(d->cuGraphRetainUserObject(partial, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    CU_EXPECT(d->cuStreamSynchronize(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CU_EXPECT(d->cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(gone, 1);
    CU_OK(d->cuUserObjectRelease(object, 1));
    EXPECT_TRUE(eventually([&] { return gone == 2; }));
    CU_OK(d->cuStreamDestroy_v2(s));
    CU_OK(d->cuMemFreeHost(words));
}

} // namespace
