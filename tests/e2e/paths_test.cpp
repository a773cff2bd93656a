// SPDX-License-Identifier: BSD-3-Clause
// Which path two ranks of one node take, and what an exchange says where none serves.
#include <atomic>
#include <cstring>

#include "e2e/conversing.h"

class ExchangeFaults : public EveryDevice
{
};
INSTANTIATE_DEVICES(ExchangeFaults);

static const char *const no_libfabric = "PEERHOP_LIBFABRIC=/nowhere/libfabric.so.1";

// ---- paths

RANK_FUNCTION(one_side_cannot_map)
{
    const bool absent = rank.argument == "absent";
    std::vector<std::string> settings;
    if (!absent)
        settings = {"PEERHOP_PATH=ipc"};
    else if (rank.rank == 1)
        settings = {no_libfabric};
    rank.open(settings);
    const char *by_net =
        !net_available() ? "not in this build"
        : !absent        ? "the configuration asks for another"
        : rank.rank == 1 ? "this rank has no provider of libfabric that serves (peerhop-info --net "
                           "says why)"
                         : "the peer has no provider of libfabric that serves (peerhop-info --net "
                           "says why there)";
    void *stream = rank.device->stream();
    char *memory = static_cast<char *>(rank.device->alloc(8 * size));
    const int peer = !rank.rank;
    // 0 to 1: rank 0 can put, rank 1 cannot get. 1 to 0: the other way round.
    auto put_to_1 = operation(1, peer, role_of(rank, 0), memory, size, PH_PROTOCOL_PUT);
    auto get_by_1 = operation(2, peer, role_of(rank, 0), memory + size, size, PH_PROTOCOL_GET);
    auto put_to_0 = operation(3, peer, role_of(rank, 1), memory + 2 * size, size, PH_PROTOCOL_PUT);
    auto get_by_0 = operation(4, peer, role_of(rank, 1), memory + 3 * size, size, PH_PROTOCOL_GET);
    for (auto op : {get_by_1, put_to_0}) {
        std::string sentence = exchange_fails(rank, {op}, PH_ENOPATH);
        CHECK_SAYS(sentence, "no path between rank");
        CHECK_SAYS(sentence,
                   "rank 1 to rank 0 by ipc: this device has no peer access to the other device");
        CHECK_SAYS(sentence, "rank 0 to rank 1 by ipc: it serves");
        CHECK_SAYS(sentence, std::string("; by net: ") + by_net);
    }
    auto channels = exchange_all(rank, {put_to_1, get_by_0});
    for (int i = 0; i < 2; i++) {
        send_or_receive(rank, channels[i], role_of(rank, i), memory + 3 * i * size, 60 + i, stream);
        check_report(channels[i], role_of(rank, i) == PH_ROLE_SENDER, "ipc",
                     "no flags in device memory");
        check_report(channels[i], role_of(rank, i) == PH_ROLE_SENDER, "ipc", by_net);
    }
    // What needs the mapping that is not there says so, and enqueues nothing.
    if (rank.rank == 1) {
        CHECK_RC(ph_put(channels[1], 0, 0, 8, stream), PH_ENOPATH);
        CHECK_SAYS(rank.error(), "is not mapped here: this device has no peer access");
        CHECK_RC(ph_get(channels[0], 0, 0, 8, stream), PH_ENOPATH);
    }
    rank.barrier();
    // A second try of the same operation fails alike; in a batch nothing is lost of the others.
    exchange_fails(rank, {put_to_0, put_to_1}, PH_ENOPATH);
    CHECK(exchange_all(rank, {put_to_1})[0] == channels[0]);
    rank.barrier();
}

TEST_P(ExchangeFaults, APathThatFailsOnOneSideOnly)
{
    if (GetParam() != "standin")
        GTEST_SKIP() << "only the stand-in's devices can be made to refuse";
    for (const char *net : {"refused", "absent"}) {
        if (!net_available() && strcmp(net, "absent") == 0)
            continue;
        SCOPED_TRACE(net);
        Job job(GetParam(), 2);
        job.environment(1, "PEERHOP_STANDIN_NO_PEER", "1");
        EXPECT_EQ(job.run("one_side_cannot_map", net), "");
    }
}

