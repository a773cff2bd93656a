// SPDX-License-Identifier: BSD-3-Clause
// The answers to a peer that asks whether lines and slots can be given again, and what the lower
// rank tells of exchanges that ended for want of a slot. With the lock held.
#ifndef PHI_RELEASE_REPLY_H
#define PHI_RELEASE_REPLY_H

#include <stdbool.h>

struct phi_key;
struct phi_node_message;
struct phi_peer;

// phi_retire_refuse (lower rank) tells the peer that an exchange of the key ends for want of a
// slot; phi_retire_refusal_file takes that up. phi_retire_refused (higher rank) returns whether the
// lower rank's exchange that this one would meet has ended so: its n-th meets this rank's n-th.
void phi_retire_refuse(struct phi_key *key);
int phi_retire_refusal_file(struct phi_peer *peer, const struct phi_node_message *message);
bool phi_retire_refused(struct phi_key *key);

// phi_retire_send sends answers and refusals for which the peer's socket had no room; false: call
// it again soon.
bool phi_retire_send(struct phi_peer *peer);

// phi_retire_file takes up a question of the peer: a message of it.
int phi_retire_file(struct phi_peer *peer, const struct phi_node_message *message);

#endif
