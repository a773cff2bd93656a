// SPDX-License-Identifier: BSD-3-Clause
// peerhop-perf with real ranks on host memory and a private store: what it measures, and how it
// ends.
#include <gtest/gtest.h>

#include "support/redis_server.h"

#include "perf.h"

#include <chrono>
#include <filesystem>
#include <thread>

TEST_F(Perf, ListsEveryCase)
{
    Ended ended = run({"-l"});
    EXPECT_EQ(ended.status, 0);
    EXPECT_EQ(lines_of(ended.out).size(), 23u);
    EXPECT_TRUE(has(ended.out, "put-latency "));
    EXPECT_TRUE(has(ended.out, "import "));
}

TEST_F(Perf, HelpNamesEveryOption)
{
    Ended ended = run({"-h"});
    EXPECT_EQ(ended.status, 0);
    for (const char *option :
         {"-l ",        "-c ",        "-b ",        "-n ",      "-w ",      "-r ",
          "-k ",        "-p ",        "-m ",        "-i ",      "-o ",      "--protocol",
          "--channels", "--ops",      "--segments", "--group",  "--verify", "--compare",
          "--wait",     "--deadline", "--store",    "--tune",   "--save",   "--late",
          "--graphs",   "--fresh",    "--progress", "--version"})
        EXPECT_TRUE(has(ended.out, std::string("  ") + option)) << option;
}

TEST_F(Perf, WrongUseIsStatusTwoAndOneSentence)
{
    for (const Words &words : {Words{"-c", "nothing"}, Words{"-b", "8x"}, Words{"what"}}) {
        Ended ended = run(words);
        EXPECT_EQ(ended.status, 2);
        EXPECT_EQ(lines_of(ended.err).size(), 1u) << ended.err;
        EXPECT_EQ(ended.out, "");
    }
}

TEST_F(Perf, JsonHasEveryField)
{
    Ended ended =
        run(quick({"-c", "put-latency", "-c", "exchange-hit", "-b", "8", "--verify", "--compare"}));
    ASSERT_EQ(ended.status, 0) << ended.err;
    Words lines = lines_of(ended.out);
    ASSERT_EQ(lines.size(), 2u) << ended.out;
    for (const std::string &line : lines) {
        auto members = parse_json(line);
        for (const char *name :
             {"case", "protocol", "issue", "late",  "late_us", "warm",       "graphs", "fresh",
              "path", "method",   "kind",  "ranks", "bytes",   "iterations", "metric", "median",
              "min",  "p90",      "p99",   "limit", "ratio",   "verified",   "device"})
            EXPECT_EQ(members.count(name), 1u) << name << " in " << line;
    }
    auto put = parse_json(lines[0]), hit = parse_json(lines[1]);
    EXPECT_EQ(put["case"], "put-latency");
    EXPECT_EQ(put["metric"], "half_round_trip_us");
    EXPECT_EQ(put["path"], "ipc");
    EXPECT_EQ(put["kind"], "host");
    EXPECT_EQ(put["verified"], "true");
    EXPECT_GT(atof(put["limit"].c_str()), 0);
    EXPECT_NEAR(atof(put["median"].c_str()) / atof(put["limit"].c_str()),
                atof(put["ratio"].c_str()), 0.01 * atof(put["ratio"].c_str()));
    EXPECT_EQ(hit["metric"], "exchange_us");
    EXPECT_EQ(hit["limit"], "null");
    EXPECT_EQ(hit["ops"], "16");
    EXPECT_EQ(hit["imports"], "0");
    // Thousands of exchanges: the few commands are the service thread's.
    EXPECT_LT(atof(hit["store_commands"].c_str()), 0.01);
}

