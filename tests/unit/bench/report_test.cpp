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
