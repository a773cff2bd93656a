// SPDX-License-Identifier: BSD-3-Clause
// The end of an exchange whose deadline has passed: what rules/agreement.h asks for.
#include "exchange/give_up.h"

#include <errno.h>
#include <unistd.h>

#include "base/clock.h"
#include "exchange/pending.h"
#include "exchange/request.h"
#include "peer/channel.h"
#include "peer/keys.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/wake.h"
#include "rules/agreement.h"
#include "semaphore/segment.h"

#define PAUSE_MS 10

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
    pthread_mutex_unlock(&peer->self->lock);
    int rc = phi_peer_call(peer, &request, &answer, &fd, deadline);
    if (fd >= 0)
        close(fd);
    pthread_mutex_lock(&peer->self->lock);
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
                               phi_fail(request->self->report, PH_EPEER,
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
    phi_self_follow(request->self, phi_deadline(PAUSE_MS));
}

void phi_request_ask(struct ph_exchange_request *request, int64_t deadline)
{
    ask_all(request, phi_request_answer_by(deadline), false);
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
    ask_all(request, phi_request_answer_by(deadline), true);
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
