// SPDX-License-Identifier: BSD-3-Clause
// The open round of an operation that is not in the cache: descriptor, mapping, confirms, channel.
#include "exchange/miss.h"

#include <errno.h>
#include <stdlib.h>

#include "exchange/fifo.h"
#include "exchange/pending.h"
#include "exchange/request.h"
#include "lane/flag_memory.h"
#include "lane/flags.h"
#include "lane/lift.h"
#include "lane/staging.h"
#include "meeting/path.h"
#include "peer/channel.h"
#include "peer/channel_ranges.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "release/abort.h"
#include "release/ask.h"
#include "release/spent.h"
#include "release/start.h"
#include "semaphore/segment.h"
#include "transport/bounce.h"

// A confirm: round (32 bits), valid (1), line (20; the lower rank's counts), of which parts of
// flags this end has both ranks' (4), reason of the mapping (7).
#define CONFIRM_VALID           (1u << 31)
#define CONFIRM_LINE(confirm)   ((uint32_t)(confirm) >> 11 & 0xfffffu)
#define CONFIRM_PARTS(confirm)  ((uint32_t)(confirm) >> 7 & 0xfu)
#define CONFIRM_REASON(confirm) ((uint32_t)(confirm)&0x7fu)

_Static_assert(PHI_FLAG_PARTS <= 4, "a bit for each");

static uint64_t make_confirm(uint32_t round, uint32_t line, uint32_t parts, enum phi_reason reason)
{
    return (uint64_t)round << 32 | CONFIRM_VALID | line << 11 | parts << 7 | (uint32_t)reason;
}

// The lower rank has no line, or no slots, for the channel: whatever its roles, there is none.
static bool is_full(uint32_t reason)
{
    return reason == PHI_REASON_SPACE || reason == PHI_REASON_NET_SLOTS;
}

static void store_confirm(struct phi_key *key, enum phi_reason reason)
{
    struct phi_peer *peer = key->peer;
    uint32_t line = 0;
    if (peer->self->rank < peer->rank) {
        // A line that a failed round did not use serves the next one.
        if (key->line == PHI_NO_LINE && !is_full(reason))
            key->line = phi_retire_line(peer);
        line = key->line == PHI_NO_LINE ? 0 : key->line;
    }
    key->confirm = make_confirm(key->agreement.round, line, phi_flag_memory_usable(peer), reason);
    // Release: pairs with the peer's acquire load in peer_confirmed. The line it names is zero, or
    // at its start values.
    phi_segment_put64(peer->segment,
                      phi_segment_confirm(peer->segment, peer->segment->side, key->slot),
                      key->confirm);
    phi_peer_ring(peer);
}

bool phi_confirm_shows(uint64_t confirm, uint32_t round)
{
    return confirm >> 32 == round && (confirm & CONFIRM_VALID);
}

static bool peer_confirmed(const struct phi_key *key, uint64_t *theirs)
{
    struct phi_segment *segment = key->peer->segment;
    *theirs = atomic_load_explicit(phi_segment_confirm(segment, !segment->side, key->slot),
                                   memory_order_acquire);
    return phi_confirm_shows(*theirs, key->agreement.round);
}

static void set_lines(struct ph_channel *channel, struct phi_segment *segment)
{
    phi_segment_start_line(segment, channel->fixed.index);
    channel->fixed.own.line = phi_segment_line(segment, segment->side, channel->fixed.index);
    channel->fixed.theirs.line = phi_segment_line(segment, !segment->side, channel->fixed.index);
    channel->fixed.life = (uint8_t)(atomic_load(&channel->fixed.own.line->life) & PHI_LIFE_MASK);
    channel->fixed.own.line_device = phi_segment_device_address(segment, channel->fixed.own.line);
    channel->fixed.theirs.line_device =
        phi_segment_device_address(segment, channel->fixed.theirs.line);
}

