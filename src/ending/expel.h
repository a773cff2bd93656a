// SPDX-License-Identifier: BSD-3-Clause
// Expulsion: survivors end the membership of a life that is SUSPECT. It is told in the segment, by
// the service threads of all that are connected, and through the store; the expelled one finds
// itself fenced. It may still run, and its device may still write: what it shares with survivors is
// quarantined until it has acknowledged (all of its streams are done with it) or exited.
// All but phi_expel with the peers' lock held.
#ifndef PHI_ENDING_EXPEL_H
#define PHI_ENDING_EXPEL_H

#include <stdbool.h>
#include <stdint.h>

struct phi_peer;
struct phi_self;

// phi_expel (without the lock) expels the present life of a SUSPECT. 0 also where it exited, left
// or was expelled already. -EBUSY: it is no SUSPECT; -ENOTCONN: it was never connected; else why
// the store could not be told: the ranks that are connected know all the same.
int phi_expel(struct phi_self *self, int rank, int64_t deadline);

// phi_expel_file takes up that a life of a rank was expelled: by another rank's word.
void phi_expel_file(struct phi_self *self, int rank, uint64_t life);

// phi_expel_settle draws the consequences where the life in the table is an expelled one; a thread
// that was connecting to it meanwhile calls it.
void phi_expel_settle(struct phi_peer *peer);

// phi_expel_tell tells a rank that has just been connected to which lives were expelled.
void phi_expel_tell(struct phi_peer *peer);

// phi_expel_look looks whether the peer has expelled this rank; look_all, whether any has.
void phi_expel_look(struct phi_peer *peer);
void phi_expel_look_all(struct phi_self *self);

// phi_expel_over returns whether nothing of a broken life's process touches what it shared with us:
// it exited, or it was expelled and has acknowledged.
bool phi_expel_over(const struct phi_peer *peer);

// phi_fence ends the use of every channel of this rank: its life is over in the eyes of the others.
void phi_fence(struct phi_self *self, const char *why);

// phi_fence_told notes that the application is told now, by whatever call, and so of every pair.
// The application need not make another call before it destroys the context. phi_fence_fail returns
// PH_EFENCED with its sentence, and does the same.
void phi_fence_told(struct phi_self *self);
int phi_fence_fail(struct phi_self *self);

// phi_release_over returns whether nothing of the peer's process touches what we shared with it.
bool phi_release_over(const struct phi_peer *peer);

#endif
