// SPDX-License-Identifier: BSD-3-Clause
// --tune: from which size on a pair's messages are quicker by the next method, as a line of
// PEERHOP_TABLE.
#ifndef BENCH_TUNE_H
#define BENCH_TUNE_H

#include <stddef.h>

#include "options.h"

// bench_tune measures the methods in turn, each in a context of its own, and prints the table; it
// is the life of one rank. Returns the exit status.
int bench_tune(const struct bench_options *options);

// bench_tune_kept returns how many of n sizes, in order, `one` keeps: `other` is quicker at the
// next, and at none after that slower by more than a hundredth, which is noise.
size_t bench_tune_kept(const double *one, const double *other, size_t n);

#endif
