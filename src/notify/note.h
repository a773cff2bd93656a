// SPDX-License-Identifier: BSD-3-Clause
// Notifications (peerhop/notify.h). The rank that gives one keeps it until its stream has done what
// stands before it. Then it sends the bytes as a message to the service thread of the peer, which
// keeps them until the application takes them. So a notification and its data are ordered by:
//   device or runner: data, then `done` (release)
//   giver, any thread: `done` (acquire), then the message (a system call, or the net)
//   taker: the message, then the list (the lock), then the application
// Where data goes another way than messages, and a stream is done with it before it is there, the
// giver also waits until the net has delivered it.
//
// Each rank counts in its side of the segment what it has taken of the peer. A giver has no more
// than PH_NOTIFICATIONS_MAX that are not taken, so a taker keeps no more of each peer.
#ifndef PHI_NOTIFY_NOTE_H
#define PHI_NOTIFY_NOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <peerhop/notify.h>

struct phi_mark;
struct phi_node_message;
struct phi_note;
struct phi_peer;
struct phi_self;

// ---- giving: without the lock

// phi_note_take makes a notification for the peer of a channel, counts it, and puts it at the end
// of a chain, which begins as NULL. -EAGAIN, -ENOMEM, PH_EPEER. phi_note_drop undoes that for a
// chain.
int phi_note_take(struct ph_channel *channel, const void *bytes, size_t size,
                  struct phi_note **chain);
void phi_note_drop(struct phi_self *self, struct phi_note *chain);

// phi_note_give sends those of a chain once the mark is done: at once, or by the service thread.
void phi_note_give(struct phi_self *self, struct phi_note *chain, const struct phi_mark *mark);

// phi_notes_tick sends what is ready. Returns in how many ns to call it again; -1: when another one
// is given.
int64_t phi_notes_tick(struct phi_self *self);

// phi_notes_finish waits, behind the executor's flush, until all that were given are sent, or never
// will be. -ETIMEDOUT.
int phi_notes_finish(struct phi_self *self, int64_t deadline);

// ---- taking

// phi_notes_file (with the lock) takes up a message of the peer. -EBADMSG, -ENOMEM.
int phi_notes_file(struct phi_peer *peer, const struct phi_node_message *message);

// phi_notes_read (without the lock) moves up to n to the list. -ENOMEM: one was lost, once.
int phi_notes_read(struct phi_self *self, struct ph_notification *list, size_t n, size_t *count);

// phi_notes_wait (without the lock) waits until there is one to be read, or one was lost.
// -ETIMEDOUT; -EINTR: the application is to be told of something first.
int phi_notes_wait(struct phi_self *self, int64_t deadline);

// phi_notes_descriptor (without the lock) makes the descriptor, once.
int phi_notes_descriptor(struct phi_self *self);

// phi_notes_free frees all of them, and the descriptor.
void phi_notes_free(struct phi_self *self);

#endif
