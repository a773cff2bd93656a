// SPDX-License-Identifier: BSD-3-Clause
// A device of the CUDA driver, or of what stands for it (PEERHOP_LIBCUDA).
#include "random/machine.h"

#include <chrono>
#include <cstdlib>
#include <map>
#include <thread>
#include <vector>

#include <cuda.h>
#include <dlfcn.h>

namespace
{

void *library()
{
    const char *name = getenv("PEERHOP_LIBCUDA");
    static void *const handle = dlopen(name != nullptr ? name : "libcuda.so.1", RTLD_NOW);
    return handle;
}

void check(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS)
        fail(std::string(what) + ": CUDA error " + std::to_string(result));
}

// A call of the driver, which is loaded when the first one is made.
#define CU(symbol, ...)                                                                            \
    do {                                                                                           \
        static const auto call =                                                                   \
            reinterpret_cast<decltype(&symbol)>(dlsym(library(), NAME(symbol)));                   \
        if (call == nullptr)                                                                       \
            fail("the driver has no " NAME(symbol));                                               \
        check(call(__VA_ARGS__), #symbol);                                                         \
    } while (0)
#define NAME(symbol)  NAME_(symbol)
#define NAME_(symbol) #symbol

class CudaMachine : public Machine
{
  public:
    explicit CudaMachine(int rank)
    {
        int count = 0;
        if (library() == nullptr)
            fail(std::string("no driver: ") + dlerror());
        CU(cuInit, 0);
        CU(cuDeviceGetCount, &count);
        if (count == 0)
            fail("the driver has no device");
        ordinal_ = rank % count;
        CU(cuDeviceGet, &device_, ordinal_);
        CU(cuDevicePrimaryCtxRetain, &cuda_, device_);
        CU(cuCtxSetCurrent, cuda_);
        CU(cuEventCreate, &event_, CU_EVENT_DISABLE_TIMING);
    }
    bool host() const override
    {
        return false;
    }
    std::string wish() const override
    {
        return "cuda:" + std::to_string(ordinal_);
    }
    void begin(struct ph_context *context, int streams) override
    {
        context_ = context;
        while (streams_.size() < (size_t)streams) {
            streams_.emplace_back();
            CU(cuStreamCreate, &streams_.back(), CU_STREAM_NON_BLOCKING);
        }
    }
    void *stream(int i) override
    {
        return streams_[(size_t)i];
    }
    void end() override
    {
    }
    void *alloc(size_t size, Kind kind) override;
    void free(void *memory, size_t size, Kind kind) override;
    uint8_t *near_memory(size_t size) override
    {
        CUdeviceptr memory;
        CU(cuMemAlloc, &memory, size);
        return reinterpret_cast<uint8_t *>(memory);
    }
    uint8_t *far_memory(size_t size) override
    {
        void *memory;
        CU(cuMemHostAlloc, &memory, size, 0);
        return static_cast<uint8_t *>(memory);
    }
    void copy(int stream, void *to, const void *from, size_t size) override
    {
        CU(cuMemcpyAsync, reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from),
           size, streams_[(size_t)stream]);
    }
    void fill(int stream, void *to, uint8_t value, size_t size) override
    {
        CU(cuMemsetD8Async, reinterpret_cast<CUdeviceptr>(to), value, size,
           streams_[(size_t)stream]);
    }
    void order(int from, int to) override
    {
        CU(cuEventRecord, event_, streams_[(size_t)from]);
        CU(cuStreamWaitEvent, streams_[(size_t)to], event_, 0);
    }
    bool done(int stream, int64_t ms) override;
    void begin_capture(int stream) override
    {
        CU(cuStreamBeginCapture, streams_[(size_t)stream], CU_STREAM_CAPTURE_MODE_RELAXED);
    }
    void *end_capture(int stream) override
    {
        CUgraph graph;
        CUgraphExec executable;
        CU(cuStreamEndCapture, streams_[(size_t)stream], &graph);
        CU(cuGraphInstantiateWithFlags, &executable, graph, 0);
        CU(cuGraphDestroy, graph);
        return executable;
    }
    void launch(void *graph, int stream) override
    {
        CU(cuGraphLaunch, static_cast<CUgraphExec>(graph), streams_[(size_t)stream]);
    }
    void destroy(void *graph) override
    {
        CU(cuGraphExecDestroy, static_cast<CUgraphExec>(graph));
    }

  private:
    CUdeviceptr alloc_vmm(size_t size);
    CUdeviceptr alloc_pool(size_t size);

    int ordinal_ = 0;
    CUdevice device_ = 0;
    CUcontext cuda_ = nullptr;
    CUevent event_ = nullptr;
    CUmemoryPool pool_ = nullptr;
    struct ph_context *context_ = nullptr;
    std::vector<CUstream> streams_;
    std::map<CUdeviceptr, size_t> vmm_; // with their sizes
};

