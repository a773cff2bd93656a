// SPDX-License-Identifier: BSD-3-Clause
// peerhop-perf: what it measures beside the work of an application, and beside NCCL.
#include <gtest/gtest.h>

#include "perf.h"

#include <chrono>

// Rows of the case overlap, as the stand-in gives them; empty where it cannot run.
class PerfOverlap : public Perf
{
  protected:
    void measure(const Words &more, const Words &environment = {})
    {
        if (*getenv("PEERHOP_STANDIN") == 0)
            GTEST_SKIP() << "built without cuda.h: no stand-in for the driver";
        Words words = {"-k", "cuda", "-o", "json", "--verify", "--deadline", "120"};
        words.insert(words.end(), more.begin(), more.end());
        Words with = {std::string("PEERHOP_LIBCUDA=") + getenv("PEERHOP_STANDIN"),
                      std::string("LD_LIBRARY_PATH=") + getenv("PEERHOP_STANDIN_NCCL")};
        with.insert(with.end(), environment.begin(), environment.end());
        ended = run(words, with);
        if (has(ended.err, "built without nvcc"))
            GTEST_SKIP() << "built without nvcc: there are no kernels";
        for (const std::string &line : lines_of(ended.out))
            rows.push_back(parse_json(line));
    }

    Ended ended = {};
    std::vector<std::map<std::string, std::string>> rows;
};

static void expect_figures(std::map<std::string, std::string> &row, const std::string &limit_of)
{
    EXPECT_GT(atof(row["median"].c_str()), 0);
    EXPECT_GT(atof(row["limit"].c_str()), 0);
    EXPECT_NEAR(atof(row["median"].c_str()) / atof(row["limit"].c_str()),
                atof(row["ratio"].c_str()), 0.01 * atof(row["ratio"].c_str()));
    EXPECT_EQ(row["limit_of"], limit_of);
    EXPECT_EQ(row["verified"], "true");
}

// On one stream one and two receives, on each of three streams two, each beside both kernels; then
// both kernels beside messages that move, and these beside the kernels.
static void expect_overlap(std::vector<std::map<std::string, std::string>> &rows, size_t step)
{
    static const char *const shapes[][3] = {{"1", "1", "1"}, {"1", "2", "2"}, {"3", "2", "6"}};
    for (size_t i = 0; i < 6; i++) {
        auto &row = rows[i * step];
        EXPECT_EQ(row["kernel"], i % 2 ? "gemm" : "light");
        EXPECT_EQ(row["beside"], "waiting");
        EXPECT_EQ(row["channels"], shapes[i / 2][0]);
        EXPECT_EQ(row["receives"], shapes[i / 2][1]);
        EXPECT_EQ(row["posted"], shapes[i / 2][2]);
        EXPECT_EQ(row["metric"], "kernel_us");
        EXPECT_EQ(row["iterations"], "9");
        EXPECT_EQ(row["begun"], row["blocks"]);
        EXPECT_EQ(row["multiprocessors"], "1"); // of the stand-in, where blocks need no place
        EXPECT_EQ(row["idle_multiprocessors"], "1");
        expect_figures(row, "alone");
    }
    for (size_t i = 0; i < 4; i++) {
        auto &row = rows[6 * step + i / 2 * 2 * step + i % 2];
        EXPECT_EQ(row["kernel"], i / 2 ? "gemm" : "light");
        EXPECT_EQ(row["beside"], "moving");
        EXPECT_EQ(row["metric"], i % 2 ? "message_us" : "kernel_us");
        EXPECT_EQ(row["receives"], "null");
        expect_figures(row, "alone");
    }
}

TEST_F(PerfOverlap, KernelsAndMessagesBesideEachOther)
{
    for (const char *issue : {"stream", "graph"}) {
        rows.clear();
        measure({"-c", "overlap", "-b", "64K", "--channels", "3", "-i", issue});
        if (IsSkipped())
            return;
        ASSERT_EQ(ended.status, 0) << ended.err;
        ASSERT_EQ(rows.size(), 10u) << ended.out;
        expect_overlap(rows, 1);
        EXPECT_EQ(rows[0]["issue"], issue);
        EXPECT_EQ(rows[1]["shared"], "204800");
    }
}

