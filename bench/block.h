// SPDX-License-Identifier: BSD-3-Clause
// A block: iterations that are timed together, between two barriers.
#ifndef BENCH_BLOCK_H
#define BENCH_BLOCK_H

#include "cases.h"

enum bench_block_kind {
    BENCH_BLOCK_WARMUP, // never as a graph, not verified
    BENCH_BLOCK_TIMED,
    BENCH_BLOCK_RAW, // the limit instead
};

// bench_block_run runs count iterations; *us is what they took this rank, 0 where it measures
// nothing.
int bench_block_run(struct bench_run *run, enum bench_block_kind kind, size_t count, double *us);

// bench_block_capture makes the graph of timed blocks of count iterations. Nothing runs.
int bench_block_capture(struct bench_run *run, size_t count);

#endif
