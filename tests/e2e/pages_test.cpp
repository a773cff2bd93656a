// SPDX-License-Identifier: BSD-3-Clause
// Lists of pages: every size, stride and alignment against plain loops, numbers in each kind of
// memory, what is left out, what is refused, groups, graphs that are replayed with other numbers.
#include <algorithm>
#include <cstring>
#include <random>

#include "e2e/exchanging.h"

class Pages : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_ALL_NETS(Pages);
class PagesOnCuda : public EveryDevice
{
};
INSTANTIATE_CUDA_DEVICES(PagesOnCuda);

static const size_t SIZE = 1 << 20;
static const uint64_t PADDING = UINT64_MAX;

// One end of a list, with the test's own memory for what it points to.
struct End {
    std::vector<uint64_t> at, numbers;
    uint64_t page_stride = 0, row_stride = 0;
};

struct List {
    uint32_t pages = 0, parts = 1, rows = 1;
    uint64_t row_bytes = 0;
    End source, destination;

    uint64_t number(const End &end, uint32_t page) const
    {
        return end.numbers.empty() ? page : end.numbers[page];
    }
    // Whether the rows of a page lie in the buffer as a whole.
    bool lies(const End &end, uint32_t part, uint32_t page) const
    {
        const __uint128_t begin =
            end.at[part] + static_cast<__uint128_t>(number(end, page)) * end.page_stride;
        return begin + static_cast<__uint128_t>(rows - 1) * end.row_stride + row_bytes <= SIZE;
    }
    uint64_t offset(const End &end, uint32_t part, uint32_t page, uint32_t row) const
    {
        return end.at[part] + number(end, page) * end.page_stride + row * end.row_stride;
    }
    // What the list does to the bytes of a target; returns how many parts of pages it leaves out.
    uint64_t apply(std::vector<uint8_t> &target, const std::vector<uint8_t> &from,
                   uint32_t count) const
    {
        uint64_t skipped = 0;
        for (uint32_t part = 0; part < parts; part++)
            for (uint32_t page = 0; page < count; page++) {
                if (number(source, page) == PADDING || number(destination, page) == PADDING)
                    continue;
                if (!lies(source, part, page) || !lies(destination, part, page)) {
                    skipped++;
                    continue;
                }
                for (uint32_t row = 0; row < rows; row++)
                    std::memcpy(&target[offset(destination, part, page, row)],
                                &from[offset(source, part, page, row)], row_bytes);
            }
        return skipped;
    }
};

// Memory that a list's numbers lie in: "" is the test's own.
struct Numbers {
    Rank &rank;
    std::string kind;
    uint32_t bytes;
    std::vector<uint8_t> own;
    void *place = nullptr;

    Numbers(Rank &owner, std::string where, uint32_t number_bytes)
        : rank(owner), kind(std::move(where)), bytes(number_bytes)
    {
    }
    const void *put(const std::vector<uint64_t> &numbers)
    {
        if (numbers.empty())
            return nullptr;
        own.assign(numbers.size() * bytes, 0);
        for (size_t i = 0; i < numbers.size(); i++) // little-endian
            std::memcpy(&own[i * bytes], &numbers[i], bytes);
        if (kind.empty())
            return own.data();
        if (place == nullptr)
            place = rank.device->alloc(64 << 10, kind == "device" ? "" : kind);
        rank.device->write(place, own.data(), own.size());
        return place;
    }
};

static ph_page_end end_of(const End &end, Numbers &numbers)
{
    ph_page_end made = {};
    made.at = end.at.data();
    made.page_stride = end.page_stride;
    made.row_stride = end.row_stride;
    made.numbers = numbers.put(end.numbers);
    made.number_bytes = made.numbers ? numbers.bytes : 0;
    return made;
}

static ph_pages pages_of(const List &list, bool puts, Numbers &source, Numbers &destination)
{
    ph_pages pages = {};
    pages.struct_size = sizeof pages;
    pages.pages = list.pages;
    pages.parts = list.parts;
    pages.rows = list.rows;
    pages.row_bytes = list.row_bytes;
    (puts ? pages.local : pages.peer) = end_of(list.source, source);
    (puts ? pages.peer : pages.local) = end_of(list.destination, destination);
    return pages;
}

