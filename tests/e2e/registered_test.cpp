// SPDX-License-Identifier: BSD-3-Clause
// Memory of devices that is registered with the net: what is special about it. The provider is
// tests/conformance/net_hmem.c, which holds back what it writes there until it is flushed.
#include "e2e/bytes.h"

class Registered : public testing::Test
{
  protected:
    void SetUp() override
    {
        std::string why;
        if (!net_available())
            GTEST_SKIP() << "libfabric is left out of this build";
        if (!device_available("standin", &why))
            GTEST_SKIP() << why;
    }
    using Environment = std::map<std::string, std::string>;
    static std::string run(const char *function, const std::string &argument,
                           const Environment &all = {}, const Environment &of_rank_1 = {})
    {
        Job job("standinhmem", 2);
        for (const auto &[name, value] : all)
            job.environment(name, value);
        for (const auto &[name, value] : of_rank_1)
            job.environment(1, name, value);
        return job.run(function, argument);
    }
};

static bool has(const std::string &text, const std::string &what)
{
    return text.find(what) != std::string::npos;
}

// ---- which way a channel has, and why not a better one

// argument: method kind flush, and what the reason against hmem says ("-": there is none).
RANK_FUNCTION(tells_its_way)
{
    rank.open();
    void *buffer = rank.device->alloc(100), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, buffer, 100);
    for (int outgoing = 0; outgoing < 2; outgoing++) {
        ph_path_report report;
        CHECK_OK(ph_channel_path(channel, outgoing, &report, sizeof report));
        const std::string told =
            std::string(report.method) + " " + report.kind + " " + report.flush + " ";
        CHECK(report.path == std::string("net"));
        if (rank.rank == 0 && rank.argument.rfind(told, 0) != 0)
            rank_failed(__FILE__, __LINE__, told + reason_against(report, "hmem"));
        const std::string reason = rank.argument.substr(told.size());
        if (rank.rank == 0) // the other one may be a host
            CHECK(reason == "-" ? reason_against(report, "hmem").empty()
                                : has(reason_against(report, "hmem"), reason));
        CHECK(rank.rank == 1 || !reason_against(report, "dmabuf").empty());
    }
    // Whatever it is, it serves.
    rank.device->fill(buffer, 100, rank.rank);
    rank.barrier();
    if (rank.rank == 0)
        CHECK_OK(ph_put_signal(channel, 0, 0, 100, stream));
    else
        CHECK_OK(ph_wait(channel, 100, stream));
    rank.synchronize(stream);
    rank.verify(buffer, 100, 0, "what was put");
    rank.barrier();
}

TEST_F(Registered, TellsItsWay)
{
    EXPECT_EQ(run("tells_its_way", "rma hmem driver_all -"), "");
    EXPECT_EQ(run("tells_its_way", "rma hmem read -",
                  {{"TEST_NET_HMEM", "read"}, {"PEERHOP_NET_FLUSH", "read"}}),
              "");
    EXPECT_EQ(run("tells_its_way", "rma hmem none -",
                  {{"TEST_NET_HMEM", "none"}, {"PEERHOP_NET_FLUSH", "none"}}),
              "");
    EXPECT_EQ(run("tells_its_way", "staged slots none the configuration asks for another",
                  {{"PEERHOP_NET_MEMORY", "staged"}}),
              "");
}

TEST_F(Registered, BothOrNeither)
{
    EXPECT_EQ(run("tells_its_way", "staged slots none the peer's memory is not registered", {},
                  {{"PEERHOP_NET_MEMORY", "staged"}}),
              "");
    EXPECT_EQ(run("tells_its_way", "rma hmem driver_all -", {}, {{"PEERHOP_TEST_DEVICE", "host"}}),
              "");
}

// What a provider says of itself is tried: one that never shows what it writes, and one whose
// writes do not show by the flush that is chosen.
TEST_F(Registered, AProviderThatLiesIsNotTaken)
{
    const char *staged = "staged slots none the provider did not move";
    EXPECT_EQ(run("tells_its_way", staged, {{"TEST_NET_HMEM", "lies"}}), "");
    EXPECT_EQ(run("tells_its_way", staged, {{"PEERHOP_NET_FLUSH", "none"}}), "");
    EXPECT_EQ(run("tells_its_way", staged, {{"PEERHOP_NET_FLUSH", "read"}}), "");
}

// The proxy may not call CUDA, which may wait for the streams that wait for the proxy.
TEST_F(Registered, AProviderThatMayCallCudaIsNotTaken)
{
    const char *staged = "staged slots none the provider", *hmem = "rma hmem driver_all -";
    EXPECT_EQ(run("tells_its_way", hmem, {{"TEST_NET_HMEM", "driver permits"}}), "");
    EXPECT_EQ(run("tells_its_way", staged, {{"TEST_NET_HMEM", "driver calls"}}), "");
    EXPECT_EQ(run("tells_its_way", staged, {{"TEST_NET_HMEM", "driver knows nothing"}}), "");
    for (const char *provider : {"driver calls", "driver knows nothing"}) // the user knows better
        EXPECT_EQ(run("tells_its_way", hmem,
                      {{"TEST_NET_HMEM", provider}, {"PEERHOP_NET_MEMORY", "hmem"}}),
                  "");
}

