// SPDX-License-Identifier: BSD-3-Clause
// phi_hop, phi_hop_spread and phi_hop_large: messages by flags in device memory (kernel_args.h).
// Part of kernels.cu.
//
// A thread that waits looks at `broken`, a word in host memory, rarely: each look goes over PCIe.
// The thread looks at `broken` before it looks once more at the word for which it waits: a message
// that came before `broken` was set is taken.
#ifndef PHI_CUDA_HOP_CUH
#define PHI_CUDA_HOP_CUH

#define LOOKS_BETWEEN 512
#define LOOKS_AT_END  2

using hop_follower = follower<phi_hop_args>;

// 16 bytes as two times 8, of which each comes whole: data and its flag.
static __device__ uint4 load_line(const uint4 *address)
{
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address)
                 : "memory");
    return v;
}

static __device__ void store_line(uint4 *address, uint64_t data, uint32_t flag)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(address),
                 "r"(static_cast<uint32_t>(data)), "r"(flag), "r"(static_cast<uint32_t>(data >> 32))
                 : "memory");
}

static __device__ bool given_up(uint64_t broken, uint32_t polls)
{
    if (polls % LOOKS_BETWEEN != LOOKS_BETWEEN - 1)
        return false;
    if (polls > 64 * LOOKS_BETWEEN)
        __nanosleep(200); // many that wait for long share the device with others
    return broken != 0 && load_acquire(broken) != 0;
}

static __device__ bool given_up(const hop_follower &next, uint64_t broken, uint32_t polls)
{
    if (polls == LOOKS_BETWEEN - 1)
        next.settle();
    return given_up(broken, polls);
}

// Returns false, for whoever gives up its wait. The fence: before the launch is over.
static __device__ bool give_up(uint64_t broken)
{
    store_relaxed(reinterpret_cast<uint32_t *>(broken), PHI_GIVEN_UP);
    fence_system();
    return false;
}

// ---- Who does an item

// All threads of a block, of which one item is all that they wait for.
struct whole_block {
    __device__ uint32_t thread() const
    {
        return threadIdx.x;
    }

    __device__ uint32_t threads() const
    {
        return blockDim.x;
    }

    __device__ bool all(bool mine) const
    {
        return __syncthreads_and(mine);
    }

    // Called by a thread when nothing is left that the item waits for without bound.
    __device__ void has_waited() const
    {
        if (threadIdx.x == 0)
            let_next_in();
    }
};

// Some of its warps, with a barrier of their own, where others of the block do other items.
struct some_warps {
    uint32_t first, count, barrier; // threads; barrier: 0 of one warp

    __device__ uint32_t thread() const
    {
        return threadIdx.x - first;
    }

    __device__ uint32_t threads() const
    {
        return count;
    }

    __device__ bool all(bool mine) const
    {
        uint32_t every;
        if (barrier == 0)
            return __all_sync(~0u, mine);
        __syncwarp(); // by whole warps, as __syncthreads() is
        asm volatile("{ .reg .pred in, out; setp.ne.u32 in, %1, 0;"
                     " barrier.cta.red.and.pred.aligned out, %2, %3, in; selp.u32 %0, 1, 0, out; }"
                     : "=r"(every)
                     : "r"(static_cast<uint32_t>(mine)), "r"(barrier), "r"(count)
                     : "memory");
        return every != 0;
    }

    // The block does that when all its items have.
    __device__ void has_waited() const
    {
    }
};

// ---- ll

// Up to 8 bytes at `at`, of which `left` are the message's.
static __device__ uint64_t gather(const uint8_t *at, uint64_t left)
{
    if (left >= 8 && (reinterpret_cast<uint64_t>(at) & 7) == 0)
        return *reinterpret_cast<const uint64_t *>(at);
    uint64_t data = 0;
    for (uint32_t i = 0; i < 8 && i < left; i++)
        data |= static_cast<uint64_t>(at[i]) << 8 * i;
    return data;
}

