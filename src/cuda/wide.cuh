// SPDX-License-Identifier: BSD-3-Clause
// Messages by wide lines (kernel_args.h). Part of hop.cuh.
//
// A line is 128 bytes that eight neighbours of a warp store by one instruction, and load by one: it
// goes over the link, and is found, as one. So only the last of the eight has a number beside its
// data, which tells of all of it, and no fence is needed. That a line comes whole no manual says:
// tests/gpu/litmus_test.cpp watches it, and a table says where (base/table.h).
#ifndef PHI_CUDA_WIDE_CUH
#define PHI_CUDA_WIDE_CUH

// 16 bytes, of which `left` are the message's, in few instructions.
static __device__ uint4 load_end(const uint8_t *from, uint32_t left)
{
    uint32_t word[4] = {};
#pragma unroll 1
    for (uint32_t i = left; i-- > 0;) {
        word[3] = __funnelshift_l(word[2], word[3], 8);
        word[2] = __funnelshift_l(word[1], word[2], 8);
        word[1] = __funnelshift_l(word[0], word[1], 8);
        word[0] = word[0] << 8 | from[i];
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

static __device__ void store_end(uint8_t *to, uint4 data, uint32_t left)
{
#pragma unroll 1
    for (uint32_t i = 0; i < left; i++) {
        to[i] = static_cast<uint8_t>(data.x);
        data.x = __funnelshift_r(data.x, data.y, 8);
        data.y = __funnelshift_r(data.y, data.z, 8);
        data.z = __funnelshift_r(data.z, data.w, 8);
        data.w >>= 8;
    }
}

// Up to 16 bytes of the message at `at`; nothing is read beside them. ALIGNED, of phi_hop_wide: the
// buffer is, to 16.
template <bool ALIGNED> static __device__ uint4 wide_load(const phi_hop_item &item, uint32_t at)
{
    const uint8_t *from = reinterpret_cast<const uint8_t *>(item.source) + at;
    const uint32_t size = static_cast<uint32_t>(item.size), left = at < size ? size - at : 0;
    if (left >= 16 && (ALIGNED || (item.source & 15) == 0))
        return *reinterpret_cast<const uint4 *>(from);
    if (ALIGNED)
        return load_end(from, left);
    const uint64_t low = gather(from, left), high = left > 8 ? gather(from + 8, left - 8) : 0;
    return make_uint4(static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                      static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32));
}

template <bool ALIGNED>
static __device__ void wide_store(const phi_hop_item &item, uint32_t at, uint4 data)
{
    uint8_t *to = reinterpret_cast<uint8_t *>(item.destination) + at;
    const uint32_t size = static_cast<uint32_t>(item.size), left = at < size ? size - at : 0;
    if (left >= 16 && (ALIGNED || (item.destination & 15) == 0)) {
        *reinterpret_cast<uint4 *>(to) = data;
        return;
    }
    if (ALIGNED)
        return store_end(to, data, left);
    scatter(to, static_cast<uint64_t>(data.y) << 32 | data.x, left);
    if (left > 8)
        scatter(to + 8, static_cast<uint64_t>(data.w) << 32 | data.z, left - 8);
}

// The places of a thread's 16 bytes in a unit's data: in the unit's first four lines and in its
// other four. A thread that keeps a number has 16 bytes, too: half of them in each four lines.
struct wide_place {
    uint32_t thread, first, second;
    bool keeps;
};

static __device__ wide_place wide_place_of()
{
    const uint32_t thread = threadIdx.x % 32;
    return {thread, 16 * thread, 16 * (32 + thread - thread / 8), thread % 8 == 7};
}

static __device__ uint4 *wide_slot(const phi_hop_item &item, uint64_t number)
{
    return reinterpret_cast<uint4 *>(item.slots + (number & (PHI_LL_SLOTS - 1)) * PHI_WIDE_SLOT) +
           threadIdx.x % 32;
}

static __device__ void store_wide(uint4 *address, uint4 data)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(data.x),
                 "r"(data.y), "r"(data.z), "r"(data.w)
                 : "memory");
}

// Half of what a keeper has, and the number.
static __device__ uint4 numbered(uint32_t low, uint32_t high, uint64_t number)
{
    return make_uint4(low, high, static_cast<uint32_t>(number),
                      static_cast<uint32_t>(number >> 32));
}

static __device__ bool has_number(uint4 line, uint64_t number)
{
    return line.z == static_cast<uint32_t>(number) && line.w == static_cast<uint32_t>(number >> 32);
}

// By whole warps, as lines are stored whole. Pairs with the credit of take_wide(): the slot's last
// message was read before it was given.
static __device__ bool await_credit(const phi_hop_item &item, uint32_t message, hop_follower &next)
{
    for (uint32_t polls = 0;; polls++) {
        const bool over = given_up(next, item.broken, polls);
        if (__all_sync(~0u, has_credit(item, message)))
            return true;
        if (__all_sync(~0u, over)) // then all have looked once more since it was set
            return give_up(item.broken);
    }
}

