// SPDX-License-Identifier: BSD-3-Clause
// Percentiles of samples.
#ifndef BENCH_STATS_H
#define BENCH_STATS_H

#include <stdbool.h>
#include <stddef.h>

// p90 and p99: what 90 % and 99 % of the samples were at least as good as. min is the smallest
// value.
struct bench_stats {
    double median, min, p90, p99;
};

// bench_stats_compute sorts values (n > 0). more_is_better: bandwidths and rates, whose bad end is
// the low one.
void bench_stats_compute(double *values, size_t n, bool more_is_better, struct bench_stats *stats);

#endif
