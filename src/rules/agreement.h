// SPDX-License-Identifier: BSD-3-Clause
// Agreement: two ranks that exchange the same operation key must take the same pair of buffers for
// the same round, also where one of them gives up in the middle. These functions are the rules, and
// nothing else: they read no memory but their arguments, and never wait. tests/model explores every
// interleaving of two ranks that call them.
//
// Vocabulary. The n-th exchange of a key here is round n (from 1; 0 is never a round), and pairs
// with the peer's round n. Each buffer that a rank uses with a key has a number there, from 1. Its
// owner gives the number at the first use, and never gives it again. A buffer that is offered
// afresh, because its channel broke, gets a new one. Each side has a slot of two words in its own
// half of the segment. Round n uses word[n & 1]: (round, number). The number GONE means "I was here
// and gave up".
//
// One exchange of a key:
//   publish   STORE: store *word into the own slot (release), wake the peer.
//   look      Again and again until TAKEN: mine and theirs are agreed now.
//             A hit: (mine, theirs) is one of the key's confirmed channels, which both sides know
//             alike. A miss: send the own descriptor of `mine` if the peer was never sent it, wait
//             for the peer's of `theirs`, try it, confirm (round, result) in the segment, wait for
//             the peer's confirm of this round; both good: (mine, theirs) is a confirmed channel.
//   done      When the result, channel or error, is handed to the application, not before: a call
//             of several operations that fails as a whole leaves those it has taken open.
//
// The deadline passes before TAKEN:
//   give_up   TAKEN: go on as above. ASK: store *word into the own slot (release), then ask the
//             peer's service thread (key, round, attempt). It calls phi_agreement_answer under its
//             mutex and sends the answer back with the same key, round and attempt.
//   told      TAKEN: the peer went on. A hit is success, a miss stays open: -ETIMEDOUT.
//             TIMED_OUT: it did not, and will not: -ETIMEDOUT, the next exchange is this round.
//             No answer: the key stays ASKING, that is closed.
//
// The deadline passes in a miss: -ETIMEDOUT, the round stays open. The next exchange of the key:
//   publish   RESUME: same buffer, so the end of the open round is the answer to this call.
//             FINISH: another buffer: bring the open round to its end, done, publish again.
//             ASK: the last question was not answered; *word and attempt are those of a new one.
//             Once told, whatever the answer, publish again: the round it was about may be another
//             buffer's.
//
// Locking. A struct phi_agreement belongs to the mutex of its pair of ranks. The caller of each
// function holds it, and has loaded (acquire) the peer's word that it hands in *while* it held it:
// this makes an answer "not taken" final. To wait without the mutex, poll phi_agreement_shows(),
// then lock, load again and look.
#ifndef PHI_RULES_AGREEMENT_H
#define PHI_RULES_AGREEMENT_H

#include <stdbool.h>
#include <stdint.h>

#define PHI_AGREEMENT_GONE 0xffffffffu // no buffer has this number, nor 0

enum phi_agreement_state {
    PHI_AGREEMENT_IDLE,      // between rounds
    PHI_AGREEMENT_PUBLISHED, // the own word shows the round; the peer may take it
    PHI_AGREEMENT_ASKING,    // the own word shows GONE; whether the peer took the round is asked
    PHI_AGREEMENT_OPEN,      // taken, mine and theirs are agreed; not yet done
};

// Lies beside the key. All zero before the first round, as are the words of both slots.
struct phi_agreement {
    uint32_t state;   // enum phi_agreement_state
    uint32_t round;   // the present one, or the next where idle
    uint32_t mine;    // published for this round
    uint32_t theirs;  // taken in this round; valid where open
    uint32_t attempt; // of the present or last question
};

// A function returns what its caller does next.
enum phi_agreement_step {
    PHI_AGREEMENT_WAIT,
    PHI_AGREEMENT_STORE,
    PHI_AGREEMENT_ASK,
    PHI_AGREEMENT_TAKEN,
    PHI_AGREEMENT_RESUME,
    PHI_AGREEMENT_FINISH,
    PHI_AGREEMENT_TIMED_OUT,
    PHI_AGREEMENT_NONSENSE, // the peer broke the rules (PH_EPEER); the key stays as it was
};

static inline uint64_t phi_agreement_word(uint32_t round, uint32_t number)
{
    return (uint64_t)round << 32 | number;
}

// phi_agreement_shows says whether a word shows a number for this round.
static inline bool phi_agreement_shows(uint64_t word, uint32_t round)
{
    uint32_t number = (uint32_t)word;
    return word >> 32 == round && number != 0 && number != PHI_AGREEMENT_GONE;
}

// phi_agreement_publish begins an exchange with the own buffer's number (not 0, not GONE). It
// returns STORE, RESUME, FINISH or ASK, and sets *word for STORE and ASK only. The caller must not
// publish a key again whose exchange has been started and not finished; it returns -EALREADY for
// that.
enum phi_agreement_step phi_agreement_publish(struct phi_agreement *own, uint32_t number,
                                              uint64_t *word);

// phi_agreement_look takes the round if the peer's word[round & 1] shows it: TAKEN, else WAIT.
enum phi_agreement_step phi_agreement_look(struct phi_agreement *own, uint64_t peer_word);

// phi_agreement_give_up looks once more: TAKEN, or ASK with the *word to store before asking.
enum phi_agreement_step phi_agreement_give_up(struct phi_agreement *own, uint64_t peer_word,
                                              uint64_t *word);

// phi_agreement_answer is the service thread's: whether this side has taken `round`. It has not
// taken a round of a key that it has never exchanged (a zeroed struct says so). The own word is
// stored before this can be true, so the asker sees it.
bool phi_agreement_answer(const struct phi_agreement *own, uint32_t round);

// phi_agreement_has_come: whether this side has come to the peer's `round`, or to a later one, and
// has not given it up. Round 0 is before the peer's first one, which is 1.
bool phi_agreement_has_come(const struct phi_agreement *own, uint32_t round);

// phi_agreement_told ends the question (round, attempt) with the peer's answer. peer_word is loaded
// after the answer came. It returns TAKEN, TIMED_OUT, WAIT (the answer to another question) or
// NONSENSE.
enum phi_agreement_step phi_agreement_told(struct phi_agreement *own, uint32_t round,
                                           uint32_t attempt, bool taken, uint64_t peer_word);

// phi_agreement_done ends an open round.
void phi_agreement_done(struct phi_agreement *own);

#endif
