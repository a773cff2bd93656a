// SPDX-License-Identifier: BSD-3-Clause
// All that is known of one peer, and of its lives. With the lock of its struct phi_self held, but
// for what is said to be otherwise.
#ifndef PHI_PEER_PEER_H
#define PHI_PEER_PEER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/map.h"
#include "net/net.h"
#include "semaphore/executor.h"
#include "semaphore/flags.h"
#include "store/gate.h"
#include "topology/capabilities.h"
#include "transport/transport.h"

struct ph_channel;
struct phi_attempt;
struct phi_hello;
struct phi_key;
struct phi_link;
struct phi_own_flags;
struct phi_self;
struct phi_remote_export;
struct phi_revocation;
struct phi_segment;
struct phi_staging;

// The parts of struct phi_peer. "Private to FILES" is checked (tests/headers/members.py).

// Bytes of offers, put into the own FIFO and taken from the peer's (exchange/fifo.h). Private to
// exchange.
struct phi_fifo {
    uint64_t posted, taken;
    bool late; // there was no memory for one
    bool bad;  // the peer has written something else
};

// The records of the rank's lives, as far as this one's does not hold them.
struct phi_life {
    // a later life that has announced itself and cannot take this one's place yet, or 0
    uint64_t newer;
    struct phi_capabilities newer_theirs;
    struct phi_peer *former; // the next of self->lives.former
    uint64_t expelled;       // the latest life of the rank that is known to be expelled, or 0
    // threads that come back to the peer, with the lock given up and no key of it
    uint32_t visitors;
};

// First contact, and each after it.
struct phi_meetings {
    uint64_t life;    // incarnation that the segment was made for
    bool preparing;   // a thread connects now, without the lock
    bool registering; // ... and registers the segment with the device
    bool refused;     // nobody listened at the socket when last tried, or not for this life of ours
    int64_t retry;    // when to try again
    bool mute;        // ... or it did not answer in time
    bool shut;        // nobody listens here at the socket of this life: it is over, or elsewhere
    bool knocked;     // ... and it was told so, through the store
    bool elsewhere;   // it lives, and no socket joins the two, whatever the records say of its node
    bool unreachable; // no path at all
    // the net, which was to serve where ipc does not, does not either: ipc is left
    bool net_refused;
    enum phi_reason why; // ... over the net, of both
};

// Two trials find out whether ipc serves: an attempt, where no record says it (meeting/attempt.h),
// and the write-and-verify probe of the device pair (meeting/mapping.h). Private to meeting.
struct phi_trial {
    struct phi_attempt *attempt; // or NULL
    bool probing, probed;        // the probe is under way, done
    enum phi_reason reason;      // the probe's outcome
    // kept until the end, or a reap of what a former life left: closing it could block
    struct phi_import *probe;
    uint64_t seed; // of the pattern that was written there; 0: none
};

// How messages get to the peer's service thread, and how that is woken.
struct phi_connection {
    struct phi_gate calling; // serialises calls on `socket`: its waiters have deadlines
    uint64_t calls;          // made on `socket`
    int socket;              // to the peer's service thread, or -1
    struct phi_link *link;   // or to it over the net, once one was opened; see meeting/hello.h
    struct phi_hello *hello; // of that link
    int wake_fd;             // rings at the peer, as it says, or -1
    int pidfd;               // of its process, as it gave it, or -1; polled by the service thread
    uint32_t watch;          // names this life in the service's events
};

// The cache: operation keys with the peer.
struct phi_keys {
    struct phi_map all;
    struct phi_key **slots; // by slot index
    uint32_t *slot_lives; // by slot: of its present use; at the higher rank: the last that is over
    uint32_t slots_room;  // of `slots` and `slot_lives`: they grow as slots are given
    uint32_t numbers;     // given to own buffers so far
    uint32_t ranges;      // of all buffers of the peer, behind their first ones
};

// Allocations of the peer that it has offered.
struct phi_imports {
    struct phi_map all;     // struct phi_remote_export by id
    uint32_t seen;          // above all ids
    uint32_t *ended_unread; // ids of those that have ended before their offers were read
    uint32_t ended_count;
    size_t ended_room;
    struct phi_revocation *revocations; // of the peer's releases, under way here
    bool closing;                       // some are to be closed
};

// The findings of a look for room. They hold for as long as nothing can change, which is one pass
// over an exchange.
struct phi_found {
    uint64_t pass; // of self->exchanges.passes; 0: none
    bool full;     // everything is held
    uint32_t held_here, held_there, pinned, exchanging;
};

