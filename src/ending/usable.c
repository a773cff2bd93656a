// SPDX-License-Identifier: BSD-3-Clause
#include "ending/usable.h"

#include <errno.h>

#include "ending/expel.h"
#include "ending/look.h"
#include "lane/lift.h"
#include "peer/channel.h"
#include "peer/peer.h"
#include "peer/peers.h"
#include "peer/side.h"
#include "semaphore/segment.h"

// Whether the peer gave its buffer back before or after all that this end waited for had come.
static int settle(struct ph_channel *channel)
{
    pthread_mutex_lock(&channel->peers->lock);
    phi_revoke_settle(channel);
    pthread_mutex_unlock(&channel->peers->lock);
    return atomic_load_explicit(&channel->status, memory_order_acquire);
}

// With what the peer has said of its end, which the service thread may not have seen so far, or be
// just writing down.
static int look(struct ph_channel *channel)
{
    pthread_mutex_lock(&channel->peers->lock);
    phi_peer_look(channel->peer);
    const int status = atomic_load_explicit(&channel->status, memory_order_acquire);
    pthread_mutex_unlock(&channel->peers->lock);
    return status;
}

int phi_channel_check(struct ph_channel *channel)
{
    int status = atomic_load_explicit(&channel->status, memory_order_acquire);
    if (status == -ESTALE && (atomic_load(&channel->flagged) || atomic_load(&channel->lifted)))
        status = settle(channel);
    // A queue whose copy failed with the link is done before the service thread knows of it. Pairs
    // with the queue's store, which comes before its operation is done.
    if (status == 0 && channel->route.link != NULL && atomic_load(&channel->mine->broken) != 0) {
        status = look(channel);
        status = status ? status : PH_EPEER;
    }
    struct phi_peer *peer = channel->peer;
    if (status && atomic_load(&peer->ended))
        phi_peer_told(peer);
    if (status == PH_EFENCED && !atomic_load(&channel->peers->fence_told)) {
        pthread_mutex_lock(&channel->peers->lock);
        phi_fence_told(channel->peers);
        pthread_mutex_unlock(&channel->peers->lock);
    }
    return status;
}

// Whether the peer's application knows that the pair has ended, by a call of its own at least: what
// lay in its buffers may have made way for something else since. Pairs with its stores of these,
// which come before that call returns: who has read what came later finds them here.
static bool is_over_there(const struct phi_peer *peer)
{
    const struct phi_side *theirs = phi_peer_theirs(peer);
    return atomic_load(&theirs->told) != 0 || atomic_load(&theirs->expelled) != 0 ||
           (atomic_load(&theirs->state) & PHI_SIDE_ABORTED) != 0;
}

int phi_channel_status(struct ph_channel *channel)
{
    // Behind what was read. Pairs with the fence in phi_peer_told.
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load(&channel->status) == 0 && is_over_there(channel->peer))
        look(channel);
    return phi_channel_check(channel);
}
