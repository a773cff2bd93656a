// SPDX-License-Identifier: BSD-3-Clause
// Taking a channel or a key out, and what of it may be given again. With the lock held.
#ifndef PHI_RELEASE_DROP_H
#define PHI_RELEASE_DROP_H

#include <stdint.h>

struct ph_channel;
struct phi_key;

// phi_key_free frees a key that no map and no request holds any more.
void phi_key_free(struct phi_key *key);

// phi_key_drop takes a key out, with what it alone needs; its channels are gone.
void phi_key_drop(struct phi_key *key);

// phi_room_add adds a line or slot to a list of those that may be given again.
void phi_room_add(uint32_t value, uint32_t **list, uint32_t *count, uint32_t *room);

// phi_channel_drop takes a channel out; phi_key_drop_channels all of a key. Handles of the
// application keep its memory.
void phi_channel_drop(struct ph_channel *channel);
void phi_key_drop_channels(struct phi_key *key);

// phi_key_channel_at: the channel of a key that has this line, or NULL.
struct ph_channel *phi_key_channel_at(const struct phi_key *key, uint32_t line);

#endif
