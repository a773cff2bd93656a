// SPDX-License-Identifier: BSD-3-Clause
// Somebody on the network who is no peer, and knows where a rank's endpoints are: they lie in the
// store, and whoever scans ports finds them. Nothing of it reaches the rank, whose link with its
// peer goes on. What it says is sent by the library itself, as by one that knows all but the token
// and the keys; and bytes are written to the endpoints' sockets.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "conformance/net_ends.h"
#include "conformance/net_long.h"

namespace
{

class NetStranger : public testing::TestWithParam<const char *>
{
  protected:
    void SetUp() override
    {
        const std::string provider = std::string("PEERHOP_NET_PROVIDER=") + GetParam();
        for (auto *end : {&a, &b, &stranger}) {
            *end = std::make_unique<End>();
            if ((*end)->open({provider}))
                GTEST_SKIP() << (*end)->context->error();
        }
        if (strict_function<int()>("strict_refused")) // it is loaded now
            GTEST_SKIP() << "to the strict libfabric each wrong key is a fault";
        lend();
    }
    void lend()
    {
        to.assign(SIZE, 0);
        from.assign(SIZE, 7);
        target = {};
        route = {};
        ASSERT_EQ(phi_link_register(a->link, 7, from.data(), SIZE), 0);
        ASSERT_EQ(phi_link_register(b->link, 9, to.data(), SIZE), 0);
        ASSERT_TRUE(phi_link_target(b->link, 9, &target));
    }
    void meet()
    {
        a->connect(*b);
        b->connect(*a);
        ASSERT_EQ(phi_link_route(a->link, 7, &target, 0, &route), 0);
        both_go_on();
    }
    static uint32_t state(struct phi_move *move)
    {
        return __atomic_load_n(&move->state, __ATOMIC_ACQUIRE);
    }
    static void start(struct phi_move *move, struct phi_route *by, void *local, bool read)
    {
        int rc = -EAGAIN;
        *move = {};
        move->route = by;
        move->local = local;
        move->size = SIZE;
        move->read = read;
        EXPECT_TRUE(eventually([&] { return (rc = phi_move_start(move)) != -EAGAIN; }));
        EXPECT_EQ(rc, 0);
    }
    // Everything that the peer does at b is seen there, and nothing else.
    void both_go_on()
    {
        char why[160];
        static struct phi_move move; // stays where it is, whatever becomes of it
        start(&move, &route, from.data(), false);
        EXPECT_TRUE(eventually([&] {
            phi_route_poll(&route);
            return state(&move) == PHI_MOVE_DONE;
        }));
        std::string text;
        const uint64_t number = ++round;
        EXPECT_EQ(phi_link_store(a->link, 8, &number, 8), 0);
        EXPECT_EQ(phi_link_tell(a->link, "hello", 5), 0);
        EXPECT_TRUE(eventually([&] { return b->message(&text); }));
        EXPECT_EQ(text, "hello");
        EXPECT_EQ(b->stores[1], number);
        EXPECT_FALSE(b->message(&text)) << "of the stranger: " << text;
        for (size_t i = 0; i < sizeof b->stores / sizeof b->stores[0]; i++)
            EXPECT_TRUE(i == 1 || b->stores[i] == 0) << i;
        EXPECT_EQ(b->word(0, 1, 0), 0u);
        EXPECT_EQ(to, std::vector<uint8_t>(SIZE, 7));
        EXPECT_EQ(phi_link_lost(b->link, why, sizeof why), 0) << why;
        EXPECT_EQ(phi_link_lost(a->link, why, sizeof why), 0) << why;
    }
    // The stranger's link to b: with another token, and all by the endpoint of messages, where the
    // greeting of a rail is taken like a message. (Keys are of all endpoints.)
    void approach(bool by_rails = false)
    {
        size_t size;
        uint32_t rails;
        const uint8_t *address = phi_link_address(b->link, &size, &rails);
        std::vector<uint8_t> guessed(address, address + size);
        const size_t each = (size - PHI_NET_TOKEN_SIZE) / (1 + rails);
        for (uint32_t i = 1; i <= rails && !by_rails; i++)
            std::copy(address, address + each, guessed.begin() + static_cast<long>(i * each));
        guessed.back() ^= 1;
        ASSERT_EQ(phi_link_connect(stranger->link, guessed.data(), size, rails), 0);
    }
    // The sockets where a link's endpoints listen; none: they have other addresses.
    static std::vector<sockaddr_in> listeners(const struct phi_link *link)
    {
        size_t size;
        uint32_t rails;
        const uint8_t *address = phi_link_address(link, &size, &rails);
        std::vector<sockaddr_in> all(1 + rails);
        for (size_t i = 0; i < all.size(); i++) {
            memcpy(&all[i], address + i * ((size - PHI_NET_TOKEN_SIZE) / (1 + rails)),
                   sizeof all[i]);
            if (all[i].sin_family != AF_INET)
                return {};
        }
        return all;
    }
    static int dial(const sockaddr_in &where)
    {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, reinterpret_cast<const sockaddr *>(&where), sizeof where) == 0)
            return fd;
        close(fd);
        return -1;
    }
    static struct phi_link *one_more(End &end)
    {
        struct phi_link *link = nullptr;
        EXPECT_EQ(end.open_link(2, &link), 0);
        return link;
    }
    // It has come, or never will.
    void arrives()
    {
        int rank = -1;
        phi_net_settle(stranger->net, phi_deadline(300), &rank);
        settle(100);
    }
    void settle(int64_t ms)
    {
        for (int64_t end = phi_deadline(ms); phi_now() < end;)
            for (auto *end_ : {&a, &b, &stranger})
                phi_net_poll((*end_)->net);
    }

    static constexpr size_t SIZE = 4096;
    std::unique_ptr<End> a, b, stranger;
    std::vector<uint8_t> from, to;
    struct phi_net_target target = {};
    struct phi_route route = {};
    uint64_t round = 0;
};
INSTANTIATE_TEST_SUITE_P(Provider, NetStranger, testing::Values("tcp", "tcp;ofi_rxm"),
                         [](const auto &info) {
                             std::string name = info.param;
                             std::replace(name.begin(), name.end(), ';', '_');
                             return name;
                         });

