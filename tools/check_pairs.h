// SPDX-License-Identifier: BSD-3-Clause
// peerhop-info --check: whether the GPUs of this node reach each other's memory, and all bytes
// come.
//
// Each GPU has a process, a rank of a job of its own with a private store. For each pair the two
// ranks make channels, as any program does, and both send at once by each method: the copy engine
// of the sender writes, that of the receiver reads, and kernels of the sender store. The receiver
// compares every byte.
#ifndef TOOLS_CHECK_PAIRS_H
#define TOOLS_CHECK_PAIRS_H

#include "base/config.h"

// check_pairs checks all pairs, and prints the verdicts. Nothing of CUDA may have been called in
// this process. Returns the exit status: 0 where all pairs are well, and where there is one device.
int check_pairs(const struct phi_config *config);

#endif
