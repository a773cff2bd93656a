// SPDX-License-Identifier: BSD-3-Clause
// Which calls return while a stream of the context waits, and which while another thread is blocked
// behind one.
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "standin/driver_under_test.h"
#include "standin/peer.h"
#include "support/test_kernels.h"

namespace
{

constexpr auto PATIENCE = std::chrono::milliseconds(100);

enum class Stuck { WAIT, KERNEL };

// The whole suite asks what streams do that have a hardware queue each, whatever the machine's
// setting: of those that share one, standin_test asks (Queues). Before the driver is loaded.
const int eight_queues = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 1);

class Blocking : public DriverTest
{
  protected:
    struct Call {
        const char *name;
        std::function<CUresult()> call;
        bool returns;
    };

    void SetUp() override
    {
        DriverTest::SetUp();
        if (IsSkipped())
            return;
        word_ = pinned<uint32_t>();
        stuck_ = stream();
        spin_ = spin_kernel();
    }
    void TearDown() override
    {
        if (word_) {
            *word_ = 1;
            EXPECT_TRUE(finishes(stuck_));
            CU_OK(d->cuStreamDestroy_v2(stuck_));
            CU_OK(d->cuMemFreeHost(word_));
        }
        DriverTest::TearDown();
    }

    void get_stuck(Stuck how)
    {
        *word_ = 0;
        test_spin_args args = {device(word_)};
        void *params[] = {&args};
        if (how == Stuck::WAIT)
            CU_OK(d->cuStreamWaitValue32_v2(stuck_, device(word_), 1, CU_STREAM_WAIT_VALUE_GEQ));
        else
            CU_OK(d->cuLaunchKernel(spin_, 1, 1, 1, 1, 1, 1, 0, stuck_, params, nullptr));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        CU_EXPECT(d->cuStreamQuery(stuck_), CUDA_ERROR_NOT_READY);
    }

    // Begins the call on another thread, and returns when it is about to; who: the thread.
    std::future<CUresult> elsewhere(const std::function<CUresult()> &call, pid_t *who = nullptr)
    {
        auto begun = std::make_shared<std::promise<pid_t>>();
        std::future<pid_t> beginning = begun->get_future();
        std::future<CUresult> done = std::async(std::launch::async, [this, call, begun] {
            CUresult result = d->cuCtxSetCurrent(context_);
            begun->set_value(static_cast<pid_t>(syscall(SYS_gettid)));
            return result ? result : call();
        });
        const pid_t thread = beginning.get();
        if (who)
            *who = thread;
        return done;
    }

    static bool sleeps(pid_t thread)
    {
        std::string stat;
        std::getline(std::ifstream("/proc/self/task/" + std::to_string(thread) + "/stat"), stat);
        return stat.find(") S ") != std::string::npos;
    }

    // Makes the call on another thread; the word is set afterwards, so that everything ends.
    void expect(const Call &c)
    {
        SCOPED_TRACE(c.name);
        std::future<CUresult> done = elsewhere(c.call);
        // A slow machine must not look like a blocked call.
        auto patience = c.returns ? std::chrono::milliseconds(10000) : PATIENCE;
        bool returned = done.wait_for(patience) == std::future_status::ready;
        EXPECT_EQ(returned, c.returns);
        if (!returned)
            *word_ = 1;
        CU_EXPECT(done.get(), CUDA_SUCCESS);
    }

