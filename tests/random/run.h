// SPDX-License-Identifier: BSD-3-Clause
// One configuration that runs: its ranks' processes, and what became of them.
#ifndef TESTS_RANDOM_RUN_H
#define TESTS_RANDOM_RUN_H

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

#include "random/board.h"

struct Limits {
    uint64_t operations; // 0: no limit
    double seconds;
    int64_t stall_ms;
};

// Files that ranks inherit: the pool of data, and a table that allows wide lines.
struct Files {
    int pool, table;
    std::string store;
};

class Run
{
  public:
    Run(const Config &config, const Files &files, uint64_t seed, const Limits &limits);
    ~Run(); // kills what still runs
    Run(const Run &) = delete;

    bool poll(); // whether it still runs; to be called often
    bool good() const
    {
        return failure_.empty();
    }
    std::string report() const; // a line
    uint64_t operations() const;
    const Config &config() const
    {
        return config_;
    }

    // Why this configuration cannot run here; "": it can.
    static std::string unavailable(const Config &config);

  private:
    void start(int rank, int life);
    void child(int rank, int life);
    void reap(int rank);
    bool stalled();
    std::string where() const;
    std::string asked() const;
    void fail(const std::string &what);
    uint64_t
    sum(std::atomic<uint64_t> std::remove_reference_t<decltype(Board::ranks[0])>::*member) const;

    const Config &config_;
    const Files &files_;
    const uint64_t seed_;
    const Limits limits_;
    std::string job_, failure_;
    int board_fd_ = -1, strict_fd_ = -1, hmem_fd_ = -1;
    Board *board_ = nullptr;
    std::vector<pid_t> pids_;
    std::vector<int> lives_;
    size_t running_ = 0;
    uint64_t progress_ = 0;
    std::chrono::steady_clock::time_point begun_, moved_, failed_;
    double took_ = 0;
};

// What a rank's process finds in its environment; false: this is none.
bool read_orders(Orders &orders);

#endif
