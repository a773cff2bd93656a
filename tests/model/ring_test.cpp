// SPDX-License-Identifier: BSD-3-Clause
// Every interleaving of messages through rings of chunks, by launches that leave the GPU while they
// wait: who waits is one block of a stream, and the blocks that move a message are launched behind
// its wait, where there is room. And what is found when a rule is left out.
//
// A launch has items, each the push or the take of one message. Its first *guard* is one block. A
// guard waits until some item may be moved, has a wave of hands launched for all such items, with
// the next guard for the others, and moves units itself: until all units of its items are taken by
// some block, and the next guard has come. So from its first block to its end a launch has a block
// on the device that waits for nobody but the peer's. Hands move what their wave is for. A message
// that is larger than what the ring has room for is pushed in two parts: what there is room for at
// once, and the rest when the peer takes.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "model/space.h"

namespace
{

const int SLOTS = 2, RANKS = 3, STREAMS = 2, ITEMS = 2, WAVES = 4, HANDS = 1, RINGS = 6;
const int NOTHING = -1;

struct Rules {
    bool guard_stays = true;       // until its units are taken, and the next guard has come
    bool first_part = true;        // hands push only what there is room for, before the peer takes
    bool take_after_header = true; // hands take only once the message has begun to come
};

struct Message {
    int ring, units;
};

// What a stream has: a launch of items (messages by their number), or a kernel of the application.
struct Op {
    std::vector<int> items;
};

struct Ring {
    int from, to;
};

struct Job {
    int ranks, places; // blocks that fit on a device
    std::vector<Ring> rings;
    std::vector<Message> messages;       // those of a ring in its order
    std::vector<Op> ops[RANKS][STREAMS]; // no items: a kernel of the application, of one block
};

enum Status : uint8_t { NONE, QUEUED, ON, GONE };

struct Block {
    Status status;
    uint8_t item, unit; // taken, or 255
    uint8_t triggered;  // of a guard
};

struct Launch {
    uint8_t op, waves;    // that were launched
    uint8_t wave[ITEMS];  // of an item: by which it is moved, or 0
    uint8_t rest[ITEMS];  // likewise, of the second part of a push
    uint8_t limit[ITEMS]; // of a push: units of its first part
    Block guards[WAVES + 1], hands[WAVES][HANDS];
};

struct State {
    Launch launch[RANKS][STREAMS];
    uint8_t pushed[RINGS], taken[RINGS];        // bits of units, of all messages of the ring
    uint8_t push_next[RINGS], take_next[RINGS]; // units that some block has
    uint8_t takes[RINGS];                       // bits of messages whose take has begun
    uint8_t pad[2];
};
static_assert(sizeof(State) % 8 == 0, "plain bytes");

class Machine
{
  public:
    Machine(const Rules &rules, const Job &job) : rules_(rules), job_(job)
    {
    }

    // Whether all states go on to the end; else why not.
    std::string explore()
    {
        State first = {};
        for (auto &rank : first.launch)
            for (auto &launch : rank)
                clear(launch);
        settle(first);
        space_.add(first, 0, 0);
        for (size_t i = 0; i < space_.size(); i++) {
            const State s = space_[i];
            at_ = i;
            moved_ = false;
            for (int rank = 0; rank < job_.ranks; rank++)
                for (int stream = 0; stream < STREAMS; stream++)
                    step(s, rank, stream);
            if (!moved_ && !is_end(s))
                return "stuck: " + text(s);
            const std::string wrong = check(s);
            if (!wrong.empty())
                return wrong + ": " + text(s);
            if (space_.size() > 6000000)
                return "too many states";
        }
        return "";
    }
    size_t states() const
    {
        return space_.size();
    }

  private:
    // ---- what is where

