// SPDX-License-Identifier: BSD-3-Clause
#include "service/use.h"

#include "exchange/request.h"
#include "peer/channel.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/peers.h"
#include "release/release.h"

// Whether an exchange that is not finished has a buffer there.
static bool exchanges(const struct phi_peers *peers, uint64_t base)
{
    for (const struct ph_exchange_request *r = peers->requests; r != NULL; r = r->next)
        for (size_t i = 0; i < r->n && !r->abandoned; i++) {
            const struct phi_own_buffer *own =
                phi_key_mine(r->pending[i].key, r->pending[i].number);
            if (own != NULL && !own->released && own->export_->export_.allocation.base == base)
                return true;
        }
    return false;
}

bool phi_peers_use(struct phi_peers *peers, const void *base)
{
    pthread_mutex_lock(&peers->lock);
    bool used = phi_release_pending(peers, (uintptr_t)base) || exchanges(peers, (uintptr_t)base);
    for (int rank = 0; rank < peers->ranks && !used; rank++) {
        const struct phi_peer *peer = peers->table[rank];
        for (struct ph_channel *c = peer ? peer->channels : NULL; c != NULL && !used; c = c->next)
            used = c->local_base == (uintptr_t)base &&
                   (atomic_load(&c->uses.revoked) == 0 || !phi_revoke_drained(c));
    }
    pthread_mutex_unlock(&peers->lock);
    return used;
}
