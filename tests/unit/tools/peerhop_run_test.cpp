// SPDX-License-Identifier: BSD-3-Clause
// peerhop-run from outside: what its ranks see, what it passes on, and that nothing is left behind.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support/denied.h"
#include "unit/tools/peerhop_run.h"

namespace
{

TEST_F(PeerhopRun, RanksSeeTheirPlace)
{
    Result result =
        run(script(3, "echo $PEERHOP_RANK/$PEERHOP_RANKS $PEERHOP_LOCAL_RANK $PEERHOP_EPOCH "
                      "$CUDA_DEVICE_MAX_CONNECTIONS ${PEERHOP_DEVICE-none}; "
                      "echo $PEERHOP_JOB > $TEST/job.$PEERHOP_RANK"));
    EXPECT_EQ(result.status, 0) << result.err;
    for (const char *line : {"0/3 0 0 32 none\n", "1/3 1 0 32 none\n", "2/3 2 0 32 none\n"})
        EXPECT_EQ(occurrences(result.out, line), 1u) << result.out;
    std::string job = slurp(folder + "/job.0");
    EXPECT_GT(job.size(), 8u);
    EXPECT_EQ(slurp(folder + "/job.2"), job);
}

// Each rank looks at the arguments of all processes that it may see; the password is in its
// environment.
TEST_F(PeerhopRun, NoArgumentShowsThePassword)
{
    Words words = script(2,
                         "echo \"store $PEERHOP_STORE\"; cat /proc/[0-9]*/cmdline 2>/dev/null | "
                         "tr '\\0' ' ' | grep -c 'hidden-[w]ord.'$MARK >$TEST/count.$PEERHOP_RANK",
                         {"--store", "redis://ann:hidden-word." + mark + "@localhost:1"});
    words.back() += "; true";
    // Not by the words of this test program: they are in no argument.
    Result result = run(words);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(occurrences(result.out, "store redis://ann:hidden-word." + mark + "@localhost:1\n"),
              2u)
        << result.out;
    EXPECT_EQ(slurp(folder + "/count.0") + slurp(folder + "/count.1"), "0\n0\n");
}

// Who mistypes an option, or leaves it out, does not find the store's password in a log.
TEST_F(PeerhopRun, WrongUseRepeatsNoPassword)
{
    const std::string uri = "redis://ann:hidden-word@localhost";
    for (const Words &words :
         {Words{"-n", "1", "--stroe=" + uri, "true"}, Words{"-n", "1", uri, "true"}}) {
        Result result = run(words);
        EXPECT_NE(result.status, 0);
        EXPECT_EQ(occurrences(result.err, "redis://ann:***@localhost"), 1u) << result.err;
        EXPECT_EQ(occurrences(result.err, "hidden-word"), 0u) << result.err;
    }
    EXPECT_NE(run({"-n", "1", "--what"}).err.find("'--what' is no option"), std::string::npos);
    EXPECT_NE(run({"--job"}).err.find("'--job' needs a value"), std::string::npos);
}

TEST_F(PeerhopRun, WhatIsSetIsKept)
{
    Result result =
        run(script(1,
                   "echo $PEERHOP_JOB $PEERHOP_EPOCH $CUDA_DEVICE_MAX_CONNECTIONS $PEERHOP_DEVICE "
                   "$PEERHOP_STORE",
                   {"--device", "host", "--store", "redis://elsewhere"}),
            [] {
                setenv("PEERHOP_JOB", "mine", 1);
                setenv("PEERHOP_EPOCH", "7", 1);
                setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
            });
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.out, "mine 7 1 host redis://elsewhere\n");
}

TEST_F(PeerhopRun, AStoreOfTheEnvironmentIsGiven)
{
    Result result = run(script(1, "echo $PEERHOP_STORE; ls $TMPDIR | wc -l"),
                        [] { setenv("PEERHOP_STORE", "redis://there:1", 1); });
    EXPECT_EQ(result.out, "redis://there:1\n0\n");
}

