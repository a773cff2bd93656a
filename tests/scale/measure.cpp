// SPDX-License-Identifier: BSD-3-Clause
#include "scale/measure.h"

#include <algorithm>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <linux/futex.h>
#include <memory>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scale/board.h"
#include "support/folder.h"
#include "support/patience.h"
#include "support/redis_server.h"

bool ScaleBoard::come(uint32_t all)
{
    if (++arrived != all)
        return false;
    arrived = 0;
    generation++;
    syscall(SYS_futex, &generation, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    return true;
}

bool ScaleBoard::wait(uint32_t come_in, int64_t ms)
{
    const int64_t end = scale_now() + ms * 1000000;
    while (generation == come_in && !over && scale_now() < end) {
        const struct timespec most = {0, 100000000};
        syscall(SYS_futex, &generation, FUTEX_WAIT, come_in, &most, nullptr, 0);
    }
    return generation != come_in;
}

bool ScaleBoard::arrive(uint32_t all)
{
    const uint32_t now = generation;
    bool done = come(all);
    while (!done && !over)
        done = wait(now, 1000);
    return done;
}

namespace
{

// What the store has done so far, but for this look.
struct Done {
    uint64_t commands = 0, bytes = 0;
};

uint64_t value_of(const std::string &info, const std::string &name)
{
    const size_t at = info.find("\n" + name + ":");
    return at == info.npos ? 0 : strtoull(info.c_str() + at + name.size() + 2, nullptr, 10);
}

class Run
{
  public:
    explicit Run(const ScaleJob &job) : job_(job)
    {
        void *memory = mmap(nullptr, sizeof(ScaleBoard), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            abort();
        board_ = new (memory) ScaleBoard{};
    }
    ~Run()
    {
        for (pid_t pid : pids_)
            kill(pid, SIGKILL); // ours, and not waited for yet
        for (pid_t pid : pids_)
            waitpid(pid, nullptr, 0);
        munmap(board_, sizeof *board_);
    }
    Run(const Run &) = delete;

    ScaleFigures measure()
    {
        figures_ = {};
        if (job_.ranks > SCALE_RANKS_MAX || !open_store()) {
            figures_.trouble = "no store, or too many ranks";
            return figures_;
        }
        start();
        Done before = look();
        for (int step = 0; step < SCALE_STEPS && figures_.trouble.empty(); step++) {
            if (!board_arrives())
                break;
            if (step > 0)
                before = note(step - 1, before);
        }
        await_end();
        if (figures_.trouble.empty()) {
            note(SCALE_DESTROY, before);
            add_up();
        }
        return figures_;
    }

  private:
    bool open_store()
    {
        if (job_.files) {
            folder_ = std::make_unique<Folder>();
            uri_ = folder_->store();
            return true;
        }
        redis_ = std::make_unique<RedisServer>();
        uri_ = redis_->uri();
        return RedisServer::available() && redis_->start();
    }
    Done look() const
    {
        Done done;
        if (!redis_)
            return done;
        const std::string info = redis_->cli("INFO stats");
        done.commands = value_of(info, "total_commands_processed");
        done.bytes =
            value_of(info, "total_net_input_bytes") + value_of(info, "total_net_output_bytes");
        return done;
    }
    // What was done since the look before, which counts as one itself.
    Done note(int step, const Done &before)
    {
        Done now = look();
        figures_.commands[step] = now.commands - before.commands;
        figures_.bytes[step] = now.bytes - before.bytes;
        if (figures_.commands[step] > 0)
            figures_.commands[step]--;
        return now;
    }
    void start()
    {
        fflush(nullptr);
        for (int rank = 0; rank < job_.ranks; rank++) {
            const pid_t parent = getpid(), pid = fork();
            if (pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                if (getppid() != parent)
                    _exit(1);
                int rc = scale_rank(job_, rank, uri_.c_str(), board_);
                if (rc)
                    board_->over = 1;
                fflush(nullptr);
                _exit(rc);
            }
            if (pid < 0)
                fail("no process for a rank");
            else
                pids_.push_back(pid);
        }
    }
    void fail(const std::string &what)
    {
        board_->over = 1;
        if (figures_.trouble.empty())
            figures_.trouble = what;
    }
    // Waits for the ranks, and looks whether they live: one that has died arrives nowhere.
    bool board_arrives()
    {
        const uint32_t now = board_->generation;
        if (board_->come(static_cast<uint32_t>(job_.ranks) + 1))
            return true;
        const int64_t end = scale_now() + patience(120000).count() * 1000000;
        while (!board_->wait(now, 200) && !board_->over)
            if (scale_now() > end || !all_live())
                fail("a rank did not come so far");
        return board_->over == 0;
    }
    bool all_live()
    {
        return std::all_of(pids_.begin(), pids_.end(), [](pid_t pid) {
            siginfo_t info = {};
            return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
                   info.si_pid == 0;
        });
    }
    void await_end()
    {
        const int64_t end = scale_now() + patience(120000).count() * 1000000;
        while (!pids_.empty()) {
            int status = 0;
            const pid_t pid = waitpid(pids_.back(), &status, WNOHANG);
            if (pid == 0 && scale_now() < end) {
                usleep(2000);
                continue;
            }
            if (pid == 0)
                return fail("a rank did not end");
            pids_.pop_back();
            if (status != 0)
                fail("a rank failed");
        }
        for (int rank = 0; rank < job_.ranks; rank++)
            if (board_->rank[rank].trouble[0])
                figures_.trouble +=
                    "; rank " + std::to_string(rank) + ": " + board_->rank[rank].trouble;
    }
    double from_to(int first, int last) const
    {
        int64_t begun = INT64_MAX, ended = 0;
        for (int rank = 0; rank < job_.ranks; rank++) {
            begun = std::min(begun, board_->rank[rank].begun[first]);
            ended = std::max(ended, board_->rank[rank].ended[last]);
        }
        return static_cast<double>(ended - begun) / 1e9;
    }
    void add_up()
    {
        for (int step = 0; step < SCALE_STEPS; step++)
            figures_.seconds[step] = from_to(step, step);
        figures_.until_message = from_to(SCALE_CREATE, SCALE_MESSAGE);
        for (int i = 0; i < job_.ranks; i++) {
            const ScaleRank &rank = board_->rank[i];
            figures_.counted += rank.counted;
            figures_.segments += rank.segments;
            figures_.mapped = rank.mapped;
            figures_.created += rank.bytes[1] - rank.bytes[0];
            figures_.used += rank.bytes[2] - rank.bytes[1];
            for (int when = 0; when < 2; when++)
                figures_.descriptors[when] += rank.descriptors[when + 1] - rank.descriptors[when];
        }
        figures_.segments /= 2; // both ranks of a pair have it
        const uint64_t ranks = static_cast<uint64_t>(job_.ranks);
        figures_.peers = ranks * (job_.all ? ranks - 1 : std::min<uint64_t>(ranks - 1, 2));
        figures_.keys_left =
            job_.files ? folder_->files() : strtoull(redis_->cli("DBSIZE").c_str(), nullptr, 10);
    }

    const ScaleJob job_;
    ScaleFigures figures_;
    ScaleBoard *board_;
    std::unique_ptr<Folder> folder_;
    std::unique_ptr<RedisServer> redis_;
    std::string uri_;
    std::vector<pid_t> pids_;
};

} // namespace

ScaleFigures scale_measure(const ScaleJob &job)
{
    return Run(job).measure();
}
