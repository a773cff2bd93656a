// SPDX-License-Identifier: BSD-3-Clause
// A ring of kernels: each rank sends a block to the next one and adds what comes from the one
// before to its sum, so many times, without leaving the kernel.
//
//     nvcc -std=c++17 -arch=sm_90 examples/ring.cu $(pkg-config --cflags --libs peerhop) -o ring
//     peerhop-run -n 2 ./ring
#include <cstdio>
#include <cstdlib>

#include <cuda_runtime.h>

#include <peerhop/device.cuh>
#include <peerhop/peerhop.h>

// A buffer has what this rank sends, and two places for what comes, used in turn: the next block
// may come while this rank still reads the last one.
static const size_t COUNT = 4096, BYTES = COUNT * sizeof(float);

#define CHECK(call)                                                                                \
    do {                                                                                           \
        int rc_ = (int)(call);                                                                     \
        if (rc_ != 0) {                                                                            \
            fprintf(stderr, "%s: %d\n", #call, rc_);                                               \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

__global__ void ring(const __grid_constant__ ph_device_channel next,
                     const __grid_constant__ ph_device_channel previous, float *buffer, int steps,
                     int *result)
{
    ph_device_port<ph_block> to(next), from(previous);
    float *sum = buffer;
    for (int step = 0; step < steps; step++) {
        const size_t place = (1 + step % 2) * BYTES;
        // The own sum to the next rank; the signal in it releases what the block has written.
        int rc = to.put_signal(place, 0, BYTES);
        if (rc == 0)
            rc = from.wait(BYTES); // ... and this acquires what the rank before has
        if (rc != 0) {             // the peer is gone, or late: leave, the host finds out why
            if (threadIdx.x == 0)
                *result = rc;
            return;
        }
        const float *came = buffer + place / sizeof(float);
        for (size_t i = threadIdx.x; i < COUNT; i += blockDim.x)
            sum[i] += came[i];
        // Two places are enough: the copy of a step waits until the next rank has taken the signal
        // of the step before, and by then it has added what came one earlier.
        __syncthreads();
    }
}

int main()
{
    ph_context *context = nullptr;
    const ph_context_params params = {};
    CHECK(ph_context_create(&params, &context));
    const int rank = ph_context_rank(context), ranks = ph_context_ranks(context);
    int device = 0;
    sscanf(ph_context_device(context), "cuda:%d", &device);
    CHECK(cudaSetDevice(device));

    float *buffer = nullptr;
    int *result = nullptr;
    CHECK(cudaMalloc(&buffer, 3 * BYTES));
    CHECK(cudaMemset(buffer, 0, 3 * BYTES));
    CHECK(cudaMallocHost(&result, sizeof *result));
    *result = 0;

    // Operation r goes from rank r to the next one.
    ph_operation ops[2] = {};
    ops[0].op_id = (uint64_t)rank;
    ops[0].peer = (rank + 1) % ranks;
    ops[0].role = PH_ROLE_SENDER;
    ops[1].op_id = (uint64_t)((rank + ranks - 1) % ranks);
    ops[1].peer = (rank + ranks - 1) % ranks;
    ops[1].role = PH_ROLE_RECEIVER;
    for (ph_operation &op : ops) {
        op.buffer = buffer;
        op.size = 3 * BYTES;
    }
    ph_channel *channels[2] = {};
    CHECK(ph_exchange(context, ops, 2, channels));

    ph_device_channel next, previous;
    CHECK(ph_channel_device(channels[0], &next, sizeof next));
    CHECK(ph_channel_device(channels[1], &previous, sizeof previous));
    ring<<<1, 512>>>(next, previous, buffer, 100, result);
    CHECK(cudaDeviceSynchronize());
    printf("rank %d: %s\n", rank, ph_strerror(*result));

    // The kernel is over: the channels are the host's alone again.
    CHECK(ph_channel_device_release(channels[0], &next));
    CHECK(ph_channel_device_release(channels[1], &previous));
    CHECK(ph_context_destroy(&context, 0));
    CHECK(cudaFree(buffer));
    return *result != 0;
}
