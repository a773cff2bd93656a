// SPDX-License-Identifier: BSD-3-Clause
// Two nets of one process, with a link to each other.
#ifndef TESTS_CONFORMANCE_NET_ENDS_H
#define TESTS_CONFORMANCE_NET_ENDS_H

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/atomic_compat.h"

#include "support/patience.h"
#include "support/plain_context.h"
#include "support/strict_net.h"

extern "C" {
#include "base/clock.h"
#include "base/wake.h"
#include "net/net.h"
}

namespace
{

constexpr uint32_t kLines = 4;

struct alignas(64) Line {
    uint32_t word[2];
    uint32_t broken;
    uint32_t life;
    uint8_t rest[48];
};
static_assert(sizeof(Line) == PHI_LINE_SIZE && offsetof(Line, life) == PHI_LINE_LIFE);

// One rank's half: a net, a link, and what the peer writes into.
struct End {
    std::unique_ptr<PlainContext> context;
    struct phi_net *net = nullptr;
    struct phi_link *link = nullptr;
    struct phi_wake messages = {-1, -1};
    struct phi_net_flush flush = {}; // before open
    phi_pci_place near = {};         // before open
    Line lines[2][kLines] = {};
    alignas(8) uint64_t stores[16] = {};

    int open(const std::vector<std::string> &settings)
    {
        std::vector<const char *> pointers;
        for (const std::string &setting : settings)
            pointers.push_back(setting.c_str());
        pointers.push_back(nullptr);
        context = std::make_unique<PlainContext>(pointers.data());
        EXPECT_EQ(phi_wake_open(&messages), 0);
        struct phi_net_params params = {};
        params.report = &context->report;
        params.config = &context->config;
        params.message_ring = messages.ring;
        params.store_ring = -1;
        params.near = near;
        int rc = phi_net_open(&params, &net);
        if (rc)
            return rc;
        EXPECT_EQ(phi_net_flush_by(net, &flush), 0);
        return open_link(1, &link);
    }
    int open_link(int rank, struct phi_link **opened)
    {
        const struct phi_mirror mirror = {
            {reinterpret_cast<char *>(lines[0]), reinterpret_cast<char *>(lines[1])},
            kLines,
            reinterpret_cast<char *>(stores),
            sizeof stores};
        return phi_link_open(net, rank, &mirror, opened);
    }
    void connect(const End &other)
    {
        size_t size;
        uint32_t rails;
        const uint8_t *address = phi_link_address(other.link, &size, &rails);
        ASSERT_EQ(phi_link_connect(link, address, size, rails), 0) << context->error();
    }
    ~End()
    {
        phi_net_close(net);
        phi_wake_close(&messages);
    }
    // Why its link has ended, for which this waits: its moves fail before.
    int lost(char (&why)[160]) const
    {
        for (int64_t end = phi_deadline(kWait); phi_now() < end; std::this_thread::yield())
            if (int code = phi_link_lost(link, why, sizeof why))
                return code;
        return 0;
    }
    uint32_t word(int side, uint32_t line, int word_) const
    {
        return __atomic_load_n(&lines[side][line].word[word_], __ATOMIC_ACQUIRE);
    }
    // Takes what has come, also where it is told late.
    void take_all()
    {
        int rank = -1;
        // Each waits for the lock: phi_net_poll() passes by while another thread has it, for as
        // long as that one stands still.
        for (int i = 0; i < 1000; i++)
            ASSERT_EQ(phi_net_settle(net, phi_deadline(kWait), &rank), 0);
    }
    bool message(std::string *text)
    {
        char bytes[PHI_NET_MESSAGE_MAX];
        size_t size = 0;
        if (!phi_link_receive(link, bytes, &size))
            return false;
        text->assign(bytes, size);
        return true;
    }
};

template <typename Condition> bool eventually(Condition condition, int64_t ms = kWait)
{
    for (int64_t end = phi_deadline(ms); phi_now() < end;) {
        if (condition())
            return true;
        std::this_thread::sleep_for(std::chrono::microseconds(10)); // the nets' threads need a core
    }
    return condition();
}

inline uint32_t post(uint32_t line, int side, int word, int which, int life = 0)
{
    struct phi_net_post post = {line,           uint8_t(side), uint8_t(word),
                                uint8_t(which), uint8_t(life), 1};
    return phi_net_post_encode(&post);
}

} // namespace

#endif