static __device__ void scatter(uint8_t *at, uint64_t data, uint64_t left)
{
    if (left >= 8 && (reinterpret_cast<uint64_t>(at) & 7) == 0) {
        *reinterpret_cast<uint64_t *>(at) = data;
        return;
    }
    for (uint32_t i = 0; i < 8 && i < left; i++)
        at[i] = static_cast<uint8_t>(data >> 8 * i);
}

static __device__ uint4 *slot_of(const phi_hop_item &item, uint32_t message)
{
    return reinterpret_cast<uint4 *>(item.slots + (message & (PHI_LL_SLOTS - 1)) * PHI_LL_SLOT);
}

// Lines of a message: an offset where there is one, then the data; one at least.
static __device__ uint32_t lines_of(const phi_hop_item &item)
{
    const uint32_t data = static_cast<uint32_t>((item.size + 7) / 8) + item.signal;
    return data ? data : 1;
}

// line_data returns the 8 bytes that a line carries: the offset, 8 bytes of the data, or nothing.
static __device__ uint64_t line_data(const phi_hop_item &item, uint32_t line)
{
    if (line < item.signal)
        return item.offset;
    const uint64_t at = 8ull * (line - item.signal);
    return at < item.size
               ? gather(reinterpret_cast<const uint8_t *>(item.source) + at, item.size - at)
               : 0;
}

static __device__ bool has_credit(const phi_hop_item &item, uint32_t message)
{
    const phi_flag_lane *own = reinterpret_cast<const phi_flag_lane *>(item.own);
    return static_cast<int32_t>(load_relaxed(&own->credit) + PHI_LL_SLOTS - message) >= 0;
}

// Each thread waits for the credit itself: the word lies in this device's memory.
template <class Team>
static __device__ bool push_lines(const phi_hop_item &item, const Team &team, uint32_t message,
                                  hop_follower &next)
{
    uint4 *slot = slot_of(item, message);
    // The first data is fetched while the credit is looked at.
    uint64_t data = line_data(item, team.thread());
    // Pairs with the credit of take(): the slot's last message was read before it was given.
    for (uint32_t polls = 0;; polls++) {
        const bool over = given_up(next, item.broken, polls);
        if (has_credit(item, message))
            break;
        if (over)
            return give_up(item.broken);
    }
    team.has_waited();
    if (item.fence & PHI_FENCE_BEFORE && team.thread() == 0)
        fence_system(); // before line 0, which a take waits for with the others
    for (uint32_t i = team.thread(); i < lines_of(item); i += team.threads()) {
        if (i != team.thread())
            data = line_data(item, i);
        store_line(slot + i, data, message);
    }
    if (message % PHI_LL_REFRESH < PHI_LL_SLOTS)
        for (uint32_t i = lines_of(item) + team.thread(); i < PHI_LL_SLOT / 16; i += team.threads())
            store_line(slot + i, 0, message);
    return true;
}

template <class Team>
static __device__ void push(const phi_hop_item &item, const Team &team, hop_follower &next)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    const uint32_t message = load_relaxed(&own->pushed) + 1;
    // The barrier: all have read own->pushed.
    const bool done = team.all(push_lines(item, team, message, next));
    if (done && team.thread() == 0)
        own->pushed = message;
}

// Waits for one line; false where the wait was given up.
static __device__ bool take_line(const uint4 *at, uint32_t message, uint64_t broken, uint64_t *data,
                                 hop_follower &next)
{
    uint4 line;
    for (uint32_t polls = 0;; polls++) {
        const bool over = given_up(next, broken, polls);
        line = load_line(at);
        if (line.y == message && line.w == message)
            break;
        if (over)
            return give_up(broken);
    }
    *data = static_cast<uint64_t>(line.z) << 32 | line.x;
    return true;
}