// A message of which this warp does every stride-th unit from `first` on.
struct wide_part {
    uint64_t number;
    uint32_t first, stride;
};

template <class Team> static __device__ wide_part part_of(const Team &team, uint64_t number)
{
    return {number, team.thread() / 32, team.threads() / 32};
}

// The part of the message that a warp of a hand does.
static __device__ wide_part part_of(const phi_hop_item &item, uint32_t share, uint64_t number)
{
    const uint32_t warps = blockDim.x / 32;
    return {number, share * warps + threadIdx.x / 32, item.blocks * warps};
}

struct wide_unit {
    uint4 a, b;
};

template <bool ALIGNED>
static __device__ wide_unit load_unit(const phi_hop_item &item, const wide_place &place,
                                      uint32_t unit)
{
    const uint32_t at = unit * PHI_WIDE_UNIT;
    wide_unit data = {wide_load<ALIGNED>(item, at + place.first), {}};
    if (!place.keeps)
        data.b = wide_load<ALIGNED>(item, at + place.second);
    return data;
}

// Pushes a part; the first unit's data is on its way while `may` is asked, once by each thread.
template <bool ALIGNED, class May>
static __device__ bool push_units(const phi_hop_item &item, const wide_part &part, May may)
{
    const wide_place place = wide_place_of();
    const uint32_t units = PHI_WIDE_UNITS(static_cast<uint32_t>(item.size));
    uint4 *slot = wide_slot(item, part.number);
    wide_unit data = {};
    if (part.first < units)
        data = load_unit<ALIGNED>(item, place, part.first);
    if (!may())
        return false;
    if (item.fence & PHI_FENCE_BEFORE)
        fence_system(); // before the lines of this warp
#pragma unroll 1
    for (uint32_t unit = part.first; unit < units;) {
        __syncwarp();
        store_wide(slot + 64 * unit,
                   place.keeps ? numbered(data.a.x, data.a.y, part.number) : data.a);
        store_wide(slot + 64 * unit + 32,
                   place.keeps ? numbered(data.a.z, data.a.w, part.number) : data.b);
        unit += part.stride;
        if (unit < units)
            data = load_unit<ALIGNED>(item, place, unit);
    }
    return true;
}

// Waits for a unit, by a whole warp.
static __device__ bool take_unit(const phi_hop_item &item, const uint4 *at, uint64_t number,
                                 bool keeps, hop_follower &next, uint4 *first, uint4 *second)
{
    for (uint32_t polls = 0;; polls++) {
        const bool over = given_up(next, item.broken, polls);
        __syncwarp(); // a line is loaded by one instruction, too
        *first = load_line(at);
        *second = load_line(at + 32);
        if (__all_sync(~0u, !keeps || (has_number(*first, number) && has_number(*second, number))))
            return true;
        if (__all_sync(~0u, over))
            return give_up(item.broken);
    }
}

// When one unit is there the others are under way: `first` is called then.
template <bool ALIGNED, class First>
static __device__ bool take_units(const phi_hop_item &item, const wide_part &part,
                                  hop_follower &next, First first)
{
    const wide_place place = wide_place_of();
    const uint32_t units = PHI_WIDE_UNITS(static_cast<uint32_t>(item.size));
    const uint4 *slot = wide_slot(item, part.number);
#pragma unroll 1
    for (uint32_t unit = part.first; unit < units; unit += part.stride) {
        const uint32_t at = unit * PHI_WIDE_UNIT;
        uint4 a, b;
        if (!take_unit(item, slot + 64 * unit, part.number, place.keeps, next, &a, &b))
            return false;
        if (unit == part.first)
            first();
        wide_store<ALIGNED>(item, at + place.first,
                            place.keeps ? make_uint4(a.x, a.y, b.x, b.y) : a);
        if (!place.keeps)
            wide_store<ALIGNED>(item, at + place.second, b);
    }
    return true;
}

// A wide message has a number of all messages, too: where that is one by whose push a small slot is
// written whole, it is by this one, by whoever has had credit for it.
template <class Team>
static __device__ void refresh_small(const phi_hop_item &item, const Team &team, uint32_t message)
{
    uint4 *slot =
        reinterpret_cast<uint4 *>(item.offset + (message & (PHI_LL_SLOTS - 1)) * PHI_LL_SLOT);
    if (message % PHI_LL_REFRESH >= PHI_LL_SLOTS)
        return;
#pragma unroll 1
    for (uint32_t i = team.thread(); i < PHI_LL_SLOT / 16; i += team.threads())
        store_line(slot + i, 0, message);
}

