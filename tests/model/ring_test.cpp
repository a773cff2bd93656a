// SPDX-License-Identifier: BSD-3-Clause
// Long messages by a ring of two rows, between two and three ranks: every interleaving on devices
// with few places, what room they need, and what is found when a rule is left out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "model/ring_model.h"

using ring_model::ABORT;
using ring_model::DEATH;
using ring_model::explore;
using ring_model::Job;
using ring_model::Outcome;
using ring_model::Rules;

namespace
{

// ---- jobs

// Rank 0 sends messages of so many units to rank 1.
Job one_way(int places, int hands, int row, const std::vector<int> &units)
{
    Job job;
    job.places = places;
    job.hands = hands;
    job.row = row;
    job.rings = {{0, 1}};
    for (size_t i = 0; i < units.size(); i++) {
        job.messages.push_back({0, units[i]});
        job.ops[0][0].push_back({{int(i)}});
        job.ops[1][0].push_back({{int(i)}});
    }
    return job;
}

// Both send and receive in one group.
Job both_ways(int places, int hands, int units)
{
    Job job;
    job.places = places;
    job.hands = hands;
    job.rings = {{0, 1}, {1, 0}};
    job.messages = {{0, units}, {1, units}};
    job.ops[0][0] = job.ops[1][0] = {{{0, 1}}};
    return job;
}

// Rank 1 names the messages call by call.
Job against_calls(int places, int hands, int units, bool sends_first)
{
    Job job = both_ways(places, hands, units);
    job.ops[1][0] = {{{sends_first}}, {{!sends_first}}};
    return job;
}

// Rank 0 has a message on one stream; on the other one the application computes what rank 1 waits
// for before that.
Job beside_the_application(int places, int hands, bool sends = false)
{
    Job job = both_ways(places, hands, 4);
    if (sends)
        job.rings[1] = {0, 1};
    job.ops[0][0] = {{{1}}};
    job.ops[0][1] = {{{}}, {{0}}};
    job.ops[1][0] = {{{0}}, {{1}}};
    return job;
}

// Each rank sends on one stream and receives on another.
Job on_two_streams(int places, int hands, int units)
{
    Job job = both_ways(places, hands, units);
    for (int rank : {0, 1}) {
        job.ops[rank][0] = {{{!rank}}};
        job.ops[rank][1] = {{{rank}}};
    }
    return job;
}

// A group of three messages, which the other rank names call by call, the last one first.
Job three_of_a_launch(int places)
{
    Job job;
    job.places = places;
    job.hands = 1;
    job.rings = {{0, 1}, {0, 1}, {1, 0}};
    job.messages = {{0, 3}, {1, 3}, {2, 3}};
    job.ops[0][0] = {{{0, 1, 2}}};
    job.ops[1][0] = {{{2}}, {{1}}, {{0}}};
    return job;
}

// Rank 0 has a message on one stream and a group on another. Rank 1 names that message between
// those of the group.
Job beside_a_group(int places)
{
    Job job = both_ways(places, 1, 2);
    job.rings.push_back({0, 1});
    job.messages.push_back({2, 2});
    job.ops[0][1] = {{{2}}};
    job.ops[1][0] = {{{0}}, {{2}}, {{1}}};
    return job;
}

// What follows a group is on the device before that is over.
Job group_and_push()
{
    Job job = both_ways(3, 1, 3);
    job.messages.push_back({0, 2});
    for (auto &rank : job.ops)
        if (!rank[0].empty())
            rank[0].push_back({{2}});
    return job;
}

// Rings that a rank has messages of, as api/group.c orders long ones; else what it sends, then what
// it receives.
std::vector<int> items_of(int rank, int ranks, const std::vector<ring_model::Ring> &rings,
                          bool ordered)
{
    std::vector<int> items;
    for (int i = 0; i < int(rings.size()); i++)
        if (rings[size_t(i)].from == rank || rings[size_t(i)].to == rank)
            items.push_back(i);
    std::stable_sort(items.begin(), items.end(), [&](int a, int b) {
        const auto &x = rings[size_t(a)], &y = rings[size_t(b)];
        if (!ordered)
            return x.from == rank && y.from != rank;
        const int left = (x.from + x.to) % ranks, right = (y.from + y.to) % ranks;
        return left != right ? left < right : (x.from < x.to) < (y.from < y.to);
    });
    return items;
}

// Each of three ranks has a group, in launches of so many.
Job three_ranks(const std::vector<ring_model::Ring> &rings, int units, size_t most, bool ordered)
{
    Job job;
    job.ranks = 3;
    job.hands = 1;
    job.rings = rings;
    for (int i = 0; i < int(rings.size()); i++)
        job.messages.push_back({i, units});
    for (int rank = 0; rank < 3; rank++) {
        const std::vector<int> items = items_of(rank, 3, rings, ordered);
        for (size_t i = 0; i < items.size(); i++) {
            if (i % most == 0)
                job.ops[rank][0].emplace_back();
            job.ops[rank][0].back().items.push_back(items[i]);
        }
    }
    return job;
}

const std::vector<ring_model::Ring> cycle = {{0, 1}, {1, 2}, {2, 0}};
const std::vector<ring_model::Ring> all = {{0, 1}, {1, 0}, {0, 2}, {2, 0}, {1, 2}, {2, 1}};

// ---- what holds

class Ring : public testing::Test
{
  protected:
    void comes(const Job &job)
    {
        const Outcome outcome = explore(job);
        EXPECT_EQ(outcome.wrong, "") << job.places << " places, " << job.hands << " hands, rows of "
                                     << job.row << outcome.trace;
        states_ += outcome.states;
        jobs_++;
    }
    void TearDown() override
    {
        if (jobs_ > 0)
            printf("    %zu states of %d jobs\n", states_, jobs_);
    }

