// SPDX-License-Identifier: BSD-3-Clause
// Ranges on the timeline of a tool that listens (NVTX): each call of the API that may take its time
// is one, of the domain "peerhop", on the thread that calls. Where no tool listens, or NVTX is not
// built in, a range costs a look at a word.
#ifndef PHI_API_RANGES_H
#define PHI_API_RANGES_H

#include <stdbool.h>
#include <stdint.h>

// phi_ranges_heard says whether a tool listens. It does not change after phi_ranges_open.
extern bool phi_ranges_heard;

// phi_ranges_open looks for a tool, the first time that it is called. Any thread; in a build
// without NVTX it finds none.
void phi_ranges_open(void);

void phi_range_push(const char *name, uint64_t payload);
void phi_range_pop(void);

static inline bool phi_range_begin(const char *name, uint64_t payload)
{
    if (__builtin_expect(!phi_ranges_heard, 1))
        return false;
    phi_range_push(name, payload);
    return true;
}

static inline void phi_range_end(const bool *begun)
{
    if (*begun)
        phi_range_pop();
}

// PHI_RANGE opens a range to the end of the block, however that is left. payload: bytes, or a
// number of operations. The name lives as long as the program.
#define PHI_RANGE(name, payload)                                                                   \
    __attribute__((cleanup(phi_range_end), unused)) const bool phi_range_begun =                   \
        phi_range_begin(name, payload)

#endif