TEST_F(Perf, OverTheNetWhereAskedFor)
{
    Ended ended =
        run(quick({"-p", "net", "-c", "put-latency", "-c", "put-bandwidth", "-c", "get-bandwidth",
                   "-c", "put-bidirectional", "-b", "8K", "-n", "50", "--verify", "--compare"}));
    if (has(ended.err, "not in this build"))
        GTEST_SKIP() << "libfabric is left out of this build";
    ASSERT_EQ(ended.status, 0) << ended.err;
    Words lines = lines_of(ended.out);
    ASSERT_EQ(lines.size(), 4u) << ended.out;
    for (const std::string &line : lines) {
        auto members = parse_json(line);
        EXPECT_EQ(members["path"], "net");
        EXPECT_EQ(members["method"], "rma");
        EXPECT_EQ(members["verified"], "true");
        EXPECT_GT(atof(members["limit"].c_str()), 0) << line; // of the direct program
    }
}

// What is staged has been sent when it is in slots, of which there are many: the time is that until
// the other rank has it, and each channel goes on with a wait of its own.
TEST_F(Perf, StagedTransfersOverSeveralChannels)
{
    if (*getenv("PEERHOP_STANDIN") == 0)
        GTEST_SKIP() << "no stand-in driver";
    const std::string driver = std::string("PEERHOP_LIBCUDA=") + getenv("PEERHOP_STANDIN");
    Ended ended =
        run({"-k", "cuda", "-p", "net", "-c", "put-bandwidth", "-c", "send-bandwidth", "-b", "64K",
             "-n", "400", "--channels", "3", "--verify", "--deadline", "60", "-o", "json"},
            {driver});
    if (has(ended.err, "not in this build"))
        GTEST_SKIP() << "libfabric is left out of this build";
    ASSERT_EQ(ended.status, 0) << ended.err;
    Words lines = lines_of(ended.out);
    ASSERT_EQ(lines.size(), 2u) << ended.out;
    for (const std::string &line : lines)
        EXPECT_EQ(parse_json(line)["method"], "staged");
    const Words endless[] = {
        {"put-bidirectional", "1"}, {"put-bandwidth", "17"}, {"put-batch", "2"}};
    for (const Words &one : endless) {
        ended = run({"-k", "cuda", "-p", "net", "-c", one[0], "-b", "64K", "-n", "400",
                     "--channels", one[1], "--deadline", "60"},
                    {driver});
        EXPECT_NE(ended.status, 0);
        EXPECT_TRUE(has(ended.err, "staged puts go on with the other rank's waits")) << ended.err;
    }
}

static size_t count_of(const std::string &text, const std::string &part)
{
    size_t count = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at++)
        count++;
    return count;
}

TEST_F(Perf, TheChartHasACurveForEachCaseAndMethod)
{
    Ended ended = run(quick({"-c", "put-latency", "-c", "send-latency", "-c", "put-bandwidth", "-b",
                             "8:512:x8", "--compare"}));
    ASSERT_EQ(ended.status, 0) << ended.err;
    const std::string rows = folder + "/rows", path = getenv("PEERHOP_CHART");
    write_file(rows, ended.out);
    Ended chart = wait_for(start({path, "--title", "a < b", rows}));
    EXPECT_EQ(chart.status, 0) << chart.err;
    EXPECT_EQ(count_of(chart.out, "stroke-width=\"2\""), 3u) << chart.out; // curves of medians
    EXPECT_EQ(count_of(chart.out, "stroke-dasharray"), 3u);                // of limits
    for (const char *part : {"a &lt; b", "put-latency", "send-latency", ">half round trip, us<",
                             ">bandwidth, GB/s<", ">512<", "</svg>"})
        EXPECT_TRUE(has(chart.out, part)) << part << " in " << chart.out;
    write_file(rows, lines_of(run(quick({"-c", "put-rate", "-b", "8"})).out).at(0) + "\n");
    chart = wait_for(start({path, rows}));
    EXPECT_EQ(chart.status, 1);
    EXPECT_TRUE(has(chart.err, "no half round trips and no bandwidths")) << chart.err;
    unlink(rows.c_str());
}

TEST_F(Perf, AColdExchangeImportsEachAllocationOnceAndOffersOnce)
{
    Ended ended = run(quick({"-c", "exchange-cold", "--ops", "64", "--segments", "4", "-b", "4K"}));
    ASSERT_EQ(ended.status, 0) << ended.err;
    auto members = parse_json(lines_of(ended.out).at(0));
    EXPECT_EQ(members["imports"], "4");
    EXPECT_EQ(members["offers"], "1");
    EXPECT_EQ(members["segments"], "4");
}

