// SPDX-License-Identifier: BSD-3-Clause
// The arguments of our kernels, as plain structs that the host, the device and the tests' stand-in
// driver share.
//
// Each kernel takes one such struct by value: cuLaunchKernel's kernelParams[0] points to it. A
// stand-in driver knows our kernels by the name given to cuModuleGetFunction ("phi_brace",
// "phi_copy", "phi_transfer") and does what is written here. Those of the tests (tests/support/test_kernels.h) are
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

// The words that the blocks of one phi_transfer meet at, in device memory. Both are 0 before a
// launch and after it, so that a graph replays; launches with the same words follow one another.
struct phi_transfer_sync {
    uint32_t gate;    // 1: copy, 2: copy nothing
    uint32_t arrived; // blocks that have copied their part
};

// phi_transfer: a brace, a copy and a brace in one launch, so that nothing of it stands behind its
// own wait. Any grid of one dimension. Block 0 does items [0, before); then all blocks copy, as
// phi_copy; the last of them that is done does items [before, count) and stores number, as
// phi_brace. sync is the address of a struct phi_transfer_sync; 0 will do for a grid of one block.
struct phi_transfer_args {
    struct phi_brace_item items[PHI_BRACE_ITEMS];
    struct phi_copy_args copy;
    uint64_t done;
    uint64_t number;
    uint64_t sync;
    uint32_t before;
    uint32_t count;
};

#define PHI_BRACE_THREADS 32
#define PHI_COPY_THREADS  512

static_assert(sizeof(struct phi_brace_item) == 24, "shared with the device");
static_assert(sizeof(struct phi_brace_args) == 24 * PHI_BRACE_ITEMS + 24, "shared with the device");
static_assert(sizeof(struct phi_copy_args) == 32, "shared with the device");
static_assert(sizeof(struct phi_transfer_args) == 24 * PHI_BRACE_ITEMS + 64,
              "shared with the device");

#endif
