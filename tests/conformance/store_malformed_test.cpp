// SPDX-License-Identifier: BSD-3-Clause
// What others put into the mailboxes: all of it is survived.
#include "conformance/store_member.h"

#include <cstring>
#include <memory>

#include <gtest/gtest.h>

#include "support/redis_server.h"

extern "C" {
#include "store/envelope.h"
}

namespace
{

class Malformed : public testing::Test
{
  protected:
    void SetUp() override
    {
        if (!RedisServer::available())
            GTEST_SKIP() << "no redis-server";
        ASSERT_TRUE(redis.start());
        for (Member *member : {&a, &b}) {
            member->uri = redis.uri();
            ASSERT_EQ(member->open(), 0) << member->error();
            ASSERT_EQ(member->announce("record"), 0);
        }
        ASSERT_TRUE(a.receive().member);
        ASSERT_TRUE(b.receive().member);
    }
    // A right message of b to a.
    static std::string message(const std::string &text, uint64_t sequence,
                               phi_envelope_kind kind = PHI_ENVELOPE_MESSAGE)
    {
        phi_envelope envelope{};
        envelope.kind = kind;
        envelope.source = 1;
        envelope.destination = kind == PHI_ENVELOPE_MEMBER ? PHI_ENVELOPE_ALL : 0;
        envelope.source_incarnation = life(1);
        envelope.destination_incarnation = kind == PHI_ENVELOPE_MEMBER ? 0 : life(0);
        envelope.sequence = sequence;
        return encode(envelope, text);
    }
    static std::string encode(const phi_envelope &envelope, const std::string &text)
    {
        uint8_t *bytes = phi_envelope_encode(&envelope, text.data(), text.size());
        std::string value(reinterpret_cast<char *>(bytes), PHI_ENVELOPE_SIZE + text.size());
        free(bytes);
        return value;
    }
    // Puts a value into b's outbound stream by hand.
    void inject(const std::string &value, const std::string &id)
    {
        std::string answer = redis.command({"XADD", "ph:{test}:0:1>0", id, "m", value});
        ASSERT_EQ(answer, id);
    }
    std::string id(int number)
    {
        return std::to_string(life(1)) + "-" + std::to_string(number);
    }
    // The member warns of it, and nothing comes meanwhile.
    void expect_warning(Member &member, const std::string &why)
    {
        Stopwatch watch;
        while (member.log_text().find(why) == std::string::npos && watch.ms() < kWait)
            EXPECT_EQ(member.receive(10).result, -ETIMEDOUT);
        EXPECT_LT(watch.ms(), kWait) << member.log_text();
    }
    // Nothing came but a warning, and a true message still comes.
    void expect_dropped(const std::string &why)
    {
        expect_warning(a, why);
        ASSERT_EQ(b.send(0, "true"), 0) << b.error();
        EXPECT_EQ(a.receive().text, "true");
    }

