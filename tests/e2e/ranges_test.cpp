// SPDX-License-Identifier: BSD-3-Clause
// Operations of several ranges: copies across them against a reference, exchanges of many, releases
// of one, refusals.
#include <random>

#include <peerhop/device_types.h>

#include "e2e/exchanging.h"

class Ranges : public EveryDevice
{
};
INSTANTIATE_DEVICES(Ranges);
class RangesOnCuda : public EveryDevice
{
};
INSTANTIATE_CUDA_DEVICES(RangesOnCuda);
class RangesOverNet : public EveryDevice
{
};
INSTANTIATE_TEST_SUITE_P(Device, RangesOverNet, testing::Values("hostnet", "standinnet"),
                         [](const auto &info) { return info.param; });

// ---- memory of a rank: allocations, of which the list has parts, in any order

struct Part {
    size_t allocation, at, size;
};

// What the bytes of a rank's allocations are, or ought to be.
using Bytes = std::vector<std::vector<uint8_t>>;

static const size_t sizes[] = {1, 7, 16, 100, 4096, 5000, 65536, 70001};

struct Layout {
    std::vector<size_t> allocations;
    std::vector<Part> parts;
    size_t size = 0;

    // Each allocation has up to three parts, with bytes between them that no call may touch.
    Layout(uint64_t seed, size_t count)
    {
        std::mt19937 random((unsigned)seed);
        for (size_t i = 0; i < count; i++) {
            size_t at = random() % 50;
            for (size_t n = 1 + random() % 3; n > 0; n--) {
                const size_t bytes = sizes[random() % 8];
                parts.push_back({i, at, bytes});
                size += bytes;
                at += bytes + (random() % 2 ? 0 : random() % 50); // some touch
            }
            allocations.push_back(at + 20);
        }
        std::shuffle(parts.begin(), parts.end(), random);
    }

    Bytes first_bytes(uint64_t seed) const
    {
        Bytes bytes;
        for (size_t i = 0; i < allocations.size(); i++) {
            bytes.emplace_back(allocations[i]);
            for (size_t j = 0; j < allocations[i]; j++)
                bytes[i][j] = pattern_byte(seed + i, j);
        }
        return bytes;
    }

    // The byte at an offset over all ranges.
    uint8_t &byte(Bytes &bytes, size_t offset) const
    {
        size_t i = 0;
        while (offset >= parts[i].size)
            offset -= parts[i++].size;
        return bytes[parts[i].allocation][parts[i].at + offset];
    }
};

// Both ranks' lists, and what both know of all bytes.
struct Lists {
    Layout layouts[2] = {Layout(11, 9), Layout(12, 5)};
    Bytes bytes[2] = {layouts[0].first_bytes(100), layouts[1].first_bytes(200)};

    void copy(int to, size_t to_offset, int from, size_t from_offset, size_t size)
    {
        for (size_t i = 0; i < size; i++)
            layouts[to].byte(bytes[to], to_offset + i) =
                layouts[from].byte(bytes[from], from_offset + i);
    }
};

struct Memory {
    Memory(Rank &owner, const Layout &layout, const Bytes &bytes) : rank(owner)
    {
        for (size_t i = 0; i < bytes.size(); i++) {
            allocations.push_back(rank.device->alloc(bytes[i].size()));
            rank.device->write(allocations[i], bytes[i].data(), bytes[i].size());
        }
        for (const Part &part : layout.parts)
            ranges.push_back({(uint8_t *)allocations[part.allocation] + part.at, part.size});
    }

    void verify(const Bytes &bytes, const std::string &what)
    {
        for (size_t i = 0; i < bytes.size(); i++) {
            std::vector<uint8_t> found(bytes[i].size());
            rank.device->read(found.data(), allocations[i], found.size());
            for (size_t j = 0; j < found.size(); j++)
                if (found[j] != bytes[i][j])
                    rank_failed(__FILE__, __LINE__,
                                what + ": byte " + std::to_string(j) + " of allocation " +
                                    std::to_string(i));
        }
    }

