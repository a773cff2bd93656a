// SPDX-License-Identifier: BSD-3-Clause
// The work of a rank when a peer gives a buffer back that is mapped here.
#include "release/revoke.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "ending/expel.h"
#include "lane/lift.h"
#include "peer/channel.h"
#include "peer/keys.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "peer/wake.h"
#include "release/imports.h"
#include "release/reply.h"
#include "release/spent.h"
#include "semaphore/segment.h"

// The most revocations of one peer at once: each message and tick looks through all of them.
enum { REVOCATIONS_MAX = 4096 };

// The most ended exports of one peer whose offers are not read yet.
enum { GONE_MAX = 4096 };

// A release of the peer, until all is drained here and the peer knows; or the end of one of its
// exports, until that is noted.
struct phi_revocation {
    struct phi_revocation *next;
    uint64_t id; // 0: of an export that has ended
    uint32_t export_id;
    uint64_t begin, end; // in the export
    uint32_t number;     // not of buffers with a larger one
    bool begun;          // it has taken effect here
    struct phi_net_told told_by_then;
    struct phi_revoked told;
    bool answered;
};

int phi_revoke_let_go(struct phi_peer *peer, const struct phi_node_message *message)
{
    for (struct ph_channel *c = peer->channels.first; c != NULL; c = c->kept.next)
        if (c->fixed.index == message->a && atomic_load(&c->live.uses.revoked) != 0) {
            phi_peer_note_told(peer, &c->kept.told_by_then);
            c->kept.let_go = true;
        }
    return 0;
}

static bool touches(const struct phi_revocation *r, const struct phi_peer_ranges *ranges)
{
    for (uint32_t i = 0; i < ranges->count; i++) {
        const struct phi_peer_range *range = phi_peer_range(ranges, i);
        if (range->export_ != NULL && range->export_->id == r->export_id &&
            range->offset < r->end && r->begin < range->offset + range->size)
            return true;
    }
    return false;
}

static bool concerns(const struct phi_revocation *r, const struct ph_channel *channel)
{
    return channel->fixed.theirs.number <= r->number && touches(r, &channel->kept.remote);
}

static bool concerns_buffer(const struct phi_revocation *r, const struct phi_peer_buffer *buffer)
{
    return buffer->number <= r->number && touches(r, &buffer->ranges);
}

static void revoke(struct phi_peer *peer, const struct phi_revocation *r)
{
    size_t cursor = 0;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys.all, &cursor)) != NULL;)
        for (uint32_t i = 0; i < key->theirs.count; i++)
            if (concerns_buffer(r, &key->theirs.list[i]))
                key->theirs.list[i].released = true;
    for (struct ph_channel *channel = peer->channels.first; channel != NULL;
         channel = channel->kept.next)
        if (concerns(r, channel))
            phi_revoke_channel(channel);
}

// Notes an export that has ended and whose offer may be read later. That offer must not be filed,
// as nobody will say again that the export is gone. If there is no room to note it, the offer is
// filed, and the export stays until the pair is over.
static void note_gone(struct phi_peer *peer, uint32_t export_id)
{
    if (export_id < peer->imports.seen || peer->imports.ended_count == GONE_MAX)
        return;
    for (uint32_t i = 0; i < peer->imports.ended_count; i++)
        if (peer->imports.ended_unread[i] == export_id)
            return; // told again
    uint32_t *grown = phi_array_grow(peer->imports.ended_unread, peer->imports.ended_count,
                                     &peer->imports.ended_room, sizeof *peer->imports.ended_unread);
    if (grown == NULL)
        return;
    peer->imports.ended_unread = grown;
    peer->imports.ended_unread[peer->imports.ended_count++] = export_id;
}

static void end_export(struct phi_peer *peer, uint32_t export_id)
{
    struct phi_remote_export *e = phi_imports_find(peer, export_id);
    if (e == NULL) {
        note_gone(peer, export_id);
        phi_imports_tell(peer, export_id); // where that cannot be told now the peer asks again
        return;
    }
    e->revoked = true;
    peer->imports.closing = true;
}

// The application may still take the messages that the peer sent before, by the calls that it would
// have made. So a release takes effect when they are here: over the net they may be told of later
// than the release. Returns whether the release has taken effect.
static bool take_effect(struct phi_peer *peer, struct phi_revocation *r)
{
    if (r->begun)
        return true;
    if (!phi_peer_heard(peer, &r->told_by_then))
        return false;
    r->begun = true;
    if (r->id == 0)
        end_export(peer, r->export_id);
    revoke(peer, r);
    phi_self_changed(peer->self);
    phi_mailbox_wake(peer->self->mailbox); // for exchanges that wait for what will not come
    return true;
}

// Returns the place of the revocation that the message is about, or the end of the list.
static struct phi_revocation **place_of(struct phi_peer *peer,
                                        const struct phi_node_message *message, unsigned *before)
{
    struct phi_revocation **at = &peer->imports.revocations;
    for (*before = 0; *at != NULL; ++*before, at = &(*at)->next)
        if ((*at)->id == message->a && (message->a != 0 || (*at)->export_id == message->b))
            break;
    return at;
}

