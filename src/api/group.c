// SPDX-License-Identifier: BSD-3-Clause
#include "api/group_calls.h"

#include <errno.h>

#include "api/check.h"
#include "api/context_internal.h"
#include "api/loopback.h"
#include "api/pages.h"
#include "api/ranges.h"
#include "ending/usable.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "transfer/take.h"

// The message of its kind that an operation is; 0 for those of which there may be any number:
// plain puts and gets, and what names its memory.
static uint32_t message_bit(const struct ph_group_op *op)
{
    return phi_group_is_pair(op) && op->channel->fixed.unbound ? 0 : phi_group_bit(op->kind);
}

// ---- checks

static int check_span(const struct ph_group_op *op)
{
    const struct ph_channel *channel = op->channel;
    bool plain =
        op->kind == PH_GROUP_SEND || op->kind == PH_GROUP_RECV || op->kind == PH_GROUP_WAIT;
    size_t local = plain ? 0 : op->local_offset, peer = plain ? 0 : op->peer_offset;
    if (op->kind == PH_GROUP_SIGNAL || phi_group_is_pages(op->kind))
        return 0;
    return phi_check_range(channel, local, peer, op->size);
}

// All but a put and a get, for which nobody waits.
static bool is_message(const struct ph_group_op *op)
{
    return op->kind != PH_GROUP_PUT && op->kind != PH_GROUP_GET && !phi_group_is_pages(op->kind);
}

// Streams wait by kernels or by memory operations: messages of one launch by one of the two.
static int check_waits(const struct ph_group_op *ops, size_t n, struct phi_report *report)
{
    bool with = false, without = false;
    for (size_t i = 0; i < n; i++) {
        const struct ph_channel *channel = ops[i].channel;
        // A staged operation waits for slots, a put as well. An operation of this rank with itself
        // waits for nobody.
        const bool waits =
            (is_message(&ops[i]) || channel->fixed.stage.is) && !channel->fixed.loopback;
        with = with || (waits && !channel->fixed.own.zero_sm);
        without = without || (waits && channel->fixed.own.zero_sm);
    }
    return with && without ? phi_fail(report, -ENOTSUP,
                                      "group: messages of operations with PH_ZERO_SM and of "
                                      "others: make two groups")
                           : 0;
}

// check_memory checks the memory that an operation names besides its channel.
static int check_memory(const struct ph_group_op *op)
{
    const struct ph_channel *channel = op->channel;
    if (!channel->fixed.unbound && op->data != NULL && !phi_group_is_pages(op->kind))
        return phi_fail(
            channel->self->report, -EINVAL,
            "group: operation %llu with rank %d has buffers, and its data is named as well",
            (unsigned long long)channel->op_id, channel->peer->rank);
    if (!channel->fixed.unbound)
        return check_span(op);
    if (!phi_group_is_pair(op) &&
        (op->kind != PH_GROUP_SIGNAL && (op->kind != PH_GROUP_WAIT || op->size > 0)))
        return phi_check_bound(channel, "a put, a get, or a wait for bytes");
    if (phi_group_is_pair(op) && op->size > 0 && op->data == NULL)
        return phi_fail(
            channel->self->report, -EINVAL,
            "group: %zu bytes of operation %llu with rank %d lie nowhere (data is NULL)", op->size,
            (unsigned long long)channel->op_id, channel->peer->rank);
    return 0;
}

static bool may_be_late(const struct ph_group_op *op, int rc)
{
    return phi_check_may_be_late(rc) && !phi_group_unbound(op) &&
           (op->kind == PH_GROUP_RECV || op->kind == PH_GROUP_WAIT);
}

static struct phi_channel_call late_call(const struct ph_group_op *op)
{
    return phi_group_call(op, op->kind == PH_GROUP_RECV ? phi_channel_late_recv(op->channel)
                                                        : PHI_CALL_WAIT);
}

static int check_late(const struct ph_group_op *op, int ended)
{
    const struct phi_channel_call call = late_call(op);
    if (!phi_channel_here(&call))
        return phi_check_refused(op->channel, ended);
    atomic_fetch_or(&op->channel->live.grouped, phi_group_late_bit(op->kind));
    return 0;
}

