// SPDX-License-Identifier: BSD-3-Clause
// The sweep: the scenario runs once for each use of each call that rank 0 makes, and that use
// fails, is slow, or is interrupted. Demanded is a named error or success with the right bytes, an
// end in time, nothing left behind, and ranks 1 and 2 that go on with each other.
//
//     PEERHOP_FAULT_SWEEP   unset: a sample by PEERHOP_FAULT_SEED (printed); all: everything;
//                           "mmap64:3:fail": that one, shown
//     TEST_TIME_FACTOR      by how much deadlines are longer, where the machine does other things
//     too
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <peerhop/peerhop.h>

#include "faults/scenario.h"
#include "support/folder.h"
#include "support/redis_server.h"

namespace
{

using namespace faults;
using Clock = std::chrono::steady_clock;

constexpr int DEADLINES_MOST = 16; // of a run, one after the other
constexpr int TRIES_MORE = 3;      // of a run that showed something, each by itself
constexpr uint32_t MANY = 250;     // of the uses of a call that polls, some are enough
constexpr uint32_t MANY_OVER_THE_NET = 40;
const char *const MODES[] = {"none", "fail", "slow", "interrupt"};

struct Fault {
    int call = -1, mode = FAULT_NONE;
    uint32_t n = 0;

    std::string text() const
    {
        return call < 0 ? "no fault"
                        : std::string(fault_name(static_cast<unsigned>(call))) + ":" +
                              std::to_string(n) + ":" + MODES[mode];
    }
};

// One run of the scenario: three forked ranks and what they share with the test.
class Trial
{
  public:
    Trial(const std::string &device, const std::string &store, Fault what) : fault(what)
    {
        static int count;
        void *memory =
            mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        board = new (memory) Board();
        board->plan.call = fault.call;
        board->plan.mode = fault.mode;
        board->plan.n = fault.n;
        snprintf(board->job, sizeof board->job, "faults-%d-%d", getpid(), count++);
        snprintf(board->store, sizeof board->store, "%s", store.c_str());
        snprintf(board->device, sizeof board->device, "%s", device.c_str());
        for (Outcome &rank : board->ranks)
            rank.failed_at = -1;
        fflush(nullptr);
        for (int rank = 0; rank < RANKS; rank++) {
            pids_[rank] = fork();
            if (pids_[rank] == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                for (const char *own : {"PEERHOP_FAULT_SWEEP", "PEERHOP_FAULT_SEED",
                                        "PEERHOP_FAULT_JOBS", "PEERHOP_FAULT_STACKS"})
                    unsetenv(own);
                play(board, rank);
                _exit(0);
            }
        }
    }
    ~Trial()
    {
        munmap(board, sizeof(Board));
    }
    Trial(const Trial &) = delete;

    bool ended()
    {
        bool late = ms() > DEADLINES_MOST * deadline_ms();
        bool all = true;
        for (int rank = 0; rank < RANKS; rank++) {
            if (statuses[rank] >= 0)
                continue;
            int status;
            if (late && !hung[rank]) {
                hung[rank] = true;
                if (getenv("PEERHOP_FAULT_STACKS"))
                    stacks(pids_[rank]);
                kill(pids_[rank], SIGKILL);
            }
            if (waitpid(pids_[rank], &status, WNOHANG) == pids_[rank])
                statuses[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            all = all && statuses[rank] >= 0;
        }
        return all;
    }
    int64_t ms() const
    {
        return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin_).count();
    }

    Fault fault;
    Board *board;
    int statuses[RANKS] = {-1, -1, -1};
    bool hung[RANKS] = {};

  private:
    static void stacks(pid_t pid)
    {
        std::string command = "gdb -p " + std::to_string(pid) +
                              " -batch -ex 'thread apply all bt 14' 2>/dev/null | grep -E "
                              "'^#|^Thread' >&2";
        if (system(command.c_str()) != 0)
            fprintf(stderr, "no stacks\n");
    }

