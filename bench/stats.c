// SPDX-License-Identifier: BSD-3-Clause
#include "stats.h"

#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// The nearest rank: the smallest sample with at least percent % of all at or before it, in order
// from best to worst.
static double percentile(const double *sorted, size_t n, unsigned percent, bool more_is_better)
{
    size_t rank = (n * percent + 99) / 100;
    size_t index = rank > 0 ? rank - 1 : 0;
    return sorted[more_is_better ? n - 1 - index : index];
}

void bench_stats_compute(double *values, size_t n, bool more_is_better, struct bench_stats *stats)
{
    qsort(values, n, sizeof(*values), compare);
    *stats = (struct bench_stats){
        .median = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2,
        .min = values[0],
        .p90 = percentile(values, n, 90, more_is_better),
        .p99 = percentile(values, n, 99, more_is_better),
    };
}
