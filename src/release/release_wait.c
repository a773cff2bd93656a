// SPDX-License-Identifier: BSD-3-Clause
// How far a release is: what is in the way of a state, and the wait until nothing is.
#include "release/release_wait.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "ending/end.h"
#include "ending/expel.h"
#include "ending/look.h"
#include "ending/untold.h"
#include "peer/channel.h"
#include "peer/keys.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "release/release_state.h"

// The obstacles that a state of a release still has.
struct obstacle {
    int rc; // 0: nothing
    bool pins_only;
    unsigned more;
    const struct phi_release *part;   // the first
    const struct phi_local_export *e; // or an export that rank `rank` maps
    int rank;
    struct phi_peer *ended; // its streams are held until our application knows that it has
};

// Returns whether no stream is in the way, but captured graphs or device channels are.
static bool is_pinned(const struct phi_revoked *last)
{
    return last->streams == 0 && (last->graphs > 0 || last->devices > 0);
}

static void note_ended(struct obstacle *o, struct phi_peer *peer)
{
    if (phi_peer_holds(peer))
        o->ended = peer;
}

static void in_the_way(struct obstacle *o, const struct phi_release *part)
{
    note_ended(o, part->peer);
    bool pinned = part->revoked && is_pinned(&part->last);
    o->pins_only = pinned && (o->rc == 0 || o->pins_only);
    o->more += o->rc != 0;
    // A part that is more than pinned is named first.
    if (o->part == NULL || (!pinned && is_pinned(&o->part->last)))
        o->part = part;
    o->rc = -EAGAIN;
}

static void look_at_mappings(struct phi_self *self, const struct phi_scope *scope,
                             struct phi_local_export *e, struct obstacle *o)
{
    const struct phi_allocation *a = &e->export_.allocation;
    if (!phi_scope_touches(scope, a->base, a->size))
        return;
    for (int rank = 0; rank < self->ranks; rank++) {
        if (!e->sent[rank] || self->table[rank] == NULL || phi_release_over(self->table[rank]))
            continue;
        note_ended(o, self->table[rank]);
        o->pins_only = false;
        o->more += o->rc != 0;
        if (o->rc == 0) {
            o->e = e;
            o->rank = rank;
        }
        o->rc = -EAGAIN;
    }
}

// Returns whether a channel has, or may get, a buffer in the range that nobody released. A buffer
// that no peer was told of has no channel: an exchange that failed before leaves its buffers
// behind.
static bool has_unreleased(struct phi_self *self, const struct phi_scope *scope)
{
    for (int rank = 0; rank < self->ranks; rank++) {
        const struct phi_peer *peer = self->table[rank];
        size_t cursor = 0;
        for (struct phi_key *key;
             peer != NULL && (key = phi_map_next(&peer->keys.all, &cursor)) != NULL;)
            for (uint32_t i = 0; i < key->own.count; i++)
                if (!key->own.list[i].released &&
                    (key->own.list[i].offered || key->request != NULL) &&
                    phi_scope_has(scope, &key->own.list[i]))
                    return true;
    }
    return false;
}

static bool has_end(const struct phi_scope *scope, const struct phi_channel_end *own)
{
    for (uint32_t i = 0; i < own->range_count; i++) {
        const uint64_t end = i + 1 < own->range_count ? own->ranges[i + 1].begin : own->size;
        if (phi_scope_touches(scope, own->ranges[i].address, end - own->ranges[i].begin))
            return true;
    }
    return false;
}

// A channel of several ranges has ended as a whole when memory of one of them was released. The
// part of that release says when nothing touches the other ranges any more, too.
static bool is_about(const struct phi_release *part, const struct phi_scope *scope)
{
    if (phi_scope_touches(scope, part->base + part->offset, part->size))
        return true;
    for (const struct ph_channel *c = part->peer->channels.first; c != NULL; c = c->kept.next)
        if (c->fixed.own.ranges != NULL && atomic_load(&c->live.uses.revoked) != 0 &&
            phi_channel_lies_in(c, part->base) && has_end(scope, &c->fixed.own))
            return true;
    return false;
}

static struct obstacle look(struct phi_self *self, const struct phi_scope *scope,
                            enum ph_release_state state)
{
    struct obstacle o = {0};
    bool waits = false;
    for (const struct phi_release *part = self->exports.releases; part != NULL; part = part->next) {
        if (!is_about(part, scope))
            continue;
        waits = true;
        if (!part->drained && !phi_release_over(part->peer) &&
            (state > PH_RELEASE_REVOKED || !part->revoked))
            in_the_way(&o, part);
    }
    if (!waits && has_unreleased(self, scope)) {
        o.rc = -EINVAL;
        return o;
    }
    if (state == PH_RELEASE_CLOSED) {
        for (uint32_t i = 0; i < self->exports.count; i++)
            look_at_mappings(self, scope, self->exports.live[i], &o);
        for (struct phi_local_export *e = self->exports.ended; e != NULL; e = e->next)
            look_at_mappings(self, scope, e, &o);
    }
    if (o.pins_only)
        o.rc = -EBUSY;
    return o;
}

