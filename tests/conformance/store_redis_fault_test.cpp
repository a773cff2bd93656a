// SPDX-License-Identifier: BSD-3-Clause
// Redis servers that are absent, late, closed, gone, stopped or full: each ends in a clear error
// within the deadline, or is survived.
#include "conformance/store_member.h"

#include <csignal>
#include <cstdlib>
#include <memory>
#include <set>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support/redis_server.h"
#include "support/store_proxy.h"

namespace
{

using testing::Test;

void sleep_ms(int ms)
{
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

class RedisFault : public Test
{
  protected:
    void SetUp() override
    {
        if (!RedisServer::available())
            GTEST_SKIP() << "no redis-server";
        // A library that raised SIGPIPE would end the test here.
        ASSERT_EQ(signal(SIGPIPE, SIG_DFL), SIG_DFL);
    }
    std::unique_ptr<Member> make(int rank, int ranks = 2, uint64_t incarnation = 0)
    {
        auto member = std::make_unique<Member>(rank, ranks, incarnation);
        member->uri = redis.uri();
        EXPECT_EQ(member->open(), 0) << member->error();
        return member;
    }
    void join()
    {
        ASSERT_TRUE(redis.start());
        a = make(0);
        b = make(1);
        ASSERT_EQ(a->announce("a"), 0);
        ASSERT_EQ(b->announce("b"), 0);
        ASSERT_EQ(a->receive().text, "b");
        ASSERT_EQ(b->receive().text, "a");
    }
    void expect_says(Member &member, const std::string &text)
    {
        EXPECT_NE(member.error().find(text), std::string::npos) << member.error();
    }
    void expect_says_address(Member &member)
    {
        expect_says(member, redis.uri());
    }

    RedisServer redis;
    std::unique_ptr<Member> a, b;
};

// ---- not there

TEST_F(RedisFault, AbsentServerEndsAtTheDeadline)
{
    Member member(0, 2);
    member.uri = redis.uri();
    Stopwatch watch;
    EXPECT_EQ(member.open(150), -ETIMEDOUT);
    EXPECT_GE(watch.ms(), 140);
    EXPECT_LT(watch.ms(), WELL_MS);
    expect_says_address(member);
    expect_says(member, "No such file");
}

TEST_F(RedisFault, RefusedTcpPortEndsAtTheDeadline)
{
    RedisServer tcp({}, true); // never started
    Member member(0, 2);
    member.uri = tcp.tcp_uri();
    EXPECT_EQ(member.open(100), -ETIMEDOUT);
    expect_says(member, tcp.tcp_uri());
    expect_says(member, "refused");
}

TEST_F(RedisFault, UnknownHostEndsAtTheDeadline)
{
    Member member(0, 2);
    member.uri = "redis://no-such-host.invalid";
    EXPECT_EQ(member.open(50), -ETIMEDOUT);
    expect_says(member, "redis://no-such-host.invalid:6379/0");
}

TEST_F(RedisFault, HostNamesAreLookedUp)
{
    RedisServer tcp({}, true);
    ASSERT_TRUE(tcp.start());
    Member member(0, 2);
    member.uri = "redis://localhost:" + std::to_string(tcp.port());
    EXPECT_EQ(member.open(), 0) << member.error();
}

TEST_F(RedisFault, LateServerIsWaitedFor)
{
    Member member(0, 2);
    member.uri = redis.uri();
    std::thread opener([&] { EXPECT_EQ(member.open(), 0) << member.error(); });
    sleep_ms(300);
    ASSERT_TRUE(redis.start());
    opener.join();
}

TEST_F(RedisFault, FullBacklogIsWaitedFor)
{
    // A listener that accepts nothing stands where Redis will be.
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", redis.socket().c_str());
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr *>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(listener, 0), 0);
    int filler = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ASSERT_EQ(connect(filler, reinterpret_cast<sockaddr *>(&address), sizeof(address)), 0);

    Member member(0, 2);
    member.uri = redis.uri();
    EXPECT_EQ(member.open(100), -ETIMEDOUT);
    expect_says(member, "backlog");
    std::thread opener([&] { EXPECT_EQ(member.open(), 0) << member.error(); });
    sleep_ms(100);
    close(listener);
    close(filler);
    ASSERT_TRUE(redis.start());
    opener.join();
}

// ---- not let in

TEST_F(RedisFault, WrongPassword)
{
    RedisServer closed({"--requirepass", "right"});
    ASSERT_TRUE(closed.start());
    Member member(0, 2);
    member.uri = "unix://:wrong-secret@" + closed.socket();
    Stopwatch watch;
    EXPECT_EQ(member.open(3 * WELL_MS), PH_ESTORE);
    EXPECT_LT(watch.ms(), 2 * WELL_MS);
    expect_says(member, closed.uri());
    expect_says(member, "WRONGPASS");
    EXPECT_EQ(member.error().find("wrong-secret"), std::string::npos);
}

TEST_F(RedisFault, NoPassword)
{
    RedisServer closed({"--requirepass", "right"});
    ASSERT_TRUE(closed.start());
    Member member(0, 2);
    member.uri = closed.uri();
    EXPECT_EQ(member.open(), PH_ESTORE);
    expect_says(member, "NOAUTH");
    expect_says(member, "PEERHOP_STORE_PASSWORD_FILE");
}

TEST_F(RedisFault, PasswordThatIsRepeatedByTheServerIsNotRepeatedByUs)
{
    RedisServer old({"--rename-command", "AUTH", ""});
    ASSERT_TRUE(old.start());
    Member member(0, 2);
    member.uri = "unix://:very-secret@" + old.socket();
    EXPECT_EQ(member.open(), PH_ESTORE);
    expect_says(member, "AUTH");
    EXPECT_EQ(member.error().find("very-secret"), std::string::npos) << member.error();
}

TEST_F(RedisFault, PasswordFromAFileAndAUser)
{
    RedisServer closed({"--requirepass", "right"});
    ASSERT_TRUE(closed.start());
    closed.set_password("right");
    // The least that docs/security.md asks for.
    ASSERT_EQ(closed.command({"ACL", "SETUSER", "rank", "on", ">from file", "~ph:{test}:*", "+xadd",
                              "+xread", "+xrange", "+xdel", "+xinfo", "+xlen", "+del", "+type",
                              "+expire", "+eval", "+hget", "+hset", "+select"}),
              "OK");
    std::string file = closed.socket() + ".password";
    FILE *out = fopen(file.c_str(), "w");
    fputs("from file\n", out);
    fclose(out);
    chmod(file.c_str(), 0600);
    Member member(0, 2);
    member.uri = "unix://rank@" + closed.socket();
    member.password_file = file;
    EXPECT_EQ(member.open(), 0) << member.error();
    EXPECT_EQ(member.announce("here"), 0) << member.error();
    EXPECT_EQ(member.send(1, "hello"), 0) << member.error();
    EXPECT_EQ(phi_mailbox_refresh(member.mailbox, in_ms(WELL_MS)), 0) << member.error();
    EXPECT_EQ(closed.command({"SET", "ph:{test}:0:1>0", "no stream"}), "OK");
    EXPECT_EQ(member.receive(300).result, -ETIMEDOUT) << member.error(); // healed
    EXPECT_EQ(member.log_text().find("NOPERM"), std::string::npos) << member.log_text();
    member.close();
    unlink(file.c_str());
    EXPECT_EQ(member.open(), -ENOENT);
    expect_says(member, file);
}

TEST_F(RedisFault, PasswordByVariableBeforeTheUri)
{
    RedisServer closed({"--requirepass", "by-variable"});
    ASSERT_TRUE(closed.start());
    Member member(0, 2);
    member.uri = "unix://:in-the-uri@" + closed.socket();
    EXPECT_EQ(member.open(), PH_ESTORE);
    setenv("PEERHOP_STORE_PASSWORD", "by-variable", 1);
    EXPECT_EQ(member.open(), 0) << member.error();
    member.close();
    setenv("PEERHOP_STORE_PASSWORD", "not-the-one", 1);
    EXPECT_EQ(member.open(), PH_ESTORE);
    unsetenv("PEERHOP_STORE_PASSWORD");
    for (const char *secret : {"in-the-uri", "by-variable", "not-the-one"})
        EXPECT_EQ((member.error() + member.log_text()).find(secret), std::string::npos) << secret;
}

TEST_F(RedisFault, AccessListWithoutStreams)
{
    ASSERT_TRUE(redis.start());
    ASSERT_EQ(redis.command({"ACL", "SETUSER", "default", "-xlen"}), "OK");
    Member member(0, 2);
    member.uri = redis.uri();
    EXPECT_EQ(member.open(), PH_ESTORE);
    expect_says(member, "NOPERM");
}

TEST_F(RedisFault, AbsentDatabase)
{
    ASSERT_TRUE(redis.start());
    Member member(0, 2);
    member.uri = redis.uri() + "?db=999";
    EXPECT_EQ(member.open(), PH_ESTORE);
    expect_says(member, "SELECT");
}

TEST_F(RedisFault, TooManyClients)
{
    RedisServer small({"--maxclients", "1"});
    ASSERT_TRUE(small.start());
    Member first(0, 2);
    first.uri = small.uri();
    if (first.open() ==
        0) { // its second connection is one too many, which may come out a little later
        EXPECT_EQ(first.receive().result, PH_ESTORE);
    }
    expect_says(first, "max number of clients");
}

// ---- goes and comes back

TEST_F(RedisFault, EmptyRestartLosesNothing)
{
    join();
    for (int i = 1; i <= 5; i++)
        ASSERT_EQ(a->send(1, std::to_string(i)), 0);
    EXPECT_EQ(b->receive().text, "1");
    EXPECT_EQ(b->receive().text, "2");
    ASSERT_TRUE(redis.restart());
    // b waits; a, which never looks at the store by itself, is in receive as well.
    std::thread other([&] { EXPECT_EQ(a->receive(2 * WELL_MS).text, "back"); });
    for (int i = 3; i <= 5; i++) {
        Got got = b->receive(2 * WELL_MS);
        ASSERT_EQ(got.result, 0) << b->error();
        EXPECT_EQ(got.text, std::to_string(i));
        EXPECT_EQ(got.sequence, static_cast<uint64_t>(i));
    }
    ASSERT_EQ(b->send(0, "back"), 0);
    other.join();
    // Both records are there again, for who comes now.
    Member late(2, 3);
    late.uri = redis.uri();
    ASSERT_EQ(late.open(), 0);
    EXPECT_TRUE(late.receive().member);
    EXPECT_TRUE(late.receive().member);
    EXPECT_EQ(late.receive(30).result, -ETIMEDOUT);
}

TEST_F(RedisFault, RestartWhileBothAreBlockedInReceive)
{
    join();
    ASSERT_EQ(a->send(1, "unseen"), 0);
    redis.pause(); // so that b cannot read it
    std::thread first([&] { EXPECT_EQ(a->receive(2 * WELL_MS).text, "answer"); });
    std::thread second([&] {
        EXPECT_EQ(b->receive(2 * WELL_MS).text, "unseen");
        EXPECT_EQ(b->send(0, "answer", 2 * WELL_MS), 0) << b->error();
    });
    sleep_ms(50);
    redis.stop();
    sleep_ms(200);
    ASSERT_TRUE(redis.start());
    first.join();
    second.join();
}

TEST_F(RedisFault, AcknowledgedMessagesAreNotSentAgain)
{
    join();
    ASSERT_EQ(a->send(1, "taken"), 0);
    ASSERT_EQ(a->send(1, "not taken"), 0);
    phi_mailbox_acknowledged(a->mailbox, 1, 1);
    ASSERT_TRUE(redis.restart());
    // It notices, and sends again.
    for (Stopwatch watch; redis.cli("XLEN ph:{test}:0:0>1") == "0";) {
        ASSERT_LT(watch.ms(), kWait);
        EXPECT_EQ(a->receive(100).result, -ETIMEDOUT);
    }
    EXPECT_EQ(redis.cli("XLEN ph:{test}:0:0>1"), "1");
}

TEST_F(RedisFault, RestartsInMidExchange)
{
    join();
    const int count = 400;
    std::atomic<bool> done{false};
    std::thread sender([&] {
        for (int i = 1; i <= count; i++)
            EXPECT_EQ(a->send(1, std::to_string(i), 2 * WELL_MS), 0) << a->error();
        // Until everything is known to have come, the sender must be there to send again.
        while (!done)
            a->receive(20);
    });
    std::thread restarter([&] {
        for (int i = 0; i < 5; i++) {
            sleep_ms(15);
            EXPECT_TRUE(redis.restart());
        }
    });
    for (int i = 1; i <= count; i++) {
        Got got = b->receive(2 * WELL_MS);
        EXPECT_EQ(got.result, 0) << b->error();
        EXPECT_EQ(got.text, std::to_string(i));
        phi_mailbox_acknowledged(a->mailbox, 1, got.sequence);
    }
    restarter.join();
    done = true;
    sender.join();
    EXPECT_EQ(b->receive(100).result, -ETIMEDOUT);
}

TEST_F(RedisFault, KilledClientsConnectAgain)
{
    join();
    for (int i = 1; i <= 20; i++) {
        ASSERT_EQ(a->send(1, std::to_string(i)), 0) << a->error();
        redis.cli("CLIENT KILL TYPE normal");
        EXPECT_EQ(b->receive().text, std::to_string(i)) << b->error();
    }
    EXPECT_EQ(b->receive(50).result, -ETIMEDOUT);
}

TEST_F(RedisFault, UnblockedClientsGoOn)
{
    join();
    std::thread sender([&] {
        sleep_ms(50);
        std::string list = redis.cli("CLIENT LIST");
        for (size_t at = 0; (at = list.find("id=", at)) != std::string::npos; at++)
            if (at == 0 || list[at - 1] == '\n')
                redis.command({"CLIENT", "UNBLOCK",
                               list.substr(at + 3, list.find(' ', at) - at - 3),
                               at % 2 ? "TIMEOUT" : "ERROR"});
        EXPECT_EQ(a->send(1, "x"), 0);
    });
    EXPECT_EQ(b->receive().text, "x") << b->error();
    sender.join();
}

TEST_F(RedisFault, FlushedStoreIsFilledAgainByRefresh)
{
    join();
    ASSERT_EQ(a->send(1, "kept"), 0);
    ASSERT_EQ(redis.cli("FLUSHALL"), "OK");
    ASSERT_EQ(phi_mailbox_refresh(a->mailbox, in_ms(WELL_MS)), 0) << a->error();
    EXPECT_EQ(redis.cli("XLEN ph:{test}:0:members"), "1");
    EXPECT_EQ(redis.cli("XLEN ph:{test}:0:0>1"), "1");
    ASSERT_EQ(phi_mailbox_refresh(a->mailbox, in_ms(WELL_MS)), 0);
    EXPECT_EQ(redis.cli("XLEN ph:{test}:0:members"), "1");
}

// ---- does not answer

TEST_F(RedisFault, StoppedServerEndsSendAtTheDeadline)
{
    join();
    redis.pause();
    Stopwatch watch;
    EXPECT_EQ(a->send(1, "lost?", 150), -ETIMEDOUT);
    EXPECT_GE(watch.ms(), 140);
    EXPECT_LT(watch.ms(), WELL_MS);
    expect_says_address(*a);
    expect_says(*a, "XADD");
    EXPECT_EQ(a->receive(50).result, -ETIMEDOUT);
    EXPECT_EQ(phi_mailbox_refresh(a->mailbox, in_ms(50)), -ETIMEDOUT);
    redis.resume();
    // What was withdrawn either came before it was, or never comes; what follows comes in any case,
    // once.
    ASSERT_EQ(a->send(1, "next"), 0) << a->error();
    Got got = b->receive();
    if (got.text == "lost?")
        got = b->receive();
    EXPECT_EQ(got.text, "next");
    EXPECT_EQ(got.sequence, 2u);
    EXPECT_EQ(b->receive(50).result, -ETIMEDOUT);
}

TEST_F(RedisFault, StoppedServerEndsOpenAtTheDeadline)
{
    ASSERT_TRUE(redis.start());
    redis.pause();
    Member member(0, 2);
    member.uri = redis.uri();
    EXPECT_EQ(member.open(100), -ETIMEDOUT);
    expect_says_address(member);
    expect_says(member, "XLEN");
    redis.resume();
}

TEST_F(RedisFault, StoppedServerDoesNotHoldUpOtherThreadsOrClose)
{
    join();
    redis.pause();
    std::atomic<bool> ended{false};
    std::thread slow([&] { // has time until the server goes on
        EXPECT_EQ(a->send(1, "x", 2 * WELL_MS), 0) << a->error();
        ended = true;
    });
    sleep_ms(50);
    EXPECT_EQ(a->send(1, "y", 100), -ETIMEDOUT); // behind the other
    EXPECT_FALSE(ended);
    phi_mailbox_acknowledged(a->mailbox, 1, 1);
    phi_mailbox_wake(a->mailbox);
    EXPECT_EQ(a->receive().result, -EINTR);
    EXPECT_FALSE(ended);
    redis.resume();
    slow.join();
    redis.pause();
    EXPECT_EQ(a->send(1, "z", 100), -ETIMEDOUT);
    Stopwatch closing;
    a->close(100);
    EXPECT_LT(closing.ms(), WELL_MS);
    redis.resume();
}

TEST_F(RedisFault, StoppedServerThatGoesOnHasLostNothing)
{
    join();
    std::thread receiver([&] {
        EXPECT_EQ(b->receive(2 * WELL_MS).text, "first");
        EXPECT_EQ(b->receive(2 * WELL_MS).text, "second");
    });
    ASSERT_EQ(a->send(1, "first"), 0);
    redis.pause();
    std::thread resumer([&] {
        sleep_ms(200);
        redis.resume();
    });
    EXPECT_EQ(a->send(1, "second", 2 * WELL_MS), 0) << a->error();
    receiver.join();
    resumer.join();
}

// What is unstored is put again by who receives; a wake for something else does not wait for that,
// whether the server is gone or answers nothing.
TEST_F(RedisFault, AWakeEndsAnAttemptToPutAgain)
{
    for (bool gone : {true, false}) {
        SCOPED_TRACE(gone ? "gone" : "silent");
        join();
        ASSERT_EQ(a->send(1, "kept"), 0);
        gone ? redis.stop() : redis.pause();
        ASSERT_EQ(a->send(1, "given up", 30), -ETIMEDOUT); // now there is something to put again
        Stopwatch watch;
        for (int i = 0; i < 6; i++) {
            std::thread waker([&] {
                sleep_ms(300); // by then an attempt is under way
                phi_mailbox_wake(a->mailbox);
            });
            EXPECT_EQ(a->receive(2 * WELL_MS).result, -EINTR) << a->error();
            waker.join();
        }
        EXPECT_LT(watch.ms(), 15000); // attempts that none ends have 1, 2, 4, 8, 16 s
        gone ? (void)redis.start() : redis.resume();
        std::atomic<bool> done{false};
        std::thread receiver([&] {
            while (!done)
                a->receive(50);
        });
        EXPECT_EQ(b->receive(2 * WELL_MS).text, "kept") << b->error();
        done = true;
        receiver.join();
        a.reset();
        b.reset();
        redis.stop();
    }
}

// Wakes that never cease do not keep it from being put either.
TEST_F(RedisFault, WakesDoNotKeepWhatWasForgottenFromBeingPut)
{
    join();
    ASSERT_EQ(a->send(1, "kept"), 0);
    redis.stop();
    ASSERT_EQ(a->send(1, "given up", 30), -ETIMEDOUT);
    ASSERT_TRUE(redis.start());
    std::atomic<bool> done{false};
    std::thread receiver([&] {
        while (!done) {
            phi_mailbox_wake(a->mailbox); // there before each attempt
            a->receive(50);
            sleep_ms(1);
        }
    });
    EXPECT_EQ(b->receive(2 * WELL_MS).text, "kept") << b->error();
    done = true;
    receiver.join();
}

// ---- expulsion

TEST_F(RedisFault, ALifeAfterAnExpulsionIsNoneOfItsBusiness)
{
    ASSERT_TRUE(redis.start());
    a = make(0, 2);
    b = make(1, 2);
    ASSERT_EQ(a->announce("a"), 0);
    ASSERT_EQ(b->announce("b"), 0);
    ASSERT_EQ(a->receive().text, "b");
    ASSERT_EQ(phi_mailbox_expel(a->mailbox, 1, life(1), in_ms(WELL_MS)), 0) << a->error();
    EXPECT_EQ(a->receive().incarnation, life(1) + 1);
    auto later = make(1, 2, life(1) + 10);
    ASSERT_EQ(later->announce("b again"), 0);
    EXPECT_EQ(a->receive().text, "b again");
    EXPECT_EQ(later->receive().text, "a");
    EXPECT_EQ(later->receive(50).result, -ETIMEDOUT);
    EXPECT_EQ(later->send(0, "hello"), 0) << later->error();
    EXPECT_EQ(a->receive().text, "hello");
}

TEST_F(RedisFault, AnExpulsionWithoutAServerEndsAtTheDeadline)
{
    join();
    redis.stop();
    a->close_ms = b->close_ms = 50;
    Stopwatch watch;
    EXPECT_EQ(phi_mailbox_expel(a->mailbox, 1, life(1), in_ms(200)), -ETIMEDOUT);
    EXPECT_GE(watch.ms(), 190);
    EXPECT_LT(watch.ms(), WELL_MS);
    expect_says_address(*a);
}

// ---- refuses

TEST_F(RedisFault, ReadOnlyReplica)
{
    join();
    RedisServer master;
    ASSERT_TRUE(master.start());
    ASSERT_EQ(redis.cli("REPLICAOF 127.0.0.1 1"), "OK"); // a master that is not there
    EXPECT_EQ(a->send(1, "x"), PH_ESTORE);
    expect_says(*a, "READONLY");
    expect_says_address(*a);
    Got got = b->receive(50);
    EXPECT_NE(got.result, 0);
    ASSERT_EQ(redis.cli("REPLICAOF NO ONE"), "OK");
    EXPECT_EQ(a->send(1, "y"), 0) << a->error();
    EXPECT_EQ(b->message().text, "y");
}

TEST_F(RedisFault, TooFewReplicas)
{
    join();
    ASSERT_EQ(redis.cli("CONFIG SET min-replicas-to-write 1"), "OK");
    EXPECT_EQ(a->send(1, "x"), PH_ESTORE);
    expect_says(*a, "NOREPLICAS");
    ASSERT_EQ(redis.cli("CONFIG SET min-replicas-to-write 0"), "OK");
    EXPECT_EQ(a->send(1, "y"), 0);
    EXPECT_EQ(b->receive().text, "y");
}

TEST_F(RedisFault, OutOfMemory)
{
    join();
    ASSERT_EQ(redis.cli("CONFIG SET maxmemory 1"), "OK");
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(a->send(1, "x"), PH_ESTORE);
        expect_says(*a, "OOM");
    }
    ASSERT_EQ(redis.cli("CONFIG SET maxmemory 0"), "OK");
    EXPECT_EQ(a->send(1, "y"), 0);
    Got got = b->receive();
    EXPECT_EQ(got.text, "y");
    EXPECT_EQ(b->receive(50).result, -ETIMEDOUT);
}