    pid_t pids_[RANKS];
    Clock::time_point begin_ = Clock::now();
};

// ---- What a run showed

// The most that ranks held after runs without a fault.
struct Clean {
    Holdings most[RANKS] = {};
};

std::string leak(const Holdings &after, const Holdings &clean, const Fault &fault)
{
    // What the system does not take back is lost.
    bool kept = fault.call == FAULT_CALL_munmap && fault.mode == FAULT_FAIL;
    if (fault.text() == "cuDevicePrimaryCtxRelease_v2:1:fail")
        return "";
    std::string text;
    auto compare = [&](const char *what, uint32_t has, uint32_t may) {
        if (has > may)
            text += " " + std::to_string(has - may) + " " + what;
    };
    compare("descriptors", after.descriptors, clean.descriptors);
    compare("mappings", after.mappings, clean.mappings + kept);
    compare("threads", after.threads, clean.threads);
    compare("allocations", after.allocations, clean.allocations);
    if (after.allocations > clean.allocations) {
        char place[32];
        for (uint64_t from : after.from) {
            snprintf(place, sizeof place, " %#llx", static_cast<unsigned long long>(from));
            text += from ? place : "";
        }
    }
    return text;
}

bool contains(const char *text, const std::string &part)
{
    return strcasestr(text, part.c_str()) != nullptr;
}

// The call's name without what only the linker knows.
std::string plain(unsigned call)
{
    std::string name = fault_name(call);
    for (const char *suffix : {"64", "_v2"}) {
        size_t at = name.size() - std::min(name.size(), strlen(suffix));
        if (name.substr(at) == suffix)
            name.resize(at);
    }
    return name;
}

// Whether a sentence says what failed: the call, the error, or for whom it waited in vain.
bool names(const char *sentence, const Fault &fault)
{
    unsigned call = static_cast<unsigned>(fault.call);
    if (contains(sentence, plain(call)) || contains(sentence, fault_text(call)))
        return true;
    // Other words for the same: no memory, no such function of the driver, no answer through a
    // socket.
    if (strcmp(fault_text(call), strerror(ENOMEM)) == 0 && contains(sentence, "memory"))
        return true;
    if ((plain(call) == "dlsym" || plain(call) == "dlopen") &&
        (contains(sentence, "driver") || contains(sentence, "libfabric")))
        return true;
    // Of a provider: what the probe finds, and what it does not take.
    if (fault_is_fabric(call) && contains(sentence, "the probe:"))
        return true;
    if ((plain(call) == "fi_av_insert" && contains(sentence, "address")) ||
        (plain(call) == "fi_recv" && contains(sentence, "received")))
        return true;
    if ((plain(call) == "open" || plain(call) == "read") && contains(sentence, "boot id"))
        return true;
    return fault.mode != FAULT_FAIL && contains(sentence, "deadline");
}

struct Verdict {
    std::string kind;    // what it counts as
    std::string finding; // "" or what is wrong
};

std::string describe(const Trial &run)
{
    std::string text;
    for (int i = 0; i < RANKS; i++) {
        const Outcome &rank = run.board->ranks[i];
        text += "    rank " + std::to_string(i) + " reached " + stage_name(rank.stage);
        if (rank.failed_at >= 0)
            text += std::string("; failed in ") + stage_name(rank.failed_at) + ", " + rank.call +
                    ": " + ph_strerror(rank.result) + ": " + rank.sentence;
        if (rank.third_result)
            text += std::string("; third: ") + ph_strerror(rank.third_result) + ": " +
                    rank.third_sentence;
        if (rank.destroy_sentence[0])
            text += "; destroy (" + std::to_string(rank.destroys) + "): " + rank.destroy_sentence;
        text += std::string("\n") + (rank.log[0] ? "      log: " : "") + rank.log;
        if (rank.log[0] && rank.log[strlen(rank.log) - 1] != '\n')
            text += "\n";
    }
    return text;
}

// What no run may show.
std::string damage(const Trial &run, const Clean &clean)
{
    for (int i = 0; i < RANKS; i++) {
        const Outcome &rank = run.board->ranks[i];
        std::string who = "rank " + std::to_string(i);
        if (run.hung[i])
            return who + " hangs in " + stage_name(rank.stage);
        if (run.statuses[i] != 0)
            return who + " ended with " + std::to_string(run.statuses[i]) + " in " +
                   stage_name(rank.stage);
        if (rank.wrong[0])
            return who + " has wrong bytes: " + rank.wrong;
    }
    for (int i = 0; i < RANKS; i++) {
        const Outcome &rank = run.board->ranks[i];
        std::string who = "rank " + std::to_string(i);
        if (rank.failed_at != CREATE && rank.destroys == 0)
            return who + " cannot be destroyed: " + rank.destroy_sentence;
        std::string left = leak(rank.after, clean.most[i], run.fault);
        if (!left.empty())
            return who + " leaks" + left;
    }
    for (int i = 1; i < RANKS; i++) {
        const Outcome &rank = run.board->ranks[i];
        if (rank.third_result)
            return "ranks 1 and 2 do not go on: " + std::string(ph_strerror(rank.third_result)) +
                   ": " + rank.third_sentence;
    }
    return "";
}

Verdict judge(const Trial &run, const Clean &clean)
{
    const Outcome &victim = run.board->ranks[0];
    Verdict verdict = {"", damage(run, clean)};
    if (!verdict.finding.empty())
        return {"finding", verdict.finding};
    if (run.fault.call >= 0 && !run.board->plan.fired)
        return {"not reached", ""};
    // What came first, as far as it shows.
    std::string said = victim.failed_at >= 0 ? victim.sentence : "";
    if (said.empty() && victim.failed_at >= 0)
        return {"finding", "an error without a sentence"};
    if (said.empty() && victim.destroy_sentence[0])
        said = victim.destroy_sentence;
    if (said.empty() && victim.third_result)
        said = victim.third_sentence;
    bool told = !said.empty();
    if (run.fault.call < 0)
        return told || run.board->ranks[1].failed_at >= 0 ? Verdict{"finding", "it fails: " + said}
                                                          : Verdict{"success", ""};
    if (told)
        return names(said.c_str(), run.fault) || names((said + victim.log).c_str(), run.fault)
                   ? Verdict{"named error", ""}
                   : Verdict{"finding", "the error does not name the call: " + said};
    for (int i = 1; i < RANKS; i++)
        if (run.board->ranks[i].failed_at >= 0)
            return {std::string("error at the peer only"), ""};
    return {"success", ""};
}

// ---- The sweep

class Sweep : public testing::TestWithParam<std::string>
{
  protected:
    static bool over_files() // else over Redis
    {
        return GetParam() == "hostfiles";
    }
    static std::string device()
    {
        return over_files() ? "host" : GetParam();
    }
    void SetUp() override
    {
        if (!over_files() && !RedisServer::available())
            GTEST_SKIP() << "no redis-server";
        std::string why = prepare(device());
        if (!why.empty())
            GTEST_SKIP() << why;
        use_deadline_of(device());
        ASSERT_TRUE(over_files() || redis_.start());
        std::string trouble;
        for (int i = 0, good = 0; i < 5 && good < 3; i++)
            good += count(&trouble);
        ASSERT_GT(clean_ms_, 0) << trouble; // else not one run went well, without any fault
    }

