// SPDX-License-Identifier: BSD-3-Clause
#include "ending/end.h"

#include "lane/flags.h"
#include "lane/lift.h"
#include "peer/channel.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/loopback.h"
#include "peer/side.h"
#include "peer/wake.h"
#include "semaphore/segment.h"

void phi_peer_revoke(struct phi_peer *peer)
{
    // seq_cst: pairs with the executors, which store a number and then look at `revoked`.
    for (struct ph_channel *channel = peer->channels.first; channel != NULL;
         channel = channel->kept.next)
        atomic_store(&channel->live.uses.revoked, 1);
}

void phi_peer_end_use(struct phi_peer *peer, int code)
{
    phi_log(peer->self->report, PH_LOG_INFO, "rank %d is broken for rank %d: %s", peer->rank,
            peer->self->rank, ph_strerror(code));
    peer->state = PHI_PEER_BROKEN;
    peer->end.code = code;
    atomic_store(&peer->end.known, true);
    if (peer->self->end.destroying)
        phi_peer_told(peer); // as for the peers that had ended before: see service/leave.c
    // The status comes first: a call that is refused because of `revoked` finds the reason there. A
    // channel that has ended alone says so for ever, unless this rank is fenced, which each call
    // has to tell.
    for (struct ph_channel *channel = peer->channels.first; channel != NULL;
         channel = channel->kept.next)
        if (channel->kept.abort.code == 0 || code == PH_EFENCED)
            atomic_store(&channel->live.status, code);
    phi_peer_revoke(peer);
    phi_service_wake(peer->self);
    phi_self_changed(peer->self);
    phi_mailbox_wake(
        peer->self->mailbox); // a thread that waits for this peer's message looks again
}

void phi_peer_break(struct phi_peer *peer, int code)
{
    // We cut the link before we set the status. Once the application knows of the end, it may use
    // its buffers for something else; the peer must not read that and call it a success. Where
    // memory is shared, the peer sees by `told` that it may have done so.
    if (peer->to.link != NULL)
        phi_link_cut(peer->to.link);
    if (peer->state != PHI_PEER_BROKEN)
        phi_peer_end_use(peer, code);
}

void phi_self_break(struct phi_self *self, int code)
{
    // We cut all links first: an application that hears of the end by the channel of one peer may
    // have given another peer the same buffer.
    for (int rank = 0; rank < self->ranks; rank++) {
        const struct phi_peer *peer = self->table[rank];
        if (peer != NULL && peer->state >= PHI_PEER_READY && peer->to.link != NULL)
            phi_link_cut(peer->to.link);
    }
    for (int rank = 0; rank < self->ranks; rank++)
        if (self->table[rank] != NULL && self->table[rank]->state == PHI_PEER_READY)
            phi_peer_break(self->table[rank], code);
    phi_loopback_break(self, code);
}

// Returns whether the application of a side may know nothing of the end of the pair, and so still
// use its buffers.
static bool is_unknowing(const struct phi_side *side)
{
    return atomic_load(&side->told) == 0 && atomic_load(&side->state) == PHI_SIDE_LIVE;
}

// While the application of a peer that may be alive has not been told, a released transfer of ours
// would let our copy engine write into its buffer. That is so whoever ended the use: this rank by
// an abort or because it is fenced, others by an expulsion, a later life that has announced itself.
static bool must_hold(const struct phi_peer *peer)
{
    return !peer->end.gone && is_unknowing(phi_peer_theirs(peer));
}

void phi_peer_lost(struct phi_peer *peer)
{
    if (peer->state == PHI_PEER_BROKEN)
        return;
    peer->end.ending = peer->to.pidfd >= 0 && peer->segment != NULL;
    if (peer->end.ending)
        peer->end.last_beat = atomic_load(&phi_peer_theirs(peer)->beat);
    phi_peer_break(peer, PH_EPEER);
}

