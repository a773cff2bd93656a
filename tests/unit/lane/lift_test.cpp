// SPDX-License-Identifier: BSD-3-Clause
// Waits that are let go: what either end of a channel finds in the words that both look at.
#include "support/atomic_compat.h"

#include <gtest/gtest.h>

extern "C" {
#include "lane/lift.h"
#include "peer/channel.h"
#include "semaphore/words.h"
}

namespace
{

// Both ends of a channel by which messages are put, in one process.
class Ends
{
  public:
    Ends()
    {
        for (int i = 0; i < 2; i++) {
            for (int word = 0; word < PHI_WORD_COUNT; word++)
                lines[i].words[word] = phi_word_start[word];
            ends[i].fixed.protocol[0] = ends[i].fixed.protocol[1] = PH_PROTOCOL_PUT;
            ends[i].fixed.own.line = reinterpret_cast<phi_line *>(&lines[i]);
            ends[i].fixed.theirs.line = reinterpret_cast<phi_line *>(&lines[!i]);
        }
    }
    // The word by which rank 0 sends.
    uint32_t &word(phi_word w)
    {
        return lines[0].words[w];
    }
    void let_go(int rank)
    {
        phi_lift_all(&ends[rank], false);
    }
    bool is_undone(int rank)
    {
        return phi_lift_undone(&ends[rank]);
    }

  private:
    struct alignas(64) { // C++ does not know phi_line; its words come first
        uint32_t words[16];
    } lines[2] = {};
    ph_channel ends[2] = {};
};

TEST(Lift, OfWhatCameNothingIsMissing)
{
    for (const int first : {0, 1}) {
        Ends ends;
        ends.word(PHI_WORD_NOTE) = PHI_BIT_NOTED;
        ends.let_go(first);
        ends.let_go(!first);
        ends.word(PHI_WORD_NOTE) = PHI_BIT_FREE; // it is taken now
        ends.let_go(first);
        ends.let_go(!first);
        EXPECT_FALSE(ends.is_undone(0)) << "first " << first;
        EXPECT_FALSE(ends.is_undone(1)) << "first " << first;
    }
}

TEST(Lift, AReceiveThatIsNotAnsweredIsMissing)
{
    for (const int first : {0, 1}) {
        Ends ends;
        ends.word(PHI_WORD_TURN) = PHI_BIT_READY; // of rank 1
        ends.let_go(first);
        ends.let_go(!first);
        EXPECT_FALSE(ends.is_undone(0)) << "first " << first;
        EXPECT_TRUE(ends.is_undone(1)) << "first " << first;
    }
}

// A memory operation took the bit that was added, and the post behind it replaced the word.
TEST(Lift, WhatTookAnAddedBitGotNothing)
{
    Ends ends;
    ends.let_go(1);
    ends.word(PHI_WORD_NOTE) = PHI_BIT_FREE;
    EXPECT_TRUE(ends.is_undone(1));
    EXPECT_FALSE(ends.is_undone(0));
}

} // namespace
