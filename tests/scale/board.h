// SPDX-License-Identifier: BSD-3-Clause
// What the ranks of a job and their parent share: a barrier, and each rank's figures.
#ifndef TESTS_SCALE_BOARD_H
#define TESTS_SCALE_BOARD_H

#include <atomic>
#include <chrono>
#include <cstdint>

#include "scale/measure.h"

struct ScaleRank {
    int64_t begun[SCALE_STEPS], ended[SCALE_STEPS]; // ns
    uint64_t counted;
    uint64_t segments, mapped;
    int64_t bytes[3], descriptors[3]; // before the context, behind its creation, with the message
    char trouble[512];
};

const int SCALE_RANKS_MAX = 1024;

struct ScaleBoard {
    std::atomic<uint32_t> arrived, generation;
    std::atomic<uint32_t> over; // 1: somebody failed: no barrier is waited for any more
    ScaleRank rank[SCALE_RANKS_MAX];

    // A barrier of so many processes. come: whether this one was the last, and the others go on;
    // else it waits for the end of the generation that it has come in, at most so long, and is true
    // where that is over. arrive: both, until it is over; false: somebody failed.
    bool come(uint32_t all);
    bool wait(uint32_t come_in, int64_t ms);
    bool arrive(uint32_t all);
};

inline int64_t scale_now()
{
    return std::chrono::steady_clock::now().time_since_epoch().count();
}

// The life of a rank, in a process of its own. Its exit status.
int scale_rank(const ScaleJob &job, int rank, const char *store, ScaleBoard *board);

#endif
