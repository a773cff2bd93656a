// SPDX-License-Identifier: BSD-3-Clause
#include "release/ask.h"

#include <errno.h>
#include <stdio.h>

#include "base/clock.h"
#include "peer/channel.h"
#include "peer/keys.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "peer/wake.h"
#include "release/evict.h"
#include "release/spent_list.h"
#include "release/view.h"
#include "semaphore/segment.h"

// How long until the next look for room, in ms, if everything is kept by work that is only under
// way.
#define PAUSE_MS 1

uint32_t phi_retire_line(struct phi_peer *peer)
{
    return peer->room.lines_count > 0 ? peer->room.lines[--peer->room.lines_count]
                                      : peer->room.lines_used++;
}

int phi_retire_line_ready(struct phi_peer *peer)
{
    if (!phi_peer_is_lower(peer) || peer->room.lines_count > 0 ||
        peer->room.lines_used == peer->segment->capacity)
        return 0;
    return phi_segment_reserve(peer->self->report, peer->segment, peer->room.lines_used + 1, 0);
}

int phi_retire_slot(struct phi_peer *peer, uint32_t *slot)
{
    struct phi_room *room = &peer->room;
    if (room->slots_count > 0) {
        *slot = room->slots[--room->slots_count];
    } else {
        if (!phi_peer_slots_grow(peer, room->slots_used))
            return phi_fail(peer->self->report, -ENOMEM, "out of memory for rank %d", peer->rank);
        int rc = phi_segment_reserve(peer->self->report, peer->segment, 0, room->slots_used + 1);
        if (rc)
            return rc;
        *slot = room->slots_used++;
    }
    peer->keys.slot_lives[*slot]++;
    return 0;
}

static bool has_room(const struct phi_peer *peer, bool slot)
{
    return slot ? peer->room.slots_count > 0 || peer->room.slots_used < peer->segment->capacity
                : !peer->room.slots_short && (peer->room.lines_count > 0 ||
                                              peer->room.lines_used < peer->segment->capacity);
}

static int send_question(struct phi_key *key, uint64_t line)
{
    struct phi_peer *peer = key->peer;
    struct phi_node_message message;
    phi_peer_message(peer, PHI_NODE_RETIRE, &message);
    message.a = key->slot;
    message.b = key->agreement.round | (uint64_t)peer->keys.slot_lives[key->slot] << 32;
    message.c = line;
    int rc = phi_peer_tell(peer, &message);
    peer->room.asked += rc == 0;
    return rc;
}

static int ask(struct phi_key *key, uint32_t line)
{
    int rc = send_question(key, line);
    if (rc)
        return rc;
    key->theirs.asked = 0;
    for (uint32_t i = 0; i < key->theirs.count; i++)
        if (key->theirs.list[i].number > key->theirs.asked)
            key->theirs.asked = key->theirs.list[i].number;
    key->retiring++; // no exchange of the key goes on until the answer is here
    return 0;
}

enum phi_retire_answer phi_retire_spent(struct ph_channel *channel)
{
    struct phi_key *key = channel->kept.key;
    struct phi_retire_view view = phi_view_spent(key, channel);
    enum phi_retire_answer answer = phi_retire_judge(&view, view.round);
    if (answer != PHI_RETIRE_YES)
        return answer;
    // A channel that was revoked for another reason may come again in a round.
    if (!phi_key_mine_released(key, channel->fixed.own.number) &&
        !phi_view_theirs_released(key, channel))
        return PHI_RETIRE_ROUND;
    if (key->retiring > 0 || key->peer->room.asked >= PHI_RETIRE_ASKED ||
        send_question(key, channel->fixed.index | PHI_RETIRE_SPENT))
        return PHI_RETIRE_BUSY;
    channel->kept.asked = true;
    return PHI_RETIRE_YES;
}

// Counts an obstacle that the present look for room has found.
static void note_refusal(struct phi_peer *peer, enum phi_retire_answer answer, bool here)
{
    struct phi_room *room = &peer->room;
    room->held_here += answer == PHI_RETIRE_HELD && here;
    room->held_there += answer == PHI_RETIRE_HELD && !here;
    room->pinned += answer == PHI_RETIRE_PINNED;
    room->again = room->again || answer == PHI_RETIRE_BUSY || answer == PHI_RETIRE_ROUND;
}

