// SPDX-License-Identifier: BSD-3-Clause
#include "exchange/crossed.h"

#include <stdio.h>
#include <unistd.h>

#include "base/random.h"
#include "exchange/inbox.h"
#include "exchange/pending.h"
#include "exchange/request.h"
#include "meeting/path.h"
#include "meeting/prepare.h"
#include "peer/keys.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"

static const struct phi_pending *first_awaited(const struct ph_exchange_request *request)
{
    for (size_t i = 0; i < request->n; i++)
        if (request->pending[i].state != PHI_PENDING_DONE)
            return &request->pending[i];
    return NULL;
}

// A rank that no operation of ours names: its record may lie unread in the store. Gives up the
// lock.
static struct phi_peer *stranger(struct phi_self *self, int rank)
{
    struct phi_peer *peer = phi_self_peer(self, rank);
    if (peer != NULL && peer->state == PHI_PEER_UNKNOWN)
        phi_self_look(self, rank);
    return self->table[rank];
}

// One rank of a chain: `rank` waits for `next`, in operation `op`.
struct hop {
    int rank, next;
    uint64_t op;
    uint64_t call; // of its exchanges the one that waits
};

// Asks the rank that the last one waits for whom its application waits for. Gives up the lock.
// False where it waits for nobody, or is about to do what is awaited of it.
static bool ask_next(struct phi_self *self, struct hop *hop, int64_t deadline)
{
    struct phi_peer *peer = stranger(self, hop->next);
    if (peer != NULL && phi_contact_due(peer))
        phi_contact_prepare(peer, deadline);
    if (peer == NULL || peer->state != PHI_PEER_READY || peer->pulse.suspect)
        return false;
    struct phi_node_message request, answer;
    int fd;
    phi_peer_message(peer, PHI_NODE_WAITING, &request);
    request.a = (uint64_t)hop->rank + 1;
    request.b = hop->op;
    peer->life.visitors++; // no key of it is ours
    pthread_mutex_unlock(&self->lock);
    int rc = phi_peer_call(peer, &request, &answer, &fd, deadline);
    if (fd >= 0)
        close(fd);
    pthread_mutex_lock(&self->lock);
    peer->life.visitors--;
    if (rc || answer.a == 0 || answer.a > (uint64_t)self->ranks)
        return false;
    *hop = (struct hop){hop->next, (int)answer.a - 1, answer.b, answer.c};
    return true;
}

// *seen: the answers, as one number.
static bool follow(struct ph_exchange_request *request, int64_t deadline, char *chain, size_t size,
                   uint64_t *seen)
{
    struct phi_self *self = request->self;
    const struct phi_pending *own = first_awaited(request);
    if (own == NULL || !phi_pending_waits(own))
        return false;
    struct hop hop = {self->rank, own->key->peer->rank, own->key->op_id, 0};
    size_t used = 0;
    *seen = 0;
    for (int i = 0; i < self->ranks && hop.next != self->rank; i++) {
        if (!ask_next(self, &hop, phi_request_answer_by(deadline)))
            return false;
        if (used < size)
            used += (size_t)snprintf(chain + used, size - used,
                                     "%srank %d waits for rank %d (operation %llu)", i ? ", " : "",
                                     hop.rank, hop.next, (unsigned long long)hop.op);
        *seen = phi_hash(*seen, phi_hash(phi_hash((uint64_t)hop.next, hop.op), hop.call));
    }
    // It is no circle if the operation for which the last rank waits is under way here: it will
    // come.
    return hop.next == self->rank && !phi_request_roles(self, (uint64_t)hop.rank, hop.op);
}

// The answers are of different times: one rank may have gone on before the next one was asked. If
// the answers are the same twice, all ranks waited between the two looks.
bool phi_request_crossed(struct ph_exchange_request *request, int64_t deadline, char *chain,
                         size_t size)
{
    uint64_t first, again;
    return !request->self->exchanges.many_threads &&
           follow(request, deadline, chain, size, &first) &&
           follow(request, deadline, chain, size, &again) && first == again;
}
