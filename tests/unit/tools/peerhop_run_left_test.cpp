// SPDX-License-Identifier: BSD-3-Clause
// What peerhop-run does not end, as it is another's or cannot be ended, and what it cannot write.
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>

#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support/denied.h"
#include "unit/tools/peerhop_run.h"

namespace
{

class PeerhopRunLeft : public PeerhopRun
{
  protected:
    // The process whose number a file in $TEST holds; 0: it has none yet.
    pid_t process_of(const std::string &name) const
    {
        return atoi(slurp(folder + "/" + name).c_str());
    }

    // Whether it runs `sleep`, which its shell may still have to execute.
    bool comes_to_run(const std::string &name) const
    {
        for (int i = 0; i < 2000; i++) {
            const pid_t pid = process_of(name);
            if (pid > 0 &&
                slurp("/proc/" + std::to_string(pid) + "/cmdline").find(mark) != std::string::npos)
                return true;
            usleep(5000);
        }
        return false;
    }

    // Ends what a run had to leave behind.
    void clear()
    {
        for (pid_t pid : processes_with(mark))
            kill(pid, SIGKILL);
        for (int i = 0; i < 9000 && !processes_with(mark).empty(); i++)
            usleep(5000);
    }

    // A shell as a child of what becomes peerhop-run, as of a shell that executes it.
    static std::function<void()> beside(const std::string &text)
    {
        return [text] {
            if (fork() == 0) {
                execl("/bin/sh", "sh", "-c", text.c_str(), nullptr);
                _exit(99);
            }
        };
    }

    static std::function<void()> without_signals(int error)
    {
        return [error] {
            if (!deny_call(SYS_pidfd_send_signal, error))
                _exit(77);
            alarm(static_cast<unsigned>(3 * busy_seconds()));
        };
    }