TEST_F(RedisFault, RestartedServerThatRefusesIsReportedByReceive)
{
    RedisServer small({"--maxmemory", "1"});
    join();
    ASSERT_EQ(a->send(1, "unacknowledged"), 0);
    redis.stop();
    ASSERT_TRUE(small.start());
    // The full server takes the place of the one that went.
    ASSERT_EQ(rename(small.socket().c_str(), redis.socket().c_str()), 0);
    Stopwatch watch;
    Got got = a->receive();
    EXPECT_EQ(got.result, PH_ESTORE);
    expect_says(*a, "OOM");
    int errors = 0;
    while (watch.ms() < 600)
        errors += a->receive().result == PH_ESTORE;
    EXPECT_LE(errors, 5); // it does not ask again and again
}

// ---- lives

TEST_F(RedisFault, ANewLifeTakesOver)
{
    join();
    ASSERT_EQ(a->send(1, "for the first life"), 0);
    b->close(); // the first life's keys go; what was sent to it is lost with it
    ASSERT_EQ(a->send(1, "too late for the first life"), 0);
    auto again = make(1, 2, life(1) + 7);
    ASSERT_EQ(again->announce("b again"), 0);
    EXPECT_EQ(again->receive().text, "a");
    Got got = a->receive();
    EXPECT_TRUE(got.member);
    EXPECT_EQ(got.incarnation, life(1) + 7);
    ASSERT_EQ(a->send_to(1, life(1) + 7, "for the second"), 0);
    got = again->receive();
    EXPECT_EQ(got.text, "for the second");
    EXPECT_EQ(got.sequence, 1u);
    ASSERT_EQ(again->send(0, "from the second"), 0) << again->error();
    got = a->receive();
    EXPECT_EQ(got.text, "from the second");
    EXPECT_EQ(got.sequence, 1u);
    EXPECT_EQ(got.incarnation, life(1) + 7);
}

