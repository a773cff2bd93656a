// SPDX-License-Identifier: BSD-3-Clause
// The first stores of a process to its peers: whoever is told of them finds the data, not what lay
// there before. A GPU's first store to a page of a peer takes longer than the word, or line, behind
// it (measured on 2 x H100, in memory that CUDA IPC maps: always in the first round of a process),
// so each test is a job of new processes that have put nothing yet, and each round has new
// allocations and channels.
#include <csignal>
#include <sstream>

#include "e2e/bytes.h"
#include "e2e/exchanging.h"

static const size_t sizes[] = {1, 29, 960, 4096, 65536};
static const int SIZES = 5, ROUNDS = SIZES, HOPS = 40;
static const size_t LEAST = 2 << 20; // a smaller allocation shares pages with others
static const uint8_t KILL = 0xb1;

// A rank's argument: "captured" or "eager", what tells of the data, and which of the sizes the
// first round has.
struct Way {
    bool captured;
    std::string told;
    int first = 0;

    explicit Way(const std::string &argument)
    {
        std::string how;
        std::istringstream(argument) >> how >> told >> first;
        captured = how == "captured";
    }
    std::vector<std::string> settings() const
    {
        if (told == "words")
            return {"PEERHOP_LL_MAX=0", "PEERHOP_SM_MAX=0"};
        if (told == "memory")
            return {"PEERHOP_WAIT=memory_operation"};
        if (told == "kernel")
            return {"PEERHOP_METHOD=copy_kernel"};
        if (told == "engine")
            return {"PEERHOP_METHOD=ce"};
        return {};
    }
    size_t size(int round) const
    {
        return sizes[(first + round) % SIZES];
    }
};

// Memory that nobody has stored to, in places of their own pages. Each second round it is of the
// other kind.
struct Fresh {
    size_t stride, size;
    void *memory;

    Fresh(Rank &rank, int round, size_t largest, int places)
        : stride((largest / 4096 + 1) * 4352), size(std::max(stride * places, LEAST)),
          memory(rank.device->alloc(size, round % 2 ? "vmm" : ""))
    {
        set_value(rank, memory, stride * places, Buffer::POISON);
    }
    void *place(int i) const
    {
        return at(memory, stride * i);
    }
};

static void check_told(Rank &rank, const Way &way, ph_channel *channel)
{
    CHECK(rank.by_flags(channel, true) == (way.told == "lines" || way.told == "number"));
}

// Returns the graph, if it is one: it lives until its work is done.
static void *issue(Rank &rank, const Way &way, void *stream, const std::function<void()> &body)
{
    void *graph = nullptr;
    if (way.captured) {
        graph = rank.device->capture(stream, body);
        rank.device->launch(graph, stream);
    } else {
        body();
    }
    return graph;
}

static void finish(Rank &rank, void *graph, void *stream)
{
    rank.synchronize(stream);
    if (graph != nullptr)
        rank.device->destroy(graph);
}

// ---- a chain: each rank puts on what it was told of

// Hop h brings place h of the one to place h + 1 of the other; rank 0 has the even hops.
static void chain_round(Rank &rank, const Way &way, void *stream, int round)
{
    const size_t size = way.size(round);
    const uint64_t seed = 100 + round;
    Fresh fresh(rank, round, size, HOPS + 1);
    void *last = rank.device->alloc(size);
    ph_channel *channel = rank.channel(!rank.rank, round, PH_ROLE_BOTH, fresh.memory, fresh.size);
    if (rank.argument.find("one device") == std::string::npos)
        check_told(rank, way, channel);
    if (rank.rank == 0)
        rank.device->fill(fresh.place(0), size, seed);
    rank.barrier();
    void *graph = issue(rank, way, stream, [&] {
        for (int h = 0; h < HOPS; h++) {
            if (h % 2 != rank.rank) {
                CHECK_OK(ph_wait(channel, 0, stream));
                continue;
            }
            CHECK_OK(ph_put(channel, fresh.stride * (h + 1), fresh.stride * h, size, stream));
            CHECK_OK(ph_signal(channel, stream));
        }
        if (rank.rank == HOPS % 2)
            rank.device->copy(stream, last, fresh.place(HOPS), size);
    });
    finish(rank, graph, stream);
    rank.barrier();
    for (int h = !rank.rank; h < HOPS; h += 2)
        rank.verify(fresh.place(h + 1), size, seed,
                    ("hop " + std::to_string(h) + " of round " + std::to_string(round)).c_str());
    if (rank.rank == HOPS % 2)
        rank.verify(last, size, seed, "the last hop's, behind its wait");
}

