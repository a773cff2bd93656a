// SPDX-License-Identifier: BSD-3-Clause
#include <chrono>
#include <cstdlib>
#include <thread>

#include "e2e/device_runner.h"

extern "C" {
#include "cuda/driver.h"
extern const unsigned char device_kernels[];
extern const uint64_t device_kernels_size;
}

#define DRIVER(call)                                                                               \
    do {                                                                                           \
        const CUresult result_ = cu.call;                                                          \
        if (result_ != CUDA_SUCCESS)                                                               \
            rank_failed(__FILE__, __LINE__,                                                        \
                        std::string(#call ": ") + phi_cuda_name(&cu, result_));                    \
    } while (0)

namespace
{

class KernelRunner : public DeviceRunner
{
  public:
    KernelRunner(const phi_driver *driver, Rank &rank) : cu(*driver), rank_(rank)
    {
        DRIVER(cuModuleLoadData(&module_, device_kernels));
        DRIVER(cuModuleGetFunction(&kernel_, module_, "test_device_program"));
        DRIVER(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
        outcome_ = rank.device->alloc(sizeof(device_outcome));
    }
    ~KernelRunner() override
    {
        cu.cuStreamDestroy_v2(stream_);
        cu.cuModuleUnload(module_);
    }
    void start(const device_program &program) override
    {
        clear();
        launch(program);
    }
    device_outcome finish(int64_t ms) override
    {
        device_outcome outcome;
        rank_.synchronize(stream_, ms);
        rank_.device->read(&outcome, outcome_, sizeof outcome);
        return outcome;
    }
    bool replay(const device_program &program, int times) override
    {
        clear();
        void *graph = rank_.device->capture(stream_, [&] { launch(program); });
        for (int i = 0; i < times; i++)
            rank_.device->launch(graph, stream_);
        rank_.synchronize(stream_);
        rank_.device->destroy(graph);
        return true;
    }

  private:
    void clear()
    {
        const device_outcome none{};
        rank_.device->write(outcome_, &none, sizeof none);
    }
    void launch(device_program program)
    {
        static const unsigned threads[DEVICE_GROUPS] = {1, 32, 160};
        program.outcome = reinterpret_cast<uint64_t>(outcome_);
        void *params[] = {&program};
        DRIVER(cuLaunchKernel(kernel_, 1, 1, 1, threads[program.group], 1, 1, 0, stream_, params,
                              nullptr));
    }
    const phi_driver &cu;
    Rank &rank_;
    CUmodule module_ = nullptr;
    CUfunction kernel_ = nullptr;
    CUstream stream_ = nullptr;
    void *outcome_ = nullptr;
};

} // namespace

std::unique_ptr<DeviceRunner> make_kernel_runner(Rank &rank)
{
    char why[256];
    const char *library = getenv("PEERHOP_LIBCUDA");
    const phi_driver *driver = phi_driver_load(library ? library : "libcuda.so.1", why, sizeof why);
    if (device_kernels_size == 0 || driver == nullptr)
        return nullptr;
    return std::make_unique<KernelRunner>(driver, rank);
}
