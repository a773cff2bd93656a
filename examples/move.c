/* SPDX-License-Identifier: BSD-3-Clause */
/* The smallest program: rank 0 sends numbers, rank 1 receives them and looks at each.

       cc move.c $(pkg-config --cflags --libs peerhop) -o move
       peerhop-run -n 2 ./move

   This moves host memory. What a GPU's memory takes is below EXAMPLE_CUDA:

       cc -DEXAMPLE_CUDA -I$CUDA_HOME/include move.c $(pkg-config --cflags --libs peerhop) \
           -L$CUDA_HOME/lib64 -lcudart -o move */
#ifdef EXAMPLE_CUDA
#include <cuda_runtime.h>
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <peerhop/peerhop.h>

static struct ph_context *context;

static void check(int rc)
{
    char why[1024] = "";

    if (rc == 0)
        return;
    ph_context_error(context, why, sizeof why); /* names the rank, the operation and the cause */
    fprintf(stderr, "%s: %s\n", ph_strerror(rc), why);
    exit(1);
}

/* Rank 0 sends what buffer holds, rank 1 receives it. */
static struct ph_channel *move(void *buffer, size_t size, void *stream)
{
    const int rank = ph_context_rank(context);
    const struct ph_operation operation = {.op_id = 1,
                                           .peer = 1 - rank,
                                           .role = rank == 0 ? PH_ROLE_SENDER : PH_ROLE_RECEIVER,
                                           .buffer = buffer,
                                           .size = size};
    struct ph_channel *channel;

    check(ph_exchange(context, &operation, 1, &channel)); /* the two ranks meet, once */
    if (rank == 0)
        check(ph_send(channel, size, stream));
    else
        check(ph_recv(channel, size, stream));
    check(ph_complete(channel, stream));
    return channel; /* all is enqueued: what follows on the stream finds the data */
}

static void fail(const char *why)
{
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static void move_host_memory(int *numbers, size_t size)
{
    struct ph_queue *queue; /* what a stream is to a GPU */
    struct ph_channel *channel;
    void *buffer;

    check(ph_host_alloc(context, size, &buffer));
    check(ph_queue_create(context, &queue));
    memcpy(buffer, numbers, size);
    channel = move(buffer, size, queue);
    check(ph_queue_synchronize(queue, 0));
    check(ph_channel_status(channel)); /* a queue is done also where the peer has died */
    memcpy(numbers, buffer, size);
    check(ph_queue_destroy(&queue));
}

#ifdef EXAMPLE_CUDA
static void check_cuda(cudaError_t rc)
{
    if (rc != cudaSuccess)
        fail(cudaGetErrorString(rc));
}

static void move_device_memory(int device, int *numbers, size_t size)
{
    struct ph_channel *channel;
    cudaStream_t stream;
    void *buffer;

    check_cuda(cudaSetDevice(device)); /* the context's */
    check_cuda(cudaMalloc(&buffer, size));
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check_cuda(cudaMemcpyAsync(buffer, numbers, size, cudaMemcpyDefault, stream));
    channel = move(buffer, size, stream);
    check_cuda(cudaMemcpyAsync(numbers, buffer, size, cudaMemcpyDefault, stream));
    check_cuda(cudaStreamSynchronize(stream));
    check(ph_channel_status(channel)); /* a stream is done also where the peer has died */
}
#endif

static void move_numbers(int *numbers, size_t size)
{
#ifdef EXAMPLE_CUDA
    int device;

    if (sscanf(ph_context_device(context), "cuda:%d", &device) == 1) {
        move_device_memory(device, numbers, size);
        return;
    }
#endif
    move_host_memory(numbers, size);
}

enum { COUNT = 1 << 20 };

int main(void)
{
    static int numbers[COUNT];
    struct ph_context_params params = {0};

#ifndef EXAMPLE_CUDA
    params.device = "host";
#endif
    /* Rank, number of ranks, job and store come from the environment, which peerhop-run sets. */
    check(ph_context_create(&params, &context));
    if (ph_context_ranks(context) != 2)
        fail("this takes two ranks: peerhop-run -n 2 ./move");
    const int rank = ph_context_rank(context);
    for (int i = 0; rank == 0 && i < COUNT; i++)
        numbers[i] = 3 * i;
    move_numbers(numbers, sizeof numbers);
    for (int i = 0; i < COUNT; i++)
        if (numbers[i] != 3 * i)
            fail("wrong data");
    if (rank == 1)
        printf("%d numbers have come, on %s\n", COUNT, ph_context_device(context));
    check(ph_context_destroy(&context, 0));
    return 0;
}
