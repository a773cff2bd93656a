// SPDX-License-Identifier: BSD-3-Clause
// peerhop-perf: every case, where ranks may run, and the sizes of the pair that it goes by.
#include <gtest/gtest.h>

#include "perf.h"

#include <filesystem>
#include <tuple>

// Where ranks run: host memory, the stand-in for a GPU's driver, GPUs.
enum Place { HOST, STANDIN, GPU };

struct Way {
    const char *name;
    Words words;
};

class PerfCase : public Perf,
                 public testing::WithParamInterface<std::tuple<Place, const char *, Way>>
{
  protected:
    // Small, and several blocks; whole pages where the case moves pages.
    static const char *size_of(const std::string &name, bool small)
    {
        if (name.rfind("pages-", 0) == 0)
            return small ? "4096" : "69632";
        return small ? "8" : "70001";
    }

    // Verified; status 0 or a reason to skip.
    Ended run_case(Place place, const char *name, const Words &more)
    {
        Words environment;
        Words words =
            quick({"-c", name, "-b", size_of(name, true), "-b", size_of(name, false), "--verify"});
        words.insert(words.end(), more.begin(), more.end());
        if (place != HOST)
            words.insert(words.end(), {"-k", "cuda"});
        if (place == STANDIN)
            environment.push_back(std::string("PEERHOP_LIBCUDA=") + getenv("PEERHOP_STANDIN"));
        return run(words, environment);
    }

    // Why there is no GPU to run on; empty where there is one.
    const std::string &gpu_missing()
    {
        static std::string why = "?";
        if (why == "?") {
            Ended ended = run({"-k", "cuda", "-c", "put-latency", "-b", "8", "-n", "1"});
            size_t start = ended.err.find("-k cuda: ");
            why = start == std::string::npos
                      ? ""
                      : ended.err.substr(start, ended.err.find('\n') - start);
        }
        return why;
    }
};

TEST_P(PerfCase, RunsVerified)
{
    auto [place, name, way] = GetParam();
    if (place == STANDIN && *getenv("PEERHOP_STANDIN") == 0)
        GTEST_SKIP() << "the stand-in is not built: no cuda.h";
    if (place == GPU && !gpu_missing().empty())
        GTEST_SKIP() << gpu_missing();
    Ended ended = run_case(place, name, way.words);
    if (has(ended.err, "built without nvcc"))
        GTEST_SKIP() << "the bench's own kernels are left out of this build: no nvcc";
    ASSERT_EQ(ended.status, 0) << ended.err;
    Words lines = lines_of(ended.out);
    const bool late = !way.words.empty() && way.words[0] == "--late"; // two rows of each size
    ASSERT_EQ(lines.size(), late ? 4u : 2u) << ended.out;
    for (const std::string &line : lines) {
        auto members = parse_json(line);
        EXPECT_EQ(members["case"], name);
        EXPECT_EQ(members["path"], "ipc");
        EXPECT_EQ(members["kind"], place == HOST ? "host" : "cuda");
        EXPECT_EQ(members["verified"], members["ops"] == "null" ? "true" : "false");
    }
    EXPECT_EQ(parse_json(lines[0])["bytes"], size_of(name, true));
    EXPECT_EQ(parse_json(lines.back())["bytes"], size_of(name, false));
}

// The table that a rank names by PEERHOP_TABLE, as its channels report it.
TEST_F(Perf, TheTableOfThePairDecides)
{
    if (*getenv("PEERHOP_STANDIN") == 0)
        GTEST_SKIP() << "built without cuda.h: no stand-in for the driver";
    const std::string file = folder + "/table";
    const std::string driver = std::string("PEERHOP_LIBCUDA=") + getenv("PEERHOP_STANDIN");
    const std::string table = "PEERHOP_TABLE=" + file;
    const Words words = {"-k", "cuda", "-c", "send-latency", "-b",      "8",
                         "-n", "5",    "-o", "json",         "--verify"};
    write_file(file, "\"Another\" * 1 2\n\"Stand-in H200\" \"Stand-in H200\" 0 1M\n* * 3 4\n");
    Ended ended = run(words, {driver, table});
    ASSERT_EQ(ended.status, 0) << ended.err;
    auto members = parse_json(lines_of(ended.out).at(0));
    EXPECT_EQ(members["method"], "sm,ce");
    EXPECT_EQ(members["ll_max"], "0");
    EXPECT_EQ(members["sm_max"], "1048576");
    ended = run(words, {driver, table, "PEERHOP_SM_MAX=0"});
    ASSERT_EQ(ended.status, 0) << ended.err;
    EXPECT_EQ(parse_json(lines_of(ended.out).at(0))["method"], "ce");

    write_file(file, "* * 1025K all\n");
    ended = run(words, {driver, table});
    EXPECT_EQ(ended.status, 1);
    EXPECT_TRUE(has(ended.err, file + ", line 1: ll_max is a size")) << ended.err;
    unlink(file.c_str());
    ended = run(words, {driver, table});
    EXPECT_EQ(ended.status, 1);
    EXPECT_TRUE(has(ended.err, file + " (PEERHOP_TABLE) cannot be read")) << ended.err;
}

