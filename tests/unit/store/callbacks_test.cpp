// SPDX-License-Identifier: BSD-3-Clause
// The mailbox over callbacks that fail.
#include "conformance/store_member.h"

#include <algorithm>
#include <cstdlib>

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
    ASSERT_EQ(c.send_to(1048574, UINT64_MAX - 1, "x"), 0);
    ASSERT_EQ(a.send(1, "x"), 0);
    std::string all = memory.keys(), line;
    EXPECT_NE(all.find("ph:{test}:0:member:0\n"), std::string::npos) << all;
    EXPECT_NE(all.find("ph:{test}:0:0>1:3e8:3e9:1\n"), std::string::npos) << all;
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
    EXPECT_NE(a.error().find("ph:{test}:0:0>1:3e8:3e9:1"), std::string::npos) << a.error();
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

// It keeps what was withdrawn.
TEST_F(Callbacks, AStoreThatRefusesOtherValuesGoesOnAfterASetThatTimedOut)
{
    memory.refuses = true;
    memory.fail_sets(1, -ETIMEDOUT, true);
    EXPECT_EQ(a.send(1, "stored", 100), -ETIMEDOUT);
    EXPECT_EQ(a.send(1, "next"), 0) << a.error();
    EXPECT_EQ(b.receive().text, "stored");
    EXPECT_EQ(b.receive().text, "next");
    EXPECT_EQ(b.receive(30).result, -ETIMEDOUT);
    // What is none of ours is no message that was stored.
    memory.put("ph:{test}:0:0>1:3e8:3e9:3", "nonsense");
    EXPECT_EQ(a.send(1, "refused"), PH_ESTORE);
    memory.erase("ph:{test}:0:0>1:3e8:3e9:3");
    EXPECT_EQ(a.send(1, "last"), 0);
    EXPECT_EQ(b.receive().text, "last");
    EXPECT_FALSE(memory.overwritten());
}

// The record of rank 0, as a life of it sets it.
std::string record_of(uint64_t incarnation)
{
    phi_envelope envelope{};
    envelope.kind = PHI_ENVELOPE_MEMBER;
    envelope.destination = PHI_ENVELOPE_ALL;
    envelope.source_incarnation = incarnation;
    uint8_t *bytes = phi_envelope_encode(&envelope, nullptr, 0);
    std::string text(reinterpret_cast<char *>(bytes), PHI_ENVELOPE_SIZE);
    free(bytes);
    return text;
}

const char *const RECORD = "ph:{test}:0:member:0";

// It has seen what was there before this life's record was.
TEST_F(Callbacks, ARecordThatAFormerLifeReplacesIsSetAgain)
{
    const std::string mine = memory.value(RECORD);
    const std::string former[] = {record_of(life(0) - 1), ""}; // none: it was leaving
    for (const std::string &left : former) {
        auto replace = [&] { left.empty() ? memory.erase(RECORD) : memory.put(RECORD, left); };
        replace();
        EXPECT_EQ(phi_mailbox_refresh(a.mailbox, in_ms(WELL_MS)), 0) << a.error();
        EXPECT_EQ(memory.value(RECORD), mine) << "by the refresh";
        replace();
        Stopwatch watch;
        while (memory.value(RECORD) != mine && watch.ms() < WELL_MS)
            EXPECT_EQ(a.receive(50).result, -ETIMEDOUT);
        EXPECT_EQ(memory.value(RECORD), mine) << "by who waits";
    }
    memory.put(RECORD, record_of(life(0) + 1));
    EXPECT_EQ(phi_mailbox_refresh(a.mailbox, in_ms(WELL_MS)), PH_EFENCED);
    EXPECT_EQ(a.receive().result, PH_EFENCED);
    EXPECT_EQ(memory.value(RECORD), record_of(life(0) + 1)) << "a later life's stays";
}

// Both see the killed one's record: the smaller removes what the larger has set.
TEST_F(Callbacks, OfLivesThatBeginTogetherTheLargerGoesOn)
{
    Member smaller(0, 2, life(0) + 1), larger(0, 2, life(0) + 2);
    for (Member *member : {&smaller, &larger}) {
        member->callbacks = &callbacks;
        ASSERT_EQ(member->open(), 0);
    }
    ASSERT_EQ(larger.announce("larger"), 0);
    const std::string of_larger = memory.value(RECORD);
    memory.put(RECORD, record_of(life(0))); // what the smaller sees
    ASSERT_EQ(smaller.announce("smaller"), 0);
    Stopwatch watch;
    while (memory.value(RECORD) != of_larger && watch.ms() < WELL_MS)
        larger.receive(50);
    EXPECT_EQ(memory.value(RECORD), of_larger);
    EXPECT_EQ(smaller.receive().result, PH_EFENCED);
}

TEST_F(Callbacks, AGetThatFailsIsReported)
{
    memory.get_result = -EIO;
    EXPECT_EQ(b.receive().result, PH_ESTORE);
    EXPECT_NE(b.error().find("get of ph:{test}:0:0>1:3e8:3e9:1"), std::string::npos) << b.error();
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
    EXPECT_NE(memory.keys().find("0>1:3e8:3e9:1\n"), std::string::npos);
    ASSERT_EQ(b.send(0, "z"), 0);
    EXPECT_EQ(memory.keys().find("0>1:3e8:3e9:1\n"), std::string::npos);
    EXPECT_NE(memory.keys().find("0>1:3e8:3e9:2\n"), std::string::npos);
}

TEST_F(Callbacks, WhatAFormerLifeHasNotTakenIsRemovedAndNoMoreIsLookedFor)
{
    for (int i = 1; i <= 50; i++) {
        ASSERT_EQ(a.send(1, "x"), 0);
        if (i <= 48) { // two are left
            EXPECT_EQ(b.receive().text, "x");
        }
    }
    ASSERT_EQ(b.send(0, "y"), 0);
    EXPECT_NE(memory.keys().find("0>1:3e8:3e9:50\n"), std::string::npos);
    const uint64_t before = a.commands();
    ASSERT_EQ(a.send_to(1, life(1) + 1, "z"), 0);
    EXPECT_LE(a.commands() - before, 10u);
    EXPECT_EQ(memory.keys().find("0>1:3e8:3e9:"), std::string::npos) << memory.keys();
}

TEST_F(Callbacks, WhatAFormerLifeHasSentIsRemovedInTheTimeOfTheCaller)
{
    const int calls_ms = 50;
    for (int i = 0; i < 10; i++) {
        ASSERT_EQ(a.send(1, "x"), 0);
        EXPECT_EQ(b.receive().text, "x");
    }
    memory.put(RECORD, record_of(life(0) + 1));
    const size_t before = memory.size();
    memory.remove_ms = 2 * calls_ms; // one, and the time is over
    Got got;
    for (Stopwatch watch; !got.member && watch.ms() < WELL_MS;)
        got = b.receive(calls_ms);
    memory.remove_ms = 0;
    EXPECT_EQ(got.incarnation, life(0) + 1);
    EXPECT_GE(memory.size(), before - 1);
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
