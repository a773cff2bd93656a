// SPDX-License-Identifier: BSD-3-Clause
// The work of a rank when a peer gives a buffer back that is mapped here. With the lock held.
#ifndef PHI_RELEASE_REVOKE_H
#define PHI_RELEASE_REVOKE_H

#include <stdbool.h>
#include <stdint.h>

struct phi_node_message;
struct phi_peer;

// phi_revoke_file takes up a release of the peer, or the end of one of its exports; let_go: the
// peer will post nothing more for a channel.
int phi_revoke_file(struct phi_peer *peer, const struct phi_node_message *message);
int phi_revoke_let_go(struct phi_peer *peer, const struct phi_node_message *message);

// phi_revocations_count counts a peer's releases that are under way here.
uint32_t phi_revocations_count(const struct phi_peer *peer);

// phi_revoke_tick carries the peer's releases on, and returns when to call it again, as
// phi_release_tick does. Unmaps one import unless *closed, and sets that.
int phi_revoke_tick(struct phi_peer *peer, bool *closed);
// phi_revoke_free forgets the releases of a peer that is over.
void phi_revoke_free(struct phi_peer *peer);

#endif
