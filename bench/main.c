// SPDX-License-Identifier: BSD-3-Clause
// peerhop-perf: measures the library between ranks, verified, beside the raw limits of the machine.
#include <stdio.h>

#include "bench.h"
#include "built.h"
#include "launch.h"
#include "options.h"
#include "written.h"

#define STATUS_USAGE 2

int main(int argc, char **argv)
{
    struct bench_options options;
    struct bench_place place;
    char error[256];
    if (bench_options_parse(&options, argc, argv, error, sizeof(error))) {
        fprintf(stderr, "peerhop-perf: %s\n", error);
        return STATUS_USAGE;
    }
    int status = 0;
    if (options.help)
        bench_options_help(stdout);
    else if (options.version)
        print_version("peerhop-perf");
    else if (options.list)
        bench_options_list(stdout);
    else
        status = bench_place(&place) ? bench_rank_main(&options) : bench_launch(&options, argv);
    return all_written("peerhop-perf", status);
}
