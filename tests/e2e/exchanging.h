// SPDX-License-Identifier: BSD-3-Clause
// What tests of exchanges share: operations in few words, data that goes through a channel, steps with the test.
#ifndef TESTS_E2E_EXCHANGING_H
#define TESTS_E2E_EXCHANGING_H

#include <chrono>
#include <sstream>
#include <thread>

#include "e2e/ranks.h"

inline struct ph_operation operation(uint64_t op_id, int peer, ph_role role, void *buffer, size_t size,
                                     ph_protocol protocol = PH_PROTOCOL_DEFAULT)
{
    return {op_id, peer, role, protocol, buffer, size};
}

// The role of a direction from `sender` to another rank, as this rank has it.
inline ph_role role_of(const Rank &rank, int sender)
{
    return rank.rank == sender ? PH_ROLE_SENDER : PH_ROLE_RECEIVER;
}

inline std::vector<ph_channel *> exchange_all(Rank &rank, const std::vector<ph_operation> &ops)
{
    std::vector<ph_channel *> channels(ops.size());
    CHECK_OK(ph_exchange(rank.context, ops.data(), ops.size(), channels.data()));
    return channels;
}

// An exchange that fails; returns its sentence.
inline std::string exchange_fails(Rank &rank, const std::vector<ph_operation> &ops, int expected)
{
    std::vector<ph_channel *> channels(ops.size(), nullptr);
    CHECK_RC(ph_exchange(rank.context, ops.data(), ops.size(), channels.data()), expected);
    for (ph_channel *channel : channels)
        CHECK(channel == nullptr);
    return rank.error();
}

inline void check_says(const std::string &sentence, const std::string &part, const char *file, int line)
{
    if (sentence.find(part) == std::string::npos)
        rank_failed(file, line, "\"" + sentence + "\" does not say \"" + part + "\"");
}
#define CHECK_SAYS(sentence, part) check_says((sentence), (part), __FILE__, __LINE__)

inline void check_equal(uint64_t found, uint64_t wanted, const char *what, const char *file, int line)
{
    if (found != wanted)
        rank_failed(file, line, std::string(what) + " is " + std::to_string(found) + ", not " + std::to_string(wanted));
}
#define CHECK_EQUAL(found, wanted) check_equal((found), (wanted), #found, __FILE__, __LINE__)

// One message of `size` bytes from the start of the sender's buffer to the start of the receiver's, data verified.
inline void pass(Rank &rank, ph_channel *channel, ph_role role, void *buffer, size_t size, uint64_t seed, void *stream)
{
    if (role & PH_ROLE_SENDER) {
        rank.device->fill(buffer, size, seed);
        CHECK_OK(ph_put_signal(channel, 0, 0, size, stream));
        rank.synchronize(stream);
    } else {
        CHECK_OK(ph_wait(channel, size, stream));
        rank.synchronize(stream);
        rank.verify(buffer, size, seed, "what was put");
    }
}

// ---- steps: the test and its ranks tell each other how far they are

inline bool reaches(const std::atomic<uint64_t> &value, uint64_t least, int64_t ms = 20000)
{
    auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
    while (value.load() < least) {
        if (std::chrono::steady_clock::now() > end)
            return false;
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return true;
}

inline void sleep_ms(int64_t ms)
{
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

class Stopwatch
{
public:
    int64_t ms() const
    {
        return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin_).count();
    }

private:
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// The commands that a server has run, by its own count, without those of the tests themselves.
inline uint64_t commands_of(const RedisServer &redis)
{
    std::istringstream lines(redis.cli("INFO commandstats"));
    uint64_t sum = 0;
    for (std::string line; std::getline(lines, line);) {
        size_t at = line.find(":calls=");
        if (at != std::string::npos && line.rfind("cmdstat_info", 0) != 0 && line.rfind("cmdstat_ping", 0) != 0)
            sum += std::stoull(line.substr(at + 7));
    }
    return sum;
}

#endif
