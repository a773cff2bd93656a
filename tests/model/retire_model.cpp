// SPDX-License-Identifier: BSD-3-Clause
// The handshake by which a channel of a key makes way, against exchanges of that key at both ranks.
// The library's functions decide (agreement.h, retire.h).
#include <cstdint>

#include "model/lifetime_model.h"
#include "model/space.h"

extern "C" {
#include "rules/retire.h"
}

namespace model
{
namespace
{

const int ROUNDS = 6;

struct Side {
    phi_agreement agreement;
    uint8_t word[2];                  // rounds that are published
    uint8_t number[2];                // ... and of which buffer
    uint8_t has;                      // the channel
    uint8_t handles;                  // of the application
    uint8_t retiring;                 // asked, and not answered
    uint8_t missed;                   // the open round is a miss, and confirmed
    uint8_t left;                     // exchanges to come
    uint8_t question, question_round; // from the peer, under way
    uint8_t answer;                   // to a question of ours, under way; 0: none
    uint8_t released;                 // the own first buffer
    uint8_t revoked;                  // of one of the two buffers this side knows that
    uint8_t pad[2];
};

struct State {
    Side side[2];
    uint8_t fact[ROUNDS + 2]; // 0: nobody knows yet, 1: miss, 2: hit
};

class Explorer
{
  public:
    Explorer(RetireBreak broken, bool both, int exchanges, int releaser)
        : broken_(broken), both_(both), exchanges_(exchanges), releaser_(releaser), space_(true)
    {
    }
    LifetimeOutcome run();

  private:
    bool is(RetireBreak what) const
    {
        return broken_ == what;
    }
    void step(int side, const char *name, const State &next)
    {
        names_.push_back(std::string(side ? "higher: " : "lower: ") + name);
        space_.add(next, at_, static_cast<int>(names_.size() - 1));
    }
    void exchange(const State &s, int side);
    void take(const State &s, int side);
    void finish(const State &s, int side);
    void release(const State &s, int side);
    void ask(const State &s, int side);
    void handshake(const State &s, int side);
    bool exchanging(const Side &own, bool asks) const;
    void answer(const State &s, int side);