TEST_F(RedisFault, ANewLifeAfterACrash)
{
    join();
    ASSERT_EQ(a->send(1, "taken"), 0);
    EXPECT_EQ(b->receive().text, "taken");
    ASSERT_EQ(a->send(1, "never taken"), 0);
    ASSERT_EQ(b->send(0, "last words"), 0);
    // b is not closed, as if it had been killed. Its keys are all there.
    auto again = make(1, 2, life(1) + 7);
    ASSERT_EQ(again->announce("b again"), 0);
    EXPECT_EQ(again->receive().text, "a");
    EXPECT_EQ(again->receive(50).result, -ETIMEDOUT);
    EXPECT_NE(again->log_text().find("a former life of this rank"), std::string::npos);
    ASSERT_EQ(again->send(0, "first words"), 0) << again->error();
    EXPECT_EQ(a->message().text, "first words"); // the former life's are over with it
    ASSERT_EQ(a->send_to(1, life(1) + 7, "welcome"), 0);
    EXPECT_EQ(again->receive().text, "welcome");
}

TEST_F(RedisFault, AnOlderLifeLeavesTheNewersMailboxesAlone)
{
    join();
    auto newer = make(1, 2, life(1) + 7);
    ASSERT_EQ(newer->announce("b again"), 0);
    ASSERT_EQ(newer->send(0, "from the newer"), 0);
    ASSERT_EQ(a->send_to(1, life(1) + 7, "for the newer"), 0);
    // The older one reads it, has something to delete, and goes.
    EXPECT_EQ(b->receive().result, PH_EFENCED);
    EXPECT_EQ(phi_mailbox_refresh(b->mailbox, in_ms(WELL_MS)), 0) << b->error();
    b->close();
    EXPECT_EQ(newer->receive().text, "a");
    EXPECT_EQ(newer->receive().text, "for the newer");
    EXPECT_EQ(a->receive().text, "b again");
    EXPECT_EQ(a->receive().text, "from the newer");
    EXPECT_EQ(redis.cli("XLEN ph:{test}:0:members"), "2");
}

