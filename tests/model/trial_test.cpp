// SPDX-License-Identifier: BSD-3-Clause
// Two ranks that find out whether ipc serves them, in every interleaving: questions and answers
// that come late or not at all, tries by the application's thread and by the service's, ranks that
// begin a new life. And with each rule taken out, which must be found.
#include <cerrno>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/space.h"

extern "C" {
#include <peerhop/error.h>

#include "rules/outcomes.h"
}

namespace
{

using model::Space;

enum class Break {
    NOTHING,
    GOES_BY_ITS_OWN,  // without the other's outcome
    GOES_BY_THEIRS,   // without its own
    TRIES_AGAIN,      // which may come out otherwise
    KEEPS_A_LIFE,     // what a former life said is taken for the next one's
    ASKS_ONCE,        // though the answer was that the other one had not tried
    NOBODY_TRIES_FOR, // who is asked waits for its application to come
};

enum { IPC = 1, NET = 2, LIVES = 2 };

struct Side {
    uint8_t life;
    uint8_t of; // life of the other that all below is about; 0: none
    uint8_t tried, told, mine, theirs;
    uint8_t trying; // the service's thread
    uint8_t asked;
};

// A question of one rank, and its answer.
struct Call {
    uint8_t kind; // 0: none, 1: question, 2: answer
    uint8_t from, to, word;
};

struct State {
    Side side[2];
    Call call[2];
    uint8_t gone_by[2][LIVES][LIVES]; // what a rank has gone by, by the lives of 0 and 1
};

// Of each life of each rank: whether it can map the other's memory.
struct World {
    bool maps[2][LIVES];
    bool comes[2]; // to an exchange at all
};

struct Outcome {
    std::string failure;
    size_t states = 0;
};

phi_outcomes outcomes_of(const Side &side)
{
    phi_outcomes outcomes = {};
    outcomes.tried = side.tried;
    outcomes.told = side.told;
    outcomes.mine = static_cast<phi_reason>(side.mine);
    outcomes.theirs = static_cast<phi_reason>(side.theirs);
    return outcomes;
}

void store(Side &side, const phi_outcomes &outcomes)
{
    side.tried = outcomes.tried;
    side.told = outcomes.told;
    side.mine = static_cast<uint8_t>(outcomes.mine);
    side.theirs = static_cast<uint8_t>(outcomes.theirs);
}

class Search
{
  public:
    Search(const World &world, Break broken) : world_(world), broken_(broken), space_(true)
    {
    }

    Outcome run()
    {
        State first = {};
        first.side[0].life = first.side[1].life = 1;
        space_.add(first, 0, 0);
        for (at_ = 0; at_ < space_.size() && failure_.empty(); at_++)
            for (int rank : {0, 1})
                moves(rank);
        if (failure_.empty())
            look_for_ends();
        return {failure_, space_.size()};
    }

  private:
    State now() const
    {
        return space_[at_];
    }
    void go(const State &next)
    {
        space_.add(next, at_, 0);
    }

    // False: of a life that is over.
    bool attend(Side &side, uint8_t life) const
    {
        if (life < side.of)
            return false;
        if (side.of == life)
            return true;
        const Side before = side;
        side = {};
        side.life = before.life;
        side.of = life;
        if (broken_ == Break::KEEPS_A_LIFE) {
            side.told = before.told;
            side.theirs = before.theirs;
        }
        return true;
    }

    void try_it(Side &side, int rank, bool maps) const
    {
        phi_outcomes outcomes = outcomes_of(side);
        if (broken_ == Break::TRIES_AGAIN)
            outcomes.tried = false;
        phi_outcomes_try(&outcomes,
                         maps ? PHI_REASON_NONE : phi_outcome_of(rank ? PH_EDRIVER : -EXDEV));
        store(side, outcomes);
        side.trying = 0;
    }

    void file(Side &side, uint8_t word)
    {
        phi_outcomes outcomes = outcomes_of(side);
        if (phi_outcomes_file(&outcomes, word))
            failure_ = "a word that no rank says";
        store(side, outcomes);
    }

    void ask(int rank)
    {
        State s = now();
        Side &side = s.side[rank];
        if (!world_.comes[rank] || s.call[rank].kind != 0)
            return;
        attend(side, s.side[!rank].life);
        if (broken_ == Break::ASKS_ONCE && side.asked)
            return;
        side.asked = broken_ == Break::ASKS_ONCE;
        const phi_outcomes outcomes = outcomes_of(side);
        if (phi_outcomes_settled(&outcomes))
            return;
        s.call[rank] = {1, side.life, s.side[!rank].life,
                        static_cast<uint8_t>(phi_outcomes_word(&outcomes))};
        go(s);
    }

    void answer(int rank) // the question of the other one
    {
        State s = now();
        Call &call = s.call[!rank];
        Side &side = s.side[rank];
        if (call.kind != 1)
            return;
        const uint8_t to = call.to, word = call.word;
        call.kind = 0;
        if (to == side.life && attend(side, call.from)) {
            file(side, word);
            if (!side.tried && broken_ != Break::NOBODY_TRIES_FOR)
                side.trying = 1;
            const phi_outcomes outcomes = outcomes_of(side);
            call.kind = 2;
            call.word = static_cast<uint8_t>(phi_outcomes_word(&outcomes));
        }
        if (call.kind == 0)
            call = {};
        go(s);
    }

