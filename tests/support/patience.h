// SPDX-License-Identifier: BSD-3-Clause
#ifndef TESTS_SUPPORT_PATIENCE_H
#define TESTS_SUPPORT_PATIENCE_H

#include <chrono>
#include <cstdint>
#include <cstdlib>

// How long a test waits until it calls something stuck: longer by TEST_TIME_FACTOR, under
// sanitizers and valgrind.
inline std::chrono::milliseconds patience(int64_t ms)
{
    static const char *const factor = getenv("TEST_TIME_FACTOR");
    return std::chrono::milliseconds(ms * (factor ? atoi(factor) : 1));
}

// Of what needs no time at all.
const int64_t kWait = patience(20000).count();

#endif
