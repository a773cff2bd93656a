// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "e2e/device.h"
#include "e2e/ranks.h"

extern "C" {
#include "cuda/driver.h"
#include "cuda/kernels.h"
}

namespace
{

const struct phi_driver *load(std::string *why)
{
    char text[256] = "";
    const char *library = getenv("PEERHOP_LIBCUDA");
    const struct phi_driver *driver =
        phi_driver_load(library ? library : "libcuda.so.1", text, sizeof text);
    if (driver == nullptr && why != nullptr)
        *why = text;
    return driver;
}

class CudaDevice : public Device
{
  public:
    CudaDevice(const struct phi_driver *driver, int rank) : cu_(*driver)
    {
        int count = 0;
        check(cu_.cuDeviceGetCount(&count), "cuDeviceGetCount");
        check(cu_.cuDeviceGet(&device_, rank % count), "cuDeviceGet");
        check(cu_.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
        check(cu_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
        check(cu_.cuStreamCreate(&copies_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        wish_ = "cuda:" + std::to_string(rank % count);
    }
    ~CudaDevice() override
    {
        // What else there is ends with the process.
        for (auto [memory, size] : vmm_)
            free_vmm(memory, size);
        cu_.cuDevicePrimaryCtxRelease_v2(device_);
    }

    bool host() const override
    {
        return false;
    }
    const char *wish() const override
    {
        return wish_.c_str();
    }

    void *alloc(size_t size, const std::string &kind) override
    {
        CUdeviceptr memory = 0;
        if (kind.empty())
            check(cu_.cuMemAlloc_v2(&memory, size), "cuMemAlloc");
        else if (kind == "vmm")
            memory = alloc_vmm(size);
        else if (kind == "pool")
            memory = alloc_pool(size);
        else if (kind == "default-pool")
            memory = alloc_default_pool(size);
        else if (kind == "pinned")
            memory = alloc_pinned(size);
        else
            rank_failed(__FILE__, __LINE__, "no memory of kind " + kind);
        kinds_[memory] = kind;
        return reinterpret_cast<void *>(memory);
    }
    void release(void *memory) override
    {
        CUdeviceptr p = reinterpret_cast<CUdeviceptr>(memory);
        if (kinds_[p].empty())
            check(cu_.cuMemFree_v2(p), "cuMemFree");
        else if (kinds_[p] == "pool" || kinds_[p] == "default-pool")
            check(cu_.cuMemFreeAsync(p, copies_), "cuMemFreeAsync");
        else if (kinds_[p] == "vmm") {
            free_vmm(p, vmm_[p]);
            vmm_.erase(p);
        } else if (kinds_[p] == "pinned")
            check(cu_.cuMemFreeHost(memory), "cuMemFreeHost");
    }
    void load_kernels(int times) override
    {
        for (int i = 0; i < times && phi_kernels_size > 0; i++) {
            CUmodule module;
            CUfunction function;
            check(cu_.cuModuleLoadData(&module, phi_kernels), "cuModuleLoadData");
            for (const char *name : phi_kernel_names)
                check(cu_.cuModuleGetFunction(&function, module, name), "cuModuleGetFunction");
            check(cu_.cuModuleUnload(module), "cuModuleUnload");
        }
    }
    void write(void *to, const void *from, size_t size) override
    {
        check(cu_.cuMemcpyHtoDAsync_v2(reinterpret_cast<CUdeviceptr>(to), from, size, copies_),
              "cuMemcpyHtoDAsync");
        check(cu_.cuStreamSynchronize(copies_), "cuStreamSynchronize");
    }
    void read(void *to, const void *from, size_t size) override
    {
        check(cu_.cuMemcpyDtoHAsync_v2(to, reinterpret_cast<CUdeviceptr>(from), size, copies_),
              "cuMemcpyDtoHAsync");
        check(cu_.cuStreamSynchronize(copies_), "cuStreamSynchronize");
    }
    void *stream(const std::string &kind) override
    {
        if (kind == "legacy")
            return nullptr;
        if (kind == "per-thread")
            return CU_STREAM_PER_THREAD;
        CUstream stream;
        check(cu_.cuStreamCreate(&stream,
                                 kind == "blocking" ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING),
              "cuStreamCreate");
        return stream;
    }
    bool synchronize(void *stream, int64_t ms) override
    {
        const auto begin = std::chrono::steady_clock::now(),
                   end = begin + std::chrono::milliseconds(ms);
        for (auto now = begin;; now = std::chrono::steady_clock::now()) {
            CUresult result = cu_.cuStreamQuery(static_cast<CUstream>(stream));
            if (result == CUDA_SUCCESS)
                return true;
            if (result != CUDA_ERROR_NOT_READY)
                check(result, "cuStreamQuery");
            if (now >= end)
                return false;
            std::this_thread::sleep_for(std::clamp<std::chrono::nanoseconds>(
                (now - begin) / 8, std::chrono::microseconds(50), std::chrono::milliseconds(1)));
        }
    }
    void enter_thread() override
    {
        check(cu_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    }
    void copy(void *stream, void *to, const void *from, size_t size) override
    {
        check(cu_.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to),
                                reinterpret_cast<CUdeviceptr>(from), size,
                                static_cast<CUstream>(stream)),
              "cuMemcpyAsync");
    }
    void follow(void *stream, void *other) override
    {
        CUevent event;
        check(cu_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
        check(cu_.cuEventRecord(event, static_cast<CUstream>(other)), "cuEventRecord");
        check(cu_.cuStreamWaitEvent(static_cast<CUstream>(stream), event, 0), "cuStreamWaitEvent");
        check(cu_.cuEventDestroy_v2(event), "cuEventDestroy");
    }
    void call(void *stream, std::function<void()> function) override
    {
        auto *copy = new std::function<void()>(std::move(function));
        auto run = [](void *opaque) {
            auto *f = static_cast<std::function<void()> *>(opaque);
            (*f)();
            delete f;
        };
        check(cu_.cuLaunchHostFunc(static_cast<CUstream>(stream), run, copy), "cuLaunchHostFunc");
    }
    void slow_fill(void *stream, void *memory, size_t size, uint8_t value, unsigned us) override
    {
        call(stream, [us] { std::this_thread::sleep_for(std::chrono::microseconds(us)); });
        check(cu_.cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(memory), value, size,
                                  static_cast<CUstream>(stream)),
              "cuMemsetD8Async");
    }
    void *capture(void *stream, std::function<void()> body, bool global) override
    {
        CUgraph graph;
        CUgraphExec executable;
        check(cu_.cuStreamBeginCapture_v2(static_cast<CUstream>(stream),
                                          global ? CU_STREAM_CAPTURE_MODE_GLOBAL
                                                 : CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
              "cuStreamBeginCapture");
        body();
        check(cu_.cuStreamEndCapture(static_cast<CUstream>(stream), &graph), "cuStreamEndCapture");
        check(cu_.cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiate");
        check(cu_.cuGraphDestroy(graph), "cuGraphDestroy");
        return executable;
    }
    void launch(void *graph, void *stream) override
    {
        check(cu_.cuGraphLaunch(static_cast<CUgraphExec>(graph), static_cast<CUstream>(stream)),
              "cuGraphLaunch");
    }
    void destroy(void *graph) override
    {
        check(cu_.cuGraphExecDestroy(static_cast<CUgraphExec>(graph)), "cuGraphExecDestroy");
    }

  private:
    void check(CUresult result, const char *what)
    {
        if (result != CUDA_SUCCESS)
            rank_failed(__FILE__, __LINE__, std::string(what) + ": " + phi_cuda_name(&cu_, result));
    }
    CUdeviceptr alloc_vmm(size_t size)
    {
        CUmemAllocationProp properties = {};
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        size_t unit = 0;
        check(
            cu_.cuMemGetAllocationGranularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            "granularity");
        size = (size + unit - 1) / unit * unit;
        CUmemGenericAllocationHandle handle;
        CUdeviceptr memory;
        check(cu_.cuMemCreate(&handle, size, &properties, 0), "cuMemCreate");
        check(cu_.cuMemAddressReserve(&memory, size, 0, 0, 0), "cuMemAddressReserve");
        check(cu_.cuMemMap(memory, size, 0, handle, 0), "cuMemMap");
        CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        check(cu_.cuMemSetAccess(memory, size, &access, 1), "cuMemSetAccess");
        check(cu_.cuMemRelease(handle), "cuMemRelease"); // the mapping holds it
        vmm_[memory] = size;
        return memory;
    }
    void free_vmm(CUdeviceptr memory, size_t size)
    {
        check(cu_.cuMemUnmap(memory, size), "cuMemUnmap");
        check(cu_.cuMemAddressFree(memory, size), "cuMemAddressFree");
    }
    CUdeviceptr alloc_pool(size_t size)
    {
        if (pool_ == nullptr) {
            CUmemPoolProps properties = {};
            properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
            properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
            check(cu_.cuMemPoolCreate(&pool_, &properties), "cuMemPoolCreate");
        }
        CUdeviceptr memory;
        check(cu_.cuMemAllocFromPoolAsync(&memory, size, pool_, copies_),
              "cuMemAllocFromPoolAsync");
        check(cu_.cuStreamSynchronize(copies_), "cuStreamSynchronize");
        return memory;
    }
    CUdeviceptr alloc_default_pool(size_t size)
    {
        CUdeviceptr memory;
        check(cu_.cuMemAllocAsync(&memory, size, copies_), "cuMemAllocAsync");
        check(cu_.cuStreamSynchronize(copies_), "cuStreamSynchronize");
        return memory;
    }
    CUdeviceptr alloc_pinned(size_t size)
    {
        void *memory;
        check(cu_.cuMemHostAlloc(&memory, size, 0), "cuMemHostAlloc");
        return reinterpret_cast<CUdeviceptr>(memory);
    }

    const struct phi_driver &cu_;
    CUdevice device_ = 0;
    CUcontext context_ = nullptr;
    CUstream copies_ = nullptr;
    CUmemoryPool pool_ = nullptr;
    std::map<CUdeviceptr, std::string> kinds_;
    std::map<CUdeviceptr, size_t> vmm_; // with their sizes
    std::string wish_;
};

} // namespace

std::unique_ptr<Device> make_cuda_device(int rank)
{
    std::string why;
    const struct phi_driver *driver = load(&why);
    if (driver == nullptr)
        rank_failed(__FILE__, __LINE__, "no driver: " + why);
    return std::make_unique<CudaDevice>(driver, rank);
}

bool device_available(const std::string &name, std::string *why_not)
{
    if (name == "host")
        return true;
    if (name == "standin") {
        if (*PEERHOP_STANDIN != 0)
            return true;
        *why_not = "the stand-in is not built";
        return false;
    }
    int count = 0;
    const struct phi_driver *driver = load(why_not);
    if (driver != nullptr && driver->cuDeviceGetCount(&count) == CUDA_SUCCESS && count > 0)
        return true;
    if (why_not->empty())
        *why_not = "no CUDA device";
    return false;
}

bool gpus_linked(std::string *why_not)
{
    int count = 0, here = 0, there = 0;
    const struct phi_driver *driver = load(why_not);
    if (driver == nullptr)
        return false;
    *why_not = "no two GPUs that reach each other";
    return driver->cuDeviceGetCount(&count) == CUDA_SUCCESS && count >= 2 &&
           driver->cuDeviceCanAccessPeer(&here, 0, 1) == CUDA_SUCCESS &&
           driver->cuDeviceCanAccessPeer(&there, 1, 0) == CUDA_SUCCESS && here && there;
}
