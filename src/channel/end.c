// SPDX-License-Identifier: BSD-3-Clause
#include "channel/end.h"

#include <errno.h>
#include <stdio.h>

#include "base/clock.h"
#include "channel/expel.h"
#include "channel/flags.h"
#include "channel/heartbeat.h"
#include "channel/wake.h"

static void revoke_all(struct phi_peer *peer)
{
    // seq_cst: pairs with the executors, which store a number and then look at `revoked`.
    for (struct ph_channel *channel = peer->channels; channel != NULL; channel = channel->next)
        atomic_store(&channel->uses.revoked, 1);
}

static void end_use(struct phi_peer *peer, int code)
{
    phi_log(peer->peers->report, PH_LOG_INFO, "rank %d is broken for rank %d: %s", peer->rank,
            peer->peers->rank, ph_strerror(code));
    peer->state = PHI_PEER_BROKEN;
    peer->code = code;
    atomic_store(&peer->ended, true);
    // The status first: who is refused because of `revoked` finds there why.
    for (struct ph_channel *channel = peer->channels; channel != NULL; channel = channel->next)
        atomic_store(&channel->status, code);
    revoke_all(peer);
    phi_service_wake(peer->peers);
    phi_peers_changed(peer->peers);
    phi_mailbox_wake(
        peer->peers->mailbox); // a thread that waits for this peer's message looks again
}

void phi_peer_break(struct phi_peer *peer, int code)
{
    // Before the status: when the application knows that it is over, and uses its buffers for
    // something else, the peer cannot read that and call it a success. Of what is shared the peer
    // sees by `told` that it may have.
    if (peer->link != NULL)
        phi_link_cut(peer->link);
    if (peer->state != PHI_PEER_BROKEN)
        end_use(peer, code);
}

void phi_peers_break(struct phi_peers *peers, int code)
{
    // All links first: who is told by the channel of one peer may have given another one the same
    // buffer.
    for (int rank = 0; rank < peers->ranks; rank++) {
        const struct phi_peer *peer = peers->table[rank];
        if (peer != NULL && peer->state >= PHI_PEER_READY && peer->link != NULL)
            phi_link_cut(peer->link);
    }
    for (int rank = 0; rank < peers->ranks; rank++)
        if (peers->table[rank] != NULL && peers->table[rank]->state == PHI_PEER_READY)
            phi_peer_break(peers->table[rank], code);
}

// While the application of a peer that may be alive has not been told, a released transfer of ours
// would let our copy engine write into its buffer. That is so whoever ended the use: this rank by
// an abort or because it is fenced, others by an expulsion, a later life that has announced itself.
static bool must_hold(const struct phi_peer *peer)
{
    if (peer->gone)
        return false;
    const struct phi_side *theirs = phi_peer_theirs(peer);
    return atomic_load(&theirs->told) == 0 && atomic_load(&theirs->state) == PHI_SIDE_LIVE;
}

void phi_peer_lost(struct phi_peer *peer)
{
    if (peer->state == PHI_PEER_BROKEN)
        return;
    peer->ending = peer->pidfd >= 0 && peer->segment != NULL;
    if (peer->ending)
        peer->last_beat = atomic_load(&phi_peer_theirs(peer)->beat);
    phi_peer_break(peer, PH_EPEER);
}

void phi_peer_over(struct phi_peer *peer)
{
    peer->gone = true;
    phi_heartbeat_forget(peer);
    phi_peers_changed(peer->peers);
    phi_mailbox_wake(peer->peers->mailbox);
}

// Its context is no more, and so nobody of its process moves host memory for it. Its device may
// still copy until all of the process's descriptors are closed. They are where its pidfd says that
// it has exited; or where the process goes on as a later life of the rank: that is another program,
// which it has executed.
void phi_peer_parted(struct phi_peer *peer)
{
    if (!peer->theirs.device ||
        (peer->newer != 0 && phi_capabilities_same_process(&peer->theirs, &peer->newer_theirs)))
        phi_peer_over(peer);
}

// Whether the process may be about to exit: its sockets are closed and its service thread is no
// more, while its device may still copy. What waits for it goes on when its pidfd says that it is
// gone. A process that lives and has only lost its connection beats again.
bool phi_peer_ending(const struct phi_peer *peer)
{
    if (!peer->ending || peer->gone || peer->expelled)
        return false;
    const struct phi_side *theirs = phi_peer_theirs(peer);
    return atomic_load(&theirs->beat) == peer->last_beat && atomic_load(&theirs->drained) == 0;
}

