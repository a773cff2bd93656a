// SPDX-License-Identifier: BSD-3-Clause
// The random program of a round, which every rank computes from the seed, and the messages in it.
#ifndef TESTS_KILL_SCRIPT_H
#define TESTS_KILL_SCRIPT_H

#include <cstdint>
#include <string>
#include <vector>

#include <peerhop/peerhop.h>

namespace kill_rounds
{

class Random
{
  public:
    explicit Random(uint64_t seed) : state_(seed)
    {
    }
    uint64_t next()
    {
        uint64_t x = state_ += 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        return x ^ x >> 31;
    }
    uint64_t below(uint64_t n)
    {
        return next() % n;
    }
    bool chance(int percent)
    {
        return below(100) < static_cast<uint64_t>(percent);
    }

  private:
    uint64_t state_;
};

inline uint64_t mix(uint64_t a, uint64_t b)
{
    return Random(a * 0x2545f4914f6cdd1du + b).next();
}

enum class Kind { EXCHANGE, SEND, PUT_SIGNAL, PUT, GET, GROUP, GRAPH, RELEASE, UNBOUND, END };
const char *name_of(Kind kind);

// Steps are in one order for all ranks, and a rank takes part in those that name it: so nobody
// waits in a circle.
struct Step {
    Kind kind;
    int sender, receiver; // of the kinds of two ranks; sender: who releases, or ends a channel
    uint32_t members;     // who takes part
    int variant;          // which channel and stream
    ph_protocol protocol;
    size_t size;
    bool fresh[2];       // new memory at the sender, the receiver
    bool deferred;       // goes on without waiting for the stream
    bool halves;         // start and finish
    int64_t deadline_ms; // of finish
    int replays;
    std::vector<size_t> unbound; // messages: of UNBOUND, END, and some of GRAPH and GROUP
    bool mismatch;               // END: by a message of two sizes, else by an abort
};

enum { VARIANTS = 3, MESSAGE_MOST = 12000, UNBOUND_MOST = 3 << 20 };
const int64_t LONG_MS = 1500; // the deadline of an exchange that is to come about

std::string describe(const Step &step);
std::vector<Step> make_script(uint64_t seed, int ranks, uint32_t members);

// Bytes that say who sent them, to whom, and which message they are.
std::vector<uint8_t> make_message(int sender, int receiver, uint64_t sequence, size_t size);
std::string describe_difference(const std::vector<uint8_t> &found,
                                const std::vector<uint8_t> &wanted);

} // namespace kill_rounds

#endif
