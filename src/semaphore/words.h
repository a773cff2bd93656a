// SPDX-License-Identifier: BSD-3-Clause
// Words and the programs over them. These tables are the protocol: the library issues them, docs/protocols.md shows them,
// and tests/model explores every interleaving of them.
//
// A word has two writers: its owner writes only 0, its peer only 1, in strict alternation. All waits are for the own
// word to be at least 1. Every word is back at its start value after each use, so a captured graph replays.
#ifndef PHI_SEMAPHORE_WORDS_H
#define PHI_SEMAPHORE_WORDS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

// The words of one direction. Where each lives:
enum phi_word {
    PHI_WORD_READY,  // at the active end: the passive end's buffer may be touched
    PHI_WORD_FULL,   // at the passive end: the copy is done
    PHI_WORD_CREDIT, // at the signaller, starts at 1: the note before this one was consumed
    PHI_WORD_NOTE,   // at the waiter: a signal has come
    PHI_WORD_COUNT,
};

// The start value of a word in a new line.
extern const uint32_t phi_word_start[PHI_WORD_COUNT];

// One channel end: 64 bytes in the segment. `out` are this end's words of the direction towards the peer, `in` those of
// the direction from it. `broken` is set once, by this end's process or its peer's, and never cleared: kernels and host
// queues that wait look at it beside their word and give up.
#ifdef __cplusplus
struct phi_line;
#else
struct phi_line {
    _Alignas(64) _Atomic uint32_t out[PHI_WORD_COUNT];
    _Atomic uint32_t in[PHI_WORD_COUNT];
    _Atomic uint32_t broken;
    uint32_t reserved[7];
};
_Static_assert(sizeof(struct phi_line) == 64, "a line is one cache line");
#endif

enum phi_step_kind {
    PHI_STEP_WAIT,  // until the own word is at least 1 (acquire)
    PHI_STEP_RESET, // own word := 0
    PHI_STEP_COPY,  // the bytes
    PHI_STEP_POST,  // the peer's word := 1 (release: after everything before it on the stream)
};

struct phi_step {
    uint8_t kind; // enum phi_step_kind
    uint8_t word; // enum phi_word; unused for PHI_STEP_COPY
};

// What a call enqueues at its end of a direction.
enum phi_call {
    PHI_CALL_PUT,        // copy
    PHI_CALL_GET,        // copy
    PHI_CALL_POST,       // passive end of send/recv: the buffer may be touched
    PHI_CALL_TRANSFER,   // active end of send/recv
    PHI_CALL_COMPLETE,   // passive end: wait until the copy is done
    PHI_CALL_SIGNAL,
    PHI_CALL_PUT_SIGNAL,
    PHI_CALL_WAIT,
    PHI_CALL_COUNT,
};

#define PHI_STEPS_MAX 4

struct phi_program {
    const char *name;
    uint8_t count;
    struct phi_step steps[PHI_STEPS_MAX];
    uint8_t phase; // of a group: 0 posts, 1 active calls, 2 completes and waits
};

extern const struct phi_program phi_programs[PHI_CALL_COUNT];

#define PHI_GROUP_PHASES 3

// phi_group_rank orders the peers of phase 1: the lower goes first. (peer - rank) mod ranks, so that in an all-to-all no
// two ranks begin with the same peer.
static inline uint32_t phi_group_rank(uint32_t rank, uint32_t peer, uint32_t ranks)
{
    return (peer + ranks - rank) % ranks;
}

#endif
