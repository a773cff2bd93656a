// SPDX-License-Identifier: BSD-3-Clause
// The end of a peer, and of what streams wait for from it. With the lock held.
#ifndef PHI_ENDING_END_H
#define PHI_ENDING_END_H

#include <stdbool.h>
#include <stddef.h>

struct phi_peer;
struct phi_self;

// phi_peer_break ends all use of a peer: its channels return `code`, and its streams' waits will be
// released.
void phi_peer_break(struct phi_peer *peer, int code);
void phi_self_break(struct phi_self *self, int code); // ... of all that are connected

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

// Of a pair that has ended, and of whose end our application does not know (docs/protocols.md, "Who
// tells"). phi_peer_holds: whether the peer may hold its streams until it does: it may live, and
// neither leaves nor has said that nothing touches what is shared. phi_peer_is_held: whether ours,
// of which something is left, are held until the peer's application knows.
bool phi_peer_holds(const struct phi_peer *peer);
bool phi_peer_is_held(const struct phi_peer *peer);

// phi_heartbeat_forget: the peer is gone or another life, and no SUSPECT any more.
void phi_heartbeat_forget(struct phi_peer *peer);

// phi_peer_revoke ends the use of all channels of the peer.
void phi_peer_revoke(struct phi_peer *peer);

// phi_peer_end_use makes the peer BROKEN, and ends the use of its channels.
void phi_peer_end_use(struct phi_peer *peer, int code);

// phi_peer_drained: whether no stream of ours touches a channel of the peer; else `why`.
bool phi_peer_drained(struct phi_peer *peer, char *why, size_t size);

#endif
