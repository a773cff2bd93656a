// SPDX-License-Identifier: BSD-3-Clause
// A look at what a peer has said of its end, and the failure that the application is told. With the
// lock held.
#ifndef PHI_ENDING_LOOK_H
#define PHI_ENDING_LOOK_H

#include <stdbool.h>

struct phi_peer;

// phi_peer_look looks at the peer's side of the segment, after it notified us or where its word is
// needed: it has expelled us, aborted, was told that the pair has ended, or leaves.
void phi_peer_look(struct phi_peer *peer);

// phi_peer_leaves returns whether the peer leaves and some of what it has told before is not yet
// here, so that its channels have not ended. It looks again, and is called every millisecond until
// it returns false.
bool phi_peer_leaves(struct phi_peer *peer);

// phi_peer_failure is the code and sentence for the application where a peer is broken.
int phi_peer_failure(struct phi_peer *peer);

#endif
