// SPDX-License-Identifier: BSD-3-Clause
// Results as a table for people, or as JSON, one object a line.
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "stats.h"

// One measurement. Strings may be NULL where there is no such thing.
struct bench_result {
    const char *test, *protocol, *issue, *path, *method, *wait, *kind, *metric, *device;
    int ranks;
    size_t bytes, channels;
    uint64_t iterations;
    bool group, verified;
    bool compared; // limit and ratio are known
    double limit, ratio;
    uint64_t ll_max, sm_max, ll_end; // of ph_path_report
    struct bench_stats stats;

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