static int check_one(const struct ph_group_op *op, const struct phi_self *self)
{
    struct ph_channel *channel = op->channel;
    if (channel == NULL || channel->self != self || op->kind < PH_GROUP_SEND ||
        op->kind > PH_GROUP_GET_PAGES)
        return phi_fail(self->report, -EINVAL, "group: an operation of kind %d on %s",
                        (int)op->kind,
                        channel == NULL         ? "no channel"
                        : channel->self != self ? "a channel of another context"
                                                : "a channel, and there is no such kind");
    phi_check_mismatch(channel);
    int rc = phi_channel_check(channel);
    if (rc && !may_be_late(op, rc))
        return phi_check_refused(channel, rc);
    const int ended = rc;
    bool outgoing = phi_group_outgoing(op->kind);
    if (!(channel->fixed.role & (outgoing ? PH_ROLE_SENDER : PH_ROLE_RECEIVER)))
        return phi_fail(self->report, -EINVAL,
                        "group: this rank is not the %s of operation %llu with rank %d",
                        outgoing ? "sender" : "receiver", (unsigned long long)channel->op_id,
                        channel->peer->rank);
    if (!ended && (rc = phi_check_zero_sm(channel, is_message(op))))
        return rc;
    bool pair = phi_group_is_pair(op);
    if (channel->fixed.loopback)
        return pair ? check_memory(op) : phi_loopback_refuse(channel, "what is no send or receive");
    bool copies = op->kind == PH_GROUP_PUT || op->kind == PH_GROUP_GET ||
                  op->kind == PH_GROUP_PUT_SIGNAL || phi_group_is_pages(op->kind) ||
                  (pair && phi_channel_active(channel, outgoing));
    if (copies && !ended && (rc = phi_check_reach(channel)))
        return rc;
    if (pair && !copies && !channel->fixed.unbound &&
        (atomic_load(&channel->live.posted) & (outgoing ? 1u : 2u)))
        return phi_fail(self->report, -EALREADY,
                        "group: operation %llu with rank %d has a post without its complete",
                        (unsigned long long)channel->op_id, channel->peer->rank);
    rc = check_memory(op);
    if (rc == 0 && (op->kind == PH_GROUP_GET || op->kind == PH_GROUP_GET_PAGES))
        rc = phi_check_get(channel);
    return rc == 0 && ended ? check_late(op, ended) : rc;
}

// *late: of how many operations the channel has ended, and what they wait for is here.
static int check_all(const struct ph_group_op *ops, size_t n, const struct phi_self *self,
                     size_t *late)
{
    int rc = 0;
    *late = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = check_one(&ops[i], self);
        *late += rc == 0 && phi_group_late(&ops[i]);
    }
    return rc;
}

// Marks each message in its channel, so that a second one is seen in linear time.
static int mark_messages(const struct ph_group_op *ops, size_t n, size_t *marked)
{
    for (*marked = 0; *marked < n; ++*marked) {
        const struct ph_group_op *op = &ops[*marked];
        uint32_t bit = message_bit(op);
        if (phi_group_signals(op->kind))
            atomic_store_explicit(&op->channel->live.tells, *marked, memory_order_relaxed);
        if (bit && (atomic_fetch_or(&op->channel->live.grouped, bit) & bit))
            return phi_fail(op->channel->self->report, -EINVAL,
                            "group: two messages of one kind on operation %llu with rank %d",
                            (unsigned long long)op->channel->op_id, op->channel->peer->rank);
    }
    return 0;
}

static int check_messages(const struct ph_group_op *ops, size_t n)
{
    size_t marked;
    int rc = mark_messages(ops, n, &marked);
    for (size_t i = 0; i < marked; i++)
        if (message_bit(&ops[i]))
            atomic_fetch_and(&ops[i].channel->live.grouped, ~message_bit(&ops[i]));
    return rc;
}

