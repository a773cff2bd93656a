// SPDX-License-Identifier: BSD-3-Clause
// ph_copy in chains of transfers, and where one of the owners, or both, are reached over the net.
#include <sys/wait.h>

#include "e2e/third.h"
#include "support/strict_net.h"

class CopyChain : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_NET(CopyChain);

class CopyOverNet : public OverNet
{
  protected:
    void TearDown() override
    {
        expect_nothing_refused();
    }
};

// A sentence names the rank that does not answer; once it does, the copy ends. Other queues go on.
RANK_FUNCTION(waits_for_one)
{
    const int stops = who_goes(rank);
    rank.open();
    Third third(rank);
    if (third.has_source)
        rank.device->fill(third.source.data, BIG, 5);
    rank.barrier();
    if (rank.rank == stops) {
        rank.shared->value[0] = 1;
        CHECK(reaches(rank.shared->value[2], 1, 40000));
    } else if (third.copies) {
        CHECK(reaches(rank.shared->value[1], 1));
        CHECK_OK(ph_copy(third.to, 0, third.from, 0, BIG, third.stream));
        const std::string what = "operation " + std::to_string(stops) + " (copy) with rank " +
                                 std::to_string(stops) + ": " + std::to_string(BIG) +
                                 " bytes are not delivered";
        Stopwatch watch; // on a busy machine the first way takes as long
        do
            CHECK(!rank.device->synchronize(third.stream, 200));
        while (rank.error().find(what) == std::string::npos && watch.ms() < kWait);
        CHECK_SAYS(rank.error(), what);
        void *other = rank.device->stream();
        ph_channel *good = stops == 1 ? third.to : third.from;
        CHECK_OK(ph_copy(good, BIG, good, BIG + 1000, 1000, other));
        rank.synchronize(other);
        rank.shared->value[2] = 1;
        rank.synchronize(third.stream);
        CHECK_OK(ph_channel_status(third.to));
        CHECK_OK(ph_channel_status(third.from));
    }
    rank.barrier();
    if (third.has_target)
        rank.verify(third.target.data, BIG, 5, "copied after all");
    rank.barrier();
}

TEST_F(CopyOverNet, WhoDoesNotAnswerIsNamed)
{
    for (const char *end : {"source", "target"}) {
        SCOPED_TRACE(end);
        Job job("hostnet", 3);
        const int stops = *end == 's' ? 1 : 2;
        job.start("waits_for_one", end);
        ASSERT_TRUE(reaches(job.shared()->value[0], 1));
        job.signal(stops, SIGSTOP);
        ASSERT_EQ(waitpid(job.pid(stops), nullptr, WUNTRACED), job.pid(stops)); // all its threads
        job.shared()->value[1] = 1;
        EXPECT_TRUE(reaches(job.shared()->value[2], 1));
        job.signal(stops, SIGCONT);
        EXPECT_EQ(job.wait(), "");
    }
}

// What is staged moves with its owner's streams only.
RANK_FUNCTION(staged)
{
    rank.open();
    Third third(rank, 1000);
    if (third.copies) {
        CHECK_RC(ph_copy(third.to, 0, third.from, 0, 8, third.stream), PH_ENOPATH);
        CHECK_SAYS(rank.error(), rank.argument + " is staged over the net");
        CHECK(rank.device->synchronize(third.stream, 0));
        expect_good(third, rank.argument.find("written") != std::string::npos);
    }
    rank.barrier();
}

TEST_F(CopyOverNet, WhatIsStagedIsRefused)
{
    std::string why;
    if (!device_available("standin", &why))
        GTEST_SKIP() << why;
    for (int net : {1, 2}) {
        Job job("standin", 3);
        job.environment("PEERHOP_NET_PROVIDER", "tcp");
        job.environment(net, "PEERHOP_PATH", "net");
        EXPECT_EQ(job.run("staged", net == 1 ? "rank 1's buffer, which is to be read,"
                                             : "rank 2's buffer, which is to be written,"),
                  "");
    }
}

// Also where both ends are, by a rank with a device and by one without; what may move still does.
RANK_FUNCTION(both_staged)
{
    rank.open();
    Third third(rank, 1000);
    if (third.copies) {
        CHECK_RC(ph_copy(third.to, 0, third.from, 0, 8, third.stream), PH_ENOPATH);
        CHECK_SAYS(rank.error(), "rank 2's buffer, which is to be written, is staged over the net");
        CHECK_RC(ph_get(third.from, 0, 0, 8, third.stream), PH_ENOPATH);
        CHECK_SAYS(rank.error(), "what is staged over the net moves only when its owner's stream");
        CHECK(rank.device->synchronize(third.stream, 0));
        CHECK_OK(ph_put_signal(third.to, 0, 0, 8, third.stream));
    } else if (third.has_target) {
        CHECK_OK(ph_wait(third.to, 8, third.stream));
    }
    rank.synchronize(third.stream);
    rank.barrier();
}

