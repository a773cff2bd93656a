// SPDX-License-Identifier: BSD-3-Clause
#include "semaphore/plan.h"

#include <errno.h>

#include "cuda/kernel_args.h"

#define COPY_BLOCK_BYTES ((size_t)PHI_COPY_THREADS * 16 * 4)
// The figures of few and of many blocks: docs/measurements/2026-11-23.md, "What a kernel's copy can
// reach". By ll half of a hand's units come by a second turn.
#define HAND_BYTES ((size_t)4 << 10)

// Copies of so many bytes go together whatever joins the devices; over a link larger ones do, too,
// as long as the copy engine, which moves them at the rate of the link, would not be done sooner.
// It begins each copy some us after the one before it: to copies of LONE_BYTES the rate is worth
// that (for one, beside it the operation that the stream's number is), and to GATHER_BYTES in all
// where it takes them together. A larger one has a launch of its own, whose warps draw rows
// (docs/measurements/2026-11-25.md, "Copies of a group").
#define SMALL_BYTES  ((size_t)512 << 10)
#define LONE_BYTES   ((size_t)8 << 20)
#define GATHER_BYTES ((size_t)32 << 20)

static bool is_copy(const struct phi_work *work)
{
    return work->kind == PHI_STEP_COPY;
}

static bool is_hop(const struct phi_work *work)
{
    return phi_step_hops(work->kind);
}

static bool is_pages(const struct phi_work *work)
{
    return work->kind == PHI_STEP_PAGES;
}

static bool is_staged(const struct phi_work *work)
{
    return phi_step_staged(work->kind);
}

// A brace does not take these items: a copy of some bytes, a list of pages, or a message by flags.
static bool stands_alone(const struct phi_work *work)
{
    return is_hop(work) || is_pages(work) || (is_copy(work) && (work->span.size > 0 || work->head));
}

static bool is_nothing(const struct phi_work *work)
{
    return work->kind == PHI_STEP_HOLD || (is_copy(work) && !stands_alone(work));
}

static size_t skip_nothing(const struct phi_plan *plan, size_t at)
{
    while (at < plan->n && is_nothing(&plan->work[at]))
        at++;
    return at;
}

// brace_kind looks at the whole run up to the next copy: a run with waits is of one kind
// throughout.
static enum phi_piece_kind brace_kind(const struct phi_plan *plan)
{
    bool waits = false;
    for (size_t i = plan->at; i < plan->n; i++) {
        const struct phi_work *work = &plan->work[i];
        if (stands_alone(work))
            break;
        waits = waits || work->kind == PHI_STEP_WAIT;
    }
    return plan->batches && !(plan->kernel_waits && waits) ? PHI_PIECE_BATCH : PHI_PIECE_KERNEL;
}

static void take_brace(struct phi_plan *plan, struct phi_piece *piece)
{
    const size_t most = brace_kind(plan) == PHI_PIECE_BATCH ? PHI_BATCH_MAX : PHI_BRACE_ITEMS;
    size_t items = 0, i = plan->at;
    piece->kind = brace_kind(plan);
    piece->first = i;
    for (; i < plan->n && items < most; i++) {
        if (is_nothing(&plan->work[i]))
            continue;
        if (stands_alone(&plan->work[i]))
            break;
        plan->waited = plan->waited || plan->work[i].kind == PHI_STEP_WAIT;
        items++;
    }
    piece->count = i - piece->first;
    plan->at = skip_nothing(plan, i);
    // A kernel takes the number beside its items, a batch as one more of them.
    piece->done = plan->done && plan->at == plan->n &&
                  (piece->kind == PHI_PIECE_KERNEL || items < PHI_BATCH_MAX);
}

// take_transfer makes one piece of the items before a copy that stands behind a wait, the copy, and
// the items after it. Posts that do not fit are the next piece's; a copy with more items before it
// than fit is not taken.
static bool take_transfer(struct phi_plan *plan, struct phi_piece *piece)
{
    size_t copy = plan->at, items = 0;
    bool waited = plan->waited;
    for (; copy < plan->n && !stands_alone(&plan->work[copy]); copy++) {
        items += !is_nothing(&plan->work[copy]);
        waited = waited || plan->work[copy].kind == PHI_STEP_WAIT;
    }
    if (copy == plan->n || !is_copy(&plan->work[copy]) || !waited || items > PHI_BRACE_ITEMS)
        return false;
    size_t end = copy + 1;
    for (; end < plan->n && items < PHI_BRACE_ITEMS; end++) {
        if (stands_alone(&plan->work[end]))
            break;
        items += !is_nothing(&plan->work[end]);
    }
    piece->kind = PHI_PIECE_TRANSFER;
    piece->behind = true;
    piece->first = plan->at;
    piece->count = end - plan->at;
    piece->copy = copy;
    plan->waited = true;
    plan->at = skip_nothing(plan, end);
    piece->done = plan->done && plan->at == plan->n;
    return true;
}

