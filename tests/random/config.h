// SPDX-License-Identifier: BSD-3-Clause
// The named configurations of the random client: which ranks run on what, over which path, and what
// their scripts are mostly made of.
#ifndef TESTS_RANDOM_CONFIG_H
#define TESTS_RANDOM_CONFIG_H

#include <string>
#include <utility>
#include <vector>

// Where memory lies that peers reach.
enum class Kind { HOST, DEVICE, VMM, POOL };

// What a script is made of. Chances are in percent.
struct Mix {
    unsigned operations = 300; // about so many in a script, of all ranks together
    unsigned repetitions = 8;  // most replays of a script in a round
    unsigned puts = 16;        // most of them that one signal tells of
    unsigned fresh = 10;       // rounds in memory that was never used before
    unsigned captured = 40;    // segments that a rank captures into a graph
    unsigned grouped = 50;     // transactions that are groups
    unsigned several = 30;     // segments on several streams
    unsigned reborn = 3;  // ... of a thousand rounds begin with the end of a rank and its next life
    unsigned large = 260; // bytes of large messages that a script has for 100 of others: it is
                          // repeated less often
    bool gets = true;     // not where memory is staged
    bool copies = true;   // nor those from peer to peer where a device goes over the net
    bool staged = false;  // the limits of slots hold
    bool branches = true; // graphs may have branches
};

struct Config {
    std::string name;
    bool gpus = false;                // of GPUs, else of processors
    std::vector<std::string> devices; // of each rank, one after the other: "host", "standin", "gpu"
    int ranks = 2;
    std::vector<Kind> kinds; // of the ranks' memory, by chance
    std::vector<std::pair<std::string, std::string>> environment;
    bool wide = false;  // a table says that wide lines come whole
    std::string strict; // mode of the strict libfabric
    bool hmem = false;  // a libfabric that takes device memory
    Mix mix;
    std::string what; // for --list
};

const std::vector<Config> &all_configs();

#endif
