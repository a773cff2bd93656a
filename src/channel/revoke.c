// SPDX-License-Identifier: BSD-3-Clause
// What a rank does when a peer gives a buffer back that is mapped here.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/random.h"
#include "channel/attempt.h"
#include "channel/expel.h"
#include "channel/flags.h"
#include "channel/lives.h"
#include "channel/release.h"
#include "channel/retire.h"
#include "channel/spent.h"
#include "channel/wake.h"
#include "semaphore/flags.h"
#include "semaphore/record.h"

// At once, of one peer: each is looked through at every message and tick.
enum { REVOCATIONS_MAX = 4096 };

// Ended exports of which the offers are not read yet, of one peer.
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

void phi_revoke_channel(struct ph_channel *channel)
{
    int whole = 0;
    // The status first: who is refused because of `revoked` finds there why.
    atomic_compare_exchange_strong(&channel->status, &whole, -ESTALE);
    // seq_cst: pairs with the executors, which store a number and then look at `revoked`.
    if (atomic_exchange(&channel->uses.revoked, 1) == 0)
        phi_spent_note(channel);
}

bool phi_revoke_drained(const struct ph_channel *channel)
{
    struct phi_executor *executor = channel->peers->executor;
    return executor->ops->drained(executor, (struct phi_uses *)&channel->uses, NULL, 0);
}

bool phi_revoke_key(const struct phi_key *key)
{
    const struct phi_segment *segment = key->peer->segment;
    const uint32_t number = key->agreement.theirs;
    const struct phi_peer_buffer *buffer = phi_key_theirs(key, number);
    // Stored before the peer told us of the release, so it is there when the message has been
    // taken: whichever comes first under the lock, this look or the message, the other sees it.
    return atomic_load(&phi_segment_slot(segment, !segment->side, key->slot)->released) == number ||
           (buffer != NULL && (buffer->released || buffer->export_ == NULL)); // forgotten
}

// ---- waits that nobody will answer

// The bit of a word that this end waits for, and whether a copy into the peer's buffer follows.
static uint32_t awaited_bit(const struct ph_channel *channel, int outgoing, int word, bool *copies)
{
    bool active = outgoing ? channel->protocol_out == PH_PROTOCOL_PUT
                           : channel->protocol_in == PH_PROTOCOL_GET;
    *copies = word == PHI_WORD_TURN ? active : outgoing != 0;
    if (word == PHI_WORD_TURN)
        return active ? PHI_BIT_READY : PHI_BIT_FULL;
    return outgoing ? PHI_BIT_FREE : PHI_BIT_NOTED;
}

// A word that this end has waited for: whether it shows what was waited for.
struct awaited {
    _Atomic uint32_t *word;
    uint32_t bit;   // what was waited for
    uint32_t way;   // its bit in `awaited` and `lifted`
    bool copies;    // a copy into the peer's buffer follows
    bool completes; // the wait leaves the word as it is
};

enum { AWAITED_COUNT = 2 * PHI_WORD_COUNT };

static struct awaited awaited_word(struct ph_channel *channel, int i)
{
    const int outgoing = i / PHI_WORD_COUNT, word = i % PHI_WORD_COUNT;
    struct phi_line *line = outgoing ? channel->mine : channel->theirs_line;
    struct awaited a = {.word = &line->word[word], .way = 1u << i};
    a.bit = awaited_bit(channel, outgoing, word, &a.copies);
    a.completes = a.bit == PHI_BIT_FULL;
    return a;
}

// A post of send or recv without its complete counts as well: a complete before it may wait still.
static bool is_missing(const struct ph_channel *channel, const struct awaited *a)
{
    return (atomic_load(&channel->awaited) & a->way) && !(atomic_load(a->word) & a->bit);
}

// Looks for each word that this end may wait for and that does not show what it waits for.
static bool any_missing(struct ph_channel *channel)
{
    for (int i = 0; i < AWAITED_COUNT; i++) {
        const struct awaited a = awaited_word(channel, i);
        if (is_missing(channel, &a))
            return true;
    }
    return false;
}

// Of flags it cannot be seen what is missing.
static bool may_wait(struct ph_channel *channel)
{
    return (atomic_load(&channel->flagged) && !atomic_load(&channel->mine->flags_over)) ||
           any_missing(channel);
}