    Rank &rank;
    std::vector<void *> allocations;
    std::vector<ph_range> ranges;
};

// ---- copies against a reference

struct Copying {
    explicit Copying(Rank &owner, ph_protocol protocol)
        : rank(owner), memory(owner, lists.layouts[owner.rank], lists.bytes[owner.rank]),
          stream(owner.device->stream())
    {
        channel = exchange_all(
            rank, {operation(1, 1 - rank.rank, PH_ROLE_BOTH, memory.ranges, protocol)})[0];
        CHECK_EQUAL(ph_channel_local_size(channel), lists.layouts[rank.rank].size);
        CHECK_EQUAL(ph_channel_peer_size(channel), lists.layouts[1 - rank.rank].size);
    }

    struct Call {
        size_t mine, theirs, size;
    };

    // Of the same call both ranks know the same: rank 0 copies.
    Call next(size_t most)
    {
        const size_t own = lists.layouts[0].size, other = lists.layouts[1].size;
        Call call;
        call.size = random() % std::min({most, own, other});
        call.mine = random() % (own - call.size + 1);
        call.theirs = random() % (other - call.size + 1);
        return call;
    }

    void check(const std::string &what)
    {
        rank.synchronize(stream);
        rank.barrier();
        memory.verify(lists.bytes[rank.rank], what);
        rank.barrier();
    }

    Rank &rank;
    Lists lists;
    Memory memory;
    void *stream;
    ph_channel *channel;
    std::mt19937 random{5};
};

static void put(Copying &c, const Copying::Call &call)
{
    Rank &rank = c.rank;
    c.lists.copy(1, call.theirs, 0, call.mine, call.size);
    if (rank.rank == 0)
        CHECK_OK(ph_put(c.channel, call.theirs, call.mine, call.size, c.stream));
}

static void get(Copying &c, const Copying::Call &call)
{
    Rank &rank = c.rank;
    c.lists.copy(0, call.mine, 1, call.theirs, call.size);
    if (rank.rank == 0)
        CHECK_OK(ph_get(c.channel, call.mine, call.theirs, call.size, c.stream));
}

static void put_signal(Copying &c, const Copying::Call &call)
{
    Rank &rank = c.rank;
    c.lists.copy(1, call.theirs, 0, call.mine, call.size);
    if (rank.rank == 0)
        CHECK_OK(ph_put_signal(c.channel, call.theirs, call.mine, call.size, c.stream));
    else
        CHECK_OK(ph_wait(c.channel, call.size, c.stream));
}

// From the first byte of all ranges to the first byte of all.
static void send(Copying &c, const Copying::Call &call)
{
    Rank &rank = c.rank;
    c.lists.copy(1, 0, 0, 0, call.size);
    if (rank.rank == 0)
        CHECK_OK(ph_send(c.channel, call.size, c.stream));
    else
        CHECK_OK(ph_recv(c.channel, call.size, c.stream));
    CHECK_OK(ph_complete(c.channel, c.stream));
}

// Puts of a group have no order: they go to places apart from each other.
static void group(Copying &c)
{
    Rank &rank = c.rank;
    const size_t most = std::min(c.lists.layouts[0].size, c.lists.layouts[1].size),
                 piece = most / 7;
    std::vector<ph_group_op> ops;
    for (size_t i = 0; i < 7; i++) {
        const size_t size = c.random() % piece, mine = c.random() % (most - size);
        c.lists.copy(1, i * piece, 0, mine, size);
        ops.push_back({i == 6 ? PH_GROUP_PUT_SIGNAL : PH_GROUP_PUT, c.channel, i * piece, mine,
                       size, nullptr});
    }
    if (rank.rank == 0)
        CHECK_OK(ph_group(ops.data(), ops.size(), c.stream));
    else
        CHECK_OK(ph_wait(c.channel, ops.back().size, c.stream));
}

