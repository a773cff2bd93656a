// SPDX-License-Identifier: BSD-3-Clause
// Operation keys, and the buffers and allocations of both ranks that they are about. With the lock
// held.
#ifndef PHI_PEER_KEYS_H
#define PHI_PEER_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/table.h"
#include "memory/memory.h"
#include "peer/channel.h"
#include "rules/agreement.h"
#include "transport/transport.h"

struct ph_exchange_request;
struct phi_peer;

// An allocation of this rank as peers may map it; `id` names it on the wire and is never given
// again.
struct phi_local_export {
    uint32_t id;
    struct phi_export export_;
    uint64_t checked; // number of the exchange call that last found the allocation unchanged
    uint32_t
        buffers; // own buffers of keys in it that are not released; 0: it is of no use any more
    uint32_t entries;          // own buffers of keys in it
    struct phi_bounce *bounce; // the own bounce buffer in it, which ends with it; or NULL
    uint8_t
        *sent; // by rank: 1: the record was sent to this life of the peer; 2: and so was its end
    uint64_t offer;                // number of the offer that tells of it
    int64_t told_at;               // when the end was told last
    struct phi_local_export *next; // of self->exports.ended
};

// An allocation of a peer: its record from an offer, and the one import of it.
struct phi_remote_export {
    struct phi_peer *peer;
    uint32_t id;
    struct phi_record_info info;
    uint8_t *record;
    size_t record_size;
    bool revoked;                 // its owner will not use it any more: to be closed
    bool importing;               // a thread maps or closes it now, without the lock
    bool closing;                 // ... that thread is the device's closer, which says when it has
    bool tried;                   // `import` or `reason` is the outcome
    uint64_t call;                // number of the exchange call that tried last
    struct phi_import *import;    // NULL: failed, or over the net
    struct phi_net_target target; // over the net: its region
    bool has_target;
    bool marked;   // over the net, revoked and of no use any more: `mark` is set
    uint64_t mark; // tells the posts until then from later ones
    enum phi_reason reason;
};

// A range of this rank's memory, which lies in one allocation.
struct phi_own_range {
    void *address;
    uint64_t size;
    uint64_t offset; // in the allocation
    struct phi_local_export *export_;
};

// A buffer of this rank as a key knows it: one range, or a list of several. Numbers grow, and no
// two buffers of a pair of lives ever have the same, whatever their keys.
struct phi_own_buffer {
    uint32_t number;
    uint32_t range_count; // > 0
    struct phi_own_range first;
    struct phi_own_range *rest; // the ranges behind the first one, or NULL
    size_t size;                // of all ranges
    uint8_t protocol;
    struct phi_limits limits; // of what is sent from it
    bool told;                // an offer with it was begun: the peer may know of it
    bool offered;             // its descriptor has been sent to the peer
    bool region;              // ... which knows of a region that it lies in
    bool released;            // not to be used any more
    bool unbound;             // the operation names none: a bounce buffer of ours
    bool zero_sm;             // PH_ZERO_SM
};

// A buffer of the peer as a key knows it.
struct phi_peer_buffer {
    uint32_t number;
    struct phi_peer_ranges ranges;
    uint64_t size; // of all ranges
    uint8_t protocol;
    struct phi_flag_table table; // of what is sent from it
    bool released;               // by the peer
    bool unbound;                // a bounce buffer of the peer's
    bool zero_sm;                // PH_ZERO_SM, of the peer
};

#define PHI_NO_SLOT UINT32_MAX
#define PHI_NO_LINE UINT32_MAX

// The obstacles that keep the lower rank from giving a slot, as it tells its peer. See
// rules/retire.h.
struct phi_full {
    uint32_t refusals; // exchanges of the key that ended because of it, so far
    uint32_t held_here, held_there, pinned,
        exchanging; // of struct phi_room, as the lower rank has it
};

struct phi_own_buffers {
    struct phi_own_buffer *list; // by growing numbers
    uint32_t count;
    size_t room;
};

struct phi_peer_buffers {
    struct phi_peer_buffer *list; // by growing numbers
    uint32_t count;
    size_t room;
    uint32_t moved; // so far, for those that came behind larger numbers
    uint32_t asked; // the largest number at the last question about room
};

struct phi_key_channels {
    struct ph_channel **list; // confirmed
    uint32_t count;
};

