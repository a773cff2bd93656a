// SPDX-License-Identifier: BSD-3-Clause
#include "semaphore/page_launch.h"

#include <errno.h>
#include <string.h>

#include "semaphore/record.h"
#include "semaphore/view.h"

// Returns the address by which kernels read memory of the caller's, or 0: they do not.
static uint64_t readable(const struct phi_driver *driver, const void *address)
{
    uint64_t device;
    bool host;
    return phi_view_any(driver, address, &device, &host) ? device : 0;
}

static size_t numbers_bytes(const struct phi_page_list *list, const struct phi_page_end *end)
{
    return end->numbers != NULL && end->numbers_at == 0
               ? phi_page_list_room((size_t)list->pages * end->number_bytes)
               : 0;
}

static size_t carried(const struct phi_page_list *list)
{
    return (size_t)2 * list->parts * sizeof(uint64_t) + numbers_bytes(list, &list->source) +
           numbers_bytes(list, &list->destination) +
           (list->count != NULL && list->count_at == 0 ? 8 : 0);
}

static void look(const struct phi_driver *driver, struct phi_page_list *list)
{
    for (int i = 0; i < 2; i++) {
        struct phi_page_end *end = i ? &list->destination : &list->source;
        if (end->numbers != NULL)
            end->numbers_at = readable(driver, end->numbers);
    }
    if (list->count != NULL)
        list->count_at = readable(driver, list->count);
}

// ---- the ring

static void reclaim(struct phi_list_memory *lists)
{
    while (lists->count > 0) {
        const struct phi_list_entry *oldest = &lists->entries[lists->first];
        if (phi_record_done(lists->records, (int)oldest->index) < oldest->number)
            return;
        lists->tail = oldest->end;
        lists->first = (lists->first + 1) % PHI_LIST_ENTRIES;
        lists->count--;
    }
}

// Takes bytes of the ring that follow one another. NULL: there is no room now. With the lock.
static uint8_t *take(struct phi_list_memory *lists, size_t bytes, uint64_t number, uint32_t index)
{
    reclaim(lists);
    if (lists->count == 0)
        lists->head = lists->tail = 0;
    uint64_t begin = lists->head;
    if (begin % PHI_LIST_BYTES + bytes > PHI_LIST_BYTES)
        begin += PHI_LIST_BYTES - begin % PHI_LIST_BYTES;
    if (begin + bytes - lists->tail > PHI_LIST_BYTES || lists->count == PHI_LIST_ENTRIES)
        return NULL;
    lists->head = begin + bytes;
    lists->entries[(lists->first + lists->count++) % PHI_LIST_ENTRIES] =
        (struct phi_list_entry){.end = lists->head, .number = number, .index = index};
    return lists->bytes + begin % PHI_LIST_BYTES;
}

static int refuse(const struct phi_work *work, struct phi_report *report, int rc, size_t bytes,
                  const char *why)
{
    return phi_refuse(
        report, rc,
        "%s of operation %llu with rank %d: the call has to keep %zu bytes of numbers "
        "and offsets %s (numbers in device memory or in pinned memory need none)",
        phi_program_name(work->call), (unsigned long long)work->op_id, work->peer, bytes, why);
}

static int place(const struct phi_driver *driver, struct phi_list_memory *lists,
                 const struct phi_work *work, struct phi_list_reader reader,
                 struct phi_report *report)
{
    struct phi_page_list *list = work->pages;
    look(driver, list);
    const size_t bytes = carried(list);
    list->kept = NULL;
    if (bytes <= PHI_PAGES_PAYLOAD)
        return 0;
    if (reader.captured)
        return refuse(work, report, -ENOTSUP, bytes, "for a graph, and a launch takes 3584");
    if (bytes > PHI_LIST_BYTES)
        return refuse(work, report, -E2BIG, bytes, "and there are 4 MiB for all");
    pthread_mutex_lock(&lists->lock);
    list->kept = take(lists, bytes, reader.number, reader.index);
    pthread_mutex_unlock(&lists->lock);
    return list->kept ? 0
                      : refuse(work, report, -EAGAIN, bytes,
                               "and lists that streams have not come to fill the 4 MiB for all");
}

void phi_pages_unplace(struct phi_list_memory *lists, const struct phi_work *work, size_t n,
                       struct phi_list_reader reader)
{
    bool any = false;
    for (size_t i = 0; i < n; i++)
        any = any || (work[i].kind == PHI_STEP_PAGES && work[i].pages->kept != NULL);
    if (!any)
        return;
    pthread_mutex_lock(&lists->lock);
    for (uint32_t i = 0; i < lists->count; i++) {
        struct phi_list_entry *entry = &lists->entries[(lists->first + i) % PHI_LIST_ENTRIES];
        if (entry->index == reader.index && entry->number == reader.number)
            entry->number = 0; // which is always done
    }
    pthread_mutex_unlock(&lists->lock);
}

