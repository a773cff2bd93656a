// SPDX-License-Identifier: BSD-3-Clause
// The tables of a channel of which an end has several ranges. With the lock held.
#ifndef PHI_PEER_RANGES_H
#define PHI_PEER_RANGES_H

struct ph_channel;
struct phi_channel_ranges;
struct phi_key;
struct phi_own_buffer;
struct phi_peer_buffer;

// phi_ranges_make makes the memory of the tables of the open round's channel, if it needs any:
// key->made.ranges. -ENOMEM.
int phi_ranges_make(struct phi_key *key);

// phi_ranges_set fills in where the two buffers of a channel lie. The channel takes the tables over.
void phi_ranges_set(struct ph_channel *channel, struct phi_own_buffer *own,
                    const struct phi_peer_buffer *theirs);

// phi_ranges_free frees tables. NULL is fine.
void phi_ranges_free(struct phi_channel_ranges *ranges);

#endif
