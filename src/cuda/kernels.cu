// SPDX-License-Identifier: BSD-3-Clause
// The kernels of the library. Inline PTX instead of libcu++: same instructions, a third of the
// compile time.
#include <stddef.h>

#include "cuda/kernel_args.h"

static __device__ uint32_t load_acquire(uint64_t address)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

static __device__ uint32_t load_relaxed(const uint32_t *address)
{
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

static __device__ void store_relaxed(uint32_t *address, uint32_t value)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

static __device__ uint64_t load_relaxed_64(const uint64_t *address)
{
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

static __device__ void store_relaxed_64(uint64_t *address, uint64_t value)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

static __device__ void store_release(uint64_t address, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

static __device__ void store_release_64(uint64_t address, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

// The fence puts everything that this thread has written, read, and got from others by a barrier
// before its next writes. It does not order a store before a later load: nothing here needs that,
// and it costs more.
static __device__ void fence_system()
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

// note_undone stores before the number of the launch is told: the release of the number orders this
// store.
static __device__ void note_undone(uint64_t broken)
{
    if (broken != 0)
        store_relaxed(reinterpret_cast<uint32_t *>(broken + PHI_UNDONE_BEHIND), 1);
}

// The acquire pairs with the post of whose turn it is (kernel, memory operation or host store).
// Polling goes over PCIe to host memory, 1 us a read, so the pause only matters where many wait for
// long. Returns whether the peer has posted.
static __device__ bool wait_word(const phi_brace_item &item)
{
    unsigned pause = 20;
    uint32_t word;
    bool over = false; // what came before that was set is taken
    for (unsigned polls = 0; ((word = load_acquire(item.word)) & item.value) == 0 && !over;
         polls++) {
        over = item.broken != 0 && load_acquire(item.broken) != 0;
        if (polls > 1000 && !over) {
            __nanosleep(pause);
            pause = pause < 1000 ? pause * 2 : pause;
        }
    }
    if ((word & (item.value | PHI_BIT_ADDED(item.value))) == item.value)
        return true;
    note_undone(item.broken);
    return false;
}

// A post tells of the wait right before it.
static __device__ void do_items(const phi_brace_item *items, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++) {
        if (items[i].kind == PHI_BRACE_POST)
            store_release(items[i].word, items[i].value);
        else if (!wait_word(items[i]) && i + 1 < end && items[i + 1].kind == PHI_BRACE_POST)
            i++;
    }
}

static __device__ void store_number(uint64_t done, uint64_t number)
{
    if (done != 0)
        store_release_64(done, number); // pairs with the acquire load of drained()
}

extern "C" __global__ void phi_brace(const __grid_constant__ phi_brace_args args)
{
    if (threadIdx.x != 0 || blockIdx.x != 0)
        return;
    do_items(args.items, 0, args.count);
    store_number(args.done, args.number);
}

// This thread's place among the threads that share a copy, and their number.
struct phi_share {
    uint64_t first, stride;
};

// Copies n units of T, neighbours by neighbouring threads, four loads in flight each.
template <typename T>
static __device__ void copy_units(T *destination, const T *source, uint64_t n, phi_share share)
{
    const uint64_t stride = share.stride;
    for (uint64_t i = share.first; i < n; i += 4 * stride) {
        const bool more[] = {i + stride < n, i + 2 * stride < n, i + 3 * stride < n};
        T a = source[i], b, c, d;
        if (more[0])
            b = source[i + stride];
        if (more[1])
            c = source[i + 2 * stride];
        if (more[2])
            d = source[i + 3 * stride];
        destination[i] = a;
        if (more[0])
            destination[i + stride] = b;
        if (more[1])
            destination[i + 2 * stride] = c;
        if (more[2])
            destination[i + 3 * stride] = d;
    }
}

// Units of 16 bytes whose source lies `shift` bits into 4-byte words: five aligned words make one
// unit. The words that hold the unit's bytes are all that is read.
static __device__ void copy_shifted(uint4 *destination, uint64_t source, uint64_t n,
                                    phi_share share)
{
    const uint32_t shift = 8 * static_cast<uint32_t>(source & 3);
    const uint32_t *words = reinterpret_cast<const uint32_t *>(source & ~3ull);
    for (uint64_t i = share.first; i < n; i += share.stride) {
        const uint32_t *w = words + 4 * i;
        uint32_t w1 = w[1], w2 = w[2], w3 = w[3], w4 = shift ? w[4] : 0;
        destination[i] =
            make_uint4(__funnelshift_r(w[0], w1, shift), __funnelshift_r(w1, w2, shift),
                       __funnelshift_r(w2, w3, shift), __funnelshift_r(w3, w4, shift));
    }
}

// All threads of `blocks` blocks, of which this is number `block`.
static __device__ phi_share share_of(uint32_t block, uint32_t blocks)
{
    return {static_cast<uint64_t>(block) * blockDim.x + threadIdx.x,
            static_cast<uint64_t>(blocks) * blockDim.x};
}

// Units that a warp copies at once.
#define ROW 256

// The multiprocessors do not get equal parts of a link: in a copy by equal shares some need twice
// as long as others, and at last few fill the link. So warps draw rows: 16 blocks are as fast as
// 128. Each warp draws until nothing is left. All draw once for each row together, so that *drawn
// comes back to 0.
template <typename Copy>
static __device__ __forceinline__ void draw_rows(uint64_t n, phi_share share, uint32_t *drawn,
                                                 Copy copy)
{
    const uint32_t rows = static_cast<uint32_t>(n / ROW);
    const phi_share own = {share.first % 32, 32};
    for (uint32_t row = share.first / 32; row < rows;) {
        uint32_t next = 0;
        if (own.first == 0)
            next = atomicInc(drawn, rows - 1); // comes while the row is copied
        copy(static_cast<uint64_t>(row) * ROW, ROW, own);
        row = __shfl_sync(~0u, next, 0) + share.stride / 32;
    }
    copy(static_cast<uint64_t>(rows) * ROW, n % ROW, share);
}

// Each warp has a first row, and there are as many again. Of less the last rows take as long as
// equal shares do.
static __device__ bool is_large(uint64_t units, phi_share share)
{
    return units / ROW > 2 * (share.stride / 32);
}

// drawn: 0 before the launch and after it; NULL: equal shares.
static __device__ __forceinline__ void copy_part(const phi_copy_args &args, phi_share share,
                                                 uint32_t *drawn = nullptr)
{
    // Bytes up to the first aligned unit of the destination, units, bytes after the last.
    uint64_t head = (16 - (args.destination & 15)) & 15;
    if (head > args.size)
        head = args.size;
    uint64_t units = (args.size - head) / 16;
    // The last word of a shifted unit may reach beyond the source.
    if (units > 0 && ((args.source + head) & 3) != 0 &&
        ((args.source + head + 16 * units + 3) & ~3ull) > args.source + args.size)
        units--;
    const uint64_t tail = head + units * 16;
    char *destination = reinterpret_cast<char *>(args.destination);
    const char *source = reinterpret_cast<const char *>(args.source);
    const auto copy = [&](uint64_t first, uint64_t n, phi_share by) {
        uint4 *to = reinterpret_cast<uint4 *>(destination + head) + first;
        const uint64_t from = args.source + head + 16 * first;
        if ((from & 15) == 0)
            copy_units(to, reinterpret_cast<const uint4 *>(from), n, by);
        else
            copy_shifted(to, from, n, by);
    };

    copy_units(destination, source, head, share);
    if (drawn != nullptr && is_large(units, share))
        draw_rows(units, share, drawn, copy);
    else
        copy(0, units, share);
    copy_units(destination + tail, source + tail, args.size - tail, share);
}

#define EARLY 4

// copy_part where `may_copy` allows it, which each thread of the block is asked once. The first
// units of each thread are on their way meanwhile where `early` says that the source is filled
// already, and the copy is not large.
template <typename May>
static __device__ __forceinline__ bool copy_when(const phi_copy_args &args, uint32_t block,
                                                 uint32_t blocks, bool early, uint32_t *drawn,
                                                 May may_copy)
{
    const phi_share share = share_of(block, blocks);
    const uint64_t first = share.first, stride = share.stride;
    early = early && ((args.source | args.destination | args.size) & 15) == 0;
    if (drawn != nullptr && is_large(args.size / 16, share))
        early = false;
    const uint64_t n = early ? args.size / 16 : 0;
    const uint4 *source = reinterpret_cast<const uint4 *>(args.source);
    uint4 *destination = reinterpret_cast<uint4 *>(args.destination);
    uint4 unit[EARLY];
#pragma unroll
    for (int i = 0; i < EARLY; i++)
        if (first + i * stride < n)
            unit[i] = source[first + i * stride];
    if (!may_copy())
        return false;
#pragma unroll
    for (int i = 0; i < EARLY; i++)
        if (first + i * stride < n)
            destination[first + i * stride] = unit[i];
    if (early)
        copy_units(destination, source, n, {first + EARLY * stride, stride});
    else
        copy_part(args, share, drawn);
    return true;
}

enum { GATE_COPY = 1, GATE_SKIP = 2 };

static __device__ uint32_t load_acquire_gpu(const uint32_t *address)
{
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

static __device__ void store_release_gpu(uint32_t *address, uint32_t value)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// A wait before this kernel that ended by `broken` saw it set, and so does this later load. The
// stream provides every other order.
static __device__ bool is_broken(uint64_t broken)
{
    return broken != 0 && load_relaxed(reinterpret_cast<const uint32_t *>(broken)) != 0;
}

// is_skipped returns is_broken() of a copy, and notes the copy as undone where it is left out.
static __device__ bool is_skipped(uint64_t broken)
{
    const bool skipped = is_broken(broken);
    if (skipped)
        note_undone(broken);
    return skipped;
}

// A message of another size has come. The sizes come before `mismatch`, whose release pairs with
// the acquire of who looks for it.
static __device__ void note_mismatch(uint64_t broken, uint64_t expected, uint64_t got)
{
    store_relaxed_64(reinterpret_cast<uint64_t *>(broken + PHI_EXPECTED_BEHIND), expected);
    store_relaxed_64(reinterpret_cast<uint64_t *>(broken + PHI_GOT_BEHIND), got);
    note_undone(broken);
    store_release(broken + PHI_MISMATCH_BEHIND, 1);
    store_relaxed(reinterpret_cast<uint32_t *>(broken), 1);
}

// is_left_out returns whether a block leaves its copy out; by thread 0 of a block that is to copy.
static __device__ bool is_left_out(const phi_copy_args &args)
{
    if (args.head != PHI_HEAD_CHECK)
        return is_skipped(args.broken);
    const uint32_t word = load_acquire(args.word);
    if ((word & (args.bit | PHI_BIT_ADDED(args.bit))) != args.bit ||
        load_acquire(args.broken + PHI_MISMATCH_BEHIND) != 0) {
        note_undone(args.broken);
        return true;
    }
    const uint64_t got =
        load_relaxed_64(reinterpret_cast<const uint64_t *>(args.source - PHI_BOUNCE_HEAD));
    if (got == args.message)
        return false;
    if (got == PHI_LEFT_OUT)
        note_undone(args.broken);
    else
        note_mismatch(args.broken, args.message, got);
    return true;
}

// One thread of a copy writes the head before the destination, also where the copy is left out.
static __device__ void write_head(const phi_copy_args &args, bool copies)
{
    if (args.head == PHI_HEAD_WRITE)
        *reinterpret_cast<uint64_t *>(args.destination - PHI_BOUNCE_HEAD) =
            copies ? args.message : PHI_LEFT_OUT;
}

// By all threads. Each look at `broken` goes over PCIe, and looks at one word follow one another
// there, 1.1 us each: so block 0 looks, and hands on what it found. All arrive after it.
static __device__ uint32_t hand_on(uint64_t address, uint32_t found)
{
    __shared__ uint32_t gate;
    phi_transfer_sync *sync = reinterpret_cast<phi_transfer_sync *>(address);
    if (threadIdx.x == 0) {
        gate = found;
        if (blockIdx.x == 0 && gridDim.x > 1)
            store_release_gpu(&sync->gate, found); // pairs with the load below
        else if (blockIdx.x != 0)
            while ((gate = load_acquire_gpu(&sync->gate)) == 0)
                __nanosleep(20);
    }
    __syncthreads();
    return gate;
}

// All blocks of the grid copy, or none.
static __device__ uint32_t *drawn_of(const phi_copy_args &args)
{
    return args.sync != 0 ? &reinterpret_cast<phi_transfer_sync *>(args.sync)->drawn : nullptr;
}

// Thread 0 of each block of a grid, at its end. last: this block is the last of them. left: one of
// them saw the launch behind this one.
struct phi_meeting {
    bool last, left;
};

// The last block puts the words back: the next launch with them comes after this one's end.
static __device__ phi_meeting meet(phi_transfer_sync *sync, bool saw)
{
    if (gridDim.x == 1)
        return {true, saw};
    const uint32_t before = atomicAdd(&sync->arrived, saw ? PHI_SAW + 1 : 1);
    if (before % PHI_SAW != gridDim.x - 1)
        return {false, false};
    sync->arrived = 0;
    return {true, saw || before >= PHI_SAW};
}

// meet_behind_gate also puts the gate back, which all blocks have passed.
static __device__ phi_meeting meet_behind_gate(phi_transfer_sync *sync, bool saw)
{
    const phi_meeting met = meet(sync, saw);
    if (met.last && gridDim.x > 1)
        sync->gate = 0;
    return met;
}

// At the end of each block that has copied: gathers what its threads have stored for one fence of
// thread 0. It stands between a copy and whatever tells of it, by a kernel behind this one (a line,
// a full or a go word, which are bare stores), by a word, or by the number that the host reads. The
// end of a launch is no such fence: it orders what a launch wrote for this device alone, and the
// first store to a page of a peer may come after a later kernel's.
static __device__ void release_copies()
{
    __syncthreads();
    if (threadIdx.x == 0)
        fence_system();
}

extern "C" __global__ void __launch_bounds__(PHI_COPY_THREADS)
    phi_copy(const __grid_constant__ phi_copy_args args)
{
    copy_when(args, blockIdx.x, gridDim.x, true, drawn_of(args), [&] {
        uint32_t gate = GATE_COPY;
        if (args.sync == 0 || blockIdx.x == 0)
            gate = __syncthreads_or(threadIdx.x == 0 && is_left_out(args)) ? GATE_SKIP : GATE_COPY;
        if (args.sync != 0) {
            gate = hand_on(args.sync, gate);
            if (threadIdx.x == 0)
                meet_behind_gate(reinterpret_cast<phi_transfer_sync *>(args.sync), false);
        }
        if (blockIdx.x == 0 && threadIdx.x == 0)
            write_head(args, gate == GATE_COPY);
        return gate == GATE_COPY;
    });
    release_copies();
}

static __device__ uint32_t gate_of(const phi_copies_args &args)
{
    bool broken = false;
    for (uint32_t i = threadIdx.x; i < args.count && blockIdx.x == 0; i += blockDim.x)
        broken = broken || is_broken(args.items[i].broken);
    return hand_on(args.sync, __syncthreads_or(broken) ? GATE_SKIP : GATE_COPY);
}

// ---- Launches that overlap (phi_hop_args)

static __device__ void store_number_relaxed(uint64_t done, uint64_t number)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(done), "l"(number) : "memory");
}

// A launch and those before and behind it on its stream, as thread 0 of a block knows them. What is
// an argument stays one: it is read where it is needed, and takes no register.
template <class Args> struct follower {
    const Args &args;
    uint32_t owed; // what the launch before this one has left: enum phi_owed
    bool seen;     // the launch behind this one is on the device

    __device__ phi_transfer_sync *sync() const
    {
        return reinterpret_cast<phi_transfer_sync *>(args.sync);
    }

    // Some launches do not look, so that a stream whose launches never wait tells its numbers, too.
    __device__ void look()
    {
        if (threadIdx.x == 0 && args.done != 0 && args.number % PHI_OWED_MOST != 0)
            seen = load_relaxed(&sync()->next) == static_cast<uint32_t>(args.number) + 1;
    }

    // By a thread that has waited for long: others must learn of the end of the launch before this
    // one without waiting for a peer that lets this launch end. Any thread may do it, several may:
    // the last block fences before it stores a larger number.
    __device__ void settle() const
    {
        if (args.done == 0)
            return;
        const uint32_t left = load_relaxed(&sync()->owed); // changes at the end of a launch alone
        if (left == PHI_OWED_NOTHING)
            return;
        if (left == PHI_OWED_FENCE)
            fence_system(); // what that launch stored happened before it
        store_number_relaxed(args.done, args.number - 1);
    }
};

// Launches may overlap: this block lets the launch behind this one begin, as far as the block is
// concerned.
static __device__ void let_next_in()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// await_launch_before waits until the launch before this one is over.
static __device__ void await_launch_before()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A kernel that is launched early may begin while the kernel before it on the stream ends. It waits
// here for that end, unless it is behind a launch of the same operation: for that one it waits at
// its own end. In that case everything before that launch is over, and numbers that the launch left
// are read past the first cache. Before the wait the kernel shows itself to the launch before it,
// by one thread: the last one, which mostly has no line of a message.
template <class Args> static __device__ follower<Args> follow(const Args &args, bool behind = false)
{
    phi_transfer_sync *sync = reinterpret_cast<phi_transfer_sync *>(args.sync);
    if (args.done != 0 && threadIdx.x == blockDim.x - 1 && blockIdx.x == 0)
        store_relaxed(&sync->next, static_cast<uint32_t>(args.number));
    if (!behind)
        await_launch_before();
    uint32_t owed = PHI_OWED_NOTHING;
    if (args.done != 0 && threadIdx.x == 0)
        owed = load_relaxed(&sync->owed); // comes while it is not needed
    return {args, owed, false};
}

// The last block of a launch, where the launch behind it was seen: that one tells its number.
template <class Args> static __device__ void leave_number(const follower<Args> &next, bool fenced)
{
    next.sync()->owed = fenced ? PHI_OWED_NUMBER : PHI_OWED_FENCE;
}

// The last block of a launch calls this where the launch behind it was not seen. The other blocks
// have fenced their stores before they counted. A reader of the number may give these words to
// another stream: nothing is written to them afterwards.
template <class Args> static __device__ void tell_number(const follower<Args> &next, bool fenced)
{
    next.sync()->owed = PHI_OWED_NOTHING;
    if (!fenced || gridDim.x > 1)
        fence_system(); // pairs with those of the other blocks, and covers what is owed
    store_number_relaxed(next.args.done, next.args.number);
}

// The end of a launch of copies, behind release_copies().
template <class Args>
static __device__ __forceinline__ void end_copies(follower<Args> &next, const Args &args)
{
    if (args.sync == 0 || threadIdx.x != 0)
        return;
    next.look(); // a signal that ends the puts, mostly
    const phi_meeting met =
        meet_behind_gate(reinterpret_cast<phi_transfer_sync *>(args.sync), next.seen);
    if (!met.last || args.done == 0)
        return;
    if (met.left)
        leave_number(next, true);
    else
        tell_number(next, true);
}

extern "C" __global__ void __launch_bounds__(PHI_COPY_THREADS)
    phi_copies(const __grid_constant__ phi_copies_args args)
{
    uint32_t mine = 0, end = args.count; // the last item that begins at this block or before it
    while (end - mine > 1) {
        const uint32_t middle = (mine + end) / 2;
        if (args.items[middle].first <= blockIdx.x)
            mine = middle;
        else
            end = middle;
    }
    const phi_copies_item &item = args.items[mine];
    const uint32_t behind = mine + 1 < args.count ? args.items[mine + 1].first : gridDim.x;
    auto next = follow(args);
    let_next_in();
    copy_when({item.destination, item.source, item.size, 0, 0, 0, 0, 0, 0}, blockIdx.x - item.first,
              behind - item.first, true, nullptr, [&] {
                  // If one of the items is broken, each block looks at its own item.
                  const bool look =
                      item.broken != 0 && (args.sync == 0 || gate_of(args) == GATE_SKIP);
                  return !look || !__syncthreads_or(threadIdx.x == 0 && is_skipped(item.broken));
              });
    release_copies();
    end_copies(next, args);
}

// Only block 0 polls host memory. The others wait for it in device memory; blocks are started in
// order, so it runs when they do.
static __device__ uint32_t pass_gate(const phi_transfer_args &args, phi_transfer_sync *sync)
{
    uint32_t gate;
    if (blockIdx.x == 0) {
        do_items(args.items, 0, args.before);
        gate = is_left_out(args.copy) ? GATE_SKIP : GATE_COPY;
        write_head(args.copy, gate == GATE_COPY);
        if (gridDim.x > 1)
            store_release_gpu(&sync->gate, gate); // pairs with the load below: hands on what the
                                                  // waits acquired
        return gate;
    }
    while ((gate = load_acquire_gpu(&sync->gate)) == 0)
        __nanosleep(100);
    return gate;
}

extern "C" __global__ void __launch_bounds__(PHI_COPY_THREADS)
    phi_transfer(const __grid_constant__ phi_transfer_args args)
{
    __shared__ uint32_t gate;
    phi_transfer_sync *sync = reinterpret_cast<phi_transfer_sync *>(args.copy.sync);
    if (threadIdx.x == 0)
        gate = pass_gate(args, sync);
    __syncthreads(); // hands on what thread 0 acquired
    if (gate == GATE_COPY)
        copy_part(args.copy, share_of(blockIdx.x, gridDim.x), drawn_of(args.copy));
    __syncthreads(); // gathers the block's copies for the fence of thread 0
    if (threadIdx.x != 0)
        return;
    fence_system(); // the copies before the posts
    if (!meet_behind_gate(sync, false).last)
        return;
    if (gridDim.x > 1)
        fence_system(); // pairs with those of the other blocks
    // The post behind a copy that was left out is left out, too: it would tell of that copy.
    const bool skip = gate != GATE_COPY && args.before < args.count &&
                      args.items[args.before].kind == PHI_BRACE_POST;
    do_items(args.items, args.before + skip, args.count);
    store_number(args.done, args.number);
}

#include "cuda/pages.cuh"
#include "cuda/hop.cuh"
#include "cuda/staged.cuh"
