// SPDX-License-Identifier: BSD-3-Clause
#include "fake_device.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

#include "base/report.h"
#include "cuda/driver.h"
#include "fuzz.h"

// One mapping at a time is all that an import makes, beside an own allocation of this process.
#define MAPPED 0x700000000000ull
#define OWN    0x600000000000ull
enum { OWN_SIZE = 65536, OWN_ID = 5 };

struct phi_device {
    struct phi_device_info info;
};

static struct phi_device device = {.info = {.vmm_fd = true, .pools = true}};
static int opened, calls_left;
static size_t size_mapped;
static bool silent;

struct phi_device *fake_device(void)
{
    return &device;
}

void fake_begin(unsigned mood)
{
    silent = false;
    opened = 0;
    calls_left = mood & 7 ? (int)(mood & 7) : -1;
    size_mapped = (size_t)4096 << (mood >> 3 & 7);
}

bool fake_end(void)
{
    return opened == 0;
}

bool fake_silent(void)
{
    return silent;
}

bool fake_holds(const void *address, size_t size)
{
    uint64_t at = (uintptr_t)address;

    if (at >= MAPPED)
        return at == MAPPED && size <= size_mapped;
    return at >= OWN && at - OWN <= OWN_SIZE && size <= OWN_SIZE - (at - OWN);
}

// call counts down to the one that fails; delta is what it opens or closes.
static CUresult call(int delta)
{
    if (calls_left > 0 && --calls_left == 0 && delta >= 0)
        return CUDA_ERROR_INVALID_VALUE;
    opened += delta;
    return CUDA_SUCCESS;
}

static CUresult open_handle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    (void)handle;
    (void)flags;
    *address = MAPPED;
    return call(1);
}

static CUresult close_handle(CUdeviceptr address)
{
    HOLD(address == MAPPED);
    return call(-1);
}

static CUresult range_of(CUdeviceptr *base, size_t *size, CUdeviceptr at)
{
    *base = at >= MAPPED ? MAPPED : OWN;
    *size = at >= MAPPED ? size_mapped : OWN_SIZE;
    CUresult result = call(0);
    silent |= result != CUDA_SUCCESS;
    return result;
}

static CUresult attribute(void *value, CUpointer_attribute name, CUdeviceptr at)
{
    if (at - OWN >= OWN_SIZE)
        return CUDA_ERROR_INVALID_VALUE;
    if (name == CU_POINTER_ATTRIBUTE_CONTEXT)
        *(CUcontext *)value = NULL;
    else
        *(uint64_t *)value = name == CU_POINTER_ATTRIBUTE_BUFFER_ID ? OWN_ID : 0;
    return call(0);
}

