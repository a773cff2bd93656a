// SPDX-License-Identifier: BSD-3-Clause
// Every interleaving of the proxy's nap (docs/protocols.md, "Bells"), by single loads and stores:
// an application that enqueues and captures, a stream that rings, the proxy, and a thread that
// polls beside it. The proxy has no time-out here, so a wake-up that is lost is a state from which
// the end is not reached.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/space.h"

namespace
{

// What the application does: bells that land, and that do not; a graph with two replays.
enum Call : uint8_t { LANDS, TELLS, CAPTURE, REPLAY, DESTROY, OVER };
const std::vector<Call> applications[] = {
    {LANDS, LANDS, TELLS, OVER},
    {TELLS, CAPTURE, REPLAY, REPLAY, DESTROY, LANDS, OVER},
};
const uint8_t POLLS = 2; // by the thread beside the proxy

enum Thread : uint8_t { NOBODY, PROXY, BESIDE };

// Of a thread that polls, under the lock: poll_links, phi_staging_go, retire.
enum Poll : uint8_t { TAKE, GO, BUSY, REST, LEAVE, BUSY_AGAIN, REST_AGAIN, STAY, UNLOCK, IDLE };

enum Place : uint8_t { LOOP, LOOK_EARLY, SAY, LOOK, LOCK, LANES, LOOK_LATE, SLEEP, WAKE };

struct State {
    uint8_t call, at;             // of the application
    uint8_t issued, done, pinned; // `busy`: what the stream was given, and what it has done; graphs
    uint8_t ringing, rung, landed; // ringing: the stream has rung for its present bell
    uint8_t awaiting, listed, active;
    uint8_t asleep, wake;
    uint8_t holder, poll[3]; // by Thread
    uint8_t nap, lanes, polls;
    uint8_t slept; // the application saw the proxy asleep
    uint8_t pad[3];
};
static_assert(sizeof(State) % 8 == 0, "plain bytes");

struct Rules {
    bool kicks = true;        // the application tells the net
    bool lists_first = true;  // ... before it looks whether the proxy is asleep
    bool rings = true;        // ... and wakes it then
    bool second_look = true;  // at a lane that is left: another kick found it there
    bool busy_first = true;   // what a stream did before it was done is seen after it
    bool pins = true;         // a graph keeps its lane
    bool says_asleep = true;  // before it looks for the last time
    bool looks = true;        // ... at what was kicked
    bool looks_lanes = true;  // ... and at what another thread has taken of that
    bool kicked_first = true; // ... in this order
};

class Model
{
  public:
    Model(const Rules &rules, const std::vector<Call> &application)
        : rules_(rules), calls_(application)
    {
    }

    std::string explore()
    {
        model::Space<State> space(true);
        State first{};
        first.poll[PROXY] = first.poll[BESIDE] = IDLE;
        space.add(first, 0, 0);
        for (size_t i = 0; i < space.size(); i++)
            for (int actor = 0; actor < 8; actor++) {
                State next = space[i];
                if (act(next, actor))
                    space.add(next, i, actor);
            }
        states = space.size();
        const auto reaches = space.reaching([this](const State &s) {
            return calls_[s.call] == OVER && s.done == s.issued && s.landed == s.rung &&
                   s.nap == SLEEP && !s.wake;
        });
        for (char each : reaches)
            if (!each)
                return "asleep for ever";
        return states > 200 ? "" : "nothing was explored";
    }

    size_t states = 0;

  private:
    bool act(State &s, int actor)
    {
        switch (actor) {
        case 0:
            return enqueue(s);
        case 1:
            return stream(s);
        case 2:
            return proxy(s);
        case 3:
        case 4:
            return poll(s, PROXY, actor == 4);
        case 5:
        case 6:
            return poll(s, BESIDE, actor == 6);
        default:
            return beside(s);
        }
    }

    // ---- the application: the work, then phi_lane_kick

    bool enqueue(State &s)
    {
        const Call call = calls_[s.call];
        if (call == OVER)
            return false;
        if (s.at == 0) {
            if (call == DESTROY && s.done != s.issued)
                return false; // it waits for its stream
            s.pinned = call == CAPTURE ? 1 : call == DESTROY ? 0 : s.pinned;
            s.issued = uint8_t(s.issued + (call == LANDS || call == TELLS || call == REPLAY));
            s.at = 1;
            if (call == REPLAY || call == DESTROY || !rules_.kicks)
                next_call(s); // nobody of ours is told
            return true;
        }
        return kick(s);
    }

    void next_call(State &s)
    {
        s.call++;
        s.at = 0;
    }

    bool kick(State &s)
    {
        const uint8_t was = s.awaiting;
        switch (s.at) {
        case 1:
            s.awaiting = 1;
            s.at = 2;
            if (was)
                next_call(s);
            return true;
        case 2:
        case 3:
            if ((s.at == 2) == rules_.lists_first)
                s.listed = 1;
            else
                s.slept = s.asleep;
            s.at++;
            return true;
        default:
            s.wake = s.wake || (rules_.rings && s.slept);
            s.slept = 0;
            next_call(s);
            return true;
        }
    }

    // ---- the stream

    Call present(const State &s) const
    {
        uint8_t n = 0;
        for (const Call call : calls_)
            if ((call == LANDS || call == TELLS || call == REPLAY) && n++ == s.done)
                return call;
        return OVER;
    }

