// SPDX-License-Identifier: BSD-3-Clause
// Tests of several processes. A rank function runs in processes of its own (this binary, executed
// again), a Job starts them around a private store and collects how they ended.
//
//     RANK_FUNCTION(ping) { rank.open(); ... CHECK(x == 1); }
//     TEST_P(Basic, Ping) { Job job(GetParam(), 2); EXPECT_EQ(job.run("ping"), ""); }
#ifndef TESTS_E2E_RANKS_H
#define TESTS_E2E_RANKS_H

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <peerhop/peerhop.h>

#include "e2e/device.h"
#include "support/folder.h"
#include "support/patience.h"
#include "support/redis_server.h"

// Memory that the ranks and the test share beside the library.
struct Shared {
    std::atomic<uint32_t> arrived[64]; // barriers
    std::atomic<uint64_t> value[1024]; // for the test's own use
    std::atomic<uint32_t> ended[64];   // ranks whose end Job::status has seen
    std::atomic<uint64_t> unanswered;  // lines of the ranks' logs, see below
    char text[64][512];
};

// Messages that go into slots before one waits for the peer, where memory is staged.
static const int STAGE_SLOTS = 16;

// Lines which say that a store did not answer in time: of this process's logs, and of those of the
// ranks of its jobs that are over.
extern std::atomic<uint64_t> unanswered_lines;
// For contexts without a Rank: prints the line, and counts it.
void print_log(void *opaque, enum ph_log_level level, const char *line);

class Rank
{
  public:
    int rank = 0, ranks = 0;
    struct ph_context *context = nullptr;
    std::unique_ptr<Device> device;
    std::string argument; // given to Job::start
    Shared *shared = nullptr;
    std::string log; // lines of the context at level warn and above

    // Makes the context with the job's parameters; that has time, whatever deadline the context is
    // to have. settings: "PEERHOP_X=y".
    void open(std::vector<std::string> settings = {}, int64_t deadline_ms = 20000);
    int try_open(std::vector<std::string> settings, int64_t deadline_ms, std::string *error);
    void close(int64_t deadline_ms = 20000); // destroys it; must succeed
    void barrier();                          // all ranks of the job
    std::string error();                     // ph_context_error
    uint64_t counter(const char *name);
    bool staged() const; // memory of a device, over the net
    // Whether a message of this size waits for nobody: by ll, or into slots.
    bool sends_alone(struct ph_channel *channel, bool outgoing, size_t size);
    bool by_flags(struct ph_channel *channel, bool outgoing); // messages between GPUs
    // A setting for open(): a table that says of all pairs that wide lines come whole.
    static std::string wide();

    // One channel with a peer, of a fresh exchange, which has time whatever the context's deadline
    // is.
    struct ph_channel *channel(int peer, uint64_t op_id, ph_role role, void *buffer, size_t size,
                               ph_protocol protocol = PH_PROTOCOL_DEFAULT);
    void synchronize(void *stream, int64_t ms = 20000);
    // The stream goes on within half a minute of the end of a rank that the test kills, and waits
    // for with Job::status: while many processes end, the kernel may take as long again to end one.
    void goes_on_without(int peer, void *stream);
    // Repeats a call that waits for a short time until it ends with rc and an error that says what:
    // when the peers have come as far, which on a busy machine takes longer than one such time.
    void ends_with(int rc, const std::string &what, const std::function<int()> &call);
    void verify(const void *from, size_t size, uint64_t seed, const char *what);

  private:
    unsigned barriers_ = 0;
};

// Ends the rank with a message where the condition does not hold.
[[noreturn]] void rank_failed(const char *file, int line, const std::string &what);
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            rank_failed(__FILE__, __LINE__, "not true: " #condition);                              \
    } while (0)