TEST_F(CopyOverNet, WhatIsStagedAtBothEndsIsRefused)
{
    std::string why;
    if (!device_available("standin", &why))
        GTEST_SKIP() << why;
    for (const char *copier : {"standin", "host"}) {
        SCOPED_TRACE(copier);
        Job job("standinnet", 3);
        job.environment(0, "PEERHOP_TEST_DEVICE", copier);
        EXPECT_EQ(job.run("both_staged"), "");
    }
}

// ---- a chain: put, copy, get, each over its path, and whatever was read is written over at once
// (trap 14)

struct Chain {
    Third &third;
    void *out, *back;

    // By the owner of a buffer: it was filled and read, and is written over.
    void give_away(ph_channel *channel, Buffer &buffer, size_t size) const
    {
        Rank &rank = third.rank;
        CHECK_OK(ph_wait(channel, 0, third.stream));
        CHECK_OK(ph_signal(channel, third.stream));
        CHECK_OK(ph_wait(channel, 0, third.stream));
        rank.device->slow_fill(third.stream, buffer.data, size, 0xdd, 0);
        CHECK_OK(ph_signal(channel, third.stream));
    }
    void lead(size_t size, uint64_t seed) const
    {
        Rank &rank = third.rank;
        void *stream = third.stream;
        rank.device->fill(out, size, seed);
        CHECK_OK(ph_put(third.from, 3, 0, size, stream));
        CHECK_OK(ph_signal(third.from, stream));
        rank.device->slow_fill(stream, out, size, 0xee, 0);
        CHECK_OK(ph_wait(third.from, 0, stream));
        CHECK_OK(ph_copy(third.to, 5, third.from, 3, size, stream));
        CHECK_OK(ph_signal(third.from, stream)); // read
        CHECK_OK(ph_signal(third.to, stream));   // written
        CHECK_OK(ph_wait(third.to, 0, stream));
        CHECK_OK(ph_get(third.to, 0, 5, size, stream));
        CHECK_OK(ph_signal(third.to, stream)); // read
        CHECK_OK(ph_wait(third.from, 0, stream));
        CHECK_OK(ph_wait(third.to, 0, stream));
    }
};

// Rank 0 puts and gets: its own buffers, out and back, are as large.
static Chain chain_of(Third &third)
{
    Rank &rank = third.rank;
    void *out = rank.device->alloc(third.size), *back = rank.device->alloc(third.size);
    std::vector<ph_operation> ops;
    if (third.copies || third.has_source)
        ops.push_back(operation(3, third.copies ? 1 : 0, PH_ROLE_BOTH,
                                third.copies ? out : third.source.data, third.size));
    if (third.copies || third.has_target)
        ops.push_back(operation(4, third.copies ? third.target_rank : 0, PH_ROLE_BOTH,
                                third.copies ? back : third.target.data, third.size));
    auto channels = exchange_all(rank, ops);
    third.from = channels[0];
    third.to = channels.back();
    return {third, out, back};
}

static void go_round(const Chain &links, size_t size, uint64_t seed)
{
    Third &third = links.third;
    Rank &rank = third.rank;
    if (third.copies)
        links.lead(size, seed);
    if (third.has_source)
        links.give_away(third.from, third.source, size + 8);
    if (third.has_target)
        links.give_away(third.to, third.target, size + 8);
    rank.synchronize(third.stream);
    if (third.copies)
        rank.verify(links.back, size, seed, "what came back");
}

RANK_FUNCTION(chain)
{
    rank.open();
    Third third(rank);
    const Chain links = chain_of(third);
    uint64_t seed = 1;
    const std::vector<size_t> sizes = {
        1,     3,     8,     16,     100,    1000,   4095,   4096,          4097,    30000,
        32767, 32768, 65537, 262143, 262144, 262145, 524289, (1 << 20) + 3, 4 << 20, BIG};
    for (size_t size : sizes) {
        for (int round = 0; round < (size <= 32768 ? 20 : 3); round++)
            go_round(links, size, seed++);
    }
    rank.barrier();
}

// Small sizes, in which stale bytes show most.
RANK_FUNCTION(long_chain)
{
    rank.open();
    Third third(rank, 40000);
    const Chain links = chain_of(third);
    for (uint64_t seed = 1; seed <= 4000; seed++) {
        const size_t sizes[] = {1, 8, 100, 2000, 4096, 4097, 16000, 32767};
        go_round(links, sizes[seed % 8], seed);
    }
    rank.barrier();
}