// Where blocks need places a kernel that fills a multiprocessor does without those that have blocks
// of another.
TEST_F(PerfOverlap, AKernelIsSeenOnTheMultiprocessorsThatItHas)
{
    measure({"-c", "overlap", "-b", "64K"}, {"PEERHOP_STANDIN_MULTIPROCESSORS=132"});
    if (IsSkipped())
        return;
    ASSERT_EQ(ended.status, 0) << ended.err;
    ASSERT_EQ(rows.size(), 10u) << ended.out;
    for (size_t i = 0; i < 6; i++) {
        EXPECT_EQ(rows[i]["idle_multiprocessors"], "132");
        EXPECT_EQ(atoi(rows[i]["multiprocessors"].c_str()) < 132, rows[i]["kernel"] == "gemm")
            << rows[i]["multiprocessors"];
    }
}

// What waits on the only one is released then, and the rest is measured.
TEST_F(PerfOverlap, AKernelThatDoesNotBeginIsSaid)
{
    measure({"-c", "overlap", "-b", "8", "--channels", "1"}, {"PEERHOP_STANDIN_MULTIPROCESSORS=1"});
    if (IsSkipped())
        return;
    ASSERT_EQ(ended.status, 0) << ended.err;
    ASSERT_EQ(rows.size(), 8u) << ended.out;
    for (size_t i : {1, 3}) {
        EXPECT_EQ(rows[i]["kernel"], "gemm");
        EXPECT_EQ(rows[i]["median"], "null");
        EXPECT_EQ(rows[i]["ratio"], "null");
        EXPECT_EQ(rows[i]["begun"], "0");
        EXPECT_EQ(rows[i]["verified"], "true");
    }
    for (size_t i : {0, 2, 4, 5})
        expect_figures(rows[i], "alone");
}

// No failure: what is refused comes when the others are through.
TEST_F(PerfOverlap, AReceiveThatIsRefusedIsSaid)
{
    measure({"-c", "overlap", "-b", "64K", "--channels", "3", "--wait", "kernel"},
            {"PEERHOP_KERNEL_WAITS=3", "PEERHOP_GRAPH_BRANCHES=1"});
    if (IsSkipped())
        return;
    ASSERT_EQ(ended.status, 0) << ended.err;
    ASSERT_EQ(rows.size(), 10u) << ended.out;
    EXPECT_EQ(rows[3]["posted"], rows[3]["receives"]);
    EXPECT_EQ(rows[4]["posted"], "4") << "of two streams";
    EXPECT_EQ(rows[5]["posted"], "4");
    EXPECT_EQ(rows[0]["refused"], "0");
    EXPECT_GT(atoi(rows[4]["refused"].c_str()), 0);
    for (auto &row : rows)
        expect_figures(row, "alone");
}

TEST_F(Perf, OverlapSaysWhereItCannotRun)
{
    Ended ended = run({"-k", "host", "-c", "overlap"});
    EXPECT_EQ(ended.status, 1);
    EXPECT_TRUE(has(ended.err, "on host memory there are no kernels")) << ended.err;
    const Words small = {"-b", "8", "-n", "3"};
    ended = run(small, {"PEERHOP_DEVICE=host"}); // which the command line does not show
    EXPECT_EQ(ended.status, 0) << ended.err;
    EXPECT_TRUE(has(ended.err, "overlap is left out: on host memory")) << ended.err;
    EXPECT_FALSE(has(ended.out, "overlap")) << ended.out;
    ended = run({"-k", "host", "-b", "8", "-n", "3"});
    EXPECT_EQ(ended.status, 0) << ended.err;
    EXPECT_EQ(ended.err, "");
}

TEST_F(PerfOverlap, AtMostAsManyStreamsAsRanksAreStartedFor)
{
    measure({"-c", "overlap", "-b", "64K", "--channels", "15"});
    if (IsSkipped())
        return;
    EXPECT_EQ(ended.status, 1);
    EXPECT_TRUE(has(ended.err, "at most 14 streams (--channels)")) << ended.err;
}

TEST_F(PerfOverlap, NcclTakesTurnsWithIt)
{
    measure({"-c", "overlap", "-b", "64K", "--channels", "3", "--compare", "nccl"});
    if (IsSkipped())
        return;
    ASSERT_EQ(ended.status, 0) << ended.err;
    ASSERT_EQ(rows.size(), 20u) << ended.out;
    expect_overlap(rows, 2);
    for (size_t i = 0; i < 20; i++)
        EXPECT_EQ(rows[i]["protocol"], (i < 12 ? i % 2 : i % 4 / 2) ? "nccl" : "put") << i;
    EXPECT_EQ(rows[0]["path"], "ipc");
    EXPECT_EQ(rows[1]["path"], "null");
    EXPECT_EQ(rows[1]["nccl_version"], "2.27.3");
}

