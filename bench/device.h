// SPDX-License-Identifier: BSD-3-Clause
// What the bench needs of host memory or of a GPU beside the library: memory, streams, marks in
// streams, graphs, and the raw limits that results are compared with.
#ifndef BENCH_DEVICE_H
#define BENCH_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <peerhop/context.h>

#include "direct.h"

struct bench_device;

struct bench_memory {
    void *base;
    size_t size;
};

// How a peer finds what raw copies and raw flags touch. Both ranks run the same binary on one node.
struct bench_raw_handle {
    int64_t pid;
    int32_t arena_fd;                // host: the memfd of the arena
    int32_t words_fd;                // the memfd of the flag words
    uint64_t size;                   // of the arena
    uint8_t ipc[64];                 // cuda: handle of an allocation of that size
    struct bench_direct_name direct; // host, over the net
};

// One raw copy between the arenas of a pair: the same bytes as the case's.
struct bench_raw_copy {
    struct bench_device *device;
    bool get; // from the peer's `peer_offset` to `local_offset`; else the other way
    size_t local_offset, peer_offset, size;
};

// Contract of devices. All return 0 or a negative code and print nothing but bench_device_error's
// sentence; one thread.
// - open makes the device usable; attach comes after the context is made and creates the stream.
// - alloc: `arena` is the one allocation that raw copies go between; others are only for exchanges.
// Freed by close.
// - write, read: synchronous copies between the program's memory and the device's; the stream is
// idle.
// - synchronize waits for the stream, at most deadline_ms.
// - mark notes the time when the stream reaches it, at index 0 or 1; elapsed (after synchronize) is
// their difference.
// - begin_graph ... end_graph: what is enqueued between becomes a graph; NULL: no such thing here.
// - open_kernels loads kernel.cu; run_kernel enqueues it with args, whose result is the device's
// own, and kernel_result (after synchronize) is 0 or what the first call that failed in it has
// returned. NULL: no such thing here.
// - note enqueues: the stream stands still for so long, then notes the time of its device's clock
// at an index; read_notes (after synchronize) gives all. open_notes comes first, any number of
// times.
// - hold enqueues: the stream goes no further until release, or BENCH_HELD_NS have passed.
// open_notes comes first. NULL: here, what is enqueued runs meanwhile.
// - raw_handle, raw_open: the two halves of connecting to the peer. raw_copy and raw_flags enqueue
// on the stream;
//   raw_flags: count ping-pongs of a bare flag, the leader first. The copy struct lives until
//   synchronize. raw_finish (or NULL) comes behind them at both ranks of a pair and is over when
//   both are there.
// - detach (before the context ends) ends the stream; close (after it) frees everything.
#define BENCH_NOTES   21
#define BENCH_HELD_NS 10000000000
struct bench_kernel_args;
struct bench_device_ops {
    const char *kind;
    int (*open)(struct bench_device *device, int rank);
    int (*attach)(struct bench_device *device, struct ph_context *context, void **stream);
    int (*alloc)(struct bench_device *device, bool arena, size_t size, void **base);
    int (*write)(struct bench_device *device, void *destination, const void *source, size_t size);
    int (*read)(struct bench_device *device, void *destination, const void *source, size_t size);
    int (*synchronize)(struct bench_device *device, int64_t deadline_ms);
    int (*mark)(struct bench_device *device, unsigned index);
    int (*elapsed)(struct bench_device *device, double *us);
    int (*begin_graph)(struct bench_device *device);
    int (*end_graph)(struct bench_device *device, void **graph);
    int (*launch_graph)(struct bench_device *device, void *graph);
    void (*destroy_graph)(struct bench_device *device, void *graph);
    int (*open_kernels)(struct bench_device *device);
    int (*run_kernel)(struct bench_device *device, struct bench_kernel_args *args, unsigned blocks,
                      unsigned threads);
    int (*kernel_result)(struct bench_device *device);
    int (*open_notes)(struct bench_device *device);
    int (*note)(struct bench_device *device, unsigned index, uint64_t after_ns);
    int (*read_notes)(struct bench_device *device, uint64_t ns[BENCH_NOTES]);
    int (*hold)(struct bench_device *device);
    void (*release)(struct bench_device *device);
    int (*raw_handle)(struct bench_device *device, struct bench_raw_handle *handle);
    int (*raw_open)(struct bench_device *device, const struct bench_raw_handle *peer);
    int (*raw_copy)(struct bench_device *device, struct bench_raw_copy *copy);
    int (*raw_flags)(struct bench_device *device, bool leader, size_t count);
    int (*raw_finish)(struct bench_device *device);
    void (*detach)(struct bench_device *device);
    void (*close)(struct bench_device *device);
};

#define BENCH_MODEL_SIZE 65

struct bench_device {
    const struct bench_device_ops *ops;
    bool net;                     // ranks are reached over the net: its raw limits
    char name[24];                // as ph_context_params.device wants it
    char model[BENCH_MODEL_SIZE]; // of a GPU, as PEERHOP_TABLE names it
    char error[256];              // of the last failure
};

// bench_cuda_device: another one at each of the first BENCH_CUDA_DEVICES calls, and no more calls.
struct bench_device *bench_host_device(void);
struct bench_device *bench_cuda_device(void);
#define BENCH_CUDA_DEVICES 3

// bench_cuda_count: devices of the driver; 0 with the reason in why.
int bench_cuda_count(char *why, size_t why_size);

// bench_peer_fd opens a memfd of another process of the same user; *fd is the caller's.
int bench_peer_fd(int64_t pid, int fd, int *opened);

// bench_words_open makes a memfd with one page of flag words and maps it.
int bench_words_open(int *fd, void **words);
#define BENCH_WORDS_SIZE 4096

#endif
