// SPDX-License-Identifier: BSD-3-Clause
#include "service/use.h"

#include "exchange/request.h"
#include "peer/channel.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "release/release.h"

static bool lies_in(struct phi_own_buffer *own, uint64_t base)
{
    for (uint32_t i = 0; i < own->range_count; i++)
        if (phi_own_range(own, i)->export_->export_.allocation.base == base)
            return true;
    return false;
}

// exchanges says whether an unfinished exchange has a buffer in the allocation at `base`.
static bool exchanges(const struct phi_self *self, uint64_t base)
{
    for (const struct ph_exchange_request *r = self->exchanges.first; r != NULL; r = r->next)
        for (size_t i = 0; i < r->n && !r->abandoned; i++) {
            struct phi_own_buffer *own = phi_key_mine(r->pending[i].key, r->pending[i].number);
            if (own != NULL && !own->released && lies_in(own, base))
                return true;
        }
    return false;
}

bool phi_self_use(struct phi_self *self, const void *base)
{
    pthread_mutex_lock(&self->lock);
    bool used = phi_release_pending(self, (uintptr_t)base) || exchanges(self, (uintptr_t)base);
    for (int rank = 0; rank < self->ranks && !used; rank++) {
        const struct phi_peer *peer = self->table[rank];
        for (struct ph_channel *c = peer ? peer->channels.first : NULL; c != NULL && !used;
             c = c->kept.next)
            used = phi_channel_lies_in(c, (uintptr_t)base) &&
                   (atomic_load(&c->live.uses.revoked) == 0 || !phi_revoke_drained(c));
    }
    pthread_mutex_unlock(&self->lock);
    return used;
}
