// SPDX-License-Identifier: BSD-3-Clause
// Asking a peer whether lines and slots can be given again: the questions of a rank, and what their
// answers do. See rules/retire.h. With the lock held.
#ifndef PHI_RELEASE_ASK_H
#define PHI_RELEASE_ASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rules/retire.h"

struct ph_channel;
struct phi_node_message;
struct phi_peer;

// phi_retire_room (lower rank) makes room for a line, or a slot: 0 there is some; -EAGAIN: asked
// for, or to be tried again at peer->room_at; -ENOSPC: everything is held. request: the exchange
// that needs it.
int phi_retire_room(struct phi_peer *peer, bool slot, const void *request);

// phi_retire_all_held (higher rank) returns whether every slot is taken by a key that this rank
// holds, so that the lower rank cannot give one.
bool phi_retire_all_held(struct phi_peer *peer);

// phi_retire_explain writes what stands in the way, for a sentence.
void phi_retire_explain(struct phi_peer *peer, char *text, size_t size);

// Lines and slots, of the lower rank; there is room. The words of a line are zero, or at their
// start values. line_ready sees to it that there is memory for the next one, if there is room for
// it; at the higher rank it does nothing. Errors of it and of slot: -ENOMEM (reported).
int phi_retire_line_ready(struct phi_peer *peer);
uint32_t phi_retire_line(struct phi_peer *peer);
int phi_retire_slot(struct phi_peer *peer, uint32_t *slot);

// phi_retire_answered takes up the answer of the peer: a message of it.
int phi_retire_answered(struct phi_peer *peer, const struct phi_node_message *message);

// phi_retire_spent (lower rank) asks the peer about a channel of which a buffer was released and
// that has no handle here: YES: it is asked, else why not (yet).
enum phi_retire_answer phi_retire_spent(struct ph_channel *channel);

#endif
