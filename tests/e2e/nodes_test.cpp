// SPDX-License-Identifier: BSD-3-Clause
// Ranks in network namespaces of their own, joined by a pair of virtual cables, as nodes are: only
// the net path is left between them, and the cable can be cut.
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sched.h>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>

#include "e2e/cable.h"

namespace
{

class Nodes : public EveryDevice
{
  protected:
    void SetUp() override
    {
        EveryDevice::SetUp();
        if (!IsSkipped() && !has_network_namespaces())
            GTEST_SKIP() << "no network namespaces here: they need root and the ip command";
    }
};
INSTANTIATE_TEST_SUITE_P(Device, Nodes, testing::Values("hostnet", "standinnet", "standinhmem"),
                         [](const auto &info) { return info.param; });

// ---- a job of two nodes

RANK_FUNCTION(between_nodes)
{
    join(rank);
    rank.open();
    auto *memory = static_cast<char *>(rank.device->alloc(2 * size));
    void *stream = rank.device->stream();
    struct ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, 2 * size);
    ph_path_report report;
    CHECK_OK(ph_channel_path(channel, 1, &report, sizeof report));
    CHECK(std::string(report.path) == "net");
    CHECK(report.rejected_count > 0);
    const auto &last = report.rejected[report.rejected_count - 1];
    CHECK(std::string(last.name) == "ipc");
    CHECK(std::string(last.reason).find(rank.argument) == 0);
    put_both_ways(rank, channel, memory, stream, 4);
}

TEST_P(Nodes, PutsBetweenThem)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("between_nodes", "the configuration asks for another"), "");
}

TEST_P(Nodes, InNetworksOfOneNodeNobodyNeedsToAskForTheNet)
{
    if (!on_host())
        GTEST_SKIP() << "devices: Trial.DevicesInOtherContainersMeetOverTheNet";
    Job job("host", 2);
    job.environment("PEERHOP_NET_PROVIDER", "tcp");
    EXPECT_EQ(job.run("between_nodes", "the two ranks are in different network namespaces"), "");
}

// ---- interfaces that lead nowhere

// The bridge of a container engine has the same address on every node, and comes first in
// libfabric's order. Argument: "4": the nodes reach each other by IPv4; "6": by IPv6 only.
RANK_FUNCTION(beside_bridges)
{
    const std::string own = rank.rank == 0 ? "1" : "2";
    CHECK(unshare(CLONE_NEWNET) == 0);
    shell(
        "ip link set lo up && ip link add docker0 type bridge && ip link add inside type veth peer "
        "name outside && ip link set outside master docker0 && ip link set inside up && ip link "
        "set outside up && ip addr add 172.17.0.1/16 dev docker0 && ip link set docker0 up");
    lay_cable(rank);
    const std::string address =
        rank.argument == "4" ? "10.77.0." + own + "/24" : "fd00:77::" + own + "/64 nodad";
    shell("ip addr add " + address + " dev cable" + own + " && ip link set cable" + own + " up");
    rank.barrier();
    rank.open();
    auto *memory = static_cast<char *>(rank.device->alloc(2 * size));
    void *stream = rank.device->stream();
    struct ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, 2 * size);
    put_both_ways(rank, channel, memory, stream, 2);
}

TEST_P(Nodes, ABridgeIsNoWayToTheOthers)
{
    for (const char *family : {"4", "6"}) {
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("beside_bridges", family), "") << family;
    }
}

// Where nothing else is left, the sentence says what was taken, and what takes another.
RANK_FUNCTION(behind_bridges)
{
    CHECK(unshare(CLONE_NEWNET) == 0);
    shell("ip link set lo up && ip link add docker0 type bridge && ip addr add 172.17.0." +
          std::to_string(1 + rank.rank) + "/16 dev docker0 && ip link set docker0 up");
    rank.barrier();
    rank.open();
    void *memory = rank.device->alloc(size);
    ph_operation operation = {};
    operation.op_id = 1;
    operation.peer = !rank.rank;
    operation.role = PH_ROLE_BOTH;
    operation.buffer = memory;
    operation.size = size;
    ph_exchange_request *request = nullptr;
    ph_channel *channel = nullptr;
    CHECK_OK(ph_exchange_start(rank.context, &operation, 1, &request));
    CHECK_RC(ph_exchange_finish(&request, &channel, 3000), -ETIMEDOUT);
    for (const char *part : {"this rank's end is ", " docker0, 172.17.0.", "PEERHOP_NET_INTERFACE"})
        if (rank.error().find(part) == std::string::npos)
            rank_failed(__FILE__, __LINE__, rank.error());
    rank.barrier();
}

