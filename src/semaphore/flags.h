// SPDX-License-Identifier: BSD-3-Clause
// Where the flags of a pair of ranks lie: each has a slab of device memory that the other maps,
// with lines for the pair's first channels. What the words of a lane mean is written in
// cuda/kernel_args.h.
#ifndef PHI_SEMAPHORE_FLAGS_H
#define PHI_SEMAPHORE_FLAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/kernel_args.h"
#include "semaphore/words.h"

// Channels of a pair that have flags; those beyond use words in host memory.
#define PHI_FLAG_LINES 128

// Of those the ones whose sends have wide slots, too.
#define PHI_FLAG_WIDE 16

// A line: the lanes of both directions (that of side 0's data first), then the slots of ll, of the
// direction in which the slab's owner receives. A lane for each word.
#define PHI_FLAG_LANES ((size_t)2 * PHI_WORD_COUNT)
#define PHI_FLAG_LINE                                                                              \
    (PHI_FLAG_LANES * sizeof(struct phi_flag_lane) +                                               \
     (size_t)PHI_WORD_COUNT * PHI_LL_SLOTS * PHI_LL_SLOT)

// Behind the lines.
#define PHI_FLAG_WIDE_SLOTS ((size_t)PHI_LL_SLOTS * PHI_WIDE_SLOT)

// A multiple of 2 MiB: smaller allocations share pages with others, and are exported with them.
#define PHI_FLAG_UNIT ((size_t)2 << 20)
#define PHI_FLAG_SLAB                                                                              \
    ((PHI_FLAG_LINES * PHI_FLAG_LINE + PHI_FLAG_WIDE * PHI_FLAG_WIDE_SLOTS + PHI_FLAG_UNIT - 1) /  \
     PHI_FLAG_UNIT * PHI_FLAG_UNIT)

// Offsets in a slab. sender: the side whose data moves in the lane's direction.
static inline size_t phi_flag_lane(uint32_t line, int sender, enum phi_word word)
{
    return line * PHI_FLAG_LINE +
           (size_t)(sender * PHI_WORD_COUNT + (int)word) * sizeof(struct phi_flag_lane);
}

static inline size_t phi_flag_slots(uint32_t line, enum phi_word word)
{
    return line * PHI_FLAG_LINE + PHI_FLAG_LANES * sizeof(struct phi_flag_lane) +
           (size_t)word * PHI_LL_SLOTS * PHI_LL_SLOT;
}

static inline bool phi_flag_has_wide(uint32_t line, enum phi_word word)
{
    return line < PHI_FLAG_WIDE && word == PHI_WORD_TURN;
}

static inline size_t phi_flag_wide_slots(uint32_t line)
{
    return PHI_FLAG_LINES * PHI_FLAG_LINE + line * PHI_FLAG_WIDE_SLOTS;
}

// Most bytes of a message by lines.
static inline size_t phi_flag_piece(uint32_t line, enum phi_word word)
{
    return phi_flag_has_wide(line, word) ? PHI_WIDE_PIECE : PHI_LL_PIECE;
}

// Whether a message by lines is wide, where so many bytes may go by lines: more than fit into
// others only where they may be wide (base/table.h). Smaller ones gain nothing by it.
#define PHI_WIDE_LEAST 2048
static inline bool phi_flag_is_wide(uint64_t lines, size_t size)
{
    return lines > PHI_LL_PIECE && size > PHI_WIDE_LEAST;
}

#endif
