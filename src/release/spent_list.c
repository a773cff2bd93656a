// SPDX-License-Identifier: BSD-3-Clause
#include "release/spent_list.h"

#include "base/clock.h"
#include "lane/flags.h"
#include "peer/channel.h"
#include "peer/peer.h"

// How long until a channel that is not over yet is looked at again.
#define PAUSE_LEAST_MS 1
#define PAUSE_MOST_MS  1000

// How long the peer may take what it was sent before.
#define PINNED_MS 10000

bool phi_spent_is(const struct ph_channel *channel)
{
    return atomic_load(&channel->live.uses.revoked) != 0 && !phi_channel_is_held(channel) &&
           !channel->kept.retired;
}

void phi_spent_append(struct ph_channel *channel)
{
    struct phi_spent *spent = &channel->peer->channels.spent;
    if (spent->first == NULL)
        spent->end = &spent->first;
    channel->kept.spent = true;
    channel->kept.spent_next = NULL;
    *spent->end = channel;
    spent->end = &channel->kept.spent_next;
    spent->count++;
}

struct ph_channel *phi_spent_take(struct phi_spent *spent)
{
    struct ph_channel *channel = spent->first;
    spent->first = channel->kept.spent_next;
    channel->kept.spent = false;
    spent->count--;
    return channel;
}

void phi_spent_drop(struct ph_channel *channel)
{
    struct phi_spent *spent = &channel->peer->channels.spent;
    // Each comes round once; the others keep their order.
    for (uint32_t n = channel->kept.spent ? spent->count : 0; n > 0; n--) {
        struct ph_channel *first = phi_spent_take(spent);
        if (first != channel)
            phi_spent_append(first);
    }
}

// Flags that will not rest keep their line until the pair is over, so asking again is of no use.
// But for a while the peer may be just taking messages that it has not taken so far.
bool phi_spent_is_for_ever(struct ph_channel *channel, enum phi_retire_answer answer)
{
    if (answer != PHI_RETIRE_PINNED || channel->fixed.own.flags.lanes == 0)
        return false;
    if (channel->kept.spent_pinned == 0)
        channel->kept.spent_pinned = phi_now();
    return phi_flags_stuck(channel) || phi_now() - channel->kept.spent_pinned > PINNED_MS * PHI_MS;
}

// Each further time in a row waits longer.
void phi_spent_postpone(struct phi_spent *spent)
{
    const int64_t now = phi_now();
    if (spent->at > now)
        return;
    spent->pause = spent->pause ? spent->pause : PAUSE_LEAST_MS;
    spent->at = now + spent->pause * PHI_MS;
    spent->pause = spent->pause < PAUSE_MOST_MS ? spent->pause * 2 : PAUSE_MOST_MS;
}

void phi_spent_answered(struct ph_channel *channel, enum phi_retire_answer answer)
{
    struct phi_spent *spent = &channel->peer->channels.spent;
    if (answer == PHI_RETIRE_YES) {
        spent->pause = PAUSE_LEAST_MS;
        spent->at = 0; // there is room for another question
    } else if (phi_spent_is(channel) && !phi_spent_is_for_ever(channel, answer)) {
        phi_spent_append(channel);
        phi_spent_postpone(spent);
    }
}
