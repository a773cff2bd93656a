// SPDX-License-Identifier: BSD-3-Clause
// Giving buffers back. release.c and release_wait.c are the releaser's half, revoke.c the half of a
// peer that maps the buffer; docs/protocols.md has the rules. The service threads carry a release
// on, by messages that are not answered, whatever the applications do.
#ifndef PHI_CHANNEL_RELEASE_H
#define PHI_CHANNEL_RELEASE_H

#include <peerhop/release.h>

#include "channel/peers.h"

// The bytes of PHI_NODE_REVOKE: what of the export is given back. gone: all of it, for good (then
// there is no release id, and the answer is PHI_NODE_UNMAPPED). number: the largest that a buffer
// had when the release began; the same memory may be exchanged again, under a larger one, before
// this message comes, or comes again.
struct phi_revoke {
    uint64_t offset, size;
    uint32_t gone, number;
};

// The bytes of PHI_NODE_REVOKED: how far the peer is; what is left, of the first channel that is
// not drained.
struct phi_revoked {
    uint32_t drained;
    uint32_t waiting; // line + 1 of a channel with a wait of a word that has not come, or 0
    uint64_t op_id;
    uint32_t streams, graphs;
    uint32_t devices, reserved; // device channels
    uint64_t graph;             // names one of the graphs
};

// ---- the releaser (release.c, release_wait.c)

// Without the lock. start, test and wait as ph_release_start, _test and _wait.
int phi_release_start(struct phi_peers *peers, const void *address, size_t size);
int phi_release_test(struct phi_peers *peers, const void *address, size_t size,
                     enum ph_release_state state);
int phi_release_wait(struct phi_peers *peers, const void *address, size_t size,
                     enum ph_release_state state, int64_t deadline);

// All below with the lock.

// phi_release_gone releases what lay at an address range before: memory that was freed without a
// release.
void phi_release_gone(struct phi_peers *peers, const struct phi_allocation *now);

// phi_release_unused ends an export in which no key has a buffer any more; prune drops what a key
// keeps of released buffers and no unfinished round needs.
void phi_release_unused(struct phi_peers *peers, struct phi_local_export *e);
void phi_release_prune(struct phi_key *key);

// phi_release_fail is the failure of an exchange of a buffer that was released meanwhile.
int phi_release_fail(const struct phi_key *key);

// phi_release_pending: whether a peer may still touch the allocation at `base` by what was
// released.
bool phi_release_pending(struct phi_peers *peers, uint64_t base);

// phi_releases_count counts those under way, of own buffers.
uint32_t phi_releases_count(const struct phi_peers *peers);

// phi_release_names: whether a release of own buffers that is under way is about this life.
bool phi_release_names(const struct phi_peer *peer);

// phi_releases_free forgets the releases under way, at the context's end.
void phi_releases_free(struct phi_peers *peers);

// Messages of peers.
int phi_release_revoked(struct phi_peer *peer, const struct phi_node_message *message);
int phi_release_unmapped(struct phi_peer *peer, const struct phi_node_message *message);

// phi_release_tick (takes the lock) carries all releases on, own and of peers; returns in how many
// ms to call it again, -1: when something happens.
int phi_release_tick(struct phi_peers *peers);

// ---- the peer (revoke.c)

// phi_revoke_channel ends the use of a channel at this end.
void phi_revoke_channel(struct ph_channel *channel);

// phi_revoke_drained: whether no stream and no graph of this rank touches the channel.
bool phi_revoke_drained(const struct ph_channel *channel);

// phi_revoke_waits: of a channel that is not drained, whether it may be a wait that keeps it (over
// the net: whether one stands at the head of a queue).
bool phi_revoke_waits(const struct ph_channel *channel);

// phi_revoke_lift lets waits of a revoked channel go that nobody will answer. hold: not those of
// which a copy into the peer's buffer would follow.
void phi_revoke_lift(struct ph_channel *channel, bool hold);

// phi_revoke_settle sets the status of a channel of which a wait was given up, or taken for answered.
void phi_revoke_settle(struct ph_channel *channel);

// phi_revoke_key: whether the peer has released the buffer that the open round of the key is about.
bool phi_revoke_key(const struct phi_key *key);

int phi_revoke_file(struct phi_peer *peer, const struct phi_node_message *message);
int phi_revoke_let_go(struct phi_peer *peer, const struct phi_node_message *message);
// phi_revocations_count counts a peer's releases that are under way here.
uint32_t phi_revocations_count(const struct phi_peer *peer);
// phi_revoke_tick carries the peer's releases on, and returns when to call it again, as
// phi_release_tick does. Unmaps one import unless *closed, and sets that.
int phi_revoke_tick(struct phi_peer *peer, bool *closed);
void phi_revoke_free(struct phi_peer *peer);

// phi_reap (without the lock) unmaps all that may be unmapped; what can block, with `blocking` only,
// by the device's closer, else it returns whether there is some. Of a rank that leaves that is every
// import.
bool phi_reap(struct phi_peers *peers, bool blocking);

// phi_soon is the nearer of two times of the kind that phi_release_tick returns.
static inline int phi_soon(int a, int b)
{
    return a < 0 ? b : b < 0 || a < b ? a : b;
}

#endif
