// SPDX-License-Identifier: BSD-3-Clause
// The arguments of our kernels, as plain structs that the host, the device and the tests' stand-in
// driver share.
//
// Each kernel takes one such struct by value: cuLaunchKernel's kernelParams[0] points to it. A
// stand-in driver knows our kernels by the name given to cuModuleGetFunction ("phi_" and that of
// enum phi_kernel) and does what is written here. Those of the tests (tests/support/test_kernels.h)
// are found the same way, in a module of their own.
#ifndef PHI_CUDA_KERNEL_ARGS_H
#define PHI_CUDA_KERNEL_ARGS_H

#include <assert.h>
#include <stdint.h>

#include "base/ranges.h"
#include "base/stage.h"

enum phi_kernel {
    PHI_KERNEL_BRACE,
    PHI_KERNEL_COPY,
    PHI_KERNEL_COPIES,
    PHI_KERNEL_TRANSFER,
    PHI_KERNEL_PAGES,
    PHI_KERNEL_HOP,
    PHI_KERNEL_HOP_SPREAD,
    PHI_KERNEL_HOP_LARGE,
    PHI_KERNEL_HOP_WIDE,
    PHI_KERNEL_HOP_STAGED,
    PHI_KERNEL_RING,
    PHI_KERNEL_RING_LONG,
    PHI_KERNEL_COUNT,
};

// Most items of one phi_brace; longer braces are several launches.
#define PHI_BRACE_ITEMS 16

enum phi_brace_kind {
    PHI_BRACE_WAIT = 0, // until *word & value (32 bits, acquire, system scope), or *broken != 0
                        // where broken is not 0
    PHI_BRACE_POST = 1, // *word := value (release, system scope); right behind a wait, or a copy,
                        // that is undone: nothing
};

// The mark that the waiting process adds to a word beside a bit that it has added itself, to end
// its wait.
#define PHI_BIT_ADDED(bit) ((uint32_t)(bit) << 4)

// A wait by words is undone where `broken` ends it, or a bit that was added. A copy is undone where
// it is skipped. The 32 bits so far behind `broken` say so: they are 1 before the number of the
// launch is stored.
#define PHI_UNDONE_BEHIND 32

struct phi_brace_item {
    uint64_t word;   // device address
    uint64_t broken; // device address, or 0; only for waits
    uint32_t kind;   // enum phi_brace_kind
    uint32_t value;
};

// phi_brace: one warp of one block; its first thread does the items in order, then stores number
// into the 64-bit word `done` (release, system scope) where that is not 0. count may be 0.
struct phi_brace_args {
    struct phi_brace_item items[PHI_BRACE_ITEMS];
    uint64_t done;
    uint64_t number;
    uint32_t count;
    uint32_t reserved;
};

// The room for the head of a part of a message in a bounce buffer. A head is 64 bits, the size of
// the whole message.
#define PHI_BOUNCE_HEAD 64
// In a head: the copy was left out, as its end had ended. The post behind the copy may not know of
// that.
#define PHI_LEFT_OUT UINT64_MAX

// The end that takes a message notes in its own line that the size does not match. It stores so far
// behind `broken`: the sizes, then 1 (32 bits), then `undone` and `broken`.
#define PHI_MISMATCH_BEHIND 36
#define PHI_EXPECTED_BEHIND 40
#define PHI_GOT_BEHIND      48

// ... and the word that is the `broken` of items of phi_hop and its kin.
#define PHI_FLAGS_OVER_BEHIND 8

enum phi_head {
    PHI_HEAD_NONE,
    PHI_HEAD_WRITE, // before the destination
    // before the source, of what has come: where it says another size nothing is copied
    PHI_HEAD_CHECK,
};

// phi_copy: any grid of one dimension; copies size bytes, which do not overlap, unless *broken (32
// bits) is not 0 when it starts. broken may be 0, where there is no head to check. size may be 0.
// With a head to check it copies exactly where *word shows `bit`, not added by this end, and no
// message before was of another size: what has come is taken whatever became of the peer since.
// sync is the address of a struct phi_transfer_sync, by which block 0 tells the others what it saw;
// 0: each block looks itself.
struct phi_copy_args {
    uint64_t destination; // device addresses
    uint64_t source;
    uint64_t size;
    uint64_t broken;
    uint64_t sync;
    uint64_t message; // what the head says, or is to say
    uint64_t word;
    uint32_t bit;
    uint32_t head; // enum phi_head
};

