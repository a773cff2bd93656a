// SPDX-License-Identifier: BSD-3-Clause
#include "meeting/lives.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ending/end.h"
#include "ending/expel.h"
#include "ending/link.h"
#include "lane/flag_memory.h"
#include "lane/staging.h"
#include "meeting/attempt.h"
#include "peer/channel.h"
#include "peer/exports.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/wake.h"
#include "release/evict.h"
#include "release/release.h"
#include "release/revoke.h"
#include "semaphore/segment.h"

static void free_remote_exports(struct phi_peer *peer)
{
    size_t cursor = 0;
    for (struct phi_remote_export *e; (e = phi_map_next(&peer->imports.all, &cursor)) != NULL;) {
        phi_memory_import_close(e->import);
        free(e->record);
        free(e);
    }
    phi_map_fini(&peer->imports.all);
}

static void free_keys(struct phi_peer *peer)
{
    size_t cursor = 0;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys.all, &cursor)) != NULL;)
        phi_key_free(key);
    phi_map_fini(&peer->keys.all);
}

static void free_channels(struct ph_channel *channel)
{
    while (channel != NULL) {
        struct ph_channel *next = channel->kept.next;
        phi_staging_close(channel);
        phi_channel_free(channel);
        channel = next;
    }
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void close_fds(struct phi_peer *peer)
{
    close_fd(&peer->to.socket);
    close_fd(&peer->to.wake_fd);
    close_fd(&peer->to.pidfd);
}

void phi_peer_free(struct phi_peer *peer)
{
    if (peer == NULL)
        return;
    phi_revoke_free(peer);
    free_keys(peer);
    free_remote_exports(peer);
    phi_memory_import_close(peer->trial.probe);
    phi_attempt_free(peer->trial.attempt);
    phi_flag_memory_close(peer);
    free_channels(peer->channels.first);
    free_channels(peer->channels.retired);
    phi_hello_free(peer);
    phi_segment_unregister(peer->segment, peer->self->device);
    phi_segment_close(peer->segment);
    close_fds(peer);
    free(peer->keys.slots);
    free(peer->keys.slot_lives);
    free(peer->imports.ended_unread);
    free(peer->room.lines);
    free(peer->room.slots);
    phi_gate_fini(&peer->to.calling);
    free(peer);
}

// forget drops what a life told us before we ever connected to it: its numbers and ids mean other
// things in the next life.
static void forget(struct phi_peer *peer)
{
    size_t cursor = 0;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys.all, &cursor)) != NULL;) {
        for (uint32_t i = 0; i < key->theirs.count; i++)
            phi_peer_buffer_fini(peer, &key->theirs.list[i]);
        free(key->theirs.list);
        key->theirs.list = NULL;
        key->theirs.count = key->theirs.room = 0;
        if (key->slot != PHI_NO_SLOT)
            peer->keys.slots[key->slot] = NULL;
        key->slot = PHI_NO_SLOT;
        phi_key_forget_full(key);
    }
    free_remote_exports(peer);
    phi_revoke_free(peer);
    peer->replies.unsaid_count = 0;
    phi_hello_forget(peer);
    phi_flag_memory_forget(peer);
    for (uint32_t i = 0; i < peer->keys.slots_room; i++)
        peer->keys.slot_lives[i] = 0;
    peer->imports.seen = 0;
    peer->imports.ended_count = 0;
    peer->heard.filed = 0;
}

static void take_record(struct phi_peer *peer, uint64_t incarnation,
                        const struct phi_capabilities *theirs)
{
    peer->incarnation = incarnation;
    peer->theirs = *theirs;
    peer->contact.refused = peer->contact.mute = peer->contact.unreachable =
        peer->contact.net_refused = false;
    peer->contact.shut = peer->contact.knocked = peer->contact.elsewhere = false;
    phi_attempt_renew(peer);
    peer->life.newer = 0;
    peer->state = PHI_PEER_KNOWN;
}

static void disown(struct phi_peer *peer)
{
    size_t cursor = 0;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys.all, &cursor)) != NULL;)
        if (key->request == NULL)
            phi_key_disown(key);
}

// The former life stays on a list: the application may still hold its channels.
static void replace(struct phi_peer *peer)
{
    struct phi_self *self = peer->self;
    struct phi_peer *renewed = phi_peer_new(self, peer->rank);
    if (renewed == NULL)
        return; // another time
    take_record(renewed, peer->life.newer, &peer->life.newer_theirs);
    renewed->life.expelled = peer->life.expelled;
    peer->life.newer = 0;
    phi_heartbeat_forget(peer);
    phi_service_unwatch(peer);
    peer->life.former = self->lives.former;
    self->lives.former = peer;
    self->table[peer->rank] = renewed;
    phi_exports_forget(self, peer->rank);
    disown(peer);
    phi_lives_due(peer);
}

