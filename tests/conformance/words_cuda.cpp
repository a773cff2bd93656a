// SPDX-License-Identifier: BSD-3-Clause
// The CUDA executor: two ends as two ranks would have them, on one device or on two, each with its
// own mapping of the shared words.
#include "conformance/words_ends.h"

#include <sys/mman.h>
#include <unistd.h>

#include "support/gpu.h"

namespace
{

const size_t PAGE = 4096;

class CudaEnds : public Ends
{
  public:
    CudaEnds(int wait, bool two_devices) : wait(wait), two_devices(two_devices)
    {
        skips_posts = wait == PHI_WAIT_KERNEL;
    }
    ~CudaEnds() override
    {
        CUcontext popped;
        for (phi_executor *each : executor)
            if (each)
                each->ops->close(each);
        for (int end = 0; end < 2; end++) {
            if (words[end])
                phi_device_unmap(device[end], words[end], PAGE);
        }
        for (CUdeviceptr pointer : memory)
            cu->cuMemFree_v2(pointer);
        for (CUstream each : streams)
            if (each)
                cu->cuStreamDestroy_v2(each);
        if (pushed)
            cu->cuCtxPopCurrent_v2(&popped);
        for (phi_device *each : device)
            phi_device_close(each, PHI_FOREVER);
    }
    std::string open() override
    {
        int fd = memfd_create("words", MFD_CLOEXEC);
        std::string why = ftruncate(fd, PAGE) ? "ftruncate" : "";
        for (int end = 0; end < 2 && why.empty(); end++)
            why = open(end, fd);
        close(fd);
        if (why.empty() && two_devices)
            why = let_in();
        return why;
    }
    void *stream(int end) override
    {
        return streams[end];
    }
    int synchronize(int end, int64_t deadline) override
    {
        CUresult result;
        void *token;
        if (phi_device_enter(device[end], &token))
            return PH_EDRIVER;
        while ((result = cu->cuStreamQuery(streams[end])) == CUDA_ERROR_NOT_READY &&
               phi_now() < deadline)
            std::this_thread::yield();
        phi_device_leave(device[end], token);
        if (result == CUDA_ERROR_NOT_READY)
            return -ETIMEDOUT;
        return result == CUDA_SUCCESS ? 0 : PH_EDRIVER;
    }
    uint64_t device_address(int end, const void *inside) override
    {
        // The test names all words by the first end's mapping.
        return address[end] + (uint64_t)(static_cast<const char *>(inside) - words[0]);
    }
    void *allocate(size_t size) override
    {
        CUdeviceptr pointer = 0;
        CU_EXPECT(cu->cuMemAlloc_v2(&pointer, size));
        memory.push_back(pointer);
        return reinterpret_cast<void *>(pointer);
    }
    void write(void *to, const void *from, size_t size) override
    {
        CU_EXPECT(
            cu->cuCtxSetCurrent(phi_device_context(device[0]))); // the test has threads of its own
        CU_EXPECT(cu->cuMemcpyHtoD_v2(reinterpret_cast<CUdeviceptr>(to), from, size));
        CU_EXPECT(cu->cuStreamSynchronize(nullptr)); // more than 64 KiB may still be under way
    }
    void read(void *to, const void *from, size_t size) override
    {
        CU_EXPECT(cu->cuCtxSetCurrent(phi_device_context(device[0])));
        CU_EXPECT(cu->cuMemcpyDtoH_v2(to, reinterpret_cast<CUdeviceptr>(from), size));
    }

  private:
    const int wait;
    const bool two_devices;
    phi_device *device[2] = {nullptr, nullptr};
    const phi_driver *cu = nullptr;
    bool pushed = false;
    CUstream streams[2] = {nullptr, nullptr};
    char *words[2] = {nullptr, nullptr};
    uint64_t address[2] = {0, 0};
    std::vector<CUdeviceptr> memory;

    std::string open(int end, int fd)
    {
        const int ordinal = two_devices ? end : 0;
        PlainContext &own = context[end];
        if (phi_device_count(&own.report, own.config.libcuda) <= ordinal)
            return two_devices ? "needs two CUDA devices"
                               : "no CUDA device (PEERHOP_LIBCUDA names a driver library)";
        own.config.wait = wait;
        if (phi_device_open(&own.report, own.config.libcuda, ordinal, PHI_FOREVER, &device[end]))
            return own.error();
        const struct phi_device_info *info = phi_device_info(device[end]);
        if (!(wait == PHI_WAIT_KERNEL ? info->kernels : info->memory_operations))
            return "the device waits in another way only";
        if (wait == PHI_WAIT_MEMORY_OPERATION && info->connections == 1)
            return "both ends are here: behind the one's waits the other's posts never come";
        cu = phi_device_driver(device[end]);
        void *mapped = mmap(nullptr, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        phi_executor_params params{&own.report, &own.counters, &own.config};
        if (mapped == MAP_FAILED || phi_device_register(device[end], mapped, PAGE, &address[end]))
            return own.error();
        words[end] = static_cast<char *>(mapped);
        line[end] = reinterpret_cast<Line *>(words[0] + 64 * end);
        if (phi_cuda_executor_open(&params, device[end], &executor[end]))
            return own.error();
        cu->cuCtxSetCurrent(phi_device_context(device[end]));
        if (cu->cuStreamCreate(&streams[end], CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
            return "no stream";
        if (end == 0) {
            cu->cuCtxSetCurrent(nullptr);
            cu->cuCtxPushCurrent_v2(phi_device_context(device[0]));
            pushed = true;
        }
        return "";
    }
    // Memory lies on the first device: the second's kernels and copies reach it.
    std::string let_in()
    {
        cu->cuCtxSetCurrent(phi_device_context(device[1]));
        CUresult result = cu->cuCtxEnablePeerAccess
                              ? cu->cuCtxEnablePeerAccess(phi_device_context(device[0]), 0)
                              : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
        cu->cuCtxSetCurrent(phi_device_context(device[0]));
        return result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
                   ? ""
                   : "the two devices do not reach each other";
    }
};

} // namespace

std::unique_ptr<Ends> make_cuda_kernel_ends()
{
    return std::make_unique<CudaEnds>(PHI_WAIT_KERNEL, false);
}

std::unique_ptr<Ends> make_cuda_memory_operation_ends()
{
    return std::make_unique<CudaEnds>(PHI_WAIT_MEMORY_OPERATION, false);
}

std::unique_ptr<Ends> make_cuda_peer_ends()
{
    return std::make_unique<CudaEnds>(PHI_WAIT_KERNEL, true);
}
