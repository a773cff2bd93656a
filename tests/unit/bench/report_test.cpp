// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

extern "C" {
#include "report.h"
}

static std::string written(void (*write)(FILE *, const bench_result *), const bench_result &result)
{
    char *text = nullptr;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    write(out, &result);
    fclose(out);
    std::string copy(text, size);
    free(text);
    return copy;
}

static bench_result some_result()
{
    bench_result result = {};
    result.test = "put-bandwidth";
    result.protocol = "put";
    result.issue = "stream";
    result.path = "ipc";
    result.method = "memcpy";
    result.kind = "host";
    result.metric = "bandwidth_GBps";
    result.device = "a \"device\"\\\n";
    result.ranks = 2;
    result.bytes = 64 << 20;
    result.channels = 1;
    result.iterations = 40;
    result.verified = true;
    result.stats = {20.5, 19, 20, 19.5};
    return result;
}

static bool has(const std::string &text, const std::string &part)
{
    return text.find(part) != std::string::npos;
}

TEST(Report, JsonIsOneLineWithNullForWhatIsUnknown)
{
    std::string text = written(bench_report_json, some_result());
    EXPECT_EQ(text.find('\n'), text.size() - 1);
    EXPECT_TRUE(has(text, "\"limit\":null,\"ratio\":null,"));
    EXPECT_TRUE(has(text, "\"ops\":null,"));
    EXPECT_TRUE(has(text, "\"bytes\":67108864,"));
    EXPECT_TRUE(has(text, "\"median\":20.5,"));
    EXPECT_TRUE(has(text, "\"verified\":true,"));
    EXPECT_TRUE(has(text, "\"device\":\"a \\\"device\\\"\\\\\\u000a\""));
}

TEST(Report, JsonHasTheLimitWhereItWasMeasured)
{
    bench_result result = some_result();
    result.compared = true;
    result.limit = 22;
    result.ratio = 0.93;
    std::string text = written(bench_report_json, result);
    EXPECT_TRUE(has(text, "\"limit\":22,\"ratio\":0.93,"));
}

TEST(Report, TableRow)
{
    bench_result result = some_result();
    result.exchange = true;
    result.ops = 1024;
    result.segments = 1;
    result.imports = 1;
    std::string text = written(bench_report_table, result);
    EXPECT_TRUE(has(text, "64M"));
    EXPECT_TRUE(has(text, "GB/s"));
    EXPECT_TRUE(has(text, "ipc/memcpy"));
    EXPECT_TRUE(has(text, "1024 operations a peer, 1 allocations: 1.00 imports"));
}

// A kernel that ran beside receives, of which one was refused.
static bench_overlap some_overlap()
{
    bench_overlap overlap = {};
    overlap.kernel = "gemm";
    overlap.beside = "waiting";
    overlap.threads = 384;
    overlap.registers = 168;
    overlap.shared = 200 << 10;
    overlap.streams = 8;
    overlap.receives = 2;
    overlap.posted = 15;
    overlap.refused = 1;
    overlap.blocks = 2640;
    overlap.begun = 2640;
    overlap.multiprocessors = 68;
    overlap.idle_multiprocessors = 132;
    return overlap;
}

TEST(Report, OverlapSaysBesideWhatAndWhere)
{
    bench_overlap overlap = some_overlap();
    bench_result result = some_result();
    result.overlap = &overlap;
    std::string text = written(bench_report_table, result);
    EXPECT_TRUE(has(text, "gemm beside 2 waiting receives on each of 8 streams (384 threads, 168 "
                          "registers, 200K bytes of shared memory): on 68 multiprocessors, idle on "
                          "132; -EAGAIN after 15 receives\n"))
        << text;
    text = written(bench_report_json, result);
    EXPECT_TRUE(has(text, "\"kernel\":\"gemm\",\"beside\":\"waiting\",\"threads\":384,"
                          "\"registers\":168,\"shared\":204800,\"receives\":2,\"posted\":15,"
                          "\"refused\":1,"
                          "\"blocks\":2640,\"begun\":2640,\"multiprocessors\":68,"
                          "\"idle_multiprocessors\":132,"))
        << text;
    EXPECT_TRUE(has(written(bench_report_json, some_result()), "\"kernel\":null,\"beside\":null,"));
}