    bool stream(State &s)
    {
        if (s.done == s.issued)
            return false;
        if (!s.ringing) {
            s.ringing = 1;
            s.rung++;
            return true;
        }
        if (present(s) != TELLS && s.landed != s.rung)
            return false;
        s.ringing = 0;
        s.done++;
        return true;
    }

    bool busy(const State &s) const
    {
        return s.done != s.issued || (rules_.pins && s.pinned);
    }

    // ---- who polls. moves_on: what has been quiet for long enough is asked.

    bool poll(State &s, Thread who, bool quiet)
    {
        uint8_t &at = s.poll[who];
        if (at == IDLE || (quiet && at != GO))
            return false;
        switch (at) {
        case TAKE:
            s.active = s.active || s.listed;
            s.listed = 0;
            at = GO;
            return true;
        case GO:
            if (quiet && (!s.active || s.landed != s.rung))
                return false;
            if (s.active && !quiet)
                s.landed = s.rung;
            at = quiet ? BUSY : UNLOCK;
            return true;
        case BUSY:
        case REST:
        case BUSY_AGAIN:
        case REST_AGAIN:
            return look(s, at);
        case LEAVE:
            s.awaiting = 0;
            at = rules_.second_look ? BUSY_AGAIN : UNLOCK;
            s.active = rules_.second_look;
            return true;
        case STAY: // takes it back, unless a kick has it
            s.active = s.awaiting == 0;
            s.awaiting = 1;
            at = UNLOCK;
            return true;
        default:
            if (who == PROXY)
                s.lanes = s.active;
            s.holder = NOBODY;
            at = IDLE;
            return true;
        }
    }

    // may_sleep: two loads.
    bool look(State &s, uint8_t &at)
    {
        const bool first = at == BUSY || at == BUSY_AGAIN, again = at >= BUSY_AGAIN;
        const bool quiet = first == rules_.busy_first ? !busy(s) : s.landed == s.rung;
        if (!quiet)
            at = again ? STAY : UNLOCK;
        else if (first)
            at++;
        else if (!again)
            at = LEAVE;
        else {
            s.active = 0;
            at = UNLOCK;
        }
        return true;
    }

    bool lock(State &s, Thread who)
    {
        if (s.holder != NOBODY)
            return false;
        s.holder = who;
        s.poll[who] = TAKE;
        return true;
    }

    bool beside(State &s)
    {
        if (s.polls == POLLS || s.poll[BESIDE] != IDLE || !lock(s, BESIDE))
            return false;
        s.polls++;
        return true;
    }

    // ---- the proxy: proxy_main and sleep_on

    bool proxy(State &s)
    {
        if (s.poll[PROXY] != IDLE)
            return false;
        switch (s.nap) {
        case LOOP: // it polls, and naps when there is nothing
            if (!lock(s, PROXY))
                s.lanes = 0; // phi_net_trylock
            s.nap = LOOK_EARLY;
            return true;
        case LOOK_EARLY:
            s.nap = s.lanes || s.listed ? LOOP : SAY;
            return true;
        case SAY:
            s.asleep = rules_.says_asleep;
            s.nap = rules_.looks && rules_.kicked_first ? LOOK : LOCK;
            return true;
        case LOOK:
            s.nap = s.listed ? WAKE : LOCK;
            return true;
        case LOCK:
            if (s.holder != NOBODY)
                return false;
            s.holder = PROXY;
            s.nap = LANES;
            return true;
        case LANES:
            s.holder = NOBODY;
            s.nap = s.active && rules_.looks_lanes         ? WAKE
                    : rules_.looks && !rules_.kicked_first ? LOOK_LATE
                                                           : SLEEP;
            return true;
        case LOOK_LATE:
            s.nap = s.listed ? WAKE : SLEEP;
            return true;
        case SLEEP:
            s.asleep = 1; // in the mutation that says so late
            if (!s.wake)
                return !rules_.says_asleep;
            s.nap = WAKE;
            return true;
        default:
            s.asleep = s.wake = 0;
            s.nap = LOOP;
            return true;
        }
    }

    const Rules rules_;
    const std::vector<Call> calls_;
};

std::string explore(const Rules &rules)
{
    for (const auto &application : applications) {
        Model model(rules, application);
        const std::string failure = model.explore();
        if (!failure.empty())
            return failure;
        printf("%zu states\n", model.states);
    }
    return "";
}

TEST(Nap, EveryInterleaving)
{
    EXPECT_EQ(explore({}), "");
}

TEST(Nap, FindsWhatIsLeftOut)
{
    const char *lost = "asleep for ever";
    EXPECT_EQ(explore({.kicks = false}), lost);
    EXPECT_EQ(explore({.lists_first = false}), lost);
    EXPECT_EQ(explore({.rings = false}), lost);
    EXPECT_EQ(explore({.second_look = false}), lost);
    EXPECT_EQ(explore({.busy_first = false}), lost);
    EXPECT_EQ(explore({.pins = false}), lost);
    EXPECT_EQ(explore({.says_asleep = false}), lost);
    EXPECT_EQ(explore({.looks = false}), lost);
    EXPECT_EQ(explore({.looks_lanes = false}), lost);
    EXPECT_EQ(explore({.kicked_first = false}), lost) << "another thread took it in between";
}

} // namespace
