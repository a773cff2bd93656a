// SPDX-License-Identifier: BSD-3-Clause
// Transfers captured into CUDA graphs: right on every replay, by one rank or both, and captures
// that nothing disturbs.
#include <cerrno>
#include <chrono>
#include <sstream>
#include <thread>

#include "e2e/bytes.h"

class Graph : public EveryDevice
{
};
INSTANTIATE_CUDA_DEVICES_AND_NET(Graph);

static const size_t SIZE = 4133, LARGE = 70001;
static const int REPLAYS = 200;
static const size_t COPIED = (1 << 20) + 4099; // too large for lines
static const int REPLAYS_COPIED = 24;
static const size_t DRAWN = (33 << 20) + 48; // whose rows warps draw
static const int REPLAYS_DRAWN = 4;

// ---- replays with changed data, by both ranks or by one

// What one rank does in a round: as a graph or eagerly.
struct Round {
    Rank &rank;
    Pair &pair;
    void *out, *in, *outbox, *inbox, *stream;
    std::string call;
    size_t size;

    // Posts meet by themselves; who signals is told when the data was taken.
    bool signals() const
    {
        return call.find("send") != 0 && call.find("group") != 0;
    }
    void issue() const
    {
        ph_group_op ops[] = {{PH_GROUP_SEND, pair.to, 0, 0, size},
                             {PH_GROUP_RECV, pair.from, 0, 0, size}};
        rank.device->copy(stream, out, outbox, size);
        if (call.find("group") == 0)
            CHECK_OK(ph_group(ops, 2, stream));
        else if (rank.rank == 0)
            send();
        else
            receive();
        rank.device->copy(stream, inbox, in, size);
    }
    void send() const
    {
        if (call == "put")
            CHECK_OK(ph_put(pair.to, 0, 0, size, stream));
        if (call == "put" || call == "get")
            CHECK_OK(ph_signal(pair.to, stream));
        else if (call == "put_signal")
            CHECK_OK(ph_put_signal(pair.to, 0, 0, size, stream));
        else
            CHECK_OK(ph_send(pair.to, size, stream));
        CHECK_OK(ph_complete(pair.to, stream));
        if (signals()) // the data was taken
            CHECK_OK(ph_wait(pair.from, 0, stream));
    }
    void receive() const
    {
        if (call == "put" || call == "get")
            CHECK_OK(ph_wait(pair.from, 0, stream));
        if (call == "get") {
            CHECK_OK(ph_get(pair.from, 0, 0, size, stream));
            return;
        }
        if (call == "put_signal")
            CHECK_OK(ph_wait(pair.from, size, stream));
        else if (!signals())
            CHECK_OK(ph_recv(pair.from, size, stream));
        CHECK_OK(ph_complete(pair.from, stream));
    }
};

// argument: "<call> both", "<call> 0" or "<call> 1": who replays; "large": of large messages by
// lines, "copied": of such as are too large for that, "drawn": of those whose rows warps draw.
RANK_FUNCTION(replayed)
{
    std::string call, who, what;
    std::istringstream(rank.argument) >> call >> who >> what;
    rank.open(what.empty() ? std::vector<std::string>{} : std::vector<std::string>{Rank::wide()});
    const size_t size = what == "drawn"    ? DRAWN
                        : what == "copied" ? COPIED
                        : what == "large"  ? LARGE
                                           : SIZE;
    const int replayed = what == "drawn"    ? REPLAYS_DRAWN
                         : what == "copied" ? REPLAYS_COPIED
                                            : REPLAYS;
    bool replays = who == "both" || who == std::to_string(rank.rank);
    void *out = rank.device->alloc(size), *in = rank.device->alloc(size);
    void *outbox = rank.device->alloc(size), *inbox = rank.device->alloc(size);
    void *table = rank.device->alloc(replayed * size), *log = rank.device->alloc(replayed * size);
    void *stream = rank.device->stream();
    rank.device->fill(table, replayed * size, rank.rank);
    Pair pair(rank, !rank.rank, 1, protocol_of(call), out, in, size);
    Round round{rank, pair, out, in, outbox, inbox, stream, call, size};
    if (what == "large" && rank.by_flags(pair.to, true))
        CHECK(rank.sends_alone(pair.to, true, size)); // by ll
    void *graph = replays ? rank.device->capture(stream, [&] { round.issue(); }) : nullptr;
    for (int i = 0; i < replayed; i++) {
        rank.device->copy(stream, outbox, at(table, i * size), size);
        if (replays)
            rank.device->launch(graph, stream);
        else
            round.issue();
        rank.device->copy(stream, at(log, i * size), inbox, size);
        if (round.signals() && rank.rank == 1)
            CHECK_OK(ph_signal(pair.to, stream));
    }
    rank.synchronize(stream);
    if (rank.rank == 1 || call.find("group") == 0)
        rank.verify(log, replayed * size, !rank.rank, "over all replays");
    CHECK((rank.counter("captured") > 0) == replays);
    if (replays)
        rank.device->destroy(graph);
}