    // Calls on things made before, since making them may block too.
    std::vector<Call> calls()
    {
        other_ = stream();
        CU_EXPECT(d->cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
        target_ = alloc(8 * MIB);
        return {
            {"cuIpcGetMemHandle", [&] { return d->cuIpcGetMemHandle(&handle_, target_); }, true},
            {"cuMemAlloc",
             [&] {
                 CUdeviceptr a;
                 return d->cuMemAlloc_v2(&a, 4 * MIB);
             },
             true},
            {"cuMemHostAlloc",
             [&] {
                 void *p;
                 return d->cuMemHostAlloc(&p, 65536, 0);
             },
             true},
            {"cuMemHostRegister",
             [&] {
                 void *p = mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                                -1, 0);
                 return d->cuMemHostRegister_v2(p, 65536, CU_MEMHOSTREGISTER_PORTABLE);
             },
             true},
            {"cuStreamCreate",
             [&] {
                 CUstream s;
                 return d->cuStreamCreate(&s, 1);
             },
             true},
            {"cuEventCreate",
             [&] {
                 CUevent e;
                 return d->cuEventCreate(&e, 2);
             },
             true},
            {"cuEventRecord", [&] { return d->cuEventRecord(event_, other_); }, true},
            {"cuMemsetD8Async", [&] { return d->cuMemsetD8Async(target_, 1, 64, other_); }, true},
            {"cuMemcpyHtoD", [&] { return d->cuMemcpyHtoD_v2(target_, bytes_, 64); }, true},
            {"cuStreamWriteValue32",
             [&] { return d->cuStreamWriteValue32_v2(other_, target_, 1, 0); }, true},
            {"cuMemAllocAsync, cuMemFreeAsync",
             [&] {
                 CUdeviceptr a;
                 CUresult result = d->cuMemAllocAsync(&a, MIB, other_);
                 return result ? result : d->cuMemFreeAsync(a, other_);
             },
             true},
            {"cuMemFree of pool memory",
             [&] {
                 CUdeviceptr a = pooled_.back();
                 pooled_.pop_back();
                 return d->cuMemFree_v2(a);
             },
             true},
            {"cuMemcpyHtoDAsync, pageable, behind the wait",
             [&] { return d->cuMemcpyHtoDAsync_v2(target_, bytes_, 64, stuck_); }, true},
            {"cuMemcpyDtoHAsync, pageable, elsewhere",
             [&] { return d->cuMemcpyDtoHAsync_v2(bytes_, target_, 64, other_); }, true},
            {"cuMemUnmap", [&] { return vmm_.empty() ? CUDA_ERROR_UNKNOWN : unmap_one(); }, true},
        };
    }

    CUresult unmap_one()
    {
        CUdeviceptr a = vmm_.back();
        vmm_.pop_back();
        return d->cuMemUnmap(a, 2 * MIB);
    }

    std::atomic<uint32_t> *word_ = nullptr;
    CUstream stuck_ = nullptr, other_ = nullptr;
    CUfunction spin_ = nullptr;
    CUevent event_ = nullptr;
    CUdeviceptr target_ = 0;
    CUipcMemHandle handle_;
    uint8_t bytes_[64] = {};
    std::vector<CUdeviceptr> vmm_, pooled_;
};

TEST_F(Blocking, WhatReturnsBehindAWaitingStream)
{
    std::vector<Call> all = calls();
    for (Stuck how : {Stuck::WAIT, Stuck::KERNEL}) {
        CUmemGenericAllocationHandle h = vmm_create(2 * MIB);
        vmm_.push_back(vmm_map(h, 2 * MIB));
        CU_OK(d->cuMemRelease(h));
        CUdeviceptr pooled = 0;
        CU_OK(d->cuMemAllocAsync(&pooled, 4096, other_));
        CU_OK(d->cuStreamSynchronize(other_));
        pooled_.push_back(pooled);
        get_stuck(how);
        for (const Call &c : all)
            expect(c);
        *word_ = 1;
        EXPECT_TRUE(finishes(stuck_));
    }
}

