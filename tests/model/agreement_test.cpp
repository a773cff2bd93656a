// SPDX-License-Identifier: BSD-3-Clause
// The agreement of two ranks in every interleaving, and mutations of its rules, each of which must
// be caught.
#include <gtest/gtest.h>

#include "model/agreement_model.h"

extern "C" {
#include "rules/agreement.h"
}

using namespace model;

static Call one(int number)
{
    return {{0, number}};
}

static Call both(int first, int second)
{
    return {{0, first}, {1, second}};
}

// A alternates x, y; B alternates u, v, w: misses, hits, and buffers that both know but not as a
// pair.
static Plan alternating()
{
    Plan plan;
    plan.calls[0] = {one(1), one(2), one(1), one(2)};
    plan.calls[1] = {one(1), one(2), one(3), one(1)};
    return plan;
}

static Plan same_buffer()
{
    Plan plan;
    plan.calls[0] = {one(1), one(1), one(1)};
    plan.calls[1] = {one(1), one(1), one(1)};
    return plan;
}

// The first round is a miss, the others hits, where each side repeats whatever timed out.
static Plan half_hits()
{
    Plan plan;
    plan.calls[0] = {one(1), one(2), one(1)};
    plan.calls[1] = {one(1), one(1), one(1)};
    return plan;
}

// A miss, a hit, then another buffer: what an exchange that asks again may find is the older one's.
static Plan hit_then_another()
{
    Plan plan;
    plan.calls[0] = {one(1), one(1), one(2)};
    plan.calls[1] = {one(1), one(1), one(1)};
    return plan;
}

// Two keys: one call here, two calls there, and a call of both.
static Plan batches()
{
    Plan plan;
    plan.calls[0] = {both(1, 1), both(1, 1)};
    plan.calls[1] = {one(1), {{1, 1}}, both(1, 1)};
    plan.give_ups = 1;
    return plan;
}

static void expect_right(const Plan &plan)
{
    Outcome outcome = explore(plan);
    EXPECT_TRUE(outcome.ok()) << outcome.failure << " after " << outcome.states << " states\n"
                              << outcome.trace;
    EXPECT_GT(outcome.states, 100u) << "nothing was explored";
    printf("%zu states\n", outcome.states);
}

TEST(Agreement, SameBuffer)
{
    expect_right(same_buffer());
}

TEST(Agreement, AlternatingBuffers)
{
    expect_right(alternating());
}

TEST(Agreement, HalfHits)
{
    expect_right(half_hits());
}

TEST(Agreement, Batches)
{
    expect_right(batches());
}

// A rank that has timed out goes on with another buffer.
TEST(Agreement, NextBufferAfterTimeout)
{
    Plan plan = alternating();
    plan.retry = false;
    expect_right(plan);
}

TEST(Agreement, ManyDeadlinesOneRound)
{
    Plan plan;
    plan.calls[0] = {one(1), one(1)};
    plan.calls[1] = {one(1), one(1)};
    plan.give_ups = 4;
    expect_right(plan);
}

// Questions without an answer close the key until an exchange asks again.
TEST(Agreement, Silence)
{
    Plan plan = same_buffer();
    plan.calls[0].pop_back();
    plan.calls[1].pop_back();
    plan.silences = 1;
    expect_right(plan);
}

TEST(Agreement, SilenceThenNextBuffer)
{
    Plan plan = hit_then_another();
    plan.silences = 1;
    plan.retry = false;
    expect_right(plan);
}

TEST(Agreement, PathFailures)
{
    Plan plan = half_hits();
    plan.path_failures = 1;
    expect_right(plan);
}

TEST(Agreement, PathFailuresInBatches)
{
    Plan plan = batches();
    plan.calls[0].pop_back();
    plan.calls[1].pop_back();
    plan.path_failures = 1;
    expect_right(plan);
}

struct Mutation {
    const char *name;
    Break broken;
};

class Mutations : public testing::TestWithParam<Mutation>
{
};

// Small plans first: most mutations fail in the first round.
static std::vector<Plan> plans_for_mutations()
{
    std::vector<Plan> plans;
    for (int budget = 1; budget <= 2; budget++)
        for (bool retry : {false, true})
            for (Plan plan : {half_hits(), hit_then_another(), alternating(), batches()}) {
                plan.retry = retry;
                plan.give_ups = budget;
                plan.silences = plan.path_failures = budget - 1;
                plan.states_max = 1000000;
                plans.push_back(plan);
            }
    return plans;
}

TEST_P(Mutations, IsCaught)
{
    for (Plan &plan : plans_for_mutations()) {
        plan.broken = GetParam().broken;
        Outcome outcome = explore(plan);
        if (outcome.ok())
            continue;
        printf("%s after %zu states\n", outcome.failure.c_str(), outcome.states);
        return;
    }
    ADD_FAILURE() << GetParam().name << " was not caught";
}