// The lines and slots that the lower rank of a pair has left to give, and its looks for more. See
// rules/retire.h.
struct phi_room {
    uint32_t slots_used; // by the lower rank
    uint32_t lines_used; // likewise; at the higher rank above all lines that channels have had
    struct phi_found found[2]; // by kind: line, slot. The higher rank's: whether it is hopeless
    uint32_t *lines, *slots;   // used before
    uint32_t lines_count, lines_room, slots_count, slots_room;
    uint32_t asked;   // questions to the peer under way
    uint32_t look;    // number of the present look
    bool looking;     // ... which is not over
    bool slots_short; // it is for memory of slots (lane/staging.h)
    bool again;       // something in its way is only under way
    int64_t at;       // not before
    uint32_t held_here, held_there, pinned, exchanging; // what it has found in the way
};

// The most questions about room that a peer has under way.
#define PHI_RETIRE_ASKED 64

// An answer to a question about room, for which the peer's socket had no room. It is kept in place:
// we owe it whatever memory there is, as the peer waits for it.
struct phi_unsaid {
    uint64_t line; // as it was asked
    uint32_t slot;
    uint32_t answer; // enum phi_retire_answer
};

// Private to release/reply.c and meeting/lives.c.
struct phi_replies {
    struct phi_unsaid unsaid[PHI_RETIRE_ASKED];
    uint32_t unsaid_count;
    bool fulls_unsaid; // the `full` of some key is still to be said
};

// Spent channels of the lower rank: a buffer of each was given back, and the application has let go
// of the channel. The lower rank asks the peer about them, in turns. See release/spent.h.
struct phi_spent {
    struct ph_channel *first, **end; // linked by `spent_next`
    uint32_t count;
    int64_t at;     // not before
    uint32_t pause; // in ms, before the next try
};

struct phi_channels {
    struct ph_channel *first;   // linked by kept.next
    struct ph_channel *retired; // with handles left, linked likewise
    uint32_t unbound, ending;   // unbound channels; channels that end alone and are not over
    int64_t mismatches_at;      // when to look for messages of another size
    struct phi_spent spent;
    struct phi_uses late; // uses by the messages that were taken of channels that had ended
};

// Memory of flags of both ends, kept as long as the probe. Private to lane/flag_memory.c.
struct phi_flag_pair {
    struct phi_own_flags *own;
    struct phi_remote_export *theirs[PHI_FLAG_PARTS]; // or NULL
    bool refused[PHI_FLAG_PARTS];                     // the peer makes none
};

// The state that the peer has told us: its own, and which of our messages it has taken.
struct phi_heard {
    uint64_t acknowledged;            // of our messages, as passed on to the mailbox
    uint64_t filed;                   // sequence of its last message that was taken
    bool leaves;                      // as its side says
    struct phi_net_told told_by_then; // ... over the net
};

enum phi_peer_state {
    PHI_PEER_UNKNOWN, // no member record yet
    PHI_PEER_KNOWN,   // record there, not connected
    PHI_PEER_READY,   // connected, segment mapped
    PHI_PEER_BROKEN,  // exited, left, aborted or restarted: end.code says which
};

// The end of this life.
struct phi_peer_end {
    int code;           // of PHI_PEER_BROKEN
    _Atomic bool known; // set before its channels get their code, when it is broken
    bool ending;        // broken by the end of its connection: it may be about to exit
    uint64_t last_beat; // ... its counter then
    bool parted;        // nobody is left at the other end of wake_fd: its context is no more
    bool gone;          // the process has exited (or closed its end without leaving)
    bool released;      // broken, and no stream of ours touches anything of it any more
    bool expelled;      // this life was, by us or by another rank
};

// See ending/heartbeat.h and ending/expel.h.
struct phi_peer_pulse {
    uint64_t beat; // the peer's counter as last seen
    int64_t at;    // when it was last seen to change; 0: never looked
    bool suspect;
};

struct phi_peer {
    struct phi_self *self;
    int rank;
    enum phi_peer_state state;
    uint64_t incarnation; // of its member record
    struct phi_capabilities theirs;
    struct phi_segment *segment;
    struct phi_life life;
    struct phi_meetings contact;
    struct phi_trial trial;
    struct phi_connection to;
    struct phi_staging *staging; // of the link, or NULL
    struct phi_fifo fifo;
    struct phi_keys keys;
    struct phi_imports imports;
    struct phi_room room;
    struct phi_replies replies;
    struct phi_flag_pair flags;
    struct phi_channels channels;
    struct phi_heard heard;
    struct phi_peer_end end;
    struct phi_peer_pulse pulse;
};

// phi_peer_connected returns whether messages reach the peer's service thread (until it ends).
static inline bool phi_peer_connected(const struct phi_peer *peer)
{
    return peer->to.socket >= 0 || (peer->to.link != NULL && peer->state >= PHI_PEER_READY);
}

// phi_peer_slot: the key that has a slot, or NULL.
static inline struct phi_key *phi_peer_slot(const struct phi_peer *peer, uint64_t slot)
{
    return slot < peer->keys.slots_room ? peer->keys.slots[slot] : NULL;
}

#endif