// Trap 13: not even where one iteration is asked for.
TEST_F(Perf, WarmFiguresHoldNothingCold)
{
    Ended ended = run(quick({"-c", "exchange-cold", "-c", "exchange-hit", "-n", "1", "-w", "1"}));
    ASSERT_EQ(ended.status, 0) << ended.err;
    Words lines = lines_of(ended.out);
    ASSERT_EQ(lines.size(), 2u) << ended.out;
    for (const std::string &line : lines) {
        auto members = parse_json(line);
        const bool cold = members["case"] == "exchange-cold";
        EXPECT_EQ(members["iterations"], "1") << line;
        EXPECT_EQ(atof(members["imports"].c_str()) > 0, cold) << line;
        EXPECT_EQ(atof(members["offers"].c_str()) > 0, cold) << line;
    }
}

// As one of two tasks of srun on two nodes it does not start ranks of its own.
TEST_F(Perf, ATaskOfSrunIsOneRank)
{
    RedisServer redis;
    if (!RedisServer::available())
        GTEST_SKIP() << "no redis-server";
    ASSERT_TRUE(redis.start());
    const std::string store = "PEERHOP_STORE=" + redis.uri();
    const Words words = {perf, "-k", "host", "-c", "send-latency", "-b", "8", "-n", "10"};
    Words tasks[2] = {{store, "SLURM_JOB_ID=4711", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2",
                       "SLURM_PROCID=0", "SLURM_LOCALID=0"}};
    tasks[1] = tasks[0];
    tasks[1][4] = "SLURM_PROCID=1";
    const pid_t other = start(words, tasks[1]);
    bool joins = false; // and waits there for the first
    for (int i = 0; i < 4500 && !joins; i++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        joins = !redis.cli("KEYS ph:{4711.0}*").empty();
    }
    EXPECT_TRUE(joins);
    const Ended first = wait_for(start(words, tasks[0])); // whose output it is
    const Ended second = wait_for(other);
    EXPECT_EQ(first.status, 0) << first.err;
    EXPECT_EQ(second.status, 0) << second.err;
    EXPECT_TRUE(has(first.out, "between 2 processes")) << first.out;
    // A shell that srun has started is no rank, nor is the script of a job.
    for (const Words &shell : {Words{"SLURM_JOB_ID=4711", "SLURM_STEP_ID=0",
                                     "SLURM_STEP_NUM_TASKS=1", "SLURM_PROCID=0", "SLURM_LOCALID=0"},
                               Words{"SLURM_JOB_ID=4711", "SLURM_NTASKS=4", "SLURM_PROCID=0"}}) {
        const Ended own = wait_for(start(words, shell));
        EXPECT_EQ(own.status, 0) << own.err;
        EXPECT_TRUE(has(own.out, "between 2 processes")) << own.out;
    }
}

TEST_F(Perf, HalfOfALauncherIsNamed)
{
    const Words words = {perf, "-k", "host", "-c", "send-latency", "-b", "8", "-n", "10"};
    const Ended own = wait_for(start(words, {"RANK=1", "WORLD_SIZE=0x2"}));
    EXPECT_EQ(own.status, 0) << own.err;
    EXPECT_TRUE(has(own.err, "no launcher found (WORLD_SIZE is \"0x2\", which is no number of "
                             "ranks): it starts ranks of its own"))
        << own.err;
}

TEST_F(Perf, RanksOfAnotherLauncherFindEachOther)
{
    Ended ended =
        wait_for(start({getenv("PEERHOP_RUN"), "-n", "2", perf, "-k", "host", "-c", "send-latency",
                        "-b", "8", "-n", "20", "-o", "json", "--verify"}));
    ASSERT_EQ(ended.status, 0) << ended.err;
    EXPECT_EQ(parse_json(lines_of(ended.out).at(0))["case"], "send-latency");
}

