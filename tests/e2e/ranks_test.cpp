// SPDX-License-Identifier: BSD-3-Clause
// Who takes part: creation of contexts, launchers, ranks that never come, die, come again or live
// in other namespaces.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "e2e/exchanging.h"
#include "support/entries.h"

class Ranks : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_NET(Ranks);

class RanksHost : public testing::Test
{
  protected:
    void SetUp() override
    {
        if (!store_available())
            GTEST_SKIP() << "no redis-server";
    }
};

static const size_t size = 3000;

// One exchange and one message each way with a peer; the whole of what a rank must be able to do.
static void meet(Rank &rank, int peer, uint64_t op_id)
{
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    void *stream = rank.device->stream();
    auto channels =
        exchange_all(rank, {operation(op_id, peer, PH_ROLE_SENDER, memory, size),
                            operation(op_id, peer, PH_ROLE_RECEIVER, memory + size, size)});
    rank.device->fill(memory, size, op_id + rank.rank);
    CHECK_OK(ph_put_signal(channels[0], 0, 0, size, stream));
    CHECK_OK(ph_wait(channels[1], size, stream));
    rank.synchronize(stream);
    rank.verify(memory + size, size, op_id + peer, "from the peer");
}

RANK_FUNCTION(meet_the_other)
{
    rank.open();
    meet(rank, !rank.rank, 7);
    rank.barrier();
}

// ---- ranks that do not come

RANK_FUNCTION(waits_for_nobody)
{
    rank.open({}, 300);
    void *memory = rank.device->alloc(size);
    Stopwatch watch;
    std::string sentence =
        exchange_fails(rank, {operation(1, 1, PH_ROLE_SENDER, memory, size)}, -ETIMEDOUT);
    CHECK(watch.ms() >= 290 && watch.ms() < 10000);
    CHECK_SAYS(sentence, " ms rank 0 still waits for rank 1: operation 1, role 1, round ");
    CHECK_SAYS(sentence, "no member record of it has come");
    CHECK(sentence.rfind("after ", 0) == 0 && std::stoi(sentence.substr(6)) >= 290);
    const size_t logged = rank.log.find(sentence);
    CHECK(logged != std::string::npos && logged == rank.log.rfind(sentence)); // once
}

TEST_P(Ranks, ARankThatNeverComesIsNamed)
{
    Job job(GetParam(), 2);
    job.start_rank(0, "waits_for_nobody");
    EXPECT_EQ(job.wait(), "");
}

RANK_FUNCTION(one_of_three_is_missing)
{
    rank.open();
    void *memory = rank.device->alloc(3 * size);
    std::vector<ph_operation> ops;
    for (int peer = 0; peer < 3; peer++)
        if (peer != rank.rank)
            ops.push_back(
                operation(1, peer, PH_ROLE_BOTH, static_cast<char *>(memory) + peer * size, size));
    rank.shared->value[1]++;
    CHECK(reaches(rank.shared->value[1], 2));
    rank.ends_with(-ETIMEDOUT, "(1 of 2 operations open)", [&] { // those that are there have met
        ph_exchange_request *request = nullptr;
        ph_channel *channels[2];
        CHECK_OK(ph_exchange_start(rank.context, ops.data(), ops.size(), &request));
        return ph_exchange_finish(&request, channels, patience(1500).count());
    });
    CHECK_SAYS(rank.error(), "waits for rank 2");
    rank.shared->value[0]++;
    CHECK(reaches(rank.shared->value[0], 2));
    meet(rank, !rank.rank, 5); // those that are there go on
}

TEST_F(RanksHost, OnlyTheMissingRankIsNamed)
{
    Job job("host", 3);
    job.start_rank(0, "one_of_three_is_missing");
    job.start_rank(1, "one_of_three_is_missing");
    EXPECT_EQ(job.wait(), "");
}

// ---- creation

static int create(Rank &rank, ph_context_params params, std::string *sentence)
{
    char text[512] = "?";
    auto *untouched = reinterpret_cast<ph_context *>(1);
    params.struct_size = sizeof params;
    params.device = params.device ? params.device : rank.device->wish();
    params.log = print_log;
    params.error = text;
    params.error_size = sizeof text;
    int rc = ph_context_create(&params, &untouched);
    *sentence = text;
    if (rc == 0)
        ph_context_destroy(&untouched, 5000);
    else
        CHECK(untouched == reinterpret_cast<ph_context *>(1));
    return rc;
}

RANK_FUNCTION(creation_fails)
{
    std::string store = getenv("PEERHOP_STORE"), sentence;
    for (const char *name : {"PEERHOP_RANK", "PEERHOP_RANKS", "PEERHOP_JOB", "PEERHOP_STORE"})
        unsetenv(name);
    ph_context_params good = {};
    good.ranks = 2;
    good.job = "job";
    good.store = store.c_str();
    good.deadline_ms = 5000;
    CHECK(create(rank, good, &sentence) == 0);
    static const char *const few[] = {"PEERHOP_CHANNELS=1", nullptr},
                             *const words[] = {"PEERHOP_CHANNELS=many", nullptr},
                             *const unknown[] = {"PEERHOP_NOPE=secret", nullptr},
                             *const none[] = {"nonsense", nullptr},
                             *const choice[] = {"PEERHOP_PROTOCOL=push", nullptr},
                             *const minus_one[] = {"PEERHOP_RANK=-1", "PEERHOP_RANKS=4", nullptr},
                             *const level[] = {"PEERHOP_LOG=5", nullptr};
    struct {
        std::function<void(ph_context_params &)> spoil;
        int result;
        const char *says;
    } cases[] = {
        {[](auto &p) { p.ranks = 0; }, -EINVAL, "no rank: set ranks and rank"},
        {[](auto &p) { p.rank = 2; }, -EINVAL, "rank 2 is not below the number of ranks, 2"},
        {[](auto &p) { p.rank = -1; }, -EINVAL, "rank -1 of 2 ranks is none"},
        {[](auto &p) { p.ranks = -3; }, -EINVAL, "rank 0 of -3 ranks is none"},
        {[](auto &p) { p.ranks = 0, p.settings = minus_one; }, -EINVAL,
         "PEERHOP_RANK (it is -1) and PEERHOP_RANKS (it is 4)"},
        {[](auto &p) { p.job = nullptr; }, -EINVAL, "no job: "},
        {[](auto &p) { p.job = "two words"; }, -EINVAL, "no blanks and no braces"},
        {[](auto &p) { p.store = nullptr; }, -EINVAL, "no store: set store or PEERHOP_STORE"},
        {[](auto &p) { p.store = "http://somewhere"; }, -EINVAL, "none of redis, unix and file"},
        {[](auto &p) { p.store = "redis://:secret@host:notaport"; }, -EINVAL, "port"},
        {[](auto &p) { p.store = "file:store"; }, -EINVAL, "absolute path of a directory"},
        {[](auto &p) { p.store = "file:/nonexistent/store"; }, -ENOENT, "cannot be made"},
        {[](auto &p) { p.store = "file:/"; }, -EINVAL, "must end with the name of a directory"},
        {[](auto &p) { p.device = "tpu"; }, -EINVAL, "device \"tpu\" is not host, cuda or cuda:N"},
        {[](auto &p) { p.device = "cuda:99"; }, -ENODEV, "cuda:99"},
        {[](auto &p) { p.device = "cuda:x"; }, -EINVAL, "device \"cuda:x\" is not host, cuda or"},
        {[](auto &p) { p.device = "cuda:1x"; }, -EINVAL, "device \"cuda:1x\" is not host, cuda or"},
        {[](auto &p) { p.device = "cuda:"; }, -EINVAL, "device \"cuda:\" is not host, cuda or"},
        {[](auto &p) { p.device = "cuda:-1"; }, -EINVAL, "device \"cuda:-1\" is not host, cuda or"},
        {[](auto &p) { p.device = "cuda;1"; }, -EINVAL, "device \"cuda;1\" is not host, cuda or"},
        {[](auto &p) { p.deadline_ms = -1; }, -EINVAL, "deadline_ms is negative"},
        {[](auto &p) { p.log_level = ph_log_level(5); }, -EINVAL, "log_level 5 is not from 0 to 4"},
        {[](auto &p) { p.log_level = ph_log_level(-1); }, -EINVAL, "log_level -1"},
        {[](auto &p) { p.settings = level; }, -EINVAL, "must be one of none|error|"},
        {[](auto &p) { p.settings = few; }, -EINVAL,
         "PEERHOP_CHANNELS=1: must be a number from 16 to 1048576"},
        {[](auto &p) { p.settings = words; }, -EINVAL, "PEERHOP_CHANNELS=many: must be a number"},
        {[](auto &p) { p.settings = unknown; }, -EINVAL, "PEERHOP_NOPE"},
        {[](auto &p) { p.settings = none; }, -EINVAL, "nonsense"},
        {[](auto &p) { p.settings = choice; }, -EINVAL, "must be one of put|get"},
    };
    for (auto &c : cases) {
        ph_context_params params = good;
        c.spoil(params);
        int rc = create(rank, params, &sentence);
        if (rc != c.result)
            rank_failed(__FILE__, __LINE__,
                        std::string(c.says) + ": " + ph_strerror(rc) + ": " + sentence);
        CHECK_SAYS(sentence, c.says);
        CHECK(sentence.find("secret") == std::string::npos);
    }
    // The same through the environment.
    setenv("PEERHOP_EXPIRY_S", "3", 1);
    CHECK(create(rank, good, &sentence) == -EINVAL);
    CHECK_SAYS(sentence, "PEERHOP_EXPIRY_S=3: must be a number from 10 to 604800");
    unsetenv("PEERHOP_EXPIRY_S");
    // A short buffer is ended; none is fine.
    char little[8] = "0123456";
    ph_context_params params = good;
    params.store = nullptr;
    params.error = little;
    params.error_size = sizeof little;
    ph_context *context = nullptr;
    CHECK(ph_context_create(&params, &context) == -EINVAL && strlen(little) == 7 &&
          strncmp(little, "no stor", 7) == 0);
    params.error = nullptr;
    CHECK(ph_context_create(&params, &context) == -EINVAL && context == nullptr);
    CHECK(ph_context_create(&good, nullptr) == -EINVAL);
    CHECK(ph_context_destroy(&context, 0) == 0 && ph_context_destroy(nullptr, 0) == 0);
}

