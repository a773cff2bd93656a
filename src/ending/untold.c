// SPDX-License-Identifier: BSD-3-Clause
#include "ending/untold.h"

#include <errno.h>

#include "ending/end.h"
#include "ending/expel.h"
#include "ending/look.h"
#include "peer/peer.h"
#include "peer/peers.h"
#include "peer/side.h"

static bool is_fence_untold(struct phi_peers *peers)
{
    return peers->fenced && !peers->leaving && !atomic_load(&peers->fence_told);
}

// The first pair to be told of, or NULL. any: also one by which only the peer's streams may be
// held.
static struct phi_peer *find(struct phi_peers *peers, bool any)
{
    for (int rank = 0; rank < peers->ranks; rank++) {
        struct phi_peer *peer = peers->table[rank];
        if (peer != NULL && (phi_peer_is_held(peer) || (any && phi_peer_holds(peer))))
            return peer;
    }
    return NULL;
}

void phi_untold_note(struct phi_peers *peers)
{
    atomic_store(&peers->untold, is_fence_untold(peers) || find(peers, false) != NULL);
}

static int tell(struct phi_peers *peers, bool any)
{
    if (is_fence_untold(peers))
        return phi_fence_fail(peers);
    struct phi_peer *peer = find(peers, any);
    return peer ? phi_peer_failure(peer) : 0;
}

int phi_untold_answer(struct phi_peers *peers, int rc)
{
    if (rc != -EINTR && rc != -ETIMEDOUT)
        return rc;
    pthread_mutex_lock(&peers->lock);
    const int told = tell(peers, rc == -ETIMEDOUT);
    phi_untold_note(peers);
    pthread_mutex_unlock(&peers->lock);
    return told ? told : rc;
}

void phi_untold_none(struct phi_peers *peers)
{
    if (peers->fenced)
        phi_fence_told(peers);
    for (int rank = 0; rank < peers->ranks; rank++) {
        struct phi_peer *peer = peers->table[rank];
        if (peer != NULL && peer->state == PHI_PEER_BROKEN)
            phi_peer_told(peer);
    }
}
