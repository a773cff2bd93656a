// SPDX-License-Identifier: BSD-3-Clause
// All layers add to the context's counters. The accesses are relaxed: they order nothing.
#ifndef PHI_BASE_COUNTERS_H
#define PHI_BASE_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

#include <peerhop/context.h>

struct phi_counters {
#define PHI_COUNTER_MEMBER(member, meaning) _Atomic uint64_t member;
    PH_COUNTER_MAP(PHI_COUNTER_MEMBER)
#undef PHI_COUNTER_MEMBER
};

#define phi_count(counters, member, n)                                                             \
    atomic_fetch_add_explicit(&(counters)->member, (n), memory_order_relaxed)

#endif
