// SPDX-License-Identifier: BSD-3-Clause
// The view that this rank has of a channel or a key that is to make way. With the lock held.
#ifndef PHI_RELEASE_VIEW_H
#define PHI_RELEASE_VIEW_H

#include <stdbool.h>

#include "rules/retire.h"

struct ph_channel;
struct phi_key;

// phi_view_of: what this rank sees of a channel, for phi_retire_judge. NULL: of the key alone.
struct phi_retire_view phi_view_of(const struct phi_key *key, struct ph_channel *channel);

// phi_view_theirs_released returns whether the peer has released its buffer of the channel.
bool phi_view_theirs_released(const struct phi_key *key, const struct ph_channel *channel);

// phi_view_spent is phi_view_of for a channel that has a released buffer.
struct phi_retire_view phi_view_spent(const struct phi_key *key, struct ph_channel *channel);

#endif
