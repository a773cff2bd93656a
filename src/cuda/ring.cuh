// SPDX-License-Identifier: BSD-3-Clause
// Messages of unbound channels by wide lines, through a ring (kernel_args.h). Part of hop.cuh.
//
// A unit is as in wide.cuh, but that each line's number is the lap of its slot and half of the size
// of the message: who has a line knows all of that. A lap may come round: a slot is written once in
// each, and read before it is written again, so that it shows this lap or the one before.
#ifndef PHI_CUDA_RING_CUH
#define PHI_CUDA_RING_CUH

// The place of a message's units: the first one's slot and lap, the number of units, and how many
// units the direction has had when this message is over.
struct ring_span {
    uint32_t first, lap, units;
    uint64_t end;
};

static __device__ ring_span span_of(const phi_hop_item &item, uint64_t begin)
{
    const uint32_t units = PHI_WIDE_UNITS(static_cast<uint32_t>(item.size));
    const uint32_t some = units > 0 ? units : 1;
    return {static_cast<uint32_t>(begin % PHI_RING_UNITS),
            static_cast<uint32_t>(begin / PHI_RING_UNITS) + 1, some, begin + some};
}

static __device__ ring_span pushed_span(const phi_hop_item &item)
{
    const phi_flag_lane *own = reinterpret_cast<const phi_flag_lane *>(item.own);
    return span_of(item, load_relaxed_64(&own->wide_pushed));
}

static __device__ ring_span taken_span(const phi_hop_item &item)
{
    const phi_flag_lane *own = reinterpret_cast<const phi_flag_lane *>(item.own);
    return span_of(item, load_relaxed_64(&own->wide_taken));
}

// A unit's slot, as this thread has its first half, and its lap.
struct ring_unit {
    uint4 *slot;
    uint32_t lap;
};

static __device__ ring_unit unit_of(const phi_hop_item &item, const ring_span &span, uint32_t unit)
{
    const uint32_t at = span.first + unit;
    const bool wraps = at >= PHI_RING_UNITS;
    uint4 *slots = reinterpret_cast<uint4 *>(item.slots) + threadIdx.x % 32;
    return {slots + 64 * (wraps ? at - PHI_RING_UNITS : at), span.lap + wraps};
}

// The size of the message of which an item is a part.
static __device__ uint64_t message_size(const phi_hop_item &item)
{
    return item.kind == PHI_STEP_TAKE || item.kind == PHI_STEP_MESSAGE ? item.source
                                                                       : item.destination;
}

// Neighbouring lines have the two halves.
static __device__ uint32_t half_of(uint64_t size)
{
    return static_cast<uint32_t>(threadIdx.x & 8 ? size >> 32 : size);
}

// Pairs with give_ring_credit().
static __device__ bool has_room(const phi_hop_item &item, uint64_t end)
{
    const phi_flag_lane *own = reinterpret_cast<const phi_flag_lane *>(item.own);
    const uint32_t most = load_relaxed(&own->credit) + PHI_RING_UNITS;
    return static_cast<int32_t>(most - static_cast<uint32_t>(end)) >= 0;
}

static __device__ bool await_room(const phi_hop_item &item, uint64_t end, hop_follower &next)
{
    for (uint32_t polls = 0;; polls++) {
        const bool over = given_up(next, item.broken, polls);
        if (__all_sync(~0u, has_room(item, end)))
            return true;
        if (__all_sync(~0u, over)) // then all have looked once more since it was set
            return give_up(item.broken);
    }
}

// When the next message is waited for, as give_credit(): all units before it were read. By one
// thread. For what is large it was given before.
static __device__ void give_ring_credit(const phi_hop_item &item)
{
    const phi_flag_lane *own = reinterpret_cast<const phi_flag_lane *>(item.own);
    if (item.peer != 0)
        store_relaxed(&reinterpret_cast<phi_flag_lane *>(item.peer)->credit,
                      static_cast<uint32_t>(load_relaxed_64(&own->wide_taken)));
}

// At the end of a take, by one thread, behind a barrier: all units were read.
static __device__ void count_taken(const phi_hop_item &item, const ring_span &span)
{
    reinterpret_cast<phi_flag_lane *>(item.own)->wide_taken = span.end;
    if (span.units > PHI_RING_UNTOLD && item.peer != 0)
        store_relaxed(&reinterpret_cast<phi_flag_lane *>(item.peer)->credit,
                      static_cast<uint32_t>(span.end));
}

