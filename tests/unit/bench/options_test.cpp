// SPDX-License-Identifier: BSD-3-Clause
// The command line of peerhop-perf: sizes, names, ranges, defaults.
#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>
#include <utility>
#include <vector>

extern "C" {
#include "beside.h"
#include "cases.h"
#include "hide.h"
#include "options.h"
}

static std::vector<size_t> sizes_of(const char *text)
{
    bench_sizes sizes = {};
    if (bench_sizes_parse(&sizes, text) != 0)
        return {};
    return std::vector<size_t>(sizes.values, sizes.values + sizes.n);
}

TEST(Sizes, SingleSizesWithSuffixes)
{
    EXPECT_EQ(sizes_of("8"), std::vector<size_t>{8});
    EXPECT_EQ(sizes_of("0"), std::vector<size_t>{0});
    EXPECT_EQ(sizes_of("64K"), std::vector<size_t>{65536});
    EXPECT_EQ(sizes_of("3m"), std::vector<size_t>{3u << 20});
    EXPECT_EQ(sizes_of("5G"), std::vector<size_t>{(size_t)5 << 30});
}

TEST(Sizes, RangesDoubleOrMultiply)
{
    EXPECT_EQ(sizes_of("8:64"), (std::vector<size_t>{8, 16, 32, 64}));
    EXPECT_EQ(sizes_of("8:63"), (std::vector<size_t>{8, 16, 32}));
    EXPECT_EQ(sizes_of("1K:1M:x32"), (std::vector<size_t>{1024, 32768, 1u << 20}));
    EXPECT_EQ(sizes_of("7:7:x4"), std::vector<size_t>{7});
    EXPECT_EQ(sizes_of("8:1G:x4").size(), 14u);
}

TEST(Sizes, RangesAddUp)
{
    bench_sizes sizes = {};
    EXPECT_EQ(bench_sizes_parse(&sizes, "8"), 0);
    EXPECT_EQ(bench_sizes_parse(&sizes, "16:32"), 0);
    EXPECT_EQ(sizes.n, 3u);
    EXPECT_EQ(sizes.values[2], 32u);
}

TEST(Sizes, NonsenseIsRefusedAndAddsNothing)
{
    for (const char *text : {"", "x", "-8", "8K8", "8:", ":8", "8:4", "0:8", "8:64:4", "8:64:x1",
                             "8:64:x", "8:64:x2y", "99999999999999999999", "17179869184G", "8 "}) {
        bench_sizes sizes = {};
        EXPECT_EQ(bench_sizes_parse(&sizes, text), -EINVAL) << text;
        EXPECT_EQ(sizes.n, 0u) << text;
    }
}

TEST(Sizes, TooManyAreRefused)
{
    bench_sizes sizes = {};
    for (int i = 0; i < BENCH_SIZES_MAX; i++)
        EXPECT_EQ(bench_sizes_parse(&sizes, "8"), 0);
    EXPECT_EQ(bench_sizes_parse(&sizes, "8"), -E2BIG);
    EXPECT_EQ(sizes.n, (size_t)BENCH_SIZES_MAX);
}

struct Parsed {
    int rc;
    bench_options options;
    std::string error;
};

static Parsed parse(std::vector<std::string> words)
{
    Parsed parsed = {};
    words.insert(words.begin(), "peerhop-perf");
    std::vector<char *> argv;
    // The options keep pointers to the words; the tests below compare them before the words go.
    static std::vector<std::string> kept;
    kept = words;
    for (std::string &word : kept)
        argv.push_back(word.data());
    argv.push_back(nullptr);
    char error[256] = "";
    parsed.rc =
        bench_options_parse(&parsed.options, (int)kept.size(), argv.data(), error, sizeof(error));
    parsed.error = error;
    return parsed;
}

TEST(Options, DefaultsAreTheNewcomersRun)
{
    Parsed parsed = parse({});
    ASSERT_EQ(parsed.rc, 0) << parsed.error;
    EXPECT_EQ(parsed.options.case_count, 5u);
    EXPECT_EQ(parsed.options.cases[4], &bench_overlap_case);
    EXPECT_TRUE(parsed.options.by_default);
    EXPECT_TRUE(parsed.options.verify);
    EXPECT_EQ(parsed.options.ranks, 2);
    EXPECT_STREQ(parsed.options.kind, "auto");
    EXPECT_STREQ(parsed.options.protocol, "put");
    EXPECT_FALSE(parsed.options.json);
    EXPECT_EQ(parsed.options.sizes.n, 0u);
}

