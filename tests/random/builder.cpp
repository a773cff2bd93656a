// SPDX-License-Identifier: BSD-3-Clause
#include "random/builder.h"

#include <algorithm>
#include <cstdlib>

static const size_t GUARD = 64;

Builder::Builder(const Config &config_, const Layout &layout_, uint64_t seed)
    : config(config_), layout(layout_), mix(config_.mix), dice(::mix(seed, 2)),
      sent(layout_.links.size(), false)
{
    const auto ranks = (size_t)config.ranks;
    script_.parts.resize(ranks);
    next_ = layout.used;
    room_ = layout.sizes;
    all_room_.assign(ranks, ROUND_BYTES - ((size_t)2 << 20));
    stream_of_.assign(ranks, std::vector<int>(layout.links.size(), 0));
    for (size_t rank = 0; rank < ranks; rank++)
        for (int area = 0; area < SENDS_AREA; area++) {
            size_t &next = next_[rank][(size_t)area];
            script_.parts[rank].extents.push_back({area, next, next, 0, {}});
            next += GUARD;
            room_[rank][(size_t)area] -= next + ((size_t)2 << 20);
        }
    script_.repetitions = (int)dice.between(1, mix.repetitions);
}

// ---- who

int Builder::other_rank(int rank)
{
    return (rank + 1 + (int)dice.below((size_t)config.ranks - 1)) % config.ranks;
}

int Builder::data_link(int a, int b)
{
    const int control = layout.control[(size_t)a][(size_t)b];
    int n = 0; // the pair's links for data stand behind that
    while ((size_t)(control + 1 + n) < layout.links.size() &&
           layout.links[(size_t)(control + 1 + n)].use == Link::DATA)
        n++;
    return control + 1 + (int)dice.below((size_t)n);
}

// Behind those for data.
int Builder::unbound_link(int a, int b) const
{
    int link = layout.control[(size_t)a][(size_t)b];
    while (layout.links[(size_t)link].use != Link::UNBOUND)
        link++;
    return link;
}

void Builder::begin_transaction(const char *what, int from, int to, int link, bool grouped)
{
    script_.transactions.push_back({what, from, to, link, grouped});
}

// ---- bytes

size_t Builder::room(int rank, int area) const
{
    const size_t here = room_[(size_t)rank][(size_t)area], all = all_room_[(size_t)rank];
    const size_t least = std::min(here, all);
    return least < (size_t)1 << 17 ? 0 : least - ((size_t)1 << 17);
}

void Builder::spend_room(int rank, int area, size_t size)
{
    for (size_t *left : {&room_[(size_t)rank][(size_t)area], &all_room_[(size_t)rank]})
        *left -= std::min(*left, size + 512);
}

size_t Builder::small_size()
{
    static const struct {
        unsigned percent;
        size_t low, high;
    } classes[] = {{2, 0, 0}, {18, 1, 16}, {30, 16, 256}, {32, 256, 4096}, {12, 4096, 16384}};
    size_t turn = dice.below(100);
    for (const auto &one : classes) {
        if (turn < one.percent)
            return one.high == 0 ? 0 : dice.by_size(one.low, one.high);
        turn -= one.percent;
    }
    return dice.by_size(16384, LARGE);
}

size_t Builder::size_for(int from, const End &source, int to, const End &target, size_t cap)
{
    const size_t most = std::min({room(from, source.area), room(to, target.area), cap});
    size_t size = small_size();
    if (large_ > 0 && most > LARGE * 2 && dice.chance(50)) {
        size = dice.by_size(LARGE + 1, most);
        large_--;
    }
    size = std::min(size, most);
    return reserve(from, source, to, target, size) ? size : 0;
}

bool Builder::reserve(int from, const End &source, int to, const End &target, size_t size)
{
    if (size > 0 && (room(from, source.area) < size || room(to, target.area) < size))
        return false;
    spend_room(from, source.area, size);
    spend_room(to, target.area, size);
    return true;
}

size_t Builder::size_of_send(int from, int to, const Link &link)
{
    return size_for(from, link.at(from), to, link.at(to),
                    std::min(link.ends[0].size, link.ends[1].size));
}

Region Builder::open(int rank, int area)
{
    size_t &next = next_[(size_t)rank][(size_t)area];
    next += 1 + dice.below(40);
    const auto &cells = script_.parts[(size_t)rank].extents[(size_t)area].cells;
    return {rank, area, area, cells.size(), 0};
}

// The offset of the bytes that are added. Between two of a region lie guards, which are cells, too.
size_t Builder::add(Region &region, size_t size, Fill first, Fill told, uint32_t data)
{
    static const size_t alignments[] = {1, 1, 8, 16, 16, 16, 128, 4096};
    size_t &next = next_[(size_t)region.rank][(size_t)region.area];
    auto &cells = script_.parts[(size_t)region.rank].extents[(size_t)region.extent].cells;
    const size_t alignment = alignments[dice.below(8)];
    size_t offset = region.count == 0 ? next : next + dice.below(20);
    offset = (offset + alignment - 1) / alignment * alignment;
    const auto transaction = (uint32_t)script_.transactions.size() - 1;
    if (region.count > 0 && offset > next) {
        cells.push_back(
            {next, offset - next, Fill::POISON, Fill::POISON, Fill::POISON, 0, transaction});
        region.count++;
    }
    cells.push_back({offset, size, first, told, told, data, transaction});
    region.count++;
    next = offset + size;
    return offset;
}