TEST_F(PeerhopRun, OnlyItsUserMayEnterThePrivateStore)
{
    Result result = run(script(2, "echo $PEERHOP_STORE; stat -c %a $TMPDIR/* "
                                  "${PEERHOP_STORE#file:}"));
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(occurrences(result.out, "file:" + stores() + "/peerhop-"), 2u) << result.out;
    EXPECT_EQ(occurrences(result.out, "700\n"), 4u) << result.out;
}

// Whatever ranks leave in it.
TEST_F(PeerhopRun, ThePrivateStoreIsRemovedWithAllThatIsInIt)
{
    const std::string fill = "for i in 1 2 3; do echo x >${PEERHOP_STORE#file:}/=$PEERHOP_RANK.$i; "
                             "done; : >${PEERHOP_STORE#file:}/.hidden.$PEERHOP_RANK; ";
    EXPECT_EQ(run(script(2, fill + "exit 0")).status, 0);
    EXPECT_EQ(entries(stores()), std::set<std::string>());
    pid_t pid = start(script(2, fill + "touch $TEST/ready.$PEERHOP_RANK; exec sleep $MARK"));
    ASSERT_TRUE(wait_ready(2));
    EXPECT_EQ(entries(stores()).size(), 1u);
    kill(pid, SIGKILL); // who cannot clean up
    finish(pid);
    const auto end = std::chrono::steady_clock::now() + patience(20000);
    // The ranks are ended by the kernel, which takes its time as well.
    while ((!entries(stores()).empty() || !processes_with(mark).empty()) &&
           std::chrono::steady_clock::now() < end)
        usleep(1000);
}

// By somebody who owns what it is in. What is at its path is not touched.
TEST_F(PeerhopRun, APrivateStoreThatIsReplacedByALinkIsRemovedWhereItWent)
{
    Result result = run(script(1, "d=${PEERHOP_STORE#file:}; : >$d/=x; mv $d $TEST/moved; "
                                  "mkdir $TEST/other; : >$TEST/other/=x; ln -s $TEST/other $d"));
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(entries(folder + "/moved"), std::set<std::string>());
    EXPECT_EQ(entries(folder + "/other"), std::set<std::string>{"=x"});
    for (const std::string &name : entries(stores()))
        unlink((stores() + "/" + name).c_str());
    unlink((folder + "/other/=x").c_str());
    rmdir((folder + "/other").c_str());
    rmdir((folder + "/moved").c_str());
}

// The store's URI could not say where it is, or nothing can be made there: the next place is taken.
TEST_F(PeerhopRun, AFolderThatCannotServeIsNotUsed)
{
    const std::string odd[] = {folder + "/with?db=1", folder + "/with%20", folder + "/with#"};
    for (const std::string &name : odd)
        ASSERT_EQ(mkdir(name.c_str(), 0700), 0);
    for (const std::string &place : {odd[0], odd[1], odd[2], std::string("relative"),
                                     std::string("/nonexistent"), std::string("/proc")}) {
        Result result =
            run(script(1, "echo $PEERHOP_STORE"), [&] { setenv("TMPDIR", place.c_str(), 1); });
        EXPECT_EQ(result.status, 0) << result.err;
        EXPECT_EQ(result.out.rfind("file:/", 0), 0u) << result.out;
        EXPECT_EQ(result.out.find(place + "/peerhop-"), std::string::npos) << result.out;
    }
    for (const std::string &name : odd)
        EXPECT_EQ(rmdir(name.c_str()), 0) << name;
}

TEST_F(PeerhopRun, TwoRunsHaveTwoJobs)
{
    Words words = script(1, "echo $PEERHOP_JOB", {"--store", "redis://shared"});
    EXPECT_NE(run(words).out, run(words).out);
}

TEST_F(PeerhopRun, StatusOfTheFirstFailureEndsTheOthers)
{
    Result result =
        run(script(4, "[ $PEERHOP_RANK = 2 ] && exit 7; sleep $MARK; exit 9", {"--grace", "100"}));
    EXPECT_EQ(result.status, 7) << result.err;
    EXPECT_LT(result.seconds, 90) << "it took SIGKILL";
    EXPECT_NE(result.err.find("rank 2 ended with status 7"), std::string::npos) << result.err;
}

