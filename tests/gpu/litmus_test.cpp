// SPDX-License-Identifier: BSD-3-Clause
// That a kernel after a wait sees what was copied before the word was written is not promised by
// CUDA where the device cannot flush remote writes: this stands for it. A producer kernel, the put
// or get program with a copy of either method, waits of either mode, and a checking kernel of which
// every multiprocessor runs a block and reads every byte.
//
// PEERHOP_LITMUS_ROUNDS: rounds of all cases together, by default few.
#define _Alignas alignas
#include "support/atomic_compat.h"

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "support/gpu.h"

extern "C" {
#include "semaphore/executor.h"
}

namespace
{

const size_t SIZES[] = {8, 64, 4096, 65536, 1 << 20};
const int CASES = 2 * 2 * 2;

// One rank's end: device, executor, buffer, stream.
struct End {
    std::unique_ptr<Gpu> gpu;
    phi_executor *executor = nullptr;
    CUstream stream = nullptr;
    CUdeviceptr buffer = 0;
    CUfunction fill = nullptr, verify = nullptr;
    uint64_t words_device = 0;

    ~End()
    {
        if (executor)
            executor->ops->close(executor);
        if (stream)
            gpu->cu->cuStreamDestroy_v2(stream);
    }
    void enter()
    {
        gpu->cu->cuCtxSetCurrent(phi_device_context(gpu->device));
    }
};

using Case = std::tuple<const char *, const char *, bool>; // wait, method, get

class Litmus : public testing::TestWithParam<Case>
{
  protected:
    enum { TURN };
    End ends[2];
    int devices = 1;
    uint32_t *words = nullptr;
    uint64_t *errors = nullptr;
    uint64_t errors_device = 0;
    phi_uses uses{};
    std::string settings[2];