static void run_replayed(const std::string &device, const std::string &call,
                         const char *wait = "auto", const std::string &what = "",
                         const std::vector<std::string> &who = {"both", "0", "1"})
{
    for (const std::string &one : who) {
        Job job(device, 2);
        job.environment("PEERHOP_WAIT", wait);
        EXPECT_EQ(job.run("replayed", call + " " + one + " " + what), "") << one << " replays";
    }
}

TEST_P(Graph, SendInPutProtocol)
{
    run_replayed(GetParam(), "send-put");
}

TEST_P(Graph, LargeSendsByLinesAndByCopy)
{
    if (GetParam() != "standin" && GetParam() != "gpu")
        GTEST_SKIP() << "lines are of ipc";
    for (const char *what : {"large", "copied"}) {
        run_replayed(GetParam(), "send-put", "auto", what);
        run_replayed(GetParam(), "group-put", "auto", what);
    }
    run_replayed(GetParam(), "send-put", "auto", "drawn", {"both"});
}

TEST_P(Graph, SendInGetProtocol)
{
    run_replayed(GetParam(), "send-get");
}

TEST_P(Graph, PutSignal)
{
    run_replayed(GetParam(), "put_signal");
}

TEST_P(Graph, PutThenSignal)
{
    run_replayed(GetParam(), "put");
}

TEST_P(Graph, Get)
{
    SKIP_GETS_OF_STAGED();
    run_replayed(GetParam(), "get");
}

TEST_P(Graph, Group)
{
    run_replayed(GetParam(), "group-put");
    run_replayed(GetParam(), "group-get");
}

TEST_P(Graph, WaitsByKernelAndByMemoryOperation)
{
    run_replayed(GetParam(), "group-put", "kernel");
    run_replayed(GetParam(), "group-put", "memory_operation");
}

// ---- several graphs

RANK_FUNCTION(two_graphs)
{
    const int rounds = 60;
    rank.open();
    void *stream = rank.device->stream(), *second = rank.device->stream();
    void *out[2], *in[2], *table[2], *log[2];
    std::vector<Pair> pairs;
    for (int i = 0; i < 2; i++) {
        out[i] = rank.device->alloc(SIZE);
        in[i] = rank.device->alloc(SIZE);
        table[i] = rank.device->alloc(rounds * SIZE);
        log[i] = rank.device->alloc(rounds * SIZE);
        rank.device->fill(table[i], rounds * SIZE, 10 * rank.rank + i);
        pairs.emplace_back(rank, !rank.rank, i, i ? PH_PROTOCOL_GET : PH_PROTOCOL_PUT, out[i],
                           in[i], SIZE);
    }
    auto exchange = [&](int i, void *on) {
        ph_group_op ops[] = {{PH_GROUP_SEND, pairs[i].to, 0, 0, SIZE},
                             {PH_GROUP_RECV, pairs[i].from, 0, 0, SIZE}};
        CHECK_OK(ph_group(ops, 2, on));
    };
    // One graph has both channels on two branches, the other the first channel alone.
    void *wide = rank.device->capture(stream, [&] {
        rank.device->follow(second, stream);
        exchange(0, stream);
        exchange(1, second);
        rank.device->follow(stream, second);
    });
    void *narrow = rank.device->capture(stream, [&] { exchange(0, stream); });
    for (int round = 0; round < rounds; round++) {
        bool both = round % 3 != 1;
        for (int i = 0; i < 2; i++)
            rank.device->copy(stream, out[i], at(table[i], round * SIZE), SIZE);
        rank.device->launch(both ? wide : narrow, stream);
        if (!both)
            exchange(1, stream); // eagerly between replays
        for (int i = 0; i < 2; i++)
            rank.device->copy(stream, at(log[i], round * SIZE), in[i], SIZE);
    }
    rank.synchronize(stream);
    for (int i = 0; i < 2; i++)
        rank.verify(log[i], rounds * SIZE, 10 * !rank.rank + i, "of two graphs");
    rank.device->destroy(wide);
    rank.device->destroy(narrow);
}

TEST_P(Graph, TwoGraphsAndBranches)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("two_graphs"), "");
}

// ---- trap 8: a replay waits for its own message, not for the one of the capture

RANK_FUNCTION(every_replay_waits)
{
    rank.open({"PEERHOP_LL_MAX=0"}); // a send by ll waits for nobody
    void *buffer = rank.device->alloc(SIZE);
    void *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER,
                                       buffer, SIZE, protocol_of(rank.argument));
    void *graph = rank.device->capture(stream, [&] {
        // What is refused leaves the capture as it is.
        CHECK_RC(rank.rank ? ph_get(channel, 0, 1, SIZE, stream)
                           : ph_put(channel, 0, 1, SIZE, stream),
                 -EINVAL);
        CHECK_OK(rank.rank ? ph_recv(channel, SIZE, stream) : ph_send(channel, SIZE, stream));
        CHECK_OK(ph_complete(channel, stream));
    });
    for (int round = 0; round < 20; round++) {
        bool first = round % 2 == rank.rank; // who waits for whom changes
        if (rank.rank == 0)
            rank.device->fill(buffer, SIZE, round);
        if (!first)
            rank.barrier();
        rank.device->launch(graph, stream);
        if (first) {
            if (rank.staged() && rank.rank == 0)
                rank.synchronize(stream); // what is staged is sent into slots
            else
                CHECK(!rank.device->synchronize(stream, 5));
            rank.barrier();
        }
        rank.synchronize(stream);
        if (rank.rank == 1)
            rank.verify(buffer, SIZE, round, "of this replay");
        rank.barrier();
    }
    rank.device->destroy(graph);
}

