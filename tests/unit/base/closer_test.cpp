// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/atomic_compat.h"
#include "support/patience.h"

extern "C" {
#include "base/clock.h"
#include "base/closer.h"
}

namespace
{

// Ends when it is let go; notes when that was.
struct Thing {
    phi_closing closing = {};
    std::atomic<bool> may_end{false}, begun{false};
    std::vector<int> *order = nullptr;
    int number = 0;
};

void end_thing(phi_closing *closing)
{
    auto *thing = reinterpret_cast<Thing *>(closing);
    thing->begun = true;
    while (!thing->may_end)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (thing->order)
        thing->order->push_back(thing->number);
}

int64_t soon()
{
    return phi_deadline(20);
}

int64_t late()
{
    return phi_deadline(patience(20000).count());
}

bool comes(const std::atomic<bool> &flag)
{
    for (const int64_t end = late(); !flag && phi_now() < end;)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return flag;
}

class Closer : public testing::Test
{
  protected:
    void SetUp() override
    {
        ASSERT_EQ(phi_closer_open(&closer), 0);
        for (int i = 0; i < 3; i++) {
            things[i].closing.close = end_thing;
            things[i].order = &order;
            things[i].number = i;
        }
    }
    phi_closer *closer = nullptr;
    std::vector<int> order;
    Thing things[3];
};

TEST_F(Closer, EndsThingsInTheirOrder)
{
    EXPECT_TRUE(phi_closer_wait(closer, 0, 0));
    for (Thing &thing : things)
        phi_closer_hand(closer, &thing.closing);
    EXPECT_EQ(phi_closer_handed(closer), 3u);
    EXPECT_FALSE(phi_closer_wait(closer, 1, soon()));
    EXPECT_FALSE(things[1].begun);
    things[0].may_end = true;
    EXPECT_TRUE(phi_closer_wait(closer, 1, late()));
    EXPECT_FALSE(phi_closer_wait(closer, 3, soon())); // not lost: it goes on
    things[1].may_end = things[2].may_end = true;
    EXPECT_TRUE(phi_closer_wait(closer, 3, late()));
    EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
    EXPECT_TRUE(phi_closer_close(closer, 0));
}

TEST_F(Closer, BeginsNothingWhileTheGateIsShut)
{
    std::atomic<bool> open{false};
    auto may = [](void *opaque) { return static_cast<std::atomic<bool> *>(opaque)->load(); };
    phi_closer_gate(closer, may, &open);
    things[0].may_end = true;
    phi_closer_hand(closer, &things[0].closing);
    EXPECT_FALSE(phi_closer_wait(closer, 1, soon()));
    EXPECT_FALSE(things[0].begun);
    open = true; // nobody rings
    EXPECT_TRUE(phi_closer_wait(closer, 1, late()));
    // What is held back when it ends is begun all the same.
    open = false;
    things[1].may_end = true;
    phi_closer_hand(closer, &things[1].closing);
    EXPECT_FALSE(phi_closer_wait(closer, 2, soon()));
    EXPECT_TRUE(phi_closer_close(closer, late()));
    EXPECT_TRUE(things[1].begun);
}

TEST_F(Closer, IsLeftBehindByWhoHasNoTime)
{
    static Thing left[2]; // the thread may be on its way out when the test is over
    for (Thing &thing : left) {
        thing.closing.close = end_thing;
        phi_closer_hand(closer, &thing.closing);
    }
    EXPECT_TRUE(comes(left[0].begun));
    EXPECT_FALSE(phi_closer_close(closer, soon()));
    left[0].may_end = left[1].may_end = true;
    EXPECT_TRUE(comes(left[1].begun));
}

} // namespace
