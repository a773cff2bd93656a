// SPDX-License-Identifier: BSD-3-Clause
// phi_hop, phi_hop_spread and phi_hop_large: messages by flags in device memory (kernel_args.h).
// Part of kernels.cu.
//
// Who looks at `broken`, a word in host memory, does so rarely: each look goes over PCIe. And
// before it looks once more at what it waits for: what came before the word was set is taken.
#ifndef PHI_CUDA_HOP_CUH
#define PHI_CUDA_HOP_CUH

#define LOOKS_BETWEEN 512

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

// What a line carries: the offset, 8 bytes of the data, or nothing.
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
static __device__ bool push_lines(const phi_hop_item &item, uint32_t message, hop_follower &next)
{
    uint4 *slot = slot_of(item, message);
    // The first data is fetched while the credit is looked at.
    uint64_t data = line_data(item, threadIdx.x);
    // Pairs with the credit of take(): the slot's last message was read before it was given.
    for (uint32_t polls = 0;; polls++) {
        const bool over = given_up(next, item.broken, polls);
        if (has_credit(item, message))
            break;
        if (over)
            return give_up(item.broken);
    }
    if (item.fence & PHI_FENCE_BEFORE && threadIdx.x == 0)
        fence_system(); // before line 0, which a take waits for with the others
    for (uint32_t i = threadIdx.x; i < lines_of(item); i += blockDim.x) {
        if (i != threadIdx.x)
            data = line_data(item, i);
        store_line(slot + i, data, message);
    }
    if (message % PHI_LL_REFRESH < PHI_LL_SLOTS)
        for (uint32_t i = lines_of(item) + threadIdx.x; i < PHI_LL_SLOT / 16; i += blockDim.x)
            store_line(slot + i, 0, message);
    return true;
}

static __device__ void push(const phi_hop_item &item, hop_follower &next)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    const uint32_t message = own->pushed + 1;
    // The barrier: all have read own->pushed.
    const bool done = __syncthreads_and(push_lines(item, message, next));
    if (done && threadIdx.x == 0)
        own->pushed = message;
}

// Waits for one line; false where the wait was given up. next: looked at with each poll, so that it
// costs nothing when the line is there.
static __device__ bool take_line(const uint4 *at, uint32_t message, uint64_t broken, uint64_t *data,
                                 hop_follower &next)
{
    uint4 line;
    for (uint32_t polls = 0;; polls++) {
        const bool over = given_up(next, broken, polls);
        line = load_line(at);
        next.look();
        if (line.y == message && line.w == message)
            break;
        if (over)
            return give_up(broken);
    }
    *data = static_cast<uint64_t>(line.z) << 32 | line.x;
    return true;
}

// This thread's lines. What a peer says of the offset is not believed: nothing is written outside
// the buffer.
static __device__ bool take_lines(const phi_hop_item &item, uint32_t message, hop_follower &next)
{
    const uint4 *slot = slot_of(item, message);
    uint64_t offset = 0, data;
    if (item.signal && !take_line(slot, message, item.broken, &offset, next))
        return false;
    const bool fits = item.size <= item.offset && offset <= item.offset - item.size;
    uint8_t *destination = reinterpret_cast<uint8_t *>(item.destination + offset);
    for (uint32_t i = threadIdx.x; i < lines_of(item); i += blockDim.x) {
        if (!take_line(slot + i, message, item.broken, &data, next))
            return false;
        const uint64_t at = 8ull * (i - item.signal);
        if (fits && i >= item.signal && at < item.size)
            scatter(destination + at, data, item.size - at);
    }
    return true;
}

// Credit for a message is given when the next one is waited for, not at the end of its own take: a
// store to the peer would hold that up, and here it passes while this end waits anyhow. So a push
// may have to wait until the take of the message before it has begun.
static __device__ void give_credit(const phi_hop_item &item, uint32_t message)
{
    if (threadIdx.x == 0 && item.peer != 0)
        store_relaxed(&reinterpret_cast<phi_flag_lane *>(item.peer)->credit, message);
}

static __device__ void take(const phi_hop_item &item, hop_follower &next)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    const uint32_t message = own->taken + 1;
    give_credit(item, message - 1);
    // The barrier: all have read own->taken.
    const bool done = __syncthreads_and(take_lines(item, message, next));
    if (done && threadIdx.x == 0)
        own->taken = message;
}