// What was behind the wait worked on undefined data.
static void set_broken(struct ph_channel *channel)
{
    int stale = -ESTALE;
    atomic_compare_exchange_strong(&channel->status, &stale, PH_EBROKEN);
}

// Sets a word so that a wait for it ends. Whether there is one is seen afterwards, when it has
// taken the bit: a wait that had what it waited for leaves the same word, and stays in flight while
// its stream has something else to do.
static void lift_word(struct ph_channel *channel, const struct awaited *a)
{
    // Where it would not be seen: a complete leaves the word, a kernel that waits by itself looks
    // for the bit alone, a queue leaves out what is behind `broken`. Or a second wait, behind one
    // that took the first bit.
    if (a->completes || atomic_load(&channel->uses.devices) != 0 ||
        atomic_load(&channel->mine->broken) != 0 || (atomic_load(&channel->lifted) & a->way))
        set_broken(channel);
    else
        atomic_fetch_or(&channel->lifted, a->way);
    atomic_fetch_or(a->word, a->bit);
}

void phi_revoke_lift(struct ph_channel *channel, bool hold)
{
    if (atomic_load(&channel->flagged))
        phi_flags_end(channel);
    for (int i = 0; i < AWAITED_COUNT; i++) {
        const struct awaited a = awaited_word(channel, i);
        if (is_missing(channel, &a) && !(hold && a.copies))
            lift_word(channel, &a);
    }
}

void phi_revoke_settle(struct ph_channel *channel)
{
    if (channel->retired)
        return;
    if (atomic_load(&channel->mine->flags_over) == PHI_GIVEN_UP)
        set_broken(channel);
    for (int i = 0; i < AWAITED_COUNT; i++) {
        const struct awaited a = awaited_word(channel, i);
        if ((atomic_load(&channel->lifted) & a.way) && !(atomic_load(a.word) & a.bit))
            set_broken(channel);
    }
}

int phi_revoke_let_go(struct phi_peer *peer, const struct phi_node_message *message)
{
    for (struct ph_channel *c = peer->channels; c != NULL; c = c->next)
        if (c->index == message->a && atomic_load(&c->uses.revoked) != 0) {
            phi_peer_note_told(peer, &c->told_by_then);
            c->let_go = true;
        }
    return 0;
}

// ---- releases

static bool same_id(const void *value, const void *key)
{
    return ((const struct phi_remote_export *)value)->id == *(const uint32_t *)key;
}

static struct phi_remote_export *find(struct phi_peer *peer, uint32_t id)
{
    return phi_map_find(&peer->remote_exports, phi_hash(id, 1), same_id, &id);
}

static bool within(const struct phi_revocation *r, const struct phi_remote_export *e,
                   uint64_t offset, uint64_t size)
{
    return e != NULL && e->id == r->export_id && offset < r->end && r->begin < offset + size;
}

static bool concerns(const struct phi_revocation *r, const struct ph_channel *channel)
{
    return channel->theirs_number <= r->number &&
           within(r, channel->remote_export, channel->remote_offset, channel->remote_size);
}

static bool concerns_buffer(const struct phi_revocation *r, const struct phi_peer_buffer *buffer)
{
    return buffer->number <= r->number && within(r, buffer->export_, buffer->offset, buffer->size);
}

static void revoke(struct phi_peer *peer, const struct phi_revocation *r)
{
    size_t cursor = 0;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys, &cursor)) != NULL;)
        for (uint32_t i = 0; i < key->theirs_count; i++)
            if (concerns_buffer(r, &key->theirs[i]))
                key->theirs[i].released = true;
    for (struct ph_channel *channel = peer->channels; channel != NULL; channel = channel->next)
        if (concerns(r, channel))
            phi_revoke_channel(channel);
}

static int tell_unmapped(struct phi_peer *peer, uint32_t export_id)
{
    struct phi_node_message message;
    phi_peer_message(peer, PHI_NODE_UNMAPPED, &message);
    message.a = export_id;
    return phi_peer_tell(peer, &message);
}