    static void clear(Launch &launch)
    {
        const uint8_t op = launch.op;
        memset(&launch, 0, sizeof launch);
        launch.op = op;
        for (Block &block : launch.guards)
            block.item = block.unit = 255;
        for (auto &wave : launch.hands)
            for (Block &block : wave)
                block.item = block.unit = 255;
    }
    const Op *op_of(const State &s, int rank, int stream) const
    {
        const auto &ops = job_.ops[rank][stream];
        return s.launch[rank][stream].op < ops.size() ? &ops[s.launch[rank][stream].op] : nullptr;
    }
    // The items in the order of their launch.
    const Message &message(const Op &op, int item) const
    {
        return job_.messages[size_t(op.items[size_t(item)])];
    }
    bool pushes(int rank, const Op &op, int item) const
    {
        return job_.rings[size_t(message(op, item).ring)].from == rank;
    }
    // The first unit of a message on its ring.
    int begin_of(const Op &op, int item) const
    {
        const int number = op.items[size_t(item)];
        int begin = 0;
        for (int i = 0; i < number; i++)
            if (job_.messages[size_t(i)].ring == job_.messages[size_t(number)].ring)
                begin += job_.messages[size_t(i)].units;
        return begin;
    }
    int end_of(const Op &op, int item) const
    {
        return begin_of(op, item) + message(op, item).units;
    }
    bool has_room(const State &s, int ring, int unit) const
    {
        return unit < SLOTS || (s.taken[ring] >> (unit - SLOTS) & 1);
    }
    bool is_taking(const State &s, const Op &op, int item) const
    {
        return s.takes[message(op, item).ring] >> op.items[size_t(item)] & 1;
    }
    int room(const State &s, const Op &op, int item) const
    {
        int unit = begin_of(op, item);
        while (unit < end_of(op, item) && has_room(s, message(op, item).ring, unit))
            unit++;
        return unit - begin_of(op, item);
    }
    int on_device(const State &s, int rank) const
    {
        int n = 0;
        for (const Launch &launch : s.launch[rank]) {
            for (const Block &block : launch.guards)
                n += block.status == ON;
            for (const auto &wave : launch.hands)
                for (const Block &block : wave)
                    n += block.status == ON;
        }
        return n;
    }
    bool is_end(const State &s) const
    {
        for (int rank = 0; rank < job_.ranks; rank++)
            for (int stream = 0; stream < STREAMS; stream++)
                if (op_of(s, rank, stream))
                    return false;
        return true;
    }

    // ---- what may happen next

    void go(State s)
    {
        moved_ = true;
        settle(s);
        space_.add(s, at_, 0);
    }
    // What a block does by itself, and nobody can keep it from, is done at once: then fewer blocks
    // are there to move what others wait for.
    void settle(State &s) const
    {
        for (bool any = true; any;) {
            any = false;
            for (int rank = 0; rank < job_.ranks; rank++)
                for (int stream = 0; stream < STREAMS; stream++)
                    any = settle(s, rank, stream) || any;
        }
    }
    bool settle(State &s, int rank, int stream) const
    {
        const Op *op = op_of(s, rank, stream);
        if (!op)
            return false;
        Launch &launch = s.launch[rank][stream];
        if (launch.guards[0].status == NONE) {
            launch.guards[0].status = QUEUED;
            return true;
        }
        if (is_over(launch)) {
            launch.op++;
            clear(launch);
            return true;
        }
        bool any = false;
        if (launch.guards[0].status == ON)
            begin_takes(s, rank, *op);
        for (int i = 0; i <= WAVES; i++)
            any = leave_guard(s, rank, stream, *op, i) || any;
        for (int i = 0; i < WAVES; i++)
            for (Block &hand : launch.hands[i])
                any = leave_hand(s, rank, stream, *op, i, hand) || any;
        return any;
    }
    void step(const State &s, int rank, int stream)
    {
        const Op *op = op_of(s, rank, stream);
        if (!op)
            return;
        for (int i = 0; i <= WAVES; i++)
            step_guard(s, rank, stream, *op, i);
        for (int i = 0; i < WAVES; i++)
            for (int hand = 0; hand < HANDS; hand++)
                step_hand(s, rank, stream, *op, i, hand);
    }
    static bool is_over(const Launch &launch)
    {
        for (const Block &block : launch.guards)
            if (block.status == QUEUED || block.status == ON)
                return false;
        for (const auto &wave : launch.hands)
            for (const Block &block : wave)
                if (block.status == QUEUED || block.status == ON)
                    return false;
        return true;
    }
    bool place(const State &s, int rank, int stream, const Block &block,
               Block *(*find)(Launch &, int, int), int i, int j)
    {
        if (block.status != QUEUED)
            return false;
        if (on_device(s, rank) < job_.places) {
            State next = s;
            find(next.launch[rank][stream], i, j)->status = ON;
            go(next);
        }
        return true;
    }
    static Block *guard_of(Launch &launch, int i, int)
    {
        return &launch.guards[i];
    }
    static Block *hand_of(Launch &launch, int i, int j)
    {
        return &launch.hands[i][j];
    }

