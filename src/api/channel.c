// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/check.h"
#include "api/context_internal.h"
#include "api/path_report.h"
#include "api/loopback.h"
#include "api/ranges.h"
#include "base/clock.h"
#include "base/table.h"
#include "ending/usable.h"
#include "exchange/exchange.h"
#include "exchange/request.h"
#include "peer/channel.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "release/abort.h"
#include "release/spent.h"
#include "transfer/device_channel.h"

// A rank is sender and receiver of a channel with itself, and has nothing to exchange.
static int check_self(struct phi_self *self, const struct ph_operation *op, size_t i)
{
    if (op->buffer != NULL || op->range_count > 0)
        return phi_fail(self->report, -EINVAL,
                        "operation %zu: rank %d names itself as the peer, and a buffer: to itself "
                        "a rank sends on channels without one",
                        i, op->peer);
    if (op->role != PH_ROLE_BOTH)
        return phi_fail(self->report, -EINVAL,
                        "operation %zu: rank %d names itself as the peer in role %d: it is both, "
                        "sender and receiver (%d)",
                        i, op->peer, (int)op->role, PH_ROLE_BOTH);
    return 0;
}

// A list of ranges, in the place of a buffer.
static int check_ranges(struct phi_self *self, const struct ph_operation *op, size_t i)
{
    size_t left = SIZE_MAX;
    if (op->buffer != NULL || op->size != 0)
        return phi_fail(self->report, -EINVAL,
                        "operation %zu: a buffer, or its size, and ranges: an operation names one "
                        "of the two",
                        i);
    if (op->range_count > PHI_RANGES_MAX || op->ranges == NULL)
        return phi_fail(
            self->report, -EINVAL, "operation %zu: %u ranges%s: an operation has at most %d", i,
            op->range_count, op->ranges == NULL ? ", which are NULL" : "", PHI_RANGES_MAX);
    for (uint32_t j = 0; j < op->range_count; j++) {
        const struct ph_range *range = &op->ranges[j];
        if (range->base == NULL || range->size == 0 || range->size > left)
            return phi_fail(self->report, -EINVAL, "operation %zu: range %u %s", i, j,
                            range->base == NULL ? "has no base"
                            : range->size == 0  ? "has no bytes"
                                                : "makes more bytes than a size can count");
        left -= range->size;
    }
    return 0;
}

static int check_operation(struct phi_self *self, const struct ph_operation *op, size_t i)
{
    int rc = 0;
    if (op->peer < 0 || op->peer >= self->ranks)
        return phi_fail(self->report, -EINVAL, "operation %zu: there is no rank %d (%d ranks)", i,
                        op->peer, self->ranks);
    if (op->role < PH_ROLE_SENDER || op->role > PH_ROLE_BOTH)
        return phi_fail(self->report, -EINVAL, "operation %zu: role %d is none", i, (int)op->role);
    if (op->limits != NULL && !phi_limits_valid(op->limits->ll_max, op->limits->sm_max))
        return phi_fail(
            self->report, -EINVAL,
            "operation %zu: ll_max is -1 to %d and sm_max at least -1, not %lld and %lld", i,
            PHI_TABLE_LL_MAX, (long long)op->limits->ll_max, (long long)op->limits->sm_max);
    if (op->protocol < PH_PROTOCOL_DEFAULT || op->protocol > PH_PROTOCOL_GET)
        return phi_fail(self->report, -EINVAL, "operation %zu: protocol %d is none", i,
                        (int)op->protocol);
    if (op->range_count > 0)
        rc = check_ranges(self, op, i);
    else if (op->buffer != NULL && op->size == 0)
        rc = phi_fail(self->report, -EINVAL, "operation %zu: a buffer of no bytes", i);
    if (rc)
        return rc;
    if (op->buffer == NULL && op->range_count == 0 && op->size != 0)
        return phi_fail(self->report, -EINVAL,
                        "operation %zu: no buffer, but a size of %zu bytes: an operation without a "
                        "buffer has none",
                        i, op->size);
    if (op->flags & ~(uint32_t)PH_ZERO_SM)
        return phi_fail(self->report, -EINVAL, "operation %zu: flags %#x are none", i, op->flags);
    if (op->flags & PH_ZERO_SM && op->buffer == NULL && op->range_count == 0)
        return phi_fail(self->report, -EINVAL,
                        "operation %zu: PH_ZERO_SM without a buffer: messages of any memory are "
                        "moved by kernels",
                        i);
    return op->peer == self->rank ? check_self(self, op, i) : 0;
}

// *selves: whether some are with this rank itself.
static int check_exchange(struct ph_context *context, const struct ph_operation *ops, size_t n,
                          bool *loopbacks)
{
    *loopbacks = false;
    if (context == NULL)
        return -EINVAL;
    if (phi_self_forked(context->self))
        return PH_EFORKED;
    int rc = n > 0 ? phi_check_given(&context->report, ops, "an exchange's ops") : 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = check_operation(context->self, &ops[i], i);
        *loopbacks = *loopbacks || (rc == 0 && ops[i].peer == context->self->rank);
    }
    return rc;
}

static int start(struct phi_self *self, const struct ph_operation *ops, size_t n, bool loopbacks,
                 struct ph_exchange_request **request)
{
    return loopbacks ? phi_loopback_start(self, ops, n, request)
                     : phi_exchange_start(self, ops, n, request);
}

int ph_exchange(struct ph_context *context, const struct ph_operation *ops, size_t n,
                struct ph_channel **channels)
{
    PHI_RANGE("ph_exchange", n);
    struct ph_exchange_request *request;
    bool loopbacks;
    int rc = check_exchange(context, ops, n, &loopbacks);
    if (rc == 0 && n > 0)
        rc = phi_check_given(&context->report, channels, "ph_exchange: channels");
    if (rc)
        return rc;
    int64_t deadline = phi_deadline(context->config.deadline_ms);
    if ((rc = start(context->self, ops, n, loopbacks, &request)))
        return rc;
    return phi_loopback_finish(request, channels, deadline);
}

