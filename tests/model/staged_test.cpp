// SPDX-License-Identifier: BSD-3-Clause
// Every interleaving of a lane of staged records (docs/protocols.md, "Staged messages"): two blocks
// at either end, the nets of both ranks, writes and credit that arrive in any order, and short
// records by ll; and what is found when a rule is left out.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "model/space.h"

namespace
{

const int SLOTS = 2, BLOCKS = 2, RECORDS = 6;

// A line holds two words, of which each says whose it is. Numbers wrap.
const int NUMBERS = 4;

bool is_short(int record)
{
    return record == 1 || record == 4 || record == 6;
}

uint8_t number(int record)
{
    return uint8_t(record % NUMBERS);
}

struct Line {
    uint8_t whose[2], data[2];

    bool is(int record, bool whole) const
    {
        return whose[0] == number(record) && (!whole || whose[1] == number(record));
    }
    void make_void(int record, bool whole)
    {
        whose[0] = number(record - 1);
        if (whole)
            whose[1] = number(record - 1);
    }
    void put(int word, int record)
    {
        whose[word] = number(record);
        data[word] = uint8_t(record);
    }
};

enum Flight : uint8_t { NONE, POSTED, DELIVERED }; // a write; NONE again when it is over here, too

struct Lane {
    // By block: how far it is within its record, and records done.
    uint8_t fill_at[BLOCKS], filled[BLOCKS], empty_at[BLOCKS], emptied[BLOCKS];
    uint8_t out[SLOTS][BLOCKS], in[SLOTS][BLOCKS]; // the record that was written there last
    uint8_t flight[SLOTS], present[SLOTS];
    uint8_t sent, arrived, credit_sent, credit_flying, credited;
    uint8_t may_fill, may_empty; // reach of either end
    uint8_t wrong;
    uint8_t early[BLOCKS]; // a word that was stored before its data
    Line line_out[SLOTS], line_in[SLOTS];
    uint8_t landed, land_at; // records that came whose lines are filled; words of the next one
    uint8_t looked;          // the sender's net: at a line in which there was nothing
    uint8_t busy[SLOTS];     // the operation of a slot is in use: the provider reads it
    uint8_t assuring;        // the record up to which a write on its way tells of the delivery
    uint8_t assured;         // ... and told
    uint8_t early_told;      // of what was not delivered
    uint8_t pad[2];
};
static_assert(sizeof(Lane) % 8 == 0, "plain bytes");

struct Rules {
    bool data_first = true;   // before the block's word
    bool all_filled = true;   // the net waits for all blocks
    bool all_emptied = true;  // before credit
    bool in_order = true;     // reach grows when all before are there
    bool completed = true;    // a slot is free when its write has completed, too
    bool waits_credit = true; // a slot is free when it was emptied there
    int slack = SLOTS;        // records that may be filled at first
    bool whole_out = true;    // a line is taken when both words are there
    bool whole_in = true;     // ... at the receiver
    bool void_out = true;     // a line that was taken is made void
    bool void_in = true;      // ... and one whose record is not short
    bool void_all = true;     // ... all of it
    bool done_first = true;   // the net looks at the blocks' words before the line
    bool line_first = true;   // a block's word comes behind its line
    bool loose = false;  // a write is over when its slot is not read any more, and they keep order
    bool ordered = true; // ... which they do
    bool one_op = true;  // what assures has the operation of its record's slot
    int gathered = 1;    // records that are emptied for one credit
    bool pays = true;    // a quiet lane gives it for any number
};

int slot_of(int record)
{
    return (record - 1) % SLOTS;
}

int of_all(const uint8_t *done, bool all)
{
    const int least = done[0] < done[1] ? done[0] : done[1];
    return all ? least : done[0] + done[1] - least;
}

bool assures(const Lane &s, int slot)
{
    return s.assuring != 0 && slot_of(s.assuring) == slot;
}

// A block of the sender's stream: waits, writes its part, says so.
bool fill(const Rules &rules, Lane &s, int block)
{
    const int record = s.filled[block] + 1, slot = slot_of(record);
    if (record > RECORDS)
        return false;
    if (s.fill_at[block] == 0 && s.may_fill < record)
        return false;
    const int data_at = rules.data_first ? 1 : 2, at = s.fill_at[block];
    if (is_short(record)) {
        if (block == 0 && rules.line_first && (at == 1 || at == 2))
            s.line_out[slot].put(at - 1, record);
        if (block == 0 && !rules.line_first)
            s.early[block] = 1;
        if (++s.fill_at[block] < 3)
            return true;
        s.early[block] = 0;
        s.fill_at[block] = 0;
        s.filled[block]++;
        if (block == 0 && !rules.line_first) {
            s.line_out[slot].put(0, record);
            s.line_out[slot].put(1, record);
        }
        return true;
    }
    if (at == data_at) {
        s.wrong |= s.busy[slot] || assures(s, slot); // the provider may still read it
        s.out[slot][block] = uint8_t(record);
    }
    if (++s.fill_at[block] == 2 && !rules.data_first)
        s.early[block] = 1; // its word, too soon
    if (s.fill_at[block] == 3) {
        s.fill_at[block] = 0;
        s.early[block] = 0;
        s.filled[block]++;
    }
    return true;
}

// What the sender's net sees of the blocks' words.
int seen_filled(const Rules &rules, const Lane &s)
{
    uint8_t words[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        words[i] = uint8_t(s.filled[i] + s.early[i]);
    return of_all(words, rules.all_filled);
}

void free_slots(const Rules &rules, Lane &s)
{
    for (;;) {
        const int record = s.may_fill - rules.slack + 1;
        const bool emptied = s.credited >= record || !rules.waits_credit;
        if (record > s.sent || !emptied || (rules.completed && s.busy[slot_of(record)]))
            return;
        s.may_fill++;
    }
}

bool send(const Rules &rules, Lane &s)
{
    const int record = s.sent + 1, slot = slot_of(record);
    if (record > s.may_fill || s.busy[slot])
        return false; // the operation of the slot is in use
    Line &line = s.line_out[slot];
    const bool in_line = !s.looked && line.is(record, rules.whole_out);
    if (!rules.done_first && !s.looked && !in_line) {
        s.looked = 1;
        return true;
    }
    s.looked = 0;
    if (!in_line && seen_filled(rules, s) < record)
        return false;
    for (int block = 0; block < BLOCKS && in_line; block++)
        s.out[slot][block] = line.data[block];
    if (rules.void_out)
        line.make_void(record, rules.void_all);
    s.flight[slot] = POSTED;
    s.busy[slot] = 1;
    s.sent++;
    if (!rules.loose)
        s.assured = s.sent;
    return true;
}

// The receiver's net fills the lines of what has come, in order, before it raises `reach`.
bool land(const Rules &rules, Lane &s)
{
    const int record = s.landed + 1, slot = slot_of(record);
    if (s.landed == s.arrived)
        return false;
    if (is_short(record)) {
        s.line_in[slot].put(s.land_at, record);
        s.line_in[slot].data[s.land_at] = s.in[slot][s.land_at];
        if (++s.land_at < 2)
            return true;
        s.land_at = 0;
    } else if (rules.void_in) {
        s.line_in[slot].make_void(record, rules.void_all);
    }
    s.landed++;
    return true;
}

bool raise_reach(const Rules &rules, Lane &s)
{
    if (!rules.in_order || s.may_empty == s.landed)
        return false;
    s.may_empty = s.landed;
    return true;
}

// The data arrives, and with it what tells of it.
bool deliver(const Rules &rules, Lane &s, int slot)
{
    const int next = slot_of(s.arrived + 1);
    if (s.flight[slot] != POSTED || (rules.loose && rules.ordered && slot != next))
        return false;
    s.flight[slot] = DELIVERED;
    for (int block = 0; block < BLOCKS; block++)
        s.in[slot][block] = s.out[slot][block];
    s.present[slot] = 1;
    if (!rules.in_order)
        s.may_empty = uint8_t(s.may_empty + 1);
    while (s.present[slot_of(s.arrived + 1)]) {
        s.present[slot_of(s.arrived + 1)] = 0;
        s.arrived++;
    }
    return true;
}

bool complete(const Rules &rules, Lane &s, int slot)
{
    if (!s.busy[slot] || assures(s, slot) || (!rules.loose && s.flight[slot] != DELIVERED))
        return false;
    s.busy[slot] = 0;
    free_slots(rules, s);
    return true;
}

// The head of the newest record is written once more, and its delivery asked for.
bool assure(const Rules &rules, Lane &s)
{
    const int slot = slot_of(s.sent);
    if (!rules.loose || s.assured == s.sent || s.credited == s.sent || s.busy[slot] || s.assuring)
        return false;
    s.busy[slot] = rules.one_op;
    s.assuring = s.sent;
    return true;
}

bool be_assured(const Rules &rules, Lane &s)
{
    if (!s.assuring || (rules.ordered && s.arrived < s.assuring))
        return false;
    s.early_told |= s.arrived < s.assuring;
    s.assured = s.assuring;
    s.busy[slot_of(s.assuring)] = 0;
    s.assuring = 0;
    free_slots(rules, s);
    return true;
}

// A block of the receiver's stream.
bool empty(const Rules &rules, Lane &s, int block)
{
    const int record = s.emptied[block] + 1;
    if (record > RECORDS)
        return false;
    const Line &line = s.line_in[slot_of(record)];
    if (s.empty_at[block] == 0 && line.is(record, rules.whole_in)) {
        s.wrong |= line.data[0] != record || line.data[1] != record;
        s.emptied[block]++; // at once: nothing of the slot is needed
        return true;
    }
    if (s.empty_at[block] == 0 && s.may_empty < record)
        return false;
    if (s.empty_at[block] == 1)
        s.wrong |= s.in[slot_of(record)][block] != record;
    if (++s.empty_at[block] == 3) {
        s.empty_at[block] = 0;
        s.emptied[block]++;
    }
    return true;
}

bool give_credit(const Rules &rules, Lane &s)
{
    const int owed = of_all(s.emptied, rules.all_emptied) - s.credit_sent;
    if (owed <= 0 || (owed < rules.gathered && !rules.pays))
        return false;
    s.credit_sent++;
    s.credit_flying++;
    return true;
}

bool take_credit(const Rules &rules, Lane &s)
{
    if (s.credit_flying == 0)
        return false;
    s.credit_flying--;
    s.credited++;
    free_slots(rules, s);
    return true;
}

std::string explore(const Rules &rules)
{
    std::vector<std::function<bool(Lane &)>> actors = {
        [&](Lane &s) { return send(rules, s); },
        [&](Lane &s) { return land(rules, s); },
        [&](Lane &s) { return raise_reach(rules, s); },
        [&](Lane &s) { return give_credit(rules, s); },
        [&](Lane &s) { return take_credit(rules, s); },
        [&](Lane &s) { return assure(rules, s); },
        [&](Lane &s) { return be_assured(rules, s); },
    };
    for (int i = 0; i < BLOCKS; i++) {
        actors.push_back([&rules, i](Lane &s) { return fill(rules, s, i); });
        actors.push_back([&rules, i](Lane &s) { return empty(rules, s, i); });
    }
    for (int i = 0; i < SLOTS; i++) {
        actors.push_back([&rules, i](Lane &s) { return deliver(rules, s, i); });
        actors.push_back([&rules, i](Lane &s) { return complete(rules, s, i); });
    }
    Lane start{};
    start.may_fill = uint8_t(rules.slack);
    model::Space<Lane> space;
    space.add(start, 0, 0);
    for (size_t i = 0; i < space.size(); i++) {
        bool moved = false;
        for (const auto &actor : actors) {
            Lane next = space[i];
            if (!actor(next))
                continue;
            moved = true;
            if (next.wrong)
                return "wrong data";
            if (next.early_told)
                return "told too soon";
            space.add(next, i, 0);
        }
        const Lane &s = space[i];
        if (!moved && (s.emptied[0] < RECORDS || s.emptied[1] < RECORDS ||
                       s.may_fill != RECORDS + rules.slack))
            return "deadlock";
    }
    return space.size() > 200 ? "" : "nothing was explored";
}

TEST(Staged, EveryInterleaving)
{
    EXPECT_EQ(explore({}), "");
    EXPECT_EQ(explore({.slack = 1}), "") << "one slot would do";
    EXPECT_EQ(explore({.loose = true}), "");
    EXPECT_EQ(explore({.slack = 1, .loose = true}), "");
    EXPECT_EQ(explore({.gathered = SLOTS}), "");
}

TEST(Staged, FindsWhatIsLeftOut)
{
    EXPECT_EQ(explore({.data_first = false}), "wrong data");
    EXPECT_EQ(explore({.all_filled = false}), "wrong data");
    EXPECT_EQ(explore({.all_emptied = false}), "wrong data");
    EXPECT_EQ(explore({.in_order = false}), "wrong data");
    EXPECT_EQ(explore({.completed = false}), "wrong data") << "a slot the provider still reads";
    EXPECT_EQ(explore({.waits_credit = false}), "wrong data");
    EXPECT_EQ(explore({.slack = SLOTS + 1}), "wrong data") << "a slot is written that is in use";
    EXPECT_EQ(explore({.slack = 0}), "deadlock");
    EXPECT_EQ(explore({.gathered = SLOTS + 1, .pays = false}), "deadlock");
}

TEST(Staged, FindsWhatIsLeftOutOfLooseWrites)
{
    EXPECT_EQ(explore({.loose = true, .ordered = false}), "told too soon");
    EXPECT_EQ(explore({.loose = true, .one_op = false}), "wrong data") << "it reads its slot";
    EXPECT_EQ(explore({.completed = false, .loose = true}), "wrong data");
    EXPECT_EQ(explore({.waits_credit = false, .loose = true}), "wrong data");
}

TEST(Staged, FindsWhatIsLeftOutOfLines)
{
    EXPECT_EQ(explore({.whole_out = false}), "wrong data");
    EXPECT_EQ(explore({.whole_in = false}), "wrong data");
    EXPECT_EQ(explore({.void_out = false}), "wrong data") << "a number comes round again";
    EXPECT_EQ(explore({.void_in = false}), "wrong data");
    EXPECT_EQ(explore({.void_all = false}), "wrong data") << "half of a line is of long ago";
    EXPECT_EQ(explore({.done_first = false}), "wrong data");
    EXPECT_EQ(explore({.line_first = false}), "wrong data");
}

} // namespace
