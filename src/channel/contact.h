// SPDX-License-Identifier: BSD-3-Clause
// First contact: connecting to a peer, and mapping its allocations. Both are called with the peers'
// lock held, give it up while they wait, and hold it again when they return.
#ifndef PHI_CHANNEL_CONTACT_H
#define PHI_CHANNEL_CONTACT_H

#include "channel/peers.h"

// phi_contact_prepare connects to the peer's service thread, proves that it is the one of the
// member record, and maps the pair's segment. Afterwards the peer is READY, or `refused` (nobody
// listens: its record may be of a former life; or it does not answer: `mute`), or `unreachable`, or
// KNOWN to be reached over the net; or BROKEN, where it has said that it comes to its end, or has
// answered before and is gone. Fails for what no retry mends.
int phi_contact_prepare(struct phi_peer *peer, int64_t deadline);

// phi_contact_against: why the path that the pair is not joined by (by_net: ipc, else the net) does
// not serve, as far as it is known.
enum phi_reason phi_contact_against(const struct phi_peer *peer, bool by_net, enum phi_kind kind);

// phi_contact_by_net: whether the peer is to be reached over the net: as the records say, or as was
// tried; not where that has failed, and ipc is left.
bool phi_contact_by_net(const struct phi_peer *peer);

// phi_contact_due: whether a peer is to be connected to now: known, and not refused a moment ago.
bool phi_contact_due(const struct phi_peer *peer);

// phi_contact_pidfd (without the lock) asks the process that listens at a peer's socket for its
// pidfd. -1 where the socket does not lead to it, or it has none; what fails may be tried again.
int phi_contact_pidfd(struct phi_peer *peer, const struct phi_capabilities *theirs,
                      int64_t deadline, int *pidfd);

// phi_contact_import tries to map an allocation of the peer: e->tried, with e->import or e->reason,
// but where the deadline cut it short.
void phi_contact_import(struct phi_remote_export *e, int64_t deadline);

// phi_contact_segment returns the pair's segment, made for that life of the peer by this (lower)
// rank. With the lock.
int phi_contact_segment(struct phi_peer *peer, uint64_t life, struct phi_segment **segment);

#endif
