// SPDX-License-Identifier: BSD-3-Clause
// Offers: what was filed lies inside the peer's allocations, and costs memory in proportion to what
// was sent.
//
// Input: our rank, then offers, each a piece.
#include <stdlib.h>

#include "channel/offer.h"
#include "fuzz.h"
#include "pair.h"

enum { GAPS_MOST = 1 << 17 };

static size_t check_key(const struct phi_key *key)
{
    size_t told = 0;

    for (uint32_t i = 0; i < key->theirs_count; i++) {
        const struct phi_peer_buffer *buffer = &key->theirs[i];

        if (!buffer->export_)
            continue;
        told++;
        HOLD(buffer->size > 0 && buffer->size <= buffer->export_->info.allocation.size &&
             buffer->offset <= buffer->export_->info.allocation.size - buffer->size);
        HOLD(buffer->protocol == PH_PROTOCOL_PUT || buffer->protocol == PH_PROTOCOL_GET);
    }
    HOLD(key->slot == PHI_NO_SLOT || key->peer->slots[key->slot] == key);
    return key->theirs_count - told;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    struct pair *pair = pair_open((int)take(&input, 1) & 1, false);
    size_t cursor = 0, gaps = 0;

    while (input.left > 0) {
        struct input piece = take_piece(&input);
        uint8_t *bytes = copy_of(piece);

        phi_offer_file(pair->peer, bytes, piece.left);
        free(bytes);
    }
    for (struct phi_key *key; (key = phi_map_next(&pair->peer->keys, &cursor));)
        gaps += check_key(key);
    HOLD(gaps <= GAPS_MOST && pair->peer->keys.count <= 16);
    pair_close(pair);
    return 0;
}