// Four devices, of which 0 and 3 have no access to each other, nor 1 and 2. The ranks take 2, 1, 0
// and 3, which each sees under another ordinal than the others, or not at all.
static bool asks_for_net(const Rank &rank, int of)
{
    return rank.argument == "net" && of % 2 == 0;
}

static bool is_far(const Rank &rank, int peer)
{
    return peer == (rank.rank ^ 1);
}

static bool sees_only_its_own(const Rank &rank)
{
    return rank.argument.find("own") != std::string::npos;
}

// Why the net does not serve ranks of this node.
static const char *against_net(const Rank &rank, int peer)
{
    if (!net_available())
        return "not in this build";
    if (rank.argument == "ipc" && (rank.rank == 0 || peer == 0))
        return "the configuration asks for another";
    if (rank.argument.find("absent") == 0 && is_far(rank, peer))
        return rank.rank % 2 ? "this rank has no provider of libfabric that serves"
                             : "the peer has no provider of libfabric that serves";
    return not_needed;
}

static bool goes_by_net(const Rank &rank, int peer)
{
    if (asks_for_net(rank, rank.rank) || asks_for_net(rank, peer))
        return true;
    return is_far(rank, peer) && against_net(rank, peer) == not_needed;
}

static void finds_no_path(Rank &rank, int far, char *own)
{
    const std::string sentence = exchange_fails(rank, both_ways(far, own), PH_ENOPATH);
    const std::string here = std::to_string(rank.rank), there = std::to_string(far);
    const std::string why = " by ipc: this device has no peer access";
    CHECK_SAYS(sentence, "no path between rank " + here + " and rank " + there);
    CHECK_SAYS(sentence, "rank " + here + " to rank " + there + why);
    CHECK_SAYS(sentence, "rank " + there + " to rank " + here + why);
    CHECK_SAYS(sentence, std::string("by net: ") + against_net(rank, far));
}

