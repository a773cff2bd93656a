// SPDX-License-Identifier: BSD-3-Clause
// The inbox takes messages that come from peers through the store, and puts a thread to sleep that
// waits for them. All functions need the lock; phi_self_wait gives it up.
#ifndef PHI_EXCHANGE_INBOX_H
#define PHI_EXCHANGE_INBOX_H

#include <stdbool.h>
#include <stdint.h>

struct phi_self;

// phi_self_wait gives up the lock until something may have changed: a message came (and was
// filed), a peer rang, a thread of ours changed something. 0, -ETIMEDOUT, or the mailbox's error.
// Spurious returns are fine. `seen` is self->changes.count as it was when the caller last looked.
int phi_self_wait(struct phi_self *self, uint64_t seen, int64_t deadline);

// phi_self_awake tells peers that nobody sleeps any more, so that they need not ring.
void phi_self_awake(struct phi_self *self);

// phi_self_wanted: whether the store is to be watched for a rank: something of it is awaited, or
// it has not taken all that we sent it, which a store that restarts would forget.
bool phi_self_wanted(const struct phi_self *self, int rank);

// phi_self_drain files what the mailbox has already, without waiting.
int phi_self_drain(struct phi_self *self);

// phi_self_look is phi_self_drain for what a rank that nobody waits for may have sent; errors
// show later.
void phi_self_look(struct phi_self *self, int rank);

#endif
