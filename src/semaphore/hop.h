// SPDX-License-Identifier: BSD-3-Clause
// From messages by flags to the arguments of phi_hop and its kin.
#ifndef PHI_SEMAPHORE_HOP_H
#define PHI_SEMAPHORE_HOP_H

#include "cuda/kernel_args.h"
#include "semaphore/plan.h"

// What is launched.
struct phi_grid {
    enum phi_kernel kernel;
    uint32_t blocks, threads;
};

// phi_hop_fill writes the items for n of work, at most PHI_HOP_ITEMS and all staged or none, and
// returns what to launch. source and destination are those of the work: where kernels know the
// memory by another address, the caller puts it there. Pure.
struct phi_grid phi_hop_fill(const struct phi_work *work, size_t n, const struct phi_policy *policy,
                             const struct phi_waiting *others, struct phi_hop_args *args);

#endif