// ---- in a chain of streams: what was enqueued before the data came

static const size_t SIZES[] = {1, 8, 4099, 300000};
static const int ROUNDS = 40;

// Each round rank 0 makes new bytes, puts them and overwrites them at once; rank 1 keeps what it
// finds. Then rank 1 reads them by itself.
static void chain(Rank &rank, size_t size)
{
    void *stream = rank.device->stream();
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    char *table = static_cast<char *>(rank.device->alloc(ROUNDS * size));
    char *log = static_cast<char *>(rank.device->alloc(2 * ROUNDS * size));
    ph_channel *channel = rank.channel(!rank.rank, size, PH_ROLE_BOTH, memory, 2 * size);
    ph_path_report report;
    CHECK_OK(ph_channel_path(channel, 1, &report, sizeof report));
    CHECK(report.method == std::string("rma"));
    rank.device->fill(table, ROUNDS * size, 7);
    for (int round = 0; round < ROUNDS; round++) {
        if (rank.rank == 0) {
            rank.device->copy(stream, memory, table + round * size, size);
            CHECK_OK(ph_put_signal(channel, 0, 0, size, stream));
            rank.device->copy(stream, memory, table + (round + 1) % ROUNDS * size, size);
            CHECK_OK(ph_wait(channel, 0, stream));
            rank.device->copy(stream, memory + size, table + round * size, size);
            CHECK_OK(ph_signal(channel, stream));
            CHECK_OK(ph_wait(channel, 0, stream));
            continue;
        }
        CHECK_OK(ph_wait(channel, size, stream));
        rank.device->copy(stream, log + 2 * round * size, memory, size);
        CHECK_OK(ph_signal(channel, stream));
        CHECK_OK(ph_wait(channel, 0, stream));
        CHECK_OK(ph_get(channel, size, size, size, stream));
        rank.device->copy(stream, log + (2 * round + 1) * size, memory + size, size);
        CHECK_OK(ph_signal(channel, stream));
    }
    rank.synchronize(stream);
    for (int round = 0; rank.rank == 1 && round < 2 * ROUNDS; round++) {
        const std::string wrong =
            rank.device->verify(log + round * size, size, 7, round / 2 * size);
        if (!wrong.empty())
            rank_failed(__FILE__, __LINE__,
                        (round % 2 ? "got: " : "put: ") + std::to_string(size) + " bytes, round " +
                            std::to_string(round / 2) + ": " + wrong);
    }
    rank.barrier();
}

RANK_FUNCTION(chains)
{
    rank.open();
    for (size_t size : SIZES)
        chain(rank, size);
}

TEST_F(Registered, InAChain)
{
    for (const char *rails : {"1", "2"})
        for (const char *flush : {"driver", "read"})
            EXPECT_EQ(run("chains", "",
                          {{"TEST_NET_HMEM", flush},
                           {"PEERHOP_NET_FLUSH", flush},
                           {"PEERHOP_NET_RAILS", rails},
                           {"PEERHOP_NET_PART", "65536"}}),
                      "")
                << flush << " " << rails;
    EXPECT_EQ(run("chains", "", {}, {{"PEERHOP_TEST_DEVICE", "host"}}), "");
}

// ---- another device than the owner reads what has come

// A channel of ranks 0 and 1 by the net, or of ranks 1 and 2 by ipc.
static ph_channel *link_by(Rank &rank, const char *path, int peer, void *memory, size_t size)
{
    ph_path_report report;
    ph_channel *channel = rank.channel(peer, path[0] == 'n', PH_ROLE_BOTH, memory, size);
    CHECK_OK(ph_channel_path(channel, 1, &report, sizeof report));
    CHECK(report.path == std::string(path));
    CHECK(report.path == std::string("ipc") || report.method == std::string("rma"));
    return channel;
}

// Each round rank 0 puts new bytes over the net, rank 1 keeps what its own device finds of them,
// and rank 2, whose device is another one, gets them out of rank 1's memory by ipc.
// argument "stale": nothing flushes, and rank 2 is to find old bytes where rank 1 does not.
RANK_FUNCTION(passes_on)
{
    const size_t size = 4099;
    rank.open();
    void *stream = rank.device->stream();
    char *memory = static_cast<char *>(rank.device->alloc(size));
    char *bytes = static_cast<char *>(rank.device->alloc(ROUNDS * size)); // made, or found
    ph_channel *net = rank.rank < 2 ? link_by(rank, "net", !rank.rank, memory, size) : nullptr;
    ph_channel *ipc = rank.rank > 0 ? link_by(rank, "ipc", 3 - rank.rank, memory, size) : nullptr;
    if (rank.rank == 0)
        rank.device->fill(bytes, ROUNDS * size, 7);
    for (int round = 0; round < ROUNDS; round++) {
        if (rank.rank == 0) {
            rank.device->copy(stream, memory, bytes + round * size, size);
            CHECK_OK(ph_put_signal(net, 0, 0, size, stream));
            CHECK_OK(ph_wait(net, 0, stream)); // both have read them
            continue;
        }
        CHECK_OK(rank.rank == 1 ? ph_wait(net, size, stream) : ph_wait(ipc, 0, stream));
        if (rank.rank == 2)
            CHECK_OK(ph_get(ipc, 0, 0, size, stream));
        rank.device->copy(stream, bytes + round * size, memory, size);
        CHECK_OK(ph_signal(ipc, stream));
        if (rank.rank == 1) {
            CHECK_OK(ph_wait(ipc, 0, stream));
            CHECK_OK(ph_signal(net, stream));
        }
    }
    rank.synchronize(stream);
    for (int round = 0; round < ROUNDS; round++) {
        const std::string wrong = rank.device->verify(bytes + round * size, size, 7, round * size);
        if (wrong.empty() == (rank.rank == 2 && rank.argument == "stale"))
            rank_failed(__FILE__, __LINE__, "round " + std::to_string(round) + ": " + wrong);
    }
    rank.barrier();
}

