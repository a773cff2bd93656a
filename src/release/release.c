// SPDX-License-Identifier: BSD-3-Clause
#include "release/release.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "ending/expel.h"
#include "lane/lift.h"
#include "lane/staging.h"
#include "peer/channel.h"
#include "peer/exports.h"
#include "peer/keys.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "peer/wake.h"
#include "release/abort.h"
#include "release/release_state.h"
#include "release/revoke.h"
#include "release/spent.h"
#include "semaphore/segment.h"

// A message that nobody took up (the peer had no memory for it) is sent again.
#define RESEND_MS      500
#define RESEND_GONE_MS 2000
#define HELD_MS        10 // when to look again whether a bounce buffer is held

// A release of one range of a channel is about the allocations of its other ranges, too.
static bool is_about(const struct phi_release *part, uint64_t base)
{
    if (part->base == base)
        return true;
    for (const struct ph_channel *c = part->peer->channels.first; c != NULL; c = c->kept.next)
        if (c->fixed.own.ranges != NULL && atomic_load(&c->live.uses.revoked) != 0 &&
            phi_channel_lies_in(c, part->base) && phi_channel_lies_in(c, base))
            return true;
    return false;
}

bool phi_release_pending(struct phi_self *self, uint64_t base)
{
    for (const struct phi_release *part = self->exports.releases; part != NULL; part = part->next)
        if (!part->drained && !phi_release_over(part->peer) && is_about(part, base))
            return true; // what is over is only not cleared away yet
    return false;
}

uint32_t phi_releases_count(const struct phi_self *self)
{
    uint32_t count = 0;
    for (const struct phi_release *part = self->exports.releases; part != NULL; part = part->next)
        count++;
    return count;
}

bool phi_release_names(const struct phi_peer *peer)
{
    const struct phi_release *part = peer->self->exports.releases;
    while (part != NULL && part->peer != peer)
        part = part->next;
    return part != NULL;
}

void phi_releases_free(struct phi_self *self)
{
    while (self->exports.releases != NULL) {
        struct phi_release *part = self->exports.releases;
        self->exports.releases = part->next;
        free(part);
    }
}

int phi_release_revoked(struct phi_peer *peer, const struct phi_node_message *message)
{
    struct phi_release *part = peer->self->exports.releases;
    while (part != NULL && (part->id != message->a || part->peer != peer))
        part = part->next;
    if (message->bytes_size != sizeof part->last)
        return -EBADMSG;
    if (part == NULL || part->drained)
        return 0; // an answer to what was sent twice
    const uint32_t waiting = part->last.waiting;
    memcpy(&part->last, message->bytes, sizeof part->last);
    if (part->last.waiting != waiting)
        part->marked = false; // of another channel
    part->revoked = true;
    part->drained = part->last.drained != 0;
    phi_self_changed(peer->self);
    return 0;
}

int phi_release_unmapped(struct phi_peer *peer, const struct phi_node_message *message)
{
    for (struct phi_local_export *e = peer->self->exports.ended; e != NULL; e = e->next) {
        if (e->id != message->a)
            continue;
        e->sent[peer->rank] = 0;
        if (peer->to.link != NULL)
            phi_link_unregister(peer->to.link, e->id);
        break;
    }
    phi_release_prune_all(peer);
    phi_self_changed(peer->self);
    return 0;
}

static int tell_revoke(struct phi_peer *peer, uint64_t id, uint32_t export_id,
                       const struct phi_revoke *revoke)
{
    struct phi_node_message message;
    phi_peer_message(peer, PHI_NODE_REVOKE, &message);
    message.a = id;
    message.b = export_id;
    message.bytes_size = sizeof *revoke;
    memcpy(message.bytes, revoke, sizeof *revoke);
    return phi_peer_tell(peer, &message);
}

// Returns whether the data that our streams have sent from the allocation is at the peer. Over the
// net the data takes another way than the messages of the service threads, and a stream is done
// with it before it is there.
static bool is_delivered(struct phi_release *part)
{
    struct phi_link *link = part->peer->to.link;
    if (link == NULL)
        return true;
    for (struct ph_channel *c = part->peer->channels.first; c != NULL; c = c->kept.next)
        if (phi_channel_lies_in(c, part->base) && atomic_load(&c->live.uses.revoked) != 0 &&
            !phi_staging_sent(c))
            return false;
    part->marked = part->marked || phi_link_mark(link, &part->mark);
    return part->marked && phi_link_delivered(link, part->mark);
}

// The peer has a wait on a channel. If no stream of ours will post there any more, the wait may go
// on: its copy, if one follows, finds our buffer still valid.
static int answer_wait(struct phi_release *part)
{
    struct phi_peer *peer = part->peer;
    struct ph_channel *channel = peer->channels.first;
    while (channel != NULL && (channel->fixed.index + 1 != part->last.waiting ||
                               atomic_load(&channel->live.uses.revoked) == 0))
        channel = channel->kept.next;
    if (channel == NULL)
        return -1;
    if (!phi_revoke_drained(channel)) {
        part->marked = false; // more may be posted
        return 1;
    }
    struct phi_node_message message;
    phi_peer_message(peer, PHI_NODE_LET_GO, &message);
    message.a = channel->fixed.index;
    if (!is_delivered(part) || phi_peer_tell(peer, &message) == -EAGAIN)
        return 1;
    part->last.waiting = 0;
    part->marked = false;
    return -1;
}

