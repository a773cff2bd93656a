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
#include "peer/peers.h"

static const struct phi_pending *first_awaited(const struct ph_exchange_request *request)
{
    for (size_t i = 0; i < request->n; i++)
        if (request->pending[i].state != PHI_PENDING_DONE)
            return &request->pending[i];
    return NULL;
}

// A rank that no operation of ours names: its record may lie unread in the store. Gives up the
// lock.
static struct phi_peer *stranger(struct phi_peers *peers, int rank)
{
    struct phi_peer *peer = phi_peers_get(peers, rank);
    if (peer != NULL && peer->state == PHI_PEER_UNKNOWN)
        phi_peers_look(peers, rank);
    return peers->table[rank];
}

// One rank of a chain: `rank` waits for `next`, in operation `op`.
struct hop {
    int rank, next;
    uint64_t op;
    uint64_t call; // of its exchanges the one that waits
};

// Asks the rank that the last one waits for whom its application waits for. Gives up the lock.
// False where it waits for nobody, or is about to do what is awaited of it.
static bool ask_next(struct phi_peers *peers, struct hop *hop, int64_t deadline)
{
    struct phi_peer *peer = stranger(peers, hop->next);
    if (peer != NULL && phi_contact_due(peer))
        phi_contact_prepare(peer, deadline);
    if (peer == NULL || peer->state != PHI_PEER_READY || peer->suspect)
        return false;
    struct phi_node_message request, answer;
    int fd;
    phi_peer_message(peer, PHI_NODE_WAITING, &request);
    request.a = (uint64_t)hop->rank + 1;
    request.b = hop->op;
    peer->visitors++; // no key of it is ours
    pthread_mutex_unlock(&peers->lock);
    int rc = phi_peer_call(peer, &request, &answer, &fd, deadline);
    if (fd >= 0)
        close(fd);
    pthread_mutex_lock(&peers->lock);
    peer->visitors--;
    if (rc || answer.a == 0 || answer.a > (uint64_t)peers->ranks)
        return false;
    *hop = (struct hop){hop->next, (int)answer.a - 1, answer.b, answer.c};
    return true;
}

// *seen: the answers, as one number.
static bool follow(struct ph_exchange_request *request, int64_t deadline, char *chain, size_t size,
                   uint64_t *seen)
{
    struct phi_peers *peers = request->peers;
    const struct phi_pending *own = first_awaited(request);
    if (own == NULL || !phi_pending_waits(own))
        return false;
    struct hop hop = {peers->rank, own->key->peer->rank, own->key->op_id, 0};
    size_t used = 0;
    *seen = 0;
    for (int i = 0; i < peers->ranks && hop.next != peers->rank; i++) {
        if (!ask_next(peers, &hop, phi_request_answer_by(deadline)))
            return false;
        if (used < size)
            used += (size_t)snprintf(chain + used, size - used,
                                     "%srank %d waits for rank %d (operation %llu)", i ? ", " : "",
                                     hop.rank, hop.next, (unsigned long long)hop.op);
        *seen = phi_hash(*seen, phi_hash(phi_hash((uint64_t)hop.next, hop.op), hop.call));
    }
    // Not where what the last one waits for is under way here: it will come.
    return hop.next == peers->rank && !phi_request_roles(peers, (uint64_t)hop.rank, hop.op);
}

// The answers are of different times: one rank may have gone on before the next one was asked.
// Where they are the same twice, all of them waited between the two.
bool phi_request_crossed(struct ph_exchange_request *request, int64_t deadline, char *chain,
                         size_t size)
{
    uint64_t first, again;
    return !request->peers->many_threads && follow(request, deadline, chain, size, &first) &&
           follow(request, deadline, chain, size, &again) && first == again;
}
