/* SPDX-License-Identifier: BSD-3-Clause */
/* Hand-over of a key-value cache: rank 0 decodes, all other ranks prefill.

       cc kv_pages.c $(pkg-config --cflags --libs peerhop) -o kv_pages
       peerhop-run -n 3 ./kv_pages

   The decoder's cache is one buffer of pages, which the prefill ranks map once. For each request it
   picks free pages and says which; the prefill rank puts its pages there, wherever they lie, and
   tells once. No page is copied twice, and nothing is exchanged again. */
#include "example.h"

enum { PAGES = 64, MOST = 8, NUMBERS = 4096, ROUNDS = 6 }; /* numbers of a page */
static const size_t PAGE = NUMBERS * sizeof(int);

/* What the decoder tells a prefill rank: the request, and where its pages go. */
struct table {
    int request, count, page[MOST];
};

/* What a rank has with another: its pages go by the bound channel, the table by the unbound one,
   where each call names its memory. */
struct peer {
    struct ph_channel *pages, *tables;
    struct table *table; /* the stream reads or writes it, also where that is a GPU's */
};

static void *stream;

static struct peer meet(int peer, void *pages, size_t size)
{
    const bool decoder = ph_context_rank(context) == 0;
    const struct ph_operation ops[] = {
        {.op_id = 1,
         .peer = peer,
         .role = decoder ? PH_ROLE_RECEIVER : PH_ROLE_SENDER,
         .buffer = pages,
         .size = size},
        {.op_id = 2, .peer = peer, .role = decoder ? PH_ROLE_SENDER : PH_ROLE_RECEIVER},
    };
    struct ph_channel *channels[2];
    void *table;

    check(ph_exchange(context, ops, 2, channels));
    check(ph_host_alloc(context, sizeof(struct table), &table));
    return (struct peer){.pages = channels[0], .tables = channels[1], .table = table};
}

/* A queue or a stream is done also where the peer has died: then its pages are not there. */
static void all_came(const struct peer *peer)
{
    stream_wait(stream);
    check(ph_channel_status(peer->pages));
    check(ph_channel_status(peer->tables));
}

static int number(int request, int page, int i)
{
    return request * 100000 + page * 10000 + i;
}

/* ---- prefill */

/* Here a model writes keys and values. Each request finds other pages of this rank's own. */
static void compute(const struct table *table, char *own)
{
    int *numbers = allocate(NUMBERS, sizeof *numbers);

    for (int page = 0; page < table->count; page++) {
        for (int i = 0; i < NUMBERS; i++)
            numbers[i] = number(table->request, page, i);
        copy(own + (size_t)page * PAGE, numbers, PAGE, stream);
    }
    free(numbers);
}

/* All pages are one list, and on a GPU one launch. The signal tells of all of them. The table stays
   as it is until the stream has come here: the next one is received behind it. */
static void put_pages(const struct peer *decoder)
{
    const struct table *table = decoder->table;
    struct ph_pages list = {.struct_size = sizeof list,
                            .pages = (uint32_t)table->count,
                            .parts = 1,
                            .rows = 1,
                            .row_bytes = PAGE,
                            .local = {.page_stride = PAGE},
                            .peer = {.page_stride = PAGE,
                                     .numbers = table->page,
                                     .number_bytes = sizeof table->page[0]}};
    const struct ph_group_op ops[] = {
        {.kind = PH_GROUP_PUT_PAGES, .channel = decoder->pages, .data = &list},
        {.kind = PH_GROUP_SIGNAL, .channel = decoder->pages}};

    check(ph_group(ops, 2, stream));
}

static void prefill(void)
{
    char *own = memory_new(MOST * PAGE);
    struct peer decoder = meet(0, own, MOST * PAGE);

    for (int round = 0; round < ROUNDS; round++) {
        check(ph_recv_into(decoder.tables, decoder.table, sizeof(struct table), stream));
        all_came(&decoder); /* this thread reads the table, to name the pages */
        compute(decoder.table, own);
        put_pages(&decoder);
    }
    all_came(&decoder);
}

/* ---- decode */

struct cache {
    char *memory;
    bool used[PAGES];
};

/* Takes free pages from all over the cache, as they are after many requests. */
static void take_pages(struct cache *cache, struct table *table)
{
    int page = table->request * 29;

    for (int i = 0; i < table->count; i++) {
        do
            page = (page + 13) % PAGES;
        while (cache->used[page]);
        cache->used[page] = true;
        table->page[i] = page;
    }
}

/* Here a model reads keys and values. Then the pages are free for other requests. */
static void use_pages(struct cache *cache, const struct table *table)
{
    int *numbers = allocate(NUMBERS, sizeof *numbers);

    for (int page = 0; page < table->count; page++) {
        copy(numbers, cache->memory + (size_t)table->page[page] * PAGE, PAGE, stream);
        for (int i = 0; i < NUMBERS; i++)
            expect(numbers[i] == number(table->request, page, i), "page");
        cache->used[table->page[page]] = false;
    }
    free(numbers);
}

/* One request of each prefill rank is under way at a time. */
static void decode(int prefillers)
{
    struct cache cache = {.memory = memory_new(PAGES * PAGE)};
    struct peer *peers = allocate((size_t)prefillers, sizeof *peers);
    int request = 0;

    for (int i = 0; i < prefillers; i++)
        peers[i] = meet(i + 1, cache.memory, PAGES * PAGE);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < prefillers; i++) {
            *peers[i].table = (struct table){.request = ++request, .count = 1 + request % MOST};
            take_pages(&cache, peers[i].table);
            check(ph_send_from(peers[i].tables, peers[i].table, sizeof(struct table), stream));
        }
        for (int i = 0; i < prefillers; i++) {
            check(ph_wait(peers[i].pages, 0, stream)); /* a signal that carried no bytes */
            all_came(&peers[i]);
            use_pages(&cache, peers[i].table);
        }
    }
    printf("%d requests of %d prefill ranks, on %s\n", request, prefillers,
           ph_context_device(context));
    free(peers);
}

int main(void)
{
    int ranks;

    begin(2);
    ranks = ph_context_ranks(context);
    if (ranks - 1 > PAGES / MOST) {
        fprintf(stderr, "the cache has pages for %d prefill ranks\n", PAGES / MOST);
        return 1;
    }
    stream = stream_new();
    if (ph_context_rank(context) == 0)
        decode(ranks - 1);
    else
        prefill();
    end();
    return 0;
}