// The first channels of a pair have what others have not: wide lines. Many sizes take no more of
// them.
TEST_F(Perf, EverySizeHasWideLines)
{
    if (*getenv("PEERHOP_STANDIN") == 0)
        GTEST_SKIP() << "built without cuda.h: no stand-in for the driver";
    const std::string file = folder + "/table";
    write_file(file, "* * 1M all wide\n");
    const std::string driver = std::string("PEERHOP_LIBCUDA=") + getenv("PEERHOP_STANDIN");
    const Words many = {"-c", "put-latency", "-c", "send-bandwidth", "-c", "send-latency"},
                captured = {"-i", "graph",    "-c", "put-latency",
                            "-c", "put-rate", "-c", "send-latency"};
    for (const Words &cases : {many, captured}) {
        Words words = {"-k", "cuda", "-b", "8:64K", "-n", "2", "-o", "json", "--verify"};
        words.insert(words.end(), cases.begin(), cases.end());
        Ended ended = run(words, {driver, "PEERHOP_TABLE=" + file});
        ASSERT_EQ(ended.status, 0) << ended.err;
        EXPECT_EQ(lines_of(ended.out).size(), 42u);
        for (const std::string &line : lines_of(ended.out)) {
            auto members = parse_json(line);
            if (members["case"] != "put-rate") {
                EXPECT_EQ(members["ll_max"], "1048576") << line;
            }
        }
    }
}

