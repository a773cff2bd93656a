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

#include <stdint.h>

#include "base/config.h"
#include "base/report.h"

// What one rank has found with another; travels through a pipe, whole.
struct check_verdict {
    int32_t rank, peer; // peer == rank: about no pair, and the rank goes no further
    uint32_t us;        // the pair took so long, from when both ranks were there
    uint32_t kernels;   // 1: stores of kernels were checked
    char wrong[400];    // what is not as it should be; "": nothing
    char without[160];  // why no kernels were
};

// check_rank is the life of one rank: it checks its pairs in the order that all ranks have, and
// writes a verdict of each to `pipe`. Returns the exit status of its process.
int check_rank(const char *store, const char *libcuda, int rank, int ranks, int pipe);

// check_pairs checks all pairs, and prints the verdicts. Nothing of CUDA may have been called in
// this process. Returns the exit status: 0 where all pairs are well, and where there is one device.
int check_pairs(const struct phi_config *config);

#endif
