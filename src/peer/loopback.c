// SPDX-License-Identifier: BSD-3-Clause
#include "peer/loopback.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "peer/channel.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "semaphore/words.h"

// Its line has no segment. No operation waits there: it says whether the channel's were all done.
struct loopback {
    struct ph_channel channel; // first: freed as any channel
    struct phi_line line;
};

static struct ph_channel *find(const struct phi_peer *loopback, uint64_t op_id)
{
    for (struct ph_channel *c = loopback->channels; c != NULL; c = c->next)
        if (c->op_id == op_id && atomic_load(&c->status) == 0)
            return c;
    return NULL;
}

// Frees what the application has let go of, and no stream or graph touches.
static void prune(struct phi_peer *loopback)
{
    struct ph_channel **at = &loopback->channels;
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

static struct ph_channel *add(struct phi_peer *loopback, uint64_t op_id)
{
    struct loopback *made = aligned_alloc(_Alignof(struct loopback), sizeof *made);
    if (made == NULL)
        return NULL;
    memset(made, 0, sizeof *made);
    struct ph_channel *channel = &made->channel;
    channel->self = loopback->self;
    channel->peer = loopback;
    channel->op_id = op_id;
    channel->role = PH_ROLE_BOTH;
    channel->unbound = channel->loopback = true;
    channel->protocol_out = channel->protocol_in = PH_PROTOCOL_PUT;
    channel->mine = channel->theirs_line = &made->line;
    channel->next = loopback->channels;
    loopback->channels = channel;
    return channel;
}

int phi_loopback_open(struct phi_self *self, uint64_t op_id, struct ph_channel **out)
{
    if (self->loopback == NULL && (self->loopback = phi_peer_new(self, self->rank)) == NULL)
        return -ENOMEM;
    *out = find(self->loopback, op_id);
    if (*out == NULL) {
        prune(self->loopback);
        *out = add(self->loopback, op_id);
    }
    if (*out == NULL)
        return phi_fail(self->report, -ENOMEM, "out of memory for operation %llu with rank %d",
                        (unsigned long long)op_id, self->rank);
    (*out)->handles++;
    return 0;
}

void phi_loopback_break(struct phi_self *self, int code)
{
    if (self->loopback == NULL)
        return;
    for (struct ph_channel *c = self->loopback->channels; c != NULL; c = c->next) {
        int whole = 0;
        atomic_compare_exchange_strong(&c->status, &whole, code);
    }
}