RANK_FUNCTION(copies)
{
    rank.open();
    Copying c(rank, rank.argument == "get" ? PH_PROTOCOL_GET : PH_PROTOCOL_PUT);
    const size_t all = std::min(c.lists.layouts[0].size, c.lists.layouts[1].size);
    for (int round = 0; round < 12; round++) {
        const size_t most = round % 3 == 0 ? all : 20000;
        put(c, c.next(most));
        c.check("a put");
        get(c, c.next(most));
        c.check("a get");
        put_signal(c, c.next(most));
        c.check("a put_signal");
        send(c, c.next(most));
        c.check("a message");
        group(c);
        c.check("a group");
    }
    put(c, {0, 0, 0});
    put(c, {c.lists.layouts[0].size, c.lists.layouts[1].size, 0});
    put_signal(c, {0, 0, all});
    c.check("all of it");
    CHECK_OK(ph_channel_status(c.channel));
    rank.barrier();
}

TEST_P(Ranges, CopiesAcrossThemAreThoseOfAReference)
{
    for (const char *protocol : {"put", "get"}) {
        SCOPED_TRACE(protocol);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("copies", protocol), "");
    }
}

// More pieces than one operation of an executor has items.
RANK_FUNCTION(many_pieces)
{
    rank.open();
    const size_t count = 1000, bytes = rank.rank == 0 ? 24 : 40;
    uint8_t *memory = (uint8_t *)rank.device->alloc(count * 64);
    std::vector<ph_range> ranges;
    std::vector<uint8_t> before(count * 64), after(count * 64);
    for (size_t i = 0; i < before.size(); i++)
        before[i] = rank.rank == 0 ? pattern_byte(7, i) : 0xee;
    rank.device->write(memory, before.data(), before.size());
    for (size_t i = 0; i < count; i++)
        ranges.push_back({memory + (count - 1 - i) * 64, bytes});
    void *stream = rank.device->stream();
    ph_channel *channel =
        exchange_all(rank, {operation(1, 1 - rank.rank, PH_ROLE_BOTH, ranges)})[0];
    for (int i = 0; i < 3; i++) {
        if (rank.rank == 0)
            CHECK_OK(ph_send(channel, count * 24, stream));
        else
            CHECK_OK(ph_recv(channel, count * 24, stream));
        CHECK_OK(ph_complete(channel, stream));
    }
    rank.synchronize(stream);
    rank.device->read(after.data(), memory, after.size());
    for (size_t i = 0; rank.rank == 1 && i < count * 24; i++)
        CHECK(after[(count - 1 - i / 40) * 64 + i % 40] ==
              pattern_byte(7, (count - 1 - i / 24) * 64 + i % 24));
    CHECK_OK(ph_channel_status(channel));
    rank.barrier();
}

TEST_P(Ranges, AMessageOfThousandsOfPiecesComesWhole)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("many_pieces"), "");
}

// A graph takes the pieces as they are.
RANK_FUNCTION(replays)
{
    rank.open();
    Copying c(rank, PH_PROTOCOL_PUT);
    const size_t size = std::min(c.lists.layouts[0].size, c.lists.layouts[1].size);
    void *graph = rank.device->capture(c.stream, [&] {
        if (rank.rank == 0)
            CHECK_OK(ph_put_signal(c.channel, 0, 0, size, c.stream));
        else
            CHECK_OK(ph_wait(c.channel, size, c.stream));
    });
    for (uint64_t round = 0; round < 3; round++) {
        c.lists.bytes[0] = c.lists.layouts[0].first_bytes(300 + round);
        if (rank.rank == 0)
            for (size_t i = 0; i < c.memory.allocations.size(); i++)
                rank.device->write(c.memory.allocations[i], c.lists.bytes[0][i].data(),
                                   c.lists.bytes[0][i].size());
        rank.device->launch(graph, c.stream);
        c.lists.copy(1, 0, 0, 0, size);
        c.check("a replay");
    }
    rank.device->destroy(graph);
    rank.barrier();
}

TEST_P(RangesOnCuda, AreCopiedByEachReplay)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("replays"), "");
}

// ---- ph_copy

