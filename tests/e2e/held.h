// SPDX-License-Identifier: BSD-3-Clause
// A stream that stands still until the test lets it go.
#ifndef TESTS_E2E_HELD_H
#define TESTS_E2E_HELD_H

#include <atomic>

#include "e2e/exchanging.h"

class Held
{
  public:
    // A queue runs a function at once, on the thread that calls. So it waits for a request instead,
    // whose word is the test's.
    Held(Rank &rank, void *stream)
    {
        if (rank.device->host()) {
            const ph_request until = {rank.context, &gone_, 1, 0, 0};
            CHECK_OK(ph_request_wait_on(&until, stream));
        } else {
            rank.device->call(stream, [this] {
                while (!gone_)
                    sleep_ms(1);
            });
        }
    }
    ~Held()
    {
        let_go();
    }
    void let_go()
    {
        gone_ = 1;
    }

  private:
    std::atomic<uint64_t> gone_{0};
};

#endif
