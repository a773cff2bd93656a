// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>

#include <peerhop/pages.h>
#include <peerhop/transfer.h>

#include "api/check.h"
#include "api/loopback.h"
#include "api/ranges.h"
#include "ending/usable.h"
#include "peer/channel.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "transfer/issue.h"
#include "transfer/pages.h"
#include "transfer/take.h"

static int check_usable(struct ph_channel *channel)
{
    if (channel == NULL)
        return -EINVAL;
    return phi_self_forked(channel->self) ? PH_EFORKED : phi_channel_check(channel);
}

// messages: of a call that waits, or is waited for.
static int check_channel(struct ph_channel *channel, bool outgoing, bool messages)
{
    int rc = check_usable(channel);
    if (rc == 0)
        rc = phi_check_zero_sm(channel, messages);
    if (rc || (channel->fixed.role & (outgoing ? PH_ROLE_SENDER : PH_ROLE_RECEIVER)))
        return rc;
    return phi_fail(
        channel->self->report, -EINVAL, "operation %llu with rank %d: this rank is not its %s",
        (unsigned long long)channel->op_id, channel->peer->rank, outgoing ? "sender" : "receiver");
}

// A call that copies: puts go out, gets come in.
static int check_copy(struct ph_channel *channel, bool outgoing, size_t local_offset,
                      size_t peer_offset, size_t size, bool signals)
{
    int rc = check_channel(channel, outgoing, signals);
    if (rc == 0)
        rc = phi_check_bound(channel, "a put or a get");
    if (rc || (rc = phi_check_range(channel, local_offset, peer_offset, size)))
        return rc;
    return phi_check_reach(channel);
}

static struct phi_channel_call call_of(struct ph_channel *channel, enum phi_call call,
                                       bool outgoing, size_t size)
{
    return (struct phi_channel_call){
        .channel = channel, .call = call, .outgoing = outgoing, .size = size};
}

static struct phi_channel_call copy_of(struct ph_channel *channel, enum phi_call call,
                                       size_t local_offset, size_t peer_offset, size_t size)
{
    struct phi_channel_call copy = call_of(channel, call, call != PHI_CALL_GET, size);
    copy.local_offset = local_offset;
    copy.remote_offset = peer_offset;
    return copy;
}

static int issue_one(struct phi_channel_call *call, void *stream)
{
    bool begun = false;
    return phi_issue(call->channel->self, call, 1, NULL, stream, &begun);
}

// The end of a call that a broken channel may have refused.
static int issue_or_refuse(struct phi_channel_call *call, int rc, void *stream)
{
    if (rc == 0)
        rc = issue_one(call, stream);
    return rc ? phi_check_refused(call->channel, rc) : 0;
}

int ph_put(struct ph_channel *channel, size_t peer_offset, size_t local_offset, size_t size,
           void *stream)
{
    PHI_RANGE("ph_put", size);
    int rc = check_copy(channel, true, local_offset, peer_offset, size, false);
    struct phi_channel_call call = copy_of(channel, PHI_CALL_PUT, local_offset, peer_offset, size);
    return issue_or_refuse(&call, rc, stream);
}

int ph_get(struct ph_channel *channel, size_t local_offset, size_t peer_offset, size_t size,
           void *stream)
{
    PHI_RANGE("ph_get", size);
    int rc = check_copy(channel, false, local_offset, peer_offset, size, false);
    if (rc == 0)
        rc = phi_check_get(channel);
    struct phi_channel_call call = copy_of(channel, PHI_CALL_GET, local_offset, peer_offset, size);
    return issue_or_refuse(&call, rc, stream);
}

int ph_put_signal(struct ph_channel *channel, size_t peer_offset, size_t local_offset, size_t size,
                  void *stream)
{
    PHI_RANGE("ph_put_signal", size);
    int rc = check_copy(channel, true, local_offset, peer_offset, size, true);
    struct phi_channel_call call =
        copy_of(channel, PHI_CALL_PUT_SIGNAL, local_offset, peer_offset, size);
    return issue_or_refuse(&call, rc, stream);
}

int ph_signal(struct ph_channel *channel, void *stream)
{
    PHI_RANGE("ph_signal", 0);
    int rc = check_channel(channel, true, true);
    if (rc == 0 && channel->fixed.loopback)
        rc = phi_loopback_refuse(channel, "ph_signal");
    struct phi_channel_call call = call_of(channel, PHI_CALL_SIGNAL, true, 0);
    return issue_or_refuse(&call, rc, stream);
}