RANK_FUNCTION(some_pairs_cannot_map)
{
    std::vector<std::string> settings;
    if (asks_for_net(rank, rank.rank))
        settings = {"PEERHOP_PATH=net"};
    else if (rank.argument == "ipc" && rank.rank == 0)
        settings = {"PEERHOP_PATH=ipc"};
    else if (rank.argument.find("absent") == 0 && rank.rank % 2)
        settings = {no_libfabric};
    rank.open(settings);
    const int far = rank.rank ^ 1; // whose device cannot be reached
    char *memory = static_cast<char *>(rank.device->alloc(8 * size));
    if (!goes_by_net(rank, far))
        finds_no_path(rank, far, memory + 2 * far * size);
    for (int peer = 0; peer < rank.ranks; peer++) {
        const bool net = goes_by_net(rank, peer);
        if (peer == rank.rank || (peer == far && !net))
            continue;
        char *own = memory + 2 * peer * size;
        auto channels = exchange_all(rank, both_ways(peer, own));
        const bool asked = asks_for_net(rank, rank.rank) || asks_for_net(rank, peer);
        for (int incoming = 0; incoming < 2; incoming++)
            check_report(channels[incoming], !incoming, net ? "net" : "ipc",
                         !net    ? against_net(rank, peer)
                         : asked ? "the configuration asks for another"
                                 : "this device has no peer access to the other device");
        converse(rank, peer, channels, own);
    }
    if (sees_only_its_own(rank)) // only the driver tells
        CHECK_SAYS(rank.log, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED");
    rank.barrier();
}

TEST_P(ExchangeFaults, PairsOfDevicesWithoutPeerAccess)
{
    if (GetParam() != "standin")
        GTEST_SKIP() << "only the stand-in's devices can be made to refuse";
    for (const std::string how : {"all", "own", "ipc", "absent", "absent, own", "net"}) {
        if (!net_available() && (how.find("absent") == 0 || how == "net"))
            continue;
        SCOPED_TRACE(how);
        const char *const all[] = {"2,0,1,3", "3,1,0,2", "1,2,0,3", "1,2,0,3"};
        const char *const own[] = {"2", "1", "0", "3"};
        Job job(GetParam(), 4);
        job.environment("PEERHOP_STANDIN_DEVICES", "4");
        job.environment("PEERHOP_STANDIN_NO_PEER", "0-3,1-2");
        for (int rank = 0; rank < 4; rank++)
            job.environment(rank, "CUDA_VISIBLE_DEVICES",
                            how.find("own") != std::string::npos ? own[rank] : all[rank]);
        EXPECT_EQ(job.run("some_pairs_cannot_map", how), "");
    }
}

// One of two ranks knows, by its record or since it has tried, and the other one goes by what it
// says.
RANK_FUNCTION(one_knows_for_both)
{
    rank.open();
    const bool knows = std::to_string(rank.rank) == rank.argument;
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    auto channels = exchange_all(rank, both_ways(!rank.rank, memory));
    check_report(channels[0], 1, "net",
                 knows ? "this device has no peer access to the other device"
                       : "the other device has no peer access to this device");
    converse(rank, !rank.rank, channels, memory);
    rank.barrier();
}

TEST_P(ExchangeFaults, OneRankKnowsForBothThatTheDevicesDoNotReachEachOther)
{
    if (GetParam() != "standin")
        GTEST_SKIP() << "only the stand-in's devices can be made to refuse";
    if (!net_available())
        GTEST_SKIP() << "libfabric is left out of this build";
    for (const std::string who : {"0", "1"}) {
        SCOPED_TRACE(who);
        const bool sees = who == "0";
        Job job(GetParam(), 2);
        job.environment(sees ? 0 : 1, "PEERHOP_STANDIN_NO_PEER", "1");
        job.environment(0, "CUDA_VISIBLE_DEVICES", sees ? "0,1" : "0");
        job.environment(1, "CUDA_VISIBLE_DEVICES", "1");
        EXPECT_EQ(job.run("one_knows_for_both", who), "");
    }
}

RANK_FUNCTION(other_kinds_of_rank)
{
    // One with a device, one without.
    rank.open({rank.argument == "ipc" ? "PEERHOP_PATH=ipc" : "PEERHOP_PATH=auto"});
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    if (net_available() && rank.argument != "ipc") {
        auto channels = exchange_all(rank, both_ways(!rank.rank, memory));
        check_report(channels[0], 1, "net", "one rank has a device, the other has not");
        converse(rank, !rank.rank, channels, memory);
    } else {
        std::string sentence = exchange_fails(rank, both_ways(!rank.rank, memory), PH_ENOPATH);
        CHECK_SAYS(sentence, "one rank has a device, the other has not");
        CHECK_SAYS(sentence, "by net: ");
    }
    rank.barrier();
}

TEST_P(ExchangeFaults, HostAndDeviceMeetOverTheNetOnly)
{
    if (on_host())
        GTEST_SKIP() << "needs a device at one rank";
    for (const char *path : {"auto", "ipc"}) {
        SCOPED_TRACE(path);
        Job job(GetParam(), 2);
        job.environment(1, "PEERHOP_TEST_DEVICE", "host");
        EXPECT_EQ(job.run("other_kinds_of_rank", path), "");
    }
}

// ---- the verify step of the trial

static std::atomic<int> device_is_busy; // this many times

extern "C" {
struct phi_device;
int __real_phi_trial_memory_verify(struct phi_device *device, const void *owned, uint64_t seed,
                                   int64_t deadline);
int __wrap_phi_trial_memory_verify(struct phi_device *device, const void *owned, uint64_t seed,
                                   int64_t deadline);
int __wrap_phi_trial_memory_verify(struct phi_device *device, const void *owned, uint64_t seed,
                                   int64_t deadline)
{
    return device_is_busy-- > 0 ? -ETIMEDOUT
                                : __real_phi_trial_memory_verify(device, owned, seed, deadline);
}
}

// A device that does not come to look at the pattern in the service thread's time has said nothing
// of the path: it is asked again as long as the exchange has time.
RANK_FUNCTION(verifies_by_a_busy_device)
{
    rank.open();
    device_is_busy = rank.rank == 0 ? 2 : 0;
    void *memory = rank.device->alloc(size);
    ph_role role = role_of(rank, 1); // the rank that verifies writes there
    ph_channel *channel = rank.channel(!rank.rank, 1, role, memory, size);
    if (rank.rank == 0)
        CHECK(device_is_busy < 0);
    pass(rank, channel, role, memory, size, 3, rank.device->stream());
    rank.barrier();
}

TEST_P(ExchangeFaults, ABusyDeviceIsAskedAgain)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("verifies_by_a_busy_device"), "");
}
