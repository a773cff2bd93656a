// SPDX-License-Identifier: BSD-3-Clause
// Memory of several kinds together: host memory in device contexts, another kind at each end of a
// channel, and several devices of one process.
#include <thread>

#include "e2e/exchanging.h"

class Mixed : public EveryDevice
{
};
INSTANTIATE_CUDA_DEVICES(Mixed);

// Beyond what goes by ll, and no multiple of anything.
static const size_t sizes[] = {8, 5000, 1500001};
static const size_t most = 1500001;

// A buffer of a kind; "host" is memory of the context, which the processor reads itself.
struct Piece {
    Rank &rank;
    bool host;
    void *memory = nullptr;

    Piece(Rank &owner, const std::string &kind) : rank(owner), host(kind == "host")
    {
        if (host)
            CHECK_OK(ph_host_alloc(rank.context, most, &memory));
        else
            memory = rank.device->alloc(most, kind == "cuda" ? "" : kind);
    }
    void fill(size_t size, uint64_t seed) const
    {
        if (!host)
            rank.device->fill(memory, size, seed);
        for (size_t i = 0; host && i < size; i++)
            static_cast<uint8_t *>(memory)[i] = pattern_byte(seed, i);
    }
    void verify(size_t size, uint64_t seed, const std::string &what) const
    {
        if (!host)
            rank.verify(memory, size, seed, what.c_str());
        for (size_t i = 0; host && i < size; i++)
            if (static_cast<uint8_t *>(memory)[i] != pattern_byte(seed, i))
                rank_failed(__FILE__, __LINE__, what + ": byte " + std::to_string(i));
    }
};

// What each rank sends on a channel each way: a message, and a put with its signal. Twice, as the
// first one may find everything cold.
static void pass_both_ways(Rank &rank, ph_protocol protocol, const std::string &mine)
{
    Piece from(rank, mine), to(rank, mine);
    const int peer = !rank.rank;
    void *stream = rank.device->stream();
    auto channels =
        exchange_all(rank, {operation(1, peer, PH_ROLE_SENDER, from.memory, most, protocol),
                            operation(1, peer, PH_ROLE_RECEIVER, to.memory, most, protocol)});
    uint64_t seed = 10 * static_cast<uint64_t>(rank.rank),
             theirs = 10 * static_cast<uint64_t>(peer);
    for (int round = 0; round < 2; round++)
        for (size_t size : sizes) {
            from.fill(size, ++seed);
            const ph_group_op both[] = {{PH_GROUP_SEND, channels[0], 0, 0, size},
                                        {PH_GROUP_RECV, channels[1], 0, 0, size}};
            CHECK_OK(ph_group(both, 2, stream));
            CHECK_OK(ph_complete(channels[0], stream));
            rank.synchronize(stream);
            to.verify(size, ++theirs, mine + ", a message");
            rank.barrier(); // nobody writes where the other still looks
            from.fill(size, ++seed);
            CHECK_OK(ph_put_signal(channels[0], 0, 0, size, stream));
            CHECK_OK(ph_wait(channels[1], size, stream));
            rank.synchronize(stream);
            to.verify(size, ++theirs, mine + ", a put");
            rank.barrier();
        }
}

static std::string word(const std::string &words, int index)
{
    std::istringstream stream(words);
    std::string found;
    for (int i = 0; i <= index; i++)
        stream >> found;
    return found;
}

// argument: the kind of rank 0's memory, that of rank 1's, and the protocol.
RANK_FUNCTION(passes_kinds)
{
    rank.open();
    const bool get = word(rank.argument, 2) == "get";
    pass_both_ways(rank, get ? PH_PROTOCOL_GET : PH_PROTOCOL_PUT, word(rank.argument, rank.rank));
    rank.barrier();
}

TEST_P(Mixed, HostMemoryInDeviceContexts)
{
    for (const char *how : {"host host put", "host host get"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("passes_kinds", how), "");
    }
}

TEST_P(Mixed, EachEndOfAChannelIsOfAnotherKind)
{
    for (const char *how :
         {"host cuda put", "cuda host get", "vmm host put", "cuda pool put", "vmm cuda get"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("passes_kinds", how), "");
    }
}

// ---- one process, two contexts

static void be_rank(const Rank &process, int number, const std::string &kind)
{
    Rank rank;
    rank.rank = number;
    rank.ranks = 2;
    rank.shared = process.shared;
    rank.device = make_cuda_device(number);
    rank.open({"PEERHOP_RANK=" + std::to_string(number)});
    pass_both_ways(rank, PH_PROTOCOL_PUT, kind);
    rank.barrier();
    rank.close();
}

RANK_FUNCTION(is_two_ranks)
{
    std::thread second([&] { be_rank(rank, 1, rank.argument); });
    be_rank(rank, 0, rank.argument);
    second.join();
}

TEST_P(Mixed, TwoDevicesOfOneProcess)
{
    std::string why;
    if (GetParam() == "gpu" && !gpus_linked(&why))
        GTEST_SKIP() << why;
    for (const char *kind : {"cuda", "vmm", "pool", "host"}) {
        SCOPED_TRACE(kind);
        Job job(GetParam(), 2);
        job.start_rank(0, "is_two_ranks", kind);
        EXPECT_EQ(job.wait(), "");
    }
}

TEST_P(Mixed, TwoContextsOfOneDevice)
{
    Job job(GetParam(), 2);
    job.environment("CUDA_VISIBLE_DEVICES", "0");
    job.start_rank(0, "is_two_ranks", "cuda");
    EXPECT_EQ(job.wait(), "");
}
