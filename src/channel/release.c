// SPDX-License-Identifier: BSD-3-Clause
#include "channel/release_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "channel/expel.h"
#include "channel/spent.h"
#include "channel/wake.h"

// A message that nobody took up (the peer had no memory for it) is sent again.
#define RESEND_MS      500
#define RESEND_GONE_MS 2000

// Whether nothing of the peer's process touches what we shared with it. One that never mapped the
// segment has mapped nothing else: it takes no round before, and then sees what was released. One
// that maps it between this look and our store of `released` is seen by a later look: CLOSED waits
// for it.
bool phi_release_over(const struct phi_peer *peer)
{
    return peer->segment == NULL || atomic_load(&phi_peer_theirs(peer)->mapped) == 0 ||
           (peer->state == PHI_PEER_BROKEN && phi_expel_over(peer));
}

// ---- start

static struct phi_release *part_for(struct phi_peer *peer, const struct phi_local_export *e,
                                    const struct phi_scope *scope, uint64_t since)
{
    struct phi_peers *peers = peer->peers;
    struct phi_release *part = peers->releases;
    for (; part != NULL; part = part->next)
        if (part->peer == peer && part->export_id == e->id && part->id > since)
            return part;
    part = calloc(1, sizeof *part);
    if (part == NULL)
        return NULL;
    const struct phi_allocation *a = &e->export_.allocation;
    uint64_t begin = scope->begin > a->base ? scope->begin : a->base;
    uint64_t end = scope->end < a->base + a->size ? scope->end : a->base + a->size;
    part->id = ++peers->release_ids;
    part->peer = peer;
    part->export_id = e->id;
    part->base = a->base;
    part->offset = begin - a->base;
    part->size = end - begin;
    part->number = peer->numbers;
    part->next = peers->releases;
    peers->releases = part;
    return part;
}

void phi_release_unused(struct phi_peers *peers, struct phi_local_export *e)
{
    for (uint32_t i = 0; i < peers->exports_count; i++) {
        if (peers->exports[i] != e)
            continue;
        peers->exports[i] = peers->exports[--peers->exports_count];
        e->next = peers->ended;
        peers->ended = e;
        phi_service_wake(peers); // tells those that may map it
        return;
    }
}

static void release_buffer(struct phi_key *key, struct phi_own_buffer *own)
{
    struct phi_peers *peers = key->peer->peers;
    own->released = true;
    // Before the peer is told of the release: a round that is under way with this buffer ends
    // without it there. Pairs with the load in phi_revoke_key.
    if (key->agreement.state != PHI_AGREEMENT_IDLE && key->agreement.mine == own->number &&
        key->slot != PHI_NO_SLOT)
        phi_segment_put64(
            key->peer->segment,
            &phi_segment_slot(key->peer->segment, key->peer->segment->side, key->slot)->released,
            own->number);
    if (--own->export_->buffers == 0)
        phi_release_unused(peers, own->export_);
}

// Marks the buffers of one peer's keys.
static int release_buffers(struct phi_peer *peer, const struct phi_scope *scope, uint64_t since,
                           bool *any)
{
    size_t cursor = 0;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys, &cursor)) != NULL;) {
        for (uint32_t i = 0; i < key->own_count; i++) {
            struct phi_own_buffer *own = &key->own[i];
            if (own->released || !phi_scope_has(scope, own))
                continue;
            *any = true;
            // Who was never told has nothing to end, and may not even be known yet.
            if (own->told && !phi_release_over(peer) &&
                part_for(peer, own->export_, scope, since) == NULL)
                return -ENOMEM;
            release_buffer(key, own);
        }
        phi_release_prune(key);
    }
    return 0;
}

static void revoke_own_ends(struct phi_peer *peer)
{
    for (struct ph_channel *channel = peer->channels; channel != NULL; channel = channel->next) {
        if (phi_key_mine_released(channel->key, channel->mine_number))
            phi_revoke_channel(channel);
    }
}

static int release_scope(struct phi_peers *peers, const struct phi_scope *scope, bool *any)
{
    uint64_t since = peers->release_ids;
    int rc = 0;
    for (int rank = 0; rank < peers->ranks && rc == 0; rank++) {
        struct phi_peer *peer = peers->table[rank];
        bool here = false;
        if (peer == NULL)
            continue;
        // The own ends first find their buffers released, then those are dropped.
        rc = release_buffers(peer, scope, since, &here);
        if (here)
            revoke_own_ends(peer);
        *any = *any || here;
    }
    // What only retired keys had a buffer in.
    for (uint32_t i = peers->exports_count; i-- > 0;) {
        struct phi_local_export *e = peers->exports[i];
        if (e->buffers == 0 && (scope->export_ == NULL || scope->export_ == e) &&
            phi_scope_touches(scope, e->export_.allocation.base, e->export_.allocation.size)) {
            phi_release_unused(peers, e);
            *any = true;
        }
    }
    if (*any) {
        phi_service_wake(peers);
        phi_peers_changed(peers);
        phi_mailbox_wake(peers->mailbox); // an exchange of ours may name one of them
    }
    return rc;
}