TEST_P(Nodes, WhatLeadsNowhereIsNamed)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("behind_bridges"), "");
}

// ---- two nodes with two NICs each

// What interfaces of this thread's network have received and sent.
std::string all_devices()
{
    std::ifstream all("/proc/thread-self/net/dev");
    return std::string(std::istreambuf_iterator<char>(all), {});
}

// Bytes that one has sent.
uint64_t sent_by(const std::string &name)
{
    std::istringstream all(all_devices());
    for (std::string line; std::getline(all, line);) {
        const size_t at = line.find(name + ":");
        uint64_t value[9] = {};
        if (at == std::string::npos)
            continue;
        std::istringstream numbers(line.substr(at + name.size() + 1));
        for (uint64_t &each : value)
            numbers >> each;
        return value[8];
    }
    return 0;
}

// Behind join(). how: "joined": by a cable of its own; "foreign": by one, and their networks are
// different ones; "islands": each to nowhere.
void add_nics(Rank &rank, const std::string &how)
{
    const std::string own = rank.rank == 0 ? "1" : "2";
    if (how == "islands")
        shell("ip link add more" + own + " type veth peer name nowhere && ip link set nowhere up");
    else if (rank.rank == 0)
        shell("ip link add more1 type veth peer name more2 netns " +
              std::to_string(rank.shared->value[100].load()));
    rank.barrier();
    const std::string network = how == "foreign" ? "10.8" + own + ".0." : "10.78.0.";
    shell("ip addr add " + network + own + "/24 dev more" + own + " && ip link set more" + own +
          " up");
    rank.barrier();
    // Interfaces that are named are looked for once.
    for (const char *name : {"cable", "more"})
        shell("for i in $(seq 1000); do ip link show " + (name + own) +
              " | grep -q 'state UP' && exit 0; sleep 0.01; done; exit 1");
}

RANK_FUNCTION(over_two_nics)
{
    const int rounds = 12; // in the first ones the second NIC may not be there yet
    const bool joined = rank.argument == "joined", alone = rank.argument == "alone";
    const std::string own = rank.rank == 0 ? "1" : "2";
    const std::string setting =
        "PEERHOP_NET_INTERFACE=cable" + own + (alone && rank.rank == 1 ? "" : ",more" + own);
    join(rank);
    add_nics(rank, rank.argument);
    rank.open({setting.c_str()});
    auto *memory = static_cast<char *>(rank.device->alloc(2 * size));
    void *stream = rank.device->stream();
    struct ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, 2 * size);
    ph_path_report report;
    CHECK_OK(ph_channel_path(channel, 1, &report, sizeof report));
    CHECK(std::string(report.path) == "net");
    put_both_ways(rank, channel, memory, stream, rounds);
    const uint64_t first = sent_by("cable" + own), second = sent_by("more" + own);
    rank.barrier(); // the interfaces go with the first rank that does
    // How much over each is the machine's: a rail that is full leaves its turn to the other.
    if (joined ? second < rounds * size / 10 || first < rounds * size / 10
               : first < rounds * size || second > size)
        rank_failed(__FILE__, __LINE__,
                    std::to_string(first) + " and " + std::to_string(second) + "\n" +
                        all_devices());
}

TEST_P(Nodes, LargeTransfersGoOverAllNics)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("over_two_nics", "joined"), "");
}

// The peer's may also be one only.
TEST_P(Nodes, ANicThatDoesNotReachThePeersIsLeftAside)
{
    for (const char *how : {"foreign", "islands", "alone"}) {
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("over_two_nics", how), "") << how;
    }
}

// ---- a cable that is cut

void becomes_suspect(Rank &rank, int other)
{
    ph_peer_report peer = {};
    for (int i = 0; i < 20000 && peer.state != PH_PEER_SUSPECT; i++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        CHECK_OK(ph_context_peer(rank.context, other, &peer, sizeof peer));
    }
    CHECK(peer.state == PH_PEER_SUSPECT);
}

