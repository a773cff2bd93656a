// SPDX-License-Identifier: BSD-3-Clause
// An application's kernels on a GPU, in the primary context that is current on this thread.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/driver.h"

#include "bench.h"
#include "kernel.h"
#include "load.h"

#define GEMM_SHARED  (200 << 10)
#define TRIAL_ROUNDS 1000     // of work in the blocks by which it is measured
#define TRIAL_NS     20000000 // in which clocks rise

struct kernel {
    struct bench_load_shape shape;
    CUfunction function;
    uint32_t rounds;
};

struct bench_load {
    const struct phi_driver *driver;
    CUmodule module;
    CUstream own; // of the kernels
    CUstream *streams;
    size_t stream_count;
    CUevent events[BENCH_LOAD_EVENTS];
    struct kernel kernels[BENCH_LOAD_KERNELS];
    unsigned multiprocessors;
    void *where; // pinned: a word for each block of each slot
    CUdeviceptr where_device;
    uint32_t marks[BENCH_LOAD_SLOTS], mark; // of the launches in the slots, and the last
    char error[256];
};

static int refuse(struct bench_load *load, CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return 0;
    snprintf(load->error, sizeof(load->error), "%s: %s", what, phi_cuda_name(load->driver, result));
    return phi_cuda_code(result);
}

// CALL makes a call of the driver's table and names it where it fails.
#define CALL(load, entry, ...) refuse((load), (load)->driver->entry(__VA_ARGS__), #entry)

static unsigned grid(const struct bench_load *load)
{
    return BENCH_LOAD_WAVES * load->multiprocessors;
}

const char *bench_load_error(const struct bench_load *load)
{
    return load->error;
}

const struct bench_load_shape *bench_load_shape(const struct bench_load *load,
                                                enum bench_load_kernel kernel)
{
    return &load->kernels[kernel].shape;
}

void *bench_load_stream(const struct bench_load *load, size_t stream)
{
    return load->streams[stream];
}

int bench_load_record(struct bench_load *load, unsigned event, size_t stream)
{
    return CALL(load, cuEventRecord, load->events[event], load->streams[stream]);
}

int bench_load_passed(struct bench_load *load, unsigned event)
{
    CUresult result = load->driver->cuEventQuery(load->events[event]);
    return result == CUDA_ERROR_NOT_READY ? 0
           : result == CUDA_SUCCESS       ? 1
                                          : refuse(load, result, "cuEventQuery");
}

int bench_load_between(struct bench_load *load, unsigned from, unsigned to, double *us)
{
    float ms = 0;
    int rc = CALL(load, cuEventElapsedTime, &ms, load->events[from], load->events[to]);
    *us = (double)ms * 1e3;
    return rc;
}

