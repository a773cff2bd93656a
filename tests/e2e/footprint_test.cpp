// SPDX-License-Identifier: BSD-3-Clause
// What device memory the library takes: 4 MiB for each peer at first contact, more as a pair gets
// channels, and of a budget.
#include "e2e/bytes.h"
#include "e2e/exchanging.h"

class Footprint : public EveryDevice
{
  protected:
    static std::string run(const std::string &function, int ranks = 2,
                           const std::string &argument = "")
    {
        Job job(GetParam(), ranks);
        if (ranks > 2)
            job.environment("PEERHOP_STANDIN_DEVICES", std::to_string(ranks));
        return job.run(function, argument);
    }
};
INSTANTIATE_CUDA_DEVICES(Footprint);

static const uint64_t mib = 1 << 20;
static const size_t piece = 100000, place = 256 << 10;

// Channels of which each rank has its memory in one allocation, one exchange each.
struct Channels {
    uint64_t before; // device memory of the library
    uint8_t *out, *in;
    void *stream;
    std::vector<ph_channel *> channels;

    explicit Channels(Rank &rank, std::vector<std::string> settings = {})
    {
        settings.push_back(Rank::wide());
        rank.open(settings);
        before = rank.counter("device_bytes");
        out = static_cast<uint8_t *>(rank.device->alloc(140 * place));
        in = out + place / 2;
        stream = rank.device->stream();
    }
    uint64_t taken(Rank &rank) const
    {
        return rank.counter("device_bytes") - before;
    }
    void add(Rank &rank, size_t n)
    {
        std::vector<ph_operation> ops;
        for (size_t i = channels.size(); i < n; i++)
            ops.push_back({i, !rank.rank, PH_ROLE_BOTH, PH_PROTOCOL_PUT, out + i * place, place});
        for (ph_channel *channel : exchange_all(rank, ops))
            channels.push_back(channel);
    }
    // Both ways, by small and by wide slots and by signals of both.
    void use(Rank &rank, size_t i) const
    {
        for (size_t bytes : {size_t{0}, size_t{1000}, piece}) {
            rank.device->fill(out + i * place, bytes, 3 * i + rank.rank);
            rank.barrier();
            CHECK_OK(ph_put_signal(channels[i], place / 2, 0, bytes, stream));
            CHECK_OK(ph_wait(channels[i], bytes, stream));
            rank.synchronize(stream);
            rank.verify(in + i * place, bytes, 3 * i + !rank.rank, "a signal");
            rank.barrier();
            const auto half = [&](bool sends) {
                CHECK_OK(sends ? ph_send(channels[i], bytes, stream)
                               : ph_recv(channels[i], bytes, stream));
                CHECK_OK(ph_complete(channels[i], stream));
            };
            half(rank.rank == 0);
            rank.synchronize(stream);
            rank.verify(out + i * place, bytes, 3 * i, "a message");
            rank.barrier();
            rank.device->fill(out + i * place, bytes, 3 * i + 2);
            half(rank.rank == 1);
            rank.synchronize(stream);
            rank.verify(out + i * place, bytes, 3 * i + 2, "a message back");
            rank.barrier();
        }
    }
};

RANK_FUNCTION(first_contact)
{
    Channels pair(rank);
    pair.add(rank, 1);
    if (!rank.by_flags(pair.channels[0], true))
        return;
    pair.use(rank, 0);
    CHECK_EQUAL(report_of(rank, pair.channels[0], true).ll_max, mib);
    CHECK(pair.taken(rank) > 0);
    CHECK(pair.taken(rank) <= 4 * mib);
    rank.barrier();
}

TEST_P(Footprint, FirstContactTakesLittle)
{
    EXPECT_EQ(run("first_contact"), "");
}