    std::unique_ptr<Trial> start(const Fault &fault)
    {
        return std::make_unique<Trial>(device(), over_files() ? folder_.store() : redis_.uri(),
                                       fault);
    }
    static void finish(Trial &run)
    {
        while (!run.ended())
            std::this_thread::sleep_for(std::chrono::microseconds(500));
    }

    // A run without a fault: how often each call is used, and what is left afterwards.
    bool count(std::string *trouble)
    {
        std::unique_ptr<Trial> run = start(Fault());
        finish(*run);
        Clean any;
        memset(any.most, 0xff, sizeof any.most);
        Verdict verdict = judge(*run, any);
        if (!verdict.finding.empty()) {
            *trouble = verdict.finding + "\n" + describe(*run);
            return false;
        }
        for (unsigned call = 0; call < fault_calls(); call++)
            uses_[call] = std::max(uses_[call], run->board->plan.uses[call]);
        for (int i = 0; i < RANKS; i++) {
            Holdings &most = clean_.most[i];
            const Holdings &after = run->board->ranks[i].after;
            most.descriptors = std::max(most.descriptors, after.descriptors);
            most.mappings = std::max(most.mappings, after.mappings);
            most.threads = std::max(most.threads, after.threads);
            most.allocations = std::max(most.allocations, after.allocations);
        }
        clean_ms_ = run->ms() + 1;
        return true;
    }

    void add(std::vector<Fault> *faults, unsigned call, uint32_t n) const
    {
        for (int mode : {FAULT_FAIL, FAULT_INTERRUPT, FAULT_SLOW})
            if ((mode != FAULT_INTERRUPT || fault_interruptible(call)) &&
                (mode != FAULT_FAIL || fault_failing(call)))
                faults->push_back({static_cast<int>(call), mode, n});
    }

    static bool over_the_net()
    {
        return device() == "hostnet";
    }

    // Over the net: what is not called without it.
    static bool is_swept(unsigned call)
    {
        static const char *const of_the_net[] = {"calloc", "dlopen",         "dlsym",
                                                 "poll",   "posix_memalign", "pthread_create"};
        if (!over_the_net() || fault_is_fabric(call))
            return true;
        return std::count(std::begin(of_the_net), std::end(of_the_net),
                          std::string(fault_name(call))) > 0;
    }

    std::vector<Fault> everything() const
    {
        const uint32_t many = over_the_net() ? MANY_OVER_THE_NET : MANY;
        std::vector<Fault> faults;
        for (unsigned call = 0; call < fault_calls(); call++)
            for (uint32_t n = 1; is_swept(call) && n <= uses_.at(call);
                 n += n < many ? 1 : uses_.at(call) / 20 + 1)
                add(&faults, call, n);
        return faults;
    }