// Two peerhop-run, as of two nodes, started by what a third one prints, with a shell for ssh.
TEST_F(Perf, RanksOfSeveralHostsFindEachOther)
{
    if (!RedisServer::available())
        GTEST_SKIP() << "no redis-server";
    RedisServer redis;
    ASSERT_TRUE(redis.start());
    const std::string ssh = folder + "/ssh";
    write_file(ssh, "#!/bin/sh\nexec sh -c \"$3\"\n");
    chmod(ssh.c_str(), 0700);
    const std::string line =
        std::string(getenv("PEERHOP_RUN")) + " --hosts a,b --store " + redis.uri() + " " + perf +
        " -k host -c send-latency -b 8 -n 20 -o json --verify | PATH=" + folder + ":$PATH sh";
    Ended ended = wait_for(start({"/bin/sh", "-c", line}));
    unlink(ssh.c_str());
    EXPECT_EQ(ended.status, 0) << ended.err;
    ASSERT_FALSE(lines_of(ended.out).empty()) << ended.err;
    EXPECT_EQ(parse_json(lines_of(ended.out).at(0))["case"], "send-latency");
}

TEST_F(Perf, VersionSaysWhatTheBuildHas)
{
    Ended ended = run({"--version"});
    EXPECT_EQ(ended.status, 0);
    Words lines = lines_of(ended.out);
    ASSERT_EQ(lines.size(), 2u) << ended.out;
    EXPECT_EQ(lines[0].rfind("peerhop-perf ", 0), 0u);
    EXPECT_TRUE(has(lines[1], "CUDA: ")) << ended.out;
}

// On no terminal only where it was asked for.
TEST_F(Perf, ProgressIsSaidWhereItIsAskedFor)
{
    // 300 messages that are a millisecond late, and as many receives.
    const Words words{"-k", "host", "-c", "send-latency", "-b", "8", "-n", "300", "--late", "1000"};
    Words asked = words;
    asked.push_back("--progress");
    Ended ended = run(asked);
    ASSERT_EQ(ended.status, 0) << ended.err;
    const Words lines = lines_of(ended.err);
    ASSERT_FALSE(lines.empty());
    for (const std::string &line : lines) {
        EXPECT_EQ(line.rfind("peerhop-perf: send-latency, 8 bytes: ", 0), 0u) << line;
        EXPECT_TRUE(has(line, " blocks")) << line;
    }
    ended = run(words);
    EXPECT_EQ(ended.status, 0);
    EXPECT_EQ(ended.err, "");
}

TEST_F(Perf, TheTableEndsWithTheDevice)
{
    Ended ended = run({"-k", "host", "-c", "put-bandwidth", "-b", "64K", "-n", "20", "--verify"});
    ASSERT_EQ(ended.status, 0) << ended.err;
    Words lines = lines_of(ended.out);
    ASSERT_GE(lines.size(), 3u);
    EXPECT_TRUE(has(lines[0], "median"));
    EXPECT_TRUE(has(lines[1], "put-bandwidth"));
    EXPECT_TRUE(has(lines[1], "GB/s"));
    EXPECT_TRUE(has(lines.back(), "Ran on host memory between 2 processes"));
}

TEST_F(Perf, GraphsNeedGpus)
{
    Ended ended = run(quick({"-c", "put-latency", "-i", "graph"}));
    EXPECT_EQ(ended.status, 1);
    EXPECT_TRUE(has(ended.err, "-i graph needs GPUs"));
}

// On host memory there is one method, and one way to wait.
TEST_F(Perf, MethodsAndWaitsOfGpusNeedGpus)
{
    for (const auto &[option, word] :
         {std::pair("-m", "ll"), std::pair("-m", "ce"), std::pair("--wait", "kernel")}) {
        Ended ended = run(quick({"-c", "put-latency", option, word}));
        EXPECT_EQ(ended.status, 1) << word;
        EXPECT_TRUE(has(ended.err, std::string(option) + " " + word + " needs GPUs")) << ended.err;
        EXPECT_EQ(ended.out, "");
    }
    Ended ended = run(quick({"-c", "put-latency", "-b", "8", "-m", "auto", "--wait", "auto"}));
    EXPECT_EQ(ended.status, 0) << ended.err;
}