// Why the channel cannot be used, of a call that was refused; rc where it was not. An executor that
// refuses knows only that the peer's words were revoked, the channel knows why.
static int why_refused(struct ph_channel *channel, int rc)
{
    if (!phi_check_ended(rc))
        return rc;
    const int status = phi_channel_check(channel);
    return status ? status : rc;
}

// A peer that has left sent its messages before: they are here by then. The stream waits for
// nothing.
static int unless_here(const struct phi_channel_call *call, int rc, void *stream)
{
    rc = why_refused(call->channel, rc);
    return phi_check_may_be_late(rc) && phi_channel_take(call, stream, false) ? 0 : rc;
}

int ph_wait(struct ph_channel *channel, size_t size, void *stream)
{
    PHI_RANGE("ph_wait", size);
    struct phi_channel_call call = call_of(channel, PHI_CALL_WAIT, false, size);
    int rc = check_channel(channel, false, true);
    if (rc == 0 && size > 0)
        rc = phi_check_bound(channel, "a wait for bytes");
    if (rc == 0 && channel->fixed.loopback)
        rc = phi_loopback_refuse(channel, "ph_wait");
    if (rc == 0)
        rc = phi_check_range(channel, 0, 0, size);
    if (rc == 0)
        rc = issue_one(&call, stream);
    rc = unless_here(&call, rc, stream);
    return rc ? phi_check_refused(channel, rc) : 0;
}

// One half of send/recv: the active end copies, the passive one posts.
static int issue_half(struct ph_channel *channel, bool outgoing, size_t size, void *stream)
{
    bool active = phi_channel_active(channel, outgoing);
    int rc = active ? phi_check_reach(channel) : phi_channel_post(channel, outgoing, size);
    if (rc == -EALREADY)
        phi_fail(channel->self->report, rc,
                 "operation %llu with rank %d: %s again before ph_complete",
                 (unsigned long long)channel->op_id, channel->peer->rank,
                 outgoing ? "ph_send" : "ph_recv");
    if (rc)
        return rc;
    struct phi_channel_call call =
        call_of(channel, active ? PHI_CALL_TRANSFER : PHI_CALL_POST, outgoing, size);
    rc = issue_one(&call, stream);
    if (rc && !active)
        phi_channel_unpost(channel, outgoing);
    return rc;
}

int ph_send(struct ph_channel *channel, size_t size, void *stream)
{
    PHI_RANGE("ph_send", size);
    int rc = check_channel(channel, true, true);
    if (rc == 0)
        rc = phi_check_bound(channel, "ph_send");
    if (rc == 0 && (rc = phi_check_range(channel, 0, 0, size)) == 0)
        rc = issue_half(channel, true, size, stream);
    return rc ? phi_check_refused(channel, rc) : 0;
}

// The send of a message by ll, or into slots, waited for nobody. The message may be here
// although the peer has left, or has released its buffer. If a complete takes the message, this
// call is the post.
static int recv_late(struct ph_channel *channel, size_t size, void *stream, int rc)
{
    const enum phi_call which = phi_channel_late_recv(channel);
    const struct phi_channel_call call = call_of(channel, which, false, size);
    if (!(channel->fixed.role & PH_ROLE_RECEIVER) || phi_check_range(channel, 0, 0, size) ||
        !phi_channel_here(&call))
        return rc;
    if (which == PHI_CALL_COMPLETE)
        return phi_channel_post(channel, false, size);
    return phi_channel_take(&call, stream, false) ? 0 : rc;
}

int ph_recv(struct ph_channel *channel, size_t size, void *stream)
{
    PHI_RANGE("ph_recv", size);
    int rc = check_channel(channel, false, true);
    if (rc == 0)
        rc = phi_check_bound(channel, "ph_recv");
    if (rc == 0 && (rc = phi_check_range(channel, 0, 0, size)) == 0)
        rc = issue_half(channel, false, size, stream);
    rc = why_refused(channel, rc);
    if (phi_check_may_be_late(rc))
        rc = recv_late(channel, size, stream, rc);
    return rc ? phi_check_refused(channel, rc) : 0;
}

