// SPDX-License-Identifier: BSD-3-Clause
// Waits that nobody will answer any more: which there are, and how they are let go. With the lock
// held.
#ifndef PHI_LANE_LIFT_H
#define PHI_LANE_LIFT_H

#include <stdbool.h>

struct ph_channel;
struct phi_key;

// phi_revoke_waits returns whether a channel that is not drained may be kept by a wait. Over the
// net it returns whether a wait stands at the head of a queue.
bool phi_revoke_waits(const struct ph_channel *channel);

// phi_revoke_lift lets waits of a revoked channel go that nobody will answer. hold: except the
// waits that a copy into the peer's buffer would follow.
void phi_revoke_lift(struct ph_channel *channel, bool hold);

// phi_lift_all lets all waits of a channel go that its peer, which has ended, has not answered.
// Call it again while a stream may come to another wait. hold: as for phi_revoke_lift.
void phi_lift_all(struct ph_channel *channel, bool hold);

// phi_lift_undone returns whether an operation of this end that is done has left out some of its
// work: its wait got nothing, a copy or a post was skipped.
bool phi_lift_undone(struct ph_channel *channel);

// phi_revoke_settle sets the status of a channel if some of its work was left out.
void phi_revoke_settle(struct ph_channel *channel);

// phi_revoke_key returns whether the peer has released the buffer that the open round of the key is
// about.
bool phi_revoke_key(const struct phi_key *key);

// phi_revoke_may_wait returns whether a wait of this end may be what keeps the channel.
bool phi_revoke_may_wait(struct ph_channel *channel);

#endif