void phi_peer_over(struct phi_peer *peer)
{
    peer->end.gone = true;
    phi_heartbeat_forget(peer);
    phi_self_changed(peer->self);
    phi_mailbox_wake(peer->self->mailbox);
}

// The peer's context is no more, so nobody of its process moves host memory for it. Its device may
// still copy until all of the process's descriptors are closed. They are closed if its pidfd says
// that it has exited, or if the process goes on as a later life of the rank: then it has executed
// another program.
void phi_peer_parted(struct phi_peer *peer)
{
    if (!peer->theirs.device ||
        (peer->life.newer != 0 &&
         phi_capabilities_same_process(&peer->theirs, &peer->life.newer_theirs)))
        phi_peer_over(peer);
}

// Returns whether the process may be about to exit: its sockets are closed and its service thread
// is no more, while its device may still copy. Work that waits for the process goes on when its
// pidfd says that it is gone. A process that lives and has only lost its connection beats again.
bool phi_peer_ending(const struct phi_peer *peer)
{
    if (!peer->end.ending || peer->end.gone || peer->end.expelled)
        return false;
    const struct phi_side *theirs = phi_peer_theirs(peer);
    return atomic_load(&theirs->beat) == peer->end.last_beat && atomic_load(&theirs->drained) == 0;
}

// Lets the own waits of a channel go on: adds the bits that they wait for. It never adds the peer's
// bits: both ends look at a word, and a READY that a live peer has not posted would let its copies,
// or the other end's held ones, run. A later post of an own stream replaces the word, so this is
// done again and again. hold: except the waits that a copy into the peer's buffer would follow.
static void release_channel(struct ph_channel *channel, bool hold)
{
    // We set `broken` before the words: a wait that ends by a word finds `broken` set and copies
    // nothing, where it can look. We do not set `broken` where a wait is held, because a kernel's
    // wait would end by it.
    if (!hold)
        atomic_store(&channel->fixed.own.line->broken, 1);
    phi_flags_end(channel); // held or not: nothing is copied behind it
    phi_lift_all(channel, hold);
}

bool phi_peer_drained(struct phi_peer *peer, char *why, size_t size)
{
    struct phi_executor *executor = peer->self->executor;
    for (struct ph_channel *channel = peer->channels.first; channel != NULL;
         channel = channel->kept.next)
        if (!executor->ops->drained(executor, &channel->live.uses, why, size))
            return false;
    return true;
}

bool phi_peer_release(struct phi_peer *peer)
{
    if (phi_peer_ending(peer))
        return false;
    bool hold = peer->segment != NULL && must_hold(peer);
    for (struct ph_channel *channel = peer->channels.first; channel != NULL;
         channel = channel->kept.next)
        release_channel(channel, hold);
    if (!phi_peer_drained(peer, NULL, 0))
        return false;
    if (peer->segment != NULL) {
        phi_segment_put32(peer->segment, &phi_peer_mine(peer)->drained, 1);
        phi_peer_ring(peer);
    }
    return true;
}

// Returns whether our application does not know of the end, and the peer, which may live, relies on
// that.
static bool is_untold(const struct phi_peer *peer)
{
    return peer->state == PHI_PEER_BROKEN && peer->segment != NULL && !peer->end.gone &&
           !phi_peer_ending(peer) && is_unknowing(phi_peer_mine(peer));
}

bool phi_peer_holds(const struct phi_peer *peer)
{
    if (!is_untold(peer))
        return false;
    const struct phi_side *theirs = phi_peer_theirs(peer);
    return atomic_load(&theirs->drained) == 0 &&
           (atomic_load(&theirs->state) & PHI_SIDE_LEAVING) == 0;
}

bool phi_peer_is_held(const struct phi_peer *peer)
{
    return is_untold(peer) && !peer->end.released && must_hold(peer);
}

void phi_heartbeat_forget(struct phi_peer *peer)
{
    peer->pulse.suspect = false;
    atomic_store_explicit(&peer->self->serving.silent_since[peer->rank], 0, memory_order_relaxed);
}
