// SPDX-License-Identifier: BSD-3-Clause
// The command line of peerhop-perf.
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define BENCH_SIZES_MAX 128
#define BENCH_CASES_MAX 64
#define BENCH_RANKS_MAX 64
#define BENCH_PARTS_MAX 1024

struct bench_case;

enum bench_compare {
    BENCH_COMPARE_NONE,
    BENCH_COMPARE_RAW,  // the limit of the machine
    BENCH_COMPARE_NCCL, // the same by NCCL
};

enum bench_issue {
    BENCH_ISSUE_STREAM,  // many operations, then one synchronisation
    BENCH_ISSUE_GRAPH,   // captured once, replayed
    BENCH_ISSUE_HOST,    // a synchronisation after each iteration
    BENCH_ISSUE_DEVICE,  // by a kernel that stays
    BENCH_ISSUE_REQUEST, // a request that the host waits for after each iteration
};

struct bench_sizes {
    size_t n;
    size_t values[BENCH_SIZES_MAX];
};

struct bench_options {
    bool list, help, version, json, verify, group, tune, fresh;
    bool progress;   // also where stderr is no terminal
    bool by_default; // nobody has named a case
    size_t case_count;
    const struct bench_case *cases[BENCH_CASES_MAX];
    struct bench_sizes sizes; // none: each case's own
    int64_t iterations;       // 0: chosen by the case and the time that one takes
    int64_t warmup;
    int64_t ranks;
    int64_t channels; // 0: the case's own
    int64_t ops, segments;
    int64_t pages, page_size, parts; // of lists of pages; pages 0: as many as the size has
    int64_t deadline_s;              // of the whole run
    enum bench_compare compare;
    int64_t late_us; // -1: not given
    int64_t graphs;  // that live beside; 0: not given
    enum bench_issue issue;
    const char *kind;     // "auto", "host", "cuda"
    const char *path;     // "auto", "ipc", "net"
    const char *method;   // of PEERHOP_METHOD; NULL: not given
    const char *wait;     // of PEERHOP_WAIT; NULL: not given
    const char *protocol; // "put", "get"
    const char *store;    // NULL: not given
    const char *save;     // file for the table of --tune; NULL: not given
};

// bench_options_parse fills options from a command line; strings point into argv. -EINVAL: the
// sentence is in error.
int bench_options_parse(struct bench_options *options, int argc, char **argv, char *error,
                        size_t error_size);

// bench_sizes_parse adds what text names: "8", "64K", "8:1G" (doubling), "8:1G:x4". Suffixes K, M,
// G are powers of 1024. -EINVAL (not such a text, 0 in a range, factor below 2), -E2BIG (too many):
// nothing is added.
int bench_sizes_parse(struct bench_sizes *sizes, const char *text);

void bench_options_help(FILE *out);
void bench_options_list(FILE *out);
const char *bench_issue_name(enum bench_issue issue);

#endif