// Kernels beside messages are of GPUs, and of streams or graphs.
TEST(Options, OverlapRunsByDefaultWhereItCan)
{
    EXPECT_EQ(parse({"-k", "cuda"}).options.case_count, 5u);
    EXPECT_EQ(parse({"-i", "graph"}).options.case_count, 5u);
    for (const std::vector<std::string> &without : std::vector<std::vector<std::string>>{
             {"-k", "host"}, {"-p", "net"}, {"--group"}, {"-i", "host"}})
        EXPECT_EQ(parse(without).options.case_count, 4u) << without[0];
    EXPECT_FALSE(parse({"-c", "overlap"}).options.by_default);
    for (const std::vector<std::string> &with :
         std::vector<std::vector<std::string>>{{"--group"}, {"-i", "host"}, {"-i", "device"}}) {
        std::vector<std::string> words = {"-c", "overlap"};
        words.insert(words.end(), with.begin(), with.end());
        EXPECT_NE(parse(words).error.find("overlap"), std::string::npos) << with[0];
    }
}

// The word of --compare may be left out, stand behind it, or be joined to it.
TEST(Options, CompareWithTheRawLimitOrWithNccl)
{
    EXPECT_EQ(parse({}).options.compare, BENCH_COMPARE_NONE);
    for (const std::vector<std::string> &raw :
         std::vector<std::vector<std::string>>{{"--compare"},
                                               {"--compare", "--group"},
                                               {"--compare", "raw"},
                                               {"--compare=raw", "--group"}}) {
        Parsed parsed = parse(raw);
        EXPECT_EQ(parsed.rc, 0) << parsed.error;
        EXPECT_EQ(parsed.options.compare, BENCH_COMPARE_RAW);
        EXPECT_EQ(parsed.options.group, raw.back() == "--group");
    }
    for (const std::vector<std::string> &nccl : std::vector<std::vector<std::string>>{
             {"--compare", "nccl", "-i", "graph"}, {"--compare=nccl", "-i", "graph"}}) {
        Parsed parsed = parse(nccl);
        EXPECT_EQ(parsed.rc, 0) << parsed.error;
        EXPECT_EQ(parsed.options.compare, BENCH_COMPARE_NCCL);
        EXPECT_EQ(parsed.options.issue, BENCH_ISSUE_GRAPH);
        ASSERT_EQ(parsed.options.case_count, 3u) << "those that have a counterpart";
        for (size_t i = 0; i < parsed.options.case_count; i++)
            EXPECT_TRUE(parsed.options.cases[i]->nccl);
    }
    EXPECT_NE(parse({"--compare", "mpi"}).error.find("--compare: 'mpi' is none of raw|nccl"),
              std::string::npos);
    EXPECT_NE(parse({"--compare", "nccl", "-c", "put-latency"}).error.find("of put-latency"),
              std::string::npos);
    EXPECT_NE(parse({"--compare", "nccl", "-i", "device"}).error.find("--compare nccl"),
              std::string::npos);
    EXPECT_NE(parse({"--compare", "nccl", "-k", "host"}).error.find("--compare nccl"),
              std::string::npos);
}

// By kernels: the cases that have one, one channel each way.
TEST(Options, Kernels)
{
    Parsed parsed = parse({"-i", "device"});
    ASSERT_EQ(parsed.rc, 0) << parsed.error;
    EXPECT_EQ(parsed.options.issue, BENCH_ISSUE_DEVICE);
    EXPECT_STREQ(bench_issue_name(parsed.options.issue), "device");
    EXPECT_EQ(parsed.options.case_count, 3u);
    for (size_t i = 0; i < parsed.options.case_count; i++)
        EXPECT_NE(parsed.options.cases[i]->kernel, BENCH_KERNEL_NONE);
    EXPECT_EQ(parse({"-i", "device", "-c", "signal-latency", "--channels", "1"}).rc, 0);
    EXPECT_EQ(parse({"-i", "device", "--group"}).rc, -EINVAL);
    EXPECT_EQ(parse({"-i", "device", "--channels", "2"}).rc, -EINVAL);
    parsed = parse({"-c", "put-rate", "-i", "device"});
    EXPECT_EQ(parsed.rc, -EINVAL);
    EXPECT_NE(parsed.error.find("put-rate"), std::string::npos) << parsed.error;
}

