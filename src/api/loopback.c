// SPDX-License-Identifier: BSD-3-Clause
#include "api/loopback.h"

#include <errno.h>
#include <stdlib.h>

#include "exchange/exchange.h"
#include "exchange/request.h"
#include "peer/channel.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/loopback.h"

// ---- exchange

// The channels of an exchange, one for each operation. NULL: the operation is with another rank.
struct phi_loopbacks {
    size_t n;
    struct ph_channel *channels[];
};

static void free_selves(struct phi_self *self, struct phi_loopbacks *loopbacks, bool keep)
{
    pthread_mutex_lock(&self->lock);
    for (size_t i = 0; i < loopbacks->n; i++)
        if (loopbacks->channels[i] != NULL && !keep)
            loopbacks->channels[i]->kept.handles--;
    pthread_mutex_unlock(&self->lock);
    free(loopbacks);
}

// *others: operations with other ranks, of which there are *left.
static int divide(struct phi_self *self, const struct ph_operation *ops, size_t n,
                  struct phi_loopbacks *loopbacks, struct ph_operation *others, size_t *left)
{
    int rc = 0;
    *left = 0;
    pthread_mutex_lock(&self->lock);
    for (; loopbacks->n < n && rc == 0; loopbacks->n += rc == 0) {
        const struct ph_operation *op = &ops[loopbacks->n];
        if (op->peer == self->rank)
            rc = phi_loopback_open(self, op->op_id, &loopbacks->channels[loopbacks->n]);
        else
            others[(*left)++] = *op;
    }
    pthread_mutex_unlock(&self->lock);
    return rc;
}

int phi_loopback_start(struct phi_self *self, const struct ph_operation *ops, size_t n,
                       struct ph_exchange_request **request)
{
    struct ph_operation *others = malloc(n * sizeof *others);
    struct phi_loopbacks *loopbacks =
        calloc(1, sizeof *loopbacks + n * sizeof loopbacks->channels[0]);
    size_t left;
    int rc;
    if (others == NULL || loopbacks == NULL) {
        free(others);
        free(loopbacks);
        return phi_fail(self->report, -ENOMEM, "out of memory for %zu operations", n);
    }
    rc = divide(self, ops, n, loopbacks, others, &left);
    if (rc == 0)
        rc = phi_exchange_start(self, others, left, request);
    free(others);
    if (rc == 0)
        (*request)->loopbacks = loopbacks;
    else
        free_selves(self, loopbacks, false);
    return rc;
}

// The channels of other ranks, which stand at the beginning, move to the places of their
// operations.
static void spread(const struct phi_loopbacks *loopbacks, size_t others,
                   struct ph_channel **channels)
{
    for (size_t i = loopbacks->n; i-- > 0;)
        channels[i] = loopbacks->channels[i] ? loopbacks->channels[i] : channels[--others];
}

int phi_loopback_finish(struct ph_exchange_request *request, struct ph_channel **channels,
                        int64_t deadline)
{
    struct phi_self *self = phi_exchange_peers(request);
    struct phi_loopbacks *loopbacks = request->loopbacks;
    const size_t others = request->capacity;
    request->loopbacks = NULL;
    const int rc = phi_exchange_finish(request, channels, deadline);
    if (loopbacks == NULL)
        return rc;
    if (rc == 0)
        spread(loopbacks, others, channels);
    free_selves(self, loopbacks, rc == 0);
    return rc;
}

// ---- groups

int phi_loopback_refuse(const struct ph_channel *channel, const char *what)
{
    return phi_fail(channel->self->report, -EINVAL,
                    "operation %llu with rank %d, which is this rank: %s needs another one; to "
                    "itself a rank sends in a group (ph_group) that has the receive, too",
                    (unsigned long long)channel->op_id, channel->peer->rank, what);
}

static bool is_half(const struct ph_group_op *op, enum ph_group_kind kind)
{
    return op->channel->fixed.loopback && op->kind == kind;
}

struct phi_loopback_pairs phi_loopback_pairs(const struct ph_group_op *ops, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (ops[i].channel->fixed.loopback)
            ops[i].channel->live.turn[0].next = 0;
    return (struct phi_loopback_pairs){ops, n, 0};
}

// The next receive of a channel, whose place is kept there.
static const struct ph_group_op *next_receive(const struct phi_loopback_pairs *pairs,
                                              struct ph_channel *channel)
{
    for (size_t *i = &channel->live.turn[0].next; *i < pairs->n;) {
        const struct ph_group_op *op = &pairs->ops[(*i)++];
        if (op->channel == channel && op->kind == PH_GROUP_RECV)
            return op;
    }
    return NULL;
}

bool phi_loopback_next(struct phi_loopback_pairs *pairs, const struct ph_group_op **send,
                       const struct ph_group_op **receive)
{
    while (pairs->at < pairs->n) {
        const struct ph_group_op *op = &pairs->ops[pairs->at++];
        if (!is_half(op, PH_GROUP_SEND))
            continue;
        *send = op;
        *receive = next_receive(pairs, op->channel);
        return true;
    }
    return false;
}

static int lacks(const struct ph_group_op *op, size_t place, const char *what, const char *other)
{
    return phi_fail(op->channel->self->report, -EINVAL,
                    "group: the %s of %zu bytes at place %zu, of operation %llu with rank %d, "
                    "which is this rank, has no %s in it",
                    what, op->size, place, (unsigned long long)op->channel->op_id,
                    op->channel->peer->rank, other);
}

static bool overlap(const struct ph_group_op *a, const struct ph_group_op *b)
{
    const uintptr_t at = (uintptr_t)a->data, other = (uintptr_t)b->data;
    return at != other && (at < other ? other - at : at - other) < a->size;
}

static int check_pair(const struct ph_group_op *send, const struct ph_group_op *receive)
{
    const struct ph_channel *channel = send->channel;
    if (send->size != receive->size)
        return phi_fail(channel->self->report, -EINVAL,
                        "group: operation %llu with rank %d, which is this rank: a send of %zu "
                        "bytes matches a receive of %zu",
                        (unsigned long long)channel->op_id, channel->peer->rank, send->size,
                        receive->size);
    if (overlap(send, receive))
        return phi_fail(channel->self->report, -EINVAL,
                        "group: operation %llu with rank %d, which is this rank: %zu bytes at %p "
                        "overlap those at %p that they are to be copied to",
                        (unsigned long long)channel->op_id, channel->peer->rank, send->size,
                        send->data, receive->data);
    return 0;
}

int phi_loopback_check(const struct ph_group_op *ops, size_t n)
{
    struct phi_loopback_pairs pairs = phi_loopback_pairs(ops, n);
    const struct ph_group_op *send, *receive;
    int rc = 0;
    while (rc == 0 && phi_loopback_next(&pairs, &send, &receive))
        rc = receive ? check_pair(send, receive)
                     : lacks(send, (size_t)(send - ops), "send", "receive");
    // A receive that stands behind the last matched one has no send.
    for (size_t i = 0; i < n && rc == 0; i++)
        if (is_half(&ops[i], PH_GROUP_RECV) && i >= ops[i].channel->live.turn[0].next)
            rc = lacks(&ops[i], i, "receive", "send");
    return rc;
}
