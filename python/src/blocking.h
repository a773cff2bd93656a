// SPDX-License-Identifier: BSD-3-Clause
// Calls that wait: without the GIL, and so that a signal ends them soon. Python runs handlers of
// signals in the main thread alone, between its own steps: who waits there comes back every
// SLICE_MS.
#ifndef PEERHOP_PYTHON_BLOCKING_H
#define PEERHOP_PYTHON_BLOCKING_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <peerhop/log.h>

// What a context logs to: standard error, as the library does by itself, without what is raised as
// an exception.
void log_line(void *opaque, enum ph_log_level level, const char *line);

// wait_slices calls what may be called again after -ETIMEDOUT, in slices of its deadline. *rc is
// the last result. -1: a signal's handler has raised.
int wait_slices(int (*call)(void *opaque, int64_t deadline_ms), void *opaque, int64_t deadline_ms,
                int *rc);

// Calls that must not be cut into slices run in a thread of their own while the main thread waits;
// other threads make them by themselves. Where a signal has raised, the call goes on, and the
// errand is the thread's: `undo` is called there when it is over, without the GIL, and then, by a
// later call of errands_reap, `forget` with it.
struct errand {
    int (*run)(struct errand *errand);
    void (*undo)(struct errand *errand);
    void (*forget)(struct errand *errand);
    void *owner; // what it uses
    int rc;
    // Of blocking.c:
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool done, abandoned;
    struct errand *next;
};

// errand_run: 0: it is over, errand->rc. -1: with an exception; it is not the caller's any more.
int errand_run(struct errand *errand);

void errands_reap(void);
// errands_wait waits without the GIL until none of the owner's is left, at most that long; false:
// some are.
bool errands_wait(const void *owner, int64_t most_ms);
bool errands_of(const void *owner);

#endif
