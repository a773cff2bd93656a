// SPDX-License-Identifier: BSD-3-Clause
#include "base/closer.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/thread.h"

// How soon we look again at a gate that was shut.
#define GATE_MS 5

struct phi_closer {
    pthread_t thread;
    pthread_mutex_t lock;   // guards all below
    pthread_cond_t changed; // on CLOCK_MONOTONIC
    struct phi_closing *first, **end;
    uint64_t handed, done;
    bool (*may)(void *opaque);
    void *opaque;
    bool stop, alone; // no more comes; nobody joins the thread
};

static void wait_until(struct phi_closer *c, int64_t deadline)
{
    const struct timespec until = {deadline / 1000000000, deadline % 1000000000};

    if (deadline == PHI_FOREVER)
        pthread_cond_wait(&c->changed, &c->lock);
    else
        pthread_cond_timedwait(&c->changed, &c->lock, &until);
}

// take waits for the next one that may be begun. NULL: there is none, and none comes.
static struct phi_closing *take(struct phi_closer *c)
{
    struct phi_closing *closing;

    while (!c->first || (c->may && !c->may(c->opaque))) {
        if (!c->first && c->stop)
            return NULL;
        wait_until(c, c->first ? phi_deadline(GATE_MS) : PHI_FOREVER);
    }
    closing = c->first;
    c->first = closing->next;
    if (!c->first)
        c->end = &c->first;
    return closing;
}

static void finish(struct phi_closer *c)
{
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void *closer_main(void *opaque)
{
    struct phi_closer *c = opaque;
    struct phi_closing *closing;
    bool alone;

    pthread_mutex_lock(&c->lock);
    while ((closing = take(c))) {
        pthread_mutex_unlock(&c->lock);
        closing->close(closing);
        pthread_mutex_lock(&c->lock);
        c->done++;
        pthread_cond_broadcast(&c->changed);
    }
    alone = c->alone;
    pthread_mutex_unlock(&c->lock);
    if (alone)
        finish(c);
    return NULL;
}

int phi_closer_open(struct phi_closer **closer)
{
    struct phi_closer *c = calloc(1, sizeof(*c));
    pthread_condattr_t attributes;
    int rc;

    if (!c)
        return -ENOMEM;
    c->end = &c->first;
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    rc = phi_thread_start(&c->thread, "peerhop-closer", closer_main, c);
    if (rc)
        finish(c);
    else
        *closer = c;
    return rc;
}

void phi_closer_gate(struct phi_closer *c, bool (*may)(void *opaque), void *opaque)
{
    pthread_mutex_lock(&c->lock);
    c->may = may;
    c->opaque = opaque;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

void phi_closer_hand(struct phi_closer *c, struct phi_closing *closing)
{
    pthread_mutex_lock(&c->lock);
    closing->next = NULL;
    *c->end = closing;
    c->end = &closing->next;
    c->handed++;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

uint64_t phi_closer_handed(struct phi_closer *c)
{
    uint64_t handed;

    pthread_mutex_lock(&c->lock);
    handed = c->handed;
    pthread_mutex_unlock(&c->lock);
    return handed;
}

static bool wait_locked(struct phi_closer *c, uint64_t handed, int64_t deadline)
{
    while (c->done < handed && phi_now() < deadline)
        wait_until(c, deadline);
    return c->done >= handed;
}

bool phi_closer_wait(struct phi_closer *c, uint64_t handed, int64_t deadline)
{
    bool done;

    pthread_mutex_lock(&c->lock);
    done = wait_locked(c, handed, deadline);
    pthread_mutex_unlock(&c->lock);
    return done;
}

bool phi_closer_close(struct phi_closer *c, int64_t deadline)
{
    pthread_t thread = c->thread;
    bool done;

    pthread_mutex_lock(&c->lock);
    c->stop = true;
    c->may = NULL;
    pthread_cond_broadcast(&c->changed);
    done = wait_locked(c, c->handed, deadline);
    c->alone = !done;
    pthread_mutex_unlock(&c->lock);
    if (done) {
        pthread_join(thread, NULL);
        finish(c);
    } else {
        pthread_detach(thread); // the closer may be gone already: it is its thread's
    }
    return done;
}
