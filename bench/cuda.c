// SPDX-License-Identifier: BSD-3-Clause
// GPUs, through the library's table of the CUDA driver: loaded at run time, never linked.
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cuda/driver.h"

#include "device.h"
#include "kernel.h"

#define STAGE_SIZE ((size_t)4 << 20)

struct cuda {
    struct bench_device device;
    const struct phi_driver *driver;
    CUdevice handle;
    CUcontext context;
    bool retained;
    CUstream stream; // the library's work and the raw limits
    CUevent marks[2];
    void *stage;     // pinned
    CUmodule module; // of kernel.cu
    CUfunction kernel;
    int32_t *result; // of what it ran; pinned
    CUfunction note;
    CUdeviceptr notes;      // BENCH_NOTES words of 64 bits, and one that nobody reads
    _Atomic uint64_t *gate; // pinned: how often the stream was released
    CUdeviceptr gate_device;
    uint64_t held; // how often it was held

    CUdeviceptr *allocations;
    size_t allocation_count, allocation_room;
    size_t arena_size;

    // The raw limits: an allocation as large as the arena, the peer's, and one page of flags of
    // each.
    CUdeviceptr raw, peer_raw;
    int words_fd;
    void *words, *peer_words;
    CUdeviceptr words_device, peer_words_device;
    uint32_t flags; // round trips so far
};

static struct cuda *cuda_of(struct bench_device *device)
{
    return (struct cuda *)device;
}

static int refuse(struct cuda *cuda, CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return 0;
    snprintf(cuda->device.error, sizeof(cuda->device.error), "%s: %s", what,
             phi_cuda_name(cuda->driver, result));
    return phi_cuda_code(result);
}

// CALL makes a call of the driver's table and names it where it fails.
#define CALL(cuda, entry, ...) refuse((cuda), (cuda)->driver->entry(__VA_ARGS__), #entry)

static const struct phi_driver *load(char *why, size_t why_size)
{
    const char *library = getenv("PEERHOP_LIBCUDA");
    return phi_driver_load(library ? library : "libcuda.so.1", why, why_size);
}

int bench_cuda_count(char *why, size_t why_size)
{
    const struct phi_driver *driver = load(why, why_size);
    if (!driver)
        return 0;
    int count = 0;
    CUresult result = driver->cuDeviceGetCount(&count);
    if (result != CUDA_SUCCESS)
        snprintf(why, why_size, "cuDeviceGetCount: %s", phi_cuda_name(driver, result));
    else if (count == 0)
        snprintf(why, why_size, "the CUDA driver sees no device");
    return count;
}

static int cuda_open(struct bench_device *device, int rank)
{
    struct cuda *cuda = cuda_of(device);
    char why[200];
    int count = bench_cuda_count(why, sizeof(why));
    if (count == 0) {
        snprintf(device->error, sizeof(device->error), "-k cuda: %s", why);
        return -ENODEV;
    }
    cuda->driver = load(why, sizeof(why));
    int ordinal = rank % count;
    snprintf(device->name, sizeof(device->name), "cuda:%d", ordinal);
    int rc = CALL(cuda, cuDeviceGet, &cuda->handle, ordinal);
    if (rc == 0)
        rc = CALL(cuda, cuDeviceGetName, device->model, sizeof(device->model), cuda->handle);
    if (rc == 0)
        rc = CALL(cuda, cuDevicePrimaryCtxRetain, &cuda->context, cuda->handle);
    if (rc)
        return rc;
    cuda->retained = true;
    return CALL(cuda, cuCtxSetCurrent, cuda->context);
}

static int cuda_attach(struct bench_device *device, struct ph_context *context, void **stream)
{
    (void)context;
    struct cuda *cuda = cuda_of(device);
    int rc = CALL(cuda, cuStreamCreate, &cuda->stream, CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 2 && rc == 0; i++)
        rc = CALL(cuda, cuEventCreate, &cuda->marks[i], CU_EVENT_DEFAULT);
    if (rc == 0)
        rc = CALL(cuda, cuMemHostAlloc, &cuda->stage, STAGE_SIZE, 0);
    *stream = cuda->stream;
    return rc;
}