TEST_P(Ranks, CreationSaysWhatIsWrong)
{
    EXPECT_EQ(keys_after([] {
                  Job job(GetParam(), 1);
                  EXPECT_EQ(job.run("creation_fails"), "");
                  return job.keys();
              }),
              "");
}

// What a process says on its standard error while it runs.
static std::string said(const std::function<void()> &what)
{
    FILE *file = tmpfile();
    const int before = dup(2);
    CHECK(file != nullptr && before >= 0 && dup2(fileno(file), 2) == 2);
    what();
    CHECK(dup2(before, 2) == 2);
    close(before);
    std::string text(1 << 16, 0);
    rewind(file);
    text.resize(fread(text.data(), 1, text.size(), file));
    fclose(file);
    return text;
}

// A context without a callback and without a level, as most programs make it.
static void speaks(Rank &rank, const std::string &expected)
{
    const std::string text = said([&] {
        ph_context_params params = {};
        params.struct_size = sizeof params;
        params.device = rank.device->wish();
        CHECK(ph_context_create(&params, &rank.context) == 0);
        meet(rank, !rank.rank, 7);
        rank.barrier();
        rank.close();
    });
    // Between level and sentence: the time and the host.
    const size_t time = text.find(" 20"), sentence = text.find(": ");
    const bool has = time != std::string::npos && sentence != std::string::npos && time < sentence;
    if ((has ? text.substr(0, time) + text.substr(sentence) : text) != expected)
        rank_failed(__FILE__, __LINE__, "it said: " + text);
}

RANK_FUNCTION(speaks_of_what_is_wrong)
{
    speaks(rank, "");
    setenv("PEERHOP_SUSPECTMS", "5000", 1);
    setenv("PEERHOP_EPOCH", "1", 1);
    speaks(rank, "peerhop warn: unknown variable PEERHOP_SUSPECTMS in the environment: did you "
                 "mean PEERHOP_SUSPECT_MS?\n");
    setenv("PEERHOP_LOG", "none", 1);
    setenv("PEERHOP_EPOCH", "2", 1);
    speaks(rank, "");
}

TEST_P(Ranks, WithoutALogOnlyWhatIsWrongIsSaid)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("speaks_of_what_is_wrong"), "");
}

// What is refused before anything is looked up has a sentence of its own, and not that of the
// failure before it.
RANK_FUNCTION(arguments_are_missing)
{
    rank.open();
    ph_context *context = rank.context;
    void *memory = rank.device->alloc(size), *more = nullptr, *stream = rank.device->stream();
    ph_operation op = operation(1, !rank.rank, role_of(rank, 0), memory, size);
    ph_exchange_request *request = nullptr;
    CHECK_OK(ph_exchange_start(context, &op, 1, &request));
    ph_channel *channel = nullptr, *got = nullptr;
    CHECK_OK(ph_exchange_finish(&request, &channel, 0));
    CHECK_OK(ph_exchange_start(context, &op, 1, &request));
    ph_group_op group[] = {{PH_GROUP_SIGNAL, nullptr, 0, 0, 0},
                           {PH_GROUP_SIGNAL, channel, 0, 0, 0}};
    struct Case {
        std::function<int()> call;
        const char *says;
    };
    std::vector<Case> cases = {
        {[&] { return ph_host_alloc(context, 10, nullptr); }, "ph_host_alloc: address is NULL"},
        {[&] { return ph_host_register(context, 0, 0, 1, nullptr); }, "register: address is NULL"},
        {[&] { return ph_exchange(context, nullptr, 1, &got); }, "an exchange's ops is NULL"},
        {[&] { return ph_exchange(context, &op, 1, nullptr); }, "ph_exchange: channels is NULL"},
        {[&] { return ph_exchange_start(context, nullptr, 1, &request); }, "ops is NULL"},
        {[&] { return ph_exchange_start(context, &op, 1, nullptr); }, "start: request is NULL"},
        {[&] { return ph_exchange_finish(&request, nullptr, 0); }, "finish: channels is NULL"},
        {[&] { return ph_exchange_finish(&request, &got, -7); }, "deadline_ms is negative: -7"},
        {[&] { return ph_release_wait(context, memory, 1, PH_RELEASE_CLOSED, -2); },
         "negative: -2"},
        {[&] { return ph_channel_path(channel, 1, nullptr, 1); }, "path: report is NULL"},
        {[&] { return ph_channel_device(channel, nullptr, 1); },
         "ph_channel_device: device is NULL"},
        {[&] { return ph_channel_device_release(channel, nullptr); }, "release: device is NULL"},
        {[&] { return ph_context_peer(context, !rank.rank, nullptr, 1); }, "peer: report is NULL"},
        {[&] { return ph_context_counters(context, nullptr, 1); }, "counters: counters is NULL"},
        {[&] { return ph_copy(nullptr, 0, channel, 0, 1, stream); }, "ph_copy: to is NULL"},
        {[&] { return ph_copy(channel, 0, nullptr, 0, 1, stream); }, "ph_copy: from is NULL"},
        {[&] { return ph_group(group, 2, stream); }, "group: an operation of kind 6 on no channel"},
        {[&] { return ph_queue_create(context, nullptr); }, "ph_queue_create: queue is NULL"},
    };
    if (rank.device->host()) {
        auto *queue = static_cast<ph_queue *>(stream);
        cases.push_back({[=] { return ph_queue_synchronize(queue, -5); }, "negative: -5"});
        cases.push_back({[=] { return ph_queue_host(queue, nullptr, nullptr); }, "no function to"});
    }
    for (const auto &[call, says] : cases) {
        CHECK_RC(ph_host_alloc(context, 0, &more), -EINVAL); // an earlier failure
        CHECK_RC(call(), -EINVAL);
        CHECK_SAYS(rank.error(), says);
    }
    // Without a context there is nothing to write into.
    CHECK_RC(ph_host_alloc(context, 0, &more), -EINVAL);
    const int of_none[] = {ph_group(nullptr, 1, stream), ph_group(group, 1, stream),
                           ph_copy(nullptr, 0, nullptr, 0, 1, stream),
                           ph_put(nullptr, 0, 0, 1, stream)};
    for (int rc : of_none)
        CHECK_EQUAL(rc, -EINVAL);
    CHECK_SAYS(rank.error(), "host memory of 0 bytes was asked for");
    CHECK_OK(ph_exchange_finish(&request, &got, 0));
    rank.barrier();
}

