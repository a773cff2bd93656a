// SPDX-License-Identifier: BSD-3-Clause
// The tables of a channel of which an end has several ranges. With the lock held.
#ifndef PHI_PEER_CHANNEL_RANGES_H
#define PHI_PEER_CHANNEL_RANGES_H

#include <stdbool.h>
#include <stdint.h>

struct ph_channel;
struct phi_key;
struct phi_own_buffer;
struct phi_peer_buffer;

// phi_ranges_wanted returns whether the channel of the open round needs tables that are not made.
// Both buffers are known.
bool phi_ranges_wanted(const struct phi_key *key);

// phi_ranges_make makes them, when all that this rank reaches of the peer's buffer is mapped. Gives
// the lock up where kernels need a copy. -ENOMEM, PH_EDRIVER, -ETIMEDOUT.
int phi_ranges_make(struct phi_key *key, int64_t deadline);

// phi_ranges_set fills in where the two buffers of a channel lie. The channel takes the tables
// over.
void phi_ranges_set(struct ph_channel *channel, const struct phi_own_buffer *own,
                    const struct phi_peer_buffer *theirs);

#endif
