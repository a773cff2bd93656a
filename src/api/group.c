// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>

#include "api/check.h"
#include "api/context_internal.h"
#include "api/self.h"
#include "base/stage.h"
#include "cuda/kernel_args.h"
#include "ending/usable.h"
#include "lane/staging.h"
#include "peer/channel.h"
#include "peer/peer.h"
#include "peer/peers.h"
#include "transfer/issue.h"
#include "transfer/take.h"

// Calls handed down at once; a larger group takes several turns on the same stream.
#define CALLS_MAX 96

// Which calls a turn over the group's phases is for. Those by bells stand together: a phase is one
// launch of each kernel, and not one for every change. Staged calls have turns of their own.
enum turn { PLAIN, BELLS };

struct batch {
    struct phi_peers *peers;
    const struct ph_group_op *ops;
    size_t count; // of them
    void *stream;
    enum turn turn;
    struct phi_helps helps;
    size_t n;
    size_t round;
    bool staged;     // a channel of the group is,
    bool bells;      // ... or goes by bells
    uint32_t phases; // a bit for each in which the group may have calls
    bool unbound;    // a channel of the group is
    bool has_long;   // ... and has messages that may be long ones of a ring
    bool selves;     // ... or is one of this rank to itself
    bool begun;      // something of the group is enqueued
    int rc;
    struct phi_channel_call calls[CALLS_MAX];
};

static void flush(struct batch *batch)
{
    if (batch->rc == 0 && batch->n > 0)
        batch->rc = phi_issue(batch->peers, batch->calls, batch->n, &batch->helps, batch->stream,
                              &batch->begun);
    batch->n = 0;
}

static bool is_outgoing(enum ph_group_kind kind)
{
    return kind == PH_GROUP_SEND || kind == PH_GROUP_PUT || kind == PH_GROUP_PUT_SIGNAL ||
           kind == PH_GROUP_SIGNAL;
}

static bool is_signal(enum ph_group_kind kind)
{
    return kind == PH_GROUP_PUT_SIGNAL || kind == PH_GROUP_SIGNAL;
}

static bool is_pair(const struct ph_group_op *op)
{
    return op->kind == PH_GROUP_SEND || op->kind == PH_GROUP_RECV;
}

// With another rank, which takes part in rounds. What one sends to itself is a copy.
static bool is_unbound(const struct ph_group_op *op)
{
    return is_pair(op) && op->channel->unbound && !op->channel->self;
}

static uint32_t kind_bit(enum ph_group_kind kind)
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

// The message of its kind that an operation is; 0 for those of which there may be any number:
// plain puts and gets, and what names its memory.
static uint32_t message_bit(const struct ph_group_op *op)
{
    return is_pair(op) && op->channel->unbound ? 0 : kind_bit(op->kind);
}

// Of a message that is here although its channel has ended: it is taken after all others.
static uint32_t late_bit(enum ph_group_kind kind)
{
    return kind_bit(kind) << 4;
}

static bool is_late(const struct ph_group_op *op)
{
    return atomic_load_explicit(&op->channel->grouped, memory_order_relaxed) & late_bit(op->kind);
}

// Of what is one call.
static const enum phi_call single[] = {
    [PH_GROUP_PUT] = PHI_CALL_PUT,
    [PH_GROUP_GET] = PHI_CALL_GET,
    [PH_GROUP_PUT_SIGNAL] = PHI_CALL_PUT_SIGNAL,
    [PH_GROUP_SIGNAL] = PHI_CALL_SIGNAL,
    [PH_GROUP_WAIT] = PHI_CALL_WAIT,
};

// ---- rounds: in each a channel has one message of a direction, or one part of it

static struct phi_turn *turn_of(const struct ph_group_op *op)
{
    return &op->channel->turn[is_outgoing(op->kind)];
}

// What goes at once; both ends cut a message alike.
static size_t part_size(const struct ph_group_op *op)
{
    const struct ph_channel *channel = op->channel;
    if (channel->stage.is)
        return SIZE_MAX;
    if (channel->ring[is_outgoing(op->kind)])
        return PHI_RING_LONG;
    return channel->part;
}

