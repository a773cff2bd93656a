// SPDX-License-Identifier: BSD-3-Clause
// Offers: the messages of an exchange. An offer carries descriptors (operation key, slot, buffer
// number, buffer) and the export records of the allocations that they lie in, each record once per
// peer. Descriptors do not speak of rounds: a buffer number of a key means the same buffer for
// ever, so an offer that comes twice does no harm.
#ifndef PHI_EXCHANGE_OFFER_H
#define PHI_EXCHANGE_OFFER_H

#include <stddef.h>
#include <stdint.h>

struct phi_key;
struct phi_peer;
struct phi_writer;

#define PHI_OFFER_MAGIC   0x464f4850u // "PHOF"
#define PHI_OFFER_VERSION 14

// One descriptor to send: own buffer `number` of `key`.
struct phi_descriptor {
    struct phi_key *key;
    uint32_t number;
};

// phi_offer_encode (with the lock) writes the message for one peer. *parts: of which parts of flags
// it tells (lane/flag_memory.h).
int phi_offer_encode(struct phi_peer *peer, const struct phi_descriptor *descriptors, size_t n,
                     struct phi_writer *writer, uint32_t *parts);

// phi_offer_sent (with the lock) marks records, descriptors and parts as known to the peer.
void phi_offer_sent(struct phi_peer *peer, const struct phi_descriptor *descriptors, size_t n,
                    uint32_t parts);

// phi_offer_file (with the lock) checks a message of the peer and files its descriptors under their
// keys. -EBADMSG: the message is malformed and nothing of the bad part was filed.
int phi_offer_file(struct phi_peer *peer, const void *bytes, size_t size);

#endif
