// SPDX-License-Identifier: BSD-3-Clause
// Our kernels, the tests' and the bench's, as C functions. The engine calls one again while it
// waits, or has more to do.
#include "standin.h"

#include "cuda/kernel_args.h"
#include "kernel.h"
#include "load.h"
#include "support/test_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK SI_MIB

// Acquire and release as in the kernels.
static uint32_t load32(uint64_t address)
{
    return __atomic_load_n((const uint32_t *)address, __ATOMIC_ACQUIRE);
}

static void note_undone(uint64_t broken)
{
    if (broken)
        __atomic_store_n((uint32_t *)(broken + PHI_UNDONE_BEHIND), 1, __ATOMIC_RELEASE);
}

static bool is_skipped(uint64_t broken)
{
    if (!broken || !load32(broken))
        return false;
    note_undone(broken);
    return true;
}

void si_note_mismatch(uint64_t broken, uint64_t expected, uint64_t got)
{
    *(uint64_t *)(broken + PHI_EXPECTED_BEHIND) = expected;
    *(uint64_t *)(broken + PHI_GOT_BEHIND) = got;
    note_undone(broken);
    __atomic_store_n((uint32_t *)(broken + PHI_MISMATCH_BEHIND), 1, __ATOMIC_RELEASE);
    __atomic_store_n((uint32_t *)broken, 1, __ATOMIC_RELEASE);
}

static bool is_left_out(const struct phi_copy_args *args)
{
    if (args->head != PHI_HEAD_CHECK)
        return is_skipped(args->broken);
    const uint32_t word = load32(args->word);
    if ((word & (args->bit | PHI_BIT_ADDED(args->bit))) != args->bit ||
        load32(args->broken + PHI_MISMATCH_BEHIND)) {
        note_undone(args->broken);
        return true;
    }
    const uint64_t got = *(const uint64_t *)(args->source - PHI_BOUNCE_HEAD);
    if (got == args->message)
        return false;
    if (got == PHI_LEFT_OUT)
        note_undone(args->broken);
    else
        si_note_mismatch(args->broken, args->message, got);
    return true;
}

static void write_head(const struct phi_copy_args *args, bool copies)
{
    if (args->head == PHI_HEAD_WRITE)
        *(uint64_t *)(args->destination - PHI_BOUNCE_HEAD) = copies ? args->message : PHI_LEFT_OUT;
}

// How far items are, in 64 bits: the next one, and whether what stands before it is undone.
#define UNDONE ((uint64_t)1 << 32)

// Whether the item is over.
static bool brace_item(const struct phi_brace_item *item, uint64_t *at)
{
    if (item->kind == PHI_BRACE_POST) {
        if (!(*at & UNDONE))
            __atomic_store_n((uint32_t *)item->word, item->value, __ATOMIC_RELEASE);
        *at &= ~UNDONE;
        return true;
    }
    bool over = item->broken && load32(item->broken); // first: what came before it was set is taken
    uint32_t word = load32(item->word);
    if (!(word & item->value) && !over)
        return false;
    *at &= ~UNDONE;
    if ((word & (item->value | PHI_BIT_ADDED(item->value))) == item->value)
        return true;
    note_undone(item->broken);
    *at |= UNDONE;
    return true;
}

// Whether the items up to `end` are over.
static bool do_items(const struct phi_brace_item *items, uint64_t *at, uint32_t end)
{
    while ((uint32_t)*at < end && brace_item(&items[(uint32_t)*at], at))
        ++*at;
    return (uint32_t)*at >= end;
}

static void store_number(uint64_t done, uint64_t number)
{
    if (done)
        __atomic_store_n((uint64_t *)done, number, __ATOMIC_RELEASE);
}

static enum si_progress brace(const void *data, uint64_t state[SI_KERNEL_STATE])
{
    const struct phi_brace_args *args = data;
    if (!do_items(args->items, &state[0], args->count))
        return SI_WAITING;
    store_number(args->done, args->number);
    return SI_DONE;
}

static size_t part_of(uint64_t size, uint64_t done)
{
    return size - done < CHUNK ? size - done : CHUNK;
}