RANK_FUNCTION(third_party)
{
    rank.open();
    Lists lists;
    void *stream = rank.device->stream();
    const size_t size = std::min(lists.layouts[0].size, lists.layouts[1].size) - 10;
    if (rank.rank == 0) {
        std::vector<ph_range> own = {{rank.device->alloc(8), 8}};
        auto channels = exchange_all(
            rank, {operation(1, 1, PH_ROLE_BOTH, own), operation(2, 2, PH_ROLE_BOTH, own)});
        rank.barrier();
        CHECK_OK(ph_copy(channels[1], 3, channels[0], 7, size, stream));
        CHECK_RC(ph_copy(channels[0], 0, channels[0], 5, 10, stream), -EINVAL);
        rank.synchronize(stream);
        rank.barrier();
    } else {
        const int which = rank.rank - 1;
        Memory memory(rank, lists.layouts[which], lists.bytes[which]);
        exchange_all(rank, {operation((uint64_t)rank.rank, 0, PH_ROLE_BOTH, memory.ranges)});
        rank.barrier();
        rank.barrier();
        lists.copy(1, 3, 0, 7, size);
        memory.verify(lists.bytes[which], "a copy between two other ranks");
    }
    rank.barrier();
}

TEST_P(Ranges, OfTwoOtherRanksAreCopied)
{
    Job job(GetParam(), 3);
    EXPECT_EQ(job.run("third_party"), "");
}

// ---- exchanges

static std::vector<ph_range> allocate(Rank &rank, size_t count, size_t bytes)
{
    std::vector<ph_range> ranges;
    for (size_t i = 0; i < count; i++)
        ranges.push_back({rank.device->alloc(bytes), bytes});
    return ranges;
}

// An exchange, and how long it takes once both ranks are there.
static ph_channel *timed(Rank &rank, const ph_operation &op, const char *what)
{
    rank.barrier();
    const auto begin = std::chrono::steady_clock::now();
    ph_channel *channel = exchange_all(rank, {op})[0];
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (rank.rank == 0 && getenv("PEERHOP_TEST_BARS"))
        fprintf(stderr, "%s: %.2f ms\n", what, took.count());
    return channel;
}

RANK_FUNCTION(many)
{
    rank.open();
    const int peer = 1 - rank.rank;
    const uint32_t count = rank.device->host() ? 160 : 40;
    auto first = allocate(rank, 1, 4096), ranges = allocate(rank, count, 4096);
    exchange_all(rank, {operation(1, peer, PH_ROLE_BOTH, first)});
    const uint64_t offers = rank.counter("offers"), imports = rank.counter("imports");
    ph_channel *channel = timed(rank, operation(2, peer, PH_ROLE_BOTH, ranges), "new allocations");
    CHECK_EQUAL(rank.counter("offers") - offers, 1);
    CHECK_EQUAL(rank.counter("imports") - imports, count);
    ph_channel *other = timed(rank, operation(3, peer, PH_ROLE_BOTH, ranges), "known allocations");
    CHECK(other != channel);
    CHECK_EQUAL(rank.counter("offers") - offers, 2);
    CHECK_EQUAL(rank.counter("imports") - imports, count);
    const uint64_t hits = rank.counter("hits");
    CHECK(timed(rank, operation(2, peer, PH_ROLE_BOTH, ranges), "a hit") == channel);
    CHECK_EQUAL(rank.counter("hits") - hits, 1);
    CHECK_EQUAL(rank.counter("offers") - offers, 2);
    // Another order is another list; a list of one is a buffer.
    std::swap(ranges[0], ranges[1]);
    CHECK(exchange_all(rank, {operation(2, peer, PH_ROLE_BOTH, ranges)})[0] != channel);
    const ph_operation plain = operation(1, peer, PH_ROLE_BOTH, first[0].base, 4096);
    const uint64_t again = rank.counter("hits");
    exchange_all(rank, {plain});
    CHECK_EQUAL(rank.counter("hits") - again, 1);
    rank.barrier();
}

TEST_P(Ranges, ManyAreOneOfferAndTheNextTimeAHit)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("many"), "");
}

// ---- releases