TEST_P(Ranks, ArgumentsThatAreMissingAreNamed)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("arguments_are_missing"), "");
}

// Whatever number of descriptors is left: enough, or too few and an end at once.
RANK_FUNCTION(creation_without_descriptors)
{
    std::string sentence;
    ph_context_params params = {};
    params.deadline_ms = 60000;
    rlimit before;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    int first = dup(0), failed = 0, rc = -EMFILE;
    ::close(first);
    for (int more = 0; rc != 0; more++) {
        Stopwatch watch; // of each: an end at the deadline takes a minute
        CHECK(more < 100);
        rlimit few = {static_cast<rlim_t>(first + more), before.rlim_max};
        CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
        rc = create(rank, params, &sentence);
        failed += rc != 0;
        if (rc != 0 && rc != -EMFILE)
            rank_failed(__FILE__, __LINE__, std::string(ph_strerror(rc)) + ": " + sentence);
        CHECK(rc == 0 || sentence.find(strerror(EMFILE)) != std::string::npos);
        CHECK(watch.ms() < 30000);
    }
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(failed >= 6);
}

TEST_F(RanksHost, CreationWithoutDescriptorsFailsAtOnce)
{
    Job job("host", 1);
    EXPECT_EQ(job.run("creation_without_descriptors"), "");
}

// Rank 0 exchanges with one descriptor more each time, until it meets the other: what it lacks is
// told at once, whatever opens something at that moment, and leaves nothing behind.
RANK_FUNCTION(exchange_without_descriptors)
{
    rank.open({}, 60000);
    void *memory = rank.device->alloc(size);
    const ph_operation op = operation(1, !rank.rank, PH_ROLE_BOTH, memory, size);
    rank.barrier();
    rlimit before;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    int first = dup(0), lacked = 0, rc = -EMFILE;
    ::close(first);
    for (int more = 0, late = 0; rc != 0;) {
        rlimit few = {static_cast<rlim_t>(first + more), before.rlim_max};
        CHECK(rank.rank == 1 || setrlimit(RLIMIT_NOFILE, &few) == 0);
        ph_exchange_request *request = nullptr;
        ph_channel *channel = nullptr;
        rc = ph_exchange_start(rank.context, &op, 1, &request);
        if (rc == 0)
            rc = ph_exchange_finish(&request, &channel, patience(more < 24 ? 2000 : 10000).count());
        if (rank.rank == 1) {
            if (rc == PH_ENOPATH) // rank 0 was there, and could not map
                CHECK_SAYS(rank.error(), "has no descriptor left (RLIMIT_NOFILE");
            if (rc != 0 && rc != -ETIMEDOUT && rc != PH_ENOPATH)
                rank_failed(__FILE__, __LINE__, std::string(ph_strerror(rc)) + ": " + rank.error());
            continue;
        }
        if (rc != 0 && rc != -EMFILE && (rc != -ETIMEDOUT || ++late > 4))
            rank_failed(__FILE__, __LINE__,
                        std::to_string(more) + ": " + ph_strerror(rc) + ": " + rank.error());
        if (rc != 0)
            CHECK_SAYS(rank.error(), "RLIMIT_NOFILE");
        lacked += rc == -EMFILE;
        CHECK(++more < 200);
    }
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(rank.rank == 1 || lacked >= 3);
    rank.barrier();
}

TEST_P(Ranks, AnExchangeWithoutDescriptorsSaysSo)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("exchange_without_descriptors"), "");
}

// Neither an allocation nor its export nor its import keeps a descriptor.
RANK_FUNCTION(exchanges_many_allocations)
{
    rank.open();
    rank.channel(!rank.rank, 0, PH_ROLE_BOTH, rank.device->alloc(size), size); // they have met
    void *stream = rank.device->stream();
    rlimit before;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    const int first = dup(0);
    ::close(first);
    const rlimit few = {static_cast<rlim_t>(first + 8), before.rlim_max};
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    for (uint64_t op = 1; op <= 600; op++) {
        void *memory = rank.device->alloc(size);
        ph_channel *channel = rank.channel(!rank.rank, op, PH_ROLE_BOTH, memory, size);
        if (rank.rank == 0)
            rank.device->fill(memory, size, op);
        CHECK_OK(rank.rank == 0 ? ph_send(channel, size, stream) : ph_recv(channel, size, stream));
        CHECK_OK(ph_complete(channel, stream));
        rank.synchronize(stream);
        rank.verify(memory, size, op, "of an allocation");
        CHECK_OK(ph_channel_close(channel));
    }
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    rank.barrier();
}

TEST_F(RanksHost, AllocationsTakeNoDescriptors)
{
    Job job("host", 2);
    EXPECT_EQ(job.run("exchanges_many_allocations"), "");
}

// ---- names

RANK_FUNCTION(waits_in_a_directory)
{
    rank.open();
    rank.shared->value[0]++;
    CHECK(reaches(rank.shared->value[1], 1));
}

// A name that nobody listens to, as of a rank that was killed.
static void leave_name(const std::string &path, int64_t seconds_ago = 0)
{
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    ASSERT_LT(path.size(), sizeof address.sun_path);
    memcpy(address.sun_path, path.c_str(), path.size());
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr *>(&address), sizeof address), 0) << path;
    ::close(fd);
    const timespec then[2] = {{time(nullptr) - seconds_ago, 0}, {time(nullptr) - seconds_ago, 0}};
    EXPECT_EQ(utimensat(AT_FDCWD, path.c_str(), then, 0), 0);
}

