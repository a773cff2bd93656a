// SPDX-License-Identifier: BSD-3-Clause
// Lists of pages as work: what an executor gets of a ph_put_pages, the processor's copy of one, and
// the counts of pages that were left out.
#ifndef PHI_SEMAPHORE_PAGES_H
#define PHI_SEMAPHORE_PAGES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/ranges.h"

// One end of a list.
struct phi_page_end {
    uint8_t *base;                        // of the end's memory, where it is one range
    const struct phi_range_entry *ranges; // else a table, and as the device knows it
    uint64_t ranges_device;
    uint32_t range_count;
    bool host;     // host memory, which kernels know by another address
    uint64_t size; // of all ranges
    const uint64_t *at;
    const void *numbers; // or NULL
    uint64_t numbers_at; // where kernels read them, or 0; of an issue on a stream
    uint64_t page_stride, row_stride;
    uint64_t most; // no larger number can lie in the end: number * page_stride is no overflow
    uint32_t number_bytes;
};

// A list. `at` of its ends lies behind it. With `owned`, so do the numbers, and `pages` is the
// count that there was; else the pointers are the caller's, and good as long as the call. Rows of
// all parts and pages are fewer than 2^31.
struct phi_page_list {
    _Atomic uint32_t holders;
    bool owned;
    uint32_t pages, parts, rows, blocks;
    uint64_t row_bytes, bytes; // bytes: of all pages
    const uint32_t *count;     // or NULL
    uint64_t count_at;         // as numbers_at
    uint8_t *kept; // pinned memory for what a launch cannot carry; of an issue on a stream
    struct phi_page_end source, destination;
    _Atomic uint64_t *skipped; // or NULL: nobody counts
    uint64_t skipped_device;
};

// phi_page_list_room: the bytes that offsets or numbers take beside others, in multiples of 8.
static inline size_t phi_page_list_room(size_t bytes)
{
    return (bytes + 7) & ~(size_t)7;
}

void phi_page_list_hold(struct phi_page_list *list);
void phi_page_list_drop(struct phi_page_list *list);

// phi_page_list_run copies rows of an owned list from row *at on, as many as have at least `bytes`
// bytes together, and advances *at. False: more are left.
bool phi_page_list_run(const struct phi_page_list *list, size_t *at, size_t bytes);

// The rows of a list.
static inline uint64_t phi_page_list_rows(const struct phi_page_list *list)
{
    return (uint64_t)list->parts * list->pages * list->rows;
}

// phi_page_list_row finds a row of an owned list. False: it is left out; *skipped: and counts as
// skipped. The rows of a page follow one another, then those of the next page of the part.
struct phi_page_row {
    uint64_t source, destination; // offsets over the ends' ranges
    uint8_t *from, *to;           // where these lie; NULL: at a peer over the net
};
bool phi_page_list_row(const struct phi_page_list *list, uint64_t row, struct phi_page_row *found,
                       bool *skipped);

// The words in which pages that were left out are counted, one for each channel that has one.
// `device` is the address of the words as the device knows them. Word 0 is nobody's.
#define PHI_SKIPS_MAX 4096

struct phi_skips {
    _Atomic uint64_t *words;
    uint64_t device;
    _Atomic uint64_t taken[PHI_SKIPS_MAX / 64];
};

// phi_skips_take gives a word, which is 0, or 0 where none is left.
uint32_t phi_skips_take(struct phi_skips *skips);
void phi_skips_give(struct phi_skips *skips, uint32_t index);

#endif
