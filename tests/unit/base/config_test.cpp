// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "base/config.h"
}

extern char **environ;

namespace
{

void keep(void *opaque, enum ph_log_level, const char *line)
{
    static_cast<std::vector<std::string> *>(opaque)->push_back(line);
}

class Config : public testing::Test
{
  protected:
    // Every test starts without what the surroundings (a launcher, a developer's shell) set.
    void SetUp() override
    {
        std::vector<std::string> names;
        for (char **entry = environ; *entry; entry++) {
            for (const char *prefix : {"PEERHOP_", "SLURM_", "PMI", "TORCHELASTIC_",
                                       "RANK=", "WORLD_SIZE=", "LOCAL_RANK="}) {
                if (strncmp(*entry, prefix, strlen(prefix)) == 0)
                    names.emplace_back(*entry, strcspn(*entry, "="));
            }
        }
        for (const std::string &name : names)
            unsetenv(name.c_str());
        phi_report_init(&report, keep, &lines, PH_LOG_WARN);
    }

    void TearDown() override
    {
        phi_config_fini(&config);
        phi_report_fini(&report);
        for (const char *name : set_names)
            unsetenv(name);
    }

    void env(const char *name, const char *value)
    {
        setenv(name, value, 1);
        set_names.push_back(name);
    }

    int read(std::vector<const char *> settings = {})
    {
        settings.push_back(nullptr);
        return phi_config_read(&config, settings.data(), &report);
    }

    std::string error()
    {
        char text[1024];
        phi_report_copy(&report, text, sizeof(text));
        return text;
    }

    std::string print()
    {
        char *text = nullptr;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        phi_config_print(out, &config);
        fclose(out);
        std::string printed = text;
        free(text);
        return printed;
    }