    // Whether an item, or the rest of a push, has no wave.
    static bool is_open(const Launch &launch, bool push, int item, bool rest)
    {
        return rest ? push && launch.wave[item] && !launch.rest[item] && launch.limit[item] != 255
                    : !launch.wave[item];
    }
    bool any_open(const State &s, int rank, int stream, const Op &op) const
    {
        const Launch &launch = s.launch[rank][stream];
        for (int i = 0; i < int(op.items.size()); i++)
            for (bool rest : {false, true})
                if (is_open(launch, pushes(rank, op, i), i, rest))
                    return true;
        return false;
    }
    // What a guard looks at: whether hands may begin on an item.
    bool is_ready(const State &s, int rank, const Op &op, int item, bool rest) const
    {
        if (!pushes(rank, op, item))
            return !rules_.take_after_header ||
                   (s.pushed[message(op, item).ring] >> begin_of(op, item) & 1);
        if (rest)
            return is_taking(s, op, item);
        return !rules_.first_part || is_taking(s, op, item) || room(s, op, item) > 0;
    }
    // Sets the waves of all items that are ready; whether there are any.
    bool adopt(State &next, int rank, int stream, const Op &op, int wave) const
    {
        Launch &launch = next.launch[rank][stream];
        bool any = false;
        for (int i = 0; i < int(op.items.size()); i++) {
            const bool push = pushes(rank, op, i);
            if (is_open(launch, push, i, true) && is_ready(next, rank, op, i, true)) {
                launch.rest[i] = uint8_t(wave + 1);
                any = true;
            } else if (is_open(launch, push, i, false) && is_ready(next, rank, op, i, false)) {
                launch.wave[i] = uint8_t(wave + 1);
                const bool all = !push || !rules_.first_part || is_taking(next, op, i) ||
                                 room(next, op, i) == message(op, i).units;
                launch.limit[i] = all ? 255 : uint8_t(room(next, op, i));
                any = true;
            }
        }
        return any;
    }
    void step_guard(const State &s, int rank, int stream, const Op &op, int i)
    {
        const Block &block = s.launch[rank][stream].guards[i];
        if (place(s, rank, stream, block, guard_of, i, 0) || block.status != ON)
            return;
        if (op.items.empty()) { // the application's kernel
            State next = s;
            next.launch[rank][stream].guards[i].status = GONE;
            return go(next);
        }
        if (!block.triggered)
            trigger(s, rank, stream, op, i);
        guard_works(s, rank, op);
    }
    // The takes of a launch say that they have begun when its first guard has: it stays, or the
    // next does.
    void begin_takes(State &s, int rank, const Op &op) const
    {
        for (int i = 0; i < int(op.items.size()); i++)
            if (!pushes(rank, op, i))
                s.takes[message(op, i).ring] =
                    uint8_t(s.takes[message(op, i).ring] | 1 << op.items[size_t(i)]);
    }
    void trigger(const State &s, int rank, int stream, const Op &op, int i)
    {
        State next = s;
        Launch &launch = next.launch[rank][stream];
        if (!adopt(next, rank, stream, op, i))
            return;
        launch.guards[i].triggered = 1;
        launch.waves = uint8_t(i + 1);
        for (Block &hand : launch.hands[i])
            hand.status = QUEUED;
        if (any_open(next, rank, stream, op))
            launch.guards[i + 1].status = QUEUED;
        go(next);
    }
    // The unit of an item that is given out next; NOTHING: all are.
    int next_unit(const State &s, int rank, const Op &op, int item) const
    {
        const int ring = message(op, item).ring;
        const int unit = pushes(rank, op, item) ? s.push_next[ring] : s.take_next[ring];
        return unit >= begin_of(op, item) && unit < end_of(op, item) ? unit : NOTHING;
    }
    // ... to the hands of a wave.
    int next_of_wave(const State &s, int rank, int stream, const Op &op, int item, int wave) const
    {
        const Launch &launch = s.launch[rank][stream];
        const int unit = next_unit(s, rank, op, item);
        const bool first =
            launch.limit[item] == 255 || unit < begin_of(op, item) + launch.limit[item];
        return (first ? launch.wave[item] : launch.rest[item]) == wave + 1 ? unit : NOTHING;
    }
    bool can_move(const State &s, int rank, const Op &op, int item, int unit) const
    {
        const int ring = message(op, item).ring;
        return pushes(rank, op, item) ? has_room(s, ring, unit) : (s.pushed[ring] >> unit & 1);
    }
    static void set(uint8_t &bits, int bit)
    {
        bits = uint8_t(bits | 1 << bit);
    }
    uint8_t &given_out(State &s, int rank, const Op &op, int item) const
    {
        const int ring = message(op, item).ring;
        return pushes(rank, op, item) ? s.push_next[ring] : s.take_next[ring];
    }
    void move(State &s, int rank, const Op &op, int item, int unit) const
    {
        const int ring = message(op, item).ring;
        set(pushes(rank, op, item) ? s.pushed[ring] : s.taken[ring], unit);
    }
    // A guard takes only what can be moved now.
    void guard_works(const State &s, int rank, const Op &op)
    {
        for (int item = 0; item < int(op.items.size()); item++) {
            const int unit = next_unit(s, rank, op, item);
            if (unit == NOTHING || !can_move(s, rank, op, item, unit))
                continue;
            State next = s;
            given_out(next, rank, op, item)++;
            move(next, rank, op, item, unit);
            go(next);
        }
    }
    bool all_taken(const State &s, int rank, const Op &op) const
    {
        for (int item = 0; item < int(op.items.size()); item++) {
            const int ring = message(op, item).ring;
            if ((pushes(rank, op, item) ? s.push_next[ring] : s.take_next[ring]) < end_of(op, item))
                return false;
        }
        return true;
    }
    bool leave_guard(State &s, int rank, int stream, const Op &op, int i) const
    {
        Launch &launch = s.launch[rank][stream];
        Block &block = launch.guards[i];
        const bool next_is_on = i < WAVES && launch.guards[i + 1].status == ON;
        if (block.status != ON || op.items.empty() ||
            !(all_taken(s, rank, op) || (block.triggered && (next_is_on || !rules_.guard_stays))))
            return false;
        block.status = GONE;
        return true;
    }
    // Nothing is left for its wave.
    bool leave_hand(const State &s, int rank, int stream, const Op &op, int wave, Block &hand) const
    {
        if (hand.status != ON || hand.item != 255)
            return false;
        for (int item = 0; item < int(op.items.size()); item++)
            if (next_of_wave(s, rank, stream, op, item, wave) != NOTHING)
                return false;
        hand.status = GONE;
        return true;
    }
    // A hand takes a unit, or moves the one that it has.
    void step_hand(const State &s, int rank, int stream, const Op &op, int wave, int i)
    {
        const Block &block = s.launch[rank][stream].hands[wave][i];
        if (place(s, rank, stream, block, hand_of, wave, i) || block.status != ON)
            return;
        State next = s;
        Block &hand = next.launch[rank][stream].hands[wave][i];
        if (hand.item != 255) {
            if (!can_move(s, rank, op, hand.item, hand.unit))
                return;
            move(next, rank, op, hand.item, hand.unit);
            hand.item = hand.unit = 255;
            return go(next);
        }
        for (int item = 0; item < int(op.items.size()); item++) {
            const int unit = next_of_wave(s, rank, stream, op, item, wave);
            if (unit == NOTHING)
                continue;
            next = s;
            given_out(next, rank, op, item)++;
            hand.item = uint8_t(item);
            hand.unit = uint8_t(unit);
            go(next);
        }
    }

