// SPDX-License-Identifier: BSD-3-Clause
// Channels and operation keys that neither rank needs make way for new ones. Their lines and slots
// pass to another channel or key only by a handshake of the two service threads. The lower rank
// begins it, as it gives lines and slots. docs/protocols.md has the rules, tests/model explores
// them with the functions of this file.
//
// release/ask.c asks, release/reply.c answers, release/drop.c takes out.
#ifndef PHI_RULES_RETIRE_H
#define PHI_RULES_RETIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "rules/agreement.h"

enum phi_retire_answer {
    PHI_RETIRE_YES = 1,
    PHI_RETIRE_HELD,   // the application has a handle
    PHI_RETIRE_PINNED, // a captured graph or a device channel holds it, or its flags do not rest
    PHI_RETIRE_BUSY,   // a stream touches it
    PHI_RETIRE_ROUND,  // the key is in an exchange, or in another round
};

// One rank's view of a channel, or of a key with all its channels.
struct phi_retire_view {
    bool exchanging; // see phi_retire_exchanging
    uint32_t round;  // the present one, or the next
    bool held, pinned, busy;
};

// phi_retire_exchanging: whether the key's exchange forbids it. It forbids a whole key while an
// exchange names the key, or a round is not over. It forbids a channel (mine, theirs) while the
// open round is about it. The rank that asks must have published nothing that its peer may take and
// has not taken. Until the answer it publishes nothing either, so both ranks look a pair up with
// the same channels.
static inline bool phi_retire_exchanging(const struct phi_agreement *agreement, bool asks,
                                         uint32_t mine, uint32_t theirs)
{
    if (agreement->state == PHI_AGREEMENT_OPEN)
        return agreement->mine == mine && agreement->theirs == theirs;
    return asks && agreement->state != PHI_AGREEMENT_IDLE;
}

// phi_retire_ending is the same for a channel with a released buffer, on both ranks. released: the
// own buffer is. Nobody publishes a released buffer again, so no later round is about the channel.
// The rank that asks may go on publishing: only the present round may still be about the channel.
static inline bool phi_retire_ending(const struct phi_agreement *agreement, bool released,
                                     uint32_t mine, uint32_t theirs)
{
    if (agreement->state == PHI_AGREEMENT_OPEN)
        return agreement->mine == mine && agreement->theirs == theirs;
    return released && agreement->state != PHI_AGREEMENT_IDLE && agreement->mine == mine;
}

// phi_retire_judge: whether this rank can do without it, where the other rank's round is `round`.
// With equal rounds both ranks have come out of the same exchanges, and have the same channels.
static inline enum phi_retire_answer phi_retire_judge(const struct phi_retire_view *view,
                                                      uint32_t round)
{
    if (view->exchanging || (view->round ? view->round : 1) != (round ? round : 1))
        return PHI_RETIRE_ROUND;
    return view->pinned ? PHI_RETIRE_PINNED
           : view->busy ? PHI_RETIRE_BUSY
           : view->held ? PHI_RETIRE_HELD
                        : PHI_RETIRE_YES;
}

// This bit stands beside the line in a question: the channel has a released buffer, see
// phi_retire_ending.
#define PHI_RETIRE_SPENT (UINT64_C(1) << 32)

#endif