RANK_FUNCTION(chain)
{
    Way way(rank.argument);
    rank.open(way.settings());
    void *stream = rank.device->stream();
    for (int round = 0; round < ROUNDS; round++)
        chain_round(rank, way, stream, round);
    rank.barrier();
}

// ---- a group of puts and their signal, both ways at once

struct Batch {
    std::vector<ph_group_op> ops;
    size_t bytes = 0; // from the start of the buffer to the end of the last

    Batch(ph_channel *channel, int puts, size_t source)
    {
        static const size_t batch[] = {960, 2047, 29}, shift[] = {0, 112, 13};
        for (int i = 0; i < puts; i++) {
            const size_t offset = 4096 * size_t(i) + shift[i % 3];
            ops.push_back({PH_GROUP_PUT, channel, offset, source + offset, batch[i % 3]});
            bytes = offset + batch[i % 3];
        }
        ops.push_back({PH_GROUP_SIGNAL, channel, 0, 0, 0});
    }
};

// The receiver has what lies there behind its wait, and writes over it: what comes later stands
// over that.
static void check_batch(Rank &rank, const Batch &batch, const void *target, void *snapshot,
                        uint64_t seed)
{
    for (const ph_group_op &op : batch.ops) {
        if (op.kind != PH_GROUP_PUT)
            continue;
        const std::string wrong =
            rank.device->verify(at(snapshot, op.peer_offset), op.size, seed, op.peer_offset);
        if (!wrong.empty())
            rank_failed(__FILE__, __LINE__, "behind the wait: " + wrong);
    }
    check_value(rank, target, batch.bytes, KILL, "written over behind the wait");
}

static void group_round(Rank &rank, const Way &way, void *stream, void *other, int round)
{
    const int puts = round % 2 ? 24 : 3, partner = rank.ranks - 1 - rank.rank;
    const size_t area = 4096 * size_t(puts);
    Fresh fresh(rank, round, area, 2); // the peer's, then the own
    void *snapshot = rank.device->alloc(area);
    auto channels = exchange_all(
        rank,
        {operation(uint64_t{2} * round, partner, PH_ROLE_BOTH, fresh.memory, fresh.size),
         operation(uint64_t{2} * round + 1, partner, PH_ROLE_BOTH, fresh.memory, fresh.size)});
    check_told(rank, way, channels[0]);
    const Batch batch(channels[0], puts, fresh.stride);
    rank.device->fill(fresh.place(1), area, 10 * round + rank.rank);
    rank.barrier();
    void *graph = issue(rank, way, stream, [&] {
        CHECK_OK(ph_wait(channels[1], 0, stream));
        CHECK_OK(ph_group(batch.ops.data(), batch.ops.size(), stream));
    });
    CHECK_OK(ph_signal(channels[1], other));
    CHECK_OK(ph_wait(channels[0], 0, other));
    rank.device->copy(other, snapshot, fresh.memory, area);
    rank.device->slow_fill(other, fresh.memory, area, KILL, 0);
    rank.synchronize(other);
    finish(rank, graph, stream);
    rank.barrier();
    check_batch(rank, batch, fresh.memory, snapshot, 10 * round + partner);
}

RANK_FUNCTION(group)
{
    Way way(rank.argument);
    rank.open(way.settings());
    void *stream = rank.device->stream(), *other = rank.device->stream();
    for (int round = 0; round < ROUNDS; round++)
        group_round(rank, way, stream, other, round);
    rank.barrier();
}

// ---- copies of a third rank, and its signals to the target