// On a file system that nodes share, listeners of others refuse as the dead do.
TEST_F(RanksHost, NamesOfOtherNodesAndNewOnesStay)
{
    char folder[] = "/tmp/phdir.XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    const std::string in = std::string(folder) + "/", digits = "0123456789abcdef";
    Job first("host", 1), next("host", 1);
    for (Job *job : {&first, &next})
        job->environment("PEERHOP_SOCKET_DIRECTORY", folder);
    first.start("waits_in_a_directory");
    ASSERT_TRUE(reaches(first.shared()->value[0], 1)) << first.wait(100);
    const std::string name = std::filesystem::directory_iterator(folder)->path().filename();
    const std::string node = name.substr(8, 8);
    ASSERT_EQ(name.size(), 32u) << name;
    leave_name(in + "peerhop-" + node + digits);
    leave_name(in + "peerhop-00000000" + digits);
    leave_name(in + "new-tmp-" + node + digits);
    leave_name(in + "new-tmp-" + node + "0000000000000001", 86400);
    leave_name(in + "new-tmp-00000000" + digits, 86400);
    next.start("waits_in_a_directory");
    ASSERT_TRUE(reaches(next.shared()->value[0], 1)) << next.wait(100);
    EXPECT_FALSE(std::filesystem::exists(in + "peerhop-" + node + digits));
    EXPECT_TRUE(std::filesystem::exists(in + "peerhop-00000000" + digits));
    EXPECT_TRUE(std::filesystem::exists(in + "new-tmp-" + node + digits)) << "it may listen soon";
    EXPECT_FALSE(std::filesystem::exists(in + "new-tmp-" + node + "0000000000000001"));
    EXPECT_TRUE(std::filesystem::exists(in + "new-tmp-00000000" + digits));
    EXPECT_TRUE(std::filesystem::exists(in + name)) << "it lives";
    for (Job *job : {&first, &next}) {
        job->shared()->value[1] = 1;
        EXPECT_EQ(job->wait(), "");
    }
    std::filesystem::remove_all(folder);
}

TEST_F(RanksHost, NamesOfKilledRanksAreRemoved)
{
    char folder[] = "/tmp/phdir.XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    auto names = [&] { return std::distance(std::filesystem::directory_iterator(folder), {}); };
    Job living("host", 1), killed("host", 2), next("host", 1);
    for (Job *job : {&living, &killed, &next})
        job->environment("PEERHOP_SOCKET_DIRECTORY", folder);
    std::ofstream(std::string(folder) + "/a file of somebody else's") << "stays";
    living.start("waits_in_a_directory");
    EXPECT_TRUE(reaches(living.shared()->value[0], 1));
    killed.start("waits_in_a_directory");
    EXPECT_TRUE(reaches(killed.shared()->value[0], 2));
    for (int rank = 0; rank < 2; rank++) {
        killed.expect_failure(rank);
        killed.signal(rank, SIGKILL);
        killed.status(rank, 60000);
    }
    EXPECT_EQ(names(), 4);
    next.start("waits_in_a_directory");
    EXPECT_TRUE(reaches(next.shared()->value[0], 1));
    EXPECT_EQ(names(), 3) << "the file, who lives, and who is new";
    for (Job *job : {&living, &next}) {
        job->shared()->value[1] = 1;
        EXPECT_EQ(job->wait(), "");
    }
    EXPECT_EQ(names(), 1);
    std::filesystem::remove_all(folder);
}

// ---- users

// Whoever a user namespace does not map has one and the same id.
RANK_FUNCTION(has_the_overflow_id)
{
    if (unshare(CLONE_NEWUSER) != 0)
        return; // not allowed here
    CHECK(geteuid() != 0);
    rank.open();
    void *memory = rank.device->alloc(size);
    const std::string sentence =
        exchange_fails(rank, {operation(1, !rank.rank, PH_ROLE_BOTH, memory, size)}, -EPERM);
    CHECK_SAYS(sentence, "this process has the overflow user id");
    rank.barrier();
}

TEST_F(RanksHost, UsersWhoAreNotMappedDoNotMeet)
{
    Job job("host", 2);
    EXPECT_EQ(job.run("has_the_overflow_id"), "");
}

// ---- threads of the application

// Frames of the sanitizers are several times as large.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const size_t small_stack = 1 << 20;
#else
static const size_t small_stack = 48 << 10;
#endif

static void *live_a_life(void *opaque)
{
    Rank &rank = *static_cast<Rank *>(opaque);
    rank.device->enter_thread();
    rank.open();
    meet(rank, !rank.rank, 7);
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    void *stream = rank.device->stream();
    std::vector<ph_channel *> channels =
        exchange_all(rank, {operation(1, !rank.rank, PH_ROLE_SENDER, memory, size),
                            operation(1, !rank.rank, PH_ROLE_RECEIVER, memory + size, size)});
    std::vector<ph_group_op> ops;
    for (size_t i = 0; i < 150; i++)
        ops.push_back({PH_GROUP_PUT, channels[0], i, i, 1});
    ops.push_back({PH_GROUP_SIGNAL, channels[0], 0, 0, 0});
    ops.push_back({PH_GROUP_WAIT, channels[1], 0, 0, 0});
    CHECK_OK(ph_group(ops.data(), ops.size(), stream));
    rank.synchronize(stream);
    exchange_fails(rank, {operation(9, 5, PH_ROLE_BOTH, memory, size)}, -EINVAL);
    rank.barrier();
    rank.close();
    return nullptr;
}

RANK_FUNCTION(lives_on_a_small_stack)
{
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    CHECK(pthread_attr_setstacksize(&attributes, small_stack) == 0);
    CHECK(pthread_create(&thread, &attributes, live_a_life, &rank) == 0);
    pthread_join(thread, nullptr);
}

TEST_P(Ranks, ASmallStackIsEnough)
{
    if (on_net())
        GTEST_SKIP() << "what libfabric takes is not ours";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("lives_on_a_small_stack"), "");
}

// What a launcher sets of a rank of two on two nodes; see tests/unit/base/launcher_test.cpp.
static std::map<std::string, std::string> launched_by(const std::string &launcher, int rank)
{
    const std::string number = std::to_string(rank);
    if (launcher == "torchrun") // of whose two agents one has seen a worker fail
        return {{"RANK", number},
                {"WORLD_SIZE", "2"},
                {"LOCAL_RANK", "0"},
                {"GROUP_RANK", number},
                {"TORCHELASTIC_RUN_ID", "run1"},
                {"TORCHELASTIC_RESTART_COUNT", number}};
    if (launcher == "srun")
        return {{"SLURM_PROCID", number}, {"SLURM_NTASKS", "2"},  {"SLURM_STEP_NUM_TASKS", "2"},
                {"SLURM_LOCALID", "0"},   {"SLURM_JOB_ID", "99"}, {"SLURM_STEP_ID", "0"}};
    std::map<std::string, std::string> script = {{"SLURM_PROCID", "0"},
                                                 {"SLURM_NTASKS", "2"},
                                                 {"SLURM_LOCALID", "0"},
                                                 {"SLURM_JOB_ID", "99"}};
    if (launcher == "openmpi")
        script.insert({{"OMPI_COMM_WORLD_RANK", number},
                       {"OMPI_COMM_WORLD_SIZE", "2"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                       {"PMIX_RANK", number},
                       {"PMIX_NAMESPACE", "space"}});
    else if (launcher != "script")
        script.insert({{"PMI_RANK", number}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}});
    if (launcher == "mpich")
        script.insert({"PEERHOP_JOB", "mine"});
    return script;
}

