// SPDX-License-Identifier: BSD-3-Clause
// Words and the programs over them. These tables are the protocol: the library issues them,
// docs/protocols.md shows them, and tests/model explores every interleaving of them.
//
// A word says whose turn it is. Both ends of a direction look at the same word; who is waited for
// writes it, so the two take turns and no write is ever lost. Nothing is reset after use: the next
// turn's write replaces the last one's, and a captured graph replays.
#ifndef PHI_SEMAPHORE_WORDS_H
#define PHI_SEMAPHORE_WORDS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda/kernel_args.h"

// The words of one direction; they live in its sender's line.
enum phi_word {
    // of send/recv: READY, written by the passive end, then FULL, by the active end, and so on
    PHI_WORD_TURN,
    // of signal/wait: NOTED, written by the signaller, then FREE, by the waiter, and so on
    PHI_WORD_NOTE,
    PHI_WORD_COUNT,
};

// The values of a word: one bit each. So a bit can be added to release a wait, with a mark beside
// it (PHI_BIT_ADDED).
enum phi_bit {
    PHI_BIT_READY = 1, // the passive end's buffer may be touched
    PHI_BIT_FULL = 2,  // the copy is done
    PHI_BIT_NOTED = 4, // a signal has come
    PHI_BIT_FREE = 8,  // the signal before was consumed
};

// The start value of a word in a line: no message is under way, a signal may be given. A word that
// was never started is 0, which no word becomes again.
extern const uint32_t phi_word_start[PHI_WORD_COUNT];

// One channel end: 64 bytes in the segment, with the words of the direction in which this end
// sends. `broken` is set once, by this end's process, and never cleared: its kernels and host
// queues that wait look at it beside the word and give up.
#ifdef __cplusplus
struct phi_line;
#else
struct phi_line {
    _Alignas(64) _Atomic uint32_t word[PHI_WORD_COUNT];
    _Atomic uint32_t broken;
    // In a mirrored segment this counts the channels that had the line before: a post that comes
    // late is not taken for a post of the next channel.
    _Atomic uint32_t life;
    // `broken` for what waits for flags, which never copies after that: 1, then PHI_GIVEN_UP once a
    // wait has ended by it.
    _Atomic uint32_t flags_over;
    // Messages by flags in which this end has had a part, by outgoing and word: those of the peer's
    // other direction when each was given and taken (phi_flags_rest).
    _Atomic uint32_t messages[2][PHI_WORD_COUNT];
    _Atomic uint32_t uncounted; // 1: so had graphs or the application's kernels, and nobody counts
    _Atomic uint32_t undone; // 1: an operation of this end by words has left out some of its work
    // 1: the peer sent a message of another size than this end had named: which, what it named.
    _Atomic uint32_t mismatch;
    _Atomic uint64_t expected, got;
};
_Static_assert(sizeof(struct phi_line) == 64, "a line is one cache line");
_Static_assert(offsetof(struct phi_line, undone) - offsetof(struct phi_line, broken) ==
                   PHI_UNDONE_BEHIND,
               "kernels find it so");
_Static_assert(offsetof(struct phi_line, mismatch) - offsetof(struct phi_line, broken) ==
                       PHI_MISMATCH_BEHIND &&
                   offsetof(struct phi_line, expected) - offsetof(struct phi_line, broken) ==
                       PHI_EXPECTED_BEHIND &&
                   offsetof(struct phi_line, got) - offsetof(struct phi_line, broken) ==
                       PHI_GOT_BEHIND &&
                   offsetof(struct phi_line, flags_over) - offsetof(struct phi_line, broken) ==
                       PHI_FLAGS_OVER_BEHIND,
               "kernels find it so");
#endif

#ifndef __cplusplus
static inline struct phi_line *phi_line_of(_Atomic uint32_t *undone)
{
    return (struct phi_line *)((char *)undone - offsetof(struct phi_line, undone));
}

// phi_line_mismatched: whether a message of another size has come. phi_line_mismatch says so in the
// line of the end that takes it, of which `undone` is a member. Kernels do the same.
static inline bool phi_line_mismatched(_Atomic uint32_t *undone)
{
    return atomic_load_explicit(&phi_line_of(undone)->mismatch, memory_order_acquire) != 0;
}

static inline void phi_line_mismatch(_Atomic uint32_t *undone, uint64_t expected, uint64_t got)
{
    struct phi_line *line = phi_line_of(undone);
    atomic_store_explicit(&line->expected, expected, memory_order_relaxed);
    atomic_store_explicit(&line->got, got, memory_order_relaxed);
    atomic_store_explicit(&line->undone, 1, memory_order_relaxed);
    atomic_store_explicit(&line->mismatch, 1, memory_order_release); // pairs with who looks for it
    atomic_store(&line->broken, 1);
}
#endif