// Each block beside one by NCCL, here by a stand-in of it whose bytes are compared, too.
TEST_F(PerfOverlap, SendsAreComparedWithNccl)
{
    for (const Words &way : {Words{"-i", "host"}, Words{"--group", "-i", "graph"}}) {
        Words words = {"-c",  "send-latency", "-c", "send-bandwidth", "-b",
                       "64K", "-n",           "4",  "--compare=nccl"};
        words.insert(words.end(), way.begin(), way.end());
        rows.clear();
        measure(words);
        if (IsSkipped())
            return;
        ASSERT_EQ(ended.status, 0) << ended.err;
        ASSERT_EQ(rows.size(), 2u) << ended.out;
        for (auto &row : rows) {
            expect_figures(row, "nccl");
            EXPECT_EQ(row["nccl_version"], "2.27.3");
            EXPECT_TRUE(has(row["nccl_path"], "/libnccl.so.2")) << row["nccl_path"];
        }
    }
    ended = run({"-k", "cuda", "-c", "send-latency", "-b", "8", "-n", "5", "--compare", "nccl"},
                {std::string("PEERHOP_LIBCUDA=") + getenv("PEERHOP_STANDIN"),
                 std::string("LD_LIBRARY_PATH=") + getenv("PEERHOP_STANDIN_NCCL")});
    EXPECT_EQ(ended.status, 0) << ended.err;
    EXPECT_TRUE(has(ended.out, "Compared with NCCL 2.27.3 (/")) << ended.out;
}

TEST_F(PerfOverlap, WhatFailsOfNcclIsNamed)
{
    const Words words = {"-c", "send-latency", "-b", "64K", "-n", "5", "--compare", "nccl"};
    for (const char *function :
         {"ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRank", "ncclSend"}) {
        measure(words, {std::string("PEERHOP_STANDIN_NCCL_FAIL=") + function});
        if (IsSkipped())
            return;
        EXPECT_EQ(ended.status, 1) << function;
        EXPECT_TRUE(has(ended.err, std::string(function) + ": in")) << ended.err;
        EXPECT_EQ(ended.out, "") << function;
    }
    write_file(folder + "/libnccl.so.2", "no library");
    measure(words, {"LD_LIBRARY_PATH=" + folder});
    EXPECT_EQ(ended.status, 1);
    EXPECT_TRUE(has(ended.err, "--compare nccl: no NCCL: " + folder + "/libnccl.so.2"))
        << ended.err;
    unlink((folder + "/libnccl.so.2").c_str());
    ended = run({"-c", "send-latency", "--compare", "nccl"}, {"PEERHOP_DEVICE=host"});
    EXPECT_EQ(ended.status, 1);
    EXPECT_TRUE(has(ended.err, "--compare nccl needs GPUs")) << ended.err;
}

// What stands still is in no figure, and stands still all the same: in each of three samples, and
// in the one before, four times.
TEST_F(Perf, ALateMessageIsTimedFromItsSend)
{
    Words lines;
    bool excluded = false;
    // On a busy machine messages themselves may take that long.
    for (int late_ms = 100; late_ms <= 1000 && !excluded; late_ms *= 10) {
        const std::string late_us = std::to_string(1000 * late_ms);
        const auto start = std::chrono::steady_clock::now();
        Ended ended = run(quick({"-c", "send-latency", "-b", "8", "-n", "3", "--late", late_us}));
        const auto took = std::chrono::steady_clock::now() - start;
        ASSERT_EQ(ended.status, 0) << ended.err;
        EXPECT_GT(took, std::chrono::milliseconds(4 * 4 * late_ms));
        lines = lines_of(ended.out);
        ASSERT_EQ(lines.size(), 2u) << ended.out;
        excluded = true;
        for (size_t i = 0; i < 2; i++) {
            auto members = parse_json(lines[i]);
            EXPECT_EQ(members["late"], i ? "receive" : "message");
            EXPECT_EQ(members["metric"], i ? "three_messages_us" : "one_way_us");
            EXPECT_EQ(members["late_us"], late_us);
            EXPECT_EQ(members["limit_of"], "on_time");
            EXPECT_EQ(members["iterations"], "3");
            EXPECT_NE(members["warm"], "null");
            excluded = excluded && atof(members["min"].c_str()) < 1000 * late_ms &&
                       atof(members["limit"].c_str()) < 1000 * late_ms;
        }
    }
    EXPECT_TRUE(excluded) << lines.at(0) << lines.at(1);

    Ended ended = run({"-k", "host", "-n", "3", "-b", "8", "--late", "1000", "-c", "put-latency"});
    ASSERT_EQ(ended.status, 0) << ended.err;
    EXPECT_TRUE(has(ended.out, " us one way ")) << ended.out;
    EXPECT_TRUE(has(ended.out, "\n    message 1000 us late: ")) << ended.out;
    EXPECT_TRUE(has(ended.out, "\n    receive 1000 us late: ")) << ended.out;
}

