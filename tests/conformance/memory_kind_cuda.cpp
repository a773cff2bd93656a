// SPDX-License-Identifier: BSD-3-Clause
// The kinds of device memory, on the stand-in or a device.
#include "conformance/memory_kinds.h"

#include <map>

#include "support/gpu.h"

namespace
{

class CudaKind : public MemoryKind
{
  public:
    ~CudaKind() override
    {
        CUcontext popped;
        phi_memory_close(other);
        phi_memory_close(memory);
        other = memory = nullptr;
        if (cu && device) {
            if (stream)
                cu->cuStreamDestroy_v2(stream);
            if (pool)
                cu->cuMemPoolDestroy(pool);
            cu->cuCtxPopCurrent_v2(&popped);
        }
        phi_device_close(second, PHI_FOREVER);
        phi_device_close(device, PHI_FOREVER);
    }
    phi_kind kind() const override
    {
        return PHI_KIND_CUDA;
    }
    std::string open() override
    {
        if (phi_device_count(&context.report, context.config.libcuda) == 0)
            return "no CUDA device (PEERHOP_LIBCUDA names a driver library)";
        if (phi_device_open(&context.report, context.config.libcuda, 0, PHI_FOREVER, &device) ||
            phi_device_open(&context.report, context.config.libcuda, 0, PHI_FOREVER, &second) ||
            phi_memory_open(&context.report, device, &memory) ||
            phi_memory_open(&context.report, second, &other))
            return context.error();
        cu = phi_device_driver(device);
        cu->cuCtxPushCurrent_v2(phi_device_context(device));
        if (cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
            return "no stream";
        return phi_memory_kinds(memory) & 1u << kind() ? make()
                                                       : "the device has no memory of the kind";
    }
    void *allocate(size_t size) override
    {
        CUdeviceptr pointer = 0;
        return cu->cuMemAlloc_v2(&pointer, size) == CUDA_SUCCESS ? reinterpret_cast<void *>(pointer)
                                                                 : nullptr;
    }
    void release(void *address) override
    {
        cu->cuMemFree_v2(reinterpret_cast<CUdeviceptr>(address));
    }
    void write(void *to, const void *from, size_t size) override
    {
        cu->cuMemcpyHtoD_v2(reinterpret_cast<CUdeviceptr>(to), from, size);
    }
    void read(void *to, const void *from, size_t size) override
    {
        cu->cuMemcpyDtoH_v2(to, reinterpret_cast<CUdeviceptr>(from), size);
    }

  protected:
    phi_device *device = nullptr, *second = nullptr;
    const phi_driver *cu = nullptr;
    CUstream stream = nullptr;
    CUmemoryPool pool = nullptr;

    // What a kind needs beside a device.
    virtual std::string make()
    {
        return "";
    }
};

class VmmKind : public CudaKind
{
  public:
    phi_kind kind() const override
    {
        return PHI_KIND_VMM;
    }
    void *allocate(size_t size) override
    {
        CUmemAllocationProp properties{};
        CUmemAccessDesc access{};
        CUmemGenericAllocationHandle handle;
        CUdeviceptr pointer = 0;
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        properties.location = access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        if (cu->cuMemCreate(&handle, size, &properties, 0) != CUDA_SUCCESS)
            return nullptr;
        bool good = cu->cuMemAddressReserve(&pointer, size, 0, 0, 0) == CUDA_SUCCESS &&
                    cu->cuMemMap(pointer, size, 0, handle, 0) == CUDA_SUCCESS &&
                    cu->cuMemSetAccess(pointer, size, &access, 1) == CUDA_SUCCESS;
        cu->cuMemRelease(handle);
        sizes[pointer] = size;
        return good ? reinterpret_cast<void *>(pointer) : nullptr;
    }
    void release(void *address) override
    {
        CUdeviceptr pointer = reinterpret_cast<CUdeviceptr>(address);
        cu->cuMemUnmap(pointer, sizes[pointer]);
        cu->cuMemAddressFree(pointer, sizes[pointer]);
    }

  private:
    std::map<CUdeviceptr, size_t> sizes;
};

class PoolKind : public CudaKind
{
  public:
    phi_kind kind() const override
    {
        return PHI_KIND_POOL;
    }
    std::string make() override
    {
        CUmemPoolProps properties{};
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
        return cu->cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS ? ""
                                                                       : "cuMemPoolCreate failed";
    }
    void *allocate(size_t size) override
    {
        CUdeviceptr pointer = 0;
        if (cu->cuMemAllocFromPoolAsync(&pointer, size, pool, stream) != CUDA_SUCCESS)
            return nullptr;
        cu->cuStreamSynchronize(stream);
        return reinterpret_cast<void *>(pointer);
    }
    void release(void *address) override
    {
        cu->cuMemFreeAsync(reinterpret_cast<CUdeviceptr>(address), stream);
        cu->cuStreamSynchronize(stream);
    }
};

} // namespace

std::unique_ptr<MemoryKind> make_cuda_kind()
{
    return std::make_unique<CudaKind>();
}

std::unique_ptr<MemoryKind> make_vmm_kind()
{
    return std::make_unique<VmmKind>();
}

std::unique_ptr<MemoryKind> make_pool_kind()
{
    return std::make_unique<PoolKind>();
}
