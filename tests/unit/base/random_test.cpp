// SPDX-License-Identifier: BSD-3-Clause
#include <array>
#include <chrono>
#include <set>

#include <gtest/gtest.h>

extern "C" {
#include "base/random.h"
}

TEST(Random, FillsEveryByteAndNothingElse)
{
    std::array<unsigned char, 300> seen{};
    for (int round = 0; round < 64; round++) {
        std::array<unsigned char, 302> bytes{};
        phi_random(bytes.data() + 1, 300);
        EXPECT_EQ(bytes.front(), 0);
        EXPECT_EQ(bytes.back(), 0);
        for (size_t i = 0; i < seen.size(); i++)
            seen[i] |= bytes[i + 1];
    }
    for (unsigned char byte : seen)
        EXPECT_NE(byte, 0);
    phi_random(nullptr, 0);
}

TEST(Random, LaterLivesAreLarger)
{
    using namespace std::chrono;
    uint64_t now =
        (uint64_t)duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
    uint64_t first = phi_incarnation(0);
    EXPECT_LE((first >> 20) - now, 60000u);
    auto until = steady_clock::now() + milliseconds(3);
    while (steady_clock::now() < until) {
    }
    EXPECT_GT(phi_incarnation(0), first);
}

TEST(Random, LivesOfOneMillisecondDiffer)
{
    std::set<uint64_t> lives;
    for (int i = 0; i < 50; i++)
        lives.insert(phi_incarnation(0));
    // 50 draws of 19 bits, spread over some milliseconds: more than one collision is a broken
    // generator.
    EXPECT_GE(lives.size(), 49u);
}

TEST(Random, ALifeIsLargerThanTheLastWhateverTheClockSays)
{
    const uint64_t now = phi_incarnation(0), hour = 3600000ull << 20;
    for (uint64_t last : {now, now + 1, now | 0xfffff, now + hour, now - hour}) {
        const uint64_t next = phi_incarnation(last);
        EXPECT_GT(next, last + 1);        // which the expulsion of the last one has
        EXPECT_GE(next >> 20, now >> 20); // within a millisecond chance decides
        EXPECT_EQ(next % 2, 0u);
    }
}

TEST(Random, HashSpreadsNeighbours)
{
    std::set<uint64_t> low;
    for (uint64_t a = 0; a < 64; a++)
        for (uint64_t b = 0; b < 64; b++)
            low.insert(phi_hash(a, b) & 0xffff);
    // 4096 draws out of 65536 leave about 3970 different ones.
    EXPECT_GT(low.size(), 3850u);
    EXPECT_NE(phi_hash(1, 2), phi_hash(2, 1));
    EXPECT_EQ(phi_hash(7, 9), phi_hash(7, 9));
}
