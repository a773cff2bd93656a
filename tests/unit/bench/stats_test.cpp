// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <vector>

extern "C" {
#include "stats.h"
}

static bench_stats stats_of(std::vector<double> values, bool more_is_better)
{
    bench_stats stats;
    bench_stats_compute(values.data(), values.size(), more_is_better, &stats);
    return stats;
}

static std::vector<double> one_to(int n)
{
    std::vector<double> values;
    for (int i = n; i > 0; i--)
        values.push_back(i);
    return values;
}

TEST(Stats, TimesAreBadAtTheTop)
{
    bench_stats stats = stats_of(one_to(100), false);
    EXPECT_EQ(stats.median, 50.5);
    EXPECT_EQ(stats.min, 1);
    EXPECT_EQ(stats.p90, 90);
    EXPECT_EQ(stats.p99, 99);
}

TEST(Stats, RatesAreBadAtTheBottom)
{
    bench_stats stats = stats_of(one_to(100), true);
    EXPECT_EQ(stats.median, 50.5);
    EXPECT_EQ(stats.min, 1);
    EXPECT_EQ(stats.p90, 11);
    EXPECT_EQ(stats.p99, 2);
}

TEST(Stats, FewSamples)
{
    bench_stats one = stats_of({4}, false);
    EXPECT_EQ(one.median, 4);
    EXPECT_EQ(one.p99, 4);
    bench_stats three = stats_of({9, 1, 5}, false);
    EXPECT_EQ(three.median, 5);
    EXPECT_EQ(three.p90, 9);
    EXPECT_EQ(stats_of({9, 1, 5}, true).p90, 1);
}
