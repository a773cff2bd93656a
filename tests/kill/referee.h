// SPDX-License-Identifier: BSD-3-Clause
// Runs kill rounds: hands out orders, kills, stops and replaces actors, and looks whether what is
// left of them goes on.
#ifndef TESTS_KILL_REFEREE_H
#define TESTS_KILL_REFEREE_H

#include <memory>
#include <string>
#include <vector>

#include "e2e/ranks.h"
#include "kill/board.h"
#include "kill/script.h"

namespace kill_rounds
{

class Referee
{
  public:
    Referee(const std::string &device, int ranks, uint64_t seed);
    ~Referee();
    Referee(const Referee &) = delete;

    // Runs rounds; "" or what went wrong.
    std::string run(int rounds);
    std::string summary() const;
    bool was_over_the_net() const
    {
        return board_->over_the_net.load() > 0;
    }

  private:
    // KILL, STOP, EXPEL, STORE: at a time; the others at a step of its own.
    enum class Deed { KILL, STOP, DIE, PAUSE, LEAVE, EXPEL, STORE };
    enum class Return { EARLY, LATE, ABSENT };
    struct Event {
        Deed deed;
        int rank;      // -1: of STORE
        int by;        // of EXPEL: who does it; else -1
        int64_t at_us; // after the round's begin
        int64_t stop_us;
        int step; // of DIE, PAUSE, LEAVE
        Return comes;
        bool done;
    };
    struct Actor {
        int rank; // or -1: a spare
        bool alive;
        int64_t continue_at; // stopped until then, or 0
    };

    std::string session(int rounds);
    std::string round();
    std::vector<Event> plan();
    Event make_event(int rank);
    void begin(const std::vector<Event> &events);
    std::string watch(std::vector<Event> &events);
    void choose_expeller(const std::vector<Event> &events, Event &event);
    static bool is_timed(const Event &event);
    void restart_store(int64_t away_us);
    void work_on(std::vector<Event> &events);
    std::string bury(int slot, const std::vector<Event> *events);
    std::string replace(int rank);
    std::string join_all();
    std::string meet(uint32_t members);
    std::string order_all(uint32_t members, Task task);
    std::string files_left() const;
    std::string keys_left();
    std::string leftovers();

    void give(int slot, Task task, const std::vector<Event> &events = {});
    bool is_done(int slot) const;
    std::string wait_for(const std::vector<int> &slots);
    std::string look(int slot); // "" or how it ended
    void stop(int slot, int64_t us);
    void end_process(int slot);
    void go_on(bool all);
    void start(int slot);
    int slot_of(int rank) const;
    int take_spare(std::string *wrong);
    std::string state() const;
    std::string story(const std::vector<Event> &events) const;

    int ranks_, slots_;
    std::string device_;
    Random random_;
    RedisServer redis_;
    std::unique_ptr<Job> job_;
    std::string folder_; // TMPDIR of the actors
    int fd_ = -1;
    Board *board_ = nullptr;
    std::vector<Actor> actors_;
    std::vector<int> absent_; // rounds that a rank still stays away; -1: it is there
    uint32_t members_ = 0;
    uint32_t session_ = 0, round_ = 0;
    uint64_t seed_ = 0; // of the round
    int64_t begin_us_ = 0, usual_us_ = 3000;
    bool killed_ = false; // in this session
    int kills_ = 0, stops_ = 0, rounds_ = 0, joins_killed_ = 0, restarts_ = 0;
};

} // namespace kill_rounds

#endif
