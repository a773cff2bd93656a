// SPDX-License-Identifier: BSD-3-Clause
// What --late, --graphs and --fresh make of a case: how it does beside the work of an application.
#ifndef BENCH_BESIDE_H
#define BENCH_BESIDE_H

#include "cases.h"

// bench_beside_case returns the case, or what the options make of it in *variant.
const struct bench_case *bench_beside_case(const struct bench_case *test,
                                           const struct bench_options *options,
                                           struct bench_case *variant);

// bench_late_rows makes the results of --late (late.c).
int bench_late_rows(struct bench_run *run, bench_row *row);

// bench_live_capture makes the graphs of --graphs that are not the measured one: they live until
// bench_live_destroy, and never run. Each has BENCH_LIVE_ITERATIONS iterations of the case.
#define BENCH_LIVE_ITERATIONS 4
int bench_live_capture(struct bench_run *run);
void bench_live_destroy(struct bench_run *run);

// Of --fresh (fresh.c). bench_fresh_area: the pool that the buffers of messages of that size are
// from.
size_t bench_fresh_area(size_t size);
int bench_fresh_open(struct bench_run *run);
int bench_fresh_sample(struct bench_run *run, double *us);

#endif