    static std::vector<Fault> sample(std::vector<Fault> all, size_t most)
    {
        const char *text = getenv("PEERHOP_FAULT_SEED");
        unsigned seed =
            text ? static_cast<unsigned>(strtoul(text, nullptr, 10)) : std::random_device()();
        printf("PEERHOP_FAULT_SEED=%u\n", seed);
        std::mt19937 random(seed);
        std::shuffle(all.begin(), all.end(), random);
        all.resize(std::min(all.size(), most));
        return all;
    }

    std::vector<Fault> single(const std::string &wish) const
    {
        std::vector<Fault> faults;
        size_t colon = wish.find(':');
        std::string name = wish.substr(0, colon);
        for (unsigned call = 0; call < fault_calls(); call++)
            for (uint32_t n = 1; n <= std::max(uses_.at(call), 40u) && name == fault_name(call);
                 n++)
                add(&faults, call, n);
        auto other = [&](const Fault &fault) {
            return colon != std::string::npos && fault.text() != wish;
        };
        faults.erase(std::remove_if(faults.begin(), faults.end(), other), faults.end());
        return faults;
    }

    void tell(const Trial &run, bool show)
    {
        Verdict verdict = judge(run, clean_);
        if (verdict.kind == "finding" &&
            std::count(again_.begin(), again_.end(), run.fault.text()) < TRIES_MORE && !show) {
            // Again, because the machine may have been to blame; but it is told.
            kinds_["first try that was made again"]++;
            printf("first try of %s: %s\n%s", run.fault.text().c_str(), verdict.finding.c_str(),
                   describe(run).c_str());
            again_.push_back(run.fault.text());
            left_.push_back(run.fault);
            return;
        }
        kinds_[verdict.kind]++;
        if (show)
            printf("%s: %s %s, %lld ms\n%s", run.fault.text().c_str(), verdict.kind.c_str(),
                   verdict.finding.c_str(), static_cast<long long>(run.ms()),
                   describe(run).c_str());
        EXPECT_EQ(verdict.finding, "")
            << "PEERHOP_FAULT_SWEEP=" << run.fault.text() << " (" << run.ms() << " ms)\n"
            << describe(run);
    }

    // Another try has the machine for itself, as far as that is up to us.
    bool must_be_alone(const std::vector<std::unique_ptr<Trial>> &running) const
    {
        auto is_again = [&](const Fault &fault) {
            return std::find(again_.begin(), again_.end(), fault.text()) != again_.end();
        };
        return is_again(left_.back()) || (!running.empty() && is_again(running[0]->fault));
    }

    void sweep(const std::vector<Fault> &faults, bool show)
    {
        const char *text = getenv("PEERHOP_FAULT_JOBS");
        size_t jobs = text ? strtoul(text, nullptr, 10) : 3;
        left_.assign(faults.rbegin(), faults.rend());
        std::vector<std::unique_ptr<Trial>> running;
        while (!left_.empty() || !running.empty()) {
            while (!left_.empty() && running.size() < (must_be_alone(running) ? 1 : jobs)) {
                Fault next = left_.back();
                left_.pop_back();
                running.push_back(start(next));
            }
            std::this_thread::sleep_for(std::chrono::microseconds(500));
            for (size_t i = 0; i < running.size();) {
                if (!running[i]->ended()) {
                    i++;
                    continue;
                }
                tell(*running[i], show);
                running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
            }
        }
        for (const auto &[kind, count] : kinds_)
            printf("%6zu %s\n", count, kind.c_str());
    }

    RedisServer redis_;
    Folder folder_;
    std::map<unsigned, uint32_t> uses_;
    Clean clean_;
    int64_t clean_ms_ = 0;
    std::map<std::string, size_t> kinds_;
    std::vector<Fault> left_;
    std::vector<std::string> again_; // runs that got another try, once for each
};

TEST_P(Sweep, EveryUseOfEveryCall)
{
    const char *wish = getenv("PEERHOP_FAULT_SWEEP");
    std::vector<Fault> all = everything();
    printf("%s: %zu faults, a run takes %lld ms\n", GetParam().c_str(), all.size(),
           static_cast<long long>(clean_ms_));
    for (const auto &[call, uses] : uses_)
        if (wish && uses)
            printf("  %s %u\n", fault_name(call), uses);
    bool everything_wanted = wish && strcmp(wish, "all") == 0;
    if (!wish)
        all = sample(all, over_the_net() ? 30 : 60); // there a rank takes longer to begin
    else if (!everything_wanted)
        all = single(wish);
    sweep(all, wish && !everything_wanted);
}

INSTANTIATE_TEST_SUITE_P(Device, Sweep, testing::Values("host", "hostfiles", "standin", "hostnet"),
                         [](const auto &info) { return info.param; });

} // namespace
