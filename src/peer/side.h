// SPDX-License-Identifier: BSD-3-Clause
// The two sides of a pair's segment: what each rank says there of itself. With the lock held, but
// for what is said to be otherwise.
#ifndef PHI_PEER_SIDE_H
#define PHI_PEER_SIDE_H

#include <stdbool.h>

struct phi_net_told;
struct phi_peer;
struct phi_side;

// phi_peer_is_lower returns whether this rank is the lower one of the pair, which gives lines and
// slots.
bool phi_peer_is_lower(const struct phi_peer *peer);

// phi_peer_acknowledge tells the peer which of its messages were taken, once there is a segment.
void phi_peer_acknowledge(struct phi_peer *peer);

// phi_peer_ring tells the peer that something in the segment changed. Any lock state.
void phi_peer_ring(struct phi_peer *peer);

// The side headers of this process and of the peer; state is PHI_PEER_READY or later.
struct phi_side *phi_peer_mine(const struct phi_peer *peer);
struct phi_side *phi_peer_theirs(const struct phi_peer *peer);

// phi_peer_told says in the segment, if there is one, that this application knows of the end of the
// pair.
void phi_peer_told(struct phi_peer *peer);

// phi_peer_note_told notes which messages the peer has sent by now. phi_peer_heard returns whether
// everything that the peer had posted before them is here, or is lost, as it is after a second.
// Without a link it always returns true.
void phi_peer_note_told(const struct phi_peer *peer, struct phi_net_told *told);
bool phi_peer_heard(const struct phi_peer *peer, const struct phi_net_told *told);

#endif
