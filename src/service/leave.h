// SPDX-License-Identifier: BSD-3-Clause
// A rank leaves its job, or aborts.
#ifndef PHI_SERVICE_LEAVE_H
#define PHI_SERVICE_LEAVE_H

#include <stdint.h>

struct phi_self;

// phi_leave (without the lock) is the first half of destroy: flushes this rank's operations, tells
// the peers, and waits until none of them touches this rank's buffers. -ETIMEDOUT names who does;
// it may be called again.
int phi_leave(struct phi_self *self, int64_t deadline);

// phi_abort (without the lock) breaks every channel and tells the peers.
void phi_abort(struct phi_self *self, const char *reason);

#endif
