// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>

#include "api/check.h"
#include "api/context_internal.h"
#include "channel/issue.h"

// Calls handed down at once; a larger group takes several turns on the same stream.
#define CALLS_MAX 96

struct batch {
    struct phi_peers *peers;
    void *stream;
    size_t n;
    bool begun; // something of the group is enqueued
    int rc;
    struct phi_channel_call calls[CALLS_MAX];
};

static void flush(struct batch *batch)
{
    if (batch->rc == 0 && batch->n > 0)
        batch->rc = phi_issue(batch->peers, batch->calls, batch->n, batch->stream, &batch->begun);
    batch->n = 0;
}

static void add(struct batch *batch, const struct ph_group_op *op, enum phi_call call,
                bool outgoing)
{
    if (batch->n == CALLS_MAX)
        flush(batch);
    bool plain = op->kind == PH_GROUP_SEND || op->kind == PH_GROUP_RECV;
    batch->calls[batch->n++] = (struct phi_channel_call){
        .channel = op->channel,
        .call = call,
        .outgoing = outgoing,
        .local_offset = plain ? 0 : op->local_offset,
        .remote_offset = plain ? 0 : op->peer_offset,
        .size = op->size,
    };
}

static bool is_outgoing(enum ph_group_kind kind)
{
    return kind == PH_GROUP_SEND || kind == PH_GROUP_PUT || kind == PH_GROUP_PUT_SIGNAL ||
           kind == PH_GROUP_SIGNAL;
}

// The calls that an operation of a group is made of: at most one in each phase.
static bool call_in_phase(const struct ph_group_op *op, unsigned phase, enum phi_call *call)
{
    static const enum phi_call single[] = {
        [PH_GROUP_PUT] = PHI_CALL_PUT,
        [PH_GROUP_GET] = PHI_CALL_GET,
        [PH_GROUP_PUT_SIGNAL] = PHI_CALL_PUT_SIGNAL,
        [PH_GROUP_SIGNAL] = PHI_CALL_SIGNAL,
        [PH_GROUP_WAIT] = PHI_CALL_WAIT,
    };
    bool pair = op->kind == PH_GROUP_SEND || op->kind == PH_GROUP_RECV;
    if (!pair)
        *call = single[op->kind];
    else if (phi_channel_active(op->channel, is_outgoing(op->kind)))
        *call = PHI_CALL_TRANSFER;
    else
        *call = phase == phi_programs[PHI_CALL_POST].phase ? PHI_CALL_POST : PHI_CALL_COMPLETE;
    return phi_programs[*call].phase == phase;
}

static void add_phase(struct batch *batch, const struct ph_group_op *ops, size_t n, unsigned phase)
{
    // Peers in the order of phi_group_rank: from one to the next by a search, so that nothing is
    // sorted or allocated.
    const uint32_t rank = (uint32_t)batch->peers->rank, ranks = (uint32_t)batch->peers->ranks;
    uint32_t done = 0, next;
    do {
        next = UINT32_MAX;
        for (size_t i = 0; i < n; i++) {
            uint32_t place = phi_group_rank(rank, (uint32_t)ops[i].channel->peer->rank, ranks);
            if (place > done && place < next)
                next = place;
        }
        for (size_t i = 0; i < n && next != UINT32_MAX; i++) {
            enum phi_call call;
            if (phi_group_rank(rank, (uint32_t)ops[i].channel->peer->rank, ranks) == next &&
                call_in_phase(&ops[i], phase, &call))
                add(batch, &ops[i], call, is_outgoing(ops[i].kind));
        }
        done = next;
    } while (next != UINT32_MAX);
}

// ---- checks

static int check_span(const struct ph_group_op *op)
{
    const struct ph_channel *channel = op->channel;
    bool plain =
        op->kind == PH_GROUP_SEND || op->kind == PH_GROUP_RECV || op->kind == PH_GROUP_WAIT;
    size_t local = plain ? 0 : op->local_offset, peer = plain ? 0 : op->peer_offset;
    if (op->kind == PH_GROUP_SIGNAL)
        return 0;
    return phi_check_range(channel, local, peer, op->size);
}