static int unless_all_here(const struct phi_channel_call *calls, size_t n, int refused,
                           void *stream)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = unless_here(&calls[i], refused, stream);
    return rc;
}

int ph_complete(struct ph_channel *channel, void *stream)
{
    PHI_RANGE("ph_complete", 0);
    int rc = check_usable(channel);
    if (rc && !phi_check_may_be_late(rc))
        return phi_check_refused(channel, rc);
    struct phi_channel_call calls[2];
    size_t n = 0;
    uint32_t posted = atomic_load(&channel->live.posted);
    for (int outgoing = 0; outgoing < 2; outgoing++)
        if (posted & (outgoing ? 1u : 2u))
            calls[n++] = call_of(channel, PHI_CALL_COMPLETE, outgoing != 0,
                                 atomic_load(&channel->live.posted_size[outgoing]));
    bool begun = false;
    if (n == 0)
        return 0;
    if (rc == 0)
        rc = phi_issue(channel->self, calls, n, NULL, stream, &begun);
    if (rc && !begun)
        rc = unless_all_here(calls, n, rc, stream);
    for (size_t i = 0; rc == 0 && i < n; i++)
        phi_channel_unpost(channel, calls[i].outgoing);
    return rc ? phi_check_refused(channel, rc) : 0;
}

// A message over the net that came before the peer left is in slots of ours.
static int recv_into_late(struct ph_channel *channel, void *data, size_t size, void *stream, int rc)
{
    const struct phi_channel_call call = {
        .channel = channel, .call = PHI_CALL_COMPLETE, .data = data, .size = size, .message = size};
    if (!channel->fixed.stage.is || !(channel->fixed.role & PH_ROLE_RECEIVER) ||
        (size > 0 && data == NULL) || !phi_channel_here(&call))
        return rc;
    return phi_channel_take(&call, stream, false) ? 0 : rc;
}

static int check_unbound(struct ph_channel *channel, const char *what)
{
    if (channel == NULL)
        return -EINVAL;
    if (phi_self_forked(channel->self))
        return PH_EFORKED;
    if (channel->fixed.loopback)
        return phi_loopback_refuse(channel, what);
    if (channel->fixed.unbound)
        return 0;
    return phi_fail(channel->self->report, -EINVAL,
                    "operation %llu with rank %d: %s is for channels that were exchanged without "
                    "buffers",
                    (unsigned long long)channel->op_id, channel->peer->rank, what);
}

int ph_send_from(struct ph_channel *channel, const void *data, size_t size, void *stream)
{
    PHI_RANGE("ph_send_from", size);
    const struct ph_group_op op = {
        .kind = PH_GROUP_SEND, .channel = channel, .size = size, .data = (void *)data};
    const int rc = check_unbound(channel, "ph_send_from");
    return rc ? rc : ph_group(&op, 1, stream);
}

int ph_recv_into(struct ph_channel *channel, void *data, size_t size, void *stream)
{
    PHI_RANGE("ph_recv_into", size);
    const struct ph_group_op op = {
        .kind = PH_GROUP_RECV, .channel = channel, .size = size, .data = data};
    int rc = check_unbound(channel, "ph_recv_into");
    if (rc)
        return rc;
    rc = ph_group(&op, 1, stream);
    return phi_check_may_be_late(rc) ? recv_into_late(channel, data, size, stream, rc) : rc;
}

// ---- lists of pages

static int copy_pages(struct ph_channel *channel, enum ph_group_kind kind,
                      const struct ph_pages *pages, void *stream)
{
    const struct ph_group_op op = {.kind = kind, .channel = channel, .data = (void *)pages};
    if (channel == NULL)
        return -EINVAL;
    return ph_group(&op, 1, stream);
}

int ph_put_pages(struct ph_channel *channel, const struct ph_pages *pages, void *stream)
{
    PHI_RANGE("ph_put_pages", pages ? pages->pages : 0);
    return copy_pages(channel, PH_GROUP_PUT_PAGES, pages, stream);
}

int ph_get_pages(struct ph_channel *channel, const struct ph_pages *pages, void *stream)
{
    PHI_RANGE("ph_get_pages", pages ? pages->pages : 0);
    return copy_pages(channel, PH_GROUP_GET_PAGES, pages, stream);
}

uint64_t ph_channel_skipped(const struct ph_channel *channel)
{
    return channel ? phi_pages_skipped(channel) : 0;
}