static void stand_in(const std::map<std::string, std::string> &environment)
{
    for (const char *name : {"PEERHOP_RANK", "PEERHOP_RANKS", "PEERHOP_JOB"})
        unsetenv(name);
    for (const auto &[name, value] : environment)
        setenv(name.c_str(), value.c_str(), 1);
}

RANK_FUNCTION(launched)
{
    stand_in(launched_by(rank.argument, rank.rank));
    rank.open();
    CHECK_EQUAL(ph_context_rank(rank.context), rank.rank);
    CHECK_EQUAL(ph_context_ranks(rank.context), 2);
    meet(rank, !rank.rank, 7);
    rank.shared->value[0]++;
    CHECK(reaches(rank.shared->value[1], 1)); // the test has looked at the keys
}

class Launchers : public testing::TestWithParam<std::pair<const char *, const char *>>
{
};
INSTANTIATE_TEST_SUITE_P(Each, Launchers,
                         testing::Values(std::make_pair("torchrun", "ph:{run1}:0:member"),
                                         std::make_pair("srun", "ph:{99.0}:0:member"),
                                         std::make_pair("openmpi", "ph:{space}:0:member"),
                                         std::make_pair("mpich", "ph:{mine}:0:member")),
                         [](const auto &info) { return info.param.first; });

TEST_P(Launchers, NameRanksAndJob)
{
    if (!RedisServer::available())
        GTEST_SKIP() << "no redis-server";
    Job job("host", 2);
    job.start("launched", GetParam().first);
    EXPECT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    EXPECT_NE(job.keys().find(GetParam().second), std::string::npos) << job.keys();
    job.shared()->value[1] = 1;
    EXPECT_EQ(job.wait(), "");
}

RANK_FUNCTION(launched_by_halves)
{
    std::string error;
    stand_in(launched_by("mpich without a name", 0));
    CHECK(rank.try_open({}, 20000, &error) == -EINVAL);
    CHECK_SAYS(error, "set job or PEERHOP_JOB");
    for (const char *name : {"PMI_RANK", "PMI_SIZE"})
        unsetenv(name);
    stand_in(launched_by("script", 0));
    CHECK(rank.try_open({}, 20000, &error) == -EINVAL);
    CHECK_SAYS(error, "a Slurm script itself does not stand for");
    stand_in({{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "space"}});
    CHECK(rank.try_open({}, 20000, &error) == -EINVAL);
    CHECK_SAYS(error, "set PEERHOP_RANKS");
    unsetenv("PMIX_RANK");
    stand_in({{"RANK", "1"}, {"WORLD_SIZE", "0x2"}});
    CHECK(rank.try_open({}, 20000, &error) == -EINVAL);
    CHECK_SAYS(error, "(no launcher found: WORLD_SIZE is \"0x2\", which is no number of ranks)");
}

TEST_F(RanksHost, WhatALauncherLeavesOpenIsAskedFor)
{
    Job job("host", 1);
    EXPECT_EQ(job.run("launched_by_halves"), "");
}

RANK_FUNCTION(half_by_a_launcher)
{
    std::string error;
    stand_in({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"PEERHOP_JOB", "a"}});
    CHECK(rank.try_open({"PEERHOP_RANK=1"}, 20000, &error) == -EINVAL);
    CHECK_SAYS(error, "PEERHOP_RANK is 1, and PEERHOP_RANKS is not set, which does not go with "
                      "rank 0 of 2 (RANK and WORLD_SIZE)");
    CHECK(rank.try_open({"PEERHOP_RANKS=3"}, 20000, &error) == -EINVAL);
    CHECK_SAYS(error, "PEERHOP_RANKS is 3, and PEERHOP_RANK is not set");
    // Nothing is mixed where they agree, where both are set, or where the launcher leaves one open.
    for (const auto &settings : {std::vector<std::string>{"PEERHOP_RANK=0"},
                                 {"PEERHOP_RANKS=2"},
                                 {"PEERHOP_RANK=1", "PEERHOP_RANKS=3"}}) {
        CHECK(rank.try_open(settings, 20000, &error) == 0);
        CHECK_EQUAL(ph_context_rank(rank.context), settings.size() == 2 ? 1 : 0);
        CHECK_OK(ph_context_destroy(&rank.context, 20000));
    }
    for (const char *name : {"RANK", "WORLD_SIZE"})
        unsetenv(name);
    stand_in({{"PMIX_RANK", "1"}, {"PEERHOP_JOB", "a"}});
    CHECK(rank.try_open({"PEERHOP_RANKS=2"}, 20000, &error) == 0);
    CHECK_EQUAL(ph_context_rank(rank.context), 1);
}

TEST_F(RanksHost, HalfOfAPlaceIsNotTakenWithAnother)
{
    if (!RedisServer::available())
        GTEST_SKIP() << "no redis-server";
    Job job("host", 1);
    EXPECT_EQ(job.run("half_by_a_launcher"), "");
}

RANK_FUNCTION(local_ranks)
{
    // The launcher has counted other processes than these: it started the launcher of the ranks.
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    setenv("LOCAL_RANK", "0", 1);
    if (rank.argument == "said")
        setenv("PEERHOP_LOCAL_RANK", std::to_string(!rank.rank).c_str(), 1);
    ph_context_params params = {};
    ph_context *context = nullptr;
    params.device = "cuda";
    int rc = -1; // of a thread without a current device
    std::thread([&] { rc = ph_context_create(&params, &context); }).join();
    CHECK_OK(rc);
    const int device = rank.argument == "said" ? !rank.rank : rank.rank;
    CHECK_SAYS(std::string(ph_context_device(context)), "cuda:" + std::to_string(device));
    CHECK_OK(ph_context_destroy(&context, 0));
}

TEST_P(Ranks, TheLocalRankChoosesTheDevice)
{
    if (GetParam() != "standin")
        GTEST_SKIP() << "the device counts are the stand-in's";
    for (const char *how : {"", "said"}) {
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("local_ranks", how), "") << how;
    }
}

// ---- one process

TEST_F(RanksHost, ThreadsOfOneProcessAreRanks)
{
    auto body = [](int rank, ph_context *context) {
        ph_queue *queue = nullptr;
        ASSERT_EQ(ph_queue_create(context, &queue), 0);
        for (int round = 0; round < 10; round++)
            all_to_all_of_threads(rank, 3, context, queue, round);
        EXPECT_EQ(ph_queue_destroy(&queue), 0);
    };
    EXPECT_EQ(keys_after([&] {
                  RedisServer redis;
                  EXPECT_TRUE(redis.start());
                  std::string uri = redis.uri();
                  as_threads(3, body,
                             [&](ph_context_params &params) { params.store = uri.c_str(); });
                  return redis.cli("KEYS ph:*");
              }),
              "");
}