static enum si_progress copy(const void *data, uint64_t state[SI_KERNEL_STATE])
{
    const struct phi_copy_args *args = data;
    const bool out = !state[0] && is_left_out(args);
    if (!state[0])
        write_head(args, !out);
    if (out)
        return SI_DONE;
    if (!args->size)
        return SI_DONE;
    size_t part = part_of(args->size, state[0]);
    memcpy((void *)(args->destination + state[0]), (const void *)(args->source + state[0]), part);
    si_lose_store((void *)(args->destination + state[0]), part);
    state[0] += part;
    return state[0] == args->size ? SI_DONE : SI_MOVED;
}

// state[0]: items done.
static enum si_progress copies(const void *data, uint64_t state[SI_KERNEL_STATE])
{
    const struct phi_copies_args *args = data;
    if (state[0] == args->count) {
        store_number(args->done, args->number);
        return SI_DONE;
    }
    const struct phi_copies_item *item = &args->items[state[0]++];
    if (item->size && !is_skipped(item->broken))
        memcpy((void *)item->destination, (const void *)item->source, item->size);
    return SI_MOVED;
}

// ---- lists of pages

static const void *page_list(const struct phi_pages_args *args, uint64_t list)
{
    return list & PHI_PAGES_INLINE ? args->payload + (list & ~PHI_PAGES_INLINE)
                                   : (const void *)list;
}

static uint64_t pages_in(const struct phi_pages_args *args)
{
    const uint32_t *count = args->count ? page_list(args, args->count) : NULL;
    return count && *count < args->pages ? *count : args->pages;
}

// The number of a page; false: padding.
static bool page_number(const struct phi_pages_args *args, const struct phi_pages_end *end,
                        uint64_t page, uint64_t *number)
{
    const void *numbers = end->numbers ? page_list(args, end->numbers) : NULL;
    *number = page;
    if (!numbers)
        return true;
    if (end->number_bytes == 8) {
        *number = ((const uint64_t *)numbers)[page];
        return *number != UINT64_MAX;
    }
    *number = ((const uint32_t *)numbers)[page];
    return *number != UINT32_MAX;
}

// Where a row begins, or 0: the page does not lie in the end, or the row in no single range.
static uint64_t row_begins(const struct phi_pages_args *args, const struct phi_pages_end *end,
                           uint64_t part, uint64_t number, uint64_t row)
{
    const uint64_t *at = page_list(args, end->at);
    const __uint128_t page = at[part] + (__uint128_t)number * end->page_stride;
    const __uint128_t last =
        page + (__uint128_t)(args->rows - 1) * end->row_stride + args->row_bytes;
    if (last > end->size)
        return 0;
    const uint64_t offset = (uint64_t)page + row * end->row_stride;
    const struct phi_range_entry *ranges = (const struct phi_range_entry *)end->ranges;
    if (!ranges)
        return end->base + offset;
    for (uint32_t i = 0; i < end->range_count; i++) {
        const uint64_t behind = i + 1 < end->range_count ? ranges[i + 1].begin : end->size;
        if (offset >= ranges[i].begin && offset + args->row_bytes <= behind)
            return ranges[i].address + (offset - ranges[i].begin);
    }
    return 0;
}

static void find_page_row(const struct phi_pages_args *args, uint64_t row, uint64_t *source,
                          uint64_t *destination, bool *skipped)
{
    const uint64_t pages = pages_in(args), entry = row / args->rows, page = entry % pages;
    uint64_t from, to;
    *source = *destination = 0;
    *skipped = false;
    if (!page_number(args, &args->source, page, &from) ||
        !page_number(args, &args->destination, page, &to))
        return;
    *source = row_begins(args, &args->source, entry / pages, from, row % args->rows);
    *destination = row_begins(args, &args->destination, entry / pages, to, row % args->rows);
    const bool cut = args->source.ranges || args->destination.ranges;
    *skipped = (!*source || !*destination) && (cut || row % args->rows == 0);
    if (!*source || !*destination)
        *source = *destination = 0;
}

static uint64_t page_rows(const struct phi_pages_args *args)
{
    return (uint64_t)args->parts * pages_in(args) * args->rows;
}