TEST(Options, EverythingGiven)
{
    Parsed parsed = parse({"-c",      "put-latency", "-c",         "import",       "-b",
                           "8:32",    "-n",          "7",          "-w",           "3",
                           "-r",      "4",           "-k",         "host",         "-p",
                           "ipc",     "-m",          "ce",         "-i",           "host",
                           "-o",      "json",        "--protocol", "get",          "--channels",
                           "5",       "--ops",       "64",         "--segments=2", "--compare",
                           "--group", "--wait",      "kernel",     "--deadline",   "9",
                           "--store", "redis://x"});
    ASSERT_EQ(parsed.rc, 0) << parsed.error;
    const bench_options &options = parsed.options;
    EXPECT_EQ(options.case_count, 2u);
    EXPECT_EQ(options.cases[0], &bench_put_latency);
    EXPECT_EQ(options.cases[1], &bench_import);
    EXPECT_EQ(options.sizes.n, 3u);
    EXPECT_EQ(options.iterations, 7);
    EXPECT_EQ(options.warmup, 3);
    EXPECT_EQ(options.ranks, 4);
    EXPECT_STREQ(options.kind, "host");
    EXPECT_STREQ(options.path, "ipc");
    EXPECT_STREQ(options.method, "ce");
    EXPECT_EQ(options.issue, BENCH_ISSUE_HOST);
    EXPECT_TRUE(options.json);
    EXPECT_STREQ(options.protocol, "get");
    EXPECT_EQ(options.channels, 5);
    EXPECT_EQ(options.ops, 64);
    EXPECT_EQ(options.segments, 2);
    EXPECT_TRUE(options.compare);
    EXPECT_TRUE(options.group);
    EXPECT_FALSE(options.verify);
    EXPECT_STREQ(options.wait, "kernel");
    EXPECT_EQ(options.deadline_s, 9);
    EXPECT_STREQ(options.store, "redis://x");
}

// What ps shows of peerhop-perf and of its ranks, which are started with the same words.
TEST(Options, ThePasswordIsHiddenWhereItStood)
{
    std::string argument = "redis://ann:s3cret-word@host:7/1";
    const char *copy = hide_password(argument.data());
    EXPECT_STREQ(copy, "redis://ann:s3cret-word@host:7/1");
    EXPECT_STREQ(argument.c_str(), "redis://ann:***@host:7/1");
    EXPECT_EQ(argument.find("word"), std::string::npos) << "behind the end";
    EXPECT_TRUE(is_hidden(argument.c_str()));
    EXPECT_FALSE(is_hidden("redis://ann:s3cret@host"));
    EXPECT_FALSE(is_hidden("redis://host:7"));
    EXPECT_EQ(parse({"--store", "redis://ann:***@host:7/1"}).options.store, nullptr)
        << "a rank has the environment";
    std::string plain = "redis://host:7/1";
    EXPECT_STREQ(hide_password(plain.data()), "redis://host:7/1");
    EXPECT_EQ(plain, "redis://host:7/1");
    std::string without_user = "unix://:x@/run/r";
    EXPECT_STREQ(hide_password(without_user.data()), "unix://:x@/run/r");
    EXPECT_EQ(without_user, "unix://:*@/run/r");
}

TEST(Options, ErrorsNameTheOptionAndTheValue)
{
    const std::vector<std::vector<std::string>> lines = {
        {"-c", "put-nothing"}, {"-b", "8x"},        {"-n", "0"},      {"-n", "many"},
        {"-w", "-1"},          {"-r", "1"},         {"-r", "65"},     {"-k", "disk"},
        {"-p", "wire"},        {"-m", "memcpy"},    {"-i", "hand"},   {"-o", "xml"},
        {"--protocol", "pu"},  {"--channels", "0"}, {"--ops", "0"},   {"--segments", "1.5"},
        {"--wait", "spin"},    {"--deadline", ""},  {"--late", "-1"}, {"--late", "1000001"},
        {"--graphs", "0"},     {"--graphs", "N"},
    };
    for (const auto &line : lines) {
        Parsed parsed = parse(line);
        EXPECT_EQ(parsed.rc, -EINVAL) << line[0] << " " << line[1];
        EXPECT_NE(parsed.error.find(line[0]), std::string::npos) << parsed.error;
        EXPECT_NE(parsed.error.find("'" + line[1] + "'"), std::string::npos) << parsed.error;
    }
}

