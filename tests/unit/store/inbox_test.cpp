// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "store/inbox.h"
}

namespace
{

class Inbox : public testing::Test
{
  protected:
    ~Inbox() override
    {
        phi_inbox_fini(&inbox);
    }
    int add(uint64_t incarnation, uint64_t sequence, uint64_t number = 1, bool withdrawn = false)
    {
        auto *held = static_cast<phi_held *>(calloc(1, sizeof(phi_held)));
        held->incarnation = incarnation;
        held->sequence = sequence;
        held->number = number;
        held->withdrawn = withdrawn;
        held->bytes = static_cast<uint8_t *>(malloc(8));
        int result = phi_inbox_add(&inbox, held);
        if (result)
            phi_held_free(held);
        return result;
    }
    // The sequence of the next message, 0: none.
    uint64_t pop()
    {
        phi_held *held = phi_inbox_pop(&inbox);
        if (!held)
            return 0;
        uint64_t sequence = held->sequence;
        number = held->number;
        phi_held_free(held);
        return sequence;
    }

    phi_inbox inbox{};
    uint64_t number = 0; // of the last popped
};

TEST_F(Inbox, WaitsForTheMemberRecord)
{
    EXPECT_EQ(add(5, 1), 0);
    EXPECT_EQ(pop(), 0u);
    EXPECT_TRUE(phi_inbox_member(&inbox, 5));
    EXPECT_FALSE(phi_inbox_member(&inbox, 5));
    EXPECT_EQ(pop(), 1u);
    EXPECT_EQ(pop(), 0u);
}

TEST_F(Inbox, WaitsForGaps)
{
    phi_inbox_member(&inbox, 5);
    EXPECT_EQ(add(5, 3), 0);
    EXPECT_EQ(add(5, 2), 0);
    EXPECT_EQ(pop(), 0u);
    EXPECT_EQ(add(5, 1), 0);
    EXPECT_EQ(pop(), 1u);
    EXPECT_EQ(pop(), 2u);
    EXPECT_EQ(pop(), 3u);
}

TEST_F(Inbox, DropsWhatItHasSeen)
{
    phi_inbox_member(&inbox, 5);
    EXPECT_EQ(add(5, 1), 0);
    EXPECT_EQ(add(5, 1), -EALREADY);
    EXPECT_EQ(pop(), 1u);
    EXPECT_EQ(add(5, 1), -EALREADY);
    EXPECT_EQ(pop(), 0u);
}

TEST_F(Inbox, ALaterNumberReplaces)
{
    phi_inbox_member(&inbox, 5);
    EXPECT_EQ(add(5, 2, 10), 0);
    EXPECT_EQ(add(5, 2, 9), -EALREADY);
    EXPECT_EQ(add(5, 2, 11, true), 0);
    EXPECT_EQ(add(5, 1, 12), 0);
    EXPECT_EQ(pop(), 1u);
    EXPECT_EQ(pop(), 2u);
    EXPECT_EQ(number, 11u);
}

TEST_F(Inbox, AbsurdSequences)
{
    phi_inbox_member(&inbox, 5);
    EXPECT_EQ(add(5, UINT64_MAX), -ERANGE);
    EXPECT_EQ(add(5, (1 << 20) + 1), -ERANGE);
    EXPECT_EQ(add(5, 1 << 20), 0);
}

TEST_F(Inbox, ANewLifeBeginsAtOne)
{
    phi_inbox_member(&inbox, 5);
    add(5, 1);
    add(5, 3);
    add(6, 1); // before the new record
    EXPECT_EQ(pop(), 1u);
    EXPECT_EQ(pop(), 0u);
    EXPECT_TRUE(phi_inbox_member(&inbox, 6));
    EXPECT_EQ(pop(), 1u);
    EXPECT_EQ(pop(), 0u);
    EXPECT_EQ(add(5, 4), -ESTALE);
    EXPECT_FALSE(phi_inbox_member(&inbox, 5));
    EXPECT_EQ(add(6, 2), 0);
    EXPECT_EQ(pop(), 2u);
}

TEST_F(Inbox, AnyOrderWithRepetitions)
{
    phi_inbox_member(&inbox, 5);
    std::vector<uint64_t> order;
    for (uint64_t sequence = 1; sequence <= 200; sequence++)
        order.insert(order.end(), 3, sequence);
    std::mt19937 random(1);
    std::shuffle(order.begin(), order.end(), random);
    uint64_t next = 1;
    for (uint64_t sequence : order) {
        add(5, sequence);
        for (uint64_t got = pop(); got; got = pop())
            EXPECT_EQ(got, next++);
    }
    EXPECT_EQ(next, 201u);
    EXPECT_EQ(inbox.held, nullptr);
}

} // namespace