// The store has nothing of the former life any more, but those that knew it.
TEST_F(RedisFault, ALifeIsNumberedAfterOneThatHasLeft)
{
    ASSERT_TRUE(redis.start());
    a = make(0, 2);
    b = make(1, 2, life_ahead());
    ASSERT_EQ(a->announce("a"), 0);
    ASSERT_EQ(b->announce("b"), 0);
    ASSERT_EQ(a->receive().text, "b");
    b->close();
    auto again = make(1, 2, phi_incarnation(0));
    ASSERT_NE(again->mailbox, nullptr);
    ASSERT_EQ(again->announce("b again"), 0);
    EXPECT_EQ(a->receive().text, "b again") << a->error();
    ASSERT_EQ(again->send(0, "hello"), 0) << again->error();
    EXPECT_EQ(a->receive().text, "hello");
}

// What nobody has read of a job that is over stands in no later job's way.
TEST_F(RedisFault, WhatALaterLifeHasLeftBehindGoes)
{
    join();
    ASSERT_EQ(redis.cli("XADD ph:{test}:0:0>1 " + std::to_string(life(0) + 1000) + "-1 m other"),
              std::to_string(life(0) + 1000) + "-1");
    ASSERT_EQ(a->send(1, "hello"), 0) << a->error();
    EXPECT_EQ(b->message().text, "hello") << b->error();
}

