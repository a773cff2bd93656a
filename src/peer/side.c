// SPDX-License-Identifier: BSD-3-Clause
#include "peer/side.h"

#include "base/wake.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "semaphore/segment.h"

bool phi_peer_is_lower(const struct phi_peer *peer)
{
    return peer->self->rank < peer->rank;
}

void phi_peer_acknowledge(struct phi_peer *peer)
{
    if (peer->segment != NULL)
        phi_segment_put64(peer->segment, &phi_peer_mine(peer)->acknowledged, peer->heard.filed);
}

struct phi_side *phi_peer_mine(const struct phi_peer *peer)
{
    return phi_segment_side(peer->segment, peer->segment->side);
}

struct phi_side *phi_peer_theirs(const struct phi_peer *peer)
{
    return phi_segment_side(peer->segment, !peer->segment->side);
}

void phi_peer_told(struct phi_peer *peer)
{
    if (peer->segment == NULL || atomic_load(&phi_peer_mine(peer)->told) != 0)
        return;
    phi_segment_put32(peer->segment, &phi_peer_mine(peer)->told, 1);
    // The application knows of the end now. Everything that it does from here on, plain stores too,
    // comes behind the store of `told`. The fence pairs with the look of a reader after it has read
    // (phi_channel_status).
    atomic_thread_fence(memory_order_seq_cst);
}

void phi_peer_note_told(const struct phi_peer *peer, struct phi_net_told *told)
{
    if (peer->to.link != NULL)
        phi_link_told(peer->to.link, told);
}

bool phi_peer_heard(const struct phi_peer *peer, const struct phi_net_told *told)
{
    return peer->to.link == NULL || phi_link_heard(peer->to.link, told);
}

void phi_peer_ring(struct phi_peer *peer)
{
    if (peer->segment->link != NULL)
        return; // at the peer whoever applies a store wakes the sleepers
    // The storer's half of the pattern in set_sleeping() (exchange/inbox.c): a read-modify-write,
    // so that it is ordered with the sleeper's.
    if (atomic_fetch_add(&phi_peer_theirs(peer)->sleeping, 0) == 0 || peer->to.wake_fd < 0)
        return;
    phi_wake_ring(peer->to.wake_fd);
}
