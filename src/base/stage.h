// SPDX-License-Identifier: BSD-3-Clause
// Staging: the memory that streams (or host queues) and the net meet in, where the net cannot reach
// what is to be moved. A lane is one way for records, from one end of a channel to the other: at
// the sender a control word for each block and slots that its stream fills, at the receiver the
// same, which its stream empties. All of it is host memory of one process; the net takes the slots
// from one end to the other (net/staging.h).
//
// Records have numbers, from 1, which wrap. Record n is in slot (n - 1) mod PHI_STAGE_SLOTS. A
// stream works by blocks: each block does its share of each record, in order, and says so in its
// own word; what all blocks have done is the least of these. So no block meets another, and nothing
// is baked into a captured graph: where a block goes on is what its word says.
//
// Plain C types: the kernels see this, too.
#ifndef PHI_BASE_STAGE_H
#define PHI_BASE_STAGE_H

#include <assert.h>
#include <stdint.h>

#define PHI_STAGE_BLOCKS 4  // most blocks that share a record
#define PHI_STAGE_HEAD   64 // bytes of a slot before its data
#define PHI_STAGE_SLOTS  16 // slots of a lane; a power of two
#define PHI_STAGE_SHORT  16 // most bytes of data of a record that a line holds

// A short record, whole, for each slot: beside the device's memory, which is far from the host's, a
// word that says that the record is there costs a trip over PCIe before the record itself can be
// fetched, and a fence before it. Here each 4 bytes of the record stand in one store of 8 with the
// record's number, so that neither is needed: whoever finds that number in all of them has the
// record.
//
// At the sender the stream fills the line instead of its slot, and the net puts it there; at the
// receiver the net fills it beside the slot, before it raises `reach`. In either case the slot and
// its words are valid, too, a little later. A line with no record has the number before in all of
// its words, which no record of its slot has: the net writes that when it has taken a line, or when
// the record of the slot is not short. So none keeps a number, nor half of a line, until it comes
// round again.
#define PHI_STAGE_LINE_WORDS 8 // struct phi_stage_record, then the data

struct phi_stage_line {
    uint64_t words[PHI_STAGE_LINE_WORDS];
};
#define PHI_STAGE_WORD(record, data) ((uint64_t)(uint32_t)(record) << 32 | (uint32_t)(data))
#define PHI_STAGE_VOID(record)       PHI_STAGE_WORD((record)-1, 0)

struct phi_stage_lane {
    // By the stream: records filled (emptied). Release: what the block did of them is seen by who
    // acquires. Of a record that was taken from its line it says only that slot and line are free.
    uint32_t done[PHI_STAGE_BLOCKS];
    // By the stream: 1 where the block has come to the end of a message before its stream comes to
    // the step that waits for it. That one makes it 0. At the sender: 1 where the block has given
    // up a message: nothing is filled any more, which would be taken for what is missing of that
    // one.
    uint32_t over[PHI_STAGE_BLOCKS];
    uint32_t reserved[8];
    // By the net: the last record that may be filled (is in its slot). Acquired by the stream.
    uint32_t reach;
    uint32_t reserved_too[15];
    struct phi_stage_line lines[PHI_STAGE_SLOTS]; // of short records
};

// Bells: where both ends' memory is registered, a stream moves nothing itself. A record then asks
// the net of its own rank for something, in a slot of PHI_STAGE_HEAD bytes with no data behind it,
// and `reach` says how far that has come: record n has landed when reach is n + PHI_STAGE_SLOTS. A
// lane of bells has one block. At the end of its link reach is PHI_BELLS_ENDED more than what was
// rung when the net looked, which stands for all of it: so far ahead of a record it never is
// before. Nothing is rung after that, and of what was rung meanwhile nobody has taken note.
struct phi_stage_bell {
    uint64_t local;  // address here, as the provider knows it
    uint64_t offset; // in the peer's buffer
    uint64_t size;
    uint32_t immediate; // of the post
    uint32_t asks;      // PHI_BELL_*
};
#define PHI_BELL_COPY   1u // size bytes from here to there,
#define PHI_BELL_READ   2u // ... or from there to here
#define PHI_BELL_POST   4u // then the peer is told
#define PHI_BELLS_ENDED (1u << 30)

// What follows from these numbers, for all who go by them: the kernel, the net, and tests/model,
// which explores what they do together.
//
// Of the stream: its wait for a bell's slot, and for the landing of all that it has rung, which is
// that for PHI_BELLS_REACH of it. Then, whether nobody would look at the bell any more; and whether
// what was rung was not landed but left behind by the end of the link.
#define PHI_BELL_REACHED(reach, record) ((int32_t)((reach) - (record)) >= 0)
#define PHI_BELL_VOID(reach, record)    ((reach) - (record) >= PHI_STAGE_SLOTS)
#define PHI_BELLS_LOST(reach, rung)                                                                \
    ((reach) - (rung) > PHI_STAGE_SLOTS && (reach) - (rung) < PHI_BELLS_ENDED)
// Of the net: `reach`, while the link lives and at its end; whether the next bell may begin where
// so many have begun and landed: what tells the peer comes behind all that the lane has moved; what
// a stream can have rung.
#define PHI_BELLS_REACH(landed)                 ((landed) + PHI_STAGE_SLOTS)
#define PHI_BELLS_OVER(rung)                    ((rung) + PHI_BELLS_ENDED)
#define PHI_BELL_MAY_BEGIN(asks, begun, landed) (!((asks)&PHI_BELL_POST) || (begun) == (landed))
#define PHI_BELLS_SANE(rung, landed)            ((rung) - (landed) <= PHI_STAGE_SLOTS)

// The head of a slot. Written by the sender; its receiver believes nothing of it.
struct phi_stage_record {
    uint64_t offset; // in the receiver's buffer
    uint32_t size;
    uint32_t last; // 1: of its message
};

// What a line holds: each word has 4 bytes of it.
struct phi_stage_short {
    struct phi_stage_record head;
    uint8_t data[PHI_STAGE_SHORT];
};
static_assert(2 * sizeof(struct phi_stage_short) == sizeof(struct phi_stage_line),
              "half of each word");

// What a lane is like, as a number that work and kernels carry.
#define PHI_STAGE_LIKE(chunk, blocks) ((uint64_t)(blocks) << 32 | (uint64_t)(chunk))
#define PHI_STAGE_CHUNK(like)         ((uint32_t)(like)) // most bytes of data in a slot
#define PHI_STAGE_BLOCKS_OF(like)     ((uint32_t)((like) >> 32))
#define PHI_STAGE_SLOT_SIZE(like)     ((uint64_t)PHI_STAGE_HEAD + PHI_STAGE_CHUNK(like))

#endif
