// SPDX-License-Identifier: BSD-3-Clause
// A job of many ranks of host memory, as processes of this one: what its steps take, of time, of
// the store and of memory. scale_test.cpp holds the figures against bars, scale_table.cpp prints
// them.
#ifndef TESTS_SCALE_MEASURE_H
#define TESTS_SCALE_MEASURE_H

#include <cstdint>
#include <string>
#include <vector>

struct ScaleJob {
    int ranks = 2;
    bool all = false;   // each rank has a channel with each other; else with its two neighbours
    int operations = 1; // with each peer
    bool files = false; // they meet in a directory; else in Redis
    std::vector<std::string> settings; // "PEERHOP_NAME=value"
};

enum ScaleStep { SCALE_CREATE, SCALE_CONTACT, SCALE_MESSAGE, SCALE_DESTROY, SCALE_STEPS };

struct ScaleFigures {
    std::string trouble; // why there are none; "": there are

    // From the first rank that begins the step to the last that ends it.
    double seconds[SCALE_STEPS];
    double until_message; // of the first three together

    // Commands to the store, of all ranks, as they count them themselves, up to the message; and as
    // Redis counts them, with what it reads and writes, up to the end.
    uint64_t counted;
    uint64_t commands[SCALE_STEPS], bytes[SCALE_STEPS];
    uint64_t keys_left; // behind the end

    uint64_t peers;    // that are used, of all ranks: two a pair
    uint64_t segments; // bytes of memory in the segments of all pairs
    uint64_t mapped;   // bytes of address space that a segment takes in a rank
    // Bytes of private memory, of all ranks: by the creation of the context, and from there to the
    // message.
    int64_t created, used;
    int64_t descriptors[2]; // likewise
};

// Blocks for as long as the job takes; one that is stuck is ended after a minute or two.
ScaleFigures scale_measure(const ScaleJob &job);

#endif