static bool has_part(const struct ph_group_op *op, size_t part)
{
    return part == 0 || (op->size - 1) / part_size(op) >= part; // none of 0 bytes has two
}

// Whether it is its turn in this round. What is bound has its turn in the first one.
static bool is_its_turn(const struct batch *batch, const struct ph_group_op *op)
{
    return is_unbound(op) ? turn_of(op)->at == (size_t)(op - batch->ops) : batch->round == 0;
}

static void begin_turns(const struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        if (is_unbound(&batch->ops[i]))
            *turn_of(&batch->ops[i]) = (struct phi_turn){.at = PHI_NO_TURN};
}

// Goes to the next round; false: there is none.
static bool next_turns(const struct batch *batch)
{
    bool any = false;
    for (size_t i = 0; i < batch->count; i++) {
        const struct ph_group_op *op = &batch->ops[i];
        struct phi_turn *turn = is_unbound(op) ? turn_of(op) : NULL;
        if (turn == NULL)
            continue;
        if (turn->at == i && (op->size == 0 || !has_part(op, turn->part + 1)))
            *turn = (struct phi_turn){.at = PHI_NO_TURN, .next = i + 1};
        else if (turn->at == i)
            turn->part++;
        else if (turn->at == PHI_NO_TURN && i >= turn->next)
            *turn = (struct phi_turn){.at = i, .next = i + 1};
        any = any || turn->at == i;
    }
    return any;
}

// The calls that an operation of a group is made of: at most one in each phase.
static bool call_in_phase(const struct batch *batch, const struct ph_group_op *op, unsigned phase,
                          enum phi_call *call)
{
    if (op->channel->self || !is_its_turn(batch, op))
        return false;
    if (!is_pair(op))
        *call = single[op->kind];
    else if (phi_channel_active(op->channel, is_outgoing(op->kind)))
        *call = PHI_CALL_TRANSFER;
    else
        *call = phase == phi_programs[PHI_CALL_POST].phase ? PHI_CALL_POST : PHI_CALL_COMPLETE;
    return phi_programs[*call].phase == phase && !is_late(op);
}

// The phases in which it may have calls.
static uint32_t phases_of(const struct ph_group_op *op)
{
    if (op->channel->self)
        return 0;
    return is_pair(op) ? (1u << PHI_GROUP_PHASES) - 1 : 1u << phi_programs[single[op->kind]].phase;
}

static struct phi_channel_call call_of(const struct ph_group_op *op, enum phi_call call)
{
    const bool plain = is_pair(op);
    if (is_unbound(op)) {
        const size_t most = part_size(op), from = turn_of(op)->part * most;
        return (struct phi_channel_call){
            .channel = op->channel,
            .call = call,
            .outgoing = is_outgoing(op->kind),
            .data = op->size > 0 ? (char *)op->data + from : NULL,
            .remote_offset = from,
            .size = op->size - from < most ? op->size - from : most,
            .message = op->size,
        };
    }
    return (struct phi_channel_call){
        .channel = op->channel,
        .call = call,
        .outgoing = is_outgoing(op->kind),
        .local_offset = plain ? 0 : op->local_offset,
        .remote_offset = plain ? 0 : op->peer_offset,
        .size = op->size,
    };
}

// Whether a signal behind the operation tells of it, where that is not so by itself. A signal's
// place in the list is in its channel. Another thread's group, which has no part in the channel's
// outgoing direction but for one of us, may have put its own there: what counts is what our list
// has at it.
static bool is_told(const struct batch *batch, const struct ph_group_op *op)
{
    const struct ph_channel *channel = op->channel;
    if (op->kind != PH_GROUP_GET || !channel->stage.bells)
        return false;
    const size_t at = atomic_load_explicit(&channel->tells, memory_order_relaxed);
    return at < batch->count && batch->ops[at].channel == channel &&
           is_signal(batch->ops[at].kind) && op < &batch->ops[at];
}