RANK_FUNCTION(forks)
{
    rank.open();
    meet(rank, !rank.rank, 7);
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    void *stream = rank.device->stream();
    ph_role role = role_of(rank, 0);
    ph_channel *channel = rank.channel(!rank.rank, 8, role, memory, size);
    auto op = operation(9, !rank.rank, role, memory, size);
    ph_exchange_request *request = nullptr;
    CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
    void *nothing = nullptr;
    CHECK_RC(ph_host_alloc(rank.context, 0, &nothing),
             -EINVAL); // whose sentence is not the child's
    pid_t child = fork();
    if (child == 0) {
        ph_context *context = rank.context;
        ph_channel *other = nullptr;
        ph_exchange_request *another = nullptr;
        ph_group_op group = {PH_GROUP_SIGNAL, channel, 0, 0, 0};
        void *more = nullptr;
        auto none = [](void *) {};
        int results[] = {
            ph_exchange(context, &op, 1, &other),
            ph_exchange_start(context, &op, 1, &another),
            ph_exchange_finish(&request, &other, 100),
            ph_context_destroy(&context, 100),
            ph_context_abort(context, "no"),
            ph_host_alloc(context, 100, &more),
            ph_host_register(context, 0, 0, 1, &more),
            ph_host_free(context, memory, 0),
            ph_put(channel, 0, 0, 1, stream),
            ph_get(channel, 0, 0, 1, stream),
            ph_put_signal(channel, 0, 0, 1, stream),
            ph_signal(channel, stream),
            ph_wait(channel, 0, stream),
            ph_send(channel, 1, stream),
            ph_recv(channel, 1, stream),
            ph_complete(channel, stream),
            ph_channel_status(channel),
            ph_channel_ended(channel),
            ph_group(&group, 1, stream),
        };
        for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
            if (results[i] != PH_EFORKED)
                _exit(static_cast<int>(100 + i));
        char sentence[200] = "", little[8];
        if (ph_context_error(context, sentence, sizeof sentence) != strlen(sentence) ||
            strcmp(sentence, ph_strerror(PH_EFORKED)) != 0 ||
            ph_context_error(context, little, sizeof little) != 7 || strlen(little) != 7)
            _exit(160);
        if (rank.device->host()) {
            auto *queue = static_cast<ph_queue *>(stream);
            int of_queues[] = {ph_queue_create(context, &queue), ph_queue_synchronize(queue, 100),
                               ph_queue_host(queue, none, nullptr), ph_queue_destroy(&queue)};
            for (int i = 0; i < 4; i++)
                if (of_queues[i] != PH_EFORKED)
                    _exit(150 + i);
        }
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK_EQUAL(WEXITSTATUS(status), 0); // 100 + i: which call it was
    ph_channel *after = nullptr;
    CHECK_OK(ph_exchange_finish(&request, &after, 0));
    pass(rank, channel, role, memory, size, 5, stream);
    rank.barrier();
}

TEST_P(Ranks, EveryCallInAForkedChildIsAnError)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("forks"), "");
}

// ---- lives

// The wall clock of this rank is so many seconds behind.
static time_t clock_behind;
extern "C" int __real_clock_gettime(clockid_t, timespec *);
extern "C" int __wrap_clock_gettime(clockid_t clock, timespec *now)
{
    const int rc = __real_clock_gettime(clock, now);
    if (clock == CLOCK_REALTIME)
        now->tv_sec -= clock_behind;
    return rc;
}

RANK_FUNCTION(announces_and_hangs)
{
    rank.open();
    if (rank.argument == "offers") { // an offer of this life lies in the store
        void *memory = rank.device->alloc(9 * size);
        auto op = operation(7, !rank.rank, PH_ROLE_SENDER, static_cast<char *>(memory) + 5 * size,
                            size + 5);
        ph_exchange_request *request;
        CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
        ph_channel *channel = nullptr;
        CHECK_RC(ph_exchange_finish(&request, &channel, 200), -ETIMEDOUT);
    }
    rank.shared->value[0]++;
    pause();
}

RANK_FUNCTION(opens_then_meets)
{
    clock_behind = atoi(rank.argument.c_str());
    rank.open();
    rank.shared->value[1]++;
    CHECK(reaches(rank.shared->value[2], 1));
    meet(rank, !rank.rank, 7);
    rank.shared->value[3]++;
    CHECK(reaches(rank.shared->value[3], 2));
}

// A former life of a rank, whose record (and offer) the store still has, is dead when its peer
// looks.
static void stale_life(Job &job, int stale, bool offers, const std::string &behind = "0")
{
    job.start_rank(!stale, "opens_then_meets");
    ASSERT_TRUE(reaches(job.shared()->value[1], 1)) << job.wait(100);
    job.start_rank(stale, "announces_and_hangs", offers ? "offers" : "");
    ASSERT_TRUE(reaches(job.shared()->value[0], 1)) << job.wait(100);
    job.signal(stale, SIGKILL);
    EXPECT_EQ(job.status(stale, 60000), 128 + SIGKILL);
    job.shared()->value[2] = 1; // the other begins to wait
    sleep_ms(150);
    job.start_rank(stale, "opens_then_meets", behind);
    EXPECT_EQ(job.wait(), "");
}

TEST_P(Ranks, ALifeWhoseClockWasSetBackIsNoFormerOne)
{
    Job job(GetParam(), 2);
    stale_life(job, 1, true, "5");
}

TEST_P(Ranks, AStaleRecordOfADeadLifeIsPassedOver)
{
    for (int stale = 0; stale < 2; stale++) {
        Job job(GetParam(), 2);
        stale_life(job, stale, false);
    }
}

TEST_P(Ranks, AStaleOfferOfADeadLifeIsPassedOver)
{
    for (int stale = 0; stale < 2; stale++) {
        Job job(GetParam(), 2);
        stale_life(job, stale, true);
    }
}

RANK_FUNCTION(meets_then_hangs)
{
    rank.open();
    meet(rank, !rank.rank, 7);
    rank.shared->value[0]++;
    pause();
}

// A channel with the next life of a peer, whose record may have to come first.
static ph_channel *next_life(Rank &rank, const ph_operation &op)
{
    ph_channel *channel = nullptr;
    Stopwatch watch;
    int rc;
    while ((rc = ph_exchange(rank.context, &op, 1, &channel)) == PH_EPEER &&
           watch.ms() < patience(30000).count())
        sleep_ms(5);
    CHECK_OK(rc);
    return channel;
}

RANK_FUNCTION(meets_two_lives)
{
    rank.open({}, 60000); // the kernel may take half a minute to end the one that is killed
    meet(rank, !rank.rank, 7);
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    ph_channel *former = nullptr;
    auto op = operation(8, !rank.rank, PH_ROLE_BOTH, memory, size);
    rank.shared->value[1]++;
    // The peer dies while this rank waits for it ...
    CHECK_RC(ph_exchange(rank.context, &op, 1, &former), PH_EPEER);
    CHECK_SAYS(rank.error(), "rank " + std::to_string(!rank.rank));
    // ... and comes again: this rank's next calls say that it is gone, until they meet its new
    // life.
    rank.shared->value[2]++;
    next_life(rank, op);
    meet(rank, !rank.rank, 7); // an id of the former life
    rank.barrier();
}

RANK_FUNCTION(comes_again)
{
    rank.open();
    void *memory = rank.device->alloc(2 * size);
    rank.channel(!rank.rank, 8, PH_ROLE_BOTH, memory, size);
    meet(rank, !rank.rank, 7);
    rank.barrier();
}

