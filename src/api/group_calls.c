// SPDX-License-Identifier: BSD-3-Clause
// The calls of a group: the calls of each round, their order, and the calls that go on beside each
// other.
#include "api/group_calls.h"

#include <errno.h>

#include "api/loopback.h"
#include "api/pages.h"
#include "base/stage.h"
#include "cuda/kernel_args.h"
#include "lane/staging.h"
#include "peer/peer.h"
#include "peer/self.h"

static void flush(struct phi_group *group)
{
    if (group->rc == 0 && group->n > 0)
        group->rc = phi_issue(group->self, group->calls, group->n, &group->helps, group->stream,
                              &group->begun);
    group->n = 0;
}

// The call of each kind of operation that is one call.
static const enum phi_call single[] = {
    [PH_GROUP_PUT] = PHI_CALL_PUT,
    [PH_GROUP_GET] = PHI_CALL_GET,
    [PH_GROUP_PUT_SIGNAL] = PHI_CALL_PUT_SIGNAL,
    [PH_GROUP_SIGNAL] = PHI_CALL_SIGNAL,
    [PH_GROUP_WAIT] = PHI_CALL_WAIT,
    [PH_GROUP_PUT_PAGES] = PHI_CALL_PUT,
    [PH_GROUP_GET_PAGES] = PHI_CALL_GET,
};

// ---- rounds: in each a channel has one message of a direction, or one part of it

static struct phi_turn *turn_of(const struct ph_group_op *op)
{
    return &op->channel->live.turn[phi_group_outgoing(op->kind)];
}

// part_size returns how many bytes go at once. Both ends cut a message alike.
static size_t part_size(const struct ph_group_op *op)
{
    const struct ph_channel *channel = op->channel;
    if (channel->fixed.stage.is)
        return SIZE_MAX;
    if (channel->fixed.ring[phi_group_outgoing(op->kind)])
        return PHI_RING_LONG;
    return channel->fixed.part;
}

static bool has_part(const struct ph_group_op *op, size_t part)
{
    return part == 0 || (op->size - 1) / part_size(op) >= part; // none of 0 bytes has two
}

// is_its_turn says whether the operation has its turn in this round. A bound operation has its turn
// in the first round.
static bool is_its_turn(const struct phi_group *group, const struct ph_group_op *op)
{
    return phi_group_unbound(op) ? turn_of(op)->at == (size_t)(op - group->ops) : group->round == 0;
}

static void begin_turns(const struct phi_group *group)
{
    for (size_t i = 0; i < group->count; i++)
        if (phi_group_unbound(&group->ops[i]))
            *turn_of(&group->ops[i]) = (struct phi_turn){.at = PHI_NO_TURN};
}