    RetireBreak broken_;
    bool both_;
    int exchanges_;
    int releaser_; // the side that releases its buffer and goes on with another, or -1
    Space<State> space_;
    std::vector<std::string> names_;
    std::string failure_;
    size_t at_ = 0;
};

void Explorer::exchange(const State &s, int side)
{
    const Side &own = s.side[side];
    State n = s;
    if (own.agreement.state == PHI_AGREEMENT_IDLE && own.left > 0 &&
        (!own.retiring || releaser_ >= 0 || is(RetireBreak::PUBLISHES))) {
        uint64_t word;
        phi_agreement_publish(&n.side[side].agreement, own.released ? 2 : 1, &word);
        n.side[side].word[(word >> 32) & 1] = static_cast<uint8_t>(word >> 32);
        n.side[side].number[(word >> 32) & 1] = static_cast<uint8_t>(word);
        n.side[side].left--;
        step(side, "publishes", n);
    }
    if (own.agreement.state == PHI_AGREEMENT_PUBLISHED)
        take(s, side);
    if (own.agreement.state == PHI_AGREEMENT_OPEN)
        finish(s, side);
    if (own.handles > 0) {
        n = s;
        n.side[side].handles--;
        step(side, "closes a handle", n);
    }
}

// Of a pair with another buffer nothing is told here.
bool is_about_it(const Side &own)
{
    return own.agreement.mine == 1 && own.agreement.theirs == 1;
}

// The pair is looked up when the round is taken.
void Explorer::take(const State &s, int side)
{
    State n = s;
    Side &own = n.side[side];
    uint8_t round = s.side[!side].word[own.agreement.round & 1];
    uint64_t theirs = phi_agreement_word(round, s.side[!side].number[own.agreement.round & 1]);
    if (round == 0 || phi_agreement_look(&own.agreement, theirs) != PHI_AGREEMENT_TAKEN)
        return;
    uint8_t fact = !is_about_it(own) ? 3 : own.has ? 2 : 1;
    own.missed = fact == 1;
    uint8_t &known = n.fact[own.agreement.round % (ROUNDS + 2)];
    if (known != 0 && known != fact)
        failure_ = "one round is a hit here and a miss there";
    known = fact;
    step(side, fact == 3 ? "takes another pair" : fact == 2 ? "takes a hit" : "takes a miss", n);
}

// A miss ends when both have taken it (they confirm); then both have the channel.
void Explorer::finish(const State &s, int side)
{
    State n = s;
    Side &own = n.side[side];
    const Side &peer = s.side[!side];
    bool there =
        peer.agreement.round > own.agreement.round ||
        (peer.agreement.round == own.agreement.round && peer.agreement.state == PHI_AGREEMENT_OPEN);
    if (own.missed && !there)
        return;
    if (is_about_it(own)) {
        if (!own.missed && !own.has)
            failure_ = "the channel of a hit is gone before the application has it";
        own.has = 1;
        own.missed = 0;
        own.handles++;
    }
    phi_agreement_done(&own.agreement);
    step(side, "returns the channel", n);
}

// The owner releases its buffer at any time; the peer hears of it later.
void Explorer::release(const State &s, int side)
{
    State n = s;
    if (releaser_ < 0 || s.side[side].revoked || (side != releaser_ && !s.side[!side].released))
        return;
    n.side[side].released = side == releaser_;
    n.side[side].revoked = 1;
    step(side, side == releaser_ ? "releases" : "hears of the release", n);
}

bool Explorer::exchanging(const Side &own, bool asks) const
{
    if (is(RetireBreak::IN_THE_ROUND) && (!asks || own.agreement.state == PHI_AGREEMENT_OPEN))
        return false;
    if (asks && is(RetireBreak::ASKS_PUBLISHED) && own.agreement.state == PHI_AGREEMENT_PUBLISHED)
        return false;
    if (releaser_ < 0)
        return phi_retire_exchanging(&own.agreement, asks, 1, 1);
    return phi_retire_ending(&own.agreement, own.released && !is(RetireBreak::STILL_PUBLISHED), 1,
                             1);
}

void Explorer::ask(const State &s, int side)
{
    const Side &own = s.side[side];
    State n = s;
    const bool held = own.handles > 0;
    phi_retire_view view = {exchanging(own, true), own.agreement.round, held, false, false};
    if (releaser_ >= 0 && !own.revoked && !is(RetireBreak::UNRELEASED))
        return;
    if (own.has && !own.retiring && !own.missed && (side == 0 || both_) &&
        phi_retire_judge(&view, own.agreement.round) == PHI_RETIRE_YES &&
        s.side[!side].question == 0) {
        n.side[side].retiring = 1;
        n.side[!side].question = 1;
        n.side[!side].question_round = static_cast<uint8_t>(own.agreement.round);
        if (is(RetireBreak::REUSES_AT_ONCE))
            n.side[side].has = 0;
        step(side, "asks", n);
    }
}

void Explorer::handshake(const State &s, int side)
{
    const Side &own = s.side[side];
    State n = s;
    ask(s, side);
    if (own.answer != 0) {
        Side &mine = n.side[side];
        if (own.answer == PHI_RETIRE_YES) {
            mine.has = 0;
            // From here on the line serves another channel.
            if (s.side[!side].has && s.side[!side].agreement.round == own.agreement.round)
                failure_ = "the line goes on while the peer has the channel";
        }
        mine.answer = 0;
        mine.retiring = 0;
        step(side, "hears the answer", n);
    }
    if (is(RetireBreak::REUSES_AT_ONCE) && own.retiring && s.side[!side].has &&
        s.side[!side].handles > 0)
        failure_ = "the line goes on while the peer has the channel";
}

void Explorer::answer(const State &s, int side)
{
    const Side &own = s.side[side];
    State n = s;
    if (own.question == 0 || s.side[!side].answer != 0)
        return;
    const bool held = own.handles > 0 && !own.revoked;
    phi_retire_view view = {exchanging(own, false), own.agreement.round,
                            held && !is(RetireBreak::ANY_HANDLE), false, false};
    uint32_t round = is(RetireBreak::ANY_ROUND) ? own.agreement.round : own.question_round;
    int verdict = phi_retire_judge(&view, round);
    if (verdict == PHI_RETIRE_YES) {
        if (held)
            failure_ = "a channel that the application holds is gone";
        n.side[side].has = 0;
    }
    n.side[side].question = 0;
    n.side[!side].answer = static_cast<uint8_t>(verdict);
    step(side, verdict == PHI_RETIRE_YES ? "says yes" : "says no", n);
}

LifetimeOutcome Explorer::run()
{
    LifetimeOutcome outcome;
    State start;
    memset(&start, 0, sizeof start);
    for (Side &side : start.side)
        side.left = static_cast<uint8_t>(exchanges_);
    names_.push_back("start");
    space_.add(start, 0, 0);
    for (at_ = 0; at_ < space_.size() && failure_.empty(); at_++) {
        const State s = space_[at_];
        for (int side = 0; side < 2 && failure_.empty(); side++) {
            exchange(s, side);
            release(s, side);
            handshake(s, side);
            answer(s, side);
        }
        if (!failure_.empty())
            for (const auto &move : space_.path(at_))
                outcome.trace += names_[static_cast<size_t>(move.move)] + "\n";
    }
    outcome.states = space_.size();
    outcome.failure = failure_;
    if (!failure_.empty())
        return outcome;
    auto ends = space_.reaching([](const State &s) {
        return s.side[0].left + s.side[1].left == 0 && !s.side[0].retiring && !s.side[1].retiring &&
               s.side[0].agreement.state == PHI_AGREEMENT_IDLE &&
               s.side[1].agreement.state == PHI_AGREEMENT_IDLE;
    });
    for (size_t i = 0; i < ends.size() && outcome.failure.empty(); i++)
        if (!ends[i])
            outcome.failure = "exchanges that never end";
    return outcome;
}

} // namespace

LifetimeOutcome explore_retire(RetireBreak broken, bool both, int exchanges)
{
    return Explorer(broken, both, exchanges, -1).run();
}

LifetimeOutcome explore_spent(RetireBreak broken, int releaser, int exchanges)
{
    return Explorer(broken, false, exchanges, releaser).run();
}

} // namespace model