// Over the net: the way to the peer's region. It fails where the link has ended, and then so has
// the pair; or where the provider cannot map one raw key more.
static void set_route(struct ph_channel *channel, const struct phi_own_buffer *own)
{
    struct phi_peer *peer = channel->peer;
    channel->fixed.by_net = peer->to.link != NULL;
    if (!channel->fixed.by_net || channel->kept.remote.first.export_ == NULL ||
        channel->fixed.own.reach != PHI_REASON_NONE ||
        (peer->staging != NULL && !phi_staging_registered(channel->kept.key)))
        return;
    int rc = phi_link_route(peer->to.link, own->first.export_->id,
                            &channel->kept.remote.first.export_->target,
                            channel->fixed.remote_offset, &channel->fixed.route);
    channel->fixed.route.to_device = channel->fixed.theirs.kind != PHI_KIND_HOST;
    if (rc) {
        atomic_init(&channel->live.status, PH_EPEER);
        atomic_init(&channel->live.uses.revoked, 1);
    }
}

// Memory for a channel: 0 or -ENOMEM.
static int make_ready(struct phi_key *key)
{
    if (key->made.channel == NULL)
        key->made.channel = calloc(1, sizeof *key->made.channel);
    if ((key->channels.count & (key->channels.count - 1)) == 0) { // full at each power of two
        size_t capacity = key->channels.count ? key->channels.count * 2 : 1;
        void *grown = realloc(key->channels.list, capacity * sizeof *key->channels.list);
        if (grown == NULL)
            return -ENOMEM;
        key->channels.list = grown;
    }
    return key->made.channel != NULL && phi_staging_make(key) ? 0 : -ENOMEM;
}

// have_memory makes what a channel needs, before we confirm: after both confirms nothing may fail
// at one end only. It returns 0, or an error that it has reported.
static int have_memory(struct phi_key *key)
{
    struct phi_peer *peer = key->peer;
    if (make_ready(key))
        return phi_fail(peer->self->report, -ENOMEM, "out of memory for a channel");
    return phi_retire_line_ready(peer);
}

static struct ph_channel *make_channel(struct phi_key *key, uint32_t line, uint8_t reach,
                                       uint8_t reached)
{
    struct ph_channel *channel = key->made.channel;
    key->made.channel = NULL;
    key->line = PHI_NO_LINE;
    const struct phi_own_buffer *own = phi_key_mine(key, key->agreement.mine);
    const struct phi_peer_buffer *theirs = phi_key_theirs(key, key->agreement.theirs);
    channel->self = key->peer->self;
    channel->peer = key->peer;
    channel->kept.key = key;
    channel->op_id = key->op_id;
    channel->fixed.own.number = key->agreement.mine;
    channel->fixed.theirs.number = key->agreement.theirs;
    channel->fixed.index = line;
    channel->fixed.role = key->role;
    channel->fixed.unbound = own->unbound;
    channel->fixed.own.zero_sm = own->zero_sm && channel->self->device != NULL;
    channel->fixed.theirs.zero_sm = theirs->zero_sm;
    channel->fixed.protocol[1] = key->role & PH_ROLE_SENDER ? own->protocol : 0;
    channel->fixed.protocol[0] = key->role & PH_ROLE_RECEIVER ? theirs->protocol : 0;
    channel->fixed.own.reach = reach;
    channel->fixed.theirs.reach = reached;
    phi_ranges_set(channel, own, theirs);
    if (channel->fixed.own.kind == PHI_KIND_HOST)
        atomic_store(&key->peer->self->issuing.unfenced, true);
    if (channel->fixed.unbound) {
        channel->fixed.area = phi_bounce_area(own->size);
        channel->fixed.part = phi_bounce_part(own->size, theirs->size);
    }
    set_lines(channel, key->peer->segment);
    set_route(channel, own);
    // The peer may have gone right after it confirmed: then nobody walks the list of channels
    // again.
    if (key->peer->state == PHI_PEER_BROKEN) {
        atomic_init(&channel->live.status, key->peer->end.code);
        atomic_init(&channel->live.uses.revoked, 1);
    }
    // Both have confirmed, and then one released its buffer: a channel at both ends, of no use.
    if (!phi_abort_early(key) && (own->released || phi_revoke_key(key)))
        phi_revoke_channel(channel);
    return channel;
}

