// SPDX-License-Identifier: BSD-3-Clause
#include "peer/loopback.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "peer/channel.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "semaphore/words.h"

// A channel to this rank itself. Its line is in no segment. No operation waits there; the line says
// whether the channel's operations were all done.
struct loopback {
    struct ph_channel channel; // first: freed as any channel
    struct phi_line line;
};

static struct ph_channel *find(const struct phi_peer *loopback, uint64_t op_id)
{
    for (struct ph_channel *c = loopback->channels.first; c != NULL; c = c->kept.next)
        if (c->op_id == op_id && atomic_load(&c->live.status) == 0)
            return c;
    return NULL;
}

// Frees the channels that the application has let go of and that no stream or graph touches.
static void drop_unused(struct phi_peer *loopback)
{
    struct ph_channel **at = &loopback->channels.first;
    while (*at != NULL) {
        struct ph_channel *channel = *at;
        if (channel->kept.handles > 0 || !phi_revoke_drained(channel)) {
            at = &channel->kept.next;
            continue;
        }
        *at = channel->kept.next;
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
    channel->fixed.role = PH_ROLE_BOTH;
    channel->fixed.unbound = channel->fixed.loopback = true;
    channel->fixed.protocol[1] = channel->fixed.protocol[0] = PH_PROTOCOL_PUT;
    channel->fixed.own.line = channel->fixed.theirs.line = &made->line;
    channel->kept.next = loopback->channels.first;
    loopback->channels.first = channel;
    return channel;
}

int phi_loopback_open(struct phi_self *self, uint64_t op_id, struct ph_channel **out)
{
    if (self->lives.loopback == NULL &&
        (self->lives.loopback = phi_peer_new(self, self->rank)) == NULL)
        return -ENOMEM;
    *out = find(self->lives.loopback, op_id);
    if (*out == NULL) {
        drop_unused(self->lives.loopback);
        *out = add(self->lives.loopback, op_id);
    }
    if (*out == NULL)
        return phi_fail(self->report, -ENOMEM, "out of memory for operation %llu with rank %d",
                        (unsigned long long)op_id, self->rank);
    (*out)->kept.handles++;
    return 0;
}

void phi_loopback_break(struct phi_self *self, int code)
{
    if (self->lives.loopback == NULL)
        return;
    for (struct ph_channel *c = self->lives.loopback->channels.first; c != NULL; c = c->kept.next) {
        int whole = 0;
        atomic_compare_exchange_strong(&c->live.status, &whole, code);
    }
}
