// SPDX-License-Identifier: BSD-3-Clause
#include "random/run.h"
#include "random/machine.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

using Clock = std::chrono::steady_clock;

static double seconds_since(Clock::time_point then)
{
    return std::chrono::duration<double>(Clock::now() - then).count();
}

const char *name_of(Doing doing)
{
    static const char *const names[] = {
        "starting",   "opening its context", "meeting the others",      "giving back its memory",
        "exchanging", "enqueueing",          "waiting for its streams", "comparing",
        "done"};
    return names[(int)doing];
}

// What this build has beside this program.
static std::string module_path(const char *name)
{
    char self[4096];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    const std::string path(self);
    const std::string folder = path.substr(0, path.rfind('/'));
    return folder + "/../" + name;
}

static const std::string &standin()
{
    static const std::string path = module_path("standin/libcuda-standin.so");
    return path;
}

static std::string missing(const std::string &path)
{
    return access(path.c_str(), R_OK) == 0 ? "" : path + " is not built";
}

static bool has(const std::vector<std::string> &list, const char *word)
{
    return std::find(list.begin(), list.end(), word) != list.end();
}

std::string Run::unavailable(const Config &config)
{
    std::string why;
    if (has(config.devices, "standin") && !(why = missing(standin())).empty())
        return why;
    for (const auto &[name, value] : config.environment)
        if (name == "PEERHOP_PATH" && value == "net" && RANDOM_HAVE_NET == 0)
            return "built without libfabric";
    if (!config.strict.empty())
        why = missing(module_path("conformance/libnet-strict.so"));
    if (why.empty() && config.hmem)
        why = missing(module_path("conformance/libnet-hmem.so"));
    // In a process of its own: who has loaded a driver must not fork.
    if (why.empty() && config.gpus) {
        const pid_t pid = fork();
        int status = 0;
        if (pid == 0)
            _exit(cuda_devices(&why));
        waitpid(pid, &status, 0);
        const int count = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
        why = count >= 2 ? "" : "there are not two GPUs";
    }
    return why;
}

static int shared_file(const char *name, size_t size)
{
    const int fd = memfd_create(name, 0); // ranks inherit it
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0)
        abort();
    return fd;
}

Run::Run(const Config &config, const Files &files, uint64_t seed, const Limits &limits)
    : config_(config), files_(files), seed_(seed), limits_(limits), pids_((size_t)config.ranks, -1),
      lives_((size_t)config.ranks, 0), begun_(Clock::now()), moved_(begun_)
{
    static int count;
    job_ = "random-" + std::to_string(getpid()) + "-" + std::to_string(count++);
    board_fd_ = shared_file("board", sizeof(Board));
    if (!config.strict.empty())
        strict_fd_ = shared_file("strict", 1 << 21);
    if (config.hmem)
        hmem_fd_ = shared_file("hmem", 1 << 20);
    board_ = static_cast<Board *>(
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, board_fd_, 0));
    if (board_ == MAP_FAILED)
        abort();
    board_->end = UINT64_MAX;
    board_->operations_wanted = limits.operations != 0 ? limits.operations : UINT64_MAX;
    for (int rank = 0; rank < config.ranks; rank++)
        start(rank, 0);
}

Run::~Run()
{
    for (pid_t pid : pids_)
        if (pid > 0) {
            kill(pid, SIGKILL);
            waitpid(pid, nullptr, 0);
        }
    munmap(board_, sizeof(Board));
    for (int fd : {board_fd_, strict_fd_, hmem_fd_})
        if (fd >= 0)
            close(fd);
}

static void set(const char *name, const std::string &value)
{
    setenv(name, value.c_str(), 1);
}

void Run::child(int rank, int life)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    set("PEERHOP_RANK", std::to_string(rank));
    set("PEERHOP_RANKS", std::to_string(config_.ranks));
    set("PEERHOP_JOB", job_);
    set("PEERHOP_STORE", files_.store);
    if (has(config_.devices, "standin"))
        set("PEERHOP_LIBCUDA", standin());
    if (config_.wide)
        set("PEERHOP_TABLE", "/proc/self/fd/" + std::to_string(files_.table));
    if (config_.hmem) {
        set("TEST_NET_HMEM_FD", std::to_string(hmem_fd_));
        set(config_.strict.empty() ? "PEERHOP_LIBFABRIC" : "TEST_NET_STRICT_OVER",
            module_path("conformance/libnet-hmem.so"));
    }
    if (!config_.strict.empty()) {
        set("TEST_NET_STRICT_FD", std::to_string(strict_fd_));
        set("TEST_NET_STRICT", config_.strict);
        set("PEERHOP_LIBFABRIC", module_path("conformance/libnet-strict.so"));
    }
    for (const auto &[name, value] : config_.environment)
        set(name.c_str(), value);
    set("RANDOM_CONFIG", config_.name);
    set("RANDOM_SEED", std::to_string(seed_));
    set("RANDOM_LIFE", std::to_string(life));
    set("RANDOM_BOARD", std::to_string(board_fd_));
    set("RANDOM_POOL", std::to_string(files_.pool));
    // What nobody waits for any more is told by who started the ranks: they wait longer.
    set("RANDOM_STALL_MS", std::to_string(2 * limits_.stall_ms));
    execl("/proc/self/exe", "random_client", static_cast<char *>(nullptr));
    _exit(127);
}

void Run::start(int rank, int life)
{
    fflush(nullptr);
    const pid_t pid = fork();
    if (pid == 0)
        child(rank, life);
    pids_[(size_t)rank] = pid;
    lives_[(size_t)rank] = life;
    running_++;
}

