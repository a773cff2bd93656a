// SPDX-License-Identifier: BSD-3-Clause
// Starts the ranks of a run as processes of the same program, and a store for them.
#ifndef BENCH_LAUNCH_H
#define BENCH_LAUNCH_H

#include <stdbool.h>

#include "options.h"

// bench_place says which rank this process is, by PEERHOP_* and else by its launcher; false: it is
// none, and is to start them. A launcher's only process is none: a shell that srun has started.
struct bench_place {
    int rank, local_rank;
    char job[128]; // "": nobody names one
};
bool bench_place(struct bench_place *place);

// bench_launch runs this program once per rank with the same command line and waits; the first rank
// that fails, a signal or the deadline ends all. Returns the exit status.
int bench_launch(const struct bench_options *options, char **argv);

#endif