Region Builder::single(int rank, const End &end, size_t size, Fill first, Fill told, uint32_t data)
{
    Part &part = script_.parts[(size_t)rank];
    const auto transaction = (uint32_t)script_.transactions.size() - 1;
    const size_t low = end.low - std::min(end.low, GUARD),
                 high =
                     std::min(end.low + size + GUARD, layout.sizes[(size_t)rank][(size_t)end.area]);
    part.extents.push_back(
        {end.area, low, high, 0, {{end.low, size, first, told, told, data, transaction}}});
    return {rank, end.area, (int)part.extents.size() - 1, 0, 1};
}

// ---- steps

int Builder::pick_stream()
{
    return (int)dice.below((size_t)streams_);
}

void Builder::use(int rank, int link, int stream)
{
    int &now = stream_of_[(size_t)rank][(size_t)link];
    if (now == stream)
        return;
    Step order = {Call::ORDER};
    order.stream = (uint8_t)stream;
    order.other = (uint8_t)now;
    step(rank, order);
    now = stream;
}

void Builder::step(int rank, const Step &one)
{
    script_.parts[(size_t)rank].steps.push_back(one);
}

void Builder::count(Part &part, size_t size)
{
    part.operations++;
    operations_++;
    part.bytes += size;
    (size > LARGE ? part.large_bytes : small_) += size;
}

void Builder::call(int rank, int stream, Call which, int link, size_t size)
{
    Step one = {which};
    one.stream = (uint8_t)stream;
    one.link = link;
    one.size = size;
    step(rank, one);
    count(script_.parts[(size_t)rank], which == Call::SEND ? size : 0);
}

size_t Builder::remote(int rank, int link, size_t offset) const
{
    return offset - layout.links[(size_t)link].at(rank).low;
}

Member Builder::member(const Message &m, bool signals) const
{
    const size_t source = remote(m.from, m.link, m.source), target = remote(m.to, m.link, m.target);
    if (m.get)
        return {PH_GROUP_GET, m.link, source, target, m.size};
    return {signals ? PH_GROUP_PUT_SIGNAL : PH_GROUP_PUT, m.link, target, source, m.size};
}

Member Builder::unbound_member(int rank, const Message &m) const
{
    const bool sends = rank == m.from;
    return {
        sends ? PH_GROUP_SEND : PH_GROUP_RECV, m.link, 0,
        sends ? m.source : m.target,           m.size, layout.links[(size_t)m.link].at(rank).area};
}

void Builder::pass(int rank, int stream, const Message &message)
{
    const Member same = unbound_member(rank, message);
    const bool sends = rank == message.from;
    Step one = {sends ? Call::SEND_FROM : Call::RECV_INTO};
    one.stream = (uint8_t)stream;
    one.link = message.link;
    one.area = same.area;
    one.local_offset = same.local_offset;
    one.size = message.size;
    step(rank, one);
    count(script_.parts[(size_t)rank], sends ? message.size : 0);
}

void Builder::copy(int rank, int stream, const Message &message, bool signals)
{
    const Member same = member(message, signals);
    Step one = {message.get ? Call::GET : signals ? Call::PUT_SIGNAL : Call::PUT};
    one.stream = (uint8_t)stream;
    one.link = message.link;
    one.peer_offset = same.peer_offset;
    one.local_offset = same.local_offset;
    one.size = message.size;
    step(rank, one);
    count(script_.parts[(size_t)rank], message.size);
}

void Builder::copy_between(int rank, int stream, int to, size_t to_offset, int from,
                           size_t from_offset, size_t size)
{
    Step one = {Call::COPY};
    one.stream = (uint8_t)stream;
    one.link = to;
    one.from = from;
    one.peer_offset = to_offset;
    one.local_offset = from_offset;
    one.size = size;
    step(rank, one);
    count(script_.parts[(size_t)rank], size);
}

void Builder::group(int rank, int stream, const std::vector<Member> &members)
{
    Part &part = script_.parts[(size_t)rank];
    Step one = {Call::GROUP};
    one.stream = (uint8_t)stream;
    one.first = part.members.size();
    one.count = members.size();
    for (const Member &each : members) {
        part.members.push_back(each);
        count(part, each.kind == PH_GROUP_WAIT || each.kind == PH_GROUP_RECV ? 0 : each.size);
    }
    step(rank, one);
}

static size_t low_of(const Extent &extent, const Region &region)
{
    return extent.cells[region.first].offset;
}

static size_t size_of(const Extent &extent, const Region &region)
{
    const Cell &last = extent.cells[region.first + region.count - 1];
    return last.offset + last.size - low_of(extent, region);
}