static void keep_channel(struct phi_key *key, struct ph_channel *channel)
{
    key->channels.list[key->channels.count++] = channel;
    channel->kept.next = key->peer->channels.first;
    channel->kept.link = &key->peer->channels.first;
    if (channel->kept.next != NULL)
        channel->kept.next->kept.link = &channel->kept.next;
    key->peer->channels.first = channel;
    key->peer->channels.unbound += channel->fixed.unbound;
    phi_count(key->peer->self->counters, channels, 1);
}

// Both ends compute the same from the same four facts, so both succeed or both fail.
static bool has_path(uint8_t role, uint8_t out, uint8_t in, bool reach, bool reached)
{
    if ((role & PH_ROLE_SENDER) && !(out == PH_PROTOCOL_PUT ? reach : reached))
        return false;
    if ((role & PH_ROLE_RECEIVER) && !(in == PH_PROTOCOL_PUT ? reached : reach))
        return false;
    return true;
}

static int no_path(const struct phi_key *key, uint32_t reach, uint32_t reached)
{
    struct phi_self *self = key->peer->self;
    int code = is_full(reach) || is_full(reached) ? -ENOSPC
               : reach == PHI_REASON_DESCRIPTORS  ? -EMFILE
               : reach == PHI_REASON_MEMORY       ? -ENOMEM
                                                  : PH_ENOPATH;
    char text[320];
    if (reach == PHI_REASON_SPACE) {
        phi_retire_explain(key->peer, text, sizeof text);
        return phi_fail(self->report, code, "no channel left for operation %llu with rank %d: %s",
                        (unsigned long long)key->op_id, key->peer->rank, text);
    }
    bool net = key->peer->to.link != NULL;
    const struct phi_transport *other = net ? &phi_transport_ipc : &phi_transport_net;
    const char *path = net ? phi_transport_net.name : phi_transport_ipc.name;
    enum phi_reason why = phi_contact_against(key->peer, net, PHI_KIND_HOST);
    return phi_fail(
        self->report, code,
        "no path between rank %d and rank %d for operation %llu: rank %d to rank %d by %s: %s; "
        "rank %d to rank %d by %s: %s; by %s: %s",
        self->rank, key->peer->rank, (unsigned long long)key->op_id, self->rank, key->peer->rank,
        path, phi_reason_text(reach), key->peer->rank, self->rank, path, phi_reason_text(reached),
        other->name, phi_reason_text(why));
}

// A buffer was released during the round, and one of the two confirms says so. Where it was the
// peer's, nobody there is told of this round, and the call goes on to the next.
static bool is_released(uint32_t reach, uint32_t reached)
{
    return reach == PHI_REASON_RELEASED || reached == PHI_REASON_RELEASED;
}

// Both ends see the same, so that both fail.
static int check_bound(const struct phi_key *key, const struct phi_own_buffer *own,
                       const struct phi_peer_buffer *their)
{
    if (own->unbound == their->unbound)
        return 0;
    return phi_fail(key->peer->self->report, PH_EMISMATCH,
                    "operation %llu with rank %d: rank %d names a buffer for it and rank %d none",
                    (unsigned long long)key->op_id, key->peer->rank,
                    own->unbound ? key->peer->rank : key->peer->self->rank,
                    own->unbound ? key->peer->self->rank : key->peer->rank);
}