// phi_copies: count copies at the same time, each by its own blocks: those from `first` up to the
// next one's, or the end of the grid. None of them waits. `broken` as in
// phi_copy, of all items or of none; number as in phi_brace; sync as in phi_copy, and not 0 with a
// number.
#define PHI_COPIES_ITEMS 120 // so that the arguments fit into the 4 KiB that every driver takes

struct phi_copies_item {
    uint64_t destination; // device addresses
    uint64_t source;
    uint64_t broken;
    uint32_t size;
    uint32_t first;
};

struct phi_copies_args {
    struct phi_copies_item items[PHI_COPIES_ITEMS];
    uint64_t done;
    uint64_t number;
    uint64_t sync;
    uint32_t count;
    uint32_t reserved;
};

// phi_pages: any grid of one dimension; copies a list of pages. A *row* is row_bytes that follow
// one another. Row r of page i of part p lies at the offset
//
//     at[p] + number(i) * page_stride + r * row_stride
//
// of an end. A page is left out where its number is -1 at an end, or where its rows do not all lie
// in the end's size; the latter is counted in *skipped. With several ranges each row lies in one of
// them, or is left out and counted. *broken as in phi_copies, or 0; number and sync likewise.
//
// Lists are device addresses, or PHI_PAGES_INLINE and the place in the payload; 0: none, where
// number(i) is i, and the count is `pages`. Lists outside the payload are read in the order of the
// stream.
#define PHI_PAGES_INLINE  ((uint64_t)1 << 63)
#define PHI_PAGES_PAYLOAD 3584

struct phi_pages_end {
    uint64_t base;   // of its only range
    uint64_t ranges; // table of struct phi_range_entry, or 0
    uint64_t size;   // of all ranges
    uint64_t at;     // list of `parts` u64
    uint64_t numbers;
    uint64_t page_stride, row_stride;
    uint64_t most; // no larger number can lie in the size: number * page_stride is no overflow
    uint32_t number_bytes, range_count;
};

struct phi_pages_args {
    struct phi_pages_end source, destination;
    uint64_t count; // list of one u32
    uint64_t row_bytes;
    uint64_t broken, skipped; // skipped: u64, or 0
    uint64_t done, number, sync;
    uint32_t pages, parts, rows; // rows of all parts and pages, times pieces of a row: 32 bits
    uint32_t unit;               // 16, 8, 4 or 1: all addresses and row_bytes are multiples of it
    uint8_t payload[PHI_PAGES_PAYLOAD];
};

// The bytes of a row that a warp copies at once are units of 256.
#define PHI_PAGES_TILE    256
#define PHI_PAGES_THREADS 512
#define PHI_PAGES_BLOCKS  1024 // at most; fewer than PHI_SAW

// The words that the blocks of one launch meet at, in device memory. But for next and left they are
// 0 before a launch and after it, so that a graph replays; launches with the same words follow one
// another.
struct phi_transfer_sync {
    uint32_t gate; // 1: copy, 2: a `broken` is set; of phi_hop_staged: blocks whose STAGEs are over
    uint32_t arrived; // blocks that have passed the gate, or have copied their part; PHI_SAW more
                      // for one that saw the launch behind this one

    // Words of phi_hop, its kin and phi_copies. next: the number of the last launch that is on the
    // device, modulo 2^32. owed: the duty that the last launch that ended left to that one (enum
    // phi_owed).
    uint32_t next;
    uint32_t owed;

    uint32_t drawn; // of phi_copy and phi_transfer: rows of a large copy
};

#define PHI_SAW 0x10000u // more than a grid has blocks

// The duty that a launch leaves to the one behind it, which has a number one higher: to tell the
// number, and to fence before that. Every PHI_OWED_MOSTth launch leaves nothing.
enum phi_owed { PHI_OWED_NOTHING, PHI_OWED_NUMBER, PHI_OWED_FENCE };
#define PHI_OWED_MOST 64

