// SPDX-License-Identifier: BSD-3-Clause
#include "exchange/spin.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "exchange/fifo.h"
#include "exchange/miss.h"
#include "exchange/pending.h"
#include "exchange/request.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "rules/agreement.h"

// The word of the segment that an operation waits for; NULL: it waits for something else.
struct awaited {
    const _Atomic uint64_t *word;
    enum phi_pending_state state;
    uint32_t round;
    uint64_t taken; // of the peer's offers
};

static struct awaited awaited_by(const struct phi_pending *pending)
{
    const struct phi_key *key = pending->key;
    struct awaited awaited = {.state = pending->state, .round = key->agreement.round};
    if (pending->state == PHI_PENDING_LOOK)
        awaited.word = phi_pending_word(key, false, key->agreement.round);
    else if (pending->state == PHI_PENDING_OPEN)
        awaited.word = phi_confirm_awaited(key);
    else if (pending->state == PHI_PENDING_PUBLISH && key->slot == PHI_NO_SLOT &&
             phi_fifo_serves(key->peer) && !key->peer->fifo.late)
        awaited.word = &phi_peer_theirs(key->peer)->posted; // an offer names the slot
    awaited.taken = key->peer->fifo.taken;
    return awaited;
}

static bool is_there(const struct awaited *awaited)
{
    const uint64_t value = atomic_load_explicit(awaited->word, memory_order_acquire);
    return awaited->state == PHI_PENDING_LOOK   ? phi_agreement_shows(value, awaited->round)
           : awaited->state == PHI_PENDING_OPEN ? phi_confirm_shows(value, awaited->round)
                                                : value != awaited->taken;
}

bool phi_pending_spin(const struct phi_pending *pending, int64_t end)
{
    struct phi_self *self = pending->key->peer->self;
    const struct awaited awaited = awaited_by(pending);
    if (awaited.word == NULL)
        return false;
    const int64_t soon = phi_now() + self->config->spin_us * 1000, until = soon < end ? soon : end;
    pthread_mutex_unlock(&self->lock);
    bool there = false;
    for (unsigned i = 0; !(there = is_there(&awaited)); i++) {
        if (i % 64 == 63 && phi_now() >= until)
            break;
        phi_pause();
    }
    pthread_mutex_lock(&self->lock);
    return there;
}