// This thread's lines. What a peer says of the offset is not believed: nothing is written outside
// the buffer. When one line is there the others are under way.
template <class Team>
static __device__ bool take_lines(const phi_hop_item &item, const Team &team, uint32_t message,
                                  hop_follower &next)
{
    const uint4 *slot = slot_of(item, message);
    uint64_t offset = 0, data;
    if (item.signal && !take_line(slot, message, item.broken, &offset, next))
        return false;
    const bool fits = item.size <= item.offset && offset <= item.offset - item.size;
    uint8_t *destination = reinterpret_cast<uint8_t *>(item.destination + offset);
    for (uint32_t i = team.thread(); i < lines_of(item); i += team.threads()) {
        if (!take_line(slot + i, message, item.broken, &data, next))
            return false;
        if (i == team.thread())
            team.has_waited();
        const uint64_t at = 8ull * (i - item.signal);
        if (fits && i >= item.signal && at < item.size)
            scatter(destination + at, data, item.size - at);
    }
    return true;
}

// Credit for a message is given when the next one is waited for, not at the end of its own take: a
// store to the peer would hold that up, and here it passes while this end waits anyhow. So a push
// may have to wait until the take of the message before it has begun. By one thread.
static __device__ void give_credit(const phi_hop_item &item, uint32_t message)
{
    if (item.peer != 0)
        store_relaxed(&reinterpret_cast<phi_flag_lane *>(item.peer)->credit, message);
}

template <class Team>
static __device__ void take(const phi_hop_item &item, const Team &team, hop_follower &next)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    const uint32_t message = load_relaxed(&own->taken) + 1;
    if (team.thread() == 0)
        give_credit(item, message - 1);
    // The barrier: all have read own->taken.
    const bool done = team.all(take_lines(item, team, message, next));
    if (done && team.thread() == 0)
        own->taken = message;
}

// ---- sm

// The acquire pairs with the store of go(): what the peer did before is over. By one thread. moved:
// of the lane, before this copy.
static __device__ bool has_leave(const phi_hop_item &item, uint32_t moved)
{
    const uint64_t go = item.own + offsetof(phi_flag_lane, go);
    return static_cast<int32_t>(load_acquire(go) - moved) > 0;
}

// By one thread, behind a barrier that gathers what the others have copied of the share.
static __device__ void tell_share(const phi_hop_item &item, uint32_t share, uint32_t shares)
{
    fence_system(); // the copies before the full word
    store_relaxed(reinterpret_cast<phi_flag_lane *>(item.peer)->full + share, shares);
}

// A copy that one block does.
template <class Team>
static __device__ void move(const phi_hop_item &item, const Team &team, hop_follower &next)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    bool may = true;
    const uint32_t moved = load_relaxed(&own->moved);
    for (uint32_t polls = 0; team.thread() == 0; polls++) {
        const bool over = given_up(next, item.broken, polls);
        if (has_leave(item, moved))
            break;
        if (over) {
            may = give_up(item.broken);
            break;
        }
    }
    if (!team.all(may)) // hands on what thread 0 acquired
        return;
    team.has_waited();
    copy_part({item.destination, item.source, item.size, 0, 0, 0, 0, 0, 0},
              {team.thread(), team.threads()});
    team.all(true);
    if (team.thread() != 0)
        return;
    own->moved = moved + 1;
    tell_share(item, 0, 1);
}

// By one thread. The stream's earlier work is over. This end has written nothing since then that
// the peer's copy must not overtake, unless the item's fence says so.
static __device__ void go(const phi_hop_item &item)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    if (item.peer == 0)
        return;
    if (item.fence & PHI_FENCE_BEFORE)
        fence_system();
    store_relaxed(&reinterpret_cast<phi_flag_lane *>(item.peer)->go, ++own->allowed);
}

// Waits for one word, which is there or not needed. The acquire pairs with the fence of
// tell_share(). When the first word is there the others are under way.
template <class Team>
static __device__ bool await_full(const phi_hop_item &item, const Team &team, uint32_t word,
                                  hop_follower &next)
{
    const phi_flag_lane *own = reinterpret_cast<const phi_flag_lane *>(item.own);
    for (uint32_t polls = 0;; polls++) {
        const bool over = given_up(next, item.broken, polls);
        const uint32_t shares = load_relaxed(own->full);
        const uint32_t mine = load_relaxed(own->full + word);
        if (mine != 0 || (shares != 0 && word >= shares)) {
            load_acquire(reinterpret_cast<uint64_t>(own->full + word));
            team.has_waited();
            return true;
        }
        if (over)
            return give_up(item.broken);
    }
}

