// SPDX-License-Identifier: BSD-3-Clause
#include "semaphore/pages.h"

#include <stdlib.h>
#include <string.h>

void phi_page_list_hold(struct phi_page_list *list)
{
    atomic_fetch_add_explicit(&list->holders, 1, memory_order_relaxed);
}

void phi_page_list_drop(struct phi_page_list *list)
{
    // Release and acquire: whoever frees the list comes behind all who used it.
    if (list != NULL && atomic_fetch_sub_explicit(&list->holders, 1, memory_order_acq_rel) == 1)
        free(list);
}

enum place { IN, PADDING, OUT };

static enum place number_of(const struct phi_page_end *end, uint32_t page, uint64_t *number)
{
    bool padding = false;
    *number = page;
    if (end->numbers != NULL && end->number_bytes == sizeof(uint32_t)) {
        uint32_t n;
        memcpy(&n, (const char *)end->numbers + page * sizeof n, sizeof n);
        padding = n == UINT32_MAX;
        *number = n;
    } else if (end->numbers != NULL) {
        memcpy(number, (const char *)end->numbers + page * sizeof *number, sizeof *number);
        padding = *number == UINT64_MAX;
    }
    return padding ? PADDING : *number <= end->most ? IN : OUT;
}

// Finds where an offset lies; false: the bytes lie in no single range. Over the net this rank knows
// no address of the peer's memory.
static bool in_ranges(const struct phi_page_end *end, uint64_t offset, uint64_t bytes, uint8_t **at)
{
    if (end->ranges == NULL) {
        *at = end->base ? end->base + offset : NULL;
        return true;
    }
    const uint32_t i = phi_range_of(end->ranges, end->range_count, offset);
    const uint64_t behind = i + 1 < end->range_count ? end->ranges[i + 1].begin : end->size;
    const uint64_t in_range = offset - end->ranges[i].begin;
    *at = (uint8_t *)(uintptr_t)(end->ranges[i].address + in_range);
    return offset + bytes <= behind;
}

static enum place find(const struct phi_page_list *list, const struct phi_page_end *end,
                       uint32_t part, uint32_t page, uint32_t row, uint64_t *offset, uint8_t **at)
{
    uint64_t number;
    const enum place place = number_of(end, page, &number);
    if (place != IN)
        return place;
    // No sum overflows: the call has checked `at` and the rows of a page, and number <= most.
    const uint64_t begin = end->at[part] + number * end->page_stride;
    const uint64_t last = (list->rows - 1) * end->row_stride + list->row_bytes;
    if (begin > end->size || last > end->size - begin)
        return OUT;
    *offset = begin + row * end->row_stride;
    return in_ranges(end, *offset, list->row_bytes, at) ? IN : OUT;
}

bool phi_page_list_row(const struct phi_page_list *list, uint64_t number,
                       struct phi_page_row *found, bool *skipped)
{
    const uint32_t row = (uint32_t)(number % list->rows);
    const uint64_t entry = number / list->rows;
    const uint32_t page = (uint32_t)(entry % list->pages), part = (uint32_t)(entry / list->pages);
    const enum place from =
        find(list, &list->source, part, page, row, &found->source, &found->from);
    const enum place to =
        find(list, &list->destination, part, page, row, &found->destination, &found->to);
    const bool cut = list->source.ranges != NULL || list->destination.ranges != NULL;
    *skipped = from != PADDING && to != PADDING && (from == OUT || to == OUT) && (row == 0 || cut);
    return from == IN && to == IN;
}

bool phi_page_list_run(const struct phi_page_list *list, size_t *at, size_t bytes)
{
    const uint64_t rows = phi_page_list_rows(list);
    uint64_t skips = 0;
    struct phi_page_row next;
    bool skipped = false, there = false;
    if (*at < rows)
        there = phi_page_list_row(list, *at, &next, &skipped);
    for (size_t copied = 0; *at < rows && copied < bytes; copied += list->row_bytes) {
        const struct phi_page_row row = next;
        const bool copies = there;
        skips += skipped;
        if (++*at < rows) {
            there = phi_page_list_row(list, *at, &next, &skipped);
            if (there) // the next row comes from elsewhere: the processor cannot know
                __builtin_prefetch(next.from);
        }
        if (copies)
            memcpy(row.to, row.from, list->row_bytes);
    }
    if (skips > 0 && list->skipped != NULL)
        atomic_fetch_add_explicit(list->skipped, skips, memory_order_relaxed);
    return *at == rows;
}

uint32_t phi_skips_take(struct phi_skips *skips)
{
    for (uint32_t i = 1; i < PHI_SKIPS_MAX; i++) {
        const uint64_t bit = (uint64_t)1 << i % 64;
        if (atomic_load_explicit(&skips->taken[i / 64], memory_order_relaxed) & bit)
            continue;
        if (atomic_fetch_or_explicit(&skips->taken[i / 64], bit, memory_order_acquire) & bit)
            continue;
        atomic_store_explicit(&skips->words[i], 0, memory_order_relaxed);
        return i;
    }
    return 0;
}

void phi_skips_give(struct phi_skips *skips, uint32_t index)
{
    if (index != 0)
        atomic_fetch_and_explicit(&skips->taken[index / 64], ~((uint64_t)1 << index % 64),
                                  memory_order_release);
}