#include "cuda/wide.cuh"

// ---- sm

// Each block waits for its share of the go words, that is its own and of those without a block, and
// puts them back: a go that came later than this would let another copy begin too soon. The acquire
// pairs with the stores of go().
static __device__ bool may_move(const phi_hop_item &item, uint32_t block, hop_follower &next)
{
    uint32_t *words = reinterpret_cast<phi_flag_lane *>(item.own)->go;
    for (uint32_t i = block + threadIdx.x * item.blocks; i < PHI_MOVE_BLOCKS;
         i += blockDim.x * item.blocks) {
        for (uint32_t polls = 0;; polls++) {
            const bool over = given_up(next, item.broken, polls);
            if (load_acquire(reinterpret_cast<uint64_t>(words + i)) != 0)
                break;
            if (over)
                return give_up(item.broken);
        }
        store_relaxed(words + i, 0); // before the full word: the next go comes after that
    }
    return true;
}

// The source may be read early where it is this device's own: what the stream did before has filled
// it. Else it is the peer's go that says so.
template <bool LARGE>
static __device__ bool copy_when_told(const phi_hop_item &item, uint32_t block, hop_follower &next)
{
    uint32_t *drawn = LARGE ? &reinterpret_cast<phi_flag_lane *>(item.own)->drawn : nullptr;
    return copy_when({item.destination, item.source, item.size, 0, 0}, block, item.blocks,
                     !LARGE && item.offset != 0, drawn, [&] {
                         // The barrier hands on what its threads acquired.
                         return __syncthreads_and(may_move(item, block, next)) != 0;
                     });
}

template <bool LARGE> static __device__ void move(const phi_hop_item &item, hop_follower &next)
{
    const uint32_t block = blockIdx.x - item.first;
    if (!copy_when_told<LARGE>(item, block, next))
        return;
    __syncthreads(); // gathers the block's copies for the fence of thread 0
    if (threadIdx.x != 0)
        return;
    if (item.wide)
        atomicAdd(&reinterpret_cast<phi_flag_lane *>(item.own)->moved, 1); // for await_moved()
    next.look();
    fence_system(); // the copies before the full word
    store_relaxed(reinterpret_cast<phi_flag_lane *>(item.peer)->full + block, item.blocks);
}

// The first warp. What came before on the stream is over, and this end has written nothing since
// that the peer's copy must not overtake, but where a fence says so.
static __device__ void go(const phi_hop_item &item)
{
    if (item.peer == 0)
        return;
    if (item.fence & PHI_FENCE_BEFORE)
        fence_system(); // by each thread that stores a word
    for (uint32_t i = threadIdx.x; i < PHI_MOVE_BLOCKS; i += 32)
        store_relaxed(reinterpret_cast<phi_flag_lane *>(item.peer)->go + i, 1);
}

// One thread for each word that may be there: all are looked at at the same time, and once more
// when they are there. The acquire pairs with the fence of move().
static __device__ bool await_full(const phi_hop_item &item, const phi_flag_lane *own,
                                  hop_follower &next)
{
    const uint32_t *full = own->full + threadIdx.x;
    for (uint32_t polls = 0;; polls++) {
        const bool over = given_up(next, item.broken, polls);
        const uint32_t blocks = load_relaxed(own->full);
        const uint32_t mine = load_relaxed(full);
        next.look();
        if (mine != 0 || (blocks != 0 && threadIdx.x >= blocks)) {
            load_acquire(reinterpret_cast<uint64_t>(full));
            return true;
        }
        if (over)
            return give_up(item.broken);
    }
}

// By all threads of a block, PHI_MOVE_BLOCKS at least. The barrier hands on what they acquired.
static __device__ void arrive_all(const phi_hop_item &item, hop_follower &next)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    const bool has_word = threadIdx.x < PHI_MOVE_BLOCKS;
    if (!__syncthreads_and(!has_word || await_full(item, own, next)))
        return;
    if (has_word)
        own->full[threadIdx.x] = 0;
    if (!item.signal)
        return;
    __syncthreads(); // gathers the zeros for the fences: before any go
    if (threadIdx.x >= 32)
        return;
    fence_system();
    go(item);
}

// Of a launch: all messages fit into blocks; several blocks may share some; it has large copies.
enum messages { ALONE, SHARED, LARGE };

