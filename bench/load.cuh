// SPDX-License-Identifier: BSD-3-Clause
// The kernels of load.h. Each block does the same work, so that it takes longer where it shares the
// multiprocessor, and says first where it runs.
#include "load.h"

// VALUES are live all the time: that many registers, and what the loop needs.
template <int VALUES> static __device__ void load_work(const bench_load_args &args)
{
    if (threadIdx.x == 0) {
        uint32_t multiprocessor;
        asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
        reinterpret_cast<volatile uint32_t *>(args.where)[blockIdx.x] =
            args.mark << 16 | multiprocessor;
    }
    float values[VALUES];
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        values[i] = static_cast<float>(threadIdx.x + i) * args.never;
#pragma unroll 1
    for (uint32_t round = 0; round < args.rounds; round++) {
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            values[i] = values[i] * 0.99f + values[(i + 7) % VALUES];
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        sum += values[i];
    if (sum == args.never)
        *reinterpret_cast<volatile uint32_t *>(args.where) = 0;
}

extern "C" __global__ void __launch_bounds__(256)
    bench_load_light(const __grid_constant__ bench_load_args args)
{
    load_work<8>(args);
}

// Of 65536 registers 170 are left for each of 384 threads.
extern "C" __global__ void __launch_bounds__(384, 1)
    bench_load_gemm(const __grid_constant__ bench_load_args args)
{
    load_work<160>(args);
}
