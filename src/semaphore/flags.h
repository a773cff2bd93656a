// SPDX-License-Identifier: BSD-3-Clause
// The layout of the flags of a pair of ranks. Each rank has device memory that the other maps, in
// parts, with lines for the pair's first channels. cuda/kernel_args.h describes the words of a
// lane.
#ifndef PHI_SEMAPHORE_FLAGS_H
#define PHI_SEMAPHORE_FLAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/kernel_args.h"
#include "semaphore/words.h"

// Channels of a pair that have flags; those beyond use words in host memory.
#define PHI_FLAG_LINES 128

// So many of these channels have wide slots for their sends, too.
#define PHI_FLAG_WIDE 16

// The parts of a line. Each line has the lanes of both directions (that of side 0's data first), a
// lane for each word. For the direction in which the memory's owner receives, it has slots of ll
// for each word, and wide ones.
#define PHI_FLAG_LANES      ((size_t)2 * PHI_WORD_COUNT * sizeof(struct phi_flag_lane))
#define PHI_FLAG_SLOTS      ((size_t)PHI_WORD_COUNT * PHI_LL_SLOTS * PHI_LL_SLOT)
#define PHI_FLAG_WIDE_SLOTS ((size_t)PHI_LL_SLOTS * PHI_WIDE_SLOT)

// The parts. A pair has the first part from its first contact, and the others when it has enough
// channels to need them. Some sets of bits have one bit for each part.
enum phi_flag_part {
    PHI_FLAG_BASE, // all lanes; slots of the first lines
    PHI_FLAG_FEW,  // wide slots of the next ones
    PHI_FLAG_MORE, // ... and of the others that have them
    PHI_FLAG_MANY, // slots of ll of all other lines
    PHI_FLAG_PARTS,
};
#define PHI_FLAG_BASE_SMALL 16 // lines whose slots are in the first part
#define PHI_FLAG_BASE_WIDE  1
#define PHI_FLAG_FEW_WIDE   4 // lines whose wide slots are in the first two

#define PHI_FLAG_BASE_BYTES                                                                        \
    (PHI_FLAG_LINES * PHI_FLAG_LANES + PHI_FLAG_BASE_WIDE * PHI_FLAG_WIDE_SLOTS +                  \
     PHI_FLAG_BASE_SMALL * PHI_FLAG_SLOTS)
static_assert(PHI_FLAG_BASE_BYTES <= (size_t)4 << 20, "what a first contact may take");

// phi_flag_size returns the size of a part in whole units: smaller allocations share pages with
// others, and are exported with them.
#define PHI_FLAG_UNIT ((size_t)2 << 20)
static inline size_t phi_flag_size(enum phi_flag_part part)
{
    const size_t bytes =
        part == PHI_FLAG_BASE   ? PHI_FLAG_BASE_BYTES
        : part == PHI_FLAG_FEW  ? (PHI_FLAG_FEW_WIDE - PHI_FLAG_BASE_WIDE) * PHI_FLAG_WIDE_SLOTS
        : part == PHI_FLAG_MORE ? (PHI_FLAG_WIDE - PHI_FLAG_FEW_WIDE) * PHI_FLAG_WIDE_SLOTS
                                : (PHI_FLAG_LINES - PHI_FLAG_BASE_SMALL) * PHI_FLAG_SLOTS;
    return (bytes + PHI_FLAG_UNIT - 1) / PHI_FLAG_UNIT * PHI_FLAG_UNIT;
}

// phi_flag_lane returns the offset of a lane in the first part. sender: the side whose data moves
// in the lane's direction.
static inline size_t phi_flag_lane(uint32_t line, int sender, enum phi_word word)
{
    return line * PHI_FLAG_LANES +
           (size_t)(sender * PHI_WORD_COUNT + (int)word) * sizeof(struct phi_flag_lane);
}

// These return the part that holds the slots of a line, and their offset in it.
static inline enum phi_flag_part phi_flag_slots_part(uint32_t line)
{
    return line < PHI_FLAG_BASE_SMALL ? PHI_FLAG_BASE : PHI_FLAG_MANY;
}

static inline size_t phi_flag_slots(uint32_t line, enum phi_word word)
{
    const size_t at = (size_t)word * PHI_LL_SLOTS * PHI_LL_SLOT;
    if (line >= PHI_FLAG_BASE_SMALL)
        return (line - PHI_FLAG_BASE_SMALL) * PHI_FLAG_SLOTS + at;
    return PHI_FLAG_LINES * PHI_FLAG_LANES + PHI_FLAG_BASE_WIDE * PHI_FLAG_WIDE_SLOTS +
           line * PHI_FLAG_SLOTS + at;
}

// These return the same for a line's wide slots; only for lines that have such.
static inline enum phi_flag_part phi_flag_wide_part(uint32_t line)
{
    return line < PHI_FLAG_BASE_WIDE  ? PHI_FLAG_BASE
           : line < PHI_FLAG_FEW_WIDE ? PHI_FLAG_FEW
                                      : PHI_FLAG_MORE;
}

static inline size_t phi_flag_wide_slots(uint32_t line)
{
    return line < PHI_FLAG_BASE_WIDE
               ? PHI_FLAG_LINES * PHI_FLAG_LANES + line * PHI_FLAG_WIDE_SLOTS
               : (line - (line < PHI_FLAG_FEW_WIDE ? PHI_FLAG_BASE_WIDE : PHI_FLAG_FEW_WIDE)) *
                     PHI_FLAG_WIDE_SLOTS;
}

// Most bytes of a message by ll. wide: there are wide slots for it.
static inline size_t phi_flag_piece(bool wide)
{
    return wide ? PHI_WIDE_PIECE : PHI_LL_PIECE;
}

// phi_flag_is_wide returns whether a message by ll is wide, where `lines` bytes may go by ll.
// `lines` is more than fits into lines that are not wide only where lines may be wide
// (base/table.h). Smaller messages gain nothing by wide lines.
#define PHI_WIDE_LEAST 2048
static inline bool phi_flag_is_wide(uint64_t lines, size_t size)
{
    return lines > PHI_LL_PIECE && size > PHI_WIDE_LEAST;
}

#endif