// Judges a candidate once in each look; true: the peer may be asked. An operation of the very
// exchange that needs room makes no room.
static bool consider(struct phi_peer *peer, const struct phi_key *key, struct ph_channel *channel,
                     uint32_t *look, const void *request)
{
    if (*look == peer->room.look || key->retiring > 0 || key->slot == PHI_NO_SLOT)
        return false;
    struct phi_retire_view view = phi_view_of(key, channel);
    enum phi_retire_answer answer = phi_retire_judge(&view, key->agreement.round);
    if (answer == PHI_RETIRE_YES)
        return true;
    *look = peer->room.look;
    if (key->request != request || request == NULL)
        note_refusal(peer, answer, true);
    else
        peer->room.exchanging++;
    return false;
}

// A key or channel that the peer is asked about. Those that were exchanged longest ago come first,
// and before them channels whose buffers were released.
struct chosen {
    uint64_t used; // 0: released
    struct phi_key *key;
    struct ph_channel *channel; // or NULL: the key
};

struct choice {
    int count, most;
    struct chosen list[PHI_RETIRE_ASKED]; // the oldest first
};

static void choose(struct choice *choice, struct chosen one)
{
    int at = choice->count;
    if (at == choice->most && (at == 0 || one.used >= choice->list[at - 1].used))
        return;
    at -= at == choice->most;
    choice->count = at + 1;
    for (; at > 0 && one.used < choice->list[at - 1].used; at--)
        choice->list[at] = choice->list[at - 1];
    choice->list[at] = one;
}

static void choose_channels(struct phi_peer *peer, const void *request, struct choice *choice)
{
    for (struct ph_channel *c = peer->channels.first; c != NULL; c = c->kept.next)
        if (consider(peer, c->kept.key, c, &c->kept.look, request))
            choose(choice, (struct chosen){atomic_load(&c->live.uses.revoked) ? 0 : c->kept.used,
                                           c->kept.key, c});
}

static void choose_keys(struct phi_peer *peer, const void *request, struct choice *choice)
{
    size_t cursor = 0;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys.all, &cursor)) != NULL;)
        if (consider(peer, key, NULL, &key->look, request))
            choose(choice, (struct chosen){key->used, key, NULL});
}

// Asks about several at once. An exchange of many misses then does not wait for an answer each
// time, nor look through everything each time.
static int ask_some(struct phi_peer *peer, bool slot, const void *request)
{
    const int part = (int)(peer->segment->capacity / 4);
    struct choice choice = {.most = part < PHI_RETIRE_ASKED ? part : PHI_RETIRE_ASKED};
    int asked = 0;
    if (slot)
        choose_keys(peer, request, &choice);
    else
        choose_channels(peer, request, &choice);
    for (int i = 0; i < choice.count; i++) {
        const struct chosen *one = &choice.list[i];
        if (one->key->retiring > 0) // about another channel of it
            continue;
        if (ask(one->key, one->channel ? one->channel->fixed.index : PHI_NO_LINE))
            break;
        *(one->channel ? &one->channel->kept.look : &one->key->look) = peer->room.look;
        asked++;
    }
    return asked;
}

// The findings of one look say nothing of the next.
static void forget_counts(struct phi_room *room)
{
    room->again = false;
    room->held_here = room->held_there = room->pinned = room->exchanging = 0;
}

static void end_look(struct phi_room *room)
{
    room->look++;
    room->looking = false;
    forget_counts(room);
}

static void keep_found(struct phi_peer *peer, bool slot, bool full)
{
    const struct phi_room *room = &peer->room;
    peer->room.found[slot] = (struct phi_found){peer->self->exchanges.passes,
                                                full,
                                                room->held_here,
                                                room->held_there,
                                                room->pinned,
                                                room->exchanging};
}

// Returns whether this pass has looked already; then the counts are there again. Each of many
// operations would find the same.
static bool is_found(struct phi_peer *peer, bool slot)
{
    struct phi_room *room = &peer->room;
    const struct phi_found *found = &room->found[slot];
    if (found->pass != peer->self->exchanges.passes)
        return false;
    room->held_here = found->held_here;
    room->held_there = found->held_there;
    room->pinned = found->pinned;
    room->exchanging = found->exchanging;
    return true;
}

