// SPDX-License-Identifier: BSD-3-Clause
// Exchanges that end well: hits and misses in every mixture, groupings, identities of buffers.
#include <algorithm>
#include <random>
#include <set>

#include "e2e/exchanging.h"
#include "support/system_calls.h"

class Exchange : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_NETS(Exchange);

static const size_t size = 20000;

// ---- hits

RANK_FUNCTION(hits_by_the_servers_count)
{
    rank.open();
    void *buffer = rank.device->alloc(size);
    std::vector<ph_operation> ops;
    for (uint64_t op = 0; op < 8; op++)
        ops.push_back(operation(op, !rank.rank, role_of(rank, op % 2),
                                static_cast<char *>(buffer) + op, size - op));
    auto first = exchange_all(rank, ops);
    rank.shared->value[0]++;
    CHECK(reaches(rank.shared->value[1], 1)); // the test has counted
    for (int round = 0; round < 100; round++)
        CHECK(exchange_all(rank, ops) == first);
    CHECK_EQUAL(rank.counter("hits"), 800);
    CHECK_EQUAL(rank.counter("misses"), 8);
    rank.shared->value[2]++;
    CHECK(reaches(rank.shared->value[3], 1));
}

TEST_P(Exchange, HitsSendTheServerNoCommand)
{
    Job job(GetParam(), 2);
    job.start("hits_by_the_servers_count");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    uint64_t before = commands_of(job.redis());
    job.shared()->value[1] = 1;
    EXPECT_TRUE(reaches(job.shared()->value[2], 2)) << job.wait(100);
    EXPECT_EQ(commands_of(job.redis()), before);
    EXPECT_GT(before, 4u);
    job.shared()->value[3] = 1;
    EXPECT_EQ(job.wait(), "");
}

RANK_FUNCTION(hits_without_system_calls)
{
    rank.open();
    void *buffer = rank.device->alloc(size);
    std::vector<ph_operation> ops;
    for (uint64_t op = 0; op < 16; op++)
        ops.push_back(operation(op, !rank.rank, role_of(rank, 0), buffer, size));
    auto channels = exchange_all(rank, ops);
    exchange_all(rank, ops);
    ph_exchange_request *request;
    if (rank.rank == 0) {
        rank.barrier(); // the peer is there already
        int rc = -1;
        long calls = system_calls_of(
            [&] { rc = ph_exchange(rank.context, ops.data(), ops.size(), channels.data()); });
        if (calls >= 0) { // -1: cannot be counted in this build
            CHECK_OK(rc);
            CHECK_EQUAL(static_cast<uint64_t>(calls), 0);
        } else {
            exchange_all(rank, ops);
        }
    } else {
        CHECK_OK(ph_exchange_start(rank.context, ops.data(), ops.size(), &request));
        rank.barrier();
        rank.barrier(); // a finish that slept would have to be woken, by a system call
        CHECK_OK(ph_exchange_finish(&request, channels.data(), 0));
        return;
    }
    rank.barrier();
}

TEST_P(Exchange, HitsMakeNoSystemCallWhereThePeerIsThere)
{
    if (on_net())
        GTEST_SKIP() << "over the net a hit is a message each way";
    // What a real driver does inside its queries is not ours to promise.
    if (GetParam() == "gpu")
        GTEST_SKIP() << "a driver's own system calls are not counted";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("hits_without_system_calls"), "");
}

RANK_FUNCTION(hit_meets_miss)
{
    rank.open();
    void *stream = rank.device->stream();
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    rank.device->fill(memory + size, size, 999);
    ph_role role = role_of(rank, 0);
    ph_channel *first = rank.channel(!rank.rank, 7, role, memory, size);
    pass(rank, first, role, memory, size, 1, stream);
    rank.barrier();
    if (rank.rank == 1)
        rank.verify(memory + size, size, 999, "the other buffer");
    // Here the sender hits and the receiver misses, with another buffer of the same allocation.
    char *second_buffer = rank.rank == 0 ? memory : memory + size;
    ph_channel *second = rank.channel(!rank.rank, 7, role, second_buffer, size);
    CHECK(second != first);
    pass(rank, second, role, second_buffer, size, 2, stream);
    if (rank.rank == 1)
        rank.verify(memory, size, 1, "the first buffer");
    rank.barrier();
    CHECK(rank.channel(!rank.rank, 7, role, memory, size) == first);
    CHECK(rank.channel(!rank.rank, 7, role, second_buffer, size) == second);
    CHECK_EQUAL(rank.counter("hits"), 2);
    CHECK_EQUAL(rank.counter("imports"), 1);
}

