// SPDX-License-Identifier: BSD-3-Clause
// What a kernel of the application gets beside kernels that wait: the stand-in's multiprocessors
// are to have room for it where a device's have. The kernel is of a matrix product's shape: by its
// registers it fits on a multiprocessor only alone.
#include "support/atomic_compat.h"

#include <chrono>
#include <string>
#include <vector>

#include "support/gpu.h"
#include "support/patience.h"

namespace
{

const unsigned THREADS = 384; // of the kernel
const uint64_t NS = 20000;    // for which its blocks stay
const unsigned GRIDS = 128;   // that a device has room for

class Occupancy : public GpuTest
{
  protected:
    CUfunction occupy = nullptr, spin = nullptr;
    CUstream own = nullptr;
    std::vector<CUstream> waiting; // made before anything waits, as a driver may wait to make one
    size_t used = 0;
    CUevent looked = nullptr;
    std::atomic<uint32_t> *words = nullptr, *seen = nullptr;
    uint64_t words_device = 0, seen_device = 0;
    unsigned all = 0;

    void SetUp() override
    {
        GpuTest::SetUp();
        if (IsSkipped())
            return;
        if (!gpu->has_test_kernels())
            GTEST_SKIP() << "the kernels are left out of this build";
        occupy = gpu->test_kernel("phi_test_occupy");
        spin = gpu->test_kernel("phi_test_spin");
        words = static_cast<std::atomic<uint32_t> *>(gpu->words(&words_device));
        seen = static_cast<std::atomic<uint32_t> *>(gpu->words(&seen_device));
        all = unsigned(gpu->info().multiprocessors);
        CU_EXPECT(gpu->cu->cuEventCreate(&looked, CU_EVENT_DISABLE_TIMING));
        own = stream();
        for (unsigned i = 0; i < GRIDS; i++)
            waiting.push_back(stream());
        if (all <= GRIDS)
            GTEST_SKIP() << "the device has " << all << " multiprocessors: some test needs more";
        ASSERT_LE(all * sizeof *seen, 4096u);
        // What is launched first is loaded then, which waits for all that runs.
        words[1] = 1;
        launch(spin, 1, 32, own, test_spin_args{words_device + 4});
        begin();
        ASSERT_TRUE(ends());
    }
    void TearDown() override
    {
        if (words)
            words[0] = 1;
        waiting.push_back(own);
        for (CUstream s : waiting) {
            if (s) {
                CU_EXPECT(gpu->cu->cuStreamSynchronize(s));
                CU_EXPECT(gpu->cu->cuStreamDestroy_v2(s));
            }
        }
        if (looked) {
            CU_EXPECT(gpu->cu->cuEventDestroy_v2(looked));
        }
        GpuTest::TearDown();
    }
    CUstream stream()
    {
        CUstream s = nullptr;
        CU_EXPECT(gpu->cu->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
        return s;
    }
    template <class Args>
    void launch(CUfunction function, unsigned blocks, unsigned threads, CUstream s, Args args)
    {
        void *params[] = {&args};
        CU_EXPECT(
            gpu->cu->cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, s, params, nullptr));
    }
    // A grid that waits, on a stream of its own. It has its places before what comes on `own` from
    // now on: the stand-in's engine comes to that one, the oldest, last.
    void wait(unsigned blocks, unsigned threads)
    {
        launch(spin, blocks, threads, waiting.at(used++), test_spin_args{words_device});
        CU_EXPECT(gpu->cu->cuEventRecord(looked, own));
        CU_EXPECT(gpu->cu->cuEventSynchronize(looked));
    }
    void begin()
    {
        for (unsigned i = 0; i < all; i++)
            seen[i] = 0;
        launch(occupy, all, THREADS, own, test_occupy_args{seen_device, NS});
    }
    bool ends(int milliseconds = 20000)
    {
        const auto end = std::chrono::steady_clock::now() + patience(milliseconds);
        while (gpu->cu->cuStreamQuery(own) == CUDA_ERROR_NOT_READY)
            if (std::chrono::steady_clock::now() > end)
                return false;
        return true;
    }
    // Multiprocessors that ran blocks of it.
    unsigned count() const
    {
        unsigned n = 0;
        for (unsigned i = 0; i < all; i++)
            n += seen[i] != 0;
        return n;
    }
    // Blocks that wait may share a multiprocessor of a GPU; on the stand-in they never do.
    void expect_left(unsigned taken)
    {
        const unsigned left = ran_on();
        EXPECT_GE(left, all - taken);
        EXPECT_LT(left, all);
        if (getenv("PEERHOP_LIBCUDA") != nullptr) {
            EXPECT_EQ(left, all - taken);
        }
    }
    unsigned ran_on()
    {
        begin();
        EXPECT_TRUE(ends());
        return count();
    }
};

TEST_F(Occupancy, AllOfADeviceThatIsIdle)
{
    EXPECT_EQ(ran_on(), all);
}

TEST_F(Occupancy, AllButThoseWithAWarpThatWaits)
{
    wait(1, 32);
    expect_left(1);
    for (int i = 0; i < 47; i++)
        wait(1, 32);
    expect_left(48);
}

TEST_F(Occupancy, NoneThatHasALargeBlockWhichWaits)
{
    wait(64, 256);
    expect_left(64);
}

TEST_F(Occupancy, NothingRunsWhereEachHasOne)
{
    wait(all, 256);
    begin();
    EXPECT_FALSE(ends(200));
    EXPECT_EQ(count(), 0u);
    words[0] = 1;
    EXPECT_TRUE(ends()); // on those that are free first
    EXPECT_EQ(ran_on(), all);
}

TEST_F(Occupancy, NothingRunsBesideAsManyGridsAsThereMayBe)
{
    for (unsigned i = 0; i < GRIDS - 1; i++)
        wait(1, 1);
    expect_left(GRIDS - 1);
    wait(1, 1);
    begin();
    EXPECT_FALSE(ends(200));
    words[0] = 1;
    EXPECT_TRUE(ends());
}

} // namespace