// What it saves is what it prints, and a table that contexts take.
TEST_F(Perf, TuneMeasuresThePairAndSavesItsTable)
{
    if (*getenv("PEERHOP_STANDIN") == 0)
        GTEST_SKIP() << "built without cuda.h: no stand-in for the driver";
    const std::string file = folder + "/table";
    const std::string driver = std::string("PEERHOP_LIBCUDA=") + getenv("PEERHOP_STANDIN");
    Ended ended = run({"--tune", "--save", file, "-k", "cuda", "-n", "5", "-b", "256K", "-b", "64",
                       "-b", "8K", "--verify"},
                      {driver});
    ASSERT_EQ(ended.status, 0) << ended.err;
    EXPECT_EQ(read_file(file), ended.out);
    Words lines = lines_of(ended.out);
    ASSERT_EQ(lines.size(), 7u) << ended.out;
    char bytes[16];
    double ll, sm, ce;
    EXPECT_EQ(sscanf(lines[2].c_str(), "# %15s %lf %lf %lf", bytes, &ll, &sm, &ce), 4) << lines[2];
    EXPECT_STREQ(bytes, "64");
    EXPECT_TRUE(ll > 0 && sm > 0 && ce > 0) << lines[2];
    EXPECT_EQ(sscanf(lines[4].c_str(), "# %15s - %lf %lf", bytes, &sm, &ce), 3) << lines[4];
    char limits[2][16];
    ASSERT_EQ(sscanf(lines[6].c_str(), "\"Stand-in H200\" \"Stand-in H200\" %15s %15s", limits[0],
                     limits[1]),
              2)
        << lines[6];

    ended = run({"-k", "cuda", "-c", "send-latency", "-b", "8", "-n", "5", "-o", "json"},
                {driver, "PEERHOP_TABLE=" + file});
    ASSERT_EQ(ended.status, 0) << ended.err;
    auto members = parse_json(lines_of(ended.out).at(0));
    const std::map<std::string, std::string> bytes_of = {{"0", "0"},
                                                         {"64", "64"},
                                                         {"8K", "8192"},
                                                         {"256K", "262144"},
                                                         {"all", "9223372036854775807"}};
    ASSERT_TRUE(bytes_of.count(limits[0]) && bytes_of.count(limits[1])) << lines[6];
    if (members["ll_max"] != "null") {
        EXPECT_EQ(members["ll_max"], bytes_of.at(limits[0]));
        EXPECT_EQ(members["sm_max"], bytes_of.at(limits[1]));
    } else {
        EXPECT_STREQ(limits[0], "0");
        EXPECT_STREQ(limits[1], "0");
    }

    // Of lines nothing was measured.
    ended = run({"--tune", "-k", "cuda", "-n", "5", "-b", "256K"}, {driver});
    ASSERT_EQ(ended.status, 0) << ended.err;
    EXPECT_TRUE(has(ended.out, "\"Stand-in H200\" \"Stand-in H200\" 8K ")) << ended.out;
    EXPECT_FALSE(has(ended.out, " wide\n")) << ended.out;

    // Where lines may be wide, those of up to 1 MiB are measured.
    write_file(file, "* * 1M all wide\n");
    ended = run({"--tune", "-k", "cuda", "-n", "5", "-b", "2M", "-b", "1M"},
                {driver, "PEERHOP_TABLE=" + file});
    ASSERT_EQ(ended.status, 0) << ended.err;
    lines = lines_of(ended.out);
    ASSERT_EQ(lines.size(), 6u) << ended.out;
    EXPECT_EQ(sscanf(lines[2].c_str(), "# 1M %lf %lf %lf", &ll, &sm, &ce), 3) << lines[2];
    EXPECT_EQ(sscanf(lines[3].c_str(), "# 2M - %lf %lf", &sm, &ce), 2) << lines[3];
    EXPECT_TRUE(has(lines[5], " wide")) << ended.out;

    ended = run({"--tune", "--save", folder + "/no/table", "-k", "cuda", "-n", "5", "-b", "8"},
                {driver});
    EXPECT_EQ(ended.status, 1);
    EXPECT_TRUE(has(ended.err, folder + "/no/table: No such file")) << ended.err;
    unlink(file.c_str());
}

TEST_F(Perf, WhereThereIsOneMethodTuneSaysSo)
{
    Ended ended = run({"--tune", "-k", "host", "--save", folder + "/table"});
    EXPECT_EQ(ended.status, 0) << ended.err;
    EXPECT_EQ(ended.out, "Host memory (-k host): messages have one method there, and there is "
                         "nothing to tune.\n");
    EXPECT_FALSE(std::filesystem::exists(folder + "/table"));
    if (*getenv("PEERHOP_STANDIN") == 0)
        return;
    ended = run({"--tune", "-k", "cuda", "-b", "8"},
                {std::string("PEERHOP_LIBCUDA=") + getenv("PEERHOP_STANDIN"),
                 "PEERHOP_WAIT=memory_operation"});
    EXPECT_EQ(ended.status, 0) << ended.err;
    EXPECT_TRUE(has(ended.out, "No flags between these devices: ")) << ended.out;
}

TEST_F(Perf, KernelsNeedADeviceThatRunsThem)
{
    Ended ended = run({"-k", "host", "-c", "put-latency", "-i", "device"});
    EXPECT_EQ(ended.status, 1);
    EXPECT_NE(ended.err.find("-i device needs GPUs"), std::string::npos) << ended.err;
    if (*getenv("PEERHOP_STANDIN") == 0)
        return;
    ended = run({"-k", "cuda", "-c", "put-latency", "-i", "device"},
                {std::string("PEERHOP_LIBCUDA=") + getenv("PEERHOP_STANDIN")});
    EXPECT_EQ(ended.status, 1);
    EXPECT_TRUE(ended.err.find("cuModuleGetFunction") != std::string::npos ||
                ended.err.find("built without nvcc") != std::string::npos)
        << ended.err;
}

static std::string name_of(const testing::TestParamInfo<PerfCase::ParamType> &info)
{
    static const char *const places[] = {"Host", "Standin", "Gpu"};
    std::string name = std::string(places[std::get<0>(info.param)]) + "_" +
                       std::get<1>(info.param) + std::get<2>(info.param).name;
    for (char &c : name)
        c = c == '-' ? '_' : c;
    return name;
}