TEST_P(Exchange, HitMeetsMiss)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("hit_meets_miss"), "");
}

RANK_FUNCTION(alternating_buffers)
{
    rank.open();
    void *stream = rank.device->stream();
    const int mine = rank.rank == 0 ? 2 : 3;
    std::vector<void *> buffers(mine);
    for (void *&buffer : buffers)
        buffer = rank.device->alloc(size);
    ph_role role = role_of(rank, 0);
    std::vector<ph_channel *> channels;
    std::vector<int> held(3, -1); // the round whose data the receiver's buffers hold
    for (int round = 0; round < 18; round++) {
        void *buffer = buffers[round % mine];
        uint64_t hits = rank.counter("hits");
        channels.push_back(rank.channel(!rank.rank, 7, role, buffer, size));
        pass(rank, channels.back(), role, buffer, size, round, stream);
        CHECK_EQUAL(rank.counter("hits") - hits, round >= 6); // the period of the pairs
        if (round >= 6)
            CHECK(channels[round] == channels[round - 6]);
        held[round % 3] = round;
        for (int i = 0; rank.rank == 1 && i < 3; i++)
            if (held[i] >= 0)
                rank.verify(buffers[i], size, held[i], "a buffer of another round");
        rank.barrier();
    }
    CHECK_EQUAL(std::set<ph_channel *>(channels.begin(), channels.end()).size(), 6);
}

TEST_P(Exchange, BothHitWithDifferentPairs)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("alternating_buffers"), "");
}

// ---- batches

// The operations of a pair, some each way, and their buffers.
static std::vector<ph_operation> pair_of_operations(Rank &rank, int n)
{
    char *memory = static_cast<char *>(rank.device->alloc(n * size));
    std::vector<ph_operation> ops;
    for (int op = 0; op < n; op++)
        ops.push_back(
            operation(op, !rank.rank, role_of(rank, op % 3 == 0), memory + op * size, size));
    return ops;
}

static void pass_all(Rank &rank, const std::vector<ph_operation> &ops,
                     const std::vector<ph_channel *> &channels)
{
    void *stream = rank.device->stream();
    for (uint64_t op = 0; op < ops.size(); op++)
        for (size_t i = 0; i < ops.size(); i++)
            if (ops[i].op_id == op)
                pass(rank, channels[i], ops[i].role, ops[i].buffer, ops[i].size, 100 + op, stream);
}

RANK_FUNCTION(several_in_one_batch)
{
    rank.open();
    auto ops = pair_of_operations(rank, 24);
    if (rank.rank == 1)
        std::reverse(ops.begin(), ops.end());
    auto channels = exchange_all(rank, ops);
    CHECK_EQUAL(std::set<ph_channel *>(channels.begin(), channels.end()).size(), 24);
    CHECK_EQUAL(rank.counter("offers"), 1);
    pass_all(rank, ops, channels);
    rank.barrier();
    CHECK(exchange_all(rank, ops) == channels);
}

TEST_P(Exchange, SeveralOperationsOfOnePairInOneBatch)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("several_in_one_batch"), "");
}

RANK_FUNCTION(other_grouping)
{
    rank.open();
    auto ops = pair_of_operations(rank, 12);
    for (int turn = 0; turn < 3; turn++) { // the later ones hit
        std::vector<ph_channel *> channels;
        for (size_t at = 0, n = 1; at < ops.size(); at += n, n++) {
            // Rank 0 exchanges all at once, rank 1 one, then two, then three, ...
            n = rank.rank == 0 ? ops.size() : std::min(n, ops.size() - at);
            auto part = exchange_all(rank, {ops.begin() + at, ops.begin() + at + n});
            channels.insert(channels.end(), part.begin(), part.end());
        }
        pass_all(rank, ops, channels);
        rank.barrier();
    }
    CHECK_EQUAL(rank.counter("hits"), 24);
}

TEST_P(Exchange, OtherGroupingOnTheOtherRank)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("other_grouping"), "");
}

