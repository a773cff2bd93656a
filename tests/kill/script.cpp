// SPDX-License-Identifier: BSD-3-Clause
#include "kill/script.h"

#include <algorithm>
#include <cstring>

namespace kill_rounds
{

const char *name_of(Kind kind)
{
    const char *const names[] = {"exchange", "send",  "put_signal", "put",     "get",
                                 "group",    "graph", "release",    "unbound", "end"};
    return names[static_cast<int>(kind)];
}

std::string describe(const Step &step)
{
    bool all = step.kind == Kind::EXCHANGE || step.kind == Kind::GROUP;
    std::string text = name_of(step.kind);
    if (all)
        text += " of members " + std::to_string(step.members);
    else if (step.kind == Kind::RELEASE)
        text += " by " + std::to_string(step.sender);
    else
        text += " " + std::to_string(step.sender) + " to " + std::to_string(step.receiver) +
                ", channel " + std::to_string(step.variant);
    for (size_t size : step.unbound)
        text += ", unbound " + std::to_string(size);
    text += step.mismatch ? ", mismatch" : "";
    text += step.protocol == PH_PROTOCOL_GET ? ", get" : "";
    text += step.fresh[0] ? ", sender's fresh" : "";
    text += step.fresh[1] ? ", receiver's fresh" : "";
    return text + (step.deferred ? ", deferred" : "");
}

static std::vector<int> ranks_of(uint32_t members)
{
    std::vector<int> ranks;
    for (int rank = 0; rank < 32; rank++)
        if (members >> rank & 1)
            ranks.push_back(rank);
    return ranks;
}

// So large that messages have several parts, and that a group's fit into a player's room; so few
// that a staged group waits for no more than it may.
static std::vector<size_t> make_unbound(Random &random, const Step &step)
{
    const size_t peers = static_cast<size_t>(__builtin_popcount(step.members)) - 1;
    const size_t most = std::min<size_t>(UNBOUND_MOST, (4 << 20) / peers);
    std::vector<size_t> sizes(1 + random.below(peers > 2 ? 1 : 3));
    for (size_t &size : sizes)
        size = random.below(random.chance(50) ? 200 : most);
    return sizes;
}

static Step make_step(Random &random, const std::vector<int> &ranks)
{
    const Kind kinds[] = {Kind::EXCHANGE,   Kind::SEND,  Kind::SEND,    Kind::SEND,
                          Kind::PUT_SIGNAL, Kind::PUT,   Kind::GET,     Kind::GROUP,
                          Kind::GROUP,      Kind::GRAPH, Kind::RELEASE, Kind::UNBOUND,
                          Kind::UNBOUND,    Kind::END};
    Step step = {};
    step.kind = kinds[random.below(sizeof kinds / sizeof kinds[0])];
    size_t first = random.below(ranks.size());
    size_t second = (first + 1 + random.below(ranks.size() - 1)) % ranks.size();
    step.sender = ranks[first];
    step.receiver = ranks[second];
    step.members = 1u << step.sender | 1u << step.receiver;
    if (step.kind == Kind::EXCHANGE || step.kind == Kind::GROUP)
        for (int rank : ranks)
            step.members |= random.chance(70) ? 1u << rank : 0;
    if (step.kind == Kind::RELEASE)
        step.members = 1u << step.sender;
    step.variant = static_cast<int>(random.below(VARIANTS));
    step.protocol = random.chance(50) ? PH_PROTOCOL_PUT : PH_PROTOCOL_GET;
    step.size = random.chance(50) ? 1 + random.below(200) : 1 + random.below(MESSAGE_MOST);
    step.fresh[0] = random.chance(20);
    step.fresh[1] = random.chance(20);
    step.deferred = random.chance(40);
    step.halves = random.chance(70);
    step.deadline_ms = random.chance(30) ? 20 + static_cast<int64_t>(random.below(100)) : LONG_MS;
    step.replays = 1 + static_cast<int>(random.below(4));
    const bool some = step.kind == Kind::GROUP || step.kind == Kind::GRAPH;
    if (step.kind == Kind::UNBOUND || step.kind == Kind::END || (some && random.chance(40)))
        step.unbound = make_unbound(random, step);
    step.mismatch = step.kind == Kind::END && random.chance(30);
    return step;
}

std::vector<Step> make_script(uint64_t seed, int ranks, uint32_t members)
{
    Random random(seed);
    std::vector<int> present = ranks_of(members);
    std::vector<Step> steps;
    size_t n = 4 + random.below(6 + 2 * static_cast<uint64_t>(ranks));
    while (present.size() > 1 && steps.size() < n)
        steps.push_back(make_step(random, present));
    return steps;
}

struct Cell {
    uint32_t magic, index;
    uint16_t sender, receiver;
    uint32_t size;
    uint64_t sequence;
};

static const uint32_t MAGIC = 0x6c6c696b;

std::vector<uint8_t> make_message(int sender, int receiver, uint64_t sequence, size_t size)
{
    std::vector<uint8_t> bytes(size);
    Cell cell = {MAGIC,
                 0,
                 static_cast<uint16_t>(sender),
                 static_cast<uint16_t>(receiver),
                 static_cast<uint32_t>(size),
                 sequence};
    for (size_t at = 0; at < size; at += sizeof cell, cell.index++)
        memcpy(&bytes[at], &cell, std::min(sizeof cell, size - at));
    return bytes;
}

static std::string describe(const Cell &cell)
{
    if (cell.magic != MAGIC)
        return "no message";
    return "message " + std::to_string(cell.sequence) + " of rank " + std::to_string(cell.sender) +
           " to rank " + std::to_string(cell.receiver) + ", " + std::to_string(cell.size) +
           " bytes";
}

std::string describe_difference(const std::vector<uint8_t> &found,
                                const std::vector<uint8_t> &wanted)
{
    size_t at = 0;
    while (at < wanted.size() && found[at] == wanted[at])
        at++;
    if (at == wanted.size())
        return "";
    Cell there = {}, expected = {};
    size_t begin = at / sizeof(Cell) * sizeof(Cell);
    size_t size = std::min(sizeof(Cell), wanted.size() - begin);
    memcpy(&there, &found[begin], size);
    memcpy(&expected, &wanted[begin], size);
    return "byte " + std::to_string(at) + " is of " + describe(there) + ", not of " +
           describe(expected);
}

} // namespace kill_rounds