// Rows that do not overlap at the destination; sources may be anywhere, and come again. The numbers
// of some pages are padding, and of some lie outside.
static List random_list(std::mt19937 &random, bool outside)
{
    const auto below = [&](uint64_t n) { return random() % n; };
    static const uint64_t sizes[] = {1, 3, 4, 8, 12, 16, 60, 64, 128, 256, 1000, 1024, 4096, 5008};
    static const uint64_t units[] = {1, 4, 8, 16};
    const uint64_t unit = units[below(4)];
    const auto round = [&](uint64_t n) { return (n + unit - 1) / unit * unit; };
    List list;
    list.row_bytes = round(sizes[below(std::size(sizes))]);
    list.rows = static_cast<uint32_t>(1 + below(4));
    list.parts = static_cast<uint32_t>(1 + below(3));
    End &to = list.destination, &from = list.source;
    to.row_stride = list.row_bytes + round(below(40));
    from.row_stride = list.row_bytes / 2 + round(below(2 * list.row_bytes));
    from.row_stride = round(from.row_stride);
    to.page_stride = round(to.row_stride * list.rows + below(100));
    from.page_stride = round(below(from.row_stride * list.rows + 100));
    const uint64_t room = SIZE / list.parts / unit * unit;
    // So many rows that, where each is an operation of its own, the provider of the tests that
    // takes memory of devices has room for all (4096).
    const uint64_t fit = std::min<uint64_t>(room / to.page_stride, 3000 / list.rows / list.parts);
    list.pages = static_cast<uint32_t>(below(fit + 1));
    for (uint32_t part = 0; part < list.parts; part++) {
        to.at.push_back(part * room);
        from.at.push_back(round(below(SIZE / 8)));
    }
    const uint64_t extent = (list.rows - 1) * from.row_stride + list.row_bytes;
    const uint64_t most =
        from.page_stride ? (SIZE - SIZE / 8 - unit - extent) / from.page_stride : 1000;
    std::vector<uint64_t> places(list.pages);
    for (uint32_t i = 0; i < list.pages; i++)
        places[i] = i;
    std::shuffle(places.begin(), places.end(), random);
    if (below(4) > 0)
        to.numbers = places;
    if (below(4) > 0 || most < list.pages)
        for (uint32_t i = 0; i < list.pages; i++)
            from.numbers.push_back(below(most + 1));
    for (End *end : {&to, &from})
        for (uint64_t &number : end->numbers)
            if (below(12) == 0)
                number = PADDING;
            else if (outside && below(12) == 0)
                number =
                    below(2) ? SIZE / (end->page_stride + 1) * 4 + below(1000) + SIZE : 0xfffffffe;
    return list;
}

static std::string describe(const List &list)
{
    return std::to_string(list.pages) + " pages of " + std::to_string(list.parts) + " parts, " +
           std::to_string(list.rows) + " rows of " + std::to_string(list.row_bytes) + " bytes";
}

// Two ranks with a buffer each; rank 0 puts and gets.
struct Pair {
    Rank &rank;
    uint8_t *buffer;
    void *stream;
    ph_channel *channel;

    explicit Pair(Rank &owner)
        : rank(owner), buffer(static_cast<uint8_t *>(owner.device->alloc(SIZE))),
          stream(owner.device->stream()),
          channel(owner.channel(!owner.rank, 1, PH_ROLE_BOTH, buffer, SIZE))
    {
    }
    bool gets() const // what is staged moves only when its owner sends
    {
        return !rank.staged();
    }
    std::vector<uint8_t> bytes() const
    {
        std::vector<uint8_t> all(SIZE);
        rank.device->read(all.data(), buffer, SIZE);
        return all;
    }
    static std::vector<uint8_t> pattern(uint64_t seed)
    {
        std::vector<uint8_t> all(SIZE);
        for (size_t i = 0; i < SIZE; i++)
            all[i] = pattern_byte(seed, i);
        return all;
    }
    void expect(const std::vector<uint8_t> &wanted, const std::string &what) const
    {
        const std::vector<uint8_t> there = bytes();
        const auto wrong = std::mismatch(there.begin(), there.end(), wanted.begin());
        if (wrong.first != there.end())
            rank_failed(__FILE__, __LINE__,
                        what + ": byte " + std::to_string(wrong.first - there.begin()) + " of " +
                            (rank.rank ? "the peer's" : "the own") + " buffer");
    }
};