// Told in time, and by name where it is the library that waits, and not the driver.
void waits_in_vain(Rank &rank, void *stream, int other, const std::string &what = "")
{
    auto begin = std::chrono::steady_clock::now();
    CHECK(!rank.device->synchronize(stream, 1500));
    CHECK(std::chrono::steady_clock::now() - begin < patience(10000));
    becomes_suspect(rank, other);
    if (!rank.device->host())
        return;
    CHECK(!rank.device->synchronize(stream, 100));
    for (const std::string &part : {"rank " + std::to_string(other), std::string("SUSPECT"), what})
        CHECK(rank.error().find(part) != std::string::npos);
}

RANK_FUNCTION(cable_is_cut)
{
    join(rank);
    rank.open({"PEERHOP_HEARTBEAT_MS=50", "PEERHOP_SUSPECT_MS=500"});
    auto *memory = static_cast<char *>(rank.device->alloc(size));
    void *stream = rank.device->stream();
    struct ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size);
    rank.barrier();
    if (rank.rank == 0)
        shell("ip link set cable1 down");
    rank.barrier();
    // One has something on its way, the other waits for it. Both are told in time, by name.
    if (rank.rank == 0) {
        rank.device->fill(memory, size, 5);
        CHECK_OK(ph_put_signal(channel, 0, 0, size, stream));
    } else {
        CHECK_OK(ph_wait(channel, size, stream));
    }
    waits_in_vain(rank, stream, !rank.rank,
                  rank.rank == 0 ? "not delivered by the net" : "has not written");
    rank.barrier();
    // It is mended: what was on its way comes, and nobody is a suspect any more.
    if (rank.rank == 0)
        shell("ip link set cable1 up");
    rank.synchronize(stream, 20000);
    if (rank.rank == 1)
        rank.verify(memory, size, 5, "came after all");
    rank.barrier();
}

TEST_P(Nodes, ACutIsToldByNameAndMended)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("cable_is_cut"), "");
}

// ---- cuts in other phases than those of a transfer

// Rank 0 cuts, and both go on when it is cut. It is mended by mend().
void cut(Rank &rank)
{
    rank.barrier();
    if (rank.rank == 0)
        shell("ip link set cable1 down");
    rank.barrier();
}

void mend(Rank &rank)
{
    rank.barrier();
    if (rank.rank == 0)
        shell("ip link set cable1 up");
}

// A release of what the peer may still use is not over before the peer says so, which is said by
// name; it is when the cable is mended. Nor does destroy end before.
RANK_FUNCTION(cut_in_release_and_destroy)
{
    join(rank);
    rank.open({"PEERHOP_HEARTBEAT_MS=50", "PEERHOP_SUSPECT_MS=500"});
    const std::string other = "rank " + std::to_string(!rank.rank);
    auto *memory = static_cast<char *>(rank.device->alloc(2 * size));
    void *stream = rank.device->stream();
    rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size);
    struct ph_channel *channel = rank.channel(!rank.rank, 2, PH_ROLE_BOTH, memory + size, size);
    cut(rank);
    CHECK_OK(ph_release_start(rank.context, memory, size));
    CHECK_RC(ph_release_wait(rank.context, memory, size, PH_RELEASE_DRAINED, 1000), -ETIMEDOUT);
    CHECK(rank.error().find(other) != std::string::npos);
    mend(rank);
    rank.ends_with(0, "", [&] {
        return ph_release_wait(rank.context, memory, size, PH_RELEASE_DRAINED, 20000);
    });
    // The other channel is as before.
    if (rank.rank == 0) {
        rank.device->fill(memory + size, size, 5);
        CHECK_OK(ph_put_signal(channel, 0, 0, size, stream));
    } else {
        CHECK_OK(ph_wait(channel, size, stream));
    }
    rank.synchronize(stream, 30000);
    rank.verify(memory + size, size, 5, "put after the release");
    cut(rank);
    if (rank.rank == 0) {
        CHECK_RC(ph_context_destroy(&rank.context, 1000), -ETIMEDOUT);
        CHECK(rank.context != nullptr && rank.error().find(other) != std::string::npos);
    }
    mend(rank);
    rank.close(30000);
}

