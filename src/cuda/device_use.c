// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/device.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "cuda/device_state.h"
#include "cuda/kernel_args.h"

// Copies of the probe go through a small pinned buffer: from pageable memory they would not be
// asynchronous.
#define STAGING_SIZE 65536

#define WARM_UP_MS   10000
#define WARM_UP_HALF 131072

const struct phi_driver *phi_device_driver(const struct phi_device *device)
{
    return device->driver;
}

CUdevice phi_device_handle(const struct phi_device *device)
{
    return device->handle;
}

CUcontext phi_device_context(const struct phi_device *device)
{
    return device->context;
}

CUfunction phi_device_kernel(const struct phi_device *device, enum phi_kernel kernel)
{
    return device->kernel[kernel];
}

const struct phi_device_info *phi_device_info(const struct phi_device *device)
{
    return &device->info;
}

bool phi_device_holds(const struct phi_device *device, const void *address)
{
    CUmemorytype type = (CUmemorytype)0;
    CUpointer_attribute name = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    void *value = &type;
    // For one attribute alone an address that the driver does not know is an error, of which tools
    // tell the user.
    return address != NULL &&
           device->driver->cuPointerGetAttributes(
               1, &name, &value, (CUdeviceptr)(uintptr_t)address) == CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE;
}

int phi_device_count_why(const char *library, char *why, size_t why_size)
{
    int count = 0;
    const struct phi_driver *driver = phi_driver_load(library, why, why_size);
    if (driver == NULL)
        return 0;
    CUresult result = driver->cuDeviceGetCount(&count);
    if (result == CUDA_SUCCESS && count > 0)
        return count;
    if (result == CUDA_SUCCESS)
        snprintf(why, why_size, "the driver shows no device");
    else
        snprintf(why, why_size, "cuDeviceGetCount: %s", phi_cuda_name(driver, result));
    return 0;
}

int phi_device_count(struct phi_report *report, const char *library)
{
    char why[512];
    int count = phi_device_count_why(library, why, sizeof why);
    if (count == 0)
        phi_log(report, PH_LOG_INFO, "%s", why);
    return count;
}

int phi_device_current(struct phi_report *report, const char *library)
{
    char why[512];
    CUcontext current = NULL;
    CUdevice device;
    const struct phi_driver *driver = phi_driver_load(library, why, sizeof why);
    if (driver == NULL) {
        phi_log(report, PH_LOG_INFO, "%s", why);
        return -1;
    }
    if (driver->cuCtxGetCurrent(&current) != CUDA_SUCCESS || current == NULL ||
        driver->cuCtxGetDevice(&device) != CUDA_SUCCESS)
        return -1;
    return (int)device;
}

static int attribute(const struct phi_device *device, CUdevice_attribute name)
{
    int value = 0;
    if (device->driver->cuDeviceGetAttribute(&value, name, device->handle) != CUDA_SUCCESS)
        return 0; // unknown to an older driver: absent
    return value;
}

// The queues that the driver makes for streams; it reads the variable itself, 1 to 32.
static int connections(void)
{
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    long value = text ? strtol(text, NULL, 10) : 0;
    if (value < 1)
        return 8;
    return value > 32 ? 32 : (int)value;
}

