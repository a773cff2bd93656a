// SPDX-License-Identifier: BSD-3-Clause
#include "support/atomic_compat.h"

#include <cerrno>
#include <cstdlib>

#include <gtest/gtest.h>

extern "C" {
#include "store/outbox.h"
}

namespace
{

class Outbox : public testing::Test
{
  protected:
    ~Outbox() override
    {
        phi_outbox_fini(&outbox);
    }
    phi_kept *append()
    {
        return phi_outbox_append(&outbox, static_cast<uint8_t *>(malloc(4)), 4);
    }
    int count()
    {
        int n = 0;
        for (phi_kept *kept = outbox.first; kept; kept = kept->next)
            n++;
        return n;
    }

    phi_outbox outbox{};
};

TEST_F(Outbox, KeepsUntilAcknowledged)
{
    EXPECT_EQ(phi_outbox_address(&outbox, 5), 0);
    EXPECT_EQ(append()->sequence, 1u);
    EXPECT_EQ(append()->sequence, 2u);
    EXPECT_EQ(append()->sequence, 3u);
    phi_outbox_acknowledged(&outbox, 2);
    phi_outbox_acknowledged(&outbox, 1); // late, tells nothing
    EXPECT_EQ(count(), 3);
    phi_outbox_free_acknowledged(&outbox);
    EXPECT_EQ(count(), 1);
    EXPECT_EQ(outbox.first->sequence, 3u);
    phi_outbox_acknowledged(&outbox, 3);
    phi_outbox_free_acknowledged(&outbox);
    EXPECT_EQ(outbox.first, nullptr);
    EXPECT_EQ(outbox.last, nullptr);
    EXPECT_EQ(append()->sequence, 4u);
    EXPECT_EQ(outbox.first->number, 4u);
}

TEST_F(Outbox, ANewLifeOfThePeerBeginsAtOneButNumbersGoOn)
{
    phi_outbox_address(&outbox, 5);
    append();
    append();
    phi_outbox_acknowledged(&outbox, 1);
    EXPECT_EQ(phi_outbox_address(&outbox, 6), 0);
    EXPECT_EQ(count(), 0);
    phi_kept *kept = append();
    EXPECT_EQ(kept->sequence, 1u);
    EXPECT_EQ(kept->number, 3u);
    phi_outbox_free_acknowledged(&outbox);
    EXPECT_EQ(count(), 1); // what the former life acknowledged does not count
    EXPECT_EQ(phi_outbox_address(&outbox, 5), -ESTALE);
    EXPECT_EQ(phi_outbox_address(&outbox, 6), 0);
    EXPECT_EQ(count(), 1);
}

TEST_F(Outbox, Forgotten)
{
    phi_outbox_address(&outbox, 5);
    append()->stored = true;
    append()->stored = true;
    phi_outbox_forgotten(&outbox);
    EXPECT_FALSE(outbox.first->stored);
    EXPECT_FALSE(outbox.last->stored);
}

} // namespace
