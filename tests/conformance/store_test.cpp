// SPDX-License-Identifier: BSD-3-Clause
// What every store must do.
#include "conformance/store_member.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#include <unistd.h>

#include <gtest/gtest.h>

#include "support/folder.h"
#include "support/memory_store.h"
#include "support/redis_server.h"

namespace
{

enum Kind { REDIS_UNIX, REDIS_TCP, REDIS_PASSWORD, CALLBACKS, DIRECTORY };

class Store : public testing::TestWithParam<Kind>
{
  protected:
    void SetUp() override
    {
        if (GetParam() == CALLBACKS || GetParam() == DIRECTORY)
            return;
        if (!RedisServer::available())
            GTEST_SKIP() << "no redis-server";
        std::vector<std::string> arguments;
        if (GetParam() == REDIS_PASSWORD)
            arguments = {"--requirepass", "p@ss:w/rd%"};
        redis = std::make_unique<RedisServer>(arguments, GetParam() == REDIS_TCP);
        ASSERT_TRUE(redis->start());
    }
    std::string uri() const
    {
        switch (GetParam()) {
        case REDIS_UNIX:
            return redis->uri() + "?db=3";
        case REDIS_TCP:
            return redis->tcp_uri();
        case REDIS_PASSWORD:
            return "unix://:p%40ss%3aw%2Frd%25@" + redis->socket();
        case DIRECTORY:
            return folder.store();
        default:
            return "";
        }
    }
    std::unique_ptr<Member> make(int rank, int ranks, uint64_t incarnation = 0)
    {
        auto member = std::make_unique<Member>(rank, ranks, incarnation);
        if (GetParam() == CALLBACKS)
            member->callbacks = &callbacks;
        else
            member->uri = uri();
        EXPECT_EQ(member->open(), 0) << member->error();
        return member;
    }
    // Opened, announced, and each has seen the others' records.
    std::vector<std::unique_ptr<Member>> join(int ranks)
    {
        std::vector<std::unique_ptr<Member>> members;
        for (int rank = 0; rank < ranks; rank++) {
            members.push_back(make(rank, ranks));
            EXPECT_EQ(members[rank]->announce("record " + std::to_string(rank)), 0);
        }
        for (auto &member : members)
            for (int i = 0; i < ranks - 1; i++)
                EXPECT_TRUE(member->receive().member);
        return members;
    }
    size_t keys()
    {
        const char *count = "redis.call('SELECT', ARGV[1]) return redis.call('DBSIZE')";
        const char *db = GetParam() == REDIS_UNIX ? "3" : "0"; // as in uri()
        return redis                     ? std::stoul(redis->command({"EVAL", count, "0", db}))
               : GetParam() == DIRECTORY ? folder.files()
                                         : memory.size();
    }
    std::string list()
    {
        return redis                     ? redis->cli("KEYS *")
               : GetParam() == DIRECTORY ? folder.list()
                                         : memory.keys();
    }

