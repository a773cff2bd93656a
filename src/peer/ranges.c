// SPDX-License-Identifier: BSD-3-Clause
#include "peer/ranges.h"

#include <errno.h>
#include <stdlib.h>

#include "peer/channel.h"
#include "peer/keys.h"

// The tables of a channel, by end: of its own buffer and of the peer's. The table of an end of one
// range is empty.
struct phi_channel_ranges {
    struct phi_range_entry *entries[2];
    uint64_t *bases;               // of the own allocations behind the first one
    struct phi_peer_range *remote; // of the peer's ranges behind the first one
};

bool phi_peer_ranges_has(const struct phi_peer_ranges *ranges, const struct phi_remote_export *e)
{
    for (uint32_t i = 0; i < ranges->count; i++)
        if (phi_peer_range(ranges, i)->export_ == e)
            return true;
    return false;
}

void phi_peer_ranges_forget(struct phi_peer_ranges *ranges, const struct phi_remote_export *e)
{
    for (uint32_t i = 0; i < ranges->count; i++)
        if (phi_peer_range(ranges, i)->export_ == e)
            phi_peer_range(ranges, i)->export_ = NULL;
}

bool phi_channel_lies_in(const struct ph_channel *channel, uint64_t base)
{
    if (channel->fixed.local_base == base)
        return true;
    for (uint32_t i = 1; i < channel->fixed.own.range_count; i++)
        if (channel->fixed.local_bases[i - 1] == base)
            return true;
    return false;
}

uint8_t *phi_channel_range_at(const struct phi_channel_end *end, uint64_t offset, uint64_t *size)
{
    uint32_t low = 0, high = end->range_count - 1; // the last one that begins at most there
    while (low < high) {
        const uint32_t middle = low + (high - low + 1) / 2;
        if (end->ranges[middle].begin <= offset)
            low = middle;
        else
            high = middle - 1;
    }
    const struct phi_range_entry *entry = &end->ranges[low];
    const uint64_t stop = low + 1 < end->range_count ? end->ranges[low + 1].begin : end->size;
    if (*size > stop - offset)
        *size = stop - offset;
    return (uint8_t *)(uintptr_t)entry->address + (offset - entry->begin);
}

// ---- tables

void phi_ranges_free(struct phi_channel_ranges *ranges)
{
    if (ranges == NULL)
        return;
    free(ranges->entries[0]);
    free(ranges->entries[1]);
    free(ranges->bases);
    free(ranges->remote);
    free(ranges);
}

static struct phi_channel_ranges *make_tables(uint32_t own, uint32_t theirs)
{
    struct phi_channel_ranges *made = calloc(1, sizeof *made);
    if (made == NULL)
        return NULL;
    if (own > 1) {
        made->entries[0] = calloc(own, sizeof *made->entries[0]);
        made->bases = calloc(own - 1, sizeof *made->bases);
    }
    if (theirs > 1) {
        made->entries[1] = calloc(theirs, sizeof *made->entries[1]);
        made->remote = calloc(theirs - 1, sizeof *made->remote);
    }
    if ((own == 1 || (made->entries[0] && made->bases)) &&
        (theirs == 1 || (made->entries[1] && made->remote)))
        return made;
    phi_ranges_free(made);
    return NULL;
}

int phi_ranges_make(struct phi_key *key)
{
    const struct phi_own_buffer *own = phi_key_mine(key, key->agreement.mine);
    const struct phi_peer_buffer *theirs = phi_key_theirs(key, key->agreement.theirs);
    const uint32_t mine = own ? own->range_count : 1, other = theirs ? theirs->ranges.count : 1;
    phi_ranges_free(key->made.ranges); // of a round that failed, whose buffers may have been others
    key->made.ranges = NULL;
    if (mine == 1 && other == 1)
        return 0;
    key->made.ranges = make_tables(mine, other);
    return key->made.ranges ? 0 : -ENOMEM;
}

static void set_own(struct ph_channel *channel, struct phi_own_buffer *own)
{
    struct phi_channel_end *end = &channel->fixed.own;
    struct phi_channel_ranges *tables = channel->kept.ranges;
    uint64_t begin = 0;
    end->address = own->first.address;
    end->size = own->size;
    end->kind = own->first.export_->export_.allocation.kind;
    end->range_count = own->range_count;
    channel->fixed.local_base = own->first.export_->export_.allocation.base;
    if (own->range_count == 1)
        return;
    for (uint32_t i = 0; i < own->range_count; i++) {
        const struct phi_own_range *range = phi_own_range(own, i);
        tables->entries[0][i] = (struct phi_range_entry){begin, (uintptr_t)range->address};
        if (i > 0)
            tables->bases[i - 1] = range->export_->export_.allocation.base;
        begin += range->size;
    }
    end->ranges = tables->entries[0];
    channel->fixed.local_bases = tables->bases;
}

static uint64_t address_of(const struct phi_peer_range *range)
{
    const struct phi_remote_export *e = range->export_;
    return e != NULL && e->import != NULL ? (uintptr_t)e->import->address + range->offset : 0;
}

static void set_theirs(struct ph_channel *channel, const struct phi_peer_buffer *theirs)
{
    struct phi_channel_end *end = &channel->fixed.theirs;
    struct phi_channel_ranges *tables = channel->kept.ranges;
    const struct phi_peer_ranges *ranges = &theirs->ranges;
    bool mapped = true;
    uint64_t begin = 0;
    end->size = theirs->size;
    end->range_count = ranges->count;
    if (ranges->first.export_ != NULL)
        end->kind = ranges->first.export_->info.allocation.kind;
    channel->kept.remote = *ranges;
    channel->fixed.remote_offset = ranges->first.offset;
    for (uint32_t i = 0; i < ranges->count; i++) {
        const struct phi_peer_range *range = phi_peer_range(ranges, i);
        mapped = mapped && address_of(range) != 0;
        if (ranges->count > 1)
            tables->entries[1][i] = (struct phi_range_entry){begin, address_of(range)};
        if (i > 0)
            tables->remote[i - 1] = *range;
        begin += range->size;
    }
    end->address = mapped ? (uint8_t *)(uintptr_t)address_of(&ranges->first) : NULL;
    if (ranges->count == 1)
        return;
    end->ranges = tables->entries[1];
    channel->kept.remote.rest = tables->remote;
}

void phi_ranges_set(struct ph_channel *channel, struct phi_own_buffer *own,
                    const struct phi_peer_buffer *theirs)
{
    struct phi_key *key = channel->kept.key;
    channel->kept.ranges = key->made.ranges;
    key->made.ranges = NULL;
    channel->fixed.ranged = channel->kept.ranges != NULL;
    set_own(channel, own);
    set_theirs(channel, theirs);
}