static std::string kind_of_numbers(const Rank &rank, std::mt19937 &random)
{
    static const char *const kinds[] = {"", "pinned", "device"};
    const bool cuda = !rank.device->host();
    const bool ipc = rank.argument == "standin" || rank.argument == "gpu";
    return cuda ? kinds[random() % (ipc ? 3 : 2)] : "";
}

RANK_FUNCTION(copies_random_lists)
{
    rank.open();
    Pair pair(rank);
    const int rounds = rank.argument.find("net") != std::string::npos ? 15 : 60;
    uint64_t skipped = 0;
    for (int round = 0; round < rounds; round++) {
        std::mt19937 random(static_cast<unsigned>(round));
        const List list = random_list(random, round % 2 == 1);
        const bool puts = !pair.gets() || random() % 2 == 0;
        const int source = puts ? 0 : 1;
        const uint32_t bytes = random() % 2 ? 8 : 4;
        Numbers from(rank, kind_of_numbers(rank, random), bytes);
        Numbers to(rank, kind_of_numbers(rank, random), bytes);
        ph_pages pages = pages_of(list, puts, from, to);
        const uint32_t count = static_cast<uint32_t>(random() % (list.pages + 2));
        pages.count = random() % 2 ? &count : nullptr;
        const uint64_t seed = static_cast<uint64_t>(2 * round + 7);
        rank.device->fill(pair.buffer, SIZE, seed + (rank.rank != source));
        rank.barrier();
        if (rank.rank == 0) {
            CHECK_OK(puts ? ph_put_pages(pair.channel, &pages, pair.stream)
                          : ph_get_pages(pair.channel, &pages, pair.stream));
            CHECK_OK(ph_signal(pair.channel, pair.stream));
        } else {
            CHECK_OK(ph_wait(pair.channel, 0, pair.stream));
        }
        rank.synchronize(pair.stream);
        std::vector<uint8_t> target = Pair::pattern(seed + 1);
        const std::vector<uint8_t> given = Pair::pattern(seed);
        skipped +=
            list.apply(target, given, pages.count ? std::min(count, list.pages) : list.pages);
        pair.expect(rank.rank == source ? given : target, describe(list) +
                                                              (puts ? ", put" : ", got") +
                                                              ", round " + std::to_string(round));
        CHECK_OK(ph_channel_status(pair.channel));
        rank.barrier();
    }
    if (rank.rank == 0) {
        CHECK(skipped > 0);
        CHECK_EQUAL(ph_channel_skipped(pair.channel), skipped);
    } else {
        CHECK_EQUAL(ph_channel_skipped(pair.channel), 0u);
    }
    rank.barrier();
}

TEST_P(Pages, AreWhatPlainLoopsCopy)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("copies_random_lists", GetParam()), "");
}

// ---- what is refused

static List plain_list(uint32_t pages, uint64_t page_bytes)
{
    List list;
    list.pages = pages;
    list.row_bytes = page_bytes;
    list.source.at = list.destination.at = {0};
    list.source.page_stride = list.destination.page_stride = page_bytes;
    return list;
}

