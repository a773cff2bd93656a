// SPDX-License-Identifier: BSD-3-Clause
// What --late and --fresh make of a case.
#include "beside.h"

// A second or two for all samples, which have four rests each, but a few in any case.
#define LATE_SAMPLES_US   2000000
#define LATE_RESTS        4
#define LATE_SAMPLES_MOST 200
#define LATE_SAMPLES_FEW  10

static unsigned late_samples(int64_t late_us)
{
    const int64_t fit = LATE_SAMPLES_US / (LATE_RESTS * late_us + 1);
    return fit > LATE_SAMPLES_MOST  ? LATE_SAMPLES_MOST
           : fit < LATE_SAMPLES_FEW ? LATE_SAMPLES_FEW
                                    : (unsigned)fit;
}

const struct bench_case *bench_beside_case(const struct bench_case *test,
                                           const struct bench_options *options,
                                           struct bench_case *variant)
{
    if (options->late_us < 0 && !options->fresh)
        return test;
    *variant = *test;
    if (options->fresh) {
        variant->metric = BENCH_FRESH_US;
        variant->ways = BENCH_FORWARD;
        variant->combine = BENCH_SLOWEST;
        variant->open = bench_fresh_open;
        variant->sample = bench_fresh_sample;
    } else {
        variant->metric = BENCH_ONE_WAY_US;
        variant->samples = late_samples(options->late_us);
        variant->rows = bench_late_rows;
    }
    return variant;
}
