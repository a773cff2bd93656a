// SPDX-License-Identifier: BSD-3-Clause
#include "peer/self.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "peer/channel.h"
#include "peer/peer.h"
#include "peer/peers.h"
#include "semaphore/words.h"

// Its line has no segment. No operation waits there: it says whether the channel's were all done.
struct self {
    struct ph_channel channel; // first: freed as any channel
    struct phi_line line;
};

static struct ph_channel *find(const struct phi_peer *self, uint64_t op_id)
{
    for (struct ph_channel *c = self->channels; c != NULL; c = c->next)
        if (c->op_id == op_id && atomic_load(&c->status) == 0)
            return c;
    return NULL;
}

// Frees what the application has let go of, and no stream or graph touches.
static void prune(struct phi_peer *self)
{
    struct ph_channel **at = &self->channels;
    while (*at != NULL) {
        struct ph_channel *channel = *at;
        if (channel->handles > 0 || !phi_revoke_drained(channel)) {
            at = &channel->next;
            continue;
        }
        *at = channel->next;
        free(channel);
    }
}

static struct ph_channel *add(struct phi_peer *self, uint64_t op_id)
{
    struct self *made = aligned_alloc(_Alignof(struct self), sizeof *made);
    if (made == NULL)
        return NULL;
    memset(made, 0, sizeof *made);
    struct ph_channel *channel = &made->channel;
    channel->peers = self->peers;
    channel->peer = self;
    channel->op_id = op_id;
    channel->role = PH_ROLE_BOTH;
    channel->unbound = channel->self = true;
    channel->protocol_out = channel->protocol_in = PH_PROTOCOL_PUT;
    channel->mine = channel->theirs_line = &made->line;
    channel->next = self->channels;
    self->channels = channel;
    return channel;
}

int phi_self_open(struct phi_peers *peers, uint64_t op_id, struct ph_channel **out)
{
    if (peers->self == NULL && (peers->self = phi_peer_new(peers, peers->rank)) == NULL)
        return -ENOMEM;
    *out = find(peers->self, op_id);
    if (*out == NULL) {
        prune(peers->self);
        *out = add(peers->self, op_id);
    }
    if (*out == NULL)
        return phi_fail(peers->report, -ENOMEM, "out of memory for operation %llu with rank %d",
                        (unsigned long long)op_id, peers->rank);
    (*out)->handles++;
    return 0;
}

void phi_self_break(struct phi_peers *peers, int code)
{
    if (peers->self == NULL)
        return;
    for (struct ph_channel *c = peers->self->channels; c != NULL; c = c->next) {
        int whole = 0;
        atomic_compare_exchange_strong(&c->status, &whole, code);
    }
}