// What a block of the grid does.
template <messages OF> static __device__ void do_hop(const phi_hop_item &item, hop_follower &next)
{
    switch (item.kind) {
    case PHI_HOP_PUSH:
        return OF != ALONE && item.wide ? push_wide<false>(item, next) : push(item, next);
    case PHI_HOP_TAKE:
        return OF != ALONE && item.wide ? take_wide<false>(item, next) : take(item, next);
    case PHI_HOP_MOVE:
        if (OF != ALONE)
            move<OF == LARGE>(item, next);
        return;
    case PHI_HOP_ARRIVE:
        return arrive_all(item, next);
    default:
        if (threadIdx.x < 32)
            go(item);
    }
}

// The first item of this block; args.count: it has none.
static __device__ uint32_t first_item(const phi_hop_args &args)
{
    uint32_t i = 0;
    while (i < args.count && blockIdx.x - args.items[i].first >= args.items[i].blocks)
        i++;
    return i;
}

// What an item writes for others: lines, records, host memory.
static __device__ bool needs_fence(const phi_hop_args &args)
{
    const uint32_t i = first_item(args);
    return i < args.count && (args.items[i].fence & (PHI_FENCE | PHI_FENCE_LAST)) != 0;
}

static __device__ bool writes_for_others(const phi_hop_args &args)
{
    for (uint32_t i = 0; i < args.count; i++)
        if (args.items[i].fence & (PHI_FENCE | PHI_FENCE_LAST))
            return true;
    return false;
}

// Thread 0 of each block. Who sees the number may tell a peer by another way that nothing more
// comes: lines and full words are there before it. (A credit is not: it is given long before the
// take that gives it ends. Nor go words: see phi_hop_fill.)
//
// A launch that leaves its number leaves its fence, too: it would hold up the launch behind it,
// which is a take mostly, and waits for the answer to these lines.
template <bool STAGED>
static __device__ void finish(const phi_hop_args &args, hop_follower &next)
{
    phi_transfer_sync *sync = reinterpret_cast<phi_transfer_sync *>(args.sync);
    if (next.owed != PHI_OWED_NOTHING && !next.seen)
        next.look(); // behind go words a fence would wait for what the peer copies then
    // Also behind the number of the launch before this one, where a thread may have settled that.
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
    asm volatile("" : "+l"(held.source), "+l"(held.size), "+l"(held.broken), "+h"(held.kind));
    asm volatile("" : "+r"(held.blocks), "+r"(held.first));
    return held;
}

// WIDE: that of phi_hop_wide.
template <messages OF, bool WIDE>
static __device__ __forceinline__ void hop(const phi_hop_args &args)
{
    const uint32_t i = first_item(args);
    const phi_hop_item item = hold(args.items[i < args.count ? i : 0]);
    hop_follower next = follow(args);
    if constexpr (!WIDE) {
        if (i < args.count)
            do_hop<OF>(item, next);
    } else if (i < args.count && item.kind == PHI_HOP_PUSH) {
        push_wide<true>(item, next);
    } else if (i < args.count) {
        take_wide<true>(item, next);
    }
    if (args.done == 0)
        return;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    if (OF != ALONE && i < args.count && (item.fence & PHI_FENCE_LAST) != 0)
        next.look();
    finish<false>(args, next);
}

// Kernels of their own: for what fits into a block, whose threads have half the registers, for
// large copies, which took 0.3 us from those of 8 MiB, and for what is wide, which is short: the
// code of a kernel that has just begun is far away.
extern "C" __global__ void __launch_bounds__(PHI_HOP_THREADS)
    phi_hop(const __grid_constant__ phi_hop_args args)
{
    hop<ALONE, false>(args);
}

extern "C" __global__ void __launch_bounds__(PHI_SPREAD_THREADS)
    phi_hop_spread(const __grid_constant__ phi_hop_args args)
{
    hop<SHARED, false>(args);
}

extern "C" __global__ void __launch_bounds__(PHI_SPREAD_THREADS)
    phi_hop_large(const __grid_constant__ phi_hop_args args)
{
    hop<LARGE, false>(args);
}

extern "C" __global__ void __launch_bounds__(PHI_SPREAD_THREADS)
    phi_hop_wide(const __grid_constant__ phi_hop_args args)
{
    hop<SHARED, true>(args);
}

#endif
