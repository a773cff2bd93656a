// SPDX-License-Identifier: BSD-3-Clause
// A rank of the random client.
#ifndef TESTS_RANDOM_RANK_H
#define TESTS_RANDOM_RANK_H

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "random/board.h"
#include "random/machine.h"

struct Area {
    uint8_t *memory;
    size_t size;
    Kind kind;
};

class Rank
{
  public:
    explicit Rank(const Orders &orders);
    void run();

  private:
    // ---- rank.cpp: contexts, memory, channels
    void open();
    void close();
    void allocate();
    void exchange(uint64_t round);
    void meet_for(const std::vector<size_t> &links, bool next_life);
    std::vector<size_t> links_of(int peer, bool with);
    struct ph_operation operation_of(size_t link);
    void close_channels();
    void give_back(bool frees);
    void give_way(Event event, uint64_t round);
    void begin_round(uint64_t round);
    void connect(uint64_t round);

    // ---- farewell.cpp
    void farewell(uint64_t round);
    void send_farewell(uint64_t round, size_t link);
    void receive_farewell(uint64_t round, size_t link);

    // ---- play.cpp: rounds
    void play(uint64_t round, const Script &script);
    void enqueue(int repetition);
    void enqueue_segment(size_t segment, int repetition);
    void enqueue_steps(const Segment &segment);
    void move_image(int repetition, bool in);
    void enqueue_step(const Step &step);
    int call(const Step &step);
    int group(const Step &step);
    void synchronize();
    void count(const Script &script);

    void must(int rc, const char *what);
    void doing(Doing what)
    {
        mine_.doing = (uint32_t)what;
        mine_.progress++;
    }
    void reap();
    void barrier(bool reaps = false);
    bool over(uint64_t round);
    std::string error();

    const Orders &orders_;
    const Config &config_;
    std::remove_reference_t<decltype(Board::ranks[0])> &mine_;
    Dice dice_; // of this rank alone
    std::unique_ptr<Machine> machine_;
    struct ph_context *context_ = nullptr;
    Layout layout_;
    std::vector<Area> areas_;
    std::vector<struct ph_channel *> channels_; // by link
    uint8_t *near_ = nullptr, *images_ = nullptr, *results_ = nullptr, *snapshots_ = nullptr;
    const Part *part_ = nullptr; // of the script that is played
    std::vector<void *> graphs_; // by segment
};

#endif
