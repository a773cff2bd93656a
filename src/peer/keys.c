// SPDX-License-Identifier: BSD-3-Clause
// Operation keys, the buffers that both ranks use with them, and the exports they lie in.
#include "peer/keys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/random.h"
#include "peer/peer.h"
#include "peer/self.h"

struct key_name {
    uint64_t op_id;
    uint8_t role;
};

static bool same_key(const void *value, const void *name)
{
    const struct phi_key *key = value;
    const struct key_name *wanted = name;
    return key->op_id == wanted->op_id && key->role == wanted->role;
}

void phi_own_buffer_fini(struct phi_own_buffer *own)
{
    free(own->rest);
    own->rest = NULL;
}

void phi_peer_buffer_fini(struct phi_peer *peer, struct phi_peer_buffer *buffer)
{
    peer->keys.ranges -= buffer->ranges.count - 1;
    free(buffer->ranges.rest);
    buffer->ranges = (struct phi_peer_ranges){.count = 1};
}

struct phi_key *phi_key_find(const struct phi_peer *peer, uint64_t op_id, uint8_t role)
{
    struct key_name name = {op_id, role};
    return phi_map_find(&peer->keys.all, phi_hash(op_id, role), same_key, &name);
}

// Keys that wait for a slot, or that only one of the ranks names yet.
#define KEYS_FACTOR 4

static struct phi_key *make_key(struct phi_peer *peer, uint64_t op_id, uint8_t role, int *rc)
{
    if (peer->keys.all.count >= KEYS_FACTOR * (size_t)peer->self->config->channels) {
        *rc = phi_fail(
            peer->self->report, -ENOSPC,
            "rank %d and rank %d name more operation keys than four times PEERHOP_CHANNELS=%lld",
            peer->self->rank, peer->rank, (long long)peer->self->config->channels);
        return NULL;
    }
    *rc = -ENOMEM;
    struct phi_key *key = calloc(1, sizeof *key);
    if (key == NULL)
        return NULL;
    key->peer = peer;
    key->op_id = op_id;
    key->role = role;
    key->slot = PHI_NO_SLOT;
    key->line = PHI_NO_LINE;
    if (phi_map_insert(&peer->keys.all, phi_hash(op_id, role), key)) {
        free(key);
        return NULL;
    }
    *rc = 0;
    return key;
}

struct phi_key *phi_key_get(struct phi_peer *peer, uint64_t op_id, uint8_t role, int *rc)
{
    struct phi_key *key = phi_key_find(peer, op_id, role);
    return key ? key : make_key(peer, op_id, role, rc);
}

void phi_key_forget_full(struct phi_key *key)
{
    key->full = (struct phi_full){0};
    key->full_unsaid = false;
    key->missed = 0;
}

// The room grows to a power of two, so that all growth together copies no more than there is in the
// end.
bool phi_peer_slots_grow(struct phi_peer *peer, uint32_t slot)
{
    const uint32_t capacity = (uint32_t)peer->self->config->channels;
    struct phi_keys *keys = &peer->keys;
    uint32_t room = keys->slots_room ? keys->slots_room : 16;
    if (slot < keys->slots_room)
        return true;
    while (room <= slot)
        room *= 2;
    room = room < capacity ? room : capacity;
    struct phi_key **slots = realloc(keys->slots, room * sizeof *slots);
    if (slots == NULL)
        return false;
    keys->slots = slots;
    uint32_t *lives = realloc(keys->slot_lives, room * sizeof *lives);
    if (lives == NULL)
        return false;
    keys->slot_lives = lives;
    memset(&slots[keys->slots_room], 0, (room - keys->slots_room) * sizeof *slots);
    memset(&lives[keys->slots_room], 0, (room - keys->slots_room) * sizeof *lives);
    keys->slots_room = room;
    return true;
}

int phi_key_set_slot(struct phi_key *key, uint32_t slot)
{
    if (phi_peer_slot(key->peer, slot) != NULL)
        return -EBADMSG;
    key->peer->keys.slots[slot] = key;
    key->slot = slot;
    phi_key_forget_full(key);
    return 0;
}

struct ph_channel *phi_key_channel(const struct phi_key *key, uint32_t mine, uint32_t theirs)
{
    for (uint32_t i = key->channels.count; i-- > 0;) {
        struct ph_channel *channel = key->channels.list[i];
        if (channel->fixed.own.number == mine && channel->fixed.theirs.number == theirs)
            return channel;
    }
    return NULL;
}

// The place of a number among the peer's buffers, or where it would be.
static uint32_t place_of(const struct phi_key *key, uint32_t number)
{
    uint32_t low = 0, high = key->theirs.count;
    // Mostly the last one, or a new one behind it.
    if (high > 0 && key->theirs.list[high - 1].number <= number)
        return high - (key->theirs.list[high - 1].number == number);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (key->theirs.list[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct phi_peer_buffer *phi_key_theirs(const struct phi_key *key, uint32_t number)
{
    uint32_t place = place_of(key, number);
    return place < key->theirs.count && key->theirs.list[place].number == number
               ? &key->theirs.list[place]
               : NULL;
}

// A peer that never stops to offer buffers of one key cannot make us allocate without bound, nor
// move them about: numbers grow, but for those of exchanges that failed before they were sent.
#define THEIRS_MAX 65536
#define MOVED_MAX  (16 * THEIRS_MAX)

// The same bound for the ranges of all buffers of a peer: 24 MiB.
#define RANGES_MAX (1u << 20)

static int tell(struct phi_key *key, const struct phi_peer_buffer *buffer)
{
    uint32_t place = place_of(key, buffer->number), behind = key->theirs.count - place;
    if (buffer->number == 0 || buffer->number == PHI_AGREEMENT_GONE ||
        key->theirs.count == THEIRS_MAX)
        return -EBADMSG;
    if (behind > 0 && key->theirs.list[place].number == buffer->number)
        return -EEXIST;
    if (behind > MOVED_MAX - key->theirs.moved)
        return -EBADMSG;
    if (buffer->ranges.count - 1 > RANGES_MAX - key->peer->keys.ranges)
        return phi_fail(key->peer->self->report, -EBADMSG,
                        "rank %d names more than %u ranges of memory", key->peer->rank, RANGES_MAX);
    struct phi_peer_buffer *grown =
        phi_array_grow(key->theirs.list, key->theirs.count, &key->theirs.room, sizeof *grown);
    if (grown == NULL)
        return -ENOMEM;
    key->theirs.list = grown;
    memmove(&grown[place + 1], &grown[place], behind * sizeof *grown);
    grown[place] = *buffer;
    key->theirs.count++;
    key->theirs.moved += behind;
    key->peer->keys.ranges += buffer->ranges.count - 1;
    return 0;
}

int phi_key_tell(struct phi_key *key, struct phi_peer_buffer *buffer)
{
    const int rc = tell(key, buffer);
    if (rc)
        free(buffer->ranges.rest);
    return rc == -EEXIST ? 0 : rc;
}
