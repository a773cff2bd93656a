// SPDX-License-Identifier: BSD-3-Clause
// One operation of an exchange: how it is settled, and what it waits for. With the lock held.
#ifndef PHI_EXCHANGE_PENDING_H
#define PHI_EXCHANGE_PENDING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "peer/keys.h"
#include "peer/peer.h"
#include "semaphore/segment.h"

struct ph_channel;
struct phi_self;
struct phi_pending;

// phi_pending_settle ends one with a result.
void phi_pending_settle(struct phi_pending *pending, int result, struct ph_channel *channel);

// phi_pending_conclude ends the open round of one: an older round makes way for ours, ours settles.
void phi_pending_conclude(struct phi_pending *pending, int result, struct ph_channel *channel);

// phi_pending_waits tells whether one waits for the peer's application to come to its round, which
// has not: whatever thread asks, with the lock.
bool phi_pending_waits(const struct phi_pending *pending);

// phi_pending_again ends the open round of one without a result: it goes on to the next.
void phi_pending_again(struct phi_pending *pending);

// phi_pending_wants keeps self->inbox.wanted in step.
void phi_pending_wants(struct phi_pending *pending, bool wants);

// phi_request_roles tells in which roles (1 << role of this rank; 0: none) an operation with a rank
// is in an exchange under way.
uint32_t phi_request_roles(const struct phi_self *self, uint64_t rank, uint64_t op);

// phi_request_answer_by: until when an answer of a peer is awaited, before `deadline`.
int64_t phi_request_answer_by(int64_t deadline);

// phi_pending_word: the word of a key's slot in which a side publishes its number. Inline, as each
// hit looks there.
static inline _Atomic uint64_t *phi_pending_word(const struct phi_key *key, bool mine,
                                                 uint32_t round)
{
    const struct phi_segment *segment = key->peer->segment;
    return phi_segment_word(segment, mine ? segment->side : !segment->side, key->slot, round);
}

// phi_pending_peer_word: what the peer has published there for the key's round.
static inline uint64_t phi_pending_peer_word(const struct phi_key *key)
{
    // Acquire: pairs with the release store of the peer's number.
    return atomic_load_explicit(phi_pending_word(key, false, key->agreement.round),
                                memory_order_acquire);
}

#endif
