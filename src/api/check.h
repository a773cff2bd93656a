// SPDX-License-Identifier: BSD-3-Clause
// The checks that calls and groups make of a channel before anything is enqueued. A check that
// returns an int returns 0, or the call's result, which it has reported.
#ifndef PHI_API_CHECK_H
#define PHI_API_CHECK_H

#include "peer/channel.h"

// phi_check_given: `argument`, which `what` names ("ph_exchange: channels"), is not NULL.
int phi_check_given(struct phi_report *report, const void *argument, const char *what);

// phi_check_buffer: a context of this process, and bytes that can be a buffer.
int phi_check_buffer(struct ph_context *context, const void *buffer, size_t size);

// phi_check_deadline checks the deadline of a call that takes one itself.
int phi_check_deadline(struct phi_report *report, int64_t deadline_ms);

// phi_check_mismatch ends an unbound channel to which a message of another size has come.
void phi_check_mismatch(struct ph_channel *channel);

// phi_check_bound: -EINVAL for an unbound channel: `what` is for those with buffers.
int phi_check_bound(const struct ph_channel *channel, const char *what);

// phi_check_range: size bytes at these offsets lie in both buffers.
int phi_check_range(const struct ph_channel *channel, size_t local_offset, size_t peer_offset,
                    size_t size);

// phi_check_ended: whether rc may say that the channel has ended.
bool phi_check_ended(int rc);

// phi_check_may_be_late: whether rc says that the peer has left, or given its buffer back. It may
// do so as soon as its part is done: what it sent is taken still.
bool phi_check_may_be_late(int rc);

// phi_check_refused is the result of a call that was refused with rc: where the channel has a
// status, that, with a sentence. (An executor knows only that the words or the buffer were revoked;
// the channel knows why.)
int phi_check_refused(struct ph_channel *channel, int rc);

// phi_check_reach: the peer's buffer is mapped here.
int phi_check_reach(const struct ph_channel *channel);

// phi_check_zero_sm: a channel that is to launch no kernels can do so. messages: also what waits.
int phi_check_zero_sm(const struct ph_channel *channel, bool messages);

// phi_check_get: PH_ENOPATH where the peer's memory is staged over the net.
int phi_check_get(const struct ph_channel *channel);

#endif