// As when one was killed and the other failed for that, and this machine was slow.
TEST_F(PeerhopRun, OfThoseThatEndedAtOnceAllAreNamedAndASignalGivesTheStatus)
{
    Result result =
        run(script(2, "is() { until grep -q \") $1 \" /proc/$2/stat; do sleep 0.01; done; }\n"
                      "echo $$ >$TEST/rank.$PEERHOP_RANK\n"
                      "[ $PEERHOP_RANK = 1 ] || { is T $PPID; exit 1; }\n"
                      "kill -STOP $PPID\n"
                      "until [ -s $TEST/rank.0 ]; do sleep 0.01; done\n"
                      "(is Z $(cat $TEST/rank.0); is Z $$; kill -CONT $PPID) &\n"
                      "kill -SEGV $$"));
    EXPECT_EQ(result.status, 128 + SIGSEGV);
    EXPECT_NE(result.err.find("rank 0 ended with status 1"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("rank 1 was ended by signal 11"), std::string::npos) << result.err;
}

TEST_F(PeerhopRun, ARankThatIsDoneWellEndsNobody)
{
    Result result = run(script(2, "[ $PEERHOP_RANK = 0 ] || { sleep 0.3; echo late; }"));
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(result.out, "late\n");
}

TEST_F(PeerhopRun, DeathBySignalIs128AndTheSignal)
{
    Result result = run(script(2, "[ $PEERHOP_RANK = 1 ] && kill -SEGV $$; exec sleep $MARK"));
    EXPECT_EQ(result.status, 128 + SIGSEGV);
    EXPECT_NE(result.err.find("rank 1 was ended by signal 11"), std::string::npos) << result.err;
}

TEST_F(PeerhopRun, WhoIgnoresSigtermIsKilled)
{
    Result result = run(script(
        2,
        "[ $PEERHOP_RANK = 1 ] && { until [ -e $TEST/trapped ]; do sleep 0.05; done; exit 3; }; "
        "trap '' TERM; : >$TEST/trapped; while :; do sleep 0.1; done",
        {"--grace", "1"}));
    EXPECT_EQ(result.status, 3);
    EXPECT_GE(result.seconds, 0.9);
    EXPECT_LT(result.seconds, busy_seconds());
}

TEST_F(PeerhopRun, WhoIgnoresASigtermThatIsPassedOnIsKilled)
{
    Result result = run(
        script(1, "trap '' TERM; kill -TERM $PPID; while :; do sleep 0.1; done", {"--grace", "1"}));
    EXPECT_EQ(result.status, 128 + SIGKILL) << result.err;
    EXPECT_GE(result.seconds, 0.9);
    EXPECT_LT(result.seconds, busy_seconds());
}

TEST_F(PeerhopRun, AStoppedRankEndsToo)
{
    Result result =
        run(script(2,
                   "echo $$ >$TEST/rank.$PEERHOP_RANK\n"
                   "[ $PEERHOP_RANK = 1 ] || { kill -STOP $$; sleep $MARK; }\n"
                   "until [ -s $TEST/rank.0 ] && grep -q ') T ' /proc/$(cat $TEST/rank.0)/stat\n"
                   "do sleep 0.01; done; exit 3",
                   {"--grace", "100"}));
    EXPECT_EQ(result.status, 3);
    EXPECT_LT(result.seconds, 90) << "it took SIGKILL";
}

TEST_F(PeerhopRun, SignalsArePassedOn)
{
    for (int signal : {SIGUSR1, SIGUSR2, SIGHUP, SIGINT, SIGQUIT, SIGTERM}) {
        std::string name = std::to_string(signal);
        // A shell cannot trap what was ignored when it began, as SIGINT and SIGQUIT are in the
        // background of another.
        pid_t pid =
            start(script(2, "trap 'echo got; exit 0' " + name +
                                "; touch $TEST/ready.$PEERHOP_RANK; while :; do sleep 0.05; done"),
                  [signal] { ::signal(signal, SIG_DFL); });
        ASSERT_TRUE(wait_ready(2));
        kill(pid, signal);
        Result result = finish(pid);
        EXPECT_EQ(result.status, 0) << name << ": " << result.err;
        EXPECT_EQ(result.out, "got\ngot\n") << name;
        unlink((folder + "/ready.0").c_str());
        unlink((folder + "/ready.1").c_str());
    }
}

TEST_F(PeerhopRun, RanksStartWithTheCallersSignals)
{
    Result result = run(script(1, "grep -E 'Sig(Blk|Ign)' /proc/self/status"));
    std::string own = slurp("/proc/self/status");
    std::string mine = own.substr(own.find("SigBlk"));
    mine.resize(mine.find("SigCgt"));
    EXPECT_EQ(result.out, mine);
}

TEST_F(PeerhopRun, OrphansAreEnded)
{
    Result result = run(
        script(2, "setsid sh -c 'sleep $MARK & sleep $MARK' >/dev/null 2>&1 & sleep 0.2; exit 0"));
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_LT(result.seconds, busy_seconds());
}

TEST_F(PeerhopRun, DeadlineIs124)
{
    Result result = run(script(2, "sleep $MARK", {"--deadline", "1"}));
    EXPECT_EQ(result.status, 124);
    EXPECT_GE(result.seconds, 0.9);
    EXPECT_LT(result.seconds, busy_seconds());
    EXPECT_NE(result.err.find("deadline of 1 s has passed; still running: rank 0, 1\n"),
              std::string::npos)
        << result.err;
    result = run(script(3, "[ $PEERHOP_RANK = 5 ] || exit 0; sleep $MARK",
                        {"--deadline", "1", "--first-rank", "4", "--all-ranks", "9", "--store",
                         "redis://nowhere", "--job", "j"}));
    EXPECT_EQ(result.status, 124);
    EXPECT_NE(result.err.find("; still running: rank 5\n"), std::string::npos) << result.err;
}

TEST_F(PeerhopRun, ANodeHasSomeOfTheRanks)
{
    const Words place{"--first-rank", "3",     "--all-ranks", "8",    "--store",
                      "redis://s",    "--job", "eight",       "--tag"};
    Result result = run(script(2,
                               // The one that ends all comes last.
                               "[ $PEERHOP_LOCAL_RANK = 0 ] || until [ -e $TEST/said ]; do "
                               "sleep 0.01; done; "
                               "echo $PEERHOP_RANK/$PEERHOP_RANKS $PEERHOP_LOCAL_RANK "
                               "$PEERHOP_JOB $PEERHOP_STORE; touch $TEST/said; "
                               "exit $PEERHOP_LOCAL_RANK",
                               place));
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(occurrences(result.out, "[3] 3/8 0 eight redis://s\n"), 1u) << result.out;
    EXPECT_EQ(occurrences(result.out, "[4] 4/8 1 eight redis://s\n"), 1u) << result.out;
    EXPECT_EQ(result.err, "peerhop-run: rank 4 ended with status 1\n");
    for (const Words &options :
         {Words{"--first-rank", "1"}, Words{"--first-rank", "7", "--all-ranks", "8"},
          Words{"--all-ranks", "8"}, Words{"--all-ranks", "8", "--store", "redis://s"},
          Words{"--all-ranks", "8", "--job", "j"}}) {
        result = run(script(2, "true", options));
        EXPECT_EQ(result.status, 2) << result.err;
        EXPECT_EQ(occurrences(result.err, "\n"), 1u) << result.err;
    }
}

// As ssh does: the host, then a line for the shell there.
static void make_ssh(const std::string &folder)
{
    const std::string file = folder + "/ssh";
    std::ofstream(file) << "#!/bin/sh\n[ \"$1\" = -tt ] && [ $# = 3 ] || exit 255\n"
                           "cd / && HOST=\"$2\" exec sh -c \"$3\"\n";
    chmod(file.c_str(), 0700);
}

TEST_F(PeerhopRun, ForSeveralHostsItPrintsAScript)
{
    make_ssh(folder);
    const std::string odd = "it's \"$x\" \\ `y`\n";
    Result result = run({"--hosts", "a,me@b-1.c:2", "--store", "redis://s:1/2", "--tag", "sh", "-c",
                         "printf '%s|' $PEERHOP_RANK/$PEERHOP_RANKS $PEERHOP_LOCAL_RANK $HOST "
                         "$PEERHOP_STORE $PEERHOP_JOB \"$PWD\" \"$0\"; "
                         // A rank that fails ends the others of its host: it comes last.
                         "[ $PEERHOP_RANK != 1 ] || : >" +
                             folder +
                             "/one; "
                             "while [ $PEERHOP_RANK = 2 ] && [ ! -e " +
                             folder + "/one ]; do sleep 0.02; done; exit $PEERHOP_LOCAL_RANK",
                         odd});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(occurrences(result.out, "\nssh -tt "), 2u) << result.out;
    const std::string job = result.out.substr(result.out.find("run-"), 20);
    std::ofstream(folder + "/script") << result.out;
    EXPECT_EQ(system(("PATH=" + folder + ":$PATH timeout 60 sh " + folder + "/script >" + folder +
                      "/said 2>&1")
                         .c_str()),
              1 << 8)
        << "the status of the host that failed";
    const std::string said = slurp(folder + "/said");
    char here[4096];
    ASSERT_NE(getcwd(here, sizeof here), nullptr);
    const std::string end = "|redis://s:1/2|" + job + "|" + here + "|it's \"$x\" \\ `y`\n";
    for (const char *begin : {"[0] 0/3|0|a", "[1] 1/3|0|me@b-1.c", "[2] 2/3|1|me@b-1.c"})
        EXPECT_EQ(occurrences(said, begin + end), 1u) << said;
    EXPECT_NE(said.find("rank 2 ended with status 1"), std::string::npos) << said;
}

TEST_F(PeerhopRun, HostsThatCannotBeAreRefused)
{
    for (const char *list : {"", ",", "a,", "a:0", "a:x", "a:1:2", "-oProxyCommand=x", "a b", "a;b",
                             "a:1025", "a:99999999999999999999"}) {
        Result result = run({"--hosts", list, "--store", "redis://s", "true"});
        EXPECT_EQ(result.status, 2) << list;
        EXPECT_EQ(result.out, "") << list;
        EXPECT_NE(result.err.find("is no list of hosts"), std::string::npos) << result.err;
    }
    const struct {
        Words words;
        const char *sentence;
    } lines[] = {
        {{"--hosts", "a", "true"}, "--store has to name one that all nodes reach"},
        {{"--hosts", "a", "--store", "file:/tmp/x", "true"}, "--store has to name one"},
        {{"--hosts", "a", "--store", "redis://u:hidden@s", "true"}, "PEERHOP_STORE_PASSWORD_FILE"},
        {{"--hosts", "a", "--store", "redis://s", "--first-rank", "1", "true"}, "do not go with"},
    };
    for (const auto &line : lines) {
        Result result = run(line.words);
        EXPECT_EQ(result.status, 2);
        EXPECT_EQ(result.out, "");
        EXPECT_NE(result.err.find(line.sentence), std::string::npos) << result.err;
        EXPECT_EQ(result.err.find("hidden"), std::string::npos) << result.err;
    }
}

TEST_F(PeerhopRun, TagsWholeLines)
{
    Result result = run(script(2, "echo one; printf two; echo err >&2", {"--tag"}));
    EXPECT_EQ(result.status, 0);
    for (const char *line : {"[0] one\n", "[1] one\n", "[0] two\n", "[1] two\n"})
        EXPECT_EQ(occurrences(result.out, line), 1u) << result.out;
    EXPECT_EQ(occurrences(result.err, "[0] err\n"), 1u) << result.err;
    EXPECT_EQ(occurrences(result.err, "[1] err\n"), 1u) << result.err;
}

TEST_F(PeerhopRun, TagsLinesOfAnyLengthAndLosesNothing)
{
    Result result =
        run(script(2, "head -c 100000 /dev/zero | tr '\\0' x; echo; seq 20000", {"--tag"}));
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(occurrences(result.out, "x"), 200000u);
    EXPECT_EQ(occurrences(result.out, "[0] 20000\n"), 1u);
    EXPECT_EQ(occurrences(result.out, "[1] 777\n"), 1u);
}

TEST_F(PeerhopRun, OnlyRankZeroReadsStdin)
{
    Result result = run(script(2, "echo $PEERHOP_RANK:$(cat)"), [] {
        int ends[2];
        if (pipe(ends) == 0 && write(ends[1], "in", 2) == 2)
            dup2(ends[0], 0);
        close(ends[1]);
    });
    EXPECT_EQ(occurrences(result.out, "0:in\n"), 1u) << result.out;
    EXPECT_EQ(occurrences(result.out, "1:\n"), 1u) << result.out;
}

TEST_F(PeerhopRun, WhatCannotRun)
{
    Result result = run({"-n", "2", "/nonexistent/program"});
    EXPECT_EQ(result.status, 127);
    EXPECT_NE(result.err.find("/nonexistent/program: No such file"), std::string::npos)
        << result.err;
    EXPECT_EQ(run({"-n", "1", "/"}).status, 126);
}

TEST_F(PeerhopRun, WrongUse)
{
    for (const Words &words :
         {Words{}, Words{"true"}, Words{"-n", "2"}, Words{"-n", "0", "true"},
          Words{"-n", "1025", "true"}, Words{"-n", "2x", "true"}, Words{"-n", "", "true"},
          Words{"-n", "1", "--deadline", "0", "true"}, Words{"-n", "1", "--what", "true"}}) {
        Result result = run(words);
        EXPECT_EQ(result.status, 2);
        EXPECT_EQ(result.out, "");
        EXPECT_NE(result.err, "");
    }
    EXPECT_EQ(run({"--help"}).status, 0);
    EXPECT_NE(run({"--help"}).out.find("usage: peerhop-run"), std::string::npos);
    const std::string version = run({"--version"}).out;
    EXPECT_EQ(version.rfind("peerhop-run ", 0), 0u);
    EXPECT_NE(version.find("\nCUDA: "), std::string::npos) << version;
}

TEST_F(PeerhopRun, OptionsOfTheProgramAreItsOwn)
{
    Result result = run({"-n", "1", "echo", "-n", "5", "--tag"});
    EXPECT_EQ(result.out, "5 --tag");
}

TEST_F(PeerhopRun, NoRedisIsNeeded)
{
    Result result = run({"-n", "1", "/bin/true"}, [] { setenv("PATH", "/nonexistent", 1); });
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.err, "");
}