TEST_P(Nodes, ACutInAReleaseOrInDestroyIsToldByName)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("cut_in_release_and_destroy"), "");
}

// A graph is replayed while the cable is cut, its bells rung and nothing delivered; then the peer
// is given up, and the replays that are under way and those that come later end.
RANK_FUNCTION(cut_between_replays)
{
    join(rank);
    rank.open({"PEERHOP_HEARTBEAT_MS=50", "PEERHOP_SUSPECT_MS=500"});
    auto *memory = static_cast<char *>(rank.device->alloc(2 * size));
    void *stream = rank.device->stream();
    struct ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, 2 * size);
    void *graph = rank.device->capture(stream, [&] {
        struct ph_group_op ops[] = {{PH_GROUP_PUT_SIGNAL, channel, size, 0, size},
                                    {PH_GROUP_WAIT, channel, 0, 0, size}};
        CHECK_OK(ph_group(ops, 2, stream));
    });
    for (int round = 0; round < 3; round++) {
        rank.device->fill(memory, size, 10 * round + rank.rank);
        rank.barrier();
        rank.device->launch(graph, stream);
        rank.synchronize(stream);
        rank.verify(memory + size, size, 10 * round + !rank.rank, "by a replay");
    }
    // A replay that the cut meets goes on when it is mended.
    rank.device->fill(memory, size, 90 + rank.rank);
    cut(rank);
    rank.device->launch(graph, stream);
    CHECK(!rank.device->synchronize(stream, 1000));
    mend(rank);
    rank.synchronize(stream, 30000);
    rank.verify(memory + size, size, 90 + !rank.rank, "by a replay that was cut");
    // One that is not mended ends with its peer.
    cut(rank);
    rank.device->launch(graph, stream);
    CHECK(!rank.device->synchronize(stream, 1000));
    becomes_suspect(rank, !rank.rank);
    CHECK_OK(ph_context_expel(rank.context, !rank.rank));
    rank.synchronize(stream, 20000);
    for (int replay = 0; replay < 3; replay++) {
        rank.device->launch(graph, stream);
        rank.synchronize(stream, 20000);
    }
    CHECK_RC(ph_channel_ended(channel), PH_EPEER);
    CHECK_RC(ph_put(channel, 0, 0, 8, stream), PH_EPEER);
    CHECK(rank.error().find("rank " + std::to_string(!rank.rank)) != std::string::npos);
    rank.device->destroy(graph);
    rank.close(30000);
}

TEST_P(Nodes, AGraphIsReplayedThroughACutAndBeyondAnEnd)
{
    if (GetParam() == "hostnet")
        GTEST_SKIP() << "queues have no graphs";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("cut_between_replays"), "");
}

// ---- a cable that is slow, and drops what it cannot hold

RANK_FUNCTION(over_a_poor_cable)
{
    join(rank);
    const std::string cable = rank.rank == 0 ? "cable1" : "cable2";
    shell("tc qdisc add dev " + cable + " root tbf rate 200mbit burst 16kb limit 20kb");
    rank.open();
    auto *memory = static_cast<char *>(rank.device->alloc(2 * size));
    void *stream = rank.device->stream();
    struct ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, 2 * size);
    // A busy machine may send so slowly that nothing needs to be dropped.
    const std::string drops = "tc -s qdisc show dev " + cable + " | grep -q 'dropped [1-9]'";
    int both = 0;
    for (int round = 0; round < 50 && both != 2; round++) {
        put_both_ways(rank, channel, memory, stream, 2);
        rank.shared->value[2 + rank.rank] = system(drops.c_str()) == 0;
        rank.barrier();
        both = static_cast<int>(rank.shared->value[2] + rank.shared->value[3]);
        rank.barrier();
    }
    CHECK(both == 2);
}

TEST_P(Nodes, OverACableThatDropsAndDelays)
{
    if (system(
            "unshare -n sh -c 'ip link add a1 type veth peer name b1 && "
            "tc qdisc add dev a1 root tbf rate 200mbit burst 16kb limit 20kb' > /dev/null 2>&1") !=
        0)
        GTEST_SKIP() << "no tc command here, or no token bucket in the kernel";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("over_a_poor_cable"), "");
}

