// SPDX-License-Identifier: BSD-3-Clause
#include "ending/expel.h"

#include <errno.h>
#include <stdio.h>

#include "base/clock.h"
#include "ending/end.h"
#include "ending/link.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/peers.h"
#include "peer/side.h"
#include "peer/wake.h"
#include "semaphore/segment.h"

bool phi_expel_over(const struct phi_peer *peer)
{
    if (peer->gone || !peer->expelled)
        return peer->gone;
    return atomic_load(&phi_peer_theirs(peer)->drained) != 0;
}

void phi_expel_look(struct phi_peer *peer)
{
    char why[96];
    // Acquire: pairs with the release store in mark.
    if (peer->peers->fenced ||
        atomic_load_explicit(&phi_peer_theirs(peer)->expelled, memory_order_acquire) == 0)
        return;
    snprintf(why, sizeof why, "it was expelled by rank %d", peer->rank);
    phi_fence(peer->peers, why);
}

void phi_expel_look_all(struct phi_peers *peers)
{
    for (int rank = 0; rank < peers->ranks; rank++)
        if (peers->table[rank] != NULL && peers->table[rank]->state == PHI_PEER_READY)
            phi_expel_look(peers->table[rank]);
}

static void tell(struct phi_peer *peer, int rank, uint64_t life)
{
    struct phi_node_message message;
    phi_peer_message(peer, PHI_NODE_EXPELLED, &message);
    message.a = (uint64_t)rank;
    message.b = life;
    // Who does not read gets no more: it learns it from the segment or the store.
    phi_peer_tell(peer, &message);
}

static void tell_all(struct phi_peers *peers, int rank, uint64_t life)
{
    for (int other = 0; other < peers->ranks; other++)
        if (peers->table[other] != NULL && peers->table[other]->state == PHI_PEER_READY)
            tell(peers->table[other], rank, life);
}

void phi_expel_tell(struct phi_peer *peer)
{
    struct phi_peers *peers = peer->peers;
    for (int rank = 0; rank < peers->ranks; rank++)
        if (peers->table[rank] != NULL && peers->table[rank]->expelled_life != 0)
            tell(peer, rank, peers->table[rank]->expelled_life);
}

// The life in the table is the one that was expelled.
static void mark(struct phi_peer *peer)
{
    peer->expelled = true;
    if (peer->segment != NULL && peer->state >= PHI_PEER_READY) {
        // Release: pairs with the acquire load in phi_expel_look.
        phi_segment_put32(peer->segment, &phi_peer_mine(peer)->expelled, 1);
        phi_peer_ring(peer);
        tell(peer, peer->rank, peer->incarnation); // itself: its service thread looks
    }
    phi_log(peer->peers->report, PH_LOG_WARN, "rank %d (process %u on %s) was expelled", peer->rank,
            peer->theirs.pid, peer->theirs.host);
    phi_peer_break(peer, PH_EPEER);
    phi_heartbeat_forget(peer);
    phi_hello_cut(peer);
}

void phi_expel_settle(struct phi_peer *peer)
{
    if (peer->incarnation > peer->expelled_life || peer->expelled || peer->gone || peer->preparing)
        return;
    if (peer->state >= PHI_PEER_READY)
        mark(peer);
    else
        peer->state = PHI_PEER_UNKNOWN; // its record is worth nothing; a later life's may come
}

void phi_expel_file(struct phi_peers *peers, int rank, uint64_t life)
{
    if (rank == peers->rank) {
        if (life == peers->incarnation)
            phi_fence(peers, "it was expelled by another rank");
        return;
    }
    struct phi_peer *peer = phi_peers_get(peers, rank);
    if (peer == NULL || life <= peer->expelled_life)
        return;
    peer->expelled_life = life;
    if (peer->newer != 0 && peer->newer <= life)
        peer->newer = 0;
    if (peer->incarnation == life)
        phi_expel_settle(peer);
    tell_all(peers, rank, life); // those that are connected to it and not to who expelled it
    phi_peers_changed(peers);
}

static int may_expel(struct phi_peer *peer, int rank)
{
    struct phi_report *report = peer->peers->report;
    if (peer->state < PHI_PEER_READY)
        return phi_fail(report, -ENOTCONN,
                        "rank %d cannot be expelled: rank %d was never connected to it", rank,
                        peer->peers->rank);
    if (peer->suspect)
        return 0;
    return phi_fail(report, -EBUSY,
                    "rank %d (process %u on %s) cannot be expelled: it is no SUSPECT, its last "
                    "heartbeat was %lld ms ago",
                    rank, peer->theirs.pid, peer->theirs.host,
                    (long long)((phi_now() - peer->beat_at) / PHI_MS));
}

int phi_expel(struct phi_peers *peers, int rank, int64_t deadline)
{
    pthread_mutex_lock(&peers->lock);
    struct phi_peer *peer = phi_peers_get(peers, rank);
    int rc = peers->fenced ? phi_fence_fail(peers) : peer ? 0 : -ENOMEM;
    if (rc || peer->gone)
        goto unlock;
    if (!peer->expelled) {
        if ((rc = may_expel(peer, rank)))
            goto unlock;
        phi_expel_file(peers, rank, peer->incarnation);
        // This application knows by its own call.
        phi_peer_told(peer);
    }
    uint64_t life = peer->incarnation;
    pthread_mutex_unlock(&peers->lock);
    return phi_mailbox_expel(peers->mailbox, rank, life, deadline);
unlock:
    pthread_mutex_unlock(&peers->lock);
    return rc;
}

void phi_fence(struct phi_peers *peers, const char *why)
{
    if (peers->fenced)
        return;
    snprintf(peers->fenced_why, sizeof peers->fenced_why, "%s", why);
    peers->fenced = phi_fail(peers->report, PH_EFENCED, "rank %d (incarnation %llx) is fenced: %s",
                             peers->rank, (unsigned long long)peers->incarnation, why);
    phi_peers_break(peers, PH_EFENCED);
    phi_peers_changed(peers);
    phi_mailbox_wake(peers->mailbox);
}

void phi_fence_told(struct phi_peers *peers)
{
    for (int rank = 0; rank < peers->ranks; rank++) {
        struct phi_peer *peer = peers->table[rank];
        if (peer != NULL && peer->state >= PHI_PEER_READY)
            phi_peer_told(peer);
    }
    atomic_store(&peers->fence_told, true);
}

int phi_fence_fail(struct phi_peers *peers)
{
    phi_fence_told(peers);
    return phi_fail(peers->report, PH_EFENCED, "rank %d (incarnation %llx) is fenced: %s",
                    peers->rank, (unsigned long long)peers->incarnation, peers->fenced_why);
}

// Whether nothing of the peer's process touches what we shared with it. One that never mapped the
// segment has mapped nothing else: it takes no round before, and then sees what was released. One
// that maps it between this look and our store of `released` is seen by a later look: CLOSED waits
// for it.
bool phi_release_over(const struct phi_peer *peer)
{
    return peer->segment == NULL || atomic_load(&phi_peer_theirs(peer)->mapped) == 0 ||
           (peer->state == PHI_PEER_BROKEN && phi_expel_over(peer));
}