// Streams of ours that wait for a peer whose end is drained wait for nothing.
static bool own_ends_drained(struct phi_release *part)
{
    bool all = true;
    for (struct ph_channel *c = part->peer->channels.first; c != NULL; c = c->kept.next) {
        if (!phi_channel_lies_in(c, part->base) || atomic_load(&c->live.uses.revoked) == 0 ||
            phi_revoke_drained(c))
            continue;
        all = false;
        if (!phi_revoke_waits(c))
            continue; // it ends by itself
        // Copies that can look at `broken` are skipped. A copy engine cannot look, and would write
        // into a buffer that its owner has not opened.
        const bool looks = c->self->device == NULL || c->fixed.stage.bells;
        if (looks)
            atomic_store(&c->fixed.own.line->broken, 1);
        phi_revoke_lift(c, !looks);
    }
    return all;
}

// Returns in how many ms to come again, -1: not by the clock; *over: the part is done.
static int tick_part(struct phi_release *part, int64_t now, bool *over)
{
    const struct phi_revoke revoke = {
        .offset = part->offset, .size = part->size, .number = part->number};
    struct phi_peer *peer = part->peer;
    *over = phi_release_over(peer);
    if (*over)
        return -1;
    if (!part->drained && peer->state == PHI_PEER_BROKEN &&
        atomic_load(&phi_peer_theirs(peer)->drained) != 0) {
        part->drained = true; // it leaves, or has parted with us
        phi_self_changed(peer->self);
    }
    if (part->drained) {
        *over = own_ends_drained(part);
        return *over ? -1 : 10;
    }
    if (!part->sent && !is_delivered(part))
        return 1;
    if (!part->revoked && (!part->sent || now - part->sent_at > RESEND_MS * PHI_MS)) {
        part->marked = false;
        part->sent = tell_revoke(peer, part->id, part->export_id, &revoke) == 0;
        part->sent_at = now;
        return part->sent ? RESEND_MS : 1;
    }
    if (!part->revoked)
        return RESEND_MS;
    return part->last.waiting ? answer_wait(part) : -1;
}

// Returns whether the peer is still to be told of a release, which comes first: it may be of
// buffers of this export, whichever of their ranges is given back.
static bool is_held_back(const struct phi_peer *peer)
{
    for (const struct phi_release *part = peer->self->exports.releases; part != NULL;
         part = part->next)
        if (part->peer == peer && !part->sent)
            return true;
    return phi_abort_untold(peer);
}

// Tells the peers that may map an export that it is of no use any more.
static int tick_ended(struct phi_self *self, struct phi_local_export *e, int64_t now)
{
    const struct phi_revoke revoke = {
        .size = e->export_.allocation.size, .gone = 1, .number = UINT32_MAX};
    bool again = now - e->told_at > RESEND_GONE_MS * PHI_MS;
    int soon = -1;
    for (int rank = 0; rank < self->ranks; rank++) {
        struct phi_peer *peer = self->table[rank];
        if (e->sent[rank] && (peer == NULL || phi_release_over(peer)))
            e->sent[rank] = 0;
        if ((e->sent[rank] == 1 || (e->sent[rank] && again)) && !is_held_back(peer)) {
            bool told = tell_revoke(peer, 0, e->id, &revoke) == 0;
            e->sent[rank] = told ? 2 : 1;
            e->told_at = now;
        }
        if (e->sent[rank])
            soon = phi_soon(soon, e->sent[rank] == 1 ? 1 : RESEND_GONE_MS);
    }
    return soon;
}

static int tick_own(struct phi_self *self, int64_t now)
{
    int soon = -1;
    for (struct phi_release **at = &self->exports.releases; *at != NULL;) {
        struct phi_release *part = *at;
        bool over;
        soon = phi_soon(soon, tick_part(part, now, &over));
        if (!over) {
            at = &part->next;
            continue;
        }
        *at = part->next;
        phi_release_prune_all(part->peer);
        free(part);
        phi_self_changed(self);
    }
    for (struct phi_local_export *e = self->exports.ended, *next; e != NULL; e = next) {
        next = e->next;
        soon = phi_soon(soon, tick_ended(self, e, now));
        soon = phi_soon(soon, phi_export_held(self, e) ? HELD_MS : -1);
        phi_export_drop(self, e);
    }
    return soon;
}

static int tick_peer(struct phi_peer *peer, bool *closed)
{
    int soon = phi_revoke_tick(peer, closed);
    soon = phi_soon(soon, phi_abort_tick(peer));
    return phi_soon(soon, phi_spent_tick(peer));
}

int phi_release_tick(struct phi_self *self)
{
    pthread_mutex_lock(&self->lock);
    int soon = tick_own(self, phi_now());
    bool closed = false;
    for (int rank = 0; rank < self->ranks; rank++)
        if (self->table[rank] != NULL)
            soon = phi_soon(soon, tick_peer(self->table[rank], &closed));
    pthread_mutex_unlock(&self->lock);
    return soon;
}