// ---- a node that is lost for good

RANK_FUNCTION(node_is_lost)
{
    join(rank);
    rank.open({"PEERHOP_HEARTBEAT_MS=50", "PEERHOP_SUSPECT_MS=500"});
    auto *memory = static_cast<char *>(rank.device->alloc(size));
    void *stream = rank.device->stream();
    struct ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size);
    rank.barrier();
    if (rank.rank == 1)
        pause(); // killed by the test
    shell("ip link set cable1 down");
    CHECK_OK(ph_put(channel, 0, 0, size, stream));
    CHECK(!rank.device->synchronize(stream, 1500));
    // Nothing says that it ended; the application decides, and its streams go on.
    becomes_suspect(rank, 1);
    CHECK_OK(ph_context_expel(rank.context, 1));
    rank.synchronize(stream, 10000);
    CHECK_RC(ph_channel_ended(channel), PH_EPEER);
    rank.close();
}

TEST_P(Nodes, AnExpelledOneHoldsUpNobody)
{
    Job job(GetParam(), 2);
    job.start("node_is_lost");
    job.expect_failure(1);
    EXPECT_EQ(job.status(0, 40000), 0) << job.shared()->text[0];
    job.signal(1, SIGKILL);
    EXPECT_EQ(job.wait(), "");
}

// ---- more than two nodes: rank 0 has the switch

// Plugs the cable of a rank in, whose value[100 + rank] is its pid, once it is in its namespace.
void plug(Rank &rank, int other)
{
    const std::string number = std::to_string(other);
    auto &pid = rank.shared->value[100 + other];
    CHECK(reaches(pid, 1));
    // That of a former life goes with its namespace, which the kernel removes when it has the time.
    shell("(ip link del port" + number + " 2> /dev/null || true) && ip link add port" + number +
          " type veth peer name cable netns " + std::to_string(pid.exchange(0)) +
          " && ip link set port" + number + " master switch0 && ip link set port" + number + " up");
    rank.shared->value[110 + other] = 1;
}

void enter(Rank &rank)
{
    CHECK(unshare(CLONE_NEWNET) == 0);
    if (rank.rank == 0) {
        shell("ip link set lo up && ip link add switch0 address 02:00:00:77:00:01 type bridge && "
              "ip addr add 10.77.0.1/24 "
              "dev switch0 && ip link set switch0 up");
        for (int other = 1; other < rank.ranks; other++)
            plug(rank, other);
        return;
    }
    rank.shared->value[110 + rank.rank] = 0;
    rank.shared->value[100 + rank.rank] = static_cast<uint64_t>(getpid());
    CHECK(reaches(rank.shared->value[110 + rank.rank], 1));
    shell("ip link set lo up && ip addr add 10.77.0." + std::to_string(rank.rank + 1) +
          "/24 dev cable && ip link set cable up");
}

// Rank 0 gives the other one bytes, which it checks.
void give(Rank &rank, struct ph_channel *channel, char *memory, void *stream, uint64_t seed)
{
    if (rank.rank == 0) {
        rank.device->fill(memory, size, seed);
        CHECK_OK(ph_put_signal(channel, 0, 0, size, stream));
        rank.synchronize(stream);
        return;
    }
    CHECK_OK(ph_wait(channel, size, stream));
    rank.synchronize(stream);
    rank.verify(memory, size, seed, "given by rank 0");
}

// ---- a rank that comes again on another node

