// SPDX-License-Identifier: BSD-3-Clause
#include "semaphore/hop.h"

// The threads of a block that copies: fewer threads meet sooner, more keep the link busier.
#define MOVE_THREADS 256
#define MOVE_MEDIUM  ((size_t)16 << 20)

// The warps of a large copy draw the rows that they copy (cuda/kernels.cu). In a smaller copy
// drawing takes longer than it saves. So few blocks fill the link where warps draw and source and
// destination are aligned alike, and the rest of the device is left to the application
// (docs/measurements/2026-11-25.md, "Rows that warps draw").
#define MOVE_LARGE   ((size_t)24 << 20)
#define LARGE_BLOCKS 32

static bool is_move(const struct phi_work *work)
{
    return work->kind == PHI_STEP_MOVE;
}

static bool is_large(const struct phi_work *work)
{
    return is_move(work) && work->span.size > MOVE_LARGE;
}

static bool by_lines(const struct phi_work *work)
{
    return work->kind == PHI_STEP_PUSH || work->kind == PHI_STEP_TAKE;
}

static bool is_wide(const struct phi_work *work)
{
    return by_lines(work) && work->lane.wide;
}

static bool takes(const struct phi_work *work)
{
    return work->kind == PHI_STEP_TAKE;
}

// On a stream a second launch takes the host longer than one block takes so many bytes, if it has
// nothing else.
#define TAKE_ALONE ((size_t)128 << 10)

// has_hands returns whether hands do the item: the first block does not do it alone.
static bool has_hands(const struct phi_work *work, bool hurries)
{
    const size_t alone = takes(work) && hurries ? TAKE_ALONE : PHI_WIDE_ALONE;
    return (is_move(work) || is_wide(work)) && work->span.size > alone;
}

// is_active returns whether the item waits only for steps that the peer did before it came to the
// same message: the peer says that there is room, or that this end may copy. Other items wait for
// the peer's part of the message.
static bool is_active(const struct phi_work *work)
{
    return work->kind == PHI_STEP_PUSH || work->kind == PHI_STEP_GO || is_move(work);
}

static uint32_t hands_of(const struct phi_work *work, const struct phi_policy *policy, uint32_t n)
{
    const uint32_t blocks = phi_hand_blocks(policy, n, work->span.size);
    const uintptr_t apart = (uintptr_t)work->span.source ^ (uintptr_t)work->span.destination;
    return is_large(work) && apart % 16 == 0 && blocks > LARGE_BLOCKS ? LARGE_BLOCKS : blocks;
}

// stage_threads returns the threads of a block that does its share of records: 16 bytes in each of
// four loads, of a chunk at most. A wait for a signal does not know the size of the puts before it.
// A lane has one block, or all.
static uint32_t stage_threads(const struct phi_work *work)
{
    const uint32_t chunk = PHI_STAGE_CHUNK(work->lane.peer);
    const bool unknown = work->kind != PHI_STEP_STAGE && work->span.size == 0;
    const size_t bytes = work->span.size < chunk && !unknown ? work->span.size : chunk;
    const size_t share =
        PHI_STAGE_BLOCKS_OF(work->lane.peer) > 1 ? bytes / PHI_STAGE_BLOCKS : bytes;
    const size_t threads = share / 64 / 32 * 32 + 32;
    return threads < PHI_STAGED_THREADS ? (uint32_t)threads : PHI_STAGED_THREADS;
}

