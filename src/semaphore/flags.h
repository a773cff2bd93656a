// SPDX-License-Identifier: BSD-3-Clause
// Where the flags of a pair of ranks lie: each has a slab of device memory that the other maps,
// with lines for the pair's first channels. What the words of a lane mean is written in
// kernel_args.h.
#ifndef PHI_SEMAPHORE_FLAGS_H
#define PHI_SEMAPHORE_FLAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/kernel_args.h"
#include "semaphore/words.h"

// Channels of a pair that have flags; those beyond use words in host memory.
#define PHI_FLAG_LINES 128

// Of those the ones whose sends may go by lines up to PHI_LL_LARGE, by slots of their own.
#define PHI_FLAG_LARGE 16

// A line: the lanes of both directions (that of side 0's data first), then the slots of ll, of the
// direction in which the slab's owner receives. A lane for each word.
#define PHI_FLAG_LANES ((size_t)2 * PHI_WORD_COUNT)
#define PHI_FLAG_LINE                                                                              \
    (PHI_FLAG_LANES * sizeof(struct phi_flag_lane) +                                               \
     (size_t)PHI_WORD_COUNT * PHI_LL_SLOTS * PHI_LL_SLOT)

// Behind the lines.
#define PHI_FLAG_LARGE_SLOTS ((size_t)PHI_LL_SLOTS * PHI_LL_LARGE_SLOT)

// A multiple of 2 MiB: smaller allocations share pages with others, and are exported with them.
#define PHI_FLAG_UNIT ((size_t)2 << 20)
#define PHI_FLAG_SLAB                                                                              \
    ((PHI_FLAG_LINES * PHI_FLAG_LINE + PHI_FLAG_LARGE * PHI_FLAG_LARGE_SLOTS + PHI_FLAG_UNIT -     \
      1) /                                                                                         \
     PHI_FLAG_UNIT * PHI_FLAG_UNIT)

// Offsets in a slab. sender: the side whose data moves in the lane's direction.
static inline size_t phi_flag_lane(uint32_t line, int sender, enum phi_word word)
{
    return line * PHI_FLAG_LINE +
           (size_t)(sender * PHI_WORD_COUNT + (int)word) * sizeof(struct phi_flag_lane);
}

static inline bool phi_flag_large(uint32_t line, enum phi_word word)
{
    return line < PHI_FLAG_LARGE && word == PHI_WORD_TURN;
}

static inline size_t phi_flag_slots(uint32_t line, enum phi_word word)
{
    if (phi_flag_large(line, word))
        return PHI_FLAG_LINES * PHI_FLAG_LINE + line * PHI_FLAG_LARGE_SLOTS;
    return line * PHI_FLAG_LINE + PHI_FLAG_LANES * sizeof(struct phi_flag_lane) +
           (size_t)word * PHI_LL_SLOTS * PHI_LL_SLOT;
}

// The slot of a message of that number.
static inline size_t phi_flag_slot(uint32_t line, enum phi_word word, uint32_t message)
{
    const size_t size = PHI_LL_SLOT_OF(phi_flag_large(line, word));
    return phi_flag_slots(line, word) + (message & (PHI_LL_SLOTS - 1)) * size;
}

// Most bytes of a message by lines.
static inline size_t phi_flag_piece(uint32_t line, enum phi_word word)
{
    return phi_flag_large(line, word) ? PHI_LL_LARGE : PHI_LL_PIECE;
}

#endif
