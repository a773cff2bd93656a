// SPDX-License-Identifier: BSD-3-Clause
#include "peer/peers.h"

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

struct phi_peer *phi_peers_get(struct phi_peers *peers, int rank)
{
    if (peers->table[rank] == NULL) {
        peers->table[rank] = phi_peer_new(peers, rank);
        if (peers->table[rank] != NULL)
            take_kept(peers->table[rank], &peers->records[rank]);
    }
    return peers->table[rank];
}

void phi_peers_keep(struct phi_peers *peers, struct phi_message *record)
{
    struct phi_message *kept = &peers->records[record->rank];
    if (kept->bytes == NULL || kept->incarnation < record->incarnation) {
        phi_mailbox_message_free(kept);
        *kept = *record;
        *record = (struct phi_message){0};
    }
}

struct phi_peer *phi_peer_new(struct phi_peers *peers, int rank)
{
    struct phi_peer *peer = calloc(1, sizeof *peer);
    if (peer == NULL || phi_gate_init(&peer->calling)) {
        free(peer);
        phi_fail(peers->report, -ENOMEM, "out of memory for rank %d", rank);
        return NULL;
    }
    peer->peers = peers;
    peer->rank = rank;
    peer->socket = peer->wake_fd = peer->pidfd = -1;
    return peer;
}