// The keeper gives itself its name, which on a busy machine may come after the ranks have begun.
int signal_keeper(pid_t run, int signal)
{
    const std::string number = std::to_string(run);
    int signalled = 0;
    for (int tries = 0; signalled == 0 && tries < 1000; tries++) {
        std::stringstream children(slurp("/proc/" + number + "/task/" + number + "/children"));
        for (pid_t child; children >> child;)
            if (slurp("/proc/" + std::to_string(child) + "/comm") == "peerhop-store\n")
                signalled += kill(child, signal) == 0;
        if (signalled == 0)
            usleep(10000);
    }
    return signalled;
}

// The folder is removed nevertheless.
TEST_F(PeerhopRun, TheEndOfTheStoresKeeperDoesNoHarm)
{
    pid_t pid = start(
        script(2, "touch $TEST/ready.$PEERHOP_RANK; until [ -e $TEST/go ]; do sleep 0.01; done"));
    ASSERT_TRUE(wait_ready(2));
    EXPECT_EQ(signal_keeper(pid, SIGKILL), 1);
    std::ofstream(folder + "/go") << "go";
    Result result = finish(pid);
    EXPECT_EQ(result.status, 0) << result.err;
}

// As by somebody who asks all processes of a user.
TEST_F(PeerhopRun, TheStoreStaysWhereItsKeeperIsAskedToEnd)
{
    pid_t pid = start(script(1, "touch $TEST/ready.0; until [ -e $TEST/go ]; do sleep 0.01; done; "
                                "sleep 0.3; test -d ${PEERHOP_STORE#file:}"));
    ASSERT_TRUE(wait_ready(1));
    for (int signal : {SIGTERM, SIGINT, SIGHUP})
        EXPECT_EQ(signal_keeper(pid, signal), 1);
    std::ofstream(folder + "/go") << "go";
    Result result = finish(pid);
    EXPECT_EQ(result.status, 0) << result.err;
}

