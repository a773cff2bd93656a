// SPDX-License-Identifier: BSD-3-Clause
// Models of how buffers and channels end: a release (revoke, drained, closed) against the user's
// enqueues and an exchange of the same key under way, and the handshake by which a channel makes
// way, against the exchanges of both ranks. Every interleaving of single steps is explored.
#ifndef TESTS_MODEL_LIFETIME_MODEL_H
#define TESTS_MODEL_LIFETIME_MODEL_H

#include <cstddef>
#include <string>

namespace model
{

// Ways to break the rules of a release; each must be found.
enum class ReleaseBreak {
    NOTHING,
    LOOKS_FIRST,       // an enqueue looks at `revoked` before it stores its number
    NEVER_LOOKS,       // ... or does not look
    KEEPS_NUMBER,      // a refused enqueue does not take its number back
    DRAINS_FIRST,      // the service reads the numbers before it sets `revoked`
    IGNORES_GRAPHS,    // drained is said while a graph pins the channel
    IGNORES_THE_WORD,  // a channel is made without a look at the slot's `released`
    WORD_LAST,         // the releaser stores `released` after it has told the peer
    IGNORES_IMPORTING, // unmapped is said while a thread maps
    CLOSES_UNDRAINED,  // unmapped before the streams are done
};

// Ways to break the handshake; each must be found.
enum class RetireBreak {
    NOTHING,
    ANY_ROUND,      // the answer does not look at the round
    ANY_HANDLE,     // ... nor at the own handles
    IN_THE_ROUND,   // ... nor at the open round's pair
    PUBLISHES,      // the rank that asked publishes before the answer
    ASKS_PUBLISHED, // it asks while its peer may take what it has published
    REUSES_AT_ONCE, // the line goes on before the answer
    // Of a channel with a released buffer:
    UNRELEASED,      // it is asked for before the rank knows that
    STILL_PUBLISHED, // ... while a rank shows the released buffer in an unfinished round
};

struct LifetimeOutcome {
    std::string failure; // empty: none
    std::string trace;
    size_t states = 0;
};

LifetimeOutcome explore_release(ReleaseBreak broken);
// both: either rank asks, perhaps both at once.
LifetimeOutcome explore_retire(RetireBreak broken, bool both, int exchanges);

// The same of a channel of which one side (0, 1) releases the buffer, and goes on with another.
LifetimeOutcome explore_spent(RetireBreak broken, int releaser, int exchanges);

} // namespace model

#endif
