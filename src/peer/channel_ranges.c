// SPDX-License-Identifier: BSD-3-Clause
#include "peer/channel_ranges.h"

#include <errno.h>
#include <stdlib.h>

#include "peer/channel.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/ranges.h"
#include "peer/self.h"
#include "transport/range_table.h"

static uint32_t entries_of(uint32_t ranges)
{
    return ranges > 1 ? ranges : 0;
}

static struct phi_channel_ranges *make(uint32_t own, uint32_t theirs)
{
    struct phi_channel_ranges *made =
        calloc(1, sizeof *made + ((size_t)own + theirs) * sizeof made->entries[0]);
    if (made == NULL)
        return NULL;
    made->count[0] = own;
    made->count[1] = theirs;
    made->bases = own ? calloc(own, sizeof *made->bases) : NULL;
    made->remote = theirs ? calloc(theirs, sizeof *made->remote) : NULL;
    if ((made->bases || own == 0) && (made->remote || theirs == 0))
        return made;
    phi_ranges_free(made);
    return NULL;
}

static void fill_own(struct phi_channel_ranges *tables, struct phi_own_buffer *own)
{
    uint64_t begin = 0;
    for (uint32_t i = 0; i < tables->count[0]; i++) {
        const struct phi_own_range *range = phi_own_range(own, i);
        tables->entries[i] = (struct phi_range_entry){begin, (uintptr_t)range->address};
        if (i > 0)
            tables->bases[i - 1] = range->export_->export_.allocation.base;
        begin += range->size;
    }
}

// The address of a range of the peer's in this process, or 0.
static uint64_t address_of(const struct phi_peer_range *range)
{
    const struct phi_remote_export *e = range->export_;
    return e != NULL && e->import != NULL ? (uintptr_t)e->import->address + range->offset : 0;
}

static void fill_theirs(struct phi_channel_ranges *tables, const struct phi_peer_ranges *ranges)
{
    struct phi_range_entry *entries = tables->entries + tables->count[0];
    uint64_t begin = 0;
    for (uint32_t i = 0; i < tables->count[1]; i++) {
        const struct phi_peer_range *range = phi_peer_range(ranges, i);
        entries[i] = (struct phi_range_entry){begin, address_of(range)};
        if (i > 0)
            tables->remote[i - 1] = *range;
        begin += range->size;
    }
}

static bool is_host(uint8_t kind)
{
    return kind == PHI_KIND_HOST;
}

// Gives the lock up. The key, and with it `tables`, is held by the request.
static int copy_out(struct phi_self *self, struct phi_channel_ranges *tables, bool own_host,
                    bool peer_host, int64_t deadline)
{
    const struct phi_range_entries ends[2] = {
        {tables->entries, tables->count[0], own_host},
        {tables->entries + tables->count[0], tables->count[1], peer_host},
    };
    uint64_t address = 0;
    pthread_mutex_unlock(&self->lock);
    int rc = phi_range_table_open(self->device, ends, deadline, &address);
    pthread_mutex_lock(&self->lock);
    tables->device = self->device;
    tables->address = address;
    return rc;
}

// What was mapped when the tables of a round that failed were made may be mapped elsewhere now.
static bool is_current(const struct phi_channel_ranges *tables,
                       const struct phi_peer_ranges *ranges)
{
    for (uint32_t i = 0; i < tables->count[1]; i++)
        if (tables->entries[tables->count[0] + i].address != address_of(phi_peer_range(ranges, i)))
            return false;
    return true;
}

bool phi_ranges_wanted(const struct phi_key *key)
{
    const struct phi_own_buffer *own = phi_key_mine(key, key->agreement.mine);
    const struct phi_peer_buffer *theirs = phi_key_theirs(key, key->agreement.theirs);
    const struct phi_channel_ranges *made = key->made.ranges;
    return (own->range_count > 1 || theirs->ranges.count > 1) &&
           (made == NULL || made->mine != own->number || made->theirs != theirs->number ||
            !is_current(made, &theirs->ranges));
}

int phi_ranges_make(struct phi_key *key, int64_t deadline)
{
    struct phi_self *self = key->peer->self;
    struct phi_own_buffer *own = phi_key_mine(key, key->agreement.mine);
    const struct phi_peer_buffer *theirs = phi_key_theirs(key, key->agreement.theirs);
    const struct phi_remote_export *first = theirs->ranges.first.export_;
    phi_ranges_free(key->made.ranges); // of a round that failed
    struct phi_channel_ranges *made =
        make(entries_of(own->range_count), entries_of(theirs->ranges.count));
    key->made.ranges = made;
    if (made == NULL)
        return phi_fail(self->report, -ENOMEM, "out of memory for a channel");
    fill_own(made, own);
    fill_theirs(made, &theirs->ranges);
    const uint32_t mine = own->number, other = theirs->number;
    int rc = 0;
    if (self->device != NULL)
        rc = copy_out(self, made, is_host(own->first.export_->export_.allocation.kind),
                      first != NULL && is_host(first->info.allocation.kind), deadline);
    if (rc == 0) {
        made->mine = mine;
        made->theirs = other;
    }
    return rc;
}

// ---- channels

static void set_table(struct phi_channel_end *end, uint32_t count,
                      const struct phi_channel_ranges *tables, uint32_t first)
{
    end->range_count = count;
    if (count == 1)
        return;
    end->ranges = tables->entries + first;
    if (tables->address != 0)
        end->ranges_device = tables->address + first * sizeof tables->entries[0];
}

static void set_own(struct ph_channel *channel, const struct phi_own_buffer *own)
{
    struct phi_channel_end *end = &channel->fixed.own;
    const struct phi_allocation *first = &own->first.export_->export_.allocation;
    end->address = own->first.address;
    end->size = own->size;
    end->kind = first->kind;
    channel->fixed.local_base = first->base;
    set_table(end, own->range_count, channel->kept.ranges, 0);
    if (own->range_count > 1)
        channel->fixed.local_bases = channel->kept.ranges->bases;
}

static bool is_mapped(const struct phi_peer_ranges *ranges)
{
    for (uint32_t i = 0; i < ranges->count; i++)
        if (address_of(phi_peer_range(ranges, i)) == 0)
            return false;
    return true;
}

static void set_theirs(struct ph_channel *channel, const struct phi_peer_buffer *theirs)
{
    struct phi_channel_end *end = &channel->fixed.theirs;
    const struct phi_peer_range *first = &theirs->ranges.first;
    end->size = theirs->size;
    if (first->export_ != NULL)
        end->kind = first->export_->info.allocation.kind;
    if (is_mapped(&theirs->ranges))
        end->address = (uint8_t *)(uintptr_t)address_of(first);
    channel->fixed.remote_offset = first->offset;
    channel->kept.remote = theirs->ranges;
    channel->kept.remote.rest = NULL;
    if (theirs->ranges.count == 1) {
        set_table(end, 1, NULL, 0);
        return;
    }
    set_table(end, theirs->ranges.count, channel->kept.ranges, channel->kept.ranges->count[0]);
    channel->kept.remote.rest = channel->kept.ranges->remote;
}

void phi_ranges_set(struct ph_channel *channel, const struct phi_own_buffer *own,
                    const struct phi_peer_buffer *theirs)
{
    struct phi_key *key = channel->kept.key;
    if (own->range_count > 1 || theirs->ranges.count > 1) {
        channel->kept.ranges = key->made.ranges;
        channel->fixed.ranged = true;
        key->made.ranges = NULL;
    }
    set_own(channel, own);
    set_theirs(channel, theirs);
}