_Static_assert(PHI_TOGETHER_MAX <= PHI_HOP_ITEMS, "they are one launch");

// has_room returns whether the items that belong together with the next one have room in a launch
// that begins at `first`.
static bool has_room(const struct phi_plan *plan, size_t first)
{
    const size_t taken = plan->at - first, together = plan->work[plan->at].together;
    const size_t most =
        plan->work[first].lane.ring == PHI_RING_DRAWN ? PHI_LONG_ITEMS : PHI_HOP_ITEMS;
    return taken + (together > 1 ? together : 1) <= most;
}

static void take_hops(struct phi_plan *plan, struct phi_piece *piece)
{
    piece->kind = PHI_PIECE_HOP;
    piece->first = plan->at;
    while (plan->at < plan->n && is_hop(&plan->work[plan->at]) && has_room(plan, piece->first) &&
           is_staged(&plan->work[plan->at]) == is_staged(&plan->work[piece->first]) &&
           plan->work[plan->at].lane.ring == plan->work[piece->first].lane.ring) {
        plan->waited = plan->waited || phi_step_waits(plan->work[plan->at].kind);
        plan->at++;
    }
    piece->count = plan->at - piece->first;
    plan->at = skip_nothing(plan, plan->at);
    piece->done = plan->done && plan->at == plan->n;
}

static bool is_small_copy(const struct phi_work *work, size_t most)
{
    return is_copy(work) && work->span.size <= most && !work->engine && !work->head;
}

static bool is_gathered(const struct phi_work *work, bool large)
{
    return is_small_copy(work, large && work->linked ? GATHER_BYTES : SMALL_BYTES);
}

// is_lone returns whether the next item, a copy, is the last one before the number.
static bool is_lone(const struct phi_plan *plan)
{
    if (!plan->done || plan->at == plan->n)
        return false;
    const struct phi_work *next = &plan->work[plan->at];
    return is_small_copy(next, next->linked ? LONE_BYTES : SMALL_BYTES) &&
           skip_nothing(plan, plan->at + 1) == plan->n;
}

// The copies from `at` on that one launch takes.
struct run {
    size_t end, copies, bytes;
};

static struct run run_of(const struct phi_plan *plan, size_t at, bool large)
{
    struct run run = {.end = at};
    while (run.end < plan->n && is_gathered(&plan->work[run.end], large) &&
           run.copies < PHI_COPIES_ITEMS) {
        run.copies += plan->work[run.end].span.size > 0;
        run.bytes += plan->work[run.end++].span.size;
    }
    return run;
}

// Large ones only where a kernel would copy each of them in any case, or is done sooner with all.
static struct run gather(const struct phi_plan *plan, size_t at)
{
    struct run all = run_of(plan, at, true);
    const size_t most = plan->together ? GATHER_BYTES : all.copies * LONE_BYTES;
    return !plan->engine[plan->waited] || all.bytes <= most ? all : run_of(plan, at, false);
}

// Copies that follow one another are of one group, whose copies have no order.
static bool take_copies(struct phi_plan *plan, struct phi_piece *piece)
{
    struct run run = gather(plan, plan->at);
    if (is_lone(plan))
        run.end = plan->at + 1;
    else if (run.copies < 2)
        return false;
    piece->kind = PHI_PIECE_COPIES;
    piece->behind = plan->waited;
    piece->first = plan->at;
    piece->count = run.end - plan->at;
    plan->at = skip_nothing(plan, run.end);
    piece->done = plan->done && plan->at == plan->n;
    return true;
}

// is_engines returns whether the copy engine may be given a copy together with others.
static bool is_engines(const struct phi_plan *plan, const struct phi_work *work)
{
    return is_copy(work) && plan->together && !work->head &&
           (work->engine || plan->engine[plan->waited]);
}

// As of take_copies, for copies that are the engine's.
static bool take_engine(struct phi_plan *plan, struct phi_piece *piece)
{
    size_t end = plan->at, copies = 0;
    for (; end < plan->n && copies < PHI_ENGINE_MAX; end++) {
        if (is_nothing(&plan->work[end]))
            continue;
        if (!is_engines(plan, &plan->work[end]) ||
            (plan->gather && run_of(plan, end, false).copies > 1))
            break;
        copies++;
    }
    if (copies < 2)
        return false;
    piece->kind = PHI_PIECE_ENGINE;
    piece->behind = plan->waited;
    piece->first = plan->at;
    piece->count = end - plan->at;
    plan->at = skip_nothing(plan, end);
    return true;
}

