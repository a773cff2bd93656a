// SPDX-License-Identifier: BSD-3-Clause
#include "peer/self.h"

#include <errno.h>
#include <stdlib.h>

#include "peer/peer.h"

struct phi_peer *phi_self_peer(struct phi_self *self, int rank)
{
    if (self->table[rank] == NULL)
        self->table[rank] = phi_peer_new(self, rank);
    return self->table[rank];
}

struct phi_peer *phi_peer_new(struct phi_self *self, int rank)
{
    const size_t channels = (size_t)self->config->channels;
    struct phi_peer *peer = calloc(1, sizeof *peer);
    if (peer == NULL)
        goto no_memory;
    peer->self = self;
    peer->rank = rank;
    peer->to.socket = peer->to.wake_fd = peer->to.pidfd = -1;
    peer->keys.slots = calloc(channels, sizeof *peer->keys.slots);
    peer->keys.slot_lives = calloc(channels, sizeof *peer->keys.slot_lives);
    if (peer->keys.slots == NULL || peer->keys.slot_lives == NULL ||
        phi_gate_init(&peer->to.calling))
        goto free;
    return peer;
free:
    free(peer->keys.slots);
    free(peer->keys.slot_lives);
    free(peer);
no_memory:
    phi_fail(self->report, -ENOMEM, "out of memory for rank %d", rank);
    return NULL;
}
