// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>
#include <string.h>

#include "api/check.h"
#include "api/context_internal.h"
#include "api/path_report.h"
#include "base/clock.h"
#include "base/table.h"
#include "ending/usable.h"
#include "exchange/exchange.h"
#include "exchange/request.h"
#include "peer/channel.h"
#include "peer/peer.h"
#include "peer/peers.h"
#include "release/spent.h"
#include "transfer/device_channel.h"

static int check_operation(struct phi_peers *peers, const struct ph_operation *op, size_t i)
{
    if (op->peer < 0 || op->peer >= peers->ranks)
        return phi_fail(peers->report, -EINVAL, "operation %zu: there is no rank %d (%d ranks)", i,
                        op->peer, peers->ranks);
    if (op->peer == peers->rank)
        return phi_fail(peers->report, -EINVAL, "operation %zu: rank %d names itself as the peer",
                        i, op->peer);
    if (op->role < PH_ROLE_SENDER || op->role > PH_ROLE_BOTH)
        return phi_fail(peers->report, -EINVAL, "operation %zu: role %d is none", i, (int)op->role);
    if (op->limits != NULL && !phi_limits_valid(op->limits->ll_max, op->limits->sm_max))
        return phi_fail(
            peers->report, -EINVAL,
            "operation %zu: ll_max is -1 to %d and sm_max at least -1, not %lld and %lld", i,
            PHI_TABLE_LL_MAX, (long long)op->limits->ll_max, (long long)op->limits->sm_max);
    if (op->protocol < PH_PROTOCOL_DEFAULT || op->protocol > PH_PROTOCOL_GET)
        return phi_fail(peers->report, -EINVAL, "operation %zu: protocol %d is none", i,
                        (int)op->protocol);
    if (op->buffer == NULL || op->size == 0)
        return phi_fail(peers->report, -EINVAL, "operation %zu: no buffer", i);
    return 0;
}

static int check_exchange(struct ph_context *context, const struct ph_operation *ops, size_t n)
{
    if (context == NULL)
        return -EINVAL;
    if (phi_peers_forked(context->peers))
        return PH_EFORKED;
    int rc = n > 0 ? phi_check_given(&context->report, ops, "an exchange's ops") : 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = check_operation(context->peers, &ops[i], i);
    return rc;
}

int ph_exchange(struct ph_context *context, const struct ph_operation *ops, size_t n,
                struct ph_channel **channels)
{
    struct ph_exchange_request *request;
    int rc = check_exchange(context, ops, n);
    if (rc == 0 && n > 0)
        rc = phi_check_given(&context->report, channels, "ph_exchange: channels");
    if (rc)
        return rc;
    int64_t deadline = phi_deadline(context->config.deadline_ms);
    if ((rc = phi_exchange_start(context->peers, ops, n, &request)))
        return rc;
    return phi_exchange_finish(request, channels, deadline);
}

int ph_exchange_start(struct ph_context *context, const struct ph_operation *ops, size_t n,
                      struct ph_exchange_request **request)
{
    int rc = check_exchange(context, ops, n);
    if (rc == 0)
        rc = phi_check_given(&context->report, request, "ph_exchange_start: request");
    return rc ? rc : phi_exchange_start(context->peers, ops, n, request);
}

int ph_exchange_finish(struct ph_exchange_request **request, struct ph_channel **channels,
                       int64_t deadline_ms)
{
    if (request == NULL || *request == NULL)
        return -EINVAL;
    struct phi_peers *peers = phi_exchange_peers(*request);
    if (phi_peers_forked(peers))
        return PH_EFORKED;
    int rc = phi_check_given(peers->report, channels, "ph_exchange_finish: channels");
    if (rc || (rc = phi_check_deadline(peers->report, deadline_ms)))
        return rc;
    int64_t deadline = phi_deadline(deadline_ms ? deadline_ms : peers->config->deadline_ms);
    struct ph_exchange_request *finished = *request;
    *request = NULL;
    return phi_exchange_finish(finished, channels, deadline);
}

int ph_channel_status(struct ph_channel *channel)
{
    if (channel == NULL)
        return -EINVAL;
    return phi_peers_forked(channel->peers) ? PH_EFORKED : phi_channel_status(channel);
}

int ph_channel_close(struct ph_channel *channel)
{
    if (channel == NULL)
        return -EINVAL;
    return phi_peers_forked(channel->peers) ? PH_EFORKED : phi_channel_close(channel);
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
    return channel ? channel->local_size : 0;
}

size_t ph_channel_peer_size(const struct ph_channel *channel)
{
    return channel ? channel->remote_size : 0;
}

int ph_channel_path(struct ph_channel *channel, int outgoing, struct ph_path_report *report,
                    size_t report_size)
{
    if (channel == NULL)
        return -EINVAL;
    int rc = phi_check_given(channel->peers->report, report, "ph_channel_path: report");
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
    if (phi_peers_forked(channel->peers))
        return PH_EFORKED;
    int rc = phi_check_given(channel->peers->report, device, "ph_channel_device: device");
    if (rc)
        return rc;
    if (device_size != sizeof *device)
        return phi_fail(channel->peers->report, -EINVAL,
                        "the kernels were built with other headers: struct ph_device_channel has "
                        "%zu bytes there and %zu here",
                        device_size, sizeof *device);
    rc = phi_channel_check(channel);
    if (rc == 0 && (channel->role & PH_ROLE_SENDER))
        rc = phi_check_reach(channel);
    if (rc == 0)
        rc = phi_device_channel_open(channel, device);
    return rc ? phi_check_refused(channel, rc) : 0;
}

int ph_channel_device_release(struct ph_channel *channel, struct ph_device_channel *device)
{
    if (channel == NULL)
        return -EINVAL;
    if (phi_peers_forked(channel->peers))
        return PH_EFORKED;
    int rc = phi_check_given(channel->peers->report, device, "ph_channel_device_release: device");
    if (rc == 0)
        rc = phi_device_channel_release(channel);
    if (rc == 0)
        *device = (struct ph_device_channel){0};
    return rc;
}
