// SPDX-License-Identifier: BSD-3-Clause
#include "semaphore/hop.h"

// Of a block that copies: fewer meet sooner, more keep the link busier.
#define MOVE_THREADS 256
#define MOVE_MEDIUM  ((size_t)16 << 20)

// Of a large copy warps draw what they copy (cuda/kernels.cu): of less that takes longer than it
// saves. Then so few blocks fill the link where source and destination are aligned alike, and the
// rest of the device is left to the application (docs/performance.md, "Rows that warps draw").
#define MOVE_LARGE   ((size_t)24 << 20)
#define LARGE_BLOCKS 32

static uint16_t kind_of(unsigned step)
{
    static const uint8_t kinds[] = {
        [PHI_STEP_PUSH] = PHI_HOP_PUSH,       [PHI_STEP_TAKE] = PHI_HOP_TAKE,
        [PHI_STEP_GO] = PHI_HOP_GO,           [PHI_STEP_MOVE] = PHI_HOP_MOVE,
        [PHI_STEP_ARRIVE] = PHI_HOP_ARRIVE,   [PHI_STEP_STAGE] = PHI_HOP_STAGE,
        [PHI_STEP_UNSTAGE] = PHI_HOP_UNSTAGE, [PHI_STEP_HELP] = PHI_HOP_HELP,
        [PHI_STEP_BELL] = PHI_HOP_BELL,       [PHI_STEP_LAND] = PHI_HOP_LAND,
    };
    return kinds[step];
}

static bool copies(const struct phi_work *work)
{
    return work->kind == PHI_STEP_MOVE && work->size > 0;
}

static bool is_large(const struct phi_work *work)
{
    return work->kind == PHI_STEP_MOVE && work->size > MOVE_LARGE;
}

static bool by_lines(const struct phi_work *work)
{
    return work->kind == PHI_STEP_PUSH || work->kind == PHI_STEP_TAKE;
}

static bool is_wide(const struct phi_work *work)
{
    return by_lines(work) && work->wide;
}

// The end of a message by both, behind its copy.
static bool is_tail(const struct phi_work *work)
{
    return work->tail && work->kind == PHI_STEP_PUSH;
}

static bool takes_tail(const struct phi_work *work)
{
    return work->tail && work->kind == PHI_STEP_TAKE;
}

// Whether it has several blocks, and shares what the launch may have of them.
static bool spreads(const struct phi_work *work)
{
    return copies(work) || (is_wide(work) && !work->tail && work->size > PHI_WIDE_ALONE);
}

static uint32_t blocks_of(const struct phi_work *work, const struct phi_policy *policy,
                          const struct phi_waiting *others, uint32_t n)
{
    if (phi_step_bells(work->kind))
        return 1;
    if (phi_step_staged(work->kind))
        return PHI_STAGE_BLOCKS_OF(work->peer_lane);
    if (!spreads(work))
        return 1;
    if (!copies(work))
        return phi_line_blocks(policy, others, n, work->size);
    const uint32_t blocks = phi_move_blocks(policy, others, n, work->size);
    const uintptr_t apart = (uintptr_t)work->source ^ (uintptr_t)work->destination;
    return is_large(work) && apart % 16 == 0 && blocks > LARGE_BLOCKS ? LARGE_BLOCKS : blocks;
}

// The blocks that push the end of a message are beyond what the launch may have: few more, and not
// at work before those of the copy are done. A quarter of what the whole message would have. Of n
// copies that share the launch.
static uint32_t end_blocks(size_t whole, const struct phi_policy *policy,
                           const struct phi_waiting *others, uint32_t n)
{
    return (phi_move_blocks(policy, others, n, whole) + 3) / 4;
}

// Of a block that does its share of records: 16 bytes in each of four loads, of a chunk at most.
// Who waits for a signal does not know what was put before it. A lane has one block, or all.
static uint32_t stage_threads(const struct phi_work *work)
{
    const uint32_t chunk = PHI_STAGE_CHUNK(work->peer_lane);
    const bool unknown = work->kind != PHI_STEP_STAGE && work->size == 0;
    const size_t bytes = work->size < chunk && !unknown ? work->size : chunk;
    const size_t share =
        PHI_STAGE_BLOCKS_OF(work->peer_lane) > 1 ? bytes / PHI_STAGE_BLOCKS : bytes;
    const size_t threads = share / 64 / 32 * 32 + 32;
    return threads < PHI_STAGED_THREADS ? (uint32_t)threads : PHI_STAGED_THREADS;
}

// By lines one thread for each of a block's lines, whole warps; by wide ones a warp for each unit.
static uint32_t threads_of(const struct phi_work *work, uint32_t blocks)
{
    if (phi_step_bells(work->kind))
        return 32;
    if (phi_step_staged(work->kind))
        return stage_threads(work);
    if (work->kind == PHI_STEP_MOVE)
        return work->size > MOVE_MEDIUM ? PHI_COPY_THREADS : MOVE_THREADS;
    if (is_wide(work))
        return 32 * (blocks > 1 ? PHI_WIDE_WARPS : PHI_WIDE_UNITS((uint32_t)work->size));
    // More than enough with an offset before them, and a warp that keeps the books.
    const size_t threads = by_lines(work) ? work->size / 8 + 34 : PHI_MOVE_BLOCKS;
    return threads < PHI_HOP_THREADS ? ((uint32_t)threads + 31) / 32 * 32 : PHI_HOP_THREADS;
}