RANK_FUNCTION(refuses)
{
    rank.open();
    Pair pair(rank);
    Numbers none(rank, "", 4);
    const List list = plain_list(4, 4096);
    const ph_pages good = pages_of(list, true, none, none);
    const auto refused = [&](const char *says, const std::function<void(ph_pages &)> &change) {
        ph_pages pages = good;
        change(pages);
        CHECK_RC(ph_put_pages(pair.channel, &pages, pair.stream), -EINVAL);
        CHECK_SAYS(rank.error(), says);
    };
    const uint64_t far = SIZE - 4095;
    CHECK_EQUAL(ph_put_pages(nullptr, &good, pair.stream), -EINVAL);
    CHECK_RC(ph_put_pages(pair.channel, nullptr, pair.stream), -EINVAL);
    refused("struct_size", [](ph_pages &p) { p.struct_size = 8; });
    refused("no parts", [](ph_pages &p) { p.parts = 0; });
    refused("no rows", [](ph_pages &p) { p.rows = 0; });
    refused("4 or 8 bytes", [](ph_pages &p) { p.peer.numbers = &p, p.peer.number_bytes = 2; });
    refused("no multiple of their size", [](ph_pages &p) {
        p.peer.numbers = reinterpret_cast<const char *>(&p) + 1;
        p.peer.number_bytes = 4;
    });
    refused("no multiple of 4", [](ph_pages &p) {
        p.count = reinterpret_cast<const uint32_t *>(reinterpret_cast<const char *>(&p) + 2);
    });
    refused("beyond a buffer", [](ph_pages &p) { p.row_bytes = SIZE + 1; });
    refused("beyond a buffer", [](ph_pages &p) { p.rows = 3, p.local.row_stride = SIZE; });
    refused("beyond a buffer", [](ph_pages &p) { p.rows = 3, p.local.row_stride = UINT64_MAX; });
    refused("too far behind", [&](ph_pages &p) { p.peer.at = &far; });
    ph_pages many = good;
    many.pages = UINT32_MAX;
    many.parts = 1;
    many.rows = 2;
    many.row_bytes = 1;
    CHECK_RC(ph_put_pages(pair.channel, &many, pair.stream), -E2BIG);
    CHECK_OK(ph_put_pages(pair.channel, &good, pair.stream));
    ph_pages nothing = good;
    nothing.pages = 0;
    CHECK_OK(ph_put_pages(pair.channel, &nothing, pair.stream));
    nothing = good;
    nothing.row_bytes = 0;
    CHECK_OK(ph_put_pages(pair.channel, &nothing, pair.stream));
    ph_channel *unbound = rank.channel(!rank.rank, 2, PH_ROLE_BOTH, nullptr, 0);
    CHECK_RC(ph_put_pages(unbound, &good, pair.stream), -EINVAL);
    rank.synchronize(pair.stream);
    CHECK_OK(ph_channel_status(pair.channel));
    rank.barrier();
}

TEST_P(Pages, BadListsAreRefusedAndNothingIsLost)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("refuses"), "");
}

// ---- groups

// Lists on two channels, single puts and a signal that tells of all.
RANK_FUNCTION(groups_lists)
{
    rank.open();
    Pair pair(rank);
    uint8_t *second = static_cast<uint8_t *>(rank.device->alloc(SIZE));
    ph_channel *other = rank.channel(!rank.rank, 2, PH_ROLE_BOTH, second, SIZE);
    List list = plain_list(32, 4096);
    for (uint32_t i = 0; i < 32; i++) {
        list.source.numbers.push_back(i * 7 % 32);
        list.destination.numbers.push_back(i * 5 % 32);
    }
    Numbers from(rank, "", 4), to(rank, "", 4);
    ph_pages pages = pages_of(list, true, from, to);
    const bool zero = rank.rank == 0;
    rank.device->fill(pair.buffer, SIZE, zero ? 1 : 2);
    rank.device->fill(second, SIZE, zero ? 3 : 4);
    rank.barrier();
    if (zero) {
        const ph_group_op ops[] = {
            {PH_GROUP_PUT_PAGES, pair.channel, 0, 0, 0, &pages},
            {PH_GROUP_PUT, pair.channel, 200000, 300000, 1000, nullptr},
            {PH_GROUP_PUT_PAGES, other, 0, 0, 0, &pages},
            {PH_GROUP_SIGNAL, pair.channel, 0, 0, 0, nullptr},
            {PH_GROUP_SIGNAL, other, 0, 0, 0, nullptr},
        };
        CHECK_OK(ph_group(ops, std::size(ops), pair.stream));
    } else {
        CHECK_OK(ph_wait(pair.channel, 0, pair.stream));
        CHECK_OK(ph_wait(other, 0, pair.stream));
    }
    rank.synchronize(pair.stream);
    if (!zero) {
        std::vector<uint8_t> first = Pair::pattern(2), there(SIZE), wanted = Pair::pattern(4);
        list.apply(first, Pair::pattern(1), 32);
        const std::vector<uint8_t> given = Pair::pattern(1);
        std::copy(given.begin() + 300000, given.begin() + 301000, first.begin() + 200000);
        pair.expect(first, "a group");
        list.apply(wanted, Pair::pattern(3), 32);
        rank.device->read(there.data(), second, SIZE);
        CHECK(there == wanted);
    }
    rank.barrier();
}

