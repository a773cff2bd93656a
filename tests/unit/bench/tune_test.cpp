// SPDX-License-Identifier: BSD-3-Clause
// Where --tune says that one method ends and the next begins.
#include <gtest/gtest.h>

#include <vector>

extern "C" {
#include "tune.h"
}

static size_t kept(const std::vector<double> &one, const std::vector<double> &other)
{
    return bench_tune_kept(one.data(), other.data(), one.size());
}

TEST(Tune, TheNextMethodBeginsWhereItStaysQuicker)
{
    EXPECT_EQ(kept({1, 2, 4, 8}, {3, 3, 3, 3}), 2u);
    EXPECT_EQ(kept({1, 2, 4, 8}, {9, 9, 9, 9}), 4u);
    EXPECT_EQ(kept({1, 2, 4, 8}, {.5, 1, 2, 4}), 0u);
    EXPECT_EQ(kept({}, {}), 0u);
}

TEST(Tune, OnceQuickerIsNotEnough)
{
    EXPECT_EQ(kept({3, 1, 2, 4, 8}, {2, 3, 3, 3, 3}), 3u);
    EXPECT_EQ(kept({1, 2, 4, 8}, {3, 3, 3, 9}), 4u);
}

TEST(Tune, AHundredthIsNoise)
{
    EXPECT_EQ(kept({1, 2, 4, 8}, {3, 1.5, 4.03, 8.07}), 1u);
    EXPECT_EQ(kept({1, 2, 4, 8}, {3, 1.5, 4.05, 7}), 3u);
    EXPECT_EQ(kept({1, 2, 4, 8}, {3, 3, 4.03, 8.07}), 4u) << "and nothing to be quicker by";
}
