// SPDX-License-Identifier: BSD-3-Clause
// How long this process did not run at all: it was stopped, or the machine was. A thread that does
// nothing else sees it, which no call of the library's can keep.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "kill/board.h"

namespace kill_rounds
{

class Pulse
{
  public:
    ~Pulse()
    {
        over_ = true;
        thread_.join();
    }
    int64_t missed_us() const
    {
        return missed_us_;
    }
    static constexpr int64_t BEAT_US = 10000;

  private:
    void beat()
    {
        for (int64_t last = now_us(), now; !over_; last = now) {
            std::this_thread::sleep_for(std::chrono::microseconds(BEAT_US));
            now = now_us();
            if (now - last > 10 * BEAT_US) // less is a busy machine's
                missed_us_ += now - last;
        }
    }

    std::atomic<int64_t> missed_us_{0};
    std::atomic<bool> over_{false};
    std::thread thread_{&Pulse::beat, this};
};

} // namespace kill_rounds