static int check_one(const struct ph_group_op *op, const struct phi_peers *peers)
{
    struct ph_channel *channel = op->channel;
    if (channel == NULL || channel->peers != peers || op->kind < PH_GROUP_SEND ||
        op->kind > PH_GROUP_WAIT)
        return phi_fail(peers->report, -EINVAL, "group: an operation of kind %d on %s",
                        (int)op->kind,
                        channel == NULL           ? "no channel"
                        : channel->peers != peers ? "a channel of another context"
                                                  : "a channel, and there is no such kind");
    int rc = phi_channel_check(channel);
    if (rc)
        return phi_check_refused(channel, rc);
    bool outgoing = is_outgoing(op->kind);
    if (!(channel->role & (outgoing ? PH_ROLE_SENDER : PH_ROLE_RECEIVER)))
        return phi_fail(peers->report, -EINVAL,
                        "group: this rank is not the %s of operation %llu with rank %d",
                        outgoing ? "sender" : "receiver", (unsigned long long)channel->op_id,
                        channel->peer->rank);
    bool pair = op->kind == PH_GROUP_SEND || op->kind == PH_GROUP_RECV;
    bool copies = op->kind == PH_GROUP_PUT || op->kind == PH_GROUP_GET ||
                  op->kind == PH_GROUP_PUT_SIGNAL ||
                  (pair && phi_channel_active(channel, outgoing));
    if (copies && (rc = phi_check_reach(channel)))
        return rc;
    if (pair && !copies && (atomic_load(&channel->posted) & (outgoing ? 1u : 2u)))
        return phi_fail(peers->report, -EALREADY,
                        "group: operation %llu with rank %d has a post without its complete",
                        (unsigned long long)channel->op_id, channel->peer->rank);
    rc = check_span(op);
    return rc == 0 && op->kind == PH_GROUP_GET ? phi_check_get(channel) : rc;
}

// The message of its kind that an operation is; 0 for plain puts and gets, of which there may be
// any number.
static uint32_t message_bit(enum ph_group_kind kind)
{
    switch (kind) {
    case PH_GROUP_SEND:
        return 1;
    case PH_GROUP_RECV:
        return 2;
    case PH_GROUP_PUT_SIGNAL:
    case PH_GROUP_SIGNAL:
        return 4;
    case PH_GROUP_WAIT:
        return 8;
    default:
        return 0;
    }
}

// Marks each message in its channel, so that a second one is seen in linear time.
static int mark_messages(const struct ph_group_op *ops, size_t n, size_t *marked)
{
    for (*marked = 0; *marked < n; ++*marked) {
        const struct ph_group_op *op = &ops[*marked];
        uint32_t bit = message_bit(op->kind);
        if (bit && (atomic_fetch_or(&op->channel->grouped, bit) & bit))
            return phi_fail(op->channel->peers->report, -EINVAL,
                            "group: two messages of one kind on operation %llu with rank %d",
                            (unsigned long long)op->channel->op_id, op->channel->peer->rank);
    }
    return 0;
}

static void unmark_messages(const struct ph_group_op *ops, size_t marked)
{
    for (size_t i = 0; i < marked; i++)
        atomic_fetch_and(&ops[i].channel->grouped, ~message_bit(ops[i].kind));
}

int ph_group(const struct ph_group_op *ops, size_t n, void *stream)
{
    if (n == 0)
        return 0;
    if (ops == NULL || ops[0].channel == NULL)
        return -EINVAL;
    struct batch batch;
    batch.peers = ops[0].channel->peers;
    batch.stream = stream;
    batch.n = 0;
    batch.begun = false;
    batch.rc = 0;
    if (phi_peers_forked(batch.peers))
        return PH_EFORKED;
    for (size_t i = 0; i < n; i++) {
        int rc = check_one(&ops[i], batch.peers);
        if (rc)
            return rc;
    }
    size_t marked;
    int rc = mark_messages(ops, n, &marked);
    unmark_messages(ops, marked);
    if (rc)
        return rc;
    for (unsigned phase = 0; phase < PHI_GROUP_PHASES; phase++)
        add_phase(&batch, ops, n, phase);
    flush(&batch);
    for (size_t i = 0; batch.rc == PH_EBROKEN && !batch.begun && i < n; i++)
        batch.rc = phi_check_refused(ops[i].channel, batch.rc);
    // A post whose complete is missing is half an operation, in whichever batch it was.
    for (size_t i = 0; batch.rc && batch.begun && i < n; i++)
        phi_channel_break(ops[i].channel);
    return batch.rc;
}
