// SPDX-License-Identifier: BSD-3-Clause
// Channels of this rank to itself: no exchange makes them, and nobody else has a part in them. With
// the lock of `peers` held.
#ifndef PHI_PEER_LOOPBACK_H
#define PHI_PEER_LOOPBACK_H

#include <stdint.h>

struct ph_channel;
struct phi_self;

// phi_loopback_open gives a handle on the channel of an operation, made at first use. -ENOMEM,
// reported.
int phi_loopback_open(struct phi_self *self, uint64_t op_id, struct ph_channel **out);

// phi_loopback_break ends all that can still be used, with `code`.
void phi_loopback_break(struct phi_self *self, int code);

#endif
