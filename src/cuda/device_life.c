// SPDX-License-Identifier: BSD-3-Clause
// How a device is opened, and how what the library owns of it ends. Much of both can block behind
// whatever waits on the device: that is left to the device's closer.
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/random.h"
#include "cuda/device_state.h"

// Memory of the device, or host memory that was registered with it.
struct owned {
    struct phi_closing closing; // first
    struct phi_device *device;
    uint64_t base;
    size_t mapped; // bytes that are unmapped afterwards
    size_t memory; // bytes of device memory; 0: registered host memory
};

static bool is_base(const void *value, const void *key)
{
    return ((const struct owned *)value)->base == *(const uint64_t *)key;
}

static uint64_t hash_of(uint64_t base)
{
    return phi_hash(base, 1);
}

static struct owned *new_owned(struct phi_device *device)
{
    struct owned *o = calloc(1, sizeof *o);
    if (o == NULL)
        phi_fail(device->report, -ENOMEM, "no memory to note memory of cuda:%d",
                 device->info.ordinal);
    else
        o->device = device;
    return o;
}

static int note(struct owned *o)
{
    pthread_mutex_lock(&o->device->ends);
    int rc = phi_map_insert(&o->device->owned, hash_of(o->base), o);
    pthread_mutex_unlock(&o->device->ends);
    return rc ? phi_fail(o->device->report, rc, "no memory to note memory of cuda:%d",
                         o->device->info.ordinal)
              : 0;
}

static struct owned *find(struct phi_device *device, uint64_t base, bool take_out)
{
    pthread_mutex_lock(&device->ends);
    struct owned *o = phi_map_find(&device->owned, hash_of(base), is_base, &base);
    if (o != NULL && take_out)
        phi_map_remove(&device->owned, hash_of(base), o);
    pthread_mutex_unlock(&device->ends);
    return o;
}

// ---- on the closer's thread, on which the device's context is current for good

void phi_device_tell(struct phi_device *device, CUresult result, const char *call)
{
    pthread_mutex_lock(&device->telling);
    if (result != CUDA_SUCCESS && device->report != NULL)
        phi_log(device->report, PH_LOG_WARN, "%s: %s", call, phi_cuda_name(device->driver, result));
    pthread_mutex_unlock(&device->telling);
}

static void end_owned(struct phi_closing *closing)
{
    struct owned *o = (struct owned *)closing;
    const struct phi_driver *driver = o->device->driver;
    void *host = (void *)(uintptr_t)o->base; // NOLINT(performance-no-int-to-ptr)
    if (o->memory > 0) {
        phi_device_tell(o->device, driver->cuMemFree_v2(o->base), "cuMemFree");
        atomic_fetch_sub(&o->device->bytes, o->memory);
    } else {
        phi_device_tell(o->device, driver->cuMemHostUnregister(host), "cuMemHostUnregister");
    }
    if (o->mapped > 0)
        munmap(host, o->mapped);
    free(o);
}

