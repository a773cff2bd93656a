// SPDX-License-Identifier: BSD-3-Clause
// Results as a table for people, or as JSON, one object a line.
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "stats.h"

// What kernels and messages that run beside each other lose (overlap.c): the result is the
// kernel's, or the messages', the limit what they take alone.
struct bench_overlap {
    const char *kernel;
    const char *beside; // "waiting": receives; "moving": messages
    unsigned threads, registers, shared;
    bool of_messages;
    size_t streams;
    size_t receives; // on each, where they wait
    size_t posted;   // of all: those before one was refused by -EAGAIN
    size_t refused;  // calls of this rank, by -EAGAIN, that came again
    bool stuck;      // the kernel did not end in time: there are no figures
    unsigned blocks, begun;
    unsigned multiprocessors, idle_multiprocessors; // that had blocks of the kernel
};

// One measurement. Strings may be NULL where there is no such thing.
struct bench_result {
    const char *test, *protocol, *issue, *path, *method, *wait, *kind, *metric, *device;
    int ranks;
    size_t bytes, channels;
    uint64_t iterations;
    bool group, verified;
    bool compared; // limit and ratio are known
    double limit, ratio;
    const char *limit_of; // "raw", "nccl", "alone" (overlap), "on_time" (late)
    const char *nccl_version, *nccl_path;
    uint64_t ll_max, sm_max; // of ph_path_report
    struct bench_stats stats;

    const struct bench_overlap *overlap; // NULL: not of that case
    const char *late;                    // who is late: "message", "receive"; NULL: nobody
    double warm;                         // the same without a rest, of late
    bool fresh;
    uint64_t late_us, graphs; // the first of late; 0: no graphs

    bool exchange; // the members below are known: per call of rank 0
    size_t ops, segments;
    double imports, offers, store_commands;
};

void bench_report_table_head(FILE *out);
void bench_report_table(FILE *out, const struct bench_result *result);
void bench_report_json(FILE *out, const struct bench_result *result);

// bench_size_text writes a size as people do: "8", "64K", "512M".
const char *bench_size_text(size_t size, char *text, size_t text_size);

#endif
