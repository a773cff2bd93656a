// SPDX-License-Identifier: BSD-3-Clause
// Starts the ranks of a run as processes of the same program, and a store for them.
#ifndef BENCH_LAUNCH_H
#define BENCH_LAUNCH_H

#include "options.h"

// bench_launch runs this program once per rank with the same command line and waits; the first rank
// that fails, a signal or the deadline ends all. Returns the exit status.
int bench_launch(const struct bench_options *options, char **argv);

#endif
