// SPDX-License-Identifier: BSD-3-Clause
// One operation of an exchange, step by step.
#include "exchange/steps.h"

#include <errno.h>

#include "ending/look.h"
#include "exchange/fifo.h"
#include "exchange/miss.h"
#include "exchange/pending.h"
#include "exchange/request.h"
#include "meeting/path.h"
#include "peer/channel.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "release/ask.h"
#include "release/reply.h"
#include "release/start.h"
#include "rules/agreement.h"
#include "semaphore/segment.h"

// ---- one step at a time; each returns true where another may follow at once

static void store_word(struct phi_key *key, uint64_t word)
{
    phi_segment_put64(key->peer->segment, phi_pending_word(key, true, (uint32_t)(word >> 32)),
                      word);
}

static bool fail_for_slots(struct phi_pending *pending)
{
    struct phi_key *key = pending->key;
    char text[320];
    phi_retire_refuse(key);
    phi_retire_explain(key->peer, text, sizeof text);
    int rc = phi_fail(key->peer->self->report, -ENOSPC,
                      "no agreement slot left for operation %llu with rank %d: %s",
                      (unsigned long long)key->op_id, key->peer->rank, text);
    phi_pending_settle(pending, rc, NULL);
    return true;
}

static bool step_offer(struct phi_pending *pending, const struct phi_own_buffer *own)
{
    struct phi_key *key = pending->key;
    struct phi_peer *peer = key->peer;
    pending->blocked = false;
    if (own->offered) {
        pending->state = PHI_PENDING_PUBLISH;
        return true;
    }
    int rc = key->retiring > 0 ? -EAGAIN : 0;
    if (rc == 0 && peer->self->rank < peer->rank && key->slot == PHI_NO_SLOT)
        rc = phi_retire_room(peer, true, key->request);
    pending->blocked = rc == -EAGAIN;
    if (rc != -ENOSPC)
        return false;
    return fail_for_slots(pending);
}

static bool step_publish(struct phi_pending *pending, const struct phi_own_buffer *own)
{
    struct phi_key *key = pending->key;
    // Both ranks have dropped the key meanwhile: it begins anew.
    if (!own->offered) {
        pending->state = PHI_PENDING_OFFER;
        return true;
    }
    if (key->slot == PHI_NO_SLOT)
        phi_fifo_take(key->peer);
    phi_pending_wants(pending, key->slot == PHI_NO_SLOT);
    if (key->slot == PHI_NO_SLOT && (phi_retire_all_held(key->peer) || phi_retire_refused(key)))
        return fail_for_slots(pending);
    if (key->slot == PHI_NO_SLOT)
        return false; // the lower rank's offer names it
    if (key->retiring > 0)
        return false; // the peer must not come to another round than it is asked about
    uint64_t word;
    switch (phi_agreement_publish(&key->agreement, pending->number, &word)) {
    case PHI_AGREEMENT_STORE:
        store_word(key, word);
        pending->state = PHI_PENDING_LOOK;
        break;
    case PHI_AGREEMENT_ASK:
        store_word(key, word);
        pending->state = PHI_PENDING_ASK;
        break;
    case PHI_AGREEMENT_FINISH:
        pending->finishing = true;
        pending->state = PHI_PENDING_OPEN;
        break;
    default: // RESUME
        pending->state = PHI_PENDING_OPEN;
        break;
    }
    return true;
}

static bool step_peer(struct phi_pending *pending, const struct phi_own_buffer *own)
{
    struct phi_peer *peer = pending->key->peer;
    phi_pending_wants(pending, peer->state != PHI_PEER_READY);
    if (peer->state == PHI_PEER_READY) {
        pending->state = own->offered ? PHI_PENDING_PUBLISH : PHI_PENDING_OFFER;
        return true;
    }
    if (!peer->contact.unreachable)
        return false;
    const struct phi_capabilities *mine = &peer->self->mine;
    int rc =
        phi_fail(peer->self->report, PH_ENOPATH,
                 "no path from rank %d on %s to rank %d on %s for operation %llu: ipc: %s; net: %s",
                 peer->self->rank, mine->host, peer->rank, peer->theirs.host,
                 (unsigned long long)pending->key->op_id,
                 phi_reason_text(phi_contact_against(peer, true, PHI_KIND_HOST)),
                 phi_reason_text(peer->contact.why));
    phi_pending_settle(pending, rc, NULL);
    return true;
}

static bool step_open(struct phi_pending *pending, struct phi_remote_export **import)
{
    struct phi_key *key = pending->key;
    struct ph_channel *channel = phi_key_channel(key, key->agreement.mine, key->agreement.theirs);
    if (channel == NULL)
        return phi_pending_miss(pending, import);
    key->request->hits += !pending->finishing;
    phi_pending_conclude(pending, 0, channel);
    return true;
}

static bool step_look(struct phi_pending *pending, struct phi_remote_export **import)
{
    struct phi_key *key = pending->key;
    if (phi_agreement_look(&key->agreement, phi_pending_peer_word(key)) != PHI_AGREEMENT_TAKEN)
        return false;
    pending->state = PHI_PENDING_OPEN;
    return step_open(pending, import);
}

// own: of a state up to PHI_PENDING_PUBLISH.
static bool step_state(struct phi_pending *pending, const struct phi_own_buffer *own,
                       struct phi_remote_export **import)
{
    switch (pending->state) {
    case PHI_PENDING_PEER:
        if (!step_peer(pending, own) || pending->state != PHI_PENDING_PUBLISH)
            return pending->state != PHI_PENDING_PEER;
        return step_publish(pending, own);
    case PHI_PENDING_OFFER:
        return step_offer(pending, own);
    case PHI_PENDING_PUBLISH:
        return step_publish(pending, own);
    case PHI_PENDING_LOOK:
        return step_look(pending, import);
    case PHI_PENDING_OPEN:
        return step_open(pending, import);
    default:
        return false;
    }
}

// True where more may follow at once.
static bool step(struct phi_pending *pending, struct phi_remote_export **import)
{
    struct phi_peer *peer = pending->key->peer;
    const struct phi_own_buffer *own = NULL;
    if (pending->state <= PHI_PENDING_PUBLISH) {
        own = phi_key_mine(pending->key, pending->number);
        pending->renews = own->released && own->unbound;
        if (pending->renews)
            return false;
        // Released before its round began: then there is none.
        if (own->released) {
            phi_pending_settle(pending, phi_release_fail(pending->key), NULL);
            return true;
        }
    }
    // A peer that came to this round and left right afterwards has come all the same.
    if ((peer->state != PHI_PEER_BROKEN || pending->state >= PHI_PENDING_LOOK) &&
        step_state(pending, own, import))
        return true;
    if (peer->state != PHI_PEER_BROKEN)
        return false;
    phi_pending_settle(pending, phi_peer_failure(peer), NULL);
    return true;
}

bool phi_pending_carry(struct phi_pending *pending, struct phi_remote_export **import)
{
    *import = NULL;
    while (pending->state != PHI_PENDING_DONE) {
        const uint8_t before = pending->state;
        *import = NULL;
        if (!step(pending, import))
            return false;
        if (before < PHI_PENDING_LOOK &&
            (pending->state == PHI_PENDING_LOOK || pending->state == PHI_PENDING_ASK))
            return true;
    }
    return false;
}