// A message that one block pushes, or takes.
template <bool ALIGNED, class Team>
static __device__ void push_wide(const phi_hop_item &item, const Team &team, hop_follower &next)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    const uint32_t message = load_relaxed(&own->pushed) + 1;
    const uint64_t number = load_relaxed_64(&own->wide_pushed) + 1;
    // The barrier: all have read the numbers.
    const bool done = team.all(push_units<ALIGNED>(item, part_of(team, number), [&] {
        const bool may = await_credit(item, message, next);
        team.has_waited();
        return may;
    }));
    if (!done)
        return;
    refresh_small(item, team, message);
    if (team.thread() != 0)
        return;
    own->pushed = message;
    own->wide_pushed = number;
}

template <bool ALIGNED, class Team>
static __device__ void take_wide(const phi_hop_item &item, const Team &team, hop_follower &next)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    const uint32_t message = load_relaxed(&own->taken) + 1;
    const uint64_t number = load_relaxed_64(&own->wide_taken) + 1;
    if (team.thread() == 0)
        give_credit(item, message - 1);
    // The barrier: all have read the numbers.
    const bool done = team.all(
        take_units<ALIGNED>(item, part_of(team, number), next, [&] { team.has_waited(); }));
    if (!done || team.thread() != 0)
        return;
    own->taken = message;
    own->wide_taken = number;
}

// ---- Hands

// A message that hands push: its numbers, and that of its claims.
struct wide_message {
    uint32_t message;
    uint64_t number, claim;
};

static __device__ wide_message wide_message_of(const phi_hop_item &item)
{
    const phi_flag_lane *own = reinterpret_cast<const phi_flag_lane *>(item.own);
    return {load_relaxed(&own->pushed) + 1, load_relaxed_64(&own->wide_pushed) + 1,
            load_relaxed_64(&own->handed) + 1};
}

// A share that is this block's, and more as long as some are nobody's. pushed: of the first share
// nothing is left but the lines of the small slot.
template <bool ALIGNED>
static __device__ void push_claimed(const phi_hop_item &item, const wide_message &message,
                                    uint32_t share, bool pushed = false)
{
#pragma unroll 1
    while (share != NO_SHARE) {
        if (!pushed)
            push_units<ALIGNED>(item, part_of(item, share, message.number), [] { return true; });
        pushed = false;
        if (share == 0)
            refresh_small(item, whole_block(), message.message);
        share = next_share(item, message.claim);
    }
}

template <bool ALIGNED>
static __device__ void push_what_is_left(const phi_hop_item &item, const wide_message &message)
{
    const auto may = [&] { return has_credit(item, message.message); };
    push_claimed<ALIGNED>(item, message, share_left(item, message.claim, may));
}

template <bool ALIGNED>
static __device__ void leave_push(const phi_hop_item &item, const wide_message &message)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    leave_hands(
        item, message.claim, [&] { push_what_is_left<ALIGNED>(item, message); },
        [&] {
            own->pushed = message.message;
            own->wide_pushed = message.number;
        });
}

template <bool ALIGNED> static __device__ void push_shares(const phi_hop_item &item, uint64_t guess)
{
    const wide_message message = wide_message_of(item);
    const auto may = [&] { return has_credit(item, message.message); };
    const uint32_t mine = blockIdx.x - item.first;
    uint32_t share = NO_SHARE;
    bool pushed = false;
    if (item.hands == PHI_HANDS_SECOND) {
        let_next_in();
        share = share_left(item, message.claim, may);
    } else {
        pushed = push_units<ALIGNED>(item, part_of(item, mine, message.number), [&] {
            share = first_share(item, guess, message.claim, may);
            return share == mine;
        });
    }
    push_claimed<ALIGNED>(item, message, share, pushed);
    leave_push<ALIGNED>(item, message);
}

// has_come returns whether the first line of a message is there.
static __device__ bool has_come(const phi_hop_item &item, uint64_t number)
{
    const uint4 *slot =
        reinterpret_cast<const uint4 *>(item.slots + (number & (PHI_LL_SLOTS - 1)) * PHI_WIDE_SLOT);
    return has_number(load_line(slot + 7), number);
}

// Thread 0 of each hand, when it has done its share, or has given that up. Returns whether it is
// the last one, and all have done theirs.
static __device__ bool is_whole(const phi_hop_item &item, uint32_t *hands, bool done)
{
    const uint32_t before = atomicAdd(hands, done ? 1 : PHI_MISSED + 1);
    if (before % PHI_MISSED != item.blocks - 1)
        return false;
    await_launch_before();
    *hands = 0;
    return done && before < PHI_MISSED;
}

template <bool ALIGNED>
static __device__ void take_share(const phi_hop_item &item, hop_follower &next)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    const uint32_t message = load_relaxed(&own->taken) + 1;
    const uint64_t number = load_relaxed_64(&own->wide_taken) + 1;
    let_next_in();
    // The barrier: all have read the numbers.
    const bool done = __syncthreads_and(
        take_units<ALIGNED>(item, part_of(item, blockIdx.x - item.first, number), next, [] {}));
    if (threadIdx.x != 0 || !is_whole(item, &own->taking, done))
        return;
    own->taken = message;
    own->wide_taken = number;
}

#endif