int bench_load_begin_graph(struct bench_load *load, size_t stream)
{
    return CALL(load, cuStreamBeginCapture_v2, load->streams[stream],
                CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

int bench_load_end_graph(struct bench_load *load, size_t stream, void **graph)
{
    CUgraph captured;
    CUgraphExec executable;
    int rc = CALL(load, cuStreamEndCapture, load->streams[stream], &captured);
    if (rc)
        return rc;
    rc = CALL(load, cuGraphInstantiateWithFlags, &executable, captured, 0);
    load->driver->cuGraphDestroy(captured);
    if (rc == 0)
        *graph = executable;
    return rc;
}

int bench_load_launch_graph(struct bench_load *load, size_t stream, void *graph)
{
    return CALL(load, cuGraphLaunch, graph, load->streams[stream]);
}

void bench_load_destroy_graph(struct bench_load *load, void *graph)
{
    if (graph)
        load->driver->cuGraphExecDestroy(graph);
}

static int launch(struct bench_load *load, const struct kernel *kernel, unsigned blocks,
                  unsigned slot)
{
    load->mark = load->mark % 0xffff + 1;
    load->marks[slot] = load->mark;
    struct bench_load_args args = {
        .where = load->where_device + sizeof(uint32_t) * slot * grid(load),
        .mark = load->mark,
        .rounds = kernel->rounds,
        .never = 1.25f,
    };
    void *params[] = {&args};
    return CALL(load, cuLaunchKernel, kernel->function, blocks, 1, 1, kernel->shape.threads, 1, 1,
                kernel->shape.shared, load->own, params, NULL);
}

int bench_load_launch(struct bench_load *load, enum bench_load_kernel kernel, unsigned slot,
                      unsigned event)
{
    int rc = CALL(load, cuEventRecord, load->events[event], load->own);
    if (rc == 0)
        rc = launch(load, &load->kernels[kernel], grid(load), slot);
    return rc ? rc : CALL(load, cuEventRecord, load->events[event + 1], load->own);
}

void bench_load_see(const struct bench_load *load, unsigned slot, struct bench_load_seen *seen)
{
    const volatile uint32_t *where = (const uint32_t *)load->where + (size_t)slot * grid(load);
    uint8_t had[(1 << 16) / 8] = {0};
    *seen = (struct bench_load_seen){.blocks = grid(load)};
    for (unsigned i = 0; i < seen->blocks; i++) {
        const uint32_t word = where[i], multiprocessor = word & 0xffff;
        if (word >> 16 != load->marks[slot])
            continue;
        seen->begun++;
        seen->multiprocessors += !(had[multiprocessor / 8] & 1 << multiprocessor % 8);
        had[multiprocessor / 8] |= (uint8_t)(1 << multiprocessor % 8);
    }
}

static int attribute(struct bench_load *load, CUdevice_attribute which, int *value)
{
    CUdevice device;
    int rc = CALL(load, cuCtxGetDevice, &device);
    return rc ? rc : CALL(load, cuDeviceGetAttribute, value, which, device);
}

// The work of a block is as much as takes BENCH_LOAD_BLOCK_US where nothing else runs: of the last
// launch of some, for the first one loads the kernel.
static int weigh(struct bench_load *load, struct kernel *kernel)
{
    const int64_t start = bench_now_ns();
    double us = 0;
    int rc = 0;
    kernel->rounds = TRIAL_ROUNDS;
    for (int i = 0; (i < 2 || bench_now_ns() - start < TRIAL_NS) && rc == 0; i++) {
        rc = CALL(load, cuEventRecord, load->events[0], load->own);
        if (rc == 0)
            rc = launch(load, kernel, load->multiprocessors, 0);
        if (rc == 0)
            rc = CALL(load, cuEventRecord, load->events[1], load->own);
        if (rc == 0)
            rc = CALL(load, cuStreamSynchronize, load->own);
    }
    if (rc == 0)
        rc = bench_load_between(load, 0, 1, &us);
    const double rounds = us > 0 ? TRIAL_ROUNDS * BENCH_LOAD_BLOCK_US / us : 1;
    kernel->rounds = rounds < 1 ? 1 : (uint32_t)rounds;
    return rc;
}

static int open_kernel(struct bench_load *load, struct kernel *kernel, const char *function,
                       int shared)
{
    int registers = 0, most = shared;
    int rc = CALL(load, cuModuleGetFunction, &kernel->function, load->module, function);
    if (rc == 0 && shared)
        rc = attribute(load, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &most);
    kernel->shape.shared = (unsigned)(most < shared ? most : shared);
    if (rc == 0 && shared)
        rc = CALL(load, cuFuncSetAttribute, kernel->function,
                  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)kernel->shape.shared);
    if (rc == 0)
        rc = CALL(load, cuFuncGetAttribute, &registers, CU_FUNC_ATTRIBUTE_NUM_REGS,
                  kernel->function);
    kernel->shape.registers = (unsigned)registers;
    return rc ? rc : weigh(load, kernel);
}

static int open_streams(struct bench_load *load, size_t streams)
{
    int rc = CALL(load, cuStreamCreate, &load->own, CU_STREAM_NON_BLOCKING);
    for (unsigned i = 0; i < BENCH_LOAD_EVENTS && rc == 0; i++)
        rc = CALL(load, cuEventCreate, &load->events[i], CU_EVENT_DEFAULT);
    for (; load->stream_count < streams && rc == 0; load->stream_count++)
        rc = CALL(load, cuStreamCreate, &load->streams[load->stream_count], CU_STREAM_NON_BLOCKING);
    return rc;
}

static int open_kernels(struct bench_load *load)
{
    struct kernel *kernels = load->kernels;
    int multiprocessors = 0;
    kernels[BENCH_LOAD_LIGHT].shape = (struct bench_load_shape){.name = "light", .threads = 256};
    kernels[BENCH_LOAD_GEMM].shape = (struct bench_load_shape){.name = "gemm", .threads = 384};
    int rc = attribute(load, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &multiprocessors);
    load->multiprocessors = (unsigned)multiprocessors;
    const size_t size = sizeof(uint32_t) * BENCH_LOAD_SLOTS * grid(load);
    if (rc == 0)
        rc = CALL(load, cuMemHostAlloc, &load->where, size, 0);
    if (rc == 0)
        rc = CALL(load, cuMemHostGetDevicePointer_v2, &load->where_device, load->where, 0);
    if (rc)
        return rc;
    memset(load->where, 0, size);
    rc = CALL(load, cuModuleLoadData, &load->module, bench_kernels);
    if (rc == 0)
        rc = open_kernel(load, &kernels[BENCH_LOAD_LIGHT], "bench_load_light", 0);
    return rc ? rc : open_kernel(load, &kernels[BENCH_LOAD_GEMM], "bench_load_gemm", GEMM_SHARED);
}

int bench_load_open(struct bench_load **out, size_t streams, char *error, size_t error_size)
{
    const char *library = getenv("PEERHOP_LIBCUDA");
    struct bench_load *load = calloc(1, sizeof(*load));
    CUstream *list = calloc(streams, sizeof(*list));
    if (!load || !list) {
        free(load);
        free(list);
        snprintf(error, error_size, "out of memory");
        return -ENOMEM;
    }
    load->streams = list;
    load->driver = phi_driver_load(library ? library : "libcuda.so.1", error, error_size);
    int rc = load->driver ? 0 : -ENODEV;
    if (rc == 0 && bench_kernels_size == 0) {
        snprintf(load->error, sizeof(load->error), "built without nvcc: there are no kernels");
        rc = -ENOTSUP;
    }
    if (rc == 0)
        rc = open_streams(load, streams);
    if (rc == 0)
        rc = open_kernels(load);
    if (rc == 0) {
        *out = load;
        return 0;
    }
    if (load->driver)
        snprintf(error, error_size, "%s", load->error);
    bench_load_close(load, true);
    return rc;
}

// What the driver frees only behind all work is left to the end of the process after a failure.
void bench_load_close(struct bench_load *load, bool failed)
{
    const struct phi_driver *driver = load ? load->driver : NULL;
    for (size_t i = 0; driver && i < load->stream_count; i++)
        driver->cuStreamDestroy_v2(load->streams[i]);
    if (driver && load->own)
        driver->cuStreamDestroy_v2(load->own);
    for (unsigned i = 0; driver && i < BENCH_LOAD_EVENTS; i++)
        if (load->events[i])
            driver->cuEventDestroy_v2(load->events[i]);
    if (driver && load->where && !failed)
        driver->cuMemFreeHost(load->where);
    if (driver && load->module && !failed)
        driver->cuModuleUnload(load->module);
    if (load)
        free(load->streams);
    free(load);
}