static void add(struct batch *batch, const struct phi_channel_call *call)
{
    if (batch->n == CALLS_MAX)
        flush(batch);
    batch->calls[batch->n++] = *call;
}

static void add_in_turn(struct batch *batch, const struct ph_group_op *op, enum phi_call which)
{
    struct phi_channel_call call = call_of(op, which);
    call.told = is_told(batch, op);
    const bool apart =
        phi_call_fills(&call) || phi_call_empties(&call) || phi_call_is_long(&call);
    if (!apart && op->channel->stage.bells == (batch->turn == BELLS))
        add(batch, &call);
}

static void add_phase(struct batch *batch, const struct ph_group_op *ops, size_t n, unsigned phase)
{
    // Peers in the order of phi_group_rank, from 1 on: with each pass over the calls of one the
    // next is found, so that nothing is sorted or allocated.
    const uint32_t rank = (uint32_t)batch->peers->rank, ranks = (uint32_t)batch->peers->ranks;
    if (!(batch->phases & 1u << phase))
        return;
    for (uint32_t turn = 1, next; turn != UINT32_MAX; turn = next) {
        next = UINT32_MAX;
        for (size_t i = 0; i < n; i++) {
            enum phi_call call;
            if (!call_in_phase(batch, &ops[i], phase, &call))
                continue;
            const uint32_t place =
                phi_group_rank(rank, (uint32_t)ops[i].channel->peer->rank, ranks);
            if (place == turn)
                add_in_turn(batch, &ops[i], call);
            else if (place > turn && place < next)
                next = place;
        }
    }
}

// By bells first in every other phase, so that the last ones of a phase and the first of the next
// are one launch.
static void add_unstaged(struct batch *batch, const struct ph_group_op *ops, size_t n,
                         unsigned first, unsigned end)
{
    for (unsigned phase = first; phase < end; phase++)
        for (unsigned i = 0; i < 2; i++) {
            batch->turn = (phase + i) % 2 ? BELLS : PLAIN;
            if (batch->turn == PLAIN || batch->bells)
                add_phase(batch, ops, n, phase);
        }
}

// ---- calls that have an order: staged ones, and long ones by a ring

enum ordered { FILLS, EMPTIES, LONG };

static bool is_of(const struct phi_channel_call *call, enum ordered kind)
{
    return kind == FILLS     ? phi_call_fills(call)
           : kind == EMPTIES ? phi_call_empties(call)
                             : phi_call_is_long(call);
}

// The call of an operation that is of a kind: at most one.
static bool ordered_call(const struct batch *batch, const struct ph_group_op *op,
                         enum ordered kind, struct phi_channel_call *call)
{
    enum phi_call which;
    for (unsigned phase = 0; phase < PHI_GROUP_PHASES; phase++) {
        if (!call_in_phase(batch, op, phase, &which))
            continue;
        *call = call_of(op, which);
        if (is_of(call, kind))
            return true;
    }
    return false;
}

// Where a call stands among those of its group: by lane, that is by pair of ranks, line, direction
// and word, which all ranks know alike; then as it is named.
struct place {
    uint64_t pair, lane;
};

static struct place place_of(const struct batch *batch, const struct ph_group_op *op, size_t i,
                             enum ordered kind)
{
    const uint64_t own = (uint64_t)batch->peers->rank, peer = (uint64_t)op->channel->peer->rank;
    const uint64_t low = own < peer ? own : peer, high = own < peer ? peer : own;
    const uint64_t upwards = is_outgoing(op->kind) == (own < peer);
    const uint64_t lane = (uint64_t)op->channel->index << 2 | upwards << 1 | is_pair(op);
    // By turns in which each rank has another one, as far as they go.
    if (kind == LONG)
        return (struct place){(low + high) % (uint64_t)batch->peers->ranks, lane << 32 | i};
    return (struct place){low << 32 | high, lane << 32 | i};
}