TEST(Options, Tune)
{
    Parsed parsed = parse({"--tune", "--save", "file", "-b", "8:64K", "--verify"});
    ASSERT_EQ(parsed.rc, 0) << parsed.error;
    EXPECT_TRUE(parsed.options.tune && parsed.options.verify);
    EXPECT_STREQ(parsed.options.save, "file");
    EXPECT_EQ(parsed.options.case_count, 0u);
    EXPECT_NE(parse({"--save", "file"}).error.find("only with --tune"), std::string::npos);
    for (const std::vector<std::string> &other :
         std::vector<std::vector<std::string>>{{"-c", "put-rate"},
                                               {"-r", "3"},
                                               {"-m", "sm"},
                                               {"-i", "graph"},
                                               {"-o", "json"},
                                               {"-p", "net"},
                                               {"--channels", "2"},
                                               {"--compare"},
                                               {"--late", "0"},
                                               {"--graphs", "2"},
                                               {"--fresh"}}) {
        std::vector<std::string> words = {"--tune"};
        words.insert(words.end(), other.begin(), other.end());
        parsed = parse(words);
        EXPECT_EQ(parsed.rc, -EINVAL) << other[0];
        EXPECT_NE(parsed.error.find("--tune: not with"), std::string::npos) << parsed.error;
    }
}

TEST(Options, BesideOtherWork)
{
    Parsed parsed = parse({"-c", "send-latency"});
    EXPECT_LT(parsed.options.late_us, 0);
    EXPECT_EQ(parsed.options.graphs, 0);
    EXPECT_FALSE(parsed.options.fresh);
    parsed = parse({"-c", "put-latency", "--late", "1000", "--graphs", "64", "-i", "graph"});
    ASSERT_EQ(parsed.rc, 0) << parsed.error;
    EXPECT_EQ(parsed.options.late_us, 1000);
    EXPECT_EQ(parsed.options.graphs, 64);
    parsed = parse({"--fresh", "--verify", "-i", "host", "--protocol", "get"});
    ASSERT_EQ(parsed.rc, 0) << parsed.error;
    EXPECT_TRUE(parsed.options.fresh);
    ASSERT_EQ(parsed.options.case_count, 1u) << "of the newcomer's cases the one that goes";
    EXPECT_EQ(parsed.options.cases[0], &bench_send_latency);
    EXPECT_EQ(parse({"--graphs", "2", "-c", "put-rate", "--channels", "3"}).rc, 0);
    EXPECT_EQ(parse({"--late", "5", "-c", "send-latency", "--compare", "nccl"}).rc, 0);
}

TEST(Options, BesideOtherWorkWhatMakesNoSense)
{
    using Line = std::pair<std::vector<std::string>, std::string>;
    for (const auto &[words, error] : std::vector<Line>{
             {{"--late", "5", "--fresh"}, "--late: not with"},
             {{"--late", "5", "--group"}, "--late: not with"},
             {{"--late", "5", "--compare", "raw"}, "--late: not with"},
             {{"--late", "5", "-c", "put-latency", "--compare", "nccl"}, "--compare nccl: NCCL"},
             {{"--late", "5", "-i", "host"}, "--late: not with"},
             {{"--late", "5", "-i", "request"}, "--late: not with"},
             {{"-c", "send-latency", "--compare", "nccl", "-i", "request"},
              "--compare nccl: not with -i request"},
             {{"--late", "5", "-i", "device"}, "--late: not with"},
             {{"--fresh", "--graphs", "2"}, "--fresh: not with"},
             {{"--fresh", "--group"}, "--fresh: not with"},
             {{"--fresh", "--compare"}, "--fresh: not with"},
             {{"--fresh", "-i", "graph"}, "--fresh: not with"},
             {{"--fresh", "-i", "device"}, "--fresh: not with"},
             {{"--graphs", "2", "-i", "device"}, "--graphs: not with"},
             {{"--late", "5", "-c", "put-rate"},
              "--late: send-latency and put-latency only, not put-rate"},
             {{"--fresh", "-c", "import"},
              "--fresh: send-latency and put-latency only, not import"},
             {{"--graphs", "2", "-c", "exchange-hit"}, "--graphs: exchange-hit goes into no graph"},
         }) {
        Parsed parsed = parse(words);
        EXPECT_EQ(parsed.rc, -EINVAL) << error;
        EXPECT_EQ(parsed.error.find(error), 0u) << parsed.error;
    }
}