// Both ends know how many ranges each has.
static int check_ranges(const struct phi_key *key, const struct phi_own_buffer *own,
                        const struct phi_peer_buffer *their)
{
    const uint32_t most =
        own->range_count > their->ranges.count ? own->range_count : their->ranges.count;
    if (most == 1 || key->peer->to.link == NULL)
        return 0;
    return phi_fail(key->peer->self->report, -ENOTSUP,
                    "operation %llu with rank %d names %u ranges and goes over the net, where an "
                    "operation has one",
                    (unsigned long long)key->op_id, key->peer->rank, most);
}

static void give_flags(struct ph_channel *channel, uint32_t parts)
{
    phi_flags_give(channel, parts);
    if (channel->fixed.unbound)
        phi_flags_ring(channel);
}

static int conclude(struct phi_key *key, uint64_t theirs, struct ph_channel **out)
{
    uint32_t reach = CONFIRM_REASON(key->confirm), reached = CONFIRM_REASON(theirs);
    bool lower = key->peer->self->rank < key->peer->rank;
    uint32_t line = CONFIRM_LINE(lower ? key->confirm : theirs);
    if (line >= key->peer->segment->capacity)
        return phi_fail(key->peer->self->report, -EBADMSG,
                        "rank %d confirmed a channel outside the segment", key->peer->rank);
    const struct phi_own_buffer *own = phi_key_mine(key, key->agreement.mine);
    const struct phi_peer_buffer *their = phi_key_theirs(key, key->agreement.theirs);
    if (is_released(reach, reached))
        return own->released && !own->unbound ? phi_release_fail(key) : -ESTALE;
    int rc = check_bound(key, own, their);
    if (rc == 0)
        rc = check_ranges(key, own, their);
    if (rc)
        return rc;
    if (is_full(reach) || is_full(reached) ||
        !has_path(key->role, own->protocol, their->protocol, reach == 0, reached == 0))
        return no_path(key, reach, reached);
    struct ph_channel *channel = make_channel(key, line, (uint8_t)reach, (uint8_t)reached);
    if (line >= key->peer->room.lines_used) // at the higher rank
        key->peer->room.lines_used = line + 1;
    if (!phi_staging_begin(channel, key)) { // nobody but the peer is wrong
        atomic_init(&channel->live.status, PH_EPEER);
        atomic_init(&channel->live.uses.revoked, 1);
    }
    // The flags of a life that is over may be gone, with the peer that would have to agree.
    const uint32_t parts = CONFIRM_PARTS(key->confirm & theirs);
    if ((parts & 1u << PHI_FLAG_BASE) && phi_flag_memory_usable(key->peer) != 0)
        give_flags(channel, parts);
    keep_channel(key, channel);
    phi_abort_made(channel);
    *out = channel;
    return 0;
}

// The lower rank gives the channel a line, and may have to make room for it first.
static bool find_room(struct phi_pending *pending, enum phi_reason found, enum phi_reason *reason)
{
    struct phi_key *key = pending->key;
    struct phi_peer *peer = key->peer;
    const bool lower = peer->self->rank < peer->rank;
    int rc = 0;
    if (lower)
        peer->room.slots_short = found == PHI_REASON_NONE && !phi_staging_reserve(key);
    const enum phi_reason full = peer->room.slots_short ? PHI_REASON_NET_SLOTS : PHI_REASON_SPACE;
    if (lower && (key->line == PHI_NO_LINE || peer->room.slots_short))
        rc = phi_retire_room(peer, false, key->request);
    peer->room.slots_short = false;
    pending->blocked = rc == -EAGAIN;
    *reason = rc == -ENOSPC ? full : found;
    return !pending->blocked;
}