RANK_FUNCTION(comes_again)
{
    enter(rank);
    rank.open({"PEERHOP_HEARTBEAT_MS=50", "PEERHOP_SUSPECT_MS=500"});
    auto *memory = static_cast<char *>(rank.device->alloc(size));
    void *stream = rank.device->stream();
    struct ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size);
    const bool second = rank.shared->value[130] == 1;
    give(rank, channel, memory, stream, second ? 2 : 1);
    if (rank.rank == 1) {
        rank.shared->value[131] = second ? 2 : 1;
        CHECK(reaches(rank.shared->value[132], 1)); // the first one is killed here
        return;
    }
    // Its node went with it: nothing says that it ended.
    ph_peer_report peer = {};
    for (int i = 0; i < 20000 && peer.state != PH_PEER_SUSPECT; i++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        CHECK_OK(ph_context_peer(rank.context, 1, &peer, sizeof peer));
    }
    CHECK_OK(ph_context_expel(rank.context, 1));
    plug(rank, 1);
    struct ph_operation op = {};
    op.op_id = 1;
    op.peer = 1;
    op.role = PH_ROLE_BOTH;
    op.buffer = memory;
    op.size = size;
    struct ph_channel *again = nullptr;
    int rc = PH_EPEER;
    for (int i = 0; i < 4000 && rc == PH_EPEER; i++) {
        rc = ph_exchange(rank.context, &op, 1, &again);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    CHECK_RC(rc, 0);
    CHECK_RC(ph_channel_ended(channel), PH_EPEER);
    give(rank, again, memory, stream, 2);
    CHECK(reaches(rank.shared->value[131], 2));
    rank.shared->value[132] = 1;
}

TEST_P(Nodes, ARankThatComesAgainIsReachedAgain)
{
    Job job(GetParam(), 2);
    job.start("comes_again");
    ASSERT_TRUE(reaches(job.shared()->value[131], 1)) << job.wait(100);
    job.signal(1, SIGKILL);
    EXPECT_EQ(job.status(1, 60000), 128 + SIGKILL);
    job.shared()->value[130] = 1;
    job.start_rank(1, "comes_again");
    EXPECT_EQ(job.wait(), "");
}

// ---- one of three nodes is cut off, in an exchange and in a transfer

RANK_FUNCTION(one_of_three_is_cut)
{
    enter(rank);
    rank.open({"PEERHOP_HEARTBEAT_MS=50", "PEERHOP_SUSPECT_MS=500"});
    const int last = 2;
    auto *memory = static_cast<char *>(rank.device->alloc(2 * size));
    void *stream = rank.device->stream();
    struct ph_channel *to[3] = {};
    for (int other = 1; other <= last; other++)
        if (rank.rank == 0 || rank.rank == other)
            to[other] = rank.channel(rank.rank == 0 ? other : 0, other, PH_ROLE_BOTH,
                                     memory + (other == last) * size, size);
    struct ph_channel *own = to[rank.rank ? rank.rank : 1];
    rank.barrier();
    if (rank.rank == 0)
        shell("ip link set port2 down");
    rank.barrier();
    // The phase of the exchange: neither end of the cut comes by, and each names the other.
    if (rank.rank != 1) {
        struct ph_operation op = {};
        op.op_id = 9;
        op.peer = rank.rank == 0 ? last : 0;
        op.role = PH_ROLE_BOTH;
        op.buffer = memory;
        op.size = size;
        struct ph_exchange_request *request = nullptr;
        struct ph_channel *none = nullptr;
        CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
        CHECK_RC(ph_exchange_finish(&request, &none, 2000), -ETIMEDOUT);
        CHECK(rank.error().find("rank " + std::to_string(op.peer)) != std::string::npos);
    }
    // That of the transfer; a stream that waits for it holds up no other, nor the other peer.
    void *stuck = nullptr;
    if (rank.rank == 0) {
        stuck = rank.device->stream();
        rank.device->fill(memory + size, size, 77);
        CHECK_OK(ph_put_signal(to[last], 0, 0, size, stuck));
        waits_in_vain(rank, stuck, 2);
    }
    for (uint64_t round = 0; round < 5 && rank.rank != last; round++) {
        give(rank, own, memory, stream, round);
        // The barrier is all ranks': these two take turns by a value of their own.
        auto &turn = rank.shared->value[120];
        if (rank.rank == 1)
            turn = round + 1;
        CHECK(reaches(turn, round + 1));
    }
    rank.barrier();
    if (rank.rank == 0) {
        shell("ip link set port2 up");
        rank.synchronize(stuck, 30000);
    } else if (rank.rank == last) {
        CHECK_OK(ph_wait(own, size, stream));
        rank.synchronize(stream, 30000);
        rank.verify(memory + size, size, 77, "came after all");
    }
    rank.barrier();
}

TEST_P(Nodes, OneThatIsCutOffHoldsUpNobodyElse)
{
    Job job(GetParam(), 3);
    EXPECT_EQ(job.run("one_of_three_is_cut"), "");
}

} // namespace
