// SPDX-License-Identifier: BSD-3-Clause
#include "service/leave.h"

#include <errno.h>

#include "base/clock.h"
#include "ending/end.h"
#include "ending/untold.h"
#include "exchange/inbox.h"
#include "meeting/opener.h"
#include "peer/channel.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/peers.h"
#include "peer/side.h"
#include "peer/wake.h"
#include "release/abort.h"
#include "semaphore/segment.h"

// One way: the peer's service thread looks at our side. Where we never connected to it, the end of
// its own connection to us tells it.
static void notify(struct phi_peer *peer)
{
    struct phi_node_message message;
    phi_peer_message(peer, PHI_NODE_NOTIFY, &message);
    phi_peer_tell(peer, &message);
    phi_peer_ring(peer);
}

// What was said to be drained is not used again, also where destroy must be tried once more.
static void shut(struct phi_peer *peer)
{
    for (struct ph_channel *channel = peer->channels; channel != NULL; channel = channel->next) {
        int whole = 0;
        atomic_compare_exchange_strong(&channel->status, &whole, PH_EBROKEN);
    }
    phi_peer_revoke(peer); // the status first, as above
}

static void say_state(struct phi_peers *peers, uint32_t state, bool is_drained)
{
    for (int rank = 0; rank < peers->ranks; rank++) {
        struct phi_peer *peer = peers->table[rank];
        if (peer == NULL || peer->segment == NULL)
            continue;
        if (is_drained) {
            shut(peer);
            phi_segment_put32(peer->segment, &phi_peer_mine(peer)->drained, 1);
        }
        phi_segment_put32(peer->segment, &phi_peer_mine(peer)->state, state);
        notify(peer);
    }
    // As in phi_peer_told.
    atomic_thread_fence(memory_order_seq_cst);
}

// Who may still touch our buffers; NULL: nobody.
static struct phi_peer *undrained(struct phi_peers *peers)
{
    for (int rank = 0; rank < peers->ranks; rank++) {
        struct phi_peer *peer = peers->table[rank];
        // A peer that never mapped the segment has mapped nothing of ours. Our state was stored
        // before this load, and the peer stores `mapped` before it looks at our state: one of the
        // two sees the other.
        if (peer != NULL && peer->segment != NULL && phi_peer_connected(peer) && !peer->gone &&
            atomic_load(&phi_peer_theirs(peer)->mapped) != 0 &&
            atomic_load(&phi_peer_theirs(peer)->drained) == 0)
            return peer;
    }
    return NULL;
}

static int cannot_leave(struct phi_peer *peer)
{
    struct phi_peers *peers = peer->peers;
    char suspicion[80];
    phi_executor_suspicion(peers->executor, peer->rank, suspicion, sizeof suspicion);
    return phi_fail(peers->report, -ETIMEDOUT,
                    "rank %d cannot leave: rank %d (process %u) has streams, captured graphs or "
                    "device channels that touch its buffers%s%s",
                    peers->rank, peer->rank, peer->theirs.pid, suspicion,
                    peer->expelled ? "; it was expelled, and has neither acknowledged nor exited"
                                   : "");
}

static int wait_for_drain(struct phi_peers *peers, int64_t deadline)
{
    for (;;) {
        uint64_t seen = peers->changes;
        struct phi_peer *peer = undrained(peers);
        if (peer == NULL)
            return 0;
        if (phi_now() >= deadline)
            return cannot_leave(peer);
        phi_peers_wait(peers, seen, deadline); // not for the store: see receive() there
    }
}

// Our own operations: after them no stream of ours touches a peer.
static int finish(struct phi_peers *peers, int64_t deadline)
{
    int rc = peers->executor->ops->flush(peers->executor, deadline);
    if (rc)
        return rc;
    pthread_mutex_lock(&peers->lock);
    rc = phi_opener_wait(peers, deadline);
    pthread_mutex_unlock(&peers->lock);
    if (rc)
        return rc;
    // What was posted must be there before we say that nothing more comes.
    int rank = -1;
    if (peers->net != NULL && (rc = phi_net_settle(peers->net, deadline, &rank)))
        return phi_fail(peers->report, rc,
                        "rank %d cannot leave: what it has posted to rank %d is not delivered by "
                        "the net",
                        peers->rank, rank);
    return 0;
}

// The sender of a message of another size is told of it before it sees us go, where its socket
// takes that: afterwards nobody could tell it the sizes.
static void look_for_mismatches(struct phi_peers *peers)
{
    for (int rank = 0; rank < peers->ranks; rank++)
        if (peers->table[rank] != NULL && peers->table[rank]->state == PHI_PEER_READY)
            phi_peer_mismatches(peers->table[rank]);
}

int phi_leave(struct phi_peers *peers, int64_t deadline)
{
    // Who destroys needs nothing of a pair that has ended, or ends meanwhile. It says so before its
    // own operations are finished: they may wait for a peer that waits for this in the same way.
    pthread_mutex_lock(&peers->lock);
    peers->destroying = true;
    phi_untold_none(peers);
    pthread_mutex_unlock(&peers->lock);
    int rc = finish(peers, deadline);
    pthread_mutex_lock(&peers->lock);
    peers->destroying = false; // the context may be used again: what ends later is told by a call
    if (rc == 0) {
        look_for_mismatches(peers);
        peers->leaving = true;
        // Who has aborted says so to the end: a peer may not have looked yet.
        say_state(peers, PHI_SIDE_LEAVING | (peers->aborted ? PHI_SIDE_ABORTED : 0), true);
        rc = wait_for_drain(peers, deadline);
    }
    pthread_mutex_unlock(&peers->lock);
    return rc;
}

void phi_abort(struct phi_peers *peers, const char *reason)
{
    pthread_mutex_lock(&peers->lock);
    if (!peers->aborted) {
        peers->aborted =
            phi_fail(peers->report, PH_EABORTED, "rank %d aborted: %s", peers->rank, reason);
        say_state(peers, PHI_SIDE_ABORTED | (peers->leaving ? PHI_SIDE_LEAVING : 0), false);
        phi_peers_break(peers, PH_EABORTED);
    }
    phi_peers_changed(peers);
    phi_mailbox_wake(peers->mailbox);
    pthread_mutex_unlock(&peers->lock);
}
