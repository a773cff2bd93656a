// SPDX-License-Identifier: BSD-3-Clause
// From messages by flags to the arguments of phi_hop.
#ifndef PHI_SEMAPHORE_HOP_H
#define PHI_SEMAPHORE_HOP_H

#include "cuda/kernel_args.h"
#include "semaphore/plan.h"

struct phi_grid {
    uint32_t blocks, threads;
};

// phi_hop_fill writes the items for n of work, at most PHI_HOP_ITEMS, and returns the grid to
// launch. source and destination are those of the work: where kernels know the memory by another
// address, the caller puts it there. Pure.
struct phi_grid phi_hop_fill(const struct phi_work *work, size_t n, const struct phi_policy *policy,
                             const struct phi_waiting *others, struct phi_hop_args *args);

#endif
