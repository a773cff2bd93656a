// SPDX-License-Identifier: BSD-3-Clause
#include <cstring>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>
#include <string>

extern "C" {
#include "base/config.h"
#include "cuda/device.h"
#include "transport/transport.h"
}

namespace
{

// Two ranks of one node, with a device each, which see each other's and reach it.
class Path : public testing::Test
{
  protected:
    void SetUp() override
    {
        for (phi_capabilities *rank : {&a, &b}) {
            rank->node[0] = 1;
            rank->device = rank->kernels = rank->net = true;
            rank->kinds = 1u << PHI_KIND_CUDA;
            rank->network = 5;
            rank->container = 0;
            strcpy(rank->socket, "@peerhop-");
        }
        a.uuid[0] = 1;
        b.uuid[0] = 2;
        sees(a, b, PHI_ACCESS_MAP);
        sees(b, a, PHI_ACCESS_MAP);
    }

    static void sees(phi_capabilities &who, const phi_capabilities &other, uint8_t access)
    {
        memcpy(who.other_uuid[0], other.uuid, sizeof other.uuid);
        who.other_access[0] = access;
        who.others = 1;
    }

    // What both compute, and why not ipc and the net.
    void expect(bool net, phi_reason ipc_here, phi_reason ipc_there, phi_reason against_net) const
    {
        EXPECT_EQ(phi_path_net(&a, &b), net);
        EXPECT_EQ(phi_path_net(&b, &a), net);
        EXPECT_EQ(phi_path_only_net(&a, &b), phi_path_only_net(&b, &a));
        EXPECT_EQ(phi_path_viable(false, &a, &b, PHI_KIND_CUDA), ipc_here);
        EXPECT_EQ(phi_path_viable(false, &b, &a, PHI_KIND_CUDA), ipc_there);
        EXPECT_EQ(phi_path_viable(true, &a, &b, PHI_KIND_CUDA), against_net);
    }

