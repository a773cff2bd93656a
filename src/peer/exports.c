// SPDX-License-Identifier: BSD-3-Clause
#include "peer/exports.h"

#include <stdlib.h>

#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/wake.h"
#include "rules/agreement.h"
#include "transport/bounce.h"

struct phi_local_export *phi_export_find(struct phi_self *self, uint64_t id)
{
    for (uint32_t i = self->exports.count; i-- > 0;)
        if (self->exports.live[i]->id == id)
            return self->exports.live[i];
    return NULL;
}

void phi_exports_forget(struct phi_self *self, int rank)
{
    for (uint32_t i = 0; i < self->exports.count; i++)
        self->exports.live[i]->sent[rank] = 0;
}

void phi_export_free(struct phi_local_export *e)
{
    phi_memory_export_close(&e->export_);
    phi_bounce_free(e->bounce);
    free(e->sent);
    free(e);
}

void phi_release_unused(struct phi_self *self, struct phi_local_export *e)
{
    for (uint32_t i = 0; i < self->exports.count; i++) {
        if (self->exports.live[i] != e)
            continue;
        self->exports.live[i] = self->exports.live[--self->exports.count];
        e->next = self->exports.ended;
        self->exports.ended = e;
        phi_service_wake(self); // tells those that may map it
        return;
    }
}

void phi_key_disown(struct phi_key *key)
{
    for (uint32_t i = 0; i < key->own.count; i++) {
        struct phi_own_buffer *own = &key->own.list[i];
        for (uint32_t j = 0; j < own->range_count; j++) {
            struct phi_local_export *e = phi_own_range(own, j)->export_;
            e->entries--;
            e->buffers -= own->released ? 0 : 1;
            if (own->unbound && e->buffers == 0) // nobody else gives it back
                phi_release_unused(key->peer->self, e);
        }
        phi_own_buffer_fini(own);
    }
    key->own.count = 0;
}

bool phi_export_held(const struct phi_self *self, const struct phi_local_export *e)
{
    for (int rank = 0; e->bounce != NULL && rank < self->ranks; rank++)
        for (const struct ph_channel *c = self->table[rank] ? self->table[rank]->channels.first
                                                            : NULL;
             c != NULL; c = c->kept.next)
            if (c->fixed.unbound && c->fixed.local_base == e->export_.allocation.base &&
                !phi_revoke_drained(c))
                return true;
    return false;
}

void phi_export_drop(struct phi_self *self, struct phi_local_export *e)
{
    struct phi_local_export **at = &self->exports.ended;
    for (int rank = 0; rank < self->ranks; rank++)
        if (e->sent[rank])
            return;
    while (*at != NULL && *at != e)
        at = &(*at)->next;
    if (*at == NULL || e->entries > 0 || phi_export_held(self, e))
        return;
    *at = e->next;
    if (e->bounce != NULL && e->bounce->device != NULL && e->bounce->size == PHI_BOUNCE_LARGE)
        self->flags.used -= PHI_BOUNCE_LARGE;
    phi_export_free(e);
}

void phi_release_prune(struct phi_key *key)
{
    const struct phi_agreement *agreement = &key->agreement;
    const bool open = agreement->state != PHI_AGREEMENT_IDLE;
    uint32_t kept = 0;
    if (key->request != NULL)
        return; // names its buffers by number
    for (uint32_t i = 0; i < key->own.count; i++) {
        struct phi_own_buffer own = key->own.list[i];
        if (!own.released || (open && agreement->mine == own.number)) {
            key->own.list[kept++] = own;
            continue;
        }
        for (uint32_t j = 0; j < own.range_count; j++) {
            struct phi_local_export *e = phi_own_range(&own, j)->export_;
            e->entries--;
            phi_export_drop(key->peer->self, e);
        }
        phi_own_buffer_fini(&own);
    }
    key->own.count = kept;
    kept = 0;
    for (uint32_t i = 0; i < key->theirs.count; i++) {
        struct phi_peer_buffer *theirs = &key->theirs.list[i];
        if (!phi_peer_ranges_has(&theirs->ranges, NULL) ||
            (open && agreement->theirs == theirs->number))
            key->theirs.list[kept++] = *theirs;
        else
            phi_peer_buffer_fini(key->peer, theirs);
    }
    key->theirs.count = kept;
}

void phi_release_prune_all(struct phi_peer *peer)
{
    size_t cursor = 0;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys.all, &cursor)) != NULL;)
        phi_release_prune(key);
}
