// SPDX-License-Identifier: BSD-3-Clause
#include "rules/agreement.h"

#include <assert.h>

static enum phi_agreement_step take(struct phi_agreement *own, uint64_t peer_word)
{
    own->theirs = (uint32_t)peer_word;
    own->state = PHI_AGREEMENT_OPEN;
    return PHI_AGREEMENT_TAKEN;
}

// Each question has its own attempt. An answer "not taken" that comes late must not end a later
// question about the same round, which the peer may have taken meanwhile.
static enum phi_agreement_step ask(struct phi_agreement *own, uint64_t *word)
{
    own->state = PHI_AGREEMENT_ASKING;
    own->attempt++;
    *word = phi_agreement_word(own->round, PHI_AGREEMENT_GONE);
    return PHI_AGREEMENT_ASK;
}

enum phi_agreement_step phi_agreement_publish(struct phi_agreement *own, uint32_t number,
                                              uint64_t *word)
{
    assert(number != 0 && number != PHI_AGREEMENT_GONE);
    assert(own->state != PHI_AGREEMENT_PUBLISHED);
    if (own->state == PHI_AGREEMENT_OPEN)
        return own->mine == number ? PHI_AGREEMENT_RESUME : PHI_AGREEMENT_FINISH;
    if (own->state == PHI_AGREEMENT_ASKING)
        return ask(own, word);

    if (own->round == 0)
        own->round = 1;
    own->state = PHI_AGREEMENT_PUBLISHED;
    own->mine = number;
    *word = phi_agreement_word(own->round, number);
    return PHI_AGREEMENT_STORE;
}

enum phi_agreement_step phi_agreement_look(struct phi_agreement *own, uint64_t peer_word)
{
    assert(own->state == PHI_AGREEMENT_PUBLISHED);
    return phi_agreement_shows(peer_word, own->round) ? take(own, peer_word) : PHI_AGREEMENT_WAIT;
}

// The last look matters. A peer that shows the round may have taken ours and be gone. A word that
// shows a number stays until we are two rounds further.
enum phi_agreement_step phi_agreement_give_up(struct phi_agreement *own, uint64_t peer_word,
                                              uint64_t *word)
{
    assert(own->state == PHI_AGREEMENT_PUBLISHED);
    return phi_agreement_shows(peer_word, own->round) ? take(own, peer_word) : ask(own, word);
}

bool phi_agreement_answer(const struct phi_agreement *own, uint32_t round)
{
    if (own->round == round)
        return own->state == PHI_AGREEMENT_OPEN;
    return (int32_t)(own->round - round) > 0; // rounds may wrap
}

bool phi_agreement_has_come(const struct phi_agreement *own, uint32_t round)
{
    if (own->round == round + (round == 0))
        return own->state == PHI_AGREEMENT_PUBLISHED || own->state == PHI_AGREEMENT_OPEN;
    return (int32_t)(own->round - round) > 0;
}

enum phi_agreement_step phi_agreement_told(struct phi_agreement *own, uint32_t round,
                                           uint32_t attempt, bool taken, uint64_t peer_word)
{
    if (own->state != PHI_AGREEMENT_ASKING || own->round != round || own->attempt != attempt)
        return PHI_AGREEMENT_WAIT;
    if (taken)
        return phi_agreement_shows(peer_word, round) ? take(own, peer_word)
                                                     : PHI_AGREEMENT_NONSENSE;

    own->state = PHI_AGREEMENT_IDLE;
    return PHI_AGREEMENT_TIMED_OUT;
}

void phi_agreement_done(struct phi_agreement *own)
{
    assert(own->state == PHI_AGREEMENT_OPEN);
    own->state = PHI_AGREEMENT_IDLE;
    own->round = own->round == UINT32_MAX ? 2 : own->round + 1; // not 0, and the other word
}
