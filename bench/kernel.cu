// SPDX-License-Identifier: BSD-3-Clause
#include <peerhop/device.cuh>

#include "kernel.h"
#include "load.cuh"

template <bench_kernel KIND, class Group>
static __device__ int give(const bench_kernel_args &args, ph_device_port<Group> &to, uint64_t i)
{
    if (KIND == BENCH_KERNEL_PUT_SIGNAL)
        return to.put_signal(0, 0, args.size);
    return KIND == BENCH_KERNEL_LL ? to.ll_put_signal(0, 0, args.size) : to.ll_signal(i);
}

template <bench_kernel KIND, class Group>
static __device__ int take(const bench_kernel_args &args, ph_device_port<Group> &from, uint64_t i)
{
    uint64_t value;
    if (KIND == BENCH_KERNEL_PUT_SIGNAL)
        return from.wait(args.size);
    if (KIND == BENCH_KERNEL_LL)
        return from.ll_wait(args.size);
    const int rc = from.ll_wait_value(&value);
    return rc == 0 && value != i ? static_cast<int>(PH_DEVICE_ENDED) : rc;
}

template <bench_kernel KIND, class Group>
static __device__ int round_trips(const bench_kernel_args &args)
{
    ph_device_port<Group> to(args.to), from(args.from);
    int rc = args.leader ? 0 : take<KIND>(args, from, 0);
    for (uint64_t i = 0; i < args.count && rc == 0; i++) {
        rc = give<KIND>(args, to, i);
        if (rc == 0 && (args.leader || i + 1 < args.count))
            rc = take<KIND>(args, from, args.leader ? i : i + 1);
    }
    return rc;
}

static __device__ uint32_t drawn, arrived;

// Of all blocks, which are on the device together: there are fewer than multiprocessors.
static __device__ void meet_all()
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence(); // what the block has drawn, before what the others draw next
        const uint32_t turn = atomicAdd(&arrived, 1) / gridDim.x;
        while (phi_device::load_acquire(reinterpret_cast<uint64_t>(&arrived)) / gridDim.x == turn) {
        }
    }
    __syncthreads();
}

// By all warps of the grid. They meet after each copy, as one counter serves all; the acquire there
// also keeps a get from finding the bytes of the one before in the first level cache.
static __device__ int copies(const bench_kernel_args &args)
{
    const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const uint32_t warps = gridDim.x * blockDim.x / 32;
    int rc = 0;
    for (uint64_t i = 0; i < args.count && rc == 0; i++) {
        rc = args.kind == BENCH_KERNEL_PUT
                 ? ph_device_put_split<ph_warp>(args.to, 0, 0, args.size, &drawn, warp, warps)
                 : ph_device_get_split<ph_warp>(args.from, 0, 0, args.size, &drawn, warp, warps);
        meet_all();
    }
    return rc;
}

template <bench_kernel KIND> static __device__ int by_group(const bench_kernel_args &args)
{
    return blockDim.x == 32 ? round_trips<KIND, ph_warp>(args) : round_trips<KIND, ph_block>(args);
}

extern "C" __global__ void __launch_bounds__(1024)
    bench_kernel(const __grid_constant__ bench_kernel_args args)
{
    int rc;
    if (args.kind == BENCH_KERNEL_PUT_SIGNAL)
        rc = by_group<BENCH_KERNEL_PUT_SIGNAL>(args);
    else if (args.kind == BENCH_KERNEL_LL)
        rc = by_group<BENCH_KERNEL_LL>(args);
    else if (args.kind == BENCH_KERNEL_VALUE)
        rc = round_trips<BENCH_KERNEL_VALUE, ph_thread>(args);
    else
        rc = copies(args);
    if (rc != 0 && threadIdx.x == 0)
        *reinterpret_cast<int *>(args.result) = rc;
}

static __device__ uint64_t timer()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

extern "C" __global__ void bench_note(const __grid_constant__ bench_note_args args)
{
    const uint64_t start = timer();
    const volatile uint64_t *gate = reinterpret_cast<const volatile uint64_t *>(args.gate);
    uint64_t now = start;
    while (now - start < args.after_ns && (gate == nullptr || *gate < args.opens))
        now = timer();
    *reinterpret_cast<uint64_t *>(args.address) = now;
}
