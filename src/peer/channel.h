// SPDX-License-Identifier: BSD-3-Clause
// A channel, which an exchange makes for an operation of two ranks. The members that the data path
// reads do not change afterwards, except atomics.
#ifndef PHI_PEER_CHANNEL_H
#define PHI_PEER_CHANNEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <peerhop/channel.h>

#include "base/ranges.h"
#include "net/net.h"
#include "peer/ranges.h"
#include "semaphore/executor.h"

struct phi_key;
struct phi_lane;
struct phi_peer;
struct phi_self;
struct phi_stage_lane;

// The largest messages, in bytes, that go by ll and by sm. The table belongs to the sender's
// buffer and travels in its descriptor.
struct phi_flag_table {
    uint64_t ll_max, sm_max;
};

// The addresses of an end's flags (lane/flag_memory.h), as this device knows them. 0: the end has
// none.
struct phi_flag_end {
    uint64_t lanes;                       // the lanes of all lines
    uint64_t slots[PHI_WORD_COUNT], wide; // the slots of the channel's line
};

// The place of a channel's slots, which is the same in the memory of both ranks. `size` is set at
// the lower rank alone: the bytes that the place takes, or 0 for no place. The lower rank gives
// places, as it gives lines.
struct phi_stage_place {
    uint64_t at, size;
    struct phi_lane *lane[2][PHI_WORD_COUNT]; // by outgoing and word
};

// The lanes of a channel, by outgoing and word. Constant once the channel is made.
struct phi_stage_end {
    bool is;    // staged, or by bells
    bool bells; // there is one lane of bells for each direction, in the place of the turn's
    bool wide;  // counted among the context's wide channels, from begin to close
    uint64_t like;
    struct phi_stage_place place;
    struct phi_stage_lane *control[2][PHI_WORD_COUNT];
    uint8_t *slots[2][PHI_WORD_COUNT];
    uint64_t control_seen[2][PHI_WORD_COUNT]; // as streams (or queues) know them
    uint64_t slots_seen[2][PHI_WORD_COUNT];
};

// One end of a channel: its buffer, and the places of its words and flags. Both ends have the same
// members. Members of the peer's end that this rank does not know are 0.
struct phi_channel_end {
    uint32_t number;  // of the buffer (peer/keys.h)
    uint8_t kind;     // of its memory: enum phi_kind
    uint8_t reach;    // enum phi_reason: of this end's import of the other's buffer
    bool zero_sm;     // PH_ZERO_SM: this end launches no kernel for the channel
    uint8_t *address; // in this process, of the first range; NULL: no import here
    size_t size;      // of all ranges
    // Of several ranges: their table, and a copy of it for kernels (0: none). NULL: one range.
    const struct phi_range_entry *ranges;
    uint64_t ranges_device;
    uint32_t range_count;
    struct phi_line *line;
    uint64_t line_device; // of the line, or 0
    struct phi_flag_end flags;
};

// The exchange that makes the channel writes these members. Nobody writes them afterwards, so the
// data path reads them without the lock.
struct phi_channel_fixed {
    uint32_t index; // of the lines
    uint8_t role;
    uint8_t life;  // of the line; over the net
    bool unbound;  // its buffers are bounce buffers: calls name their memory
    bool ranged;   // an end has several ranges, so that copies may be cut
    bool loopback; // unbound, of this rank to itself (peer/loopback.h): it has no buffers
    bool by_net;
    // both buffers lie in devices that no bus is known to join, and this end has flags
    bool linked;
    bool ring[2];        // unbound, by outgoing: which directions are rings
    uint8_t protocol[2]; // enum ph_protocol, by outgoing; 0 without the direction
    struct phi_channel_end own, theirs;
    struct phi_flag_table table[2]; // by outgoing
    // over the net: to the peer's buffer; no link: this end does not reach it
    struct phi_route route;
    struct phi_stage_end stage; // over the net, where a device is involved
    // In an unbound channel, `area` is where the area begins that this end fills, in its own bounce
    // buffer. `part` is the most bytes of a message that go at once.
    size_t area, part;
    uint64_t local_base;         // of the allocation of the own buffer, or of its first range
    const uint64_t *local_bases; // of the allocations of the other ranges, or NULL
    uint64_t remote_offset;      // of the peer's buffer in its allocation
};

// The message of an unbound channel whose turn it is, in one direction. One thread calls on a
// direction.
struct phi_turn {
    size_t at;   // its place in the list of a group, or PHI_NO_TURN
    size_t next; // before this no other one comes
    size_t part;
};

#define PHI_NO_TURN SIZE_MAX