static bool is_before(const struct place *a, const struct place *b)
{
    return a->pair != b->pair ? a->pair < b->pair : a->lane < b->lane;
}

// Of so many places the last one makes room where there is none.
static size_t insert(struct place *places, size_t count, const struct place *place)
{
    size_t at = count < CALLS_MAX ? count++ : CALLS_MAX - 1;
    for (; at > 0 && is_before(place, &places[at - 1]); at--)
        places[at] = places[at - 1];
    places[at] = *place;
    return count;
}

// The first places behind `after`. Nothing is allocated: there are turns over the group, each for
// as many calls as are handed down at once.
static size_t find_places(const struct batch *batch, const struct ph_group_op *ops, size_t n,
                          enum ordered kind, const struct place *after, struct place *places)
{
    struct phi_channel_call call;
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        if (!ordered_call(batch, &ops[i], kind, &call))
            continue;
        const struct place place = place_of(batch, &ops[i], i, kind);
        if (is_before(after, &place) &&
            (count < CALLS_MAX || is_before(&place, &places[count - 1])))
            count = insert(places, count, &place);
    }
    return count;
}

// Launches, and the steps of a host's queue, follow one another; so a lane may wait for those that
// stand before it. At both of its ends these are the same, whatever order the groups are named in:
// of the lanes whose messages are not over the first is at its turn at either end, and goes on. What
// one launch has goes on independently, so it matters not where launches end.
static void add_ordered(struct batch *batch, const struct ph_group_op *ops, size_t n,
                        enum ordered kind)
{
    struct place places[CALLS_MAX], last = {0};
    struct phi_channel_call call;
    size_t count = CALLS_MAX;
    while (count == CALLS_MAX) {
        count = find_places(batch, ops, n, kind, &last, places);
        for (size_t i = 0; i < count; i++) {
            last = places[i];
            if (ordered_call(batch, &ops[(uint32_t)last.lane], kind, &call))
                add(batch, &call);
        }
    }
}

// Where a staged lane gets more than its peer's slots hold, what the peers send must go on at the
// same time: they may be at the same point. Nothing is enqueued yet.
static size_t records_of(const struct batch *batch, const struct ph_group_op *op)
{
    struct phi_channel_call call;
    return ordered_call(batch, op, FILLS, &call) ? phi_staging_records(&call) : 0;
}

static bool overfills(const struct batch *batch, const struct ph_group_op *ops, size_t n)
{
    size_t all = 0;
    for (size_t i = 0; i < n; i++)
        all += records_of(batch, &ops[i]);
    for (size_t i = 0; i < n && all > PHI_STAGE_SLOTS; i++) {
        size_t records = 0;
        for (size_t j = i; j < n && records <= PHI_STAGE_SLOTS; j++)
            if (ops[j].channel == ops[i].channel && is_pair(&ops[j]) == is_pair(&ops[i]))
                records += records_of(batch, &ops[j]);
        if (records > PHI_STAGE_SLOTS)
            return true;
    }
    return false;
}

static int add_helps(struct batch *batch)
{
    const struct ph_group_op *ops = batch->ops;
    const size_t n = batch->count;
    struct phi_channel_call call;
    batch->helps.n = 0;
    if (!batch->staged || !overfills(batch, ops, n))
        return 0;
    for (size_t i = 0; i < n; i++) // more than there is room for are only counted
        if (ordered_call(batch, &ops[i], EMPTIES, &call) && batch->helps.n++ < PHI_HELPS_MAX)
            batch->helps.calls[batch->helps.n - 1] = call;
    if (batch->helps.n <= PHI_HELPS_MAX)
        return 0;
    return phi_fail(batch->peers->report, -E2BIG,
                    "group: it sends more than %d slots hold, which goes on with what it waits for "
                    "over the net; these are %zu messages, of which %d can: make several groups",
                    PHI_STAGE_SLOTS, batch->helps.n, PHI_HELPS_MAX);
}