    phi_capabilities a = {}, b = {};
};

TEST_F(Path, IpcWhereNothingIsKnownAgainstIt)
{
    expect(false, PHI_REASON_NONE, PHI_REASON_NONE, PHI_REASON_NET_ASKED);
    a.others = b.others = 0; // each sees its own device only
    expect(false, PHI_REASON_NONE, PHI_REASON_NONE, PHI_REASON_NET_ASKED);
    sees(a, b, 0);
    memcpy(b.uuid, a.uuid, sizeof a.uuid); // the same device
    expect(false, PHI_REASON_NONE, PHI_REASON_NONE, PHI_REASON_NET_ASKED);
}

TEST_F(Path, NetWhereOneDeviceIsKnownNotToReachTheOther)
{
    sees(a, b, 0);
    expect(true, PHI_REASON_PEER_ACCESS, PHI_REASON_ACCESS_THERE, PHI_REASON_NONE);
    EXPECT_FALSE(phi_path_only_net(&a, &b));
    b.others = 0; // does not see it
    expect(true, PHI_REASON_PEER_ACCESS, PHI_REASON_ACCESS_THERE, PHI_REASON_NONE);
    sees(b, a, 0);
    expect(true, PHI_REASON_PEER_ACCESS, PHI_REASON_PEER_ACCESS, PHI_REASON_NONE);
    EXPECT_EQ(phi_ipc_reach(&a, &b, PHI_KIND_CUDA), PHI_REASON_PEER_ACCESS);
    sees(a, b, PHI_ACCESS_MAP);
    EXPECT_EQ(phi_ipc_reach(&a, &b, PHI_KIND_CUDA), PHI_REASON_NONE);
}

TEST_F(Path, InDoubtWhereNeitherSeesTheOthersDevice)
{
    EXPECT_FALSE(phi_path_doubt(&a, &b));
    a.container = 7;
    EXPECT_FALSE(phi_path_doubt(&a, &b)); // that of the other is not known
    b.container = 8;
    EXPECT_TRUE(phi_path_doubt(&a, &b) && phi_path_doubt(&b, &a));
    b.container = 7;
    EXPECT_FALSE(phi_path_doubt(&a, &b));
    a.others = 0;
    EXPECT_FALSE(phi_path_doubt(&a, &b) || phi_path_doubt(&b, &a)); // one knows
    b.others = 0;
    EXPECT_TRUE(phi_path_doubt(&a, &b) && phi_path_doubt(&b, &a));
    b.net = false; // what the try says would be of no use
    EXPECT_FALSE(phi_path_doubt(&a, &b) || phi_path_doubt(&b, &a));
    b.net = true;
    b.path = PHI_PATH_IPC;
    EXPECT_FALSE(phi_path_doubt(&a, &b) || phi_path_doubt(&b, &a));
    b.path = PHI_PATH_NET;
    EXPECT_FALSE(phi_path_doubt(&a, &b) || phi_path_doubt(&b, &a));
    b.path = PHI_PATH_AUTO;
    b.uuid[0] = a.uuid[0];
    EXPECT_FALSE(phi_path_doubt(&a, &b) || phi_path_doubt(&b, &a));
    a.container = 8;
    EXPECT_TRUE(phi_path_doubt(&a, &b) && phi_path_doubt(&b, &a));
    a.device = b.device = false;
    EXPECT_FALSE(phi_path_doubt(&a, &b) || phi_path_doubt(&b, &a));
}

TEST_F(Path, NetWhereOnlyOneRankHasADevice)
{
    b.device = b.kernels = false;
    expect(true, PHI_REASON_DEVICE, PHI_REASON_DEVICE, PHI_REASON_NONE);
}

TEST_F(Path, NetWhereNoSocketConnectsTheTwo)
{
    b.network = 6;
    expect(true, PHI_REASON_SOCKET, PHI_REASON_SOCKET, PHI_REASON_NONE);
    EXPECT_TRUE(phi_path_only_net(&a, &b));
    b.net = false;
    expect(false, PHI_REASON_SOCKET, PHI_REASON_SOCKET, PHI_REASON_NET_THERE);
    EXPECT_FALSE(phi_path_only_net(&a, &b)); // whose sockets say so themselves
    b.net = true;
    strcpy(a.socket, "/run/peerhop-");
    expect(true, PHI_REASON_SOCKET, PHI_REASON_SOCKET, PHI_REASON_NONE);
    strcpy(b.socket, "/run/peerhop-");
    expect(false, PHI_REASON_NONE, PHI_REASON_NONE, PHI_REASON_NET_ASKED);
    strcpy(b.socket, "@peerhop-");
    b.network = 0; // not known
    expect(false, PHI_REASON_NONE, PHI_REASON_NONE, PHI_REASON_NET_ASKED);
}

// Process ids are those of a PID namespace of one machine, and clones have equal numbers of both.
TEST_F(Path, AProcessIsTheSameOnlyWhereNothingSpeaksAgainstOneMachine)
{
    a.container = b.container = 7;
    a.pid = b.pid = 42;
    EXPECT_TRUE(phi_capabilities_same_process(&a, &b));
    strcpy(b.host, "clone");
    EXPECT_FALSE(phi_capabilities_same_process(&a, &b));
    strcpy(b.host, a.host);
    b.network = a.network + 1;
    EXPECT_FALSE(phi_capabilities_same_process(&a, &b));
    b.network = a.network;
    b.pid++;
    EXPECT_FALSE(phi_capabilities_same_process(&a, &b));
}

TEST_F(Path, IpcAloneWhereTheNetIsNotInBothBuildsOrIsForbidden)
{
    sees(a, b, 0);
    a.net = false;
    expect(false, PHI_REASON_PEER_ACCESS, PHI_REASON_ACCESS_THERE, PHI_REASON_NOT_BUILT);
    a.net = true;
    b.net = false;
    expect(false, PHI_REASON_PEER_ACCESS, PHI_REASON_ACCESS_THERE, PHI_REASON_NET_THERE);
    b.net = true;
    b.kernels = false;
    expect(false, PHI_REASON_PEER_ACCESS, PHI_REASON_ACCESS_THERE, PHI_REASON_NET_DEVICE);
    b.kernels = true;
    b.path = PHI_PATH_IPC;
    expect(false, PHI_REASON_PEER_ACCESS, PHI_REASON_ACCESS_THERE, PHI_REASON_USER);
    a.path = PHI_PATH_NET; // ipc is the stronger word
    expect(false, PHI_REASON_PEER_ACCESS, PHI_REASON_ACCESS_THERE, PHI_REASON_USER);
}

TEST_F(Path, NetAloneBetweenNodesAndWhereItIsAskedFor)
{
    a.path = PHI_PATH_NET;
    expect(true, PHI_REASON_USER, PHI_REASON_USER, PHI_REASON_NONE);
    EXPECT_TRUE(phi_path_only_net(&a, &b));
    a.path = PHI_PATH_AUTO;
    a.node[0] = 2;
    expect(true, PHI_REASON_NODE, PHI_REASON_NODE, PHI_REASON_NONE);
    EXPECT_TRUE(phi_path_only_net(&a, &b));
    a.net = false; // not served, and no other way
    expect(true, PHI_REASON_NODE, PHI_REASON_NODE, PHI_REASON_NOT_BUILT);
}

TEST_F(Path, RecordsSayWhatADeviceReaches)
{
    a.others = PHI_OTHERS_MAX;
    b.others = 0; // what it sees is not told
    for (int i = 0; i < PHI_OTHERS_MAX; i++) {
        a.other_uuid[i][0] = static_cast<uint8_t>(10 + i);
        a.other_access[i] = static_cast<uint8_t>(i % 4);
    }
    phi_writer writer = {};
    phi_capabilities got;
    phi_capabilities_encode(&a, &writer);
    ASSERT_EQ(phi_capabilities_decode(&got, writer.bytes, writer.size), 0);
    EXPECT_EQ(got.net, a.net);
    EXPECT_EQ(got.network, a.network);
    EXPECT_EQ(got.container, a.container);
    for (int i = 0; i < PHI_OTHERS_MAX; i++) {
        memcpy(b.uuid, a.other_uuid[i], sizeof b.uuid);
        EXPECT_EQ(phi_capabilities_denied(&got, &b), i % 2 == 0) << i;
        EXPECT_EQ(phi_capabilities_bus(&got, &b), i % 4 < 2) << i;
        EXPECT_EQ(phi_capabilities_bus(&b, &got), i % 4 < 2) << i;
    }
    EXPECT_NE(phi_capabilities_decode(&got, writer.bytes, writer.size - 1), 0);
    writer.bytes[writer.size - PHI_OTHERS_MAX * 17 - 1] = PHI_OTHERS_MAX + 1;
    EXPECT_NE(phi_capabilities_decode(&got, writer.bytes, writer.size), 0);
    phi_writer_fini(&writer);
}

// In a process of its own, which has a host name of its own.
static int named(const char *name)
{
    if (unshare(CLONE_NEWUTS) != 0 || sethostname(name, strlen(name)) != 0)
        return 100; // not allowed here
    phi_writer writer = {};
    phi_capabilities mine, got;
    phi_capabilities_fill(&mine, nullptr, 1);
    strcpy(mine.socket, "@peerhop-012345670123456789abcdef");
    phi_capabilities_encode(&mine, &writer);
    if (phi_capabilities_decode(&got, writer.bytes, writer.size) != 0)
        return 1;
    return strcmp(got.host, R"(n\xc3\xb6d\x7f e)") == 0 || strlen(name) > 20 ? 0 : 2;
}

TEST_F(Path, HostNamesOfAnyBytesAreToldToPeers)
{
    for (const std::string &name : {std::string("n\xc3\xb6"
                                                "d\x7f e"),
                                    std::string(60, '\xff')}) {
        const pid_t child = fork();
        if (child == 0)
            _exit(named(name.c_str()));
        int status;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        ASSERT_TRUE(WIFEXITED(status));
        if (WEXITSTATUS(status) == 100)
            GTEST_SKIP() << "no UTS namespace";
        EXPECT_EQ(WEXITSTATUS(status), 0) << name;
    }
}

} // namespace