// A thread for each word, where there are so many: all are looked at at the same time, and once
// more when they are there.
template <class Team>
static __device__ bool await_all_full(const phi_hop_item &item, const Team &team,
                                      hop_follower &next)
{
    for (uint32_t i = team.thread(); i < PHI_MOVE_BLOCKS; i += team.threads())
        if (!await_full(item, team, i, next))
            return false;
    return true;
}

// The barriers hand on what the threads acquired, and gather the zeros for the fence.
template <class Team>
static __device__ void arrive_all(const phi_hop_item &item, const Team &team, hop_follower &next)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    if (!team.all(await_all_full(item, team, next)))
        return;
    for (uint32_t i = team.thread(); i < PHI_MOVE_BLOCKS; i += team.threads())
        own->full[i] = 0;
    if (!item.signal)
        return;
    team.all(true);
    if (team.thread() != 0)
        return;
    fence_system(); // before the go
    go(item);
}

// ---- Hands: blocks that share what does not fit into one

// A hand looks so often whether it may begin: where the peer is on time that is enough, and where
// it is late the device is the application's meanwhile (docs/protocols.md, "Who waits").
#define PATIENCE 16

#define NO_SHARE ~0u

// claim returns whether nobody had claimed a share, so that the share is the caller's now. By one
// thread. A share that was claimed for a later message stays so.
static __device__ bool claim(phi_flag_lane *own, uint32_t share, uint64_t message)
{
    return atomicMax(reinterpret_cast<unsigned long long *>(&own->claimed[share]), message) <
           message;
}

// Which of 32 shares from `first` on nobody has claimed. By a whole warp.
static __device__ uint32_t unclaimed(const phi_flag_lane *own, uint32_t first, uint32_t shares,
                                     uint64_t message)
{
    const uint32_t share = first + threadIdx.x % 32;
    return __ballot_sync(~0u, share < shares && load_relaxed_64(&own->claimed[share]) != message);
}

static __device__ bool any_unclaimed(const phi_flag_lane *own, uint32_t shares, uint64_t message)
{
    uint32_t all = 0;
#pragma unroll
    for (uint32_t first = 0; first < PHI_MOVE_BLOCKS; first += 32)
        all |= unclaimed(own, first, shares, message);
    return all != 0;
}

// By a whole warp.
static __device__ uint32_t claim_any(phi_flag_lane *own, uint32_t shares, uint64_t message)
{
    for (uint32_t first = 0; first < shares; first += 32) {
        uint32_t left = unclaimed(own, first, shares, message);
        for (; left != 0; left &= left - 1) {
            const uint32_t share = first + __ffs(static_cast<int>(left)) - 1;
            const bool mine = threadIdx.x % 32 == 0 && claim(own, share, message);
            if (__shfl_sync(~0u, mine, 0))
                return share;
        }
    }
    return NO_SHARE;
}

// hand_out gives the value that the first warp found to all of the block.
static __device__ uint32_t hand_out(uint32_t found)
{
    __shared__ uint32_t shared;
    __syncthreads(); // the last one was read by all
    if (threadIdx.x == 0)
        shared = found;
    __syncthreads();
    return shared;
}

