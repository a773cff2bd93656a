// SPDX-License-Identifier: BSD-3-Clause
// Servers that are not Redis, or break off: each call ends in an error within its deadline, and
// nothing is believed.
#include "conformance/store_member.h"

#include <sys/resource.h>

#include <gtest/gtest.h>

#include "conformance/fake_redis.h"

namespace
{

struct Nonsense {
    const char *name, *answer;
};

const Nonsense nonsense[] = {
    {"Http", "HTTP/1.1 400 Bad Request\r\n\r\n"},
    {"Status", "+OK\r\n"},
    {"Integer", ":-7\r\n"},
    {"Nil", "$-1\r\n"},
    {"NilArray", "*-1\r\n"},
    {"EmptyArray", "*0\r\n"},
    {"Text", "$5\r\nhello\r\n"},
    {"ArrayOfNothing", "*2\r\n$-1\r\n$-1\r\n"},
    {"HugeText", "$1073741824\r\nx"},
    {"HugeArray", "*2147483647\r\n"},
    {"ManyHugeArrays", "*4000\r\n*4000\r\n*4000\r\n*4000\r\n*4000\r\n"},
    {"OverflowingLength", "$99999999999999999999\r\n"},
    {"NegativeLength", "$-5\r\n"},
    {"DeepArray", "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n"},
    {"Resp3", "%1\r\n+a\r\n:1\r\n"},
    {"HalfText", "$100\r\nonly this"},
    {"HalfLine", "*1"},
    {"Controls", "\x01\x02\x03"},
    {"UnknownStream", "*1\r\n*2\r\n$3\r\nabc\r\n*0\r\n"},
    {"StreamOfText", "*1\r\n*2\r\n$19\r\nph:{test}:0:members\r\n$1\r\nx\r\n"},
    {"WrongId", "*1\r\n*2\r\n$19\r\nph:{test}:0:members\r\n*1\r\n*2\r\n$3\r\na-b\r\n*0\r\n"},
    {"IdOverflow",
     "*1\r\n*2\r\n$19\r\nph:{test}:0:members\r\n*1\r\n*2\r\n$24\r\n99999999999999999999999-"
     "\r\n*0\r\n"},
    {"NilEntry", "*1\r\n*2\r\n$19\r\nph:{test}:0:members\r\n*1\r\n$-1\r\n"},
    {"ErrorWithControls", "-ERR \x1b[2J\x07 \xff\r\n"},
    {"EmptyError", "-\r\n"},
    {"HangUp", FakeRedis::HANG_UP},
    {"Endless", FakeRedis::ENDLESS},
};

class StoreNonsense : public testing::TestWithParam<Nonsense>
{
  protected:
    // Answers as Redis would, but to one command with nonsense.
    FakeRedis::Answer but(const std::string &command)
    {
        return [this, command](const std::string &asked, int) -> std::string {
            if (asked == command)
                return GetParam().answer;
            if (asked == "XLEN" || asked == "EXPIRE" || asked == "EVAL")
                return ":0\r\n";
            if (asked == "XADD")
                return "$6\r\n1000-1\r\n";
            return ""; // XREAD stands
        };
    }
    void open(const FakeRedis &fake)
    {
        member.uri = fake.uri();
        member.close_ms = 30; // the fake does not know DEL
        ASSERT_EQ(member.open(2 * WELL_MS), 0) << member.error();
    }
    void expect_quick_failure(int result, const Stopwatch &watch)
    {
        EXPECT_LT(result, 0);
        EXPECT_LT(watch.ms(), WELL_MS);
        EXPECT_NE(member.error(), "");
        for (char c : member.error())
            EXPECT_TRUE(c >= 0x20 && c < 0x7f);
    }
    bool is(const char *name)
    {
        return std::string(GetParam().name) == name;
    }

