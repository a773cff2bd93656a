// SPDX-License-Identifier: BSD-3-Clause
// The patterns of --verify: each wrong byte is found, wherever it is and whatever stale data it
// comes from.
#include <gtest/gtest.h>

#include <vector>

extern "C" {
#include "verify.h"
}

using Bytes = std::vector<unsigned char>;

static Bytes pattern(size_t offset, size_t size, uint64_t seed)
{
    Bytes bytes(size);
    bench_pattern_fill(bytes.data(), offset, size, seed);
    return bytes;
}

TEST(Verify, WhatWasFilledIsRight)
{
    for (size_t size : {0, 1, 7, 8, 9, 63, 64, 65, 4096, 100003})
        EXPECT_EQ(bench_pattern_check(pattern(0, size, 7).data(), 0, size, 7), size);
}

TEST(Verify, EveryCorruptByteIsFound)
{
    for (size_t size : {1, 8, 13, 64, 67}) {
        for (size_t at = 0; at < size; at++) {
            for (int bit = 0; bit < 8; bit++) {
                Bytes bytes = pattern(0, size, 3);
                bytes[at] ^= (unsigned char)(1 << bit);
                EXPECT_EQ(bench_pattern_check(bytes.data(), 0, size, 3), at);
            }
        }
    }
}

TEST(Verify, PiecesAreTheWhole)
{
    Bytes whole = pattern(0, 100, 11);
    for (size_t cut : {1, 5, 8, 50, 99}) {
        Bytes joined = pattern(0, cut, 11), tail = pattern(cut, 100 - cut, 11);
        joined.insert(joined.end(), tail.begin(), tail.end());
        EXPECT_EQ(joined, whole);
        EXPECT_EQ(bench_pattern_check(tail.data(), cut, tail.size(), 11), tail.size());
    }
}

// A byte that the block before left there is wrong at any place: no byte of two consecutive
// patterns is the same.
TEST(Verify, TheBlockBeforeDiffersInEveryByte)
{
    for (uint64_t block : {1, 2, 77, 127, 254}) {
        Bytes before = pattern(0, 4096, bench_pattern_seed(0, 0, block));
        Bytes now = pattern(0, 4096, bench_pattern_seed(0, 0, block + 1));
        for (size_t i = 0; i < now.size(); i++)
            ASSERT_NE(before[i], now[i]) << block << " " << i;
    }
}

TEST(Verify, OtherChannelsDirectionsAndPlacesDiffer)
{
    Bytes base = pattern(0, 4096, bench_pattern_seed(1, 0, 5));
    EXPECT_LT(bench_pattern_check(base.data(), 0, 4096, bench_pattern_seed(2, 0, 5)), 16u);
    EXPECT_LT(bench_pattern_check(base.data(), 0, 4096, bench_pattern_seed(1, 1, 5)), 16u);
    EXPECT_LT(bench_pattern_check(base.data(), 0, 4096, bench_pattern_seed(1, 0, 256 + 5)), 16u);
    EXPECT_LT(bench_pattern_check(base.data(), 8, 4088, bench_pattern_seed(1, 0, 5)), 16u);
    EXPECT_LT(bench_pattern_check(base.data(), 1, 4095, bench_pattern_seed(1, 0, 5)), 16u);
}