// The data path changes these members without the lock, so most are atomics.
struct phi_channel_live {
    _Atomic int status; // 0 or why it cannot be used
    // of the end of a channel alone; written before `status`, read behind it
    char why[160];
    _Atomic uint32_t awaited; // words that this end has ever waited for: bit outgoing * 2 + word
    _Atomic uint32_t lifted;  // likewise: words that were set for waits that nobody will answer
    _Atomic uint32_t undone;  // 1: an operation of this end has left out some of its work
    // `reads` counts the copies of this end from the peer's buffer. `reads_whole` counts those that
    // are known to have ended while the peer still had its data there.
    _Atomic uint32_t reads, reads_whole;
    _Atomic uint32_t flagged; // 1: this end has used its flags
    // calls that enqueue and have not kicked yet: the channel's lanes, staged or by flags, stay so
    // long
    _Atomic uint32_t inside;
    _Atomic uint32_t lost;         // 1: not all that this end did with its flags was counted
    _Atomic uint32_t leaves;       // go words given for copies that have not arrived
    _Atomic uint32_t posted;       // bit 0: outgoing, bit 1: incoming: a post awaits its complete
    _Atomic size_t posted_size[2]; // by outgoing: of that post
    _Atomic uint32_t grouped;      // scratch of ph_group: kinds seen, by direction
    _Atomic size_t tells;          // ... and the place of the signal in its list, if it has one
    struct phi_turn turn[2];
    _Atomic uint32_t skips; // the word of executor->skips that counts pages left out, or 0
    struct phi_uses uses;   // of both buffers and of the words by this end's streams
};

// The end of one channel alone, which release/abort.c carries out.
struct phi_abort {
    int code;        // 0: not ended alone
    bool sent;       // the peer was told
    bool heard;      // the peer's end has ended as well, as it says
    bool over;       // nothing is left to be done
    int64_t tell_at; // when to tell the peer
};

// Under the lock of self.
struct phi_channel_kept {
    struct phi_key *key; // NULL: retired
    struct ph_channel *next;
    struct ph_channel **link; // what points to it in the list of the peer's channels
    uint32_t handles;         // of the application
    uint32_t look;            // number of the look for room that has seen it
    uint64_t used;            // number of the exchange call that returned it last
    bool retired;             // it is in the list peer->channels.retired
    bool spent;               // it is in the list peer->channels.spent
    bool asked;               // the peer is asked about it as a spent channel
    bool let_go;              // revoked, and nothing will be posted for this end any more
    struct ph_channel *spent_next;
    int64_t spent_pinned;              // when its flags were first found not at rest, or 0
    struct phi_peer_ranges remote;     // the exports are NULL: closed
    struct phi_channel_ranges *ranges; // where an end has several ranges: their memory
    struct phi_net_told told_by_then;  // posts over the net by the time it was let go
    uint32_t flag_parts; // parts that both ends confirmed to have of both ranks, a bit for each
    struct phi_abort abort;
};

struct ph_channel {
    struct phi_self *self;
    struct phi_peer *peer;
    uint64_t op_id;
    struct phi_channel_fixed fixed;
    struct phi_channel_live live;
    struct phi_channel_kept kept;
};

// One call on one direction of a channel.
struct phi_channel_call {
    struct ph_channel *channel;
    enum phi_call call;
    bool outgoing;  // the direction: from this rank to the peer
    bool told;      // of a get: a signal behind it, of the same group, tells of it
    uint8_t method; // enum phi_method; see `program`
    union {
        size_t local_offset; // of its copy, if it has one
        void *data;          // of an unbound channel: the message's part in the caller's memory
    };
    size_t remote_offset, size; // of an unbound channel: the part's place in the message
    union {
        size_t message; // of an unbound channel: the size of the whole message
        void *to;       // of one of this rank to itself: where it goes
    };
    struct phi_page_list *pages; // of a put or get of a list of pages, or NULL
    // transfer/issue.h, phi_call_decide, decides how the message of the call moves (`method`), and
    // in which steps. NULL: it has not.
    const struct phi_program *program;
};

// phi_channel_free frees a channel that nobody uses.
void phi_channel_free(struct ph_channel *channel);

// phi_device_channel_busy (with the lock) is the refusal of what a device channel is in the way of.
int phi_device_channel_busy(const struct ph_channel *channel, const char *what);

// phi_channel_lies_in returns whether a range of the own buffer lies in the allocation at `base`.
bool phi_channel_lies_in(const struct ph_channel *channel, uint64_t base);

// The part of phi_channel_at for an end of several ranges.
uint8_t *phi_channel_range_at(const struct phi_channel_end *end, uint64_t offset, uint64_t *size);

// phi_channel_at returns where an offset of an end lies, and cuts *size to what lies there in one
// piece.
static inline uint8_t *phi_channel_at(const struct phi_channel_end *end, uint64_t offset,
                                      uint64_t *size)
{
    return end->ranges == NULL ? end->address + offset : phi_channel_range_at(end, offset, size);
}

// phi_channel_active returns whether this end is the active one of send/recv in a direction.
bool phi_channel_active(const struct ph_channel *channel, bool outgoing);

// phi_revoke_drained (with the lock) returns whether no stream and no graph of this rank touches
// the channel.
bool phi_revoke_drained(const struct ph_channel *channel);

#endif