void phi_release_gone(struct phi_peers *peers, const struct phi_allocation *now)
{
    const struct phi_scope range = {.begin = now->base, .end = now->base + now->size};
    for (uint32_t i = peers->exports_count; i-- > 0;) {
        struct phi_local_export *e = peers->exports[i];
        const struct phi_allocation *a = &e->export_.allocation;
        if (phi_allocation_equal(a, now) || !phi_scope_touches(&range, a->base, a->size))
            continue;
        const struct phi_scope all = {.export_ = e, .begin = a->base, .end = a->base + a->size};
        bool any = false;
        phi_log(peers->report, PH_LOG_WARN,
                "%llu bytes at 0x%llx were freed without ph_release_start, and other memory lies "
                "there now",
                (unsigned long long)a->size, (unsigned long long)a->base);
        release_scope(peers, &all, &any); // without memory for it the next exchange tries again
        i = i < peers->exports_count ? i : peers->exports_count;
    }
}

// Whether the library ever knew something in the range that is not over.
static bool is_known(struct phi_peers *peers, const struct phi_scope *scope)
{
    for (struct phi_release *part = peers->releases; part != NULL; part = part->next)
        if (phi_scope_touches(scope, part->base + part->offset, part->size))
            return true;
    for (struct phi_local_export *e = peers->ended; e != NULL; e = e->next)
        if (phi_scope_touches(scope, e->export_.allocation.base, e->export_.allocation.size))
            return true;
    return false;
}

int phi_release_start(struct phi_peers *peers, const void *address, size_t size)
{
    const struct phi_scope scope = {.begin = (uintptr_t)address, .end = (uintptr_t)address + size};
    struct phi_allocation allocation;
    uint64_t offset;
    bool any = false;
    pthread_mutex_lock(&peers->lock);
    int rc = release_scope(peers, &scope, &any);
    if (rc)
        phi_fail(peers->report, rc, "out of memory for the release of %zu bytes at %p", size,
                 address);
    else if (!any && !is_known(peers, &scope))
        rc = phi_memory_describe(peers->memory, address, size, &allocation, &offset);
    pthread_mutex_unlock(&peers->lock);
    return rc == PH_EKIND ? 0
                          : rc; // of memory that cannot be exchanged there is nothing to release
}

// ---- what is left of released buffers

static void drop_export(struct phi_peers *peers, struct phi_local_export *e)
{
    struct phi_local_export **at = &peers->ended;
    for (int rank = 0; rank < peers->ranks; rank++)
        if (e->sent[rank])
            return;
    while (*at != NULL && *at != e)
        at = &(*at)->next;
    if (*at == NULL || e->entries > 0)
        return;
    *at = e->next;
    phi_export_free(e);
}

void phi_release_prune(struct phi_key *key)
{
    const struct phi_agreement *agreement = &key->agreement;
    const bool open = agreement->state != PHI_AGREEMENT_IDLE;
    uint32_t kept = 0;
    if (key->request != NULL)
        return; // names its buffers by number
    for (uint32_t i = 0; i < key->own_count; i++) {
        struct phi_own_buffer own = key->own[i];
        if (!own.released || (open && agreement->mine == own.number)) {
            key->own[kept++] = own;
            continue;
        }
        own.export_->entries--;
        drop_export(key->peer->peers, own.export_);
    }
    key->own_count = kept;
    kept = 0;
    for (uint32_t i = 0; i < key->theirs_count; i++)
        if (key->theirs[i].export_ != NULL || (open && agreement->theirs == key->theirs[i].number))
            key->theirs[kept++] = key->theirs[i];
    key->theirs_count = kept;
}

static void prune_all(struct phi_peer *peer)
{
    size_t cursor = 0;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys, &cursor)) != NULL;)
        phi_release_prune(key);
}

int phi_release_fail(const struct phi_key *key)
{
    return phi_fail(key->peer->peers->report, -ESTALE,
                    "the buffer of operation %llu with rank %d was released during its exchange",
                    (unsigned long long)key->op_id, key->peer->rank);
}

bool phi_release_pending(struct phi_peers *peers, uint64_t base)
{
    for (const struct phi_release *part = peers->releases; part != NULL; part = part->next)
        if (part->base == base && !part->drained && !phi_release_over(part->peer))
            return true; // what is over is only not cleared away yet
    return false;
}

uint32_t phi_releases_count(const struct phi_peers *peers)
{
    uint32_t count = 0;
    for (const struct phi_release *part = peers->releases; part != NULL; part = part->next)
        count++;
    return count;
}

bool phi_release_names(const struct phi_peer *peer)
{
    const struct phi_release *part = peer->peers->releases;
    while (part != NULL && part->peer != peer)
        part = part->next;
    return part != NULL;
}

void phi_releases_free(struct phi_peers *peers)
{
    while (peers->releases != NULL) {
        struct phi_release *part = peers->releases;
        peers->releases = part->next;
        free(part);
    }
}

// ---- the service thread

int phi_release_revoked(struct phi_peer *peer, const struct phi_node_message *message)
{
    struct phi_release *part = peer->peers->releases;
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
    phi_peers_changed(peer->peers);
    return 0;
}

