// SPDX-License-Identifier: BSD-3-Clause
#include "channel/spent.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "channel/device_channel.h"
#include "channel/flags.h"
#include "channel/lives.h"
#include "channel/wake.h"

// How long until a channel that is not over yet is looked at again.
#define PAUSE_LEAST_MS 1
#define PAUSE_MOST_MS  1000

// How long the peer may take what it was sent before.
#define PINNED_MS 10000

static bool is_spent(const struct ph_channel *channel)
{
    return atomic_load(&channel->uses.revoked) != 0 && channel->handles == 0 && !channel->retired;
}

static void append(struct ph_channel *channel)
{
    struct phi_spent *spent = &channel->peer->spent;
    if (spent->first == NULL)
        spent->end = &spent->first;
    channel->spent = true;
    channel->spent_next = NULL;
    *spent->end = channel;
    spent->end = &channel->spent_next;
    spent->count++;
}

static struct ph_channel *take_first(struct phi_spent *spent)
{
    struct ph_channel *channel = spent->first;
    spent->first = channel->spent_next;
    channel->spent = false;
    spent->count--;
    return channel;
}

void phi_spent_drop(struct ph_channel *channel)
{
    struct phi_spent *spent = &channel->peer->spent;
    // Each comes round once; the others keep their order.
    for (uint32_t n = channel->spent ? spent->count : 0; n > 0; n--) {
        struct ph_channel *first = take_first(spent);
        if (first != channel)
            append(first);
    }
}

// Flags that will not rest keep their line until the pair is over: asking again is of no use. What
// the peer has not taken so far it may just be taking, for a while.
static bool is_for_ever(struct ph_channel *channel, enum phi_retire_answer answer)
{
    if (answer != PHI_RETIRE_PINNED || channel->own_slab == 0)
        return false;
    if (channel->spent_pinned == 0)
        channel->spent_pinned = phi_now();
    return phi_flags_stuck(channel) || phi_now() - channel->spent_pinned > PINNED_MS * PHI_MS;
}

static void ask_or_keep(struct ph_channel *channel)
{
    enum phi_retire_answer answer = phi_retire_spent(channel);
    if (answer != PHI_RETIRE_YES && !is_for_ever(channel, answer))
        append(channel);
}

// Each further time in a row waits longer.
static void postpone(struct phi_spent *spent)
{
    const int64_t now = phi_now();
    if (spent->at > now)
        return;
    spent->pause = spent->pause ? spent->pause : PAUSE_LEAST_MS;
    spent->at = now + spent->pause * PHI_MS;
    spent->pause = spent->pause < PAUSE_MOST_MS ? spent->pause * 2 : PAUSE_MOST_MS;
}

void phi_spent_note(struct ph_channel *channel)
{
    struct phi_peer *peer = channel->peer;
    struct phi_spent *spent = &peer->spent;
    if (peer->peers->rank > peer->rank || peer->peers->leaving || peer->state != PHI_PEER_READY ||
        !is_spent(channel) || channel->spent || channel->asked)
        return;
    // At once, not by the service thread: the next exchange of the key may begin any time.
    ask_or_keep(channel);
    if (!channel->spent)
        return;
    postpone(spent);
    if (spent->count == 1)
        phi_service_wake(peer->peers); // else it comes anyway
}

void phi_spent_answered(struct ph_channel *channel, enum phi_retire_answer answer)
{
    struct phi_spent *spent = &channel->peer->spent;
    if (answer == PHI_RETIRE_YES) {
        spent->pause = PAUSE_LEAST_MS;
        spent->at = 0; // there is room for another question
    } else if (is_spent(channel) && !is_for_ever(channel, answer)) {
        append(channel);
        postpone(spent);
    }
}

int phi_spent_tick(struct phi_peer *peer)
{
    struct phi_spent *spent = &peer->spent;
    if (spent->count == 0 || peer->state != PHI_PEER_READY || peer->room.asked > 0)
        return -1; // an answer wakes
    if (phi_now() < spent->at)
        return phi_remaining_ms(spent->at);
    uint32_t most = spent->count < PHI_RETIRE_ASKED ? spent->count : PHI_RETIRE_ASKED;
    for (uint32_t n = 0; n < most; n++) {
        struct ph_channel *channel = take_first(spent);
        if (is_spent(channel))
            ask_or_keep(channel);
    }
    if (spent->count == 0)
        return -1;
    postpone(spent);
    return phi_remaining_ms(spent->at);
}

// ---- handles

// The last handle is gone.
static void end(struct ph_channel *channel)
{
    struct ph_channel **at = &channel->peer->husks;
    if (!channel->retired) {
        phi_spent_note(channel);
        return;
    }
    while (*at != channel)
        at = &(*at)->next;
    *at = channel->next;
    free(channel);
}

int phi_channel_close(struct ph_channel *channel)
{
    struct phi_peers *peers = channel->peers;
    struct phi_peer *peer = channel->peer;
    int rc = 0;
    pthread_mutex_lock(&peers->lock);
    if (channel->handles == 0) {
        rc = phi_fail(peers->report, -EINVAL,
                      "operation %llu with rank %d: the channel has no handle left to close",
                      (unsigned long long)channel->op_id, peer->rank);
    } else if (channel->handles == 1 && atomic_load(&channel->uses.devices) != 0) {
        rc = phi_device_channel_busy(channel, "the last handle cannot be closed");
    } else if (--channel->handles == 0) {
        end(channel);
        phi_lives_due(peer);
    }
    pthread_mutex_unlock(&peers->lock);
    return rc;
}
