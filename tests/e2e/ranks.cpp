// SPDX-License-Identifier: BSD-3-Clause
#include "e2e/ranks.h"

#include "support/strict_net.h"

#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <linux/futex.h>
#include <mutex>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

static std::map<std::string, RankFunction> &functions()
{
    static std::map<std::string, RankFunction> all;
    return all;
}

RankRegistration::RankRegistration(const char *name, RankFunction function)
{
    functions()[name] = function;
}

static Rank *current; // of this process, for messages

void rank_failed(const char *file, int line, const std::string &what)
{
    std::string text = std::string(file) + ":" + std::to_string(line) + ": " + what;
    if (current != nullptr && current->shared != nullptr)
        snprintf(current->shared->text[current->rank], sizeof current->shared->text[0], "%s",
                 text.c_str());
    fprintf(stderr, "rank %d: %s\n", current ? current->rank : -1, text.c_str());
    fflush(nullptr);
    _exit(1);
}

// ---- in a rank

std::atomic<uint64_t> unanswered_lines;

static void count_line(const std::string &line)
{
    if (line.rfind("the store at ", 0) != 0 || line.find(" before the deadline") == line.npos)
        return;
    unanswered_lines++;
    if (current != nullptr && current->shared != nullptr)
        current->shared->unanswered++;
}

void print_log([[maybe_unused]] void *opaque, [[maybe_unused]] enum ph_log_level level,
               const char *line)
{
    count_line(line);
    fprintf(stderr, "%s\n", line);
}

static void keep_log(void *opaque, enum ph_log_level level, const char *line)
{
    static std::mutex lock; // any thread of the library may call
    auto *rank = static_cast<Rank *>(opaque);
    std::lock_guard<std::mutex> hold(lock);
    count_line(line);
    if (level <= PH_LOG_WARN)
        rank->log += std::string(line) + "\n";
    if (getenv("PEERHOP_TEST_VERBOSE"))
        fprintf(stderr, "rank %d: %s\n", rank->rank, line);
}

int Rank::try_open(std::vector<std::string> settings, int64_t deadline_ms, std::string *error)
{
    std::vector<const char *> pointers;
    for (const std::string &setting : settings)
        pointers.push_back(setting.c_str());
    pointers.push_back(nullptr);
    char text[1024] = "";
    struct ph_context_params params = {};
    params.struct_size = sizeof params;
    params.device = device->wish();
    params.deadline_ms = patience(deadline_ms).count();
    params.log = keep_log;
    params.log_opaque = this;
    params.log_level = getenv("PEERHOP_TEST_VERBOSE") ? PH_LOG_DEBUG : PH_LOG_WARN;
    params.settings = pointers.data();
    params.error = text;
    params.error_size = sizeof text;
    int rc = ph_context_create(&params, &context);
    if (error != nullptr)
        *error = text;
    return rc;
}

void Rank::open(std::vector<std::string> settings, int64_t deadline_ms)
{
    std::string error;
    int rc;
    const auto end = std::chrono::steady_clock::now() + patience(20000);
    do
        rc = try_open(settings, deadline_ms, &error);
    while (rc == -ETIMEDOUT && std::chrono::steady_clock::now() < end);
    if (rc)
        rank_failed(__FILE__, __LINE__, std::string("context: ") + ph_strerror(rc) + ": " + error);
}

void Rank::close(int64_t deadline_ms)
{
    Rank &rank = *this;
    CHECK_OK(ph_context_destroy(&context, patience(deadline_ms).count()));
}