static __device__ void store_ring_unit(const ring_unit &to, const wide_place &place,
                                       const wide_unit &data, uint32_t half)
{
    const uint64_t number = static_cast<uint64_t>(half) << 32 | to.lap;
    __syncwarp(); // a line is stored by one instruction
    store_wide(to.slot, place.keeps ? numbered(data.a.x, data.a.y, number) : data.a);
    store_wide(to.slot + 32, place.keeps ? numbered(data.a.z, data.a.w, number) : data.b);
}

// Pushes every stride-th unit from `first` on; the first one's data is on its way while `may` is
// asked, once by each thread.
template <class May>
static __device__ bool push_ring_units(const phi_hop_item &item, const ring_span &span,
                                       const wide_part &part, May may)
{
    const wide_place place = wide_place_of();
    const uint32_t half = half_of(message_size(item));
    wide_unit data = {};
    if (part.first < span.units)
        data = load_unit<false>(item, place, part.first);
    if (!may())
        return false;
    if (item.fence & PHI_FENCE_BEFORE)
        fence_system(); // before the lines of this warp
#pragma unroll 1
    for (uint32_t unit = part.first; unit < span.units;) {
        store_ring_unit(unit_of(item, span, unit), place, data, half);
        unit += part.stride;
        if (unit < span.units)
            data = load_unit<false>(item, place, unit);
    }
    return true;
}

// has_ended returns whether a message was of another size, or a wait of this lane was given up.
// Then nothing is moved any more, even if the awaited message comes after all. Hands of long
// messages look at `moved` because `broken` lies in host memory, where looks of several blocks
// follow one another, 1 us each.
static __device__ bool has_ended(const phi_hop_item &item)
{
    return load_relaxed(&reinterpret_cast<const phi_flag_lane *>(item.own)->moved) != 0;
}

// By a whole warp: the message is of another size than this end has named. Nothing is taken of it,
// nor of what comes later (`moved` of the own lane).
static __device__ bool is_mismatch(const phi_hop_item &item, const uint4 &line, bool keeps)
{
    const uint64_t size = message_size(item);
    if (!__any_sync(~0u, keeps && line.w != half_of(size)))
        return false;
    const uint32_t low = __shfl_sync(~0u, line.w, 7), high = __shfl_sync(~0u, line.w, 15);
    if (threadIdx.x % 32 == 0) {
        store_relaxed(&reinterpret_cast<phi_flag_lane *>(item.own)->moved, 1);
        note_mismatch(item.broken - PHI_FLAGS_OVER_BEHIND, size,
                      static_cast<uint64_t>(high) << 32 | low);
    }
    return true;
}

// Waits for a unit, by a whole warp.
static __device__ bool take_ring_unit(const phi_hop_item &item, const ring_unit &unit, bool keeps,
                                      hop_follower &next, uint4 *first, uint4 *second)
{
    for (uint32_t polls = 0;; polls++) {
        const bool over = given_up(next, item.broken, polls);
        __syncwarp(); // a line is loaded by one instruction, too
        *first = load_line(unit.slot);
        *second = load_line(unit.slot + 32);
        if (__all_sync(~0u, !keeps || (first->z == unit.lap && second->z == unit.lap)))
            return !is_mismatch(item, *first, keeps) || give_up(item.broken);
        if (__all_sync(~0u, over))
            return give_up(item.broken);
    }
}

// When one unit is there the others are under way: `first` is called then.
template <class First>
static __device__ bool take_ring_units(const phi_hop_item &item, const ring_span &span,
                                       const wide_part &part, hop_follower &next, First first)
{
    const wide_place place = wide_place_of();
    if (has_ended(item))
        return give_up(item.broken);
#pragma unroll 1
    for (uint32_t unit = part.first; unit < span.units; unit += part.stride) {
        const uint32_t at = unit * PHI_WIDE_UNIT;
        uint4 a, b;
        if (!take_ring_unit(item, unit_of(item, span, unit), place.keeps, next, &a, &b))
            return false;
        if (unit == part.first)
            first();
        wide_store<false>(item, at + place.first, place.keeps ? make_uint4(a.x, a.y, b.x, b.y) : a);
        if (!place.keeps)
            wide_store<false>(item, at + place.second, b);
    }
    return true;
}

// A message that one block pushes, or takes.
template <class Team>
static __device__ void push_ring(const phi_hop_item &item, const Team &team, hop_follower &next)
{
    const ring_span span = pushed_span(item);
    // The barrier: all have read the number.
    const bool done = team.all(push_ring_units(item, span, part_of(team, 0), [&] {
        const bool may = await_room(item, span.end, next);
        team.has_waited();
        return may;
    }));
    if (done && team.thread() == 0)
        reinterpret_cast<phi_flag_lane *>(item.own)->wide_pushed = span.end;
}