// state[0]: rows done; state[1]: whether the rest is left out.
static enum si_progress pages(const void *data, uint64_t state[SI_KERNEL_STATE])
{
    const struct phi_pages_args *args = data;
    const uint64_t rows = page_rows(args);
    if (!state[0] && is_skipped(args->broken))
        state[0] = rows;
    for (unsigned i = 0; i < 64 && state[0] < rows; i++, state[0]++) {
        uint64_t source, destination;
        bool skipped;
        find_page_row(args, state[0], &source, &destination, &skipped);
        if (skipped && args->skipped)
            __atomic_fetch_add((uint64_t *)args->skipped, 1, __ATOMIC_RELAXED);
        if (!source)
            continue;
        if ((source | destination | args->row_bytes) % args->unit) {
            fprintf(stderr, "stand-in: phi_pages: a row is no multiple of the unit\n");
            abort();
        }
        memcpy((void *)destination, (const void *)source, args->row_bytes);
    }
    if (state[0] < rows)
        return SI_MOVED;
    store_number(args->done, args->number);
    return SI_DONE;
}

// state[0]: items done; state[1]: bytes copied, and 1 more once that is over.
static enum si_progress transfer(const void *data, uint64_t state[SI_KERNEL_STATE])
{
    const struct phi_transfer_args *args = data;
    uint64_t at = state[0];
    // The engine takes its lock between items and copy: a thread sanitizer sees no order by words
    // that two ends have mapped at two addresses.
    if (!do_items(args->items, &state[0], args->before))
        return SI_WAITING;
    if (state[0] != at)
        return SI_MOVED;
    if (state[1] <= args->copy.size) {
        uint64_t copied[SI_KERNEL_STATE] = {state[1]};
        bool out = !state[1] && is_left_out(&args->copy);
        if (out)
            write_head(&args->copy, false);
        bool more = !out && copy(&args->copy, copied) == SI_MOVED;
        state[1] = more ? copied[0] : args->copy.size + 1;
        // What waited before the copy says nothing of the posts behind it, but that it was skipped.
        state[0] = (uint32_t)state[0];
        if (out)
            state[0] |= UNDONE;
        return SI_MOVED;
    }
    if (!do_items(args->items, &state[0], args->count))
        return SI_WAITING;
    store_number(args->done, args->number);
    return SI_DONE;
}

static uint64_t seed_of(const struct test_pattern_args *args)
{
    return args->seed + (args->seed_word
                             ? __atomic_load_n((const uint64_t *)args->seed_word, __ATOMIC_ACQUIRE)
                             : 0);
}

static uint8_t pattern_byte(uint64_t seed, uint64_t index)
{
    return (uint8_t)(test_pattern(seed, index / 8) >> (index % 8 * 8));
}

static enum si_progress fill(const void *data, uint64_t state[SI_KERNEL_STATE])
{
    const struct test_pattern_args *args = data;
    uint8_t *bytes = (uint8_t *)args->address;
    uint64_t seed = seed_of(args);
    uint64_t end = state[0] + part_of(args->size, state[0]);
    for (; state[0] < end; state[0]++)
        bytes[state[0]] = pattern_byte(seed, state[0]);
    return state[0] == args->size ? SI_DONE : SI_MOVED;
}

static enum si_progress verify(const void *data, uint64_t state[SI_KERNEL_STATE])
{
    const struct test_pattern_args *args = data;
    const uint8_t *bytes = (const uint8_t *)args->address;
    uint64_t seed = seed_of(args), errors = 0;
    uint64_t end = state[0] + part_of(args->size, state[0]);
    for (; state[0] < end; state[0]++)
        errors += bytes[state[0]] != pattern_byte(seed, state[0]);
    if (errors)
        __atomic_fetch_add((uint64_t *)args->errors, errors, __ATOMIC_SEQ_CST);
    return state[0] == args->size ? SI_DONE : SI_MOVED;
}