TEST(Options, UnknownMissingAndLeftOver)
{
    EXPECT_NE(parse({"--nonsense"}).error.find("--nonsense"), std::string::npos);
    EXPECT_NE(parse({"-c"}).error.find("needs a value"), std::string::npos);
    EXPECT_NE(parse({"file"}).error.find("'file'"), std::string::npos);
    EXPECT_NE(parse({"--ops", "2", "--segments", "3"}).error.find("--segments"), std::string::npos);
    for (const char *line : {"--stroe=redis://ann:s3cret@host", "redis://ann:s3cret@host"}) {
        std::string error = parse({line}).error;
        EXPECT_NE(error.find("redis://ann:***@host'"), std::string::npos) << error;
        EXPECT_EQ(error.find("s3cret"), std::string::npos) << error;
    }
}

TEST(Options, PagesAreWhole)
{
    Parsed parsed =
        parse({"-c", "pages-put", "--pages", "3", "--page-size", "256", "--parts", "2"});
    ASSERT_EQ(parsed.rc, 0) << parsed.error;
    EXPECT_EQ(parsed.options.sizes.values[0], 3u * 256 * 2);
    EXPECT_EQ(parse({"-c", "pages-get", "-b", "8K"}).rc, 0);
    for (const char *size : {"8", "4097", "70001"})
        EXPECT_EQ(parse({"-c", "pages-put", "-b", size}).error,
                  "pages-put: -b is a multiple of 4096 bytes (--page-size, --parts), not " +
                      std::string(size));
    EXPECT_EQ(parse({"-c", "pages-put", "--pages", "1", "-b", "4K"}).error, "--pages: not with -b");
}

TEST(Cases, NamesAreUniqueAndDescribed)
{
    std::set<std::string> names;
    for (size_t i = 0; i < bench_case_count; i++) {
        const bench_case *test = bench_case_table[i];
        EXPECT_TRUE(names.insert(test->name).second) << test->name;
        EXPECT_EQ(bench_case_find(test->name), test);
        EXPECT_GT(strlen(test->what), 10u) << test->name;
        EXPECT_NE(test->sizes[0], 0u) << test->name;
        EXPECT_TRUE(test->once || test->sample || test->rows) << test->name;
    }
    EXPECT_EQ(names.size(), 23u);
    EXPECT_EQ(bench_case_find("put"), nullptr);
}

TEST(Cases, AreaHoldsTheLargestSizeOfEveryChannelBothWays)
{
    Parsed parsed = parse({"-c", "put-rate", "--channels", "3", "-b", "5000", "-b", "8"});
    ASSERT_EQ(parsed.rc, 0);
    EXPECT_EQ(bench_case_area(&bench_put_rate, &parsed.options), 2u * 3 * 8192);
    EXPECT_EQ(bench_case_area(&bench_exchange_cold, &parsed.options), 0u);
}

// Which buffer is next depends on the size: each fits, also where the area is another's.
TEST(Cases, ThePoolOfFreshBuffersHoldsEverySize)
{
    const size_t least = bench_fresh_area(8), large = (size_t)300 << 20;
    EXPECT_GE(least, (size_t)512 << 20);
    EXPECT_EQ(bench_fresh_area((size_t)100 << 20), least);
    EXPECT_GE(bench_fresh_area(large), 4 * large);
    Parsed parsed = parse({"--fresh", "-c", "send-latency", "-b", "8", "-b", "300M"});
    ASSERT_EQ(parsed.rc, 0) << parsed.error;
    EXPECT_EQ(bench_case_area(&bench_send_latency, &parsed.options), bench_fresh_area(large));
}

TEST(Cases, WhatIsLateOrFreshIsAnotherMeasurement)
{
    bench_case variant;
    Parsed parsed = parse({"-c", "send-latency", "--graphs", "2"});
    EXPECT_EQ(bench_beside_case(&bench_send_latency, &parsed.options, &variant),
              &bench_send_latency);
    unsigned samples = 1000;
    for (const char *us : {"0", "10000", "1000000"}) {
        parsed = parse({"-c", "send-latency", "--late", us});
        EXPECT_EQ(bench_beside_case(&bench_send_latency, &parsed.options, &variant), &variant);
        EXPECT_EQ(variant.metric, BENCH_ONE_WAY_US);
        EXPECT_NE(variant.rows, nullptr);
        EXPECT_LT(variant.samples, samples) << "the later, the fewer";
        EXPECT_GE(variant.samples, 10u);
        samples = variant.samples;
    }
    parsed = parse({"-c", "put-latency", "--fresh"});
    EXPECT_EQ(bench_beside_case(&bench_put_latency, &parsed.options, &variant), &variant);
    EXPECT_EQ(variant.metric, BENCH_FRESH_US);
    EXPECT_STREQ(variant.name, "put-latency");
}
