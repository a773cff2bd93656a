// SPDX-License-Identifier: BSD-3-Clause
// One rank of peerhop-info --check; see check_pairs.h.
#ifndef TOOLS_CHECK_RANK_H
#define TOOLS_CHECK_RANK_H

#include <stdint.h>

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

#endif