static std::string mutation_name(const testing::TestParamInfo<Mutation> &info)
{
    return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(
    Agreement, Mutations,
    testing::Values(
        Mutation{"NoQuestion", Break::NO_QUESTION}, Mutation{"NoGone", Break::NO_GONE},
        Mutation{"StaleLook", Break::STALE_LOOK}, Mutation{"BitOnly", Break::BIT_ONLY},
        Mutation{"NoRound", Break::NO_ROUND}, Mutation{"OneWord", Break::ONE_WORD},
        Mutation{"AnyAnswer", Break::ANY_ANSWER}, Mutation{"ToldIsOurs", Break::TOLD_IS_OURS},
        Mutation{"AnswerByDone", Break::ANSWER_BY_DONE}, Mutation{"DoneEarly", Break::DONE_EARLY},
        Mutation{"DropOpen", Break::DROP_OPEN}, Mutation{"ConfirmTwice", Break::CONFIRM_TWICE},
        Mutation{"OfferIsRound", Break::OFFER_IS_ROUND}),
    mutation_name);

// What the search does not reach: rounds that wrap, and peers that break the rules.
static phi_agreement published(uint32_t round)
{
    phi_agreement own = {PHI_AGREEMENT_IDLE, round, 0, 0, 0};
    uint64_t word = 0;
    EXPECT_EQ(phi_agreement_publish(&own, 7, &word), PHI_AGREEMENT_STORE);
    EXPECT_EQ(word, phi_agreement_word(round, 7));
    return own;
}

TEST(AgreementRules, RoundsWrap)
{
    phi_agreement own = published(UINT32_MAX);
    EXPECT_EQ(phi_agreement_look(&own, phi_agreement_word(UINT32_MAX - 2, 3)), PHI_AGREEMENT_WAIT);
    EXPECT_FALSE(phi_agreement_answer(&own, UINT32_MAX));
    EXPECT_EQ(phi_agreement_look(&own, phi_agreement_word(UINT32_MAX, 3)), PHI_AGREEMENT_TAKEN);
    EXPECT_EQ(own.theirs, 3u);
    EXPECT_TRUE(phi_agreement_answer(&own, UINT32_MAX));
    phi_agreement_done(&own);
    EXPECT_EQ(own.round, 2u) << "0 is never a round, and 1 has the word of the last";
    EXPECT_TRUE(phi_agreement_answer(&own, UINT32_MAX));
    EXPECT_FALSE(phi_agreement_answer(&own, 2));
}

TEST(AgreementRules, NumbersThatNoBufferHas)
{
    phi_agreement own = published(1);
    EXPECT_EQ(phi_agreement_look(&own, 0), PHI_AGREEMENT_WAIT);
    EXPECT_EQ(phi_agreement_look(&own, phi_agreement_word(1, 0)), PHI_AGREEMENT_WAIT);
    uint64_t gone = phi_agreement_word(1, PHI_AGREEMENT_GONE);
    EXPECT_EQ(phi_agreement_look(&own, gone), PHI_AGREEMENT_WAIT);
}

TEST(AgreementRules, TheFirstRoundIsOne)
{
    phi_agreement own = {};
    uint64_t word = 0;
    EXPECT_FALSE(phi_agreement_answer(&own, 1));
    EXPECT_EQ(phi_agreement_publish(&own, 3, &word), PHI_AGREEMENT_STORE);
    EXPECT_EQ(word, phi_agreement_word(1, 3));
}

TEST(AgreementRules, AnswersThatCannotBe)
{
    phi_agreement own = published(4);
    uint64_t word = 0;
    EXPECT_EQ(phi_agreement_give_up(&own, 0, &word), PHI_AGREEMENT_ASK);
    EXPECT_EQ(word, phi_agreement_word(4, PHI_AGREEMENT_GONE));
    uint32_t attempt = own.attempt;
    EXPECT_EQ(phi_agreement_told(&own, 4, attempt + 1, false, 0), PHI_AGREEMENT_WAIT);
    EXPECT_EQ(phi_agreement_told(&own, 3, attempt, false, 0), PHI_AGREEMENT_WAIT);
    EXPECT_EQ(phi_agreement_told(&own, 4, attempt, true, 0),
              PHI_AGREEMENT_NONSENSE); // shows nothing
    EXPECT_EQ(own.state, uint32_t(PHI_AGREEMENT_ASKING));
    EXPECT_EQ(phi_agreement_told(&own, 4, attempt, false, 0), PHI_AGREEMENT_TIMED_OUT);
    EXPECT_EQ(phi_agreement_told(&own, 4, attempt, true, phi_agreement_word(4, 1)),
              PHI_AGREEMENT_WAIT);
}
