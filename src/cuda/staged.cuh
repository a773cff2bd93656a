// SPDX-License-Identifier: BSD-3-Clause
// phi_hop_staged: messages through slots in host memory, and bells (kernel_args.h, base/stage.h).
// Part of kernels.cu.
#ifndef PHI_CUDA_STAGED_CUH
#define PHI_CUDA_STAGED_CUH

// A HELP waits no longer than the STAGEs of its launch.
struct stages {
    const uint32_t *over; // NULL: nobody asks. Blocks whose STAGEs are over
    uint32_t all;
};

static __device__ bool is_within(uint32_t reach, uint32_t record)
{
    return static_cast<int32_t>(reach - record) >= 0;
}

// The position from which a block goes on. It is aligned because it is read as 16 bytes, which then
// belong to no other variable.
struct alignas(16) stage_state {
    uint32_t record, over, reach;
};

// Thread 0 reads it, in one trip over PCIe, where looks at one word follow one another; the barrier
// hands on what it acquired.
static __device__ stage_state resume(const phi_hop_item &item)
{
    __shared__ stage_state state;
    if (threadIdx.x == 0) {
        const phi_stage_lane *lane = reinterpret_cast<const phi_stage_lane *>(item.own);
        const uint32_t block = blockIdx.x - item.first;
        const uint32_t record = load_relaxed(lane->done + block);
        const uint32_t over = load_relaxed(lane->over + block);
        const uint32_t reach = load_acquire(item.own + offsetof(phi_stage_lane, reach));
        state = {record, over, reach};
    }
    __syncthreads();
    return state;
}

// Waits until the lane's reach has come to a record. The acquire pairs with the net's release: what
// was in the slot is not needed any more.
static __device__ bool await_slot(const phi_hop_item &item, uint32_t record)
{
    const uint64_t reach = item.own + offsetof(phi_stage_lane, reach);
    for (uint32_t polls = 0;; polls++) {
        const bool over = given_up(item.broken, polls);
        if (is_within(load_acquire(reach), record))
            return true;
        if (over)
            return give_up(item.broken);
    }
}

// By all threads of a block: thread 0 waits, the barrier hands on what it acquired.
static __device__ bool may_go_on(const phi_hop_item &item, uint32_t record)
{
    const bool here = threadIdx.x != 0 || await_slot(item, record);
    return __syncthreads_and(here);
}

// The barrier gathers the block's copies for the fence of thread 0, which also keeps what was read
// of the slot before the word.
static __device__ void show_record(uint32_t *done, uint32_t record)
{
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    fence_system();
    store_relaxed(done, record);
}

static __device__ uint64_t stage_slot(const phi_hop_item &item, uint32_t record)
{
    return item.slots + ((record - 1) & (PHI_STAGE_SLOTS - 1)) * PHI_STAGE_SLOT_SIZE(item.peer);
}

// A line is four times 16 bytes, each two stores of 8, by the first threads of a block.
#define LINE_THREADS (PHI_STAGE_LINE_WORDS / 2)

static __device__ uint4 *line_of(const phi_hop_item &item, uint32_t record)
{
    phi_stage_lane *lane = reinterpret_cast<phi_stage_lane *>(item.own);
    return reinterpret_cast<uint4 *>(lane->lines[(record - 1) & (PHI_STAGE_SLOTS - 1)].words) +
           threadIdx.x;
}

// This thread's 8 bytes of a short record: of its head, or of its data.
static __device__ uint64_t short_part(const phi_hop_item &item)
{
    const uint64_t at = 8 * (threadIdx.x - 2ull);
    switch (threadIdx.x) {
    case 0:
        return item.offset;
    case 1:
        return static_cast<uint64_t>(item.signal) << 32 | item.size;
    default:
        return threadIdx.x < LINE_THREADS && at < item.size
                   ? gather(reinterpret_cast<const uint8_t *>(item.source) + at, item.size - at)
                   : 0;
    }
}

// By the first of the blocks. The net takes the record from here, and does not wait for the fence
// before `done`.
static __device__ void stage_line(const phi_hop_item &item, uint32_t record, uint64_t part)
{
    if (threadIdx.x < LINE_THREADS)
        store_line(line_of(item, record), part, record);
}