    phi_config config{};
    phi_report report;
    std::vector<std::string> lines;
    std::vector<const char *> set_names;
};

TEST_F(Config, Defaults)
{
    ASSERT_EQ(phi_config_read(&config, nullptr, &report), 0);
    EXPECT_STREQ(config.job, "");
    EXPECT_STREQ(config.libcuda, "libcuda.so.1");
    EXPECT_EQ(config.rank, -1);
    EXPECT_EQ(config.ranks, 0);
    EXPECT_EQ(config.deadline_ms, 60000);
    EXPECT_EQ(config.protocol, 0);
    EXPECT_EQ(config.wait, PHI_WAIT_AUTO);
    EXPECT_EQ(config.method, PHI_METHOD_AUTO);
    EXPECT_EQ(config.log, PH_LOG_WARN);
    EXPECT_TRUE(lines.empty());
}

// The enums that code compares with are the places of the words in the table.
TEST_F(Config, WordsMatchTheirEnums)
{
    ASSERT_EQ(read({"PEERHOP_WAIT=kernel", "PEERHOP_METHOD=ce", "PEERHOP_LOG=debug"}), 0);
    EXPECT_EQ(config.wait, PHI_WAIT_KERNEL);
    EXPECT_EQ(config.method, PHI_METHOD_CE);
    EXPECT_EQ(config.log, PH_LOG_DEBUG);
    phi_config_fini(&config);
    ASSERT_EQ(
        read({"PEERHOP_WAIT=memory_operation", "PEERHOP_METHOD=copy_kernel", "PEERHOP_LOG=error"}),
        0);
    EXPECT_EQ(config.wait, PHI_WAIT_MEMORY_OPERATION);
    EXPECT_EQ(config.method, PHI_METHOD_COPY_KERNEL);
    EXPECT_EQ(config.log, PH_LOG_ERROR);
}

TEST_F(Config, EnvironmentThenSettings)
{
    env("PEERHOP_RANK", "3");
    env("PEERHOP_RANKS", "8");
    env("PEERHOP_JOB", "from the environment");
    env("PEERHOP_PROTOCOL", "get");
    ASSERT_EQ(read({"PEERHOP_RANK=4", "PEERHOP_JOB=a", "PEERHOP_JOB=b"}), 0);
    EXPECT_EQ(config.rank, 4);
    EXPECT_EQ(config.ranks, 8);
    EXPECT_STREQ(config.job, "b") << "the last setting wins";
    EXPECT_EQ(config.protocol, 1);
}

TEST_F(Config, EmptyValuesTakeTheDefault)
{
    env("PEERHOP_DEADLINE_MS", "");
    env("PEERHOP_WAIT", "");
    env("PEERHOP_STORE", "redis://h");
    ASSERT_EQ(read({"PEERHOP_STORE="}), 0);
    EXPECT_EQ(config.deadline_ms, 60000);
    EXPECT_EQ(config.wait, PHI_WAIT_AUTO);
    EXPECT_STREQ(config.store, "") << "an empty setting overrides the environment";
}

TEST_F(Config, RangesAreInclusive)
{
    ASSERT_EQ(read({"PEERHOP_DEADLINE_MS=1", "PEERHOP_RANK=1048575"}), 0);
    phi_config_fini(&config);
    EXPECT_EQ(read({"PEERHOP_DEADLINE_MS=0"}), -EINVAL);
    EXPECT_EQ(error(), "PEERHOP_DEADLINE_MS=0: must be a number from 1 to 86400000");
    EXPECT_EQ(read({"PEERHOP_RANK=1048576"}), -EINVAL);
    EXPECT_EQ(read({"PEERHOP_RANK=-2"}), -EINVAL);
    ASSERT_EQ(read({"PEERHOP_EPOCH=9223372036854775807"}), 0);
    EXPECT_EQ(config.epoch, INT64_MAX);
}

TEST_F(Config, WhatIsNoNumberIsRefused)
{
    for (const char *setting :
         {"PEERHOP_RANKS=two", "PEERHOP_RANKS=0x2", "PEERHOP_RANKS=2 ", "PEERHOP_RANKS= 2",
          "PEERHOP_RANKS=1e2", "PEERHOP_RANKS=-", "PEERHOP_RANKS=2-3",
          "PEERHOP_EPOCH=9223372036854775808", "PEERHOP_EPOCH=99999999999999999999"}) {
        EXPECT_EQ(read({setting}), -EINVAL) << setting;
        EXPECT_NE(error().find(setting), std::string::npos) << error();
    }
}

TEST_F(Config, ChoicesAreWholeWords)
{
    for (const char *setting : {"PEERHOP_WAIT=aut", "PEERHOP_WAIT=auto|kernel",
                                "PEERHOP_WAIT=KERNEL", "PEERHOP_WAIT=memory_operations"}) {
        EXPECT_EQ(read({setting}), -EINVAL) << setting;
        EXPECT_EQ(error(), std::string(setting) + ": must be one of auto|kernel|memory_operation");
    }
}

TEST_F(Config, AWrongEnvironmentFailsToo)
{
    env("PEERHOP_LOG", "loud");
    EXPECT_EQ(read(), -EINVAL);
    EXPECT_EQ(error(), "PEERHOP_LOG=loud: must be one of none|error|warn|info|debug");
    EXPECT_EQ(config.job, nullptr) << "the output was touched";
}

TEST_F(Config, UnknownSettingsFailWithoutTheirValue)
{
    for (const char *setting :
         {"PEERHOP_STOER=redis://u:secret@h", "peerhop_rank=secret", "PEERHOP_=secret"}) {
        EXPECT_EQ(read({setting}), -EINVAL) << setting;
        EXPECT_NE(error().find(std::string(setting, strcspn(setting, "="))), std::string::npos)
            << error();
        EXPECT_EQ(error().find("secret"), std::string::npos) << error();
    }
    EXPECT_EQ(read({"PEERHOP_RANK"}), -EINVAL) << "no value";
    EXPECT_EQ(read({"peerhop_rank=1"}), -EINVAL);
    EXPECT_NE(error().find("did you mean PEERHOP_RANK?"), std::string::npos) << error();
    EXPECT_EQ(read({"PEERHOP_HEARTBEAT=1"}), -EINVAL);
    EXPECT_NE(error().find("did you mean PEERHOP_HEARTBEAT_MS?"), std::string::npos) << error();
}

TEST_F(Config, UnknownVariablesOfTheEnvironmentAreWarnedOf)
{
    const std::string lists = "peerhop-info --config lists those that there are";
    for (auto &[name, meant] : std::vector<std::pair<const char *, std::string>>{
             {"PEERHOP_RNAK", "did you mean PEERHOP_RANK?"},
             {"PEERHOP_STOER", "did you mean PEERHOP_STORE?"},
             {"PEERHOP_NETINTERFACE", "did you mean PEERHOP_NET_INTERFACE?"},
             {"PEERHOP_NET_PROVIDERS", "did you mean PEERHOP_NET_PROVIDER?"},
             {"PEERHOP_log", "did you mean PEERHOP_LOG?"},
             {"PEERHOP_RUNS", "did you mean PEERHOP_RANK?"},
             {"PEERHOP_STANDINS", lists},
             {"PEERHOP_SOMETHING_ELSE", lists},
             {"PEERHOP_A_NAME_THAT_IS_FAR_LONGER_THAN_ANY_OF_OURS", lists}}) {
        lines.clear();
        setenv(name, "secret", 1);
        ASSERT_EQ(read(), 0);
        unsetenv(name);
        phi_config_fini(&config);
        ASSERT_EQ(lines.size(), 1u) << name;
        EXPECT_EQ(lines[0],
                  "unknown variable " + std::string(name) + " in the environment: " + meant);
    }
}

TEST_F(Config, VariablesOfTheProgramsAroundItAreNoneOfItsOwn)
{
    for (const char *name : {"PEERHOP_STANDIN", "PEERHOP_STANDIN_DEVICES", "PEERHOP_TEST_DEVICE",
                             "PEERHOP_LIBRARY", "PEERHOP_RUN"})
        env(name, "1");
    ASSERT_EQ(read(), 0);
    EXPECT_EQ(lines, std::vector<std::string>{});
}

TEST_F(Config, WarningsAreSeenUnlessPeerhopLogSaysOtherwise)
{
    EXPECT_EQ(phi_config_level(nullptr), PH_LOG_WARN);
    env("PEERHOP_LOG", "");
    EXPECT_EQ(phi_config_level(nullptr), PH_LOG_WARN);
    env("PEERHOP_LOG", "loud");
    EXPECT_EQ(phi_config_level(nullptr), PH_LOG_WARN);
    env("PEERHOP_LOG", "none");
    EXPECT_EQ(phi_config_level(nullptr), PH_LOG_NONE);
    const char *const settings[] = {"PEERHOP_LOG=debug", nullptr};
    EXPECT_EQ(phi_config_level(settings), PH_LOG_DEBUG);
}

TEST_F(Config, PrintShowsEveryVariableAndNoPassword)
{
    ASSERT_EQ(read({"PEERHOP_STORE=redis://ann:s3cr@t/x@host:1/2", "PEERHOP_WAIT=kernel",
                    "PEERHOP_RANK=5"}),
              0);
    std::string text = print();
#define EXPECT_NAME(member, name, ...)                                                             \
    EXPECT_NE(text.find("PEERHOP_" name "="), std::string::npos) << name;
    PHI_CONFIG_MAP(EXPECT_NAME, EXPECT_NAME, EXPECT_NAME)
#undef EXPECT_NAME
    EXPECT_NE(text.find("PEERHOP_STORE=redis://ann:***@host:1/2\n"), std::string::npos) << text;
    EXPECT_EQ(text.find("s3cr"), std::string::npos);
    EXPECT_NE(
        text.find("PEERHOP_WAIT=kernel\n    default auto, one of auto|kernel|memory_operation\n"),
        std::string::npos);
    EXPECT_NE(text.find("PEERHOP_RANK=5\n    default -1, -1 to 1048575\n"), std::string::npos);
    EXPECT_NE(text.find("in which kernels of ours wait at once"), std::string::npos);
}

TEST_F(Config, PrintKeepsUrisWithoutPassword)
{
    for (const char *uri : {"redis://host:6379/1", "redis://ann@host", "unix:///tmp/a:b"}) {
        ASSERT_EQ(read({(std::string("PEERHOP_STORE=") + uri).c_str()}), 0);
        EXPECT_NE(print().find(std::string("PEERHOP_STORE=") + uri + "\n"), std::string::npos)
            << print();
        phi_config_fini(&config);
    }
}

TEST_F(Config, PrintHidesWhatMayBeAPassword)
{
    const struct {
        const char *uri, *printed;
    } cases[] = {
        {"redis:ann:s3cret@host", "redis:***@host"},
        {"ann:s3cret@host", "ann:***@host"},
        {"s3cret@host", "***@host"},
        {"redis://ann:s3cret", "redis://ann:***"},
        {"redis://:s3cret@host", "redis://:***@host"},
        {"redis://ann:s3?cret@host/1", "redis://ann:***@host/1"},
        {"redis://host/1?password=s3cret", "redis://host/1?***"},
        {"redis://ann:s3cret@host?x=s3cret", "redis://ann:***@host?***"},
        {"unix://ann:s3cret@/run/r?db=2", "unix://ann:***@/run/r?db=2"},
        {"s3cret@a://b", "***@a://b"},
        {"redis://[::1]:6379", "redis://[::1]:6379"},
    };
    for (const auto &c : cases) {
        ASSERT_EQ(read({(std::string("PEERHOP_STORE=") + c.uri).c_str()}), 0);
        EXPECT_NE(print().find(std::string("PEERHOP_STORE=") + c.printed + "\n"), std::string::npos)
            << c.uri << "\n"
            << print();
        phi_config_fini(&config);
    }
    env("PEERHOP_STORE_PASSWORD", "s3cret");
    ASSERT_EQ(read(), 0);
    EXPECT_STREQ(config.store_password, "s3cret");
    EXPECT_NE(print().find("PEERHOP_STORE_PASSWORD=***\n"), std::string::npos);
    EXPECT_EQ(print().find("s3cret"), std::string::npos);
}

TEST_F(Config, FiniMayRunTwice)
{
    ASSERT_EQ(read({"PEERHOP_JOB=x"}), 0);
    phi_config_fini(&config);
    EXPECT_EQ(config.job, nullptr);
    phi_config_fini(&config);
}

} // namespace
