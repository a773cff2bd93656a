// SPDX-License-Identifier: BSD-3-Clause
#include "base/bell.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

// Without FUTEX_PRIVATE_FLAG: the waiter may live in another process.
static long futex(struct phi_bell *bell, int op, uint32_t value, const struct timespec *until)
{
    return syscall(SYS_futex, &bell->rings, op, value, until, NULL, FUTEX_BITSET_MATCH_ANY);
}

void phi_bell_ring(struct phi_bell *bell)
{
    // Adding nothing is the storer's half of the pattern: it is ordered with the +1 of
    // phi_bell_register on the same word. Either it comes later and sees the sleeper, or the
    // sleeper's +1 reads it and sees the stored condition.
    if (atomic_fetch_add_explicit(&bell->sleepers, 0, memory_order_seq_cst) == 0)
        return;
    // Pairs with the acquire of phi_bell_read: who sees this count sees the condition.
    atomic_fetch_add_explicit(&bell->rings, 1, memory_order_release);
    futex(bell, FUTEX_WAKE, INT_MAX, NULL);
}

void phi_bell_register(struct phi_bell *bell)
{
    // Pairs with the read-modify-write of phi_bell_ring.
    atomic_fetch_add_explicit(&bell->sleepers, 1, memory_order_seq_cst);
}

int phi_bell_sleep(struct phi_bell *bell, uint32_t seen, int64_t deadline)
{
    int64_t at = deadline > 0 ? deadline : 0;
    struct timespec until = {.tv_sec = at / (1000 * PHI_MS), .tv_nsec = at % (1000 * PHI_MS)};

    // The bitset form takes a point on CLOCK_MONOTONIC, so an interrupted sleep does not start
    // over.
    if (futex(bell, FUTEX_WAIT_BITSET, seen, deadline == PHI_FOREVER ? NULL : &until) < 0 &&
        errno == ETIMEDOUT)
        return -ETIMEDOUT;
    // Woken, interrupted, or `rings` moved before the sleep: the caller looks at its condition in
    // every case.
    return 0;
}

void phi_bell_unregister(struct phi_bell *bell)
{
    // Relaxed: a ring that still counts this sleeper makes one wake-up too many, no harm.
    atomic_fetch_sub_explicit(&bell->sleepers, 1, memory_order_relaxed);
}
