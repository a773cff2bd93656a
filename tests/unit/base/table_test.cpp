// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

extern "C" {
#include "base/config.h"
#include "base/table.h"
}

namespace
{

class Table : public testing::Test
{
  protected:
    void SetUp() override
    {
        phi_report_init(&report, nullptr, nullptr, PH_LOG_NONE);
        config.ll_max = config.sm_max = -1;
    }

    void TearDown() override
    {
        phi_table_fini(&table);
        phi_report_fini(&report);
    }

    int parse(const std::string &text)
    {
        phi_table_fini(&table);
        return phi_table_parse("the-file", text.data(), text.size(), &report, &table);
    }

    std::string error()
    {
        char text[1024];
        phi_report_copy(&report, text, sizeof(text));
        return text;
    }

    void expect(const char *own, const char *peer, int64_t ll_max, int64_t sm_max)
    {
        phi_limits limits = phi_table_limits(&table, &config, {own, peer, false});
        EXPECT_EQ(limits.ll_max, ll_max) << own << ", " << peer;
        EXPECT_EQ(limits.sm_max, sm_max) << own << ", " << peer;
    }

    phi_config config{};
    phi_table table{};
    phi_report report;
};

TEST_F(Table, TheFirstLineThatFitsCountsAndTheDefaultsElse)
{
    ASSERT_EQ(parse("# a comment\n"
                    "\n"
                    "\"NVIDIA H200\" \"NVIDIA H200\" 4K 64M # measured\r\n"
                    "\t\"NVIDIA H200\" * 0 1g\n"
                    "A100 B 17 all#\n"
                    "* B 8192 0"),
              0)
        << error();
    EXPECT_EQ(table.count, 4u);
    expect("NVIDIA H200", "NVIDIA H200", 4096, 64 << 20);
    expect("NVIDIA H200", "B", 0, 1 << 30);
    expect("A100", "B", 17, INT64_MAX);
    expect("C", "B", 8192, 0);
    expect("A100", "NVIDIA H200", 8192, INT64_MAX);
    expect("NVIDIA", "H200", 8192, INT64_MAX);
}

TEST_F(Table, AMarkBeforeTheTextIsNoneOfIt)
{
    ASSERT_EQ(parse("\xEF\xBB\xBF"
                    "a b 17 all"),
              0)
        << error();
    expect("a", "b", 17, INT64_MAX);
    EXPECT_EQ(parse("\xEF\xBB"
                    "a b 17 all"),
              0); // the name of some device
    expect("a", "b", 8192, INT64_MAX);
}

TEST_F(Table, WhatTheConfigurationSaysWinsOverTheFile)
{
    ASSERT_EQ(parse("* * 1K 2K\n"), 0) << error();
    config.ll_max = 0;
    expect("a", "b", 0, 2048);
    config.ll_max = -1;
    config.sm_max = 7;
    expect("a", "b", 1024, 7);
    phi_limits none = phi_table_limits(nullptr, &config, {"a", "b", false});
    EXPECT_EQ(none.ll_max, 8192);
    EXPECT_EQ(none.sm_max, 7);
    none = phi_table_limits(nullptr, &config, {"NVIDIA H200", "NVIDIA H200", false}); // as measured
    EXPECT_EQ(none.ll_max, 1 << 20);
    const char *h100 = "NVIDIA H100 80GB HBM3";
    EXPECT_EQ(phi_table_limits(nullptr, &config, {h100, h100, false}).ll_max, 1 << 20);
    EXPECT_EQ(phi_table_limits(nullptr, &config, {h100, "NVIDIA H200", false}).ll_max, 8192);
    EXPECT_EQ(phi_table_limits(nullptr, &config, {"NVIDIA H200", "b", false}).ll_max, 8192);
    expect("NVIDIA H200", "NVIDIA H200", 1024, 7); // the file says otherwise
}

TEST_F(Table, SaysWhereLinesAreWide)
{
    const char *h100 = "NVIDIA H100 80GB HBM3";
    config.ll_max = 1 << 20; // says nothing of the link
    EXPECT_EQ(phi_table_limits(nullptr, &config, {"a", "b", false}).ll_max, 8192);
    EXPECT_EQ(phi_table_limits(nullptr, &config, {h100, h100, false}).ll_max, 1 << 20);
    EXPECT_TRUE(phi_table_wide(nullptr, {h100, h100, false}));
    EXPECT_FALSE(phi_table_wide(nullptr, {h100, "NVIDIA H200", false}));
    EXPECT_FALSE(phi_table_wide(nullptr, {"a", "b", false}));
    EXPECT_FALSE(phi_table_wide(nullptr, {h100, h100, true})) << "measured over NVLink only";
    EXPECT_EQ(phi_table_limits(nullptr, &config, {h100, h100, true}).ll_max, 8192);
    ASSERT_EQ(
        parse("a b 8193 all wide\nb c 1K 2K wide # so that a variable may say more\n* * 8K all\n"),
        0)
        << error();
    EXPECT_TRUE(phi_table_wide(&table, {"b", "c", false}));
    EXPECT_TRUE(phi_table_wide(&table, {"a", "b", false}));
    EXPECT_TRUE(phi_table_wide(&table, {"a", "b", true})) << "somebody has seen it";
    EXPECT_FALSE(phi_table_wide(&table, {"b", "a", false}));
    EXPECT_TRUE(phi_table_wide(&table, {h100, h100, false}))
        << "it says how far, not that they do not come whole";
}

TEST_F(Table, AWrongLineIsNamedAndNothingIsKept)
{
    const struct {
        const char *line, *said;
    } wrong[] = {
        {"a b 1", "must be"},
        {"a b 1 2 3", "must be"},
        {"\"a b 1 2", "quotes"},
        {"a\"b c 1 2", "quotes"},
        {"\"a\"b c 1 2", "quotes"},
        {"\"\" b 1 2", "without a name"},
        {"a b 1 2 narrow", "and wide or nothing"},
        {"a b 1 wide", "sm_max"},
        {"a b 1 2 3 wide", "must be"},
        {"a b 1 2 wide 3 4", "must be"},
        {"a b 1 2 wide wide", "must be"},
        {"a b 8193 all", "needs `wide`"},
        {"a b 1048577 all", "ll_max is a size from 0 to 1M, not '1048577'"},
        {"a b 1025K all", "'1025K'"},
        {"a b all all", "ll_max"},
        {"a b -1 2", "'-1'"},
        {"a b 1 2T", "sm_max"},
        {"a b 1 2KK", "'2KK'"},
        {"a b 1 K", "'K'"},
        {"a b 1 0x10", "'0x10'"},
        {"a b 1 9223372036854775808", "sm_max"},
        {"a b 1 9007199254740992K", "sm_max"},
        {"a b 1 99999999999999999999", "sm_max"},
    };
    for (const auto &one : wrong) {
        EXPECT_EQ(parse(std::string("* * 1 2\n# fine\n") + one.line + "\n* * 1 2\n"), -EINVAL)
            << one.line;
        EXPECT_NE(error().find("table the-file, line 3: "), std::string::npos) << error();
        EXPECT_NE(error().find(one.said), std::string::npos) << error();
        EXPECT_EQ(table.lines, nullptr);
    }
    EXPECT_EQ(parse(std::string("a b 1 2\0\n", 9)), -EINVAL);
    EXPECT_EQ(parse(std::string(65, 'a') + " b 1 2"), -EINVAL);
    EXPECT_EQ(parse(std::string(64, 'a') + " b 1 2"), 0) << error();
    EXPECT_EQ(parse("a b 1 2 #" + std::string(600, 'a')), -EINVAL);
    EXPECT_EQ(parse("a b 1 9223372036854775807"), 0) << error();
}

TEST_F(Table, OfAFile)
{
    char name[] = "/tmp/table-test.XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    const std::string folder = name, file = folder + "/table";
    EXPECT_EQ(phi_table_read(file.c_str(), &report, &table), -ENOENT);
    EXPECT_NE(error().find(file), std::string::npos) << error();
    EXPECT_EQ(phi_table_read(folder.c_str(), &report, &table), -EISDIR);
    ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
    EXPECT_EQ(phi_table_read(file.c_str(), &report, &table), -EINVAL) << "and at once";
    unlink(file.c_str());

    FILE *out = fopen(file.c_str(), "w");
    ASSERT_NE(out, nullptr);
    fputs("# later\n* * 5 6\n", out);
    fflush(out);
    EXPECT_EQ(phi_table_read(file.c_str(), &report, &table), 0) << error();
    expect("a", "b", 5, 6);
    ASSERT_EQ(ftruncate(fileno(out), (1 << 20) + 1), 0);
    phi_table_fini(&table);
    EXPECT_EQ(phi_table_read(file.c_str(), &report, &table), -EFBIG);
    fclose(out);
    unlink(file.c_str());
    rmdir(folder.c_str());
}

} // namespace
