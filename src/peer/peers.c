// SPDX-License-Identifier: BSD-3-Clause
#include "peer/peers.h"

#include <errno.h>
#include <stdlib.h>

#include "peer/peer.h"

struct phi_peer *phi_peers_get(struct phi_peers *peers, int rank)
{
    if (peers->table[rank] == NULL)
        peers->table[rank] = phi_peer_new(peers, rank);
    return peers->table[rank];
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
