// SPDX-License-Identifier: BSD-3-Clause
// From calls on channels to work on streams. Nothing here takes a lock or allocates: a channel does
// not change after the exchange that made it, but for its atomics.
#ifndef PHI_CHANNEL_ISSUE_H
#define PHI_CHANNEL_ISSUE_H

#include "channel/peers.h"

// One call on one direction of a channel.
struct phi_channel_call {
    struct ph_channel *channel;
    enum phi_call call;
    bool outgoing;                            // the direction: from this rank to the peer
    size_t local_offset, remote_offset, size; // of its copy, if it has one
    bool told; // of a get: a signal behind it, of the same group, tells of it
};

// Calls of a group that wait for staged messages, while the group fills more slots than the peers'
// may be able to give back meanwhile: what the peers send goes on beside each part of that. No
// two of one lane.
#define PHI_HELPS_MAX (PHI_TOGETHER_MAX - 1)
struct phi_helps {
    struct phi_channel_call calls[PHI_HELPS_MAX];
    size_t n;
};

// phi_issue_prepare takes the memory of the first large group, so that its call takes none. -ENOMEM.
int phi_issue_prepare(struct phi_peers *peers);

// phi_issue enqueues the calls in order, as one operation where they fit. The calls are valid
// (ranges, roles). *begun: whether earlier calls of the same group are enqueued, and then whether
// any of all those is. Errors: as the transfer functions; a channel whose operation was enqueued
// half-way is broken.
// helps: those of the calls' group, or NULL.
int phi_issue(struct phi_peers *peers, const struct phi_channel_call *calls, size_t n,
              const struct phi_helps *helps, void *stream, bool *begun);

// A copy from the buffer of one channel's peer to that of another's.
struct phi_third_party {
    struct ph_channel *to, *from; // of one context; may be the same
    size_t to_offset, from_offset, size;
};

// phi_issue_copy enqueues it; valid (ranges, roles, reach). Errors: as phi_issue.
int phi_issue_copy(const struct phi_third_party *copy, void *stream);

// phi_channel_work is an item of a call on a channel, without what its kind needs.
struct phi_work phi_channel_work(struct ph_channel *channel, enum phi_step_kind kind,
                                 enum phi_call call);

// phi_call_fills, phi_call_empties: whether a call of a staged channel fills slots, or empties
// them.
bool phi_call_fills(const struct phi_channel_call *call);
bool phi_call_empties(const struct phi_channel_call *call);

// phi_channel_take takes the message that the call would wait for, if it came before the channel
// ended: true where the wait is over already. Only of a channel that the peer left, or whose buffer
// was released. Takes the peers' lock, and waits up to 2 s for what of the channel is on a stream.
// begun: others of its group are enqueued, so that it is too late to refuse, and what was taken of
// other channels is not waited for: phi_channel_here has done so.
bool phi_channel_take(const struct phi_channel_call *call, void *stream, bool begun);

// phi_channel_here: whether phi_channel_take would find the message, of a channel that has ended;
// of a TRANSFER or COMPLETE, one that its sender could send alone, by lines or slots. It stays
// there.
bool phi_channel_here(const struct phi_channel_call *call);

// phi_channel_break ends the use of a channel whose calls were enqueued half-way.
void phi_channel_break(struct ph_channel *channel);

// phi_channel_check returns 0 or why the channel cannot be used, and notes that the application was
// told.
int phi_channel_check(struct ph_channel *channel);

// phi_channel_status is phi_channel_check for who wants to know whether what came is whole: it also
// looks whether the peer has ended its use of the channel, which this rank may not have noticed.
int phi_channel_status(struct ph_channel *channel);

// Posts and completes of the passive end: post marks the direction and notes the size (-EALREADY
// where it is marked),
// unpost takes the mark back.
int phi_channel_post(struct ph_channel *channel, bool outgoing, size_t size);
void phi_channel_unpost(struct ph_channel *channel, bool outgoing);

// Whether this end is the active one of send/recv in a direction.
bool phi_channel_active(const struct ph_channel *channel, bool outgoing);

// phi_channel_late_recv is the call that takes what was sent before the channel ended: at the
// passive end the complete does.
enum phi_call phi_channel_late_recv(const struct ph_channel *channel);

#endif
