// SPDX-License-Identifier: BSD-3-Clause
#include "meeting/reap.h"

#include "lane/flag_memory.h"
#include "meeting/attempt.h"
#include "meeting/lives.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/wake.h"
#include "release/imports.h"

// Each function below returns whether it left something that can block because `blocking` is false.
static bool reap_peer(struct phi_peer *peer, bool blocking)
{
    struct phi_imports_look look = {.idle = true, .blocking = blocking};
    struct phi_remote_export *e;
    while ((e = phi_imports_closable(peer, &look)) != NULL)
        phi_imports_close(e);
    return look.later;
}

static bool reap_probe(struct phi_peer *peer, bool blocking)
{
    struct phi_import *probe = peer->trial.probe;
    if (probe == NULL || peer->trial.probing)
        return false;
    if (!blocking && phi_memory_import_blocks(probe))
        return true;
    peer->trial.probe = NULL;
    pthread_mutex_unlock(&peer->self->lock);
    phi_memory_import_close(probe);
    pthread_mutex_lock(&peer->self->lock);
    return false;
}

static bool reap_leaving(struct phi_peer *peer, bool blocking)
{
    bool left = reap_peer(peer, blocking);
    return reap_probe(peer, blocking) || left;
}

static bool reap_former(struct phi_peer *peer, bool blocking)
{
    bool left = reap_peer(peer, blocking);
    left = phi_flag_memory_reap(peer, blocking) || left;
    return reap_probe(peer, blocking) || left;
}

// The peer stays while `reap` gives up the lock, and what follows it on the list is read
// afterwards.
static bool visit(struct phi_peer *peer, bool (*reap)(struct phi_peer *, bool), bool blocking)
{
    peer->life.visitors++;
    bool left = reap(peer, blocking);
    peer->life.visitors--;
    return left;
}

bool phi_reap(struct phi_self *self, bool blocking)
{
    bool left = false;
    pthread_mutex_lock(&self->lock);
    for (int rank = 0; rank < self->ranks; rank++)
        if (self->table[rank] != NULL)
            left =
                visit(self->table[rank], self->end.leaving ? reap_leaving : reap_peer, blocking) ||
                left;
    left = phi_lives_reap(self, blocking) || left;
    for (struct phi_peer *peer = self->lives.former; peer != NULL; peer = peer->life.former)
        left = visit(peer, reap_former, blocking) || left;
    left = phi_attempt_reap(self, blocking) || left;
    phi_service_wake(self);
    pthread_mutex_unlock(&self->lock);
    return left;
}