// may_fill returns whether a slot may be filled. Where a wait for a slot is given up, no message
// behind this one is filled, either.
static __device__ bool may_fill(const phi_hop_item &item, uint32_t record, uint32_t block)
{
    const bool may = may_go_on(item, record);
    if (!may && threadIdx.x == 0)
        store_relaxed(reinterpret_cast<phi_stage_lane *>(item.own)->over + block, 1);
    return may;
}

static __device__ void stage(const phi_hop_item &item)
{
    const uint32_t block = blockIdx.x - item.first, chunk = PHI_STAGE_CHUNK(item.peer);
    const bool is_short = item.size <= PHI_STAGE_SHORT;
    uint32_t *done = reinterpret_cast<phi_stage_lane *>(item.own)->done + block;
    uint64_t from = 0;
    if (item.size == 0 && !item.signal)
        return;
    const uint64_t part =
        is_short && block == 0 ? short_part(item) : 0; // while the lane is looked at
    const stage_state state = resume(item);
    uint32_t record = state.record;
    if (state.over != 0)
        return;
    do {
        const uint64_t left = item.size - from, bytes = left < chunk ? left : chunk;
        if (!is_within(state.reach, ++record) && !may_fill(item, record, block))
            return;
        const uint64_t slot = stage_slot(item, record);
        if (is_short && block == 0)
            stage_line(item, record, part);
        else if (!is_short)
            copy_part({slot + PHI_STAGE_HEAD, item.source + from, bytes, 0},
                      share_of(block, item.blocks));
        if (!is_short && block == 0 && threadIdx.x == 0)
            *reinterpret_cast<phi_stage_record *>(slot) = {
                item.offset + from, static_cast<uint32_t>(bytes), item.signal && bytes == left};
        show_record(done, record);
        from += bytes;
    } while (from < item.size);
}

// fits returns whether the sizes that a record names fit. The peer's record is not believed:
// nothing is read outside the slot, nothing is written outside the buffer.
static __device__ bool fits(const phi_hop_item &item, uint64_t offset, uint64_t bytes)
{
    return bytes <= PHI_STAGE_CHUNK(item.peer) && bytes <= item.offset &&
           offset <= item.offset - bytes;
}

// Thread 0 calls this for the last record of a message, which ends at `end`: so many bytes were
// sent. The first of the blocks notes it where the message is not of the size that was named; of
// several messages of another size the first one counts. The fence puts the note before the end of
// the launch.
static __device__ void check_size(const phi_hop_item &item, uint64_t end)
{
    const uint64_t broken = item.broken - PHI_FLAGS_OVER_BEHIND;
    if (item.signal == 0 || end == item.offset || blockIdx.x != item.first ||
        load_acquire(broken + PHI_MISMATCH_BEHIND) != 0)
        return;
    note_mismatch(broken, item.offset, end);
    fence_system();
}

// The head of a record as thread 0 read it, once: the peer may write it again at any time.
static __device__ phi_stage_record read_head(const phi_hop_item &item, uint64_t slot)
{
    const uint4 line = load_line(reinterpret_cast<const uint4 *>(slot));
    const uint64_t offset = static_cast<uint64_t>(line.y) << 32 | line.x;
    if (line.w != 0)
        check_size(item, offset + line.z);
    return {offset, fits(item, offset, line.z) ? line.z : 0, line.w != 0};
}

// The place where a record was found.
enum { NOWHERE, IN_SLOT, IN_LINE_LAST, IN_LINE };

// Each 8 bytes that a line carries have come to one of the first threads of the warp. The first of
// the blocks puts the data into the buffer.
static __device__ uint32_t take_short(const phi_hop_item &item, uint64_t part)
{
    const uint64_t offset = __shfl_sync(~0u, part, 0), at = 8 * (threadIdx.x - 2ull);
    const uint64_t sizes = __shfl_sync(~0u, part, 1);
    const uint32_t size = static_cast<uint32_t>(sizes);
    const bool data = threadIdx.x == 2 || threadIdx.x == 3;
    if (blockIdx.x == item.first && data && at < size && size <= PHI_STAGE_SHORT &&
        fits(item, offset, size))
        scatter(reinterpret_cast<uint8_t *>(item.destination + offset + at), part, size - at);
    if (threadIdx.x == 0 && sizes >> 32)
        check_size(item, offset + size);
    return sizes >> 32 ? IN_LINE_LAST : IN_LINE;
}

