// SPDX-License-Identifier: BSD-3-Clause
// What only the stand-in has: its environment, the kernels as C functions, and the limits of the
// hardware's queues as they were measured on H200s (too slow, or too apt to hang, to ask a real
// driver for each time).
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "standin/driver_under_test.h"
#include "standin/peer.h"

extern "C" {
#include "cuda/kernel_args.h"
#include "support/test_kernels.h"
}

namespace
{

class Standin : public DriverTest
{
  protected:
    void SetUp() override
    {
        if (!driver_is_standin())
            GTEST_SKIP() << "PEERHOP_LIBCUDA names no stand-in";
        DriverTest::SetUp();
    }
    CUfunction kernel(const char *name)
    {
        CUfunction function = nullptr;
        if (!module_) {
            CU_EXPECT(d->cuModuleLoadData(&module_, "any image"), CUDA_SUCCESS);
        }
        CU_EXPECT(d->cuModuleGetFunction(&function, module_, name), CUDA_SUCCESS);
        return function;
    }
    template <typename Args> void launch(CUfunction function, CUstream s, Args args)
    {
        void *params[] = {&args};
        CU_EXPECT(d->cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, s, params, nullptr),
                  CUDA_SUCCESS);
    }

  private:
    CUmodule module_ = nullptr;
};

