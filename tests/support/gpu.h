// SPDX-License-Identifier: BSD-3-Clause
// A device for a test: a real one, or the stand-in's where PEERHOP_LIBCUDA names that. Include
// support/atomic_compat.h before. Only for builds with cuda.h.
#ifndef TESTS_SUPPORT_GPU_H
#define TESTS_SUPPORT_GPU_H

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>

#include <gtest/gtest.h>

#include "support/plain_context.h"
#include "support/test_kernels.h"

extern "C" {
#include "base/clock.h"
#include "cuda/device.h"
#include "cuda/driver.h"
extern const unsigned char test_kernels[];
extern const uint64_t test_kernels_size;
}

#define CU_OK(call)     ASSERT_EQ((call), CUDA_SUCCESS)
#define CU_EXPECT(call) EXPECT_EQ((call), CUDA_SUCCESS)

// One device with its primary context current on the constructing thread. ok() is false where there
// is none.
class Gpu
{
  public:
    PlainContext context;
    phi_device *device = nullptr;
    const phi_driver *cu = nullptr;

    explicit Gpu(int ordinal = 0, const char *const *settings = nullptr) : context(settings)
    {
        if (phi_device_count(&context.report, context.config.libcuda) <= ordinal)
            return;
        int rc =
            phi_device_open(&context.report, context.config.libcuda, ordinal, PHI_FOREVER, &device);
        EXPECT_EQ(rc, 0) << context.error();
        if (rc)
            return;
        cu = phi_device_driver(device);
        cu->cuCtxPushCurrent_v2(phi_device_context(device));
        pushed = true;
        if (info().kernels && test_kernels_size > 0) {
            CU_EXPECT(cu->cuModuleLoadData(&module, test_kernels));
        }
    }
    ~Gpu()
    {
        CUcontext popped;
        if (module)
            cu->cuModuleUnload(module);
        for (void *address : registered)
            phi_device_unmap(device, address, PAGE);
        for (CUdeviceptr pointer : allocated)
            cu->cuMemFree_v2(pointer);
        if (pushed)
            cu->cuCtxPopCurrent_v2(&popped);
        phi_device_close(device, PHI_FOREVER);
    }
    Gpu(const Gpu &) = delete;
    Gpu &operator=(const Gpu &) = delete;

    bool ok() const
    {
        return device != nullptr;
    }
    const struct phi_device_info &info() const
    {
        return *phi_device_info(device);
    }
    // Memory of cudaMalloc that lives as long as this.
    CUdeviceptr alloc(size_t size)
    {
        CUdeviceptr pointer = 0;
        CU_EXPECT(cu->cuMemAlloc_v2(&pointer, size));
        allocated.push_back(pointer);
        return pointer;
    }
    // A page of words that device and host both see.
    void *words(uint64_t *address)
    {
        void *page = mmap(nullptr, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        EXPECT_NE(page, MAP_FAILED);
        EXPECT_EQ(phi_device_register(device, page, PAGE, address), 0) << context.error();
        registered.push_back(page);
        return page;
    }
    // Of pageable memory more than 64 KiB may still be under way when cuMemcpyHtoD returns.
    void write(CUdeviceptr address, const void *bytes, size_t size)
    {
        CU_EXPECT(cu->cuMemcpyHtoD_v2(address, bytes, size));
        CU_EXPECT(cu->cuStreamSynchronize(nullptr));
    }
    void fill(CUdeviceptr address, size_t size, uint64_t seed)
    {
        write(address, pattern(size, seed).data(), size);
    }
    // The number of bytes that differ from the pattern.
    size_t errors(CUdeviceptr address, size_t size, uint64_t seed)
    {
        std::vector<uint8_t> found(size), wanted = pattern(size, seed);
        CU_EXPECT(cu->cuMemcpyDtoH_v2(found.data(), address, size));
        size_t n = 0;
        for (size_t i = 0; i < size; i++)
            n += found[i] != wanted[i];
        return n;
    }
    CUfunction test_kernel(const char *name)
    {
        CUfunction function = nullptr;
        CU_EXPECT(cu->cuModuleGetFunction(&function, module, name));
        return function;
    }
    bool has_test_kernels() const
    {
        return module != nullptr;
    }
    static std::vector<uint8_t> pattern(size_t size, uint64_t seed)
    {
        std::vector<uint8_t> bytes(size);
        for (size_t i = 0; i < size; i++)
            bytes[i] = (uint8_t)(test_pattern(seed, i / 8) >> (i % 8 * 8));
        return bytes;
    }

  private:
    static const size_t PAGE = 4096;
    CUmodule module = nullptr;
    bool pushed = false;
    std::vector<void *> registered;
    std::vector<CUdeviceptr> allocated;
};

// A test that needs a device.
class GpuTest : public testing::Test
{
  protected:
    std::unique_ptr<Gpu> gpu;

    void SetUp() override
    {
        open(nullptr);
    }
    // Begins anew with settings.
    void open(const char *const *settings)
    {
        gpu.reset();
        gpu.reset(new Gpu(0, settings));
        if (!gpu->ok())
            GTEST_SKIP() << "no CUDA device (PEERHOP_LIBCUDA names a driver library)";
    }
};

#endif