// Goes to the next round; false: there is none.
static bool next_turns(const struct phi_group *group)
{
    bool any = false;
    for (size_t i = 0; i < group->count; i++) {
        const struct ph_group_op *op = &group->ops[i];
        struct phi_turn *turn = phi_group_unbound(op) ? turn_of(op) : NULL;
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
static bool call_in_phase(const struct phi_group *group, const struct ph_group_op *op,
                          unsigned phase, enum phi_call *call)
{
    if (op->channel->fixed.loopback || !is_its_turn(group, op))
        return false;
    if (!phi_group_is_pair(op))
        *call = single[op->kind];
    else if (phi_channel_active(op->channel, phi_group_outgoing(op->kind)))
        *call = PHI_CALL_TRANSFER;
    else
        *call = phase == phi_programs[PHI_CALL_POST].phase ? PHI_CALL_POST : PHI_CALL_COMPLETE;
    return phi_programs[*call].phase == phase && !phi_group_late(op);
}

// The phases in which it may have calls.
static uint32_t phases_of(const struct ph_group_op *op)
{
    if (op->channel->fixed.loopback)
        return 0;
    return phi_group_is_pair(op) ? (1u << PHI_GROUP_PHASES) - 1
                                 : 1u << phi_programs[single[op->kind]].phase;
}

struct phi_channel_call phi_group_call(const struct ph_group_op *op, enum phi_call call)
{
    struct phi_channel_call made = {
        .channel = op->channel, .call = call, .outgoing = phi_group_outgoing(op->kind)};
    made.size = op->size;
    if (phi_group_unbound(op)) {
        const size_t most = part_size(op), from = turn_of(op)->part * most;
        made.data = op->size > 0 ? (char *)op->data + from : NULL;
        made.remote_offset = from;
        made.size = op->size - from < most ? op->size - from : most;
        made.message = op->size;
    } else if (phi_group_is_pages(op->kind)) {
        made.pages = op->data;
    } else if (!phi_group_is_pair(op)) {
        made.local_offset = op->local_offset;
        made.remote_offset = op->peer_offset;
    }
    phi_call_decide(&made);
    return made;
}

// is_told says whether a signal behind the operation in the list has to tell of it. Other
// operations are told of by themselves. The channel stores the place of its signal in the list.
// Another thread's group may have stored a place of its own there, although only one of the two has
// a part in the channel's outgoing direction. So we go by what our list has at that place.
static bool is_told(const struct phi_group *group, const struct ph_group_op *op)
{
    const struct ph_channel *channel = op->channel;
    if (op->kind != PH_GROUP_GET || !channel->fixed.stage.bells)
        return false;
    const size_t at = atomic_load_explicit(&channel->live.tells, memory_order_relaxed);
    return at < group->count && group->ops[at].channel == channel &&
           phi_group_signals(group->ops[at].kind) && op < &group->ops[at];
}

static void add(struct phi_group *group, const struct phi_channel_call *call)
{
    if (group->n == PHI_GROUP_CALLS)
        flush(group);
    group->calls[group->n++] = *call;
}

static void add_in_turn(struct phi_group *group, const struct ph_group_op *op, enum phi_call which)
{
    struct phi_channel_call call = phi_group_call(op, which);
    call.told = is_told(group, op);
    const bool apart = phi_call_fills(&call) || phi_call_empties(&call) || phi_call_is_long(&call);
    if (!apart && op->channel->fixed.stage.bells == (group->turn == PHI_TURN_BELLS))
        add(group, &call);
}

static void add_phase(struct phi_group *group, unsigned phase)
{
    // Peers in the order of phi_group_rank, from 1 on: with each pass over the calls of one the
    // next is found, so that nothing is sorted or allocated.
    const uint32_t rank = (uint32_t)group->self->rank, ranks = (uint32_t)group->self->ranks;
    if (!(group->phases & 1u << phase))
        return;
    for (uint32_t turn = 1, next; turn != UINT32_MAX; turn = next) {
        next = UINT32_MAX;
        for (size_t i = 0; i < group->count; i++) {
            enum phi_call call;
            if (!call_in_phase(group, &group->ops[i], phase, &call))
                continue;
            const uint32_t place =
                phi_group_rank(rank, (uint32_t)group->ops[i].channel->peer->rank, ranks);
            if (place == turn)
                add_in_turn(group, &group->ops[i], call);
            else if (place > turn && place < next)
                next = place;
        }
    }
}

// The calls by bells come first in every other phase, so that the last ones of a phase and the
// first of the next are one launch.
static void add_unstaged(struct phi_group *group, unsigned first, unsigned end)
{
    for (unsigned phase = first; phase < end; phase++)
        for (unsigned i = 0; i < 2; i++) {
            group->turn = (phase + i) % 2 ? PHI_TURN_BELLS : PHI_TURN_PLAIN;
            if (group->turn == PHI_TURN_PLAIN || group->bells)
                add_phase(group, phase);
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
static bool ordered_call(const struct phi_group *group, const struct ph_group_op *op,
                         enum ordered kind, struct phi_channel_call *call)
{
    enum phi_call which;
    for (unsigned phase = 0; phase < PHI_GROUP_PHASES; phase++) {
        if (!call_in_phase(group, op, phase, &which))
            continue;
        *call = phi_group_call(op, which);
        if (is_of(call, kind))
            return true;
    }
    return false;
}

// A call's place among the calls of its group: first by lane, that is by pair of ranks, line,
// direction and word, which all ranks know alike; then by the order of the list.
struct place {
    uint64_t pair, lane;
};

static struct place place_of(const struct phi_group *group, const struct ph_group_op *op, size_t i,
                             enum ordered kind)
{
    const uint64_t own = (uint64_t)group->self->rank, peer = (uint64_t)op->channel->peer->rank;
    const uint64_t low = own < peer ? own : peer, high = own < peer ? peer : own;
    const uint64_t upwards = phi_group_outgoing(op->kind) == (own < peer);
    const uint64_t lane =
        (uint64_t)op->channel->fixed.index << 2 | upwards << 1 | phi_group_is_pair(op);
    // Lanes go by turns, in each of which a rank has another peer, as far as that goes.
    if (kind == LONG)
        return (struct place){(low + high) % (uint64_t)group->self->ranks, lane << 32 | i};
    return (struct place){low << 32 | high, lane << 32 | i};
}

static bool is_before(const struct place *a, const struct place *b)
{
    return a->pair != b->pair ? a->pair < b->pair : a->lane < b->lane;
}

// insert keeps the places in order. If there is no room, the last place makes room.
static size_t insert(struct place *places, size_t count, const struct place *place)
{
    size_t at = count < PHI_GROUP_CALLS ? count++ : PHI_GROUP_CALLS - 1;
    for (; at > 0 && is_before(place, &places[at - 1]); at--)
        places[at] = places[at - 1];
    places[at] = *place;
    return count;
}

// The first places behind `after`. Nothing is allocated: there are turns over the group, each for
// as many calls as are handed down at once.
static size_t find_places(const struct phi_group *group, enum ordered kind,
                          const struct place *after, struct place *places)
{
    struct phi_channel_call call;
    size_t count = 0;
    for (size_t i = 0; i < group->count; i++) {
        if (!ordered_call(group, &group->ops[i], kind, &call))
            continue;
        const struct place place = place_of(group, &group->ops[i], i, kind);
        if (is_before(after, &place) &&
            (count < PHI_GROUP_CALLS || is_before(&place, &places[count - 1])))
            count = insert(places, count, &place);
    }
    return count;
}

// Launches, and the steps of a host's queue, follow one another. So a lane may wait for the lanes
// that stand before it. At both ends of a lane these are the same, whatever order the groups are
// named in. Of the lanes whose messages are not over, the first has its turn at either end, and
// goes on. The parts of one launch go on independently, so it matters not where launches end.
static void add_ordered(struct phi_group *group, enum ordered kind)
{
    struct place places[PHI_GROUP_CALLS], last = {0};
    struct phi_channel_call call;
    size_t count = PHI_GROUP_CALLS;
    while (count == PHI_GROUP_CALLS) {
        count = find_places(group, kind, &last, places);
        for (size_t i = 0; i < count; i++) {
            last = places[i];
            if (ordered_call(group, &group->ops[(uint32_t)last.lane], kind, &call))
                add(group, &call);
        }
    }
}

// A staged lane may get more than its peer's slots hold. Then the messages of the peers must go on
// at the same time: the peers may be at the same point. Nothing is enqueued yet.
static size_t records_of(const struct phi_group *group, const struct ph_group_op *op)
{
    struct phi_channel_call call;
    return ordered_call(group, op, FILLS, &call) ? phi_staging_records(&call) : 0;
}

static bool overfills(const struct phi_group *group)
{
    size_t all = 0;
    for (size_t i = 0; i < group->count; i++)
        all += records_of(group, &group->ops[i]);
    for (size_t i = 0; i < group->count && all > PHI_STAGE_SLOTS; i++) {
        size_t records = 0;
        for (size_t j = i; j < group->count && records <= PHI_STAGE_SLOTS; j++)
            if (group->ops[j].channel == group->ops[i].channel &&
                phi_group_is_pair(&group->ops[j]) == phi_group_is_pair(&group->ops[i]))
                records += records_of(group, &group->ops[j]);
        if (records > PHI_STAGE_SLOTS)
            return true;
    }
    return false;
}

static int add_helps(struct phi_group *group)
{
    struct phi_channel_call call;
    group->helps.n = 0;
    if (!group->staged || !overfills(group))
        return 0;
    for (size_t i = 0; i < group->count; i++) // more than there is room for are only counted
        if (ordered_call(group, &group->ops[i], EMPTIES, &call) && group->helps.n++ < PHI_HELPS_MAX)
            group->helps.calls[group->helps.n - 1] = call;
    if (group->helps.n <= PHI_HELPS_MAX)
        return 0;
    return phi_fail(group->self->report, -E2BIG,
                    "group: it sends more than %d slots hold, which goes on with what it waits for "
                    "over the net; these are %zu messages, of which %d can: make several groups",
                    PHI_STAGE_SLOTS, group->helps.n, PHI_HELPS_MAX);
}

// Behind what tells peers to go on, before all that may wait for them.
static void add_selves(struct phi_group *group)
{
    struct phi_loopback_pairs pairs = phi_loopback_pairs(group->ops, group->count);
    const struct ph_group_op *send, *receive;
    while (phi_loopback_next(&pairs, &send, &receive)) {
        const struct phi_channel_call call = {
            .channel = send->channel,
            .call = PHI_CALL_PUT,
            .outgoing = true,
            .size = send->size,
            .data = send->data,
            .to = receive->data,
        };
        add(group, &call);
    }
}

// ---- all of a round

// Staged calls have no words, so they need not wait for other ranks' posts, nor anybody for them:
// they come between what posts and copies, and what waits for that; first what fills slots.
static void add_all(struct phi_group *group)
{
    add_unstaged(group, 0, 1);
    if (group->loopbacks && group->round == 0)
        add_selves(group);
    add_unstaged(group, 1, PHI_GROUP_PHASES - 1);
    if (group->has_long)
        add_ordered(group, LONG);
    if (group->staged) {
        add_ordered(group, FILLS);
        add_ordered(group, EMPTIES);
    }
    add_unstaged(group, PHI_GROUP_PHASES - 1, PHI_GROUP_PHASES);
}

// The rounds stand one behind the other on the stream: at both ends a message has the same ones, so
// that what a round waits for is done by rounds of peers with smaller numbers, or this one.
static void for_rounds(struct phi_group *group, int (*act)(struct phi_group *group))
{
    group->round = 0;
    begin_turns(group);
    bool any = group->unbound && next_turns(group);
    do {
        group->rc = act(group);
        group->round++;
        any = any && next_turns(group);
    } while (group->rc == 0 && any);
}

static int issue_round(struct phi_group *group)
{
    const int rc = add_helps(group); // of this round
    if (rc)
        return rc;
    add_all(group);
    flush(group);
    return group->rc;
}

// note_kinds notes which kinds of operations a group has, so that nobody looks for the others.
static void note_kinds(struct phi_group *group)
{
    group->phases = 0;
    group->staged = group->bells = group->unbound = group->has_long = group->loopbacks = false;
    for (size_t i = 0; i < group->count; i++) {
        const struct ph_group_op *op = &group->ops[i];
        const struct ph_channel *channel = op->channel;
        group->bells = group->bells || channel->fixed.stage.bells;
        group->staged = group->staged || (channel->fixed.stage.is && !channel->fixed.stage.bells);
        group->unbound = group->unbound || phi_group_unbound(op);
        group->has_long = group->has_long || (phi_group_unbound(op) && op->size > PHI_RING_WHOLE);
        group->loopbacks = group->loopbacks || channel->fixed.loopback;
        group->phases |= phases_of(op);
    }
}

int phi_group_issue(struct phi_group *group)
{
    group->n = group->helps.n = 0;
    group->rc = 0;
    note_kinds(group);
    // First, whether each round can be: half of them cannot be taken back.
    if (group->unbound && group->staged)
        for_rounds(group, add_helps);
    if (group->rc)
        return group->rc;
    for_rounds(group, issue_round);
    return group->rc;
}
