// SPDX-License-Identifier: BSD-3-Clause
// Spent channels: a buffer was given back, and the application has let go of the channel. Nobody
// can use such a channel again, so it does not wait until its room is needed. The lower rank asks
// the other one about each, by the handshake of rules/retire.h. After a no it asks again, after a
// pause, which grows.
#ifndef PHI_RELEASE_SPENT_H
#define PHI_RELEASE_SPENT_H

struct ph_channel;
struct phi_peer;

// phi_channel_close (without the lock) lets go of a handle; -EINVAL: there is none; -EBUSY: device
// channels need the last one.
int phi_channel_close(struct ph_channel *channel);

// All below with the lock.

// phi_channel_hold keeps a channel for a notification until phi_channel_let_go.
void phi_channel_hold(struct ph_channel *channel);
void phi_channel_let_go(struct ph_channel *channel);

// phi_spent_note takes a channel up that was revoked, or lost its last handle, if it is spent.
void phi_spent_note(struct ph_channel *channel);

// phi_spent_tick asks about some; returns in how many ms to call it again, -1: when something
// happens.
int phi_spent_tick(struct phi_peer *peer);

// phi_revoke_channel ends the use of a channel at this end, as a buffer of it was given back.
void phi_revoke_channel(struct ph_channel *channel);

#endif
