// SPDX-License-Identifier: BSD-3-Clause
// Operation keys, the buffers that both ranks use with them, and the exports they lie in.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/random.h"
#include "channel/release.h"
#include "channel/request.h"

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

static struct phi_key *find_key(struct phi_peer *peer, uint64_t op_id, uint8_t role)
{
    struct key_name name = {op_id, role};
    return phi_map_find(&peer->keys, phi_hash(op_id, role), same_key, &name);
}

// Keys that wait for a slot, or that only one of the ranks names yet.
#define KEYS_FACTOR 4

static struct phi_key *make_key(struct phi_peer *peer, uint64_t op_id, uint8_t role, int *rc)
{
    if (peer->keys.count >= KEYS_FACTOR * (size_t)peer->peers->config->channels) {
        *rc = phi_fail(
            peer->peers->report, -ENOSPC,
            "rank %d and rank %d name more operation keys than four times PEERHOP_CHANNELS=%lld",
            peer->peers->rank, peer->rank, (long long)peer->peers->config->channels);
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
    if (phi_map_insert(&peer->keys, phi_hash(op_id, role), key)) {
        free(key);
        return NULL;
    }
    *rc = 0;
    return key;
}

struct phi_key *phi_key_get(struct phi_peer *peer, uint64_t op_id, uint8_t role, int *rc)
{
    struct phi_key *key = find_key(peer, op_id, role);
    return key ? key : make_key(peer, op_id, role, rc);
}

void phi_key_disown(struct phi_key *key)
{
    for (uint32_t i = 0; i < key->own_count; i++) {
        struct phi_own_buffer *own = &key->own[i];
        own->export_->entries--;
        own->export_->buffers -= own->released ? 0 : 1;
    }
    key->own_count = 0;
}

void phi_key_free(struct phi_key *key)
{
    free(key->own);
    free(key->theirs);
    free(key->channels);
    key->peer->peers->keys_freed++;
    phi_staging_give_back(key->peer, &key->place);
    free(key->next);
    free(key);
}

void phi_key_forget_full(struct phi_key *key)
{
    key->full = (struct phi_full){0};
    key->full_unsaid = false;
    key->missed = 0;
}

int phi_key_set_slot(struct phi_key *key, uint32_t slot)
{
    if (slot >= (uint32_t)key->peer->peers->config->channels || key->peer->slots[slot] != NULL)
        return -EBADMSG;
    key->peer->slots[slot] = key;
    key->slot = slot;
    phi_key_forget_full(key);
    return 0;
}

struct ph_channel *phi_key_channel(const struct phi_key *key, uint32_t mine, uint32_t theirs)
{
    for (uint32_t i = key->channels_count; i-- > 0;) {
        struct ph_channel *channel = key->channels[i];
        if (channel->mine_number == mine && channel->theirs_number == theirs)
            return channel;
    }
    return NULL;
}

// Looks at most once per exchange call and allocation whether the allocation is still what it was.
static bool still_there(struct phi_peers *peers, struct phi_own_buffer *own)
{
    struct phi_local_export *e = own->export_;
    if (e->checked == peers->exchange_calls)
        return true;
    if (!phi_memory_current(peers->memory, own->address, &e->export_.allocation))
        return false;
    e->checked = peers->exchange_calls;
    return true;
}

static struct phi_local_export *find_export(struct phi_peers *peers,
                                            const struct phi_allocation *allocation)
{
    for (uint32_t i = peers->exports_count; i-- > 0;)
        if (phi_allocation_equal(&peers->exports[i]->export_.allocation, allocation))
            return peers->exports[i];
    return NULL;
}

struct phi_local_export *phi_export_find(struct phi_peers *peers, uint64_t id)
{
    for (uint32_t i = peers->exports_count; i-- > 0;)
        if (peers->exports[i]->id == id)
            return peers->exports[i];
    return NULL;
}

void phi_exports_forget(struct phi_peers *peers, int rank)
{
    for (uint32_t i = 0; i < peers->exports_count; i++)
        peers->exports[i]->sent[rank] = 0;
}

void phi_export_free(struct phi_local_export *e)
{
    phi_memory_export_close(&e->export_);
    free(e->sent);
    free(e);
}

static int get_export(struct phi_peers *peers, const struct phi_allocation *allocation,
                      struct phi_local_export **out)
{
    *out = find_export(peers, allocation);
    if (*out != NULL)
        return 0;
    phi_release_gone(peers, allocation);
    void *grown = phi_array_grow(peers->exports, peers->exports_count, &peers->exports_room,
                                 sizeof *peers->exports);
    if (grown == NULL)
        return -ENOMEM;
    peers->exports = grown;
    struct phi_local_export *e = calloc(1, sizeof *e);
    if (e == NULL)
        return -ENOMEM;
    e->export_.fd = -1;
    e->sent = calloc((size_t)peers->ranks, 1);
    int rc = e->sent ? phi_memory_export(peers->memory, allocation, &e->export_) : -ENOMEM;
    if (rc) {
        phi_export_free(e);
        return rc;
    }
    e->id = peers->export_ids++;
    peers->exports[peers->exports_count++] = e;
    *out = e;
    return 0;
}

// What fixes a direction, and is its sender's: with another choice of it an operation is another.
struct choice {
    uint8_t protocol;
    struct phi_limits limits;
};

static struct choice choice_of(const struct phi_peers *peers, const struct ph_operation *op)
{
    struct choice choice = {(uint8_t)op->protocol, {-1, -1}};
    if (op->protocol == PH_PROTOCOL_DEFAULT)
        choice.protocol = peers->config->protocol == 0 ? PH_PROTOCOL_PUT : PH_PROTOCOL_GET;
    if (op->limits != NULL && (op->role & PH_ROLE_SENDER))
        choice.limits = (struct phi_limits){op->limits->ll_max, op->limits->sm_max};
    return choice;
}

static bool is_choice(const struct phi_own_buffer *own, const struct choice *choice)
{
    return own->protocol == choice->protocol && own->limits.ll_max == choice->limits.ll_max &&
           own->limits.sm_max == choice->limits.sm_max;
}

static int add_own(struct phi_peers *peers, struct phi_key *key, const struct ph_operation *op,
                   const struct choice *choice)
{
    struct phi_allocation allocation;
    uint64_t offset;
    struct phi_local_export *e;
    void *grown = phi_array_grow(key->own, key->own_count, &key->own_room, sizeof *key->own);
    if (grown == NULL)
        return -ENOMEM;
    key->own = grown;
    int rc = phi_memory_describe(peers->memory, op->buffer, op->size, &allocation, &offset);
    if (rc || (rc = get_export(peers, &allocation, &e)))
        return rc;
    e->checked = peers->exchange_calls;
    e->buffers++;
    e->entries++;
    key->own[key->own_count++] = (struct phi_own_buffer){
        .number = ++key->peer->numbers,
        .address = op->buffer,
        .size = op->size,
        .offset = offset,
        .export_ = e,
        .protocol = choice->protocol,
        .limits = choice->limits,
    };
    return 0;
}

// The place of a number among the peer's buffers, or where it would be.
static uint32_t place_of(const struct phi_key *key, uint32_t number)
{
    uint32_t low = 0, high = key->theirs_count;
    // Mostly the last one, or a new one behind it.
    if (high > 0 && key->theirs[high - 1].number <= number)
        return high - (key->theirs[high - 1].number == number);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (key->theirs[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct phi_peer_buffer *phi_key_theirs(const struct phi_key *key, uint32_t number)
{
    uint32_t place = place_of(key, number);
    return place < key->theirs_count && key->theirs[place].number == number ? &key->theirs[place]
                                                                            : NULL;
}

// A peer that never stops to offer buffers of one key cannot make us allocate without bound, nor
// move them about: numbers grow, but for those of exchanges that failed before they were sent.
#define THEIRS_MAX 65536
#define MOVED_MAX  (16 * THEIRS_MAX)

int phi_key_tell(struct phi_key *key, const struct phi_peer_buffer *buffer)
{
    uint32_t place = place_of(key, buffer->number), behind = key->theirs_count - place;
    if (buffer->number == 0 || buffer->number == PHI_AGREEMENT_GONE ||
        key->theirs_count == THEIRS_MAX)
        return -EBADMSG;
    if (behind > 0 && key->theirs[place].number == buffer->number)
        return 0;
    if (behind > MOVED_MAX - key->moved)
        return -EBADMSG;
    struct phi_peer_buffer *grown =
        phi_array_grow(key->theirs, key->theirs_count, &key->theirs_room, sizeof *grown);
    if (grown == NULL)
        return -ENOMEM;
    key->theirs = grown;
    memmove(&grown[place + 1], &grown[place], behind * sizeof *grown);
    grown[place] = *buffer;
    key->theirs_count++;
    key->moved += behind;
    return 0;
}

static struct phi_own_buffer *find_own(struct phi_peers *peers, const struct phi_key *key,
                                       const struct ph_operation *op, const struct choice *choice)
{
    for (uint32_t i = key->own_count; i-- > 0;) {
        struct phi_own_buffer *own = &key->own[i];
        if (!own->released && own->address == op->buffer && own->size == op->size &&
            is_choice(own, choice) && still_there(peers, own))
            return own;
    }
    return NULL;
}

// Finds or adds this rank's buffer of a key.
static int own_buffer(struct phi_peers *peers, struct phi_key *key, const struct ph_operation *op,
                      uint32_t *number)
{
    const struct choice choice = choice_of(peers, op);
    const struct phi_own_buffer *own = find_own(peers, key, op, &choice);
    int rc = own ? 0 : add_own(peers, key, op, &choice);
    if (rc == 0)
        *number = own ? own->number : key->own[key->own_count - 1].number;
    return rc;
}

static struct phi_key *search_key(struct phi_peers *peers, const struct ph_operation *op,
                                  struct phi_key *last, int *rc)
{
    struct phi_peer *peer = phi_peers_get(peers, op->peer);
    *rc = -ENOMEM;
    struct phi_key *key = peer ? phi_key_get(peer, op->op_id, (uint8_t)op->role, rc) : NULL;
    if (last != NULL) {
        last->follower = key;
        last->follower_at = peers->keys_freed;
    }
    return key;
}

// Calls repeat themselves: where the same key follows the last one again, nothing is searched.
static struct phi_key *key_after(struct phi_peers *peers, const struct ph_operation *op,
                                 struct phi_key *last, int *rc)
{
    struct phi_key *next =
        last != NULL && last->follower_at == peers->keys_freed ? last->follower : NULL;
    return next != NULL && next->op_id == op->op_id && next->role == (uint8_t)op->role &&
                   next->peer == peers->table[op->peer]
               ? next
               : search_key(peers, op, last, rc);
}

// Only want of memory has not been said where it came up.
static int no_key(struct phi_peers *peers, const struct ph_operation *op, int rc)
{
    if (rc == -ENOMEM)
        phi_fail(peers->report, rc, "out of memory for operation %llu with rank %d",
                 (unsigned long long)op->op_id, op->peer);
    return rc;
}

int phi_request_take(struct ph_exchange_request *request, const struct ph_operation *ops)
{
    struct phi_peers *peers = request->peers;
    struct phi_key *last = NULL;
    for (size_t i = 0; i < request->capacity; i++) {
        int rc = 0;
        struct phi_key *key = key_after(peers, &ops[i], last, &rc);
        if (key == NULL)
            return no_key(peers, &ops[i], rc);
        if (key->request != NULL)
            return phi_fail(
                peers->report, -EALREADY,
                "operation %llu with rank %d (role %d) is in another unfinished exchange",
                (unsigned long long)ops[i].op_id, ops[i].peer, (int)ops[i].role);
        struct phi_pending *pending = &request->pending[i];
        *pending = (struct phi_pending){.key = key};
        rc = own_buffer(peers, key, &ops[i], &pending->number);
        if (rc)
            return no_key(peers, &ops[i], rc);
        key->request = request;
        key->used = peers->exchange_calls;
        request->n++;
        last = key;
    }
    return 0;
}