TEST_F(Standin, KnowsOurKernelsOnly)
{
    CUfunction function;
    CUmodule module = nullptr;
    CU_OK(d->cuModuleLoadData(&module, "any image"));
    for (const char *name : {"phi_brace", "phi_copy", "phi_transfer", "phi_test_fill",
                             "phi_test_verify", "phi_test_spin"})
        CU_EXPECT(d->cuModuleGetFunction(&function, module, name), CUDA_SUCCESS);
    CU_EXPECT(d->cuModuleGetFunction(&function, module, "other"), CUDA_ERROR_NOT_FOUND);
    CU_OK(d->cuModuleUnload(module));
    CU_EXPECT(d->cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(Standin, BraceWaitsResetsPostsAndIsDone)
{
    auto *words = pinned<uint32_t>(16);
    auto *done = pinned<uint64_t>();
    CUstream s = stream();
    phi_brace_args args = {};
    args.count = 3;
    args.items[0] = {device(&words[0]), device(&words[1]), PHI_BRACE_WAIT, 1};
    args.items[1] = {device(&words[0]), 0, PHI_BRACE_POST, 0};
    args.items[2] = {device(&words[2]), 0, PHI_BRACE_POST, 1};
    args.done = device(done);
    args.number = 77;
    CUfunction brace = kernel("phi_brace");
    launch(brace, s, args);
    EXPECT_FALSE(finishes(s, 20));
    EXPECT_EQ(words[2], 0u);
    words[0] = 1;
    EXPECT_TRUE(finishes(s));
    EXPECT_EQ(words[0], 0u);
    EXPECT_EQ(words[2], 1u);
    EXPECT_EQ(*done, 77u);

    // A broken channel ends the wait.
    args.number = 78;
    launch(brace, s, args);
    words[1] = 1;
    EXPECT_TRUE(finishes(s));
    EXPECT_EQ(*done, 78u);
    CU_OK(d->cuStreamDestroy_v2(s));
    CU_OK(d->cuMemFreeHost(words));
    CU_OK(d->cuMemFreeHost(done));
}

TEST_F(Standin, TransferCopiesBetweenItsItems)
{
    constexpr uint64_t SIZE = (3 << 20) + 5;
    auto *words = pinned<uint32_t>(16);
    auto *done = pinned<uint64_t>();
    CUdeviceptr a = alloc(SIZE), b = alloc(SIZE);
    CUstream s = stream();
    CU_OK(d->cuMemsetD8Async(a, 1, SIZE, s));
    CU_OK(d->cuMemsetD8Async(b, 2, SIZE, s));
    phi_transfer_args args = {};
    args.items[0] = {device(&words[0]), device(&words[1]), PHI_BRACE_WAIT, 1};
    args.items[1] = {device(&words[2]), 0, PHI_BRACE_POST, 4};
    args.items[2] = {device(&words[3]), 0, PHI_BRACE_WAIT, 1};
    args.before = 1;
    args.count = 3;
    args.copy = {b, a, SIZE, device(&words[1]), 0};
    args.done = device(done);
    args.number = 5;
    CUfunction transfer = kernel("phi_transfer");
    launch(transfer, s, args);
    EXPECT_FALSE(finishes(s, 20));
    EXPECT_EQ(value(b) & 0xff, 2u);
    words[0] = 1;
    while (words[2] == 0)
        ;
    EXPECT_EQ(words[2], 4u);
    EXPECT_EQ(value(b + SIZE - 8) & 0xff, 1u);
    EXPECT_FALSE(finishes(s, 20)) << "its last item waits";
    words[3] = 1;
    EXPECT_TRUE(finishes(s));
    EXPECT_EQ(*done, 5u);

    words[0] = words[3] = 0;
    words[1] = 1; // broken: the waits end, nothing is copied
    CU_OK(d->cuMemsetD8Async(b, 2, SIZE, s));
    launch(transfer, s, args);
    words[3] = 1;
    EXPECT_TRUE(finishes(s));
    EXPECT_EQ(value(b) & 0xff, 2u);
    CU_OK(d->cuMemFree_v2(a));
    CU_OK(d->cuMemFree_v2(b));
    CU_OK(d->cuStreamDestroy_v2(s));
    CU_OK(d->cuMemFreeHost(words));
    CU_OK(d->cuMemFreeHost(done));
}

TEST_F(Standin, CopyFillAndVerify)
{
    constexpr uint64_t SIZE = (3 << 20) + 5;
    auto *broken = pinned<uint32_t>();
    auto *words = pinned<uint64_t>(2); // seed, errors
    CUdeviceptr a = alloc(SIZE), b = alloc(SIZE);
    CUstream s = stream();
    CUfunction fill = kernel("phi_test_fill"), copy = kernel("phi_test_verify");
    CUfunction move = kernel("phi_copy");
    test_pattern_args pattern = {a, SIZE, 40, device(&words[0]), device(&words[1])};
    words[0] = 2;
    launch(fill, s, pattern);
    launch(move, s, phi_copy_args{b, a, SIZE, device(broken), 0});
    test_pattern_args expected = {b, SIZE, 42, 0, device(&words[1])};
    launch(copy, s, expected);
    EXPECT_TRUE(finishes(s));
    EXPECT_EQ(words[1], 0u);
    uint64_t first = test_pattern(42, 0);
    EXPECT_EQ(value(a), first);

    *broken = 1; // then nothing is copied
    pattern.seed = 50;
    pattern.seed_word = 0;
    launch(fill, s, pattern);
    launch(move, s, phi_copy_args{b, a, SIZE, device(broken), 0});
    expected.seed = 50;
    launch(copy, s, expected);
    EXPECT_TRUE(finishes(s));
    EXPECT_GT(words[1], SIZE / 2);
    EXPECT_EQ(value(b), first);
    CU_OK(d->cuMemFree_v2(a));
    CU_OK(d->cuMemFree_v2(b));
    CU_OK(d->cuStreamDestroy_v2(s));
    CU_OK(d->cuMemFreeHost(words));
    CU_OK(d->cuMemFreeHost(broken));
}

TEST_F(Standin, AForkedChildHasNoDriver)
{
    fflush(nullptr);
    pid_t child = fork();
    if (child == 0) {
        int count;
        _exit(d->cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

// Each process numbers the devices that it sees; memory knows which one it lies on.
TEST_F(Standin, VisibleDevicesInAnotherOrder)
{
    Peer peer(0, {"CUDA_VISIBLE_DEVICES=1,0"}); // its device 0 is our device 1
    Reply there = peer.call(Order::ALLOC, 4 << 20);
    Reply reply = peer.call(Order::HANDLE, there.value);
    CUipcMemHandle handle;
    memcpy(&handle, reply.bytes, sizeof(handle));
    CUdeviceptr a = 0;
    int ordinal = -1;
    CU_OK(d->cuIpcOpenMemHandle_v2(&a, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CU_OK(d->cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, a));
    EXPECT_EQ(ordinal, 1);
    CU_OK(d->cuIpcCloseMemHandle(a));
}

TEST_F(Standin, PeerAccessCanBeRefused)
{
    CUdeviceptr a = alloc(4 << 20);
    CUipcMemHandle handle;
    CU_OK(d->cuIpcGetMemHandle(&handle, a));
    Peer other(1, {"PEERHOP_STANDIN_NO_PEER=1"}), same(0, {"PEERHOP_STANDIN_NO_PEER=1"});
    EXPECT_EQ(other.call(Order::OPEN, 0, 0, &handle).result, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    EXPECT_EQ(same.call(Order::OPEN, 0, 0, &handle).result, CUDA_SUCCESS);
    CU_OK(d->cuMemFree_v2(a));
}

TEST_F(Standin, PeerAccessCanBeRefusedToSomePairs)
{
    CUdeviceptr a = alloc(4 << 20); // of device 0
    CUipcMemHandle handle;
    CU_OK(d->cuIpcGetMemHandle(&handle, a));
    std::vector<std::string> machine = {"PEERHOP_STANDIN_DEVICES=4",
                                        "PEERHOP_STANDIN_NO_PEER=0-3,1-2"};
    Peer far(3, machine), near(2, machine);
    EXPECT_EQ(far.call(Order::OPEN, 0, 0, &handle).result, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    EXPECT_EQ(near.call(Order::OPEN, 0, 0, &handle).result, CUDA_SUCCESS);
    CU_OK(d->cuMemFree_v2(a));
}

TEST_F(Standin, DeviceCount)
{
    EXPECT_NE(Peer(0, {"PEERHOP_STANDIN_DEVICES=0"}).call(Order::ALLOC, 8).result, CUDA_SUCCESS);
    EXPECT_NE(Peer(1, {"PEERHOP_STANDIN_DEVICES=1"}).call(Order::ALLOC, 8).result, CUDA_SUCCESS);
    EXPECT_EQ(Peer(3, {"PEERHOP_STANDIN_DEVICES=4"}).call(Order::ALLOC, 8).result, CUDA_SUCCESS);
}

// ---- Hardware queues: CUDA_DEVICE_MAX_CONNECTIONS comes from the environment of the test.

class Queues : public Standin
{
  protected:
    static constexpr int OTHERS = 16;
    struct HeldUp {
        int kernels, writes, uploads, peer_copies;
    };

    void SetUp() override
    {
        Standin::SetUp();
        if (IsSkipped())
            return;
        const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
        connections_ = text ? atoi(text) : 8;
        words_ = pinned<uint32_t>(1024);
        CU_OK(d->cuDevicePrimaryCtxRetain(&second_, 1));
        CU_OK(d->cuCtxPushCurrent_v2(second_));
        there_ = alloc(1 << 20);
        CU_OK(d->cuCtxPopCurrent_v2(nullptr));
        here_ = alloc(1 << 20);
        spin_ = kernel("phi_test_spin");
    }
    void TearDown() override
    {
        if (second_) {
            CU_OK(d->cuDevicePrimaryCtxRelease_v2(1));
        }
        Standin::TearDown();
    }

    // Returns when the engine has looked at every stream a few times: records of events are never
    // held up.
    void let_the_engine_look()
    {
        CUevent event = nullptr;
        CUstream s = stream();
        CU_EXPECT(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
        for (int i = 0; i < 8; i++) {
            CU_EXPECT(d->cuEventRecord(event, s), CUDA_SUCCESS);
            CU_EXPECT(d->cuEventSynchronize(event), CUDA_SUCCESS);
        }
        CU_EXPECT(d->cuEventDestroy_v2(event), CUDA_SUCCESS);
        CU_EXPECT(d->cuStreamDestroy_v2(s), CUDA_SUCCESS);
    }

    int count_held(const std::vector<CUstream> &streams)
    {
        let_the_engine_look();
        int held = 0;
        for (CUstream s : streams)
            held += d->cuStreamQuery(s) == CUDA_ERROR_NOT_READY;
        return held;
    }

    // Issues one operation on each of 16 streams while others wait, and counts those that do not
    // end.
    int held(const std::function<void(CUstream)> &issue)
    {
        std::vector<CUstream> streams(OTHERS);
        for (CUstream &s : streams)
            s = stream();
        for (CUstream s : streams)
            issue(s);
        int count = count_held(streams);
        open_.insert(open_.end(), streams.begin(), streams.end());
        return count;
    }

    HeldUp held_up()
    {
        test_spin_args ready = {device(&words_[1])};
        words_[1] = 1;
        HeldUp got;
        got.kernels = held([&](CUstream s) { launch(spin_, s, ready); });
        got.writes = held([&](CUstream s) {
            CU_EXPECT(d->cuStreamWriteValue32_v2(s, device(&words_[2]), 1, 0), CUDA_SUCCESS);
        });
        got.uploads = held([&](CUstream s) {
            CU_EXPECT(d->cuMemcpyHtoDAsync_v2(
                          here_, const_cast<void *>(static_cast<const void *>(words_)), 64, s),
                      CUDA_SUCCESS);
        });
        got.peer_copies = held(
            [&](CUstream s) { CU_EXPECT(d->cuMemcpyAsync(there_, here_, 4096, s), CUDA_SUCCESS); });
        return got;
    }

    // k streams wait; with_copy: a copy between the devices is next in each.
    void make_wait(int k, bool by_kernel, bool with_copy)
    {
        words_[0] = 0;
        for (int i = 0; i < k; i++) {
            CUstream s = stream();
            if (by_kernel) {
                launch(spin_, s, test_spin_args{device(&words_[0])});
            } else {
                CU_EXPECT(
                    d->cuStreamWaitValue32_v2(s, device(&words_[0]), 1, CU_STREAM_WAIT_VALUE_GEQ),
                    CUDA_SUCCESS);
            }
            if (with_copy) {
                CU_EXPECT(d->cuMemcpyAsync(there_, here_, 4096, s), CUDA_SUCCESS);
            }
            open_.push_back(s);
        }
        let_the_engine_look();
    }

    void release()
    {
        words_[0] = 1;
        for (CUstream s : open_) {
            EXPECT_TRUE(finishes(s));
            CU_OK(d->cuStreamDestroy_v2(s));
        }
        open_.clear();
    }

    int connections_ = 8;
    std::atomic<uint32_t> *words_ = nullptr;
    CUcontext second_ = nullptr;
    CUdeviceptr here_ = 0, there_ = 0;
    CUfunction spin_ = nullptr;
    std::vector<CUstream> open_;
};

TEST_F(Queues, ValueWaitsStopEverythingButPeerCopies)
{
    make_wait(connections_, false, false);
    HeldUp got = held_up();
    EXPECT_EQ(got.kernels, OTHERS);
    EXPECT_EQ(got.writes, OTHERS);
    EXPECT_EQ(got.uploads, OTHERS);
    EXPECT_EQ(got.peer_copies, 0);
    release();
}

TEST_F(Queues, FewerValueWaitsStopTheirOwnQueuesOnly)
{
    if (connections_ < 2)
        GTEST_SKIP() << "one queue";
    int k = connections_ / 2;
    make_wait(k, false, false);
    HeldUp got = held_up();
    EXPECT_EQ(got.kernels, 0);
    EXPECT_EQ(got.uploads, 0);
    EXPECT_EQ(got.peer_copies, 0);
    if (connections_ == 8) {
        EXPECT_GT(got.writes, 0); // 5 to 7 of 16 were measured
        EXPECT_LE(got.writes, OTHERS / 2);
    } else {
        EXPECT_EQ(got.writes, 0);
    }
    release();
}

TEST_F(Queues, WaitingKernelsStopNothing)
{
    make_wait(64, true, false);
    HeldUp got = held_up();
    EXPECT_EQ(got.kernels + got.writes + got.uploads + got.peer_copies, 0);
    release();
}

TEST_F(Queues, CopiesBehindWaitsStopPeerCopies)
{
    for (bool by_kernel : {false, true}) {
        int limit = connections_ > 8 ? connections_ : connections_ > 1 ? connections_ / 2 : 1;
        make_wait(limit, by_kernel, true);
        HeldUp got = held_up();
        EXPECT_EQ(got.peer_copies, OTHERS);
        if (by_kernel) {
            EXPECT_EQ(got.kernels + got.writes + got.uploads, 0);
        }
        release();
        make_wait(limit - 1, by_kernel, true);
        EXPECT_EQ(held_up().peer_copies, 0);
        release();
    }
}

// ---- Places on multiprocessors: two, each for two blocks of 1024 threads.

class Places : public Standin
{
  protected:
    void SetUp() override
    {
        Standin::SetUp();
        if (IsSkipped())
            return;
        const char *text = getenv("PEERHOP_STANDIN_MULTIPROCESSORS");
        if (!text || strcmp(text, "2") != 0)
            GTEST_SKIP() << "PEERHOP_STANDIN_MULTIPROCESSORS is not 2";
        words_ = pinned<uint32_t>(16);
        lanes_ = pinned<uint32_t>(2 * sizeof(phi_flag_lane) / sizeof(uint32_t));
        words_[1] = 1;
        own_ = stream(); // the older one: the engine comes to it last
        waits_ = stream();
        CU_OK(d->cuEventCreate(&looked_, CU_EVENT_DISABLE_TIMING));
    }
    void TearDown() override
    {
        if (words_) {
            CU_OK(d->cuEventDestroy_v2(looked_));
            CU_OK(d->cuStreamDestroy_v2(waits_));
            CU_OK(d->cuStreamDestroy_v2(own_));
            CU_OK(d->cuMemFreeHost(words_));
            CU_OK(d->cuMemFreeHost(lanes_));
        }
        Standin::TearDown();
    }
    template <class Args>
    void launch_blocks(const char *name, unsigned blocks, CUstream s, Args args,
                       unsigned threads = 1024)
    {
        void *params[] = {&args};
        CUlaunchConfig config = {};
        config.gridDimX = blocks;
        config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
        config.blockDimX = threads;
        config.hStream = s;
        CU_EXPECT(d->cuLaunchKernelEx(&config, kernel(name), params, nullptr), CUDA_SUCCESS);
    }
    void wait(unsigned blocks)
    {
        launch_blocks("phi_test_spin", blocks, waits_, test_spin_args{device(&words_[0])});
        // It has its places before what comes on the other stream from now on.
        CU_EXPECT(d->cuEventRecord(looked_, own_), CUDA_SUCCESS);
        CU_EXPECT(d->cuEventSynchronize(looked_), CUDA_SUCCESS);
    }
    // A kernel that waits for nothing.
    void go(unsigned blocks, CUstream s)
    {
        launch_blocks("phi_test_spin", blocks, s, test_spin_args{device(&words_[1])});
    }
    // Blocks that are not alike: of a lane whose reach lets them go on, or not.
    phi_hop_args stages(bool reached)
    {
        phi_hop_args args = {};
        auto *lane = reinterpret_cast<phi_stage_lane *>(lanes_);
        lane->reach = reached;
        args.count = 1;
        args.items[0].own = device(lane);
        args.items[0].kind = PHI_STEP_STAGE;
        args.items[0].signal = 1;
        args.items[0].peer = PHI_STAGE_LIKE(4096, 4);
        args.items[0].slots = device(lanes_ + sizeof(phi_stage_lane) / sizeof *lanes_);
        args.items[0].blocks = 4;
        return args;
    }

    std::atomic<uint32_t> *words_ = nullptr, *lanes_ = nullptr;
    CUstream waits_ = nullptr, own_ = nullptr;
    CUevent looked_ = nullptr;
};

TEST_F(Places, OneIsEnoughForAGridWhoseBlocksAreAlike)
{
    wait(3);
    go(8, own_);
    EXPECT_TRUE(finishes(own_));
    words_[0] = 1;
    EXPECT_TRUE(finishes(waits_));
    words_[0] = 0;
    wait(4);
    go(1, own_);
    EXPECT_FALSE(finishes(own_, 50));
    words_[0] = 1;
    EXPECT_TRUE(finishes(own_));
    EXPECT_TRUE(finishes(waits_));
}

TEST_F(Places, AllAreNeededWhereBlocksDiffer)
{
    wait(3);
    launch_blocks("phi_hop_staged", 4, own_, stages(true), 256);
    EXPECT_FALSE(finishes(own_, 50));
    words_[0] = 1;
    EXPECT_TRUE(finishes(own_));
    EXPECT_TRUE(finishes(waits_));
}

// Hands that may not begin leave, and the first block keeps its place.
TEST_F(Places, HandsThatMayNotBeginLeaveTheirs)
{
    CUstream hops = stream();
    phi_hop_args args = {};
    auto *lane = reinterpret_cast<phi_flag_lane *>(lanes_);
    args.count = 2;
    args.waits = 1;
    for (uint32_t i = 0; i < 2; i++) {
        args.items[i].own = args.items[i].peer = device(lane);
        args.items[i].kind = i == 0 ? PHI_STEP_LEAVE : PHI_STEP_MOVE;
        args.items[i].source = args.items[i].destination = device(lane);
        args.items[i].size = 8;
        args.items[i].blocks = i == 0 ? 1 : 3;
        args.items[i].first = i;
    }
    launch_blocks("phi_hop_spread", 4, hops, args, 512);
    EXPECT_FALSE(finishes(hops, 50));
    wait(3);
    go(1, own_);
    EXPECT_FALSE(finishes(own_, 50));
    words_[0] = 1;
    EXPECT_TRUE(finishes(own_));
    EXPECT_TRUE(finishes(waits_));
    lane->go = 1;
    EXPECT_TRUE(finishes(hops));
    CU_OK(d->cuStreamDestroy_v2(hops));
}

TEST_F(Places, OfAGraphAreGivenUpAsWell)
{
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    CU_OK(d->cuStreamBeginCapture_v2(waits_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    launch_blocks("phi_test_spin", 4, waits_, test_spin_args{device(&words_[0])});
    CU_OK(d->cuStreamEndCapture(waits_, &graph));
    CU_OK(d->cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 2; i++) {
        words_[0] = 0;
        CU_OK(d->cuGraphLaunch(exec, waits_));
        EXPECT_FALSE(finishes(waits_, 50));
        go(1, own_);
        EXPECT_FALSE(finishes(own_, 50));
        words_[0] = 1;
        EXPECT_TRUE(finishes(own_));
        EXPECT_TRUE(finishes(waits_));
    }
    CU_OK(d->cuGraphExecDestroy(exec));
    CU_OK(d->cuGraphDestroy(graph));
}

// 64 streams that wait and answer each other, many times: the engine serves them all.
TEST_F(Standin, ManyStreamsTakeTurns)
{
    constexpr int STREAMS = 64, ROUNDS = 20;
    auto *words = pinned<uint32_t>(STREAMS * 16);
    CUfunction brace = kernel("phi_brace");
    std::vector<CUstream> streams(STREAMS);
    for (CUstream &s : streams)
        s = stream();
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < STREAMS; i++) {
            phi_brace_args args = {};
            args.count = 3;
            args.items[0] = {device(&words[16 * i]), 0, PHI_BRACE_WAIT, 1};
            args.items[1] = {device(&words[16 * i]), 0, PHI_BRACE_POST, 0};
            args.items[2] = {device(&words[16 * ((i + 1) % STREAMS)]), 0, PHI_BRACE_POST, 1};
            launch(brace, streams[static_cast<size_t>(i)], args);
        }
    }
    words[0] = 1; // goes round
    for (CUstream s : streams) {
        EXPECT_TRUE(finishes(s));
        CU_OK(d->cuStreamDestroy_v2(s));
    }
    EXPECT_EQ(words[0], 1u);
    CU_OK(d->cuMemFreeHost(words));
}

} // namespace
