// SPDX-License-Identifier: BSD-3-Clause
// From messages by flags to the arguments of phi_hop and its kin.
#ifndef PHI_SEMAPHORE_HOP_H
#define PHI_SEMAPHORE_HOP_H

#include "cuda/kernel_args.h"
#include "semaphore/plan.h"

// The kernel of a launch, and its size.
struct phi_grid {
    enum phi_kernel kernel;
    uint32_t blocks, threads;
};

// Messages by flags that belong together are up to three launches. Each launch begins when the
// waits of the one before it are over (docs/protocols.md, "Who waits").
enum phi_hop_part {
    PHI_HOP_FIRST,  // hands that push and copy, where they may soon; the wait until they may
    PHI_HOP_SECOND, // hands for what is left of that; the wait for messages
    PHI_HOP_THIRD,  // hands that take
    PHI_HOP_PARTS,
};

// phi_hop_last: the last part of n of work that has something.
enum phi_hop_part phi_hop_last(const struct phi_work *work, size_t n, bool captured);

// phi_hop_fill writes the items of a part of n of work, at most PHI_HOP_ITEMS and all staged or
// none, and returns what to launch: no blocks where the part has nothing. source and destination
// are those of the work: where kernels know the memory by another address, the caller puts it
// there. captured: into a graph. Pure.
struct phi_grid phi_hop_fill(const struct phi_work *work, size_t n, const struct phi_policy *policy,
                             bool captured, enum phi_hop_part part, struct phi_hop_args *args);

#endif
