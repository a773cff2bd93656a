// SPDX-License-Identifier: BSD-3-Clause
#include "release/start.h"

#include <errno.h>
#include <stdlib.h>

#include "ending/expel.h"
#include "peer/channel.h"
#include "peer/exports.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/wake.h"
#include "release/release_state.h"
#include "release/spent.h"
#include "rules/agreement.h"
#include "semaphore/segment.h"

static struct phi_release *part_for(struct phi_peer *peer, const struct phi_local_export *e,
                                    const struct phi_scope *scope, uint64_t since)
{
    struct phi_self *self = peer->self;
    struct phi_release *part = self->exports.releases;
    for (; part != NULL; part = part->next)
        if (part->peer == peer && part->export_id == e->id && part->id > since)
            return part;
    part = calloc(1, sizeof *part);
    if (part == NULL)
        return NULL;
    const struct phi_allocation *a = &e->export_.allocation;
    uint64_t begin = scope->begin > a->base ? scope->begin : a->base;
    uint64_t end = scope->end < a->base + a->size ? scope->end : a->base + a->size;
    part->id = ++self->exports.release_ids;
    part->peer = peer;
    part->export_id = e->id;
    part->base = a->base;
    part->offset = begin - a->base;
    part->size = end - begin;
    part->number = peer->keys.numbers;
    part->next = self->exports.releases;
    self->exports.releases = part;
    return part;
}

void phi_release_buffer(struct phi_key *key, struct phi_own_buffer *own)
{
    struct phi_self *self = key->peer->self;
    own->released = true;
    // We store this before the peer is told of the release: a round that is under way with this
    // buffer ends there without the buffer. The store pairs with the load in phi_revoke_key.
    if (key->agreement.state != PHI_AGREEMENT_IDLE && key->agreement.mine == own->number &&
        key->slot != PHI_NO_SLOT)
        phi_segment_put64(
            key->peer->segment,
            &phi_segment_slot(key->peer->segment, key->peer->segment->side, key->slot)->released,
            own->number);
    for (uint32_t i = 0; i < own->range_count; i++) {
        struct phi_local_export *e = phi_own_range(own, i)->export_;
        if (--e->buffers == 0)
            phi_release_unused(self, e);
    }
}

// Makes the parts of a release that tell a peer of a buffer: one for each export in which a range
// of it is released. Nobody need be told of the other ranges: the buffer ends as a whole.
static int add_parts(struct phi_peer *peer, struct phi_own_buffer *own,
                     const struct phi_scope *scope, uint64_t since)
{
    for (uint32_t i = 0; i < own->range_count; i++) {
        const struct phi_own_range *range = phi_own_range(own, i);
        if (phi_scope_has_range(scope, range) &&
            part_for(peer, range->export_, scope, since) == NULL)
            return -ENOMEM;
    }
    return 0;
}

// Marks the buffers of one peer's keys.
static int release_buffers(struct phi_peer *peer, const struct phi_scope *scope, uint64_t since,
                           bool *any)
{
    size_t cursor = 0;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys.all, &cursor)) != NULL;) {
        for (uint32_t i = 0; i < key->own.count; i++) {
            struct phi_own_buffer *own = &key->own.list[i];
            if (own->released || !phi_scope_has(scope, own))
                continue;
            *any = true;
            // A peer that was never told of the buffer has nothing to end, and may not even be
            // known yet.
            if (own->told && !phi_release_over(peer) && add_parts(peer, own, scope, since))
                return -ENOMEM;
            phi_release_buffer(key, own);
        }
        phi_release_prune(key);
    }
    return 0;
}

static void revoke_own_ends(struct phi_peer *peer)
{
    for (struct ph_channel *channel = peer->channels.first; channel != NULL;
         channel = channel->kept.next) {
        if (phi_key_mine_released(channel->kept.key, channel->fixed.own.number))
            phi_revoke_channel(channel);
    }
}

static int release_scope(struct phi_self *self, const struct phi_scope *scope, bool *any)
{
    uint64_t since = self->exports.release_ids;
    int rc = 0;
    for (int rank = 0; rank < self->ranks && rc == 0; rank++) {
        struct phi_peer *peer = self->table[rank];
        bool here = false;
        if (peer == NULL)
            continue;
        // The own ends first find their buffers released, then those are dropped.
        rc = release_buffers(peer, scope, since, &here);
        if (here)
            revoke_own_ends(peer);
        *any = *any || here;
    }
    // We also end exports that had buffers of retired keys only.
    for (uint32_t i = self->exports.count; i-- > 0;) {
        struct phi_local_export *e = self->exports.live[i];
        if (e->buffers == 0 && (scope->export_ == NULL || scope->export_ == e) &&
            phi_scope_touches(scope, e->export_.allocation.base, e->export_.allocation.size)) {
            phi_release_unused(self, e);
            *any = true;
        }
    }
    if (*any) {
        phi_service_wake(self);
        phi_self_changed(self);
        phi_mailbox_wake(self->mailbox); // an exchange of ours may name one of them
    }
    return rc;
}

void phi_release_gone(struct phi_self *self, const struct phi_allocation *now)
{
    const struct phi_scope range = {.begin = now->base, .end = now->base + now->size};
    for (uint32_t i = self->exports.count; i-- > 0;) {
        struct phi_local_export *e = self->exports.live[i];
        const struct phi_allocation *a = &e->export_.allocation;
        if (phi_allocation_equal(a, now) || !phi_scope_touches(&range, a->base, a->size))
            continue;
        const struct phi_scope all = {.export_ = e, .begin = a->base, .end = a->base + a->size};
        bool any = false;
        phi_log(self->report, PH_LOG_WARN,
                "%llu bytes at 0x%llx were freed without ph_release_start, and other memory lies "
                "there now",
                (unsigned long long)a->size, (unsigned long long)a->base);
        release_scope(self, &all, &any); // without memory for it the next exchange tries again
        i = i < self->exports.count ? i : self->exports.count;
    }
}

// Returns whether the library ever knew something in the range that is not over.
static bool is_known(struct phi_self *self, const struct phi_scope *scope)
{
    for (struct phi_release *part = self->exports.releases; part != NULL; part = part->next)
        if (phi_scope_touches(scope, part->base + part->offset, part->size))
            return true;
    for (struct phi_local_export *e = self->exports.ended; e != NULL; e = e->next)
        if (phi_scope_touches(scope, e->export_.allocation.base, e->export_.allocation.size))
            return true;
    return false;
}

int phi_release_start(struct phi_self *self, const void *address, size_t size)
{
    const struct phi_scope scope = {.begin = (uintptr_t)address, .end = (uintptr_t)address + size};
    struct phi_allocation allocation;
    uint64_t offset;
    bool any = false;
    pthread_mutex_lock(&self->lock);
    int rc = release_scope(self, &scope, &any);
    if (rc)
        phi_fail(self->report, rc, "out of memory for the release of %zu bytes at %p", size,
                 address);
    else if (!any && !is_known(self, &scope))
        rc = phi_memory_describe(self->memory, address, size, &allocation, &offset);
    pthread_mutex_unlock(&self->lock);
    return rc == PH_EKIND ? 0 : rc; // memory that cannot be exchanged has nothing to release
}

int phi_release_fail(const struct phi_key *key)
{
    return phi_fail(key->peer->self->report, -ESTALE,
                    "the buffer of operation %llu with rank %d was released during its exchange",
                    (unsigned long long)key->op_id, key->peer->rank);
}