TEST_P(Pages, GoInGroups)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("groups_lists"), "");
}

// ---- many lists that the streams have not come to

RANK_FUNCTION(keeps_many_lists)
{
    rank.open();
    Pair pair(rank);
    const uint32_t pages_each = 4000;
    List list = plain_list(pages_each, 256);
    for (uint32_t i = 0; i < pages_each; i++)
        list.source.numbers.push_back(i * 7 % pages_each);
    list.destination.numbers = list.source.numbers;
    rank.device->fill(pair.buffer, SIZE, rank.rank + 1);
    rank.barrier();
    if (rank.rank == 0) {
        int refused = 0, taken = 0;
        CHECK_OK(ph_wait(pair.channel, 0, pair.stream));
        for (int i = 0; i < 100; i++) {
            Numbers from(rank, "", 8), to(rank, "", 8); // gone when the call has returned
            const ph_pages pages = pages_of(list, true, from, to);
            const int rc = ph_put_pages(pair.channel, &pages, pair.stream);
            CHECK(rc == 0 || rc == -EAGAIN);
            refused += rc != 0;
            taken += rc == 0;
            if (rc)
                CHECK_SAYS(rank.error(), "4 MiB");
        }
        CHECK(taken >= 60);
        CHECK((refused > 0) == !rank.device->host());
        rank.shared->value[0] = 1;
        CHECK_OK(ph_signal(pair.channel, pair.stream));
        rank.synchronize(pair.stream);
    } else {
        CHECK(reaches(rank.shared->value[0], 1));
        CHECK_OK(ph_signal(pair.channel, pair.stream));
        CHECK_OK(ph_wait(pair.channel, 0, pair.stream));
        rank.synchronize(pair.stream);
        std::vector<uint8_t> wanted = Pair::pattern(2);
        list.apply(wanted, Pair::pattern(1), pages_each);
        pair.expect(wanted, "lists that were kept");
    }
    rank.barrier();
}

class PagesByIpc : public EveryDevice
{
};
INSTANTIATE_DEVICES(PagesByIpc);

TEST_P(PagesByIpc, ListsAreKeptUntilTheirTurn)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("keeps_many_lists"), "");
}

// The context ends with a list in a queue that nothing lets go.
RANK_FUNCTION(leaves_with_lists)
{
    rank.open({}, 2000);
    Pair pair(rank);
    Numbers none(rank, "", 4);
    const List list = plain_list(100, 4096);
    const ph_pages pages = pages_of(list, true, none, none);
    rank.barrier();
    if (rank.rank == 0) {
        CHECK_OK(ph_wait(pair.channel, 0, pair.stream));
        CHECK_OK(ph_put_pages(pair.channel, &pages, pair.stream));
    }
    rank.barrier();
    ph_context_destroy(&rank.context, 3000);
}

TEST_P(PagesByIpc, TheContextMayEndBeforeThem)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("leaves_with_lists"), "");
}

// ---- operations of many ranges