// One operation with each rank of [0, n), each way: op 1 out, op 1 in, told apart by their roles.
static void all_to_all(Rank &rank, int n, uint64_t seed)
{
    char *out = static_cast<char *>(rank.device->alloc(n * size));
    char *in = static_cast<char *>(rank.device->alloc(n * size));
    void *stream = rank.device->stream();
    std::vector<ph_operation> ops;
    std::vector<ph_group_op> group;
    for (int peer = 0; peer < n; peer++) {
        if (peer == rank.rank)
            continue;
        ops.push_back(operation(1, peer, PH_ROLE_SENDER, out + peer * size, size));
        ops.push_back(operation(1, peer, PH_ROLE_RECEIVER, in + peer * size, size));
        rank.device->fill(out + peer * size, size, seed + 10 * rank.rank + peer);
    }
    for (ph_channel *channel : exchange_all(rank, ops))
        group.push_back({group.size() % 2 ? PH_GROUP_RECV : PH_GROUP_SEND, channel, 0, 0, size});
    CHECK_OK(ph_group(group.data(), group.size(), stream));
    rank.synchronize(stream);
    for (int peer = 0; peer < n; peer++)
        if (peer != rank.rank)
            rank.verify(in + peer * size, size, seed + 10 * peer + rank.rank, "from a peer");
}

RANK_FUNCTION(subgroup_then_all)
{
    rank.open();
    for (int turn = 0; turn < 3 && rank.rank < 2; turn++)
        all_to_all(rank, 2, 1000 * turn);
    for (int turn = 0; turn < 2; turn++)
        all_to_all(rank, rank.ranks, 5000 * turn);
}

TEST_P(Exchange, SubgroupThenALargerOne)
{
    Job job(GetParam(), 4);
    EXPECT_EQ(job.run("subgroup_then_all"), "");
}

RANK_FUNCTION(thousand_in_one_allocation)
{
    rank.open();
    const size_t n = 1024, each = 256;
    char *memory = static_cast<char *>(rank.device->alloc(n * each));
    std::vector<ph_operation> ops;
    for (size_t op = 0; op < n; op++)
        ops.push_back(operation(op, !rank.rank, role_of(rank, 0), memory + op * each, each));
    auto channels = exchange_all(rank, ops);
    CHECK_EQUAL(rank.counter("offers"), 1);
    CHECK_EQUAL(rank.counter("imports"), 1);
    CHECK_EQUAL(rank.counter("channels"), n);
    CHECK_EQUAL(rank.counter("misses"), n);
    void *stream = rank.device->stream();
    for (size_t op = 0; op < n; op += 341)
        pass(rank, channels[op], ops[op].role, ops[op].buffer, each, op, stream);
    rank.barrier();
}

TEST_P(Exchange, AThousandOperationsOfOneAllocation)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("thousand_in_one_allocation"), "");
}

// Offers that fit into the pair's FIFO, which goes round several times, and those that do not, and
// so go through the store, in turns; each with what the ones before have told.
RANK_FUNCTION(large_and_small_offers)
{
    rank.open();
    void *stream = rank.device->stream();
    const size_t each = 64, most = 1500;
    uint64_t op = 0;
    char *memory = nullptr;
    for (int round = 0; round < 12; round++) {
        if (round % 4 == 0)
            memory = static_cast<char *>(rank.device->alloc(each * 2 * most));
        for (const size_t n : {size_t{1}, round % 3 == 1 ? most : 2, size_t{100}}) {
            std::vector<ph_operation> ops;
            for (size_t i = 0; i < n; i++, op++)
                ops.push_back(operation(op, !rank.rank, role_of(rank, 0),
                                        memory + (op * each) % (each * 2 * most), each));
            const auto channels = exchange_all(rank, ops);
            pass(rank, channels[0], ops[0].role, ops[0].buffer, each, op, stream);
            if (n > 1)
                pass(rank, channels[n - 1], ops[n - 1].role, ops[n - 1].buffer, each, op + n,
                     stream);
            for (ph_channel *channel : channels)
                CHECK_OK(ph_channel_close(channel));
        }
    }
    CHECK_EQUAL(rank.counter("misses"), op);
    rank.barrier();
}

