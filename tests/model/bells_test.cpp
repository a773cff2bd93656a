// SPDX-License-Identifier: BSD-3-Clause
// Every interleaving of bells (docs/protocols.md, "Bells"): two ranks, of which each has a stream
// that replays a graph, a lane and a net, by the library's programs and by the rules of
// base/stage.h; posts that arrive in any order, and the end of the link at any moment. And what is
// found when a rule is left out.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/space.h"
#include "support/atomic_compat.h"

extern "C" {
#include "base/stage.h"
#include "semaphore/words.h"
}

// Fewer, so that they come round within a replay. The rules of base/stage.h go by it where they are
// used.
#undef PHI_STAGE_SLOTS
#define PHI_STAGE_SLOTS 2u

namespace
{

constexpr uint32_t BEFORE =
    UINT32_MAX - 2; // bells that were rung at first: the numbers come round as well
constexpr uint8_t PARTS = 3;
constexpr int SIDES = 2;

enum Move : uint8_t { NOTHING, FLYING, DELIVERED, DONE };

struct Bell {
    uint8_t asks, part, word, bit, replay; // the replay that rang it: of what it moves
    uint8_t stale;                         // what stands there is of another bell: not written yet
};

// One end of a direction. Side 0 sends.
struct End {
    uint32_t rung, reach;     // the words: done[0], reach
    uint32_t begun, landed;   // the net's
    uint32_t over;            // ... rung when it looked at the end of the link
    uint8_t item, at, replay; // the stream: item of its graph, step of the item
    uint8_t broken, word[PHI_WORD_COUNT];
    uint8_t source[PARTS], buffer[PARTS]; // replays whose data is there; what came from the peer
    uint8_t ending;  // 1: no access any more; 2: the lane's bells are over; 3: all is said
    uint8_t mourned; // the service thread has set `broken`
    Bell slot[PHI_STAGE_SLOTS];
    Bell doing[PHI_STAGE_SLOTS]; // what the net has read there, less what it has done
    uint8_t move[PHI_STAGE_SLOTS];
    uint8_t flushing;              // 1: has begun
    uint8_t posts[PHI_WORD_COUNT]; // bits under way to the peer
    uint8_t fetched[PARTS];        // read, and not visible yet
};

struct State {
    End end[SIDES];
    uint8_t wrong, pad[7];
};
static_assert(sizeof(State) % 8 == 0, "plain bytes");

struct Rules {
    bool credit = true;       // a bell waits for a free slot
    bool record_first = true; // ... writes the slot before it counts up
    bool word_first = true;   // ... and its own copy of the word
    bool looks_void = true;   // ... is nothing where the link has ended
    bool lands = true;        // the stream waits for the landing
    bool finds_lost = true;   // ... and looks whether it was one
    bool sane = true;         // the net goes on where no more are rung than there are slots
    bool delivered = true;    // a bell lands when its copy is delivered
    bool flushed = true;      // ... and when what it read shows
    bool post_behind = true;  // a post begins when all before it have landed
    bool one_lane = true;     // ... with the gets that it tells of, which ring on its lane
    bool data_first = true;   // ... and comes with or after its own copy
    bool closed_first = true; // at the end of a link nothing touches memory when the bells are over
    bool tells_lost = true;   // ... and broken is set for what has not landed
    bool tells_first = true;  // ... before they are over
    bool lets_land = true;    // ... and they are
    bool mourns = true;       // broken ends the waits for words
};

// What a stream's graph consists of. Where a land stands is written here: that the library puts
// them there (add_bell and add_next of transfer/issue.c) no model compares.
enum Kind : uint8_t { BELL, LAND, PRODUCE, CONSUME };
struct Item {
    Kind kind;
    phi_bell bell;
    uint8_t part, asks; // of its copy
};
using Graph = std::vector<Item>;

struct Scenario {
    Graph graph[SIDES];
    uint8_t parts;
    bool ends; // the link does