// phi_transfer: a brace, a copy and a brace in one launch, so that nothing of it stands behind its
// own wait. Any grid of one dimension. Block 0 does items [0, before); then all blocks copy, as
// phi_copy; the last of them that is done does items [before, count) and stores number, as
// phi_brace. copy.sync will do as 0 for a grid of one block.
struct phi_transfer_args {
    struct phi_brace_item items[PHI_BRACE_ITEMS];
    struct phi_copy_args copy;
    uint64_t done;
    uint64_t number;
    uint32_t before;
    uint32_t count;
};

// Messages by flags in device memory. Each end of a channel has lanes in its own device memory,
// where the peer writes what this end waits for: nothing polls over a link, and nothing is baked
// into a captured graph, which replays. Each direction has a lane for send/recv and one for
// signals.
//
//   ll  The pusher writes data and flag together, 8 bytes and twice the flag in each 16, into the
//       taker's slot of that message. Messages have numbers, which wrap: pushed (own) and credit
//       (written by the taker) at the pusher, taken (own) at the taker. Two may be under way. Each
//       slot is written whole every 2^30 messages, by whichever message has such a number: no line
//       keeps a number until it comes round again. A lane begins as if message 1 had passed.
//       Wide: lines of 128 bytes, 120 of data and 8 of a number, which a warp stores at once, and
//       which come whole over links of devices that a table names (base/table.h). They have slots
//       of their own, as their numbers stand elsewhere, and numbers of 64 bits of their own, which
//       never come round.
//   sm  The passive end tells the active one how many copies it has allowed (go), of which that has
//       made `moved`. A block that has copied its share stores the number of shares into the full
//       word of that share at the passive end, which puts those back to 0. A lane of signals begins
//       with a go: the first copy needs no leave.
//
// A message that does not fit into one block is done by *hands*: blocks of which each does a share.
// Before each share of a PUSH or a MOVE its hand claims the share (claimed). A hand that has done
// its own share does those that nobody has claimed. So one hand that has a place on the device does
// the whole message. The taker's hands wait only for shares that such a hand pushes. The hands of a
// PUSH or a MOVE leave if they may not begin soon. The shares that they leave are done by as many
// hands of a second launch, or, where few bytes are left, by the first block (docs/protocols.md,
// "Who waits").
#define PHI_LL_PIECE    8192                     // most bytes of data of a message
#define PHI_LL_SLOT     (2 * PHI_LL_PIECE + 128) // with room for an offset before the data; aligned
#define PHI_LL_SLOTS    2                        // wide ones, too
#define PHI_LL_REFRESH  (1u << 30)
#define PHI_MISSED      0x10000u // more than a message has blocks
#define PHI_MOVE_BLOCKS 128      // most blocks of a copy

// Wide: what a warp stores at once are two times four lines, a unit. Thread i has 16 bytes of each
// four; where i % 8 is 7, 8 of each and the number.
#define PHI_WIDE_PIECE       (1u << 20) // most bytes of a message
#define PHI_WIDE_UNIT        960u       // of data; 1024 of the slot
#define PHI_WIDE_UNITS(size) (((size) + PHI_WIDE_UNIT - 1) / PHI_WIDE_UNIT)
#define PHI_WIDE_SLOT        ((uint64_t)1024 * PHI_WIDE_UNITS(PHI_WIDE_PIECE))
#define PHI_WIDE_WARPS       8u                             // of a hand
#define PHI_WIDE_ALONE       ((uint64_t)16 * PHI_WIDE_UNIT) // one block takes it, a warp a unit

// A ring: the units of an unbound channel's messages lie one behind the other, in a bounce buffer
// of the receiver's, from whose slots they are taken in order. Behind the slots are two lanes: of
// what this end pushes, of what it takes. wide_pushed and wide_taken count units there, `credit`
// those that the peer has taken, and `moved` says that the direction has ended: that a message was
// of another size than its taker named, or that the wait for a long one was given up.
#define PHI_RING_UNITS       ((uint32_t)1984)
#define PHI_RING_SLOTS       (1024 * PHI_RING_UNITS)
#define PHI_RING_LANE(takes) (PHI_RING_SLOTS + (takes) * (uint32_t)sizeof(struct phi_flag_lane))
#define PHI_RING_BYTES       ((uint32_t)2 << 20)
#define PHI_RING_WHOLE       ((uint32_t)1 << 20) // most bytes of a part
// Credit for a larger part is given when it is taken: else the next one of any size has room before
// that, and so waits for no take that stands behind it.
#define PHI_RING_UNTOLD (PHI_RING_UNITS - PHI_WIDE_UNITS(PHI_RING_WHOLE))