TEST_F(Blocking, WhatBlocksBehindAWaitingStream)
{
    Peer peer;
    CUmodule module = nullptr;
    target_ = alloc(4096);
    for (Stuck how : {Stuck::WAIT, Stuck::KERNEL}) {
        CUdeviceptr big = alloc(4 * MIB), small = alloc(4096);
        void *shared =
            mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        auto *host = pinned<uint32_t>();
        CU_OK(d->cuMemHostRegister_v2(shared, 65536, CU_MEMHOSTREGISTER_PORTABLE));
        Reply reply = peer.call(Order::HANDLE, peer.call(Order::ALLOC, 4 * MIB).value);
        CUipcMemHandle handle;
        memcpy(&handle, reply.bytes, sizeof(handle));
        CUdeviceptr opened = 0;
        CU_OK(d->cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        Call blocking[] = {
            {"cuMemFree", [&] { return d->cuMemFree_v2(big); }, false},
            {"cuMemFree, small", [&] { return d->cuMemFree_v2(small); }, false},
            {"cuMemFreeHost", [&] { return d->cuMemFreeHost(host); }, false},
            {"cuMemHostUnregister", [&] { return d->cuMemHostUnregister(shared); }, false},
            {"cuIpcCloseMemHandle", [&] { return d->cuIpcCloseMemHandle(opened); }, false},
            {"cuCtxSynchronize", [&] { return d->cuCtxSynchronize(); }, false},
            {"cuModuleLoadData", [&] { return d->cuModuleLoadData(&module, SPIN_PTX); }, false},
            {"cuModuleUnload", [&] { return d->cuModuleUnload(module); }, false},
            {"cuMemcpyDtoHAsync, pageable",
             [&] { return d->cuMemcpyDtoHAsync_v2(bytes_, target_, 64, stuck_); }, false},
        };
        for (const Call &c : blocking) {
            get_stuck(how);
            expect(c);
            EXPECT_TRUE(finishes(stuck_));
        }
        munmap(shared, 65536);
    }
}

// The calls that block while another thread is inside a blocked cuMemFree or cuMemHostUnregister;
// behind cuModuleUnload and cuCtxSynchronize none does.
TEST_F(Blocking, WhatBlocksBehindABlockedCall)
{
    calls();
    auto *ready = pinned<uint32_t>();
    *ready = 1;
    test_spin_args args = {device(ready)};
    void *params[] = {&args};
    void *fresh = mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    void *shared = mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    size_t registered = 0;
    CUmodule module = nullptr;
    CUdeviceptr victim = 0;
    CUstream spare_stream = nullptr;
    CUevent spare_event = nullptr;
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    std::vector<Call> cases = {
        {"cuLaunchKernel",
         [&] { return d->cuLaunchKernel(spin_, 1, 1, 1, 1, 1, 1, 0, other_, params, nullptr); },
         false},
        {"cuMemsetD8Async", [&] { return d->cuMemsetD8Async(target_, 1, 64, other_); }, false},
        {"cuEventRecord", [&] { return d->cuEventRecord(event_, other_); }, false},
        {"cuMemAlloc",
         [&] {
             CUdeviceptr a;
             return d->cuMemAlloc_v2(&a, 4 * MIB);
         },
         false},
        {"cuMemHostAlloc",
         [&] {
             void *p;
             return d->cuMemHostAlloc(&p, 4096, 0);
         },
         false},
        {"cuMemHostRegister",
         [&] {
             registered += 65536;
             return d->cuMemHostRegister_v2(static_cast<char *>(fresh) + registered - 65536, 65536,
                                            0);
         },
         false},
        {"cuStreamCreate",
         [&] {
             CUstream s;
             return d->cuStreamCreate(&s, 1);
         },
         false},
        {"cuEventCreate",
         [&] {
             CUevent e;
             return d->cuEventCreate(&e, 2);
         },
         false},
        {"cuStreamDestroy", [&] { return d->cuStreamDestroy_v2(spare_stream); }, false},
        {"cuEventDestroy", [&] { return d->cuEventDestroy_v2(spare_event); }, false},
        {"cuStreamWriteValue32", [&] { return d->cuStreamWriteValue32_v2(other_, target_, 1, 0); },
         true},
        {"cuStreamWaitEvent", [&] { return d->cuStreamWaitEvent(other_, event_, 0); }, true},
        {"cuMemCreate",
         [&] {
             CUmemGenericAllocationHandle h;
             return d->cuMemCreate(&h, 2 * MIB, &prop, 0);
         },
         true},
        {"cuPointerGetAttribute",
         [&] {
             unsigned long long id;
             return d->cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, target_);
         },
         true},
    };
    struct {
        const char *name;
        std::function<CUresult()> prepare, block;
        bool holds_up;
    } blockers[] = {
        {"cuMemFree", [&] { return d->cuMemAlloc_v2(&victim, 4 * MIB); },
         [&] { return d->cuMemFree_v2(victim); }, true},
        {"cuMemHostUnregister", [&] { return d->cuMemHostRegister_v2(shared, 65536, 0); },
         [&] { return d->cuMemHostUnregister(shared); }, true},
        {"cuModuleUnload", [&] { return d->cuModuleLoadData(&module, SPIN_PTX); },
         [&] { return d->cuModuleUnload(module); }, false},
        {"cuCtxSynchronize", [] { return CUDA_SUCCESS; }, [&] { return d->cuCtxSynchronize(); },
         false},
    };
    for (const auto &blocker : blockers) {
        SCOPED_TRACE(blocker.name);
        for (Call c : cases) {
            c.returns = c.returns || !blocker.holds_up;
            CU_OK(blocker.prepare());
            spare_stream = stream();
            CU_OK(d->cuEventCreate(&spare_event, CU_EVENT_DISABLE_TIMING));
            get_stuck(Stuck::WAIT);
            pid_t thread = 0;
            std::future<CUresult> blocked = elsewhere(blocker.block, &thread);
            // On a busy machine it has yet to come to its call. (A driver may also spin there.)
            eventually([&] { return sleeps(thread); }, 2000);
            EXPECT_EQ(blocked.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
            expect(c);
            *word_ = 1;
            CU_EXPECT(blocked.get(), CUDA_SUCCESS);
            EXPECT_TRUE(finishes(stuck_));
        }
    }
    CU_OK(d->cuMemFreeHost(ready));
    munmap(shared, 65536);
}

} // namespace
