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

// How many bytes at the end of a message by copy go by wide lines. Both ends say the same. A copy
// ends with a fence and a flag, two trips, which lines need not; of a large one they are little.
// end: of the channel, which phi_flag_end() makes of what its sender says, and of up to how many
// bytes messages go by lines and by copy. Units: the shortest end is wide as well.
#define PHI_TAIL_UNIT 4096
#define PHI_TAIL_MOST ((size_t)32 << 20)
static_assert(PHI_TAIL_UNIT - 127 > PHI_WIDE_LEAST, "phi_flag_tail() may leave out 127");
static inline uint64_t phi_flag_end(uint64_t lines, uint64_t copy, uint64_t said)
{
    const uint64_t end = said < PHI_WIDE_PIECE ? said : PHI_WIDE_PIECE;
    return lines > PHI_LL_PIECE && copy > PHI_WIDE_PIECE ? end / PHI_TAIL_UNIT * PHI_TAIL_UNIT : 0;
}

static inline size_t phi_flag_tail(uint64_t end, size_t size)
{
    if (end == 0 || size <= PHI_WIDE_PIECE || size > PHI_TAIL_MOST)
        return 0;
    return (size_t)end - (128 - size % 128) % 128; // begins as aligned as the message
}

#endif
