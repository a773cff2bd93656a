// SPDX-License-Identifier: BSD-3-Clause
#include "ending/heartbeat.h"

#include "base/clock.h"
#include "ending/end.h"
#include "ending/look.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "semaphore/segment.h"

enum phi_pulse phi_pulse_judge(int64_t now, int64_t beat_at, int64_t awake_since, int64_t limit)
{
    if (beat_at == 0)
        return PHI_PULSE_UNKNOWN;
    if (now - beat_at <= limit)
        return PHI_PULSE_ALIVE;
    return now - awake_since <= limit ? PHI_PULSE_UNKNOWN : PHI_PULSE_SUSPECT;
}

int64_t phi_pulse_awake(int64_t now, int64_t ticked, int64_t awake_since, int64_t limit)
{
    return ticked == 0 || now - ticked > limit / 2 ? now : awake_since;
}

static int64_t limit_of(const struct phi_self *self)
{
    return self->config->suspect_ms * PHI_MS;
}

static void come_back(struct phi_peer *peer, int64_t now)
{
    phi_log(peer->self->report, PH_LOG_INFO, "rank %d beats again after %lld ms", peer->rank,
            (long long)((now - peer->pulse.at) / PHI_MS));
    phi_heartbeat_forget(peer);
}

static void fall_silent(struct phi_peer *peer, int64_t now)
{
    struct phi_self *self = peer->self;
    peer->pulse.suspect = true;
    atomic_store_explicit(&self->serving.silent_since[peer->rank], peer->pulse.at,
                          memory_order_relaxed);
    phi_log(self->report, PH_LOG_WARN,
            "rank %d (process %u on %s) is SUSPECT: no heartbeat for %lld ms", peer->rank,
            peer->theirs.pid, peer->theirs.host, (long long)((now - peer->pulse.at) / PHI_MS));
}

static void watch_one(struct phi_peer *peer, int64_t now)
{
    struct phi_side *theirs = phi_peer_theirs(peer);
    // A peer that has not mapped the segment cannot beat in it.
    if (atomic_load_explicit(&theirs->mapped, memory_order_relaxed) == 0)
        return;
    uint64_t beat = atomic_load_explicit(&theirs->beat, memory_order_relaxed);
    if (beat != peer->pulse.beat || peer->pulse.at == 0) {
        if (peer->pulse.suspect)
            come_back(peer, now);
        peer->pulse.beat = beat;
        peer->pulse.at = now;
        return;
    }
    enum phi_pulse pulse =
        phi_pulse_judge(now, peer->pulse.at, peer->self->serving.awake_since, limit_of(peer->self));
    if (pulse == PHI_PULSE_SUSPECT && !peer->pulse.suspect)
        fall_silent(peer, now);
}

// Returns whether we have to beat for the peer: it is connected, and not over.
static bool tick_one(struct phi_peer *peer, int64_t now)
{
    if (peer->segment == NULL || peer->end.gone ||
        (peer->state != PHI_PEER_READY && peer->state != PHI_PEER_BROKEN))
        return false;
    struct phi_side *mine = phi_peer_mine(peer);
    const uint64_t beat = atomic_load_explicit(&mine->beat, memory_order_relaxed) + 1;
    phi_segment_put64(peer->segment, &mine->beat, beat);
    if (peer->to.link != NULL && (beat & (beat - 1)) == 0)
        phi_link_guard(peer->to.link); // rails connect when they are used first
    phi_peer_look(peer); // its notice of a leave or an abort may have found our socket full
    if (!peer->end.expelled)
        watch_one(peer, now);
    return true;
}

int64_t phi_heartbeat_tick(struct phi_self *self)
{
    int64_t now = phi_now();
    bool any = false;
    pthread_mutex_lock(&self->lock);
    self->serving.awake_since =
        phi_pulse_awake(now, self->serving.ticked, self->serving.awake_since, limit_of(self));
    for (int rank = 0; rank < self->ranks; rank++)
        if (self->table[rank] != NULL && tick_one(self->table[rank], now))
            any = true;
    self->serving.ticked = any ? now : 0;
    pthread_mutex_unlock(&self->lock);
    return any ? now + self->config->heartbeat_ms * PHI_MS : PHI_FOREVER;
}

bool phi_heartbeat_missed(struct phi_self *self)
{
    return self->serving.ticked != 0 &&
           phi_now() - self->serving.ticked > 2 * self->config->heartbeat_ms * PHI_MS;
}

enum ph_peer_state phi_peer_report_state(const struct phi_peer *peer)
{
    if (peer->end.gone)
        return PH_PEER_GONE;
    if (peer->end.expelled)
        return PH_PEER_EXPELLED;
    switch (peer->state) {
    case PHI_PEER_UNKNOWN:
        return PH_PEER_UNKNOWN;
    case PHI_PEER_KNOWN:
        return PH_PEER_KNOWN;
    case PHI_PEER_READY:
        return peer->pulse.suspect ? PH_PEER_SUSPECT : PH_PEER_LIVE;
    default:
        return PH_PEER_BROKEN;
    }
}

void phi_peer_report(struct phi_self *self, int rank, struct ph_peer_report *report)
{
    *report = (struct ph_peer_report){.state = PH_PEER_UNKNOWN, .silent_ms = -1};
    pthread_mutex_lock(&self->lock);
    const struct phi_peer *peer = self->table[rank];
    if (peer != NULL) {
        report->state = phi_peer_report_state(peer);
        report->code = peer->state == PHI_PEER_BROKEN ? peer->end.code : 0;
        if (peer->pulse.at != 0)
            report->silent_ms = (phi_now() - peer->pulse.at) / PHI_MS;
        report->incarnation = peer->incarnation;
        report->process = peer->theirs.pid;
    }
    pthread_mutex_unlock(&self->lock);
}