    void SetUp() override
    {
        settings[0] = std::string("PEERHOP_WAIT=") + std::get<0>(GetParam());
        settings[1] = std::string("PEERHOP_METHOD=") + std::get<1>(GetParam());
        const char *texts[] = {settings[0].c_str(), settings[1].c_str(), nullptr};
        ends[0].gpu.reset(new Gpu(0, texts));
        if (!ends[0].gpu->ok() || !ends[0].gpu->has_test_kernels())
            GTEST_SKIP() << "needs a CUDA device and kernels";
        ends[1].gpu.reset(new Gpu(1, texts));
        devices = ends[1].gpu->ok() ? 2 : 1;
        if (devices == 1)
            ends[1].gpu.reset(new Gpu(0, texts));
        for (End &end : ends)
            ASSERT_NO_FATAL_FAILURE(open(end));
        if (devices == 2) {
            ASSERT_NO_FATAL_FAILURE(let_in());
        }
    }
    void open(End &end)
    {
        Gpu &gpu = *end.gpu;
        end.enter();
        phi_executor_params params{&gpu.context.report, &gpu.context.counters, &gpu.context.config};
        ASSERT_EQ(phi_cuda_executor_open(&params, gpu.device, &end.executor), 0)
            << gpu.context.error();
        CU_OK(gpu.cu->cuStreamCreate(&end.stream, CU_STREAM_NON_BLOCKING));
        end.buffer = gpu.alloc(SIZES[4]);
        end.fill = gpu.test_kernel("phi_test_fill");
        end.verify = gpu.test_kernel("phi_test_verify");
        if (words == nullptr) {
            // Registered as portable memory: both devices see it at this address.
            words = static_cast<uint32_t *>(gpu.words(&end.words_device));
            errors = reinterpret_cast<uint64_t *>(words + 64);
            errors_device = end.words_device + 256;
        }
    }
    void let_in()
    {
        for (int i = 0; i < 2; i++) {
            ends[i].enter();
            CUresult result = ends[i].gpu->cu->cuCtxEnablePeerAccess(
                phi_device_context(ends[1 - i].gpu->device), 0);
            if (result != CUDA_SUCCESS && result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
                GTEST_SKIP() << "the two devices do not reach each other";
        }
    }
    phi_work step(uint8_t kind, uint32_t bit = 0)
    {
        phi_work work{};
        work.kind = kind;
        work.value = bit;
        work.word = &words[TURN];
        work.word_device = ends[0].words_device + 4 * TURN;
        work.uses = &uses;
        return work;
    }
    void issue(int end, const std::vector<phi_work> &work)
    {
        bool partial;
        ASSERT_EQ(ends[end].executor->ops->issue(ends[end].executor, ends[end].stream, work.data(),
                                                 work.size(), &partial),
                  0)
            << ends[end].gpu->context.error();
    }
    void launch(int end, CUfunction function, size_t size, uint64_t seed)
    {
        ends[end].enter();
        test_pattern_args args{ends[end].buffer, size, seed, 0, errors_device};
        void *params[] = {&args};
        const unsigned blocks = (unsigned)ends[end].gpu->info().multiprocessors;
        CU_OK(ends[end].gpu->cu->cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0,
                                                ends[end].stream, params, nullptr));
    }
    // The sender is end 0. Everything of a round is enqueued, nothing is waited for by the host.
    void round(size_t size, uint64_t seed)
    {
        const bool get = std::get<2>(GetParam());
        const int active = get ? 1 : 0, passive = 1 - active;
        phi_work copy = step(PHI_STEP_COPY);
        copy.destination = reinterpret_cast<void *>(ends[1].buffer);
        copy.source = reinterpret_cast<void *>(ends[0].buffer);
        copy.size = size;
        launch(0, ends[0].fill, size, seed);
        issue(passive, {step(PHI_STEP_POST, PHI_BIT_READY)});
        issue(active, {step(PHI_STEP_WAIT, PHI_BIT_READY), copy, step(PHI_STEP_POST, PHI_BIT_FULL)});
        issue(passive, {step(PHI_STEP_WAIT, PHI_BIT_FULL)});
        launch(1, ends[1].verify, size, seed);
    }
    void finish(size_t size, uint64_t seed)
    {
        for (End &end : ends) {
            ASSERT_EQ(end.executor->ops->flush(end.executor, phi_deadline(60000)), 0)
                << end.gpu->context.error();
            end.enter();
            CU_OK(end.gpu->cu->cuStreamSynchronize(end.stream));
        }
        ASSERT_EQ(*errors, 0u) << "stale bytes of " << size << " by round " << seed;
    }
};

TEST_P(Litmus, CheckingKernelSeesTheCopy)
{
    const char *text = getenv("PEERHOP_LITMUS_ROUNDS");
    const uint64_t all = text ? strtoull(text, nullptr, 10) : 4000;
    const uint64_t rounds = all / CASES / (sizeof SIZES / sizeof SIZES[0]) + 1;
    for (size_t size : SIZES) {
        for (uint64_t seed = 1; seed <= rounds; seed++) {
            ASSERT_NO_FATAL_FAILURE(round(size, seed));
            if (seed % 50 == 0 || seed == rounds) {
                ASSERT_NO_FATAL_FAILURE(finish(size, seed));
            }
        }
    }
    // The test can fail: with other bytes expected, every block of the checking kernel says so.
    launch(1, ends[1].verify, 8, rounds + 1);
    CU_OK(ends[1].gpu->cu->cuStreamSynchronize(ends[1].stream));
    EXPECT_GT(*errors, 0u);
    RecordProperty("devices", devices);
    RecordProperty("rounds", (int)(rounds * 5));
}

INSTANTIATE_TEST_SUITE_P(Order, Litmus,
                         testing::Combine(testing::Values("kernel", "memory_operation"),
                                          testing::Values("ce", "copy_kernel"), testing::Bool()),
                         [](const auto &info) {
                             return std::string(std::get<0>(info.param)) + "_" +
                                    std::get<1>(info.param) +
                                    (std::get<2>(info.param) ? "_get" : "_put");
                         });

} // namespace