TEST_F(PeerhopRun, AReaderThatLeavesDoesNoHarm)
{
    Result result = run(script(2, "seq 100000; exit 0", {"--tag"}), [] {
        int ends[2];
        if (pipe(ends) == 0) {
            dup2(ends[1], 1);
            close(ends[0]);
            close(ends[1]);
        }
    });
    EXPECT_EQ(result.status, 0) << result.err;
}

// Some daemons and supervisors leave it so: then the kernel collects children unseen.
void ignore_ends()
{
    signal(SIGCHLD, SIG_IGN);
    alarm(static_cast<unsigned>(busy_seconds())); // for a run that nothing ends
}

TEST_F(PeerhopRun, EndsAreSeenWhereItsStarterIgnoresThem)
{
    Result result =
        run(script(2, "[ $PEERHOP_RANK = 1 ] && exit 3; exec sleep $MARK"), ignore_ends);
    EXPECT_EQ(result.status, 3) << result.err;
    EXPECT_NE(result.err.find("rank 1 ended with status 3"), std::string::npos) << result.err;
    result = run(script(2, "exec sleep $MARK", {"--deadline", "1"}), ignore_ends);
    EXPECT_EQ(result.status, 124) << result.err;
    // The ranks ignore them as their starter's starter does.
    result = run({"-n", "1", "grep", "SigIgn", "/proc/self/status"}, ignore_ends);
    const std::string bits = result.out.substr(result.out.find_last_of(" \t") + 1);
    EXPECT_TRUE(strtoull(bits.c_str(), nullptr, 16) >> (SIGCHLD - 1) & 1) << result.out;
}