  private:
    size_t states_ = 0;
    int jobs_ = 0;
};

TEST_F(Ring, MessagesOfEverySizeCome)
{
    for (int places : {1, 2, 3})
        for (int hands : {1, 2})
            for (int row : {1, 2})
                for (int units = 2; units <= 7; units++)
                    comes(one_way(places, hands, row, {units}));
    comes(one_way(4, 3, 1, {5}));
}

TEST_F(Ring, MessagesComeInTheirOrder)
{
    for (int places : {1, 2, 3})
        for (int hands : {1, 2})
            for (int row : {1, 2})
                comes(one_way(places, hands, row, {5, 4}));
    comes(one_way(3, 2, 1, {2, 3, 2}));
}

TEST_F(Ring, HandsDrawAhead)
{
    for (Job job : {one_way(2, 2, 1, {5, 4}), one_way(2, 2, 2, {5, 4}), one_way(3, 1, 1, {5, 4}),
                    both_ways(2, 1, 4)}) {
        job.ahead = true;
        comes(job);
    }
}

TEST_F(Ring, BothWaysInOneLaunch)
{
    for (int places : {1, 2})
        for (int hands : {1, 2})
            comes(both_ways(places, hands, 4));
    comes(both_ways(3, 1, 3));
    comes(group_and_push());
}

TEST_F(Ring, AGroupMeetsCallsOneByOne)
{
    for (int places : {1, 2, 3})
        for (int hands : {1, 2})
            for (bool sends_first : {false, true})
                comes(against_calls(places, hands, 4, sends_first));
    comes(three_of_a_launch(3));
}

// Hands of pushes may have every place but that of a lead: it takes.
TEST_F(Ring, OnTwoStreams)
{
    comes(on_two_streams(2, 1, 4));
    comes(on_two_streams(3, 1, 3));
    comes(on_two_streams(2, 2, 4));
}

TEST_F(Ring, TheApplicationGetsItsTurn)
{
    for (int hands : {1, 2})
        for (bool sends : {false, true})
            comes(beside_the_application(2, hands, sends));
    comes(beside_the_application(3, 1));
}

TEST_F(Ring, ThreeRanksInACycle)
{
    comes(three_ranks(cycle, 4, 1, true));
    Job job = three_ranks(cycle, 2, 2, true);
    job.places = 2;
    comes(job);
}

TEST_F(Ring, EachOfThreeRanksWithEach)
{
    comes(three_ranks(all, 3, 1, true));
    Job job = three_ranks(all, 2, 2, true);
    job.places = 2;
    comes(job);
}

// A take that was counted is whole, and one that was not says so.
TEST_F(Ring, WaitsEndWhereAPeerDies)
{
    for (ring_model::Trouble trouble : {ABORT, DEATH})
        for (int hands : {1, 2}) {
            Job job = one_way(2, hands, 1, {4, 3});
            job.trouble = trouble;
            comes(job);
            job = both_ways(2, 1, 4);
            job.trouble = trouble;
            comes(job);
        }
    Job job = three_ranks(cycle, 3, 1, true);
    job.trouble = DEATH;
    comes(job);
}

// ---- what they need

// As by words: two calls are no group.
TEST_F(Ring, BothSendFirst)
{
    Job job = both_ways(4, 1, 4);
    for (int rank : {0, 1})
        job.ops[rank][0] = {{{rank}}, {{!rank}}};
    EXPECT_EQ(explore(job).wrong, "stuck");
}

// Leads wait for their peers, in one place, until hands take that over, each in its own.
TEST_F(Ring, WhatWaitsNeedsPlaces)
{
    EXPECT_EQ(explore(one_way(3, 2, 1, {5, 4})).waiting, 1);
    EXPECT_EQ(explore(on_two_streams(2, 1, 4)).waiting, 1);
    EXPECT_EQ(explore(three_of_a_launch(4)).waiting, 2);
    EXPECT_EQ(explore(on_two_streams(1, 1, 4)).wrong, "stuck");
    EXPECT_EQ(explore(beside_a_group(2)).wrong, "stuck");
    comes(beside_a_group(3));
}

TEST_F(Ring, AGroupAsItIsNamed)
{
    EXPECT_EQ(explore(three_ranks(cycle, 4, 1, false)).wrong, "stuck");
    EXPECT_EQ(explore(three_ranks(all, 3, 2, false)).wrong, "stuck");
}

// ---- what each rule is for

struct Mutation {
    bool Rules::*rule;
    const char *found;
};

void are_found(const Job &job, const std::vector<Mutation> &mutations)
{
    EXPECT_EQ(explore(job).wrong, "");
    for (size_t i = 0; i < mutations.size(); i++) {
        Rules rules;
        rules.*mutations[i].rule = false;
        const Outcome outcome = explore(job, rules);
        EXPECT_EQ(outcome.wrong, mutations[i].found) << "mutation " << i << outcome.trace;
    }
}

const char attended[] = "a hand waits for what may never come";

TEST_F(Ring, WhatIsLeftOutIsFound)
{
    are_found(one_way(3, 2, 1, {5, 4}), {{&Rules::awaits_room, "overwritten"},
                                         {&Rules::awaits_begun, attended},
                                         {&Rules::later_counts, "stuck"},
                                         {&Rules::tells_in_turn, "overwritten"},
                                         {&Rules::follows, attended},
                                         {&Rules::lets_in_late, attended},
                                         {&Rules::awaits_stamp, "overwritten"},
                                         {&Rules::place_of_first, "overwritten"},
                                         {&Rules::stamps_first, "stuck"},
                                         {&Rules::stamp_behind, "overwritten"},
                                         {&Rules::gives_credit, "stuck"},
                                         {&Rules::awaits_first, "pushed, and is not whole"},
                                         {&Rules::puts_back, "taken, and is not whole"},
                                         {&Rules::unposts, attended},
                                         {&Rules::tells_last, "overwritten"}});
    are_found(one_way(2, 2, 2, {7}), {{&Rules::whole_row, "overwritten"}});
}

TEST_F(Ring, WhatIsLeftOutOfALeadIsFound)
{
    are_found(on_two_streams(2, 1, 4), {{&Rules::lead_stays, "stuck"}});
    are_found(both_ways(2, 1, 4), {{&Rules::lead_stays, "pushed, and is not whole"},
                                   {&Rules::awaits_lead, "pushed twice"}});
    are_found(beside_a_group(3), {{&Rules::yields, "stuck"}});
}

TEST_F(Ring, WhatIsLeftOutOfAGroupIsFound)
{
    are_found(both_ways(2, 1, 4), {{&Rules::draws, "taken, and is not whole"},
                                   {&Rules::awaits_first, "pushed, and is not whole"}});
    are_found(against_calls(2, 1, 4, true), {{&Rules::lets_in_late, attended}});
    are_found(beside_the_application(2, 2, true), {{&Rules::leaves, "several blocks wait"}});
    are_found(three_of_a_launch(3), {{&Rules::leaves, "several blocks wait"}});
}

TEST_F(Ring, WhatIsLeftOutAtTheEndIsFound)
{
    Job job = one_way(2, 1, 1, {5, 3});
    job.trouble = ABORT;
    are_found(job, {{&Rules::awaits_begun, "overwritten"},
                    {&Rules::lead_ends_lane, "overwritten"},
                    {&Rules::looks_at_end, "taken as another message"},
                    {&Rules::hand_ends_lane, "taken as another message"},
                    {&Rules::early_ends_lane, "pushed, and is not whole"},
                    {&Rules::mover_ends_lane, "taken, and is not whole"},
                    {&Rules::looks_last, "taken, and is not whole"}});
    job.trouble = DEATH;
    are_found(job, {{&Rules::mover_ends_lane, "taken, and is not whole"}});
}

// Nothing is wrong without these: most are for speed, or leave the device to the application. The
// lead does what no hand does. Who has missed ends the lane, which who leaves last sees, too.
TEST_F(Ring, WhatIsNotNeeded)
{
    Job aborted = one_way(2, 1, 1, {5, 3});
    aborted.trouble = ABORT;
    for (bool Rules::*rule : {&Rules::first_come, &Rules::left_counts, &Rules::relieves,
                              &Rules::holds, &Rules::left_is_seen, &Rules::forgets_hands,
                              &Rules::tells_posted, &Rules::counts_missed}) {
        Rules rules;
        rules.*rule = false;
        for (const Job &job :
             {one_way(2, 2, 1, {5, 4}), both_ways(2, 1, 4), beside_the_application(2, 1), aborted})
            EXPECT_EQ(explore(job, rules).wrong, "");
    }
}

} // namespace
