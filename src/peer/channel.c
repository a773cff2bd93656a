// SPDX-License-Identifier: BSD-3-Clause
#include "peer/channel.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "peer/peer.h"
#include "peer/self.h"

void phi_channel_free(struct ph_channel *channel)
{
    phi_skips_give(&channel->self->executor->skips, atomic_load(&channel->live.skips));
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