int phi_release_unmapped(struct phi_peer *peer, const struct phi_node_message *message)
{
    for (struct phi_local_export *e = peer->peers->ended; e != NULL; e = e->next) {
        if (e->id != message->a)
            continue;
        e->sent[peer->rank] = 0;
        if (peer->link != NULL)
            phi_link_unregister(peer->link, e->id);
        break;
    }
    prune_all(peer);
    phi_peers_changed(peer->peers);
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

// Whether what streams of ours have sent from the allocation is at the peer. By the net it takes
// another way than messages of the service threads, and a stream is done with it before.
static bool is_delivered(struct phi_release *part)
{
    struct phi_link *link = part->peer->link;
    if (link == NULL)
        return true;
    for (struct ph_channel *c = part->peer->channels; c != NULL; c = c->next)
        if (c->local_base == part->base && atomic_load(&c->uses.revoked) != 0 &&
            !phi_staging_sent(c))
            return false;
    part->marked = part->marked || phi_link_mark(link, &part->mark);
    return part->marked && phi_link_delivered(link, part->mark);
}

// The peer has a wait on a channel. Where no stream of ours will post there any more, it may go on:
// its copy, if one follows, finds our buffer still valid.
static int answer_wait(struct phi_release *part)
{
    struct phi_peer *peer = part->peer;
    struct ph_channel *channel = peer->channels;
    while (channel != NULL &&
           (channel->index + 1 != part->last.waiting || atomic_load(&channel->uses.revoked) == 0))
        channel = channel->next;
    if (channel == NULL)
        return -1;
    if (!phi_revoke_drained(channel)) {
        part->marked = false; // more may be posted
        return 1;
    }
    struct phi_node_message message;
    phi_peer_message(peer, PHI_NODE_LET_GO, &message);
    message.a = channel->index;
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
    for (struct ph_channel *c = part->peer->channels; c != NULL; c = c->next) {
        if (c->local_base != part->base || atomic_load(&c->uses.revoked) == 0 ||
            phi_revoke_drained(c))
            continue;
        all = false;
        if (!phi_revoke_waits(c))
            continue; // it ends by itself
        // Where copies can look at `broken` they are skipped; a copy engine would write into a
        // buffer that its owner has not opened.
        const bool looks = c->peers->device == NULL || c->stage.bells;
        if (looks)
            atomic_store(&c->mine->broken, 1);
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
        phi_peers_changed(peer->peers);
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

// Whether a release of the export's buffers is still to be told, which comes first.
static bool is_held_back(const struct phi_peer *peer, const struct phi_local_export *e)
{
    for (const struct phi_release *part = peer->peers->releases; part != NULL; part = part->next)
        if (part->peer == peer && part->export_id == e->id && !part->sent)
            return true;
    return false;
}

// Tells the peers that may map an export that it is of no use any more.
static int tick_ended(struct phi_peers *peers, struct phi_local_export *e, int64_t now)
{
    const struct phi_revoke revoke = {
        .size = e->export_.allocation.size, .gone = 1, .number = UINT32_MAX};
    bool again = now - e->told_at > RESEND_GONE_MS * PHI_MS;
    int soon = -1;
    for (int rank = 0; rank < peers->ranks; rank++) {
        struct phi_peer *peer = peers->table[rank];
        if (e->sent[rank] && (peer == NULL || phi_release_over(peer)))
            e->sent[rank] = 0;
        if ((e->sent[rank] == 1 || (e->sent[rank] && again)) && !is_held_back(peer, e)) {
            bool told = tell_revoke(peer, 0, e->id, &revoke) == 0;
            e->sent[rank] = told ? 2 : 1;
            e->told_at = now;
        }
        if (e->sent[rank])
            soon = phi_soon(soon, e->sent[rank] == 1 ? 1 : RESEND_GONE_MS);
    }
    return soon;
}

static int tick_own(struct phi_peers *peers, int64_t now)
{
    int soon = -1;
    for (struct phi_release **at = &peers->releases; *at != NULL;) {
        struct phi_release *part = *at;
        bool over;
        soon = phi_soon(soon, tick_part(part, now, &over));
        if (!over) {
            at = &part->next;
            continue;
        }
        *at = part->next;
        prune_all(part->peer);
        free(part);
        phi_peers_changed(peers);
    }
    for (struct phi_local_export *e = peers->ended, *next; e != NULL; e = next) {
        next = e->next;
        soon = phi_soon(soon, tick_ended(peers, e, now));
        drop_export(peers, e);
    }
    return soon;
}

static int tick_peer(struct phi_peer *peer, bool *closed)
{
    int soon = phi_revoke_tick(peer, closed);
    return phi_soon(soon, phi_spent_tick(peer));
}

int phi_release_tick(struct phi_peers *peers)
{
    pthread_mutex_lock(&peers->lock);
    int soon = tick_own(peers, phi_now());
    bool closed = false;
    for (int rank = 0; rank < peers->ranks; rank++)
        if (peers->table[rank] != NULL)
            soon = phi_soon(soon, tick_peer(peers->table[rank], &closed));
    pthread_mutex_unlock(&peers->lock);
    return soon;
}