// Its offer may be read later: then it must not be filed, as nobody will say again that it is gone.
// Without room it is, and stays until the pair is over.
static void note_gone(struct phi_peer *peer, uint32_t export_id)
{
    if (export_id < peer->exports_seen || peer->ended_count == GONE_MAX)
        return;
    for (uint32_t i = 0; i < peer->ended_count; i++)
        if (peer->ended_unread[i] == export_id)
            return; // told again
    uint32_t *grown = phi_array_grow(peer->ended_unread, peer->ended_count, &peer->ended_room,
                                     sizeof *peer->ended_unread);
    if (grown == NULL)
        return;
    peer->ended_unread = grown;
    peer->ended_unread[peer->ended_count++] = export_id;
}

static void end_export(struct phi_peer *peer, uint32_t export_id)
{
    struct phi_remote_export *e = find(peer, export_id);
    if (e == NULL) {
        note_gone(peer, export_id);
        tell_unmapped(peer, export_id); // where that cannot be told now the peer asks again
        return;
    }
    e->revoked = true;
    peer->closing = true;
}

// What the peer sent before, the application may still take by the calls that it would have made.
// So a release takes effect when that is here: over the net it may be told of later than the
// message. Returns whether it has.
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
    phi_peers_changed(peer->peers);
    phi_mailbox_wake(peer->peers->mailbox); // of exchanges that wait for what will not come
    return true;
}

// The one that the message is about, or where it would be the next.
static struct phi_revocation **place_of(struct phi_peer *peer,
                                        const struct phi_node_message *message, unsigned *before)
{
    struct phi_revocation **at = &peer->revocations;
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
    for (const struct phi_revocation *r = peer->revocations; r != NULL; r = r->next)
        count += r->id != 0;
    return count;
}

void phi_revoke_free(struct phi_peer *peer)
{
    while (peer->revocations != NULL) {
        struct phi_revocation *r = peer->revocations;
        peer->revocations = r->next;
        free(r);
    }
}

// What stands in the way of the first channel that is not drained; waiting: of any.
static void note_left(struct ph_channel *channel, struct phi_revoked *now)
{
    struct phi_executor *executor = channel->peers->executor;
    if (now->drained) {
        struct phi_left left;
        executor->ops->left(executor, &channel->uses, &left);
        now->drained = 0;
        now->op_id = channel->op_id;
        now->streams = left.streams;
        now->graphs = left.graphs;
        now->devices = left.devices;
        now->graph = left.graph;
    }
    if (now->waiting == 0 && !channel->let_go && may_wait(channel))
        now->waiting = channel->index + 1;
}

// Over the net a copy is under way for a while after its wait is over: the peer may have all of it,
// and be done with it, before this end is.
bool phi_revoke_waits(const struct ph_channel *channel)
{
    struct phi_executor *executor = channel->peers->executor;
    struct phi_progress progress;
    struct phi_wait_note note;
    if (!channel->by_net)
        return true;
    for (uint32_t i = 0; executor->ops->progress(executor, i, &progress, &note); i++)
        if (note.number != 0 && note.op_id == channel->op_id && note.peer == channel->peer->rank)
            return true;
    return false;
}

// What it posted before may come later than the message.
static bool has_let_go(const struct ph_channel *channel)
{
    return channel->let_go && phi_peer_heard(channel->peer, &channel->told_by_then);
}

static struct phi_revoked examine(struct phi_peer *peer, const struct phi_revocation *r)
{
    struct phi_revoked now = {.drained = 1};
    for (struct ph_channel *channel = peer->channels; channel != NULL; channel = channel->next) {
        if (!concerns(r, channel))
            continue;
        if (!phi_revoke_drained(channel)) {
            if (has_let_go(channel) && phi_revoke_waits(channel))
                phi_revoke_lift(channel, false);
            note_left(channel, &now);
            continue;
        }
        phi_revoke_settle(channel);
        if (atomic_load(&channel->status) == PH_EBROKEN)
            atomic_store(&channel->mine->broken, 1); // no copy can be skipped by it any more
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

// ---- imports

// Whether nothing here uses an import any more.
static bool is_unused(struct phi_peer *peer, const struct phi_remote_export *e)
{
    for (struct ph_channel *channel = peer->channels; channel != NULL; channel = channel->next)
        if (channel->remote_export == e && !phi_revoke_drained(channel))
            return false;
    return true;
}

// Whether a channel has it, or an unfinished round is about to make one.
static bool is_wanted(struct phi_peer *peer, const struct phi_remote_export *e)
{
    size_t cursor = 0;
    for (struct ph_channel *channel = peer->channels; channel != NULL; channel = channel->next)
        if (channel->remote_export == e)
            return true;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys, &cursor)) != NULL;) {
        const struct phi_peer_buffer *theirs = phi_key_theirs(key, key->agreement.theirs);
        if (key->agreement.state == PHI_AGREEMENT_OPEN && theirs != NULL && theirs->export_ == e)
            return true;
    }
    return false;
}