    void hear(int rank)
    {
        State s = now();
        const Call call = s.call[rank];
        Side &side = s.side[rank];
        if (call.kind == 0)
            return;
        s.call[rank] = {};
        go(s); // lost, or too late
        if (call.kind != 2 || call.from != side.life || call.to != side.of)
            return;
        file(side, call.word);
        go(s);
        if (!side.tried || broken_ == Break::TRIES_AGAIN)
            each_way(rank, s);
    }

    void each_way(int rank, const State &from)
    {
        const bool maps = world_.maps[rank][from.side[rank].life - 1];
        for (bool other : {false, true}) {
            State s = from;
            if (other && broken_ != Break::TRIES_AGAIN)
                break;
            try_it(s.side[rank], rank, maps != other);
            go(s);
        }
    }

    void decide(int rank)
    {
        State s = now();
        Side &side = s.side[rank];
        phi_outcomes outcomes = outcomes_of(side);
        if (broken_ == Break::GOES_BY_ITS_OWN)
            outcomes.told = outcomes.tried;
        if (broken_ == Break::GOES_BY_THEIRS)
            outcomes.tried = outcomes.told;
        if (side.of == 0 || !phi_outcomes_settled(&outcomes))
            return;
        const int of0 = (rank ? side.of : side.life) - 1, of1 = (rank ? side.life : side.of) - 1;
        uint8_t &gone_by = s.gone_by[rank][of0][of1];
        const uint8_t path = phi_outcomes_against(&outcomes) == PHI_REASON_NONE ? IPC : NET;
        if (gone_by != 0 && gone_by != path)
            failure_ = "one rank goes two ways";
        gone_by = path;
        const uint8_t others = s.gone_by[!rank][of0][of1];
        if (others != 0 && others != path)
            failure_ = "the two go two ways";
        const bool serves = world_.maps[0][of0] && world_.maps[1][of1];
        if ((path == IPC) != serves && broken_ != Break::TRIES_AGAIN)
            failure_ = serves ? "the net, where ipc serves" : "ipc, which does not serve";
        go(s);
    }

    void moves(int rank)
    {
        ask(rank);
        answer(rank);
        hear(rank);
        decide(rank);
        if (now().side[rank].trying)
            each_way(rank, now());
        State s = now();
        if (s.side[rank].life < LIVES) { // its questions may still come
            const uint8_t life = s.side[rank].life;
            s.side[rank] = {};
            s.side[rank].life = static_cast<uint8_t>(life + 1);
            go(s);
        }
    }

    // Whoever lives and comes to an exchange can come to know the path, whatever has happened.
    void look_for_ends()
    {
        auto is_end = [this](const State &s) {
            const int of0 = s.side[0].life - 1, of1 = s.side[1].life - 1;
            return (!world_.comes[0] || s.gone_by[0][of0][of1]) &&
                   (!world_.comes[1] || s.gone_by[1][of0][of1]);
        };
        for (char reaches : space_.reaching(is_end))
            if (!reaches)
                failure_ = "a rank never comes to know the path";
    }

    World world_;
    Break broken_;
    Space<State> space_;
    size_t at_ = 0;
    std::string failure_;
};

std::vector<World> worlds()
{
    std::vector<World> all;
    for (int bits = 0; bits < 64; bits++) {
        const World world = {
            {{(bits & 1) != 0, (bits & 2) != 0}, {(bits & 4) != 0, (bits & 8) != 0}},
            {(bits & 16) != 0, (bits & 32) != 0}};
        if (world.comes[0] || world.comes[1])
            all.push_back(world);
    }
    return all;
}

// The failures of all worlds; "" where there are none.
std::set<std::string> failures(Break broken)
{
    std::set<std::string> all;
    size_t states = 0;
    for (const World &world : worlds()) {
        const Outcome outcome = Search(world, broken).run();
        states += outcome.states;
        if (!outcome.failure.empty())
            all.insert(outcome.failure);
    }
    printf("%zu states\n", states);
    return all;
}

TEST(TrialModel, BothRanksGoByTheSame)
{
    EXPECT_EQ(failures(Break::NOTHING), std::set<std::string>{});
}

TEST(TrialModel, EachRuleIsNeeded)
{
    const std::string apart = "the two go two ways", never = "a rank never comes to know the path",
                      useless = "ipc, which does not serve";
    EXPECT_EQ(failures(Break::GOES_BY_ITS_OWN).count(useless), 1u);
    EXPECT_EQ(failures(Break::GOES_BY_THEIRS).count(useless), 1u);
    EXPECT_EQ(failures(Break::TRIES_AGAIN).count(apart), 1u);
    EXPECT_EQ(failures(Break::KEEPS_A_LIFE).count(useless), 1u);
    EXPECT_EQ(failures(Break::ASKS_ONCE).count(never), 1u);
    EXPECT_EQ(failures(Break::NOBODY_TRIES_FOR).count(never), 1u);
}

} // namespace
