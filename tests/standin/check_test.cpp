// SPDX-License-Identifier: BSD-3-Clause
// What the stand-in reports although a real driver does not (check.c). Each test runs in a process
// of its own, which the report ends.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "standin/driver_under_test.h"
#include "standin/peer.h"

extern "C" {
#include "cuda/kernel_args.h"
}

namespace
{

class Checks : public DriverTest
{
  protected:
    void SetUp() override
    {
        if (!driver_is_standin())
            GTEST_SKIP() << "PEERHOP_LIBCUDA names no stand-in";
        GTEST_FLAG_SET(death_test_style, "threadsafe");
        // Only in the processes that are to die: others of this program do such things on purpose.
        if (testing::internal::InDeathTestChild())
            setenv("PEERHOP_STANDIN_CHECK", "1", 1);
        DriverTest::SetUp();
    }

    CUdeviceptr open(Peer &peer, uint64_t theirs)
    {
        Reply reply = peer.call(Order::HANDLE, theirs);
        CUipcMemHandle handle;
        memcpy(&handle, reply.bytes, sizeof(handle));
        CUdeviceptr address = 0;
        CU_EXPECT(d->cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                  CUDA_SUCCESS);
        return address;
    }

    // Two streams wait for a word; then each copies into `first` and `second`.
    void copy_side_by_side(CUdeviceptr first, CUdeviceptr second, bool ordered)
    {
        auto *word = pinned<uint32_t>();
        CUdeviceptr source = alloc(8 * MIB);
        CUstream a = stream(), b = stream();
        CUevent event = nullptr;
        CU_OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        for (CUstream s : {a, b}) {
            CU_OK(d->cuStreamWaitValue32_v2(s, device(word), 1, CU_STREAM_WAIT_VALUE_GEQ));
        }
        CU_OK(d->cuMemcpyAsync(first, source, 8 * MIB, a));
        CU_OK(d->cuEventRecord(event, a));
        if (ordered) {
            CU_OK(d->cuStreamWaitEvent(b, event, 0));
        }
        CU_OK(d->cuMemcpyAsync(second, source, 8 * MIB, b));
        *word = 1;
        EXPECT_TRUE(finishes(a));
        EXPECT_TRUE(finishes(b));
    }

    // All at once: loading waits for what runs.
    void load_kernels()
    {
        CUmodule module = nullptr;
        CU_OK(d->cuModuleLoadData(&module, "any image"));
        for (const char *name : {"phi_transfer", "phi_copies", "phi_hop", "phi_hop_spread",
                                 "phi_hop_large", "phi_hop_wide", "phi_hop_staged"})
            CU_OK(d->cuModuleGetFunction(&kernels_[name], module, name));
    }
    template <typename Args>
    void launch(const char *name, Args args, CUstream s, unsigned blocks = 1, unsigned threads = 32)
    {
        void *params[] = {&args};
        if (kernels_.empty())
            load_kernels();
        CU_OK(
            d->cuLaunchKernel(kernels_[name], blocks, 1, 1, threads, 1, 1, 0, s, params, nullptr));
    }
    std::map<std::string, CUfunction> kernels_;

    // A copy in each kernel of ours that may wait before it. word: what it waits for, or 0.
    void transfer(CUdeviceptr to, CUdeviceptr from, size_t size, CUdeviceptr word, CUstream s)
    {
        phi_transfer_args args = {};
        args.items[0] = {word, 0, PHI_BRACE_WAIT, 1};
        args.before = args.count = word != 0;
        args.copy = {to, from, size, 0, 0};
        launch("phi_transfer", args, s);
    }
    void copies(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream s)
    {
        phi_copies_args args = {};
        args.count = 1;
        args.items[0] = {to, from, 0, static_cast<uint32_t>(size), 0};
        launch("phi_copies", args, s);
    }
    void hop(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream s)
    {
        auto *lanes = reinterpret_cast<phi_flag_lane *>(
            pinned<uint32_t>(2 * sizeof(phi_flag_lane) / sizeof(uint32_t)));
        phi_hop_args args = {};
        phi_hop_item &item = args.items[0];
        args.count = 1;
        args.waits = 1;
        lanes[0].go = 1;
        item.kind = PHI_STEP_MOVE;
        item.own = device(&lanes[0]);
        item.peer = device(&lanes[1]);
        item.destination = to;
        item.source = from;
        item.size = size;
        item.blocks = 1;
        launch("phi_hop_spread", args, s);
    }