TEST_P(Exchange, LargeAndSmallOffersInTurns)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("large_and_small_offers"), "");
}

// A small offer and one that is too large for the FIFO, of one allocation, of which the peer looks
// for the small one first. "connected": the large one, through the store, tells of the allocation.
// Else the small one does, before the peer has exchanged anything.
RANK_FUNCTION(small_and_large_offers)
{
    rank.open();
    void *stream = rank.device->stream();
    const size_t each = 64, many = 1500;
    const bool connected = rank.argument == "connected";
    char *memory = static_cast<char *>(rank.device->alloc(each * (many + 1)));
    std::vector<ph_operation> ops;
    for (size_t i = 0; i <= many; i++)
        ops.push_back(operation(i, !rank.rank, role_of(rank, 0), memory + i * each, each));
    std::vector<ph_channel *> channels(many + 1);
    if (connected)
        rank.channel(!rank.rank, 9999, role_of(rank, 0), rank.device->alloc(each), each);
    rank.barrier();
    if (rank.rank == 0) {
        ph_exchange_request *large = nullptr, *small = nullptr;
        for (const bool one : {!connected, connected})
            CHECK_OK(one ? ph_exchange_start(rank.context, &ops[many], 1, &small)
                         : ph_exchange_start(rank.context, ops.data(), many, &large));
        if (connected)
            rank.barrier();
        CHECK_OK(ph_exchange_finish(&small, &channels[many], 20000));
        CHECK_OK(ph_exchange_finish(&large, channels.data(), 20000));
    } else {
        if (connected)
            rank.barrier();
        else
            sleep_ms(300); // meanwhile the other rank connects, and sends both
        CHECK_OK(ph_exchange(rank.context, &ops[many], 1, &channels[many]));
        CHECK_OK(ph_exchange(rank.context, ops.data(), many, channels.data()));
    }
    for (const size_t i : {size_t{0}, many})
        pass(rank, channels[i], ops[i].role, ops[i].buffer, each, i, stream);
    rank.barrier();
}

TEST_P(Exchange, ASmallOfferBesideALargeOne)
{
    for (const char *when : {"connected", "before that"}) {
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("small_and_large_offers", when), "") << when;
    }
}

RANK_FUNCTION(eight_ranks)
{
    rank.open();
    const int each = 32; // operations a direction: 64 for a pair
    const size_t bytes = 128;
    char *memory = static_cast<char *>(rank.device->alloc(rank.ranks * 2 * each * bytes));
    std::vector<ph_operation> ops;
    for (int peer = 0; peer < rank.ranks; peer++)
        for (int i = 0; peer != rank.rank && i < 2 * each; i++)
            ops.push_back(operation(i / 2, peer, i % 2 ? PH_ROLE_SENDER : PH_ROLE_RECEIVER,
                                    memory + (peer * 2 * each + i) * bytes, bytes));
    auto channels = exchange_all(rank, ops);
    CHECK_EQUAL(rank.counter("offers"), 7);
    CHECK_EQUAL(rank.counter("imports"), 7);
    CHECK(exchange_all(rank, ops) == channels);
    CHECK_EQUAL(rank.counter("offers"), 7);
    rank.barrier();
}

TEST_P(Exchange, EightRanksAllToAllOfferOnceAPair)
{
    Job job(GetParam(), 8);
    EXPECT_EQ(job.run("eight_ranks"), "");
}