    const Words nowhere{"--store", "redis://nowhere"}; // a private store is ended by signals
};

// As by somebody who stops all processes of a user for a while.
TEST_F(PeerhopRunLeft, AStoppedKeeperOfTheStoreHoldsUpNoEnd)
{
    pid_t pid = start(script(1, ": >$TEST/ready.0; until [ -e $TEST/go ]; do sleep 0.01; done"),
                      [] { alarm(static_cast<unsigned>(3 * busy_seconds())); });
    ASSERT_TRUE(wait_ready(1));
    const std::string number = std::to_string(pid);
    const auto end = std::chrono::steady_clock::now() + patience(20000);
    int stopped = 0;
    // On a busy machine it has its name when the rank is there already.
    for (; stopped == 0 && std::chrono::steady_clock::now() < end; usleep(1000)) {
        std::stringstream children(slurp("/proc/" + number + "/task/" + number + "/children"));
        for (pid_t child; children >> child;)
            if (slurp("/proc/" + std::to_string(child) + "/comm") == "peerhop-store\n")
                stopped += kill(child, SIGSTOP) == 0;
    }
    EXPECT_EQ(stopped, 1);
    std::ofstream(folder + "/go") << "go";
    EXPECT_EQ(finish(pid).status, 0);
}

// One that was there before, and an orphan of one.
TEST_F(PeerhopRunLeft, ChildrenOfOthersLive)
{
    Result result =
        run(script(1, "until [ -s $TEST/child ]; do sleep 0.01; done; : >$TEST/ready.0\n"
                      "until [ -s $TEST/orphan ] && ! kill -0 $(cat $TEST/child) 2>/dev/null || "
                      "grep -q ') Z ' /proc/$(cat $TEST/child)/stat; do sleep 0.01; done\n"
                      "setsid sleep $MARK & exit 3"),
            [] {
                beside("echo $$ >$TEST/other; exec sleep $MARK")();
                beside("echo $$ >$TEST/child; until [ -e $TEST/ready.0 ]; do sleep 0.01; done\n"
                       "sleep $MARK & echo $! >$TEST/orphan")();
            });
    EXPECT_EQ(result.status, 3) << result.err;
    EXPECT_TRUE(comes_to_run("other"));
    EXPECT_TRUE(comes_to_run("orphan"));
    EXPECT_EQ(processes_with(mark).size(), 2u) << "the rank's own orphan lives";
    clear();
}

TEST_F(PeerhopRunLeft, SignalsComeToRanksBesideChildrenOfOthers)
{
    pid_t pid = start(script(2, "trap 'echo got; exit 5' TERM; : >$TEST/ready.$PEERHOP_RANK\n"
                                "while :; do sleep 0.05; done"),
                      beside("echo $$ >$TEST/other; exec sleep $MARK"));
    ASSERT_TRUE(wait_ready(2));
    ASSERT_TRUE(comes_to_run("other"));
    kill(pid, SIGTERM);
    Result result = finish(pid);
    EXPECT_EQ(result.status, 5) << result.err;
    EXPECT_EQ(result.out, "got\ngot\n");
    EXPECT_EQ(processes_with(mark).size(), 1u);
    clear();
}

TEST_F(PeerhopRunLeft, ItsDeathBesideChildrenOfOthersEndsTheRanks)
{
    pid_t pid = start(script(2, ": >$TEST/ready.$PEERHOP_RANK; exec sleep $MARK"),
                      beside("echo $$ >$TEST/other; exec sleep $MARK"));
    ASSERT_TRUE(wait_ready(2));
    ASSERT_TRUE(comes_to_run("other"));
    kill(pid, SIGKILL);
    EXPECT_EQ(finish(pid).status, 1000 + SIGKILL);
    for (int i = 0; i < 9000 && processes_with(mark).size() > 1; i++)
        usleep(5000);
    EXPECT_TRUE(comes_to_run("other"));
    for (int i = 0; i < 9000 && !entries(stores()).empty(); i++)
        usleep(5000);
    clear();
}

TEST_F(PeerhopRunLeft, AsTheFirstProcessOfAContainer)
{
    Result result = run(script(1, "echo $PPID; exit 6"), [] {
        if (unshare(CLONE_NEWPID) != 0)
            _exit(77);
        pid_t pid = fork();
        int status = 0;
        if (pid == 0)
            return; // and becomes peerhop-run
        waitpid(pid, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 98);
    });
    if (result.status == 77)
        GTEST_SKIP() << "this user may make no PID namespace";
    EXPECT_EQ(result.status, 6) << result.err;
    EXPECT_EQ(occurrences(result.out, "\n"), 1u);
    EXPECT_EQ(result.out.rfind("1\n", 0), std::string::npos)
        << "ranks of process 1, to which others' orphans come";
}

// As set-user-ID programs are to whoever started them.
TEST_F(PeerhopRunLeft, WhatMayNotBeSignalledIsNamedAndLeft)
{
    Words orphan = script(1, "setsid sleep $MARK & echo $! >$TEST/process", nowhere);
    Result result = run(orphan, without_signals(EPERM));
    if (result.status == 77)
        GTEST_SKIP() << "this process may not filter system calls";
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_NE(result.err.find("process " + std::to_string(process_of("process")) +
                              ", which the ranks have started, cannot be ended and is left behind: "
                              "Operation not permitted"),
              std::string::npos)
        << result.err;
    clear();

    Words options = nowhere;
    options.insert(options.end(), {"--deadline", "1", "--grace", "1", "--tag"});
    result =
        run(script(2, "echo $$ >$TEST/process.$PEERHOP_RANK; echo out; exec sleep $MARK", options),
            without_signals(EPERM));
    EXPECT_EQ(result.status, 124) << result.err;
    EXPECT_EQ(occurrences(result.out, " out\n"), 2u) << result.out;
    for (int i = 0; i < 2; i++)
        EXPECT_EQ(occurrences(result.err,
                              "rank " + std::to_string(i) + ", process " +
                                  std::to_string(process_of("process." + std::to_string(i))) +
                                  ", cannot be ended and is left behind: Operation not permitted"),
                  1u)
            << result.err;
    EXPECT_EQ(result.err.find("which the ranks have started"), std::string::npos) << result.err;
    clear();
}

// As a process that waits for a device does not.
TEST_F(PeerhopRunLeft, WhatSigkillDoesNotEndIsNamedAndLeft)
{
    Words options = nowhere;
    options.insert(options.end(), {"--deadline", "1", "--grace", "0"});
    Result result = run(script(1, "exec sleep $MARK", options), without_signals(0));
    if (result.status == 77)
        GTEST_SKIP() << "this process may not filter system calls";
    EXPECT_EQ(result.status, 124) << result.err;
    EXPECT_NE(result.err.find("left behind: SIGKILL has not ended it in time"), std::string::npos)
        << result.err;
    clear();

    // An orphan is waited for no longer than the run, and not where a signal comes.
    options = nowhere;
    options.insert(options.end(), {"--deadline", "2"});
    const std::string leaves = "setsid sleep $MARK & echo $$ >$TEST/rank";
    result = run(script(1, leaves, options), without_signals(0));
    EXPECT_EQ(result.status, 124) << result.err;
    EXPECT_NE(result.err.find("left behind: SIGKILL has not ended it in time"), std::string::npos)
        << result.err;
    clear();
    for (int signal : {SIGTERM, SIGINT}) {
        unlink((folder + "/rank").c_str());
        pid_t pid = start(script(1, leaves, nowhere), [this, signal] {
            without_signals(0)();
            ::signal(signal, SIG_DFL);
        });
        // Before the rank has ended the signal is the rank's.
        for (int i = 0; i < 9000 && (process_of("rank") == 0 || kill(process_of("rank"), 0) == 0);
             i++)
            usleep(5000);
        kill(pid, signal);
        result = finish(pid);
        EXPECT_LT(result.seconds, 9) << signal;
        EXPECT_NE(result.err.find("left behind"), std::string::npos) << result.err;
        clear();
    }
}

TEST_F(PeerhopRunLeft, AProcessOfAnotherUserIsNamedAndLeft)
{
    if (geteuid() != 0)
        GTEST_SKIP() << "only root can become another user";
    const std::string as = "setpriv --clear-groups --inh-caps=+setuid --ambient-caps=+setuid ";
    const std::string other = "setpriv --reuid=65532 sleep $MARK";
    const std::string run_it = std::string(program) + " -n 1 --store redis://nowhere --grace 1 ";
    Result result;
    const auto become_user = [&](const std::string &options, const std::string &rank) {
        result = run({"-n", "1", "--store", "redis://nowhere", "--", "sh", "-c",
                      as + "--bounding-set=-all,+setuid --reuid=65533 timeout 60 " + run_it +
                          options + " -- sh -c '" + rank + "'; echo status $?"});
    };
    become_user("", other + " & until pgrep -u 65532 -f $MARK; do sleep 0.01; done");
    if (result.err.find("setpriv") != std::string::npos)
        GTEST_SKIP() << result.err;
    EXPECT_NE(result.out.find("status 0\n"), std::string::npos) << result.out << result.err;
    EXPECT_NE(result.err.find("left behind: Operation not permitted"), std::string::npos)
        << result.err;
    become_user("--deadline 1", "exec " + other);
    EXPECT_NE(result.out.find("status 124\n"), std::string::npos) << result.out << result.err;
    EXPECT_NE(result.err.find("rank 0, process "), std::string::npos) << result.err;
    clear();
}

TEST_F(PeerhopRunLeft, OutputThatCannotBeWrittenIsSaidOnce)
{
    const Words words = script(2, "seq 1000", {"--tag"});
    Result result = run(words, [] { dup2(open("/dev/full", O_WRONLY), 1); });
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(occurrences(result.err, "standard output cannot be written: No space left on device"),
              1u)
        << result.err;
    result = run(words, [] { close(1); });
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(occurrences(result.err, "standard output cannot be written: Bad file descriptor"), 1u)
        << result.err;
    for (auto prepare : {+[] { close(2); }, +[] { dup2(open("/dev/full", O_WRONLY), 2); }}) {
        result = run(script(2, "echo out; echo err >&2", {"--tag"}), prepare);
        EXPECT_EQ(result.status, 1);
        EXPECT_EQ(occurrences(result.out, " out\n"), 2u) << result.out;
    }
    // What is closed is not used for something else.
    result = run(script(1, "echo out; echo $PEERHOP_RANK"), [] {
        close(0);
        close(2);
    });
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(result.out, "out\n0\n");
}

} // namespace
