// SPDX-License-Identifier: BSD-3-Clause
#include "exchange/send.h"

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>

#include "exchange/fifo.h"
#include "exchange/offer.h"
#include "exchange/pending.h"
#include "exchange/request.h"
#include "lane/flag_memory.h"
#include "lane/staging.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "release/ask.h"

static int give_slot(struct phi_key *key)
{
    struct phi_peer *peer = key->peer;
    if (peer->self->rank > peer->rank || key->slot != PHI_NO_SLOT)
        return 0;
    // Several may have found room for one.
    if (phi_retire_room(peer, true, key->request))
        return -EAGAIN;
    uint32_t slot;
    int rc = phi_retire_slot(peer, &slot);
    return rc ? rc : phi_key_set_slot(key, slot);
}

static size_t collect(struct ph_exchange_request *request, struct phi_peer *peer,
                      struct phi_descriptor *list)
{
    size_t n = 0;
    for (size_t i = 0; i < request->n; i++) {
        struct phi_pending *pending = &request->pending[i];
        if (pending->state != PHI_PENDING_OFFER || pending->key->peer != peer ||
            pending->key->retiring > 0)
            continue;
        int rc = give_slot(pending->key);
        if (rc == -EAGAIN)
            continue;
        if (rc)
            phi_pending_settle(pending, rc, NULL);
        else
            list[n++] = (struct phi_descriptor){pending->key, pending->number};
    }
    return n;
}

static bool has_channel(const struct phi_pending *pending)
{
    for (uint32_t i = 0; i < pending->key->channels.count; i++)
        if (pending->key->channels.list[i]->fixed.own.number == pending->number)
            return true;
    return false;
}

// grow_flags makes flag memory for the channels with a peer that are under way, in any exchange.
static void grow_flags(struct phi_peer *peer, int64_t deadline)
{
    uint32_t n = 0;
    bool bound = false;
    if (!phi_flag_memory_grows(peer))
        return;
    for (const struct ph_exchange_request *r = peer->self->exchanges.first; r != NULL; r = r->next)
        for (size_t i = 0; i < r->n; i++) {
            const struct phi_pending *pending = &r->pending[i];
            if (pending->key->peer != peer || pending->state == PHI_PENDING_DONE ||
                (has_channel(pending) && !pending->tells))
                continue;
            n++;
            const struct phi_own_buffer *own = phi_key_mine(pending->key, pending->number);
            bound = bound || (own != NULL && !own->unbound);
        }
    phi_flag_memory_grow(peer, n, bound, deadline);
}

// One message with everything new for one peer. The lock is given up while it is sent; the keys are
// held by the request.
int phi_offer_send(struct ph_exchange_request *request, struct phi_peer *peer, int64_t deadline)
{
    struct phi_self *self = request->self;
    struct phi_descriptor *list = malloc(request->n * sizeof *list);
    struct phi_writer writer = {0};
    if (list == NULL)
        return phi_fail(self->report, -ENOMEM, "out of memory for an offer of %zu operations",
                        request->n);
    grow_flags(peer, deadline);
    size_t n = collect(request, peer, list);
    const bool tells = n > 0 || phi_flag_memory_owes(peer);
    int rc = n && peer->to.link ? phi_hello_register(peer, list, n) : 0;
    if (rc) {
        free(list);
        return rc;
    }
    uint32_t parts = 0;
    rc = tells ? phi_offer_encode(peer, list, n, &writer, &parts) : 0;
    if (rc)
        phi_fail(self->report, rc, "out of memory for an offer of %zu operations", n);
    if (rc == 0 && tells && !phi_fifo_put(peer, writer.bytes, writer.size)) {
        uint64_t incarnation = peer->incarnation;
        pthread_mutex_unlock(&self->lock);
        rc = phi_mailbox_send(self->mailbox, peer->rank, incarnation, writer.bytes, writer.size,
                              deadline);
        pthread_mutex_lock(&self->lock);
    }
    if (rc == 0 && tells) {
        phi_offer_sent(peer, list, n, parts);
        phi_count(self->counters, offers, 1);
    }
    phi_writer_fini(&writer);
    free(list);
    return rc;
}

static bool is_unregistered(const struct phi_peer *peer, const struct phi_local_export *e)
{
    struct phi_net_target target;
    return !e->sent[peer->rank] && !phi_link_target(peer->to.link, e->id, &target);
}

// Gives the lock up for each range that is to be registered. Its export stays meanwhile: a key that
// the request holds has a buffer in it.
static int register_ranges(struct phi_peer *peer, const struct phi_descriptor *descriptor)
{
    struct phi_self *self = peer->self;
    int rc = 0;
    for (uint32_t i = 0; rc != -ENOMEM; i++) {
        struct phi_own_buffer *own = phi_key_mine(descriptor->key, descriptor->number);
        if (i >= own->range_count)
            break;
        const struct phi_local_export *e = phi_own_range(own, i)->export_;
        if (!is_unregistered(peer, e))
            continue;
        const struct phi_allocation allocation = e->export_.allocation;
        const uint32_t id = e->id;
        pthread_mutex_unlock(&self->lock);
        rc = phi_way_register(&self->net.way, peer->to.link, id, &allocation);
        pthread_mutex_lock(&self->lock);
    }
    return rc;
}

// An allocation that could not be registered is offered without its registration, for good: both
// ranks go by what was offered. A link that has ended meanwhile says so itself.
int phi_hello_register(struct phi_peer *peer, const struct phi_descriptor *descriptors, size_t n)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc != -ENOMEM && phi_staging_may_register(peer); i++)
        rc = register_ranges(peer, &descriptors[i]);
    return rc == -ENOMEM ? rc : 0;
}