// Lets the own waits of a channel go on: adds the bits that they wait for. Never the peer's bits:
// both ends look at a word, and a READY that a live peer has not posted would let its copies, or
// the other end's held ones, run. A later post of an own stream replaces the word, so this is done
// again and again. hold: but for the waits of which a copy into the peer's buffer would follow.
static void release_channel(struct ph_channel *channel, bool hold)
{
    // `broken` before the words: a wait that ends by them finds it set and copies nothing, where it
    // can look. Not where a wait is held: a kernel's would end by it.
    if (!hold)
        atomic_store(&channel->mine->broken, 1);
    phi_flags_end(channel); // held or not: nothing is copied behind it
    for (int outgoing = 0; outgoing < 2; outgoing++) {
        struct phi_line *line = outgoing ? channel->mine : channel->theirs_line;
        bool active = outgoing ? channel->protocol_out == PH_PROTOCOL_PUT
                               : channel->protocol_in == PH_PROTOCOL_GET;
        if (!(hold && active))
            atomic_fetch_or(&line->word[PHI_WORD_TURN], active ? PHI_BIT_READY : PHI_BIT_FULL);
        // A put_signal that waits for FREE is a copy as well.
        if (!(hold && outgoing))
            atomic_fetch_or(&line->word[PHI_WORD_NOTE], outgoing ? PHI_BIT_FREE : PHI_BIT_NOTED);
    }
}

static bool drained(struct phi_peer *peer, char *why, size_t size)
{
    struct phi_executor *executor = peer->peers->executor;
    for (struct ph_channel *channel = peer->channels; channel != NULL; channel = channel->next)
        if (!executor->ops->drained(executor, &channel->uses, why, size))
            return false;
    return true;
}

bool phi_peer_release(struct phi_peer *peer)
{
    if (phi_peer_ending(peer))
        return false;
    bool hold = peer->segment != NULL && must_hold(peer);
    for (struct ph_channel *channel = peer->channels; channel != NULL; channel = channel->next)
        release_channel(channel, hold);
    if (!drained(peer, NULL, 0))
        return false;
    if (peer->segment != NULL) {
        phi_segment_put32(peer->segment, &phi_peer_mine(peer)->drained, 1);
        phi_peer_ring(peer);
    }
    return true;
}

// It waits for what we still have under way. What it has told before may be taken also afterwards,
// and so has to be here first: until then phi_peer_leaves looks again.
static void end_by_leave(struct phi_peer *peer)
{
    if (!peer->leaves)
        phi_peer_note_told(peer, &peer->told_by_then);
    peer->leaves = true;
    if (phi_peer_heard(peer, &peer->told_by_then))
        end_use(peer, PH_EPEER);
}

void phi_peer_look(struct phi_peer *peer)
{
    if (peer->segment == NULL)
        return;
    phi_expel_look(peer);
    // A peer that we have not connected to may have a segment of ours, and leave: nothing of ours
    // ends with it, and nobody would see it go.
    if (peer->state != PHI_PEER_READY)
        return;
    uint32_t state = atomic_load(&phi_peer_theirs(peer)->state);
    if (state & PHI_SIDE_ABORTED)
        phi_peer_break(peer, PH_EBROKEN);
    else if (atomic_load(&phi_peer_theirs(peer)->told) != 0 && !peer->peers->leaving)
        phi_peer_break(peer, PH_EPEER);
    else if (state & PHI_SIDE_LEAVING)
        end_by_leave(peer);
}

bool phi_peer_leaves(struct phi_peer *peer)
{
    if (peer->leaves && peer->state == PHI_PEER_READY)
        phi_peer_look(peer);
    return peer->leaves && peer->state == PHI_PEER_READY;
}

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
    revoke_all(peer); // the status first, as above
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

int phi_leave(struct phi_peers *peers, int64_t deadline)
{
    // Our own operations first: after them no stream of ours touches a peer, and we say so.
    int rc = peers->executor->ops->flush(peers->executor, deadline);
    if (rc)
        return rc;
    // What was posted must be there before we say that nothing more comes.
    int rank = -1;
    if (peers->net != NULL && (rc = phi_net_settle(peers->net, deadline, &rank)))
        return phi_fail(peers->report, rc,
                        "rank %d cannot leave: what it has posted to rank %d is not delivered by "
                        "the net",
                        peers->rank, rank);
    pthread_mutex_lock(&peers->lock);
    peers->leaving = true;
    // Who has aborted says so to the end: a peer may not have looked yet.
    say_state(peers, PHI_SIDE_LEAVING | (peers->aborted ? PHI_SIDE_ABORTED : 0), true);
    rc = wait_for_drain(peers, deadline);
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
