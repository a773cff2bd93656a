// SPDX-License-Identifier: BSD-3-Clause
// The life of one rank: its cases and their results.
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "beside.h"
#include "cases.h"
#include "launch.h"
#include "nccl.h"
#include "report.h"
#include "tune.h"

static const struct bench *running; // of the rank of this process
static char whose[24];              // "rank 1: "

// A signal handler: it does only what POSIX allows there, and says it by one write.
static void out_of_time(int number)
{
    (void)number;
    const bool does = running && *running->doing;
    const char *parts[] = {"peerhop-perf: ", whose, does ? running->doing : "", does ? ": " : "",
                           "the deadline of the run has passed (--deadline)\n"};
    char line[sizeof(running->doing) + sizeof(whose) + 128];
    size_t size = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        const size_t part = strnlen(parts[i], sizeof(line) - size);
        memcpy(line + size, parts[i], part);
        size += part;
    }
    ssize_t written = write(STDERR_FILENO, line, size);
    (void)written;
    _exit(1);
}

static void print_row(const struct bench *bench, const struct bench_result *result)
{
    if (bench->rank != 0)
        return;
    if (bench->options->json)
        bench_report_json(stdout, result);
    else
        bench_report_table(stdout, result);
    fflush(stdout);
}

static int run_case(struct bench *bench, const struct bench_case *test)
{
    const struct bench_options *options = bench->options;
    struct bench_case variant;
    int rc = 0;
    test = bench_beside_case(test, options, &variant);
    for (size_t i = 0; i < options->sizes.n && rc == 0; i++)
        rc = bench_measure(bench, test, options->sizes.values[i], print_row);
    for (size_t i = 0; options->sizes.n == 0 && i < 4 && test->sizes[i] && rc == 0; i++)
        rc = bench_measure(bench, test, test->sizes[i], print_row);
    return rc;
}

static int run_cases(struct bench *bench)
{
    if (bench->rank == 0 && !bench->options->json)
        bench_report_table_head(stdout);
    int rc = 0;
    for (size_t i = 0; i < bench->options->case_count && rc == 0; i++)
        rc = run_case(bench, bench->options->cases[i]);
    *bench->doing = 0;
    return rc;
}

// Says what the figures are of.
static void conclude(const struct bench *bench, const char *why)
{
    if (bench->rank != 0 || bench->options->json)
        return;
    if (strcmp(bench->device->ops->kind, "host") == 0)
        printf("\nRan on host memory between %d processes (%s).\n", bench->ranks, why);
    else
        printf("\nRan on GPUs between %d processes; rank 0 on %s.\n", bench->ranks,
               ph_context_device(bench->context));
    if (bench->nccl)
        printf("Compared with NCCL %s (%s).\n", bench_nccl_version(bench), bench_nccl_path(bench));
    fflush(stdout);
}

int bench_rank_main(const struct bench_options *options)
{
    struct bench_place place;
    if (bench_place(&place))
        snprintf(whose, sizeof(whose), "rank %d: ", place.rank);
    signal(SIGALRM, out_of_time);
    alarm((unsigned)options->deadline_s);
    if (options->tune)
        return bench_tune(options);
    char why[256];
    static struct bench bench; // the handler reads it until the process ends
    bench.options = options;
    running = &bench;
    int rc = bench_start(&bench, why, sizeof(why));
    if (rc == 0)
        rc = run_cases(&bench);
    if (rc == 0)
        conclude(&bench, why);
    return bench_finish(&bench, rc) ? 1 : 0;
}