// Rank 0 copies, rank 1 has the target, on another device where there are two, and rank 2 the
// source. Each size has its place and its signal.
static void copy_round(Rank &rank, const Way &way, void *stream, int round)
{
    Fresh fresh(rank, round, sizes[SIZES - 1], SIZES), log(rank, round, sizes[SIZES - 1], SIZES);
    std::vector<ph_operation> ops;
    if (rank.rank < 2)
        ops.push_back(
            operation(uint64_t{2} * round, !rank.rank, PH_ROLE_BOTH, fresh.memory, fresh.size));
    if (rank.rank != 1)
        ops.push_back(operation(uint64_t{2} * round + 1, 2 - rank.rank, PH_ROLE_BOTH, fresh.memory,
                                fresh.size));
    auto channels = exchange_all(rank, ops);
    if (rank.rank == 0)
        check_told(rank, way, channels[0]);
    if (rank.rank == 2)
        rank.device->fill(fresh.memory, fresh.stride * SIZES, round);
    rank.barrier();
    void *graph = issue(rank, way, stream, [&] {
        for (int i = 0; i < SIZES && rank.rank < 2; i++) {
            const int place = (i + round) % SIZES;
            const size_t offset = fresh.stride * place;
            if (rank.rank == 1) {
                CHECK_OK(ph_wait(channels[0], 0, stream));
                rank.device->copy(stream, log.place(place), fresh.place(place), sizes[place]);
                continue;
            }
            CHECK_OK(ph_copy(channels[0], offset, channels[1], offset, sizes[place], stream));
            CHECK_OK(ph_signal(channels[0], stream));
        }
    });
    finish(rank, graph, stream);
    for (int i = 0; i < SIZES && rank.rank == 1; i++) {
        const std::string wrong =
            rank.device->verify(log.place(i), sizes[i], round, fresh.stride * i);
        if (!wrong.empty())
            rank_failed(__FILE__, __LINE__, "behind the wait: " + wrong);
    }
    rank.barrier();
}

RANK_FUNCTION(copy)
{
    Way way(rank.argument);
    rank.open(way.settings());
    void *stream = rank.device->stream();
    for (int round = 0; round < ROUNDS; round++)
        copy_round(rank, way, stream, round);
}

// ---- the number of what was put, which a release waits for

static void number_round(Rank &rank, const Way &way, void *stream, int round)
{
    Fresh fresh(rank, round, sizes[SIZES - 1], SIZES);
    ph_channel *channel = rank.channel(!rank.rank, round, PH_ROLE_BOTH, fresh.memory, fresh.size);
    check_told(rank, way, channel);
    if (rank.rank == 0)
        rank.device->fill(fresh.memory, fresh.stride * SIZES, round);
    rank.barrier();
    if (rank.rank == 0) {
        std::vector<ph_group_op> ops;
        for (int i = 0; i < SIZES; i++) {
            const int place = (i + round) % SIZES;
            const size_t offset = fresh.stride * place;
            ops.push_back({PH_GROUP_PUT, channel, offset, offset, sizes[place]});
        }
        if (round % 2)
            CHECK_OK(ph_group(ops.data(), ops.size(), stream));
        for (int i = 0; i < SIZES && round % 2 == 0; i++)
            CHECK_OK(ph_put(channel, ops[i].peer_offset, ops[i].local_offset, ops[i].size, stream));
    }
    rank.barrier();
    if (rank.rank == 1) {
        release_to(rank, fresh.memory, fresh.size, PH_RELEASE_DRAINED);
        for (int i = 0; i < SIZES; i++) {
            const std::string wrong =
                rank.device->verify(fresh.place(i), sizes[i], round, fresh.stride * i);
            if (!wrong.empty())
                rank_failed(__FILE__, __LINE__, "behind the release: " + wrong);
        }
    }
    rank.barrier(); // the putter's stream is looked at by nobody before
    rank.synchronize(stream);
}

RANK_FUNCTION(number)
{
    Way way(rank.argument);
    rank.open(way.settings());
    void *stream = rank.device->stream();
    for (int round = 0; round < ROUNDS; round++)
        number_round(rank, way, stream, round);
}

// ---- the jobs

