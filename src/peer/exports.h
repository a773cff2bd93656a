// SPDX-License-Identifier: BSD-3-Clause
// Allocations of this rank that peers may map. With the lock held.
#ifndef PHI_PEER_EXPORTS_H
#define PHI_PEER_EXPORTS_H

#include <stdbool.h>
#include <stdint.h>

struct phi_key;
struct phi_local_export;
struct phi_peer;
struct phi_self;

// phi_export_find returns a live export of this rank by id, or NULL; forget ends what a life of a
// peer was sent; free ends an export that nothing refers to.
struct phi_local_export *phi_export_find(struct phi_self *self, uint64_t id);
void phi_exports_forget(struct phi_self *self, int rank);
void phi_export_free(struct phi_local_export *e);

// phi_release_unused ends an export in which no key has a buffer any more.
// phi_key_drop_released drops what a key keeps of released buffers and no unfinished round needs.
void phi_release_unused(struct phi_self *self, struct phi_local_export *e);
void phi_key_drop_released(struct phi_key *key);

// phi_key_forget_buffers takes its buffers from a key that is of no use any more, so that it keeps
// no export in use. A key of a peer's former life that a request still holds goes the same way when
// the request ends.
void phi_key_forget_buffers(struct phi_key *key);

// phi_export_held returns whether streams of this rank still have a bounce buffer. The owner of
// other memory asks by ph_release_wait.
bool phi_export_held(const struct phi_self *self, const struct phi_local_export *e);

// phi_export_drop frees an export that has ended, once no peer may map it and no key names it.
void phi_export_drop(struct phi_self *self, struct phi_local_export *e);

// phi_peer_drop_released is phi_key_drop_released for all keys of a peer.
void phi_peer_drop_released(struct phi_peer *peer);

#endif