template <class Team>
static __device__ void take_ring(const phi_hop_item &item, const Team &team, hop_follower &next)
{
    const ring_span span = taken_span(item);
    if (team.thread() == 0)
        give_ring_credit(item);
    // The barrier: all have read the number.
    const bool done =
        team.all(take_ring_units(item, span, part_of(team, 0), next, [&] { team.has_waited(); }));
    if (done && team.thread() == 0)
        count_taken(item, span);
}

// ---- Hands

struct ring_message {
    ring_span span;
    uint64_t claim;
};

static __device__ ring_message ring_message_of(const phi_hop_item &item)
{
    const phi_flag_lane *own = reinterpret_cast<const phi_flag_lane *>(item.own);
    return {pushed_span(item), load_relaxed_64(&own->handed) + 1};
}

// push_ring_claimed does for rings what push_claimed() does.
static __device__ void push_ring_claimed(const phi_hop_item &item, const ring_message &message,
                                         uint32_t share, bool pushed = false)
{
#pragma unroll 1
    while (share != NO_SHARE) {
        if (!pushed)
            push_ring_units(item, message.span, part_of(item, share, 0), [] { return true; });
        pushed = false;
        share = next_share(item, message.claim);
    }
}

static __device__ void push_ring_left(const phi_hop_item &item, const ring_message &message)
{
    const auto may = [&] { return has_room(item, message.span.end); };
    push_ring_claimed(item, message, share_left(item, message.claim, may));
}

static __device__ void leave_ring_push(const phi_hop_item &item, const ring_message &message)
{
    leave_hands(
        item, message.claim, [&] { push_ring_left(item, message); },
        [&] { reinterpret_cast<phi_flag_lane *>(item.own)->wide_pushed = message.span.end; });
}

static __device__ void push_ring_shares(const phi_hop_item &item, uint64_t guess)
{
    const ring_message message = ring_message_of(item);
    const auto may = [&] { return has_room(item, message.span.end); };
    const uint32_t mine = blockIdx.x - item.first;
    uint32_t share = NO_SHARE;
    bool pushed = false;
    if (item.hands == PHI_HANDS_SECOND) {
        let_next_in();
        share = share_left(item, message.claim, may);
    } else {
        pushed = push_ring_units(item, message.span, part_of(item, mine, 0), [&] {
            share = first_share(item, guess, message.claim, may);
            return share == mine;
        });
    }
    push_ring_claimed(item, message, share, pushed);
    leave_ring_push(item, message);
}

static __device__ void take_ring_share(const phi_hop_item &item, hop_follower &next)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    const ring_span span = taken_span(item);
    let_next_in();
    // The barrier: all have read the number.
    const bool done = __syncthreads_and(
        take_ring_units(item, span, part_of(item, blockIdx.x - item.first, 0), next, [] {}));
    if (threadIdx.x == 0 && is_whole(item, &own->taking, done))
        count_taken(item, span);
}

// await_ring_hands waits until hands may begin, as await_hands() does.
template <class Team>
static __device__ void await_ring_hands(const phi_hop_item &item, const Team &team,
                                        hop_follower &next)
{
    if (team.thread() != 0)
        return;
    const bool pushes = item.kind == PHI_STEP_ROOM;
    const ring_span span = pushes ? pushed_span(item) : taken_span(item);
    const uint4 *line = reinterpret_cast<const uint4 *>(item.slots) + 64 * span.first + 7;
    if (!pushes)
        give_ring_credit(item);
    for (uint32_t polls = 0;; polls++) {
        const bool over = given_up(next, item.broken, polls);
        if (pushes ? has_room(item, span.end) : load_line(line).z == span.lap)
            break;
        if (over) {
            give_up(item.broken);
            break;
        }
    }
    team.has_waited();
}

// As push_left().
static __device__ void push_ring_only(const phi_hop_item &item, hop_follower &next)
{
    const ring_message message = ring_message_of(item);
    await_ring_hands(item, whole_block(), next);
    __syncthreads();
    push_ring_left(item, message);
    leave_ring_push(item, message);
}

template <class Team>
static __device__ void do_ring_item(const phi_hop_item &item, const Team &team, hop_follower &next)
{
    if (item.kind == PHI_STEP_PUSH)
        push_ring(item, team, next);
    else if (item.kind == PHI_STEP_TAKE)
        take_ring(item, team, next);
    else
        await_ring_hands(item, team, next);
}

static __device__ void do_ring_hand(const phi_hop_item &item, uint64_t guess, hop_follower &next)
{
    if (item.kind == PHI_STEP_PUSH)
        push_ring_shares(item, guess);
    else
        take_ring_share(item, next);
}

#endif
