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
#include "peer/self.h"
#include "peer/side.h"
#include "peer/wake.h"
#include "semaphore/segment.h"

bool phi_expel_over(const struct phi_peer *peer)
{
    if (peer->end.gone || !peer->end.expelled)
        return peer->end.gone;
    return atomic_load(&phi_peer_theirs(peer)->drained) != 0;
}

void phi_expel_look(struct phi_peer *peer)
{
    char why[96];
    // Acquire: pairs with the release store in mark.
    if (peer->self->end.fenced ||
        atomic_load_explicit(&phi_peer_theirs(peer)->expelled, memory_order_acquire) == 0)
        return;
    snprintf(why, sizeof why, "it was expelled by rank %d", peer->rank);
    phi_fence(peer->self, why);
}

void phi_expel_look_all(struct phi_self *self)
{
    for (int rank = 0; rank < self->ranks; rank++)
        if (self->table[rank] != NULL && self->table[rank]->state == PHI_PEER_READY)
            phi_expel_look(self->table[rank]);
}

static void tell(struct phi_peer *peer, int rank, uint64_t life)
{
    struct phi_node_message message;
    phi_peer_message(peer, PHI_NODE_EXPELLED, &message);
    message.a = (uint64_t)rank;
    message.b = life;
    // A peer that does not read gets no more messages. It learns of the expulsion from the segment
    // or the store.
    phi_peer_tell(peer, &message);
}

static void tell_all(struct phi_self *self, int rank, uint64_t life)
{
    for (int other = 0; other < self->ranks; other++)
        if (self->table[other] != NULL && self->table[other]->state == PHI_PEER_READY)
            tell(self->table[other], rank, life);
}

void phi_expel_tell(struct phi_peer *peer)
{
    struct phi_self *self = peer->self;
    for (int rank = 0; rank < self->ranks; rank++)
        if (self->table[rank] != NULL && self->table[rank]->life.expelled != 0)
            tell(peer, rank, self->table[rank]->life.expelled);
}

// The life in the table is the one that was expelled.
static void mark(struct phi_peer *peer)
{
    peer->end.expelled = true;
    if (peer->segment != NULL && peer->state >= PHI_PEER_READY) {
        // Release: pairs with the acquire load in phi_expel_look.
        phi_segment_put32(peer->segment, &phi_peer_mine(peer)->expelled, 1);
        phi_peer_ring(peer);
        tell(peer, peer->rank, peer->incarnation); // itself: its service thread looks
    }
    phi_log(peer->self->report, PH_LOG_WARN, "rank %d (process %u on %s) was expelled", peer->rank,
            peer->theirs.pid, peer->theirs.host);
    phi_peer_break(peer, PH_EPEER);
    phi_heartbeat_forget(peer);
    phi_hello_cut(peer);
}

void phi_expel_settle(struct phi_peer *peer)
{
    if (peer->incarnation > peer->life.expelled || peer->end.expelled || peer->end.gone ||
        peer->contact.preparing)
        return;
    if (peer->state >= PHI_PEER_READY)
        mark(peer);
    else
        peer->state = PHI_PEER_UNKNOWN; // its record is worth nothing; a later life's may come
}

void phi_expel_file(struct phi_self *self, int rank, uint64_t life)
{
    if (rank == self->rank) {
        if (life == self->incarnation)
            phi_fence(self, "it was expelled by another rank");
        return;
    }
    struct phi_peer *peer = phi_self_peer(self, rank);
    if (peer == NULL || life <= peer->life.expelled)
        return;
    peer->life.expelled = life;
    if (peer->life.newer != 0 && peer->life.newer <= life)
        peer->life.newer = 0;
    if (peer->incarnation == life)
        phi_expel_settle(peer);
    tell_all(self, rank, life); // for ranks connected to it and not to the one that expelled it
    phi_self_changed(self);
}

static int may_expel(struct phi_peer *peer, int rank)
{
    struct phi_report *report = peer->self->report;
    if (peer->state < PHI_PEER_READY)
        return phi_fail(report, -ENOTCONN,
                        "rank %d cannot be expelled: rank %d was never connected to it", rank,
                        peer->self->rank);
    if (peer->pulse.suspect)
        return 0;
    return phi_fail(report, -EBUSY,
                    "rank %d (process %u on %s) cannot be expelled: it is no SUSPECT, its last "
                    "heartbeat was %lld ms ago",
                    rank, peer->theirs.pid, peer->theirs.host,
                    (long long)((phi_now() - peer->pulse.at) / PHI_MS));
}

int phi_expel(struct phi_self *self, int rank, int64_t deadline)
{
    pthread_mutex_lock(&self->lock);
    struct phi_peer *peer = phi_self_peer(self, rank);
    int rc = self->end.fenced ? phi_fence_fail(self) : peer ? 0 : -ENOMEM;
    if (rc || peer->end.gone)
        goto unlock;
    if (!peer->end.expelled) {
        if ((rc = may_expel(peer, rank)))
            goto unlock;
        phi_expel_file(self, rank, peer->incarnation);
        // This application knows by its own call.
        phi_peer_told(peer);
    }
    uint64_t life = peer->incarnation;
    pthread_mutex_unlock(&self->lock);
    return phi_mailbox_expel(self->mailbox, rank, life, deadline);
unlock:
    pthread_mutex_unlock(&self->lock);
    return rc;
}

void phi_fence(struct phi_self *self, const char *why)
{
    if (self->end.fenced)
        return;
    snprintf(self->end.fenced_why, sizeof self->end.fenced_why, "%s", why);
    self->end.fenced =
        phi_fail(self->report, PH_EFENCED, "rank %d (incarnation %llx) is fenced: %s", self->rank,
                 (unsigned long long)self->incarnation, why);
    phi_self_break(self, PH_EFENCED);
    phi_self_changed(self);
    phi_mailbox_wake(self->mailbox);
}

void phi_fence_told(struct phi_self *self)
{
    for (int rank = 0; rank < self->ranks; rank++) {
        struct phi_peer *peer = self->table[rank];
        if (peer != NULL && peer->state >= PHI_PEER_READY)
            phi_peer_told(peer);
    }
    atomic_store(&self->end.fence_told, true);
}

int phi_fence_fail(struct phi_self *self)
{
    phi_fence_told(self);
    return phi_fail(self->report, PH_EFENCED, "rank %d (incarnation %llx) is fenced: %s",
                    self->rank, (unsigned long long)self->incarnation, self->end.fenced_why);
}

// Returns whether nothing of the peer's process touches what we shared with it. A process that
// never mapped the segment has mapped nothing else: it takes no round before, and then sees what
// was released. A process that maps the segment between this look and our store of `released` is
// seen by a later look: CLOSED waits for it.
bool phi_release_over(const struct phi_peer *peer)
{
    return peer->segment == NULL || atomic_load(&phi_peer_theirs(peer)->mapped) == 0 ||
           (peer->state == PHI_PEER_BROKEN && phi_expel_over(peer));
}