// A shell's limit on descriptors is no limit on ranks, which have it again.
TEST_F(PeerhopRun, MoreRanksThanTheSoftLimitOnDescriptors)
{
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    if (before.rlim_max < 128)
        GTEST_SKIP() << "the hard limit is " << before.rlim_max;
    Result result = run(script(32, "[ $(ulimit -S -n) = 24 ] && echo same"), [&] {
        const rlimit few = {24, before.rlim_max};
        setrlimit(RLIMIT_NOFILE, &few);
    });
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(occurrences(result.out, "same"), 32u) << result.out;
}

TEST_F(PeerhopRun, WhatAPolicyDeniesIsSaid)
{
    for (const auto &[call, says] : {std::pair(SYS_signalfd4, "signalfd: Operation not permitted"),
                                     std::pair(SYS_pidfd_open, "Operation not permitted"),
                                     std::pair(SYS_waitid, "Operation not permitted"),
                                     std::pair(SYS_getrandom, "no random numbers")}) {
        Result result = run({"-n", "2", "true"}, [call] {
            if (!deny_call(call, EPERM))
                _exit(77);
        });
        if (result.status == 77)
            GTEST_SKIP() << "this process may not filter system calls";
        EXPECT_EQ(result.status, 1) << call << ": " << result.err;
        EXPECT_NE(result.err.find(says), std::string::npos) << result.err;
    }
}