// Without a signal: a stream's own put, copy and get follow one another.
RANK_FUNCTION(in_one_stream)
{
    rank.open();
    Third third(rank);
    const Chain links = chain_of(third);
    rank.barrier();
    for (uint64_t seed = 1; third.copies && seed <= 20; seed++) {
        rank.device->fill(links.out, BIG, seed);
        CHECK_OK(ph_put(third.from, 3, 0, BIG, third.stream));
        CHECK_OK(ph_copy(third.to, 5, third.from, 3, BIG, third.stream));
        CHECK_OK(ph_get(third.to, 0, 5, BIG, third.stream));
        rank.synchronize(third.stream);
        rank.verify(links.back, BIG, seed, "what came back");
    }
    rank.barrier();
}

TEST_P(CopyChain, FollowsAPutOfItsStream)
{
    Job job(GetParam(), 3);
    EXPECT_EQ(job.run("in_one_stream"), "");
}

TEST_P(CopyChain, InAChain)
{
    Job job(GetParam(), 3);
    EXPECT_EQ(job.run("chain"), "");
}

// Nobody synchronises: the worker of the queues carries it through.
RANK_FUNCTION(by_the_worker)
{
    rank.open();
    Third third(rank);
    if (third.has_source)
        rank.device->fill(third.source.data, BIG, 5);
    rank.barrier();
    if (third.copies) {
        Stopwatch watch;
        CHECK_OK(ph_copy(third.to, 0, third.from, 0, BIG, nullptr));
        while (rank.counter("in_flight") > 0 && watch.ms() < patience(20000).count())
            sleep_ms(1);
    }
    rank.barrier();
    if (third.has_target)
        rank.verify(third.target.data, BIG, 5, "by the worker");
    rank.barrier();
}

TEST_F(CopyOverNet, ByTheWorkerOfTheQueues)
{
    Job job("hostnet", 3);
    EXPECT_EQ(job.run("by_the_worker"), "");
}

// Of a chain, or a ring, one rank is reached over the net, and the others reach each other by ipc.
static void with_ipc(const char *function, const std::string &device,
                     const std::string &method = "")
{
    std::string why;
    if (device != "host" && !device_available("standin", &why))
        GTEST_SKIP() << why;
    for (int net : {1, 2}) {
        SCOPED_TRACE(net);
        Job job(device, 3);
        job.environment("PEERHOP_NET_PROVIDER", "tcp");
        job.environment("PEERHOP_PATH", "auto");
        job.environment(net, "PEERHOP_PATH", "net");
        EXPECT_EQ(job.run(function, std::to_string(net) + " " + method), "");
    }
}

TEST_F(CopyOverNet, InAChainWithIpc)
{
    with_ipc("chain", "host");
}

TEST_F(CopyOverNet, InALongChainWithIpc)
{
    with_ipc("long_chain", "host");
}

// ---- a ring: what came over the one path goes on over the other, out of the same memory, which is
// then written over. Rank 0 makes the bytes, and finds them again.

struct Ring {
    explicit Ring(Rank &owner)
        : rank(owner), memory(static_cast<char *>(owner.device->alloc(2 * ROOM))),
          stream(owner.device->stream())
    {
        const int next = (rank.rank + 1) % 3, last = (rank.rank + 2) % 3;
        auto channels =
            exchange_all(rank, {operation(rank.rank, next, PH_ROLE_BOTH, memory, 2 * ROOM),
                                operation(last, last, PH_ROLE_BOTH, memory, 2 * ROOM)});
        to = channels[0];
        from = channels[1];
        check_path(to, next);
        check_path(from, last);
    }
    void check_path(ph_channel *channel, int peer) const
    {
        const int net = rank.argument[0] - '0';
        const bool over_net = rank.rank == net || peer == net;
        ph_path_report report;
        CHECK_OK(ph_channel_path(channel, 1, &report, sizeof report));
        CHECK(report.path == std::string(over_net ? "net" : "ipc"));
        CHECK(!over_net || report.method == rank.argument.substr(2));
    }
    void give(size_t at, size_t size, bool gets) const
    {
        CHECK_OK(gets ? ph_signal(to, stream) : ph_put_signal(to, 0, at, size, stream));
        if (gets)
            CHECK_OK(ph_wait(to, 0, stream)); // it was read
        rank.device->slow_fill(stream, memory + at, size, 0xee, 0);
    }
    void take(size_t size, bool gets) const
    {
        CHECK_OK(ph_wait(from, gets ? 0 : size, stream));
        if (!gets)
            return;
        CHECK_OK(ph_get(from, 0, rank.rank == 1 ? ROOM : 0, size, stream));
        CHECK_OK(ph_signal(from, stream));
    }
    void go_round(size_t size, uint64_t seed, bool gets) const
    {
        if (rank.rank == 0) {
            rank.device->fill(memory + ROOM, size, seed);
            give(ROOM, size, gets);
            take(size, gets);
            rank.synchronize(stream);
            rank.verify(memory, size, seed, gets ? "what was got" : "what was put");
        } else {
            take(size, gets);
            give(0, size, gets);
        }
        CHECK_OK(ph_signal(from, stream)); // there is room again
        CHECK_OK(ph_wait(to, 0, stream));
        rank.synchronize(stream);
    }