// take_late takes the late messages of the group. A late message waits for nobody, and nobody waits
// for it.
static int take_late(struct phi_group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        const struct ph_group_op *op = &group->ops[i];
        if (!phi_group_late(op))
            continue;
        const struct phi_channel_call call = late_call(op);
        if (!phi_channel_take(&call, group->stream, group->begun))
            return phi_check_refused(op->channel, PH_EPEER);
        group->begun = true;
    }
    return 0;
}

static int issue_all(struct phi_group *group, size_t late)
{
    const int rc = phi_group_issue(group);
    return rc || late == 0 ? rc : take_late(group);
}

// A channel may end after the checks, and what it would wait for may be here: then the checks are
// made again.
static int check_and_issue(struct phi_group *group)
{
    const struct ph_group_op *ops = group->ops;
    const size_t n = group->count;
    size_t late, before;
    int rc = check_all(ops, n, group->self, &late);
    if (rc == 0)
        rc = check_messages(ops, n);
    if (rc == 0)
        rc = check_waits(ops, n, group->self->report);
    if (rc == 0)
        rc = phi_loopback_check(ops, n);
    if (rc == 0)
        rc = issue_all(group, late);
    while (phi_check_ended(rc) && !group->begun) {
        before = late;
        const int again = check_all(ops, n, group->self, &late);
        if (again || late == before)
            return again ? again : rc;
        rc = issue_all(group, late);
    }
    return rc;
}

// PH_EBROKEN says that a group is half enqueued. If all of the group is on one channel nothing else
// is enqueued, and the channel knows better why.
static int why_refused(const struct phi_group *group, int rc)
{
    for (size_t i = 1; i < group->count; i++)
        if (group->ops[i].channel != group->ops[0].channel)
            return rc;
    return phi_check_refused(group->ops[0].channel, rc);
}

// A post without its complete is half an operation, whichever calls went with it. But when a later
// round fails, all of the first round is enqueued, and bound channels have calls in the first round
// only.
static void break_half(const struct phi_group *group)
{
    for (size_t i = 0; i < group->count; i++)
        if (group->round <= 1 || phi_group_unbound(&group->ops[i]) ||
            phi_group_late(&group->ops[i]))
            phi_channel_break(group->ops[i].channel);
}

// The context of the first operation that has a channel, or NULL: one without is refused there.
static struct phi_self *peers_of(const struct ph_group_op *ops, size_t n)
{
    size_t i = 0;
    while (i < n && ops[i].channel == NULL)
        i++;
    return i < n ? ops[i].channel->self : NULL;
}

// The operations of a group are those of the library from here on: no list of pages is a
// struct ph_pages.
static int issue_group(struct phi_self *self, const struct ph_group_op *ops, size_t n, void *stream)
{
    struct phi_group group;
    group.self = self;
    group.ops = ops;
    group.count = n;
    group.stream = stream;
    group.begun = false;
    int rc = check_and_issue(&group);
    if (rc && group.begun) {
        rc = why_refused(&group, rc);
        break_half(&group);
    }
    // Another context's channel, for which the group was refused, may be in a group of its own.
    for (size_t i = 0; i < n; i++)
        if (ops[i].channel != NULL && ops[i].channel->self == group.self && phi_group_late(&ops[i]))
            atomic_fetch_and(&ops[i].channel->live.grouped, ~phi_group_late_bit(ops[i].kind));
    return rc;
}

static bool has_pages(const struct ph_group_op *ops, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (phi_group_is_pages(ops[i].kind))
            return true;
    return false;
}

int ph_group(const struct ph_group_op *ops, size_t n, void *stream)
{
    PHI_RANGE("ph_group", n);
    if (n == 0)
        return 0;
    struct phi_self *self = ops ? peers_of(ops, n) : NULL;
    if (self == NULL)
        return -EINVAL;
    if (phi_self_forked(self))
        return PH_EFORKED;
    if (!has_pages(ops, n))
        return issue_group(self, ops, n, stream);
    struct phi_pages_group pages;
    int rc = phi_pages_prepare(self, ops, n, &pages);
    if (rc)
        return rc;
    rc = issue_group(self, pages.ops, pages.n, stream);
    phi_pages_fini(&pages);
    return rc;
}
