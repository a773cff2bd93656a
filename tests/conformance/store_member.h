// SPDX-License-Identifier: BSD-3-Clause
// One rank's mailbox with all that it needs, for the suites of the store.
#ifndef TESTS_CONFORMANCE_STORE_MEMBER_H
#define TESTS_CONFORMANCE_STORE_MEMBER_H

#include "support/atomic_compat.h"

#include <cerrno>
#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "support/patience.h"

extern "C" {
#include "base/clock.h"
#include "base/config.h"
#include "base/counters.h"
#include "base/random.h"
#include "base/report.h"
#include "store/mailbox.h"
}

inline const int64_t WELL_MS = patience(10000).count(); // for a store that is well

struct Got {
    int result = -1;
    bool member = false;
    int rank = -1;
    uint64_t incarnation = 0, sequence = 0;
    std::string text;
};

// A fixed life for a rank where the test does not care.
static inline uint64_t life(int rank)
{
    return 1000 + static_cast<uint64_t>(rank);
}

// A life of a host whose clock is an hour ahead of this one's.
static inline uint64_t life_ahead()
{
    return phi_incarnation(0) + (3600000ull << 20);
}

static inline int64_t in_ms(int64_t ms)
{
    return phi_deadline(ms);
}

class Member
{
  public:
    Member(int rank, int ranks, uint64_t incarnation = 0)
        : rank(rank), ranks(ranks), incarnation(incarnation ? incarnation : life(rank))
    {
        phi_report_init(&report, log, this, PH_LOG_INFO);
    }
    ~Member()
    {
        close(close_ms);
        phi_config_fini(&config);
        phi_report_fini(&report);
    }
    Member(const Member &) = delete;
    Member &operator=(const Member &) = delete;

    std::string uri, password_file, job = "test";
    const ph_store_callbacks *callbacks = nullptr;

    int open(int64_t ms = WELL_MS)
    {
        std::string store = "PEERHOP_STORE=" + uri,
                    file = "PEERHOP_STORE_PASSWORD_FILE=" + password_file;
        const char *settings[] = {store.c_str(), file.c_str(), nullptr};
        phi_config_fini(&config);
        int result = phi_config_read(&config, settings, &report);
        if (result)
            return result;
        phi_mailbox_params params{};
        params.report = &report;
        params.counters = &counters;
        params.config = &config;
        params.callbacks = callbacks;
        params.job = job.c_str();
        params.rank = rank;
        params.ranks = ranks;
        params.incarnation = incarnation;
        return phi_mailbox_open(&params, in_ms(ms), &mailbox);
    }
    void close(int64_t ms = WELL_MS)
    {
        phi_mailbox_close(mailbox, in_ms(ms));
        mailbox = nullptr;
    }
    uint64_t number() const // of its life, as the store has it
    {
        return phi_mailbox_incarnation(mailbox);
    }
    int announce(const std::string &text, int64_t ms = WELL_MS)
    {
        return phi_mailbox_announce(mailbox, text.data(), text.size(), in_ms(ms));
    }
    int send_to(int peer, uint64_t peer_life, const std::string &text, int64_t ms = WELL_MS)
    {
        return phi_mailbox_send(mailbox, peer, peer_life, text.data(), text.size(), in_ms(ms));
    }
    int send(int peer, const std::string &text, int64_t ms = WELL_MS)
    {
        return send_to(peer, life(peer), text, ms);
    }
    Got receive(int64_t ms = WELL_MS, const bool *wanted = nullptr)
    {
        Got got;
        phi_message message{};
        got.result = phi_mailbox_receive(mailbox, wanted, in_ms(ms), &message);
        if (got.result)
            return got;
        got.member = message.member;
        got.rank = message.rank;
        got.incarnation = message.incarnation;
        got.sequence = message.sequence;
        got.text.assign(reinterpret_cast<const char *>(message.bytes), message.size);
        phi_mailbox_message_free(&message);
        return got;
    }
    // The next message that is no member record.
    Got message(int64_t ms = WELL_MS)
    {
        int64_t end = in_ms(ms);
        for (;;) {
            Got got = receive(phi_remaining_ms(end));
            if (got.result || !got.member)
                return got;
        }
    }
    uint64_t commands()
    {
        return atomic_load(&counters.store_commands);
    }
    std::string error()
    {
        char text[1024];
        phi_report_copy(&report, text, sizeof(text));
        return text;
    }
    std::string log_text()
    {
        std::lock_guard<std::mutex> hold(lock_);
        std::string text;
        for (const std::string &line : lines_)
            text += line + "\n";
        return text;
    }

    int64_t close_ms = WELL_MS; // of the destructor
    const int rank, ranks;
    const uint64_t incarnation;
    phi_mailbox *mailbox = nullptr;
    phi_report report;
    phi_counters counters{};
    phi_config config{};

  private:
    static void log(void *opaque, ph_log_level, const char *line)
    {
        auto *self = static_cast<Member *>(opaque);
        std::lock_guard<std::mutex> hold(self->lock_);
        self->lines_.push_back(line);
    }
    std::mutex lock_;
    std::vector<std::string> lines_;
};

class Stopwatch
{
  public:
    int64_t ms() const
    {
        return (phi_now() - start_) / PHI_MS;
    }

  private:
    int64_t start_ = phi_now();
};

#endif
