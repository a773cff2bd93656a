// SPDX-License-Identifier: BSD-3-Clause
// peerhop-info from outside.
#include <cstdlib>
#include <string>

#include <unistd.h>

#include <gtest/gtest.h>

#include <peerhop/version.h>

#include "support/command.h"

namespace
{

class PeerhopInfo : public testing::Test
{
  protected:
    // Runs it by the shell with these words before and after; both outputs are kept.
    int run(const std::string &arguments,
            const std::string &environment = "PEERHOP_LIBCUDA=/nonexistent.so")
    {
        return run_command("env " + environment + " \"$PEERHOP_INFO\" " + arguments, &out);
    }

    bool says(const std::string &text) const
    {
        return out.find(text) != std::string::npos;
    }

    std::string out;
};

TEST_F(PeerhopInfo, WithoutADriverItNamesTheReasonAndTheHost)
{
    EXPECT_EQ(run(""), 0);
    EXPECT_TRUE(says("peerhop " + std::to_string(PH_VERSION_MAJOR) + ".")) << out;
    EXPECT_TRUE(says("no CUDA device: ")) << out;
    EXPECT_TRUE(says("/nonexistent.so") || says("left out")) << out;
    EXPECT_TRUE(says("\n  host    ipc")) << out;
    EXPECT_FALSE(says("cuda:0")) << out;
}

TEST_F(PeerhopInfo, ProvidersOfTheNetAndTheReasonsAgainstThem)
{
    EXPECT_EQ(run("--net", "PEERHOP_LIBFABRIC=/nonexistent.so"), 0);
    EXPECT_TRUE(says("no net: ")) << out;
    if (says("not in this build"))
        GTEST_SKIP() << "built without libfabric";
    EXPECT_TRUE(says("/nonexistent.so")) << out;
    EXPECT_EQ(run("--net", "PEERHOP_NET_PROVIDER=tcp"), 0);
    EXPECT_EQ(out.find("libfabric "), 0u) << out;
    EXPECT_TRUE(says(" (libfabric.so.1), built for ")) << out;
    EXPECT_TRUE(says("is taken")) << out;
    EXPECT_TRUE(says("PEERHOP_NET_PROVIDER=tcp asks for another")) << out;
    EXPECT_EQ(run("--net --build"), 2);
}

TEST_F(PeerhopInfo, DevicesAndThePathBetweenEachTwo)
{
    const char *standin = getenv("STANDIN");
    if (!standin)
        GTEST_SKIP() << "built without cuda.h: no stand-in for the driver";
    EXPECT_EQ(run("", std::string("PEERHOP_LIBCUDA=") + standin), 0);
    EXPECT_TRUE(says("\n  cuda:0  Stand-in H200  GPU-")) << out;
    EXPECT_TRUE(says("cuda (cuda-ipc)")) << out;
    const bool net = says("\n  path net      built in");
    EXPECT_TRUE(
        says(net ? "\n  cuda:0  ipc     ipc     net(3)" : "\n  cuda:0  ipc     ipc     (3)"))
        << out;
    EXPECT_TRUE(says(net ? "\n  host    net(3)  net(3)  ipc" : "\n  host    (3)     (3)     ipc"))
        << out;
    EXPECT_TRUE(says("\n  (3) one rank has a device, the other has not\n")) << out;
    EXPECT_EQ(run("", std::string("PEERHOP_STANDIN_NO_PEER=1 PEERHOP_LIBCUDA=") + standin), 0);
    EXPECT_TRUE(says(net ? "\n  cuda:0  ipc     net(4)  " : "\n  cuda:0  ipc     (4)     ")) << out;
    EXPECT_TRUE(says("\n  (4) this device has no peer access to the other device\n")) << out;
}

TEST_F(PeerhopInfo, UpToWhichSizesMessagesGoByWhichMethod)
{
    const char *standin = getenv("STANDIN");
    if (!standin)
        GTEST_SKIP() << "built without cuda.h: no stand-in for the driver";
    char name[] = "/tmp/info-table.XXXXXX";
    const int fd = mkstemp(name);
    ASSERT_GE(fd, 0);
    FILE *out_file = fdopen(fd, "w");
    fputs("# ours\n\"Stand-in H200\" * 4K 1M wide\n", out_file);
    fclose(out_file);
    const std::string driver = std::string("PEERHOP_LIBCUDA=") + standin;
    const std::string table = std::string(" PEERHOP_TABLE=") + name;
    EXPECT_EQ(run("", driver), 0);
    EXPECT_TRUE(says("\n  cuda:0 to cuda:1  8192, all\n")) << out;
    EXPECT_EQ(run("", driver + table), 0);
    EXPECT_TRUE(says("\n  cuda:0 to cuda:1  4096, 1048576\n")) << out;
    EXPECT_EQ(run("", driver + table + " PEERHOP_LL_MAX=16 PEERHOP_SM_MAX=9000"), 0);
    EXPECT_TRUE(says("\n  cuda:0 to cuda:1  16, 9000\n")) << out;
    EXPECT_EQ(run("", driver + table + " PEERHOP_LL_MAX=8193 PEERHOP_SM_MAX=1048577"), 0);
    EXPECT_TRUE(says("\n  cuda:0 to cuda:1  8193, 1048577\n")) << out;
    EXPECT_EQ(run("", driver + table + " PEERHOP_METHOD=sm"), 0);
    EXPECT_TRUE(says("\nmessages between devices go as PEERHOP_METHOD says\n")) << out;
    EXPECT_FALSE(says("PEERHOP_TABLE")) << out;
    unlink(name);
    EXPECT_EQ(run("", driver + table), 1);
    EXPECT_EQ(out, std::string("peerhop-info: the table ") + name +
                       " (PEERHOP_TABLE) cannot be read: No such file or directory\n");
}

TEST_F(PeerhopInfo, CheckIsWellWhereEachByteComes)
{
    const char *standin = getenv("STANDIN");
    if (!standin)
        GTEST_SKIP() << "built without cuda.h: no stand-in for the driver";
    const std::string driver = std::string("PEERHOP_LIBCUDA=") + standin;
    EXPECT_EQ(run("--check", driver + " PEERHOP_STANDIN_DEVICES=3 PEERHOP_METHOD=ce"), 0) << out;
    for (const char *pair : {"cuda:0 and cuda:1", "cuda:0 and cuda:2", "cuda:1 and cuda:2"})
        EXPECT_TRUE(says(std::string(pair) + "  well    write, read, kernel stores, each way, "))
            << out;
    EXPECT_TRUE(says("\nall pairs are well: 3\n")) << out;
    EXPECT_EQ(run("--check", driver + " PEERHOP_STANDIN_DEVICES=1"), 0);
    EXPECT_EQ(out, "nothing to check: one CUDA device\n");
}

TEST_F(PeerhopInfo, CheckNamesWhichWayAndByWhatAByteIsWrong)
{
    const char *standin = getenv("STANDIN");
    if (!standin)
        GTEST_SKIP() << "built without cuda.h: no stand-in for the driver";
    const std::string driver =
        std::string("PEERHOP_LIBCUDA=") + standin + " PEERHOP_STANDIN_DEVICES=3 ";
    const struct {
        const char *loss, *pair, *sentence;
    } lines[] = {
        {"write 0-1", "0 and cuda:1", "cuda:0 wrote to cuda:1"},
        {"write 1-0", "0 and cuda:1", "cuda:1 wrote to cuda:0"},
        {"read 0-2", "0 and cuda:2", "cuda:0 read from cuda:2"},
        {"read 2-0", "0 and cuda:2", "cuda:2 read from cuda:0"},
        {"kernel 1-2", "1 and cuda:2", "cuda:1 stored by a kernel to cuda:2"},
        {"kernel 2-1", "1 and cuda:2", "cuda:2 stored by a kernel to cuda:1"},
    };
    for (const auto &line : lines) {
        EXPECT_EQ(run("--check", driver + "PEERHOP_STANDIN_LOSES='" + line.loss + "'"), 1);
        EXPECT_TRUE(says(std::string("cuda:") + line.pair + "  FAILED  of 1048576 bytes that " +
                         line.sentence + " byte 1048575 is wrong\n"))
            << line.loss << out;
        EXPECT_TRUE(says("\n1 of 3 pairs FAILED\n")) << line.loss << out;
    }
    EXPECT_EQ(run("--check", driver + "PEERHOP_STANDIN_NO_PEER=0-2"), 1);
    EXPECT_TRUE(says("cuda:0 and cuda:2  FAILED  cuda:")) << out;
    EXPECT_TRUE(says("this device has no peer access to the other device")) << out;
    EXPECT_TRUE(says("cuda:0 and cuda:1  well ")) << out;
}

TEST_F(PeerhopInfo, CheckWithoutADeviceIsAFailure)
{
    EXPECT_EQ(run("--check"), 1);
    EXPECT_EQ(out.rfind("peerhop-info: no CUDA device: ", 0), 0u) << out;
    EXPECT_EQ(run("--check word"), 2);
}

TEST_F(PeerhopInfo, BuildListsWhatIsLeftOut)
{
    EXPECT_EQ(run("--build"), 0);
    EXPECT_TRUE(says("CUDA headers")) << out;
    EXPECT_TRUE(says("kernels")) << out;
    EXPECT_TRUE(says("path ipc      built in")) << out;
    EXPECT_FALSE(says("devices")) << out;
}

TEST_F(PeerhopInfo, VersionSaysWhatTheBuildHas)
{
    EXPECT_EQ(run("--version"), 0);
    const std::string version = std::to_string(PH_VERSION_MAJOR) + "." +
                                std::to_string(PH_VERSION_MINOR) + "." +
                                std::to_string(PH_VERSION_PATCH);
    EXPECT_EQ(out.rfind("peerhop-info " + version + "\nCUDA: ", 0), 0u) << out;
    EXPECT_TRUE(says(", net: ")) << out;
    EXPECT_TRUE(says(", kernels: ")) << out;
}

TEST_F(PeerhopInfo, ConfigShowsWhatIsInForce)
{
    EXPECT_EQ(run("--config", "PEERHOP_SPIN_US=77 PEERHOP_STORE=redis://u:hidden@h"), 0);
    EXPECT_TRUE(says("PEERHOP_SPIN_US=77\n    default 50, 0 to 1000000\n")) << out;
    EXPECT_TRUE(says("PEERHOP_STORE=redis://u:***@h\n")) << out;
    EXPECT_FALSE(says("hidden"));
    EXPECT_FALSE(says("devices")) << out;
    const size_t aids = out.find("\nMeasuring aids: ");
    EXPECT_LT(out.find("PEERHOP_LOG="), aids) << out;
    EXPECT_LT(aids, out.find("PEERHOP_METHOD=")) << out;
}

TEST_F(PeerhopInfo, AWrongVariableIsNamed)
{
    EXPECT_EQ(run("", "PEERHOP_SPIN_US=fast"), 1);
    EXPECT_EQ(out, "peerhop-info: PEERHOP_SPIN_US=fast: must be a number from 0 to 1000000\n");
}

TEST_F(PeerhopInfo, AJobNeedsAStore)
{
    EXPECT_EQ(run("--job j", "-u PEERHOP_STORE"), 1);
    EXPECT_EQ(out, "peerhop-info: no store is given: set PEERHOP_STORE\n");
}

TEST_F(PeerhopInfo, AStoreThatIsNotThereIsNamedInTimeAndWithoutItsPassword)
{
    EXPECT_EQ(run("--job j --timeout-ms 100 --store redis://u:hidden@127.0.0.1:1/0"), 1);
    EXPECT_TRUE(says("peerhop-info: ") && says("127.0.0.1:1")) << out;
    EXPECT_FALSE(says("hidden")) << out;
}

TEST_F(PeerhopInfo, WrongUse)
{
    const struct {
        const char *arguments, *sentence;
    } lines[] = {
        {"--job --epoch 1", "--epoch needs the name of a job"},
        {"--job --store file:/tmp", "--store needs the name of a job"},
        {"--version word", "'word' is no option"},
        {"--job ''", "'' is no value of job"},
        {"--job 'a b'", "'a b' is no value of job"},
        {"--job j word", "'word' is no option"},
        {"--job j --config", "'--config' is no option, or not beside the others"},
        {"--job j --epoch x", "'x' is no value of epoch"},
        {"--job j --timeout-ms 0", "'0' is no value of timeout-ms"},
        {"--job j -o xml", "'xml' is no value of -o"},
        {"--job j -o", "'-o' needs a value"},
        {"--epoch 1", "these are options of --job"},
        {"--what", "'--what' is no option"},
        {"word", "'word' is no option"},
        {"--build word", "'word' is no option"},
    };
    for (const auto &line : lines) {
        EXPECT_EQ(run(line.arguments), 2) << line.arguments;
        EXPECT_TRUE(says(std::string("peerhop-info: ") + line.sentence)) << line.arguments << out;
        EXPECT_TRUE(says("usage: peerhop-info")) << out;
    }
    EXPECT_EQ(run("--help"), 0);
}

// Who mistypes an option does not find the store's password in a log.
TEST_F(PeerhopInfo, WrongUseRepeatsNoPassword)
{
    const std::string uri = "redis://ann:hidden-word@host";
    for (const std::string &arguments : {uri, "--build " + uri, "--stroe=" + uri, "--config=" + uri,
                                         "--job j " + uri, "--job j --stroe=" + uri}) {
        EXPECT_EQ(run(arguments), 2) << arguments;
        EXPECT_TRUE(says("redis://ann:***@host' is no option")) << out;
        EXPECT_FALSE(says("hidden-word")) << out;
    }
}

TEST_F(PeerhopInfo, WhatCannotBeWrittenIsAFailure)
{
    for (const char *what : {"", "--build", "--config", "--version"})
        EXPECT_EQ(run(std::string(what) + " >/dev/full"), 1) << what;
}

} // namespace