int ph_exchange_start(struct ph_context *context, const struct ph_operation *ops, size_t n,
                      struct ph_exchange_request **request)
{
    PHI_RANGE("ph_exchange_start", n);
    bool loopbacks;
    int rc = check_exchange(context, ops, n, &loopbacks);
    if (rc == 0)
        rc = phi_check_given(&context->report, request, "ph_exchange_start: request");
    return rc ? rc : start(context->self, ops, n, loopbacks, request);
}

int ph_exchange_finish(struct ph_exchange_request **request, struct ph_channel **channels,
                       int64_t deadline_ms)
{
    PHI_RANGE("ph_exchange_finish", 0);
    if (request == NULL || *request == NULL)
        return -EINVAL;
    struct phi_self *self = phi_exchange_peers(*request);
    if (phi_self_forked(self))
        return PH_EFORKED;
    int rc = phi_check_given(self->report, channels, "ph_exchange_finish: channels");
    if (rc || (rc = phi_check_deadline(self->report, deadline_ms)))
        return rc;
    int64_t deadline = phi_deadline(deadline_ms ? deadline_ms : self->config->deadline_ms);
    struct ph_exchange_request *finished = *request;
    *request = NULL;
    return phi_loopback_finish(finished, channels, deadline);
}

int ph_channel_status(struct ph_channel *channel)
{
    if (channel == NULL)
        return -EINVAL;
    if (phi_self_forked(channel->self))
        return PH_EFORKED;
    phi_check_mismatch(channel);
    return phi_channel_status(channel);
}

int ph_channel_ended(struct ph_channel *channel)
{
    if (channel == NULL)
        return -EINVAL;
    if (phi_self_forked(channel->self))
        return PH_EFORKED;
    phi_check_mismatch(channel);
    const int rc = phi_channel_ended(channel);
    return rc ? phi_check_refused(channel, rc) : 0;
}

int ph_channel_abort(struct ph_channel *channel, const char *reason)
{
    char why[sizeof channel->live.why];
    if (channel == NULL)
        return -EINVAL;
    struct phi_self *self = channel->self;
    if (phi_self_forked(self))
        return PH_EFORKED;
    if (!channel->fixed.unbound)
        return phi_fail(self->report, -EINVAL,
                        "operation %llu with rank %d: ph_channel_abort is for channels without "
                        "buffers; of this one a buffer can be released (ph_release_start)",
                        (unsigned long long)channel->op_id, channel->peer->rank);
    snprintf(why, sizeof why, "rank %d has aborted it: %s", self->rank,
             reason ? reason : "no reason given");
    pthread_mutex_lock(&self->lock);
    phi_channel_abort(channel, PH_EABORTED, why);
    pthread_mutex_unlock(&self->lock);
    return 0;
}

int ph_channel_close(struct ph_channel *channel)
{
    if (channel == NULL)
        return -EINVAL;
    return phi_self_forked(channel->self) ? PH_EFORKED : phi_channel_close(channel);
}

int ph_channel_peer(const struct ph_channel *channel)
{
    return channel ? channel->peer->rank : -EINVAL;
}

uint64_t ph_channel_op_id(const struct ph_channel *channel)
{
    return channel ? channel->op_id : 0;
}

size_t ph_channel_local_size(const struct ph_channel *channel)
{
    return channel && !channel->fixed.unbound ? channel->fixed.own.size : 0;
}

size_t ph_channel_peer_size(const struct ph_channel *channel)
{
    return channel && !channel->fixed.unbound ? channel->fixed.theirs.size : 0;
}

int ph_channel_path(struct ph_channel *channel, int outgoing, struct ph_path_report *report,
                    size_t report_size)
{
    if (channel == NULL)
        return -EINVAL;
    int rc = phi_check_given(channel->self->report, report, "ph_channel_path: report");
    if (rc)
        return rc;
    struct ph_path_report all;
    phi_channel_report(channel, outgoing != 0, &all);
    memcpy(report, &all, report_size < sizeof all ? report_size : sizeof all);
    return 0;
}

int ph_channel_device(struct ph_channel *channel, struct ph_device_channel *device,
                      size_t device_size)
{
    if (channel == NULL)
        return -EINVAL;
    if (phi_self_forked(channel->self))
        return PH_EFORKED;
    int rc = phi_check_given(channel->self->report, device, "ph_channel_device: device");
    if (rc)
        return rc;
    if (device_size != sizeof *device)
        return phi_fail(channel->self->report, -EINVAL,
                        "the kernels were built with other headers: struct ph_device_channel has "
                        "%zu bytes there and %zu here",
                        device_size, sizeof *device);
    rc = phi_channel_check(channel);
    if (rc == 0 && (channel->fixed.role & PH_ROLE_SENDER))
        rc = phi_check_reach(channel);
    if (rc == 0)
        rc = phi_device_channel_open(channel, device);
    return rc ? phi_check_refused(channel, rc) : 0;
}

int ph_channel_device_release(struct ph_channel *channel, struct ph_device_channel *device)
{
    if (channel == NULL)
        return -EINVAL;
    if (phi_self_forked(channel->self))
        return PH_EFORKED;
    int rc = phi_check_given(channel->self->report, device, "ph_channel_device_release: device");
    if (rc == 0)
        rc = phi_device_channel_release(channel);
    if (rc == 0)
        *device = (struct ph_device_channel){0};
    return rc;
}