RANK_FUNCTION(grows)
{
    Channels pair(rank);
    pair.add(rank, 1);
    if (!rank.by_flags(pair.channels[0], true))
        return;
    const struct {
        size_t channels;
        uint64_t most;
    } steps[] = {{1, 4}, {2, 12}, {4, 12}, {5, 38}, {16, 38}, {17, 46}, {130, 46}};
    for (const auto &step : steps) {
        pair.add(rank, step.channels);
        CHECK_EQUAL(pair.taken(rank), step.most * mib);
        rank.barrier();
    }
    // The first and the last of each part, whatever lines they got.
    size_t wide = 0, small = 0, none = 0;
    for (size_t i = 0; i < pair.channels.size(); i++) {
        const ph_path_report report = report_of(rank, pair.channels[i], true);
        wide += report.ll_max == mib;
        small += report.ll_max == 8192;
        none += reason_against(report, "ll").find("only the first 128") == 0;
        if (i < 18 || i > 125)
            pair.use(rank, i);
    }
    CHECK_EQUAL(wide, size_t{16});
    CHECK_EQUAL(small, size_t{112});
    CHECK_EQUAL(none, size_t{2});
    rank.barrier();
}

TEST_P(Footprint, GrowsWithThePairsChannels)
{
    EXPECT_EQ(run("grows"), "");
}

// Rank 1 has less than rank 0. What is missing at one end is not used at either.
RANK_FUNCTION(has_a_budget)
{
    Channels pair(rank,
                  {rank.rank ? "PEERHOP_DEVICE_BYTES=8388608" : "PEERHOP_DEVICE_BYTES=268435456"});
    pair.add(rank, 1);
    if (!rank.by_flags(pair.channels[0], true))
        return;
    pair.add(rank, 20);
    size_t wide = 0, small = 0, none = 0;
    for (size_t i = 0; i < pair.channels.size(); i++) {
        const ph_path_report report = report_of(rank, pair.channels[i], true);
        const std::string why = reason_against(report, "wide"), ll = reason_against(report, "ll");
        wide += report.ll_max == mib && why.empty();
        small += report.ll_max == 8192 && why.find("DEVICE_BYTES") != std::string::npos;
        none += report.ll_max == 0 && ll.find("DEVICE_BYTES") != std::string::npos;
        pair.use(rank, i);
    }
    CHECK_EQUAL(wide, size_t{4});
    CHECK_EQUAL(small, size_t{12});
    CHECK_EQUAL(none, size_t{4});
    CHECK(rank.rank == 0 || pair.taken(rank) == 12 * mib);
    rank.barrier();
}

TEST_P(Footprint, IsOfABudget)
{
    EXPECT_EQ(run("has_a_budget"), "");
}

// Rank 1 always names the same buffer, of which it has told once. It answers what rank 0 tells of.
RANK_FUNCTION(one_has_the_same)
{
    std::vector<std::string> settings;
    if (rank.rank == 1 && !rank.argument.empty())
        settings.push_back(rank.argument);
    Channels pair(rank, settings);
    for (size_t i = 0; i < 20; i++) {
        uint8_t *buffer = pair.out + (rank.rank ? 0 : i) * place;
        pair.channels.push_back(
            rank.channel(!rank.rank, 1, PH_ROLE_BOTH, buffer, place, PH_PROTOCOL_PUT));
        if (!rank.by_flags(pair.channels[0], true))
            return;
        const bool all = rank.argument.empty(); // else rank 1 has the first part alone
        const uint64_t most = i < (all ? 16 : 1) ? mib : all || i < 16 ? 8192 : 0;
        CHECK_EQUAL(report_of(rank, pair.channels[i], true).ll_max, most);
        rank.barrier();
    }
}

TEST_P(Footprint, WhereOneEndHasNothingNew)
{
    EXPECT_EQ(run("one_has_the_same"), "");
    EXPECT_EQ(run("one_has_the_same", 2, "PEERHOP_DEVICE_BYTES=0"), "");
}