// A row that lies in two ranges is left out; all others go where the offset over all ranges says.
RANK_FUNCTION(lists_over_ranges)
{
    rank.open();
    const std::vector<size_t> sizes = {4096 * 3, 4096 * 40, 4096, 4096 * 17, 4096 * 8};
    std::vector<ph_range> ranges;
    std::vector<uint64_t> begins;
    uint64_t all = 0;
    for (size_t i = 0; i < sizes.size(); i++) {
        const size_t size = sizes[rank.rank ? i : sizes.size() - 1 - i]; // others at the other end
        ranges.push_back({rank.device->alloc(size), size});
    }
    for (size_t size : sizes) { // of the target, rank 1
        begins.push_back(all);
        all += size;
    }
    ph_operation op = operation(1, !rank.rank, PH_ROLE_BOTH, nullptr, 0);
    op.ranges = ranges.data();
    op.range_count = static_cast<uint32_t>(ranges.size());
    ph_channel *channel = exchange_all(rank, {op})[0];
    void *stream = rank.device->stream();
    const auto pages_all = static_cast<uint32_t>(all / 4096 - 1);
    for (uint64_t shift : {0, 1024}) {
        List list = plain_list(pages_all, 4096);
        list.source.at = {0};
        list.destination.at = {shift};
        for (uint32_t i = 0; i < pages_all; i++)
            list.destination.numbers.push_back((i * 7 + 3) % pages_all);
        Numbers none(rank, "", 4), to(rank, "", 8);
        const ph_pages pages = pages_of(list, true, none, to);
        std::vector<uint8_t> bytes(all);
        uint64_t at = 0;
        for (const ph_range &range : ranges) {
            for (uint64_t i = 0; i < range.size; i++)
                bytes[i] = pattern_byte(static_cast<uint64_t>(rank.rank) + 1, at + i);
            rank.device->write(range.base, bytes.data(), range.size);
            at += range.size;
        }
        const uint64_t before = ph_channel_skipped(channel);
        rank.barrier();
        if (rank.rank == 0) {
            CHECK_OK(ph_put_pages(channel, &pages, stream));
            CHECK_OK(ph_signal(channel, stream));
        } else {
            CHECK_OK(ph_wait(channel, 0, stream));
        }
        rank.synchronize(stream);
        std::vector<uint8_t> wanted(all);
        for (uint64_t i = 0; i < all; i++)
            wanted[i] = pattern_byte(2, i);
        uint64_t crossing = 0;
        for (uint32_t page = 0; page < pages_all; page++) {
            const uint64_t begin = shift + list.destination.numbers[page] * 4096;
            bool crosses = false;
            for (uint64_t edge : begins)
                crosses = crosses || (begin < edge && edge < begin + 4096);
            crossing += crosses;
            for (uint64_t i = 0; !crosses && i < 4096; i++)
                wanted[begin + i] = pattern_byte(1, page * 4096ull + i);
        }
        if (rank.rank == 0) {
            CHECK_EQUAL(ph_channel_skipped(channel) - before, crossing);
            CHECK((crossing > 0) == (shift > 0));
        } else {
            at = 0;
            for (const ph_range &range : ranges) {
                rank.device->read(bytes.data(), range.base, range.size);
                for (uint64_t i = 0; i < range.size; i++)
                    if (bytes[i] != wanted[at + i])
                        rank_failed(__FILE__, __LINE__,
                                    "byte " + std::to_string(at + i) + " of all ranges, pages " +
                                        std::to_string(shift) + " bytes behind");
                at += range.size;
            }
        }
        rank.barrier();
    }
}

TEST_P(PagesByIpc, LieInRangesOfTheirOwn)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("lists_over_ranges"), "");
}

// ---- graphs

// A replay reads the numbers and the count anew.
RANK_FUNCTION(replays_lists)
{
    rank.open();
    Pair pair(rank);
    const uint32_t pages_each = 64;
    List list = plain_list(pages_each, 4096);
    for (uint32_t i = 0; i < pages_each; i++)
        list.source.numbers.push_back(i);
    list.destination.numbers = list.source.numbers;
    Numbers from(rank, "device", 4), to(rank, "pinned", 4);
    ph_pages pages = pages_of(list, true, from, to);
    uint32_t *count = static_cast<uint32_t *>(rank.device->alloc(64));
    pages.count = count;
    void *graph = rank.device->capture(pair.stream, [&] {
        if (rank.rank == 0) {
            CHECK_OK(ph_put_pages(pair.channel, &pages, pair.stream));
            CHECK_OK(ph_signal(pair.channel, pair.stream));
        } else {
            CHECK_OK(ph_wait(pair.channel, 0, pair.stream));
        }
    });
    for (uint32_t round = 0; round < 5; round++) {
        std::mt19937 random(round);
        const uint32_t here = round == 0 ? 0 : static_cast<uint32_t>(random() % 80);
        std::shuffle(list.source.numbers.begin(), list.source.numbers.end(), random);
        std::shuffle(list.destination.numbers.begin(), list.destination.numbers.end(), random);
        from.put(list.source.numbers);
        to.put(list.destination.numbers);
        rank.device->write(count, &here, sizeof here);
        rank.device->fill(pair.buffer, SIZE, 2 * round + static_cast<uint64_t>(rank.rank));
        rank.barrier();
        rank.device->launch(graph, pair.stream);
        rank.synchronize(pair.stream);
        if (rank.rank == 1) {
            std::vector<uint8_t> wanted = Pair::pattern(2 * round + 1);
            list.apply(wanted, Pair::pattern(2 * round), std::min(here, pages_each));
            pair.expect(wanted, "replay " + std::to_string(round));
        }
        rank.barrier();
    }
    rank.device->destroy(graph);
    rank.barrier();
}

