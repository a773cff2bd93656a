// SPDX-License-Identifier: BSD-3-Clause
// The arguments of our kernels, as plain structs that the host, the device and the tests' stand-in
// driver share.
//
// Each kernel takes one such struct by value: cuLaunchKernel's kernelParams[0] points to it. A
// stand-in driver knows our kernels by the name given to cuModuleGetFunction ("phi_brace",
// "phi_copy") and does what is written here. Those of the tests (tests/support/test_kernels.h) are
// found the same way, in a module of their own.
#ifndef PHI_CUDA_KERNEL_ARGS_H
#define PHI_CUDA_KERNEL_ARGS_H

#include <assert.h>
#include <stdint.h>

// Most items of one phi_brace; longer braces are several launches.
#define PHI_BRACE_ITEMS 16

enum phi_brace_kind {
    PHI_BRACE_WAIT = 0, // until *word & value (32 bits, acquire, system scope), or *broken != 0 where
                        // broken is not 0
    PHI_BRACE_POST = 1, // *word := value (release, system scope)
};

struct phi_brace_item {
    uint64_t word;   // device address
    uint64_t broken; // device address, or 0; only for waits
    uint32_t kind;   // enum phi_brace_kind
    uint32_t value;
};

// phi_brace: one warp of one block; its first thread does the items in order, then stores number
// into the 64-bit word `done` (release, system scope) where that is not 0. count may be 0.
struct phi_brace_args {
    struct phi_brace_item items[PHI_BRACE_ITEMS];
    uint64_t done;
    uint64_t number;
    uint32_t count;
    uint32_t reserved;
};

// phi_copy: any grid of one dimension; copies size bytes, which do not overlap, unless *broken (32
// bits) is not 0 when it starts. broken may be 0. size may be 0.
struct phi_copy_args {
    uint64_t destination; // device addresses
    uint64_t source;
    uint64_t size;
    uint64_t broken;
};

#define PHI_BRACE_THREADS 32
#define PHI_COPY_THREADS  512

static_assert(sizeof(struct phi_brace_item) == 24, "shared with the device");
static_assert(sizeof(struct phi_brace_args) == 24 * PHI_BRACE_ITEMS + 24, "shared with the device");
static_assert(sizeof(struct phi_copy_args) == 32, "shared with the device");

#endif