TEST_F(RedisFault, TheNumberOfALifeOutlivesAFlush)
{
    ASSERT_TRUE(redis.start());
    a = make(0, 2, life_ahead());
    ASSERT_EQ(a->announce("a"), 0);
    ASSERT_EQ(redis.cli("FLUSHALL"), "OK");
    ASSERT_EQ(phi_mailbox_refresh(a->mailbox, in_ms(WELL_MS)), 0) << a->error();
    auto again = make(0, 2, phi_incarnation(0));
    ASSERT_NE(again->mailbox, nullptr);
    EXPECT_GT(again->number(), a->number());
}

// Each of them has a number of its own, and one is the last.
TEST_F(RedisFault, LivesThatBeginTogetherAreToldApart)
{
    const int count = 8;
    ASSERT_TRUE(redis.start());
    std::vector<std::unique_ptr<Member>> lives;
    std::vector<std::thread> threads;
    for (int i = 0; i < count; i++) {
        lives.push_back(std::make_unique<Member>(0, 2));
        lives.back()->uri = redis.uri();
    }
    for (auto &one : lives)
        threads.emplace_back([&one] {
            EXPECT_EQ(one->open(), 0) << one->error();
            EXPECT_EQ(one->announce("here"), 0) << one->error();
        });
    for (std::thread &thread : threads)
        thread.join();
    std::set<uint64_t> numbers;
    for (auto &one : lives)
        numbers.insert(one->number());
    EXPECT_EQ(numbers.size(), static_cast<size_t>(count));
    for (auto &one : lives)
        EXPECT_EQ(one->receive(one->number() == *numbers.rbegin() ? 100 : WELL_MS).result,
                  one->number() == *numbers.rbegin() ? -ETIMEDOUT : PH_EFENCED)
            << one->error();
}

