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

// self->former lists the remains of lives that another life has replaced. We close a life's
// descriptors once no thread is at work with it. We free the rest once the application has no
// handle on its channels either: a call on such a channel looks at the words, and may take what
// that life sent. If a device knows the memory, closing has to end that, and others cannot launch
// until it is done. Such closing is left to phi_lives_reap (and to the tick, if PEERHOP_REAP=idle).
//
// phi_lives_tick (takes the lock) frees what it can, of one life. It returns when to call it again,
// as phi_release_tick does. phi_lives_reap (with the lock, given up in between) frees all that it
// can, as phi_reap says.
int phi_lives_tick(struct phi_self *self);
bool phi_lives_reap(struct phi_self *self, bool blocking);

#endif