    static const size_t ROOM = 40000;
    Rank &rank;
    char *memory;
    void *stream;
    ph_channel *to, *from;
};

RANK_FUNCTION(ring)
{
    rank.open();
    const Ring all(rank);
    const bool gets = rank.argument.substr(2) == "rma"; // what is staged is not got
    for (uint64_t seed = 1; seed <= (gets ? 1000 : 1500); seed++) {
        const size_t sizes[] = {1, 8, 100, 2000, 4096, 4097, 16000, 32767};
        all.go_round(sizes[seed % 8], seed, gets && seed & 8);
    }
    rank.barrier();
}

TEST_F(CopyOverNet, InARingWithIpcOfStagedMemory)
{
    with_ipc("ring", "standin", "staged");
}

TEST_F(CopyOverNet, InARingWithIpcOfRegisteredMemory)
{
    with_ipc("ring", "standinhmem", "rma");
}

// Ranks of one process, so that a provider which sees both ends can be strict with what it is
// given. Rank 0 puts what it copies: each copy comes behind the put, though that may be under way
// when it is enqueued, and the signal behind all that was copied.
static void lead_threads(ph_channel *from, ph_channel *to, uint8_t *bytes, ph_queue *queue)
{
    for (uint64_t round = 0; round < 20; round++) {
        const size_t size = round % 5 ? 3000 : BIG;
        for (size_t i = 0; i < size; i++)
            bytes[i] = pattern_byte(round, i);
        ASSERT_EQ(ph_put(from, 0, 0, size, queue), 0);
        ASSERT_EQ(ph_copy(to, 0, from, 0, size, queue), 0);
        ASSERT_EQ(ph_signal(to, queue), 0);
        ASSERT_EQ(ph_wait(to, 0, queue), 0);
        ASSERT_EQ(ph_queue_synchronize(queue, patience(20000).count()), 0);
    }
}

static void end_threads(ph_channel *channel, const uint8_t *bytes, ph_queue *queue)
{
    for (uint64_t round = 0; round < 20; round++) {
        const size_t size = round % 5 ? 3000 : BIG;
        ASSERT_EQ(ph_wait(channel, 0, queue), 0);
        ASSERT_EQ(ph_queue_synchronize(queue, patience(20000).count()), 0);
        size_t right = 0;
        while (right < size && bytes[right] == pattern_byte(round, right))
            right++;
        ASSERT_EQ(right, size) << "round " << round;
        ASSERT_EQ(ph_signal(channel, queue), 0);
    }
    ASSERT_EQ(ph_queue_synchronize(queue, patience(20000).count()), 0);
}

TEST_F(CopyOverNet, AmongRanksOfOneProcess)
{
    RedisServer redis;
    redis.start();
    const std::string store = redis.uri();
    const char *const settings[] = {"PEERHOP_PATH=net", "PEERHOP_NET_PROVIDER=tcp",
                                    "PEERHOP_NET_RAILS=2", nullptr};
    std::atomic<int> done{0};
    as_threads(
        3,
        [&](int rank, ph_context *context) {
            void *memory = nullptr;
            ph_channel *channels[2] = {};
            ph_queue *queue = nullptr;
            ASSERT_EQ(ph_host_alloc(context, BIG, &memory), 0);
            ph_operation ops[] = {operation(1, rank ? 0 : 1, PH_ROLE_BOTH, memory, BIG),
                                  operation(1, 2, PH_ROLE_BOTH, memory, BIG)};
            const int rc = ph_exchange(context, ops, rank ? 1 : 2, channels);
            char text[512] = "";
            ph_context_error(context, text, sizeof text);
            ASSERT_EQ(rc, 0) << text;
            ASSERT_EQ(ph_queue_create(context, &queue), 0);
            if (rank == 0)
                lead_threads(channels[0], channels[1], static_cast<uint8_t *>(memory), queue);
            else if (rank == 2)
                end_threads(channels[0], static_cast<uint8_t *>(memory), queue);
            EXPECT_EQ(ph_queue_destroy(&queue), 0);
            Stopwatch watch;
            for (done++; done < 3 && watch.ms() < patience(20000).count();)
                sleep_ms(1);
        },
        [&](ph_context_params &params) {
            params.store = store.c_str();
            params.settings = settings;
        });
}