CUdeviceptr CudaMachine::alloc_vmm(size_t size)
{
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device_;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    size_t unit = 0;
    CU(cuMemGetAllocationGranularity, &unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    size = (size + unit - 1) / unit * unit;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr memory;
    CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CU(cuMemCreate, &handle, size, &properties, 0);
    CU(cuMemAddressReserve, &memory, size, 0, 0, 0);
    CU(cuMemMap, memory, size, 0, handle, 0);
    CU(cuMemSetAccess, memory, size, &access, 1);
    CU(cuMemRelease, handle); // the mapping holds it
    vmm_[memory] = size;
    return memory;
}

CUdeviceptr CudaMachine::alloc_pool(size_t size)
{
    if (pool_ == nullptr) {
        CUmemPoolProps properties = {};
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.id = device_;
        CU(cuMemPoolCreate, &pool_, &properties);
    }
    CUdeviceptr memory;
    CU(cuMemAllocFromPoolAsync, &memory, size, pool_, streams_[0]);
    CU(cuStreamSynchronize, streams_[0]);
    return memory;
}

void *CudaMachine::alloc(size_t size, Kind kind)
{
    CUdeviceptr memory = 0;
    void *host = nullptr;
    if (kind == Kind::HOST) {
        if (ph_host_alloc(context_, size, &host))
            fail("no host memory");
        return host;
    }
    if (kind == Kind::VMM)
        memory = alloc_vmm(size);
    else if (kind == Kind::POOL)
        memory = alloc_pool(size);
    else
        CU(cuMemAlloc, &memory, size);
    return reinterpret_cast<void *>(memory);
}

void CudaMachine::free(void *memory, size_t, Kind kind)
{
    const auto pointer = reinterpret_cast<CUdeviceptr>(memory);
    if (kind == Kind::HOST) {
        if (ph_host_free(context_, memory, 0))
            fail("host memory that was released cannot be freed");
    } else if (kind == Kind::VMM) {
        CU(cuMemUnmap, pointer, vmm_[pointer]);
        CU(cuMemAddressFree, pointer, vmm_[pointer]);
        vmm_.erase(pointer);
    } else if (kind == Kind::POOL) {
        CU(cuMemFreeAsync, pointer, streams_[0]);
        CU(cuStreamSynchronize, streams_[0]);
    } else {
        CU(cuMemFree, pointer);
    }
}

bool CudaMachine::done(int stream, int64_t ms)
{
    static const auto query =
        reinterpret_cast<decltype(&cuStreamQuery)>(dlsym(library(), "cuStreamQuery"));
    const auto begin = std::chrono::steady_clock::now();
    for (;;) {
        const CUresult result = query(streams_[(size_t)stream]);
        if (result == CUDA_SUCCESS)
            return true;
        if (result != CUDA_ERROR_NOT_READY)
            check(result, "cuStreamQuery");
        const auto past = std::chrono::steady_clock::now() - begin;
        if (past >= std::chrono::milliseconds(ms))
            return false;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
}

} // namespace

std::unique_ptr<Machine> make_cuda_machine(int rank)
{
    return std::make_unique<CudaMachine>(rank);
}

int cuda_devices(std::string *why_not)
{
    int count = 0;
    if (library() == nullptr) {
        *why_not = dlerror();
        return 0;
    }
    const auto init = reinterpret_cast<decltype(&cuInit)>(dlsym(library(), "cuInit"));
    const auto get =
        reinterpret_cast<decltype(&cuDeviceGetCount)>(dlsym(library(), "cuDeviceGetCount"));
    if (init == nullptr || get == nullptr || init(0) != CUDA_SUCCESS ||
        get(&count) != CUDA_SUCCESS || count == 0)
        *why_not = "no CUDA device";
    return count;
}