void Builder::snapshot(int rank, int stream, const Region &region)
{
    Part &part = script_.parts[(size_t)rank];
    if (region.count == 0)
        return;
    const Extent &extent = part.extents[(size_t)region.extent];
    const size_t low = low_of(extent, region), size = size_of(extent, region);
    Step one = {Call::SNAPSHOT};
    one.stream = (uint8_t)stream;
    one.area = region.area;
    one.first = part.snapshots.size();
    step(rank, one);
    part.snapshots.push_back(
        {region.area, low, size, part.snapshots_size, region.extent, region.first, region.count});
    part.snapshots_size += (size + 127) / 64 * 64;
}

void Builder::fill(int rank, int stream, const Region &region, Fill with)
{
    if (region.count == 0)
        return;
    Extent &extent = script_.parts[(size_t)rank].extents[(size_t)region.extent];
    Step one = {Call::FILL};
    one.stream = (uint8_t)stream;
    one.other = with == Fill::KILLED ? KILLED_BYTE : SPENT_BYTE;
    one.area = region.area;
    one.local_offset = low_of(extent, region);
    one.size = size_of(extent, region);
    for (size_t i = 0; i < region.count; i++)
        extent.cells[region.first + i].last = with;
    if (one.size > 0)
        step(rank, one);
}

void Builder::take(int rank, int stream, const Region &region)
{
    snapshot(rank, stream, region);
    if (dice.chance(80))
        fill(rank, stream, region, Fill::KILLED);
}

void Builder::spend(int rank, int stream, const Region &region)
{
    if (dice.chance(70))
        fill(rank, stream, region, Fill::SPENT);
}

// ---- segments

void Builder::begin_segment(bool meets)
{
    streams_ = dice.chance(mix.several) ? (int)dice.between(2, STREAMS) : 1;
    for (size_t rank = 0; rank < script_.parts.size(); rank++) {
        Part &part = script_.parts[rank];
        const bool captured = dice.chance(mix.captured) && (streams_ == 1 || mix.branches);
        part.segments.push_back({part.steps.size(), 0, captured, (uint8_t)streams_});
        stream_of_[rank].assign(layout.links.size(), 0);
    }
    if (meets)
        meet("begin");
    for (int rank = 0; rank < config.ranks && streams_ > 1; rank++)
        step(rank, {Call::FORK});
}

void Builder::end_segment(bool meets)
{
    for (int rank = 0; rank < config.ranks && streams_ > 1; rank++)
        step(rank, {Call::JOIN});
    streams_ = 1;
    if (meets)
        meet("end");
    for (Part &part : script_.parts)
        part.segments.back().count = part.steps.size() - part.segments.back().first;
}

void Builder::meet(const char *what)
{
    begin_transaction(what, -1, -1, -1, true);
    for (int rank = 0; rank < config.ranks; rank++) {
        std::vector<Member> members;
        for (int peer = 0; peer < config.ranks; peer++) {
            const int link = layout.control[(size_t)rank][(size_t)peer];
            if (peer == rank)
                continue;
            use(rank, link, 0);
            members.push_back({PH_GROUP_SIGNAL, link, 0, 0, 0});
            members.push_back({PH_GROUP_WAIT, link, 0, 0, 0});
        }
        group(rank, 0, members);
    }
}

Script Builder::finish()
{
    size_t most = 1;
    for (size_t rank = 0; rank < script_.parts.size(); rank++) {
        Part &part = script_.parts[rank];
        for (int area = 0; area < SENDS_AREA; area++)
            part.extents[(size_t)area].high = next_[rank][(size_t)area] + GUARD;
        for (Extent &extent : part.extents) {
            extent.image = part.image_size;
            part.image_size += (extent.high - extent.low + 127) / 64 * 64;
        }
        most = std::max({most, part.image_size, part.snapshots_size});
    }
    if (most > ROUND_BYTES)
        abort(); // room() is wrong
    script_.repetitions = std::clamp((int)(ROUND_BYTES / most), 1, script_.repetitions);
    return std::move(script_);
}

// Of large messages there are so many that about as many bytes are in them as in all others. The
// mean is that of their sizes, by halves of the powers of two.
static int large_messages(Builder &builder)
{
    const uint64_t mean = (uint64_t)5 << 20;
    const uint64_t wanted = builder.small_bytes() * builder.mix.large / 100;
    return (int)(wanted / mean) + builder.dice.chance((size_t)(wanted % mean * 100 / mean));
}

Script make_script(const Config &config, const Layout &layout, uint64_t seed)
{
    Builder builder(config, layout, seed);
    const int segments = (int)builder.dice.between(1, 3);
    for (int i = 0; i < segments; i++) {
        const uint64_t until = config.mix.operations * (uint64_t)(i + 1) / (uint64_t)segments;
        builder.begin_segment(i == 0);
        while (builder.operations() < until)
            add_transaction(builder);
        if (i == segments - 1) {
            builder.want_large(large_messages(builder));
            for (int turn = 0; builder.large_wanted() > 0 && turn < 20; turn++)
                add_transaction(builder);
        }
        builder.end_segment(i == segments - 1);
    }
    return builder.finish();
}