TEST(Report, AKernelThatDidNotEndHasNoFigures)
{
    bench_overlap overlap = some_overlap();
    overlap.stuck = true;
    overlap.begun = 0;
    overlap.refused = 0;
    overlap.streams = overlap.receives = overlap.posted = 1;
    bench_result result = some_result();
    result.overlap = &overlap;
    std::string text = written(bench_report_table, result);
    EXPECT_TRUE(has(text, "1 waiting receive on 1 stream (")) << text;
    EXPECT_TRUE(has(text, ": it did not end in time, 0 of 2640 blocks began\n")) << text;
    EXPECT_FALSE(has(text, "20.5"));
    text = written(bench_report_json, result);
    EXPECT_TRUE(has(text, "\"median\":null,\"min\":null,\"p90\":null,\"p99\":null,")) << text;
}

TEST(Report, MessagesBesideAKernel)
{
    bench_overlap overlap = some_overlap();
    overlap.beside = "moving";
    overlap.of_messages = true;
    overlap.receives = overlap.posted = 0;
    overlap.refused = 3;
    bench_result result = some_result();
    result.overlap = &overlap;
    EXPECT_TRUE(has(written(bench_report_table, result), "; calls that said -EAGAIN: 3\n"));
    EXPECT_TRUE(has(written(bench_report_table, result), "    messages beside gemm (384 threads"));
    EXPECT_TRUE(has(written(bench_report_json, result), "\"receives\":null,\"posted\":null,"));
}

TEST(Report, WhatWasBeside)
{
    std::string plain = written(bench_report_json, some_result());
    EXPECT_TRUE(has(
        plain, "\"late\":null,\"late_us\":null,\"warm\":null,\"graphs\":null,\"fresh\":false,"));
    EXPECT_EQ(written(bench_report_table, some_result()).find('\n'),
              written(bench_report_table, some_result()).size() - 1);

    bench_result result = some_result();
    result.late = "message";
    result.late_us = 1000;
    result.warm = 3.5;
    result.compared = true;
    result.metric = "one_way_us";
    result.stats.median = 5.5;
    result.limit = 4.25;
    result.graphs = 64;
    std::string text = written(bench_report_table, result);
    EXPECT_TRUE(has(text, "us one way"));
    EXPECT_TRUE(
        has(text,
            "    message 1000 us late: 1.250 us more than on time (limit); with no rest 3.500\n"));
    EXPECT_TRUE(has(text, "    64 graphs\n"));
    EXPECT_TRUE(has(written(bench_report_json, result),
                    "\"late\":\"message\",\"late_us\":1000,\"warm\":3.5,\"graphs\":64,"));
    result.metric = "three_messages_us";
    EXPECT_TRUE(has(written(bench_report_table, result), "us for 3"));

    result = some_result();
    result.fresh = true;
    result.metric = "fresh_us";
    result.offers = 1;
    EXPECT_TRUE(has(written(bench_report_table, result), "us a message"));
    EXPECT_TRUE(has(written(bench_report_table, result), "    fresh: 0.00 imports, 1.00 offers"));
    text = written(bench_report_json, result);
    EXPECT_TRUE(has(text, "\"fresh\":true,"));
    EXPECT_TRUE(has(text, "\"offers\":1,"));
}

TEST(Report, Sizes)
{
    char text[32];
    EXPECT_STREQ(bench_size_text(0, text, sizeof(text)), "0");
    EXPECT_STREQ(bench_size_text(1023, text, sizeof(text)), "1023");
    EXPECT_STREQ(bench_size_text(1024, text, sizeof(text)), "1K");
    EXPECT_STREQ(bench_size_text(1536, text, sizeof(text)), "1536");
    EXPECT_STREQ(bench_size_text((size_t)4 << 30, text, sizeof(text)), "4G");
    EXPECT_STREQ(bench_size_text((size_t)4 << 40, text, sizeof(text)), "4096G");
}