    RedisServer redis;
    Member a{0, 2}, b{1, 2};
};

TEST_F(Malformed, ByHandButRight)
{
    inject(message("by hand", 1), id(1));
    EXPECT_EQ(a.receive().text, "by hand");
    EXPECT_EQ(a.log_text(), "");
}

TEST_F(Malformed, EveryTruncation)
{
    std::string whole = message("text", 1);
    for (size_t size = 0; size < whole.size(); size++)
        inject(whole.substr(0, size), id(static_cast<int>(size) + 1));
    EXPECT_EQ(a.receive(60).result, -ETIMEDOUT);
    ASSERT_EQ(b.send(0, "true"), 0) << b.error();
    EXPECT_EQ(a.receive().text, "true");
    // What was dropped is deleted as well.
    ASSERT_EQ(a.send(1, "x"), 0);
    EXPECT_EQ(redis.cli("XLEN ph:{test}:0:1>0"), "0");
}

TEST_F(Malformed, EveryByteChanged)
{
    std::string whole = message("text", 1);
    int number = 1;
    for (size_t at = 0; at < PHI_ENVELOPE_SIZE; at++) {
        std::string changed = whole;
        changed[at] = static_cast<char>(changed[at] ^ 0x80);
        inject(changed, id(number++));
    }
    Got got = a.receive(60);
    EXPECT_EQ(got.result, -ETIMEDOUT) << got.sequence;
    ASSERT_EQ(b.send(0, "true"), 0) << b.error();
    EXPECT_EQ(a.receive().text, "true");
}

TEST_F(Malformed, TrailingBytes)
{
    inject(message("text", 1) + "x", id(1));
    expect_dropped("malformed");
}

TEST_F(Malformed, OtherVersion)
{
    std::string changed = message("text", 1);
    changed[4] = 99;
    inject(changed, id(1));
    expect_dropped("another version");
}

TEST_F(Malformed, AbsurdLength)
{
    std::string changed = message("text", 1);
    memset(&changed[40], 0xff, 8);
    inject(changed, id(1));
    expect_dropped("malformed");
}

TEST_F(Malformed, LargerThanAnyMessage)
{
    inject(std::string(PHI_MESSAGE_MAX + 4096, 'x'), id(1));
    expect_dropped("malformed");
}

TEST_F(Malformed, AbsurdSequence)
{
    inject(message("text", UINT64_MAX), id(1));
    expect_dropped("absurd");
}

TEST_F(Malformed, OtherSender)
{
    phi_envelope envelope{};
    envelope.kind = PHI_ENVELOPE_MESSAGE;
    envelope.source = 77;
    envelope.source_incarnation = life(1);
    envelope.destination_incarnation = life(0);
    envelope.sequence = 1;
    inject(encode(envelope, "text"), id(1));
    expect_dropped("another sender");
}

TEST_F(Malformed, OtherReceiver)
{
    phi_envelope envelope{};
    envelope.kind = PHI_ENVELOPE_MESSAGE;
    envelope.source = 1;
    envelope.destination = 1;
    envelope.source_incarnation = life(1);
    envelope.destination_incarnation = life(0);
    envelope.sequence = 1;
    inject(encode(envelope, "text"), id(1));
    expect_dropped("another rank");
}

TEST_F(Malformed, IncarnationThatIsNotThatOfItsId)
{
    inject(message("text", 1), std::to_string(life(1) - 1) + "-1");
    expect_dropped("another incarnation of its sender");
}

TEST_F(Malformed, MemberRecordAmongMessages)
{
    inject(message("text", 0, PHI_ENVELOPE_MEMBER), id(1));
    expect_dropped("wrong kind");
}

TEST_F(Malformed, MessageAmongMemberRecords)
{
    redis.command({"XADD", "ph:{test}:0:members", "*", "m", message("text", 1)});
    expect_dropped("wrong kind");
}

TEST_F(Malformed, NonsenseAmongMemberRecords)
{
    redis.command({"XADD", "ph:{test}:0:members", "*", "m", "nonsense"});
    redis.command({"XADD", "ph:{test}:0:members", "*", "foreign", "field", "and", "more"});
    expect_dropped("malformed");
}

TEST_F(Malformed, Duplicates)
{
    inject(message("one", 1), id(1));
    inject(message("one", 1), id(2));
    inject(message("two", 2), id(3));
    inject(message("one", 1), id(4));
    EXPECT_EQ(a.receive().text, "one");
    EXPECT_EQ(a.receive().text, "two");
    EXPECT_EQ(a.receive(60).result, -ETIMEDOUT);
}

TEST_F(Malformed, OutOfOrderAndWithGaps)
{
    inject(message("three", 3), id(1));
    inject(message("one", 1), id(2));
    EXPECT_EQ(a.receive().text, "one");
    EXPECT_EQ(a.receive(60).result, -ETIMEDOUT); // waits for the gap
    inject(message("two", 2), id(3));
    EXPECT_EQ(a.receive().text, "two");
    EXPECT_EQ(a.receive().text, "three");
}

TEST_F(Malformed, WithdrawnMessagesAreReplacedAndSkipped)
{
    inject(message("withdrawn", 2), id(1));
    inject(message("", 2, PHI_ENVELOPE_VOID), id(2));
    inject(message("one", 1), id(3));
    inject(message("three", 3), id(4));
    EXPECT_EQ(a.receive().text, "one");
    Got got = a.receive();
    EXPECT_EQ(got.text, "three");
    EXPECT_EQ(got.sequence, 3u);
}

TEST_F(Malformed, ForeignFields)
{
    redis.command({"XADD", "ph:{test}:0:1>0", id(1), "other", message("text", 1)});
    redis.command({"XADD", "ph:{test}:0:1>0", id(2), "m", message("text", 1), "n", "more"});
    expect_dropped("none of ours");
}

TEST_F(Malformed, InboundKeyOfAnotherType)
{
    ASSERT_EQ(redis.cli("SET ph:{test}:0:1>0 text"), "OK");
    // The XREAD that stands does not notice; one that begins now does.
    redis.cli("CLIENT KILL TYPE normal");
    expect_warning(a, "no stream");
    ASSERT_EQ(b.send(0, "true"), 0) << b.error();
    EXPECT_EQ(a.receive().text, "true");
}

TEST_F(Malformed, OutboundKeyOfAnotherType)
{
    ASSERT_EQ(redis.cli("LPUSH ph:{test}:0:1>0 element"), "1");
    ASSERT_EQ(b.send(0, "true"), 0) << b.error();
    EXPECT_NE(b.log_text().find("no stream"), std::string::npos) << b.log_text();
    EXPECT_EQ(a.receive().text, "true");
}

TEST_F(Malformed, MembersKeyOfAnotherType)
{
    redis.cli("FLUSHALL");
    ASSERT_EQ(redis.cli("SET ph:{test}:0:members text"), "OK");
    Member c(2, 3);
    c.uri = redis.uri();
    ASSERT_EQ(c.open(), 0) << c.error();
    EXPECT_EQ(c.receive(60).result, -ETIMEDOUT);
    ASSERT_EQ(c.announce("c"), 0) << c.error();
    EXPECT_EQ(redis.cli("TYPE ph:{test}:0:members"), "stream");
}

TEST_F(Malformed, IdsThatAreTakenAreSteppedOver)
{
    inject("nonsense", id(1));
    inject("nonsense", id(2));
    ASSERT_EQ(b.send(0, "true"), 0) << b.error();
    Got got = a.receive();
    EXPECT_EQ(got.text, "true");
    EXPECT_EQ(got.sequence, 1u);
}

TEST_F(Malformed, ALastIdThatCannotBeExceeded)
{
    redis.command(
        {"XADD", "ph:{test}:0:1>0", "18446744073709551615-18446744073709551615", "m", "x"});
    EXPECT_LT(b.send(0, "x"), 0);
    EXPECT_NE(b.error(), "");
}

} // namespace
