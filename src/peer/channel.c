// SPDX-License-Identifier: BSD-3-Clause
#include "peer/channel.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "peer/peer.h"
#include "peer/ranges.h"
#include "peer/self.h"

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
    const uint32_t i = phi_range_of(end->ranges, end->range_count, offset);
    const struct phi_range_entry *entry = &end->ranges[i];
    const uint64_t stop = i + 1 < end->range_count ? end->ranges[i + 1].begin : end->size;
    if (*size > stop - offset)
        *size = stop - offset;
    return (uint8_t *)(uintptr_t)entry->address + (offset - entry->begin);
}

void phi_channel_free(struct ph_channel *channel)
{
    phi_skips_give(&channel->self->executor->skips, atomic_load(&channel->live.skips));
    phi_ranges_free(channel->kept.ranges);
    free(channel);
}

int phi_device_channel_busy(const struct ph_channel *channel, const char *what)
{
    const uint32_t n = atomic_load(&channel->live.uses.devices);
    return phi_fail(channel->self->report, -EBUSY,
                    "%s: operation %llu with rank %d has %u device channel%s "
                    "(ph_channel_device_release)",
                    what, (unsigned long long)channel->op_id, channel->peer->rank, n,
                    n == 1 ? "" : "s");
}

bool phi_channel_active(const struct ph_channel *channel, bool outgoing)
{
    return outgoing ? channel->fixed.protocol[1] == PH_PROTOCOL_PUT
                    : channel->fixed.protocol[0] == PH_PROTOCOL_GET;
}

bool phi_revoke_drained(const struct ph_channel *channel)
{
    struct phi_executor *executor = channel->self->executor;
    return executor->ops->drained(executor, (struct phi_uses *)&channel->live.uses, NULL, 0);
}
