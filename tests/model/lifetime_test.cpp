// SPDX-License-Identifier: BSD-3-Clause
// How buffers and channels end, in every interleaving; and with each rule taken out, which must be
// found.
#include <cstdio>

#include <gtest/gtest.h>

#include "model/lifetime_model.h"

using namespace model;

static void expect_right(const LifetimeOutcome &outcome)
{
    EXPECT_EQ(outcome.failure, "") << outcome.trace;
    printf("%zu states\n", outcome.states);
}

static void expect_found(const LifetimeOutcome &outcome, const std::string &failure)
{
    EXPECT_EQ(outcome.failure, failure) << outcome.trace;
}

TEST(Release, IsRight)
{
    LifetimeOutcome outcome = explore_release(ReleaseBreak::NOTHING);
    expect_right(outcome);
    EXPECT_GT(outcome.states, 300u);
}

TEST(Release, EachRuleIsNeeded)
{
    const std::string reused = "a copy into a buffer that was reused";
    const std::string mapped = "is being mapped after it was freed";
    expect_found(explore_release(ReleaseBreak::LOOKS_FIRST), reused);
    expect_found(explore_release(ReleaseBreak::NEVER_LOOKS), reused);
    expect_found(explore_release(ReleaseBreak::KEEPS_NUMBER), "a release that never ends");
    expect_found(explore_release(ReleaseBreak::DRAINS_FIRST), reused);
    expect_found(explore_release(ReleaseBreak::IGNORES_GRAPHS), reused);
    expect_found(explore_release(ReleaseBreak::IGNORES_THE_WORD), mapped);
    expect_found(explore_release(ReleaseBreak::WORD_LAST), mapped);
    expect_found(explore_release(ReleaseBreak::IGNORES_IMPORTING), mapped);
    expect_found(explore_release(ReleaseBreak::CLOSES_UNDRAINED),
                 "a copy through what is not mapped");
}

TEST(Retire, IsRight)
{
    for (bool both : {false, true})
        for (int exchanges : {1, 2, 3, 5})
            expect_right(explore_retire(RetireBreak::NOTHING, both, exchanges));
}

TEST(Spent, IsRight)
{
    for (int releaser : {0, 1})
        for (int exchanges : {1, 2, 3, 5})
            expect_right(explore_spent(RetireBreak::NOTHING, releaser, exchanges));
}

TEST(Spent, EachRuleIsNeeded)
{
    const std::string differ = "one round is a hit here and a miss there";
    for (int releaser : {0, 1}) {
        SCOPED_TRACE(releaser);
        expect_found(explore_spent(RetireBreak::ANY_ROUND, releaser, 3), differ);
        expect_found(explore_spent(RetireBreak::IN_THE_ROUND, releaser, 3), differ);
        expect_found(explore_spent(RetireBreak::STILL_PUBLISHED, releaser, 3), differ);
        expect_found(explore_spent(RetireBreak::UNRELEASED, releaser, 3), differ);
        expect_found(explore_spent(RetireBreak::REUSES_AT_ONCE, releaser, 3),
                     "the line goes on while the peer has the channel");
    }
}

TEST(Retire, EachRuleIsNeeded)
{
    const std::string differ = "one round is a hit here and a miss there";
    for (bool both : {false, true}) {
        expect_found(explore_retire(RetireBreak::ANY_ROUND, both, 3), differ);
        expect_found(explore_retire(RetireBreak::ANY_HANDLE, both, 3),
                     "a channel that the application holds is gone");
        expect_found(explore_retire(RetireBreak::IN_THE_ROUND, both, 3), differ);
        expect_found(explore_retire(RetireBreak::PUBLISHES, both, 3), differ);
        expect_found(explore_retire(RetireBreak::ASKS_PUBLISHED, both, 3), differ);
        expect_found(explore_retire(RetireBreak::REUSES_AT_ONCE, both, 3),
                     "the line goes on while the peer has the channel");
    }
}