static inline int phi_step_hops(unsigned kind)
{
    return kind <= PHI_STEP_LAND;
}

// phi_step_staged returns whether the step uses a lane of base/stage.h.
static inline int phi_step_staged(unsigned kind)
{
    return kind >= PHI_STEP_STAGE && kind <= PHI_STEP_LAND;
}

static inline int phi_step_bells(unsigned kind)
{
    return kind == PHI_STEP_BELL || kind == PHI_STEP_LAND;
}

// phi_step_waits returns whether a stream may wait at the step.
static inline int phi_step_waits(unsigned kind)
{
    return kind == PHI_STEP_WAIT || kind == PHI_STEP_BEHIND ||
           (phi_step_hops(kind) && kind != PHI_STEP_GO && kind != PHI_STEP_HELP);
}

struct phi_step {
    uint8_t kind; // enum phi_step_kind
    uint8_t word; // enum phi_word; unused for PHI_STEP_COPY
    uint8_t bit;  // enum phi_bit; unused for flags
};

// How a message moves, and with it which program its calls have at both ends.
enum phi_method {
    // Copies, ordered by words in host memory: the default, and all that a host has. The path
    // report
    // says what copies: ce, copy_kernel, memcpy, rma.
    PHI_BY_WORDS,
    PHI_BY_SM,     // one kernel copies and tells, by flags
    PHI_BY_LL,     // data and flags in one store
    PHI_BY_STAGED, // through host memory and over the net; puts as well
    PHI_BY_RING,   // of unbound channels: by ll, with a ring of slots in that memory
    PHI_BY_BOUNCE, // of unbound channels: as by words, into memory of the library, and out of it
};

// The calls that enqueue work at their end of a direction.
enum phi_call {
    PHI_CALL_PUT,      // copy
    PHI_CALL_GET,      // copy
    PHI_CALL_POST,     // passive end of send/recv: the buffer may be touched
    PHI_CALL_TRANSFER, // active end of send/recv
    PHI_CALL_COMPLETE, // passive end: wait until the copy is done
    PHI_CALL_SIGNAL,
    PHI_CALL_PUT_SIGNAL,
    PHI_CALL_WAIT,
    PHI_CALL_COUNT,
    PHI_CALL_COPY = PHI_CALL_COUNT, // ph_copy: on two channels, so it is no program of a direction
    PHI_CALL_NOTIFY,                // ph_notify: it moves nothing
    PHI_CALL_BEHIND,                // ph_request_wait_on
};

#define PHI_STEPS_MAX 3
#define PHI_ITEMS_MAX 4 // of one call: a step may be two

struct phi_program {
    const char *name;
    uint8_t count;
    struct phi_step steps[PHI_STEPS_MAX];
    uint8_t phase; // of a group: 0 posts, 1 active calls, 2 completes and waits
};

// phi_call_signals returns whether the word of a call is PHI_WORD_NOTE.
static inline bool phi_call_signals(enum phi_call call)
{
    return call == PHI_CALL_SIGNAL || call == PHI_CALL_PUT_SIGNAL || call == PHI_CALL_WAIT;
}

extern const struct phi_program phi_programs[PHI_CALL_COUNT];

// phi_program_of: the program of a call at its end of a message that moves by `method`. pull: of
// the get protocol. Plain puts and gets carry no message and have one program, but for puts by
// slots.
const struct phi_program *phi_program_of(enum phi_call call, enum phi_method method, int pull);

// The programs by bells are those by words: one bell for each, and a land behind the bell where the
// program copies.
struct phi_bell {
    const struct phi_step *wait, *post; // NULL: it has none
    int copies;
};
struct phi_bell phi_bell_of(const struct phi_program *program);

// phi_program_name is that of a call, or "work".
const char *phi_program_name(unsigned call);

// phi_program_awaits names what a call waits for ("ready", "full", "noted", "free"), or "nothing":
// no program waits twice.
const char *phi_program_awaits(unsigned call);

#define PHI_GROUP_PHASES 3

// phi_group_rank orders the peers of phase 1: the lower goes first. (peer - rank) mod ranks, so
// that in an all-to-all no two ranks begin with the same peer.
static inline uint32_t phi_group_rank(uint32_t rank, uint32_t peer, uint32_t ranks)
{
    return (peer + ranks - rank) % ranks;
}

#endif