    uint8_t replays() const
    {
        return ends ? 2 : 4;
    }
};

Item call(phi_call which, bool pull, uint8_t part, bool outgoing)
{
    const phi_bell bell = phi_bell_of(phi_program_of(which, PHI_BY_WORDS, pull));
    const uint8_t copies = bell.copies ? (outgoing ? PHI_BELL_COPY : PHI_BELL_READ) : 0;
    return {BELL, bell, part, uint8_t(copies | (bell.post ? PHI_BELL_POST : 0))};
}
const Item land = {LAND, {}, 0, 0}, produce = {PRODUCE, {}, 0, 0}, consume = {CONSUME, {}, 0, 0};

// A message, a put, and a signal that says that both are there.
Scenario by_put(bool ends)
{
    return {{{produce, call(PHI_CALL_TRANSFER, false, 0, true), call(PHI_CALL_PUT, false, 1, true),
              call(PHI_CALL_PUT_SIGNAL, false, 2, true), land},
             {call(PHI_CALL_POST, false, 0, false), call(PHI_CALL_COMPLETE, false, 0, false),
              call(PHI_CALL_WAIT, false, 0, false), consume}},
            3,
            ends};
}

// A message that its receiver reads.
Scenario by_get(bool ends)
{
    return {{{produce, call(PHI_CALL_POST, true, 0, true), call(PHI_CALL_COMPLETE, true, 0, true)},
             {call(PHI_CALL_TRANSFER, true, 0, false), land, consume}},
            1,
            ends};
}

// A put and a get behind it, and a signal that tells of both: what was read is written anew then.
Scenario by_both(bool ends)
{
    return {
        {{produce, call(PHI_CALL_TRANSFER, false, 0, true), call(PHI_CALL_GET, false, 2, false),
          call(PHI_CALL_PUT_SIGNAL, false, 1, true), land},
         {produce, call(PHI_CALL_POST, false, 0, false), call(PHI_CALL_COMPLETE, false, 0, false),
          call(PHI_CALL_WAIT, false, 0, false), consume}},
        2,
        ends};
}

uint32_t slot_of(uint32_t before)
{
    return before % PHI_STAGE_SLOTS;
}

class Model
{
  public:
    Model(const Rules &rules, const Scenario &scenario) : rules_(rules), scenario_(scenario)
    {
    }

    std::string explore()
    {
        model::Space<State> space;
        space.add(start(), 0, 0);
        for (size_t i = 0; i < space.size(); i++) {
            bool moved = false;
            for (int actor = 0; actor < ACTORS * SIDES; actor++) {
                State next = space[i];
                if (!act(next, actor))
                    continue;
                moved = true;
                if (next.wrong)
                    return failures[next.wrong];
                space.add(next, i, actor);
            }
            if (!moved && !is_over(space[i]))
                return "deadlock";
            if (space.size() > 20000000)
                return "too many states";
        }
        states = space.size();
        return states > 200 ? "" : "nothing was explored";
    }

    size_t states = 0;

  private:
    enum {
        STREAM,
        BEGIN,
        DELIVER,
        COMPLETE = DELIVER + 2,
        SETTLE = COMPLETE + 2,
        ARRIVE,
        END = ARRIVE + 2,
        MOURN,
        ACTORS
    };
    enum { WRONG = 1, LOST, LATE, NONSENSE, NOT_LOST };
    static constexpr const char *failures[] = {"",
                                               "wrong data",
                                               "landed, and was lost",
                                               "rung after the end",
                                               "words that make no sense",
                                               "not lost, and broken"};

    State start() const
    {
        State s{};
        for (End &e : s.end) {
            e.rung = e.begun = e.landed = BEFORE;
            e.reach = PHI_BELLS_REACH(BEFORE);
            e.replay = 1;
            for (int word = 0; word < PHI_WORD_COUNT; word++)
                e.word[word] = uint8_t(phi_word_start[word]);
        }
        return s;
    }

    bool act(State &s, int actor)
    {
        const int side = actor / ACTORS, what = actor % ACTORS;
        End &mine = s.end[side], &theirs = s.end[!side];
        switch (what) {
        case STREAM:
            return step(s, mine, scenario_.graph[side]);
        case BEGIN:
            return begin(s, mine);
        case DELIVER:
        case DELIVER + 1:
            return deliver(s, mine, theirs, what - DELIVER);
        case COMPLETE:
        case COMPLETE + 1:
            return complete(mine, what - COMPLETE);
        case SETTLE:
            return settle(mine);
        case ARRIVE:
        case ARRIVE + 1:
            return arrive(mine, theirs, what - ARRIVE);
        case END:
            return end(mine);
        default:
            return mourn(mine);
        }
    }

    // ---- the stream

    void next_item(End &e, const Graph &graph)
    {
        e.at = 0;
        if (++e.item == graph.size()) {
            e.item = 0;
            e.replay++;
        }
    }

    bool step(State &s, End &e, const Graph &graph)
    {
        if (e.replay > scenario_.replays())
            return false;
        const Item &item = graph[e.item];
        switch (item.kind) {
        case BELL:
            return ring(s, e, item, graph);
        case LAND:
            if (rules_.lands && !PHI_BELL_REACHED(e.reach, PHI_BELLS_REACH(e.rung)))
                return false;
            if (rules_.finds_lost && PHI_BELLS_LOST(e.reach, e.rung)) {
                e.broken = 1;
                if (e.landed == e.rung)
                    s.wrong = NOT_LOST;
            }
            // With everything there, or as one that has failed.
            if (rules_.lands && e.landed != e.rung && !e.broken)
                s.wrong = LOST;
            break;
        case PRODUCE:
            for (uint8_t &data : e.source)
                data = e.replay;
            break;
        case CONSUME:
            for (uint8_t part = 0; part < scenario_.parts; part++)
                if (e.buffer[part] != e.replay && !e.broken)
                    s.wrong = WRONG;
            break;
        }
        next_item(e, graph);
        return true;
    }

