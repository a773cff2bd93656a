// SPDX-License-Identifier: BSD-3-Clause
#include "release/spent.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "peer/channel.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/wake.h"
#include "release/ask.h"
#include "release/spent_list.h"
#include "rules/retire.h"

static void ask_or_keep(struct ph_channel *channel)
{
    enum phi_retire_answer answer = phi_retire_spent(channel);
    if (answer != PHI_RETIRE_YES && !phi_spent_is_for_ever(channel, answer))
        phi_spent_append(channel);
}

void phi_spent_note(struct ph_channel *channel)
{
    struct phi_peer *peer = channel->peer;
    struct phi_spent *spent = &peer->channels.spent;
    if (peer->self->rank > peer->rank || peer->self->end.leaving || peer->state != PHI_PEER_READY ||
        !phi_spent_is(channel) || channel->kept.spent || channel->kept.asked)
        return;
    // At once, not by the service thread: the next exchange of the key may begin any time.
    ask_or_keep(channel);
    if (!channel->kept.spent)
        return;
    phi_spent_postpone(spent);
    if (spent->count == 1)
        phi_service_wake(peer->self); // else it comes anyway
}

int phi_spent_tick(struct phi_peer *peer)
{
    struct phi_spent *spent = &peer->channels.spent;
    if (spent->count == 0 || peer->state != PHI_PEER_READY || peer->room.asked > 0)
        return -1; // an answer wakes
    if (phi_now() < spent->at)
        return phi_remaining_ms(spent->at);
    uint32_t most = spent->count < PHI_RETIRE_ASKED ? spent->count : PHI_RETIRE_ASKED;
    for (uint32_t n = 0; n < most; n++) {
        struct ph_channel *channel = phi_spent_take(spent);
        if (phi_spent_is(channel))
            ask_or_keep(channel);
    }
    if (spent->count == 0)
        return -1;
    phi_spent_postpone(spent);
    return phi_remaining_ms(spent->at);
}

// ---- handles

// The last handle is gone.
static void end(struct ph_channel *channel)
{
    struct ph_channel **at = &channel->peer->channels.retired;
    if (!channel->kept.retired) {
        phi_spent_note(channel);
        return;
    }
    while (*at != channel)
        at = &(*at)->kept.next;
    *at = channel->kept.next;
    phi_channel_free(channel);
}

int phi_channel_close(struct ph_channel *channel)
{
    struct phi_self *self = channel->self;
    struct phi_peer *peer = channel->peer;
    int rc = 0;
    pthread_mutex_lock(&self->lock);
    if (channel->kept.handles == 0) {
        rc = phi_fail(self->report, -EINVAL,
                      "operation %llu with rank %d: the channel has no handle left to close",
                      (unsigned long long)channel->op_id, peer->rank);
    } else if (channel->kept.handles == 1 && atomic_load(&channel->live.uses.devices) != 0) {
        rc = phi_device_channel_busy(channel, "the last handle cannot be closed");
    } else if (--channel->kept.handles == 0) {
        end(channel);
        phi_lives_due(peer);
    }
    pthread_mutex_unlock(&self->lock);
    return rc;
}

void phi_revoke_channel(struct ph_channel *channel)
{
    int whole = 0;
    // The status comes first: a call that is refused because of `revoked` finds the reason there.
    atomic_compare_exchange_strong(&channel->live.status, &whole, -ESTALE);
    // seq_cst: pairs with the executors, which store a number and then look at `revoked`.
    if (atomic_exchange(&channel->live.uses.revoked, 1) == 0)
        phi_spent_note(channel);
}