void phi_peer_renew(struct phi_peer *peer)
{
    if (peer->life.newer == 0 || peer->contact.preparing)
        return;
    if (peer->state != PHI_PEER_BROKEN) {
        forget(peer);
        take_record(peer, peer->life.newer, &peer->life.newer_theirs);
    } else if (peer->end.code != PH_EABORTED && peer->end.code != PH_EFENCED &&
               phi_expel_over(peer) && peer->end.released) {
        // A later life is not met before: a former process may still write, or our streams may
        // touch the memory that it shares. A later life is never met if this rank's own life is
        // over.
        replace(peer);
    }
}

void phi_peer_record(struct phi_peer *peer, uint64_t incarnation,
                     const struct phi_capabilities *theirs)
{
    peer->life.newer = incarnation;
    peer->life.newer_theirs = *theirs;
    if (peer->state == PHI_PEER_READY) {
        phi_log(peer->self->report, PH_LOG_WARN, "rank %d was started again", peer->rank);
        phi_peer_break(peer, PH_EPEER);
    }
    // A program that it has executed may hold the link open, as may a child of it.
    if (peer->state == PHI_PEER_BROKEN)
        phi_hello_cut(peer);
    if (peer->end.parted && peer->end.ending)
        phi_peer_parted(peer);
    phi_peer_renew(peer);
}

// ---- what is left of them

// How soon to look again at a life that a thread, or a stream, is not done with.
#define AGAIN_MS 10

// is_visited says whether a thread has given up the lock and comes back to this life, or a release
// of ours names the life. A thread that connects, sends, asks or maps has a key of the life in an
// exchange.
static bool is_visited(const struct phi_peer *peer)
{
    size_t cursor = 0;
    if (peer->life.visitors > 0 || phi_release_names(peer) || phi_attempt_trying(peer) ||
        phi_flag_memory_importing(peer))
        return true;
    for (const struct phi_key *key; (key = phi_map_next(&peer->keys.all, &cursor)) != NULL;)
        if (key->request != NULL)
            return true;
    cursor = 0;
    for (const struct phi_remote_export *e;
         (e = phi_map_next(&peer->imports.all, &cursor)) != NULL;)
        if (e->importing)
            return true;
    return false;
}

static bool is_held(const struct phi_peer *peer)
{
    for (const struct ph_channel *c = peer->channels.first; c != NULL; c = c->kept.next)
        if (c->kept.handles > 0)
            return true;
    return peer->channels.retired != NULL;
}

// Its channels had nothing under way when it was replaced. What the application took of them since
// may have.
static bool is_touched(struct phi_peer *peer)
{
    struct phi_executor *executor = peer->self->executor;
    for (const struct ph_channel *c = peer->channels.first; c != NULL; c = c->kept.next)
        if (!phi_revoke_drained(c))
            return true;
    return !executor->ops->drained(executor, &peer->channels.late, NULL, 0);
}

// Closes what no thread uses any more; whether all of it may be freed. *soon: in how many ms to
// look again, unless only a handle is in the way.
static bool part_with(struct phi_peer *peer, int *soon)
{
    const bool visited = is_visited(peer);
    if (!visited)
        close_fds(peer);
    if (!visited && is_held(peer))
        return false;
    if (!visited && !is_touched(peer))
        return true;
    *soon = AGAIN_MS;
    return false;
}

// Frees the first life that may be; false: there is none. Gives up the lock meanwhile. Without
// `blocking` none is freed, and *left set where one could be.
static bool free_one(struct phi_self *self, bool blocking, int *soon, bool *left)
{
    for (struct phi_peer **at = &self->lives.former; *at != NULL; at = &(*at)->life.former) {
        struct phi_peer *peer = *at;
        if (!part_with(peer, soon))
            continue;
        *left = !blocking;
        if (!blocking)
            continue;
        *at = peer->life.former;
        // An exchange may remember one of them: see key_after() in exchange/buffers.c.
        free_keys(peer);
        pthread_mutex_unlock(&self->lock);
        phi_peer_free(peer);
        pthread_mutex_lock(&self->lock);
        return true;
    }
    return false;
}

int phi_lives_tick(struct phi_self *self)
{
    struct phi_executor *executor = self->executor;
    const bool idle = self->config->reap == PHI_REAP_IDLE;
    int soon = -1;
    pthread_mutex_lock(&self->lock);
    if (self->lives.former_due) {
        const bool blocking =
            self->device == NULL || (idle && !executor->ops->busy(executor, NULL, 0));
        bool left = false;
        self->lives.former_due = false;
        if (free_one(self, blocking, &soon, &left))
            soon = 0;
        else if (self->lives.former != NULL && !blocking && idle)
            soon = AGAIN_MS;
        self->lives.former_due = self->lives.former_due || soon >= 0;
    }
    pthread_mutex_unlock(&self->lock);
    return soon;
}

bool phi_lives_reap(struct phi_self *self, bool blocking)
{
    int soon = -1;
    bool left = false;
    while (free_one(self, blocking, &soon, &left))
        ;
    return left;
}
