// SPDX-License-Identifier: BSD-3-Clause
// The lives of a peer. An entry of the table is one life; a later one of the same rank takes its
// place once nothing of ours touches the former any more. All with the peers' lock held.
#ifndef PHI_CHANNEL_LIVES_H
#define PHI_CHANNEL_LIVES_H

#include "channel/peers.h"

// phi_peer_new makes an entry for a rank of which nothing is known; NULL: out of memory. free ends
// it; NULL is fine.
struct phi_peer *phi_peer_new(struct phi_peers *peers, int rank);
void phi_peer_free(struct phi_peer *peer);

// phi_peer_record takes up a member record of a later life than any known.
void phi_peer_record(struct phi_peer *peer, uint64_t incarnation,
                     const struct phi_capabilities *theirs);

// phi_peer_renew lets the latest life that has announced itself take its place, in the table or in
// this entry, if it can.
void phi_peer_renew(struct phi_peer *peer);

#endif