static bool may_close(struct phi_peer *peer, const struct phi_remote_export *e)
{
    bool ended = e->revoked || (peer->state == PHI_PEER_BROKEN && peer->released);
    return ended && !e->importing && is_unused(peer, e);
}

// Without the lock; of what can block, on the thread of the device's closer.
static void import_closed(void *opaque)
{
    struct phi_remote_export *e = opaque;
    struct phi_peers *peers = e->peer->peers;
    pthread_mutex_lock(&peers->lock);
    e->importing = e->closing = false;
    e->peer->closing = true; // the service thread parts with it
    phi_service_wake(peers);
    phi_peers_changed(peers);
    phi_mailbox_wake(peers->mailbox);
    pthread_mutex_unlock(&peers->lock);
}

// Gives up the lock while it unmaps, or hands that over. From before that no round may count on the
// mapping: one that is taken meanwhile waits, and maps anew.
static void close_import(struct phi_remote_export *e)
{
    struct phi_peers *peers = e->peer->peers;
    struct phi_import *import = e->import;
    e->importing = true;
    e->closing = phi_memory_import_blocks(import);
    e->import = NULL;
    e->tried = false;
    import->closed = import_closed;
    import->opaque = e;
    pthread_mutex_unlock(&peers->lock);
    phi_memory_import_close(import);
    pthread_mutex_lock(&peers->lock);
}

static void forget(struct phi_peer *peer, struct phi_remote_export *e)
{
    size_t cursor = 0;
    for (struct ph_channel *channel = peer->channels; channel != NULL; channel = channel->next)
        if (channel->remote_export == e)
            channel->remote_export = NULL;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys, &cursor)) != NULL;) {
        for (uint32_t i = 0; i < key->theirs_count; i++)
            if (key->theirs[i].export_ == e)
                key->theirs[i].export_ = NULL;
        phi_release_prune(key);
    }
    phi_map_remove(&peer->remote_exports, phi_hash(e->id, 1), e);
    free(e->record);
    free(e);
}

// Whether what this end has sent to a peer's allocation is there. Posts are delivered some time
// after the stream is done with them, and bells are rung before they are posted; once the peer
// closes its region they would fail, and the key of the region may not be unmapped before.
static bool is_delivered(struct phi_peer *peer, struct phi_remote_export *e)
{
    for (struct ph_channel *channel = peer->channels; channel != NULL; channel = channel->next)
        if (channel->remote_export == e && !phi_staging_sent(channel))
            return false;
    e->marked = e->marked || phi_link_mark(peer->link, &e->mark);
    return e->marked && phi_link_delivered(peer->link, e->mark);
}

// Of one that is not imported, or no more: whether the peer knows that it is of no use here. The
// key goes before, as the peer closes the region behind it then.
static bool part_with(struct phi_peer *peer, struct phi_remote_export *e)
{
    if (peer->link != NULL) {
        if (!is_delivered(peer, e))
            return false;
        phi_link_forget(peer->link, &e->target);
    }
    return tell_unmapped(peer, e->id) != -EAGAIN;
}

// What a look for imports that may be closed takes in, and what it leaves.
struct look {
    bool idle;     // also those that nobody wants: of a rank that leaves, all
    bool blocking; // also those whose closing can block
    bool left;     // there are others, that somebody uses
    bool later;    // ... that may be closed, and can block
};

