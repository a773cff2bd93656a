// SPDX-License-Identifier: BSD-3-Clause
// What stands between a rank and the store: the host's name, its addresses, the socket, and servers
// of other kinds. Each ends in a sentence of its own within the deadline, or is survived.
#include "conformance/store_member.h"

#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "conformance/fake_redis.h"
#include "support/redis_server.h"

namespace
{

using Resolve = int (*)(const char *, const char *, const addrinfo *, addrinfo **);

int resolve(const char *host, const char *port, const addrinfo *hints, addrinfo **found)
{
    static const auto real = reinterpret_cast<Resolve>(dlsym(RTLD_NEXT, "getaddrinfo"));
    return real(host, port, hints, found);
}

// What is asked for names that end in ".test": these addresses, in this order, once it answers.
struct NameServer {
    std::mutex lock;
    std::condition_variable changed;
    std::vector<std::string> addresses;
    bool answers = true;
    int asked = 0, answered = 0;

    void set(bool well, std::vector<std::string> to = {})
    {
        std::lock_guard<std::mutex> hold(lock);
        answers = well;
        addresses = std::move(to);
        changed.notify_all();
    }
    // Whether somebody has asked who has no answer.
    bool holds()
    {
        std::unique_lock<std::mutex> hold(lock);
        return changed.wait_for(hold, patience(10000), [this] { return asked > answered; });
    }
    // Waits for all who ask, so that nobody is left behind by the test.
    void settle()
    {
        set(true);
        std::unique_lock<std::mutex> hold(lock);
        changed.wait(hold, [this] { return asked == answered; });
    }
    int ask(const char *port, const addrinfo *hints, addrinfo **found)
    {
        std::unique_lock<std::mutex> hold(lock);
        asked++;
        changed.notify_all();
        changed.wait_for(hold, patience(15000), [this] { return answers; });
        addrinfo **end = found;
        *found = nullptr;
        for (const std::string &address : addresses)
            if (resolve(address.c_str(), port, hints, end) == 0)
                end = &(*end)->ai_next;
        answered++;
        changed.notify_all();
        return *found ? 0 : EAI_AGAIN;
    }
} name_server;

bool is_ours(const char *host)
{
    const size_t length = host ? strlen(host) : 0;
    return length > 5 && strcmp(host + length - 5, ".test") == 0;
}

} // namespace

extern "C" int getaddrinfo(const char *host, const char *port, const addrinfo *hints,
                           addrinfo **found)
{
    if (is_ours(host) && !(hints->ai_flags & AI_NUMERICHOST))
        return name_server.ask(port, hints, found);
    return resolve(host, port, hints, found);
}

namespace
{

// Listens on an address and answers no attempt to connect: its backlog is full.
class DeafAddress
{
  public:
    DeafAddress(const char *host, int port)
    {
        address_.sin_family = AF_INET;
        address_.sin_port = htons(static_cast<uint16_t>(port));
        address_.sin_addr.s_addr = inet_addr_of(host);
        fds_.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        const int on = 1;
        setsockopt(fds_[0], SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        full_ = bind(fds_[0], where(), sizeof(address_)) == 0 && listen(fds_[0], 0) == 0;
        for (int i = 0; i < 4; i++) {
            fds_.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
            (void)!connect(fds_.back(), where(), sizeof(address_));
        }
    }
    ~DeafAddress()
    {
        for (int fd : fds_)
            close(fd);
    }
    bool full() const
    {
        return full_;
    }

  private:
    static in_addr_t inet_addr_of(const char *host)
    {
        addrinfo hints = {}, *found = nullptr;
        hints.ai_family = AF_INET;
        hints.ai_flags = AI_NUMERICHOST;
        if (resolve(host, nullptr, &hints, &found) != 0)
            return INADDR_NONE;
        const in_addr_t address =
            reinterpret_cast<const sockaddr_in *>(found->ai_addr)->sin_addr.s_addr;
        freeaddrinfo(found);
        return address;
    }
    const sockaddr *where() const
    {
        return reinterpret_cast<const sockaddr *>(&address_);
    }

    sockaddr_in address_ = {};
    std::vector<int> fds_;
    bool full_;
};

class StoreConnect : public testing::Test
{
  protected:
    StoreConnect()
    {
        member.close_ms = 30; // its server goes first
    }
    void TearDown() override
    {
        name_server.settle();
    }
    bool start(RedisServer &redis)
    {
        return RedisServer::available() && redis.start();
    }
    void expect_says(const std::string &text)
    {
        EXPECT_NE(member.error().find(text), std::string::npos) << member.error();
    }
    // Whether an open that fails says so, sooner or later; before that it may say the other.
    bool comes_to_say(const std::string &text, const std::string &other)
    {
        for (Stopwatch watch; watch.ms() < WELL_MS;) {
            EXPECT_EQ(member.open(patience(500).count()), -ETIMEDOUT);
            if (member.error().find(text) != std::string::npos)
                return true;
            expect_says(other);
        }
        return false;
    }
    static std::string at(const std::string &host, const RedisServer &redis)
    {
        return "redis://" + host + ":" + std::to_string(redis.port());
    }