#define CHECK_RC(call, expected)                                                                   \
    do {                                                                                           \
        int check_rc_ = (call);                                                                    \
        if (check_rc_ != (expected))                                                               \
            rank_failed(__FILE__, __LINE__,                                                        \
                        std::string(#call ": ") + ph_strerror(check_rc_) + ": " + rank.error());   \
    } while (0)
#define CHECK_OK(call) CHECK_RC(call, 0)

using RankFunction = void (*)(Rank &rank);
struct RankRegistration {
    RankRegistration(const char *name, RankFunction function);
};
#define RANK_FUNCTION(name)                                                                        \
    static void name(Rank &rank);                                                                  \
    static RankRegistration name##_registration(#name, name);                                      \
    static void name([[maybe_unused]] Rank &rank)

// Why a path, method or handle kind was not taken; "": it is not among those.
std::string reason_against(const ph_path_report &report, const std::string &name);

class Job
{
  public:
    // device: "host", "standin" or "gpu"; "hostnet", "standinnet", "gpunet": the same over the net,
    // whatever ipc could do; "standinhmem": with device memory that is registered
    // (tests/conformance/net_hmem.c). Where the strict libfabric is set (net_strict.c) it lies over
    // the real one, or over that. A store server is started with the job unless `store` names one;
    // where over_files() the job has a directory instead.
    Job(const std::string &device, int ranks, const std::string &store = "");
    ~Job(); // kills what still runs
    Job(const Job &) = delete;

    void environment(const std::string &name, const std::string &value);
    void environment(int rank, const std::string &name, const std::string &value);

    void start(const std::string &function, const std::string &argument = "");
    void start_rank(int rank, const std::string &function, const std::string &argument = "");
    // Waits for all; returns "" where every rank ended with 0 and otherwise who ended how (with its
    // message).
    std::string wait(int64_t ms = 120000);
    std::string run(const std::string &function, const std::string &argument = "",
                    int64_t ms = 120000);

    // One rank: its pid, its exit status (-1: still runs, 128 + n: signal n), and a signal to it.
    pid_t pid(int rank) const
    {
        return pids_[rank];
    }
    int status(int rank, int64_t ms); // waits so long for its end
    void signal(int rank, int number);
    void expect_failure(int rank)
    {
        expected_[rank] = true;
    } // wait() does not count it

    RedisServer &redis()
    {
        return *redis_;
    }
    std::string keys(); // of the store that was made for the job
    Shared *shared()
    {
        return shared_;
    }
    std::string name() const
    {
        return name_;
    }
    std::string store() const
    {
        return store_;
    }

  private:
    int status_until(int rank, std::chrono::steady_clock::time_point end);
    std::string device_, store_, name_;
    int ranks_;
    std::unique_ptr<RedisServer> redis_;
    std::unique_ptr<Folder> folder_;
    std::map<std::string, std::string> environment_;
    std::vector<std::map<std::string, std::string>> own_;
    std::vector<pid_t> pids_;
    std::vector<int> statuses_;
    // Zombies, until the job is over: while many processes end, freeing one may take a kernel
    // (Linux 6.18) half a minute, and whoever reaps it can meanwhile not do what the others wait
    // for.
    std::vector<pid_t> ended_;
    std::map<int, bool> expected_;
    // memory of all ranks for a shim, which is told by a variable
    void share(const std::string &name, off_t size);
    std::map<std::string, int> shims_;
    int shared_fd_ = -1;
    Shared *shared_ = nullptr;
};

bool net_available(); // libfabric is in this build
bool over_files();    // jobs meet in a directory: TEST_STORE=files
bool store_available();

// Suites that are of host memory over the net alone.
class OverNet : public testing::Test
{
  protected:
    void SetUp() override;
};

// Suites that run on every device: TEST_P with the device's name as the parameter; skips, saying
// why, where there is none.
class EveryDevice : public testing::TestWithParam<std::string>
{
  protected:
    void SetUp() override;
    static bool on_host()
    {
        return GetParam() == "host" || GetParam() == "hostnet";
    }
    static bool is_staged()
    {
        return GetParam() == "standinnet" || GetParam() == "gpunet";
    }
    static bool on_net()
    {
        return GetParam() == "hostnet" || GetParam() == "standinhmem" || is_staged();
    }
};
// What is staged over the net moves when its owner's stream sends it.
#define SKIP_GETS_OF_STAGED()                                                                      \
    if (is_staged())                                                                               \
    GTEST_SKIP() << "ph_get is refused where memory is staged over the net"
#define INSTANTIATE_DEVICES(Suite)                                                                 \
    INSTANTIATE_TEST_SUITE_P(Device, Suite, testing::Values("host", "standin", "gpu"),             \
                             [](const auto &info) { return info.param; })
// Those that also run where ranks of this node are to reach each other over the net: on host
// memory, and on devices.
#define INSTANTIATE_DEVICES_AND_NET(Suite)                                                         \
    INSTANTIATE_TEST_SUITE_P(Device, Suite, testing::Values("host", "hostnet", "standin", "gpu"),  \
                             [](const auto &info) { return info.param; })
#define INSTANTIATE_DEVICES_AND_NETS(Suite)                                                        \
    INSTANTIATE_TEST_SUITE_P(                                                                      \
        Device, Suite,                                                                             \
        testing::Values("host", "hostnet", "standin", "standinnet", "gpu", "gpunet"),              \
        [](const auto &info) { return info.param; })
// ... also where device memory is registered.
#define INSTANTIATE_DEVICES_AND_ALL_NETS(Suite)                                                    \
    INSTANTIATE_TEST_SUITE_P(Device, Suite,                                                        \
                             testing::Values("host", "hostnet", "standin", "standinnet",           \
                                             "standinhmem", "gpu", "gpunet"),                      \
                             [](const auto &info) { return info.param; })
#define INSTANTIATE_CUDA_DEVICES_AND_NET(Suite)                                                    \
    INSTANTIATE_TEST_SUITE_P(                                                                      \
        Device, Suite, testing::Values("standin", "standinnet", "standinhmem", "gpu", "gpunet"),   \
        [](const auto &info) { return info.param; })
#define INSTANTIATE_CUDA_DEVICES(Suite)                                                            \
    INSTANTIATE_TEST_SUITE_P(Device, Suite, testing::Values("standin", "gpu"),                     \
                             [](const auto &info) { return info.param; })

#endif