int phi_revoke_file(struct phi_peer *peer, const struct phi_node_message *message)
{
    struct phi_revoke what;
    unsigned under_way;
    if (message->bytes_size != sizeof what || message->b > UINT32_MAX)
        return -EBADMSG;
    memcpy(&what, message->bytes, sizeof what);
    if (what.offset > UINT64_MAX - what.size || (what.gone != 0) != (message->a == 0))
        return -EBADMSG;
    struct phi_revocation **at = place_of(peer, message, &under_way), *r = *at;
    if (r != NULL) {
        r->answered = false;
        return 0;
    }
    if (under_way == REVOCATIONS_MAX)
        return -EAGAIN; // asked again, if that is what it is
    r = calloc(1, sizeof *r);
    if (r == NULL)
        return -ENOMEM; // asked again
    r->id = message->a;
    r->export_id = (uint32_t)message->b;
    r->begin = what.gone ? 0 : what.offset;
    r->end = what.gone ? UINT64_MAX : what.offset + what.size;
    r->number = what.gone ? UINT32_MAX : what.number;
    phi_peer_note_told(peer, &r->told_by_then);
    *at = r;
    take_effect(peer, r);
    return 0;
}

uint32_t phi_revocations_count(const struct phi_peer *peer)
{
    uint32_t count = 0;
    for (const struct phi_revocation *r = peer->imports.revocations; r != NULL; r = r->next)
        count += r->id != 0;
    return count;
}

void phi_revoke_free(struct phi_peer *peer)
{
    while (peer->imports.revocations != NULL) {
        struct phi_revocation *r = peer->imports.revocations;
        peer->imports.revocations = r->next;
        free(r);
    }
}

// Notes the obstacles of the first channel that is not drained. `waiting` may be of any such
// channel.
static void note_left(struct ph_channel *channel, struct phi_revoked *now)
{
    struct phi_executor *executor = channel->self->executor;
    if (now->drained) {
        struct phi_left left;
        executor->ops->left(executor, &channel->live.uses, &left);
        now->drained = 0;
        now->op_id = channel->op_id;
        now->streams = left.streams;
        now->graphs = left.graphs;
        now->devices = left.devices;
        now->graph = left.graph;
    }
    if (now->waiting == 0 && !channel->kept.let_go && phi_revoke_may_wait(channel))
        now->waiting = channel->fixed.index + 1;
}

// Returns whether the peer has let the channel go and its posts are here. Posts that it made before
// may come later than its message.
static bool has_let_go(const struct ph_channel *channel)
{
    return channel->kept.let_go && phi_peer_heard(channel->peer, &channel->kept.told_by_then);
}

static struct phi_revoked examine(struct phi_peer *peer, const struct phi_revocation *r)
{
    struct phi_revoked now = {.drained = 1};
    for (struct ph_channel *channel = peer->channels.first; channel != NULL;
         channel = channel->kept.next) {
        if (!concerns(r, channel))
            continue;
        if (!phi_revoke_drained(channel)) {
            if (has_let_go(channel) && phi_revoke_waits(channel))
                phi_revoke_lift(channel, false);
            note_left(channel, &now);
            continue;
        }
        phi_revoke_settle(channel);
        if (atomic_load(&channel->live.status) == PH_EBROKEN)
            // no copy can be skipped by it any more
            atomic_store(&channel->fixed.own.line->broken, 1);
    }
    return now;
}

// Returns whether the release is over here, and the peer knows.
static bool tick_revocation(struct phi_peer *peer, struct phi_revocation *r)
{
    struct phi_node_message message;
    if (!take_effect(peer, r))
        return false;
    if (r->id == 0)
        return true; // its imports are closed by themselves
    struct phi_revoked now = examine(peer, r);
    if (r->answered && memcmp(&now, &r->told, sizeof now) == 0)
        return false;
    phi_peer_message(peer, PHI_NODE_REVOKED, &message);
    message.a = r->id;
    message.bytes_size = sizeof now;
    memcpy(message.bytes, &now, sizeof now);
    r->answered = phi_peer_tell(peer, &message) == 0;
    r->told = now;
    return r->answered && now.drained;
}

int phi_revoke_tick(struct phi_peer *peer, bool *closed)
{
    int soon = phi_retire_say(peer) ? -1 : 1;
    for (struct phi_revocation **at = &peer->imports.revocations; *at != NULL;) {
        struct phi_revocation *r = *at;
        bool over = peer->state == PHI_PEER_BROKEN && phi_expel_over(peer);
        if (!over && !tick_revocation(peer, r)) {
            soon = 1;
            at = &r->next;
            continue;
        }
        *at = r->next;
        free(r);
    }
    return peer->imports.closing ? phi_soon(soon, phi_imports_tick(peer, closed)) : soon;
}
