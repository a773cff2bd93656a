// SPDX-License-Identifier: BSD-3-Clause
#include "semaphore/executor.h"

#include <stdio.h>

#include "base/clock.h"

void phi_executor_suspicion(const struct phi_executor *executor, int rank, char *text, size_t size)
{
    const _Atomic int64_t *since = executor->silent_since;
    // A wait for another stream is for no rank (-1).
    int64_t last =
        since && rank >= 0 ? atomic_load_explicit(&since[rank], memory_order_relaxed) : 0;

    text[0] = 0;
    if (last)
        snprintf(text, size, "; it is SUSPECT: no heartbeat for %lld ms",
                 (long long)((phi_now() - last) / PHI_MS));
}
