// SPDX-License-Identifier: BSD-3-Clause
#include "cases.h"

#include <string.h>

#include "beside.h"

const struct bench_case *const bench_case_table[] = {
    &bench_put_latency,       &bench_put_bandwidth,
    &bench_put_bidirectional, &bench_put_rate,
    &bench_put_batch,         &bench_get_latency,
    &bench_get_bandwidth,     &bench_get_bidirectional,
    &bench_get_rate,          &bench_send_latency,
    &bench_send_bandwidth,    &bench_send_bidirectional,
    &bench_send_rate,         &bench_unbound_latency,
    &bench_unbound_bandwidth, &bench_unbound_bidirectional,
    &bench_signal_latency,    &bench_pages_put,
    &bench_pages_get,         &bench_exchange_cold,
    &bench_exchange_hit,      &bench_import,
    &bench_overlap_case,
};

const size_t bench_case_count = sizeof(bench_case_table) / sizeof(bench_case_table[0]);

const struct bench_case *bench_case_find(const char *name)
{
    for (size_t i = 0; i < bench_case_count; i++)
        if (strcmp(bench_case_table[i]->name, name) == 0)
            return bench_case_table[i];
    return NULL;
}

static size_t largest_size(const struct bench_case *test, const struct bench_options *options)
{
    size_t largest = 1; // an operation's buffer has at least one byte
    for (size_t i = 0; i < options->sizes.n; i++)
        if (options->sizes.values[i] > largest)
            largest = options->sizes.values[i];
    for (size_t i = 0; options->sizes.n == 0 && i < 4; i++)
        if (test->sizes[i] > largest)
            largest = test->sizes[i];
    return largest;
}

size_t bench_case_area(const struct bench_case *test, const struct bench_options *options)
{
    if (test->open)
        return 0;
    if (options->fresh)
        return bench_fresh_area(largest_size(test, options));
    size_t stride = (largest_size(test, options) + 4095) & ~(size_t)4095;
    if (test->pages)
        stride += (bench_pages_room(options, stride) + 4095) & ~(size_t)4095;
    return 2 * bench_case_channels(test, options) * stride;
}