TEST_P(Graph, EveryReplayWaits)
{
    for (const char *protocol : {"put", "get"}) {
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("every_replay_waits", protocol), "");
    }
}

// ---- trap 17: captures in global mode, which an unsafe driver call of any thread would invalidate

// Rank 0 captures while another of its threads exchanges with rank 1, and for the first time with
// rank 2, and puts by groups: segments are registered and allocations imported, by that thread and
// by the service thread.
RANK_FUNCTION(captured_globally)
{
    const int exchanges = 6;
    rank.open({"PEERHOP_METHOD=" + rank.argument});
    void *stream = rank.device->stream(), *beside = rank.device->stream();
    std::vector<void *> buffers;
    for (int i = 0; i <= exchanges; i++)
        buffers.push_back(rank.device->alloc(SIZE + size_t(i) * 100));
    ph_channel *channel = nullptr;
    if (rank.rank < 2)
        channel = rank.channel(!rank.rank, 100, rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER,
                               buffers[0], SIZE);
    rank.barrier();
    std::vector<ph_channel *> channels(exchanges);
    auto exchange = [&](int peer, int i) {
        for (int again = 0; again < 3; again++) // a miss, then hits
            channels[i] = rank.channel(peer, i, PH_ROLE_BOTH, buffers[i + 1], SIZE);
    };
    if (rank.rank > 0) {
        for (int i = rank.rank == 1 ? 0 : 1; i < exchanges; i += 2)
            exchange(0, i);
    }
    std::atomic<int> asked{0}, done{0};
    std::thread other;
    if (rank.rank == 0) {
        other = std::thread([&] {
            for (int i = 0; i < exchanges; i++) {
                while (asked.load() <= i)
                    std::this_thread::yield();
                exchange(i % 2 ? 2 : 1, i);
                const ph_group_op halves[] = {
                    {PH_GROUP_PUT, channels[i], 0, 0, SIZE / 2},
                    {PH_GROUP_PUT, channels[i], SIZE / 2, SIZE / 2, SIZE / 2},
                };
                CHECK_OK(ph_group(halves, 2, beside));
                done.fetch_add(1);
            }
        });
    }
    void *graph = nullptr;
    if (rank.rank == 0) {
        graph = rank.device->capture(
            stream,
            [&] {
                for (int i = 0; i < exchanges; i++) {
                    CHECK_OK(ph_put_signal(channel, 0, 0, SIZE, stream));
                    asked.fetch_add(1);
                    while (done.load() <= i)
                        std::this_thread::yield();
                    std::this_thread::sleep_for(
                        std::chrono::milliseconds(2)); // the service thread's turn
                }
            },
            true);
        other.join();
        rank.device->fill(buffers[0], SIZE, 4);
        rank.device->launch(graph, stream);
    } else if (rank.rank == 1) {
        for (int i = 0; i < exchanges; i++)
            CHECK_OK(ph_wait(channel, SIZE, stream));
    }
    rank.synchronize(stream);
    rank.synchronize(beside);
    if (rank.rank == 1)
        rank.verify(buffers[0], SIZE, 4, "from a graph captured in global mode");
    rank.barrier();
    if (graph != nullptr)
        rank.device->destroy(graph);
}

TEST_P(Graph, CaptureInGlobalModeIsUndisturbed)
{
    for (const char *method : {"auto", "ce"}) {
        Job job(GetParam(), 3);
        EXPECT_EQ(job.run("captured_globally", method), "") << method;
    }
}

// ---- lifetime

RANK_FUNCTION(alive_at_destroy)
{
    rank.open();
    void *buffer = rank.device->alloc(SIZE);
    void *stream = rank.device->stream();
    ph_channel *channel =
        rank.channel(!rank.rank, 1, rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER, buffer, SIZE);
    if (rank.rank == 1) {
        CHECK_OK(ph_wait(channel, SIZE, stream));
        rank.synchronize(stream);
        rank.barrier();
        return;
    }
    void *graph =
        rank.device->capture(stream, [&] { CHECK_OK(ph_put_signal(channel, 0, 0, SIZE, stream)); });
    rank.device->launch(graph, stream);
    rank.synchronize(stream);
    CHECK_RC(ph_context_destroy(&rank.context, 300), -ETIMEDOUT);
    CHECK(rank.error().find("1 graph") != std::string::npos);
    CHECK(rank.error().find("must be destroyed first") != std::string::npos);
    rank.device->destroy(graph);
    rank.barrier();
    CHECK_OK(ph_context_destroy(&rank.context, 20000));
}

TEST_P(Graph, AliveAtDestroy)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("alive_at_destroy"), "");
}