// Behind what tells peers to go on, before all that may wait for them.
static void add_selves(struct batch *batch)
{
    struct phi_self_pairs pairs = phi_self_pairs(batch->ops, batch->count);
    const struct ph_group_op *send, *receive;
    while (phi_self_next(&pairs, &send, &receive)) {
        const struct phi_channel_call call = {
            .channel = send->channel,
            .call = PHI_CALL_PUT,
            .outgoing = true,
            .size = send->size,
            .data = send->data,
            .to = receive->data,
        };
        add(batch, &call);
    }
}

// ---- all of a round

// Staged calls have no words, so they need not wait for other ranks' posts, nor anybody for them:
// they come between what posts and copies, and what waits for that; first what fills slots.
static void add_all(struct batch *batch, const struct ph_group_op *ops, size_t n)
{
    add_unstaged(batch, ops, n, 0, 1);
    if (batch->selves && batch->round == 0)
        add_selves(batch);
    add_unstaged(batch, ops, n, 1, PHI_GROUP_PHASES - 1);
    if (batch->has_long)
        add_ordered(batch, ops, n, LONG);
    if (batch->staged) {
        add_ordered(batch, ops, n, FILLS);
        add_ordered(batch, ops, n, EMPTIES);
    }
    add_unstaged(batch, ops, n, PHI_GROUP_PHASES - 1, PHI_GROUP_PHASES);
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

// All but a put and a get, for which nobody waits.
static bool is_message(const struct ph_group_op *op)
{
    return op->kind != PH_GROUP_PUT && op->kind != PH_GROUP_GET;
}

// Streams wait by kernels or by memory operations: messages of one launch by one of the two.
static int check_waits(const struct ph_group_op *ops, size_t n, struct phi_report *report)
{
    bool with = false, without = false;
    for (size_t i = 0; i < n; i++) {
        const struct ph_channel *channel = ops[i].channel;
        // What is staged waits for slots, puts as well; what one sends to itself waits for nobody.
        const bool waits = (is_message(&ops[i]) || channel->stage.is) && !channel->self;
        with = with || (waits && !channel->zero_sm);
        without = without || (waits && channel->zero_sm);
    }
    return with && without ? phi_fail(report, -ENOTSUP,
                                      "group: messages of operations with PH_ZERO_SM and of "
                                      "others: make two groups")
                           : 0;
}

// What an operation names besides its channel.
static int check_memory(const struct ph_group_op *op)
{
    const struct ph_channel *channel = op->channel;
    if (!channel->unbound && op->data != NULL)
        return phi_fail(channel->peers->report, -EINVAL,
                        "group: operation %llu with rank %d has buffers, and its data is named as well",
                        (unsigned long long)channel->op_id, channel->peer->rank);
    if (!channel->unbound)
        return check_span(op);
    if (!is_pair(op) && (op->kind != PH_GROUP_SIGNAL && (op->kind != PH_GROUP_WAIT || op->size > 0)))
        return phi_check_bound(channel, "a put, a get, or a wait for bytes");
    if (is_pair(op) && op->size > 0 && op->data == NULL)
        return phi_fail(channel->peers->report, -EINVAL,
                        "group: %zu bytes of operation %llu with rank %d lie nowhere (data is NULL)",
                        op->size, (unsigned long long)channel->op_id, channel->peer->rank);
    return 0;
}

static bool may_be_late(const struct ph_group_op *op, int rc)
{
    return phi_check_may_be_late(rc) && !is_unbound(op) && (op->kind == PH_GROUP_RECV || op->kind == PH_GROUP_WAIT);
}

static struct phi_channel_call late_call(const struct ph_group_op *op)
{
    return call_of(op,
                   op->kind == PH_GROUP_RECV ? phi_channel_late_recv(op->channel) : PHI_CALL_WAIT);
}

static int check_late(const struct ph_group_op *op, int ended)
{
    const struct phi_channel_call call = late_call(op);
    if (!phi_channel_here(&call))
        return phi_check_refused(op->channel, ended);
    atomic_fetch_or(&op->channel->grouped, late_bit(op->kind));
    return 0;
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
    phi_check_mismatch(channel);
    int rc = phi_channel_check(channel);
    if (rc && !may_be_late(op, rc))
        return phi_check_refused(channel, rc);
    const int ended = rc;
    bool outgoing = is_outgoing(op->kind);
    if (!(channel->role & (outgoing ? PH_ROLE_SENDER : PH_ROLE_RECEIVER)))
        return phi_fail(peers->report, -EINVAL,
                        "group: this rank is not the %s of operation %llu with rank %d",
                        outgoing ? "sender" : "receiver", (unsigned long long)channel->op_id,
                        channel->peer->rank);
    if (!ended && (rc = phi_check_zero_sm(channel, is_message(op))))
        return rc;
    bool pair = is_pair(op);
    if (channel->self)
        return pair ? check_memory(op) : phi_self_refuse(channel, "what is no send or receive");
    bool copies = op->kind == PH_GROUP_PUT || op->kind == PH_GROUP_GET ||
                  op->kind == PH_GROUP_PUT_SIGNAL ||
                  (pair && phi_channel_active(channel, outgoing));
    if (copies && !ended && (rc = phi_check_reach(channel)))
        return rc;
    if (pair && !copies && !channel->unbound && (atomic_load(&channel->posted) & (outgoing ? 1u : 2u)))
        return phi_fail(peers->report, -EALREADY,
                        "group: operation %llu with rank %d has a post without its complete",
                        (unsigned long long)channel->op_id, channel->peer->rank);
    rc = check_memory(op);
    if (rc == 0 && op->kind == PH_GROUP_GET)
        rc = phi_check_get(channel);
    return rc == 0 && ended ? check_late(op, ended) : rc;
}

// *late: of how many operations the channel has ended, and what they wait for is here.
static int check_all(const struct ph_group_op *ops, size_t n, const struct phi_peers *peers,
                     size_t *late)
{
    int rc = 0;
    *late = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = check_one(&ops[i], peers);
        *late += rc == 0 && is_late(&ops[i]);
    }
    return rc;
}

