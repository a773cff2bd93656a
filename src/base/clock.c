// SPDX-License-Identifier: BSD-3-Clause
#include "base/clock.h"

#include <limits.h>
#include <time.h>

int64_t phi_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 * PHI_MS + now.tv_nsec;
}

int64_t phi_deadline(int64_t ms)
{
    int64_t now = phi_now();

    if (ms < 0 || ms > (PHI_FOREVER - 1 - now) / PHI_MS)
        return PHI_FOREVER;
    return now + ms * PHI_MS;
}

int phi_remaining_ms(int64_t deadline)
{
    int64_t now = phi_now();
    int64_t ms;

    if (deadline == PHI_FOREVER)
        return -1;
    if (deadline <= now)
        return 0;
    // Rounded up: where poll() ended a fraction early, we would call it again and again with 0.
    ms = (deadline - now - 1) / PHI_MS + 1;
    return ms < INT_MAX ? (int)ms : INT_MAX;
}
