// SPDX-License-Identifier: BSD-3-Clause
// What tests of exchanges share: operations in few words, data that goes through a channel, steps
// with the test.
#ifndef TESTS_E2E_EXCHANGING_H
#define TESTS_E2E_EXCHANGING_H

#include <chrono>
#include <cstring>
#include <functional>
#include <sstream>
#include <thread>

#include "e2e/ranks.h"

inline struct ph_operation operation(uint64_t op_id, int peer, ph_role role, void *buffer,
                                     size_t size, ph_protocol protocol = PH_PROTOCOL_DEFAULT)
{
    return {op_id, peer, role, protocol, buffer, size};
}

// An operation of several ranges, which live until it is exchanged.
inline struct ph_operation operation(uint64_t op_id, int peer, ph_role role,
                                     const std::vector<ph_range> &ranges,
                                     ph_protocol protocol = PH_PROTOCOL_DEFAULT)
{
    struct ph_operation op = operation(op_id, peer, role, nullptr, 0, protocol);
    op.range_count = (uint32_t)ranges.size();
    op.ranges = ranges.data();
    return op;
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

inline ph_path_report report_of(Rank &rank, ph_channel *channel, bool outgoing)
{
    ph_path_report report = {};
    CHECK_OK(ph_channel_path(channel, outgoing, &report, sizeof report));
    return report;
}

inline void check_says(const std::string &sentence, const std::string &part, const char *file,
                       int line)
{
    if (sentence.find(part) == std::string::npos)
        rank_failed(file, line, "\"" + sentence + "\" does not say \"" + part + "\"");
}
#define CHECK_SAYS(sentence, part) check_says((sentence), (part), __FILE__, __LINE__)

inline void check_equal(uint64_t found, uint64_t wanted, const char *what, const char *file,
                        int line)
{
    if (found != wanted)
        rank_failed(file, line,
                    std::string(what) + " is " + std::to_string(found) + ", not " +
                        std::to_string(wanted));
}
#define CHECK_EQUAL(found, wanted) check_equal((found), (wanted), #found, __FILE__, __LINE__)

// One message of `size` bytes from the start of the sender's buffer to the start of the receiver's,
// data verified.
inline void pass(Rank &rank, ph_channel *channel, ph_role role, void *buffer, size_t size,
                 uint64_t seed, void *stream)
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

inline void release_to(Rank &rank, const void *buffer, size_t bytes, ph_release_state state)
{
    CHECK_OK(ph_release_start(rank.context, buffer, bytes));
    // A peer that was killed is waited for until the kernel has ended it.
    CHECK_OK(ph_release_wait(rank.context, buffer, bytes, state, patience(45000).count()));
}

// ---- steps: the test and its ranks tell each other how far they are

inline bool reaches(const std::atomic<uint64_t> &value, uint64_t least, int64_t ms = 20000)
{
    auto end = std::chrono::steady_clock::now() + patience(ms);
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

// An exchange that may meet memory which was freed without a release and is still mapped, until who
// maps it has been told, and has nothing under way: the ranks reap, or it goes by itself.
enum class InPlace { NEVER, BY_ITSELF, BY_REAPING };
inline ph_channel *exchange_in_place(Rank &rank, const ph_operation &op, InPlace goes)
{
    const auto end = std::chrono::steady_clock::now() + patience(20000);
    while (std::chrono::steady_clock::now() < end) {
        ph_channel *channel = nullptr;
        int rc = ph_exchange(rank.context, &op, 1, &channel);
        if (rc == 0)
            return channel;
        CHECK_RC(rc, PH_ENOPATH);
        CHECK(goes != InPlace::NEVER);
        CHECK_SAYS(rank.error(), "ph_reap");
        if (goes == InPlace::BY_REAPING)
            CHECK_OK(ph_reap(rank.context, 0));
        sleep_ms(1);
    }
    rank_failed(__FILE__, __LINE__, rank.error());
}

// Waits until a channel can no longer be used, and returns why. The kernel may take half a minute
// to end a process that was killed.
inline int end_of(ph_channel *channel)
{
    const auto end = std::chrono::steady_clock::now() + patience(45000);
    int status = ph_channel_ended(channel);
    for (; status == 0 && std::chrono::steady_clock::now() < end;
         status = ph_channel_ended(channel))
        std::this_thread::sleep_for(std::chrono::microseconds(500));
    return status;
}

class Stopwatch
{
  public:
    int64_t ms() const
    {
        return std::chrono::duration_cast<std::chrono::milliseconds>(
                   std::chrono::steady_clock::now() - begin_)
            .count();
    }

  private:
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Ranks that are threads of this process, on host memory. Each runs body(rank, context) in a
// context of its own, which it destroys afterwards. vary (may be empty) changes the parameters of
// every context.
inline void as_threads(int ranks, const std::function<void(int, ph_context *)> &body,
                       const std::function<void(ph_context_params &)> &vary)
{
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; rank++)
        threads.emplace_back([=, &body, &vary] {
            char text[512] = "";
            ph_context_params params = {};
            params.struct_size = sizeof params;
            params.rank = rank;
            params.ranks = ranks;
            params.device = "host";
            params.job = "threads";
            params.deadline_ms = patience(20000).count();
            params.log = print_log;
            params.error = text;
            params.error_size = sizeof text;
            vary(params);
            ph_context *context = nullptr;
            ASSERT_EQ(ph_context_create(&params, &context), 0) << text;
            body(rank, context);
            int rc = ph_context_destroy(&context, patience(20000).count());
            if (rc)
                ph_context_error(context, text, sizeof text);
            EXPECT_EQ(rc, 0) << text;
        });
    for (std::thread &thread : threads)
        thread.join();
}

// One round of an all-to-all of threads: op 1 each way, new buffers each time, data verified.
inline void all_to_all_of_threads(int rank, int ranks, ph_context *context, ph_queue *queue,
                                  int round)
{
    const size_t size = 3000;
    void *memory = nullptr;
    ASSERT_EQ(ph_host_alloc(context, 2 * ranks * size, &memory), 0);
    char *bytes = static_cast<char *>(memory);
    std::vector<ph_operation> ops;
    std::vector<ph_group_op> group;
    for (int peer = 0; peer < ranks; peer++) {
        if (peer == rank)
            continue;
        ops.push_back(operation(1, peer, PH_ROLE_SENDER, bytes + peer * size, size));
        ops.push_back(operation(1, peer, PH_ROLE_RECEIVER, bytes + (ranks + peer) * size, size));
        memset(bytes + peer * size, 50 * rank + 10 * peer + round, size);
    }
    std::vector<ph_channel *> channels(ops.size());
    char text[512] = "";
    int rc = ph_exchange(context, ops.data(), ops.size(), channels.data());
    if (rc)
        ph_context_error(context, text, sizeof text);
    ASSERT_EQ(rc, 0) << text;
    for (size_t i = 0; i < ops.size(); i++)
        group.push_back({i % 2 ? PH_GROUP_RECV : PH_GROUP_SEND, channels[i], 0, 0, size});
    ASSERT_EQ(ph_group(group.data(), group.size(), queue), 0);
    ASSERT_EQ(ph_queue_synchronize(queue, patience(20000).count()), 0);
    for (int peer = 0; peer < ranks; peer++)
        for (size_t at = 0; peer != rank && at < size; at += 37)
            ASSERT_EQ(bytes[(ranks + peer) * size + at],
                      static_cast<char>(50 * peer + 10 * rank + round));
}

// Whether a thread that sleeps for a short time again and again is ever kept from its turn for
// long.
class Lag
{
  public:
    Lag()
        : thread_([this] {
              while (!stop_) {
                  Stopwatch watch;
                  sleep_ms(2);
                  late_ = late_ || watch.ms() >= 12;
              }
          })
    {
    }
    ~Lag()
    {
        stop_ = true;
        thread_.join();
    }
    bool seen() const
    {
        return late_;
    }

  private:
    std::atomic<bool> stop_{false}, late_{false};
    std::thread thread_;
};

// The keys that a job leaves, which it runs once more where there are any and both a rank says why
// and the machine is seen to be busy: whoever ends waits for the store for two seconds at most,
// which such a machine may not give it. On another one what the ranks say is no excuse. busy: the
// test's own word for it.
inline std::string keys_after(const std::function<std::string()> &run,
                              const std::function<bool()> &busy = nullptr)
{
    std::string keys;
    uint64_t before;
    bool excused;
    int left = 6;
    do {
        const Lag lag;
        before = unanswered_lines;
        keys = run();
        excused = unanswered_lines > before && (busy ? busy() : lag.seen());
    } while (--left > 0 && keys != "" && excused && !testing::Test::HasFailure());
    return keys;
}

// The commands that a server has run, by its own count, without those of the tests themselves.
inline uint64_t commands_of(const RedisServer &redis)
{
    std::istringstream lines(redis.cli("INFO commandstats"));
    uint64_t sum = 0;
    for (std::string line; std::getline(lines, line);) {
        size_t at = line.find(":calls=");
        if (at != std::string::npos && line.rfind("cmdstat_info", 0) != 0 &&
            line.rfind("cmdstat_ping", 0) != 0)
            sum += std::stoull(line.substr(at + 7));
    }
    return sum;
}

#endif