    // ---- what must always hold

    // A hand that waits has a block at the other end, on the device, that moves what it waits for.
    std::string check(const State &s) const
    {
        for (int rank = 0; rank < job_.ranks; rank++)
            for (int stream = 0; stream < STREAMS; stream++) {
                const Op *op = op_of(s, rank, stream);
                for (const auto &wave : s.launch[rank][stream].hands)
                    for (const Block &hand : wave)
                        if (op && hand.status == ON && hand.item != 255 &&
                            !can_move(s, rank, *op, hand.item, hand.unit) &&
                            !is_attended(s, rank, *op, hand.item))
                            return "a hand waits for what may never come";
            }
        return "";
    }
    bool is_attended(const State &s, int rank, const Op &op, int item) const
    {
        const int number = op.items[size_t(item)];
        const auto &ring = job_.rings[size_t(message(op, item).ring)];
        const int other = ring.from == rank ? ring.to : ring.from;
        for (int stream = 0; stream < STREAMS; stream++)
            if (const Op *there = op_of(s, other, stream))
                for (int i = 0; i < int(there->items.size()); i++)
                    if (there->items[size_t(i)] == number && attends(s.launch[other][stream], i))
                        return true;
        return false;
    }
    static bool attends(const Launch &launch, int item)
    {
        for (const Block &guard : launch.guards)
            if (guard.status == ON)
                return true;
        for (const auto &wave : launch.hands)
            for (const Block &hand : wave)
                if (hand.status == ON && hand.item == item)
                    return true;
        return false;
    }

