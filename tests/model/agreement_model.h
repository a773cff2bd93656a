// SPDX-License-Identifier: BSD-3-Clause
// A model of two ranks that exchange operation keys by the rules of rules/agreement.h, explored
// in every interleaving: the library's functions decide, the model keeps the words, the offers, the
// confirms, the questions and the clocks.
//
// Deadlines pass at any moment, offers and answers arrive at any later moment and in any order.
// Found are: two pairs or two kinds of outcome for one round, a time-out of a round that the peer
// has taken, results that come in another order at the two ranks, deadlock, and states from which
// the end cannot be reached any more.
#ifndef TESTS_MODEL_AGREEMENT_MODEL_H
#define TESTS_MODEL_AGREEMENT_MODEL_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace model
{

// Ways to break the rules; each must be found.
enum class Break {
    NOTHING,
    NO_QUESTION,    // gives up without asking
    NO_GONE,        // asks, but leaves its number in the word
    STALE_LOOK,     // takes a word that was loaded before the mutex was locked
    BIT_ONLY,       // agrees on "I have a channel", not on which
    NO_ROUND,       // takes whatever number the word shows
    ONE_WORD,       // every round in the same word
    ANY_ANSWER,     // does not look which attempt an answer belongs to
    TOLD_IS_OURS,   // takes the outcome of an older question for that of its own buffer
    ANSWER_BY_DONE, // the service thread says "taken" only when the round is done
    DONE_EARLY,     // a round is done when it is known, not when it is handed to the application
    DROP_OPEN,      // a miss that passes its deadline is forgotten
    CONFIRM_TWICE,  // a resumed miss tries again, with another result
    OFFER_IS_ROUND, // takes the round when the offer has come, whatever the word shows
};

struct Op {
    int key;
    int number; // of the buffer, from 1
};
using Call = std::vector<Op>; // one exchange: all keys of it or none

struct Plan {
    std::vector<Call> calls[2];
    bool retry = true;     // a call that timed out is made again; else the next one is made
    int give_ups = 2;      // deadlines that may pass at each side
    int silences = 0;      // questions at each side that may get no answer in time
    int path_failures = 0; // tries that may fail at each side
    Break broken = Break::NOTHING;
    size_t states_max = SIZE_MAX; // where the search for a failure stops
};

struct Outcome {
    std::string failure; // empty: none
    std::string trace;
    size_t states = 0;
    bool ok() const
    {
        return failure.empty();
    }
};

Outcome explore(const Plan &plan);

} // namespace model

#endif
