// SPDX-License-Identifier: BSD-3-Clause
// What -i device runs: a kernel that does the iterations of a block by itself, on device channels.
// And what --late runs. The arguments of the kernels in kernel.cu, which device and host share.
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

// bench_note: one thread; spins for so many ns, then stores the time of the device's timer, in ns.
// With a gate it spins for no longer than until that is opens or more.
struct bench_note_args {
    uint64_t address; // of a 64-bit word
    uint64_t after_ns;
    uint64_t gate; // address of a 64-bit word in host memory, or 0
    uint64_t opens;
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