struct Log {
    std::string text;
    std::atomic<int> lines{0};
};

static void keep(void *opaque, enum ph_log_level, const char *line)
{
    auto *log = static_cast<Log *>(opaque);
    log->text.append(line);
    log->lines++;
}

TEST_P(NetStranger, WhatItSaysIsDropped)
{
    Log log;
    b->context->report.log = keep;
    b->context->report.log_opaque = &log;
    b->context->report.level = PH_LOG_WARN;
    meet();
    approach();
    const uint64_t lie = 666;
    EXPECT_EQ(phi_link_store(stranger->link, 16, &lie, 8), 0);
    EXPECT_EQ(phi_link_tell(stranger->link, "lies", 4), 0);
    EXPECT_TRUE(eventually([&] { return log.lines > 0; }));
    arrives();
    both_go_on();
    phi_link_end(stranger->link, true); // in b's peer's name
    arrives();
    both_go_on();
    b.reset();
    EXPECT_EQ(log.text, "what comes to the link with rank 1 without its token is dropped"); // once
}

// A former process had the port of an endpoint, and its peers write to it still: a message of
// theirs is longer than what the endpoint awaits.
TEST_P(NetStranger, AMessageThatIsTooLongIsDropped)
{
    meet();
    size_t size;
    uint32_t rails;
    const uint8_t *address = phi_link_address(b->link, &size, &rails);
    const size_t each = (size - PHI_NET_TOKEN_SIZE) / (1 + rails);
    std::vector<size_t> lengths = {100, 65536, PHI_NET_MESSAGE_MAX + 1};
    // rxm of 2.5 falls, where it sends the message in segments (docs/security.md).
    if (GetParam() != std::string("tcp") && libfabric_major(a->link) >= 2)
        lengths.pop_back();
    for (uint32_t i = 0; i <= rails; i++) {
        SCOPED_TRACE(i);
        std::vector<uint8_t> guessed(address, address + size);
        std::copy(address + i * each, address + (i + 1) * each, guessed.begin());
        for (int n = 0; n < 20; n++) { // more than are awaited at a time
            struct phi_link *link = one_more(*stranger);
            ASSERT_EQ(phi_link_connect(link, guessed.data(), size, rails), 0);
            const size_t length = lengths[static_cast<size_t>(n) % lengths.size()];
            int rc = -EAGAIN;
            EXPECT_TRUE(eventually([&] {
                phi_net_poll(stranger->net);
                return (rc = send_long(link, length)) != -EAGAIN;
            }));
            EXPECT_EQ(rc, 0);
            settle(100);
            phi_link_end(link, false);
            phi_link_free(link);
        }
        arrives();
        both_go_on();
    }
}

