// SPDX-License-Identifier: BSD-3-Clause
#include <climits>
#include <unistd.h>

#include <gtest/gtest.h>

extern "C" {
#include "base/clock.h"
}

TEST(Clock, GoesForward)
{
    int64_t before = phi_now();
    usleep(2000);
    int64_t after = phi_now();
    EXPECT_GE(after - before, 2 * PHI_MS);
    EXPECT_LT(after - before, 5000 * PHI_MS);
}

TEST(Clock, DeadlineIsFromNow)
{
    int64_t before = phi_now();
    int64_t deadline = phi_deadline(1000);
    EXPECT_GE(deadline, before + 1000 * PHI_MS);
    EXPECT_LE(deadline, phi_now() + 1000 * PHI_MS);
}

TEST(Clock, NegativeAndHugeDeadlinesAreForever)
{
    EXPECT_EQ(phi_deadline(-1), PHI_FOREVER);
    EXPECT_EQ(phi_deadline(INT64_MIN), PHI_FOREVER);
    EXPECT_EQ(phi_deadline(INT64_MAX), PHI_FOREVER);
    EXPECT_EQ(phi_deadline(INT64_MAX / PHI_MS), PHI_FOREVER);
}

TEST(Clock, RemainingIsWhatPollTakes)
{
    EXPECT_EQ(phi_remaining_ms(PHI_FOREVER), -1);
    EXPECT_EQ(phi_remaining_ms(phi_now() - 1), 0);
    EXPECT_EQ(phi_remaining_ms(0), 0);
    EXPECT_EQ(phi_remaining_ms(PHI_FOREVER - 1), INT_MAX);
    // A fraction of a millisecond is not 0: poll() would spin. (This thread may lose its core.)
    int fraction = 0;
    for (int i = 0; i < 100 && fraction == 0; i++)
        fraction = phi_remaining_ms(phi_now() + 900 * PHI_MS / 1000);
    EXPECT_EQ(fraction, 1);
    EXPECT_GT(phi_remaining_ms(phi_deadline(10000)), 5000);
    EXPECT_LE(phi_remaining_ms(phi_deadline(10000)), 10000);
}