TEST_P(Ranks, ARankThatDiesIsMetAgainInItsNextLife)
{
    for (int dies = 0; dies < 2; dies++) {
        Job job(GetParam(), 2);
        job.start_rank(!dies, "meets_two_lives");
        job.start_rank(dies, "meets_then_hangs");
        ASSERT_TRUE(reaches(job.shared()->value[1], 1)) << job.wait(100);
        ASSERT_TRUE(reaches(job.shared()->value[0], 1)) << job.wait(100);
        sleep_ms(50);
        job.signal(dies, SIGKILL);
        EXPECT_EQ(job.status(dies, 60000), 128 + SIGKILL);
        ASSERT_TRUE(reaches(job.shared()->value[2], 1)) << job.wait(100);
        job.start_rank(dies, "comes_again");
        EXPECT_EQ(job.wait(), "");
    }
}

// ---- what a life that is over leaves behind

static const int LIVES = 4;

// Allocations of the stand-in that this process has, its own and those that it maps.
static size_t allocations()
{
    size_t n = 0;
    for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone;
        n += std::filesystem::read_symlink(entry, gone).string().find("peerhop-standin") !=
             std::string::npos;
    }
    return n;
}

RANK_FUNCTION(sends_and_dies)
{
    rank.open();
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(0, 8, PH_ROLE_SENDER, memory, size);
    rank.device->fill(memory, 256, rank.shared->value[0]);
    CHECK_OK(ph_put_signal(channel, 0, 0, 256, stream));
    rank.synchronize(stream);
    rank.shared->value[0]++;
    pause();
}

// What a former life leaves is freed by another thread, a little later.
static bool falls_to(size_t (*count)(), size_t most)
{
    auto end = std::chrono::steady_clock::now() + patience(20000);
    while (count() > most) {
        if (std::chrono::steady_clock::now() > end)
            return false;
        sleep_ms(1);
    }
    return true;
}

// Takes each message when the life that sent it is over and the next one is there.
RANK_FUNCTION(outlives)
{
    rank.open();
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    auto op = operation(8, 1, PH_ROLE_RECEIVER, memory, size);
    ph_channel *former = nullptr;
    size_t held = 0;
    for (uint64_t life = 0; life < LIVES; life++) {
        ph_channel *channel = next_life(rank, op);
        if (former != nullptr) {
            rank.device->fill(memory, 256, 1000);
            CHECK_OK(ph_reap(rank.context, 0));
            CHECK_OK(ph_wait(former, 256, stream));
            rank.synchronize(stream);
            rank.verify(memory, 256, life - 1, "of a life that is over");
            CHECK_OK(ph_channel_close(former));
            CHECK_OK(ph_reap(rank.context, 0));
        }
        if (life == 1)
            held = allocations();
        CHECK(reaches(rank.shared->value[1], life + 1)); // killed
        former = channel;
    }
    CHECK(falls_to(allocations, held));
}

TEST_P(Ranks, ALifeThatIsOverGivesItsMemoryBack)
{
    if (GetParam() != "standin")
        GTEST_SKIP() << "counts the stand-in's allocations";
    Job job(GetParam(), 2);
    job.start_rank(0, "outlives");
    for (uint64_t life = 1; life <= LIVES; life++) {
        job.start_rank(1, "sends_and_dies");
        ASSERT_TRUE(reaches(job.shared()->value[0], life)) << job.wait(100);
        job.signal(1, SIGKILL);
        EXPECT_EQ(job.status(1, 60000), 128 + SIGKILL);
        job.shared()->value[1] = life;
    }
    EXPECT_EQ(job.status(0, 30000), 0);
}

// The segment of a pair with so many channels is larger than what else may come and go.
static const std::vector<std::string> large = {"PEERHOP_CHANNELS=65536"};
static const size_t SEGMENT = size_t{8} << 20; // and more
static const size_t KEPT = 2;                  // descriptors: of the segment, and of a buffer
static const uint64_t VISITS = 9;              // the last stays until all is counted

static size_t writable_bytes()
{
    std::ifstream maps("/proc/self/maps");
    std::string line;
    size_t sum = 0;
    while (std::getline(maps, line)) {
        unsigned long long begin = 0, end = 0;
        char mode[5] = "";
        if (sscanf(line.c_str(), "%llx-%llx %4s", &begin, &end, mode) == 3 && mode[1] == 'w')
            sum += end - begin;
    }
    return sum;
}

static size_t descriptors()
{
    return static_cast<size_t>(entries("/proc/self/fd"));
}

// Until it has not changed for two seconds: an endpoint may outlive its link by one.
static void come_to_rest(size_t (*count)())
{
    Stopwatch all, same;
    for (size_t last = count(); same.ms() < 2000 && all.ms() < 20000; sleep_ms(10)) {
        const size_t now = count();
        if (now != last)
            same = Stopwatch();
        last = now;
    }
}

static void pass_both(Rank &rank, ph_channel *channel, char *memory, void *stream)
{
    rank.device->fill(memory, 256, static_cast<uint64_t>(rank.rank));
    CHECK_OK(ph_put_signal(channel, 256, 0, 256, stream));
    CHECK_OK(ph_wait(channel, 256, stream));
    rank.synchronize(stream);
    rank.verify(memory + 256, 256, static_cast<uint64_t>(!rank.rank), "of this life");
}

RANK_FUNCTION(visits)
{
    rank.open(large);
    char *memory = static_cast<char *>(rank.device->alloc(size));
    pass_both(rank, rank.channel(0, 8, PH_ROLE_BOTH, memory, size), memory, rank.device->stream());
    rank.shared->value[0]++;
    if (rank.argument == "is killed")
        pause();
}

RANK_FUNCTION(is_visited)
{
    rank.open(large);
    char *memory = static_cast<char *>(rank.device->alloc(size));
    void *stream = rank.device->stream();
    auto op = operation(8, 1, PH_ROLE_BOTH, memory, size);
    ph_channel *kept = nullptr;
    size_t held = 0, mapped = 0;
    for (uint64_t life = 0; life < VISITS; life++) {
        ph_channel *channel = next_life(rank, op);
        CHECK_OK(ph_reap(rank.context, 0));
        if (life == 2) {
            sleep_ms(200); // whatever goes has gone
            held = descriptors();
            mapped = writable_bytes();
        } else if (life > 2) {
            CHECK(falls_to(descriptors, held));
            CHECK(falls_to(writable_bytes, mapped + SEGMENT));
        }
        pass_both(rank, channel, memory, stream);
        if (life == 0)
            kept = channel;
        else if (life + 1 < VISITS)
            CHECK_OK(ph_channel_close(channel));
        rank.shared->value[1]++;
    }
    // What the application has kept of the first life is there, and goes when it lets go. No
    // connection was kept for it. Nothing else goes meanwhile: the last life is there, its channel
    // is open, and what those before it left has gone.
    CHECK(falls_to(descriptors, held));
    come_to_rest(descriptors);
    CHECK_RC(ph_put_signal(kept, 0, 0, 256, stream), PH_EPEER);
    CHECK_RC(ph_wait(kept, 256, stream), PH_EPEER);
    const size_t held_before = descriptors(), mapped_before = writable_bytes();
    CHECK_OK(ph_channel_close(kept));
    CHECK_OK(ph_reap(rank.context, 0));
    CHECK(falls_to(writable_bytes, mapped_before - SEGMENT));
    if (rank.device->host()) // a driver has descriptors of its own
        CHECK(held_before - descriptors() <= KEPT);
}

