// SPDX-License-Identifier: BSD-3-Clause
// The mailbox over callbacks that fail.
#include "conformance/store_member.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "support/memory_store.h"

extern "C" {
#include "store/envelope.h"
}

namespace
{

class Callbacks : public testing::Test
{
  protected:
    void SetUp() override
    {
        for (Member *member : {&a, &b}) {
            member->callbacks = &callbacks;
            ASSERT_EQ(member->open(), 0);
        }
        ASSERT_EQ(a.announce("a"), 0);
        ASSERT_EQ(b.announce("b"), 0);
        ASSERT_TRUE(a.receive().member);
        ASSERT_TRUE(b.receive().member);
    }

    MemoryStore memory;
    ph_store_callbacks callbacks = memory.callbacks();
    Member a{0, 2}, b{1, 2};
};

TEST_F(Callbacks, KeysAreShortPrintableAndSetOnce)
{
    Member c(1048575, 1048576, UINT64_MAX - 1);
    c.callbacks = &callbacks;
    c.job = std::string(100, 'j');
    ASSERT_EQ(c.open(), 0);
    ASSERT_EQ(c.announce("c"), 0);
    ASSERT_EQ(c.send(1048574, "x"), 0);
    ASSERT_EQ(a.send(1, "x"), 0);
    std::string all = memory.keys(), line;
    EXPECT_NE(all.find("ph:{test}:0:member:0\n"), std::string::npos) << all;
    EXPECT_NE(all.find("ph:{test}:0:0>1:1000:1\n"), std::string::npos) << all;
    for (char letter : all) {
        line = letter == '\n' ? "" : line + letter;
        EXPECT_LE(line.size(), 200u);
    }
    EXPECT_TRUE(std::all_of(all.begin(), all.end(),
                            [](char l) { return l == '\n' || (l > 0x20 && l < 0x7f); }));
    EXPECT_FALSE(memory.overwritten());
}

TEST_F(Callbacks, AFailedSetWithdrawsTheMessage)
{
    memory.fail_sets(1, -EIO, false);
    EXPECT_EQ(a.send(1, "refused"), PH_ESTORE);
    EXPECT_NE(a.error().find("ph:{test}:0:0>1:1000:1"), std::string::npos) << a.error();
    memory.fail_sets(1, -ETIMEDOUT, false);
    EXPECT_EQ(a.send(1, "late"), -ETIMEDOUT);
    ASSERT_EQ(a.send(1, "true"), 0);
    EXPECT_EQ(b.receive().text, "true");
    EXPECT_EQ(b.receive(30).result, -ETIMEDOUT);
}

TEST_F(Callbacks, ASetThatTimedOutAndStoredDoesNoHarm)
{
    memory.fail_sets(1, -ETIMEDOUT, true);
    EXPECT_EQ(a.send(1, "withdrawn", 100), -ETIMEDOUT);
    ASSERT_EQ(a.send(1, "true"), 0);
    EXPECT_EQ(b.receive().text, "true"); // b had not looked: the withdrawn one was replaced
    memory.fail_sets(1, -ETIMEDOUT, true);
    EXPECT_EQ(a.send(1, "seen", 100), -ETIMEDOUT);
    EXPECT_EQ(b.receive().text, "seen"); // b looked before it was
    ASSERT_EQ(a.send(1, "next"), 0);
    EXPECT_EQ(b.receive().text, "next");
    EXPECT_EQ(b.receive(30).result, -ETIMEDOUT);
}

TEST_F(Callbacks, AGetThatFailsIsReported)
{
    memory.get_result = -EIO;
    EXPECT_EQ(b.receive().result, PH_ESTORE);
    EXPECT_NE(b.error().find("get of ph:{test}:0:0>1:1000:1"), std::string::npos) << b.error();
    memory.get_result = 0;
    ASSERT_EQ(a.send(1, "x"), 0);
    EXPECT_EQ(b.receive().text, "x");
}

TEST_F(Callbacks, GetsAreShortEnoughForAWake)
{
    memory.longest_get = 0;
    for (int i = 0; i < 10 && memory.longest_get <= 20; i++) // what is left may be less than that
        EXPECT_EQ(b.receive(250).result, -ETIMEDOUT);
    EXPECT_LE(memory.longest_get, 100);
    EXPECT_GT(memory.longest_get, 20); // one key: no need to hurry
    Member c(0, 4);
    c.callbacks = &callbacks;
    c.job = "other";
    ASSERT_EQ(c.open(), 0);
    memory.longest_get = 0;
    EXPECT_EQ(c.receive(60).result, -ETIMEDOUT);
    EXPECT_LE(memory.longest_get, 20);
}

TEST_F(Callbacks, NobodyWanted)
{
    bool wanted[2] = {false, false};
    Stopwatch watch;
    EXPECT_EQ(b.receive(50, wanted).result, -ETIMEDOUT);
    EXPECT_GE(watch.ms(), 49);
    phi_mailbox_wake(b.mailbox);
    EXPECT_EQ(b.receive(WELL_MS, wanted).result, -EINTR);
}

TEST_F(Callbacks, NonsenseUnderAMemberKey)
{
    memory.put("ph:{bad}:0:member:1", "nonsense");
    Member c(0, 3);
    c.callbacks = &callbacks;
    c.job = "bad";
    ASSERT_EQ(c.open(), 0);
    // An error of the store, which is asked again: the record may have been garbled on its way.
    EXPECT_EQ(c.receive().result, PH_ESTORE);
    EXPECT_NE(c.log_text().find("member:1 returned 8 bytes"), std::string::npos) << c.log_text();
    memory.put("ph:{bad}:0:member:1", "");
}

TEST_F(Callbacks, ConsumedMessagesAreRemovedWithALaterCall)
{
    ASSERT_EQ(a.send(1, "x"), 0);
    ASSERT_EQ(a.send(1, "y"), 0);
    EXPECT_EQ(b.receive().text, "x");
    EXPECT_NE(memory.keys().find("0>1:1000:1\n"), std::string::npos);
    ASSERT_EQ(b.send(0, "z"), 0);
    EXPECT_EQ(memory.keys().find("0>1:1000:1\n"), std::string::npos);
    EXPECT_NE(memory.keys().find("0>1:1000:2\n"), std::string::npos);
}

TEST_F(Callbacks, AllThreeAreNeeded)
{
    for (int missing = 0; missing < 3; missing++) {
        ph_store_callbacks some = callbacks;
        if (missing == 0)
            some.set = nullptr;
        else if (missing == 1)
            some.get = nullptr;
        else
            some.remove = nullptr;
        Member c(0, 2);
        c.callbacks = &some;
        EXPECT_EQ(c.open(), -EINVAL);
    }
}

} // namespace
