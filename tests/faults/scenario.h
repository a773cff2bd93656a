// SPDX-License-Identifier: BSD-3-Clause
// Three ranks that use the library once in every way, in tens of milliseconds. Ranks 0 and 1 do
// everything with each other; rank 2 then exchanges with both of them, so that it shows whether
// they are still of use after a fault.
#ifndef TESTS_FAULTS_SCENARIO_H
#define TESTS_FAULTS_SCENARIO_H

#include <atomic>
#include <cstdint>
#include <string>

#include "faults/inject.h"

namespace faults
{

constexpr int RANKS = 3;
int64_t deadline_ms(); // of every call of the ranks, times TEST_TIME_FACTOR; that of a place, for
                       // ranks that begin later
void use_deadline_of(const std::string &place);

enum Stage {
    CREATE,
    EXCHANGE,
    TRANSFER,
    GROUP,
    GRAPH,
    AGAIN,   // hits, and another buffer
    RELEASE, // of buffers, which are freed by the book, and others in their place
    THIRD,   // with rank 2
    DESTROY,
    STAGES,
};
const char *stage_name(int stage);

// What a process holds; compared with that of a run without a fault.
struct Holdings {
    uint32_t descriptors, mappings, threads, allocations;
    uint64_t from[8]; // of allocations: places in the library
};

// Of one rank, read by the test after it has ended.
struct Outcome {
    std::atomic<int> stage, failed_at; // failed_at: -1 or the first stage that failed
    int result;                        // of the call that failed first
    char call[64], sentence[1024];
    int third_result; // of the exchange with rank 2; rank 2: with rank 1
    char third_sentence[1024];
    int destroys; // calls of ph_context_destroy until it succeeded; 0: it never did
    char destroy_sentence[1024];
    char wrong[256]; // bytes that are not what was sent
    char log[4096];
    Holdings after;
};

struct Board {
    fault_plan plan; // for rank 0
    std::atomic<uint32_t> arrived[STAGES * 8][RANKS];
    Outcome ranks[RANKS];
    char job[64], store[128], device[16];
};

// The whole life of a rank; the process is its own.
void play(Board *board, int rank);

// "" or why the device's ranks cannot run. Called once before any rank is forked; opens libraries,
// starts nothing.
std::string prepare(const std::string &device);

} // namespace faults

#endif
