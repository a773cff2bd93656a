// SPDX-License-Identifier: BSD-3-Clause
// The lives of a peer. An entry of the table is one life; a later one of the same rank takes its
// place once nothing of ours touches the former any more. All with the peers' lock held.
#ifndef PHI_MEETING_LIVES_H
#define PHI_MEETING_LIVES_H

#include <stdbool.h>
#include <stdint.h>

struct phi_capabilities;
struct phi_peer;
struct phi_self;

// phi_peer_free ends an entry that phi_peer_new made; NULL is fine.
void phi_peer_free(struct phi_peer *peer);

// phi_peer_record takes up a member record of a later life than any known.
void phi_peer_record(struct phi_peer *peer, uint64_t incarnation,
                     const struct phi_capabilities *theirs);

// phi_peer_renew lets the latest life that has announced itself take its place, in the table or in
// this entry, if it can.
void phi_peer_renew(struct phi_peer *peer);

// What is left of a life that another one has replaced, on self->former. Its descriptors are
// closed once no thread is at work with it, the rest is freed once no handle of the application is
// left on its channels either: a call on one looks at the words, and may take what that life sent.
// Where a device knows the memory its closer has to end it, behind which others cannot launch: that
// is left to phi_lives_reap (and to the tick, where PEERHOP_REAP=idle).
//
// tick (takes the lock) frees what it can, of one life; returns when to call it again, as
// phi_release_tick. reap (with the lock, given up in between) frees all that it can, as phi_reap
// says.
int phi_lives_tick(struct phi_self *self);
bool phi_lives_reap(struct phi_self *self, bool blocking);

#endif