static void take_pages(struct phi_plan *plan, struct phi_piece *piece)
{
    piece->kind = PHI_PIECE_PAGES;
    piece->behind = plan->waited;
    piece->first = plan->at++;
    piece->count = 1;
    plan->at = skip_nothing(plan, plan->at);
    piece->done = plan->done && plan->at == plan->n;
}

bool phi_plan_next(struct phi_plan *plan, struct phi_piece *piece)
{
    *piece = (struct phi_piece){0};
    plan->at = skip_nothing(plan, plan->at);
    if (plan->at == plan->n && (plan->ended || !plan->done))
        return false;
    if (plan->at < plan->n && is_hop(&plan->work[plan->at])) {
        take_hops(plan, piece);
        plan->ended = piece->done;
        return true;
    }
    if (plan->at < plan->n && is_pages(&plan->work[plan->at])) {
        take_pages(plan, piece);
        plan->ended = piece->done;
        return true;
    }
    if (plan->gather && take_copies(plan, piece)) {
        plan->ended = piece->done;
        return true;
    }
    if (plan->fuse && take_transfer(plan, piece)) {
        plan->ended = piece->done;
        return true;
    }
    if (take_engine(plan, piece))
        return true;
    if (plan->at < plan->n && is_copy(&plan->work[plan->at])) {
        piece->kind = PHI_PIECE_COPY;
        piece->behind = plan->waited;
        piece->first = plan->at++;
        piece->count = 1;
        return true;
    }
    take_brace(plan, piece); // at the end: no items, only the number
    plan->ended = piece->done;
    return true;
}

struct phi_policy phi_policy_of(const struct phi_config *config)
{
    return (struct phi_policy){
        .wait = config->wait,
        .method = config->method,
        .kernel_waits = (uint32_t)config->kernel_waits,
        .graph_branches = (uint32_t)config->graph_branches,
        .memory_waits = (uint32_t)config->memory_operation_streams,
        .copy_blocks = (uint32_t)config->copy_blocks,
        .page_blocks = (uint32_t)config->page_blocks,
    };
}

static bool wait_by_kernel(const struct phi_policy *policy, const struct phi_waiting *others,
                           bool captured)
{
    if (!policy->kernels || !policy->batches)
        return policy->kernels;
    if (policy->wait != PHI_WAIT_AUTO)
        return policy->wait == PHI_WAIT_KERNEL;
    // Contexts that share a device take turns of 2 ms, which a spinning kernel uses up; a memory
    // operation does not.
    return !policy->shared || captured || others->memory_operations >= policy->memory_waits;
}

uint32_t phi_eager_waits(const struct phi_policy *policy)
{
    return policy->kernel_waits > policy->graph_branches
               ? policy->kernel_waits - policy->graph_branches
               : 1;
}

int phi_wait_mode(const struct phi_policy *policy, const struct phi_waiting *others, bool captured)
{
    if (!wait_by_kernel(policy, others, captured))
        return 0;
    if (captured)
        return policy->graph_branches > 0 ? 1 : -EAGAIN;
    return others->kernels < phi_eager_waits(policy) ? 1 : -EAGAIN;
}

bool phi_copy_mode(const struct phi_policy *policy, bool behind)
{
    if (!policy->kernels || policy->method == PHI_METHOD_CE)
        return false;
    return policy->method == PHI_METHOD_COPY_KERNEL || behind;
}

bool phi_gather_mode(const struct phi_policy *policy)
{
    return policy->kernels && policy->method != PHI_METHOD_CE;
}

static uint32_t blocks_of(const struct phi_policy *policy, size_t size, size_t block_bytes)
{
    const size_t blocks = size / block_bytes + (size % block_bytes != 0);
    return blocks < policy->copy_blocks ? (uint32_t)blocks : policy->copy_blocks;
}

uint32_t phi_copy_blocks(const struct phi_policy *policy, size_t size)
{
    return size == 0 ? 1 : blocks_of(policy, size, COPY_BLOCK_BYTES);
}

uint32_t phi_copies_blocks(const struct phi_policy *policy, size_t size, uint64_t all)
{
    const uint32_t wanted = phi_copy_blocks(policy, size);
    const uint32_t share = (uint32_t)((policy->copy_blocks * (uint64_t)size + all - 1) / all);
    return wanted < share ? wanted : share;
}

// All messages of one launch leave half of the device to others.
uint32_t phi_hand_blocks(const struct phi_policy *policy, uint32_t n, size_t size)
{
    const uint32_t wanted = blocks_of(policy, size, HAND_BYTES);
    const uint32_t share = policy->blocks / 2 / n > 1 ? policy->blocks / 2 / n : 1;
    return wanted < share ? wanted : share;
}