void Rank::barrier()
{
    unsigned index = barriers_++ % 64;
    uint32_t turn = (barriers_ - 1) / 64 + 1;
    std::atomic<uint32_t> &arrived = shared->arrived[index];
    const uint32_t all = turn * static_cast<uint32_t>(ranks);
    const auto end = std::chrono::steady_clock::now() + patience(60000);
    // Asleep, not looking again and again: with many ranks on few cores that takes the others'
    // time.
    uint32_t came = arrived.fetch_add(1) + 1;
    if (came == all)
        syscall(SYS_futex, &arrived, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    for (; came < all; came = arrived.load()) {
        if (std::chrono::steady_clock::now() > end)
            rank_failed(__FILE__, __LINE__, "the test's barrier: not all ranks came");
        const timespec second = {1, 0};
        syscall(SYS_futex, &arrived, FUTEX_WAIT, came, &second, nullptr, 0);
    }
}

std::string Rank::error()
{
    char text[1024] = "";
    ph_context_error(context, text, sizeof text);
    return text;
}

uint64_t Rank::counter(const char *name)
{
    struct ph_counters counters = {};
    ph_context_counters(context, &counters, sizeof counters);
#define PICK(member, meaning)                                                                      \
    if (strcmp(name, #member) == 0)                                                                \
        return counters.member;
    PH_COUNTER_MAP(PICK)
#undef PICK
    rank_failed(__FILE__, __LINE__, std::string("no counter ") + name);
}

bool Rank::staged() const
{
    const char *path = getenv("PEERHOP_PATH");
    return !device->host() && path != nullptr && std::string(path) == "net" &&
           getenv("TEST_NET_HMEM") == nullptr;
}

bool Rank::sends_alone(struct ph_channel *channel, bool outgoing, size_t size)
{
    Rank &rank = *this;
    struct ph_path_report path = {};
    CHECK_OK(ph_channel_path(channel, outgoing, &path, sizeof path));
    return staged() || size <= path.ll_max;
}

std::string Rank::wide()
{
    static const int table = memfd_create("table", 0);
    static const std::string text = "* * 1M all wide\n";
    const std::string name = "/proc/self/fd/" + std::to_string(table);
    if (table < 0 || pwrite(table, text.data(), text.size(), 0) != (ssize_t)text.size())
        abort();
    return "PEERHOP_TABLE=" + name;
}

std::string reason_against(const ph_path_report &report, const std::string &name)
{
    for (size_t i = 0; i < report.rejected_count; i++)
        if (report.rejected[i].name == name)
            return report.rejected[i].reason;
    return "";
}

bool Rank::by_flags(struct ph_channel *channel, bool outgoing)
{
    Rank &rank = *this;
    struct ph_path_report path = {};
    CHECK_OK(ph_channel_path(channel, outgoing, &path, sizeof path));
    return path.ll_max + path.sm_max > 0;
}

struct ph_channel *Rank::channel(int peer, uint64_t op_id, ph_role role, void *buffer, size_t size,
                                 ph_protocol protocol)
{
    Rank &rank = *this;
    struct ph_operation op = {op_id, peer, role, protocol, buffer, size};
    struct ph_channel *channel = nullptr;
    struct ph_exchange_request *request = nullptr;
    CHECK_OK(ph_exchange_start(context, &op, 1, &request));
    CHECK_OK(ph_exchange_finish(&request, &channel, patience(20000).count()));
    return channel;
}

void Rank::synchronize(void *stream, int64_t ms)
{
    if (!device->synchronize(stream, patience(ms).count()))
        rank_failed(__FILE__, __LINE__, "the stream is not done: " + error());
}

void Rank::goes_on_without(int peer, void *stream)
{
    auto end = std::chrono::steady_clock::now() + patience(60000);
    for (bool ended = false; !device->synchronize(stream, 100);) {
        const auto now = std::chrono::steady_clock::now();
        if (!ended && shared->ended[peer] != 0) {
            ended = true;
            end = now + patience(30000);
        }
        if (now > end)
            rank_failed(__FILE__, __LINE__,
                        ended ? "the stream still waits for a rank that has ended: " + error()
                              : "the rank that the test kills does not end");
    }
}

void Rank::ends_with(int rc, const std::string &what, const std::function<int()> &call)
{
    auto end = std::chrono::steady_clock::now() + patience(20000);
    int result = 0;
    do {
        result = call();
        if (result == rc && error().find(what) != std::string::npos)
            return;
    } while (result != 0 && std::chrono::steady_clock::now() < end);
    rank_failed(__FILE__, __LINE__,
                std::string(ph_strerror(result)) + ": \"" + error() + "\" does not say \"" + what +
                    "\"");
}

void Rank::verify(const void *from, size_t size, uint64_t seed, const char *what)
{
    std::string wrong = device->verify(from, size, seed);
    if (!wrong.empty())
        rank_failed(__FILE__, __LINE__, std::string(what) + ": " + wrong);
}

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

static int rank_main(const char *name)
{
    Rank rank;
    current = &rank;
    rank.rank = atoi(variable("PEERHOP_RANK"));
    rank.ranks = atoi(variable("PEERHOP_RANKS"));
    rank.argument = variable("PEERHOP_TEST_ARGUMENT");
    int fd = atoi(variable("PEERHOP_TEST_SHARED"));
    rank.shared = static_cast<Shared *>(
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    close(fd);
    rank.device = strcmp(variable("PEERHOP_TEST_DEVICE"), "host") == 0
                      ? make_host_device(&rank.context)
                      : make_cuda_device(rank.rank);
    // The test's own variables are not the library's.
    for (const char *own : {"PEERHOP_TEST_FUNCTION", "PEERHOP_TEST_ARGUMENT", "PEERHOP_TEST_SHARED",
                            "PEERHOP_TEST_DEVICE"})
        unsetenv(own);
    auto found = functions().find(name);
    if (found == functions().end() || !rank.device)
        rank_failed(__FILE__, __LINE__, std::string("no such rank function or device: ") + name);
    found->second(rank);
    if (rank.context != nullptr)
        rank.close();
    rank.device.reset();
    if (strict_count("strict_refused") + strict_count("strict_mapped") > 0)
        rank_failed(__FILE__, __LINE__,
                    "the strict provider refused what the output says, or a key is mapped still");
    return 0;
}

// ---- in the test

Job::Job(const std::string &device, int ranks, const std::string &store)
    : device_(device), store_(store), ranks_(ranks), own_(ranks), pids_(ranks, -1),
      statuses_(ranks, -1)
{
    static int count;
    name_ = "test-" + std::to_string(getpid()) + "-" + std::to_string(count++);
    if (store.empty() && over_files()) {
        folder_ = std::make_unique<Folder>();
        store_ = folder_->store();
    } else if (store.empty()) {
        redis_ = std::make_unique<RedisServer>();
        redis_->start();
        store_ = redis_->uri();
    }
    shared_fd_ = memfd_create("peerhop-test", MFD_CLOEXEC);
    if (ftruncate(shared_fd_, sizeof(Shared)) != 0)
        abort();
    shared_ = static_cast<Shared *>(
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd_, 0));
    if (device == "standin" || device == "standinnet" || device == "standinhmem")
        environment("PEERHOP_LIBCUDA", PEERHOP_STANDIN);
    const char *library = getenv("PEERHOP_LIBFABRIC");
    const bool strict = getenv("TEST_NET_STRICT") != nullptr; // which that is
    if (strict)
        share("TEST_NET_STRICT_FD", 1 << 21);
    if (device == "standinhmem") {
        share("TEST_NET_HMEM_FD", 1 << 20);
        environment(strict ? "TEST_NET_STRICT_OVER" : "PEERHOP_LIBFABRIC", TEST_NET_HMEM);
        environment("TEST_NET_HMEM", "driver");
        if (library != nullptr && !strict)
            environment("TEST_NET_HMEM_OVER", library);
    }
    if (device == "hostnet" || device == "standinnet" || device == "standinhmem" ||
        device == "gpunet") {
        device_ = device == "hostnet" ? "host" : device == "gpunet" ? "gpu" : "standin";
        environment("PEERHOP_PATH", "net");
        if (getenv("PEERHOP_NET_PROVIDER") == nullptr ||
            device == "standinhmem") // a run may ask for another one
            environment("PEERHOP_NET_PROVIDER", "tcp");
    }
}

Job::~Job()
{
    for (int rank = 0; rank < ranks_; rank++) {
        if (pids_[rank] > 0 && statuses_[rank] < 0) {
            kill(pids_[rank], SIGKILL);
            ended_.push_back(pids_[rank]);
        }
    }
    for (pid_t pid : ended_)
        waitpid(pid, nullptr, 0);
    unanswered_lines += shared_->unanswered;
    munmap(shared_, sizeof(Shared));
    ::close(shared_fd_);
    for (const auto &[name, fd] : shims_)
        ::close(fd);
}

std::string Job::keys()
{
    return folder_ ? folder_->list() : redis_->cli("KEYS ph:*");
}

void Job::share(const std::string &name, off_t size)
{
    shims_[name] = memfd_create("peerhop-shim", MFD_CLOEXEC);
    if (ftruncate(shims_[name], size) != 0)
        abort();
}

void Job::environment(const std::string &name, const std::string &value)
{
    environment_[name] = value;
}

void Job::environment(int rank, const std::string &name, const std::string &value)
{
    own_[rank][name] = value;
}

void Job::start_rank(int rank, const std::string &function, const std::string &argument)
{
    fflush(nullptr);
    // By its name: valgrind follows no execution of /proc/self/exe.
    static const std::string self = std::filesystem::read_symlink("/proc/self/exe");
    shared_->text[rank][0] = 0;
    shared_->ended[rank] = 0;
    statuses_[rank] = -1;
    pid_t pid = fork();
    if (pid != 0) {
        pids_[rank] = pid;
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto set = [](const std::string &name, const std::string &value) {
        setenv(name.c_str(), value.c_str(), 1);
    };
    set("PEERHOP_RANK", std::to_string(rank));
    set("PEERHOP_RANKS", std::to_string(ranks_));
    set("PEERHOP_JOB", name_);
    set("PEERHOP_STORE", store_);
    set("PEERHOP_TEST_FUNCTION", function);
    set("PEERHOP_TEST_ARGUMENT", argument);
    set("PEERHOP_TEST_DEVICE", device_);
    int fd = dup(shared_fd_); // without close-on-exec
    set("PEERHOP_TEST_SHARED", std::to_string(fd));
    for (const auto &[name, shim] : shims_)
        set(name, std::to_string(dup(shim)));
    for (const auto &[name, value] : environment_)
        set(name, value);
    for (const auto &[name, value] : own_[rank])
        set(name, value);
    execl(self.c_str(), "ranks", static_cast<char *>(nullptr));
    _exit(127);
}

void Job::start(const std::string &function, const std::string &argument)
{
    for (int rank = 0; rank < ranks_; rank++)
        start_rank(rank, function, argument);
}

int Job::status(int rank, int64_t ms)
{
    return status_until(rank, std::chrono::steady_clock::now() + patience(ms));
}

int Job::status_until(int rank, std::chrono::steady_clock::time_point end)
{
    while (statuses_[rank] < 0 && pids_[rank] > 0) {
        siginfo_t info = {};
        if (waitid(P_PID, static_cast<id_t>(pids_[rank]), &info, WEXITED | WNOHANG | WNOWAIT) ==
                0 &&
            info.si_pid == pids_[rank]) {
            statuses_[rank] = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
            ended_.push_back(pids_[rank]);
            shared_->ended[rank] = 1;
        } else if (std::chrono::steady_clock::now() >= end) {
            break;
        } else {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }
    return statuses_[rank];
}

void Job::signal(int rank, int number)
{
    kill(pids_[rank], number);
}

std::string Job::wait(int64_t ms)
{
    auto end = std::chrono::steady_clock::now() + patience(ms);
    std::string result;
    for (int rank = 0; rank < ranks_; rank++) {
        int code = status_until(rank, end);
        if (code == 0 || expected_[rank] || pids_[rank] < 0)
            continue;
        result += "rank " + std::to_string(rank) +
                  (code < 0 ? " still runs" : " ended with " + std::to_string(code)) + ": " +
                  shared_->text[rank] + "\n";
    }
    return result;
}

std::string Job::run(const std::string &function, const std::string &argument, int64_t ms)
{
    start(function, argument);
    return wait(ms);
}

bool over_files()
{
    const char *store = getenv("TEST_STORE");
    return store != nullptr && strcmp(store, "files") == 0;
}

bool store_available()
{
    return over_files() || RedisServer::available();
}

bool net_available()
{
    return TEST_HAVE_NET;
}

void OverNet::SetUp()
{
    if (!store_available())
        GTEST_SKIP() << "no redis-server";
    if (!net_available())
        GTEST_SKIP() << "libfabric is left out of this build";
}

void EveryDevice::SetUp()
{
    std::string why;
    if (!store_available())
        GTEST_SKIP() << "no redis-server";
    if (on_net() && !net_available())
        GTEST_SKIP() << "libfabric is left out of this build";
    const bool on_gpu = GetParam().compare(0, 3, "gpu") == 0;
    if (!device_available(on_host() ? "host" : on_gpu ? "gpu" : "standin", &why))
        GTEST_SKIP() << why;
}

int main(int argc, char **argv)
{
    const char *function = getenv("PEERHOP_TEST_FUNCTION");
    if (function != nullptr) {
        int rc = rank_main(std::string(function).c_str());
        fflush(nullptr);
        return rc;
    }
    setvbuf(stdout, nullptr, _IOLBF, 0); // what a test said is not lost when it is killed
    testing::InitGoogleTest(&argc, argv);
    int rc = RUN_ALL_TESTS();
    const testing::UnitTest &all = *testing::UnitTest::GetInstance();
    // What ran nothing at all is a skipped test to Meson and CTest, not a passed one.
    return rc == 0 && all.test_to_run_count() > 0 &&
                   all.skipped_test_count() == all.test_to_run_count()
               ? 77
               : rc;
}
