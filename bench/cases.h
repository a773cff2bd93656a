// SPDX-License-Identifier: BSD-3-Clause
// The table of cases, and what a case is.
#ifndef BENCH_CASES_H
#define BENCH_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench.h"
#include "kernel.h"
#include "report.h"

enum bench_metric {
    BENCH_HALF_ROUND_TRIP_US,
    BENCH_BANDWIDTH_GBPS,
    BENCH_RATE_MOPS,
    BENCH_EXCHANGE_US,
    BENCH_IMPORT_US,
    BENCH_KERNEL_US,
    BENCH_ONE_WAY_US, // --late
    BENCH_FRESH_US,   // --fresh
};

// Ways that data goes in a pair; forward is from the leader to the other rank.
enum { BENCH_FORWARD = 1, BENCH_BACKWARD = 2 };

enum bench_raw {
    BENCH_RAW_NONE,
    BENCH_RAW_COPY, // the driver's copy, or memcpy, that way
    BENCH_RAW_FLAGS,
};

// How the samples of the ranks become one list.
enum bench_combine {
    BENCH_LEADERS, // all leaders' samples
    BENCH_SUM,     // the sum over both ranks of a pair: both ways at once
    BENCH_SLOWEST, // the slowest rank's
};

struct bench_run;

// bench_row takes one result: rank 0 prints it.
typedef void bench_row(const struct bench *bench, const struct bench_result *result);

// begin, once and end enqueue what this rank does at the start of a block, in each iteration, and
// at the block's end; after end, nothing of the block is in flight towards this rank. sample runs
// and times one iteration itself instead, and rows makes all results of a size by itself. open and
// close are for cases that do not use a pair's channels.
struct bench_case {
    const char *name;
    const char *what; // one sentence, for -l
    enum bench_metric metric;
    size_t sizes[4]; // default, ended by 0
    unsigned ways;   // in which data goes
    enum bench_raw raw;
    bool get;   // copies are made by the receiving rank
    bool blind; // puts whose wait the other rank never enqueues, or too late: no staged ones
    enum bench_combine combine;
    unsigned channels; // default
    unsigned samples;
    bool wall;                // timed by the clock, not by marks in the stream
    bool exchange;            // its iterations are exchanges
    bool unbound;             // its channels have no buffers
    bool nccl;                // has a counterpart there
    bool pages;               // of lists: one channel
    enum bench_kernel kernel; // what -i device runs for its iterations
    int (*open)(struct bench_run *run);
    void (*close)(struct bench_run *run);
    int (*begin)(struct bench_run *run);
    int (*once)(struct bench_run *run);
    int (*end)(struct bench_run *run);
    int (*sample)(struct bench_run *run, double *us);
    int (*rows)(struct bench_run *run, bench_row *row);
    // Of a message on a channel, for --late and --fresh: the sender's part, and the receiver's in
    // two halves, of which the first (NULL: none) does not wait in the put protocol.
    int (*give)(struct bench_run *run, struct ph_channel *channel);
    int (*post)(struct bench_run *run, struct ph_channel *channel);
    int (*take)(struct bench_run *run, struct ph_channel *channel);
};

// One measurement in the making.
struct bench_run {
    struct bench *bench;
    const struct bench_case *test;
    size_t size;
    size_t channels;
    size_t stride; // between the buffers of channels; out and in are offsets in the arena
    size_t out, in;
    struct ph_channel **forward, **backward; // by channel
    struct ph_group_op *group;               // room for two per channel
    struct bench_raw_copy *copies;           // by channel
    void *graph;
    void *nccl_graph;
    bool by_nccl; // of the block that runs
    void **live;  // --graphs: beside that one
    size_t live_count;
    bool buffered; // what a stream has sent may still be under way when it goes on
    struct bench_kernel_args kernel; // -i device: as far as it is the same for all blocks
    int64_t ahead_us;                // --late: in which sends come as far as they can

    // The exchange family.
    struct ph_operation *ops;
    struct ph_channel **exchanged;
    size_t op_count;      // with all peers
    size_t segment_count; // allocations that they lie in
};

extern const struct bench_case *const bench_case_table[];
extern const size_t bench_case_count;
const struct bench_case *bench_case_find(const char *name);

extern const struct bench_case bench_put_latency, bench_put_bandwidth, bench_put_bidirectional,
    bench_put_rate, bench_put_batch;
extern const struct bench_case bench_get_latency, bench_get_bandwidth, bench_get_bidirectional,
    bench_get_rate;
extern const struct bench_case bench_send_latency, bench_send_bandwidth, bench_send_bidirectional,
    bench_send_rate;
extern const struct bench_case bench_unbound_latency, bench_unbound_bandwidth,
    bench_unbound_bidirectional;
extern const struct bench_case bench_signal_latency;
extern const struct bench_case bench_pages_put, bench_pages_get;
extern const struct bench_case bench_exchange_cold, bench_exchange_hit, bench_import;
extern const struct bench_case bench_overlap_case;

// bench_case_channels and bench_case_area: what a case takes of the arena, for all sizes that it is
// run with.
size_t bench_case_channels(const struct bench_case *test, const struct bench_options *options);
size_t bench_case_area(const struct bench_case *test, const struct bench_options *options);

// bench_pages_room: what the numbers of a case of pages take behind so many bytes of them.
size_t bench_pages_room(const struct bench_options *options, size_t size);

// bench_tell: the leader signals on each channel forward, and the other rank waits for that: it has
// all puts then. Staged ones go on with such a wait, so that is one launch for all channels.
// bench_meet makes the two streams of a pair start together.
int bench_tell(struct bench_run *run);
int bench_meet(struct bench_run *run);

// bench_run_open makes the channels of a run of which bench, test and size are set; bench_run_close
// also ends what a failed one has made. bench_run_prepare warms up, and says how many blocks of how
// many iterations are to be run. The size may become smaller between blocks. All ranks alike.
int bench_run_open(struct bench_run *run);
void bench_run_close(struct bench_run *run);
int bench_run_prepare(struct bench_run *run, size_t *blocks, size_t *count);

// bench_run_warm_up is a part of that; the slowest rank's time of an iteration comes back.
int bench_run_warm_up(struct bench_run *run, double *per_iteration);

// bench_run_describe fills in what is known of the run's results before there are any.
int bench_run_describe(struct bench_run *run, struct bench_result *result);

// bench_run_describe_counters tells what came between two looks at the context's counters.
void bench_run_describe_counters(const struct ph_counters *before, const struct ph_counters *after,
                                 struct bench_result *result);

// bench_run_gather makes the statistics of the case's figures of all ranks, n of each.
int bench_run_gather(struct bench_run *run, const double *mine, size_t n,
                     struct bench_stats *stats);

// bench_run_progress says how many of n blocks are done, since start, where a terminal looks on.
void bench_run_progress(const struct bench *bench, size_t i, size_t n, int64_t start);

// bench_measure runs one case with one size and gives each result to row; all ranks call it alike.
int bench_measure(struct bench *bench, const struct bench_case *test, size_t size, bench_row *row);

#endif