int phi_pages_place(const struct phi_driver *driver, struct phi_list_memory *lists,
                    const struct phi_work *work, size_t n, struct phi_list_reader reader,
                    struct phi_report *report)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        if (work[i].kind == PHI_STEP_PAGES)
            rc = place(driver, lists, &work[i], reader, report);
    if (rc)
        phi_pages_unplace(lists, work, n, reader);
    return rc;
}

// ---- the arguments

// The bytes that a list carries, and how kernels find them.
struct carrier {
    uint8_t *at;
    uint64_t address;
};

static uint64_t carry(struct carrier *carrier, const void *bytes, size_t size)
{
    const uint64_t address = carrier->address;
    memcpy(carrier->at, bytes, size);
    carrier->at += phi_page_list_room(size);
    carrier->address += phi_page_list_room(size);
    return address;
}

static CUresult fill_end(const struct phi_driver *driver, const struct phi_page_list *list,
                         const struct phi_page_end *end, struct carrier *carrier,
                         struct phi_pages_end *filled)
{
    *filled = (struct phi_pages_end){
        .ranges = end->ranges_device,
        .size = end->size,
        .page_stride = end->page_stride,
        .row_stride = end->row_stride,
        .most = end->most,
        .number_bytes = end->number_bytes,
        .range_count = end->range_count,
        .numbers = end->numbers_at,
    };
    filled->at = carry(carrier, end->at, list->parts * sizeof(uint64_t));
    if (numbers_bytes(list, end) > 0)
        filled->numbers = carry(carrier, end->numbers, (size_t)list->pages * end->number_bytes);
    return phi_view(driver, end->base, end->host, &filled->base);
}

// All addresses are multiples of the unit: those of the rows, as buffers, offsets and strides are.
static uint32_t unit_of(const struct phi_page_list *list, const struct phi_pages_args *args)
{
    uint64_t bits = args->row_bytes;
    for (int i = 0; i < 2; i++) {
        const struct phi_page_end *end = i ? &list->destination : &list->source;
        bits |= i ? args->destination.base : args->source.base;
        bits |= end->page_stride | (list->rows > 1 ? end->row_stride : 0);
        for (uint32_t p = 0; p < list->parts; p++)
            bits |= end->at[p];
        for (uint32_t r = 0; end->ranges != NULL && r < end->range_count; r++)
            bits |= end->ranges[r].begin | end->ranges[r].address;
    }
    return bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : bits % 4 == 0 ? 4 : 1;
}

static uint32_t blocks_of(const struct phi_page_list *list, uint32_t unit, uint32_t most)
{
    const uint64_t warps = PHI_PAGES_THREADS / 32, tile = (uint64_t)PHI_PAGES_TILE * unit;
    const uint64_t per_tile = tile / list->row_bytes; // rows
    const uint64_t rows = phi_page_list_rows(list);
    const uint64_t tiles = per_tile > 1 ? (rows + (per_tile < 32 ? per_tile : 32) - 1) /
                                              (per_tile < 32 ? per_tile : 32)
                                        : rows * ((list->row_bytes + tile - 1) / tile);
    const uint64_t wanted = (tiles + warps - 1) / warps;
    most = most < PHI_PAGES_BLOCKS ? most : PHI_PAGES_BLOCKS;
    return wanted < most ? (uint32_t)wanted : most;
}

CUresult phi_pages_fill(const struct phi_driver *driver, const struct phi_list_memory *lists,
                        uint32_t blocks, const struct phi_work *work, struct phi_pages_args *args,
                        struct phi_grid *grid)
{
    const struct phi_page_list *list = work->pages;
    struct carrier carrier = {args->payload, PHI_PAGES_INLINE};
    if (list->kept != NULL)
        carrier =
            (struct carrier){list->kept, lists->device + (uint64_t)(list->kept - lists->bytes)};
    args->row_bytes = list->row_bytes;
    args->pages = list->pages;
    args->parts = list->parts;
    args->rows = list->rows;
    args->skipped = list->skipped_device;
    args->count = list->count_at;
    if (list->count != NULL && list->count_at == 0)
        args->count = carry(&carrier, list->count, sizeof *list->count);
    CUresult result = fill_end(driver, list, &list->source, &carrier, &args->source);
    if (result == CUDA_SUCCESS)
        result = fill_end(driver, list, &list->destination, &carrier, &args->destination);
    args->unit = unit_of(list, args);
    *grid = (struct phi_grid){PHI_KERNEL_PAGES,
                              blocks_of(list, args->unit, list->blocks ? list->blocks : blocks),
                              PHI_PAGES_THREADS};
    return result;
}
