// SPDX-License-Identifier: BSD-3-Clause
// Offers between connected ranks of one node: through a FIFO in each direction of their segment,
// and not through the store. What does not fit goes through the store, as all does before they are
// connected and between nodes. Offers may come in any order but for one thing: an export is told of
// before, or with, the first descriptor that names it. So nothing is put here while the peer has
// not taken what the store has for it, and what is here is taken before what comes by the store.
#ifndef PHI_EXCHANGE_FIFO_H
#define PHI_EXCHANGE_FIFO_H

#include <stdbool.h>
#include <stddef.h>

struct phi_peer;

// phi_fifo_serves: whether there is one between this rank and a peer, or NULL, that is connected.
bool phi_fifo_serves(const struct phi_peer *peer);

// phi_fifo_put (with the lock) hands an offer over and wakes the peer. False: it is for the store.
bool phi_fifo_put(struct phi_peer *peer, const void *bytes, size_t size);

// phi_fifo_untaken (with the lock) says whether the peer has not taken all of our offers.
bool phi_fifo_untaken(const struct phi_peer *peer);

// phi_fifo_take (with the lock) files the offers that are there. An offer for which there is no
// memory stays in the FIFO, and peer->fifo.late says so. A message that is no offer ends the use of
// the FIFO.
void phi_fifo_take(struct phi_peer *peer);

#endif