bool read_orders(Orders &orders)
{
    const char *name = getenv("RANDOM_CONFIG");
    if (name == nullptr)
        return false;
    const auto &all = all_configs();
    const auto number = [](const char *variable) {
        return strtoull(getenv(variable), nullptr, 10);
    };
    const auto map = [&](const char *variable, size_t size, int rights) {
        void *memory = mmap(nullptr, size, rights, MAP_SHARED, (int)number(variable), 0);
        if (memory == MAP_FAILED)
            abort();
        return memory;
    };
    orders.config =
        &*std::find_if(all.begin(), all.end(), [&](const Config &c) { return c.name == name; });
    orders.rank = (int)number("PEERHOP_RANK");
    orders.ranks = orders.config->ranks;
    orders.life = (int)number("RANDOM_LIFE");
    orders.seed = number("RANDOM_SEED");
    orders.stall_ms = (int64_t)number("RANDOM_STALL_MS");
    orders.board = static_cast<Board *>(map("RANDOM_BOARD", sizeof(Board), PROT_READ | PROT_WRITE));
    orders.pool = static_cast<const uint8_t *>(map("RANDOM_POOL", POOL, PROT_READ));
    orders.first_round = orders.board->ranks[orders.rank].round;
    return true;
}

// ---- what becomes of it

void Run::fail(const std::string &what)
{
    if (failure_.empty()) {
        failure_ = what;
        failed_ = Clock::now();
    }
}

// Another rank may know more than the one that failed first.
std::string Run::where() const
{
    std::string text;
    for (int i = 0; i < config_.ranks; i++) {
        const auto &rank = board_->ranks[i];
        char line[2300];
        snprintf(line, sizeof line,
                 "\n    rank %d (life %d) is %s: round %llu, repetition %llu, step %llu%s%s%s%s", i,
                 lives_[(size_t)i], name_of((Doing)rank.doing.load()),
                 (unsigned long long)rank.round, (unsigned long long)rank.repetition,
                 (unsigned long long)rank.step, rank.waits[0] ? ": " : "", rank.waits,
                 rank.failed[0] ? ": " : "", rank.failed);
        text += line;
    }
    return text;
}

void Run::reap(int rank)
{
    int status = 0;
    pid_t &pid = pids_[(size_t)rank];
    if (pid < 0 || waitpid(pid, &status, WNOHANG) != pid)
        return;
    pid = -1;
    running_--;
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_NEXT_LIFE && failure_.empty())
        start(rank, lives_[(size_t)rank] + 1);
    else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail("rank " + std::to_string(rank) +
             (WIFEXITED(status) ? " ended with " + std::to_string(WEXITSTATUS(status))
                                : " was ended by signal " + std::to_string(WTERMSIG(status))));
}

// What the ranks themselves say of what they wait for.
std::string Run::asked() const
{
    const std::string info = module_path("../tools/peerhop-info");
    const std::string command =
        "PEERHOP_STORE='" + files_.store + "' " + info + " --job " + job_ + " 2>&1";
    std::string text;
    char line[400];
    FILE *answer = access(info.c_str(), X_OK) == 0 ? popen(command.c_str(), "r") : nullptr;
    while (answer != nullptr && fgets(line, sizeof line, answer) != nullptr)
        text += std::string(text.empty() ? "\n    " : "    ") + line;
    if (answer != nullptr)
        pclose(answer);
    return text;
}

uint64_t
Run::sum(std::atomic<uint64_t> std::remove_reference_t<decltype(Board::ranks[0])>::*member) const
{
    uint64_t all = 0;
    for (const auto &rank : board_->ranks)
        all += (rank.*member).load();
    return all;
}

using RankBoard = std::remove_reference_t<decltype(Board::ranks[0])>;

uint64_t Run::operations() const
{
    return sum(&RankBoard::operations);
}

bool Run::stalled()
{
    const uint64_t now = sum(&RankBoard::progress);
    if (now != progress_) {
        progress_ = now;
        moved_ = Clock::now();
    }
    return seconds_since(moved_) * 1000 > (double)limits_.stall_ms;
}

bool Run::poll()
{
    for (int rank = 0; rank < config_.ranks; rank++)
        reap(rank);
    if (limits_.seconds > 0 && seconds_since(begun_) > limits_.seconds)
        board_->time_over = 1;
    if (running_ > 0 && failure_.empty() && stalled())
        fail("nothing moves" + asked());
    if (running_ > 0 && (failure_.empty() || seconds_since(failed_) < 1))
        return true;
    took_ = seconds_since(begun_);
    if (!failure_.empty())
        failure_ += where();
    return false;
}

std::string Run::report() const
{
    char line[600];
    const auto &first = board_->ranks[0];
    const double all = (double)sum(&RankBoard::bytes), large = (double)sum(&RankBoard::large_bytes);
    snprintf(line, sizeof line,
             "%-26s seed %llu: %llu rounds (%llu in fresh memory, %llu lives), %llu operations, "
             "%.0f/s, %.1f MB, %.0f%% in messages over "
             "64 KiB, %s, %s in %.1f s",
             config_.name.c_str(), (unsigned long long)seed_, (unsigned long long)(first.round + 1),
             (unsigned long long)first.fresh_rounds, (unsigned long long)sum(&RankBoard::lives),
             (unsigned long long)operations(), (double)operations() / took_, all / 1e6,
             all > 0 ? 100 * large / all : 0.0, first.path, good() ? "0 wrong" : "FAILED", took_);
    return line + (good() ? "" : "\n    " + failure_);
}
