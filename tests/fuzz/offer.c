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
        uint64_t all = 0;

        HOLD(buffer->ranges.count > 0 && buffer->ranges.count <= PHI_RANGES_MAX);
        for (uint32_t j = 0; j < buffer->ranges.count; j++) {
            const struct phi_peer_range *range = phi_peer_range(&buffer->ranges, j);
            const struct phi_remote_export *e = range->export_;
            const uint64_t whole = e ? e->info.allocation.size : UINT64_MAX;

            HOLD(e || buffer->released);
            HOLD(range->size > 0 && range->size <= whole && range->offset <= whole - range->size);
            HOLD(range->size <= UINT64_MAX - all);
            all += range->size;
        }
        HOLD(buffer->size == all);
        HOLD(buffer->table.ll_max <= PHI_WIDE_PIECE);
        HOLD(buffer->protocol == PH_PROTOCOL_PUT || buffer->protocol == PH_PROTOCOL_GET);
        HOLD(phi_key_theirs(key, buffer->number) == buffer); // not there twice
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    struct pair *pair = pair_open((int)take(&input, 1) & 1, false);
    size_t cursor = 0, told = 0, ranges = 0;

    while (input.left > 0) {
        struct input piece = take_piece(&input);
        uint8_t *bytes = copy_of(piece);

        phi_offer_file(pair->peer, bytes, piece.left);
        free(bytes);
    }
    for (struct phi_key *key; (key = phi_map_next(&pair->peer->keys.all, &cursor));) {
        check_key(key);
        told += key->theirs.count;
        for (uint32_t i = 0; i < key->theirs.count; i++)
            ranges += key->theirs.list[i].ranges.count - 1;
    }
    HOLD(ranges <= size && ranges == pair->peer->keys.ranges);
    HOLD(told <= size && pair->peer->keys.all.count <= 16);
    pair_close(pair);
    return 0;
}
