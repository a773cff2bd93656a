// SPDX-License-Identifier: BSD-3-Clause
// Offers: what was filed lies inside the peer's allocations, and costs memory in proportion to what
// was sent.
//
// Input: our rank, then offers, each a piece.
#include <stdlib.h>

#include "exchange/offer.h"
#include "fuzz.h"
#include "pair.h"
#include "semaphore/flags.h"

static void check_key(const struct phi_key *key)
{
    HOLD(key->slot == PHI_NO_SLOT || key->peer->keys.slots[key->slot] == key);
    for (uint32_t i = 0; i < key->theirs.count; i++) {
        const struct phi_peer_buffer *buffer = &key->theirs.list[i];
        const uint64_t whole = buffer->export_ ? buffer->export_->info.allocation.size : UINT64_MAX;

        HOLD(buffer->export_ || buffer->released);
        HOLD(buffer->table.lines <= PHI_WIDE_PIECE);
        HOLD(buffer->size > 0 && buffer->size <= whole && buffer->offset <= whole - buffer->size);
        HOLD(buffer->protocol == PH_PROTOCOL_PUT || buffer->protocol == PH_PROTOCOL_GET);
        HOLD(phi_key_theirs(key, buffer->number) == buffer); // not there twice
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    struct pair *pair = pair_open((int)take(&input, 1) & 1, false);
    size_t cursor = 0, told = 0;

    while (input.left > 0) {
        struct input piece = take_piece(&input);
        uint8_t *bytes = copy_of(piece);

        phi_offer_file(pair->peer, bytes, piece.left);
        free(bytes);
    }
    for (struct phi_key *key; (key = phi_map_next(&pair->peer->keys, &cursor));) {
        check_key(key);
        told += key->theirs.count;
    }
    HOLD(told <= size && pair->peer->keys.all.count <= 16);
    pair_close(pair);
    return 0;
}