// A message that is longer than PHI_RING_WHOLE, in parts of PHI_RING_LONG, goes through the ring
// while it is taken. Unit 0 leads: it tells the taker that the pusher is there, and `begun` tells
// the pusher that the taker is. Behind it come rows of so many
// units, which the warps of both ends draw. Who has taken a row tells so in the stamp of its place,
// of which there is one for each row that the ring holds, in the pusher's memory: there the next
// row of that place may follow. The stamp is the number of units of the direction up to the end of
// the row.
#define PHI_RING_LONG ((uint32_t)1 << 30)
#define PHI_RING_ROW  4u
#define PHI_RING_ROWS (PHI_RING_UNITS / PHI_RING_ROW)
// The stamps lie behind the lane for pushes.
#define PHI_RING_STAMPS (2 * (uint32_t)sizeof(struct phi_flag_lane))

struct phi_flag_lane {
    uint32_t pushed;  // own
    uint32_t credit;  // by the peer
    uint32_t taken;   // own
    uint32_t moved;   // own
    uint32_t go;      // by the peer
    uint32_t allowed; // own: the go that the peer was told last
    uint32_t taking;  // own: hands of a TAKE that are through; 0 between launches
    uint32_t leaving; // own: blocks that have left the message's hands; 0 between launches
    uint64_t wide_pushed, wide_taken; // own: of the messages those that are wide
    uint64_t handed;                  // own: pushed or moved by hands, or given up by them
    uint32_t drawn;  // own: rows of a large MOVE, or of a long PUSH or TAKE; 0 between launches
    uint32_t posted; // own: 1: the take of a long message waits for those before it on the stream
    // begun, led: the first unit of the last long message, and 1. begun: the peer stores it when
    // the take has begun. led: own, stored when unit 0 is pushed, or taken.
    uint64_t begun, led;
    // own: hands of the first launch of a large MOVE that have left; 0 between messages
    uint32_t left;
    uint32_t reserved[11];
    // by the peer; 0 again by this end. Of a ring own: what became of the hands of a first launch,
    // or in the first one who leads; 0 again by the second one
    uint32_t full[PHI_MOVE_BLOCKS];
    // own: of each share, the last message (handed) that was claimed
    uint64_t claimed[PHI_MOVE_BLOCKS];
};

// The kinds of steps of a message's program, and so of items of work. Up to LAND they are items of
// phi_hop.
enum phi_step_kind {
    // By flags in device memory, in the lane of the word.
    PHI_STEP_PUSH,   // until credit allows it: data and flags into the peer's slots
    PHI_STEP_TAKE,   // credit for the message before; until the flags are there: the data
    PHI_STEP_GO,     // the peer may copy
    PHI_STEP_MOVE,   // until go allows it: copies, and a full word for each share
    PHI_STEP_ARRIVE, // until the full words are there

    // The wait for hands, by a warp (in no program).
    PHI_STEP_ROOM,  // until credit allows a PUSH; long: unit 0, and until its take has begun
    PHI_STEP_LEAVE, // until go allows a MOVE
    // credit for the message before; until the first line of a TAKE is there; long: says that it
    // has begun, and takes unit 0
    PHI_STEP_MESSAGE,

    // Staged, in the lane of the word (base/stage.h), through slots in host memory: one message in
    // as many records as it takes.
    PHI_STEP_STAGE,   // each record when reach allows it: into its slot
    PHI_STEP_UNSTAGE, // records as they come, up to the last one of a message: into the buffer
    PHI_STEP_HELP, // likewise, for an UNSTAGE of a later launch; ends with the STAGEs of this one

    // By bells, in a lane of base/stage.h, on devices whose memory is registered with the net: a
    // BELL is the WAIT, the COPY and the POST of a program, as far as it has them.
    PHI_STEP_BELL, // until the word allows it: the own copy of the word, and the bell
    PHI_STEP_LAND, // until all bells of the lane have landed