TEST_F(RedisFault, ANumberThatNoneCanFollowIsAnError)
{
    ASSERT_TRUE(redis.start());
    ASSERT_EQ(redis.cli("HSET ph:{test}:0:lives 0 18446744073709551615"), "1");
    Member member(0, 2);
    member.uri = redis.uri();
    EXPECT_EQ(member.open(), PH_ESTORE);
    expect_says(member, "takes none after it");
}

TEST_F(RedisFault, AMessageForALaterLifeIsLeftToIt)
{
    join();
    ASSERT_EQ(a->send_to(1, life(1) + 7, "for the newer"), 0); // a knows already, b does not
    EXPECT_EQ(b->receive(50).result, -ETIMEDOUT);
    EXPECT_EQ(phi_mailbox_refresh(b->mailbox, in_ms(WELL_MS)), 0);
    auto newer = make(1, 2, life(1) + 7);
    EXPECT_EQ(newer->receive().text, "a");
    EXPECT_EQ(newer->receive().text, "for the newer");
}

TEST_F(RedisFault, AnOlderLifeIsFenced)
{
    join();
    auto newer = make(0, 2, life(0) + 2);
    ASSERT_EQ(newer->announce("a again"), 0);
    EXPECT_EQ(a->receive().result, PH_EFENCED);
    EXPECT_EQ(a->receive().result, PH_EFENCED);
    EXPECT_EQ(a->send(1, "x"), PH_EFENCED);
    expect_says(*a, "newer incarnation");
    // The newer one sees nothing of it.
    EXPECT_EQ(newer->receive().text, "b");
    EXPECT_EQ(newer->receive(30).result, -ETIMEDOUT);
}