    static void reports(const char *text, const std::function<void()> &body)
    {
        EXPECT_EXIT(
            {
                body();
                _exit(0);
            },
            testing::KilledBySignal(SIGABRT), text);
    }
    static void is_fine(const std::function<void()> &body)
    {
        EXPECT_EXIT(
            {
                body();
                _exit(testing::Test::HasFailure() ? 1 : 0);
            },
            testing::ExitedWithCode(0), "");
    }
};

TEST_F(Checks, UseOfFreedExportedMemory)
{
    for (size_t size : {size_t{4096}, 4 * MIB}) {
        reports("use of freed exported memory: a copy touches", [&] {
            Peer peer;
            uint64_t theirs = peer.call(Order::ALLOC, size).value;
            CUdeviceptr here = open(peer, theirs);
            value(here);
            peer.call(Order::FREE, theirs);
            peer.call(Order::ALLOC, size); // the next owner
            value(here);
        });
    }
    // A dead exporter's memory stays (measured: kernels and copies through the import succeed).
    is_fine([&] {
        Peer peer;
        CUdeviceptr here = open(peer, peer.call(Order::ALLOC, 4096).value);
        peer.kill();
        set_value(here, 1);
    });
    // What lies there now was opened in turn.
    is_fine([&] {
        Peer peer;
        peer.call(Order::ALLOC, 4096); // keeps the block
        uint64_t theirs = peer.call(Order::ALLOC, 4096).value;
        CUdeviceptr stale = open(peer, theirs);
        peer.call(Order::FREE, theirs);
        EXPECT_EQ(peer.call(Order::ALLOC, 4096).value, theirs);
        EXPECT_EQ(open(peer, theirs), stale);
        value(stale);
    });
}

TEST_F(Checks, UseOfFreedExportedMemoryByKernels)
{
    for (int kernel = 0; kernel < 3; kernel++) {
        auto run = [&](bool frees) {
            Peer peer;
            uint64_t theirs = peer.call(Order::ALLOC, 2 * MIB).value;
            CUdeviceptr here = open(peer, theirs), own = alloc(2 * MIB);
            CUstream s = stream();
            if (frees)
                peer.call(Order::FREE, theirs);
            if (kernel == 0)
                transfer(here, own, 2 * MIB, 0, s);
            else if (kernel == 1)
                copies(here, own, 2 * MIB, s);
            else
                hop(here, own, 2 * MIB, s);
            EXPECT_TRUE(finishes(s));
        };
        reports("use of freed exported memory: a kernel touches", [&] { run(true); });
        is_fine([&] { run(false); });
    }
}

TEST_F(Checks, ImportClosedTwice)
{
    reports("an import closed twice", [&] {
        Peer peer;
        CUdeviceptr here = open(peer, peer.call(Order::ALLOC, 4096).value);
        CU_OK(d->cuIpcCloseMemHandle(here));
        d->cuIpcCloseMemHandle(here);
    });
    is_fine([&] {
        Peer peer;
        uint64_t theirs = peer.call(Order::ALLOC, 4096).value;
        CUdeviceptr here = open(peer, theirs);
        CU_OK(d->cuIpcCloseMemHandle(here));
        EXPECT_EQ(open(peer, theirs), here);
        CU_OK(d->cuIpcCloseMemHandle(here));
        CU_EXPECT(d->cuIpcCloseMemHandle(here + 512), CUDA_ERROR_INVALID_VALUE);
    });
}

TEST_F(Checks, UnorderedCopiesThatRace)
{
    reports("unordered operations race: a copy that writes", [&] {
        CUdeviceptr target = alloc(16 * MIB);
        copy_side_by_side(target, target + 8 * MIB - 1, false);
    });
    is_fine([&] {
        CUdeviceptr target = alloc(16 * MIB);
        copy_side_by_side(target, target + 8 * MIB, false); // neighbours
    });
    is_fine([&] {
        CUdeviceptr target = alloc(16 * MIB);
        copy_side_by_side(target, target, true);
    });
}

// A kernel that waits touches nothing yet, and nothing any more when it has posted.
TEST_F(Checks, KernelsThatWaitAndThenRace)
{
    reports("unordered operations race: a kernel that writes", [&] {
        auto *word = pinned<uint32_t>();
        CUdeviceptr target = alloc(16 * MIB), source = alloc(16 * MIB);
        CUstream a = stream(), b = stream();
        for (CUstream s : {a, b})
            transfer(target, source, 16 * MIB, device(word), s);
        *word = 1;
        EXPECT_TRUE(finishes(a) && finishes(b));
    });
    is_fine([&] {
        auto *words = pinned<uint32_t>(2);
        CUdeviceptr target = alloc(4 * MIB), source = alloc(4 * MIB);
        CUstream a = stream(), b = stream();
        transfer(target, source, 4 * MIB, device(&words[0]), a);
        eventually([&] { return d->cuStreamQuery(a) == CUDA_SUCCESS; }, 20);
        copies(target, source, 4 * MIB, b);
        EXPECT_TRUE(finishes(b));
        phi_transfer_args args = {}; // copies, and then waits
        args.items[0] = {device(&words[1]), 0, PHI_BRACE_WAIT, 1};
        args.count = 1;
        args.copy = {target, source, 4 * MIB, 0, 0};
        words[0] = 1;
        EXPECT_TRUE(finishes(a));
        CU_OK(d->cuMemsetD8Async(source, 7, 4 * MIB, a));
        EXPECT_TRUE(finishes(a));
        launch("phi_transfer", args, a);
        const auto *last = reinterpret_cast<volatile uint8_t *>(target + 4 * MIB - 1);
        EXPECT_TRUE(eventually([&] { return *last == 7; })); // nothing else tells of its copy
        eventually([] { return false; }, 100);               // and it is over
        copies(target, source, 4 * MIB, b);
        EXPECT_TRUE(finishes(b));
        words[1] = 1;
        EXPECT_TRUE(finishes(a));
    });
}

// Waits in all queues hold an upload up: it is still to run when the peer writes to the same bytes.
TEST_F(Checks, RacesBetweenProcesses)
{
    EXPECT_EXIT(
        {
            Peer peer;
            uint64_t theirs = peer.call(Order::ALLOC, 4096).value;
            CUdeviceptr here = open(peer, theirs);
            auto *words = pinned<uint32_t>(16);
            for (int i = 0; i < 32; i++)
                d->cuStreamWaitValue32_v2(stream(), device(&words[0]), 1, CU_STREAM_WAIT_VALUE_GEQ);
            CUevent event = nullptr; // each record lets the engine look at every stream
            CUstream held = stream();
            CU_OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
            for (int i = 0; i < 8; i++) {
                CU_OK(d->cuEventRecord(event, held));
                CU_OK(d->cuEventSynchronize(event));
            }
            CU_OK(d->cuMemcpyHtoDAsync_v2(here, &words[1], 32, held));
            eventually([&] { return d->cuStreamQuery(held) == CUDA_SUCCESS; }, 50);
            // The other process sees it, reports, and ends.
            _exit(peer.call(Order::PUT, theirs + 16, 1).result == CUDA_ERROR_UNKNOWN ? 3 : 0);
        },
        testing::ExitedWithCode(3), "a copy that writes .* and a copy or fill of another process");
}

// A copy into a peer's memory, and behind it a kernel that waits for a flag and tells nothing by a
// release: what a push would tell may be seen before the copy is.
class Fences : public Checks
{
  protected:
    // The exit code where the peer, which writes to the same bytes meanwhile, has reported that.
    int race(const char *unfenced, const std::function<void(CUstream)> &behind)
    {
        setenv("PEERHOP_STANDIN_UNFENCED", unfenced, 1);
        Peer peer;
        uint64_t theirs = peer.call(Order::ALLOC, 4096).value;
        CUdeviceptr here = open(peer, theirs), own = alloc(4096);
        CUstream s = stream();
        copies(here, own, 4096, s);
        behind(s);
        CUevent event = nullptr; // on another stream: the engine has looked at this one meanwhile
        CU_EXPECT(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
        CUstream other = stream();
        for (int i = 0; i < 8; i++) {
            CU_EXPECT(d->cuEventRecord(event, other), CUDA_SUCCESS);
            CU_EXPECT(d->cuEventSynchronize(event), CUDA_SUCCESS);
        }
        return peer.call(Order::PUT, theirs + 16, 1).result == CUDA_ERROR_UNKNOWN ? 3 : 0;
    }
    // before: the item begins with a fence.
    void arrive(CUstream s, bool before = false)
    {
        auto *lane = reinterpret_cast<phi_flag_lane *>(
            pinned<uint32_t>(sizeof(phi_flag_lane) / sizeof(uint32_t)));
        phi_hop_args args = {};
        args.count = args.waits = 1;
        args.items[0].kind = PHI_STEP_ARRIVE;
        args.items[0].fence = before ? PHI_FENCE_BEFORE : 0;
        args.items[0].own = device(lane);
        args.items[0].blocks = 1;
        launch("phi_hop", args, s, 1, 128);
    }
};

TEST_F(Fences, CopiesThatEndWithoutOne)
{
    const auto bare = [this](CUstream s) { arrive(s); };
    EXPECT_EXIT(_exit(race("phi_copies", bare)), testing::ExitedWithCode(3),
                "a kernel of another process .* that writes .*: it has ended with no fence");
    EXPECT_EXIT(_exit(race("", bare)), testing::ExitedWithCode(0), "");
    EXPECT_EXIT(_exit(race("phi_copies", [this](CUstream s) { arrive(s, true); })),
                testing::ExitedWithCode(0), "");
    // What tells by a release has a fence of its own.
    EXPECT_EXIT(_exit(race("phi_copies",
                           [this](CUstream s) {
                               auto *word = pinned<uint32_t>();
                               CU_OK(d->cuStreamWriteValue32_v2(s, device(word), 1, 0));
                               arrive(s);
                           })),
                testing::ExitedWithCode(0), "");
}

TEST_F(Checks, WaitOnARemoteAddress)
{
    reports("a wait on a remote address", [&] {
        Peer peer;
        CUdeviceptr here = open(peer, peer.call(Order::ALLOC, 4096).value);
        d->cuStreamWaitValue32_v2(stream(), here, 1, CU_STREAM_WAIT_VALUE_GEQ);
    });
    reports("a wait on a remote address", [&] {
        Peer peer;
        CUmodule module = nullptr;
        CUfunction brace = nullptr;
        phi_brace_args args = {};
        args.count = 1;
        args.items[0] = {open(peer, peer.call(Order::ALLOC, 4096).value), 0, PHI_BRACE_WAIT, 1};
        void *params[] = {&args};
        CU_OK(d->cuModuleLoadData(&module, "any image"));
        CU_OK(d->cuModuleGetFunction(&brace, module, "phi_brace"));
        d->cuLaunchKernel(brace, 1, 1, 1, 32, 1, 1, 0, stream(), params, nullptr);
    });
    is_fine([&] {
        Peer peer;
        CUdeviceptr here = open(peer, peer.call(Order::ALLOC, 4096).value);
        CU_OK(d->cuStreamWriteValue32_v2(stream(), here, 1, 0)); // a post is as good as any write
    });
}

TEST_F(Checks, WrongCurrentContext)
{
    reports("a wrong current context: a copy of device 0 touches .* device 1 was current", [&] {
        Peer peer;
        CUcontext other = nullptr;
        CU_OK(d->cuDevicePrimaryCtxRetain(&other, 1));
        CU_OK(d->cuCtxPushCurrent_v2(other));
        CUdeviceptr here = open(peer, peer.call(Order::ALLOC, 4096).value);
        CU_OK(d->cuCtxPopCurrent_v2(nullptr));
        value(here);
    });
    reports("a wrong current context: cuIpcCloseMemHandle", [&] {
        Peer peer;
        CUcontext other = nullptr;
        CU_OK(d->cuDevicePrimaryCtxRetain(&other, 1));
        CUdeviceptr here = open(peer, peer.call(Order::ALLOC, 4096).value);
        CU_OK(d->cuCtxPushCurrent_v2(other));
        d->cuIpcCloseMemHandle(here);
    });
}

// What the kernel would leave undone, or what is none of its own. The first items of a launch are
// its first block's.
TEST_F(Checks, ALaunchOfAnothersItems)
{
    struct Item {
        uint8_t kind;
        uint32_t blocks, first;
        uint64_t own = 0;
        uint8_t wide = 0;
        uint64_t source = 0, size = 4096;
        uint32_t signal = 0;
    };
    auto launches = [&](const char *name, uint32_t waits, std::vector<Item> items, unsigned blocks,
                        unsigned threads) {
        return [=] {
            phi_hop_args args = {};
            args.waits = waits;
            for (const Item &item : items) {
                args.items[args.count].kind = item.kind;
                args.items[args.count].blocks = item.blocks;
                args.items[args.count].own = item.own;
                args.items[args.count].wide = item.wide;
                args.items[args.count].source = item.source;
                args.items[args.count].size = item.size;
                args.items[args.count].signal = item.signal;
                args.items[args.count++].first = item.first;
            }
            launch(name, args, stream(), blocks, threads);
        };
    };
    const char *another = "an item is another kernel's";
    const Item copy = {PHI_STEP_MOVE, 2, 1}, large = {PHI_STEP_MOVE, 2, 1, 0, 0, 0, 32 << 20};
    const Item push = {PHI_STEP_PUSH, 2, 1, 0, 1}, room = {PHI_STEP_ROOM, 1, 0, 0, 1};
    reports(another, launches("phi_hop", 1, {{PHI_STEP_MOVE, 1, 0}}, 1, 256));
    reports(another, launches("phi_hop", 1, {{PHI_STEP_PUSH, 1, 0, 0, 1}}, 1, 256));
    reports(another, launches("phi_hop", 1, {room, push}, 3, 256));
    reports(another, launches("phi_hop_wide", 1, {{PHI_STEP_PUSH, 1, 0, 0, 0}}, 1, 256));
    reports(another, launches("phi_hop_wide", 1, {{PHI_STEP_PUSH, 1, 0, 0, 1, 8}}, 1, 256));
    reports(another, launches("phi_hop_wide", 1, {{PHI_STEP_LEAVE, 1, 0}, copy}, 3, 256));
    reports(another, launches("phi_hop_wide", 2, {{PHI_STEP_GO, 1, 0}, room, push}, 3, 256));
    reports(another, launches("phi_hop_spread", 1, {{PHI_STEP_LEAVE, 1, 0}, large}, 3, 256));
    for (const char *name : {"phi_hop", "phi_hop_spread", "phi_hop_large", "phi_hop_wide"})
        for (uint8_t kind : {PHI_STEP_STAGE, PHI_STEP_HELP, PHI_STEP_BELL, PHI_STEP_LAND})
            reports(another, launches(name, 1, {{PHI_STEP_ROOM, 1, 0}, {kind, 1, 1}}, 2, 256));
    for (uint8_t kind : {PHI_STEP_PUSH, PHI_STEP_TAKE, PHI_STEP_GO, PHI_STEP_MOVE, PHI_STEP_ARRIVE})
        reports(another,
                launches("phi_hop_staged", 0, {{PHI_STEP_STAGE, 1, 0}, {kind, 1, 1}}, 2, 256));
    reports("a block has no item", launches("phi_hop", 1, {{PHI_STEP_GO, 1, 0}}, 2, 32));
    reports("a block has two items", launches("phi_hop_spread", 1, {room, push, push}, 3, 256));
    reports(
        "a block has two items",
        launches("phi_hop_staged", 0, {{PHI_STEP_STAGE, 2, 0}, {PHI_STEP_STAGE, 2, 1, 1}}, 3, 32));
    reports("blocks that the grid has not",
            launches("phi_hop_spread", 0, {{PHI_STEP_MOVE, 4, 0}}, 3, 256));
    reports("blocks that the grid has not",
            launches("phi_hop_spread", 1, {room, {PHI_STEP_PUSH, 2, 0, 0, 1}}, 2, 256));
    reports("hands for what the first block does",
            launches("phi_hop_spread", 0, {{PHI_STEP_TAKE, 2, 0}}, 2, 480));
    reports("more waits than items", launches("phi_hop", 2, {{PHI_STEP_GO, 1, 0}}, 1, 32));
    reports("without warps of its own",
            launches("phi_hop", 2, {{PHI_STEP_GO, 1, 0}, {PHI_STEP_GO, 1, 0}}, 1, 64));
    reports("warps that the block has not",
            launches("phi_hop", 2, {{PHI_STEP_GO, 1, 0}, {PHI_STEP_ARRIVE, 4, 1}}, 1, 128));
    reports("does not fit a slot",
            launches("phi_hop", 1, {{PHI_STEP_PUSH, 1, 0, 0, 0, 0, 8193}}, 1, 1024));
    reports("takes too long",
            launches("phi_hop_wide", 1, {{PHI_STEP_PUSH, 16, 0, 0, 1, 0, 16384}}, 1, 512));
    reports("or nothing, by wide lines",
            launches("phi_hop_wide", 1, {{PHI_STEP_PUSH, 1, 0, 0, 1, 0, 0}}, 1, 32));
    reports("or nothing, by wide lines",
            launches("phi_hop_spread", 1, {{PHI_STEP_TAKE, 1, 0, 0, 1, 0, 4096, 1}}, 1, 256));
    std::vector<Item> many(16, Item{PHI_STEP_ARRIVE, 2, 0});
    for (uint32_t i = 0; i < many.size(); i++)
        many[i].first = 2 * i;
    reports("more barriers than a block has", launches("phi_hop", 16, many, 1, 1024));
    reports("half a warp", launches("phi_hop", 1, {{PHI_STEP_GO, 1, 0}}, 1, 48));
    is_fine(launches("phi_hop", 2, {{PHI_STEP_GO, 1, 0}, {PHI_STEP_GO, 1, 1}}, 1, 64));
    is_fine(launches("phi_hop_spread", 2, {{PHI_STEP_GO, 1, 0}, {PHI_STEP_GO, 1, 1}}, 1, 64));
}

TEST_F(Checks, EarlyLaunchOfCodeThatDoesNotWait)
{
    CUlaunchAttribute early = {};
    early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    early.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config = {};
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = config.blockDimY = config.blockDimZ = 1;
    config.attrs = &early;
    config.numAttrs = 1;
    auto launch = [&] { d->cuLaunchKernelEx(&config, nullptr, nullptr, nullptr); };
    is_fine(launch);
    setenv("PEERHOP_STANDIN_PTX", "75", 1);
    reports("an early launch: code for 7.5 does not wait", launch);
    early.value.programmaticStreamSerializationAllowed = 0;
    is_fine(launch);
    unsetenv("PEERHOP_STANDIN_PTX");
}

} // namespace