// The device itself, behind all else.
static void end_device(struct phi_closing *closing)
{
    struct phi_device *device = (struct phi_device *)closing;
    const struct phi_driver *driver = device->driver;
    CUcontext popped;
    if (device->module != NULL)
        driver->cuModuleUnload(device->module);
    if (device->staging != NULL)
        driver->cuMemFreeHost(device->staging);
    if (device->stream != NULL)
        driver->cuStreamDestroy_v2(device->stream);
    driver->cuCtxPopCurrent_v2(&popped);
    driver->cuDevicePrimaryCtxRelease_v2(device->handle);
    phi_map_fini(&device->owned);
    pthread_mutex_destroy(&device->telling);
    pthread_mutex_destroy(&device->ends);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

// Loading kernels blocks where a stream waits, so it is the closer's as well.
struct loading {
    struct phi_closing closing; // first
    struct phi_device *device;
    struct phi_report report; // the caller may have gone
    int rc;
    bool alone; // the caller has: guarded by the device's `ends`
    bool done;
};

static void free_loading(struct loading *l)
{
    phi_report_fini(&l->report);
    free(l);
}

static int enter_and_load(struct phi_device *device, struct phi_report *report)
{
    // Closings of ours are no concern of a capture that another thread has under way.
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result = device->driver->cuCtxPushCurrent_v2(device->context);
    if (result != CUDA_SUCCESS)
        return phi_cuda_result(report, device->driver, result, "the context of cuda:%d",
                               device->info.ordinal);
    device->driver->cuThreadExchangeStreamCaptureMode(&mode);
    return phi_device_load(device, report);
}

static void load(struct phi_closing *closing)
{
    struct loading *l = (struct loading *)closing;
    struct phi_device *device = l->device;
    int rc = enter_and_load(device, &l->report);
    pthread_mutex_lock(&device->ends);
    l->rc = rc;
    l->done = true;
    const bool alone = l->alone;
    pthread_mutex_unlock(&device->ends);
    if (alone)
        free_loading(l);
}

// ---- what is called

static void log_nothing(void *opaque, enum ph_log_level level, const char *line)
{
    (void)opaque;
    (void)level;
    (void)line;
}

static int finish_loading(struct phi_report *report, struct loading *l)
{
    char text[sizeof l->report.text];
    int rc = l->rc;
    phi_report_copy(&l->report, text, sizeof text);
    free_loading(l);
    if (rc)
        return phi_fail(report, rc, "%s", text);
    if (text[0] != 0)
        phi_log(report, PH_LOG_WARN, "%s", text);
    return 0;
}

static int load_in_time(struct phi_device *device, struct phi_report *report, int64_t deadline)
{
    struct loading *l = calloc(1, sizeof *l);
    if (l == NULL)
        return phi_fail(report, -ENOMEM, "device cuda:%d: out of memory", device->info.ordinal);
    phi_report_init(&l->report, log_nothing, NULL, PH_LOG_NONE);
    l->closing.close = load;
    l->device = device;
    phi_closer_hand(device->closer, &l->closing);
    phi_closer_wait(device->closer, 1, deadline);
    pthread_mutex_lock(&device->ends);
    const bool done = l->done;
    l->alone = !done;
    pthread_mutex_unlock(&device->ends);
    if (done)
        return finish_loading(report, l);
    return phi_fail(report, -ETIMEDOUT,
                    "device cuda:%d: the driver has not loaded the kernels in time: a stream of "
                    "this process waits on it",
                    device->info.ordinal);
}

static int open_context(struct phi_device *device, int ordinal)
{
    int rc = phi_device_describe(device, ordinal);
    if (rc)
        return rc;
    CUresult result = device->driver->cuDevicePrimaryCtxRetain(&device->context, device->handle);
    if (result != CUDA_SUCCESS)
        return phi_cuda_result(device->report, device->driver, result,
                               "the primary context of cuda:%d", ordinal);
    rc = phi_closer_open(&device->closer);
    if (rc) {
        device->driver->cuDevicePrimaryCtxRelease_v2(device->handle);
        return phi_fail(device->report, rc,
                        "the thread for what blocks on cuda:%d cannot start: %s", ordinal,
                        ph_strerror(rc));
    }
    return 0;
}

int phi_device_open(struct phi_report *report, const char *library, int ordinal, int64_t deadline,
                    struct phi_device **device)
{
    char why[512];
    const struct phi_driver *driver = phi_driver_load(library, why, sizeof why);
    if (driver == NULL)
        return phi_fail(report, -ENODEV, "device cuda:%d: %s", ordinal, why);
    struct phi_device *made = calloc(1, sizeof *made);
    if (made == NULL)
        return phi_fail(report, -ENOMEM, "device cuda:%d: out of memory", ordinal);
    made->report = report;
    made->driver = driver;
    pthread_mutex_init(&made->lock, NULL);
    pthread_mutex_init(&made->telling, NULL);
    pthread_mutex_init(&made->ends, NULL);
    int rc = open_context(made, ordinal);
    if (rc) {
        pthread_mutex_destroy(&made->telling);
        pthread_mutex_destroy(&made->ends);
        pthread_mutex_destroy(&made->lock);
        free(made);
        return rc;
    }
    rc = load_in_time(made, report, deadline);
    if (rc)
        phi_device_close(made, rc == -ETIMEDOUT ? 0 : deadline);
    else
        *device = made;
    return rc;
}

void phi_device_close(struct phi_device *device, int64_t deadline)
{
    if (device == NULL)
        return;
    struct phi_closer *closer = device->closer;
    phi_closer_wait(closer, phi_closer_handed(closer), deadline);
    // Calls that are still left to the closer report nothing from here on: the report may end
    // before them.
    pthread_mutex_lock(&device->telling);
    device->report = NULL;
    pthread_mutex_unlock(&device->telling);
    device->end.close = end_device;
    phi_closer_hand(closer, &device->end);
    phi_closer_close(closer, deadline);
}

static int register_entered(struct owned *o, size_t size, bool *registered, uint64_t *address)
{
    struct phi_device *device = o->device;
    const struct phi_driver *driver = device->driver;
    void *base = (void *)(uintptr_t)o->base; // NOLINT(performance-no-int-to-ptr)
    CUresult result = CUDA_SUCCESS;
    CUdeviceptr pointer = 0;
    // On the caller's thread: unlike its end, and as an allocation, it waits for no stream.
    if (!*registered)
        result = driver->cuMemHostRegister_v2(
            base, size, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    *registered = result == CUDA_SUCCESS;
    if (*registered)
        result = driver->cuMemHostGetDevicePointer_v2(&pointer, base, 0);
    if (result != CUDA_SUCCESS)
        return phi_cuda_result(device->report, driver, result,
                               "registering %zu bytes of host memory with cuda:%d", size,
                               device->info.ordinal);
    *address = pointer;
    return 0;
}

// Noted before it is registered: from there on nothing may fail.
static struct owned *note_mapping(struct phi_device *device, void *base)
{
    struct owned *o = new_owned(device);
    if (o == NULL)
        return NULL;
    o->base = (uintptr_t)base;
    if (note(o) == 0)
        return o;
    free(o);
    return NULL;
}

int phi_device_register(struct phi_device *device, void *base, size_t size, uint64_t *address)
{
    void *token = NULL;
    struct owned *o = find(device, (uintptr_t)base, false);
    bool registered = o != NULL; // by a call that failed behind that
    if (!registered && (o = note_mapping(device, base)) == NULL)
        return -ENOMEM;
    int rc = phi_device_enter(device, &token);
    if (rc == 0) {
        rc = register_entered(o, size, &registered, address);
        phi_device_leave(device, token);
    }
    if (!registered)
        free(find(device, (uintptr_t)base, true));
    return rc;
}

static void hand(struct owned *o)
{
    o->closing.close = end_owned;
    phi_closer_hand(o->device->closer, &o->closing);
}

// take_mapping is unmap's and unmap_now's: what was registered, to be ended; else it is unmapped.
static struct owned *take_mapping(struct phi_device *device, void *base, size_t size)
{
    struct owned *o = find(device, (uintptr_t)base, true);
    if (o == NULL)
        munmap(base, size);
    else
        o->mapped = size;
    return o;
}

void phi_device_unmap(struct phi_device *device, void *base, size_t size)
{
    struct owned *o = take_mapping(device, base, size);
    if (o != NULL)
        hand(o);
}

void phi_device_unmap_now(struct phi_device *device, void *base, size_t size)
{
    struct owned *o = take_mapping(device, base, size);
    if (o != NULL)
        end_owned(&o->closing);
}

static int allocate(struct owned *o, size_t size)
{
    struct phi_device *device = o->device;
    void *token = NULL;
    int rc = phi_device_enter(device, &token);
    if (rc)
        return rc;
    CUdeviceptr pointer = 0;
    CUresult result = device->driver->cuMemAlloc_v2(&pointer, size);
    phi_device_leave(device, token);
    o->base = pointer;
    o->memory = size;
    if (result == CUDA_SUCCESS)
        atomic_fetch_add(&device->bytes, size);
    return result == CUDA_SUCCESS
               ? 0
               : phi_cuda_result(device->report, device->driver, result, "%zu bytes of cuda:%d",
                                 size, device->info.ordinal);
}

int phi_device_alloc(struct phi_device *device, size_t size, void **address)
{
    struct owned *o = new_owned(device);
    if (o == NULL)
        return -ENOMEM;
    int rc = allocate(o, size);
    if (rc) {
        free(o);
        return rc;
    }
    const uint64_t base = o->base;
    rc = note(o);
    if (rc)
        hand(o);
    else
        *address = (void *)(uintptr_t)base; // NOLINT(performance-no-int-to-ptr)
    return rc;
}

void phi_device_free(struct phi_device *device, void *address)
{
    struct owned *o = address ? find(device, (uintptr_t)address, true) : NULL;
    if (o != NULL)
        hand(o);
}

uint64_t phi_device_bytes(const struct phi_device *device)
{
    return atomic_load(&device->bytes);
}

void phi_device_gate(struct phi_device *device, bool (*quiet)(void *opaque), void *opaque)
{
    phi_closer_gate(device->closer, quiet, opaque);
}

void phi_device_hand(struct phi_device *device, struct phi_closing *closing)
{
    phi_closer_hand(device->closer, closing);
}

uint64_t phi_device_handed(struct phi_device *device)
{
    return phi_closer_handed(device->closer);
}

bool phi_device_ended(struct phi_device *device, uint64_t handed, int64_t deadline)
{
    return phi_closer_wait(device->closer, handed, deadline);
}