    Member member{0, 2};
};

// ---- the name

TEST_F(StoreConnect, ANameServerThatDoesNotAnswerHoldsNobody)
{
    name_server.set(false);
    member.uri = "redis://silent.test:6379";
    EXPECT_EQ(member.open(200), -ETIMEDOUT);
    EXPECT_TRUE(name_server.holds()); // it still holds who asked
    expect_says("redis://silent.test:6379");
    expect_says("no answer to the look-up of its host name, silent.test");
}

TEST_F(StoreConnect, ANameThatIsNotFoundIsToldByName)
{
    name_server.set(true);
    member.uri = "redis://absent.test:6379";
    EXPECT_EQ(member.open(200), -ETIMEDOUT);
    expect_says("its host name, absent.test, is not found: ");
}

TEST_F(StoreConnect, ALateAnswerOfTheNameServerIsTaken)
{
    RedisServer redis({}, true);
    if (!start(redis))
        GTEST_SKIP() << "no redis-server";
    name_server.set(false);
    std::thread answers([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        name_server.set(true, {"127.0.0.1"});
    });
    member.uri = at("late.test", redis);
    EXPECT_EQ(member.open(), 0) << member.error();
    answers.join();
}

TEST_F(StoreConnect, WhileANameIsLookedUpAgainItsFormerAddressServes)
{
    RedisServer redis({}, true);
    if (!start(redis))
        GTEST_SKIP() << "no redis-server";
    name_server.set(true, {"127.0.0.1"});
    member.uri = at("former.test", redis);
    ASSERT_EQ(member.open(), 0) << member.error();
    name_server.set(false);
    redis.stop();
    EXPECT_EQ(member.announce("here", 700), -ETIMEDOUT); // it is looked up again meanwhile
    EXPECT_TRUE(name_server.holds());
    ASSERT_TRUE(redis.start());
    EXPECT_EQ(member.announce("here"), 0) << member.error();
    EXPECT_TRUE(name_server.holds());
    EXPECT_EQ(phi_mailbox_refresh(member.mailbox, in_ms(WELL_MS)), 0) << member.error();
}

// ---- the addresses

TEST_F(StoreConnect, EachAddressOfAHostIsTried)
{
    RedisServer redis({}, true);
    if (!start(redis))
        GTEST_SKIP() << "no redis-server";
    DeafAddress deaf("127.0.0.3", redis.port());
    if (!deaf.full())
        GTEST_SKIP() << "127.0.0.3 is no address of this machine";
    name_server.set(true, {"127.0.0.3", "127.0.0.2", "127.0.0.1"});
    member.uri = at("several.test", redis);
    ASSERT_EQ(member.open(), 0) << member.error();
    EXPECT_EQ(member.announce("here"), 0) << member.error();
}

TEST_F(StoreConnect, AddressesThatDoNotAnswerAreToldOneByOne)
{
    RedisServer redis({}, true); // its port only
    DeafAddress deaf("127.0.0.3", redis.port());
    if (!deaf.full())
        GTEST_SKIP() << "127.0.0.3 is no address of this machine";
    member.uri = at("several.test", redis);
    // Each sentence has the one that was tried last: that of the second one needs a second try.
    const std::string refuses = "127.0.0.2: Connection refused",
                      silent = "127.0.0.3: Connection timed out";
    name_server.set(true, {"127.0.0.2", "127.0.0.3"});
    EXPECT_TRUE(comes_to_say(silent, refuses));
    name_server.set(true, {"127.0.0.3", "127.0.0.2"});
    EXPECT_TRUE(comes_to_say(refuses, silent));
}

// ---- the socket

TEST_F(StoreConnect, ASocketThatMayNotBeOpenedIsToldAtOnce)
{
    RedisServer redis;
    if (!start(redis))
        GTEST_SKIP() << "no redis-server";
    ASSERT_EQ(chmod(redis.socket().c_str(), 0), 0);
    const int before = setfsuid(geteuid() == 0 ? 65534 : geteuid()); // root may open anything
    member.uri = redis.uri();
    Stopwatch watch;
    EXPECT_EQ(member.open(4 * WELL_MS), -EACCES);
    EXPECT_LT(watch.ms(), 3 * WELL_MS);
    setfsuid(static_cast<uid_t>(before));
    expect_says(redis.uri() + ": its socket may not be opened: Permission denied");
}

TEST_F(StoreConnect, ASocketThatIsOpenToUsALittleLaterIsFine)
{
    RedisServer redis;
    if (!start(redis))
        GTEST_SKIP() << "no redis-server";
    ASSERT_EQ(chmod(redis.socket().c_str(), 0), 0);
    std::thread opens([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        chmod(redis.socket().c_str(), 0777);
    });
    member.uri = redis.uri();
    EXPECT_EQ(member.open(), 0) << member.error();
    opens.join();
}

// ---- other servers

TEST_F(StoreConnect, APortForTlsIsTold)
{
    FakeRedis fake([](const std::string &, int) {
        return std::string("\x15\x03\x01\x00\x02\x02\x46", 7); // alert: protocol version
    });
    member.uri = fake.uri();
    EXPECT_EQ(member.open(), PH_ESTORE);
    expect_says("answers in TLS");
}

TEST_F(StoreConnect, AServerThatHangsUpBeforeItAnswersIsTold)
{
    FakeRedis fake([](const std::string &, int) { return FakeRedis::HANG_UP; });
    member.uri = fake.uri();
    EXPECT_EQ(member.open(2000), -ETIMEDOUT);
    expect_says("before any answer, as by a port for TLS");
}

TEST_F(StoreConnect, ASentinelIsTold)
{
    FakeRedis fake([](const std::string &command, int) -> std::string {
        if (command != "INFO")
            return "-ERR unknown command 'XLEN', with args beginning with: 'ph'\r\n";
        const std::string info = "# Server\r\nredis_version:7.0.15\r\nredis_mode:sentinel\r\n";
        return "$" + std::to_string(info.size()) + "\r\n" + info + "\r\n";
    });
    member.uri = fake.uri();
    EXPECT_EQ(member.open(), PH_ESTORE);
    expect_says("is a sentinel");
    expect_says("GET-MASTER-ADDR-BY-NAME");
}

// ---- sizes

const size_t large = (2 << 20) + 1000;

TEST_F(StoreConnect, AMessageOverTheServersLimitIsToldBeforeItIsSent)
{
    RedisServer redis({"--proto-max-bulk-len", "1mb"});
    if (!start(redis))
        GTEST_SKIP() << "no redis-server";
    member.uri = redis.uri();
    ASSERT_EQ(member.open(), 0) << member.error();
    EXPECT_EQ(member.send(1, std::string(large, 'x')), -EMSGSIZE);
    expect_says("a message of " + std::to_string(large + 48) + " bytes to rank 1");
    expect_says("proto-max-bulk-len is 1048576");
    EXPECT_EQ(member.send(1, "small"), 0) << member.error();
    EXPECT_EQ(redis.cli("CONFIG SET proto-max-bulk-len 16mb"), "OK");
    EXPECT_EQ(member.send(1, std::string(large, 'x')), 0) << member.error();
}

TEST_F(StoreConnect, AServerThatMayNotBeAskedForItsLimitRefusesInItsWords)
{
    RedisServer redis({"--proto-max-bulk-len", "1mb"});
    if (!start(redis))
        GTEST_SKIP() << "no redis-server";
    ASSERT_EQ(redis.command({"ACL", "SETUSER", "default", "-config"}), "OK");
    member.uri = redis.uri();
    ASSERT_EQ(member.open(), 0) << member.error();
    for (int i = 0; i < 5; i++) {
        EXPECT_EQ(member.send(1, std::string(large, 'x')), PH_ESTORE);
        expect_says("an XADD of " + std::to_string(large + 48) + " bytes");
        expect_says("proto-max-bulk-len");
    }
    EXPECT_EQ(member.send(1, "small"), 0) << member.error();
}

} // namespace
