// SPDX-License-Identifier: BSD-3-Clause
#include "api/check.h"

#include <errno.h>

#include "api/context_internal.h"
#include "cuda/device.h"
#include "ending/usable.h"
#include "peer/channel.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "release/abort.h"
#include "semaphore/words.h"

// A wait by a stream memory operation holds up the streams that share its hardware queue. There are
// at most so many hardware queues.
#define ZERO_SM_CONNECTIONS 32

int phi_check_given(struct phi_report *report, const void *argument, const char *what)
{
    return argument ? 0 : phi_fail(report, -EINVAL, "%s is NULL", what);
}

int phi_check_buffer(struct ph_context *context, const void *buffer, size_t size)
{
    if (context == NULL)
        return -EINVAL;
    if (phi_self_forked(context->self))
        return PH_EFORKED;
    if (buffer == NULL || size == 0 || size > UINTPTR_MAX - (uintptr_t)buffer)
        return phi_fail(&context->report, -EINVAL, "%zu bytes at %p are no buffer", size, buffer);
    return 0;
}

int phi_check_deadline(struct phi_report *report, int64_t deadline_ms)
{
    return deadline_ms >= 0
               ? 0
               : phi_fail(report, -EINVAL, "deadline_ms is negative: %lld", (long long)deadline_ms);
}

int phi_check_bound(const struct ph_channel *channel, const char *what)
{
    if (!channel->fixed.unbound)
        return 0;
    return phi_fail(
        channel->self->report, -EINVAL,
        "operation %llu with rank %d: %s is for channels with buffers, and this one was "
        "exchanged without",
        (unsigned long long)channel->op_id, channel->peer->rank, what);
}

int phi_check_range(const struct ph_channel *channel, size_t local_offset, size_t peer_offset,
                    size_t size)
{
    bool local =
        local_offset <= channel->fixed.own.size && size <= channel->fixed.own.size - local_offset;
    bool peer = peer_offset <= channel->fixed.theirs.size &&
                size <= channel->fixed.theirs.size - peer_offset;
    if (local && peer)
        return 0;
    return phi_fail(
        channel->self->report, -EINVAL,
        "operation %llu with rank %d: %zu bytes at offset %zu do not fit %s buffer of %zu bytes",
        (unsigned long long)channel->op_id, channel->peer->rank, size,
        local ? peer_offset : local_offset, local ? "the peer's" : "the own",
        local ? channel->fixed.theirs.size : channel->fixed.own.size);
}

int phi_check_reach(const struct ph_channel *channel)
{
    if (channel->fixed.loopback || channel->fixed.theirs.address != NULL ||
        channel->fixed.route.link != NULL || channel->fixed.stage.is)
        return 0;
    return phi_fail(channel->self->report, PH_ENOPATH,
                    "operation %llu: rank %d's buffer is not mapped here: %s",
                    (unsigned long long)channel->op_id, channel->peer->rank,
                    phi_reason_text(channel->fixed.own.reach));
}

int phi_check_zero_sm(const struct ph_channel *channel, bool messages)
{
    if (!channel->fixed.own.zero_sm)
        return 0;
    const struct phi_device_info *info = phi_device_info(channel->self->device);
    struct phi_report *report = channel->self->report;
    const unsigned long long op_id = (unsigned long long)channel->op_id;
    const int rank = channel->peer->rank;
    if (channel->fixed.stage.is)
        return phi_fail(report, -ENOTSUP,
                        "operation %llu with rank %d has PH_ZERO_SM, and goes over the net: there "
                        "kernels take part",
                        op_id, rank);
    if (channel->fixed.own.kind == PHI_KIND_HOST && channel->fixed.theirs.kind == PHI_KIND_HOST)
        return phi_fail(report, -ENOTSUP,
                        "operation %llu with rank %d has PH_ZERO_SM, and both buffers are host "
                        "memory: the driver copies that in the call",
                        op_id, rank);
    if (!info->memory_operations)
        return phi_fail(report, -ENOTSUP,
                        "operation %llu with rank %d has PH_ZERO_SM, and the device has no stream "
                        "memory operations",
                        op_id, rank);
    if (messages && info->connections < ZERO_SM_CONNECTIONS)
        return phi_fail(report, -ENOTSUP,
                        "operation %llu with rank %d has PH_ZERO_SM: its messages need "
                        "CUDA_DEVICE_MAX_CONNECTIONS=%d before CUDA is initialised, and it is %d",
                        op_id, rank, ZERO_SM_CONNECTIONS, info->connections);
    return 0;
}

int phi_check_get(const struct ph_channel *channel)
{
    if (!channel->fixed.stage.is || channel->fixed.stage.bells)
        return 0;
    return phi_fail(channel->self->report, PH_ENOPATH,
                    "operation %llu: ph_get from rank %d: what is staged over the net moves only "
                    "when its owner's stream sends it (ph_send, ph_put)",
                    (unsigned long long)channel->op_id, channel->peer->rank);
}

void phi_check_mismatch(struct ph_channel *channel)
{
    if (!channel->fixed.unbound || atomic_load(&channel->fixed.own.line->mismatch) == 0)
        return;
    pthread_mutex_lock(&channel->self->lock);
    phi_channel_mismatch(channel);
    pthread_mutex_unlock(&channel->self->lock);
}

bool phi_check_may_be_late(int rc)
{
    return rc == PH_EPEER || rc == -ESTALE;
}

bool phi_check_ended(int rc)
{
    return phi_check_may_be_late(rc) || rc == PH_EBROKEN || rc == PH_EABORTED || rc == PH_EFENCED ||
           rc == PH_EMISMATCH;
}

int phi_check_refused(struct ph_channel *channel, int rc)
{
    if (!phi_check_ended(rc))
        return rc;
    int status = phi_channel_check(channel);
    if (status == 0)
        return rc;
    return phi_refuse(channel->self->report, status, "operation %llu with rank %d: %s",
                      (unsigned long long)channel->op_id, channel->peer->rank,
                      status == -ESTALE ? "a buffer of the channel was released"
                                        : phi_channel_why(channel, status));
}