static const auto every_place = testing::Values(HOST, STANDIN, GPU);

INSTANTIATE_TEST_SUITE_P(
    Stream, PerfCase,
    testing::Combine(every_place,
                     testing::Values("put-latency", "put-bandwidth", "put-bidirectional",
                                     "put-rate", "put-batch", "pages-put", "pages-get",
                                     "get-latency", "get-bandwidth", "get-bidirectional",
                                     "get-rate", "send-latency", "send-bandwidth",
                                     "send-bidirectional", "send-rate", "unbound-latency",
                                     "unbound-bandwidth", "unbound-bidirectional", "signal-latency",
                                     "exchange-cold", "exchange-hit", "import"),
                     testing::Values(Way{"", {}})),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    EachSynchronised, PerfCase,
    testing::Combine(every_place, testing::Values("put-latency", "get-bandwidth", "send-rate"),
                     testing::Values(Way{"", {"-i", "host"}}, Way{"Request", {"-i", "request"}})),
    name_of);

INSTANTIATE_TEST_SUITE_P(Kernels, PerfCase,
                         testing::Combine(testing::Values(GPU),
                                          testing::Values("put-latency", "put-bandwidth",
                                                          "get-bandwidth"),
                                          testing::Values(Way{"", {"-i", "device"}})),
                         name_of);

INSTANTIATE_TEST_SUITE_P(
    Graphs, PerfCase,
    testing::Combine(testing::Values(STANDIN, GPU),
                     testing::Values("put-latency", "get-rate", "send-latency"),
                     testing::Values(Way{"", {"-i", "graph"}},
                                     Way{"Group", {"-i", "graph", "--group"}})),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Groups, PerfCase,
    testing::Combine(
        every_place, testing::Values("send-latency", "send-bandwidth", "send-rate", "put-rate"),
        testing::Values(Way{"Group", {"--group"}}, Way{"Get", {"--protocol", "get"}},
                        Way{"GroupGet", {"--group", "--protocol", "get", "--channels", "3"}})),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Beside, PerfCase,
    testing::Combine(every_place, testing::Values("send-latency", "put-latency"),
                     testing::Values(Way{"Late", {"--late", "300"}}, Way{"Fresh", {"--fresh"}},
                                     Way{"LateGet", {"--late", "0", "--protocol", "get"}},
                                     Way{"FreshGet", {"--fresh", "--protocol", "get"}},
                                     Way{"LateOfThree", {"--late", "300", "-r", "3"}},
                                     Way{"FreshOfThree", {"--fresh", "-r", "3"}})),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    BesideGraphs, PerfCase,
    testing::Combine(testing::Values(STANDIN, GPU), testing::Values("send-latency", "put-latency"),
                     testing::Values(Way{"Graphs", {"--graphs", "3"}},
                                     Way{"GraphsAsGraph", {"--graphs", "3", "-i", "graph"}},
                                     Way{"LateGraph", {"--late", "300", "-i", "graph"}},
                                     Way{"LateGraphs",
                                         {"--late", "300", "--graphs", "2", "-i", "graph"}})),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Forced, PerfCase,
    testing::Combine(testing::Values(STANDIN, GPU), testing::Values("send-latency"),
                     testing::Values(Way{"MemoryOperation", {"--wait", "memory_operation"}},
                                     Way{"Kernel", {"--wait", "kernel"}},
                                     Way{"CopyKernel", {"-m", "copy_kernel"}})),
    name_of);

INSTANTIATE_TEST_SUITE_P(Compared, PerfCase,
                         testing::Combine(every_place,
                                          testing::Values("put-latency", "put-bidirectional",
                                                          "get-bandwidth"),
                                          testing::Values(Way{"", {"--compare"}})),
                         name_of);

// With an odd one out, which takes part in exchanges only.
INSTANTIATE_TEST_SUITE_P(ThreeRanks, PerfCase,
                         testing::Combine(every_place,
                                          testing::Values("put-bidirectional", "send-latency",
                                                          "exchange-cold", "exchange-hit"),
                                          testing::Values(Way{"", {"-r", "3"}})),
                         name_of);
