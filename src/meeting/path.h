// SPDX-License-Identifier: BSD-3-Clause
// Which path joins two ranks, as far as it is known. With the lock held.
#ifndef PHI_MEETING_PATH_H
#define PHI_MEETING_PATH_H

#include <stdbool.h>

#include "memory/memory.h"
#include "transport/transport.h"

struct phi_peer;

// phi_contact_against: why the path that the pair is not joined by (by_net: ipc, else the net) does
// not serve, as far as it is known.
enum phi_reason phi_contact_against(const struct phi_peer *peer, bool by_net, enum phi_kind kind);

// phi_contact_by_net: whether the peer is to be reached over the net: as the records say, or as was
// tried; not where that has failed, and ipc is left.
bool phi_contact_by_net(const struct phi_peer *peer);

// phi_contact_due: whether a peer is to be connected to now: known, and not refused a moment ago.
bool phi_contact_due(const struct phi_peer *peer);

#endif
