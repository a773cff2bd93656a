// SPDX-License-Identifier: BSD-3-Clause
#include "random/script.h"

#include <algorithm>

// Between what lies in one area: more than a transfer that goes astray by a line reaches.
static const size_t APART = 256;

static size_t area_size(Kind kind, Dice &dice)
{
    // Of a VMM allocation the size is a multiple of its unit.
    return kind == Kind::VMM ? AREA : AREA - dice.below(4096);
}

static void add_areas(const Config &config, Layout &layout, Dice &dice)
{
    for (int rank = 0; rank < config.ranks; rank++) {
        const std::string &device = config.devices[(size_t)rank % config.devices.size()];
        layout.kinds.emplace_back();
        layout.sizes.emplace_back();
        layout.used.emplace_back();
        for (int area = 0; area < AREAS; area++) {
            const Kind kind =
                device == "host" ? Kind::HOST : config.kinds[dice.below(config.kinds.size())];
            layout.kinds.back().push_back(kind);
            layout.sizes.back().push_back(area_size(kind, dice));
            layout.used.back().push_back(dice.below(100));
        }
    }
}

// The buffer of a send begins where its message begins: each has a place of its own.
static End send_end(Layout &layout, int rank, bool large, size_t most, Dice &dice)
{
    const size_t size = large ? most : dice.by_size(512, LARGE);
    const int area = large ? SENDS_AREA : (int)dice.below(SENDS_AREA);
    size_t &used = layout.used[(size_t)rank][(size_t)area];
    size_t low = used + APART + dice.below(64);
    if (dice.chance(50))
        low = (low + 127) / 128 * 128;
    used = low + size + APART;
    return {area, low, size};
}

// Any other buffer is all of an area, or all but some bytes at its ends.
static End data_end(const Layout &layout, int rank, Dice &dice)
{
    const int area = (int)dice.below(SENDS_AREA);
    const size_t all = layout.sizes[(size_t)rank][(size_t)area],
                 low =
                     dice.chance(50) ? 0 : dice.below(layout.used[(size_t)rank][(size_t)area] + 1);
    return {area, low, all - low};
}

static struct ph_limits limits_of(Dice &dice)
{
    static const int64_t ll[] = {0, 64, 1024, 8192, 1 << 18};
    static const int64_t sm[] = {0, 1 << 14, 1 << 20, 64 << 20};
    if (dice.chance(70))
        return {-1, -1};
    return {ll[dice.below(5)], sm[dice.below(4)]};
}

static void add_link(const Config &config, Layout &layout, int a, int b, Link::Use use, bool large,
                     Dice &dice)
{
    Link link = {};
    const size_t most = (AREA - 4096 * 8) / (size_t)(config.ranks - 1) - 2 * APART - 256;
    link.ranks[0] = a;
    link.ranks[1] = b;
    link.use = use;
    link.protocol = dice.chance(50) ? PH_PROTOCOL_PUT : PH_PROTOCOL_GET;
    link.sender = dice.chance(50) ? -1 : link.ranks[dice.below(2)];
    link.limits = limits_of(dice);
    if (use == Link::CONTROL) // whose path is reported: as the context has it
        link.limits = {-1, -1};
    for (int i = 0; i < 2; i++)
        link.ends[i] = use == Link::SEND
                           ? send_end(layout, link.ranks[i], large, std::min(most, LARGEST), dice)
                           : data_end(layout, link.ranks[i], dice);
    layout.links.push_back(link);
}

// The last send of each rank ends with the last byte of its allocation.
static void to_the_end(const Config &config, Layout &layout)
{
    for (int rank = 0; rank < config.ranks; rank++) {
        End *last = nullptr;
        for (Link &link : layout.links)
            if (link.use == Link::SEND && link.has(rank) && link.at(rank).area == SENDS_AREA)
                last = &link.ends[link.ranks[1] == rank];
        if (last != nullptr)
            last->low = layout.sizes[(size_t)rank][SENDS_AREA] - last->size;
    }
}

Layout make_layout(const Config &config, uint64_t seed)
{
    Layout layout;
    Dice dice(mix(seed, 1));
    const int data = config.ranks > 4 ? 1 : 3;
    add_areas(config, layout, dice);
    layout.control.assign((size_t)config.ranks, std::vector<int>((size_t)config.ranks, -1));
    for (int a = 0; a < config.ranks; a++)
        for (int b = a + 1; b < config.ranks; b++)
            for (int large = 0; large < 2; large++)
                add_link(config, layout, a, b, Link::SEND, large, dice);
    to_the_end(config, layout);
    for (int a = 0; a < config.ranks; a++)
        for (int b = a + 1; b < config.ranks; b++) {
            layout.control[(size_t)a][(size_t)b] = layout.control[(size_t)b][(size_t)a] =
                (int)layout.links.size();
            add_link(config, layout, a, b, Link::CONTROL, false, dice);
            for (int i = 0; i < data; i++)
                add_link(config, layout, a, b, Link::DATA, false, dice);
            add_link(config, layout, a, b, Link::UNBOUND, false, dice);
        }
    return layout;
}
