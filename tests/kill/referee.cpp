// SPDX-License-Identifier: BSD-3-Clause
#include "kill/referee.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <sstream>

#include <dirent.h>
#include <sys/mman.h>
#include <unistd.h>

namespace kill_rounds
{

static const int64_t WAIT_MS = 60000; // longer than any actor's own
static const int64_t POLL_US = 500;
static const int SPARES = 2;

Referee::Referee(const std::string &device, int ranks, uint64_t seed)
    : ranks_(ranks), slots_(ranks + SPARES), device_(device), random_(seed)
{
    if (!over_files())
        redis_.start();
    job_ = std::make_unique<Job>(device, slots_, over_files() ? "" : redis_.uri());
    char folder[] = "/tmp/phkill.XXXXXX";
    folder_ = mkdtemp(folder) ? folder : "/nonexistent";
    job_->environment("TMPDIR", folder_);
    fd_ = memfd_create("kill-board", 0); // goes on to the actors
    void *memory = MAP_FAILED;
    if (ftruncate(fd_, sizeof(Board)) == 0)
        memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (memory == MAP_FAILED)
        abort();
    board_ = new (memory) Board();
    job_->environment(BOARD_VARIABLE, std::to_string(fd_));
    actors_.assign(slots_, {-1, false, 0});
    absent_.assign(ranks_, -1);
    for (int slot = 0; slot < slots_; slot++)
        start(slot);
}

Referee::~Referee()
{
    go_on(true);
    job_.reset(); // kills what still runs
    munmap(board_, sizeof(Board));
    close(fd_);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
}

// ---- actors

void Referee::start(int slot)
{
    Slot &s = board_->slots[slot];
    s.given = s.done = s.ready = 0;
    s.stopping = 0;
    snprintf(s.where[0], sizeof s.where[0], "starting");
    s.where[1][0] = 0;
    actors_[slot] = {-1, true, 0};
    job_->start_rank(slot, "kill_actor");
}

int Referee::slot_of(int rank) const
{
    for (int slot = 0; slot < slots_; slot++)
        if (actors_[slot].alive && actors_[slot].rank == rank)
            return slot;
    return -1;
}

void Referee::give(int slot, Task task, const std::vector<Event> &events)
{
    Slot &s = board_->slots[slot];
    Order order = {};
    order.task = task;
    order.rank = actors_[slot].rank;
    order.ranks = ranks_;
    order.members = members_;
    order.session = session_;
    order.round = round_;
    order.seed = seed_;
    order.die_at = order.stop_at = order.leave_at = order.expels = -1;
    for (const Event &event : events) {
        if (event.deed == Deed::EXPEL && event.by == order.rank)
            order.expels = event.rank;
        if (event.rank != order.rank)
            continue;
        if (event.deed == Deed::DIE)
            order.die_at = event.step;
        if (event.deed == Deed::PAUSE)
            order.stop_at = event.step;
        if (event.deed == Deed::LEAVE)
            order.leave_at = event.step / POINTS;
    }
    snprintf(order.job, sizeof order.job, "%s-%u", job_->name().c_str(), session_);
    s.order = order;
    change(s.given);
}

bool Referee::is_done(int slot) const
{
    return board_->slots[slot].done.load() == board_->slots[slot].given.load();
}

std::string Referee::look(int slot)
{
    int status = actors_[slot].alive ? job_->status(slot, 0) : -1;
    if (status < 0)
        return "";
    actors_[slot].alive = false;
    if (status == 128 + SIGKILL)
        return "killed";
    return "rank " + std::to_string(actors_[slot].rank) + " ended with " + std::to_string(status) +
           " at " + board_->slots[slot].where[0] + ": " + job_->shared()->text[slot];
}

std::string Referee::state() const
{
    std::ostringstream text;
    for (int slot = 0; slot < slots_; slot++)
        text << "\n  slot " << slot << ", rank " << actors_[slot].rank
             << (actors_[slot].alive ? "" : ", dead") << (is_done(slot) ? ", done" : ", at work")
             << (actors_[slot].continue_at ? ", stopped" : "") << ": "
             << board_->slots[slot].where[0] << "; " << board_->slots[slot].where[1];
    return text.str();
}

// What the round was to be, for who looks into its failure.
std::string Referee::story(const std::vector<Event> &events) const
{
    const char *const deeds[] = {
        "killed at", "stopped at",          "dies at", "stops at", "leaves at",
        "expelled",  "(the store) restarts"};
    std::ostringstream text;
    text << "\nround " << round_ << " of session " << session_ << ", members " << members_;
    for (const Event &event : events)
        text << "\n  rank " << event.rank << " " << deeds[static_cast<int>(event.deed)] << " "
             << event.at_us << " us or step " << event.step / POINTS << "." << event.step % POINTS
             << (event.by >= 0 ? ", by rank " + std::to_string(event.by) : "");
    int i = 0;
    for (const Step &step : make_script(seed_, ranks_, members_))
        text << "\n  step " << i++ << ": " << describe(step);
    return text.str() + state();
}

// Until all of them are done with their orders. An actor that ends meanwhile is wrong.
std::string Referee::wait_for(const std::vector<int> &slots)
{
    int64_t end = now_us() + WAIT_MS * 1000;
    for (;;) {
        uint32_t seen = board_->progress.load();
        bool all = true;
        for (int slot : slots) {
            std::string ended = look(slot);
            if (!ended.empty())
                return ended;
            all = all && is_done(slot);
        }
        go_on(false);
        if (all)
            return "";
        if (now_us() > end)
            return "not all are done:" + state();
        wait_for_change(board_->progress, seen, POLL_US);
    }
}

void Referee::stop(int slot, int64_t us)
{
    Actor &actor = actors_[slot];
    int64_t now = now_us();
    job_->signal(slot, SIGSTOP); // also where it was: it may just go on from a stop of its own
    if (!actor.continue_at)
        stops_++;
    actor.continue_at = std::max(actor.continue_at, now + us);
}

// On a busy machine the kernel may take half a minute to end a process. The others go on meanwhile.
void Referee::end_process(int slot)
{
    const int64_t end = now_us() + patience(60000).count() * 1000;
    job_->signal(slot, SIGKILL);
    actors_[slot].continue_at = 0;
    while (job_->status(slot, 5) < 0 && now_us() < end)
        go_on(false);
}

void Referee::go_on(bool all)
{
    int64_t now = now_us();
    for (int slot = 0; slot < slots_; slot++) {
        Actor &actor = actors_[slot];
        if (actor.alive && board_->slots[slot].stopping && !actor.continue_at) // by itself
            actor.continue_at = now + 20000;
        bool fenced = actor.rank >= 0 && board_->fenced.load() >> actor.rank & 1;
        if (!actor.continue_at || (!all && !fenced && now < actor.continue_at))
            continue;
        actor.continue_at = 0;
        if (actor.alive)
            job_->signal(slot, SIGCONT);
    }
}

int Referee::take_spare(std::string *wrong)
{
    int found = -1;
    int64_t end = now_us() + WAIT_MS * 1000;
    while (found < 0 && now_us() < end) {
        uint32_t seen = board_->progress.load();
        for (int slot = 0; slot < slots_ && found < 0; slot++)
            if (actors_[slot].alive && actors_[slot].rank < 0 && board_->slots[slot].ready.load())
                found = slot;
        if (found < 0)
            wait_for_change(board_->progress, seen, POLL_US);
    }
    for (int slot = 0; slot < slots_; slot++) { // those that come next
        std::string ended = look(slot);
        if (ended != "" && ended != "killed")
            *wrong = ended;
        if (!actors_[slot].alive)
            start(slot);
    }
    if (found < 0)
        *wrong = "no spare comes:" + state();
    return found;
}

// ---- a round

Referee::Event Referee::make_event(int rank)
{
    Event event = {};
    bool gpu = device_ == "gpu"; // where a new process costs a second
    unsigned dice = static_cast<unsigned>(random_.below(100));
    event.deed = dice < (gpu ? 15u : 30u)   ? Deed::DIE
                 : dice < (gpu ? 30u : 55u) ? Deed::KILL
                 : dice < (gpu ? 55u : 75u) ? Deed::STOP
                 : dice < 83u               ? Deed::PAUSE
                 : dice < 94u               ? Deed::LEAVE
                                            : Deed::EXPEL;
    event.by = -1;
    event.rank = rank;
    // Mostly while the program runs, at times long after.
    event.at_us = static_cast<int64_t>(random_.below(100) * static_cast<uint64_t>(usual_us_) /
                                       (random_.chance(20) ? 20 : 100));
    event.stop_us = static_cast<int64_t>(random_.below(random_.chance(20) ? 400000 : 20000));
    event.step = static_cast<int>(random_.below(8 * POINTS));
    event.comes = static_cast<Return>(random_.below(3));
    return event;
}

std::vector<Referee::Event> Referee::plan()
{
    std::vector<int> present;
    for (int rank = 0; rank < ranks_; rank++)
        if (members_ >> rank & 1)
            present.push_back(rank);
    std::vector<Event> events;
    size_t n = random_.chance(5) ? 0 : random_.chance(20) ? 2 : 1;
    for (size_t i = 0; i < n && !present.empty(); i++) {
        size_t which = random_.below(present.size());
        events.push_back(make_event(present[which]));
        if (random_.chance(80)) // else twice the same: killed while it is stopped
            present.erase(present.begin() + static_cast<long>(which));
    }
    for (Event &event : events)
        if (event.deed == Deed::EXPEL)
            choose_expeller(events, event);
    if (random_.chance(6)) {
        Event event = {};
        event.deed = Deed::STORE;
        event.rank = event.by = -1;
        event.at_us = static_cast<int64_t>(random_.below(static_cast<uint64_t>(usual_us_)));
        event.stop_us = static_cast<int64_t>(random_.below(50000));
        events.push_back(event);
    }
    return events;
}

// One to whom, as to the expelled one, nothing else happens; else it is only a stop.
void Referee::choose_expeller(const std::vector<Event> &events, Event &event)
{
    std::vector<int> others;
    bool alone = true;
    for (int rank = 0; rank < ranks_; rank++) {
        bool free = members_ >> rank & 1 && rank != event.rank;
        for (const Event &other : events)
            free = free && other.rank != rank && other.by != rank;
        if (free)
            others.push_back(rank);
    }
    for (const Event &other : events)
        alone = alone && (&other == &event || (other.rank != event.rank && other.by != event.rank));
    if (alone && !others.empty())
        event.by = others[random_.below(others.size())];
    else
        event.deed = Deed::STOP;
}

void Referee::begin(const std::vector<Event> &events)
{
    board_->doomed.fetch_and(~members_);
    board_->released = board_->expelled = board_->fenced = board_->stuck = board_->stores = 0;
    begin_us_ = now_us();
    for (int slot = 0; slot < slots_; slot++)
        if (actors_[slot].alive && actors_[slot].rank >= 0)
            give(slot, Task::ACT, events);
}

bool Referee::is_timed(const Event &event)
{
    return event.deed != Deed::DIE && event.deed != Deed::PAUSE && event.deed != Deed::LEAVE;
}

// It comes back empty, on the same socket. A directory does not go away.
void Referee::restart_store(int64_t away_us)
{
    if (over_files())
        return;
    board_->stores++;
    restarts_++;
    redis_.stop();
    usleep(static_cast<useconds_t>(away_us));
    redis_.start();
}

void Referee::work_on(std::vector<Event> &events)
{
    for (Event &event : events) {
        if (event.done || !is_timed(event) || now_us() - begin_us_ < event.at_us)
            continue;
        event.done = true;
        int slot = event.rank < 0 ? -1 : slot_of(event.rank);
        if (event.deed == Deed::STORE)
            restart_store(event.stop_us);
        if (slot < 0)
            continue;
        if (event.deed == Deed::STOP) {
            stop(slot, event.stop_us);
        } else if (event.deed == Deed::EXPEL) {
            stop(slot, WAIT_MS * 1000); // until it was expelled
            killed_ = true;             // the store tells of it for a while
        } else {
            board_->doomed.fetch_or(1u << event.rank);
            end_process(slot); // how it ended is bury()'s to find
        }
    }
    go_on(false);
}

// What became of an actor that ended: a death that was planned, or something wrong.
std::string Referee::bury(int slot, const std::vector<Event> *events)
{
    int rank = actors_[slot].rank;
    std::string ended = look(slot);
    if (ended.empty())
        return "";
    bool planned = false;
    for (size_t i = 0; events && i < events->size(); i++)
        planned = planned || (*events)[i].rank == rank;
    if (ended != "killed" || !planned)
        return ended;
    kills_++;
    killed_ = true;
    return "";
}

// Until every actor is done or dead, and every event has come.
std::string Referee::watch(std::vector<Event> &events)
{
    int64_t end = now_us() + WAIT_MS * 1000;
    for (;;) {
        uint32_t seen = board_->progress.load();
        work_on(events);
        bool all = true;
        for (const Event &event : events)
            all = all && (event.done || !is_timed(event));
        for (int slot = 0; slot < slots_; slot++) {
            if (!actors_[slot].alive || actors_[slot].rank < 0)
                continue;
            std::string wrong = bury(slot, &events);
            if (!wrong.empty())
                return wrong;
            all = all && (!actors_[slot].alive || is_done(slot));
            // A new life may come while the others still look at the old one.
            for (const Event &event : events)
                if (!actors_[slot].alive && event.rank == actors_[slot].rank &&
                    event.comes == Return::EARLY && slot_of(event.rank) < 0)
                    wrong = replace(event.rank);
            if (!wrong.empty())
                return wrong;
        }
        if (all)
            break;
        if (now_us() > end)
            return "not all are done:" + state();
        wait_for_change(board_->progress, seen, POLL_US / 5);
    }
    int64_t took = now_us() - begin_us_;
    usual_us_ = std::min<int64_t>((7 * usual_us_ + took) / 8, 100000);
    return "";
}

// Gives a rank to a spare, which begins its life there. It may be killed at that.
std::string Referee::replace(int rank)
{
    for (;;) {
        std::string wrong;
        int slot = take_spare(&wrong);
        if (!wrong.empty())
            return wrong;
        actors_[slot].rank = rank;
        give(slot, Task::JOIN);
        if (!random_.chance(device_ == "gpu" ? 3 : 10))
            return "";
        usleep(static_cast<useconds_t>(random_.below(4000)));
        end_process(slot);
        wrong = look(slot);
        if (wrong != "killed")
            return wrong;
        joins_killed_++;
        killed_ = true;
    }
}

std::string Referee::order_all(uint32_t members, Task task)
{
    uint32_t all = members_;
    std::vector<int> slots;
    members_ = members;
    for (int rank = 0; rank < ranks_; rank++) {
        int slot = members >> rank & 1 ? slot_of(rank) : -1;
        if (slot >= 0) {
            give(slot, task);
            slots.push_back(slot);
        }
    }
    std::string wrong = wait_for(slots);
    members_ = all;
    return wrong;
}

std::string Referee::meet(uint32_t members)
{
    if (random_.chance(10)) { // a stop does not change what must come of it
        int slot = slot_of(static_cast<int>(random_.below(static_cast<uint64_t>(ranks_))));
        if (slot >= 0)
            stop(slot, static_cast<int64_t>(random_.below(20000)));
    }
    return order_all(members, Task::MEET);
}

// Ranks whose time to come back has come, and those whose new life is under way.
std::string Referee::join_all()
{
    std::vector<int> slots;
    for (int rank = 0; rank < ranks_; rank++) {
        std::string wrong;
        if (slot_of(rank) < 0 && absent_[rank] <= 0)
            wrong = replace(rank);
        if (!wrong.empty())
            return wrong;
        if (slot_of(rank) >= 0) {
            slots.push_back(slot_of(rank));
            absent_[rank] = -1;
        } else {
            absent_[rank]--;
        }
    }
    return wait_for(slots);
}

std::string Referee::round()
{
    seed_ = random_.next();
    std::vector<Event> events = plan();
    begin(events);
    std::string wrong = watch(events);
    if (!wrong.empty())
        return wrong + story(events);
    uint32_t survivors = 0;
    for (int rank = 0; rank < ranks_; rank++)
        if (members_ >> rank & 1 && !(board_->doomed.load() >> rank & 1))
            survivors |= 1u << rank;
    for (int slot = 0; slot < slots_; slot++) // its next life begins while the others go on
        if (actors_[slot].alive && actors_[slot].rank >= 0 &&
            (board_->expelled | board_->stuck) >> actors_[slot].rank & 1)
            give(slot, Task::JOIN);
    if (wrong.empty())
        wrong = meet(survivors);
    for (const Event &event : events)
        if (event.rank >= 0 && slot_of(event.rank) < 0 && event.comes == Return::ABSENT &&
            ranks_ > 2 && absent_[event.rank] < 0)
            absent_[event.rank] = 1 + static_cast<int>(random_.below(2));
    if (wrong.empty())
        wrong = join_all();
    members_ = 0;
    for (int rank = 0; rank < ranks_; rank++)
        members_ |= slot_of(rank) >= 0 ? 1u << rank : 0;
    if (wrong.empty())
        wrong = meet(members_);
    round_++;
    rounds_++;
    return wrong;
}

// ---- a session: contexts begin and end, and nothing is left

// Of a directory, where what the killed have left stays.
std::string Referee::files_left() const
{
    const std::string job = "ph:{" + job_->name() + "-" + std::to_string(session_) + "}:";
    std::istringstream keys(job_->keys());
    for (std::string key; !killed_ && keys >> key;)
        if (key.find(job) != std::string::npos)
            return "the file of the key " + key + " is left";
    return "";
}

// What the store still has: nothing, or keys of the killed that will expire.
std::string Referee::keys_left()
{
    std::string job = "ph:{" + job_->name() + "-" + std::to_string(session_) + "}:*";
    std::istringstream keys(redis_.cli("KEYS " + job));
    int n = 0;
    for (std::string key; keys >> key; n++)
        if (redis_.cli("TTL " + key).find('-') == 0)
            return "the key " + key + " does not expire";
    if (n > 0 && !killed_)
        return "keys are left: " + redis_.cli("KEYS " + job);
    return n > ranks_ * ranks_ ? std::to_string(n) + " keys are left" : "";
}

std::string Referee::leftovers()
{
    std::string left = over_files() ? files_left() : keys_left();
    DIR *directory = opendir(folder_.c_str());
    for (dirent *entry; directory && (entry = readdir(directory)) != nullptr;)
        if (entry->d_name[0] != '.')
            left = std::string("the file ") + entry->d_name + " is left in TMPDIR";
    if (directory)
        closedir(directory);
    return left;
}

std::string Referee::session(int rounds)
{
    session_++;
    round_ = 0;
    killed_ = false;
    uint32_t all = (1u << ranks_) - 1;
    board_->doomed = 0;
    std::string wrong;
    for (int rank = 0; rank < ranks_ && wrong.empty(); rank++) {
        absent_[rank] = -1;
        int slot = slot_of(rank) >= 0 ? slot_of(rank) : take_spare(&wrong);
        if (slot >= 0)
            actors_[slot].rank = rank;
    }
    members_ = all;
    if (wrong.empty())
        wrong = order_all(all, Task::JOIN);
    if (wrong.empty())
        wrong = meet(all);
    while (wrong.empty() && rounds-- > 0)
        wrong = round();
    if (wrong.empty())
        wrong = order_all(members_, Task::CLOSE);
    return wrong.empty() ? leftovers() : wrong;
}

std::string Referee::run(int rounds)
{
    const int most = ranks_ > 4 ? 12 : 25;
    std::string wrong;
    while (rounds > 0 && wrong.empty()) {
        wrong = session(std::min(rounds, most));
        rounds -= most;
    }
    return wrong;
}

std::string Referee::summary() const
{
    std::ostringstream text;
    text << rounds_ << " rounds of " << ranks_ << " ranks: " << kills_ << " killed, "
         << joins_killed_ << " killed while they began, " << stops_ << " stopped, "
         << board_->leaves << " left, " << board_->aborts << " of them by abort, "
         << board_->expulsions << " expelled; " << restarts_ << " restarts of the store; "
         << board_->pairs << " scripts in two threads; " << board_->exchanges << " exchanges, "
         << board_->messages << " messages, " << board_->unbound << " of them unbound, "
         << board_->ends << " ends of a channel, " << board_->releases << " releases, "
         << board_->losses << " losses seen, " << board_->timeouts << " time-outs; latest call "
         << board_->worst_us / 1000 << " ms past its deadline";
    return text.str();
}

} // namespace kill_rounds