TEST_F(RedisFault, AnOlderLifeThatDoesNotListenIsFencedByItsStream)
{
    join();
    auto newer = make(0, 2, life(0) + 2);
    ASSERT_EQ(newer->announce("a again"), 0);
    ASSERT_EQ(newer->send(1, "from the newer"), 0);
    EXPECT_EQ(a->send(1, "from the older"), PH_EFENCED);
    expect_says(*a, "ph:{test}:0:0>1");
}

// Between the refusal of an id and the look at what is there instead.
TEST_F(RedisFault, AStreamThatGoesWhileItIsLookedAtIsMadeAgain)
{
    join();
    StoreProxy proxy(redis.socket());
    Member sender(0, 2, life(0) + 2);
    sender.uri = proxy.uri();
    ASSERT_EQ(sender.open(), 0) << sender.error();
    ASSERT_EQ(sender.announce("a again"), 0);
    ASSERT_EQ(b->receive().text, "a again");
    const std::string key = "ph:{test}:0:0>1";
    ASSERT_EQ(redis.cli("XADD " + key + " " + std::to_string(life(0) + 2) + "-99 m other"),
              std::to_string(life(0) + 2) + "-99");
    bool looked = false;
    proxy.before("XINFO", [&] {
        looked = true;
        EXPECT_EQ(redis.cli("DEL " + key), "1");
    });
    EXPECT_EQ(sender.send(1, "one"), 0) << sender.error();
    EXPECT_TRUE(looked);
    EXPECT_EQ(b->receive().text, "one");
}

