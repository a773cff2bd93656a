// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <set>

#include <gtest/gtest.h>

extern "C" {
#include <peerhop/error.h>

#include "rules/outcomes.h"
}

namespace
{

const phi_reason outcomes[] = {PHI_REASON_NONE, PHI_REASON_PEER_ACCESS, PHI_REASON_IMPORT};

phi_outcomes both(phi_reason mine, phi_reason theirs)
{
    phi_outcomes o = {};
    phi_outcomes_try(&o, mine);
    EXPECT_EQ(phi_outcomes_file(&o, static_cast<uint64_t>(theirs) + 1), 0);
    return o;
}

TEST(AttemptRules, BothDecideAlikeWhateverTheOutcomes)
{
    for (phi_reason a : outcomes) {
        for (phi_reason b : outcomes) {
            const phi_outcomes here = both(a, b), there = both(b, a);
            const phi_reason why = phi_outcomes_against(&here);
            EXPECT_EQ(why == PHI_REASON_NONE, a == PHI_REASON_NONE && b == PHI_REASON_NONE);
            EXPECT_EQ(why == PHI_REASON_NONE, phi_outcomes_against(&there) == PHI_REASON_NONE);
            // The own reason comes first; else it says that it is the other's.
            const phi_reason there_why = b == PHI_REASON_IMPORT        ? PHI_REASON_IMPORT_THERE
                                         : b == PHI_REASON_PEER_ACCESS ? PHI_REASON_ACCESS_THERE
                                                                       : PHI_REASON_NONE;
            EXPECT_EQ(why, a != PHI_REASON_NONE ? a : there_why);
        }
    }
}

TEST(AttemptRules, NothingIsDecidedByOneOutcome)
{
    for (phi_reason one : outcomes) {
        phi_outcomes mine = {}, theirs = {};
        phi_outcomes_try(&mine, one);
        EXPECT_EQ(phi_outcomes_file(&theirs, static_cast<uint64_t>(one) + 1), 0);
        for (const phi_outcomes *o : {&mine, &theirs}) {
            EXPECT_FALSE(phi_outcomes_settled(o));
            EXPECT_EQ(phi_outcomes_against(o), PHI_REASON_NONE);
        }
        EXPECT_EQ(phi_outcomes_word(&mine), static_cast<uint64_t>(one) + 1);
        EXPECT_EQ(phi_outcomes_word(&theirs), 0u);
    }
}

TEST(AttemptRules, AnOutcomeStaysWhatItWas)
{
    for (phi_reason first : outcomes) {
        for (phi_reason later : outcomes) {
            phi_outcomes o = both(first, first);
            phi_outcomes_try(&o, later);
            EXPECT_EQ(phi_outcomes_file(&o, static_cast<uint64_t>(later) + 1), 0);
            EXPECT_EQ(phi_outcomes_file(&o, 0), 0); // as if it were not told
            EXPECT_EQ(o.mine, first);
            EXPECT_EQ(o.theirs, first);
            EXPECT_TRUE(phi_outcomes_settled(&o));
        }
    }
}

TEST(AttemptRules, NoOtherWordIsTaken)
{
    std::set<uint64_t> known;
    for (phi_reason one : outcomes)
        known.insert(static_cast<uint64_t>(one) + 1);
    for (uint64_t word = 1; word != 0; word = word < 300 ? word + 1 : word << 1) {
        for (uint64_t w : {word, ~word, word << 32 | 1}) {
            phi_outcomes o = {};
            EXPECT_EQ(phi_outcomes_file(&o, w), known.count(w) ? 0 : -EBADMSG) << w;
            EXPECT_EQ(o.told, known.count(w) != 0) << w;
        }
    }
}

TEST(AttemptRules, OnlyWhatSpeaksAgainstTheTwoIsAnOutcome)
{
    for (int rc = 0; rc > -6000; rc--) {
        const phi_reason outcome = phi_outcome_of(rc);
        const bool refused = rc == PH_EDRIVER || rc == -ENODEV;
        EXPECT_EQ(outcome, rc == -EXDEV ? PHI_REASON_PEER_ACCESS
                           : refused    ? PHI_REASON_IMPORT
                                        : PHI_REASON_NONE)
            << rc;
        phi_outcomes o = both(outcome, outcome); // all of them can be told
        EXPECT_TRUE(phi_outcomes_settled(&o));
    }
}

} // namespace