    // bell() of cuda/hop.cuh, store by store.
    bool ring(State &s, End &e, const Item &item, const Graph &graph)
    {
        const uint8_t word = item.bell.wait   ? item.bell.wait->word
                             : item.bell.post ? item.bell.post->word
                                              : 0;
        const uint8_t bit = item.bell.post ? item.bell.post->bit : 0;
        const uint32_t record = e.rung + 1;
        switch (e.at) {
        case 0: // its word
            if (item.bell.wait && !(e.word[word] & item.bell.wait->bit)) {
                if (!e.broken)
                    return false;
                next_item(e, graph);
                return true;
            }
            e.at = 1;
            return true;
        case 1:
            if (e.broken || item.asks == 0)
                next_item(e, graph);
            else
                e.at = 2;
            return true;
        case 2:
            if (rules_.credit && !PHI_BELL_REACHED(e.reach, record))
                return false;
            e.at = 3;
            if (rules_.looks_void && rules_.credit && PHI_BELL_VOID(e.reach, record)) {
                e.broken = 1;
                next_item(e, graph);
            }
            return true;
        case 3:
        case 4:
        case 5:
            break;
        }
        // The three stores, in their order.
        static const uint8_t right[] = {0, 1, 2}, record_late[] = {1, 2, 0},
                             word_late[] = {0, 2, 1};
        const uint8_t *order = !rules_.record_first ? record_late
                               : !rules_.word_first ? word_late
                                                    : right;
        switch (order[e.at - 3]) {
        case 0:
            e.slot[slot_of(record - 1 - (order == record_late))] = {item.asks, item.part, word,
                                                                    bit,       e.replay,  0};
            break;
        case 1:
            if (bit)
                e.word[word] = bit;
            break;
        case 2:
            if (order == record_late)
                e.slot[slot_of(e.rung)].stale = 1;
            e.rung = record;
            // What sees the end rings no more. Until then its slots were free, whenever the net
            // looked.
            if (e.ending >= 2 && !PHI_BELLS_SANE(e.rung, e.landed))
                s.wrong = LATE;
            break;
        }
        if (++e.at == 6)
            next_item(e, graph);
        return true;
    }

    // ---- the net: of a lane

    bool begin(State &s, End &e)
    {
        const uint32_t slot = slot_of(e.begun);
        if (e.ending || e.rung == e.begun)
            return false;
        if (rules_.sane && !PHI_BELLS_SANE(e.rung, e.landed))
            s.wrong = NONSENSE;
        const Bell &bell = e.slot[slot];
        if (rules_.post_behind && !PHI_BELL_MAY_BEGIN(bell.asks, begun(e), e.landed))
            return false;
        if (bell.stale)
            s.wrong = WRONG;
        e.doing[slot] = bell;
        e.move[slot] = bell.asks & (PHI_BELL_COPY | PHI_BELL_READ) ? FLYING : DONE;
        if ((bell.asks & PHI_BELL_COPY) && (bell.asks & PHI_BELL_POST) && !rules_.data_first)
            post(e, e.doing[slot]); // ahead of it
        e.begun++;
        return true;
    }

    // As far as the lane of the next bell knows: of gets that had one of their own it would not.
    uint32_t begun(const End &e) const
    {
        uint32_t n = e.begun;
        while (!rules_.one_lane && n != e.landed && (e.doing[slot_of(n - 1)].asks & PHI_BELL_READ))
            n--;
        return n;
    }

    void post(End &e, Bell &bell)
    {
        e.posts[bell.word] = bell.bit;
        bell.asks &= uint8_t(~PHI_BELL_POST);
    }

    // What a copy takes along is what is in the source then. With the last of it comes its post.
    bool deliver(State &s, End &e, End &peer, uint32_t slot)
    {
        Bell &bell = e.doing[slot];
        const bool here = e.ending == 0 || !rules_.closed_first;
        if (e.move[slot] != FLYING || !here || (peer.ending && rules_.closed_first))
            return false;
        const bool reads = bell.asks & PHI_BELL_READ;
        const uint8_t data = reads ? peer.source[bell.part] : e.source[bell.part];
        if (data != bell.replay)
            s.wrong = WRONG;
        if (reads) {
            e.fetched[bell.part] = data;
        } else {
            peer.buffer[bell.part] = data;
            if (bell.asks & PHI_BELL_POST) {
                peer.word[bell.word] = bell.bit;
                bell.asks &= uint8_t(~PHI_BELL_POST);
            }
        }
        e.move[slot] = DELIVERED;
        return true;
    }