RANK_FUNCTION(release_of_one)
{
    rank.open();
    const int peer = 1 - rank.rank;
    void *stream = rank.device->stream();
    auto all = allocate(rank, 3, 4096);
    auto channels = exchange_all(rank, {operation(1, peer, PH_ROLE_BOTH, {all[0], all[1]}),
                                        operation(2, peer, PH_ROLE_BOTH, {all[1], all[2]}),
                                        operation(3, peer, PH_ROLE_BOTH, {all[2], all[1]})});
    const ph_role role = role_of(rank, 0);
    for (ph_channel *channel : channels)
        pass(rank, channel, role,
             channel == channels[0]   ? all[0].base
             : channel == channels[1] ? all[1].base
                                      : all[2].base,
             4096, 9, stream);
    rank.barrier();
    if (rank.rank == 0)
        release_to(rank, all[0].base, 4096, PH_RELEASE_DRAINED);
    rank.barrier();
    CHECK_RC(end_of(channels[0]), -ESTALE);
    CHECK_RC(ph_put(channels[0], 4096, 4096, 8, stream), -ESTALE);
    for (size_t i = 1; i < 3; i++) {
        CHECK_OK(ph_channel_ended(channels[i]));
        pass(rank, channels[i], role, i == 1 ? all[1].base : all[2].base, 4096, 10 + i, stream);
    }
    rank.barrier();
    // The last ranges of all: the memory of a list is given back range by range.
    if (rank.rank == 1) {
        release_to(rank, all[2].base, 4096, PH_RELEASE_DRAINED);
        release_to(rank, all[1].base, 4096, PH_RELEASE_DRAINED);
    }
    rank.barrier();
    CHECK_RC(end_of(channels[1]), -ESTALE);
    CHECK_RC(end_of(channels[2]), -ESTALE);
    // What is left, and what is new, makes another list.
    auto fresh = allocate(rank, 1, 4096);
    auto channel = exchange_all(
        rank, {operation(1, peer, PH_ROLE_BOTH, {fresh[0], all[rank.rank == 0 ? 1 : 0]})})[0];
    pass(rank, channel, role, fresh[0].base, 4096, 20, stream);
    rank.barrier();
}

TEST_P(Ranges, TheReleaseOfOneEndsItsChannelsAndNoOthers)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("release_of_one"), "");
}

// Rank 1 has a copy on its stream into both ranges of a channel that has ended by the release of
// one. The other one is in no other channel, and is not drained either.
RANK_FUNCTION(release_of_the_rest)
{
    rank.open();
    const int peer = 1 - rank.rank;
    void *stream = rank.device->stream();
    auto all = allocate(rank, 3, 4096);
    auto channels =
        exchange_all(rank, {operation(1, peer, PH_ROLE_BOTH, {all[0], all[1]}),
                            operation(2, peer, PH_ROLE_BOTH, all[2].base, all[2].size)});
    if (rank.rank == 1) {
        CHECK_OK(ph_wait(channels[1], 0, stream));
        CHECK_OK(ph_put(channels[0], 0, 0, 8192, stream));
    }
    rank.barrier();
    if (rank.rank == 0) {
        for (size_t i = 0; i < 2; i++) {
            CHECK_OK(ph_release_start(rank.context, all[i].base, 4096));
            CHECK_RC(ph_release_wait(rank.context, all[i].base, 4096, PH_RELEASE_DRAINED, 100),
                     -ETIMEDOUT);
        }
        CHECK_OK(ph_signal(channels[1], stream));
        for (size_t i = 0; i < 2; i++)
            CHECK_OK(ph_release_wait(rank.context, all[i].base, 4096, PH_RELEASE_DRAINED,
                                     patience(20000).count()));
    }
    rank.synchronize(stream);
    CHECK_RC(end_of(channels[0]), -ESTALE);
    rank.barrier();
}

TEST_P(Ranges, AreDrainedTogether)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("release_of_the_rest"), "");
}

// ---- refusals