    Member member{0, 2};
};

TEST_P(StoreNonsense, InsteadOfXlen)
{
    FakeRedis fake(but("XLEN"));
    member.uri = fake.uri();
    member.close_ms = 30; // the fake does not know DEL
    Stopwatch watch;
    if (is("Integer")) // which is what XLEN answers
        EXPECT_EQ(member.open(), 0);
    else
        expect_quick_failure(member.open(300), watch);
}

TEST_P(StoreNonsense, InsteadOfAClaim)
{
    FakeRedis fake(but("EVAL"));
    member.uri = fake.uri();
    member.close_ms = 30; // the fake does not know DEL
    Stopwatch watch;
    if (is("Integer")) // which is what it answers
        EXPECT_EQ(member.open(), 0);
    else
        expect_quick_failure(member.open(300), watch);
}

TEST_P(StoreNonsense, InsteadOfXadd)
{
    FakeRedis fake(but("XADD"));
    open(fake);
    Stopwatch watch;
    expect_quick_failure(member.send(1, "x", 300), watch);
}

TEST_P(StoreNonsense, InsteadOfExpire)
{
    FakeRedis fake(but("EXPIRE"));
    open(fake);
    Stopwatch watch;
    member.send(1, "x", 300); // decides nothing, if it is an answer at all
    EXPECT_LT(watch.ms(), WELL_MS);
}

TEST_P(StoreNonsense, InsteadOfXread)
{
    FakeRedis fake(but("XREAD"));
    member.uri = fake.uri();
    member.close_ms = 30;          // the fake does not know DEL
    int result = member.open(300); // may see it already
    Stopwatch watch;
    if (result == 0)
        result = member.receive(300).result;
    EXPECT_LT(result, 0);
    EXPECT_LT(watch.ms(), WELL_MS);
}

std::string nonsense_name(const testing::TestParamInfo<Nonsense> &info)
{
    return info.param.name;
}

void PrintTo(const Nonsense &param, std::ostream *out)
{
    *out << param.name;
}

INSTANTIATE_TEST_SUITE_P(All, StoreNonsense, testing::ValuesIn(nonsense), nonsense_name);

// ---- what may pass by itself

TEST(StoreFake, LoadingServerIsWaitedFor)
{
    FakeRedis fake([](const std::string &command, int count) -> std::string {
        if (command == "XLEN" && count < 5)
            return "-LOADING Redis is loading the dataset in memory\r\n";
        return command == "XREAD" ? "" : ":0\r\n";
    });
    Member member(0, 2);
    member.uri = fake.uri();
    member.close_ms = 30; // the fake does not know DEL
    EXPECT_EQ(member.open(), 0) << member.error();
}

TEST(StoreFake, ServerThatIsLoadingForEverEndsAtTheDeadline)
{
    FakeRedis fake([](const std::string &, int) -> std::string {
        return "-LOADING Redis is loading the dataset in memory\r\n";
    });
    Member member(0, 2);
    member.uri = fake.uri();
    member.close_ms = 30; // the fake does not know DEL
    for (int64_t ms = 2000; ms < kWait && member.error().find("LOADING") == std::string::npos;
         ms *= 2) {
        Stopwatch watch; // on a busy machine the answer may not come in so short a time
        EXPECT_EQ(member.open(ms), -ETIMEDOUT);
        EXPECT_LT(watch.ms(), ms + WELL_MS);
    }
    EXPECT_NE(member.error().find("LOADING"), std::string::npos) << member.error();
}

TEST(StoreFake, ServerThatCannotSave)
{
    FakeRedis fake([](const std::string &command, int) -> std::string {
        if (command == "XADD")
            return "-MISCONF Redis is configured to save RDB snapshots\r\n";
        return command == "XREAD" ? "" : ":0\r\n";
    });
    Member member(0, 2);
    member.uri = fake.uri();
    member.close_ms = 30; // the fake does not know DEL
    ASSERT_EQ(member.open(2 * WELL_MS), 0) << member.error();
    EXPECT_EQ(member.send(1, "x", 2 * WELL_MS), PH_ESTORE);
    EXPECT_NE(member.error().find("MISCONF"), std::string::npos) << member.error();
}

TEST(StoreFake, ServerWithoutStreams)
{
    FakeRedis fake([](const std::string &, int) -> std::string {
        return "-ERR unknown command `XLEN`, with args beginning with: `ph`\r\n";
    });
    Member member(0, 2);
    member.uri = fake.uri();
    member.close_ms = 30; // the fake does not know DEL
    EXPECT_EQ(member.open(2 * WELL_MS), PH_ESTORE);
    EXPECT_NE(member.error().find("5.0"), std::string::npos) << member.error();
}

TEST(StoreFake, AnswerInSingleBytes)
{
    // One entry of the members stream, cut into as many packets as it has bytes: the reader puts it
    // together.
    std::atomic<int> asked{0};
    const std::string whole = "*1\r\n*2\r\n$19\r\nph:{test}:0:members\r\n*1\r\n*2\r\n$3\r\n7-7\r\n*"
                              "2\r\n$1\r\nm\r\n$1\r\nx\r\n";
    FakeRedis fake([&](const std::string &command, int) -> std::string {
        if (command != "XREAD")
            return ":0\r\n";
        return asked++ == 0 ? FakeRedis::SLOWLY + whole : "";
    });
    Member member(0, 2);
    member.uri = fake.uri();
    member.close_ms = 30; // the fake does not know DEL
    ASSERT_EQ(member.open(2 * WELL_MS), 0) << member.error();
    for (Stopwatch watch; member.log_text().find("malformed") == std::string::npos;) {
        ASSERT_LT(watch.ms(), kWait) << member.log_text();
        EXPECT_EQ(member.receive(100).result, -ETIMEDOUT);
    }
}

TEST(StoreFake, LateAnswerIsNotTakenForTheNextCommand)
{
    // The answer to the first XADD comes after its sender has given up; on its connection, which
    // must be closed.
    std::atomic<int> adds{0};
    std::atomic<bool> given_up{false};
    FakeRedis fake([&](const std::string &command, int) -> std::string {
        if (command != "XADD")
            return command == "XREAD" ? "" : ":0\r\n";
        if (adds++ != 0)
            return "-OOM no\r\n";
        while (!given_up)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return "$6\r\n1000-1\r\n";
    });
    Member member(0, 2);
    member.uri = fake.uri();
    member.close_ms = 30; // the fake does not know DEL
    ASSERT_EQ(member.open(2 * WELL_MS), 0) << member.error();
    for (Stopwatch watch; adds == 0 && watch.ms() < kWait;) // on a busy machine it is not even sent
        EXPECT_EQ(member.send(1, "x", 200), -ETIMEDOUT);
    given_up = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100)); // the answer comes
    EXPECT_EQ(member.send(1, "y", 2 * WELL_MS), PH_ESTORE);
}

TEST(StoreFake, HugeLengthsCostNoMemory)
{
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    FakeRedis fake([](const std::string &, int) -> std::string { return FakeRedis::ENDLESS; });
    Member member(0, 2);
    member.uri = fake.uri();
    member.close_ms = 30; // the fake does not know DEL
    EXPECT_LT(member.open(3000), 0);
    getrusage(RUSAGE_SELF, &after);
    EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 200 << 10); // KiB
}

} // namespace
