// SPDX-License-Identifier: BSD-3-Clause
// The net of a rank, once a peer needs it. A thread of its own opens it: a provider of libfabric
// may take longer than the call that asks for it may.
#ifndef PHI_MEETING_OPENER_H
#define PHI_MEETING_OPENER_H

#include <stdint.h>

struct phi_self;

// phi_opener_net (with the lock, which it gives up while it waits): 0: self->net.net is there, or
// self->net.failed says that none serves. -EAGAIN: not yet; the caller comes again. Any other
// error: it is told, and the next call opens again.
int phi_opener_net(struct phi_self *self, int64_t deadline);

// phi_opener_wait (with the lock, which it gives up) waits until nothing is being opened: 0 or
// -ETIMEDOUT, which is told.
int phi_opener_wait(struct phi_self *self, int64_t deadline);

// phi_opener_join (without the lock) waits for the thread, if there was one. Nothing is opened
// afterwards.
void phi_opener_join(struct phi_self *self);

#endif
