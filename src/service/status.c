// SPDX-License-Identifier: BSD-3-Clause
#include "service/status.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/counters.h"
#include "ending/heartbeat.h"
#include "exchange/request.h"
#include "peer/channel.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "release/release.h"
#include "release/revoke.h"
#include "semaphore/record.h"

enum { LOCK_TRIES = 10 }; // a millisecond apart

static void look(struct phi_status_ages *ages, uint32_t index, const struct phi_progress *progress,
                 int64_t now)
{
    const uint64_t head = progress->issued > progress->done ? progress->done + 1 : 0;
    if (ages->number[index] == head)
        return;
    ages->number[index] = head;
    ages->since[index] = now;
}

void phi_status_tick(struct phi_self *self, struct phi_status_ages *ages)
{
    struct phi_executor *executor = self->executor;
    const int64_t now = phi_now();
    struct phi_progress progress;
    for (uint32_t i = 0; i < PHI_STREAMS_MAX; i++) {
        if (!executor->ops->progress(executor, i, &progress, NULL))
            break;
        look(ages, i, &progress, now);
    }
}

// fill_streams finds the stream whose head has not moved for longest; of equal ones, one that
// waits.
static void fill_streams(struct phi_self *self, struct phi_status_ages *ages,
                         struct phi_status *status)
{
    struct phi_executor *executor = self->executor;
    const int64_t now = phi_now();
    struct phi_progress progress;
    struct phi_wait_note note;
    int64_t oldest = PHI_FOREVER;
    for (uint32_t i = 0; i < PHI_STREAMS_MAX; i++) {
        if (!executor->ops->progress(executor, i, &progress, &note))
            break;
        look(ages, i, &progress, now);
        if (ages->number[i] == 0)
            continue;
        status->in_flight += progress.issued - progress.done;
        status->streams++;
        const bool waits = note.number != 0;
        if (ages->since[i] > oldest ||
            (ages->since[i] == oldest && (status->oldest_peer >= 0 || !waits)))
            continue;
        oldest = ages->since[i];
        status->oldest_ms = (now - oldest) / PHI_MS;
        status->oldest_peer = waits ? note.peer : -1;
        status->oldest_op = waits ? note.op_id : 0;
        status->oldest_call = waits ? note.call : 0;
    }
}

static void fill_peer(const struct phi_peer *peer, struct phi_status *status)
{
    for (const struct ph_channel *c = peer->channels.first; c != NULL; c = c->kept.next) {
        status->channels++;
        status->held += c->kept.handles > 0;
    }
    for (const struct ph_channel *c = peer->channels.retired; c != NULL; c = c->kept.next)
        status->held += c->kept.handles > 0;
    status->theirs += phi_revocations_count(peer);
}

static void fill_locked(struct phi_self *self, struct phi_status *status)
{
    for (int rank = 0; rank < self->ranks; rank++) {
        const struct phi_peer *peer = self->table[rank];
        const enum ph_peer_state state = peer ? phi_peer_report_state(peer) : PH_PEER_UNKNOWN;
        if (rank == self->rank)
            continue;
        status->peers[state]++;
        if (rank < PHI_STATUS_RANKS)
            status->peer_states[rank / 2] |= (uint8_t)(state << (rank % 2 * 4));
        if (peer != NULL)
            fill_peer(peer, status);
    }
    for (const struct ph_exchange_request *r = self->exchanges.first; r != NULL; r = r->next)
        status->exchanges++;
    status->releases = phi_releases_count(self);
}

static bool lock_soon(struct phi_self *self)
{
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (pthread_mutex_trylock(&self->lock) == 0)
            return true;
        nanosleep(&(struct timespec){.tv_nsec = PHI_MS}, NULL);
    }
    return false;
}

// Two of them are not counted as they change: what was just read is newer.
static void fill_counters(const struct phi_self *self, struct phi_status *status)
{
    struct ph_counters *all = &status->counters;
#define READ_COUNTER(member, meaning)                                                              \
    all->member = atomic_load_explicit(&self->counters->member, memory_order_relaxed);
    PH_COUNTER_MAP(READ_COUNTER)
#undef READ_COUNTER
    all->in_flight = status->in_flight;
    all->device_bytes = status->device_bytes;
}

void phi_about_fill(const struct phi_self *self, struct phi_about *about)
{
    memset(about, 0, sizeof *about);
    snprintf(about->job, sizeof about->job, "%s", phi_mailbox_job(self->mailbox, &about->epoch));
    about->incarnation = self->incarnation;
    about->rank = self->rank;
    about->process = (uint32_t)getpid();
    if (self->mine.device)
        snprintf(about->device, sizeof about->device, "%s", self->mine.device_name);
}

void phi_status_fill(struct phi_self *self, struct phi_status_ages *ages, struct phi_status *status)
{
    memset(status, 0, sizeof *status); // padding too: it leaves the process
    status->oldest_ms = -1;
    status->oldest_peer = -1;
    status->process = (uint32_t)getpid();
    status->ranks = (uint32_t)self->ranks;
    status->device_bytes = phi_memory_device_bytes(self->memory);
    fill_streams(self, ages, status);
    fill_counters(self, status);
    status->locked = !lock_soon(self);
    if (status->locked)
        return;
    fill_locked(self, status);
    pthread_mutex_unlock(&self->lock);
}