// The share of a hand of the first launch, or another one, or none: it leaves if it may not begin
// soon. By all threads; `may` is asked by one. HOLDS: blocks that are on the device before their
// time take its multiprocessors from the application. So a hand that begins at once, where none has
// left, lets the second launch in only by its end.
template <bool HOLDS = false, class May>
static __device__ uint32_t first_share(const phi_hop_item &item, uint64_t guess, uint64_t message,
                                       May may)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    const uint32_t share = blockIdx.x - item.first;
    bool mine = false, begins = false, holds = false;
    if (threadIdx.x == 0) {
        // While the numbers are on their way.
        mine = claim(own, share, guess);
        if (guess != message)
            mine = claim(own, share, message);
        for (uint32_t polls = 0; !begins && polls < PATIENCE; polls++) {
            begins = may();
            holds = polls == 0;
        }
        if (HOLDS && !begins)
            atomicAdd(&own->left, 1);
        holds = HOLDS && holds && begins && load_relaxed(&own->left) == 0;
        if (mine && !begins) {
            store_relaxed_64(&own->claimed[share], message - 1);
            __threadfence(); // before the second launch, or who leaves last, looks
        }
    }
    uint32_t found = NO_SHARE;
    if (threadIdx.x < 32 && __shfl_sync(~0u, begins, 0))
        found = __shfl_sync(~0u, mine, 0) ? share : claim_any(own, item.blocks, message);
    found = hand_out(found); // hands on what thread 0 acquired
    if (threadIdx.x == 0 && !holds)
        let_next_in(); // behind the claim: the second launch takes what is nobody's
    return found;
}

// Nothing of a message is begun behind a wait that was given up, also where the peer's leave comes
// just then. By one thread.
template <class May> static __device__ bool still_may(const phi_hop_item &item, May may)
{
    __threadfence(); // what the stream did before the launch that let this one in is seen
    return may() && (item.broken == 0 || load_acquire(item.broken) != PHI_GIVEN_UP);
}

// share_left returns a share that is left for a hand of the second launch, or for the first block,
// when the wait is over. Where the wait was given up, no share is left.
template <class May>
static __device__ uint32_t share_left(const phi_hop_item &item, uint64_t message, May may)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    uint32_t found = NO_SHARE;
    if (threadIdx.x < 32 && any_unclaimed(own, item.blocks, message) &&
        __shfl_sync(~0u, threadIdx.x == 0 && still_may(item, may), 0))
        found = claim_any(own, item.blocks, message);
    return hand_out(found);
}

// The next one for a hand that has done a share, by all threads. The second warp looks: the first
// one may have something to tell.
static __device__ uint32_t next_share(const phi_hop_item &item, uint64_t message)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    const bool more = threadIdx.x / 32 == 1 && any_unclaimed(own, item.blocks, message);
    if (!__syncthreads_or(more))
        return NO_SHARE;
    return hand_out(threadIdx.x < 32 ? claim_any(own, item.blocks, message) : NO_SHARE);
}

// At the end of each block of a message's hands, by all threads. The last one of the second launch,
// or of the only one, counts the message by `count` where all of it was claimed. All hands of the
// first launch have claimed what they do before the second begins, and read the numbers. Of an only
// launch a hand may have given its share back after the first block had looked: so the last one to
// leave does what is `left`.
template <class Left, class Count>
static __device__ void leave_hands(const phi_hop_item &item, uint64_t message, Left left,
                                   Count count)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    const uint32_t blocks = item.blocks + (item.hands == PHI_HANDS_ONLY);
    if (item.hands == PHI_HANDS_FIRST)
        return;
    bool last = false;
    if (threadIdx.x == 0) {
        last = atomicAdd(&own->leaving, 1) == blocks - 1;
        __threadfence(); // pairs with those of who gave a share back
    }
    if (!hand_out(last))
        return;
    if (item.hands == PHI_HANDS_ONLY)
        left();
    if (threadIdx.x >= 32)
        return;
    const bool whole = !any_unclaimed(own, item.blocks, message);
    if (threadIdx.x != 0)
        return;
    own->leaving = own->left = 0;
    own->handed = message;
    if (whole)
        count();
    if (item.hands == PHI_HANDS_SECOND)
        await_launch_before();
}

#include "cuda/wide.cuh"

#include "cuda/ring.cuh"

#include "cuda/ring_long.cuh"

