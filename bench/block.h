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

// bench_block_begin and bench_block_end stand around a block: a new pattern and a barrier, and a
// look at what has come (both only with --verify, and not where the block is not timed).
int bench_block_begin(struct bench_run *run, bool timed);
int bench_block_end(struct bench_run *run, bool timed);

// bench_block_fill writes a fresh pattern of this block into what this rank sends, and
// bench_block_check compares what it has received with it; the stream is idle. bench->block counts
// the blocks, at all ranks alike.
int bench_block_fill(struct bench_run *run);
int bench_block_check(struct bench_run *run);

// bench_block_capture makes a graph of count calls of call, by default (NULL) of the case's once.
// Nothing runs, and where a call is refused nothing is left.
int bench_block_capture(struct bench_run *run, int (*call)(struct bench_run *run), size_t count,
                        void **graph);

#endif
