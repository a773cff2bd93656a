// SPDX-License-Identifier: BSD-3-Clause
// From calls on channels to work on streams. Nothing here takes a lock or allocates: a channel does
// not change after the exchange that made it, but for its atomics.
#ifndef PHI_TRANSFER_ISSUE_H
#define PHI_TRANSFER_ISSUE_H

#include <stdbool.h>
#include <stddef.h>

#include "peer/channel.h"

struct phi_self;

// Calls of a group that wait for staged messages, while the group fills more slots than the peers
// may be able to give back meanwhile. The messages that the peers send go on beside each part of
// the filling. No two of these calls are of one lane.
#define PHI_HELPS_MAX (PHI_TOGETHER_MAX - 1)
struct phi_helps {
    struct phi_channel_call calls[PHI_HELPS_MAX];
    size_t n;
};

// phi_issue_prepare takes the memory of the first large group, so that its call takes none.
// -ENOMEM.
int phi_issue_prepare(struct phi_self *self);

// phi_issue decides the calls and enqueues them in order, as one operation where they fit. They are
// valid (ranges, roles). *begun: before the call, whether earlier calls of the same group are
// enqueued; after it, whether any of these or those is. Errors: as the transfer functions; a
// channel whose operation was enqueued half-way is broken. helps: those of the calls' group, or
// NULL.
int phi_issue(struct phi_self *self, struct phi_channel_call *calls, size_t n,
              const struct phi_helps *helps, void *stream, bool *begun);

// A copy from the buffer of one channel's peer to that of another's.
struct phi_third_party {
    struct ph_channel *to, *from; // of one context; may be the same
    size_t to_offset, from_offset, size;
};

// phi_channel_work is an item of a call on a channel, without what its kind needs.
struct phi_work phi_channel_work(struct ph_channel *channel, enum phi_step_kind kind,
                                 enum phi_call call);

// phi_call_is_long returns whether a call is of a message that goes through a ring while it is
// taken.
bool phi_call_is_long(const struct phi_channel_call *call);

// phi_call_fills, phi_call_empties return whether a call of a staged channel, which is decided,
// fills slots, or empties them.
bool phi_call_fills(const struct phi_channel_call *call);
bool phi_call_empties(const struct phi_channel_call *call);

// phi_issue_nothing enqueues an operation that moves nothing: its number comes behind all that
// stands before it on the stream, of others, too.
int phi_issue_nothing(struct ph_channel *channel, void *stream);

// phi_channel_reads counts a copy from the peer's buffer, behind its issue.
void phi_channel_reads(struct ph_channel *channel);

// phi_channel_break ends the use of a channel whose calls were enqueued half-way.
void phi_channel_break(struct ph_channel *channel);

// Posts and completes of the passive end: post marks the direction and notes the size (-EALREADY
// where it is marked), unpost takes the mark back.
int phi_channel_post(struct ph_channel *channel, bool outgoing, size_t size);
void phi_channel_unpost(struct ph_channel *channel, bool outgoing);

// phi_channel_late_recv is the call that takes what was sent before the channel ended: at the
// passive end the complete does.
enum phi_call phi_channel_late_recv(const struct ph_channel *channel);

// phi_call_decide decides, once, by which method the message of a call moves, and so in which
// steps.
void phi_call_decide(struct phi_channel_call *call);

// phi_work_add_call writes the items of a call that is decided, and returns how many.
size_t phi_work_add_call(const struct phi_channel_call *call, struct phi_work *work);

// phi_channel_enter marks that a thread enqueues on the channel; phi_channel_leave ends that.
void phi_channel_enter(struct ph_channel *channel);
void phi_channel_leave(struct ph_channel *channel);

// phi_issue_calls is phi_issue for calls that are decided and fit into one operation.
int phi_issue_calls(struct phi_self *self, const struct phi_channel_call *calls, size_t n,
                    const struct phi_helps *helps, void *stream, bool *begun, struct phi_work *work,
                    size_t room);

#endif
