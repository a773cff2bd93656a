// SPDX-License-Identifier: BSD-3-Clause
// A peer is made ready: through its socket, or over the net. Called with the lock held, given up
// while it waits.
#ifndef PHI_MEETING_PREPARE_H
#define PHI_MEETING_PREPARE_H

#include <stdint.h>

struct phi_peer;

// phi_contact_prepare connects to the peer's service thread, proves that it is the one of the
// member record, and maps the pair's segment. Afterwards the peer is READY, or `refused` (nobody
// listens: its record may be of a former life; or it does not answer: `mute`), or `unreachable`, or
// KNOWN to be reached over the net; or BROKEN, where it has said that it comes to its end, or has
// answered before and is gone. Fails for what no retry mends.
int phi_contact_prepare(struct phi_peer *peer, int64_t deadline);

#endif
