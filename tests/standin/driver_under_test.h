// SPDX-License-Identifier: BSD-3-Clause
// The driver that PEERHOP_LIBCUDA names, or libcuda.so.1, for suites that hold for the stand-in and
// a real one alike.
#ifndef TESTS_STANDIN_DRIVER_UNDER_TEST_H
#define TESTS_STANDIN_DRIVER_UNDER_TEST_H

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>

#include "support/atomic_compat.h"

extern "C" {
#include "cuda/driver.h"
}

constexpr size_t MIB = size_t{1} << 20;

// NULL where there is no driver or no device; why says so.
const phi_driver *driver_under_test(std::string *why);
bool driver_is_standin();

std::string error_name(CUresult result);
#define CU_OK(call)            ASSERT_EQ(error_name(call), "CUDA_SUCCESS")
#define CU_EXPECT(call, error) EXPECT_EQ(error_name(call), error_name(error))

// A kernel "phi_test_spin" for any GPU; the stand-in takes any image.
extern const char SPIN_PTX[];

// Whether the condition comes true in time.
bool eventually(const std::function<bool()> &condition, int milliseconds = 20000);

// A device with its primary context current on the test's thread.
class DriverTest : public testing::Test
{
  protected:
    void SetUp() override;
    void TearDown() override;

    bool second_device() const
    {
        return count_ > 1;
    }
    // Waits until the stream has nothing left, without a call that would disturb a capture.
    bool finishes(CUstream stream, int milliseconds = 20000);

    CUdeviceptr alloc(size_t size);
    // Zeroed host memory that the device reaches at the same address.
    template <typename T> std::atomic<T> *pinned(size_t count = 1)
    {
        void *memory = nullptr;
        EXPECT_EQ(d->cuMemHostAlloc(&memory, count * sizeof(T), CU_MEMHOSTALLOC_PORTABLE),
                  CUDA_SUCCESS);
        memset(memory, 0, count * sizeof(T));
        return reinterpret_cast<std::atomic<T> *>(memory);
    }
    static CUdeviceptr device(const void *pinned_memory)
    {
        return reinterpret_cast<CUdeviceptr>(pinned_memory);
    }
    CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING);
    CUfunction spin_kernel();

    // A physical allocation that can be mapped, and a mapping that `device` may use; 0 on failure.
    CUmemGenericAllocationHandle vmm_create(size_t size, bool exportable = true);
    CUdeviceptr vmm_map(CUmemGenericAllocationHandle handle, size_t size);
    void vmm_unmap(CUdeviceptr address, size_t size);
    CUmemoryPool pool(bool exportable);

    uint64_t value(CUdeviceptr address); // 8 bytes there, read on a stream of its own
    void set_value(CUdeviceptr address, uint64_t value);

    const phi_driver *d = nullptr;
    CUcontext context_ = nullptr;

  private:
    int count_ = 0;
    CUstream own_ = nullptr;
    CUmodule module_ = nullptr;
};

#endif
