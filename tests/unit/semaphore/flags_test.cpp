// SPDX-License-Identifier: BSD-3-Clause
// What of a message by copy goes by lines at its end: both ranks compute it.
#include "support/atomic_compat.h"

#include <gtest/gtest.h>

extern "C" {
#include "semaphore/flags.h"
}

const uint64_t MOST = PHI_WIDE_PIECE;

TEST(Flags, AnEndIsWhatItsSenderSaysInUnitsOfAPage)
{
    for (uint64_t said : {0u, 4095u})
        EXPECT_EQ(phi_flag_end(MOST, INT64_MAX, said), 0u) << said;
    for (uint64_t said : {4096u, 8191u})
        EXPECT_EQ(phi_flag_end(MOST, INT64_MAX, said), said / 4096 * 4096) << said;
    for (uint64_t said : {MOST, MOST + 1, UINT64_MAX})
        EXPECT_EQ(phi_flag_end(MOST, UINT64_MAX, said), MOST) << said;
    EXPECT_EQ(phi_flag_end(PHI_LL_PIECE + 1, MOST + 1, 4096), 4096u);
}

TEST(Flags, ThereIsNoneWithoutWideLinesOrLargeCopies)
{
    EXPECT_EQ(phi_flag_end(PHI_LL_PIECE, INT64_MAX, MOST), 0u);
    EXPECT_EQ(phi_flag_end(0, INT64_MAX, MOST), 0u);
    EXPECT_EQ(phi_flag_end(MOST, MOST, MOST), 0u);
    EXPECT_EQ(phi_flag_end(MOST, 0, MOST), 0u);
}

// The copy before it is not empty, and what begins there is as aligned as the message.
TEST(Flags, WhatIsBeforeAnEndIsWholeLines)
{
    for (uint64_t end : {uint64_t{4096}, uint64_t{512 << 10}, MOST})
        for (size_t size : {size_t{MOST} + 1, size_t{MOST} + 127, size_t{MOST} + 128,
                            size_t{3 << 20} + 77, PHI_TAIL_MOST - 1, PHI_TAIL_MOST}) {
            const size_t tail = phi_flag_tail(end, size);
            EXPECT_TRUE(tail <= end && end - tail < 128) << end << ", " << size;
            EXPECT_EQ((size - tail) % 128, 0u) << end << ", " << size;
            EXPECT_GE(size - tail, 128u) << end << ", " << size;
            EXPECT_TRUE(phi_flag_is_wide(MOST, tail)) << end << ", " << size;
        }
    EXPECT_EQ(phi_flag_tail(MOST, MOST), 0u);
    EXPECT_EQ(phi_flag_tail(MOST, PHI_TAIL_MOST + 1), 0u);
    EXPECT_EQ(phi_flag_tail(0, 2 * MOST), 0u);
}
