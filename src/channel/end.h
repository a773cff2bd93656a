// SPDX-License-Identifier: BSD-3-Clause
// Ends: a peer that is gone, a rank that leaves or aborts. All but phi_leave with the peers' lock
// held.
#ifndef PHI_CHANNEL_END_H
#define PHI_CHANNEL_END_H

#include "channel/peers.h"

// phi_peer_break ends all use of a peer: its channels return `code`, and its streams' waits will be
// released.
void phi_peer_break(struct phi_peer *peer, int code);
void phi_peers_break(struct phi_peers *peers, int code); // ... of all that are connected

// phi_peer_lost breaks a peer (PH_EPEER) whose connection has ended. Its streams' waits stay until
// its pidfd, where there is one, says that it is gone, or it shows that it lives.
void phi_peer_lost(struct phi_peer *peer);

// phi_peer_ending: whether that is still open. It needs no look but at a heartbeat: what else tells
// wakes the service thread.
bool phi_peer_ending(const struct phi_peer *peer);

// phi_peer_over: the process is gone, or moves nothing any more. parted: nobody is left at the
// other end of what rings at the peer, which its context has until it is destroyed, its process
// exits, or executes another program; it is over then where that can be told.
void phi_peer_over(struct phi_peer *peer);
void phi_peer_parted(struct phi_peer *peer);

// phi_peer_release sets `broken` and adds the bits that own streams wait for to the words of the
// channels, so that they go on; what goes on may post over a release, so it is called again every
// millisecond, but of one that may be ending, until it returns true: no stream of ours touches
// anything of the peer any more.
bool phi_peer_release(struct phi_peer *peer);

// phi_peer_look looks at the peer's side of the segment, after it notified us or where its word is
// needed: it has expelled us, aborted, was told that the pair has ended, or leaves.
void phi_peer_look(struct phi_peer *peer);

// phi_peer_leaves: whether the peer leaves and what it has told before is not yet here, so that its
// channels have not ended. Looks again; called every millisecond until it returns false.
bool phi_peer_leaves(struct phi_peer *peer);

// phi_leave (without the lock) is the first half of destroy: flushes this rank's operations, tells
// the peers, and waits until none of them touches this rank's buffers. -ETIMEDOUT names who does;
// it may be called again.
int phi_leave(struct phi_peers *peers, int64_t deadline);

// phi_abort (without the lock) breaks every channel and tells the peers.
void phi_abort(struct phi_peers *peers, const char *reason);

#endif
