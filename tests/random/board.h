// SPDX-License-Identifier: BSD-3-Clause
// What the ranks of one run and who started them share, and the data that messages are cut from.
#ifndef TESTS_RANDOM_BOARD_H
#define TESTS_RANDOM_BOARD_H

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "random/script.h"

// Bytes that look random and are none of the other fills. A message's data is a piece of it that
// begins at a random place.
static const size_t POOL = LARGEST + ((size_t)4 << 20);

enum class Doing : uint32_t {
    STARTING,
    OPENING,
    MEETING,
    GIVING_BACK,
    EXCHANGING,
    ENQUEUEING,
    WAITING,
    CHECKING,
    DONE
};
const char *name_of(Doing doing);

struct Board {
    std::atomic<uint32_t> arrived, generation; // the barrier
    std::atomic<uint64_t> end;                 // the round after which all stop
    std::atomic<uint64_t> operations_wanted;
    std::atomic<uint32_t> time_over;
    struct {
        std::atomic<uint64_t> round, step, repetition, progress;
        std::atomic<uint64_t> operations, bytes, large_bytes, fresh_rounds, lives;
        std::atomic<uint32_t> doing;
        char failed[1200];
        char waits[800]; // for what, where it takes long
        char path[160];
    } ranks[RANKS_MAX];
};

// What a rank is told by its environment.
struct Orders {
    int rank, ranks, life;
    uint64_t seed, first_round;
    int64_t stall_ms;
    const Config *config;
    Board *board;
    const uint8_t *pool;
};

// ---- rank.cpp

int rank_main(const Orders &orders);

enum {
    EXIT_NEXT_LIFE = 75
}; // a rank that ended on purpose, and is to come again in the round on the board

// ---- check.cpp

// Where in the pool the data of a message lies.
size_t pool_offset(uint64_t seed, uint64_t round, int repetition, uint32_t data, size_t size);

// Writes what an image holds before a repetition.
void write_image(const Orders &orders, uint64_t round, int repetition, const Part &part,
                 uint8_t *image);

// Compare what was read after a repetition; a difference ends the rank.
void check_result(const Orders &orders, uint64_t round, int repetition, const Script &script,
                  const uint8_t *result);
void check_snapshots(const Orders &orders, uint64_t round, int repetition, const Script &script,
                     const uint8_t *snapshots);

#endif
