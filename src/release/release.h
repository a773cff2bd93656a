// SPDX-License-Identifier: BSD-3-Clause
// Giving buffers back. start.c, release.c and release_wait.c are the releaser's half, revoke.c and
// imports.c the half of a peer that maps the buffer; docs/protocols.md has the rules. The service
// threads carry a release on, by messages that are not answered, whatever the applications do.
//
// All with the lock, but for what is said to be otherwise.
#ifndef PHI_RELEASE_RELEASE_H
#define PHI_RELEASE_RELEASE_H

#include <stdbool.h>
#include <stdint.h>

struct phi_node_message;
struct phi_peer;
struct phi_self;

// phi_release_pending returns whether a peer may still touch the allocation at `base` by what was
// released.
bool phi_release_pending(struct phi_self *self, uint64_t base);

// phi_releases_count counts those under way, of own buffers.
uint32_t phi_releases_count(const struct phi_self *self);

// phi_release_names returns whether a release of own buffers that is under way is about this life.
bool phi_release_names(const struct phi_peer *peer);

// phi_releases_free forgets the releases under way, at the context's end.
void phi_releases_free(struct phi_self *self);

// Messages of peers.
int phi_release_revoked(struct phi_peer *peer, const struct phi_node_message *message);
int phi_release_unmapped(struct phi_peer *peer, const struct phi_node_message *message);

// phi_release_tick (takes the lock) carries all releases on, own and of peers; returns in how many
// ms to call it again, -1: when something happens.
int phi_release_tick(struct phi_self *self);

#endif