// The item before i of the same staged lane, which has its blocks; NULL: there is none.
static const struct phi_hop_item *of_lane(const struct phi_work *work,
                                          const struct phi_hop_item *items, size_t i)
{
    for (size_t j = i; phi_step_staged(work[i].kind) && j-- > 0;)
        if (phi_step_staged(work[j].kind) && items[j].own == work[i].own_lane)
            return &items[j];
    return NULL;
}

// Blocks that stage, where others wait for the end of that.
static uint32_t count_stages(const struct phi_work *work, const struct phi_hop_item *items,
                             size_t n)
{
    uint32_t stages = 0;
    bool helps = false;
    for (size_t i = 0; i < n; i++) {
        helps = helps || work[i].kind == PHI_STEP_HELP;
        if (work[i].kind == PHI_STEP_STAGE && of_lane(work, items, i) == NULL)
            stages += items[i].blocks;
    }
    return helps ? stages : 0;
}

// Whether it writes what its number promises to others: lines, full words, records, host memory.
// Not go words: they allow a copy to this end, and whoever ends before that has come has no use for
// it. A fence behind them would hold up the wait for that copy: its answer comes over the link that
// the copy fills.
static bool needs_fence(const struct phi_work *work)
{
    switch (work->kind) {
    case PHI_STEP_GO:
        return false;
    case PHI_STEP_TAKE:
    case PHI_STEP_ARRIVE:
        return work->host_destination;
    default:
        return true;
    }
}

// By several blocks a message takes a little longer to leave this device than to be answered: the
// fences of a push would hold up the take behind it. Of a larger one the look would come too soon.
#define LOOK_MOST ((size_t)256 << 10)

static uint8_t fence_of(const struct phi_work *work, size_t n, uint32_t blocks)
{
    const uint8_t before = work->fence_before ? PHI_FENCE_BEFORE : 0;
    if (!needs_fence(work))
        return before;
    const bool alone = n == 1 && by_lines(work) && blocks > 1 && work->size <= LOOK_MOST;
    return before | (alone || is_tail(work) ? PHI_FENCE_LAST : PHI_FENCE);
}

// Whether all are wide, in buffers that 16 bytes can be read from, or written to, at once.
static bool wide_only(const struct phi_hop_item *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint64_t buffer =
            items[i].kind == PHI_HOP_PUSH ? items[i].source : items[i].destination;
        if (!items[i].wide || items[i].kind == PHI_HOP_MOVE || buffer % 16 != 0)
            return false;
    }
    return n > 0;
}

static enum phi_kernel kernel_of(const struct phi_work *work, const struct phi_hop_item *items,
                                 size_t n)
{
    if (phi_step_staged(work[0].kind))
        return PHI_KERNEL_HOP_STAGED;
    if (wide_only(items, n))
        return PHI_KERNEL_HOP_WIDE;
    enum phi_kernel kernel = PHI_KERNEL_HOP;
    for (size_t i = 0; i < n; i++) {
        if (is_large(&work[i]))
            return PHI_KERNEL_HOP_LARGE;
        if (work[i].kind == PHI_STEP_MOVE || items[i].wide)
            kernel = PHI_KERNEL_HOP_SPREAD;
    }
    return kernel;
}

struct phi_grid phi_hop_fill(const struct phi_work *work, size_t n, const struct phi_policy *policy,
                             const struct phi_waiting *others, struct phi_hop_args *args)
{
    struct phi_grid grid = {PHI_KERNEL_HOP, 0, 0};
    uint32_t spread = 0, ends = 0;
    for (size_t i = 0; i < n; i++) {
        spread += spreads(&work[i]);
        ends += takes_tail(&work[i]);
    }
    args->count = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        const struct phi_hop_item *before = of_lane(work, args->items, i);
        uint32_t blocks;
        if (is_tail(&work[i]))
            blocks = end_blocks(work[i - 1].size + work[i].size, policy, others, spread);
        else if (takes_tail(&work[i])) // shares with all, but takes nothing from a copy
            blocks = phi_line_blocks(policy, others, spread + ends, work[i].size);
        else
            blocks = blocks_of(&work[i], policy, others, spread);
        const uint32_t threads = threads_of(&work[i], blocks);
        args->items[i] = (struct phi_hop_item){
            .own = work[i].own_lane,
            .peer = work[i].peer_lane,
            .slots = work[i].slots,
            .destination = work[i].kind == PHI_STEP_BELL ? work[i].word_device
                                                         : (uint64_t)(uintptr_t)work[i].destination,
            .source = (uint64_t)(uintptr_t)work[i].source,
            .size = work[i].size,
            .broken = work[i].broken_device,
            .offset = work[i].offset,
            .kind = kind_of(work[i].kind),
            .fence = fence_of(&work[i], n, blocks),
            .wide = is_wide(&work[i]) || work[i].tail,
            .signal = is_tail(&work[i]) ? args->items[i - 1].blocks : work[i].signal,
            .blocks = blocks,
            .first = before ? before->first : grid.blocks,
        };
        if (before == NULL)
            grid.blocks += blocks;
        if (grid.threads < threads)
            grid.threads = threads;
    }
    grid.kernel = kernel_of(work, args->items, n);
    // A block with fewer threads than lines, or warps than units, takes several turns.
    if (grid.kernel != PHI_KERNEL_HOP && grid.threads > PHI_SPREAD_THREADS)
        grid.threads = PHI_SPREAD_THREADS;
    args->stages = count_stages(work, args->items, n);
    return grid;
}