// Returns why a buffer of the peer cannot be reached: the reason of the first of its ranges that
// has one. *next: an allocation that must be mapped before that is known, or NULL.
static enum phi_reason mapping_of(const struct phi_self *self, const struct phi_peer_ranges *ranges,
                                  struct phi_remote_export **next)
{
    enum phi_reason reason = PHI_REASON_NONE;
    *next = NULL;
    for (uint32_t i = 0; i < ranges->count && *next == NULL; i++) {
        struct phi_remote_export *e = phi_peer_range(ranges, i)->export_;
        if (!e->tried || (phi_reason_passes(e->reason) && e->call != self->exchanges.calls))
            *next = e;
        else if (reason == PHI_REASON_NONE)
            reason = e->reason;
    }
    return reason;
}

// may_confirm says whether this rank can give its confirm, and with which reason. *import is an
// allocation of the peer that must be mapped first.
static bool may_confirm(struct phi_pending *pending, struct phi_remote_export **import,
                        enum phi_reason *reason)
{
    struct phi_key *key = pending->key;
    const uint32_t number = key->agreement.theirs;
    uint64_t theirs;
    // A peer that has confirmed has answered before, or does not answer for this round. So we look
    // at its confirm first.
    bool awaits = phi_flag_memory_awaits(key->peer);
    const bool late = awaits && peer_confirmed(key, &theirs);
    if (phi_key_theirs(key, number) == NULL || awaits)
        phi_fifo_take(key->peer);
    awaits = awaits && !late && phi_flag_memory_awaits(key->peer);
    const struct phi_peer_buffer *told = phi_key_theirs(key, number);
    // A released buffer is not mapped, and its descriptor not waited for.
    bool over = phi_key_mine(key, key->agreement.mine)->released || phi_revoke_key(key);
    phi_pending_wants(pending, (told == NULL || awaits) && !over);
    // Two buffers of which nothing is new make a channel more, too.
    pending->tells =
        told != NULL && !over &&
        (phi_flag_memory_owes(key->peer) ||
         phi_flag_memory_short(key->peer, !phi_key_mine(key, key->agreement.mine)->unbound));
    pending->ranges = false;
    *reason = PHI_REASON_RELEASED;
    if (over)
        return find_room(pending, PHI_REASON_RELEASED, reason);
    if (told == NULL || awaits || pending->tells)
        return false;
    struct phi_remote_export *e, *flags = phi_flag_memory_wanted(key->peer);
    const enum phi_reason found = mapping_of(key->peer->self, &told->ranges, &e);
    if (e == NULL)
        e = flags;
    if (e != NULL) {
        *import = e->importing || e->peer->state == PHI_PEER_BROKEN ? NULL : e;
        return false;
    }
    pending->ranges = phi_ranges_wanted(key);
    return !pending->ranges && find_room(pending, found, reason);
}

const _Atomic uint64_t *phi_confirm_awaited(const struct phi_key *key)
{
    const struct phi_segment *segment = key->peer->segment;
    return phi_confirm_shows(key->confirm, key->agreement.round)
               ? phi_segment_confirm(segment, !segment->side, key->slot)
               : NULL;
}

bool phi_pending_miss(struct phi_pending *pending, struct phi_remote_export **import)
{
    struct phi_key *key = pending->key;
    enum phi_reason reason = PHI_REASON_NONE;
    *import = NULL;
    if (!phi_confirm_shows(key->confirm, key->agreement.round)) {
        if (!may_confirm(pending, import, &reason))
            return false;
        int rc = have_memory(key);
        if (rc) {
            phi_pending_settle(pending, rc, NULL); // the round stays open
            return true;
        }
        store_confirm(key, reason);
    }
    uint64_t theirs;
    if (!peer_confirmed(key, &theirs))
        return false;
    struct ph_channel *channel = NULL;
    int rc = conclude(key, theirs, &channel);
    phi_count(key->peer->self->counters, misses, 1);
    const struct phi_own_buffer *own = phi_key_mine(key, key->agreement.mine);
    if (rc == -ESTALE && (!own->released || own->unbound))
        phi_pending_again(pending);
    else
        phi_pending_conclude(pending, rc, channel);
    return true;
}