// Who comes to a rail before the peer does.
TEST_P(NetStranger, AGreetingTakesNobodysPlace)
{
    approach(true);
    arrives();
    meet();
}

TEST_P(NetStranger, GuessedKeysOpenNothing)
{
    meet();
    approach();
    struct phi_net_target guess = target;
    guess.keys[0] ^= 1;
    struct phi_route wrong = {};
    std::vector<uint8_t> lies(SIZE, 66);
    ASSERT_EQ(phi_link_register(stranger->link, 5, lies.data(), SIZE), 0);
    ASSERT_EQ(phi_link_route(stranger->link, 5, &guess, 0, &wrong), 0);
    for (bool read : {false, true}) {
        struct phi_move move;
        start(&move, &wrong, lies.data(), read);
        arrives();
        phi_link_end(stranger->link, false); // the move is on this stack
        EXPECT_NE(state(&move), uint32_t(PHI_MOVE_DONE));
        both_go_on();
        stranger.reset();
        stranger = std::make_unique<End>();
        ASSERT_EQ(stranger->open({std::string("PEERHOP_NET_PROVIDER=") + GetParam()}), 0);
        approach();
        ASSERT_EQ(phi_link_register(stranger->link, 5, lies.data(), SIZE), 0);
        guess.mapped = nullptr;
        ASSERT_EQ(phi_link_route(stranger->link, 5, &guess, 0, &wrong), 0);
    }
    EXPECT_EQ(lies, std::vector<uint8_t>(SIZE, 66));
}

TEST_P(NetStranger, APostWithAGuessedKeyIsNone)
{
    meet();
    approach();
    struct phi_net_target guess = target;
    guess.keys[0] ^= 1;
    struct phi_route wrong = {};
    ASSERT_EQ(phi_link_register(stranger->link, 5, from.data(), SIZE), 0);
    ASSERT_EQ(phi_link_route(stranger->link, 5, &guess, 0, &wrong), 0);
    int rc = -EAGAIN;
    eventually([&] { return (rc = phi_link_post(&wrong, post(1, 0, 0, 0))) != -EAGAIN; });
    arrives();
    both_go_on();
}

TEST_P(NetStranger, BytesOnTheSocketsAreNoConnection)
{
    meet();
    if (listeners(b->link).empty())
        GTEST_SKIP() << "no address that is known here";
    for (const sockaddr_in &where : listeners(b->link)) {
        for (size_t n : {0, 1, 64, 5000}) {
            const std::vector<uint8_t> bytes(n, 0xa5);
            const int fd = dial(where);
            ASSERT_GE(fd, 0);
            EXPECT_EQ(send(fd, bytes.data(), n, MSG_NOSIGNAL), static_cast<ssize_t>(n));
            arrives();
            close(fd);
            arrives();
        }
    }
    both_go_on();
}

