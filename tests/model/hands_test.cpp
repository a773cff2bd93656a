// SPDX-License-Identifier: BSD-3-Clause
// Every interleaving of launches that wait and launches of hands (docs/protocols.md, "Who waits")
// on two devices with few places for blocks, step by step, and what is found when a step is left
// out or done too soon.
//
// Each rank has two streams: one pushes messages to the other rank, one takes those that come from
// there. A message has two shares and one slot. A push is a launch of a block that waits and two
// hands, and a second launch of two hands; a take is a launch of a block that waits, and one of two
// hands. Before its first push each rank has a kernel of the application.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "model/space.h"

namespace
{

const int SHARES = 3; // most

// A block: not there yet, on the device, or over.
enum { AWAY, HERE, OVER };

struct Push {
    uint8_t message; // that is pushed, or 0: before the kernel of the application
    uint8_t waits;   // the block that waits
    // Hands of both launches: AWAY, HERE, with a claim (CLAIMS) that it is about to give back
    // (LEAVES), at work at a share (DOES), OVER.
    uint8_t hands[2][SHARES];
    uint8_t does[2][SHARES]; // ... which
    uint8_t claimed[SHARES]; // the message
    uint8_t credit;          // by the peer
};

struct Take {
    uint8_t message; // that is taken
    uint8_t waits;
    uint8_t hands[SHARES];
    uint8_t line[SHARES]; // by the peer: the message whose share is there
};

struct Rank {
    Push push;
    Take take;
    uint8_t kernel; // of the application
    uint8_t pad;
};

struct State {
    Rank rank[2];
    uint8_t wrong;
    uint8_t pad[7];
};
static_assert(sizeof(State) % 8 == 0, "plain bytes");

enum { CLAIMS = 3, LEAVES, DOES };

struct Rules {
    int places = 2, shares = 2, second = 2; // hands of the second launch
    int messages[2] = {2, 1};
    bool kernel = true;     // of the application
    bool looks = true;      // a hand that has done its share does those that nobody has claimed
    bool awaits = true;     // hands that take are launched behind the first line
    bool leaves = true;     // hands of the first launch leave where they may not begin
    bool decides = true;    // the second launch begins when those of the first have decided
    bool gives_back = true; // who leaves gives its share back
};

int taken_places(const Rank &r)
{
    int n = (r.kernel == HERE) + (r.push.waits == HERE) + (r.take.waits == HERE);
    for (int i = 0; i < SHARES; i++) {
        for (int launch = 0; launch < 2; launch++)
            n += r.push.hands[launch][i] != AWAY && r.push.hands[launch][i] != OVER;
        n += r.take.hands[i] == HERE;
    }
    return n;
}

bool has_place(const Rules &rules, const Rank &r)
{
    return taken_places(r) < rules.places;
}

bool may_push(const Push &p)
{
    return p.credit + 1 >= p.message;
}

bool arrive(const Rules &rules, State &s, int rank, uint8_t &block)
{
    if (!has_place(rules, s.rank[rank]))
        return false;
    block = HERE;
    return true;
}

// The application's kernel, which a peer waits for: the first push stands behind it.
bool application(const Rules &rules, State &s, int rank)
{
    Rank &r = s.rank[rank];
    if (r.kernel == AWAY)
        return arrive(rules, s, rank, r.kernel);
    if (r.kernel == OVER)
        return false;
    r.kernel = OVER;
    r.push.message = 1;
    return true;
}

bool runs(const Rules &rules, const State &s, int rank)
{
    const Push &p = s.rank[rank].push;
    return p.message > 0 && p.message <= rules.messages[rank];
}

bool wait_for_room(const Rules &rules, State &s, int rank)
{
    Push &p = s.rank[rank].push;
    if (!runs(rules, s, rank) || p.waits == OVER)
        return false;
    if (p.waits == AWAY)
        return arrive(rules, s, rank, p.waits);
    if (!may_push(p))
        return false;
    p.waits = OVER;
    return true;
}

// Claims a share for a hand: its own one first.
uint8_t claim(const Rules &rules, Push &p, int launch, int hand)
{
    for (int i = 0; i < rules.shares; i++) {
        const int share = (hand + i) % rules.shares;
        if (p.claimed[share] == p.message)
            continue;
        p.claimed[share] = p.message;
        p.does[launch][hand] = uint8_t(share);
        return DOES;
    }
    return OVER;
}

void do_share(const Rules &rules, State &s, int rank, int launch, int hand)
{
    Push &p = s.rank[rank].push;
    Take &peer = s.rank[!rank].take;
    uint8_t &line = peer.line[p.does[launch][hand]];
    // The slot holds the message before until that was taken.
    s.wrong |= line != 0 && peer.message <= line;
    line = p.message;
    p.does[launch][hand] = 0;
    p.hands[launch][hand] = rules.looks ? claim(rules, p, launch, hand) : uint8_t(OVER);
}

// It claims its own share, then looks whether it may begin. What another hand has claimed is at
// work already.
bool first_hand(const Rules &rules, State &s, int rank, int hand, bool leave)
{
    Push &p = s.rank[rank].push;
    uint8_t &block = p.hands[0][hand];
    const bool was_away = block == AWAY;
    if (!runs(rules, s, rank) || block == OVER || (leave && block != CLAIMS))
        return false;
    if (block == AWAY && !arrive(rules, s, rank, block))
        return false;
    // Where there is room from the start, what it claims it does.
    if (block == HERE && rules.second == 0) {
        block = claim(rules, p, 0, hand);
        return true;
    }
    if (was_away)
        return true;
    if (block == HERE) {
        block = p.claimed[hand] == p.message ? claim(rules, p, 0, hand) : uint8_t(CLAIMS);
        p.claimed[hand] = p.message;
        return true;
    }
    if (block == DOES) {
        do_share(rules, s, rank, 0, hand);
        return true;
    }
    if (block == LEAVES) {
        if (rules.gives_back)
            p.claimed[hand] = 0;
        block = OVER;
        return true;
    }
    if (may_push(p) == leave || (leave && !rules.leaves))
        return false;
    p.does[0][hand] = uint8_t(leave ? 0 : hand);
    block = leave ? uint8_t(LEAVES) : uint8_t(DOES);
    return true;
}

// The first launch lets the second one in when its block has waited and its hands have decided.
bool is_let_in(const Rules &rules, const Push &p)
{
    bool decided = true;
    for (int i = 0; i < rules.shares; i++)
        decided = decided && (p.hands[0][i] == DOES || p.hands[0][i] == OVER);
    return p.waits == OVER && (decided || !rules.decides);
}

bool second_hand(const Rules &rules, State &s, int rank, int hand)
{
    Push &p = s.rank[rank].push;
    uint8_t &block = p.hands[1][hand];
    if (!runs(rules, s, rank) || block == OVER || !is_let_in(rules, p))
        return false;
    if (block == AWAY)
        return arrive(rules, s, rank, block);
    if (block == DOES)
        do_share(rules, s, rank, 1, hand);
    else
        block = claim(rules, p, 1, hand);
    return true;
}

// The message is counted when both launches are over.
bool end_push(const Rules &rules, State &s, int rank)
{
    Push &p = s.rank[rank].push;
    if (!runs(rules, s, rank) || p.waits != OVER)
        return false;
    for (int i = 0; i < rules.shares; i++) {
        if (p.hands[0][i] != OVER || (i < rules.second && p.hands[1][i] != OVER))
            return false;
        s.wrong |= s.rank[!rank].take.line[i] != p.message;
    }
    p.message++;
    p.waits = AWAY;
    for (int i = 0; i < rules.shares; i++)
        p.hands[0][i] = p.hands[1][i] = AWAY;
    return true;
}

bool wait_for_message(const Rules &rules, State &s, int rank)
{
    Take &t = s.rank[rank].take;
    if (t.message > rules.messages[!rank] || t.waits == OVER)
        return false;
    if (t.waits == AWAY)
        return arrive(rules, s, rank, t.waits);
    if (rules.awaits && t.line[0] != t.message)
        return false;
    t.waits = OVER;
    return true;
}

bool take_hand(const Rules &rules, State &s, int rank, int hand)
{
    Take &t = s.rank[rank].take;
    if (t.message > rules.messages[!rank] || t.waits != OVER || t.hands[hand] == OVER)
        return false;
    if (t.hands[hand] == AWAY)
        return arrive(rules, s, rank, t.hands[hand]);
    if (t.line[hand] != t.message)
        return false;
    t.hands[hand] = OVER;
    for (int i = 0; i < rules.shares; i++)
        if (t.hands[i] != OVER)
            return true;
    s.rank[!rank].push.credit = t.message;
    t.message++;
    t.waits = AWAY;
    for (int i = 0; i < rules.shares; i++)
        t.hands[i] = AWAY;
    return true;
}

std::string explore(const Rules &rules)
{
    using Move = std::function<bool(State &)>;
    std::vector<Move> moves;
    for (int rank = 0; rank < 2; rank++) {
        moves.push_back([&, rank](State &s) { return application(rules, s, rank); });
        moves.push_back([&, rank](State &s) { return wait_for_room(rules, s, rank); });
        moves.push_back([&, rank](State &s) { return end_push(rules, s, rank); });
        moves.push_back([&, rank](State &s) { return wait_for_message(rules, s, rank); });
        for (int hand = 0; hand < rules.shares; hand++) {
            for (bool leave : {false, true})
                moves.push_back([&, rank, hand, leave](State &s) {
                    return first_hand(rules, s, rank, hand, leave);
                });
            if (hand < rules.second)
                moves.push_back(
                    [&, rank, hand](State &s) { return second_hand(rules, s, rank, hand); });
            moves.push_back([&, rank, hand](State &s) { return take_hand(rules, s, rank, hand); });
        }
    }
    State start{};
    for (Rank &r : start.rank) {
        r.take.message = 1;
        r.push.message = !rules.kernel;
        r.kernel = rules.kernel ? uint8_t(AWAY) : uint8_t(OVER);
    }
    model::Space<State> space;
    space.add(start, 0, 0);
    for (size_t i = 0; i < space.size(); i++) {
        bool moved = false;
        for (size_t move = 0; move < moves.size(); move++) {
            State next = space[i];
            if (!moves[move](next))
                continue;
            moved = true;
            if (next.wrong)
                return "wrong data";
            space.add(next, i, int(move));
        }
        const State &s = space[i];
        const bool over = s.rank[0].take.message > rules.messages[1] &&
                          s.rank[1].take.message > rules.messages[0];
        if (!moved && !over)
            return "deadlock";
    }
    return space.size() > 1000 ? "" : "nothing was explored";
}

// Those of the block that waits for a message, and one more.
TEST(Hands, TwoPlacesAreEnough)
{
    EXPECT_EQ(explore({}), "");
    EXPECT_EQ(explore({.shares = 3, .second = 0, .messages = {1, 1}, .kernel = false}), "");
}

TEST(Hands, WhatIsLeftOutIsFound)
{
    EXPECT_EQ(explore({.places = 1}), "deadlock") << "what waits has the only one";
    EXPECT_EQ(
        explore({.shares = 3, .second = 0, .messages = {1, 1}, .kernel = false, .looks = false}),
        "deadlock")
        << "what takes has the places of what pushes";
    EXPECT_EQ(explore({.awaits = false}), "deadlock") << "hands wait without bound";
    EXPECT_EQ(explore({.messages = {2, 2}, .leaves = false}), "deadlock")
        << "what pushes has the places of what takes";
    EXPECT_EQ(explore({.decides = false}), "wrong data") << "a share that was given back later";
    EXPECT_EQ(explore({.gives_back = false}), "wrong data") << "nobody has pushed a share";
}

} // namespace