// By the first warp of a block: waits for a record, in its line or in its slot, both of which are
// looked at in one trip. The acquire pairs with the net's release of `reach`: what came with the
// record is here. A line was stored by 8 bytes with the record's number in each.
static __device__ uint32_t await_record(const phi_hop_item &item, uint32_t record, uint32_t *done,
                                        const stages &others, hop_follower &next)
{
    enum { HERE = 1, LEAVE, OVER };
    const uint64_t reach = item.own + offsetof(phi_stage_lane, reach);
    const uint4 *at = line_of(item, record);
    for (uint32_t polls = 0;; polls++) {
        uint32_t seen = 0;
        uint4 line = {0, record, 0, record}; // of threads that have none
        if (threadIdx.x == 0 && given_up(item.broken, polls))
            seen = OVER; // first: what came before it was set is taken
        if (threadIdx.x < LINE_THREADS)
            line = load_line(at);
        next.look();
        if (threadIdx.x == 0 && is_within(load_acquire(reach), record))
            seen = HERE;
        else if (threadIdx.x == 0 && others.over != nullptr &&
                 (seen == OVER || load_relaxed(others.over) >= others.all))
            seen = LEAVE;
        if (__all_sync(~0u, line.y == record && line.w == record)) {
            if (threadIdx.x == 0) // the slot and its line: nothing in them is needed any more
                store_relaxed(done, record);
            return take_short(item, static_cast<uint64_t>(line.z) << 32 | line.x);
        }
        seen = __shfl_sync(~0u, seen, 0);
        if (seen == HERE)
            return IN_SLOT;
        if (seen == OVER && threadIdx.x == 0)
            give_up(item.broken);
        if (seen != 0)
            return NOWHERE; // of a HELP: what is missing its UNSTAGE will miss
    }
}

// The 16 bytes of a record that this thread holds already.
struct stage_piece {
    uint64_t at; // in the record
    uint4 bytes;
};

// Which bytes of a record are a block's does not depend on how many threads it has: a block of a
// HELP ends by itself, and what it leaves its fellow in a later launch does, with other threads.
// The first bytes are dealt out by rows of 512, of which a warp takes one at a time: they come with
// the head. The rest is in as many parts as there are blocks.
#define STAGE_ROW  512u
#define STAGE_ROWS (16ull * PHI_STAGED_THREADS) // bytes, for each block

static __device__ stage_piece first_piece(const phi_hop_item &item, uint32_t block)
{
    const uint32_t row = block + item.blocks * (threadIdx.x / 32);
    return {static_cast<uint64_t>(row) * STAGE_ROW + 16 * (threadIdx.x % 32), {}};
}

static __device__ void store_piece(uint64_t to, uint4 bytes, uint64_t left)
{
    uint8_t *at = reinterpret_cast<uint8_t *>(to);
    if (left >= 16 && (to & 15) == 0) {
        *reinterpret_cast<uint4 *>(at) = bytes;
        return;
    }
    scatter(at, static_cast<uint64_t>(bytes.y) << 32 | bytes.x, left);
    if (left > 8)
        scatter(at + 8, static_cast<uint64_t>(bytes.w) << 32 | bytes.z, left - 8);
}

// The block's part of [from, size), by its threads alone.
static __device__ void unpack_part(uint64_t destination, uint64_t source, uint64_t from,
                                   uint64_t size, uint32_t block, uint32_t blocks)
{
    const uint64_t part = ((size - from + blocks - 1) / blocks + 15) & ~15ull;
    const uint64_t at = from + block * part;
    if (at < size)
        copy_part({destination + at, source + at, size - at < part ? size - at : part, 0},
                  {threadIdx.x, blockDim.x});
}