// Whatever order the operations of a call have, and whatever was given back meanwhile, each gets
// its own channel.
RANK_FUNCTION(any_order)
{
    rank.open();
    std::vector<ph_operation> ops;
    std::vector<void *> buffers;
    for (int peer = 0; peer < rank.ranks; peer++) {
        if (peer == rank.rank)
            continue;
        for (uint64_t op = 1; op <= 4; op++) {
            ph_role role = op < 3 ? PH_ROLE_BOTH : role_of(rank, std::min(peer, rank.rank));
            buffers.push_back(rank.device->alloc(size));
            ops.push_back(operation(op, peer, role, buffers.back(), size));
        }
        // The same operation the other way round is another key.
        ph_role role = role_of(rank, std::max(peer, rank.rank));
        ops.push_back(operation(4, peer, role, buffers.back(), size));
    }
    std::vector<size_t> order(ops.size());
    for (size_t i = 0; i < order.size(); i++)
        order[i] = i;
    std::vector<ph_channel *> wanted = exchange_all(rank, ops);
    std::mt19937 random(static_cast<unsigned>(rank.rank));
    for (int round = 0; round < 30; round++) {
        std::vector<ph_operation> call;
        if (round % 3 != 1) // else as before
            std::shuffle(order.begin(), order.end(), random);
        const bool renewed = round % 10 == 9;
        if (renewed) // op 1 with all peers, and all its keys
            for (ph_operation &op : ops)
                if (op.op_id == 1) {
                    CHECK_OK(ph_release_start(rank.context, op.buffer, size));
                    CHECK_OK(ph_release_wait(rank.context, op.buffer, size, PH_RELEASE_DRAINED, 0));
                    op.buffer = rank.device->alloc(size);
                }
        for (size_t i : order)
            call.push_back(ops[i]);
        std::vector<ph_channel *> channels = exchange_all(rank, call);
        for (size_t i = 0; i < order.size(); i++) {
            ph_channel *&channel = wanted[order[i]];
            if (renewed && call[i].op_id == 1)
                channel = channels[i];
            CHECK(channels[i] == channel);
        }
        CHECK(std::set<ph_channel *>(channels.begin(), channels.end()).size() == channels.size());
    }
}

TEST_P(Exchange, EachOperationInAnyOrder)
{
    Job job(GetParam(), 3);
    EXPECT_EQ(job.run("any_order"), "");
}

RANK_FUNCTION(role_both)
{
    rank.open();
    void *stream = rank.device->stream();
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    ph_channel *channel = rank.channel(!rank.rank, 3, PH_ROLE_BOTH, memory, 2 * size);
    for (int round = 0; round < 4; round++) {
        // The first half is sent, the second received into.
        rank.device->fill(memory, size, 10 * round + rank.rank);
        CHECK_OK(ph_put_signal(channel, size, 0, size, stream));
        CHECK_OK(ph_wait(channel, size, stream));
        rank.synchronize(stream);
        rank.verify(memory + size, size, 10 * round + !rank.rank, "the peer's half");
        rank.barrier();
    }
    CHECK(rank.channel(!rank.rank, 3, PH_ROLE_BOTH, memory, 2 * size) == channel);
}

TEST_P(Exchange, RoleBoth)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("role_both"), "");
}

RANK_FUNCTION(one_id_in_every_role)
{
    rank.open();
    void *stream = rank.device->stream();
    char *memory = static_cast<char *>(rank.device->alloc(3 * size));
    int peer = !rank.rank;
    // First alone, then again together with the other roles of the same id.
    ph_channel *alone = rank.channel(peer, 5, role_of(rank, 0), memory + rank.rank * size, size);
    auto channels = exchange_all(rank, {operation(5, peer, PH_ROLE_SENDER, memory, size),
                                        operation(5, peer, PH_ROLE_RECEIVER, memory + size, size),
                                        operation(5, peer, PH_ROLE_BOTH, memory + 2 * size, size)});
    CHECK(channels[rank.rank] == alone);
    CHECK(channels[!rank.rank] != alone && channels[2] != alone);
    for (int sender = 0; sender < 2; sender++) {
        int mine = sender != rank.rank;
        pass(rank, channels[mine], role_of(rank, sender), memory + mine * size, size, 40 + sender,
             stream);
        pass(rank, channels[2], role_of(rank, sender), memory + 2 * size, size, 50 + sender,
             stream);
    }
    rank.barrier();
}

TEST_P(Exchange, OneIdInEveryRole)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("one_id_in_every_role"), "");
}

RANK_FUNCTION(four_threads)
{
    rank.open();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++) {
        char *memory = static_cast<char *>(rank.device->alloc(4 * size));
        void *stream = rank.device->host() ? rank.device->stream() : nullptr;
        threads.emplace_back([&rank, memory, stream, t] {
            for (int round = 0; round < 40; round++) {
                // Hits and misses of two keys a thread, in the same order on both ranks.
                char *buffer = memory + (round * (1 + rank.rank) % 4) * size;
                ph_role role = role_of(rank, t % 2);
                auto both =
                    exchange_all(rank, {operation(10 * t, !rank.rank, role, buffer, size),
                                        operation(10 * t + 1, !rank.rank, role, buffer, size)});
                CHECK(both[0] != both[1] && ph_channel_op_id(both[1]) == uint64_t(10 * t + 1));
                if (stream != nullptr)
                    pass(rank, both[round % 2], role, buffer, size, 1000 * t + round, stream);
            }
        });
    }
    for (std::thread &thread : threads)
        thread.join();
    CHECK_EQUAL(rank.counter("exchanges"), 160);
    CHECK_EQUAL(rank.counter("hits") + rank.counter("misses"), 320);
    rank.barrier();
}

