// SPDX-License-Identifier: BSD-3-Clause
#include "blocking.h"

#include "abi.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SLICE_MS = 50 };

static struct errand *abandoned; // guarded by the GIL

// ---- the log

static _Thread_local bool in_errand;

// The library logs each failure that it returns. Python's threads raise it, and what ends a slice
// of a wait is none.
void log_line(void *opaque, enum ph_log_level level, const char *line)
{
    static const char *const names[] = {"none", "error", "warn", "info", "debug"};

    (void)opaque;
    if (level == PH_LOG_ERROR && (in_errand || PyGILState_GetThisThreadState() != NULL))
        return;
    fprintf(stderr, "peerhop %s: %s\n", names[level], line);
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int wait_slices(int (*call)(void *opaque, int64_t deadline_ms), void *opaque, int64_t deadline_ms,
                int *rc)
{
    const int64_t end = now_ms() + deadline_ms;
    for (int64_t left = deadline_ms;; left = end - now_ms()) {
        const bool last = left <= SLICE_MS;
        Py_BEGIN_ALLOW_THREADS *rc = call(opaque, last ? (left > 0 ? left : 1) : SLICE_MS);
        Py_END_ALLOW_THREADS if (*rc != -ETIMEDOUT || last) return 0;
        if (PyErr_CheckSignals())
            return -1;
    }
}

// ---- errands

// Python's main thread, which alone runs handlers of signals, is the first of the process.
static bool is_main_thread(void)
{
    return syscall(SYS_gettid) == (long)getpid();
}

static void *run_errand(void *opaque)
{
    struct errand *errand = opaque;
    in_errand = true;
    int rc = errand->run(errand);
    pthread_mutex_lock(&errand->lock);
    if (!errand->abandoned) {
        errand->rc = rc;
        errand->done = true;
    }
    const bool left = errand->abandoned;
    pthread_cond_signal(&errand->over);
    pthread_mutex_unlock(&errand->lock);
    if (!left)
        return NULL;
    errand->rc = rc;
    errand->undo(errand);
    pthread_mutex_lock(&errand->lock);
    errand->done = true;
    pthread_mutex_unlock(&errand->lock);
    return NULL;
}

// Signals are for Python's threads.
static int start_thread(struct errand *errand)
{
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int rc = pthread_create(&thread, NULL, run_errand, errand);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        pthread_detach(thread);
    return rc;
}

static bool wait_slice(struct errand *errand)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += SLICE_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    int rc = 0;
    pthread_mutex_lock(&errand->lock);
    while (!errand->done && rc == 0)
        rc = pthread_cond_timedwait(&errand->over, &errand->lock, &until);
    const bool done = errand->done;
    pthread_mutex_unlock(&errand->lock);
    return done;
}

// abandon leaves the errand to its thread; false: it was over meanwhile.
static bool abandon(struct errand *errand)
{
    pthread_mutex_lock(&errand->lock);
    errand->abandoned = !errand->done;
    const bool left = errand->abandoned;
    pthread_mutex_unlock(&errand->lock);
    return left;
}

static void undo_errand(struct errand *errand)
{
    Py_BEGIN_ALLOW_THREADS errand->undo(errand);
    Py_END_ALLOW_THREADS
}

static int run_aside(struct errand *errand)
{
    for (bool done = false; !done;) {
        Py_BEGIN_ALLOW_THREADS done = wait_slice(errand);
        Py_END_ALLOW_THREADS if (!PyErr_CheckSignals()) continue;
        if (abandon(errand)) {
            errand->next = abandoned;
            abandoned = errand;
            return -1;
        }
        undo_errand(errand);
        errand->forget(errand);
        return -1;
    }
    return 0;
}

int errand_run(struct errand *errand)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&errand->lock, NULL);
    pthread_cond_init(&errand->over, &monotonic);
    pthread_condattr_destroy(&monotonic);
    errands_reap();
    if (is_main_thread() && start_thread(errand) == 0)
        return run_aside(errand);
    // Without a thread a signal waits until the call is over.
    Py_BEGIN_ALLOW_THREADS errand->rc = errand->run(errand);
    Py_END_ALLOW_THREADS return 0;
}

static bool is_over(struct errand *errand)
{
    pthread_mutex_lock(&errand->lock);
    const bool done = errand->done;
    pthread_mutex_unlock(&errand->lock);
    return done;
}

void errands_reap(void)
{
    struct errand *over = NULL;
    for (struct errand **at = &abandoned; *at != NULL;) {
        struct errand *errand = *at;
        if (!is_over(errand)) {
            at = &errand->next;
            continue;
        }
        *at = errand->next;
        errand->next = over;
        over = errand;
    }
    // What is forgotten may run code of Python's, and that another call of this.
    while (over != NULL) {
        struct errand *errand = over;
        over = errand->next;
        errand->forget(errand);
    }
}

bool errands_of(const void *owner)
{
    for (struct errand *errand = abandoned; errand != NULL; errand = errand->next)
        if (errand->owner == owner)
            return true;
    return false;
}

bool errands_wait(const void *owner, int64_t most_ms)
{
    const int64_t end = now_ms() + most_ms;
    errands_reap();
    while (errands_of(owner) && now_ms() < end) {
        Py_BEGIN_ALLOW_THREADS nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        Py_END_ALLOW_THREADS errands_reap();
    }
    return !errands_of(owner);
}