// A record's data into the buffer, from what the threads hold and from its slot.
static __device__ void unpack(const phi_hop_item &item, uint32_t block, uint64_t destination,
                              uint64_t source, uint64_t size, const stage_piece &piece)
{
    const uint64_t rows = STAGE_ROWS * item.blocks, end = size < rows ? size : rows;
    const uint64_t stride = static_cast<uint64_t>(STAGE_ROW) * item.blocks * (blockDim.x / 32);
    if (size > rows && (destination & 15) != 0)
        return unpack_part(destination, source, 0, size, block, item.blocks);
    for (uint64_t at = piece.at; at < end; at += stride)
        store_piece(destination + at,
                    at == piece.at ? piece.bytes
                                   : load_line(reinterpret_cast<const uint4 *>(source + at)),
                    end - at);
    if (size > rows)
        unpack_part(destination, source, rows, size, block, item.blocks);
}

// Waits for a record and empties it; false where the wait was given up. All threads of the block go
// by one head, which the barriers hand on and keep. It and the first data come in one trip over
// PCIe, where they did not come in a line.
static __device__ bool empty_record(const phi_hop_item &item, uint32_t block, uint32_t record,
                                    uint32_t reach, const stages &others, hop_follower &next,
                                    bool *last)
{
    __shared__ uint32_t found;
    __shared__ phi_stage_record head;
    const uint64_t slot = stage_slot(item, record), data = slot + PHI_STAGE_HEAD;
    uint32_t *done = reinterpret_cast<phi_stage_lane *>(item.own)->done + block;
    if (threadIdx.x < 32) {
        const uint32_t where =
            is_within(reach, record) ? IN_SLOT : await_record(item, record, done, others, next);
        if (threadIdx.x == 0)
            found = where;
    }
    __syncthreads(); // hands on what thread 0 acquired
    const uint32_t where = found;
    *last = where == IN_LINE_LAST;
    if (where != IN_SLOT) {
        __syncthreads(); // before `found` is written again
        return where != NOWHERE;
    }
    stage_piece piece = first_piece(item, block);
    if (piece.at < PHI_STAGE_CHUNK(item.peer)) // of any record: how much there is the head says
        piece.bytes = load_line(reinterpret_cast<const uint4 *>(data + piece.at));
    if (threadIdx.x == 0)
        head = read_head(item, slot);
    __syncthreads();
    *last = head.last != 0;
    unpack(item, block, item.destination + head.offset, data, head.size, piece);
    show_record(done, record);
    return true;
}

// UNSTAGE and HELP. A HELP that comes to the end of the message leaves that to the UNSTAGE in
// `over`.
static __device__ void unstage(const phi_hop_item &item, const stages &others, hop_follower &next)
{
    const uint32_t block = blockIdx.x - item.first;
    phi_stage_lane *lane = reinterpret_cast<phi_stage_lane *>(item.own);
    const stage_state state = resume(item);
    const bool helps = item.kind == PHI_STEP_HELP, over = state.over != 0;
    uint32_t record = state.record;
    bool last = over;
    while (!last && empty_record(item, block, ++record, state.reach, others, next, &last)) {
    }
    if (over == helps || !last)
        return;
    if (threadIdx.x == 0)
        store_relaxed(lane->over + block, helps);
}

// ---- bells, by thread 0 of a block

// may_ring returns whether the bell may be rung: its word shows the bit, and the channel is whole.
static __device__ bool may_ring(const phi_hop_item &item)
{
    const uint32_t bit = PHI_BELL_BIT(item.peer), value = PHI_BELL_VALUE(item.peer);
    uint32_t word = bit;
    for (uint32_t polls = 0; bit != 0; polls++) {
        const bool over = given_up(item.broken, polls);
        // Pairs with the post of whose turn it is.
        word = load_acquire(item.destination);
        if ((word & bit) != 0 || over)
            break;
    }
    const bool came = (word & (bit | PHI_BIT_ADDED(bit))) == bit, may = !is_broken(item.broken);
    if (!came || (!may && (item.peer & PHI_BELL_TELLS) != 0))
        note_undone(item.broken);
    else if (!may && value != 0) // the next wait is not to find what came for this one
        store_relaxed(reinterpret_cast<uint32_t *>(item.destination), value);
    return came && may;
}