// The item before i of the same staged lane, which has its blocks; NULL: there is none.
static const struct phi_hop_item *of_lane(const struct phi_work *work,
                                          const struct phi_hop_item *items, size_t i)
{
    for (size_t j = i; phi_step_staged(work[i].kind) && j-- > 0;)
        if (phi_step_staged(work[j].kind) && items[j].own == work[i].lane.own)
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

// needs_fence returns whether the item writes data that its number promises to others: lines, full
// words, records, host memory. Go words need no fence: they allow a copy to this end, and an end
// that ends before that copy has come has no use for it. A fence behind them would hold up the wait
// for that copy: the fence's answer comes over the link that the copy fills.
static bool needs_fence(const struct phi_work *work)
{
    switch (work->kind) {
    case PHI_STEP_GO:
        return false;
    case PHI_STEP_TAKE:
    case PHI_STEP_ARRIVE:
        return work->span.host_destination;
    default:
        return true;
    }
}

static uint8_t fence_of(const struct phi_work *work)
{
    return (work->lane.fence_before ? PHI_FENCE_BEFORE : 0) | (needs_fence(work) ? PHI_FENCE : 0);
}

static struct phi_hop_item item_of(const struct phi_work *work, uint32_t kind)
{
    return (struct phi_hop_item){
        .own = work->lane.own,
        .peer = work->lane.peer,
        .slots = work->lane.slots,
        .destination = work->kind == PHI_STEP_BELL ? work->word.device
                                                   : (uint64_t)(uintptr_t)work->span.destination,
        .source = (uint64_t)(uintptr_t)work->span.source,
        .size = work->span.size,
        .broken = work->over.broken_device,
        .offset = work->lane.offset,
        .kind = (uint8_t)kind,
        .fence = fence_of(work),
        .wide = (uint8_t)(is_wide(work) + work->lane.ring), // in the order of enum phi_ring
        .signal = work->lane.signal,
    };
}

// A message by a ring has one address; the other field holds the size of the whole message.
static struct phi_hop_item ring_item_of(const struct phi_work *work, uint32_t kind)
{
    struct phi_hop_item item = item_of(work, kind);
    *(takes(work) ? &item.source : &item.destination) = work->span.message;
    return item;
}

// ---- Staged, and bells

static struct phi_grid fill_staged(const struct phi_work *work, size_t n, struct phi_hop_args *args)
{
    struct phi_grid grid = {PHI_KERNEL_HOP_STAGED, 0, 0};
    for (size_t i = 0; i < n; i++) {
        const struct phi_hop_item *before = of_lane(work, args->items, i);
        const bool bells = phi_step_bells(work[i].kind);
        const uint32_t threads = bells ? 32 : stage_threads(&work[i]);
        struct phi_hop_item *item = &args->items[args->count++];
        *item = item_of(&work[i], work[i].kind);
        item->blocks = bells ? 1 : PHI_STAGE_BLOCKS_OF(work[i].lane.peer);
        item->first = before ? before->first : grid.blocks;
        if (before == NULL)
            grid.blocks += item->blocks;
        if (grid.threads < threads)
            grid.threads = threads;
    }
    args->stages = count_stages(work, args->items, n);
    return grid;
}

// ---- Long messages by a ring

// So many blocks, of which a push has as many once more, fill the link, and leave the rest of the
// device to the application (docs/measurements/2026-11-27.md, "Long messages by a ring").
#define LONG_BLOCKS 16
_Static_assert(LONG_BLOCKS <= 32, "one warp looks at all hands");

static bool is_long(const struct phi_work *work)
{
    return work->lane.ring == PHI_RING_DRAWN;
}

static uint32_t long_blocks(const struct phi_policy *policy, uint32_t n)
{
    const uint32_t most = policy->copy_blocks < LONG_BLOCKS ? policy->copy_blocks : LONG_BLOCKS;
    const uint32_t share = policy->blocks / 2 / n > 1 ? policy->blocks / 2 / n : 1;
    return most < share ? most : share;
}

static void add_long_hands(const struct phi_work *work, size_t n, const struct phi_policy *policy,
                           enum phi_hands hands, struct phi_hop_args *args, struct phi_grid *grid)
{
    for (size_t i = 0; i < n; i++) {
        struct phi_hop_item *item = &args->items[args->count++];
        *item = ring_item_of(&work[i], work[i].kind);
        item->hands = (uint8_t)hands;
        item->blocks = long_blocks(policy, (uint32_t)n);
        item->first = grid->blocks;
        grid->blocks += item->blocks;
    }
}

// First a warp for each waits for the peer and moves unit 0, beside hands of a push that is alone,
// which leave if they may not begin soon; then hands of all.
static struct phi_grid fill_long(const struct phi_work *work, size_t n,
                                 const struct phi_policy *policy, enum phi_hop_part part,
                                 struct phi_hop_args *args)
{
    struct phi_grid grid = {PHI_KERNEL_RING_LONG, 0, PHI_LONG_THREADS};
    const bool pushes = n == 1 && !takes(&work[0]);
    if (part == PHI_HOP_SECOND) {
        add_long_hands(work, n, policy, n == 1 ? PHI_HANDS_SECOND : PHI_HANDS_ONLY, args, &grid);
        return grid;
    }
    for (size_t i = 0; i < n; i++) {
        struct phi_hop_item *item = &args->items[args->count++];
        *item = ring_item_of(&work[i], takes(&work[i]) ? PHI_STEP_MESSAGE : PHI_STEP_ROOM);
        item->blocks = 1;
        item->first = (uint32_t)i;
    }
    args->waits = args->count;
    grid.blocks = 1;
    if (pushes)
        add_long_hands(work, n, policy, PHI_HANDS_FIRST, args, &grid);
    else
        grid.threads = 32 * args->waits;
    return grid;
}

// ---- By flags

// threads_of returns the threads of an item that is alone in the first block: one thread for each
// line, in whole warps; with wide lines one warp for each unit.
static uint32_t threads_of(const struct phi_work *work)
{
    if (work->kind == PHI_STEP_GO)
        return 32;
    if (is_move(work))
        return MOVE_THREADS;
    if (is_wide(work) && work->span.size == 0)
        return 32;
    if (is_wide(work))
        return PHI_WIDE_UNITS((uint32_t)work->span.size) < PHI_HOP_THREADS / 32
                   ? 32 * PHI_WIDE_UNITS((uint32_t)work->span.size)
                   : PHI_HOP_THREADS;
    // More than enough with an offset before them, and a warp that keeps the books.
    const size_t threads = by_lines(work) ? work->span.size / 8 + 34 : PHI_MOVE_BLOCKS;
    return threads < PHI_HOP_THREADS ? ((uint32_t)threads + 31) / 32 * 32 : PHI_HOP_THREADS;
}

// The content of a launch of part `part`.
struct filling {
    const struct phi_work *work;
    size_t n;
    const struct phi_policy *policy;
    bool hurries; // on a stream, and alone
    enum phi_hop_part part;
    bool has_first;  // there is a launch before the second one
    bool only;       // there is no other
    uint32_t spread; // that have hands
    struct phi_hop_args *args;
    struct phi_grid grid;
};

static bool is_in_place(const struct filling *f, const struct phi_work *work)
{
    if (f->part == PHI_HOP_THIRD || has_hands(work, f->hurries))
        return false;
    return is_active(work) == (f->part == PHI_HOP_FIRST) || !f->has_first;
}

// is_awaited returns whether the first block waits for the item's hands, which the next launch has.
static bool is_awaited(const struct filling *f, const struct phi_work *work)
{
    return has_hands(work, f->hurries) &&
           (takes(work) ? f->part == PHI_HOP_SECOND : f->part == PHI_HOP_FIRST);
}

static bool is_by_hands(const struct filling *f, const struct phi_work *work)
{
    return has_hands(work, f->hurries) && takes(work) == (f->part == PHI_HOP_THIRD);
}

static uint32_t wait_of(const struct phi_work *work)
{
    return takes(work) ? PHI_STEP_MESSAGE : is_move(work) ? PHI_STEP_LEAVE : PHI_STEP_ROOM;
}

// The warps of the first block. There are barriers for 15 items of several warps.
#define FIRST_WARPS 16u

static uint32_t count_waits(const struct filling *f)
{
    uint32_t waits = 0;
    for (size_t i = 0; i < f->n; i++)
        waits += is_in_place(f, &f->work[i]) || is_awaited(f, &f->work[i]);
    return waits;
}

static uint32_t warps_of(const struct filling *f, const struct phi_work *work, uint32_t waits)
{
    const uint32_t warps = is_awaited(f, work) ? 1 : threads_of(work) / 32;
    const uint32_t share = FIRST_WARPS / waits;
    return f->n == 1 || warps < share ? warps : share;
}

static void add_waits(struct filling *f)
{
    struct phi_hop_args *args = f->args;
    const uint32_t waits = count_waits(f);
    uint32_t first = 0;
    for (size_t i = 0; i < f->n; i++) {
        const struct phi_work *work = &f->work[i];
        const bool awaited = is_awaited(f, work);
        if (!awaited && !is_in_place(f, work))
            continue;
        struct phi_hop_item *item = &args->items[args->count++];
        const uint32_t kind = awaited ? wait_of(work) : work->kind;
        *item = work->lane.ring ? ring_item_of(work, kind) : item_of(work, kind);
        if (awaited && !f->only)
            item->fence = 0;
        if (awaited && f->only) { // it does what its hands leave
            item->hands = PHI_HANDS_ONLY;
            item->blocks = hands_of(work, f->policy, f->spread);
            first = 1;
            continue;
        }
        item->first = first;
        item->blocks = warps_of(f, work, waits);
        first += item->blocks;
    }
    args->waits = args->count;
    f->grid.blocks = args->waits > 0;
    f->grid.threads = 32 * first;
}

static uint32_t hand_threads(const struct phi_work *work)
{
    if (is_move(work))
        return work->span.size > MOVE_MEDIUM ? PHI_COPY_THREADS : MOVE_THREADS;
    return 32 * PHI_WIDE_WARPS;
}

static uint8_t hands_in(const struct filling *f)
{
    return f->only                     ? PHI_HANDS_ONLY
           : f->part == PHI_HOP_SECOND ? PHI_HANDS_SECOND
                                       : PHI_HANDS_FIRST;
}

static void add_hands(struct filling *f)
{
    struct phi_hop_args *args = f->args;
    for (size_t i = 0; i < f->n; i++) {
        const struct phi_work *work = &f->work[i];
        if (!is_by_hands(f, work))
            continue;
        struct phi_hop_item *item = &args->items[args->count++];
        const uint32_t kind = work->kind;
        *item = work->lane.ring ? ring_item_of(work, kind) : item_of(work, kind);
        item->hands = hands_in(f);
        item->blocks = hands_of(work, f->policy, f->spread);
        item->first = f->grid.blocks;
        f->grid.blocks += item->blocks;
        if (f->grid.threads < hand_threads(work))
            f->grid.threads = hand_threads(work);
    }
}

// A hand's share depends on how many threads the hand has. So the hands of both launches have as
// many threads, whatever their first blocks need.
static void match_threads(struct filling *f)
{
    struct filling other = *f;
    uint32_t warps = 0;
    if (!f->has_first || f->only || f->part == PHI_HOP_THIRD)
        return;
    other.part = f->part == PHI_HOP_FIRST ? PHI_HOP_SECOND : PHI_HOP_FIRST;
    const uint32_t waits = count_waits(&other);
    for (size_t i = 0; i < f->n; i++)
        if (is_in_place(&other, &f->work[i]) || is_awaited(&other, &f->work[i]))
            warps += warps_of(&other, &f->work[i], waits);
    if (f->grid.threads < 32 * warps)
        f->grid.threads = 32 * warps;
}

// is_wide_aligned returns whether an item by wide lines has a buffer that 16 bytes can be read
// from, or written to, at once.
static bool is_wide_aligned(const struct phi_hop_item *item)
{
    const uint64_t buffer = item->kind == PHI_STEP_PUSH ? item->source : item->destination;
    return (item->kind == PHI_STEP_PUSH || item->kind == PHI_STEP_TAKE) && item->wide &&
           buffer % 16 == 0;
}

static bool is_of_wide(const struct phi_hop_args *args, uint32_t i)
{
    const uint32_t kind = args->items[i].kind;
    if (i < args->waits && args->count > 1)
        return kind == PHI_STEP_ROOM || kind == PHI_STEP_MESSAGE;
    return is_wide_aligned(&args->items[i]);
}

static enum phi_kernel kernel_of(const struct phi_hop_args *args)
{
    bool all_wide = true, spread = args->count > args->waits;
    if (args->items[0].wide == 2) // then all are by rings
        return PHI_KERNEL_RING;
    for (uint32_t i = 0; i < args->count; i++) {
        const struct phi_hop_item *item = &args->items[i];
        if (i >= args->waits && item->kind == PHI_STEP_MOVE && item->size > MOVE_LARGE)
            return PHI_KERNEL_HOP_LARGE;
        all_wide = all_wide && is_of_wide(args, i);
        spread = spread || item->kind == PHI_STEP_MOVE ||
                 (item->wide && (item->kind == PHI_STEP_PUSH || item->kind == PHI_STEP_TAKE));
    }
    // One warp is enough for a launch that only awaits messages.
    if (all_wide && spread)
        return PHI_KERNEL_HOP_WIDE;
    return spread ? PHI_KERNEL_HOP_SPREAD : PHI_KERNEL_HOP;
}

// Up to so many bytes, one block pushes the shares that hands have left nearly as soon as hands of
// a second launch would (docs/measurements/2026-11-26.md, "What waits leaves the GPU"). A second
// launch takes the host as long as the first.
#define PUSH_ONLY ((size_t)128 << 10)

// is_only returns whether the work is one push, alone, that has one launch.
static bool is_only(const struct phi_work *work, size_t n)
{
    return n == 1 && work->kind == PHI_STEP_PUSH && has_hands(work, true) &&
           work->span.size <= PUSH_ONLY;
}

enum phi_hop_part phi_hop_last(const struct phi_work *work, size_t n, bool captured)
{
    if (is_long(&work[0]))
        return PHI_HOP_SECOND;
    if (is_only(work, n))
        return PHI_HOP_FIRST;
    bool third = false;
    for (size_t i = 0; i < n; i++)
        third = third || (takes(&work[i]) && has_hands(&work[i], !captured && n == 1));
    return third ? PHI_HOP_THIRD : PHI_HOP_SECOND;
}

struct phi_grid phi_hop_fill(const struct phi_work *work, size_t n, const struct phi_policy *policy,
                             bool captured, enum phi_hop_part part, struct phi_hop_args *args)
{
    struct filling f = {.work = work,
                        .n = n,
                        .policy = policy,
                        .hurries = !captured && n == 1,
                        .part = part,
                        .args = args};
    f.grid.kernel = PHI_KERNEL_HOP;
    f.only = is_only(work, n);
    args->count = args->waits = args->stages = 0;
    if (phi_step_staged(work[0].kind))
        return part == PHI_HOP_SECOND ? fill_staged(work, n, args) : f.grid;
    if (is_long(&work[0]))
        return part == PHI_HOP_THIRD ? f.grid : fill_long(work, n, policy, part, args);
    for (size_t i = 0; i < n; i++) {
        f.spread += has_hands(&work[i], !captured && n == 1);
        f.has_first = f.has_first || (has_hands(&work[i], !captured && n == 1) && !takes(&work[i]));
    }
    if (part == PHI_HOP_FIRST ? !f.has_first : f.only)
        return f.grid;
    add_waits(&f);
    add_hands(&f);
    match_threads(&f);
    if (args->count > 0)
        f.grid.kernel = kernel_of(args);
    // A block with fewer warps than units takes several turns.
    if (f.grid.kernel == PHI_KERNEL_HOP_SPREAD && f.grid.threads > PHI_SPREAD_THREADS)
        f.grid.threads = PHI_SPREAD_THREADS;
    return f.grid;
}
