// SPDX-License-Identifier: BSD-3-Clause
#include "transfer/pages.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "peer/channel.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "semaphore/pages.h"

static int refuse(const struct ph_channel *channel, int rc, const char *what)
{
    return phi_fail(channel->self->report, rc, "operation %llu with rank %d: a list of pages %s",
                    (unsigned long long)channel->op_id, channel->peer->rank, what);
}

static int check_end(const struct ph_channel *channel, const struct ph_pages *pages,
                     const struct ph_page_end *end, size_t size)
{
    uint64_t rows, page;
    if (end->numbers != NULL && end->number_bytes != 4 && end->number_bytes != 8)
        return refuse(channel, -EINVAL, "has numbers that are not of 4 or 8 bytes each");
    if (end->numbers != NULL && (uintptr_t)end->numbers % end->number_bytes != 0)
        return refuse(channel, -EINVAL,
                      "has numbers at an address that is no multiple of their size");
    if (__builtin_mul_overflow((uint64_t)pages->rows - 1, end->row_stride, &rows) ||
        __builtin_add_overflow(rows, pages->row_bytes, &page) || page > size)
        return refuse(channel, -EINVAL, "has rows of a page that reach beyond a buffer");
    for (uint32_t p = 0; end->at != NULL && p < pages->parts; p++)
        if (end->at[p] > size - page)
            return refuse(channel, -EINVAL, "has a part that begins too far behind in a buffer");
    return 0;
}

static int check(const struct ph_channel *channel, const struct ph_pages *pages)
{
    if (pages == NULL || pages->struct_size < sizeof *pages)
        return refuse(channel, -EINVAL, "is missing, or its struct_size is not set");
    if (pages->parts == 0 || pages->rows == 0)
        return refuse(channel, -EINVAL, "has no parts, or no rows");
    if (pages->pages == 0 || pages->row_bytes == 0)
        return 0;
    int rc = check_end(channel, pages, &pages->local, channel->fixed.own.size);
    if (rc == 0)
        rc = check_end(channel, pages, &pages->peer, channel->fixed.theirs.size);
    if (rc)
        return rc;
    if ((uintptr_t)pages->count % sizeof *pages->count != 0)
        return refuse(channel, -EINVAL, "has its count at an address that is no multiple of 4");
    // Kernels count rows, pieces of at least 256 bytes of one, and its bytes, in 32 bits.
    const uint64_t pieces = pages->row_bytes / 256 + 1;
    uint64_t all = pages->pages;
    if (__builtin_mul_overflow(all, pages->parts, &all) ||
        __builtin_mul_overflow(all, pages->rows, &all) ||
        __builtin_mul_overflow(all, pieces, &all) || all > INT32_MAX ||
        pages->row_bytes > UINT32_MAX)
        return refuse(channel, -E2BIG,
                      "has 2^31 rows or more, or rows of 4 GiB or more; make several lists");
    return 0;
}

static size_t numbers_size(const struct phi_page_list *list, const struct ph_page_end *end)
{
    return end->numbers ? phi_page_list_room((size_t)list->pages * end->number_bytes) : 0;
}

static void set_end(struct phi_page_end *end, const struct ph_page_end *from,
                    const struct phi_channel_end *memory, const struct phi_page_list *list,
                    uint8_t **room)
{
    const size_t at = list->parts * sizeof(uint64_t);
    *end = (struct phi_page_end){
        .base = memory->address,
        .ranges = memory->ranges,
        .ranges_device = memory->ranges_device,
        .range_count = memory->range_count,
        .host = memory->kind == PHI_KIND_HOST,
        .size = memory->size,
        .numbers = from->numbers,
        .page_stride = from->page_stride,
        .row_stride = list->rows > 1 ? from->row_stride : 0,
        .most = from->page_stride ? memory->size / from->page_stride : UINT64_MAX,
        .number_bytes = from->numbers ? from->number_bytes : 0,
        .at = (const uint64_t *)(void *)*room,
    };
    if (from->at != NULL)
        memcpy(*room, from->at, at);
    else
        memset(*room, 0, at);
    *room += at;
    const size_t numbers = numbers_size(list, from);
    if (!list->owned || numbers == 0)
        return;
    memcpy(*room, from->numbers, (size_t)list->pages * from->number_bytes);
    end->numbers = *room;
    *room += numbers;
}

static void count_skips(struct ph_channel *channel, struct phi_page_list *list)
{
    struct phi_skips *skips = &channel->self->executor->skips;
    uint32_t word = atomic_load_explicit(&channel->live.skips, memory_order_acquire), none = 0;
    if (word == 0 && (word = phi_skips_take(skips)) != 0 &&
        !atomic_compare_exchange_strong(&channel->live.skips, &none, word)) {
        phi_skips_give(skips, word);
        word = none;
    }
    if (word == 0)
        return;
    list->skipped = &skips->words[word];
    list->skipped_device = skips->device ? skips->device + word * sizeof(uint64_t) : 0;
}

int phi_pages_list(struct ph_channel *channel, bool outgoing, const struct ph_pages *pages,
                   bool keep, struct phi_page_list **out)
{
    struct phi_page_list head = {.holders = 1, .owned = keep};
    *out = NULL;
    int rc = check(channel, pages);
    if (rc)
        return rc;
    head.pages = pages->pages;
    if (keep && pages->count != NULL && *pages->count < head.pages)
        head.pages = *pages->count;
    if (head.pages == 0 || pages->row_bytes == 0)
        return 0;
    head.parts = pages->parts;
    head.rows = pages->rows;
    head.blocks = pages->blocks;
    head.row_bytes = pages->row_bytes;
    head.bytes = phi_page_list_rows(&head) * head.row_bytes;
    head.count = keep ? NULL : pages->count;
    const size_t kept =
        keep ? numbers_size(&head, &pages->local) + numbers_size(&head, &pages->peer) : 0;
    struct phi_page_list *list =
        malloc(sizeof *list + (size_t)2 * head.parts * sizeof(uint64_t) + kept);
    if (list == NULL)
        return refuse(channel, -ENOMEM, "has no memory");
    *list = head;
    uint8_t *room = (uint8_t *)(list + 1);
    const struct ph_page_end *from = outgoing ? &pages->local : &pages->peer;
    const struct ph_page_end *to = outgoing ? &pages->peer : &pages->local;
    const struct phi_channel_end *own = &channel->fixed.own, *theirs = &channel->fixed.theirs;
    set_end(&list->source, from, outgoing ? own : theirs, list, &room);
    set_end(&list->destination, to, outgoing ? theirs : own, list, &room);
    count_skips(channel, list);
    *out = list;
    return 0;
}

uint64_t phi_pages_skipped(const struct ph_channel *channel)
{
    const uint32_t word = atomic_load_explicit(&channel->live.skips, memory_order_acquire);
    return word ? atomic_load(&channel->self->executor->skips.words[word]) : 0;
}
