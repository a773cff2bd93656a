// SPDX-License-Identifier: BSD-3-Clause
// Time is CLOCK_MONOTONIC in nanoseconds; a deadline is a point on it.
#ifndef PHI_BASE_CLOCK_H
#define PHI_BASE_CLOCK_H

#include <stdint.h>

#define PHI_MS      1000000LL
#define PHI_FOREVER INT64_MAX

int64_t phi_now(void);

// phi_deadline is the point `ms` from now. PHI_FOREVER where ms < 0 or too large.
int64_t phi_deadline(int64_t ms);

// phi_remaining_ms is an argument for poll(): the milliseconds until the deadline, rounded up, at
// most INT_MAX. 0 when the deadline has passed, -1 for PHI_FOREVER.
int phi_remaining_ms(int64_t deadline);

// phi_pause tells the core that this is a spin loop.
static inline void phi_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
