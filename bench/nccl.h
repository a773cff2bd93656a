// SPDX-License-Identifier: BSD-3-Clause
// The same by NCCL (--compare nccl), which is found at run time by the loader: nothing links to it.
#ifndef BENCH_NCCL_H
#define BENCH_NCCL_H

#include "cases.h"

// bench_nccl_open loads the library and makes the communicators of the pair; all ranks call it
// alike, and a call may block until the peer comes. bench_nccl_close: rc is of the run, after a
// failure nothing is waited for.
struct bench_nccl;
int bench_nccl_open(struct bench *bench);
void bench_nccl_close(struct bench *bench, int rc);

// "2.28.9", and the file that was loaded; NULL: there is none.
const char *bench_nccl_version(const struct bench *bench);
const char *bench_nccl_path(const struct bench *bench);

// bench_nccl_move enqueues a send from, or a receive into, the buffer of the channel, by a
// communicator of its own.
int bench_nccl_move(struct bench_run *run, size_t channel, bool send, void *stream);

// bench_nccl_describe makes a result NCCL's.
void bench_nccl_describe(struct bench_result *result);

// One iteration of a send case, and what comes before the first and behind the last of a block.
int bench_nccl_begin(struct bench_run *run);
int bench_nccl_once(struct bench_run *run);
int bench_nccl_end(struct bench_run *run);

#endif