// Marks each message in its channel, so that a second one is seen in linear time.
static int mark_messages(const struct ph_group_op *ops, size_t n, size_t *marked)
{
    for (*marked = 0; *marked < n; ++*marked) {
        const struct ph_group_op *op = &ops[*marked];
        uint32_t bit = message_bit(op);
        if (is_signal(op->kind))
            atomic_store_explicit(&op->channel->tells, *marked, memory_order_relaxed);
        if (bit && (atomic_fetch_or(&op->channel->grouped, bit) & bit))
            return phi_fail(op->channel->peers->report, -EINVAL,
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
            atomic_fetch_and(&ops[i].channel->grouped, ~message_bit(&ops[i]));
    return rc;
}

// Of what is late: it waits for nobody, and nobody for it.
static int take_late(struct batch *batch, const struct ph_group_op *ops, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!is_late(&ops[i]))
            continue;
        const struct phi_channel_call call = late_call(&ops[i]);
        if (!phi_channel_take(&call, batch->stream, batch->begun))
            return phi_check_refused(ops[i].channel, PH_EPEER);
        batch->begun = true;
    }
    return 0;
}

// The rounds stand one behind the other on the stream: at both ends a message has the same ones, so
// that what a round waits for is done by rounds of peers with smaller numbers, or this one.
static void for_rounds(struct batch *batch, int (*act)(struct batch *batch))
{
    batch->round = 0;
    begin_turns(batch);
    bool any = batch->unbound && next_turns(batch);
    do {
        batch->rc = act(batch);
        batch->round++;
        any = any && next_turns(batch);
    } while (batch->rc == 0 && any);
}

static int issue_round(struct batch *batch)
{
    const int rc = add_helps(batch); // of this round
    if (rc)
        return rc;
    add_all(batch, batch->ops, batch->count);
    flush(batch);
    return batch->rc;
}

