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

// phi_peer_ending returns whether a lost peer has neither exited nor shown that it lives. We only
// need to look for a heartbeat: every other sign wakes the service thread.
bool phi_peer_ending(const struct phi_peer *peer);

// phi_peer_over: the process is gone, or moves nothing any more. phi_peer_parted: nobody is left at
// the other end of the descriptor that rings at the peer. The peer's context has that end until the
// context is destroyed, or its process exits or executes another program. The peer is over then
// where that can be told.
void phi_peer_over(struct phi_peer *peer);
void phi_peer_parted(struct phi_peer *peer);

// phi_peer_release sets `broken`, and adds the bits that own streams wait for to the words of the
// channels, so that the streams go on. A stream that goes on may post over such a bit. So this is
// called again every millisecond until it returns true: then no stream of ours touches anything of
// the peer any more. For a peer that may be ending it is not called every millisecond.
bool phi_peer_release(struct phi_peer *peer);

// The pair has ended, and our application does not know of it (docs/protocols.md, "Who tells").
// phi_peer_holds returns whether the peer may hold its streams until our application knows: the
// peer may live, and neither leaves nor has said that nothing touches what is shared.
// phi_peer_is_held returns whether our streams, if some are left, are held until the peer's
// application knows.
bool phi_peer_holds(const struct phi_peer *peer);
bool phi_peer_is_held(const struct phi_peer *peer);

// phi_heartbeat_forget: the peer is gone or another life, and no SUSPECT any more.
void phi_heartbeat_forget(struct phi_peer *peer);

// phi_peer_revoke ends the use of all channels of the peer.
void phi_peer_revoke(struct phi_peer *peer);

// phi_peer_end_use makes the peer BROKEN, and ends the use of its channels.
void phi_peer_end_use(struct phi_peer *peer, int code);

// phi_peer_drained returns whether no stream of ours touches a channel of the peer; else `why`.
bool phi_peer_drained(struct phi_peer *peer, char *why, size_t size);

#endif
