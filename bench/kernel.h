// SPDX-License-Identifier: BSD-3-Clause
// What -i device runs: a kernel that does the iterations of a block by itself, on device channels.
// The arguments of the kernel in kernel.cu, which device and host share.
#ifndef BENCH_KERNEL_H
#define BENCH_KERNEL_H

#include <stdint.h>

#include <peerhop/device_types.h>

enum bench_kernel {
    BENCH_KERNEL_NONE,
    BENCH_KERNEL_PUT_SIGNAL, // round trips of put_signal and wait
    BENCH_KERNEL_LL,         // ... of ll_put_signal and ll_wait
    BENCH_KERNEL_VALUE,      // ... of ll_signal and ll_wait_value, each value checked
    BENCH_KERNEL_PUT,        // puts, of which each block does its part
    BENCH_KERNEL_GET,
};

// Round trips take one block: values its one thread, others a warp where the block is one.
struct bench_kernel_args {
    struct ph_device_channel to, from; // to the peer, and from it
    uint64_t count, size;
    uint64_t result; // address of a 32-bit word: 0, or the result of the call that failed
    uint32_t kind;   // enum bench_kernel
    uint32_t leader;
};

// The fatbin of kernel.cu, embedded, or nothing (kernel_stub.c).
#ifdef __cplusplus
extern "C" {
#endif
extern const unsigned char bench_kernels[];
extern const uint64_t bench_kernels_size; // 0: left out
#ifdef __cplusplus
}
#endif

#endif