// A pipe that takes what a run writes to stdout, or to both, and that nobody reads until told.
class Unread
{
  public:
    Unread()
    {
        EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0);
    }
    ~Unread()
    {
        close(ends_[0]);
        stop_writing();
    }
    std::function<void()> as(std::vector<int> fds) const
    {
        return [this, fds] {
            for (int fd : fds)
                dup2(ends_[1], fd);
            alarm(static_cast<unsigned>(busy_seconds()));
        };
    }
    void stop_writing()
    {
        if (ends_[1] >= 0)
            close(ends_[1]);
        ends_[1] = -1;
    }
    std::string read_all()
    {
        std::string all;
        char text[65536];
        stop_writing();
        for (ssize_t n; (n = read(ends_[0], text, sizeof text)) > 0;)
            all.append(text, static_cast<size_t>(n));
        return all;
    }

  private:
    int ends_[2] = {-1, -1};
};

TEST_F(PeerhopRun, OutputThatNobodyReadsHoldsUpNoEnd)
{
    Unread pipe;
    // The ranks write more than all buffers hold; one cannot tell any more that it has failed.
    Result result = run(script(2, "exec seq 1000000", {"--tag", "--deadline", "1", "--grace", "1"}),
                        pipe.as({1}));
    EXPECT_EQ(result.status, 124) << result.err;
    EXPECT_NE(result.err.find("nobody has read it"), std::string::npos) << result.err;

    const std::string fails = "[ $PEERHOP_RANK = 0 ] && exec seq 1000000; sleep 0.5; exit 3";
    EXPECT_EQ(run(script(2, fails, {"--tag", "--grace", "0"}), pipe.as({1})).status, 3);
    // Its own sentences wait for nobody either.
    EXPECT_EQ(run(script(2, fails, {"--tag", "--grace", "0"}), pipe.as({1, 2})).status, 3);
    Unread untagged;
    EXPECT_EQ(run(script(2, "[ $PEERHOP_RANK = 0 ] && exec seq 1000000 >&2; sleep 0.5; exit 3",
                         {"--grace", "0"}),
                  untagged.as({1, 2}))
                  .status,
              3);
}

