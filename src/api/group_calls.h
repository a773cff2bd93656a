// SPDX-License-Identifier: BSD-3-Clause
// A group while it is issued: what the file that checks it (group.c) and the one that makes its
// calls (group_calls.c) share.
#ifndef PHI_API_GROUP_CALLS_H
#define PHI_API_GROUP_CALLS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <peerhop/transfer.h>

#include "peer/channel.h"
#include "transfer/issue.h"

struct phi_self;

// Calls handed down at once; a larger group takes several turns on the same stream.
#define PHI_GROUP_CALLS 96

// The calls for which a turn over the group's phases is. The calls by bells stand together: so a
// phase is one launch of each kernel, and not one for every change. Staged calls have turns of
// their own.
enum phi_group_turn { PHI_TURN_PLAIN, PHI_TURN_BELLS };

struct phi_group {
    struct phi_self *self;
    const struct ph_group_op *ops;
    size_t count; // of them
    void *stream;
    bool begun; // something of the group is enqueued

    // The members from here on are phi_group_issue's.
    enum phi_group_turn turn;
    struct phi_helps helps;
    size_t n;
    size_t round;
    bool staged;     // a channel of the group is,
    bool bells;      // ... or goes by bells
    uint32_t phases; // a bit for each in which the group may have calls
    bool unbound;    // a channel of the group is
    bool has_long;   // ... and has messages that may be long ones of a ring
    bool loopbacks;  // ... or is one of this rank to itself
    int rc;
    struct phi_channel_call calls[PHI_GROUP_CALLS];
};

static inline bool phi_group_outgoing(enum ph_group_kind kind)
{
    return kind == PH_GROUP_SEND || kind == PH_GROUP_PUT || kind == PH_GROUP_PUT_SIGNAL ||
           kind == PH_GROUP_SIGNAL || kind == PH_GROUP_PUT_PAGES;
}

static inline bool phi_group_signals(enum ph_group_kind kind)
{
    return kind == PH_GROUP_PUT_SIGNAL || kind == PH_GROUP_SIGNAL;
}

static inline bool phi_group_is_pair(const struct ph_group_op *op)
{
    return op->kind == PH_GROUP_SEND || op->kind == PH_GROUP_RECV;
}

// phi_group_unbound says whether the operation is an unbound one with another rank, which takes
// part in rounds. An operation of this rank with itself is a copy.
static inline bool phi_group_unbound(const struct ph_group_op *op)
{
    return phi_group_is_pair(op) && op->channel->fixed.unbound && !op->channel->fixed.loopback;
}

static inline uint32_t phi_group_bit(enum ph_group_kind kind)
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

// phi_group_late_bit marks a message that is here although its channel has ended. Such a message is
// taken after all others.
static inline uint32_t phi_group_late_bit(enum ph_group_kind kind)
{
    return phi_group_bit(kind) << 4;
}

static inline bool phi_group_late(const struct ph_group_op *op)
{
    return atomic_load_explicit(&op->channel->live.grouped, memory_order_relaxed) &
           phi_group_late_bit(op->kind);
}

// phi_group_call makes a call of an operation, for the part that the operation has in this round.
struct phi_channel_call phi_group_call(const struct ph_group_op *op, enum phi_call call);

// phi_group_issue makes and hands down all calls of a group that is checked, and whose members up
// to `round` are filled in. -E2BIG, nothing is enqueued: too many messages go out over the net
// while too many are waited for. Else as phi_issue; `begun` and `round` say how far it came.
int phi_group_issue(struct phi_group *group);

#endif
