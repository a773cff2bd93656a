// SPDX-License-Identifier: BSD-3-Clause
// Every interleaving of groups of staged messages (docs/protocols.md, "Staged messages"): ranks
// whose launches do a few steps at the same time, or that are queues of a host, and give lanes more
// records than there are slots; and what is found when a rule is left out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "model/space.h"

namespace
{

const int SLOTS = 2, RANKS = 3, LANES = 3, ITEMS = 3;
const uint8_t OVER = 255; // of an item

struct Rules {
    bool fills_in_order = true;   // by lane, whatever order the group is named in
    bool empties_in_order = true; // likewise
    bool helps = true;
};

// Its place is its number. At most `records` of a message, the same in each group.
struct Lane {
    int from, to, records;
};

struct Rank {
    int items;    // of a launch
    bool host;    // one step after the other, but for helps
    int begun;    // items of something else that the first launch has
    bool apart;   // each record is a step: puts, then a signal
    bool ahead;   // by one group of what it takes
    bool reverse; // names its lanes from the last to the first
};

struct Job {
    std::vector<Lane> lanes;
    std::vector<Rank> ranks;
    int groups;
};

enum Kind { STAGE, UNSTAGE, HELP };
struct Item {
    Kind kind;
    int lane, records;
};
using Launch = std::vector<Item>;
using Program = std::vector<Launch>;

struct State {
    uint8_t launch[RANKS], item[RANKS][ITEMS]; // records that an item of the launch has filled
    uint8_t filled[LANES], emptied[LANES], over[LANES];
    uint8_t pad[3];
};
static_assert(sizeof(State) % 8 == 0, "plain bytes");

// ---- what the library enqueues

std::vector<int> lanes_of(const Job &job, int rank, bool fills, bool in_order)
{
    std::vector<int> all;
    for (size_t i = 0; i < job.lanes.size(); i++)
        if ((fills ? job.lanes[i].from : job.lanes[i].to) == rank)
            all.push_back(int(i));
    if (job.ranks[rank].reverse && !in_order)
        std::reverse(all.begin(), all.end());
    return all;
}

// What goes together is in one launch. A host's queue has no launches, but such an end for its
// helps.
void add(const Rank &rank, Program &program, const Launch &together)
{
    if (program.empty())
        program.emplace_back(size_t(rank.begun), Item{HELP, -1, 0});
    if (program.back().size() + together.size() > size_t(rank.items))
        program.emplace_back();
    program.back().insert(program.back().end(), together.begin(), together.end());
}

// false: it is refused.
bool add_group(const Rules &rules, const Job &job, int r, bool fills, bool empties,
               Program &program)
{
    const Rank &rank = job.ranks[r];
    const std::vector<int> takes = lanes_of(job, r, false, rules.empties_in_order);
    Launch stages, helps;
    bool overfills = false;
    for (int lane : fills ? lanes_of(job, r, true, rules.fills_in_order) : std::vector<int>()) {
        const int records = job.lanes[lane].records;
        overfills = overfills || records > SLOTS;
        for (int i = 0; i < records; i += rank.apart ? 1 : records)
            stages.push_back({STAGE, lane, rank.apart ? 1 : records});
    }
    for (size_t i = 0; empties && overfills && rules.helps && i < takes.size(); i++)
        helps.push_back({HELP, takes[i], 0});
    if (helps.size() >= size_t(rank.items))
        return false;
    for (size_t at = 0, most = size_t(rank.items) - helps.size(); at < stages.size(); at += most) {
        Launch together(stages.begin() + at, stages.begin() + std::min(at + most, stages.size()));
        together.insert(together.end(), helps.begin(), helps.end());
        if (!helps.empty())
            add(rank, program, together);
        for (size_t i = 0; helps.empty() && i < together.size(); i++)
            add(rank, program, {together[i]});
    }
    for (size_t i = 0; empties && i < takes.size(); i++)
        add(rank, program, {{UNSTAGE, takes[i], 0}});
    return true;
}

bool program_of(const Rules &rules, const Job &job, int rank, Program &program)
{
    const int ahead = job.ranks[rank].ahead;
    bool taken = true;
    if (ahead)
        taken = add_group(rules, job, rank, false, true, program);
    for (int i = 0; i < job.groups && taken; i++)
        taken = add_group(rules, job, rank, true, i + ahead < job.groups, program);
    if (!job.ranks[rank].host)
        return taken;
    Program steps;
    for (const Launch &launch : program)
        for (const Item &item : launch)
            if (item.lane >= 0)
                steps.push_back({item});
    program = steps;
    return taken && steps.size() < 200;
}

// ---- what its ranks do

bool may_fill(const State &s, int lane)
{
    return s.filled[lane] - s.emptied[lane] < SLOTS;
}

// Returns whether there was a record; *last: of its message.
bool empty(const Job &job, State &s, int lane, bool *last)
{
    if (s.emptied[lane] == s.filled[lane])
        return false;
    *last = ++s.emptied[lane] % job.lanes[lane].records == 0;
    return true;
}

bool help(const Job &job, State &s, int lane)
{
    bool last = false;
    if (s.over[lane] || !empty(job, s, lane, &last))
        return false;
    s.over[lane] = last;
    return true;
}

bool run(const Job &job, State &s, const Item &item, uint8_t *at, bool staging)
{
    bool last = false;
    switch (item.kind) {
    case STAGE:
        if (!may_fill(s, item.lane))
            return false;
        s.filled[item.lane]++;
        if (++*at == item.records)
            *at = OVER;
        return true;
    case UNSTAGE:
        if (s.over[item.lane])
            s.over[item.lane] = 0, last = true;
        else if (!empty(job, s, item.lane, &last))
            return false;
        if (last)
            *at = OVER;
        return true;
    default:
        if (!s.over[item.lane] && help(job, s, item.lane))
            return true;
        if (!s.over[item.lane] && staging)
            return false;
        *at = OVER;
        return true;
    }
}

// One step of item i of a launch. Those of one lane are the same blocks', one after the other.
bool step(const Job &job, const Launch &launch, State &s, int rank, size_t i)
{
    uint8_t *at = s.item[rank];
    bool staging = false;
    if (at[i] == OVER)
        return false;
    if (launch[i].lane < 0) {
        at[i] = OVER;
        return true;
    }
    for (size_t j = 0; j < launch.size(); j++) {
        staging = staging || (launch[j].kind == STAGE && at[j] != OVER);
        if (j < i && launch[j].lane == launch[i].lane && at[j] != OVER)
            return false;
    }
    return run(job, s, launch[i], &at[i], staging);
}

// One of a host's queue: of the head, or of a help that stands behind it and the steps beside it.
bool step_of_host(const Job &job, const Program &program, State &s, int rank, size_t i)
{
    const size_t head = s.launch[rank];
    const Item &first = program[head][0];
    if (i == 0)
        return run(job, s, first, &s.item[rank][0], false);
    if (first.kind != STAGE || may_fill(s, first.lane))
        return false;
    for (size_t at = head; at <= head + i; at++)
        if (at >= program.size() || program[at][0].kind == UNSTAGE)
            return false;
    return program[head + i][0].kind == HELP && help(job, s, program[head + i][0].lane);
}

bool move(const Job &job, const Program &program, State &s, int rank, size_t i)
{
    if (s.launch[rank] == program.size())
        return false;
    const Launch &launch = program[s.launch[rank]];
    const bool host = job.ranks[rank].host;
    if (!host && i >= launch.size())
        return false;
    if (host ? !step_of_host(job, program, s, rank, i) : !step(job, launch, s, rank, i))
        return false;
    for (size_t j = 0; j < launch.size(); j++)
        if (s.item[rank][j] != OVER)
            return true;
    s.launch[rank]++;
    memset(s.item[rank], 0, ITEMS);
    return true;
}

struct Result {
    int jobs = 0, deadlocks = 0;
};

void explore(const Rules &rules, const Job &job, Result &result)
{
    std::vector<Program> programs(job.ranks.size());
    for (size_t r = 0; r < programs.size(); r++)
        if (!program_of(rules, job, int(r), programs[r]))
            return; // refused
    model::Space<State> space;
    space.add(State{}, 0, 0);
    result.jobs++;
    for (size_t i = 0; i < space.size(); i++) {
        bool moved = false, over = true;
        for (size_t r = 0; r < programs.size(); r++) {
            over = over && space[i].launch[r] == programs[r].size();
            for (size_t item = 0; item < size_t(ITEMS); item++) {
                State next = space[i];
                if (!move(job, programs[r], next, int(r), item))
                    continue;
                moved = true;
                space.add(next, i, 0);
            }
        }
        if (!moved && !over) {
            result.deadlocks++;
            return;
        }
    }
}

// ---- which jobs

std::vector<Rank> kinds_of_ranks()
{
    std::vector<Rank> all;
    for (bool apart : {false, true}) {
        for (int items = 1; items <= ITEMS; items++)
            all.push_back({items, false, 0, apart, false, false});
        all.push_back({ITEMS, true, 0, apart, false, false});
    }
    for (int begun = 1; begun < ITEMS; begun++)
        all.push_back({ITEMS, false, begun, false, false, false});
    return all;
}

// All lanes between `ranks` ranks, each of one record or of more than there are slots.
std::vector<std::vector<Lane>> sets_of_lanes(int ranks, size_t n)
{
    std::vector<std::vector<Lane>> sets = {{}};
    for (size_t i = 0; i < n; i++) {
        std::vector<std::vector<Lane>> longer;
        for (const auto &set : sets)
            for (int from = 0; from < ranks; from++)
                for (int to = 0; to < ranks; to++)
                    for (int records : {1, SLOTS + 1})
                        if (from != to) {
                            longer.push_back(set);
                            longer.back().push_back({from, to, records});
                        }
        sets = longer;
    }
    return sets;
}

// Up to the first deadlock.
Result explore_pairs(const Rules &rules)
{
    Result result;
    for (const auto &lanes : sets_of_lanes(2, LANES))
        for (const Rank &a : kinds_of_ranks())
            for (const Rank &b : kinds_of_ranks())
                for (bool ahead : {false, true}) {
                    Job job = {lanes, {a, b}, ahead ? 2 : 1};
                    job.ranks[1].ahead = ahead;
                    job.ranks[1].reverse = true;
                    if (result.deadlocks == 0)
                        explore(rules, job, result);
                }
    return result;
}

Result explore_triples(const Rules &rules)
{
    const Rank device = {2, false, 0, false, false, false};
    const Rank host = {ITEMS, true, 0, false, false, false};
    Result result;
    for (const auto &lanes : sets_of_lanes(3, LANES))
        for (int hosts = 0; hosts < 1 << RANKS; hosts++) {
            Job job = {lanes, {}, 1};
            for (int r = 0; r < RANKS; r++) {
                job.ranks.push_back(hosts >> r & 1 ? host : device);
                job.ranks.back().reverse = r == 1;
            }
            if (result.deadlocks == 0)
                explore(rules, job, result);
        }
    return result;
}

TEST(StagedGroups, MatchingGroupsEnd)
{
    const Result pairs = explore_pairs({}), triples = explore_triples({});
    EXPECT_EQ(pairs.deadlocks, 0);
    EXPECT_GT(pairs.jobs, 1000);
    EXPECT_EQ(triples.deadlocks, 0);
    EXPECT_GT(triples.jobs, 1000);
}

TEST(StagedGroups, FindsWhatIsLeftOut)
{
    EXPECT_GT(explore_pairs({.fills_in_order = false, .empties_in_order = false}).deadlocks, 0);
    EXPECT_GT(explore_pairs({.fills_in_order = false}).deadlocks, 0);
    EXPECT_GT(explore_pairs({.empties_in_order = false}).deadlocks, 0);
    EXPECT_GT(explore_triples({.fills_in_order = false}).deadlocks, 0);
    EXPECT_GT(explore_triples({.empties_in_order = false}).deadlocks, 0);
    EXPECT_GT(explore_pairs({.helps = false}).deadlocks, 0);
}

} // namespace
