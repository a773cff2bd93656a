// SPDX-License-Identifier: BSD-3-Clause
// One Redis that a thousand jobs share: what they leave in it, for how long, and that none of it is
// in another job's way.
#include <chrono>
#include <memory>
#include <set>
#include <sstream>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include <peerhop/peerhop.h>

#include "support/patience.h"
#include "support/redis_server.h"

namespace
{

const int jobs = 1000, at_once = 25; // of a process, which is killed then
const int expiry = 30;               // s

// Both ranks of a job, in this process.
class Pair
{
  public:
    Pair(const std::string &uri, const std::string &job)
    {
        const std::string setting = "PEERHOP_EXPIRY_S=" + std::to_string(expiry);
        const char *settings[] = {setting.c_str(), nullptr};
        for (int rank = 0; rank < 2; rank++) {
            struct ph_context_params params = {};
            params.struct_size = sizeof params;
            params.rank = rank;
            params.ranks = 2;
            params.device = "host";
            params.store = uri.c_str();
            params.job = job.c_str();
            params.deadline_ms = patience(20000).count();
            params.settings = settings;
            fine_ = fine_ && ph_context_create(&params, &context_[rank]) == 0;
        }
    }
    ~Pair()
    {
        for (auto *&context : context_)
            if (context)
                ph_context_destroy(&context, 0);
    }
    Pair(const Pair &) = delete;

    // Whether they have come together. Each waits for the other.
    bool meet(uint64_t op_id)
    {
        bool fine[2] = {};
        std::thread other([&] { fine[1] = fine_ && exchange(1, op_id); });
        fine[0] = fine_ && exchange(0, op_id);
        other.join();
        return fine[0] && fine[1];
    }
    uint64_t commands() const
    {
        uint64_t all = 0;
        for (auto *context : context_) {
            struct ph_counters counters = {};
            if (context && ph_context_counters(context, &counters, sizeof counters) == 0)
                all += counters.store_commands;
        }
        return all;
    }

  private:
    bool exchange(int rank, uint64_t op_id)
    {
        void *memory = nullptr;
        struct ph_channel *channel = nullptr;
        if (ph_host_alloc(context_[rank], 4096, &memory))
            return false;
        const struct ph_operation operation = {op_id,           !rank,  PH_ROLE_BOTH,
                                               PH_PROTOCOL_PUT, memory, 4096};
        return ph_exchange(context_[rank], &operation, 1, &channel) == 0;
    }

    struct ph_context *context_[2] = {};
    bool fine_ = true;
};

// A process that joins some jobs, and is gone without a word.
int die_in_jobs(const std::string &uri, int first)
{
    std::vector<std::unique_ptr<Pair>> pairs;
    for (int job = first; job < first + at_once; job++) {
        pairs.push_back(std::make_unique<Pair>(uri, "job" + std::to_string(job)));
        if (!pairs.back()->meet(1))
            return 1;
    }
    _exit(0);
}

std::vector<std::string> words(const std::string &text)
{
    std::istringstream all(text);
    std::vector<std::string> list;
    for (std::string word; all >> word;)
        list.push_back(word);
    return list;
}

long long memory_of(const RedisServer &redis)
{
    const std::string info = redis.cli("INFO memory"), name = "used_memory:";
    const size_t at = info.find(name);
    return at == info.npos ? 0 : atoll(info.c_str() + at + name.size());
}

TEST(SharedRedis, LargeAThousandJobs)
{
    if (!RedisServer::available())
        GTEST_SKIP() << "no redis-server";
    RedisServer redis;
    ASSERT_TRUE(redis.start());
    uint64_t alone = 0;
    {
        Pair pair(redis.uri(), "alone");
        ASSERT_TRUE(pair.meet(1));
        alone = pair.commands();
    }
    EXPECT_EQ(redis.cli("DBSIZE"), "0");

    const long long before = memory_of(redis);
    for (int first = 0; first < jobs; first += at_once) {
        int status = -1;
        const pid_t pid = fork();
        if (pid == 0)
            _exit(die_in_jobs(redis.uri(), first));
        ASSERT_EQ(waitpid(pid, &status, 0), pid);
        ASSERT_EQ(status, 0);
    }
    const auto left = words(redis.cli("KEYS *"));
    std::set<std::string> seen;
    for (const std::string &key : left) {
        seen.insert(key.substr(0, key.find('}')));
        const std::string ttl = redis.cli("TTL " + key);
        // -2: it has expired by now; -1 would be for ever.
        EXPECT_TRUE(ttl == "-2" || (atoi(ttl.c_str()) >= 0 && atoi(ttl.c_str()) <= expiry))
            << key << ": " << ttl;
    }
    RecordProperty("keys", static_cast<int>(left.size()));
    printf("%zu keys of %zu jobs of two ranks each; a job takes %lld bytes of the server\n",
           left.size(), seen.size(), (memory_of(redis) - before) / jobs);
    EXPECT_LE(left.size(), jobs * 4u);

    // Neither its own commands nor those that look for members see any other job's keys.
    Pair pair(redis.uri(), "job");
    ASSERT_TRUE(pair.meet(1));
    EXPECT_LE(pair.commands(), alone + 8);
    const std::string used = redis.cli("INFO commandstats");
    for (const char *scan : {"cmdstat_scan:", "cmdstat_flushdb:", "cmdstat_flushall:"})
        EXPECT_EQ(used.find(scan), used.npos) << scan;

    // They expire, but for those of who lives.
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::seconds(expiry) + patience(20000);
    size_t now = left.size();
    do {
        std::this_thread::sleep_for(std::chrono::seconds(1));
        now = words(redis.cli("KEYS *")).size();
    } while (now > 4 && std::chrono::steady_clock::now() < end);
    for (const std::string &key : words(redis.cli("KEYS *")))
        EXPECT_EQ(key.find("ph:{job}:"), 0u) << key;
    EXPECT_NE(redis.cli("EXISTS ph:{job}:0:members"), "0");
    EXPECT_TRUE(pair.meet(2));
}

} // namespace