// The source may be read early where it is this device's own: what the stream did before has filled
// it. Else it is the peer's go that says so.
template <bool LARGE> static __device__ void move_shares(const phi_hop_item &item, uint64_t guess)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    const phi_copy_args copy = {item.destination, item.source, item.size, 0, 0, 0, 0, 0, 0};
    const uint32_t moved = load_relaxed(&own->moved);
    const uint64_t message = load_relaxed_64(&own->handed) + 1;
    const auto may = [&] { return has_leave(item, moved); };
    bool first = item.hands != PHI_HANDS_SECOND, early = !LARGE && item.offset != 0 && first;
    uint32_t share = blockIdx.x - item.first;
    if (!first) {
        let_next_in();
        share = share_left(item, message, may);
    }
#pragma unroll 1
    while (share != NO_SHARE) {
        uint32_t next = share;
        const bool copied =
            copy_when(copy, share, item.blocks, early, LARGE ? &own->drawn : nullptr, [&] {
                if (first)
                    next = first_share<LARGE>(item, guess, message, may);
                return next == share;
            });
        first = early = false;
        if (copied) {
            __syncthreads(); // gathers the block's copies for the fence of thread 0
            if (threadIdx.x == 0)
                tell_share(item, share, item.blocks);
            next = next_share(item, message);
        }
        share = next;
    }
    leave_hands(
        item, message, [] {}, [&] { own->moved = moved + 1; });
}

// ---- The first block

// The numbers of the lane before the message.
struct hop_numbers {
    uint32_t pushed, moved;
    uint64_t wide_taken;
};

static __device__ bool may_begin(const phi_hop_item &item, const hop_numbers &numbers)
{
    switch (item.kind) {
    case PHI_STEP_ROOM:
        return has_credit(item, numbers.pushed + 1);
    case PHI_STEP_LEAVE:
        return has_leave(item, numbers.moved);
    default:
        return has_come(item, numbers.wide_taken + 1);
    }
}

// await_hands waits until hands may begin, by one thread. When the first line of a message is there
// the other lines are under way.
template <class Team>
static __device__ void await_hands(const phi_hop_item &item, const Team &team, hop_follower &next)
{
    const phi_flag_lane *own = reinterpret_cast<const phi_flag_lane *>(item.own);
    if (team.thread() != 0)
        return;
    const hop_numbers numbers = {load_relaxed(&own->pushed), load_relaxed(&own->moved),
                                 load_relaxed_64(&own->wide_taken)};
    if (item.kind == PHI_STEP_MESSAGE)
        give_credit(item, load_relaxed(&own->taken));
    for (uint32_t polls = 0;; polls++) {
        const bool over = given_up(next, item.broken, polls);
        if (may_begin(item, numbers))
            break;
        if (over) {
            give_up(item.broken);
            break;
        }
    }
    team.has_waited();
}

// The first block, where there is no second launch: when the wait is over it does what the hands
// have left.
template <bool ALIGNED>
static __device__ void push_left(const phi_hop_item &item, hop_follower &next)
{
    const wide_message message = wide_message_of(item);
    await_hands(item, whole_block(), next);
    __syncthreads();
    push_what_is_left<ALIGNED>(item, message);
    leave_push<ALIGNED>(item, message);
}

// The kinds of launches. ALONE: all that the launch has is in its first block. SHARED: hands do
// some of it. LARGE: it has large copies. WIDE, RING, LONG: it is a launch of phi_hop_wide, of
// phi_ring, of phi_ring_long.
enum messages { ALONE, SHARED, LARGE, WIDE, RING, LONG };

