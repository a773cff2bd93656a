// SPDX-License-Identifier: BSD-3-Clause
// Every interleaving of long messages by a ring (docs/protocols.md, "By a ring"), as launches of
// blocks on devices with few places.
//
// A stream has launches, one behind the other: those of the application, of one block, which waits
// for nobody, and two for each operation with messages. A launch comes onto the device block by
// block, when all blocks of the one before it have let it in, or have ended.
#ifndef TESTS_MODEL_RING_MODEL_H
#define TESTS_MODEL_RING_MODEL_H

#include <cstddef>
#include <string>
#include <vector>

namespace ring_model
{

// What the library relies on. Each can be left out.
struct Rules {
    // The lead
    bool awaits_room = true;    // unit 0 is pushed when it has room
    bool awaits_begun = true;   // a push goes on when its take has begun
    bool later_counts = true;   // ... or a later one, whose `begun` has replaced that
    bool first_come = true;     // the second launch begins when any item of the first is led
    bool lead_stays = true;     // who has led its message moves rows, unless a hand has drawn
    bool yields = true;         // a lead that has not led leaves when the first hand is there
    bool awaits_lead = true;    // ... which leads when the lead has left
    bool lead_ends_lane = true; // a lead that gives up says so to the hands
    bool tells_in_turn = true;  // a take tells `begun` when the launch before it is over
    bool follows = true;        // a first launch begins when the launch before it is over
    // Hands
    bool lets_in_late = true; // the second launch begins when the wait of the first is over
    bool leaves = true;       // hands leave if they may not begin soon
    bool left_counts = true;  // who has left the first launch is not taken for one at work
    bool relieves = true;     // one of the second launch does nothing where that one is at work
    bool holds = true;        // one that begins at once lets the second launch in by its end
    bool left_is_seen = true; // ... unless it sees that another one has left
    bool draws = true;        // rows are drawn; else each hand has its own
    bool looks_at_end = true; // who has drawn looks whether the lane has ended
    // Stamps and credit
    bool awaits_stamp = true;   // a row is pushed when the one before it in its place is taken
    bool place_of_first = true; // the last place of the first lap is that of unit 0
    bool stamps_first = true;   // unit 0 has a stamp
    bool stamp_behind = true;   // a stamp is stored when the row is taken; else before
    bool whole_row = true;      // ... the whole row
    bool gives_credit = true;   // at the end of a take
    // The end
    bool hand_ends_lane = true;  // a hand that gives up ends the lane
    bool early_ends_lane = true; // ... one of the first launch
    bool mover_ends_lane = true; // ... a lead that moves rows
    bool counts_missed = true;   // ... and counts as one that has missed
    bool looks_last = true;      // who leaves last looks whether the lane has ended
    bool awaits_first = true;    // ... and waits for the end of the first launch
    bool puts_back = true;       // ... puts `drawn` back
    bool forgets_hands = true;   // what became of the hands of the first launch is put back
    bool tells_posted = true;    // ... tells `begun` of the next take, if that is there
    bool unposts = true;         // a take that has begun is not `posted` any more
    bool tells_last = true;      // ... who leaves last does; else each hand
};

struct Ring {
    int from, to;
};

struct Message {
    int ring, units;
};

// Its messages in their order; none: a kernel of the application.
struct Op {
    std::vector<int> items;
};

enum Trouble {
    QUIET,
    ABORT, // the waits of both ranks end, at any time
    DEATH, // a rank is gone at any time, and the waits of the others end some time after that
};

struct Job {
    int ranks = 2, places = 1, hands = 2, row = 1; // units in a row
    bool ahead = false;                            // hands draw while they have a row, as ours do
    Trouble trouble = QUIET;
    std::vector<Ring> rings;
    std::vector<Message> messages; // those of a ring in its order
    std::vector<Op> ops[3][2];     // of a rank's streams
};

// What is wrong, and the shortest way to it; how many states were seen.
struct Outcome {
    std::string wrong, trace;
    size_t states = 0;
    int waiting = 0; // most blocks of a stream that waited for a peer that may not be there
};

Outcome explore(const Job &job, const Rules &rules = {});

} // namespace ring_model

#endif