// As struct pointer of src/memory/pointer.c asks.
static CUresult attributes(unsigned n, CUpointer_attribute *names, void **values, CUdeviceptr at)
{
    for (unsigned i = 0; at - OWN < OWN_SIZE && i < n; i++) {
        if (names[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
            *(uint32_t *)values[i] = CU_MEMORYTYPE_DEVICE;
        if (names[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)values[i] = 0;
        if (names[i] == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
            *(uint32_t *)values[i] = 1;
    }
    return call(0);
}

static CUresult import_physical(CUmemGenericAllocationHandle *handle, void *fd,
                                CUmemAllocationHandleType type)
{
    (void)fd;
    (void)type;
    *handle = 7;
    return call(1);
}

static CUresult release_physical(CUmemGenericAllocationHandle handle)
{
    HOLD(handle == 7);
    return call(-1);
}

static CUresult reserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr at,
                        unsigned long long flags)
{
    (void)size;
    (void)alignment;
    (void)at;
    (void)flags;
    *address = MAPPED;
    return call(1);
}

static CUresult unreserve(CUdeviceptr address, size_t size)
{
    (void)size;
    HOLD(address == MAPPED);
    return call(-1);
}

static CUresult map(CUdeviceptr address, size_t size, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    (void)flags;
    HOLD(address == MAPPED && offset == 0 && handle == 7);
    return size <= size_mapped ? call(1) : CUDA_ERROR_INVALID_VALUE; // as the driver does
}

static CUresult unmap(CUdeviceptr address, size_t size)
{
    (void)size;
    HOLD(address == MAPPED);
    return call(-1);
}

static CUresult set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
                           size_t count)
{
    (void)size;
    HOLD(address == MAPPED && access && count == 1);
    return call(0);
}

static CUresult import_pool(CUmemoryPool *pool, void *fd, CUmemAllocationHandleType type,
                            unsigned long long flags)
{
    (void)fd;
    (void)type;
    (void)flags;
    *pool = (CUmemoryPool)&device;
    return call(1);
}

static CUresult pool_access(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
    HOLD(pool && access && count == 1);
    return call(0);
}

static CUresult import_pointer(CUdeviceptr *address, CUmemoryPool pool,
                               CUmemPoolPtrExportData *data)
{
    HOLD(pool && data);
    *address = MAPPED;
    return call(1);
}

static CUresult destroy_pool(CUmemoryPool pool)
{
    HOLD(pool);
    return call(-1);
}

static const struct phi_driver driver = {
    .cuIpcOpenMemHandle_v2 = open_handle,
    .cuIpcCloseMemHandle = close_handle,
    .cuMemGetAddressRange_v2 = range_of,
    .cuPointerGetAttribute = attribute,
    .cuPointerGetAttributes = attributes,
    .cuMemImportFromShareableHandle = import_physical,
    .cuMemRelease = release_physical,
    .cuMemAddressReserve = reserve,
    .cuMemAddressFree = unreserve,
    .cuMemMap = map,
    .cuMemUnmap = unmap,
    .cuMemSetAccess = set_access,
    .cuMemPoolImportFromShareableHandle = import_pool,
    .cuMemPoolSetAccess = pool_access,
    .cuMemPoolImportPointer = import_pointer,
    .cuMemPoolDestroy = destroy_pool,
    .cuMemFree_v2 = close_handle,
};

const struct phi_device_info *phi_device_info(const struct phi_device *of)
{
    return &of->info;
}

const struct phi_driver *phi_device_driver(const struct phi_device *of)
{
    (void)of;
    return &driver;
}

uint64_t phi_device_bytes(const struct phi_device *of)
{
    (void)of;
    return 0;
}

int phi_device_enter(struct phi_device *of, void **token)
{
    *token = of;
    return 0;
}

void phi_device_leave(struct phi_device *of, void *token)
{
    HOLD(of == token);
}

static void *registered; // one at a time is all that a record makes

int phi_device_view(struct phi_device *of, uint64_t host, uint64_t *address)
{
    (void)of;
    *address = host;
    return 0;
}

int phi_device_register(struct phi_device *of, void *base, size_t size, uint64_t *address)
{
    (void)of;
    (void)size;
    HOLD(registered == NULL);
    *address = (uintptr_t)base;
    if (call(1) != CUDA_SUCCESS)
        return -ENOMEM;
    registered = base;
    return 0;
}

void phi_device_unmap(struct phi_device *of, void *base, size_t size)
{
    (void)of;
    if (base == registered) {
        registered = NULL;
        call(-1);
    }
    munmap(base, size);
}

void phi_device_unmap_now(struct phi_device *of, void *base, size_t size)
{
    phi_device_unmap(of, base, size);
}

void phi_device_hand(struct phi_device *of, struct phi_closing *closing)
{
    (void)of;
    closing->close(closing);
}

void phi_device_tell(struct phi_device *of, CUresult result, const char *what)
{
    (void)of;
    (void)result;
    (void)what;
}

const char *phi_cuda_name(const struct phi_driver *of, CUresult result)
{
    (void)of;
    return result == CUDA_SUCCESS ? "success" : "failure";
}

int phi_cuda_result(struct phi_report *report, const struct phi_driver *of, CUresult result,
                    const char *format, ...)
{
    char text[256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return phi_fail(report, PH_EDRIVER, "%s: %s", text, phi_cuda_name(of, result));
}