RANK_FUNCTION(refusals)
{
    rank.open();
    auto good = allocate(rank, 2, 64);
    const size_t much = SIZE_MAX - 32;
    ph_operation both = operation(1, 1 - rank.rank, PH_ROLE_BOTH, good);
    both.buffer = good[0].base;
    CHECK_SAYS(exchange_fails(rank, {both}, -EINVAL), "a buffer, or its size, and ranges");
    both.buffer = nullptr;
    both.ranges = nullptr;
    CHECK_SAYS(exchange_fails(rank, {both}, -EINVAL), "2 ranges, which are NULL");
    auto fails = [&](const std::vector<ph_range> &ranges, int rc, const std::string &why) {
        CHECK_SAYS(exchange_fails(rank, {operation(1, 1 - rank.rank, PH_ROLE_BOTH, ranges)}, rc),
                   why);
    };
    fails({good[0], {good[1].base, 0}}, -EINVAL, "range 1 has no bytes");
    fails({{nullptr, 8}, good[1]}, -EINVAL, "range 0 has no base");
    fails({good[0], {good[1].base, much}}, -EINVAL, "range 1 makes more bytes");
    fails(std::vector<ph_range>(1025, good[0]), -EINVAL, "at most 1024");
    fails({good[0], {(uint8_t *)good[1].base + 60, 8192}}, -EINVAL, "");
    ph_operation self = operation(1, rank.rank, PH_ROLE_BOTH, good);
    CHECK_SAYS(exchange_fails(rank, {self}, -EINVAL), "names itself");
    // Nothing of these is in the way of the next one. 1024 are taken.
    std::vector<ph_range> most(1024, {good[0].base, 1});
    auto channels = exchange_all(rank, {operation(1, 1 - rank.rank, PH_ROLE_BOTH, good),
                                        operation(2, 1 - rank.rank, PH_ROLE_BOTH, most)});
    CHECK_EQUAL(ph_channel_peer_size(channels[1]), 1024);
    CHECK_RC(ph_put(channels[0], 0, 120, 9, nullptr), -EINVAL);
    CHECK_RC(ph_put(channels[0], 129, 0, 0, nullptr), -EINVAL);
    rank.barrier();
}

TEST_P(Ranges, ThatAreNoneAreRefused)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("refusals"), "");
}

RANK_FUNCTION(refusals_of_devices)
{
    rank.open();
    const int peer = 1 - rank.rank;
    auto ranges = allocate(rank, 2, 64);
    void *host = nullptr;
    CHECK_OK(ph_host_alloc(rank.context, 64, &host));
    CHECK_SAYS(
        exchange_fails(rank, {operation(1, peer, PH_ROLE_BOTH, {ranges[0], {host, 64}})}, PH_EKIND),
        "range 1 is host memory, and the first one is not");
    ph_channel *channel = exchange_all(rank, {operation(1, peer, PH_ROLE_BOTH, ranges)})[0];
    ph_device_channel device;
    CHECK_RC(ph_channel_device(channel, &device, sizeof device), -ENOTSUP);
    CHECK_SAYS(rank.error(), "several ranges");
    CHECK_SAYS(reason_against(report_of(rank, channel, true), "ll"), "several ranges");
    rank.barrier();
    CHECK_OK(ph_host_free(rank.context, host, 0));
}

TEST_P(RangesOnCuda, AreOfOneKindAndHaveNoDeviceChannel)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("refusals_of_devices"), "");
}

RANK_FUNCTION(over_net)
{
    rank.open();
    const int peer = 1 - rank.rank;
    auto ranges = allocate(rank, 2, 64);
    const ph_operation plain = operation(1, peer, PH_ROLE_BOTH, ranges[0].base, 64);
    // One end has several.
    const ph_operation op = rank.rank == 0 ? operation(1, peer, PH_ROLE_BOTH, ranges) : plain;
    CHECK_SAYS(exchange_fails(rank, {op}, -ENOTSUP), "names 2 ranges and goes over the net");
    ph_channel *channel = exchange_all(rank, {plain})[0];
    pass(rank, channel, role_of(rank, 0), ranges[0].base, 64, 3, rank.device->stream());
    rank.barrier();
}

TEST_P(RangesOverNet, AreRefusedAtBothEnds)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("over_net"), "");
}