    // By words, and by queues.
    PHI_STEP_WAIT, // until the word has the bit (acquire)
    PHI_STEP_COPY, // the bytes
    PHI_STEP_POST, // word := the bit (release: after everything before it on the stream)
    // the bytes, of two peers, through memory of ours (semaphore/relay.c; in no program)
    PHI_STEP_RELAY,
    // nothing: the other items of the operation touch the memory that this item names (in no
    // program)
    PHI_STEP_HOLD,
    // until another stream of this rank has done its first operations (struct phi_mark; in no
    // program)
    PHI_STEP_BEHIND,
    PHI_STEP_PAGES, // a COPY of a list of pages (in no program)
};

// The launch of a PUSH or a MOVE by hands. The second launch of a long PUSH or TAKE is SECOND where
// the message is alone, and so led by the first launch. Else it is ONLY: its first hand waits.
enum phi_hands {
    PHI_HANDS_FIRST,  // of two
    PHI_HANDS_SECOND, // ... which does what is left, and counts the message
    PHI_HANDS_ONLY,   // of one: its first block does what is left
};

// The fields of a BELL's `peer`: the bit of the word that the bell waits for, or 0; the value that
// it writes there, or 0; and the immediate of the bell.
#define PHI_BELL(immediate, bit, value)                                                            \
    ((uint64_t)(value) << 40 | (uint64_t)(bit) << 32 | (uint64_t)(immediate))
#define PHI_BELL_BIT(peer)   ((uint32_t)((peer) >> 32) & 0xff)
#define PHI_BELL_VALUE(peer) ((uint32_t)((peer) >> 40) & 0xff)
// Beside these: the bell does not only answer the word that it waited for. So it is undone where it
// is not rung.
#define PHI_BELL_TELLS ((uint64_t)1 << 48)

// PHI_FENCE: an item's writes for others come before the number, by a fence of each of its blocks.
// PHI_FENCE_BEFORE, of a PUSH or a GO: the stream's earlier work comes before the words that the
// item tells, by a fence with which the item begins. A kernel of the application's, or one that
// stored to host memory, has no such fence.
#define PHI_FENCE        1u
#define PHI_FENCE_BEFORE 2u

// A wait of phi_hop that ends by *broken stores this into *broken, before the number of its launch.
#define PHI_GIVEN_UP 2u

// One message of phi_hop, or a part of it. Any wait ends when *broken is not 0; then nothing is
// copied or told.
struct phi_hop_item {
    uint64_t own;   // struct phi_flag_lane of this end; staged, bells: struct phi_stage_lane
    uint64_t peer;  // ... of the other; 0: it is told nothing; staged: PHI_STAGE_LIKE; PHI_BELL
    uint64_t slots; // PUSH: the peer's, TAKE: the own PHI_LL_SLOTS slots of ll; staged, bells
    uint64_t destination; // TAKE of a signal, UNSTAGE: where the buffer begins; BELL: the word
    uint64_t source;
    uint64_t size;
    uint64_t broken; // 32 bits, or 0
    // PUSH of a signal, STAGE: in the peer's buffer; wide PUSH: the peer's slots of lines that are
    // not wide; TAKE, UNSTAGE: size of the buffer; MOVE: 1 where the source is this end's, filled
    // before the peer says go
    uint64_t offset;
    uint8_t kind;    // enum phi_step_kind
    uint8_t hands;   // enum phi_hands
    uint8_t fence;   // 0: it writes nothing for others that is to come before the number; PHI_FENCE
    uint8_t wide;    // PUSH, TAKE of no signal: 1: the message and its slots are wide; 2: by a
                     // ring: PUSH: destination, TAKE: source is the size of the whole message; 3:
                     // likewise, a long one
    uint32_t signal; // 1: a lane of signals: ll messages begin with the offset, and an arrival lets
                     // the peer copy again. STAGE: the message ends with this. UNSTAGE, HELP: it
                     // has to be of `offset` bytes, and another size is said in the line. BELL:
                     // what it asks
    uint32_t blocks; // of the grid that do this item; of those of the first block: its warps;
                     // staged: what the lane has
    uint32_t first;  // of them
};

