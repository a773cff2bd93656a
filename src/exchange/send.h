// SPDX-License-Identifier: BSD-3-Clause
// Sending an offer: what it tells of, and registering that first.
#ifndef PHI_EXCHANGE_SEND_H
#define PHI_EXCHANGE_SEND_H

#include <stddef.h>
#include <stdint.h>

struct ph_exchange_request;
struct phi_descriptor;
struct phi_peer;

// phi_hello_register (with the lock, given up in between) registers the allocations of these
// descriptors for the peer's link.
int phi_hello_register(struct phi_peer *peer, const struct phi_descriptor *descriptors, size_t n);

// phi_offer_send (with the lock, given up in between) sends the request's offer to a peer, once its
// region is registered.
int phi_offer_send(struct ph_exchange_request *request, struct phi_peer *peer, int64_t deadline);

#endif