static int remember(struct cuda *cuda, CUdeviceptr address)
{
    if (cuda->allocation_count == cuda->allocation_room) {
        size_t room = cuda->allocation_room ? 2 * cuda->allocation_room : 64;
        CUdeviceptr *more = realloc(cuda->allocations, room * sizeof(*more));
        if (!more)
            return -ENOMEM;
        cuda->allocations = more;
        cuda->allocation_room = room;
    }
    cuda->allocations[cuda->allocation_count++] = address;
    return 0;
}

static int cuda_alloc(struct bench_device *device, bool arena, size_t size, void **base)
{
    struct cuda *cuda = cuda_of(device);
    CUdeviceptr address;
    int rc = CALL(cuda, cuMemAlloc_v2, &address, size);
    if (rc)
        return rc;
    rc = remember(cuda, address);
    if (rc) {
        cuda->driver->cuMemFree_v2(address);
        return rc;
    }
    if (arena)
        cuda->arena_size = size;
    *base = (void *)(uintptr_t)address;
    return 0;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// Queries instead of cuStreamSynchronize, which has no deadline.
static int cuda_synchronize(struct bench_device *device, int64_t deadline_ms)
{
    struct cuda *cuda = cuda_of(device);
    int64_t end = now_ms() + deadline_ms;
    CUresult result;
    while ((result = cuda->driver->cuStreamQuery(cuda->stream)) == CUDA_ERROR_NOT_READY) {
        if (now_ms() > end) {
            snprintf(device->error, sizeof(device->error), "the stream does not become idle");
            return -ETIMEDOUT;
        }
        sched_yield();
    }
    return refuse(cuda, result, "the stream failed");
}

// Copies through pinned memory on the stream, which is idle.
static int cuda_write(struct bench_device *device, void *destination, const void *source,
                      size_t size)
{
    struct cuda *cuda = cuda_of(device);
    for (size_t at = 0; at < size; at += STAGE_SIZE) {
        size_t n = size - at < STAGE_SIZE ? size - at : STAGE_SIZE;
        memcpy(cuda->stage, (const char *)source + at, n);
        int rc = CALL(cuda, cuMemcpyHtoDAsync_v2, (CUdeviceptr)(uintptr_t)destination + at,
                      cuda->stage, n, cuda->stream);
        if (rc == 0)
            rc = CALL(cuda, cuStreamSynchronize, cuda->stream);
        if (rc)
            return rc;
    }
    return 0;
}

static int cuda_read(struct bench_device *device, void *destination, const void *source,
                     size_t size)
{
    struct cuda *cuda = cuda_of(device);
    for (size_t at = 0; at < size; at += STAGE_SIZE) {
        size_t n = size - at < STAGE_SIZE ? size - at : STAGE_SIZE;
        int rc = CALL(cuda, cuMemcpyDtoHAsync_v2, cuda->stage, (CUdeviceptr)(uintptr_t)source + at,
                      n, cuda->stream);
        if (rc == 0)
            rc = CALL(cuda, cuStreamSynchronize, cuda->stream);
        if (rc)
            return rc;
        memcpy((char *)destination + at, cuda->stage, n);
    }
    return 0;
}

static int cuda_mark(struct bench_device *device, unsigned index)
{
    struct cuda *cuda = cuda_of(device);
    return CALL(cuda, cuEventRecord, cuda->marks[index], cuda->stream);
}

static int cuda_elapsed(struct bench_device *device, double *us)
{
    struct cuda *cuda = cuda_of(device);
    float ms = 0;
    int rc = CALL(cuda, cuEventElapsedTime, &ms, cuda->marks[0], cuda->marks[1]);
    *us = (double)ms * 1e3;
    return rc;
}

static int cuda_begin_graph(struct bench_device *device)
{
    struct cuda *cuda = cuda_of(device);
    return CALL(cuda, cuStreamBeginCapture_v2, cuda->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

static int cuda_end_graph(struct bench_device *device, void **graph)
{
    struct cuda *cuda = cuda_of(device);
    CUgraph captured;
    CUgraphExec executable;
    int rc = CALL(cuda, cuStreamEndCapture, cuda->stream, &captured);
    if (rc)
        return rc;
    rc = CALL(cuda, cuGraphInstantiateWithFlags, &executable, captured, 0);
    cuda->driver->cuGraphDestroy(captured);
    if (rc == 0)
        *graph = executable;
    return rc;
}

static int cuda_launch_graph(struct bench_device *device, void *graph)
{
    struct cuda *cuda = cuda_of(device);
    return CALL(cuda, cuGraphLaunch, graph, cuda->stream);
}

static void cuda_destroy_graph(struct bench_device *device, void *graph)
{
    struct cuda *cuda = cuda_of(device);
    cuda->driver->cuGraphExecDestroy(graph);
}

static int find_kernel(struct cuda *cuda, const char *name, CUfunction *kernel)
{
    if (bench_kernels_size == 0) {
        snprintf(cuda->device.error, sizeof(cuda->device.error),
                 "the bench's own kernels: built without nvcc");
        return -ENOTSUP;
    }
    int rc = cuda->module ? 0 : CALL(cuda, cuModuleLoadData, &cuda->module, bench_kernels);
    return rc ? rc : CALL(cuda, cuModuleGetFunction, kernel, cuda->module, name);
}

static int cuda_open_kernels(struct bench_device *device)
{
    struct cuda *cuda = cuda_of(device);
    void *result;
    int rc = find_kernel(cuda, "bench_kernel", &cuda->kernel);
    if (rc == 0)
        rc = CALL(cuda, cuMemHostAlloc, &result, sizeof(*cuda->result), 0);
    if (rc)
        return rc;
    cuda->result = result;
    *cuda->result = 0;
    return 0;
}

static int cuda_run_kernel(struct bench_device *device, struct bench_kernel_args *args,
                           unsigned blocks, unsigned threads)
{
    struct cuda *cuda = cuda_of(device);
    CUdeviceptr result;
    int rc = CALL(cuda, cuMemHostGetDevicePointer_v2, &result, cuda->result, 0);
    if (rc)
        return rc;
    args->result = result;
    void *params[] = {args};
    return CALL(cuda, cuLaunchKernel, cuda->kernel, blocks, 1, 1, threads, 1, 1, 0, cuda->stream,
                params, NULL);
}

static int cuda_kernel_result(struct bench_device *device)
{
    struct cuda *cuda = cuda_of(device);
    if (*cuda->result)
        snprintf(device->error, sizeof(device->error), "a call in the kernel has failed");
    return *cuda->result;
}

static int cuda_open_notes(struct bench_device *device)
{
    struct cuda *cuda = cuda_of(device);
    void *notes, *gate;
    if (cuda->notes)
        return 0;
    int rc = find_kernel(cuda, "bench_note", &cuda->note);
    if (rc == 0)
        rc = CALL(cuda, cuMemHostAlloc, &gate, sizeof(*cuda->gate), 0);
    if (rc)
        return rc;
    cuda->gate = gate;
    *cuda->gate = 0;
    rc = CALL(cuda, cuMemHostGetDevicePointer_v2, &cuda->gate_device, gate, 0);
    if (rc == 0)
        rc = cuda_alloc(device, false, (BENCH_NOTES + 1) * sizeof(uint64_t), &notes);
    if (rc == 0)
        cuda->notes = (CUdeviceptr)(uintptr_t)notes;
    return rc;
}

static int launch_note(struct cuda *cuda, struct bench_note_args args, unsigned index)
{
    args.address = cuda->notes + index * sizeof(uint64_t);
    void *params[] = {&args};
    return CALL(cuda, cuLaunchKernel, cuda->note, 1, 1, 1, 1, 1, 1, 0, cuda->stream, params, NULL);
}

static int cuda_note(struct bench_device *device, unsigned index, uint64_t after_ns)
{
    return launch_note(cuda_of(device), (struct bench_note_args){.after_ns = after_ns}, index);
}

static int cuda_hold(struct bench_device *device)
{
    struct cuda *cuda = cuda_of(device);
    const struct bench_note_args args = {
        .after_ns = BENCH_HELD_NS,
        .gate = cuda->gate_device,
        .opens = ++cuda->held,
    };
    return launch_note(cuda, args, BENCH_NOTES);
}

static void cuda_release(struct bench_device *device)
{
    struct cuda *cuda = cuda_of(device);
    atomic_store(cuda->gate, cuda->held);
}

static int cuda_read_notes(struct bench_device *device, uint64_t ns[BENCH_NOTES])
{
    const void *notes = (const void *)(uintptr_t)cuda_of(device)->notes;
    return cuda_read(device, ns, notes, BENCH_NOTES * sizeof(*ns));
}

// Both GPUs see a page of flags: it is host memory that each registers.
static int register_words(struct cuda *cuda, void *words, CUdeviceptr *address)
{
    int rc = CALL(cuda, cuMemHostRegister_v2, words, BENCH_WORDS_SIZE,
                  CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    return rc ? rc : CALL(cuda, cuMemHostGetDevicePointer_v2, address, words, 0);
}

static int cuda_raw_handle(struct bench_device *device, struct bench_raw_handle *handle)
{
    struct cuda *cuda = cuda_of(device);
    void *raw;
    CUipcMemHandle ipc;
    int rc = cuda_alloc(device, false, cuda->arena_size, &raw);
    if (rc == 0)
        rc = CALL(cuda, cuIpcGetMemHandle, &ipc, (CUdeviceptr)(uintptr_t)raw);
    if (rc)
        return rc;
    rc = bench_words_open(&cuda->words_fd, &cuda->words);
    if (rc) {
        snprintf(device->error, sizeof(device->error), "memory for flags");
        return rc;
    }
    rc = register_words(cuda, cuda->words, &cuda->words_device);
    cuda->raw = (CUdeviceptr)(uintptr_t)raw;
    *handle = (struct bench_raw_handle){
        .pid = getpid(),
        .arena_fd = -1,
        .words_fd = cuda->words_fd,
        .size = cuda->arena_size,
    };
    _Static_assert(sizeof(ipc) == sizeof(handle->ipc), "room for the handle");
    memcpy(handle->ipc, &ipc, sizeof(ipc));
    return rc;
}

static int open_words(struct cuda *cuda, const struct bench_raw_handle *peer)
{
    int fd = -1;
    int rc = bench_peer_fd(peer->pid, peer->words_fd, &fd);
    if (rc) {
        snprintf(cuda->device.error, sizeof(cuda->device.error),
                 "the peer's memory cannot be opened through /proc");
        return rc;
    }
    void *words = mmap(NULL, BENCH_WORDS_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    rc = words == MAP_FAILED ? -errno : 0;
    close(fd);
    if (rc) {
        snprintf(cuda->device.error, sizeof(cuda->device.error), "mmap of the peer's flags");
        return rc;
    }
    cuda->peer_words = words;
    return register_words(cuda, words, &cuda->peer_words_device);
}

static int cuda_raw_open(struct bench_device *device, const struct bench_raw_handle *peer)
{
    struct cuda *cuda = cuda_of(device);
    CUipcMemHandle ipc;
    memcpy(&ipc, peer->ipc, sizeof(ipc));
    int rc =
        CALL(cuda, cuIpcOpenMemHandle_v2, &cuda->peer_raw, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    return rc ? rc : open_words(cuda, peer);
}

static int cuda_raw_copy(struct bench_device *device, struct bench_raw_copy *copy)
{
    struct cuda *cuda = cuda_of(device);
    CUdeviceptr local = cuda->raw + copy->local_offset, peer = cuda->peer_raw + copy->peer_offset;
    return CALL(cuda, cuMemcpyAsync, copy->get ? local : peer, copy->get ? peer : local, copy->size,
                cuda->stream);
}

static int tell(struct cuda *cuda, uint32_t value)
{
    return CALL(cuda, cuStreamWriteValue32_v2, cuda->stream, cuda->peer_words_device, value,
                CU_STREAM_WRITE_VALUE_DEFAULT);
}

static int await(struct cuda *cuda, uint32_t value)
{
    return CALL(cuda, cuStreamWaitValue32_v2, cuda->stream, cuda->words_device, value,
                CU_STREAM_WAIT_VALUE_GEQ);
}

static int cuda_raw_flags(struct bench_device *device, bool leader, size_t count)
{
    struct cuda *cuda = cuda_of(device);
    for (size_t i = 0; i < count; i++) {
        uint32_t value = ++cuda->flags;
        int rc = leader ? tell(cuda, value) : await(cuda, value);
        if (rc == 0)
            rc = leader ? await(cuda, value) : tell(cuda, value);
        if (rc)
            return rc;
    }
    return 0;
}

static void cuda_detach(struct bench_device *device)
{
    // After a failure the stream may wait for ever; destroying it returns all the same.
    struct cuda *cuda = cuda_of(device);
    if (cuda->stream)
        cuda->driver->cuStreamDestroy_v2(cuda->stream);
    for (int i = 0; i < 2; i++)
        if (cuda->marks[i])
            cuda->driver->cuEventDestroy_v2(cuda->marks[i]);
}

static void close_words(struct cuda *cuda, void *words, CUdeviceptr address)
{
    if (address)
        cuda->driver->cuMemHostUnregister(words);
    if (words)
        munmap(words, BENCH_WORDS_SIZE);
}

static void cuda_close(struct bench_device *device)
{
    struct cuda *cuda = cuda_of(device);
    if (!cuda->retained)
        return;
    if (cuda->peer_raw)
        cuda->driver->cuIpcCloseMemHandle(cuda->peer_raw);
    close_words(cuda, cuda->peer_words, cuda->peer_words_device);
    close_words(cuda, cuda->words, cuda->words_device);
    if (cuda->words)
        close(cuda->words_fd);
    for (size_t i = 0; i < cuda->allocation_count; i++)
        cuda->driver->cuMemFree_v2(cuda->allocations[i]);
    free(cuda->allocations);
    if (cuda->stage)
        cuda->driver->cuMemFreeHost(cuda->stage);
    if (cuda->result)
        cuda->driver->cuMemFreeHost(cuda->result);
    if (cuda->gate)
        cuda->driver->cuMemFreeHost((void *)cuda->gate);
    if (cuda->module)
        cuda->driver->cuModuleUnload(cuda->module);
    cuda->driver->cuDevicePrimaryCtxRelease_v2(cuda->handle);
}

static const struct bench_device_ops cuda_ops = {
    .kind = "cuda",
    .open = cuda_open,
    .attach = cuda_attach,
    .alloc = cuda_alloc,
    .write = cuda_write,
    .read = cuda_read,
    .synchronize = cuda_synchronize,
    .mark = cuda_mark,
    .elapsed = cuda_elapsed,
    .begin_graph = cuda_begin_graph,
    .end_graph = cuda_end_graph,
    .launch_graph = cuda_launch_graph,
    .destroy_graph = cuda_destroy_graph,
    .open_kernels = cuda_open_kernels,
    .run_kernel = cuda_run_kernel,
    .kernel_result = cuda_kernel_result,
    .open_notes = cuda_open_notes,
    .note = cuda_note,
    .read_notes = cuda_read_notes,
    .hold = cuda_hold,
    .release = cuda_release,
    .raw_handle = cuda_raw_handle,
    .raw_open = cuda_raw_open,
    .raw_copy = cuda_raw_copy,
    .raw_flags = cuda_raw_flags,
    .detach = cuda_detach,
    .close = cuda_close,
};

struct bench_device *bench_cuda_device(void)
{
    static struct cuda devices[BENCH_CUDA_DEVICES];
    static size_t given;
    struct cuda *cuda = &devices[given++];
    cuda->device.ops = &cuda_ops;
    return &cuda->device;
}