TEST_P(PagesOnCuda, AReplayReadsTheNumbersAnew)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("replays_lists"), "");
}

// Numbers that a kernel before the list has written on the same stream.
RANK_FUNCTION(reads_in_order)
{
    rank.open();
    Pair pair(rank);
    List list = plain_list(8, 4096);
    list.source.numbers.assign(8, 0x01010101);
    list.destination.numbers = {0, 1, 2, 3, 4, 5, 6, 7};
    list.source.page_stride = 0;
    Numbers from(rank, "device", 4), to(rank, "", 4);
    ph_pages pages = pages_of(list, true, from, to);
    rank.device->fill(pair.buffer, SIZE, rank.rank + 1);
    rank.barrier();
    if (rank.rank == 0) { // all padding, after a while
        rank.device->slow_fill(pair.stream, const_cast<void *>(pages.local.numbers), 32, 0xff,
                               20000);
        CHECK_OK(ph_put_pages(pair.channel, &pages, pair.stream));
        CHECK_OK(ph_signal(pair.channel, pair.stream));
    } else {
        CHECK_OK(ph_wait(pair.channel, 0, pair.stream));
    }
    rank.synchronize(pair.stream);
    pair.expect(Pair::pattern(rank.rank + 1), "padding that came late");
    rank.barrier();
}

TEST_P(PagesOnCuda, NumbersAreReadInTheOrderOfTheStream)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("reads_in_order"), "");
}

// By the copy engine: numbers of the host's alone.
RANK_FUNCTION(zero_sm_lists)
{
    rank.open();
    uint8_t *buffer = static_cast<uint8_t *>(rank.device->alloc(SIZE));
    ph_operation op = operation(1, !rank.rank, PH_ROLE_BOTH, buffer, SIZE);
    op.flags = PH_ZERO_SM;
    ph_channel *channel = exchange_all(rank, {op})[0];
    void *stream = rank.device->stream();
    List list = plain_list(40, 4096);
    for (uint32_t i = 0; i < 40; i++)
        list.source.numbers.push_back(i * 3 % 50);
    Numbers from(rank, "", 4), there(rank, "device", 4), to(rank, "", 4);
    ph_pages pages = pages_of(list, true, from, to), device = pages_of(list, true, there, to);
    rank.device->fill(buffer, SIZE, rank.rank + 1);
    rank.barrier();
    if (rank.rank == 0) {
        const uint64_t launches = rank.counter("launches");
        CHECK_RC(ph_put_pages(channel, &device, stream), -ENOTSUP);
        CHECK_SAYS(rank.error(), "device memory");
        CHECK_OK(ph_put_pages(channel, &pages, stream));
        rank.synchronize(stream);
        CHECK_EQUAL(rank.counter("launches"), launches);
    }
    rank.barrier();
    if (rank.rank == 1) {
        std::vector<uint8_t> wanted = Pair::pattern(2), now(SIZE);
        list.apply(wanted, Pair::pattern(1), 40);
        rank.device->read(now.data(), buffer, SIZE);
        CHECK(now == wanted);
    }
    rank.barrier();
}

TEST_P(PagesOnCuda, WithoutKernelsTheNumbersAreTheHosts)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("zero_sm_lists"), "");
}