    std::string text(const State &s) const
    {
        std::string out;
        for (int rank = 0; rank < job_.ranks; rank++)
            for (int stream = 0; stream < STREAMS; stream++) {
                const Launch &launch = s.launch[rank][stream];
                out += "\n  rank " + std::to_string(rank) + ", stream " + std::to_string(stream) +
                       ": op " + std::to_string(launch.op) + ", guards ";
                for (const Block &guard : launch.guards)
                    out += "-qog"[guard.status];
                out += ", hands ";
                for (const auto &wave : launch.hands)
                    for (const Block &hand : wave)
                        out += "-qog"[hand.status];
            }
        for (size_t ring = 0; ring < job_.rings.size(); ring++)
            out += "\n  ring " + std::to_string(ring) + ": pushed " +
                   std::to_string(s.pushed[ring]) + ", taken " + std::to_string(s.taken[ring]) +
                   ", " + std::to_string(s.push_next[ring]) + " and " +
                   std::to_string(s.take_next[ring]) + " given out";
        return out;
    }

    const Rules rules_;
    const Job job_;
    model::Space<State> space_;
    size_t at_ = 0;
    bool moved_ = false;
};

std::string explore(const Rules &rules, const Job &job, size_t *states = nullptr)
{
    Machine machine(rules, job);
    const std::string wrong = machine.explore();
    if (states)
        *states = machine.states();
    return wrong;
}

// Rank 0 sends to rank 1.
Job one_way(int places, std::vector<int> units)
{
    Job job = {2, places, {{0, 1}}, {}, {}};
    for (size_t i = 0; i < units.size(); i++) {
        job.messages.push_back({0, units[i]});
        job.ops[0][0].push_back({{int(i)}});
        job.ops[1][0].push_back({{int(i)}});
    }
    return job;
}

TEST(Ring, MessagesOfEverySizeCome)
{
    for (int places : {1, 2, 3})
        for (int units = 1; units <= 4; units++)
            EXPECT_EQ(explore({}, one_way(places, {units})), "") << places << " " << units;
    for (int places : {1, 2})
        EXPECT_EQ(explore({}, one_way(places, {3, 2})), "") << places;
}

// Several messages of one launch go the same way.
TEST(Ring, MessagesOfOneLaunchComeInOrder)
{
    for (int places : {1, 3}) {
        Job job = {2, places, {{0, 1}}, {{0, 3}, {0, 2}}, {}};
        job.ops[0][0] = {{{0, 1}}};
        job.ops[1][0] = {{{0}}, {{1}}};
        EXPECT_EQ(explore({}, job), "") << places;
    }
}

// Both send, and then receive, in one group: a launch has both.
Job both_ways(int places, bool together)
{
    Job job = {2, places, {{0, 1}, {1, 0}}, {{0, 3}, {1, 3}}, {}};
    for (int rank : {0, 1}) {
        const int out = rank, in = !rank;
        if (together)
            job.ops[rank][0] = {{{out, in}}};
        else
            job.ops[rank][0] = {{{out}}, {{in}}};
    }
    return job;
}

TEST(Ring, BothWaysInOneLaunch)
{
    for (int places : {1, 2})
        EXPECT_EQ(explore({}, both_ways(places, true)), "") << places;
}

TEST(Ring, BothWaysOneAfterTheOtherAreStuck)
{
    EXPECT_EQ(explore({}, both_ways(2, false)).substr(0, 5), "stuck");
}

// Each of three ranks with each, in launches of two items.
Job all_to_all(bool by_distance)
{
    Job job = {3, 1, {}, {}, {}};
    for (int from = 0; from < 3; from++)
        for (int distance : {1, 2}) {
            job.messages.push_back({int(job.rings.size()), 3});
            job.rings.push_back({from, (from + distance) % 3});
        }
    for (int rank = 0; rank < 3; rank++) {
        std::vector<int> out, in;
        for (int distance : {1, 2}) {
            out.push_back(2 * rank + distance - 1);
            in.push_back(2 * ((rank + 3 - distance) % 3) + distance - 1);
        }
        if (by_distance)
            job.ops[rank][0] = {{{out[0], in[0]}}, {{out[1], in[1]}}};
        else
            job.ops[rank][0] = {{out}, {in}};
    }
    return job;
}

TEST(Ring, AGroupGoesByDistance)
{
    EXPECT_EQ(explore({}, all_to_all(true)), "");
}

TEST(Ring, AGroupInAnotherOrderIsStuck)
{
    EXPECT_EQ(explore({}, all_to_all(false)).substr(0, 5), "stuck");
}

// Two streams of each rank: one receives, the other computes first and then sends.
Job beside_the_application(int places)
{
    Job job = {2, places, {{0, 1}, {1, 0}}, {{0, 3}, {1, 3}}, {}};
    for (int rank : {0, 1}) {
        job.ops[rank][0] = {{{!rank}}};
        job.ops[rank][1] = {{{}}, {{rank}}};
    }
    return job;
}

TEST(Ring, WhatWaitsLeavesRoomForTheApplication)
{
    EXPECT_EQ(explore({}, beside_the_application(2)), "");
}

// ---- what each rule is for

TEST(Ring, AGuardThatLeavesItsWaveAloneIsFound)
{
    Rules rules;
    rules.guard_stays = false;
    EXPECT_NE(explore(rules, one_way(1, {3})), "");
}

TEST(Ring, HandsThatPushWhatThereIsNoRoomForAreFound)
{
    Rules rules;
    rules.first_part = false;
    EXPECT_EQ(explore(rules, one_way(2, {3})).substr(0, 6), "a hand");
}

TEST(Ring, HandsThatTakeBeforeTheMessageComesAreFound)
{
    Rules rules;
    rules.take_after_header = false;
    EXPECT_EQ(explore(rules, one_way(2, {3})).substr(0, 6), "a hand");
}

} // namespace