static void read_capabilities(struct phi_device *device)
{
    const struct phi_driver *driver = device->driver;
    struct phi_device_info *info = &device->info;
    // One attribute for both: numbers are 64-bit words, and no device has only the 32-bit half.
    info->memory_operations = attribute(device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
    info->flush_remote_writes = attribute(device, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES);
    info->vmm_fd =
        driver->cuMemRetainAllocationHandle && driver->cuMemExportToShareableHandle &&
        driver->cuMemImportFromShareableHandle && driver->cuMemAddressReserve &&
        attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
    info->pools = driver->cuMemPoolExportPointer && driver->cuMemPoolImportPointer &&
                  attribute(device, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) &&
                  (attribute(device, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES) &
                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    info->compute_major = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    info->compute_minor = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    info->multiprocessors = attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    int bus;
    if (driver->cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device->handle) ==
        CUDA_SUCCESS)
        snprintf(info->pci, sizeof(info->pci), "%04x:%02x:%02x.0",
                 (unsigned)attribute(device, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
                 (unsigned)bus & 0xff,
                 (unsigned)attribute(device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID) & 0xff);
    info->dma_buf = attribute(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
    info->rdma_ordering = attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
    info->rdma_flushes =
        (uint32_t)attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
    if (driver->cuFlushGPUDirectRDMAWrites == NULL)
        info->rdma_flushes = 0;
    info->connections = connections();
}

int phi_device_describe(struct phi_device *device, int ordinal)
{
    const struct phi_driver *driver = device->driver;
    int count = 0, version = 0;
    CUuuid uuid;
    CUresult result = driver->cuDeviceGetCount(&count);
    if (result != CUDA_SUCCESS)
        return phi_cuda_result(device->report, driver, result, "cuDeviceGetCount");
    if (ordinal < 0 || ordinal >= count)
        return phi_fail(device->report, -ENODEV, "device cuda:%d: this process sees %d", ordinal,
                        count);
    if ((result = driver->cuDeviceGet(&device->handle, ordinal)) != CUDA_SUCCESS ||
        (result = driver->cuDeviceGetUuid_v2(&uuid, device->handle)) != CUDA_SUCCESS ||
        (result = driver->cuDeviceGetName(device->info.name, sizeof device->info.name,
                                          device->handle)) != CUDA_SUCCESS ||
        (result = driver->cuDriverGetVersion(&version)) != CUDA_SUCCESS)
        return phi_cuda_result(device->report, driver, result, "device cuda:%d", ordinal);

    device->info.ordinal = ordinal;
    memcpy(device->info.uuid, uuid.bytes, sizeof device->info.uuid);
    device->info.name[sizeof device->info.name - 1] = '\0';
    snprintf(device->info.driver, sizeof device->info.driver, "%d.%d", version / 1000,
             version % 1000 / 10);
    read_capabilities(device);
    return 0;
}

// wait_idle waits until the private stream has run dry.
static int wait_idle(struct phi_device *device, struct phi_report *report, int64_t deadline)
{
    for (unsigned polls = 0;; polls++) {
        CUresult result = device->driver->cuStreamQuery(device->stream);
        if (result == CUDA_SUCCESS)
            return 0;
        if (result != CUDA_ERROR_NOT_READY)
            return phi_cuda_result(report, device->driver, result, "a copy of the library");
        if (phi_now() >= deadline)
            return -ETIMEDOUT;
        if (polls > 1000)
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        else
            phi_pause();
    }
}

// All arguments 0: nothing to do.
static const union {
    struct phi_brace_args brace;
    struct phi_copy_args copy;
    struct phi_copies_args copies;
    struct phi_transfer_args transfer;
    struct phi_hop_args hop;
} nothing;

// load_kernel finds a kernel and launches it once with nothing to do: a first launch behind a
// waiting stream would block.
static CUresult load_kernel(struct phi_device *device, enum phi_kernel kernel)
{
    const struct phi_driver *driver = device->driver;
    CUfunction *function = &device->kernel[kernel];
    CUresult result =
        driver->cuModuleGetFunction(function, device->module, phi_kernel_names[kernel]);
    if (result == CUDA_SUCCESS && driver->cuFuncLoad != NULL)
        result = driver->cuFuncLoad(*function);
    if (result == CUDA_SUCCESS)
        result = driver->cuLaunchKernel(*function, 1, 1, 1, PHI_BRACE_THREADS, 1, 1, 0,
                                        device->stream, (void *[]){(void *)&nothing}, NULL);
    return result;
}

const char *const phi_kernel_names[PHI_KERNEL_COUNT] = {
    [PHI_KERNEL_BRACE] = "phi_brace",           [PHI_KERNEL_COPY] = "phi_copy",
    [PHI_KERNEL_COPIES] = "phi_copies",         [PHI_KERNEL_TRANSFER] = "phi_transfer",
    [PHI_KERNEL_PAGES] = "phi_pages",           [PHI_KERNEL_HOP] = "phi_hop",
    [PHI_KERNEL_HOP_SPREAD] = "phi_hop_spread", [PHI_KERNEL_HOP_LARGE] = "phi_hop_large",
    [PHI_KERNEL_HOP_WIDE] = "phi_hop_wide",     [PHI_KERNEL_RING] = "phi_ring",
    [PHI_KERNEL_RING_LONG] = "phi_ring_long",   [PHI_KERNEL_HOP_STAGED] = "phi_hop_staged",
};

static CUresult load_module(struct phi_device *device)
{
    if (phi_kernels_size == 0)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    CUresult result = device->driver->cuModuleLoadData(&device->module, phi_kernels);
    for (int i = 0; i < PHI_KERNEL_COUNT && result == CUDA_SUCCESS; i++)
        result = load_kernel(device, (enum phi_kernel)i);
    return result;
}

// The code that waits for the kernel before it is left out of what is compiled for devices older
// than 9.0, which newer ones run, too, where the library has nothing newer (see follow() in
// kernels.cu).
static bool launches_early(const struct phi_device *device)
{
    const struct phi_driver *driver = device->driver;
    int version = 0;
    return driver->cuLaunchKernelEx != NULL &&
           driver->cuFuncGetAttribute(&version, CU_FUNC_ATTRIBUTE_PTX_VERSION,
                                      device->kernel[PHI_KERNEL_HOP]) == CUDA_SUCCESS &&
           version >= 90;
}

// A driver that refuses them gets copies one by one.
static bool takes_batches(const struct phi_device *device, CUdeviceptr memory)
{
    CUdeviceptr to[] = {memory + 1000, memory + 2000}, from[] = {memory, memory};
    size_t sizes[] = {1000, 1000};
    return phi_cuda_copy_together(device->driver, to, from, sizes, 2, device->stream) ==
           CUDA_SUCCESS;
}

// warm_up_copies makes the driver load what it copies with inside a device (kernels of its own, for
// small and for unaligned copies): two ranks on one device copy that way, and a first time behind a
// waiting stream would block.
static int warm_up_copies(struct phi_device *device, struct phi_report *report)
{
    static const size_t sizes[] = {1, 1000, WARM_UP_HALF - 1, WARM_UP_HALF};
    const struct phi_driver *driver = device->driver;
    CUdeviceptr memory;
    CUresult result = driver->cuMemAlloc_v2(&memory, (size_t)2 * WARM_UP_HALF);
    if (result != CUDA_SUCCESS)
        return phi_cuda_result(report, driver, result, "device cuda:%d", device->info.ordinal);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && result == CUDA_SUCCESS; i++)
        result = driver->cuMemcpyAsync(memory + (size_t)2 * WARM_UP_HALF - sizes[i], memory,
                                       sizes[i], device->stream);
    device->info.copy_batches = result == CUDA_SUCCESS && takes_batches(device, memory);
    int rc = result == CUDA_SUCCESS
                 ? wait_idle(device, report, phi_deadline(WARM_UP_MS))
                 : phi_cuda_result(report, driver, result, "device cuda:%d", device->info.ordinal);
    if (rc == -ETIMEDOUT)
        rc = phi_fail(report, rc, "device cuda:%d has not done its first copies after %d ms",
                      device->info.ordinal, WARM_UP_MS);
    driver->cuMemFree_v2(memory);
    return rc;
}

// load_kernels: their absence is no failure as long as memory operations can wait instead.
static int load_kernels(struct phi_device *device, struct phi_report *report)
{
    const struct phi_driver *driver = device->driver;
    CUresult result = load_module(device);
    if (result == CUDA_SUCCESS) {
        device->info.kernels = true;
        device->info.early_launch = launches_early(device);
        return wait_idle(device, report, phi_deadline(WARM_UP_MS));
    }
    memset(device->kernel, 0, sizeof device->kernel);
    if (!device->info.memory_operations)
        return phi_cuda_result(
            report, driver, result,
            "device cuda:%d (compute %d.%d) has neither stream memory operations nor "
            "kernels (built: %s)",
            device->info.ordinal, device->info.compute_major, device->info.compute_minor,
            phi_kernels_architectures);
    return phi_refuse(report, 0, "device cuda:%d runs without kernels (built: %s): %s",
                      device->info.ordinal, phi_kernels_architectures,
                      phi_cuda_name(driver, result));
}

int phi_device_load(struct phi_device *device, struct phi_report *report)
{
    const struct phi_driver *driver = device->driver;
    CUresult result = driver->cuStreamCreate(&device->stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS)
        result = driver->cuMemHostAlloc(&device->staging, STAGING_SIZE, CU_MEMHOSTALLOC_PORTABLE);
    if (result != CUDA_SUCCESS)
        return phi_cuda_result(report, driver, result, "device cuda:%d", device->info.ordinal);
    int rc = warm_up_copies(device, report);
    return rc ? rc : load_kernels(device, report);
}

// Ordinals mean nothing to other processes: a device is told by its UUID.
static bool tell_other(const struct phi_device *device, int ordinal, uint8_t uuid[16],
                       uint8_t *access)
{
    const struct phi_driver *driver = device->driver;
    CUdevice other;
    CUuuid found;
    int can = 0, atomic = 0;
    if (driver->cuDeviceGet(&other, ordinal) != CUDA_SUCCESS ||
        driver->cuDeviceGetUuid_v2(&found, other) != CUDA_SUCCESS ||
        memcmp(found.bytes, device->info.uuid, 16) == 0 ||
        driver->cuDeviceCanAccessPeer(&can, device->handle, other) != CUDA_SUCCESS)
        return false;
    if (driver->cuDeviceGetP2PAttribute(&atomic, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                                        device->handle, other) != CUDA_SUCCESS)
        atomic = 0;
    memcpy(uuid, found.bytes, 16);
    *access = (uint8_t)((can ? PHI_ACCESS_MAP : 0) | (can && atomic ? PHI_ACCESS_ATOMIC : 0));
    return true;
}

size_t phi_device_others(struct phi_device *device, uint8_t (*uuids)[16], uint8_t *access, size_t n)
{
    int count = 0;
    size_t told = 0;
    if (device->driver->cuDeviceGetCount(&count) != CUDA_SUCCESS)
        return 0;
    for (int i = 0; i < count && told < n; i++)
        told += tell_other(device, i, uuids[told], &access[told]);
    return told;
}

// The token holds whether the context was pushed (bit 0) and the thread's capture mode (above it).
// Relaxed mode is needed because queries and allocations of ours would invalidate a capture that
// another thread has under way.
int phi_device_enter(struct phi_device *device, void **token)
{
    const struct phi_driver *driver = device->driver;
    CUcontext current = NULL;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    uintptr_t pushed = 0;
    CUresult result = driver->cuCtxGetCurrent(&current);
    if (result == CUDA_SUCCESS && current != device->context) {
        result = driver->cuCtxPushCurrent_v2(device->context);
        pushed = 1;
    }
    if (result != CUDA_SUCCESS)
        return phi_cuda_result(device->report, driver, result, "the context of cuda:%d",
                               device->info.ordinal);
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    *token = (void *)((uintptr_t)mode << 1 | pushed); // NOLINT(performance-no-int-to-ptr)
    return 0;
}

static void leave(const struct phi_driver *driver, void *token)
{
    CUstreamCaptureMode mode = (CUstreamCaptureMode)((uintptr_t)token >> 1);
    CUcontext popped;
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    if ((uintptr_t)token & 1)
        driver->cuCtxPopCurrent_v2(&popped);
}

void phi_device_leave(struct phi_device *device, void *token)
{
    leave(device->driver, token);
}

int phi_device_thread_start(struct phi_device *device)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result = device->driver->cuCtxPushCurrent_v2(device->context);
    if (result != CUDA_SUCCESS)
        return phi_cuda_result(device->report, device->driver, result, "a thread on cuda:%d",
                               device->info.ordinal);
    device->driver->cuThreadExchangeStreamCaptureMode(&mode);
    return 0;
}

struct movement {
    bool out; // from the device to the host
    CUdeviceptr remote;
    char *local;
    size_t size;
    int64_t deadline;
};

static int move_piece(struct phi_device *device, const struct movement *m, size_t at, size_t piece)
{
    const struct phi_driver *driver = device->driver;
    CUresult result;
    // An earlier call that missed its deadline may still use the staging buffer.
    int rc = wait_idle(device, device->report, m->deadline);
    if (rc)
        return rc;
    if (m->out) {
        result =
            driver->cuMemcpyDtoHAsync_v2(device->staging, m->remote + at, piece, device->stream);
    } else {
        memcpy(device->staging, m->local + at, piece);
        result =
            driver->cuMemcpyHtoDAsync_v2(m->remote + at, device->staging, piece, device->stream);
    }
    if (result != CUDA_SUCCESS)
        return phi_cuda_result(device->report, driver, result, "copying %zu bytes %s cuda:%d",
                               piece, m->out ? "from" : "to", device->info.ordinal);
    rc = wait_idle(device, device->report, m->deadline);
    if (rc == 0 && m->out)
        memcpy(m->local + at, device->staging, piece);
    return rc;
}

static int move(struct phi_device *device, const struct movement *m)
{
    void *token = NULL;
    int rc = phi_device_enter(device, &token);
    if (rc)
        return rc;
    pthread_mutex_lock(&device->lock);
    for (size_t at = 0; at < m->size && rc == 0; at += STAGING_SIZE)
        rc = move_piece(device, m, at, m->size - at < STAGING_SIZE ? m->size - at : STAGING_SIZE);
    pthread_mutex_unlock(&device->lock);
    phi_device_leave(device, token);
    if (rc == -ETIMEDOUT)
        phi_fail(device->report, rc, "a copy of %zu bytes %s cuda:%d did not end in time", m->size,
                 m->out ? "from" : "to", device->info.ordinal);
    return rc;
}

int phi_device_write(struct phi_device *device, void *destination, const void *source, size_t size,
                     int64_t deadline)
{
    return move(device, &(struct movement){.remote = (CUdeviceptr)(uintptr_t)destination,
                                           .local = (char *)source,
                                           .size = size,
                                           .deadline = deadline});
}

int phi_device_read(struct phi_device *device, void *destination, const void *source, size_t size,
                    int64_t deadline)
{
    return move(device, &(struct movement){.out = true,
                                           .remote = (CUdeviceptr)(uintptr_t)source,
                                           .local = destination,
                                           .size = size,
                                           .deadline = deadline});
}

// No memset: the driver may load what it sets memory with at its first use, and that would block
// behind a waiting stream. What it copies with is loaded (warm_up_copies).
static int repeat(struct phi_device *device, CUdeviceptr at, size_t size, size_t times,
                  int64_t deadline)
{
    const struct phi_driver *driver = device->driver;
    CUresult result = CUDA_SUCCESS;
    size_t more;
    for (size_t done = 1; done < times && result == CUDA_SUCCESS; done += more) {
        more = times - done < done ? times - done : done;
        result = driver->cuMemcpyAsync(at + done * size, at, more * size, device->stream);
    }
    if (result != CUDA_SUCCESS)
        return phi_cuda_result(device->report, driver, result, "copying inside cuda:%d",
                               device->info.ordinal);
    return wait_idle(device, device->report, deadline);
}

int phi_device_repeat(struct phi_device *device, void *address, size_t size, size_t times,
                      int64_t deadline)
{
    void *token = NULL;
    int rc = phi_device_enter(device, &token);
    if (rc)
        return rc;
    pthread_mutex_lock(&device->lock);
    rc = repeat(device, (CUdeviceptr)(uintptr_t)address, size, times, deadline);
    pthread_mutex_unlock(&device->lock);
    phi_device_leave(device, token);
    if (rc == -ETIMEDOUT)
        phi_fail(device->report, rc, "a copy of %zu bytes inside cuda:%d did not end in time",
                 (times - 1) * size, device->info.ordinal);
    return rc;
}

int phi_device_view(struct phi_device *device, uint64_t host, uint64_t *address)
{
    const struct phi_driver *driver = device->driver;
    CUdeviceptr pointer = 0;
    const CUresult result = driver->cuPointerGetAttribute(
        &pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, (CUdeviceptr)host);
    if (result != CUDA_SUCCESS)
        return phi_cuda_result(device->report, driver, result,
                               "the address of host memory on cuda:%d", device->info.ordinal);
    *address = pointer;
    return 0;
}

// The driver exports whole pages.
int phi_device_dmabuf(struct phi_device *device, uint64_t base, size_t size, int *fd,
                      uint64_t *offset)
{
    const struct phi_driver *driver = device->driver;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), begin = base / page * page;
    const uint64_t end = (base + size + page - 1) / page * page;
    void *token = NULL;
    int rc =
        driver->cuMemGetHandleForAddressRange == NULL ? -ENOTSUP : phi_device_enter(device, &token);
    if (rc)
        return rc;
    CUresult result = driver->cuMemGetHandleForAddressRange(fd, begin, end - begin,
                                                            CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    phi_device_leave(device, token);
    *offset = base - begin;
    return result == CUDA_SUCCESS ? 0 : phi_cuda_code(result);
}

int phi_device_flush(struct phi_device *device, bool all)
{
    const struct phi_driver *driver = device->driver;
    void *token = NULL;
    int rc =
        driver->cuFlushGPUDirectRDMAWrites == NULL ? -ENOTSUP : phi_device_enter(device, &token);
    if (rc)
        return rc;
    // When this returns the device may be closed, and its context destroyed; the driver stays
    // loaded.
    CUresult result =
        driver->cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                           all ? CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES
                                               : CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
    leave(driver, token);
    return result == CUDA_SUCCESS ? 0 : phi_cuda_code(result);
}

// The digits of CUDA_VERSION, which is 1000 * major + 10 * minor.
#define MAJOR_TENS  ('0' + CUDA_VERSION / 10000)
#define MAJOR_ONES  ('0' + CUDA_VERSION / 1000 % 10)
#define MINOR_DIGIT ('0' + CUDA_VERSION / 10 % 10)

const char *phi_device_build(void)
{
    static const char version[] = {MAJOR_TENS, MAJOR_ONES, '.', MINOR_DIGIT, '\0'};
    return version;
}

const char *phi_device_architectures(void)
{
    return phi_kernels_architectures;
}
