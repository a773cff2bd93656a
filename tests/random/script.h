// SPDX-License-Identifier: BSD-3-Clause
// The rules of the API as a program. A script is what the ranks do in a round: from the seed each
// rank makes the same one, of all ranks, so that it knows which bytes its memory must hold in the
// end, and at the waits in between.
//
// All that the ranks enqueue has one order, and each rank enqueues its part of it in that order.
// What waits, waits for something before it, so no script can deadlock, whichever calls wait for a
// peer.
//
// Memory. Each message has a source and a target of its own. Before a script begins sources hold
// data and everything else, guards too, holds POISON. Behind the wait that tells of a target a
// snapshot is taken on the waiting stream, and mostly it is then written over (KILLED), as its
// source is as soon as that may be (SPENT).
#ifndef TESTS_RANDOM_SCRIPT_H
#define TESTS_RANDOM_SCRIPT_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <peerhop/peerhop.h>

#include "random/config.h"
#include "random/dice.h"

static const int RANKS_MAX = 8, AREAS = 3, STREAMS = 3;
static const size_t AREA = (size_t)36 << 20, LARGEST = (size_t)32 << 20, LARGE = (size_t)64 << 10;
static const int SENDS_AREA = 2; // the area of large sends; all else lies in those before it
// What a rank's images, results and snapshots of a round may take each.
static const size_t ROUND_BYTES = (size_t)44 << 20;

// What bytes are.
enum class Fill : uint8_t { POISON, DATA, KILLED, SPENT };
// The byte of all but DATA. Data has none of them.
static const uint8_t POISON_BYTE = 0xee, KILLED_BYTE = 0xb1, SPENT_BYTE = 0xc7;

// ---- what is there for as long as the memory is the same

struct End { // of a channel, at one of its ranks
    int area;
    size_t low, size; // of the buffer
};

struct Link { // a channel
    int ranks[2];
    End ends[2];
    enum Use { DATA, SEND, CONTROL, UNBOUND } use; // UNBOUND: of the ends counts the area alone
    enum ph_protocol protocol;
    int sender; // of a SEND: the rank that may send; -1: either
    struct ph_limits limits;

    const End &at(int rank) const
    {
        return ends[ranks[1] == rank];
    }
    int peer(int rank) const
    {
        return ranks[ranks[0] == rank];
    }
    bool has(int rank) const
    {
        return ranks[0] == rank || ranks[1] == rank;
    }
};

struct Layout {
    std::vector<std::vector<Kind>> kinds; // of the areas, by rank
    std::vector<std::vector<size_t>> sizes;
    std::vector<std::vector<size_t>> used; // by buffers of sends: what is free begins there
    std::vector<Link> links;
    std::vector<std::vector<int>> control; // by two ranks
};

Layout make_layout(const Config &config, uint64_t seed);

// ---- a script

// Bytes of one state, at a rank. Those of a region follow one another without gaps.
struct Cell {
    size_t offset, size;
    Fill first, told, last; // in the beginning, when a wait has told of it, and in the end
    uint32_t data;          // which, where it is DATA
    uint32_t transaction;
};

// Bytes of an area that are written before a script and read after it.
struct Extent {
    int area;
    size_t low, high;
    size_t image; // where they lie in the image
    std::vector<Cell> cells;
};

struct Snapshot {
    int area;
    size_t low, size;
    size_t image; // where it lies in the snapshots of a repetition
    int extent;
    size_t first, count; // its cells
};

enum class Call : uint8_t {
    PUT,
    GET,
    PUT_SIGNAL,
    SIGNAL,
    WAIT,
    SEND,
    RECV,
    COMPLETE,
    COPY,
    SEND_FROM,
    RECV_INTO,
    GROUP, // the API's
    SNAPSHOT,
    FILL,
    ORDER,
    FORK,
    JOIN
};

struct Step {
    Call call;
    uint8_t stream = 0;
    uint8_t other = 0;        // of ORDER: the stream that goes first; of FILL: the byte
    int link = -1, from = -1; // from: of COPY
    size_t peer_offset = 0, local_offset = 0, size = 0;
    size_t first = 0, count = 0; // GROUP: its members; SNAPSHOT: which
    int area = 0;                // FILL, SEND_FROM, RECV_INTO: where local_offset is
};

struct Member { // of a group
    enum ph_group_kind kind;
    int link;
    size_t peer_offset, local_offset, size;
    int area = 0; // of an unbound channel
};

struct Segment {
    size_t first, count; // steps
    bool captured;
    uint8_t streams;
};

// What one rank does.
struct Part {
    std::vector<Step> steps;
    std::vector<Member> members;
    std::vector<Segment> segments;
    std::vector<Extent> extents;
    std::vector<Snapshot> snapshots;
    size_t image_size = 0, snapshots_size = 0;
    uint64_t operations = 0, bytes = 0, large_bytes = 0; // of one repetition
};

struct Transaction { // for messages
    const char *what;
    int from, to, link;
    bool grouped;
};

struct Script {
    std::vector<Part> parts;
    std::vector<Transaction> transactions;
    int repetitions;
};

Script make_script(const Config &config, const Layout &layout, uint64_t seed);

// ---- plan.cpp: what the rounds of a run begin with

enum class Event { NONE, FRESH, SAME_MEMORY, CLOSED, NEXT_CONTEXT, NEXT_PROCESS, KILLED };
Event event_of(const Config &config, uint64_t seed, uint64_t round);
int who_ends(const Config &config, uint64_t seed, uint64_t round); // of NEXT_... and KILLED
uint64_t layout_seed(const Config &config, uint64_t seed, uint64_t round);
uint64_t script_seed(uint64_t seed, uint64_t round);

// ---- show.cpp

void show(const Config &config, uint64_t seed, uint64_t round);

#endif
