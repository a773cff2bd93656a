// SPDX-License-Identifier: BSD-3-Clause
// pages: ph_put_pages and ph_get_pages. All pages of the buffer in random order, each to the place
// that it has at the other end, so that the bytes are those of one copy. The numbers lie behind the
// pages, in memory of the arena's kind.
#include <stdlib.h>

#include "cases.h"

size_t bench_pages_room(const struct bench_options *options, size_t size)
{
    return size / (size_t)options->page_size * sizeof(uint32_t) + 4096;
}

static size_t pages_of(const struct bench_run *run)
{
    const struct bench_options *options = run->bench->options;
    return run->size / (size_t)(options->page_size * options->parts);
}

static char *numbers_of(const struct bench_run *run)
{
    return (char *)run->bench->arena.base + run->out + ((run->size + 4095) & ~(size_t)4095);
}

// An order that is the same in each run.
static void shuffle(uint32_t *numbers, size_t n)
{
    uint64_t random = 1;
    for (size_t i = 0; i < n; i++)
        numbers[i] = (uint32_t)i;
    for (size_t i = n; i > 1; i--) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const size_t j = (size_t)(random >> 33) % i;
        const uint32_t number = numbers[i - 1];
        numbers[i - 1] = numbers[j];
        numbers[j] = number;
    }
}

static int begin(struct bench_run *run)
{
    struct bench *bench = run->bench;
    const size_t pages = pages_of(run);
    const size_t page = (size_t)(bench->options->page_size * bench->options->parts);
    if (pages == 0 || run->size % page)
        return bench_fail(bench, -EINVAL,
                          "%zu bytes are not whole pages (--page-size, --parts): say --pages",
                          run->size);
    if (!bench->leader)
        return 0;
    uint32_t *numbers = malloc(pages * sizeof *numbers);
    if (numbers == NULL)
        return bench_fail(bench, -ENOMEM, "page numbers");
    shuffle(numbers, pages);
    int rc =
        bench->device->ops->write(bench->device, numbers_of(run), numbers, pages * sizeof *numbers);
    free(numbers);
    return rc ? bench_fail(bench, rc, "%s", bench->device->error) : 0;
}

static int copy(struct bench_run *run, struct ph_channel *channel, uint64_t *at)
{
    struct bench *bench = run->bench;
    const struct bench_options *options = bench->options;
    const struct ph_page_end end = {.at = at,
                                    .page_stride = (uint64_t)options->page_size,
                                    .numbers = numbers_of(run),
                                    .number_bytes = sizeof(uint32_t)};
    const struct ph_pages pages = {.struct_size = sizeof pages,
                                   .pages = (uint32_t)pages_of(run),
                                   .parts = (uint32_t)options->parts,
                                   .rows = 1,
                                   .row_bytes = (uint64_t)options->page_size,
                                   .local = end,
                                   .peer = end};
    return run->test->get ? BENCH_ISSUE(bench, ph_get_pages(channel, &pages, bench->stream))
                          : BENCH_ISSUE(bench, ph_put_pages(channel, &pages, bench->stream));
}

static int once(struct bench_run *run)
{
    const struct bench_options *options = run->bench->options;
    struct ph_channel *channel = run->test->get ? run->backward[0] : run->forward[0];
    uint64_t at[BENCH_PARTS_MAX];
    for (int64_t p = 0; p < options->parts; p++)
        at[p] = (uint64_t)p * pages_of(run) * (uint64_t)options->page_size;
    return run->bench->leader ? copy(run, channel, at) : 0;
}

const struct bench_case bench_pages_put = {
    .name = "pages-put",
    .what = "lists of pages in random order, put one after the other",
    .metric = BENCH_BANDWIDTH_GBPS,
    .sizes = {16 << 20},
    .ways = BENCH_FORWARD,
    .raw = BENCH_RAW_COPY,
    .pages = true,
    .channels = 1,
    .samples = 20,
    .begin = begin,
    .once = once,
    .end = bench_tell,
};

const struct bench_case bench_pages_get = {
    .name = "pages-get",
    .what = "lists of pages in random order, got one after the other",
    .metric = BENCH_BANDWIDTH_GBPS,
    .sizes = {16 << 20},
    .ways = BENCH_BACKWARD,
    .raw = BENCH_RAW_COPY,
    .get = true,
    .pages = true,
    .channels = 1,
    .samples = 20,
    .begin = begin,
    .once = once,
    .end = bench_meet,
};
