// SPDX-License-Identifier: BSD-3-Clause
#include "support/test_kernels.h"

static __device__ uint64_t load_64(uint64_t address)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

static __device__ uint64_t seed_of(const test_pattern_args &args)
{
    return args.seed + (args.seed_word != 0 ? load_64(args.seed_word) : 0);
}

static __device__ uint8_t byte_of(uint64_t word, uint64_t index)
{
    return static_cast<uint8_t>(word >> (index % 8 * 8));
}

extern "C" __global__ void phi_test_fill(const __grid_constant__ test_pattern_args args)
{
    const uint64_t seed = seed_of(args);
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    const uint64_t words = (args.size + 7) / 8;
    uint8_t *bytes = reinterpret_cast<uint8_t *>(args.address);
    const bool aligned = args.address % 8 == 0;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
         i += stride) {
        const uint64_t word = test_pattern(seed, i);
        if (aligned && i * 8 + 8 <= args.size)
            reinterpret_cast<uint64_t *>(bytes)[i] = word;
        else
            for (uint64_t j = i * 8; j < i * 8 + 8 && j < args.size; j++)
                bytes[j] = byte_of(word, j);
    }
}

// Plain loads, as an application's kernel would do them: what the checking kernel of the litmus
// test may not see is exactly stale data.
extern "C" __global__ void phi_test_verify(const __grid_constant__ test_pattern_args args)
{
    const uint64_t seed = seed_of(args);
    const uint64_t words = (args.size + 7) / 8;
    const uint8_t *bytes = reinterpret_cast<const uint8_t *>(args.address);
    const bool aligned = args.address % 8 == 0;
    unsigned long long errors = 0;
    for (uint64_t i = threadIdx.x; i < words; i += blockDim.x) {
        const uint64_t word = test_pattern(seed, i);
        if (aligned && i * 8 + 8 <= args.size &&
            reinterpret_cast<const uint64_t *>(bytes)[i] == word)
            continue;
        for (uint64_t j = i * 8; j < i * 8 + 8 && j < args.size; j++)
            errors += bytes[j] != byte_of(word, j);
    }
    // Of two devices' numbers one may be lost, but not both. (In host memory a PCIe system has no
    // atomics of system scope.)
    if (errors != 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(args.errors), errors);
}

const int LIVE = 146; // registers that hold something all the time, besides those of the loop

extern "C" __global__ void __launch_bounds__(384, 1)
    phi_test_occupy(const __grid_constant__ test_occupy_args args)
{
    float live[LIVE];
    uint64_t begin, now;
    uint32_t multiprocessor;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    if (threadIdx.x == 0)
        reinterpret_cast<volatile uint32_t *>(args.where)[multiprocessor] = 1;
#pragma unroll
    for (int i = 0; i < LIVE; i++)
        live[i] = static_cast<float>(args.ns * i + threadIdx.x);
    do {
#pragma unroll
        for (int i = 0; i < LIVE; i++)
            live[i] = live[i] * 0.99f + live[(i + 7) % LIVE];
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < args.ns);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < LIVE; i++)
        sum += live[i];
    if (sum == 1.2345f) // never, which the compiler does not know
        reinterpret_cast<volatile uint32_t *>(args.where)[multiprocessor] = 2;
}

extern "C" __global__ void phi_test_spin(const __grid_constant__ test_spin_args args)
{
    uint32_t value;
    do
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
                     : "=r"(value)
                     : "l"(args.word)
                     : "memory");
    while (static_cast<int32_t>(value) < 1);
}