// The arena is a file: beyond the limit of files the system would end the ranks by a signal.
TEST_F(Perf, TheLimitOfFilesIsNamed)
{
    Ended ended =
        wait_for(start({"/bin/bash", "-c",
                        "ulimit -f 2000; exec " + perf + " -k host -c put-latency -b 16M -n 5"}));
    EXPECT_EQ(ended.status, 1);
    EXPECT_TRUE(has(ended.err, "peerhop-perf arena of ")) << ended.err;
    EXPECT_TRUE(has(ended.err, "at most 2048000 bytes (ulimit -f)")) << ended.err;
    EXPECT_FALSE(has(ended.err, "signal")) << ended.err;
}

// Runs the program with a terminal for standard error, and returns what that was told.
static std::string on_terminal(const std::string &command, int *status)
{
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (terminal < 0 || grantpt(terminal) || unlockpt(terminal))
        return "no terminal";
    const std::string redirected = command + " 2>" + ptsname(terminal);
    int end = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/bin/sh", "sh", "-c", redirected.c_str(), nullptr);
        _exit(127);
    }
    // Without a reader a terminal soon takes no more. Its last end is closed when the run is over.
    std::string said;
    std::thread reader([&] {
        char text[512];
        for (ssize_t n; (n = read(terminal, text, sizeof text)) > 0;)
            said.append(text, n);
    });
    waitpid(pid, status, 0);
    close(end);
    reader.join();
    close(terminal);
    return said;
}

TEST_F(Perf, ALongRunSaysHowFarItIsWhereATerminalLooksOn)
{
    std::string command, said;
    int status = 0;
    // Long is half a second, which is more copies on one machine than on another.
    for (int n = 20; n < 2000 && status == 0 && !has(said, "blocks"); n *= 4) {
        command = "TMPDIR=" + folder + "/tmp exec " + perf +
                  " -k host -c put-bandwidth -b 64M -n " + std::to_string(n) + " >" + folder +
                  "/out";
        said = on_terminal(command, &status);
    }
    EXPECT_EQ(status, 0) << said;
    EXPECT_TRUE(has(said, "\rput-bandwidth, 64M bytes: ")) << said;
    EXPECT_TRUE(has(said, "19 of 20 blocks ")) << said;
    EXPECT_EQ(said.rfind("\r\033[K"), said.size() - 4) << "it is taken away at the end: " << said;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
    EXPECT_FALSE(has(read_file(folder + "/out"), "blocks"));

    Ended ended = wait_for(start({"/bin/sh", "-c", command}));
    EXPECT_EQ(ended.status, 0);
    EXPECT_EQ(ended.err, "") << "nobody looks on";
}

TEST_F(Perf, AStoreThatIsNotThereEndsTheRun)
{
    Ended ended = run({"-k", "host", "--deadline", "2", "--store", "unix:///nonexistent/redis"});
    EXPECT_EQ(ended.status, 1);
    EXPECT_TRUE(has(ended.err, "/nonexistent/redis")) << ended.err;
}

static std::vector<pid_t> children_of(pid_t pid, const std::string &name)
{
    std::vector<pid_t> found;
    std::string number = std::to_string(pid);
    std::stringstream children(read_file("/proc/" + number + "/task/" + number + "/children"));
    for (pid_t child; children >> child;)
        if (has(read_file("/proc/" + std::to_string(child) + "/comm"), name))
            found.push_back(child);
    return found;
}

