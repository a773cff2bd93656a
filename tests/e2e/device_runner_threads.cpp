// SPDX-License-Identifier: BSD-3-Clause
#define PH_DEVICE_PRIMITIVES "support/device_on_host.h"
#include <peerhop/device.cuh>

#include <vector>

#include "e2e/device_runner.h"

namespace
{

class ThreadRunner : public DeviceRunner
{
  public:
    ~ThreadRunner() override
    {
        join();
    }
    void start(const device_program &program) override
    {
        static const uint32_t sizes[DEVICE_GROUPS] = {1, 2, 3};
        program_ = program;
        outcome_ = {};
        program_.outcome = reinterpret_cast<uint64_t>(&outcome_);
        gang_ = std::make_unique<phi_device::gang>(sizes[program.group]);
        for (uint32_t i = 0; i < gang_->size; i++)
            threads_.emplace_back([this, i] {
                phi_device::self = {gang_.get(), i};
                device_run_any(program_);
            });
    }
    // The device functions end by themselves, by their own time.
    device_outcome finish(int64_t) override
    {
        join();
        return outcome_;
    }
    bool replay(const device_program &, int) override
    {
        return false;
    }

  private:
    void join()
    {
        for (std::thread &thread : threads_)
            thread.join();
        threads_.clear();
    }
    device_program program_{};
    device_outcome outcome_{};
    std::unique_ptr<phi_device::gang> gang_;
    std::vector<std::thread> threads_;
};

} // namespace

std::unique_ptr<DeviceRunner> make_thread_runner()
{
    return std::make_unique<ThreadRunner>();
}