// The device of the stand-in has the order of the net's writes for itself ("owner"), which says
// nothing of what others see.
TEST_F(Registered, AnotherDeviceReadsWhatHasCome)
{
    const auto passes_on = [](const char *flush, const char *argument) {
        Job job("standinhmem", 3);
        job.environment("TEST_NET_HMEM", "owner");
        job.environment("PEERHOP_NET_FLUSH", flush);
        job.environment("PEERHOP_PATH", "auto");
        job.environment(0, "PEERHOP_PATH", "net");
        return job.run("passes_on", argument);
    };
    EXPECT_EQ(passes_on("auto", ""), "");
    EXPECT_EQ(passes_on("read", ""), "");
    EXPECT_EQ(passes_on("none", "stale"), ""); // else it would show nothing here
}

// ---- a group of both

// Everybody tells everybody. The peers of a rank go in turns, of which one goes by bells.
RANK_FUNCTION(tells_all)
{
    rank.open();
    const size_t size = 100;
    void *stream = rank.device->stream();
    std::vector<ph_group_op> ops;
    std::vector<char *> buffers(rank.ranks);
    for (int peer = 0; peer < rank.ranks; peer++) {
        if (peer == rank.rank)
            continue;
        buffers[peer] = static_cast<char *>(rank.device->alloc(2 * size));
        ph_channel *channel = rank.channel(peer, 1, PH_ROLE_BOTH, buffers[peer], 2 * size);
        ops.push_back({PH_GROUP_PUT_SIGNAL, channel, size, 0, size});
        ops.push_back({PH_GROUP_WAIT, channel, 0, 0, size});
    }
    for (int round = 0; round < 10; round++) {
        for (int peer = 0; peer < rank.ranks; peer++)
            if (peer != rank.rank)
                rank.device->fill(buffers[peer], size, round * 100 + rank.rank * 10 + peer);
        rank.barrier();
        const uint64_t before = rank.counter("launches");
        CHECK_OK(ph_group(ops.data(), ops.size(), stream));
        // By bells, by flags, by bells: what tells, and what waits. Rank 2 has no flags.
        const uint64_t launches = rank.counter("launches") - before;
        if (launches != (rank.rank == 2 ? 1 : 3))
            rank_failed(__FILE__, __LINE__, std::to_string(launches) + " launches");
        rank.synchronize(stream);
        for (int peer = 0; peer < rank.ranks; peer++)
            if (peer != rank.rank)
                rank.verify(buffers[peer] + size, size, round * 100 + peer * 10 + rank.rank,
                            "told");
    }
    rank.barrier();
}

TEST_F(Registered, AGroupOfBothTakesThreeLaunches)
{
    Job job("standinhmem", 4);
    job.environment("PEERHOP_STANDIN_DEVICES", "4"); // those of one device use no flags
    job.environment("PEERHOP_PATH", "auto");
    job.environment(2, "PEERHOP_PATH", "net");
    EXPECT_EQ(job.run("tells_all"), "");
}

// ---- a flush that fails, or does not end

RANK_FUNCTION(waits_for_a_flush)
{
    rank.open();
    void *buffer = rank.device->alloc(100), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, buffer, 100);
    if (rank.rank == 1)
        CHECK_OK(ph_wait(channel, 100, stream));
    rank.barrier(); // before the end
    if (rank.rank == 0) {
        CHECK_OK(ph_put_signal(channel, 0, 0, 100, stream));
        const int rc =
            ph_wait(channel, 100, stream); // nothing comes but the end, maybe before this
        CHECK(rc == 0 || rc == PH_EPEER);
    }
    rank.synchronize(stream);
    rank.ends_with(PH_EPEER, "rank " + std::to_string(!rank.rank),
                   [&] { return ph_signal(channel, stream); });
    rank.barrier();
}

TEST_F(Registered, AFlushThatFailsEndsTheChannel)
{
    for (const char *how : {"driver,fails", "read,fails", "driver,hangs"})
        EXPECT_EQ(run("waits_for_a_flush", "",
                      {{"TEST_NET_HMEM", how},
                       {"PEERHOP_NET_FLUSH", has(how, "read") ? "read" : "driver"}}),
                  "")
            << how;
}
