// SPDX-License-Identifier: BSD-3-Clause
#include "release/view.h"

#include "lane/flags.h"
#include "lane/staging.h"
#include "peer/channel.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "rules/agreement.h"
#include "semaphore/segment.h"

// Returns whether a message is here that the application has still to take: a note, or the end of a
// transfer that it posted.
static bool is_due(const struct ph_channel *channel)
{
    uint32_t posted = atomic_load(&channel->live.posted);
    return phi_staging_due(channel) ||
           atomic_load(&channel->fixed.theirs.line->word[PHI_WORD_NOTE]) == PHI_BIT_NOTED ||
           ((posted & 1u) &&
            atomic_load(&channel->fixed.own.line->word[PHI_WORD_TURN]) == PHI_BIT_FULL) ||
           ((posted & 2u) &&
            atomic_load(&channel->fixed.theirs.line->word[PHI_WORD_TURN]) == PHI_BIT_FULL);
}

static void look_at_channel(struct ph_channel *channel, struct phi_retire_view *view)
{
    struct phi_executor *executor = channel->self->executor;
    struct phi_left left;
    executor->ops->left(executor, &channel->live.uses, &left);
    const bool busy = left.streams > 0 || atomic_load(&channel->live.inside) > 0 ||
                      channel->kept.notes > 0 || !phi_staging_rests(channel);
    // A handle of a released channel is only the right to ask for the channel's status, and to take
    // messages that came before.
    const bool of_use = atomic_load(&channel->live.uses.revoked) == 0 || is_due(channel);
    const bool held = channel->kept.handles > 0 && of_use;
    // Flags keep their numbers: another channel can go on there when they rest. A thread that still
    // has something to do with them may bring them to rest.
    const bool by_flags = atomic_load(&channel->live.flagged) != 0 && !channel->fixed.stage.is;
    view->pinned = view->pinned || left.graphs > 0 || left.devices > 0 ||
                   (by_flags && !busy && !held && !phi_flags_rest(channel));
    view->busy = view->busy || busy;
    view->held = view->held || held;
}

// Returns the view of a channel, or of a whole key (channel NULL).
struct phi_retire_view phi_view_of(const struct phi_key *key, struct ph_channel *channel)
{
    struct phi_retire_view view = {.round = key->agreement.round};
    if (channel != NULL) {
        view.exchanging =
            phi_retire_exchanging(&key->agreement, phi_peer_is_lower(key->peer),
                                  channel->fixed.own.number, channel->fixed.theirs.number);
        look_at_channel(channel, &view);
        return view;
    }
    view.exchanging = key->request != NULL || key->agreement.state != PHI_AGREEMENT_IDLE;
    for (uint32_t i = 0; i < key->channels.count; i++)
        look_at_channel(key->channels.list[i], &view);
    return view;
}

// Returns whether the peer released its buffer, as far as this rank was told.
bool phi_view_theirs_released(const struct phi_key *key, const struct ph_channel *channel)
{
    const struct phi_peer_buffer *theirs = phi_key_theirs(key, channel->fixed.theirs.number);
    return theirs == NULL || theirs->released;
}

struct phi_retire_view phi_view_spent(const struct phi_key *key, struct ph_channel *channel)
{
    struct phi_retire_view view = {.round = key->agreement.round};
    view.exchanging =
        phi_retire_ending(&key->agreement, phi_key_mine_released(key, channel->fixed.own.number),
                          channel->fixed.own.number, channel->fixed.theirs.number);
    look_at_channel(channel, &view);
    return view;
}
