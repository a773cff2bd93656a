// SPDX-License-Identifier: BSD-3-Clause
#include "faults/memory.h"

#include <dlfcn.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <peerhop/peerhop.h>

extern "C" {
#include "cuda/driver.h"
}

namespace faults
{

namespace
{

class HostMemory : public Memory
{
  public:
    explicit HostMemory(bool net) : net_(net)
    {
    }
    const char *wish() const override
    {
        return "host";
    }
    const char *const *settings() const override
    {
        static const char *const over_the_net[] = {"PEERHOP_PATH=net", "PEERHOP_NET_PROVIDER=tcp",
                                                   nullptr};
        return net_ ? over_the_net : nullptr;
    }
    void open(ph_context *context) override
    {
        context_ = context;
    }
    void close() override
    {
    }
    int alloc(size_t size, void **memory) override
    {
        return ph_host_alloc(context_, size, memory);
    }
    int free(void *memory) override
    {
        return ph_host_free(context_, memory, 0);
    }
    int stream(void **stream) override
    {
        ph_queue *queue = nullptr;
        int result = ph_queue_create(context_, &queue);
        *stream = queue;
        return result;
    }
    int synchronize(void *stream, int64_t ms) override
    {
        return ph_queue_synchronize(static_cast<ph_queue *>(stream), ms);
    }
    void write(void *to, const void *from, size_t size) override
    {
        memcpy(to, from, size);
    }
    void read(void *to, const void *from, size_t size) override
    {
        memcpy(to, from, size);
    }
    bool capture(void *, const std::function<void()> &) override
    {
        return false;
    }
    void launch(void *) override
    {
    }
    void drop_graph() override
    {
    }

  private:
    bool net_;
    ph_context *context_ = nullptr;
};

phi_driver cu; // the stand-in's own entries: no fault meets these calls

void check(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "the test's %s: %d\n", what, result);
    abort();
}
#define CU(call) check(cu.call, #call)

class StandinMemory : public Memory
{
  public:
    explicit StandinMemory(int rank) : device_(rank % 2), wish_("cuda:" + std::to_string(rank % 2))
    {
        CU(cuInit(0));
        CU(cuDevicePrimaryCtxRetain(&context_, device_));
        CU(cuCtxSetCurrent(context_));
        CU(cuStreamCreate(&copies_, CU_STREAM_NON_BLOCKING));
    }
    const char *wish() const override
    {
        return wish_.c_str();
    }
    const char *const *settings() const override
    {
        return nullptr;
    }
    void open(ph_context *) override
    {
    }
    void close() override
    {
        drop_graph();
        CU(cuCtxSetCurrent(nullptr));
        CU(cuDevicePrimaryCtxRelease_v2(device_)); // with all that is left
    }
    int alloc(size_t size, void **memory) override
    {
        CUdeviceptr address = 0;
        CU(cuMemAlloc_v2(&address, size));
        *memory = reinterpret_cast<void *>(address);
        return 0;
    }
    int free(void *memory) override
    {
        CU(cuMemFree_v2(reinterpret_cast<CUdeviceptr>(memory)));
        return 0;
    }
    int stream(void **stream) override
    {
        CUstream made = nullptr;
        CU(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
        *stream = made;
        return 0;
    }
    int synchronize(void *stream, int64_t ms) override
    {
        auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
        for (;;) {
            CUresult result = cu.cuStreamQuery(static_cast<CUstream>(stream));
            if (result != CUDA_ERROR_NOT_READY)
                check(result, "cuStreamQuery");
            if (result == CUDA_SUCCESS)
                return 0;
            if (std::chrono::steady_clock::now() >= end)
                return -ETIMEDOUT;
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
    }
    void write(void *to, const void *from, size_t size) override
    {
        CU(cuMemcpyHtoDAsync_v2(reinterpret_cast<CUdeviceptr>(to), from, size, copies_));
        CU(cuStreamSynchronize(copies_));
    }
    void read(void *to, const void *from, size_t size) override
    {
        CU(cuMemcpyDtoHAsync_v2(to, reinterpret_cast<CUdeviceptr>(from), size, copies_));
        CU(cuStreamSynchronize(copies_));
    }
    bool capture(void *stream, const std::function<void()> &body) override
    {
        CUgraph graph = nullptr;
        CU(cuStreamBeginCapture_v2(static_cast<CUstream>(stream),
                                   CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        body();
        // What failed in it may have ended it.
        if (cu.cuStreamEndCapture(static_cast<CUstream>(stream), &graph) != CUDA_SUCCESS || !graph)
            return true;
        CU(cuGraphInstantiateWithFlags(&executable_, graph, 0));
        CU(cuGraphDestroy(graph));
        return true;
    }
    void launch(void *stream) override
    {
        CU(cuGraphLaunch(executable_, static_cast<CUstream>(stream)));
    }
    void drop_graph() override
    {
        if (executable_) {
            CU(cuGraphExecDestroy(executable_));
        }
        executable_ = nullptr;
    }

  private:
    CUdevice device_;
    std::string wish_;
    CUcontext context_ = nullptr;
    CUstream copies_ = nullptr;
    CUgraphExec executable_ = nullptr;
};

} // namespace

std::unique_ptr<Memory> make_memory(const std::string &device, int rank)
{
    if (device == "host" || device == "hostnet")
        return std::make_unique<HostMemory>(device == "hostnet");
    return std::make_unique<StandinMemory>(rank);
}

std::string prepare_memory(const std::string &device)
{
    if (device == "hostnet" && !TEST_HAVE_NET)
        return "libfabric is left out of this build";
    if (device == "host" || device == "hostnet")
        return "";
    if (!*PEERHOP_STANDIN)
        return "the stand-in is not built";
    void *library = dlopen(PEERHOP_STANDIN, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return dlerror();
    void *symbol;
#define LOAD(name)                                                                                 \
    symbol = dlsym(library, #name);                                                                \
    memcpy(&cu.name, &symbol, sizeof symbol);
    PHI_CUDA_REQUIRED(LOAD)
    PHI_CUDA_OPTIONAL(LOAD)
    PHI_CUDA_TESTS(LOAD)
#undef LOAD
    setenv("PEERHOP_LIBCUDA", PEERHOP_STANDIN, 1);
    return "";
}

} // namespace faults