// One of its items, of those that there are in a launch of the kind.
template <messages OF, class Team>
static __device__ void do_item(const phi_hop_item &item, const Team &team, hop_follower &next)
{
    constexpr bool lines = OF != ALONE; // wide ones
    if (OF == RING)
        return do_ring_item(item, team, next);
    switch (item.kind) {
    case PHI_STEP_PUSH:
        if (OF != WIDE && !(lines && item.wide))
            return push(item, team, next);
        if (lines)
            push_wide<OF == WIDE>(item, team, next);
        return;
    case PHI_STEP_TAKE:
        if (OF != WIDE && !(lines && item.wide))
            return take(item, team, next);
        if (lines)
            take_wide<OF == WIDE>(item, team, next);
        return;
    case PHI_STEP_ROOM:
    case PHI_STEP_LEAVE:
    case PHI_STEP_MESSAGE:
        return await_hands(item, team, next);
    case PHI_STEP_MOVE:
        if (OF == SHARED || OF == LARGE)
            move(item, team, next);
        return;
    case PHI_STEP_ARRIVE:
        if (OF != WIDE)
            arrive_all(item, team, next);
        return;
    default:
        if (OF == WIDE)
            return;
        if (team.thread() == 0)
            go(item);
        team.has_waited();
    }
}

// A launch of one item, and nothing else, has the block for that.
template <messages OF>
static __device__ void wait_for_items(const phi_hop_args &args, const phi_hop_item &first,
                                      hop_follower &next)
{
    if (OF == LONG)
        return lead_items(args, first, next);
    if (args.count == 1)
        return do_item<OF>(first, whole_block(), next);
    if (OF == RING && first.hands == PHI_HANDS_ONLY)
        return push_ring_only(first, next);
    if (OF != ALONE && first.hands == PHI_HANDS_ONLY)
        return push_left<OF == WIDE>(first, next);
    uint32_t barrier = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < args.waits; i++) {
        const phi_hop_item &item = args.items[i];
        barrier += item.blocks > 1;
        if (threadIdx.x / 32 - item.first >= item.blocks)
            continue;
        const some_warps team = {32 * item.first, 32 * item.blocks, item.blocks > 1 ? barrier : 0};
        if (OF != WIDE)
            do_item<OF>(item, team, next);
        else if (item.kind == PHI_STEP_ROOM || item.kind == PHI_STEP_MESSAGE)
            await_hands(item, team, next);
    }
    __syncthreads();
    let_next_in();
}

template <messages OF>
static __device__ void do_hand(const phi_hop_item &item, uint64_t guess, hop_follower &next)
{
    if (OF == RING)
        return do_ring_hand(item, guess, next);
    if (OF == LONG)
        return do_long_hand(item, next);
    switch (item.kind) {
    case PHI_STEP_PUSH:
        return push_shares<OF == WIDE>(item, guess);
    case PHI_STEP_TAKE:
        return take_share<OF == WIDE>(item, next);
    default:
        if (OF != WIDE)
            move_shares<OF == LARGE>(item, guess);
    }
}

// The item of a hand, or of a block that stages; args.count: it has none.
static __device__ uint32_t first_item(const phi_hop_args &args)
{
    uint32_t i = args.waits;
    while (i < args.count && blockIdx.x - args.items[i].first >= args.items[i].blocks)
        i++;
    return i;
}

// needs_fence returns whether a block writes for others: lines, full words, records, host memory.
// In the first block each of its items counts.
static __device__ bool needs_fence(const phi_hop_args &args)
{
    const bool waits = args.waits > 0 && blockIdx.x == 0;
    const uint32_t first = waits ? 0 : first_item(args);
    const uint32_t end = waits ? args.waits : first + (first < args.count);
    bool needed = false;
    for (uint32_t i = first; i < end; i++)
        needed = needed || (args.items[i].fence & PHI_FENCE) != 0;
    return needed;
}

static __device__ bool writes_for_others(const phi_hop_args &args)
{
    for (uint32_t i = 0; i < args.count; i++)
        if (args.items[i].fence & PHI_FENCE)
            return true;
    return false;
}