TEST_P(Exchange, FourThreadsExchangeDifferentKeysAtOnce)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("four_threads"), "");
}

// ---- which buffer it is

RANK_FUNCTION(interior_pointers)
{
    rank.open();
    void *stream = rank.device->stream();
    const size_t whole = 3 << 20;
    char *memory = static_cast<char *>(rank.device->alloc(whole));
    rank.device->fill(memory, whole, 77);
    // Each rank's part lies elsewhere, has another size, and starts at an odd offset.
    size_t at = rank.rank == 0 ? 12345 : (2 << 20) + 4097,
           length = rank.rank == 0 ? 300001 : 200003;
    ph_role role = role_of(rank, 0);
    ph_channel *channel = rank.channel(!rank.rank, 7, role, memory + at, length);
    CHECK_EQUAL(ph_channel_local_size(channel), length);
    CHECK_EQUAL(ph_channel_peer_size(channel), rank.rank == 0 ? 200003 : 300001);
    if (rank.rank == 0) {
        rank.device->fill(memory + at, length, 5);
        CHECK_OK(ph_put_signal(channel, 1, 0, 200002, stream));
        CHECK_RC(ph_put(channel, 2, 0, 200002, stream), -EINVAL); // one byte past the peer's part
        rank.synchronize(stream);
    } else {
        CHECK_OK(ph_wait(channel, 200002, stream));
        rank.synchronize(stream);
        rank.verify(memory + at + 1, 200002, 5, "the part");
        std::string wrong = rank.device->verify(memory, at + 1, 77);
        CHECK(wrong.empty());
        wrong = rank.device->verify(memory + at + length, whole - at - length, 77, at + length);
        CHECK(wrong.empty());
    }
    rank.barrier();
}

TEST_P(Exchange, SubAllocationsAndInteriorPointers)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("interior_pointers"), "");
}

RANK_FUNCTION(addresses_are_reused)
{
    rank.open();
    void *stream = rank.device->stream();
    ph_role role = role_of(rank, 0);
    int reused = 0;
    void *last = nullptr;
    // Sizes below and above the driver's granule, growing over the old range, then shrinking again.
    const size_t sizes[] = {size,       size, size,       100 * size, 300 * size,
                            300 * size, size, 100 * size, size,       size};
    for (int round = 0; round < 10; round++) {
        void *buffer = rank.device->alloc(sizes[round]);
        reused += buffer == last;
        last = buffer;
        ph_channel *channel = rank.channel(!rank.rank, 7, role, buffer, sizes[round]);
        pass(rank, channel, role, buffer, sizes[round], round, stream);
        rank.barrier(); // both are done with it
        rank.device->release(buffer);
    }
    CHECK(reused > 0);
    CHECK_EQUAL(rank.counter("hits"), 0);
    CHECK_EQUAL(rank.counter("imports"), 10);
}

TEST_P(Exchange, FreedAddressesAreOtherBuffers)
{
    if (on_host())
        GTEST_SKIP()
            << "host memory that a channel uses cannot be freed (HostMemoryInUseIsNotFreed)";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("addresses_are_reused"), "");
}