// Within the patience that all suites have.
static bool comes_to_say(const std::string &path, const std::string &part, size_t times = 1)
{
    for (int i = 0; i < 4500; i++) {
        const std::string text = read_file(path);
        size_t found = 0, at = 0;
        while (found < times && (at = text.find(part, at)) != std::string::npos) {
            found++;
            at += part.size();
        }
        if (found == times)
            return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
}

static const Words endless = {"-k", "host", "-c", "put-bandwidth", "-b", "1M", "-n", "1000000000"};

TEST_F(Perf, AKilledRankEndsTheRun)
{
    Words words = endless;
    words.insert(words.begin(), perf);
    pid_t pid = start(words);
    std::vector<pid_t> ranks;
    // The child that keeps the store has their name until it has taken its own.
    for (int i = 0; i < 4500 && ranks.size() < 2; i++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        if (!children_of(pid, "peerhop-store").empty())
            ranks = children_of(pid, "peerhop-perf");
    }
    ASSERT_EQ(ranks.size(), 2u);
    // They have met: who has not waits for the other until its deadline. Each has mapped the
    // other's arena; the segment tells of one of the two only.
    for (pid_t rank : ranks)
        ASSERT_TRUE(
            comes_to_say("/proc/" + std::to_string(rank) + "/maps", "peerhop-perf arena", 2));
    // It looks only when the survivor, too, has ended for want of the other.
    kill(pid, SIGSTOP);
    kill(ranks[1], SIGKILL);
    for (pid_t rank : ranks)
        EXPECT_TRUE(comes_to_say("/proc/" + std::to_string(rank) + "/stat", ") Z ")) << rank;
    kill(pid, SIGCONT);
    Ended ended = wait_for(pid);
    EXPECT_EQ(ended.status, 1);
    EXPECT_TRUE(has(ended.err, "rank 1 was killed by signal 9")) << ended.err;
    EXPECT_TRUE(has(ended.err, "rank 0 ended with status 1")) << ended.err;
}

// Some daemons and supervisors leave it so: then the kernel collects children unseen.
TEST_F(Perf, EndsAreSeenWhereItsStarterIgnoresThem)
{
    ignores_ends = true;
    Ended ended = run({"-k", "host", "-c", "send-latency", "-b", "8", "-n", "10"});
    EXPECT_EQ(ended.status, 0) << ended.err;
    ended = run({"-k", "host", "--store", "unix:///nonexistent", "--deadline", "2"});
    EXPECT_EQ(ended.status, 1);
    EXPECT_TRUE(has(ended.err, "rank 1 ended with status 1")) << ended.err;
}

// What its ranks or itself write then ends them.
TEST_F(Perf, AReaderThatLeavesLeavesNothingBehind)
{
    for (const char *reader : {"head -n 1", "true"}) {
        wait_for(
            start({"/bin/sh", "-c",
                   perf + " -k host -c put-bandwidth -n 20 -b 8 -b 64 -b 512 2>&1 | " + reader}));
        for (int i = 0; i < 4500 && !std::filesystem::is_empty(folder + "/tmp"); i++)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        EXPECT_TRUE(std::filesystem::is_empty(folder + "/tmp")) << reader;
    }
}

TEST_F(Perf, WhatCannotBeWrittenIsAFailure)
{
    for (const char *what : {"-l", "-h", "-k host -c put-latency -n 20 -b 8",
                             "-k host -c put-latency -n 20 -b 8 -o json"}) {
        Ended ended = wait_for(start({"/bin/sh", "-c", perf + " " + what + " >/dev/full"}));
        EXPECT_EQ(ended.status, 1) << what;
        EXPECT_TRUE(has(ended.err, "standard output did not take everything")) << ended.err;
    }
}

TEST_F(Perf, TheDeadlineEndsTheRun)
{
    Ended ended = {};
    // Three quarters of it are an exchange's, which may be too little on a busy machine.
    for (int seconds = 3; seconds < 40 && !has(ended.err, "deadline of the run"); seconds *= 3) {
        Words words = endless;
        words.insert(words.end(), {"--deadline", std::to_string(seconds)});
        ended = run(words);
        EXPECT_EQ(ended.status, 1);
    }
    EXPECT_TRUE(has(ended.err, "peerhop-perf: rank ")) << ended.err;
    EXPECT_TRUE(has(ended.err, " bytes: the deadline of the run has passed")) << ended.err;
}