    std::unique_ptr<RedisServer> redis;
    Folder folder;
    MemoryStore memory;
    ph_store_callbacks callbacks = memory.callbacks();
};

TEST_P(Store, MemberRecordsReachPresentAndFutureRanks)
{
    auto a = make(0, 3), b = make(1, 3);
    ASSERT_EQ(a->announce("I am a"), 0);
    Got got = b->receive();
    EXPECT_EQ(got.result, 0);
    EXPECT_TRUE(got.member);
    EXPECT_EQ(got.rank, 0);
    EXPECT_EQ(got.incarnation, a->incarnation);
    EXPECT_EQ(got.text, "I am a");
    auto late = make(2, 3);
    EXPECT_EQ(late->receive().text, "I am a");
}

TEST_P(Store, MessagesComeInOrderAndOnce)
{
    auto m = join(2);
    for (int i = 1; i <= 300; i++) {
        ASSERT_EQ(m[0]->send(1, "to 1: " + std::to_string(i)), 0) << m[0]->error();
        if (i % 3 == 0) {
            ASSERT_EQ(m[1]->send(0, "to 0: " + std::to_string(i)), 0);
        }
    }
    for (int i = 1; i <= 300; i++) {
        Got got = m[1]->receive();
        ASSERT_EQ(got.result, 0);
        EXPECT_EQ(got.text, "to 1: " + std::to_string(i));
        EXPECT_EQ(got.sequence, static_cast<uint64_t>(i));
        EXPECT_EQ(got.rank, 0);
    }
    for (int i = 3; i <= 300; i += 3)
        EXPECT_EQ(m[0]->receive().text, "to 0: " + std::to_string(i));
    EXPECT_EQ(m[0]->receive(20).result, -ETIMEDOUT);
    EXPECT_EQ(m[1]->receive(20).result, -ETIMEDOUT);
    EXPECT_EQ(m[0]->log_text() + m[1]->log_text(), "");
}

TEST_P(Store, AllSendToAllAtOnce)
{
    const int ranks = 4, count = 60;
    auto m = join(ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; rank++)
        threads.emplace_back([&, rank] {
            std::map<int, int> seen;
            for (int i = 0; i < count; i++)
                for (int peer = (rank + 1) % ranks; peer != rank; peer = (peer + 1) % ranks)
                    EXPECT_EQ(m[rank]->send(peer, std::to_string(i)), 0);
            for (int i = 0; i < count * (ranks - 1); i++) {
                Got got = m[rank]->receive();
                ASSERT_EQ(got.result, 0);
                EXPECT_EQ(got.text, std::to_string(seen[got.rank]++));
            }
            EXPECT_EQ(m[rank]->receive(30).result, -ETIMEDOUT);
        });
    for (std::thread &thread : threads)
        thread.join();
}

TEST_P(Store, ThreadsSendWhileAnotherReceives)
{
    const int count = 80;
    auto m = join(2);
    std::thread first([&] {
        for (int i = 0; i < count; i++)
            EXPECT_EQ(m[0]->send(1, "x"), 0);
    });
    std::thread second([&] {
        for (int i = 0; i < count; i++)
            EXPECT_EQ(m[0]->send(1, "y"), 0);
    });
    std::thread third([&] {
        for (int i = 0; i < count; i++) {
            EXPECT_EQ(m[1]->send(0, "z"), 0);
            EXPECT_EQ(phi_mailbox_refresh(m[1]->mailbox, in_ms(WELL_MS)), 0);
        }
    });
    std::thread fourth([&] {
        for (int i = 0; i < count; i++)
            EXPECT_EQ(m[0]->receive().text, "z");
    });
    for (int i = 1; i <= 2 * count; i++) {
        EXPECT_EQ(m[1]->receive().sequence, static_cast<uint64_t>(i));
        phi_mailbox_acknowledged(m[0]->mailbox, 1, static_cast<uint64_t>(i));
    }
    first.join();
    second.join();
    third.join();
    fourth.join();
}

TEST_P(Store, ReceiveKeepsItsDeadline)
{
    auto m = join(2);
    Stopwatch watch;
    EXPECT_EQ(m[0]->receive(60).result, -ETIMEDOUT);
    EXPECT_GE(watch.ms(), 59);
    EXPECT_LT(watch.ms(), WELL_MS);
    EXPECT_EQ(m[0]->receive(0).result, -ETIMEDOUT);
}

TEST_P(Store, WakeInterruptsReceive)
{
    auto m = join(2);
    phi_mailbox_wake(m[0]->mailbox);
    EXPECT_EQ(m[0]->receive().result, -EINTR);       // came before
    EXPECT_EQ(m[0]->receive(20).result, -ETIMEDOUT); // and counted once
    Stopwatch watch; // before the thread is there: this one may lose its core to it
    std::thread waker([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        phi_mailbox_wake(m[0]->mailbox);
    });
    EXPECT_EQ(m[0]->receive(-1).result, -EINTR);
    EXPECT_GE(watch.ms(), 40);
    EXPECT_LT(watch.ms(), WELL_MS);
    waker.join();
}

TEST_P(Store, MessagesOfEverySize)
{
    auto m = join(2);
    for (size_t size :
         {size_t(0), size_t(1), size_t(65536), size_t(8) << 20, size_t(PHI_MESSAGE_MAX)}) {
        std::string text(size, '\0');
        for (size_t i = 0; i < size; i++)
            text[i] = static_cast<char>(i * 31 + i / 256);
        ASSERT_EQ(m[0]->send(1, text, 2 * WELL_MS), 0) << m[0]->error();
        Got got = m[1]->receive(2 * WELL_MS);
        ASSERT_EQ(got.result, 0);
        EXPECT_TRUE(got.text == text) << size;
        phi_mailbox_acknowledged(m[0]->mailbox, 1, got.sequence);
    }
    EXPECT_EQ(m[0]->send(1, std::string(PHI_MESSAGE_MAX + 1, 'x')), -EMSGSIZE);
    EXPECT_EQ(m[0]->send(1, "after"), 0);
    EXPECT_EQ(m[1]->receive().sequence, 6u);
}

TEST_P(Store, MessagesWaitForTheMemberRecord)
{
    auto a = make(0, 2), b = make(1, 2);
    ASSERT_EQ(a->announce("a"), 0);
    ASSERT_TRUE(b->receive().member);
    ASSERT_EQ(b->send(0, "first"), 0);
    ASSERT_EQ(b->send(0, "second"), 0);
    EXPECT_EQ(a->receive(60).result, -ETIMEDOUT);
    ASSERT_EQ(b->announce("b"), 0);
    EXPECT_EQ(a->receive().text, "b");
    EXPECT_EQ(a->receive().text, "first");
    EXPECT_EQ(a->receive().text, "second");
}

TEST_P(Store, MessagesForAnotherLifeAreDropped)
{
    auto m = join(2);
    ASSERT_EQ(m[0]->send_to(1, life(1) - 1, "for your former self"), 0);
    ASSERT_EQ(m[0]->send(1, "for you"), 0);
    Got got = m[1]->receive();
    EXPECT_EQ(got.text, "for you");
    EXPECT_EQ(got.sequence, 1u);
    if (redis) { // elsewhere each life has mailboxes of its own
        EXPECT_NE(m[1]->log_text().find("a former life of this rank"), std::string::npos);
    }
    EXPECT_EQ(m[0]->send_to(1, life(1) - 1, "back again"), PH_EPEER);
}

TEST_P(Store, WantedPointsToWhomToWaitFor)
{
    auto m = join(4);
    bool wanted[4] = {false, false, true, false};
    std::thread sender([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        EXPECT_EQ(m[2]->send(0, "here"), 0);
    });
    EXPECT_EQ(m[0]->receive(WELL_MS, wanted).text, "here");
    sender.join();
}

// More ranks than any list of those that are awaited is worth being made for: Redis reads the
// mailboxes of all with one command, whoever is awaited. Nothing is lost, late or out of order.
TEST_P(Store, OneOfManyRanksIsAwaited)
{
    const int ranks = 130, messages = 3;
    auto reader = make(0, ranks);
    std::vector<std::unique_ptr<Member>> others;
    for (int rank = 1; rank < ranks; rank++) {
        others.push_back(make(rank, ranks));
        ASSERT_EQ(others.back()->announce("here"), 0);
        for (int i = 0; i < messages; i++)
            ASSERT_EQ(others.back()->send(0, std::to_string(rank * 10 + i)), 0);
    }
    std::vector<int> next(ranks, 0);
    for (int rank = ranks - 1; rank > 0; rank--) {
        bool wanted[ranks] = {};
        wanted[rank] = true;
        while (next[rank] < messages) {
            Got got = reader->receive(2 * WELL_MS, wanted);
            ASSERT_EQ(got.result, 0) << reader->error();
            if (got.member)
                continue;
            EXPECT_EQ(got.text, std::to_string(got.rank * 10 + next[got.rank]++));
        }
    }
    // What comes now comes at once, among all of them.
    bool wanted[ranks] = {};
    wanted[100] = true;
    ASSERT_EQ(others[99]->send(0, "last"), 0);
    EXPECT_EQ(reader->receive(2 * WELL_MS, wanted).text, "last");
    EXPECT_EQ(reader->receive(0, wanted).result, -ETIMEDOUT);
}

TEST_P(Store, AnExpulsionIsForEveryoneAndFencesItsLife)
{
    auto a = make(0, 3), b = make(1, 3);
    ASSERT_EQ(a->announce("a"), 0);
    ASSERT_EQ(b->announce("b"), 0);
    ASSERT_EQ(a->receive().text, "b");
    ASSERT_EQ(phi_mailbox_expel(a->mailbox, 1, b->incarnation, in_ms(WELL_MS)), 0) << a->error();
    ASSERT_EQ(phi_mailbox_expel(a->mailbox, 1, b->incarnation, in_ms(WELL_MS)), 0)
        << a->error(); // again
    auto c = make(2, 3);
    EXPECT_EQ(c->receive().text, "a");
    EXPECT_EQ(c->receive().text, "b");
    for (Member *member : {a.get(), c.get()}) {
        Got got = member->receive();
        EXPECT_EQ(got.result, 0) << member->error();
        EXPECT_TRUE(got.member);
        EXPECT_EQ(got.rank, 1);
        EXPECT_EQ(got.incarnation, b->incarnation + 1);
        EXPECT_EQ(got.text, "");
        EXPECT_EQ(member->receive(50).result, -ETIMEDOUT);
    }
    Got own = b->receive();
    if (own.text == "a") // it may have come before
        own = b->receive();
    EXPECT_EQ(own.result, PH_EFENCED);
    EXPECT_EQ(b->send(0, "x"), PH_EFENCED);
    EXPECT_FALSE(memory.overwritten());
}

// By a clock that was set back, or another host's: the life that begins later is the later one.
TEST_P(Store, ALifeIsNumberedAfterTheFormerWhateverItsClockSays)
{
    auto a = make(0, 3, life(0)), b = make(1, 3, life_ahead());
    ASSERT_EQ(a->announce("a"), 0);
    ASSERT_EQ(b->announce("b"), 0);
    auto again = make(1, 3, phi_incarnation(0));
    ASSERT_NE(again->mailbox, nullptr);
    EXPECT_GT(again->number(), b->number() + 1); // which an expulsion of b would have
    ASSERT_EQ(again->announce("b again"), 0);
    auto late = make(2, 3);
    ASSERT_EQ(again->send_to(0, a->number(), "to a"), 0) << again->error();
    ASSERT_EQ(again->send_to(2, late->number(), "to the late one"), 0) << again->error();
    for (Member *member : {a.get(), late.get()}) {
        Got got = member->message();
        EXPECT_EQ(got.result, 0) << member->error();
        EXPECT_EQ(got.incarnation, again->number());
    }
}

// Who has met a life of a rank meets the next one, which finds what it is sent and nothing else.
TEST_P(Store, ALaterLifeIsMetAndFencesTheFormer)
{
    auto a = make(0, 2), b = make(1, 2);
    ASSERT_EQ(a->announce("a"), 0);
    ASSERT_EQ(b->announce("b"), 0);
    ASSERT_EQ(a->receive().text, "b");
    ASSERT_EQ(b->receive().text, "a");
    for (int i = 0; i < 3; i++) {
        ASSERT_EQ(a->send(1, "to the former"), 0);
        ASSERT_EQ(b->send(0, "of the former"), 0);
    }
    EXPECT_EQ(a->receive().text, "of the former");
    EXPECT_EQ(b->receive().text, "to the former");
    auto next = make(1, 2, life(1) + 10);
    ASSERT_EQ(next->announce("the next b"), 0) << next->error();
    Got got = a->receive();
    while (!got.member && got.result == 0) // what came before
        got = a->receive();
    EXPECT_EQ(got.text, "the next b");
    EXPECT_EQ(got.incarnation, next->number());
    ASSERT_EQ(next->receive().text, "a");
    ASSERT_EQ(a->send_to(1, next->number(), "to the next"), 0);
    ASSERT_EQ(next->send(0, "of the next"), 0);
    EXPECT_EQ(next->message().text, "to the next");
    EXPECT_EQ(a->message().text, "of the next");
    do // what it was sent before comes first
        got = b->message();
    while (got.result == 0);
    EXPECT_EQ(got.result, PH_EFENCED);
    b->close(); // which leaves the next one's record
    auto late = make(0, 2, life(0) + 10);
    EXPECT_EQ(late->receive().text, "the next b");
}

TEST_P(Store, RefreshIsHarmless)
{
    auto m = join(2);
    ASSERT_EQ(m[0]->send(1, "x"), 0);
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(phi_mailbox_refresh(m[0]->mailbox, in_ms(WELL_MS)), 0);
    EXPECT_EQ(m[1]->receive().text, "x");
    EXPECT_EQ(m[1]->receive(20).result, -ETIMEDOUT);
}

TEST_P(Store, CloseLeavesNoKeys)
{
    auto m = join(3);
    for (int i = 0; i < 5; i++)
        for (int peer = 1; peer < 3; peer++)
            ASSERT_EQ(m[0]->send(peer, "x"), 0);
    ASSERT_EQ(m[2]->send(0, "taken by nobody"), 0);
    for (int i = 1; i <= 5; i++)
        phi_mailbox_acknowledged(m[0]->mailbox, 1, m[1]->receive().sequence);
    EXPECT_GT(keys(), 0u);
    for (auto &member : m)
        member->close();
    EXPECT_EQ(keys(), 0u) << list();
    for (auto &member : m)
        EXPECT_EQ(member->log_text(), "");
}

TEST_P(Store, WrongArguments)
{
    auto m = join(2);
    EXPECT_EQ(m[0]->send(0, "to myself"), -EINVAL);
    EXPECT_EQ(m[0]->send(2, "nobody"), -EINVAL);
    EXPECT_EQ(m[0]->send(-1, "nobody"), -EINVAL);
    EXPECT_EQ(m[0]->send_to(1, 0, "no life"), -EINVAL);
    Member unnamed(0, 2);
    unnamed.uri = m[0]->uri;
    unnamed.callbacks = m[0]->callbacks;
    unnamed.job = "";
    EXPECT_EQ(unnamed.open(), -EINVAL);
    unnamed.job = std::string(101, 'j');
    EXPECT_EQ(unnamed.open(), -EINVAL);
    unnamed.job = "a\nb";
    EXPECT_EQ(unnamed.open(), -EINVAL);
    phi_mailbox_close(nullptr, 0);
}

TEST_P(Store, JobsAndEpochsDoNotMeet)
{
    auto m = join(2);
    Member other(1, 2);
    other.uri = m[0]->uri;
    other.callbacks = m[0]->callbacks;
    other.job = "other";
    ASSERT_EQ(other.open(), 0);
    EXPECT_EQ(other.receive(50).result, -ETIMEDOUT);
}

std::string kind_name(const testing::TestParamInfo<Kind> &info)
{
    const char *const names[] = {"RedisUnix", "RedisTcp", "RedisPassword", "Callbacks",
                                 "Directory"};
    return names[info.param];
}

INSTANTIATE_TEST_SUITE_P(All, Store,
                         testing::Values(REDIS_UNIX, REDIS_TCP, REDIS_PASSWORD, CALLBACKS,
                                         DIRECTORY),
                         kind_name);

} // namespace
