/* SPDX-License-Identifier: BSD-3-Clause */
/* What the examples share: how a rank begins and ends, and where its data lies.

   Built with -DEXAMPLE_CUDA and the CUDA runtime, a rank takes the GPU that Peerhop chooses for it
   (PEERHOP_DEVICE=host: none). Built without, it always takes host memory. What a program of your
   own needs of this is in the two halves of each function. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <peerhop/peerhop.h>

#ifdef EXAMPLE_CUDA
#include <cuda_runtime.h>
#define CHECK_CUDA(call) check_cuda(call, #call)

static bool on_gpu; /* else on host memory */
#endif

static struct ph_context *context;

static inline void check(int rc)
{
    char why[1024] = "";

    if (rc == 0)
        return;
    ph_context_error(context, why, sizeof why); /* names the rank, the operation and the cause */
    fprintf(stderr, "%s: %s\n", ph_strerror(rc), why);
    exit(1);
}

#ifdef EXAMPLE_CUDA
static inline void check_cuda(cudaError_t rc, const char *call)
{
    if (rc == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(rc));
    exit(1);
}
#endif

/* Makes this process a rank. Rank, number of ranks, job and store come from the environment, which
   peerhop-run sets. */
static inline void begin(int least_ranks)
{
    struct ph_context_params params = {0};

#ifndef EXAMPLE_CUDA
    params.device = "host";
#endif
    check(ph_context_create(&params, &context));
    if (ph_context_ranks(context) < least_ranks) {
        fprintf(stderr, "this takes %d ranks: peerhop-run -n %d\n", least_ranks, least_ranks);
        exit(1);
    }
#ifdef EXAMPLE_CUDA
    int device;

    on_gpu = sscanf(ph_context_device(context), "cuda:%d", &device) == 1;
    if (on_gpu)
        CHECK_CUDA(cudaSetDevice(device)); /* of the context, for the calls below */
#endif
}

/* Waits until no peer touches this rank's memory any more, and leaves the job. */
static inline void end(void)
{
    check(ph_context_destroy(&context, 0));
}

/* Memory that peers can map: zeroed, until the program ends. Any part of it can be exchanged. */
static inline void *memory_new(size_t size)
{
    void *memory;

#ifdef EXAMPLE_CUDA
    if (on_gpu) {
        CHECK_CUDA(cudaMalloc(&memory, size));
        CHECK_CUDA(cudaMemset(memory, 0, size));
        CHECK_CUDA(cudaDeviceSynchronize()); /* streams of their own do not wait for that */
        return memory;
    }
#endif
    check(ph_host_alloc(context, size, &memory));
    return memory;
}

/* A CUDA stream; in a context of host memory the queue that stands for one. */
static inline void *stream_new(void)
{
    struct ph_queue *queue;

#ifdef EXAMPLE_CUDA
    cudaStream_t stream;

    if (on_gpu) {
        CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        return stream;
    }
#endif
    check(ph_queue_create(context, &queue));
    return queue;
}

/* Waits for what was enqueued. A stream is done also where a peer has died: ask for
   ph_channel_status behind it. */
static inline void stream_wait(void *stream)
{
#ifdef EXAMPLE_CUDA
    if (on_gpu) {
        CHECK_CUDA(cudaStreamSynchronize(stream));
        return;
    }
#endif
    check(ph_queue_synchronize(stream, 0));
}

/* Copies between this program's variables and memory_new(), behind what was enqueued, and waits. */
static inline void copy(void *to, const void *from, size_t size, void *stream)
{
    stream_wait(stream);
#ifdef EXAMPLE_CUDA
    if (on_gpu) {
        CHECK_CUDA(cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, stream));
        stream_wait(stream);
        return;
    }
#endif
    memcpy(to, from, size);
}

/* Ends the program where data is not what was sent. */
static inline void expect(bool right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "rank %d: wrong %s\n", ph_context_rank(context), what);
    exit(1);
}

/* The program's own memory, zeroed. */
static inline void *allocate(size_t n, size_t size)
{
    void *memory = calloc(n, size);

    if (memory == NULL) {
        perror("calloc");
        exit(1);
    }
    return memory;
}

#endif