// Several exchanges that each begin before another ends; and one rank with two buffers, the other
// with ten, of which each two make a channel when all are known.
RANK_FUNCTION(makes_channels_in_other_ways)
{
    Channels pair(rank);
    const size_t n = 18;
    std::vector<ph_exchange_request *> requests(n);
    if (rank.argument == "begun") {
        for (size_t i = 0; i < n; i++) {
            const ph_operation op = {
                i, !rank.rank, PH_ROLE_BOTH, PH_PROTOCOL_PUT, pair.out + i * place, place};
            CHECK_OK(ph_exchange_start(rank.context, &op, 1, &requests[i]));
        }
        pair.channels.resize(n);
        for (size_t i = 0; i < n; i++)
            CHECK_OK(ph_exchange_finish(&requests[i], &pair.channels[i], 0));
    } else {
        const size_t mine = rank.rank ? 2 : 10;
        for (size_t i = 0; i < 2 * 10; i++) {
            const size_t which = rank.rank ? (i + i / 10) % mine : i % mine;
            pair.channels.push_back(rank.channel(!rank.rank, 1, PH_ROLE_BOTH,
                                                 pair.out + which * place, place, PH_PROTOCOL_PUT));
        }
    }
    if (!rank.by_flags(pair.channels[0], true))
        return;
    size_t wide = 0, small = 0;
    for (ph_channel *channel : pair.channels) {
        const uint64_t lines = report_of(rank, channel, true).ll_max;
        wide += lines == mib;
        small += lines == 8192;
    }
    CHECK_EQUAL(wide, size_t{16});
    CHECK_EQUAL(small, pair.channels.size() - 16);
    rank.barrier();
}

TEST_P(Footprint, HoweverChannelsAreMade)
{
    EXPECT_EQ(run("makes_channels_in_other_ways", 2, "begun"), "");
    EXPECT_EQ(run("makes_channels_in_other_ways", 2, "known"), "");
}

// Those without buffers have rings of their own, and no wide slots.
RANK_FUNCTION(has_unbound_ones)
{
    const size_t n = 64;
    rank.open({Rank::wide()});
    const uint64_t before = rank.counter("device_bytes");
    std::vector<ph_operation> ops;
    for (size_t i = 0; i < n; i++)
        ops.push_back({i, !rank.rank, PH_ROLE_BOTH, PH_PROTOCOL_PUT, nullptr, 0});
    const auto channels = exchange_all(rank, ops);
    const ph_path_report report = report_of(rank, channels[0], true);
    if (std::string(report.method) != "ring")
        return;
    CHECK(rank.counter("device_bytes") - before <= n * 11 * mib / 5);
    void *stream = rank.device->stream();
    for (ph_channel *channel : {channels.front(), channels.back()}) {
        CHECK_OK(ph_signal(channel, stream));
        CHECK_OK(ph_wait(channel, 0, stream));
    }
    rank.synchronize(stream);
    rank.barrier();
}

TEST_P(Footprint, OfChannelsWithoutBuffers)
{
    EXPECT_EQ(run("has_unbound_ones"), "");
}

// All with all.
RANK_FUNCTION(has_many_peers)
{
    rank.open({Rank::wide()});
    auto *buffer = static_cast<uint8_t *>(rank.device->alloc(rank.ranks * place));
    void *stream = rank.device->stream();
    std::vector<ph_operation> ops;
    for (int peer = 0; peer < rank.ranks; peer++)
        if (peer != rank.rank)
            ops.push_back({1, peer, PH_ROLE_BOTH, PH_PROTOCOL_PUT, buffer + peer * place, place});
    const auto channels = exchange_all(rank, ops);
    std::vector<ph_group_op> group;
    for (size_t i = 0; i < channels.size(); i++) {
        rank.device->fill(buffer + ops[i].peer * place, piece, rank.rank);
        group.push_back({PH_GROUP_PUT_SIGNAL, channels[i], place / 2, 0, piece});
        group.push_back({PH_GROUP_WAIT, channels[i], 0, 0, piece});
    }
    rank.barrier();
    CHECK_OK(ph_group(group.data(), group.size(), stream));
    rank.synchronize(stream);
    for (const ph_operation &op : ops)
        rank.verify(buffer + op.peer * place + place / 2, piece, op.peer, "from each");
    CHECK(rank.counter("device_bytes") > 7 * mib);
    CHECK(rank.counter("device_bytes") <= 64 * mib);
    rank.barrier();
}

TEST_P(Footprint, OfEightRanksOnEightDevices)
{
    if (GetParam() != "standin")
        GTEST_SKIP() << "it takes eight devices";
    EXPECT_EQ(run("has_many_peers", 8), "");
}
