// SPDX-License-Identifier: BSD-3-Clause
// How a piece of work reaches a CUDA stream: as batches of memory operations, one-warp kernels and
// copies. Pure functions, and the limits that keep waiting streams from holding up the device.
#ifndef PHI_SEMAPHORE_PLAN_H
#define PHI_SEMAPHORE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "semaphore/executor.h"

// cuStreamBatchMemOp takes fewer than 256; these are on the caller's stack.
#define PHI_BATCH_MAX 160

// Copies that the copy engine is given at once.
#define PHI_ENGINE_MAX 128

enum phi_piece_kind {
    PHI_PIECE_BATCH,    // one batch of memory operations
    PHI_PIECE_KERNEL,   // one launch of phi_brace
    PHI_PIECE_COPY,     // one copy
    PHI_PIECE_ENGINE,   // several for the copy engine that have no order among themselves, in one
                        // call of the driver
    PHI_PIECE_COPIES,   // one launch of phi_copies: several that have no order among themselves,
                        // or one and the number
    PHI_PIECE_TRANSFER, // one launch of phi_transfer: what stands before a copy, it, and what
                        // follows
    PHI_PIECE_PAGES,    // one launch of phi_pages
    PHI_PIECE_HOP,      // one launch of phi_hop or its kin: messages by flags, or staged ones
};

struct phi_piece {
    uint8_t kind;        // enum phi_piece_kind
    bool done;           // the stream's number is written after the last item
    bool behind;         // a copy that stands behind a wait of the same work
    size_t first, count; // items of the work; copies of no bytes among them are nothing
    size_t copy;         // of PHI_PIECE_TRANSFER: which of all items is the copy
};

// A plan is walked from its first piece to its last; set the upper members, leave the lower zero.
struct phi_plan {
    const struct phi_work *work;
    size_t n;
    bool kernel_waits; // braces with waits are kernels
    bool fuse;         // and a copy behind a wait is one launch with it
    bool batches;      // the device has memory operations: else all braces are kernels
    bool gather;       // copies that follow one another go together, or one with the number
    bool together;     // the copy engine takes several copies at once: those marked as its,
    bool engine[2];    // and those that stand behind no wait, or behind one
    bool done;         // ends by writing the stream's number
    size_t at;
    bool waited;
    bool ended;
};

// phi_plan_next gives the next piece; false at the end. Zero-byte copies vanish, so that the braces
// around them are one.
bool phi_plan_next(struct phi_plan *plan, struct phi_piece *piece);

// The streams that wait on a device at this moment, beside the stream that asks.
struct phi_waiting {
    uint32_t kernels;           // streams in a waiting kernel
    uint32_t memory_operations; // ... in a memory operation
};

struct phi_policy {
    bool kernels, batches;   // what the device has
    bool shared;             // ranks share the device
    int wait, method;        // PHI_WAIT_*, PHI_METHOD_*
    uint32_t kernel_waits;   // at most so many waiting kernels
    uint32_t graph_branches; // ... of which so many are left to graphs
    uint32_t memory_waits;   // at most so many streams waiting by memory operation
    uint32_t blocks;         // all copies of one launch have half as many
    uint32_t copy_blocks;    // most of one copy: PHI_MOVE_BLOCKS and fewer
    uint32_t page_blocks;    // most of a list of pages that says nothing else
};

// phi_policy_of fills what the configuration says.
struct phi_policy phi_policy_of(const struct phi_config *config);

// phi_eager_waits: how many streams may wait by kernel, one at least.
uint32_t phi_eager_waits(const struct phi_policy *policy);

// phi_wait_mode decides for work that waits: 1 by kernel, 0 by memory operation, -EAGAIN where too
// many kernels wait. captured: of a graph, whose branches nobody sees running.
int phi_wait_mode(const struct phi_policy *policy, const struct phi_waiting *others, bool captured);

// phi_copy_mode: whether a copy kernel takes the copy engine's place. Behind a wait always, unless
// the configuration asks for the copy engine: what stands behind a wait holds up the streams with
// which it shares a hardware queue, and no process knows all its streams
// (docs/decisions/010-waits-by-kernel.md).
bool phi_copy_mode(const struct phi_policy *policy, bool behind);

// phi_gather_mode: whether copies that follow one another go together, in one launch, and a lone
// one with the stream's number. Also where ranks share a device, and their kernels take turns:
// 8 bytes are faster so however busy it is, 64 KiB by a third where it is idle and slower by a
// fifth where it is not (docs/measurements/2026-11-24.md, "What the host does").
bool phi_gather_mode(const struct phi_policy *policy);

// phi_copy_blocks: the blocks of a copy kernel for so many bytes. phi_copies_blocks: of one among
// others of one launch, `all` bytes: they share what one would have, but each has one at least.
// phi_hand_blocks: the hands of each of n messages by flags in one launch, by ll or by sm,
// where more mean sooner.
uint32_t phi_copy_blocks(const struct phi_policy *policy, size_t size);
uint32_t phi_copies_blocks(const struct phi_policy *policy, size_t size, uint64_t all);
uint32_t phi_hand_blocks(const struct phi_policy *policy, uint32_t n, size_t size);

#endif
