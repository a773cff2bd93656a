// SPDX-License-Identifier: BSD-3-Clause
// What every file of the bench calls.
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "cases.h"

int64_t bench_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int bench_fail(struct bench *bench, int rc, const char *format, ...)
{
    char text[512], sentence[1024] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (bench->context)
        ph_context_error(bench->context, sentence, sizeof(sentence));
    fprintf(stderr, "peerhop-perf: rank %d: %s%s%s: %s%s%s\n", bench->rank, bench->doing,
            *bench->doing ? ": " : "", text, ph_strerror(rc), *sentence ? ": " : "", sentence);
    return rc;
}

int bench_synchronize(struct bench *bench)
{
    int rc = bench->device->ops->synchronize(bench->device, bench->options->deadline_s * 1000);
    return rc ? bench_fail(bench, rc, "%s", bench->device->error) : 0;
}

const char *bench_issue_name(enum bench_issue issue)
{
    static const char *const names[] = {"stream", "graph", "host", "device", "request"};
    return names[issue];
}

size_t bench_case_channels(const struct bench_case *test, const struct bench_options *options)
{
    if (options->issue == BENCH_ISSUE_DEVICE || test->pages ||
        (test->metric == BENCH_HALF_ROUND_TRIP_US && test->channels == 1))
        return 1; // one message after the other, or all that a kernel does
    return options->channels ? (size_t)options->channels : test->channels;
}