TEST_P(Ranks, LivesThatAreOverLeaveNothing)
{
    Job job(GetParam(), 2);
    job.start_rank(0, "is_visited");
    for (uint64_t life = 1; life <= VISITS; life++) {
        const bool killed = life % 2 != 0;
        job.start_rank(1, "visits", killed ? "is killed" : "leaves");
        ASSERT_TRUE(reaches(job.shared()->value[0], life)) << job.wait(100);
        ASSERT_TRUE(reaches(job.shared()->value[1], life)) << job.wait(100);
        if (life == VISITS) {
            EXPECT_EQ(job.status(0, 30000), 0);
        }
        if (killed)
            job.signal(1, SIGKILL);
        EXPECT_EQ(job.status(1, 60000), killed ? 128 + SIGKILL : 0);
    }
}

RANK_FUNCTION(calls_and_leaves)
{
    if (rank.rank == 0) {
        rank.open();
        rank.shared->value[0] = 1;
        CHECK(reaches(rank.shared->value[1], 1)); // it was here, and this rank named nobody
    } else {
        CHECK(reaches(rank.shared->value[0], 1));
        rank.open();
        void *memory = rank.device->alloc(size);
        auto op = operation(8, 0, PH_ROLE_BOTH, memory, size);
        ph_exchange_request *request = nullptr;
        ph_channel *channel = nullptr;
        CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
        CHECK_RC(ph_exchange_finish(&request, &channel, 200), -ETIMEDOUT);
        rank.close();
        rank.shared->value[1] = 1;
        rank.device =
            rank.device->host() ? make_host_device(&rank.context) : std::move(rank.device);
        rank.open();
    }
    meet(rank, !rank.rank, 7);
    rank.barrier();
}

TEST_P(Ranks, ARankThatLeftBeforeItWasNamedIsMetInItsNextLife)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("calls_and_leaves"), "");
}

RANK_FUNCTION(former_life_goes_on)
{
    if (rank.argument == "former") {
        rank.open();
        void *memory = rank.device->alloc(size);
        rank.shared->value[0]++;
        CHECK(reaches(rank.shared->value[1], 1)); // the next life has announced itself
        CHECK_SAYS(exchange_fails(rank, {operation(1, 1, PH_ROLE_BOTH, memory, size)}, PH_EFENCED),
                   "incarnation");
        rank.shared->value[2]++;
    } else {
        rank.open();
        rank.shared->value[1]++;
        CHECK(reaches(rank.shared->value[2], 1));
    }
}

TEST_F(RanksHost, AFormerLifeThatGoesOnIsFenced)
{
    Job job("host", 3); // the third process is rank 0 as well
    job.environment("PEERHOP_RANKS", "2");
    job.environment(2, "PEERHOP_RANK", "0");
    job.start_rank(0, "former_life_goes_on", "former");
    ASSERT_TRUE(reaches(job.shared()->value[0], 1)) << job.wait(100);
    job.start_rank(2, "former_life_goes_on", "next");
    EXPECT_EQ(job.wait(), "");
}

// ---- places

// Runs the rest of the rank function in a child that lives in new namespaces; the parent ends as it
// ends.
static void enter_namespaces(int flags)
{
    if (unshare(flags) != 0)
        rank_failed(__FILE__, __LINE__, "unshare");
    pid_t child = fork();
    if (child == 0)
        return;
    int status = 0;
    waitpid(child, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

static bool can_unshare(int flags)
{
    fflush(nullptr);
    pid_t child = fork();
    if (child == 0)
        _exit(unshare(flags) == 0 ? 0 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

RANK_FUNCTION(in_another_pid_namespace)
{
    if (rank.rank == 1)
        enter_namespaces(CLONE_NEWPID);
    rank.open({}, 45000); // the kernel may take half a minute to end a process
    CHECK(rank.rank == 0 || getpid() == 1);
    meet(rank, !rank.rank, 7);
    rank.barrier();
    if (rank.rank == 0)
        _exit(0); // without leaving: that a process ended is seen across the namespaces too
    void *memory = rank.device->alloc(size);
    exchange_fails(rank, {operation(9, 0, PH_ROLE_BOTH, memory, size)}, PH_EPEER);
}

TEST_F(RanksHost, APidNamespaceOfOnesOwn)
{
    if (!can_unshare(CLONE_NEWPID))
        GTEST_SKIP() << "this process may not make namespaces";
    Job job("host", 2);
    EXPECT_EQ(job.run("in_another_pid_namespace"), "");
}

RANK_FUNCTION(in_another_network)
{
    if (rank.rank == 1)
        enter_namespaces(CLONE_NEWNET);
    if (rank.argument != "") {
        rank.open({"PEERHOP_SOCKET_DIRECTORY=" + rank.argument});
        meet(rank, !rank.rank, 7);
    } else {
        // No network joins the two either: the new one has not even a loopback.
        // The thread sanitizer spends 14 s on the memory of libfabric.
        rank.open({}, 60000);
        void *memory = rank.device->alloc(size);
        std::string sentence = exchange_fails(
            rank, {operation(7, !rank.rank, PH_ROLE_BOTH, memory, size)}, PH_ENOPATH);
        CHECK_SAYS(sentence, "PEERHOP_SOCKET_DIRECTORY");
        if (net_available())
            CHECK_SAYS(sentence, rank.rank == 1 ? "net: this rank has no provider of libfabric"
                                                : "net: the peer has no provider of libfabric");
    }
    rank.barrier();
}

TEST_F(RanksHost, ANetworkNamespaceOfOnesOwn)
{
    if (!can_unshare(CLONE_NEWNET))
        GTEST_SKIP() << "this process may not make namespaces";
    Job without("host", 2);
    EXPECT_EQ(without.run("in_another_network"), "");
    char folder[] = "/tmp/phsockets.XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    Job with("host", 2);
    EXPECT_EQ(with.run("in_another_network", folder), "");
    EXPECT_EQ(rmdir(folder), 0) << "a socket was left behind";
}

RANK_FUNCTION(names_of_devices)
{
    rank.open(); // cuda:rank
    std::string name = ph_context_device(rank.context);
    snprintf(rank.shared->text[32 + rank.rank], sizeof rank.shared->text[0], "%s",
             name.substr(name.find("GPU-")).c_str());
    rank.barrier();
    bool same = strcmp(rank.shared->text[32], rank.shared->text[33]) == 0;
    CHECK(same == (rank.argument == "shared"));
    meet(rank, !rank.rank, 7);
    // A thread that has never used a device exchanges as well.
    void *memory = rank.device->alloc(size);
    int rc = -1;
    auto op = operation(8, !rank.rank, PH_ROLE_BOTH, memory, size);
    ph_channel *channel = nullptr;
    std::thread([&] { rc = ph_exchange(rank.context, &op, 1, &channel); }).join();
    CHECK_OK(rc);
    rank.barrier();
}

TEST_P(Ranks, DevicesInAnotherOrderOnEachRank)
{
    if (GetParam() != "standin")
        GTEST_SKIP() << "the device counts are the stand-in's";
    struct {
        const char *first, *second, *argument;
    } cases[] = {{"0,1", "0,1", ""},
                 {"1,0", "1,0", ""},
                 {"1,0", "0,1", "shared"},
                 {"1", "0", ""},
                 {"1", "1", "shared"}};
    for (auto &c : cases) {
        SCOPED_TRACE(std::string(c.first) + " and " + c.second);
        Job job(GetParam(), 2);
        job.environment(0, "CUDA_VISIBLE_DEVICES", c.first);
        job.environment(1, "CUDA_VISIBLE_DEVICES", c.second);
        EXPECT_EQ(job.run("names_of_devices", c.argument), "");
    }
}