#define PHI_HOP_ITEMS   16                  // most messages
#define PHI_HOP_ENTRIES (2 * PHI_HOP_ITEMS) // and items: hands, and the wait for them

// phi_hop: the items at the same time. The first `waits` of them are the first block's, which is
// the only one that waits without bound: each has warps of its own, or, where it is alone, all.
// Those behind are hands, and have blocks of their own. Where `tells`, the last block that is done
// stores number, as phi_brace, where done is not 0: of the launches of one operation the last one.
// sync as for phi_transfer. It has no hands; phi_hop_spread has some, or a MOVE in its first block;
// phi_hop_large the same, for launches with a MOVE of which warps draw what they copy; phi_hop_wide
// is for what is wide, where the source of a PUSH and the destination of a TAKE are aligned to 16
// bytes: one item alone, or hands, and the waits for such; phi_ring for messages by rings, all of
// which are wide; phi_ring_long for long ones; phi_hop_staged for items that are staged or bells,
// those of one lane by the same blocks, one after the other. They are kernels of their own as
// threads have as many registers as the steps of their kernel need, and wait for the code of these.
//
// A launch begins, where the driver can do that, when all blocks of the launch before it on the
// stream let it in, or have ended. A block lets it in when nothing is left for which the block
// waits without bound. So one block of a stream waits. Hands begin when the waits for them are
// over.
//
// A store to host memory holds up the end of a kernel, and with it the next kernel; so does a
// fence. The launch behind on the stream may be on the device already, because it was allowed to
// begin early. Then a launch leaves both, the store of its number and the fence, to that one. The
// number is told with the next launch's, by a launch that leaves nothing, or where a launch has
// waited for a while.
//
// The first item follows what all items have in common: arguments are fetched line by line, from
// afar, and of a launch behind another one nothing hides that.
struct phi_hop_args {
    uint64_t done;
    uint64_t number;
    uint64_t sync;
    uint32_t count;
    uint32_t stages; // of a launch with a HELP: blocks that do STAGEs. It needs sync->gate
    uint32_t waits;  // staged: 0
    uint8_t tells;
    uint8_t behind; // another launch of the same operation, which it waits for at its end
    uint8_t reserved[10];
    struct phi_hop_item items[PHI_HOP_ENTRIES];
};

// Most threads of a block. Of phi_hop_staged, which has up to 128 registers a thread: so that two
// fit on a multiprocessor, and the streams that may wait do not fill a device.
#define PHI_BRACE_THREADS  32
#define PHI_COPY_THREADS   512
#define PHI_HOP_THREADS    1024
#define PHI_SPREAD_THREADS 512
#define PHI_LONG_THREADS   256
#define PHI_LONG_ITEMS     (PHI_LONG_THREADS / 32) // most messages: the lead has a warp for each
#define PHI_STAGED_THREADS 256

static_assert(sizeof(struct phi_brace_item) == 24, "shared with the device");
static_assert(sizeof(struct phi_brace_args) == 24 * PHI_BRACE_ITEMS + 24, "shared with the device");
static_assert(sizeof(struct phi_copy_args) == 64, "shared with the device");
static_assert(sizeof(struct phi_copies_args) == 32 * PHI_COPIES_ITEMS + 32,
              "shared with the device");
static_assert(sizeof(struct phi_copies_args) <= 4096, "what every driver takes");
static_assert(sizeof(struct phi_transfer_args) == 24 * PHI_BRACE_ITEMS + 88,
              "shared with the device");
static_assert(sizeof(struct phi_flag_lane) == 128 + 12 * PHI_MOVE_BLOCKS, "shared with the device");
static_assert(PHI_RING_LANE(2) + 8 * PHI_RING_ROWS <= PHI_RING_BYTES,
              "slots, lanes and stamps have room");
static_assert(PHI_RING_UNITS % PHI_RING_ROW == 0, "rows have the same places in each lap");
static_assert(sizeof(struct phi_hop_item) == 80, "shared with the device");
static_assert(sizeof(struct phi_pages_args) == 3800, "shared with the device");
static_assert(sizeof(struct phi_hop_args) == 80 * PHI_HOP_ENTRIES + 48, "shared with the device");
static_assert(sizeof(struct phi_hop_args) <= 4096, "what every driver takes");

#endif
