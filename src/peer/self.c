// SPDX-License-Identifier: BSD-3-Clause
#include "peer/self.h"

#include <errno.h>
#include <stdlib.h>

#include "peer/peer.h"

static void take_kept(struct phi_peer *peer, struct phi_message *record)
{
    struct phi_capabilities theirs;
    if (record->bytes != NULL &&
        phi_capabilities_decode(&theirs, record->bytes, record->size) == 0) {
        peer->incarnation = record->incarnation;
        peer->theirs = theirs;
        peer->state = PHI_PEER_KNOWN;
    }
    phi_mailbox_message_free(record);
}

struct phi_peer *phi_self_peer(struct phi_self *self, int rank)
{
    if (self->table[rank] == NULL) {
        self->table[rank] = phi_peer_new(self, rank);
        if (self->table[rank] != NULL)
            take_kept(self->table[rank], &self->inbox.records[rank]);
    }
    return self->table[rank];
}

void phi_self_keep(struct phi_self *self, struct phi_message *record)
{
    struct phi_message *kept = &self->inbox.records[record->rank];
    if (kept->bytes == NULL || kept->incarnation < record->incarnation) {
        phi_mailbox_message_free(kept);
        *kept = *record;
        *record = (struct phi_message){0};
    }
}

struct phi_peer *phi_peer_new(struct phi_self *self, int rank)
{
    struct phi_peer *peer = calloc(1, sizeof *peer);
    if (peer == NULL || phi_gate_init(&peer->to.calling)) {
        free(peer);
        phi_fail(self->report, -ENOMEM, "out of memory for rank %d", rank);
        return NULL;
    }
    peer->self = self;
    peer->rank = rank;
    peer->to.socket = peer->to.wake_fd = peer->to.pidfd = -1;
    return peer;
}
