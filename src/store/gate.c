// SPDX-License-Identifier: BSD-3-Clause
#include "store/gate.h"

#include <errno.h>
#include <time.h>

#include "base/clock.h"

int phi_gate_init(struct phi_gate *gate)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0)
        return -ENOMEM;
    // Deadlines are on the monotonic clock.
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    int failed = pthread_cond_init(&gate->left, &attributes);
    pthread_condattr_destroy(&attributes);
    if (failed)
        return -ENOMEM;
    pthread_mutex_init(&gate->lock, NULL);
    gate->busy = false;
    return 0;
}

void phi_gate_fini(struct phi_gate *gate)
{
    pthread_mutex_destroy(&gate->lock);
    pthread_cond_destroy(&gate->left);
}

static int wait_left(struct phi_gate *gate, int64_t deadline)
{
    if (deadline == PHI_FOREVER)
        return pthread_cond_wait(&gate->left, &gate->lock);
    struct timespec until = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
    return pthread_cond_timedwait(&gate->left, &gate->lock, &until);
}

int phi_gate_enter(struct phi_gate *gate, int64_t deadline)
{
    int failed = 0;
    pthread_mutex_lock(&gate->lock);
    while (gate->busy && !failed)
        failed = wait_left(gate, deadline);
    bool entered = !gate->busy;
    if (entered)
        gate->busy = true;
    pthread_mutex_unlock(&gate->lock);
    return entered ? 0 : -ETIMEDOUT;
}

bool phi_gate_try(struct phi_gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    bool entered = !gate->busy;
    gate->busy = true;
    pthread_mutex_unlock(&gate->lock);
    return entered;
}

void phi_gate_leave(struct phi_gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->busy = false;
    pthread_cond_signal(&gate->left);
    pthread_mutex_unlock(&gate->lock);
}