static int issue_all(struct batch *batch, const struct ph_group_op *ops, size_t n, size_t late)
{
    batch->n = batch->helps.n = 0;
    batch->staged = batch->bells = batch->unbound = batch->has_long = batch->selves = false;
    batch->rc = 0;
    batch->phases = 0;
    for (size_t i = 0; i < n; i++) {
        const struct ph_channel *channel = ops[i].channel;
        batch->bells = batch->bells || channel->stage.bells;
        batch->staged = batch->staged || (channel->stage.is && !channel->stage.bells);
        batch->unbound = batch->unbound || is_unbound(&ops[i]);
        batch->has_long =
            batch->has_long || (is_unbound(&ops[i]) && ops[i].size > PHI_RING_WHOLE);
        batch->selves = batch->selves || channel->self;
        batch->phases |= phases_of(&ops[i]);
    }
    // First, whether each round can be: half of them cannot be taken back.
    if (batch->unbound && batch->staged)
        for_rounds(batch, add_helps);
    if (batch->rc)
        return batch->rc;
    for_rounds(batch, issue_round);
    return batch->rc || late == 0 ? batch->rc : take_late(batch, ops, n);
}

// A channel may end after the checks, and what it would wait for may be here: then the checks are
// made again.
static int check_and_issue(struct batch *batch, const struct ph_group_op *ops, size_t n)
{
    size_t late, before;
    int rc = check_all(ops, n, batch->peers, &late);
    if (rc == 0)
        rc = check_messages(ops, n);
    if (rc == 0)
        rc = check_waits(ops, n, batch->peers->report);
    if (rc == 0)
        rc = phi_self_check(ops, n);
    if (rc == 0)
        rc = issue_all(batch, ops, n, late);
    while (phi_check_ended(rc) && !batch->begun) {
        before = late;
        const int again = check_all(ops, n, batch->peers, &late);
        if (again || late == before)
            return again ? again : rc;
        rc = issue_all(batch, ops, n, late);
    }
    return rc;
}

// Of a group that is half enqueued PH_EBROKEN says that. Where all of it is on one channel nothing
// else is enqueued, and the channel knows better why.
static int why_refused(const struct batch *batch, int rc)
{
    for (size_t i = 1; i < batch->count; i++)
        if (batch->ops[i].channel != batch->ops[0].channel)
            return rc;
    return phi_check_refused(batch->ops[0].channel, rc);
}

// A post whose complete is missing is half an operation, in whichever batch it was. But all of the
// first round is enqueued when a later one fails, and of bound channels nothing is in another one.
static void break_half(const struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        if (batch->round <= 1 || is_unbound(&batch->ops[i]) || is_late(&batch->ops[i]))
            phi_channel_break(batch->ops[i].channel);
}

// The context of the first operation that has a channel, or NULL: one without is refused there.
static struct phi_peers *peers_of(const struct ph_group_op *ops, size_t n)
{
    size_t i = 0;
    while (i < n && ops[i].channel == NULL)
        i++;
    return i < n ? ops[i].channel->peers : NULL;
}

int ph_group(const struct ph_group_op *ops, size_t n, void *stream)
{
    if (n == 0)
        return 0;
    struct batch batch;
    batch.peers = ops ? peers_of(ops, n) : NULL;
    if (batch.peers == NULL)
        return -EINVAL;
    batch.ops = ops;
    batch.count = n;
    batch.stream = stream;
    batch.begun = false;
    if (phi_peers_forked(batch.peers))
        return PH_EFORKED;
    int rc = check_and_issue(&batch, ops, n);
    if (rc && batch.begun) {
        rc = why_refused(&batch, rc);
        break_half(&batch);
    }
    // Another context's channel, for which the group was refused, may be in a group of its own.
    for (size_t i = 0; i < n; i++)
        if (ops[i].channel != NULL && ops[i].channel->peers == batch.peers && is_late(&ops[i]))
            atomic_fetch_and(&ops[i].channel->grouped, ~late_bit(ops[i].kind));
    return rc;
}
