// SPDX-License-Identifier: BSD-3-Clause
// Ranks whose records say that they share a node, and whom no socket joins: cloned machines, and
// socket directories that are not shared. They meet over the net; one that is gone is not taken for
// such a rank.
#include <csignal>
#include <fstream>
#include <sys/mount.h>

#include "e2e/cable.h"

namespace
{

class Clones : public EveryDevice
{
  protected:
    void SetUp() override
    {
        EveryDevice::SetUp();
        if (!IsSkipped() && !has_network_namespaces())
            GTEST_SKIP() << "no network namespaces here: they need root and the ip command";
    }
};
INSTANTIATE_TEST_SUITE_P(Device, Clones, testing::Values("host", "standin"),
                         [](const auto &info) { return info.param; });

// What tells namespaces apart reads the same in both ranks, as their boot id does. For the process
// that calls alone.
void claim_one_machine()
{
    const std::string ns = "/proc/" + std::to_string(getpid()) + "/ns";
    CHECK(unshare(CLONE_NEWNS) == 0);
    CHECK(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0);
    CHECK(mount("none", ns.c_str(), "tmpfs", 0, nullptr) == 0);
    for (const char *each : {"/net", "/pid", "/ipc", "/user"})
        CHECK(symlink("/proc/self/exe", (ns + each).c_str()) == 0);
}

void path_is_net(Rank &rank, struct ph_channel *channel)
{
    ph_path_report report;
    CHECK_OK(ph_channel_path(channel, 1, &report, sizeof report));
    CHECK(std::string(report.path) == "net");
    CHECK(report.rejected_count > 0);
    const auto &last = report.rejected[report.rejected_count - 1];
    CHECK(std::string(last.name) == "ipc");
    CHECK(std::string(last.reason).find("the peer lives, and nobody listens at its socket") == 0);
}

RANK_FUNCTION(between_clones)
{
    join(rank);
    claim_one_machine();
    rank.open();
    auto *memory = static_cast<char *>(rank.device->alloc(2 * size));
    void *stream = rank.device->stream();
    struct ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, 2 * size);
    path_is_net(rank, channel);
    put_both_ways(rank, channel, memory, stream, 4);
}

TEST_P(Clones, MeetOverTheNet)
{
    Job job(GetParam(), 2);
    job.environment("PEERHOP_NET_PROVIDER", "tcp");
    EXPECT_EQ(job.run("between_clones"), "");
}

// Where the net does not serve either, that is told at once, with both reasons.
RANK_FUNCTION(clones_without_a_net)
{
    join(rank);
    claim_one_machine();
    rank.open();
    ph_operation operation = {};
    operation.op_id = 1;
    operation.peer = !rank.rank;
    operation.role = PH_ROLE_BOTH;
    operation.buffer = rank.device->alloc(size);
    operation.size = size;
    ph_channel *channel = nullptr;
    ph_exchange_request *request = nullptr;
    CHECK_OK(ph_exchange_start(rank.context, &operation, 1, &request));
    CHECK_RC(ph_exchange_finish(&request, &channel, patience(20000).count()), PH_ENOPATH);
    for (const char *part : {"ipc: the peer lives, and nobody listens", "net: "})
        CHECK(rank.error().find(part) != std::string::npos);
    rank.barrier();
}

TEST_P(Clones, ThatNothingJoinsAreToldAtOnce)
{
    Job job(GetParam(), 2);
    job.environment("PEERHOP_NET_PROVIDER", "nonesuch");
    EXPECT_EQ(job.run("clones_without_a_net"), "");
}

// Two containers of one network whose socket directories are not one.
RANK_FUNCTION(beside_a_directory)
{
    CHECK(unshare(CLONE_NEWNS) == 0);
    CHECK(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0);
    CHECK(mount("none", rank.argument.c_str(), "tmpfs", 0, nullptr) == 0);
    const std::string setting = "PEERHOP_SOCKET_DIRECTORY=" + rank.argument;
    rank.open({setting.c_str()});
    auto *memory = static_cast<char *>(rank.device->alloc(2 * size));
    void *stream = rank.device->stream();
    struct ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, 2 * size);
    path_is_net(rank, channel);
    put_both_ways(rank, channel, memory, stream, 1);
}

TEST_P(Clones, SocketDirectoriesThatAreNotSharedLeaveTheNet)
{
    char directory[] = "/tmp/peerhop-apart-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    Job job(GetParam(), 2);
    job.environment("PEERHOP_NET_PROVIDER", "tcp");
    EXPECT_EQ(job.run("beside_a_directory", directory), "");
    rmdir(directory);
}

// At whose socket nobody listens as it was killed is met by ipc when it comes again; meanwhile no
// net is opened for it, and what it was told then is no warning to its next life. value[0]: lives
// of rank 1 so far; value[3]: the first is there; value[1]: it was killed; value[2]: rank 0 has
// found nobody.
RANK_FUNCTION(gone_before_contact)
{
    const bool first = rank.rank == 1 && rank.shared->value[0].fetch_add(1) == 0;
    rank.open();
    rank.shared->value[3] += first;
    if (first)
        pause(); // killed by the test
    CHECK(reaches(rank.shared->value[1], 1));
    auto *memory = static_cast<char *>(rank.device->alloc(size));
    ph_operation operation = {};
    operation.op_id = 1;
    operation.peer = !rank.rank;
    operation.role = PH_ROLE_BOTH;
    operation.buffer = memory;
    operation.size = size;
    ph_exchange_request *request = nullptr;
    ph_channel *channel = nullptr;
    CHECK_OK(ph_exchange_start(rank.context, &operation, 1, &request));
    if (rank.rank == 0) {
        CHECK_RC(ph_exchange_finish(&request, &channel, 1000), -ETIMEDOUT);
        CHECK(rank.error().find("nobody listens at its socket") != std::string::npos);
        rank.shared->value[2] = 1;
        CHECK_OK(ph_exchange_start(rank.context, &operation, 1, &request));
    }
    CHECK_OK(ph_exchange_finish(&request, &channel, patience(20000).count()));
    ph_path_report report;
    CHECK_OK(ph_channel_path(channel, 1, &report, sizeof report));
    CHECK(std::string(report.path) == "ipc");
    std::ifstream maps("/proc/self/maps");
    const std::string loaded(std::istreambuf_iterator<char>(maps), {});
    CHECK(loaded.find("libfabric") == std::string::npos);
    if (rank.log.find("dropped") != std::string::npos)
        rank_failed(__FILE__, __LINE__, rank.log);
    rank.barrier();
}

TEST_P(Clones, WhoIsGoneIsNotLookedForOverTheNet)
{
    Job job(GetParam(), 2);
    job.start("gone_before_contact");
    ASSERT_TRUE(reaches(job.shared()->value[3], 1)) << job.wait(100);
    job.signal(1, SIGKILL);
    EXPECT_EQ(job.status(1, 60000), 128 + SIGKILL);
    job.shared()->value[1] = 1;
    ASSERT_TRUE(reaches(job.shared()->value[2], 1)) << job.wait(100);
    job.start_rank(1, "gone_before_contact");
    EXPECT_EQ(job.wait(), "");
}

} // namespace