// Somebody has begun to connect when the link ends, the peer or not: the provider points to the
// endpoint then, and would look at it when they go on, whichever link of the net is polled. They
// are cut off, and sockets of others are let be, also one at the same port of another address, and
// of a link that is only cut what its messages go over.
TEST_P(NetStranger, ALinkEndsWhileItsPeerConnects)
{
    for (const std::string how : {"alone", "met", "met, cut"}) {
        SCOPED_TRACE(how);
        if (how == "met, cut") { // those that had met are gone
            phi_link_free(a->link);
            a->link = one_more(*a);
            lend();
        }
        if (how != "alone")
            meet();
        struct phi_link *ends = one_more(*b);
        if (how != "alone")
            std::swap(ends, b->link);
        const std::vector<sockaddr_in> sockets = listeners(ends);
        if (sockets.empty())
            GTEST_SKIP() << "no address that is known here";
        std::vector<int> fds;
        for (const sockaddr_in &where : sockets) {
            fds.push_back(dial(where));
            fds.push_back(dial(where));
            ASSERT_GE(fds.back(), 0);
        }
        sockaddr_in beside = sockets[0];
        beside.sin_addr.s_addr = htonl(0x7f000909);
        const int listens = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ASSERT_EQ(bind(listens, reinterpret_cast<sockaddr *>(&beside), sizeof beside), 0);
        ASSERT_EQ(listen(listens, 1), 0);
        const int others = dial(beside);
        ASSERT_GE(others, 0);
        arrives();
        if (how == "met, cut") {
            phi_link_cut(ends);
            EXPECT_EQ(dial(sockets.back()), -1) << "it listens still";
            const int still = dial(sockets[0]);
            EXPECT_GE(still, 0) << "its messages have ended, too";
            fds.push_back(still);
            char byte;
            EXPECT_TRUE(recv(fds[0], &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
            EXPECT_EQ(phi_link_tell(a->link, "cut", 3), 0);
            char text[PHI_NET_MESSAGE_MAX];
            size_t size = 0;
            EXPECT_TRUE(eventually([&] { return phi_link_receive(ends, text, &size); }));
            EXPECT_EQ(std::string(text, size), "cut");
        }
        phi_link_end(ends, false);
        phi_link_free(ends);
        for (const sockaddr_in &where : sockets)
            EXPECT_EQ(dial(where), -1) << "it listens still";
        for (int fd : fds) {
            const timeval patience = {kWait / 1000, 0};
            char byte;
            setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
            const ssize_t n = recv(fd, &byte, 1, 0);
            EXPECT_TRUE(n == 0 || (n < 0 && errno == ECONNRESET)) << n << " " << strerror(errno);
        }
        std::vector<std::vector<char>> taken; // all that was freed: who looks at it falls
        for (size_t n = 8; n < 4096; n += 16)
            for (int i = 0; i < 32; i++)
                taken.emplace_back(n, static_cast<char>(0xa5));
        for (size_t i = 0; i < fds.size(); i++) {
            const std::vector<uint8_t> bytes(64, 0xa5);
            if (i % 2 == 0)
                send(fds[i], bytes.data(), bytes.size(), MSG_NOSIGNAL);
            else
                close(fds[i]);
            arrives();
        }
        taken.clear();
        for (size_t i = 0; i < fds.size(); i += 2)
            close(fds[i]);
        const int accepted = accept(listens, nullptr, nullptr);
        ASSERT_GE(accepted, 0);
        EXPECT_EQ(send(accepted, "a", 1, MSG_NOSIGNAL), 1);
        char byte = 0;
        EXPECT_EQ(recv(others, &byte, 1, 0), 1);
        for (int fd : {listens, accepted, others})
            close(fd);
    }
}

// What the peer is writing when the link ends, or is cut, comes no further, although this end has
// greeted nobody, and of the peer's greeting it may not have heard.
TEST_P(NetStranger, NothingIsWrittenAfterTheEnd)
{
    constexpr size_t BIG = 16 << 20;
    const std::vector<uint8_t> source(BIG, 5);
    for (int n = 0; n < 48; n++) {
        std::vector<uint8_t> into(BIG, 0);
        struct phi_link *writer = one_more(*a), *written = one_more(*b);
        ASSERT_EQ(phi_link_register(writer, 7, const_cast<uint8_t *>(source.data()), BIG), 0);
        ASSERT_EQ(phi_link_register(written, 9, into.data(), BIG), 0);
        struct phi_net_target there;
        ASSERT_TRUE(phi_link_target(written, 9, &there));
        size_t size;
        uint32_t rails;
        const uint8_t *address = phi_link_address(written, &size, &rails);
        ASSERT_EQ(phi_link_connect(writer, address, size, rails), 0);
        struct phi_route way = {};
        ASSERT_EQ(phi_link_route(writer, 7, &there, 0, &way), 0);
        struct phi_move move = {};
        move.route = &way;
        move.local = const_cast<uint8_t *>(source.data());
        move.size = BIG;
        int rc = -EAGAIN;
        EXPECT_TRUE(eventually([&] { return (rc = phi_move_start(&move)) != -EAGAIN; }));
        ASSERT_EQ(rc, 0);
        const volatile uint8_t *first = into.data();
        EXPECT_TRUE(eventually([&] {
            phi_net_poll(a->net);
            return *first != 0;
        }));
        if (n % 2 == 0)
            phi_link_end(written, false);
        else
            phi_link_cut(written);
        const std::vector<uint8_t> before(into);
        arrives();
        EXPECT_TRUE(into == before) << "round " << n;
        phi_link_free(writer);
        phi_link_free(written);
    }
}

} // namespace
