// SPDX-License-Identifier: BSD-3-Clause
// Bars for jobs of many ranks. Those of memory and counts are near what was measured; those of time
// are some times of it, for machines that are busy. docs/measurements has the figures.
#include "scale/measure.h"

#include <gtest/gtest.h>

#include "support/patience.h"
#include "support/redis_server.h"

namespace
{

const uint64_t kib = 1024;

class Scale : public testing::TestWithParam<bool>
{
  protected:
    static ScaleFigures measure(int ranks, bool all, int operations = 1)
    {
        ScaleJob job;
        job.ranks = ranks;
        job.all = all;
        job.operations = operations;
        job.files = GetParam();
        const ScaleFigures figures = scale_measure(job);
        EXPECT_EQ(figures.trouble, "");
        return figures;
    }
    void SetUp() override
    {
        if (!GetParam() && !RedisServer::available())
            GTEST_SKIP() << "no redis-server";
    }
};
INSTANTIATE_TEST_SUITE_P(Store, Scale, testing::Bool(), [](const auto &info) {
    return info.param ? std::string("files") : std::string("redis");
});

int64_t a_peer(int64_t all, const ScaleFigures &figures)
{
    return all / static_cast<int64_t>(figures.peers);
}

// What a rank and each peer that it uses may take, by default, however many ranks there are.
void expect_little(const ScaleFigures &figures, int ranks)
{
    const int64_t pair = 2 * a_peer(static_cast<int64_t>(figures.segments), figures);
    EXPECT_LE(pair, 128 * kib) << "of a pair's segment";
    EXPECT_LE(pair + a_peer(figures.used, figures), 256 * kib) << "of a peer";
    EXPECT_LE(figures.created / ranks, 2048 * kib) << "of a rank";
    EXPECT_LE(figures.descriptors[0], 12 * ranks);
    EXPECT_LE(a_peer(figures.descriptors[1], figures), 7);
    EXPECT_EQ(figures.keys_left, 0u);
}

// Time of its creation, contact and first message.
void expect_soon(const ScaleFigures &figures, int64_t seconds)
{
    EXPECT_LE(figures.until_message, static_cast<double>(patience(seconds * 1000).count()) / 1000);
}

TEST_P(Scale, ARingOf64)
{
    const ScaleFigures few = measure(8, false), many = measure(64, false);
    expect_little(many, 64);
    expect_soon(many, 20);
    // Those that a rank has nothing to do with are a record each, where the store gives them at
    // all.
    const int64_t grown = (many.created + many.used) / 64 - (few.created + few.used) / 8;
    EXPECT_LE(grown, 56 * 4 * kib);
    EXPECT_LE(many.counted, 64u * 64);
}

TEST_P(Scale, EachOf16WithEachOther)
{
    const ScaleFigures figures = measure(16, true);
    expect_little(figures, 16);
    expect_soon(figures, 20);
}

// A pair's memory grows with the channels that it has.
TEST_P(Scale, ManyOperations)
{
    const int64_t one = static_cast<int64_t>(measure(2, false).segments);
    const int64_t many = static_cast<int64_t>(measure(2, false, 4096).segments);
    EXPECT_LE(one, 128 * kib);
    EXPECT_GE(many, 4096 * 208);
    EXPECT_LE(many, 4096 * 208 + 512 * kib);
}

// Minutes on a machine that is busy.
TEST_P(Scale, LargeARingOf256)
{
    const ScaleFigures figures = measure(256, false);
    expect_little(figures, 256);
    expect_soon(figures, 40);
    EXPECT_LE(figures.counted, 256u * 64);
}

TEST_P(Scale, LargeEachOf64WithEachOther)
{
    const ScaleFigures figures = measure(64, true);
    expect_little(figures, 64);
    expect_soon(figures, 40);
}

} // namespace