    bool complete(End &e, uint32_t slot)
    {
        if (e.move[slot] != DELIVERED || e.ending)
            return false;
        e.move[slot] = DONE;
        return true;
    }

    // has_landed() and what follows it; one step for each thing that takes time.
    bool settle(End &e)
    {
        const uint32_t slot = slot_of(e.landed);
        Bell &bell = e.doing[slot];
        if (e.ending || e.landed == e.begun || (rules_.delivered && e.move[slot] != DONE))
            return false;
        if (bell.asks & PHI_BELL_POST) {
            post(e, bell);
            return true;
        }
        if ((bell.asks & PHI_BELL_READ) && rules_.flushed) {
            if (!e.flushing) {
                e.flushing = 1;
                return true;
            }
            e.buffer[bell.part] = e.fetched[bell.part];
            e.flushing = 0;
            bell.asks = 0;
            return true;
        }
        e.landed++;
        e.reach = PHI_BELLS_REACH(e.landed);
        return true;
    }

    bool arrive(End &e, End &peer, int word)
    {
        if (!e.posts[word])
            return false;
        if (!peer.ending) // else it comes to nothing
            peer.word[word] = e.posts[word];
        e.posts[word] = 0;
        return true;
    }

    // ---- the end of the link

    // Either end at any moment, and the other one when it finds out. phi_moves_fail and
    // phi_bells_end hold the lock, but no stream up: what they read and write comes one by one.
    bool end(End &e)
    {
        if (!scenario_.ends || e.ending == 3)
            return false;
        const int tells_at = rules_.tells_first ? 0 : 2;
        if (e.ending == 0)
            e.over = e.rung;
        if (e.ending == tells_at && e.over != e.landed && rules_.tells_lost)
            e.broken = 1;
        if (e.ending == 1 && rules_.lets_land)
            e.reach = PHI_BELLS_OVER(e.over);
        e.ending++;
        return true;
    }

    // The service thread ends what waits for a word.
    bool mourn(End &e)
    {
        if (!e.ending || e.mourned || !rules_.mourns)
            return false;
        e.mourned = e.broken = 1;
        return true;
    }

    bool is_over(const State &s)
    {
        for (const End &e : s.end)
            if (e.replay <= scenario_.replays() ||
                (!e.ending && (e.landed != e.rung || e.posts[0] || e.posts[1])))
                return false;
        return true;
    }

    const Rules rules_;
    const Scenario scenario_;
};

std::string explore(const Rules &rules, bool ends)
{
    for (const Scenario &scenario : {by_put(ends), by_get(ends), by_both(ends)}) {
        Model model(rules, scenario);
        const std::string failure = model.explore();
        if (!failure.empty())
            return failure;
        printf("%zu states\n", model.states);
    }
    return "";
}

TEST(Bells, EveryInterleaving)
{
    EXPECT_EQ(explore({}, false), "");
}

TEST(Bells, EveryEndOfTheLink)
{
    EXPECT_EQ(explore({}, true), "");
}

TEST(Bells, FindsWhatIsLeftOut)
{
    EXPECT_EQ(explore({.credit = false}, false), "words that make no sense");
    EXPECT_EQ(explore({.credit = false, .sane = false}, false), "deadlock");
    EXPECT_EQ(explore({.record_first = false}, false), "wrong data");
    EXPECT_EQ(explore({.word_first = false}, false), "deadlock");
    EXPECT_EQ(explore({.lands = false}, false), "wrong data");
    EXPECT_EQ(explore({.delivered = false}, false), "wrong data");
    EXPECT_EQ(explore({.flushed = false}, false), "wrong data");
    EXPECT_EQ(explore({.post_behind = false}, false), "wrong data");
    EXPECT_EQ(explore({.one_lane = false}, false), "wrong data");
    EXPECT_EQ(explore({.data_first = false}, false), "wrong data");
}

TEST(Bells, FindsWhatIsLeftOutAtTheEnd)
{
    EXPECT_EQ(explore({.looks_void = false}, true), "rung after the end");
    EXPECT_EQ(explore({.finds_lost = false}, true), "landed, and was lost");
    EXPECT_EQ(explore({.closed_first = false}, true), "wrong data");
    EXPECT_EQ(explore({.tells_lost = false}, true), "landed, and was lost");
    EXPECT_EQ(explore({.tells_first = false}, true), "landed, and was lost");
    EXPECT_EQ(explore({.lets_land = false}, true), "deadlock");
    EXPECT_EQ(explore({.mourns = false}, true), "deadlock");
}

} // namespace