// ---- economy

TEST_F(RedisFault, WaitingSendsNoCommands)
{
    join();
    a->receive(1);
    uint64_t before = a->commands();
    EXPECT_GT(before, 0u);
    std::string count = redis.cli("INFO commandstats");
    for (int i = 0; i < 20; i++)
        EXPECT_EQ(a->receive(2).result, -ETIMEDOUT);
    phi_mailbox_wake(a->mailbox);
    EXPECT_EQ(a->receive(100).result, -EINTR);
    EXPECT_EQ(a->commands(), before);
    EXPECT_EQ(redis.cli("INFO commandstats").find("cmdstat_xread:calls=0"), std::string::npos);
    // The standing XREAD is the one that the next message answers.
    ASSERT_EQ(b->send(0, "x"), 0);
    EXPECT_EQ(a->receive().text, "x");
    EXPECT_EQ(a->commands(), before);
}

TEST_F(RedisFault, AMessageCostsThreeCommandsAndOneDelete)
{
    join();
    b->receive(1); // its XREAD stands
    uint64_t sender = a->commands(), receiver = b->commands();
    ASSERT_EQ(a->send(1, "x"), 0);
    EXPECT_EQ(a->commands(), sender + 2); // XADD, EXPIRE
    EXPECT_EQ(b->receive().text, "x");
    EXPECT_EQ(b->receive(1).result, -ETIMEDOUT);
    EXPECT_EQ(b->commands(), receiver + 1); // the next XREAD
    ASSERT_EQ(b->send(0, "y"), 0);
    EXPECT_EQ(b->commands(), receiver + 4); // XDEL, XADD, EXPIRE
    EXPECT_EQ(redis.cli("XLEN ph:{test}:0:0>1"), "0");
}

TEST_F(RedisFault, ManyConsumedMessagesAreDeletedAtOnce)
{
    join();
    const int count = 1200; // more than one XDEL takes
    for (int i = 0; i < count; i++)
        ASSERT_EQ(a->send(1, "x"), 0);
    for (int i = 0; i < count; i++)
        ASSERT_EQ(b->receive().text, "x");
    EXPECT_EQ(redis.cli("XLEN ph:{test}:0:0>1"), std::to_string(count));
    ASSERT_EQ(phi_mailbox_refresh(b->mailbox, in_ms(WELL_MS)), 0);
    EXPECT_EQ(redis.cli("XLEN ph:{test}:0:0>1"), "0");
    EXPECT_EQ(b->receive(10).result, -ETIMEDOUT);
}

TEST_F(RedisFault, KeysExpireAndRefreshRenews)
{
    join();
    ASSERT_EQ(a->send(1, "x"), 0);
    for (const char *key : {"ph:{test}:0:members", "ph:{test}:0:0>1"}) {
        long ttl = std::stol(redis.cli(std::string("TTL ") + key));
        EXPECT_GT(ttl, 3500) << key;
        EXPECT_LE(ttl, 3600) << key;
        redis.cli(std::string("EXPIRE ") + key + " 100");
    }
    ASSERT_EQ(phi_mailbox_refresh(a->mailbox, in_ms(WELL_MS)), 0);
    for (const char *key : {"ph:{test}:0:members", "ph:{test}:0:0>1"})
        EXPECT_GT(std::stol(redis.cli(std::string("TTL ") + key)), 3500) << key;
}

std::set<int> open_descriptors()
{
    std::set<int> all;
    for (int fd = 0; fd < 1024; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            all.insert(fd);
    return all;
}

TEST_F(RedisFault, DescriptorsAreClosed)
{
    ASSERT_TRUE(redis.start());
    std::set<int> before = open_descriptors();
    for (int i = 0; i < 3; i++) {
        auto member = make(0);
        std::set<int> now = open_descriptors();
        EXPECT_EQ(now.size(), before.size() + 4); // two connections, two to be woken by
        for (int fd : now)
            EXPECT_TRUE(before.count(fd) || fcntl(fd, F_GETFD) & FD_CLOEXEC) << fd;
    }
    EXPECT_EQ(open_descriptors(), before);
    Member failed(0, 2);
    failed.uri = redis.uri() + "?db=999";
    EXPECT_EQ(failed.open(), PH_ESTORE);
    EXPECT_EQ(open_descriptors(), before);
}

TEST_F(RedisFault, NoStoreGiven)
{
    Member member(0, 2);
    EXPECT_EQ(member.open(), -EINVAL);
    expect_says(member, "PEERHOP_STORE");
}

} // namespace
