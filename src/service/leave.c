// SPDX-License-Identifier: BSD-3-Clause
#include "service/leave.h"

#include <errno.h>

#include "base/clock.h"
#include "ending/end.h"
#include "ending/untold.h"
#include "exchange/inbox.h"
#include "meeting/opener.h"
#include "notify/note.h"
#include "peer/channel.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
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

// We have said that this rank's use of the peer's memory is drained. So no channel is used again,
// even if destroy must be tried once more.
static void shut(struct phi_peer *peer)
{
    for (struct ph_channel *channel = peer->channels.first; channel != NULL;
         channel = channel->kept.next) {
        int whole = 0;
        atomic_compare_exchange_strong(&channel->live.status, &whole, PH_EBROKEN);
    }
    phi_peer_revoke(peer); // the status first, as above
}

static void say_state(struct phi_self *self, uint32_t state, bool is_drained)
{
    for (int rank = 0; rank < self->ranks; rank++) {
        struct phi_peer *peer = self->table[rank];
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

// undrained returns a peer that may still touch our buffers; NULL: there is none.
static struct phi_peer *undrained(struct phi_self *self)
{
    for (int rank = 0; rank < self->ranks; rank++) {
        struct phi_peer *peer = self->table[rank];
        // A peer that never mapped the segment has mapped nothing of ours. Our state was stored
        // before this load, and the peer stores `mapped` before it looks at our state: one of the
        // two sees the other.
        if (peer != NULL && peer->segment != NULL && phi_peer_connected(peer) && !peer->end.gone &&
            atomic_load(&phi_peer_theirs(peer)->mapped) != 0 &&
            atomic_load(&phi_peer_theirs(peer)->drained) == 0)
            return peer;
    }
    return NULL;
}

static int cannot_leave(struct phi_peer *peer)
{
    struct phi_self *self = peer->self;
    char suspicion[80];
    phi_executor_suspicion(self->executor, peer->rank, suspicion, sizeof suspicion);
    return phi_fail(
        self->report, -ETIMEDOUT,
        "rank %d cannot leave: rank %d (process %u) has streams, captured graphs or "
        "device channels that touch its buffers%s%s",
        self->rank, peer->rank, peer->theirs.pid, suspicion,
        peer->end.expelled ? "; it was expelled, and has neither acknowledged nor exited" : "");
}

static int wait_for_drain(struct phi_self *self, int64_t deadline)
{
    for (;;) {
        uint64_t seen = self->changes.count;
        struct phi_peer *peer = undrained(self);
        if (peer == NULL)
            return 0;
        if (phi_now() >= deadline)
            return cannot_leave(peer);
        phi_self_wait(self, seen, deadline); // not for the store: see receive() there
    }
}

// Our own operations: after them no stream of ours touches a peer.
static int finish(struct phi_self *self, int64_t deadline)
{
    int rc = self->executor->ops->flush(self->executor, deadline);
    if (rc == 0)
        rc = phi_notes_finish(self, deadline);
    if (rc)
        return rc;
    pthread_mutex_lock(&self->lock);
    rc = phi_opener_wait(self, deadline);
    pthread_mutex_unlock(&self->lock);
    if (rc)
        return rc;
    // Everything that we posted must be delivered before we say that nothing more comes.
    int rank = -1;
    if (self->net.net != NULL && (rc = phi_net_settle(self->net.net, deadline, &rank)))
        return phi_fail(self->report, rc,
                        "rank %d cannot leave: what it has posted to rank %d is not delivered by "
                        "the net",
                        self->rank, rank);
    return 0;
}

// The sender of a message of another size is told of it before it sees us go, where its socket
// takes that: afterwards nobody could tell it the sizes.
static void look_for_mismatches(struct phi_self *self)
{
    for (int rank = 0; rank < self->ranks; rank++)
        if (self->table[rank] != NULL && self->table[rank]->state == PHI_PEER_READY)
            phi_peer_mismatches(self->table[rank]);
}

int phi_leave(struct phi_self *self, int64_t deadline)
{
    // A rank that destroys its context needs nothing of a pair that has ended, or ends meanwhile.
    // It says so before its own operations are finished: they may wait for a peer that waits for
    // this statement in the same way.
    pthread_mutex_lock(&self->lock);
    self->end.destroying = true;
    phi_untold_none(self);
    pthread_mutex_unlock(&self->lock);
    int rc = finish(self, deadline);
    pthread_mutex_lock(&self->lock);
    // the context may be used again: what ends later is told by a call
    self->end.destroying = false;
    if (rc == 0) {
        look_for_mismatches(self);
        self->end.leaving = true;
        // A rank that has aborted says so to the end: a peer may not have looked yet.
        say_state(self, PHI_SIDE_LEAVING | (self->end.aborted ? PHI_SIDE_ABORTED : 0), true);
        rc = wait_for_drain(self, deadline);
    }
    pthread_mutex_unlock(&self->lock);
    return rc;
}

void phi_abort(struct phi_self *self, const char *reason)
{
    pthread_mutex_lock(&self->lock);
    if (!self->end.aborted) {
        self->end.aborted =
            phi_fail(self->report, PH_EABORTED, "rank %d aborted: %s", self->rank, reason);
        say_state(self, PHI_SIDE_ABORTED | (self->end.leaving ? PHI_SIDE_LEAVING : 0), false);
        phi_self_break(self, PH_EABORTED);
    }
    phi_self_changed(self);
    phi_mailbox_wake(self->mailbox);
    pthread_mutex_unlock(&self->lock);
}
