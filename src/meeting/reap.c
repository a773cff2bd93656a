// SPDX-License-Identifier: BSD-3-Clause
#include "meeting/reap.h"

#include "lane/flag_memory.h"
#include "meeting/trial.h"
#include "meeting/lives.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/wake.h"
#include "release/imports.h"

// Each function below returns whether it left something that can block because `blocking` is false.
static bool reap_imports(struct phi_peer *peer, bool blocking)
{
    struct phi_imports_look look = {.idle = true, .blocking = blocking};
    struct phi_remote_export *e;
    while ((e = phi_imports_closable(peer, &look)) != NULL)
        phi_imports_close(e);
    return look.later;
}

static bool reap_peer(struct phi_peer *peer, bool blocking)
{
    bool left = reap_imports(peer, blocking);
    return phi_trial_reap(peer, peer->self->end.leaving, blocking) || left;
}

static bool reap_former(struct phi_peer *peer, bool blocking)
{
    bool left = reap_imports(peer, blocking);
    left = phi_flag_memory_reap(peer, blocking) || left;
    return phi_trial_reap(peer, true, blocking) || left;
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
            left = visit(self->table[rank], reap_peer, blocking) || left;
    left = phi_lives_reap(self, blocking) || left;
    for (struct phi_peer *peer = self->lives.former; peer != NULL; peer = peer->life.former)
        left = visit(peer, reap_former, blocking) || left;
    left = phi_trial_reap_former(self, blocking) || left;
    phi_service_wake(self);
    pthread_mutex_unlock(&self->lock);
    return left;
}