// Its reader takes all as fast as it comes.
TEST_F(PeerhopRun, OutputWithoutEndHoldsUpNoDeadline)
{
    const Words words = script(1, "exec timeout 20 yes", {"--tag", "--deadline", "1"});
    const auto result = run(words, [] { dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), 1); });
    EXPECT_EQ(result.status, 124) << result.err;
    EXPECT_LT(result.seconds, 10);
}

TEST_F(PeerhopRun, ASignalEndsARunWhoseOutputNobodyReads)
{
    Unread pipe;
    pid_t pid =
        start(script(2, "seq 6000; touch $TEST/ready.$PEERHOP_RANK", {"--tag"}), pipe.as({1}));
    ASSERT_TRUE(wait_ready(2)); // both have written all, and end
    const std::string number = std::to_string(pid);
    while (!slurp("/proc/" + number + "/task/" + number + "/children").empty())
        usleep(5000);
    kill(pid, SIGTERM);
    EXPECT_EQ(finish(pid).status, 1);
}

TEST_F(PeerhopRun, ASlowReaderGetsAll)
{
    Unread pipe;
    pid_t pid = start(script(3, "exec seq 200000", {"--tag"}), pipe.as({1}));
    usleep(300000); // it is full
    const std::string all = pipe.read_all();
    EXPECT_EQ(finish(pid).status, 0);
    for (const char *rank : {"[0] ", "[1] ", "[2] "})
        EXPECT_EQ(occurrences(all, rank), 200000u);
    EXPECT_EQ(occurrences(all, "\n"), 600000u);
}

TEST_F(PeerhopRun, ItsOwnDeathEndsRanksAndServerAndLeavesNothing)
{
    pid_t pid = start(script(2, "touch $TEST/ready.$PEERHOP_RANK; exec sleep $MARK"));
    ASSERT_TRUE(wait_ready(2));
    kill(pid, SIGKILL);
    EXPECT_EQ(finish(pid).status, 1000 + SIGKILL);
    // TearDown() says what was left.
    for (int i = 0; i < 9000 && !(processes_with(mark).empty() &&
                                  processes_with(stores()).empty() && entries(stores()).empty());
         i++)
        usleep(5000);
}

} // namespace