static enum si_progress spin(const void *data, uint64_t state[SI_KERNEL_STATE])
{
    (void)state;
    const struct test_spin_args *args = data;
    return (int32_t)load32(args->word) >= 1 ? SI_DONE : SI_WAITING;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

// The blocks that have a place at once; what comes after them in their places is left out.
static enum si_progress occupy(const void *data, uint64_t state[SI_KERNEL_STATE])
{
    const struct test_occupy_args *args = data;
    const uint64_t now = now_ns();
    if (!state[0])
        state[0] = now;
    for (unsigned i = 0; i < SI_MULTIPROCESSORS; i++)
        if (si_grid_is_on(si_running, i))
            ((uint32_t *)args->where)[i] = 1;
    return now - state[0] >= args->ns ? SI_DONE : SI_WAITING;
}

// The multiprocessors that have blocks of the launch, or where these need no place the first one,
// share what it has to run. It takes no time. state[0]: whether it has begun.
static enum si_progress load(const void *data, uint64_t state[SI_KERNEL_STATE])
{
    const struct bench_load_args *args = data;
    uint32_t multiprocessors[SI_MULTIPROCESSORS] = {0}, count = 0;
    if (state[0]++)
        return SI_DONE;
    for (uint32_t i = 0; i < SI_MULTIPROCESSORS; i++)
        if (si_grid_is_on(si_running, i))
            multiprocessors[count++] = i;
    for (uint32_t i = 0; i < si_running->u.kernel.blocks; i++)
        __atomic_store_n((uint32_t *)args->where + i,
                         args->mark << 16 | multiprocessors[count ? i % count : 0],
                         __ATOMIC_RELAXED);
    return SI_MOVED;
}

// Of peerhop-perf. state[0]: when it began.
static enum si_progress note(const void *data, uint64_t state[SI_KERNEL_STATE])
{
    const struct bench_note_args *args = data;
    const uint64_t now = now_ns();
    if (state[0] == 0)
        state[0] = now;
    const uint64_t *gate = (const uint64_t *)args->gate;
    const bool open = gate && __atomic_load_n(gate, __ATOMIC_RELAXED) >= args->opens;
    if (now - state[0] < args->after_ns && !open)
        return SI_WAITING;
    *(uint64_t *)args->address = now;
    return SI_DONE;
}

// Registers: what ptxas says for compute capability 9.0.
const struct CUfunc_st si_kernels[SI_KERNELS_MAX] = {
    {"phi_brace", brace, sizeof(struct phi_brace_args), PHI_BRACE_THREADS, 12},
    {"phi_copy", copy, sizeof(struct phi_copy_args), PHI_COPY_THREADS, 53},
    {"phi_copies", copies, sizeof(struct phi_copies_args), PHI_COPY_THREADS, 40},
    {"phi_pages", pages, sizeof(struct phi_pages_args), PHI_PAGES_THREADS, 64},
    {"phi_transfer", transfer, sizeof(struct phi_transfer_args), PHI_COPY_THREADS, 53},
    {"phi_hop", si_hop, sizeof(struct phi_hop_args), PHI_HOP_THREADS, 32, false, si_hop_refuse},
    {"phi_hop_spread", si_hop, sizeof(struct phi_hop_args), PHI_SPREAD_THREADS, 124, false,
     si_hop_spread_refuse},
    {"phi_hop_large", si_hop, sizeof(struct phi_hop_args), PHI_SPREAD_THREADS, 124, false,
     si_hop_large_refuse},
    {"phi_hop_wide", si_hop, sizeof(struct phi_hop_args), PHI_HOP_THREADS, 64, false,
     si_hop_wide_refuse},
    {"phi_ring", si_hop, sizeof(struct phi_hop_args), PHI_HOP_THREADS, 64, false, si_ring_refuse},
    {"phi_ring_long", si_hop, sizeof(struct phi_hop_args), PHI_LONG_THREADS, 96, false,
     si_ring_long_refuse},
    {"phi_hop_staged", si_hop, sizeof(struct phi_hop_args), PHI_STAGED_THREADS, 117, true,
     si_hop_staged_refuse},
    {"phi_test_fill", fill, sizeof(struct test_pattern_args), 1024, 32},
    {"phi_test_verify", verify, sizeof(struct test_pattern_args), 1024, 32},
    {"phi_test_spin", spin, sizeof(struct test_spin_args), 1024, 6},
    {"phi_test_occupy", occupy, sizeof(struct test_occupy_args), 384, 168},
    {"bench_load_light", load, sizeof(struct bench_load_args), 256, 18},
    {"bench_load_gemm", load, sizeof(struct bench_load_args), 384, 168},
    {"bench_note", note, sizeof(struct bench_note_args), 1, 8},
    {NULL},
};

// Whether the blocks of a kernel end with a fence of system scope behind what they have copied: in
// kernels.cu release_copies(), and of phi_hop that before the full words.
bool si_kernel_fences(si_kernel run)
{
    const struct CUfunc_st *function = si_kernels;
    const char *unfenced = getenv("PEERHOP_STANDIN_UNFENCED");
    while (function->name && function->run != run)
        function++;
    if (!function->name || (unfenced && strcmp(unfenced, function->name) == 0))
        return false;
    return run == copy || run == copies || run == pages || run == transfer || run == si_hop;
}

static bool any_post(const struct phi_brace_item *items, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (items[i].kind == PHI_BRACE_POST)
            return true;
    return false;
}

// Whether what a kernel stores for others is stored behind a fence, or as a release, which
// covers what came before it on the stream: words and numbers are stored so, lines, full and go
// words are not, unless their item begins with a fence.
bool si_kernel_releases(si_kernel run, const void *data)
{
    const struct phi_brace_args *braced = data;
    const struct phi_transfer_args *moved = data;
    const struct phi_hop_args *hop = data;
    if (run == brace)
        return braced->done || any_post(braced->items, braced->count);
    if (run == transfer)
        return moved->done || any_post(moved->items, moved->count);
    for (uint32_t i = 0; run == si_hop && i < hop->count; i++)
        if (hop->items[i].fence & PHI_FENCE_BEFORE)
            return true;
    return false;
}

static unsigned copy_touches(uint64_t destination, uint64_t source, uint64_t size, uint64_t broken,
                             struct si_touch touches[SI_TOUCHES])
{
    if (!size || (broken && load32(broken)))
        return 0;
    touches[0] = (struct si_touch){destination, size, true};
    touches[1] = (struct si_touch){source, size, false};
    return 2;
}

static unsigned copies_touches(const struct phi_copies_args *args, uint64_t done,
                               struct si_touch touches[SI_TOUCHES], uint64_t *part)
{
    const struct phi_copies_item *item = &args->items[done];
    if (done == args->count)
        return 0;
    *part = done + 1;
    return copy_touches(item->destination, item->source, item->size, item->broken, touches);
}

static unsigned transfer_touches(const struct phi_transfer_args *args, const uint64_t state[2],
                                 struct si_touch touches[SI_TOUCHES], uint64_t *part)
{
    const struct phi_copy_args *moved = &args->copy;
    if ((uint32_t)state[0] < args->before || state[1] > moved->size)
        return 0; // it waits, or is about to post
    *part = 1;
    return copy_touches(moved->destination, moved->source, moved->size,
                        state[1] ? 0 : moved->broken, touches);
}

unsigned si_kernel_touches(si_kernel run, const void *data, const uint64_t state[SI_KERNEL_STATE],
                           struct si_touch touches[SI_TOUCHES], uint64_t *part)
{
    const struct phi_copy_args *moved = data;
    const struct test_pattern_args *pattern = data;
    *part = 0;
    if (run == copy)
        return copy_touches(moved->destination, moved->source, moved->size,
                            state[0] ? 0 : moved->broken, touches);
    if (run == copies)
        return copies_touches(data, state[0], touches, part);
    if (run == transfer)
        return transfer_touches(data, state, touches, part);
    if (run == si_hop)
        return si_hop_touches(data, state, touches, part);
    if (run != fill && run != verify)
        return 0;
    touches[0] = (struct si_touch){pattern->address, pattern->size, run == fill};
    return 1;
}

void si_kernel_check(si_kernel run, const void *data)
{
    const struct phi_brace_item *items = data; // first of both kinds of arguments
    uint32_t count = run == brace      ? ((const struct phi_brace_args *)data)->count
                     : run == transfer ? ((const struct phi_transfer_args *)data)->count
                                       : 0;
    for (uint32_t i = 0; i < count; i++) {
        if (items[i].kind == PHI_BRACE_WAIT)
            si_check_wait(items[i].word);
    }
}