int phi_retire_room(struct phi_peer *peer, bool slot, const void *request)
{
    struct phi_room *room = &peer->room;
    if (has_room(peer, slot)) {
        if (room->looking)
            end_look(room);
        return 0;
    }
    if (is_found(peer, slot))
        return -ENOSPC;
    if (!room->looking)
        forget_counts(room); // of a look in vain, whose sentence nobody took
    room->looking = true;
    if (room->asked > 0 || phi_now() < room->at)
        return -EAGAIN;
    room->look += room->look == 0;
    if (ask_some(peer, slot, request) > 0)
        return -EAGAIN;
    // Everything was looked at once. Work that is only under way makes room sooner or later.
    if (!room->again) {
        room->look++; // the counts are for the sentence
        room->looking = false;
        keep_found(peer, slot, true);
        return -ENOSPC;
    }
    end_look(room);
    room->at = phi_now() + PAUSE_MS * PHI_MS;
    return -EAGAIN;
}

static bool holds_all_slots(struct phi_peer *peer)
{
    // From the end, which is filled last.
    for (uint32_t i = peer->segment->capacity; i-- > 0;) {
        const struct phi_key *key = phi_peer_slot(peer, i);
        if (key == NULL || !phi_view_of(key, NULL).held)
            return false;
    }
    return true;
}

bool phi_retire_hopeless(struct phi_peer *peer)
{
    const uint32_t capacity = peer->segment->capacity;
    if (phi_peer_is_lower(peer) || peer->keys.all.count <= capacity)
        return false;
    if (!is_found(peer, true))
        keep_found(peer, true, holds_all_slots(peer));
    if (peer->room.found[true].full)
        peer->room.held_here = capacity;
    return peer->room.found[true].full;
}

void phi_retire_explain(struct phi_peer *peer, char *text, size_t size)
{
    struct phi_room *room = &peer->room;
    snprintf(
        text, size,
        "all %u of the pair are in use: %u held by handles of rank %d and %u by handles of "
        "rank %d (ph_channel_close lets go of one), %u pinned by captured graphs, device "
        "channels, or messages that were not taken, %u named by this exchange (PEERHOP_CHANNELS)",
        peer->segment->capacity, room->held_here, peer->self->rank, room->held_there, peer->rank,
        room->pinned, room->exchanging);
    end_look(room);
}

// The peer has dropped the key. The buffers that it has told us since are of the key's next life.
static void renew_key(struct phi_key *key)
{
    struct phi_peer *peer = key->peer;
    uint32_t slot = key->slot, kept = 0;
    phi_evict_channels(key);
    phi_evict_push(slot, &peer->room.slots, &peer->room.slots_count, &peer->room.slots_room);
    for (uint32_t i = 0; i < key->theirs.count; i++)
        if (key->theirs.list[i].number > key->theirs.asked)
            key->theirs.list[kept++] = key->theirs.list[i];
        else
            phi_peer_buffer_fini(peer, &key->theirs.list[i]);
    key->theirs.count = kept;
    for (uint32_t i = 0; i < key->own.count; i++)
        key->own.list[i].offered = false;
    if (key->request == NULL && kept == 0)
        phi_retire_drop_key(key);
}

static int spent_answered(struct ph_channel *channel, enum phi_retire_answer answer)
{
    if (channel == NULL || !channel->kept.asked)
        return -EBADMSG;
    channel->kept.asked = false;
    channel->peer->room.asked--;
    phi_spent_answered(channel, answer);
    if (answer == PHI_RETIRE_YES)
        phi_evict_channel(channel);
    return 0;
}

int phi_retire_answered(struct phi_peer *peer, const struct phi_node_message *message)
{
    struct phi_key *key = phi_peer_slot(peer, message->a);
    if (peer->segment == NULL || key == NULL || peer->room.asked == 0)
        return -EBADMSG;
    struct ph_channel *channel = phi_evict_channel_at(key, (uint32_t)message->c);
    if (message->c & PHI_RETIRE_SPENT) {
        int rc = spent_answered(channel, (enum phi_retire_answer)message->b);
        if (rc)
            return rc;
        goto changed;
    }
    if (key->retiring == 0)
        return -EBADMSG;
    key->retiring--;
    peer->room.asked--;
    if (message->b != PHI_RETIRE_YES)
        note_refusal(peer, (enum phi_retire_answer)message->b, false);
    else if (message->c == PHI_NO_LINE)
        renew_key(key);
    else if (channel != NULL)
        phi_evict_channel(channel);
changed:
    phi_self_changed(peer->self);
    phi_mailbox_wake(peer->self->mailbox);
    return 0;
}
