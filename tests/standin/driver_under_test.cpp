// SPDX-License-Identifier: BSD-3-Clause
#include "standin/driver_under_test.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <thread>

// A kernel that waits, for any GPU: the driver compiles it. The stand-in knows it by its name.
extern const char SPIN_PTX[] = R"(.version 6.3
.target sm_70
.address_size 64
.visible .entry phi_test_spin(.param .align 8 .b8 args[8])
{
    .reg .pred %p;
    .reg .b32 %r;
    .reg .b64 %rd;
    ld.param.u64 %rd, [args];
again:
    ld.acquire.sys.u32 %r, [%rd];
    setp.lt.s32 %p, %r, 1;
    @%p bra again;
    ret;
}
)";

static std::string library_name()
{
    const char *name = getenv("PEERHOP_LIBCUDA");
    return name && *name ? name : "libcuda.so.1";
}

bool driver_is_standin()
{
    return library_name().find("standin") != std::string::npos;
}

static const phi_driver *load(std::string *why)
{
    static phi_driver driver;
    // Suites that hold for both do what the stand-in would end the process for.
    setenv("PEERHOP_STANDIN_CHECK", "0", 0);
    void *handle = dlopen(library_name().c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        *why = dlerror();
        return nullptr;
    }
    // What these suites call; the stand-in has no DMA-BUFs.
#define LOAD(symbol)                                                                               \
    driver.symbol = reinterpret_cast<decltype(driver.symbol)>(dlsym(handle, #symbol));             \
    if (!driver.symbol && strcmp(#symbol, "cuMemGetHandleForAddressRange") != 0) {                 \
        *why = library_name() + " lacks " #symbol;                                                 \
        return nullptr;                                                                            \
    }
    PHI_CUDA_REQUIRED(LOAD)
    PHI_CUDA_OPTIONAL(LOAD)
    PHI_CUDA_TESTS(LOAD)
#undef LOAD
    CUresult result = driver.cuInit(0);
    if (result != CUDA_SUCCESS) {
        *why = "cuInit: " + std::to_string(result);
        return nullptr;
    }
    return &driver;
}

const phi_driver *driver_under_test(std::string *why)
{
    static std::string reason;
    static const phi_driver *driver = load(&reason);
    *why = reason;
    return driver;
}

std::string error_name(CUresult result)
{
    std::string why;
    const char *name = nullptr;
    const phi_driver *driver = driver_under_test(&why);
    if (!driver || driver->cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
        return "error " + std::to_string(result);
    return name;
}

bool eventually(const std::function<bool()> &condition, int milliseconds)
{
    auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
    while (!condition()) {
        if (std::chrono::steady_clock::now() > end)
            return false;
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return true;
}

void DriverTest::SetUp()
{
    std::string why;
    d = driver_under_test(&why);
    if (!d && driver_is_standin())
        FAIL() << why;
    if (!d)
        GTEST_SKIP() << "no driver: " << why;
    CU_OK(d->cuDeviceGetCount(&count_));
    CU_OK(d->cuDevicePrimaryCtxRetain(&context_, 0));
    CU_OK(d->cuCtxSetCurrent(context_));
    CU_OK(d->cuStreamCreate(&own_, CU_STREAM_NON_BLOCKING));
}

void DriverTest::TearDown()
{
    if (!context_)
        return;
    if (module_) {
        CU_OK(d->cuModuleUnload(module_));
    }
    CU_OK(d->cuStreamDestroy_v2(own_));
    CU_OK(d->cuCtxSetCurrent(nullptr));
    CU_OK(d->cuDevicePrimaryCtxRelease_v2(0)); // with all that a test has left
}

bool DriverTest::finishes(CUstream stream, int milliseconds)
{
    return eventually([&] { return d->cuStreamQuery(stream) == CUDA_SUCCESS; }, milliseconds);
}

CUdeviceptr DriverTest::alloc(size_t size)
{
    CUdeviceptr address = 0;
    CU_EXPECT(d->cuMemAlloc_v2(&address, size), CUDA_SUCCESS);
    return address;
}

CUstream DriverTest::stream(unsigned flags)
{
    CUstream created = nullptr;
    CU_EXPECT(d->cuStreamCreate(&created, flags), CUDA_SUCCESS);
    return created;
}

CUfunction DriverTest::spin_kernel()
{
    CUfunction function = nullptr;
    if (!module_) {
        CU_EXPECT(d->cuModuleLoadData(&module_, SPIN_PTX), CUDA_SUCCESS);
    }
    CU_EXPECT(d->cuModuleGetFunction(&function, module_, "phi_test_spin"), CUDA_SUCCESS);
    CU_EXPECT(d->cuFuncLoad(function), CUDA_SUCCESS);
    return function;
}

static CUmemAllocationProp vmm_prop(bool exportable)
{
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.requestedHandleTypes =
        exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    return prop;
}

CUmemGenericAllocationHandle DriverTest::vmm_create(size_t size, bool exportable)
{
    CUmemAllocationProp prop = vmm_prop(exportable);
    CUmemGenericAllocationHandle handle = 0;
    CU_EXPECT(d->cuMemCreate(&handle, size, &prop, 0), CUDA_SUCCESS);
    return handle;
}

CUdeviceptr DriverTest::vmm_map(CUmemGenericAllocationHandle handle, size_t size)
{
    CUdeviceptr address = 0;
    CU_EXPECT(d->cuMemAddressReserve(&address, size, 0, 0, 0), CUDA_SUCCESS);
    CU_EXPECT(d->cuMemMap(address, size, 0, handle, 0), CUDA_SUCCESS);
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CU_EXPECT(d->cuMemSetAccess(address, size, &access, 1), CUDA_SUCCESS);
    return address;
}

void DriverTest::vmm_unmap(CUdeviceptr address, size_t size)
{
    CU_EXPECT(d->cuMemUnmap(address, size), CUDA_SUCCESS);
    CU_EXPECT(d->cuMemAddressFree(address, size), CUDA_SUCCESS);
}

CUmemoryPool DriverTest::pool(bool exportable)
{
    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    props.handleTypes =
        exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    CUmemoryPool created = nullptr;
    CU_EXPECT(d->cuMemPoolCreate(&created, &props), CUDA_SUCCESS);
    return created;
}

uint64_t DriverTest::value(CUdeviceptr address)
{
    uint64_t read = 0;
    CU_EXPECT(d->cuMemcpyDtoHAsync_v2(&read, address, sizeof(read), own_), CUDA_SUCCESS);
    CU_EXPECT(d->cuStreamSynchronize(own_), CUDA_SUCCESS);
    return read;
}

void DriverTest::set_value(CUdeviceptr address, uint64_t value)
{
    CU_EXPECT(d->cuMemcpyHtoDAsync_v2(address, &value, sizeof(value), own_), CUDA_SUCCESS);
    CU_EXPECT(d->cuStreamSynchronize(own_), CUDA_SUCCESS);
}
