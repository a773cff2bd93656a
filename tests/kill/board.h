// SPDX-License-Identifier: BSD-3-Clause
// What the referee of the kill rounds and its actors share: orders, how far everybody is, who is
// about to die. An actor is a process in a slot; it takes part as one rank at a time, or waits as a
// spare.
#ifndef TESTS_KILL_BOARD_H
#define TESTS_KILL_BOARD_H

#include <atomic>
#include <cstdint>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kill_rounds
{

enum { RANKS_MOST = 8, SLOTS = 12 };

// Where in a step an actor may die or stop by itself.
enum Point { BEFORE_EXCHANGE, AFTER_EXCHANGE, ENQUEUED, SYNCHRONIZED, POINTS };

enum class Task : uint32_t {
    JOIN,  // make a context as `rank` of `job`; one that was expelled ends before
    ACT,   // the random program of `seed`, among `members`; some of them may die
    MEET,  // everybody of `members` exchanges with everybody, all of it right
    CLOSE, // end the context: nothing may be left
    EXIT,
};

struct Order {
    Task task;
    int rank, ranks;
    uint32_t members; // bits of ranks
    uint32_t session, round;
    uint64_t seed;
    int die_at, stop_at, leave_at; // step * POINTS + point, or -1; leave_at names a step
    int expels;                    // a rank, once it is SUSPECT, or -1
    char job[48];
};

struct Slot {
    Order order;
    std::atomic<uint32_t> given, done; // orders, counted
    std::atomic<uint32_t> ready;       // has its device
    std::atomic<bool> stopping;        // it stopped by itself, and wants to be continued
    std::atomic<int32_t> step[2];      // by thread
    char where[2][96];
};

struct Board {
    Slot slots[SLOTS];
    std::atomic<uint32_t> progress; // changes whenever an actor is done with something
    std::atomic<uint32_t> released; // ranks that gave a buffer back in this round
    std::atomic<uint32_t> doomed;   // ranks whose life of this round is over, or will be at once
    std::atomic<uint32_t> expelled; // ranks that are to be, or were; always doomed as well
    std::atomic<uint32_t> fenced;   // ... were: they may be continued, to find out
    std::atomic<uint32_t> stuck;    // leave, and cannot before their peers are told
    std::atomic<uint32_t> stores;   // restarts of the store in this round
    std::atomic<uint32_t> pids[RANKS_MOST];
    // What happened, in all.
    std::atomic<uint64_t> messages, exchanges, timeouts, losses, worst_us, leaves, aborts, releases;
    std::atomic<uint64_t> expulsions, pairs; // pairs: rounds of a rank in two threads
    std::atomic<uint64_t> over_the_net;      // operations
    std::atomic<uint64_t> unbound, ends;     // messages; channels that ended alone
};

inline void wait_for_change(std::atomic<uint32_t> &word, uint32_t seen, int64_t us)
{
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAIT, seen, &time, nullptr, 0);
}

inline void change(std::atomic<uint32_t> &word)
{
    word.fetch_add(1);
    syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAKE, 1000, nullptr, nullptr, 0);
}

inline int64_t now_us()
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000ll + time.tv_nsec / 1000;
}

// One life: where the board is, for a process that was given its descriptor.
const char *const BOARD_VARIABLE = "KILL_BOARD";

} // namespace kill_rounds

#endif