// Returns `reach`. The net ends this wait in any case, also when its link has ended.
static __device__ uint32_t await_reach(uint64_t own, uint32_t record)
{
    uint32_t reach;
    do
        reach = load_acquire(own + offsetof(phi_stage_lane, reach));
    while (!PHI_BELL_REACHED(reach, record));
    return reach;
}

static __device__ void bell(const phi_hop_item &item)
{
    phi_stage_lane *lane = reinterpret_cast<phi_stage_lane *>(item.own);
    const uint32_t value = PHI_BELL_VALUE(item.peer), record = load_relaxed(lane->done) + 1;
    if (!may_ring(item) || item.signal == 0)
        return;
    const uint32_t reach = await_reach(item.own, record);
    if (PHI_BELL_VOID(reach, record)) { // the link has ended, and nobody would look
        note_undone(item.broken);
        give_up(item.broken);
        return;
    }
    *reinterpret_cast<phi_stage_bell *>(item.slots +
                                        ((record - 1) & (PHI_STAGE_SLOTS - 1)) * PHI_STAGE_HEAD) = {
        item.source, item.offset, item.size, static_cast<uint32_t>(item.peer), item.signal};
    // The own copy of the word before the bell: the peer's answer, which the net writes there,
    // comes after that.
    if (value != 0)
        store_relaxed(reinterpret_cast<uint32_t *>(item.destination), value);
    fence_system(); // and what the stream has written into the source. Pairs with the net's acquire
    store_relaxed(lane->done, record);
}

static __device__ void land(const phi_hop_item &item)
{
    const uint32_t rung = load_relaxed(reinterpret_cast<const phi_stage_lane *>(item.own)->done);
    const uint32_t reach = await_reach(item.own, PHI_BELLS_REACH(rung));
    if (!PHI_BELLS_LOST(reach, rung))
        return;
    note_undone(item.broken); // rung while the link ended
    give_up(item.broken);
}

static __device__ void ring_or_land(const phi_hop_item &item)
{
    if (threadIdx.x != 0)
        return;
    if (item.kind == PHI_STEP_BELL)
        bell(item);
    else
        land(item);
}

// Arguments are slow to come the first time: while the kernel waits for the one before it.
static __device__ void fetch(const phi_hop_item &item)
{
    asm volatile("" ::"l"(item.own), "l"(item.size), "r"(static_cast<uint32_t>(item.kind)));
}

// The items of this block from number i on, in order: all are of one lane, whose words the next one
// reads. Returns whether they were STAGEs, for whose end a HELP waits.
static __device__ bool do_staged(const phi_hop_args &args, uint32_t i, hop_follower &next)
{
    const phi_transfer_sync *sync = reinterpret_cast<const phi_transfer_sync *>(args.sync);
    const uint32_t first = args.items[i].first, kind = args.items[i].kind;
    for (; i < args.count; i++) {
        const phi_hop_item &item = args.items[i];
        if (item.first != first)
            continue;
        if (item.kind == PHI_STEP_STAGE)
            stage(item);
        else if (item.kind >= PHI_STEP_BELL)
            ring_or_land(item);
        else
            unstage(item, {item.kind == PHI_STEP_HELP ? &sync->gate : nullptr, args.stages}, next);
        __syncthreads();
    }
    if (!next.seen)
        next.look(); // it had time to come
    return kind == PHI_STEP_STAGE;
}

extern "C" __global__ void __launch_bounds__(PHI_STAGED_THREADS, 2)
    phi_hop_staged(const __grid_constant__ phi_hop_args args)
{
    const uint32_t i = first_item(args);
    bool staged = false;
    fetch(args.items[i < args.count ? i : 0]);
    hop_follower next = follow(args);
    if (blockIdx.x == 0 && threadIdx.x == 0)
        next.settle(); // what is staged takes much longer
    if (i < args.count)
        staged = do_staged(args, i, next);
    if (args.done == 0 && args.stages == 0)
        return;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    if (staged && args.stages != 0)
        atomicAdd(&reinterpret_cast<phi_transfer_sync *>(args.sync)->gate, 1);
    if (args.stages != 0)
        __threadfence(); // before this block counts: the last one puts the gate back
    finish<true>(args, next);
}

#endif
