// SPDX-License-Identifier: BSD-3-Clause
// A hello in bytes. Pure.
#ifndef PHI_PEER_HELLO_WIRE_H
#define PHI_PEER_HELLO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/net.h"

struct phi_writer;

#define PHI_HELLO_VERSION 8 // the version of all that goes over a link, too

// The words of a pair that is staged (lane/staging.h): the most bytes that a record may have, the
// size and the region of the memory, and whether memory of the rank is registered. All are 0 in
// other pairs.
struct phi_stage_words {
    uint32_t chunk;
    bool registers;
    uint64_t size;
    struct phi_net_target target;
};

struct phi_hello_words {
    uint32_t version, reason; // enum phi_reason: why there is no link
    uint64_t nonce;
    uint32_t ranks, channels;
    struct phi_net_wire wire;
    uint32_t rails;
    uint8_t address[PHI_NET_ADDRESS_MAX];
    size_t address_size;
    struct phi_stage_words stage;
};

void phi_hello_encode(const struct phi_hello_words *words, struct phi_writer *writer);

// phi_hello_decode returns 0 or -EBADMSG. From a hello of another version it reads only the version
// and the reason.
int phi_hello_decode(const void *bytes, size_t size, struct phi_hello_words *words);

// phi_hello_is tells a hello from an offer.
bool phi_hello_is(const void *bytes, size_t size);

#endif
