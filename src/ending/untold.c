// SPDX-License-Identifier: BSD-3-Clause
#include "ending/untold.h"

#include <errno.h>

#include "ending/end.h"
#include "ending/expel.h"
#include "ending/look.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"

static bool is_fence_untold(struct phi_self *self)
{
    return self->end.fenced && !self->end.leaving && !atomic_load(&self->end.fence_told);
}

// Returns the first pair that the application is to be told of, or NULL. any: also a pair by which
// only the peer's streams may be held.
static struct phi_peer *find(struct phi_self *self, bool any)
{
    for (int rank = 0; rank < self->ranks; rank++) {
        struct phi_peer *peer = self->table[rank];
        if (peer != NULL && (phi_peer_is_held(peer) || (any && phi_peer_holds(peer))))
            return peer;
    }
    return NULL;
}

void phi_untold_note(struct phi_self *self)
{
    atomic_store(&self->end.untold, is_fence_untold(self) || find(self, false) != NULL);
}

static int tell(struct phi_self *self, bool any)
{
    if (is_fence_untold(self))
        return phi_fence_fail(self);
    struct phi_peer *peer = find(self, any);
    return peer ? phi_peer_failure(peer) : 0;
}

int phi_untold_answer(struct phi_self *self, int rc)
{
    if (rc != -EINTR && rc != -ETIMEDOUT)
        return rc;
    pthread_mutex_lock(&self->lock);
    const int told = tell(self, rc == -ETIMEDOUT);
    phi_untold_note(self);
    pthread_mutex_unlock(&self->lock);
    return told ? told : rc;
}

void phi_untold_none(struct phi_self *self)
{
    if (self->end.fenced)
        phi_fence_told(self);
    for (int rank = 0; rank < self->ranks; rank++) {
        struct phi_peer *peer = self->table[rank];
        if (peer != NULL && peer->state == PHI_PEER_BROKEN)
            phi_peer_told(peer);
    }
}