// Thread 0 of each block. Who sees the number may tell a peer by another way that nothing more
// comes: lines and full words are there before it. (A credit is not: it is given long before the
// take that gives it ends. Nor go words: see phi_hop_fill.)
//
// A launch that leaves its number leaves its fence, too: it would hold up the launch behind it,
// which is a take mostly, and waits for the answer to these lines.
template <bool STAGED> static __device__ void finish(const phi_hop_args &args, hop_follower &next)
{
    phi_transfer_sync *sync = reinterpret_cast<phi_transfer_sync *>(args.sync);
    // It was let in a moment ago, and takes as long to come as a number does to leave. Behind go
    // words a fence would wait for what the peer copies then.
    for (int i = 0; i < LOOKS_AT_END && !next.seen; i++)
        next.look();
    // The fence also covers the number of the launch before this one, which a thread may have
    // settled.
    const bool fence =
        args.done != 0 && !next.seen && (next.owed != PHI_OWED_NOTHING || needs_fence(args));
    if (fence)
        fence_system(); // before this block counts
    const phi_meeting met = meet(sync, next.seen);
    if (!met.last)
        return;
    if (STAGED && args.stages != 0)
        sync->gate = 0;
    if (args.done == 0)
        return;
    if (met.left)
        leave_number(next, next.owed != PHI_OWED_FENCE && !writes_for_others(args));
    else
        tell_number(next, fence || next.owed == PHI_OWED_NOTHING);
}

// An item's arguments, in registers before the wait for the launch before this one: constants are
// read from afar, one after the other, where they are needed.
static __device__ phi_hop_item hold(const phi_hop_item &item)
{
    phi_hop_item held = item;
    asm volatile("" : "+l"(held.own), "+l"(held.peer), "+l"(held.slots), "+l"(held.destination));
    asm volatile("" : "+l"(held.source), "+l"(held.size), "+l"(held.broken));
    asm volatile("" : "+r"(held.blocks), "+r"(held.first));
    return held;
}

template <messages OF> static __device__ __forceinline__ void hop(const phi_hop_args &args)
{
    const bool waits = args.waits > 0 && blockIdx.x == 0;
    const uint32_t i = waits || args.count == 1 ? 0 : first_item(args);
    const phi_hop_item item = hold(args.items[i < args.count ? i : 0]);
    // The hands of this launch claim this message, unless the launch before this one is such hands,
    // too.
    uint64_t guess = 0;
    if (OF != ALONE && !waits && i < args.count && threadIdx.x == 0)
        guess = load_relaxed_64(&reinterpret_cast<const phi_flag_lane *>(item.own)->handed) + 1;
    if (OF == LONG && waits && args.waits == 1)
        post_take(item);
    hop_follower next = follow(args, args.behind != 0);
    if (waits)
        wait_for_items<OF>(args, item, next);
    else if (OF != ALONE && i < args.count)
        do_hand<OF>(item, guess, next);
    if (args.done == 0 || !args.tells)
        return;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    finish<false>(args, next);
}

// Kernels of their own: for what fits into the first block, whose threads have fewer registers, for
// large copies, which took 0.3 us from those of 8 MiB, and for what is wide, which is short: the
// code of a kernel that has just begun is far away.
extern "C" __global__ void __launch_bounds__(PHI_HOP_THREADS)
    phi_hop(const __grid_constant__ phi_hop_args args)
{
    hop<ALONE>(args);
}

extern "C" __global__ void __launch_bounds__(PHI_SPREAD_THREADS)
    phi_hop_spread(const __grid_constant__ phi_hop_args args)
{
    hop<SHARED>(args);
}

extern "C" __global__ void __launch_bounds__(PHI_SPREAD_THREADS)
    phi_hop_large(const __grid_constant__ phi_hop_args args)
{
    hop<LARGE>(args);
}

extern "C" __global__ void __launch_bounds__(PHI_HOP_THREADS)
    phi_hop_wide(const __grid_constant__ phi_hop_args args)
{
    hop<WIDE>(args);
}

extern "C" __global__ void __launch_bounds__(PHI_HOP_THREADS)
    phi_ring(const __grid_constant__ phi_hop_args args)
{
    hop<RING>(args);
}

extern "C" __global__ void __launch_bounds__(PHI_LONG_THREADS, 2)
    phi_ring_long(const __grid_constant__ phi_hop_args args)
{
    hop<LONG>(args);
}

#endif
