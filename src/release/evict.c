// SPDX-License-Identifier: BSD-3-Clause
#include "release/evict.h"

#include <stdlib.h>

#include "base/random.h"
#include "lane/lift.h"
#include "lane/staging.h"
#include "peer/channel.h"
#include "peer/exports.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "release/spent_list.h"
#include "rules/agreement.h"
#include "semaphore/segment.h"

void phi_evict_push(uint32_t value, uint32_t **list, uint32_t *count, uint32_t *room)
{
    if (*count == *room) {
        uint32_t more = *room ? *room * 2 : 64;
        uint32_t *bigger = realloc(*list, more * sizeof *bigger);
        if (bigger == NULL)
            return; // one less to give
        *list = bigger;
        *room = more;
    }
    (*list)[(*count)++] = value;
}

static void start_line(struct phi_line *line)
{
    for (int word = 0; word < PHI_WORD_COUNT; word++)
        atomic_store(&line->word[word], phi_word_start[word]);
    atomic_store(&line->broken, 0);
    atomic_store(&line->flags_over, 0);
    for (int outgoing = 0; outgoing < 2; outgoing++)
        for (int word = 0; word < PHI_WORD_COUNT; word++)
            atomic_store(&line->messages[outgoing][word], 0);
    atomic_store(&line->uncounted, 0);
    atomic_store(&line->undone, 0);
    atomic_store(&line->mismatch, 0);
    atomic_fetch_add(&line->life, 1);
}

static void start_lines(struct phi_peer *peer, uint32_t index)
{
    for (int side = 0; side < 2; side++)
        start_line(phi_segment_line(peer->segment, side, index));
}

// Both ranks are done with the line: its words go back to their start before it is given again.
// Whoever gets it learns of that by the confirm that names the line. Over the net each rank does so
// in its own copy, when it parts with the channel.
static void give_line(struct phi_peer *peer, uint32_t index)
{
    start_lines(peer, index);
    phi_evict_push(index, &peer->room.lines, &peer->room.lines_count, &peer->room.lines_room);
}

// The application's handles outlive the channel: a husk that only has a status.
static void leave_husk(struct ph_channel *channel)
{
    struct phi_peer *peer = channel->peer;
    channel->kept.retired = true;
    channel->kept.next = peer->channels.retired;
    peer->channels.retired = channel;
}

void phi_evict_channel(struct ph_channel *channel)
{
    struct phi_peer *peer = channel->peer;
    struct phi_key *key = channel->kept.key;
    *channel->kept.link = channel->kept.next;
    if (channel->kept.next != NULL)
        channel->kept.next->kept.link = channel->kept.link;
    for (uint32_t i = 0; i < key->channels.count; i++)
        if (key->channels.list[i] == channel)
            key->channels.list[i] = key->channels.list[--key->channels.count];
    phi_revoke_settle(channel); // while the line is its own
    phi_spent_drop(channel);
    if (phi_peer_is_lower(peer))
        give_line(peer, channel->fixed.index);
    else if (peer->to.link != NULL)
        start_lines(peer, channel->fixed.index);
    phi_staging_close(channel);
    peer->channels.unbound -= channel->fixed.unbound;
    peer->channels.ending -= channel->kept.abort.code != 0 && !channel->kept.abort.over;
    channel->kept.key = NULL;
    if (channel->kept.handles > 0)
        leave_husk(channel);
    else
        phi_channel_free(channel);
    phi_count(peer->self->counters, retired, 1);
}

static void clear_side(struct phi_segment *segment, int side, uint32_t index)
{
    for (uint32_t round = 0; round < 2; round++)
        atomic_store(phi_segment_word(segment, side, index, round), 0);
    atomic_store(&phi_segment_slot(segment, side, index)->released, 0);
    atomic_store(phi_segment_confirm(segment, side, index), 0);
}

static void clear_slot(struct phi_peer *peer, uint32_t slot)
{
    struct phi_segment *segment = peer->segment;
    clear_side(segment, segment->side, slot);
    // Over the net what the peer clears comes on another way than its next offer: it is cleared
    // here at once, as nothing else of this life of the slot can come any more.
    if (peer->to.link != NULL)
        clear_side(segment, !segment->side, slot);
    peer->keys.slots[slot] = NULL;
}

void phi_evict_channels(struct phi_key *key)
{
    while (key->channels.count > 0)
        phi_evict_channel(key->channels.list[key->channels.count - 1]);
    // Given for a round that failed: no channel had it, and the peer begins no new life of it.
    if (key->line != PHI_NO_LINE)
        phi_evict_push(key->line, &key->peer->room.lines, &key->peer->room.lines_count,
                       &key->peer->room.lines_room);
    key->line = PHI_NO_LINE;
    phi_staging_give_back(key->peer, &key->made.place); // of this slot: the next one is told anew
    clear_slot(key->peer, key->slot);
    key->slot = PHI_NO_SLOT;
    key->agreement = (struct phi_agreement){0};
    key->confirm = 0;
}

void phi_retire_drop_key(struct phi_key *key)
{
    phi_key_disown(key);
    phi_map_remove(&key->peer->keys.all, phi_hash(key->op_id, key->role), key);
    phi_key_free(key);
}

struct ph_channel *phi_evict_channel_at(const struct phi_key *key, uint32_t line)
{
    for (uint32_t i = 0; i < key->channels.count; i++)
        if (key->channels.list[i]->fixed.index == line)
            return key->channels.list[i];
    return NULL;
}

void phi_key_free(struct phi_key *key)
{
    for (uint32_t i = 0; i < key->own.count; i++)
        phi_own_buffer_fini(&key->own.list[i]);
    for (uint32_t i = 0; i < key->theirs.count; i++)
        phi_peer_buffer_fini(key->peer, &key->theirs.list[i]);
    free(key->own.list);
    free(key->theirs.list);
    free(key->channels.list);
    key->peer->self->exchanges.keys_freed++;
    phi_staging_give_back(key->peer, &key->made.place);
    free(key->made.channel);
    phi_ranges_free(key->made.ranges);
    free(key->made.early);
    free(key);
}
