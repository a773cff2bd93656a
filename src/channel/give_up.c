// SPDX-License-Identifier: BSD-3-Clause
// The end of an exchange whose deadline has passed: what agreement.h asks for, and the search for a
// crossed order.
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"
#include "channel/contact.h"
#include "channel/request.h"

// How long a service thread may take to answer, where the caller's deadline leaves that much.
#define ANSWER_DEADLINE_MS 1000
#define PAUSE_MS           10

static _Atomic uint64_t *peer_slot_word(const struct phi_key *key)
{
    struct phi_segment *segment = key->peer->segment;
    return phi_segment_word(segment, !segment->side, key->slot, key->agreement.round);
}

// Gives up the lock. Returns the next step of the agreement, or a negative result.
static int ask_one(struct phi_key *key, int64_t deadline)
{
    struct phi_peer *peer = key->peer;
    struct phi_node_message request, answer;
    uint32_t round = key->agreement.round, attempt = key->agreement.attempt;
    phi_peer_message(peer, PHI_NODE_TAKEN, &request);
    request.a = key->slot;
    request.b = round;
    int fd;
    pthread_mutex_unlock(&peer->peers->lock);
    int rc = phi_peer_call(peer, &request, &answer, &fd, deadline);
    if (fd >= 0)
        close(fd);
    pthread_mutex_lock(&peer->peers->lock);
    if (rc)
        return rc;
    uint64_t word = atomic_load_explicit(peer_slot_word(key), memory_order_acquire);
    return (int)phi_agreement_told(&key->agreement, round, attempt, answer.a != 0, word);
}

static void ask_all(struct ph_exchange_request *request, int64_t deadline, bool giving_up)
{
    bool unanswered = false;
    for (size_t i = 0; i < request->n; i++) {
        struct phi_pending *pending = &request->pending[i];
        if (pending->state != PHI_PENDING_ASK)
            continue;
        int answer = ask_one(pending->key, deadline);
        // An answer to an older question may be about another buffer: publish finds out, and
        // finishes that round first.
        if (!giving_up && (answer == PHI_AGREEMENT_TAKEN || answer == PHI_AGREEMENT_TIMED_OUT))
            pending->state = PHI_PENDING_PUBLISH;
        else if (answer == PHI_AGREEMENT_TAKEN && pending->key->agreement.mine == pending->number)
            pending->state = PHI_PENDING_OPEN;
        else if (answer == PHI_AGREEMENT_NONSENSE)
            phi_pending_settle(pending,
                               phi_fail(request->peers->report, PH_EPEER,
                                        "rank %d broke the rules of exchange",
                                        pending->key->peer->rank),
                               NULL);
        else if (giving_up)
            phi_pending_settle(pending, -ETIMEDOUT, NULL);
        else
            unanswered = true;
    }
    if (!unanswered)
        return;
    // Asked again until the deadline, but not without a pause.
    phi_peers_follow(request->peers, phi_deadline(PAUSE_MS));
}

// The nearer of the caller's deadline and that of an answer.
static int64_t answer_by(int64_t deadline)
{
    int64_t soon = phi_deadline(ANSWER_DEADLINE_MS);
    return soon < deadline ? soon : deadline;
}

void phi_request_ask(struct ph_exchange_request *request, int64_t deadline)
{
    ask_all(request, answer_by(deadline), false);
}

static void give_up_one(struct phi_pending *pending)
{
    struct phi_key *key = pending->key;
    if (pending->state < PHI_PENDING_LOOK) {
        phi_pending_settle(pending, -ETIMEDOUT, NULL);
    } else if (pending->state == PHI_PENDING_LOOK) {
        uint64_t word = 0;
        uint64_t theirs = atomic_load_explicit(peer_slot_word(key), memory_order_acquire);
        if (phi_agreement_give_up(&key->agreement, theirs, &word) == PHI_AGREEMENT_TAKEN) {
            pending->state = PHI_PENDING_OPEN;
            return;
        }
        struct phi_segment *segment = key->peer->segment;
        phi_segment_put64(
            segment, phi_segment_word(segment, segment->side, key->slot, (uint32_t)(word >> 32)),
            word);
        pending->state = PHI_PENDING_ASK;
    }
}

void phi_request_give_up(struct ph_exchange_request *request, int64_t deadline)
{
    for (size_t i = 0; i < request->n; i++)
        give_up_one(&request->pending[i]);
    ask_all(request, answer_by(deadline), true);
    for (size_t i = 0; i < request->n; i++) {
        struct phi_pending *pending = &request->pending[i];
        if (pending->state != PHI_PENDING_OPEN)
            continue;
        struct phi_key *key = pending->key;
        struct ph_channel *channel =
            phi_key_channel(key, key->agreement.mine, key->agreement.theirs);
        // A miss stays open: the next exchange of the key brings it to its end.
        bool hit = channel != NULL && !pending->finishing;
        pending->concluded = hit;
        phi_pending_settle(pending, hit ? 0 : -ETIMEDOUT, hit ? channel : NULL);
    }
}

// ---- crossed order

uint32_t phi_request_roles(const struct phi_peers *peers, uint64_t rank, uint64_t op)
{
    uint32_t roles = 0;
    for (const struct ph_exchange_request *r = peers->requests; r != NULL; r = r->next)
        for (size_t i = 0; i < r->n; i++)
            if ((uint64_t)r->pending[i].key->peer->rank == rank && r->pending[i].key->op_id == op)
                roles |= 1u << r->pending[i].key->role;
    return roles;
}

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
        if (!ask_next(peers, &hop, answer_by(deadline)))
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
