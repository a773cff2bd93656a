// SPDX-License-Identifier: BSD-3-Clause
// Streams (or host queues) and the net meet in this memory, where the net cannot reach the memory
// that is to be moved. A lane carries records one way, from one end of a channel to the other. Each
// end has a control block with a word for each thread block, and slots. The sender's stream fills
// its slots, the receiver's stream empties its own. All of it is host memory of one process. The
// net takes the slots from one end to the other (net/staging.h).
//
// Records have numbers from 1, which wrap. Record n is in slot (n - 1) mod PHI_STAGE_SLOTS. Each
// thread block does its share of each record, in order, and notes so in its own word. The least of
// these words is what all blocks have done. So no block meets another. Nothing is baked into a
// captured graph either: a block goes on where its word says.
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

// A line holds a short record whole, and each slot has one. Host memory is far from the device.
// With a word that says that the record is there, the device makes one trip over PCIe for the word,
// then a fence, and another trip for the record. In a line each store of 8 bytes has 4 bytes of the
// record, and the record's number. A reader that finds the number in all of them has the record: it
// needs no second trip and no fence.
//
// At the sender the stream fills the line instead of its slot, and the net fills the slot from it.
// At the receiver the net fills the line beside the slot, before it raises `reach`. In either case
// the slot and its words become valid a little later, too. A line without a record has the number
// before in all of its words, and no record of that slot has that number. The net writes it when it
// has taken a line, or when the record of the slot is not short. So no line keeps a number, nor
// half of one, until the number comes round again.
#define PHI_STAGE_LINE_WORDS 8 // struct phi_stage_record, then the data

struct phi_stage_line {
    uint64_t words[PHI_STAGE_LINE_WORDS];
};
#define PHI_STAGE_WORD(record, data) ((uint64_t)(uint32_t)(record) << 32 | (uint32_t)(data))
#define PHI_STAGE_VOID(record)       PHI_STAGE_WORD((record)-1, 0)

struct phi_stage_lane {
    // Written by the stream: how many records it has filled (emptied). Release: who acquires it
    // sees what the block did with them. Where a record was taken from its line, it says only that
    // slot and line are free.
    uint32_t done[PHI_STAGE_BLOCKS];
    // Written by the stream: 1 where the block has come to the end of a message before its stream
    // comes to the step that waits for it. That step makes it 0. At the sender also 1 where the
    // block has given up a message. Nothing is filled any more then: the peer would take it for the
    // rest of that message.
    uint32_t over[PHI_STAGE_BLOCKS];
    uint32_t reserved[8];
    // Written by the net: the last record that may be filled (is in its slot). The stream acquires
    // it.
    uint32_t reach;
    uint32_t reserved_too[15];
    struct phi_stage_line lines[PHI_STAGE_SLOTS]; // of short records
};

// Bells: where both ends' memory is registered, a stream moves nothing itself. A record then asks
// the net of its own rank for something. Its slot has PHI_STAGE_HEAD bytes, with no data behind it.
// A lane of bells has one thread block. `reach` says how far the net is: record n has landed when
// reach is n + PHI_STAGE_SLOTS. At the end of the link, reach becomes what was rung when the net
// looked, plus PHI_BELLS_ENDED. That stands for all of it, as reach is never so far ahead before.
// Nothing is rung after that. The net has taken no note of bells that were rung meanwhile.
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

// These macros say what follows from the numbers. The kernel, the net and tests/model use them, and
// the model explores what they do together.
//
// The stream's part. REACHED: its wait for a bell's slot is over. With PHI_BELLS_REACH of what it
// has rung as the record, all of that has landed. VOID: nobody would look at the bell any more.
// LOST: bells did not land, as the link ended before.
#define PHI_BELL_REACHED(reach, record) ((int32_t)((reach) - (record)) >= 0)
#define PHI_BELL_VOID(reach, record)    ((reach) - (record) >= PHI_STAGE_SLOTS)
#define PHI_BELLS_LOST(reach, rung)                                                                \
    ((reach) - (rung) > PHI_STAGE_SLOTS && (reach) - (rung) < PHI_BELLS_ENDED)
// The net's part. REACH and OVER: the value of `reach` while the link lives, and at its end.
// MAY_BEGIN: whether the next bell may begin where so many have begun and landed; a bell that tells
// the peer waits for all that its lane has moved. SANE: whether a stream can have rung so many.
#define PHI_BELLS_REACH(landed)                 ((landed) + PHI_STAGE_SLOTS)
#define PHI_BELLS_OVER(rung)                    ((rung) + PHI_BELLS_ENDED)
#define PHI_BELL_MAY_BEGIN(asks, begun, landed) (!((asks)&PHI_BELL_POST) || (begun) == (landed))
#define PHI_BELLS_SANE(rung, landed)            ((rung) - (landed) <= PHI_STAGE_SLOTS)

// The sender writes the head of a slot. The receiver believes nothing of it.
struct phi_stage_record {
    uint64_t offset; // in the receiver's buffer
    uint32_t size;
    uint32_t last; // 1: of its message
};

// A line holds this. Each word of the line has 4 bytes of it.
struct phi_stage_short {
    struct phi_stage_record head;
    uint8_t data[PHI_STAGE_SHORT];
};
static_assert(2 * sizeof(struct phi_stage_short) == sizeof(struct phi_stage_line),
              "half of each word");

// The size and the number of blocks of a lane are one number, which work and kernels carry.
#define PHI_STAGE_LIKE(chunk, blocks) ((uint64_t)(blocks) << 32 | (uint64_t)(chunk))
#define PHI_STAGE_CHUNK(like)         ((uint32_t)(like)) // most bytes of data in a slot
#define PHI_STAGE_BLOCKS_OF(like)     ((uint32_t)((like) >> 32))
#define PHI_STAGE_SLOT_SIZE(like)     ((uint64_t)PHI_STAGE_HEAD + PHI_STAGE_CHUNK(like))

#endif
