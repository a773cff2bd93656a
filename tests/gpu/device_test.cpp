// SPDX-License-Identifier: BSD-3-Clause
#include "support/atomic_compat.h"

#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>

#include "support/gpu.h"
#include "support/patience.h"

namespace
{

using Device = GpuTest;

TEST_F(Device, KnowsItself)
{
    const struct phi_device_info &info = gpu->info();
    EXPECT_EQ(info.ordinal, 0);
    EXPECT_GT(strlen(info.name), 0u);
    EXPECT_GE(atoi(info.driver), 11);
    EXPECT_GT(info.multiprocessors, 0);
    EXPECT_GE(info.compute_major, 7);
    EXPECT_TRUE(info.memory_operations || info.kernels);
    EXPECT_EQ(info.kernels, std::string(phi_device_architectures()) != "left out");
    EXPECT_GE(info.connections, 1);
    EXPECT_LE(info.connections, 32);
    const std::vector<uint8_t> zero(16);
    EXPECT_NE(memcmp(info.uuid, zero.data(), 16), 0);
}

TEST_F(Device, UnknownOrdinalIsRefused)
{
    phi_device *other = nullptr;
    EXPECT_EQ(phi_device_open(&gpu->context.report, gpu->context.config.libcuda, 4096, PHI_FOREVER,
                              &other),
              -ENODEV);
    EXPECT_NE(gpu->context.error().find("4096"), std::string::npos) << gpu->context.error();
    EXPECT_EQ(other, nullptr);
}

TEST_F(Device, SecondDriverInOneProcessIsRefused)
{
    EXPECT_GT(phi_device_count(&gpu->context.report, gpu->context.config.libcuda), 0);
    EXPECT_EQ(phi_device_count(&gpu->context.report, "libother-cuda.so"), 0);
}

TEST_F(Device, OpensTwice)
{
    phi_device *again = nullptr;
    ASSERT_EQ(
        phi_device_open(&gpu->context.report, gpu->context.config.libcuda, 0, PHI_FOREVER, &again),
        0);
    EXPECT_EQ(phi_device_context(again), phi_device_context(gpu->device)) << "the primary context";
    phi_device_close(again, PHI_FOREVER);
    phi_device_close(nullptr, 0);
}

// As where the driver takes longer than whoever waits for it (ASan).
TEST_F(Device, AFlushMayReturnWhenTheDeviceIsClosed)
{
    static std::atomic<int> state; // 1: inside, 2: may go
    void *driver = dlopen(gpu->context.config.libcuda, RTLD_NOW | RTLD_LOCAL);
    auto *on_flush =
        driver ? static_cast<CUresult (**)(int)>(dlsym(driver, "si_on_flush")) : nullptr;
    if (!on_flush)
        GTEST_SKIP() << "only on the stand-in";
    phi_device *again = nullptr;
    ASSERT_EQ(
        phi_device_open(&gpu->context.report, gpu->context.config.libcuda, 0, PHI_FOREVER, &again),
        0);
    state = 0;
    *on_flush = [](int) {
        for (state = 1; state != 2;)
            std::this_thread::yield();
        return CUDA_ERROR_UNKNOWN;
    };
    int rc = 0;
    std::thread flusher([&] { rc = phi_device_flush(again, true); });
    while (state != 1)
        std::this_thread::yield();
    phi_device_close(again, PHI_FOREVER);
    state = 2;
    flusher.join();
    *on_flush = nullptr;
    EXPECT_NE(rc, 0);
}

TEST_F(Device, EnterPutsBackWhatWas)
{
    std::thread([this] {
        CUcontext current = nullptr;
        void *outer, *inner;
        CU_EXPECT(gpu->cu->cuCtxGetCurrent(&current));
        EXPECT_EQ(current, nullptr);
        EXPECT_EQ(phi_device_current(&gpu->context.report, gpu->context.config.libcuda), -1);
        ASSERT_EQ(phi_device_enter(gpu->device, &outer), 0);
        ASSERT_EQ(phi_device_enter(gpu->device, &inner), 0);
        EXPECT_EQ(phi_device_current(&gpu->context.report, gpu->context.config.libcuda), 0);
        phi_device_leave(gpu->device, inner);
        CU_EXPECT(gpu->cu->cuCtxGetCurrent(&current));
        EXPECT_EQ(current, phi_device_context(gpu->device));
        phi_device_leave(gpu->device, outer);
        CU_EXPECT(gpu->cu->cuCtxGetCurrent(&current));
        EXPECT_EQ(current, nullptr);
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        CU_EXPECT(gpu->cu->cuThreadExchangeStreamCaptureMode(&mode));
        EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
        // A thread of the library stays inside and relaxed.
        ASSERT_EQ(phi_device_thread_start(gpu->device), 0);
        CU_EXPECT(gpu->cu->cuCtxGetCurrent(&current));
        EXPECT_EQ(current, phi_device_context(gpu->device));
        mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        CU_EXPECT(gpu->cu->cuThreadExchangeStreamCaptureMode(&mode));
        EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
    }).join();
}

TEST_F(Device, WritesAndReadsWhatItWrote)
{
    const int64_t deadline = phi_deadline(kWait);
    for (size_t size : {(size_t)1, (size_t)65536, (size_t)65537, (size_t)1000003}) {
        std::vector<uint8_t> out = Gpu::pattern(size, size), in(size);
        void *memory;
        ASSERT_EQ(phi_device_alloc(gpu->device, size, &memory), 0);
        EXPECT_EQ(phi_device_write(gpu->device, memory, out.data(), size, deadline), 0);
        EXPECT_EQ(phi_device_read(gpu->device, in.data(), memory, size, deadline), 0);
        EXPECT_TRUE(in == out) << size;
        phi_device_free(gpu->device, memory);
    }
}

TEST_F(Device, RepeatsWhatIsThereOnce)
{
    const int64_t deadline = phi_deadline(kWait);
    const size_t size = 80004;
    for (size_t times : {1, 2, 3, 128}) {
        std::vector<uint8_t> out = Gpu::pattern(size, times), in(size * (times + 1));
        std::vector<uint8_t> behind(size, 0xab);
        void *memory;
        ASSERT_EQ(phi_device_alloc(gpu->device, in.size(), &memory), 0);
        auto *tail = static_cast<uint8_t *>(memory) + times * size;
        EXPECT_EQ(phi_device_write(gpu->device, tail, behind.data(), size, deadline), 0);
        EXPECT_EQ(phi_device_write(gpu->device, memory, out.data(), size, deadline), 0);
        EXPECT_EQ(phi_device_repeat(gpu->device, memory, size, times, deadline), 0);
        EXPECT_EQ(phi_device_read(gpu->device, in.data(), memory, in.size(), deadline), 0);
        for (size_t i = 0; i < times; i++)
            EXPECT_EQ(memcmp(in.data() + i * size, out.data(), size), 0) << i << " of " << times;
        EXPECT_EQ(memcmp(in.data() + times * size, behind.data(), size), 0) << times;
        phi_device_free(gpu->device, memory);
    }
}

TEST_F(Device, AllocationTooLargeIsENOMEM)
{
    void *memory = nullptr;
    EXPECT_EQ(phi_device_alloc(gpu->device, (size_t)1 << 50, &memory), -ENOMEM);
    EXPECT_NE(gpu->context.error().find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos)
        << gpu->context.error();
    EXPECT_EQ(memory, nullptr);
}

TEST_F(Device, CopiesDoNotStandBehindTheApplicationsStreams)
{
    if (gpu->info().connections == 1)
        GTEST_SKIP() << "one hardware queue: all of the device stands behind a stream that waits";
    CUstream stream;
    uint64_t address;
    uint32_t *word = static_cast<uint32_t *>(gpu->words(&address));
    CU_OK(gpu->cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU_OK(gpu->cu->cuStreamWaitValue32_v2(stream, address, 1, CU_STREAM_WAIT_VALUE_GEQ));
    void *memory;
    uint32_t out = 42, in[2] = {};
    ASSERT_EQ(phi_device_alloc(gpu->device, sizeof in, &memory), 0);
    EXPECT_EQ(phi_device_write(gpu->device, memory, &out, 4, phi_deadline(kWait)), 0);
    EXPECT_EQ(phi_device_repeat(gpu->device, memory, 4, 2, phi_deadline(kWait)), 0);
    EXPECT_EQ(phi_device_read(gpu->device, in, memory, sizeof in, phi_deadline(kWait)), 0);
    EXPECT_EQ(in[0], 42u);
    EXPECT_EQ(in[1], 42u);
    atomic_store_explicit(word, 1u, memory_order_release);
    CU_EXPECT(gpu->cu->cuStreamSynchronize(stream));
    CU_EXPECT(gpu->cu->cuStreamDestroy_v2(stream));
    phi_device_free(gpu->device, memory);
}

TEST_F(Device, RegisteredWordsAreSeenByBoth)
{
    CUstream stream;
    uint64_t address;
    uint32_t *word = static_cast<uint32_t *>(gpu->words(&address));
    CU_OK(gpu->cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU_OK(gpu->cu->cuStreamWriteValue32_v2(stream, address + 4, 7, 0));
    CU_OK(gpu->cu->cuStreamSynchronize(stream));
    EXPECT_EQ(atomic_load_explicit(&word[1], memory_order_acquire), 7u);
    CU_EXPECT(gpu->cu->cuStreamDestroy_v2(stream));
}

// Trap: a library thread that calls the driver while another thread captures a graph invalidates
// the capture.
TEST_F(Device, CapturesOfOtherThreadsAreNotDisturbed)
{
    CUstream stream;
    CUgraph graph;
    CUdeviceptr memory = gpu->alloc(64);
    CU_OK(gpu->cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU_OK(gpu->cu->cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU_OK(gpu->cu->cuMemsetD8Async(memory, 1, 64, stream));
    std::thread([this] {
        void *probe;
        uint64_t value = 1;
        ASSERT_EQ(phi_device_alloc(gpu->device, 64, &probe), 0) << gpu->context.error();
        EXPECT_EQ(phi_device_write(gpu->device, probe, &value, 8, phi_deadline(kWait)), 0);
        EXPECT_EQ(phi_device_read(gpu->device, &value, probe, 8, phi_deadline(kWait)), 0);
        phi_device_free(gpu->device, probe);
        uint64_t address;
        gpu->words(&address);
    }).join();
    CU_EXPECT(gpu->cu->cuStreamEndCapture(stream, &graph));
    CU_EXPECT(gpu->cu->cuGraphDestroy(graph));
    CU_EXPECT(gpu->cu->cuStreamDestroy_v2(stream));
}

TEST_F(Device, TellsOfTheOtherDevicesThatAreVisible)
{
    uint8_t uuids[8][16];
    uint8_t access[8];
    const size_t n = phi_device_others(gpu->device, uuids, access, 8);
    for (size_t i = 0; i < n; i++)
        EXPECT_NE(memcmp(uuids[i], gpu->info().uuid, 16), 0) << "itself";
    Gpu other(1);
    if (!other.ok()) {
        EXPECT_EQ(n, 0u);
        return;
    }
    ASSERT_GT(n, 0u);
    EXPECT_EQ(memcmp(uuids[0], other.info().uuid, 16), 0);
    int atomic = -1; // 1 over NVLink
    CU_OK(gpu->cu->cuDeviceGetP2PAttribute(&atomic, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                                           0, 1));
    EXPECT_EQ((access[0] & PHI_ACCESS_ATOMIC) != 0, atomic != 0);
    EXPECT_EQ(phi_device_others(gpu->device, uuids, access, 1), 1u);
}

} // namespace