// Rank 0 frees two buffers, and a larger one comes to lie over both: what has the key, the address
// and the size of a former one is another buffer all the same, and rank 1 maps it anew.
RANK_FUNCTION(larger_over_old)
{
    const std::string kind = rank.argument.substr(0, rank.argument.find(' '));
    const size_t piece = rank.argument.find("small") != std::string::npos ? 64 << 10 : 2 << 20;
    const bool is_owner = rank.rank == 0;
    rank.open();
    void *stream = rank.device->stream();
    const std::string of = is_owner && kind != "cuda" ? kind : "";
    // Stays: small pieces of cudaMalloc lie in one block with it.
    void *neighbour = rank.device->alloc(piece, of);
    char *first = static_cast<char *>(rank.device->alloc(is_owner ? piece : 2 * piece, of));
    char *second = is_owner ? static_cast<char *>(rank.device->alloc(piece, of)) : first + piece;
    ph_role role = role_of(rank, 1);
    ph_channel *former[2];
    former[0] = rank.channel(!rank.rank, 1, role, first, piece);
    former[1] = rank.channel(!rank.rank, 2, role, second, piece);
    pass(rank, former[0], role, first, piece, 1, stream);
    pass(rank, former[1], role, second, piece, 2, stream);
    rank.barrier(); // both are done with them
    if (is_owner) {
        rank.device->release(first);
        rank.device->release(second);
        rank.device->fill(neighbour, 1, 0); // behind what frees memory of pools
        char *larger = static_cast<char *>(rank.device->alloc(2 * piece, of));
        rank.shared->value[0] = larger == first && second == first + piece;
    }
    rank.barrier();
    if (rank.shared->value[0]) {
        ph_operation op = operation(2, !rank.rank, role, second, piece);
        ph_channel *channel = exchange_in_place(rank, op, InPlace::BY_REAPING);
        pass(rank, channel, role, second, piece, 3, stream);
        for (ph_channel *gone : former)
            CHECK_RC(end_of(gone), -ESTALE);
        // And as a whole, with the key and the address of the one that began there.
        channel = rank.channel(!rank.rank, 1, role, first, 2 * piece);
        pass(rank, channel, role, first, 2 * piece, 4, stream);
        CHECK_EQUAL(rank.counter("hits"), 0);
    }
    rank.barrier();
}

TEST_P(Exchange, ALargerAllocationOverOldOnes)
{
    if (on_host())
        GTEST_SKIP()
            << "host memory that a channel uses cannot be freed (HostMemoryInUseIsNotFreed)";
    std::string missed;
    for (const char *how : {"cuda small", "cuda large", "vmm large", "pool large"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("larger_over_old", how), "");
        if (job.shared()->value[0] == 0)
            missed += std::string(missed.empty() ? "" : ", ") + how;
    }
    // Where memory comes to lie is the driver's affair; the stand-in's does so always.
    if (GetParam() == "gpu" && !missed.empty() && !HasFailure())
        GTEST_SKIP() << "on this device the larger allocation does not come to lie over the old "
                        "ones: "
                     << missed;
    EXPECT_EQ(missed, "");
}

RANK_FUNCTION(host_memory_in_use)
{
    rank.open();
    void *memory = rank.device->alloc(size), *unused = rank.device->alloc(size);
    rank.channel(!rank.rank, 7, PH_ROLE_BOTH, static_cast<char *>(memory) + 100, 50);
    CHECK_RC(ph_host_free(rank.context, memory, 0), -EBUSY);
    CHECK_SAYS(rank.error(), "is the buffer of a channel");
    // Of an exchange that is not finished, too.
    ph_operation op = operation(8, !rank.rank, PH_ROLE_BOTH, unused, 50);
    ph_exchange_request *request;
    ph_channel *channel;
    CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
    CHECK_RC(ph_host_free(rank.context, unused, 0), -EBUSY);
    CHECK_SAYS(rank.error(), "an exchange that is not finished");
    CHECK_OK(ph_exchange_finish(&request, &channel, patience(20000).count()));
    CHECK_RC(ph_host_free(rank.context, unused, 0), -EBUSY);
    if (rank.rank == 0) { // nobody comes
        op.buffer = rank.device->alloc(size);
        op.op_id = 9;
        CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
        CHECK_RC(ph_exchange_finish(&request, &channel, 100), -ETIMEDOUT);
        CHECK_OK(ph_host_free(rank.context, op.buffer, 0));
    }
    rank.barrier();
    rank.channel(!rank.rank, 7, PH_ROLE_BOTH, static_cast<char *>(memory) + 100, 50);
    rank.barrier();
}

TEST(ExchangeHost, HostMemoryInUseIsNotFreed)
{
    if (!RedisServer::available())
        GTEST_SKIP() << "no redis-server";
    Job job("host", 2);
    EXPECT_EQ(job.run("host_memory_in_use"), "");
}
