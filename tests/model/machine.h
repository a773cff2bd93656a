// SPDX-License-Identifier: BSD-3-Clause
// A model of ranks whose streams run the programs of semaphore/words.h, explored in every
// interleaving.
//
// A stream is a list of steps, run in order, any number of times where it is cyclic (a graph that
// is replayed for ever). Copies, and the kernels that produce and consume data, begin and end in
// two steps, so overlaps show. Found are: a word posted out of turn, a copy outside the window that
// the passive end opened, two that touch one buffer at once and one writes, wrong data, words that
// are not at rest in the end, and deadlock.
#ifndef TESTS_MODEL_MACHINE_H
#define TESTS_MODEL_MACHINE_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/atomic_compat.h"

extern "C" {
#include "semaphore/words.h"
}

namespace model
{

// The tables under test: the library's, or a mutation of them.
struct Tables {
    phi_program programs[PHI_CALL_COUNT];
    uint32_t start[PHI_WORD_COUNT];
    Tables();
    void remove(int call, int step);
    void swap(int call, int step); // with the one after it
};

enum class Kind : uint8_t { WAIT, POST, COPY, PRODUCE, CONSUME };
enum class Protocol : uint8_t { PUT, GET };
enum class GroupKind : uint8_t { SEND, RECV, PUT, GET, PUT_SIGNAL, SIGNAL, WAIT };

struct Step {
    Kind kind;
    int8_t channel;
    int8_t direction; // 0: from the channel's first rank to its second
    int8_t slot;      // of the two buffer pairs of a direction
    int8_t word;      // index of a word within its channel
    uint8_t bit;      // waited for, or posted
    bool windowed;    // a copy of send/recv
    bool opens, closes;
    bool behind; // a post of a program that begins with a wait
};

struct Stream {
    int rank;
    bool cyclic;
    std::vector<Step> steps;
};

struct Channel {
    int rank[2];
    Protocol protocol[2];
};

struct GroupOp {
    GroupKind kind;
    int channel;
};

struct Result {
    std::string failure; // empty: none; else its kind, e.g. "deadlock"
    std::string trace;
    size_t states = 0;
    bool ok() const
    {
        return failure.empty();
    }
};

class Machine
{
  public:
    Machine(int ranks, const Tables &tables) : ranks_(ranks), tables_(tables)
    {
    }

    int channel(int a, int b, Protocol forth = Protocol::PUT, Protocol back = Protocol::PUT);
    int stream(int rank, bool cyclic = false);

    // What a rank enqueues. The direction follows from the rank of the stream.
    void send(int stream, int channel);      // produces, sends and completes where that is due
    void recv(int stream, int channel);      // receives, completes, consumes
    void send_only(int stream, int channel); // the bare call
    void recv_only(int stream, int channel);
    void complete_recv(int stream, int channel);
    void put_signal(int stream, int channel, int slot = 0);
    void wait(int stream, int channel);
    void signal(int stream, int channel);
    void put(int stream, int channel);
    void get(int stream, int channel);
    void produce(int stream, int channel, int slot = 0);
    void consume(int stream, int channel, int slot = 0);
    void group(int stream, const std::vector<GroupOp> &ops);

    // One rank may die at any moment. The others then set `broken` and release the words of its
    // channels. kernel_waits: waits see `broken` and copies behind them are skipped; else words
    // alone release them.
    void mortal(int rank, bool kernel_waits);

    // What is noted of waits that got nothing (docs/protocols.md, "What the status says").
    // Mutations.
    struct Notes {
        bool settles = true;   // whoever adds bits looks first what has taken those before
        bool completes = true; // a bit that is added to a READY tells that a receive was begun
        bool adds_only = true; // nothing is taken for added that was there
        bool marks = true;     // waits that look at `broken` look at the mark of a bit, too
    };
    void notes(const Notes &notes)
    {
        notes_ = notes;
    }
    void release_everything()
    {
        release_everything_ = true;
    } // a mutation: words of live peers too

    Result explore() const;

  private:
    friend class Search;
    struct Call {
        int call;
        int channel;
        int direction;
        int slot;
    };
    int side(int rank, int channel) const
    {
        return channels_[channel].rank[0] == rank ? 0 : 1;
    }
    int peer(int rank, int channel) const
    {
        return channels_[channel].rank[1 - side(rank, channel)];
    }
    int out(int stream, int channel) const
    {
        return side(streams_[stream].rank, channel);
    }
    bool active(int stream, int channel, int direction) const;
    void call(int stream, int call, int channel, int direction, int slot = 0);
    void local(int stream, Kind kind, int channel, int direction, int slot);
    void calls_of(int stream, const GroupOp &op, std::vector<Call> *calls) const;

    int ranks_;
    Tables tables_;
    std::vector<Channel> channels_;
    std::vector<Stream> streams_;
    int mortal_ = -1;
    bool kernel_waits_ = false;
    bool release_everything_ = false;
    Notes notes_;
};

} // namespace model

#endif