static struct phi_remote_export *next_closable(struct phi_peer *peer, struct look *look)
{
    size_t cursor = 0;
    look->left = look->later = false;
    for (struct phi_remote_export *e; (e = phi_map_next(&peer->remote_exports, &cursor)) != NULL;) {
        bool idle = look->idle && e->import != NULL && !e->importing &&
                    (peer->peers->leaving || !is_wanted(peer, e));
        if (!idle && !may_close(peer, e)) {
            look->left = look->left || (e->revoked && !e->closing);
            continue;
        }
        if (e->import == NULL && e->revoked) {
            if (part_with(peer, e))
                forget(peer, e); // the map may lose the value that was just returned
            else
                look->left = true;
        } else if (e->import != NULL && (look->blocking || !phi_memory_import_blocks(e->import))) {
            return e;
        } else if (e->import != NULL) {
            look->later = true;
        }
    }
    return NULL;
}

// Returns in how many ms to come again. Unmaps one at most, or hands it over; *closed: which may
// take a while, so the service thread looks at all else before the next.
static int tick_imports(struct phi_peer *peer, bool *closed)
{
    struct phi_peers *peers = peer->peers;
    struct phi_executor *executor = peers->executor;
    bool idle = peers->config->reap == PHI_REAP_IDLE;
    if (*closed)
        return 0;
    bool quiet = idle && !executor->ops->busy(executor, NULL, 0);
    struct look look = {.idle = quiet, .blocking = quiet};
    struct phi_remote_export *e = next_closable(peer, &look);
    if (e != NULL) {
        *closed = true;
        close_import(e);
        return 0;
    }
    if (!look.left && !look.later)
        peer->closing = false;
    return look.left ? 1 : look.later && idle ? 10 : -1;
}

int phi_revoke_tick(struct phi_peer *peer, bool *closed)
{
    int soon = phi_retire_say(peer) ? -1 : 1;
    for (struct phi_revocation **at = &peer->revocations; *at != NULL;) {
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
    return peer->closing ? phi_soon(soon, tick_imports(peer, closed)) : soon;
}

// What follows returns whether something was left that can block, for want of `blocking`.
static bool reap_peer(struct phi_peer *peer, bool blocking)
{
    struct look look = {.idle = true, .blocking = blocking};
    struct phi_remote_export *e;
    while ((e = next_closable(peer, &look)) != NULL)
        close_import(e);
    return look.later;
}

static bool reap_probe(struct phi_peer *peer, bool blocking)
{
    struct phi_import *probe = peer->probe;
    if (probe == NULL || peer->probing)
        return false;
    if (!blocking && phi_memory_import_blocks(probe))
        return true;
    peer->probe = NULL;
    pthread_mutex_unlock(&peer->peers->lock);
    phi_memory_import_close(probe);
    pthread_mutex_lock(&peer->peers->lock);
    return false;
}

static bool reap_leaving(struct phi_peer *peer, bool blocking)
{
    bool left = reap_peer(peer, blocking);
    return reap_probe(peer, blocking) || left;
}

static bool reap_former(struct phi_peer *peer, bool blocking)
{
    bool left = reap_peer(peer, blocking);
    left = phi_flags_reap(peer, blocking) || left;
    return reap_probe(peer, blocking) || left;
}

// The peer stays while `reap` gives up the lock, and what follows it on the list is read
// afterwards.
static bool visit(struct phi_peer *peer, bool (*reap)(struct phi_peer *, bool), bool blocking)
{
    peer->visitors++;
    bool left = reap(peer, blocking);
    peer->visitors--;
    return left;
}

bool phi_reap(struct phi_peers *peers, bool blocking)
{
    bool left = false;
    pthread_mutex_lock(&peers->lock);
    for (int rank = 0; rank < peers->ranks; rank++)
        if (peers->table[rank] != NULL)
            left = visit(peers->table[rank], peers->leaving ? reap_leaving : reap_peer, blocking) ||
                   left;
    left = phi_lives_reap(peers, blocking) || left;
    for (struct phi_peer *peer = peers->former; peer != NULL; peer = peer->former)
        left = visit(peer, reap_former, blocking) || left;
    left = phi_attempt_reap(peers, blocking) || left;
    phi_service_wake(peers);
    pthread_mutex_unlock(&peers->lock);
    return left;
}
