// SPDX-License-Identifier: BSD-3-Clause
// An application's own kernels and streams, beside which the case overlap measures messages. Only
// for GPUs: load_cuda.c, or load_stub.c in a build without CUDA.
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BENCH_LOAD_WAVES    20 // blocks of a launch for each multiprocessor
#define BENCH_LOAD_BLOCK_US 5  // what each takes, about, where it has a multiprocessor alone
#define BENCH_LOAD_SLOTS    2  // launches that may be under way
#define BENCH_LOAD_EVENTS   16

enum bench_load_kernel {
    BENCH_LOAD_LIGHT, // 256 threads, no shared memory
    BENCH_LOAD_GEMM,  // as a matrix product: fits on a multiprocessor only alone
    BENCH_LOAD_KERNELS,
};

struct bench_load_shape {
    const char *name;
    unsigned threads, shared, registers;
};

// What one launch shows of its blocks.
struct bench_load_seen {
    unsigned blocks;          // of the grid
    unsigned begun;           // of these
    unsigned multiprocessors; // different ones that they have begun on
};

// bench_load_open loads the kernels, runs each of them once to know how much work takes
// BENCH_LOAD_BLOCK_US, and makes streams; the device is idle. Below, 0 or a negative code, whose
// sentence is in error.
struct bench_load;
int bench_load_open(struct bench_load **load, size_t streams, char *error, size_t error_size);
void bench_load_close(struct bench_load *load, bool failed); // work may wait for ever after that
const char *bench_load_error(const struct bench_load *load);
const struct bench_load_shape *bench_load_shape(const struct bench_load *load,
                                                enum bench_load_kernel kernel);

// For messages; the kernels have a stream of their own.
void *bench_load_stream(const struct bench_load *load, size_t stream);

// What is enqueued on the stream between begin and end becomes a graph, for launches on that
// stream.
int bench_load_begin_graph(struct bench_load *load, size_t stream);
int bench_load_end_graph(struct bench_load *load, size_t stream, void **graph);
int bench_load_launch_graph(struct bench_load *load, size_t stream, void *graph);
void bench_load_destroy_graph(struct bench_load *load, void *graph); // NULL: nothing

// bench_load_launch enqueues event `event`, the kernel and event `event` + 1; the launch before in
// that slot is over. bench_load_see looks at the blocks of that one.
int bench_load_launch(struct bench_load *load, enum bench_load_kernel kernel, unsigned slot,
                      unsigned event);
void bench_load_see(const struct bench_load *load, unsigned slot, struct bench_load_seen *seen);

// Events: numbers below BENCH_LOAD_EVENTS. bench_load_passed: 1, 0 not yet, or a negative code.
int bench_load_record(struct bench_load *load, unsigned event, size_t stream);
int bench_load_passed(struct bench_load *load, unsigned event);
int bench_load_between(struct bench_load *load, unsigned from, unsigned to, double *us);

// The argument of the kernels in load.cuh, which device and host share.
struct bench_load_args {
    uint64_t where;  // a word for each block: mark << 16, and its multiprocessor
    uint32_t mark;   // of this launch, below 1 << 16
    uint32_t rounds; // of work in each block
    float never;     // no sum is that: so nothing of the work is left out
};

#endif
