// SPDX-License-Identifier: BSD-3-Clause
// One rank of the bench: what every case works on.
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <peerhop/peerhop.h>

#include "device.h"
#include "options.h"

// What one rank tells all others in bench_allgather, at most.
#define BENCH_SLOT        8192
#define BENCH_SAMPLES_MAX (BENCH_SLOT / sizeof(double))

// Operations of a lone channel, both ways.
#define BENCH_OP_LONE 8

// Most settings of a context beside those of the options.
#define BENCH_SETTINGS 4

struct bench {
    const struct bench_options *options;
    const char *const *settings; // for the context, beside those of the options, or NULL
    int rank, ranks;
    int peer;    // 0 and 1, 2 and 3, ... are pairs; -1: an odd one out
    bool leader; // the even rank of a pair, which measures
    struct ph_context *context;
    struct bench_device *device;
    void *stream;

    struct bench_memory arena; // control slots, then the area of the cases
    size_t area_offset, area_size;
    struct ph_channel *up[BENCH_RANKS_MAX];   // rank 0: from each rank; others: up[0] to rank 0
    struct ph_channel *down[BENCH_RANKS_MAX]; // the other way
    struct bench_nccl *nccl;                  // NULL but with --compare nccl
    bool raw_open;                            // the raw limits can be measured

    uint64_t next_op; // ids are used once, but those of lone channels; all ranks count alike
    uint64_t block;   // blocks run, for patterns
    bool held;        // the stream captures, or does not go on yet: nobody may wait for it
    char doing[96];   // for messages: case and size
};

// bench_fail prints one line (rank, what was done, text, the code, the context's sentence) and
// returns rc.
int bench_fail(struct bench *bench, int rc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// BENCH_AGAIN makes a call that enqueues. Where the queue is full it lets it run empty, then calls
// again: ranks that run the same program in order cannot lock each other out by that. What is
// refused to a stream that is held is refused.
#define BENCH_AGAIN(bench, call)                                                                   \
    ({                                                                                             \
        int again_ = (call);                                                                       \
        if (again_ == -EAGAIN && !(bench)->held && (again_ = bench_synchronize(bench)) == 0)       \
            again_ = (call);                                                                       \
        again_;                                                                                    \
    })

// BENCH_ISSUE is the same for calls of the library, and reports a failure.
#define BENCH_ISSUE(bench, call)                                                                   \
    ({                                                                                             \
        int issued_ = BENCH_AGAIN(bench, call);                                                    \
        issued_ ? bench_fail((bench), issued_, "%s", #call) : 0;                                   \
    })

int64_t bench_now_ns(void);

// bench_synchronize waits until the stream is idle, at most the deadline.
int bench_synchronize(struct bench *bench);

// bench_control_open makes the channels between rank 0 and each other rank, in slots at the arena's
// start.
size_t bench_control_size(int ranks);
int bench_control_open(struct bench *bench);

// bench_barrier returns when every rank has come.
int bench_barrier(struct bench *bench);

// bench_allgather gives all ranks what each said: all holds ranks * size bytes; size <= BENCH_SLOT.
int bench_allgather(struct bench *bench, const void *mine, void *all, size_t size);

// bench_on_host says whether a rank works on host memory: of -k auto, where there is no GPU. Why
// goes into why.
bool bench_on_host(const char *kind, char *why, size_t why_size);

// bench_start makes a rank from its options and settings, all else zero; bench_finish ends it,
// after a failure too, and returns rc or what failed itself.
int bench_start(struct bench *bench, char *why, size_t why_size);
int bench_finish(struct bench *bench, int rc);

// bench_rank_main is the life of one rank; returns the exit status.
int bench_rank_main(const struct bench_options *options);

#endif