static void describe_part(const struct phi_release *part, char *text, size_t size)
{
    const struct phi_revoked *last = &part->last;
    if (!part->sent || !part->revoked) {
        snprintf(text, size, "has not answered yet");
        return;
    }
    snprintf(text, size, "operation %llu: %u stream%s still to run",
             (unsigned long long)last->op_id, last->streams, last->streams == 1 ? "" : "s");
    size_t used = strlen(text);
    if (last->graphs > 0)
        snprintf(text + used, size - used, ", %u captured graph%s (graph %llu) that hold%s it",
                 last->graphs, last->graphs == 1 ? "" : "s", (unsigned long long)last->graph,
                 last->graphs == 1 ? "s" : "");
    used = strlen(text);
    if (last->devices > 0)
        snprintf(text + used, size - used, ", %u device channel%s not given back", last->devices,
                 last->devices == 1 ? "" : "s");
}

static void describe(struct phi_self *self, const struct obstacle *o, char *text, size_t size)
{
    if (o->part != NULL)
        describe_part(o->part, text, size);
    else if (o->e->buffers > 0)
        snprintf(text, size, "maps the allocation, of which other buffers are not released");
    else
        snprintf(text, size, "still maps the allocation%s",
                 o->e->export_.allocation.kind == PHI_KIND_CUDA ||
                         o->e->export_.allocation.kind == PHI_KIND_POOL || self->device != NULL
                     ? ": it has not called ph_reap"
                     : "");
}

static int fail(struct phi_self *self, const struct phi_scope *scope, enum ph_release_state state,
                const struct obstacle *o)
{
    static const char *const names[] = {"", "REVOKED", "DRAINED", "CLOSED"};
    unsigned long long size = scope->end - scope->begin, at = scope->begin;
    char what[192], suspicion[80], more[32] = "";
    if (o->rc == -EINVAL)
        return phi_fail(self->report, -EINVAL,
                        "%llu bytes at 0x%llx are in use by channels: ph_release_start first", size,
                        at);
    const struct phi_peer *peer = o->part ? o->part->peer : self->table[o->rank];
    describe(self, o, what, sizeof what);
    phi_executor_suspicion(self->executor, peer->rank, suspicion, sizeof suspicion);
    if (o->more > 0)
        snprintf(more, sizeof more, " (and %u more)", o->more);
    return phi_fail(self->report, o->rc,
                    "the release of %llu bytes at 0x%llx is not %s: rank %d "
                    "(process %u) %s%s%s",
                    size, at, names[state], peer->rank, peer->theirs.pid, what, more, suspicion);
}

// Returns whether the application is to be told at once. Nobody answers a fenced rank.
static bool must_tell(const struct phi_self *self, const struct obstacle *o)
{
    return self->end.fenced || o->ended != NULL;
}

// Returns the failure of a call by an obstacle. An end that the application does not know of comes
// first: the other ranks may wait until it is told.
static int say(struct phi_self *self, const struct phi_scope *scope, enum ph_release_state state,
               const struct obstacle *o)
{
    if (o->rc == -EINVAL)
        return fail(self, scope, state, o);
    if (self->end.fenced)
        return phi_fence_fail(self);
    return o->ended ? phi_peer_failure(o->ended) : fail(self, scope, state, o);
}

int phi_release_test(struct phi_self *self, const void *address, size_t size,
                     enum ph_release_state state)
{
    const struct phi_scope scope = {.begin = (uintptr_t)address, .end = (uintptr_t)address + size};
    pthread_mutex_lock(&self->lock);
    struct obstacle o = look(self, &scope, state);
    if (o.rc && (o.rc != -EAGAIN || must_tell(self, &o)))
        o.rc = say(self, &scope, state, &o);
    pthread_mutex_unlock(&self->lock);
    return o.rc;
}

int phi_release_wait(struct phi_self *self, const void *address, size_t size,
                     enum ph_release_state state, int64_t deadline)
{
    const struct phi_scope scope = {.begin = (uintptr_t)address, .end = (uintptr_t)address + size};
    const struct timespec until = {deadline / 1000000000, deadline % 1000000000};
    pthread_mutex_lock(&self->lock);
    struct obstacle o = look(self, &scope, state);
    // The service thread hears of all that changes, and says so.
    while ((o.rc == -EAGAIN || o.rc == -EBUSY) && !must_tell(self, &o) && phi_now() < deadline) {
        pthread_cond_timedwait(&self->changes.cond, &self->lock, &until);
        o = look(self, &scope, state);
    }
    if (o.rc == -EAGAIN)
        o.rc = -ETIMEDOUT;
    if (o.rc)
        o.rc = say(self, &scope, state, &o);
    pthread_mutex_unlock(&self->lock);
    return phi_untold_answer(self, o.rc); // at the deadline: ends that are not in the way, too
}