// The key that was named behind this one in an exchange call.
struct phi_follower {
    struct phi_key *key;
    uint64_t at; // self->exchanges.keys_freed at that time: while it is the same, the key is there
};

// The objects that have to be there before a confirm promises a channel.
struct phi_made {
    struct ph_channel *channel;        // or NULL
    struct phi_stage_place place;      // its slots
    struct phi_channel_ranges *ranges; // its tables, where an end has several ranges, or NULL
    struct phi_early_end *early; // the peer has ended that channel already; see release/abort.h
};

// An operation key: (peer, op id, role).
struct phi_key {
    // The members that each exchange touches come first.
    struct phi_peer *peer;
    uint64_t op_id;
    uint8_t role;  // enum ph_role, of this rank
    uint32_t slot; // PHI_NO_SLOT until the lower rank named it
    struct phi_own_buffers own;
    struct phi_agreement agreement;
    struct ph_exchange_request *request; // the unfinished exchange that holds the key, or NULL
    uint64_t used;                       // number of the exchange call that named it last
    struct phi_key_channels channels;
    struct phi_follower follower;
    uint32_t missed;   // higher rank: own exchanges that ended without a slot
    uint32_t retiring; // questions to the peer, whether it can do without, under way

    struct phi_peer_buffers theirs;
    uint32_t line;        // lower rank: given and not used yet, or PHI_NO_LINE
    uint32_t look;        // number of the look for room that has seen it
    struct phi_full full; // higher rank: as told last; lower rank: to be told
    bool full_unsaid;     // lower rank: the peer's socket had no room for it
    struct phi_made made;

    // The open round's miss, kept over a deadline.
    uint64_t confirm; // ours, as stored last (it names its round), or 0
};

// The role of the peer with an operation in which this rank has `role`, and the other way round.
static inline uint8_t phi_role_opposite(uint8_t role)
{
    if (role == PH_ROLE_BOTH)
        return role;
    return role == PH_ROLE_SENDER ? PH_ROLE_RECEIVER : PH_ROLE_SENDER;
}

static inline struct phi_own_range *phi_own_range(struct phi_own_buffer *own, uint32_t i)
{
    return i == 0 ? &own->first : &own->rest[i - 1];
}

// phi_own_buffer_fini frees what a buffer has besides itself.
void phi_own_buffer_fini(struct phi_own_buffer *own);

// phi_peer_buffer_fini frees what a buffer of the peer has besides itself.
void phi_peer_buffer_fini(struct phi_peer *peer, struct phi_peer_buffer *buffer);

// phi_peer_slots_grow makes room for the key of a slot (< PEERHOP_CHANNELS); false: there is no
// memory.
bool phi_peer_slots_grow(struct phi_peer *peer, uint32_t slot);

// phi_key_find returns a key, or NULL. phi_key_get finds or makes a key; if it returns NULL, *rc is
// -ENOSPC or -ENOMEM.
struct phi_key *phi_key_find(const struct phi_peer *peer, uint64_t op_id, uint8_t role);
struct phi_key *phi_key_get(struct phi_peer *peer, uint64_t op_id, uint8_t role, int *rc);
struct ph_channel *phi_key_channel(const struct phi_key *key, uint32_t mine, uint32_t theirs);

// phi_key_set_slot gives the key a slot for which there is room. -EBADMSG: it is another key's.
int phi_key_set_slot(struct phi_key *key, uint32_t slot);

// phi_key_forget_full forgets what was told, or is to be told, of exchanges that ended without a
// slot.
void phi_key_forget_full(struct phi_key *key);

// Returns the own buffer with a number, or NULL.
static inline struct phi_own_buffer *phi_key_mine(const struct phi_key *key, uint32_t number)
{
    for (uint32_t i = key->own.count; i-- > 0;)
        if (key->own.list[i].number == number)
            return &key->own.list[i];
    return NULL;
}

// Returns whether the own buffer with a number was released. A released buffer may be gone already.
static inline bool phi_key_mine_released(const struct phi_key *key, uint32_t number)
{
    const struct phi_own_buffer *own = phi_key_mine(key, number);
    return own == NULL || own->released;
}
struct phi_peer_buffer *phi_key_theirs(const struct phi_key *key, uint32_t number);

// phi_key_tell files a buffer of the peer, which it takes over; a number that is there already
// keeps what it means. -EBADMSG, -ENOMEM.
int phi_key_tell(struct phi_key *key, struct phi_peer_buffer *buffer);

#endif
