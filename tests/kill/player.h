// SPDX-License-Identifier: BSD-3-Clause
// One thread of a rank in the kill rounds: it plays a script on memory and streams of its own, and
// judges every call of the library that it makes. It ends the process with a message where
// something is wrong.
#ifndef TESTS_KILL_PLAYER_H
#define TESTS_KILL_PLAYER_H

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "e2e/ranks.h"
#include "kill/board.h"
#include "kill/pulse.h"
#include "kill/script.h"

namespace kill_rounds
{

const int64_t CONTEXT_MS = 3000; // the contexts' deadline
inline const int64_t PATIENCE_MS =
    patience(30000).count(); // of retries, of streams: everybody is continued long before

const size_t SLOT_SIZE = 12288;
const int STAGES = 8;
const char *const HALF_WAY = "half-way"; // why an unbound channel is aborted behind a group
const size_t ROOM = 32 << 20; // of a device, for unbound messages of steps that were not waited for

enum Op : uint64_t {
    OP_MEET = 1,
    OP_GROUP = 2,
    OP_EXCHANGE = 3,
    OP_FAREWELL = 4,
    OP_DATA = 10,
    OP_ANSWER = 20,
    OP_UNBOUND = 30
};
const uint64_t OPS_OF_A_PLAYER = 100;

// Parts of a peer's share of the memory.
enum Part {
    PART_OUT,
    PART_IN = PART_OUT + VARIANTS,
    PART_ANSWER_OUT = PART_IN + VARIANTS,
    PART_ANSWER_IN = PART_ANSWER_OUT + VARIANTS,
    PART_GROUP_OUT = PART_ANSWER_IN + VARIANTS,
    PART_GROUP_IN,
    PART_MEET_OUT,
    PART_MEET_IN,
    PARTS
};

// What the threads of one rank share: it does not change while several of them run.
struct Life {
    Rank &process;
    Board &board;
    Slot &slot;
    Device &device;
    const Pulse &pulse;
    Order order;
    bool several; // threads: the context's last sentence may be another one's
};

// This rank's own life is over: it was expelled, or another of its threads has aborted it.
struct Over {
};

struct Wish {
    ph_operation operation;
    ph_channel *channel;
};

class Player
{
  public:
    // number: of the thread, 0 for the one that has the rank's life in its hands.
    Player(Life &life, int number) : life_(life), number_(number)
    {
    }

    void allocate();              // memory and streams, anew on host memory
    bool play(size_t most_steps); // the script of the order; true: it is time to leave
    void meet();                  // everybody with everybody: channels, and a message each way
    void forget();                // what ends with the context
    void come_to_rest();          // waits for copies of a context that is over

    // A call of the library: it may take so long, and little more.
    int timed(const char *what, int64_t limit_ms, const std::function<int()> &call);
    [[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 2, 3)));

  private:
    // At its sender where it is sent from, at its receiver where it will be found.
    struct Message {
        void *memory;
        size_t size;
    };
    // A message that will have come once the streams are done.
    struct Expected {
        ph_channel *channel, *other; // both must be whole then
        const void *memory;
        int sender;
        uint64_t sequence;
        size_t size;
        bool graph; // by a graph that still lives
    };

    std::string sentence()
    {
        return life_.process.error();
    }
    bool is_of_store(const std::string &why) const;
    int64_t stood_still_us() const;
    const Order &order() const
    {
        return life_.order;
    }
    bool doomed(int rank) const
    {
        return life_.board.doomed.load() >> rank & 1;
    }
    bool released(int rank) const
    {
        return life_.board.released.load() >> rank & 1;
    }

    void *part(int peer, int which);
    void *stage(int which);
    void *fresh(uint64_t choice);
    void make_room(size_t size);
    void *loose(size_t size);
    void warm_up();

    void ask_for_the_doomed();
    void point(int step, Point point);
    void play_step(const Step &step, int index);
    void play_exchange(const Step &step);
    void play_group(const Step &step, int index);
    void make_group(const Step &step, int index, const std::vector<Wish> &wishes,
                    std::vector<ph_group_op> &group, std::vector<Expected> &coming);
    bool end_half(const std::vector<Wish> &wishes);
    bool issue_group(std::vector<Wish> &wishes, std::vector<ph_group_op> &group,
                     std::vector<Expected> &coming);
    void play_pair(const Step &step, int index);
    void play_release(const Step &step);
    void play_end(const Step &step, int index);
    void send_both_ways(const Step &step, int index, const Wish &wish);
    void await_end(const Step &step, const Wish &wish);
    std::vector<Wish> wishes_of(const Step &step, int index, int peer);
    std::vector<Message> messages_of(const Step &step, void *buffer);
    bool enqueue(const Step &step, const std::vector<Wish> &wishes,
                 const std::vector<Message> &messages, void *stream);
    bool enqueue_unbound(const Step &step, const Wish &wish, const std::vector<Message> &messages,
                         void *stream);
    void write_all(const Wish &wish, const std::vector<Message> &messages, uint64_t first);
    void expect_all(const std::vector<Wish> &wishes, const std::vector<Message> &messages,
                    uint64_t first, bool graph);
    void play_graph(const Step &step, int index, const std::vector<Wish> &wishes,
                    const std::vector<Message> &messages, void *stream);
    void replay(const Step &step, int index, const std::vector<Wish> &wishes,
                const std::vector<Message> &messages, void *graph, void *stream);

    Wish wish(int peer, uint64_t op_id, ph_role role, void *buffer, const Step *step = nullptr);
    void exchange(std::vector<Wish> &wishes, bool halves, int64_t deadline_ms, bool meeting);
    int exchange_once(std::vector<Wish> &wishes, bool halves, int64_t deadline_ms);
    void drop_lost(std::vector<Wish> &wishes);
    void judge_exchange(const std::vector<Wish> &wishes, int rc, bool meeting);
    bool is_meant(int peer, int rc, const std::string &why);
    bool transfer(const char *what, const Wish &wish, int rc);
    void lose(int rank, const std::string &why);
    bool is_end(int rc, int peer) const;
    bool is_half_way(const std::string &why) const;
    bool lost(int rank) const
    {
        return lost_ >> rank & 1;
    }

    void write(void *to, int receiver, uint64_t sequence, size_t size);
    void occupy(const void *buffer);
    void synchronize(void *stream);
    void flush();
    void close_handles();
    void verify(const Expected &expected);
    uint64_t sequence(int step, int replay) const;

    Life &life_;
    const int number_;
    void *memory_ = nullptr;
    void *streams_[2] = {};
    std::vector<void *> fresh_;
    std::vector<void *> used_; // of fresh_, since this context began
    uint32_t lost_ = 0;        // peers whose life of this round is over, as the library told
    std::vector<Expected> expected_;
    std::vector<const void *> busy_; // buffers of deferred steps
    std::vector<ph_channel *> handles_;
    int stages_ = 0;
    void *room_ = nullptr; // of a device
    size_t room_used_ = 0;
    std::vector<std::unique_ptr<uint8_t[]>> loose_; // the host's, instead
    int64_t missed_us_ = 0;                         // of the pulse, when the last call began
};

} // namespace kill_rounds

#endif
