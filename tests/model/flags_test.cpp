// SPDX-License-Identifier: BSD-3-Clause
// Every interleaving of the two ends of a lane of flags (docs/protocols.md, "Messages by flags"),
// step by step, and what is found when a step is left out or done too soon.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "model/space.h"

namespace
{

// ---- by ll: a message of two lines, two slots

struct Lines {
    uint8_t pushed, credit, taken; // messages
    uint8_t push_at, take_at;      // steps within the present message
    uint8_t flag[2][2], data[2][2];
    uint8_t read[2][2]; // number of the message that was read there last
    uint8_t wrong;
    uint8_t pad[6];
};
static_assert(sizeof(Lines) % 8 == 0, "plain bytes");

struct LineRules {
    int slack = 2;             // messages that may be under way
    bool flag_last = true;     // data and flag together; else the flag first
    bool credit_before = true; // of the message before; else of this one, before it is read
    bool checks_both = true;   // the taker waits for every line
};

const int MESSAGES = 6;

bool push(const LineRules &rules, Lines &s)
{
    const int message = s.pushed + 1, slot = message % 2;
    if (s.pushed == MESSAGES)
        return false;
    if (s.push_at == 0) {
        if (s.credit + rules.slack < message)
            return false;
        s.push_at = 1;
        return true;
    }
    // Steps 1 and 2 write the lines; with the flag first, 3 and 4 bring the data late.
    const int line = (s.push_at - 1) % 2;
    if (s.push_at <= 2) {
        s.wrong |= message > 2 && s.read[slot][line] != message - 2; // written over
        s.flag[slot][line] = uint8_t(message);
    }
    if (rules.flag_last || s.push_at > 2)
        s.data[slot][line] = uint8_t(message);
    if (++s.push_at > (rules.flag_last ? 2 : 4)) {
        s.push_at = 0;
        s.pushed++;
    }
    return true;
}

bool take(const LineRules &rules, Lines &s)
{
    const int message = s.taken + 1, slot = message % 2;
    if (s.taken == MESSAGES)
        return false;
    if (s.take_at == 0) {
        s.credit = uint8_t(rules.credit_before ? s.taken : message);
        s.take_at = 1;
        return true;
    }
    const int line = s.take_at - 1;
    if (s.flag[slot][line] != message && (line == 0 || rules.checks_both))
        return false;
    s.wrong |= s.data[slot][line] != message;
    s.read[slot][line] = uint8_t(message);
    if (++s.take_at > 2) {
        s.take_at = 0;
        s.taken++;
    }
    return true;
}

template <class State>
std::string explore(const State &start, std::vector<std::function<bool(State &)>> actors,
                    std::function<bool(const State &)> over)
{
    model::Space<State> space;
    space.add(start, 0, 0);
    for (size_t i = 0; i < space.size(); i++) {
        bool moved = false;
        for (size_t actor = 0; actor < actors.size(); actor++) {
            State next = space[i];
            if (!actors[actor](next))
                continue;
            moved = true;
            if (next.wrong)
                return "wrong data";
            space.add(next, i, int(actor));
        }
        if (!moved && !over(space[i]))
            return "deadlock";
    }
    return space.size() > 20 ? "" : "nothing was explored";
}

std::string lines(const LineRules &rules)
{
    return explore<Lines>(
        {}, {[&](Lines &s) { return push(rules, s); }, [&](Lines &s) { return take(rules, s); }},
        [](const Lines &s) { return s.taken == MESSAGES; });
}

TEST(Flags, ByLines)
{
    EXPECT_EQ(lines({}), "");
    EXPECT_EQ(lines({.slack = 1}), "") << "one slot would do";
    EXPECT_EQ(lines({.slack = 3}), "wrong data") << "a slot is written that is not read";
    EXPECT_EQ(lines({.flag_last = false}), "wrong data");
    EXPECT_EQ(lines({.credit_before = false}), "wrong data") << "credit before the slot was read";
    EXPECT_EQ(lines({.checks_both = false}), "wrong data");
    EXPECT_EQ(lines({.slack = 0}), "deadlock");
}

// ---- by ll, wide messages among others: two small slots of two lines, two wide ones of one
// line. Small numbers wrap.

const int MIXED = 11, WRAP = 8, REFRESH = 4;

struct Mixed {
    uint8_t pushed, credit, taken;        // messages
    uint8_t wide_pushed, wide_taken;      // of them
    uint8_t push_at, take_at;             // steps within the present message
    uint8_t number[2][2], data[2][2];     // small slots
    uint8_t wide_number[2], wide_data[2]; // wide ones
    uint8_t wrong;
    uint8_t pad[4];
};
static_assert(sizeof(Mixed) % 8 == 0, "plain bytes");

struct MixedRules {
    bool own_slots = true; // wide lines are in slots of their own; else where the small ones are
    bool refreshes =
        true; // a wide message writes all of a small slot, too, where its number says so
};

// Those with the numbers by which slots are written whole are wide; a message of two lines is
// followed by ones of one line until its number comes round.
bool is_wide(int message)
{
    return message % REFRESH < 2;
}

int lines_of(int message)
{
    return message == 2 || message == 2 + WRAP ? 2 : 1;
}

void put_small(Mixed &s, int slot, int line, int number, int data)
{
    s.number[slot][line] = uint8_t(number % WRAP);
    s.data[slot][line] = uint8_t(data);
}

bool push_mixed(const MixedRules &rules, Mixed &s)
{
    const int message = s.pushed + 1, slot = message % 2;
    if (s.pushed == MIXED || (s.push_at == 0 && s.credit + 2 < message))
        return false;
    const int line = s.push_at - 2, written = is_wide(message) ? 0 : lines_of(message);
    const bool whole =
        message % REFRESH < 2 && (!is_wide(message) || (rules.refreshes && rules.own_slots));
    if (s.push_at == 1 && is_wide(message)) {
        const int wide = ++s.wide_pushed;
        s.wide_number[wide % 2] = uint8_t(wide);
        s.wide_data[wide % 2] = uint8_t(message);
        if (!rules.own_slots) // its data is any bytes, also those of a number
            put_small(s, slot, 0, message + 2, 0);
    } else if (line >= 0 && line < written) {
        put_small(s, slot, line, message, message);
    } else if (line >= 0 && whole) {
        put_small(s, slot, line, message, 0);
    }
    if (++s.push_at == 4) {
        s.push_at = 0;
        s.pushed++;
    }
    return true;
}

bool take_mixed(Mixed &s)
{
    const int message = s.taken + 1, slot = message % 2, wide = s.wide_taken + 1;
    if (s.taken == MIXED)
        return false;
    if (s.take_at == 0) {
        s.credit = s.taken;
        s.take_at = 1;
        return true;
    }
    const int line = s.take_at - 1;
    if (is_wide(message)) {
        if (s.wide_number[wide % 2] != wide)
            return false;
        s.wrong |= s.wide_data[wide % 2] != message;
        s.wide_taken++;
    } else {
        if (s.number[slot][line] != message % WRAP)
            return false;
        s.wrong |= s.data[slot][line] != message;
        if (++s.take_at <= lines_of(message))
            return true;
    }
    s.take_at = 0;
    s.taken++;
    return true;
}

std::string mixed(const MixedRules &rules)
{
    return explore<Mixed>(
        {},
        {[&](Mixed &s) { return push_mixed(rules, s); }, [](Mixed &s) { return take_mixed(s); }},
        [](const Mixed &s) { return s.taken == MIXED; });
}

TEST(Flags, ByWideLinesAmongOthers)
{
    EXPECT_EQ(mixed({}), "");
    EXPECT_EQ(mixed({.own_slots = false}), "wrong data") << "data is taken for a number";
    EXPECT_EQ(mixed({.refreshes = false}), "wrong data") << "a number comes round again";
}

// ---- by ll: the blocks of one message count it together; launches follow one another

const int SHARES = 3, LAUNCHES = 4;

struct Count {
    uint8_t counted, arrived, missed; // the lane's number, and the words that blocks count in
    uint8_t launch, expected;         // launches begun, and messages that were done whole
    uint8_t broken;                   // from here on waits may be given up
    uint8_t at[SHARES], number[SHARES], given_up[SHARES];
    uint8_t wrong;
};
static_assert(sizeof(Count) == 16, "plain bytes");

struct CountRules {
    bool number_first = true;  // it is read before the block counts
    bool counts_missed = true; // who gives up its share counts as well, as one that missed it
    bool puts_back = true;     // the last one puts the words back to 0
};

// A block reads the number, does its share or gives it up, and counts. The launch is over when all
// have.
bool share(const CountRules &rules, Count &s, int block)
{
    if (s.launch == LAUNCHES || s.at[block] == 3)
        return false;
    const int reads = rules.number_first ? 0 : 2, counts = rules.number_first ? 2 : 1;
    const int step = s.at[block]++;
    if (step == reads) {
        s.number[block] = uint8_t(s.counted + 1);
        s.wrong |= s.number[block] != s.expected + 1;
    } else if (step == counts) {
        const bool missed = s.given_up[block];
        if (!missed || rules.counts_missed) {
            s.missed = uint8_t(s.missed + missed);
            if (++s.arrived == SHARES) {
                s.counted = uint8_t(s.counted + (s.missed == 0));
                if (rules.puts_back)
                    s.arrived = s.missed = 0;
            }
        }
    }
    bool whole = true;
    for (int i = 0; i < SHARES; i++) {
        if (s.at[i] != 3)
            return true;
        whole = whole && !s.given_up[i];
    }
    s.launch++;
    s.expected = uint8_t(s.expected + whole);
    s.wrong |= s.counted != s.expected || s.arrived != 0;
    for (int i = 0; i < SHARES; i++)
        s.at[i] = s.number[i] = s.given_up[i] = 0;
    return true;
}

bool gives_up(Count &s, int block)
{
    if (!s.broken || s.given_up[block] || s.at[block] != 1)
        return false;
    s.given_up[block] = 1;
    return true;
}

std::string counts(const CountRules &rules)
{
    std::vector<std::function<bool(Count &)>> actors;
    for (int block = 0; block < SHARES; block++) {
        actors.push_back([&rules, block](Count &s) { return share(rules, s, block); });
        actors.push_back([block](Count &s) { return gives_up(s, block); });
    }
    actors.push_back([](Count &s) { return s.broken ? false : (s.broken = 1) != 0; });
    return explore<Count>({}, actors, [](const Count &s) { return s.launch == LAUNCHES; });
}

TEST(Flags, BlocksOfAMessageCountItOnce)
{
    EXPECT_EQ(counts({}), "");
    EXPECT_EQ(counts({.number_first = false}), "wrong data") << "a block takes the next number";
    EXPECT_EQ(counts({.counts_missed = false}), "wrong data")
        << "blocks of the launch before count";
    EXPECT_EQ(counts({.puts_back = false}), "wrong data");
}

// ---- by sm: rounds of one or two blocks

struct Copy {
    uint8_t go[2], full[2], buffer[2]; // the parts hold the round that wrote them last
    uint8_t given, arrived;            // rounds at the passive end
    uint8_t give_at, arrive_at;
    uint8_t moved, block_at[2]; // the active end
    uint8_t wrong;
    uint8_t blocks_seen;
    uint8_t pad;
};
static_assert(sizeof(Copy) % 8 == 0, "plain bytes");

struct CopyRules {
    bool resets_go = true, resets_others = true, resets_full = true;
    bool full_last = true; // after the copy
    bool waits_go = true;
    bool waits_others = true; // each block for its share of the words that have no block
    bool signals = false;     // go at the start, and arrivals give it
};

const int ROUNDS = 4;

int blocks_in(int round)
{
    return round % 2 ? 2 : 1;
}

// One block of the active end; the next round begins when all are through.
bool move_block(const CopyRules &rules, Copy &s, int block)
{
    const int round = s.moved + 1, blocks = blocks_in(round);
    if (s.moved == ROUNDS || block >= blocks || s.block_at[block] == 4)
        return false;
    uint8_t &at = s.block_at[block];
    switch (at) {
    case 0:
        for (int i = block; i < 2; i += blocks)
            if (s.go[i] == 0 && rules.waits_go && (i == block || rules.waits_others))
                return false;
        break;
    case 1: // its own word, and its share of the others
        for (int i = block; i < 2; i += blocks)
            if (i == block ? rules.resets_go : rules.resets_others)
                s.go[i] = 0;
        break;
    case 2:
        if (rules.full_last) {
            // The passive end lets a round begin when it has used the one before.
            s.wrong |= !rules.signals && s.given + (s.give_at > 0) < round;
            s.buffer[block] = uint8_t(round);
        } else {
            s.full[block] = uint8_t(blocks);
        }
        break;
    default:
        if (rules.full_last)
            s.full[block] = uint8_t(blocks);
        else
            s.buffer[block] = uint8_t(round);
    }
    at++;
    for (int i = 0; i < blocks; i++)
        if (s.block_at[i] != 4)
            return true;
    s.block_at[0] = s.block_at[1] = 0;
    s.moved++;
    return true;
}

bool give(const CopyRules &rules, Copy &s)
{
    const bool may = rules.signals ? s.given < s.arrived : s.given == s.arrived && s.given < ROUNDS;
    if (!may || s.arrive_at != 0)
        return false;
    s.wrong |= s.go[s.give_at] != 0 && rules.resets_go; // a go that nobody saw
    s.go[s.give_at] = 1;
    if (++s.give_at == 2) {
        s.give_at = 0;
        s.given++;
    }
    return true;
}

bool arrive(const CopyRules &rules, Copy &s)
{
    const int round = s.arrived + 1;
    const bool may =
        rules.signals ? s.given == s.arrived && s.arrived < ROUNDS : s.given == s.arrived + 1;
    if (!may || s.give_at != 0)
        return false;
    switch (s.arrive_at) {
    case 0:
        if (s.full[0] == 0)
            return false;
        s.blocks_seen = s.full[0];
        break;
    case 1:
        if (s.blocks_seen == 2 && s.full[1] == 0)
            return false;
        break;
    default:
        for (int i = 0; i < s.blocks_seen && rules.resets_full; i++)
            s.full[i] = 0;
        for (int i = 0; i < blocks_in(round); i++)
            s.wrong |= s.buffer[i] != round;
    }
    if (++s.arrive_at == 3) {
        s.arrive_at = 0;
        s.arrived++;
    }
    return true;
}

std::string copies(const CopyRules &rules)
{
    Copy start{};
    if (rules.signals)
        start.go[0] = start.go[1] = 1;
    return explore<Copy>(start,
                         {[&](Copy &s) { return move_block(rules, s, 0); },
                          [&](Copy &s) { return move_block(rules, s, 1); },
                          [&](Copy &s) { return give(rules, s); },
                          [&](Copy &s) { return arrive(rules, s); }},
                         [](const Copy &s) { return s.arrived == ROUNDS && s.moved == ROUNDS; });
}

TEST(Flags, ByCopy)
{
    EXPECT_EQ(copies({}), "");
    EXPECT_EQ(copies({.signals = true}), "");
    EXPECT_NE(copies({.resets_go = false}), "") << "a round begins before the passive end lets it";
    EXPECT_NE(copies({.resets_others = false}), "") << "a go is left over for a larger round";
    EXPECT_NE(copies({.resets_full = false}), "") << "an arrival of the round before";
    EXPECT_NE(copies({.full_last = false}), "") << "arrived before it was copied";
    EXPECT_NE(copies({.waits_go = false}), "");
    EXPECT_NE(copies({.waits_others = false}), "") << "a go that comes after it was put back";
}

} // namespace