class FirstTouch : public EveryDevice
{
  protected:
    void SetUp() override
    {
        std::string why;
        EveryDevice::SetUp();
        if (!IsSkipped() && GetParam() == "gpu" && !gpus_linked(&why))
            GTEST_SKIP() << why;
    }
    static void run(const std::string &function, int ranks,
                    const std::vector<std::string> &arguments)
    {
        for (const std::string &argument : arguments) {
            Job job(GetParam(), ranks);
            EXPECT_EQ(job.run(function, argument), "") << function << " " << argument;
        }
    }
};
INSTANTIATE_CUDA_DEVICES(FirstTouch);

// The last word: the size of the first put of all, by its place in the list.
TEST_P(FirstTouch, ChainCaptured)
{
    run("chain", 2, {"captured lines 0", "captured lines 2", "captured lines 4"});
}

TEST_P(FirstTouch, ChainEager)
{
    run("chain", 2, {"eager lines 0", "eager lines 1", "eager lines 3"});
}

TEST_P(FirstTouch, ChainByWords)
{
    run("chain", 2, {"captured words 0", "eager words 2", "captured memory 0", "eager memory 1"});
}

TEST_P(FirstTouch, ChainOfCopies)
{
    run("chain", 2, {"captured kernel 0", "eager kernel 2", "captured engine 0", "eager engine 1"});
}

TEST_P(FirstTouch, ChainOnOneDevice)
{
    for (const char *how : {"captured", "eager"}) {
        Job job(GetParam(), 2);
        job.environment("CUDA_VISIBLE_DEVICES", "0");
        EXPECT_EQ(job.run("chain", std::string(how) + " words 0 one device"), "") << how;
    }
}

TEST_P(FirstTouch, Group)
{
    run("group", 2, {"captured lines", "eager lines", "captured words"});
}

TEST_P(FirstTouch, GroupOfFourRanksOnTwoDevices)
{
    for (const char *how : {"captured lines", "eager lines"}) {
        Job job(GetParam(), 4);
        job.environment("CUDA_VISIBLE_DEVICES", "0,1");
        EXPECT_EQ(job.run("group", how), "") << how;
    }
}

TEST_P(FirstTouch, Copy)
{
    run("copy", 3, {"captured lines", "eager lines", "captured words"});
}

TEST_P(FirstTouch, NumberOfARelease)
{
    run("number", 2, {"eager number"});
}

// ---- they can fail

// Where blocks end with no fence, the stand-in ends the rank that comes upon what they have stored.
static void expect_unfenced(const std::string &function, int ranks, const std::string &argument,
                            const char *kernel)
{
    SCOPED_TRACE(function + " " + argument + ", no fence in " + kernel);
    testing::internal::CaptureStderr();
    int aborted = 0, over = 0;
    {
        Job job("standin", ranks);
        job.environment("PEERHOP_STANDIN_UNFENCED", kernel);
        job.start(function, argument);
        const auto until = std::chrono::steady_clock::now() + patience(20000);
        while (aborted == 0 && over < ranks && std::chrono::steady_clock::now() < until) {
            over = 0;
            for (int rank = 0; rank < ranks; rank++) {
                const int status = job.status(rank, 1);
                aborted += status == 128 + SIGABRT;
                over += status >= 0;
            }
        }
    } // kills those that wait for it
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_GT(aborted, 0) << said;
    EXPECT_NE(said.find("it has ended with no fence of system scope"), said.npos) << said;
}

// Of words, and of memory operations, the post itself is the fence.
TEST_P(FirstTouch, EndsWhereAFenceIsMissing)
{
    if (GetParam() != "standin")
        GTEST_SKIP() << "the stand-in looks for fences";
    expect_unfenced("chain", 2, "captured lines 0", "phi_copy");
    expect_unfenced("chain", 2, "eager lines 0", "phi_copies");
    expect_unfenced("group", 2, "captured lines", "phi_copies");
    expect_unfenced("group", 2, "eager lines", "phi_copies");
    expect_unfenced("group", 4, "captured lines", "phi_copies");
    expect_unfenced("copy", 3, "captured lines", "phi_copy");
    expect_unfenced("copy", 3, "eager lines", "phi_copies");
    expect_unfenced("number", 2, "eager number", "phi_copies");
}