// The same of NCCL's messages, in turn.
TEST_F(PerfOverlap, LateMessagesAreComparedWithNccl)
{
    for (const char *issue : {"stream", "graph"}) {
        rows.clear();
        measure({"-c", "send-latency", "-b", "64K", "--late", "100", "-n", "2", "-i", issue,
                 "--compare", "nccl"});
        if (IsSkipped())
            return;
        ASSERT_EQ(ended.status, 0) << ended.err;
        ASSERT_EQ(rows.size(), 4u) << ended.out;
        for (size_t i = 0; i < 4; i++) {
            EXPECT_EQ(rows[i]["protocol"], i < 2 ? "put" : "nccl");
            EXPECT_EQ(rows[i]["late"], i % 2 ? "receive" : "message");
            EXPECT_EQ(rows[i]["limit_of"], "on_time");
            EXPECT_EQ(rows[i]["nccl_version"], "2.27.3");
            EXPECT_EQ(rows[i]["verified"], "true");
        }
    }
}

TEST_F(Perf, GraphsThatLiveNeedGpus)
{
    Ended ended = run(quick({"-c", "send-latency", "--graphs", "2"}));
    EXPECT_EQ(ended.status, 1);
    EXPECT_TRUE(has(ended.err, "--graphs needs GPUs (-k cuda)")) << ended.err;
}

// Those that rest count nowhere.
TEST_F(Perf, GraphsThatLiveAreAsManyAsOneLikes)
{
    if (*getenv("PEERHOP_STANDIN") == 0)
        GTEST_SKIP() << "built without cuda.h: no stand-in for the driver";
    auto run_with = [&](const char *issue, const std::string &branches) {
        return run({"-k", "cuda", "-c", "send-latency", "-b", "8", "-n", "5", "-i", issue,
                    "--graphs", "40", "-o", "json", "--verify", "--deadline", "60"},
                   {std::string("PEERHOP_LIBCUDA=") + getenv("PEERHOP_STANDIN"),
                    "PEERHOP_KERNEL_WAITS=4", "PEERHOP_GRAPH_BRANCHES=" + branches});
    };
    for (const char *issue : {"stream", "graph"}) {
        Ended ended = run_with(issue, "1");
        ASSERT_EQ(ended.status, 0) << ended.err;
        EXPECT_EQ(parse_json(lines_of(ended.out).at(0))["graphs"], "40");
    }
    // Where one rank is refused the other may fail for that, wherever it is by then.
    const Ended ended = run_with("stream", "0");
    bool told = false;
    for (const std::string &line : lines_of(ended.err))
        told = told || (has(line, "send-latency, 8 bytes, graph 1 of 40: ph_") &&
                        has(line, "no graph may wait") && has(line, "PEERHOP_GRAPH_BRANCHES 0"));
    EXPECT_EQ(ended.status, 1);
    EXPECT_TRUE(told) << ended.err;
}

// More than the pool has places.
TEST_F(Perf, NoFreshBufferComesTwice)
{
    Ended ended = run(quick({"-c", "send-latency", "-b", "8", "--fresh", "-n", "150"}));
    ASSERT_EQ(ended.status, 0) << ended.err;
    Words lines = lines_of(ended.out);
    ASSERT_EQ(lines.size(), 1u) << ended.out;
    auto members = parse_json(lines[0]);
    EXPECT_EQ(members["metric"], "fresh_us");
    EXPECT_EQ(members["fresh"], "true");
    EXPECT_EQ(members["iterations"], "150");
    EXPECT_EQ(members["offers"], "1") << "a buffer that is known needs none";
    EXPECT_LT(atof(members["imports"].c_str()), 0.1) << "it is one allocation";
    ended = run({"-k", "host", "-n", "5", "-b", "8", "--fresh", "-c", "put-latency"});
    ASSERT_EQ(ended.status, 0) << ended.err;
    EXPECT_TRUE(has(ended.out, " us a message ")) << ended.out;
    EXPECT_TRUE(has(ended.out, "\n    fresh: ")) << ended.out;
}
