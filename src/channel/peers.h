// SPDX-License-Identifier: BSD-3-Clause
// The peers of a rank and all that is known of them: the state behind exchange, cache, data path
// and destroy.
//
// Locking. peers->lock guards every member here that is not said to be otherwise. It is never held
// while a thread waits, calls another rank, talks to the store or maps memory: whoever does that
// marks the object busy first (preparing, importing, key->request) and broadcasts `changed`
// afterwards. What the data path reads (struct ph_channel) does not change after the channel was
// made, except atomics.
#ifndef PHI_CHANNEL_PEERS_H
#define PHI_CHANNEL_PEERS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <peerhop/channel.h>

#include "base/config.h"
#include "base/counters.h"
#include "base/map.h"
#include "base/report.h"
#include "base/table.h"
#include "base/wake.h"
#include "channel/agreement.h"
#include "channel/flags.h"
#include "channel/node.h"
#include "channel/staging.h"
#include "memory/memory.h"
#include "net/net.h"
#include "semaphore/executor.h"
#include "semaphore/segment.h"
#include "store/gate.h"
#include "store/mailbox.h"
#include "topology/capabilities.h"
#include "transport/transport.h"
#include "transport/way.h"

struct phi_attempt;
struct phi_release;
struct phi_hello;
struct phi_revocation;
struct phi_service;
struct phi_peers;
struct phi_peer;

// An allocation of this rank as peers may map it; `id` names it on the wire and is never given
// again.
struct phi_local_export {
    uint32_t id;
    struct phi_export export_;
    uint64_t checked; // number of the exchange call that last found the allocation unchanged
    uint32_t
        buffers; // own buffers of keys in it that are not released; 0: it is of no use any more
    uint32_t entries; // own buffers of keys in it
    uint8_t
        *sent; // by rank: 1: the record was sent to this life of the peer; 2: and so was its end
    int64_t told_at;               // when the end was told last
    struct phi_local_export *next; // of peers->ended
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
    bool marked;   // revoked and of no use any more, over the net: posts by then are told apart,
    uint64_t mark; // ... by this
    enum phi_reason reason;
};

// A buffer of this rank as a key knows it. Numbers grow, and no two buffers of a pair of lives ever
// have the same, whatever their keys.
struct phi_own_buffer {
    uint32_t number;
    void *address;
    size_t size;
    uint64_t offset; // in the allocation
    struct phi_local_export *export_;
    uint8_t protocol;
    struct phi_limits limits; // of what is sent from it
    bool told;                // an offer with it was begun: the peer may know of it
    bool offered;             // its descriptor has been sent to the peer
    bool region;              // ... which knows of a region that it lies in
    bool released;            // not to be used any more
};

// A buffer of the peer as a key knows it.
struct phi_peer_buffer {
    uint32_t number;
    struct phi_remote_export *export_;
    uint64_t offset, size;
    uint8_t protocol;
    struct phi_flag_table table; // of what is sent from it
    bool released;               // by the peer
};

#define PHI_NO_SLOT UINT32_MAX
#define PHI_NO_LINE UINT32_MAX

// What is in the way of a slot, as the lower rank tells its peer. See retire.h.
struct phi_full {
    uint32_t refusals; // exchanges of the key that ended because of it, so far
    uint32_t held_here, held_there, pinned,
        exchanging; // of struct phi_room, as the lower rank has it
};

// An operation key: (peer, op id, role).
struct phi_key {
    // What each exchange touches comes first.
    struct phi_peer *peer;
    uint64_t op_id;
    uint8_t role;               // enum ph_role, of this rank
    uint32_t slot;              // PHI_NO_SLOT until the lower rank named it
    struct phi_own_buffer *own; // by growing numbers
    uint32_t own_count;
    struct phi_agreement agreement;
    struct ph_exchange_request *request; // the unfinished exchange that holds the key, or NULL
    uint64_t used;                       // number of the exchange call that named it last
    struct ph_channel **channels;        // confirmed
    uint32_t channels_count;
    struct phi_key *follower; // named behind it in an exchange call
    uint64_t follower_at;     // peers->keys_freed at that time: while it is the same, it is there
    uint32_t missed;          // higher rank: own exchanges that ended without a slot
    uint32_t retiring;        // questions to the peer, whether it can do without, under way

    size_t own_room;
    struct phi_peer_buffer *theirs; // by growing numbers
    uint32_t theirs_count;
    size_t theirs_room;
    uint32_t moved;               // of them so far, for those that came behind larger numbers
    uint32_t line;                // lower rank: given and not used yet, or PHI_NO_LINE
    uint32_t theirs_asked;        // the peer's largest number at the last question
    uint32_t look;                // number of the look for room that has seen it
    struct phi_full full;         // higher rank: as told last; lower rank: to be told
    bool full_unsaid;             // lower rank: the peer's socket had no room for it
    struct ph_channel *next;      // memory for the channel that a confirm promises, or NULL
    struct phi_stage_place place; // ... and its slots

    // The open round's miss, kept over a deadline.
    uint64_t confirm; // ours, as stored last (it names its round), or 0
};

// What a look for room found, for as long as nothing can change: one pass over an exchange.
struct phi_found {
    uint64_t pass; // of peers->passes; 0: none
    bool full;     // everything is held
    uint32_t held_here, held_there, pinned, exchanging;
};

// What the lower rank of a pair has left to give, and its looks for more. See retire.h.
struct phi_room {
    struct phi_found found[2]; // by kind: line, slot. The higher rank's: whether it is hopeless
    uint32_t *lines, *slots;   // used before
    uint32_t lines_count, lines_room, slots_count, slots_room;
    uint32_t asked;   // questions to the peer under way
    uint32_t look;    // number of the present look
    bool looking;     // ... which is not over
    bool slots_short; // it is for memory of slots (staging.h)
    bool again;       // something that it has found in the way is only under way
    int64_t at;       // not before
    uint32_t held_here, held_there, pinned, exchanging; // what it has found in the way
};

// Channels that were given back and that the application has let go of, of the lower rank: those
// that the peer is to be asked about, in turns. See spent.h.
struct phi_spent {
    struct ph_channel *first, **end; // linked by `spent_next`
    uint32_t count;
    int64_t at;     // not before
    uint32_t pause; // in ms, before the next try
};

// The most questions about room that a peer has under way.
#define PHI_RETIRE_ASKED 16

// An answer to one that the peer's socket had no room for. Kept in place: it is owed whatever
// memory there is, as the peer waits for it.
struct phi_unsaid {
    uint64_t line; // as it was asked
    uint32_t slot;
    uint32_t answer; // enum phi_retire_answer
};

enum phi_peer_state {
    PHI_PEER_UNKNOWN, // no member record yet
    PHI_PEER_KNOWN,   // record there, not connected
    PHI_PEER_READY,   // connected, segment mapped
    PHI_PEER_BROKEN,  // exited, left, aborted or restarted: `code` says which
};

struct phi_peer {
    struct phi_peers *peers;
    int rank;
    enum phi_peer_state state;
    int code;              // of PHI_PEER_BROKEN
    uint64_t incarnation;  // of its member record
    uint64_t segment_life; // incarnation that the segment was made for
    struct phi_capabilities theirs;
    uint64_t
        newer; // a later life that has announced itself and cannot take this one's place yet, or 0
    struct phi_capabilities newer_theirs;
    struct phi_peer *former; // of peers->former
    uint32_t visitors; // threads that come back to it, with the lock given up and no key of it
    bool preparing;    // a thread connects now, without the lock
    bool registering;  // ... and registers the segment with the device
    bool refused;     // nobody listened at the socket when last tried, or not for this life of ours
    int64_t retry;    // when to try again
    bool mute;        // ... or it did not answer in time
    bool shut;        // nobody listens here at the socket of this life: it is over, or elsewhere
    bool knocked;     // ... and it was told so, through the store
    bool elsewhere;   // it lives, and no socket joins the two, whatever the records say of its node
    bool unreachable; // no path at all
    bool
        net_refused; // the net, which was to serve where ipc does not, does not either: ipc is left
    enum phi_reason why;         // ... over the net, of both
    struct phi_attempt *attempt; // whether ipc serves, where no record says; see attempt.h; or NULL

    struct phi_gate calling;     // serialises calls on `socket`: its waiters have deadlines
    uint64_t calls;              // made on `socket`
    int socket;                  // to the peer's service thread, or -1
    struct phi_link *link;       // or to the peer over the net, once one was opened; see hello.h
    struct phi_hello *hello;     // of that link
    struct phi_staging *staging; // of that link, or NULL
    struct phi_uses late;        // of channels that had ended, by what was taken of them
    int wake_fd;                 // rings at the peer, as it says, or -1
    int pidfd;      // of its process, as it gave it, or -1; polled by the service thread
    uint32_t watch; // names this life in the service's events

    struct phi_segment *segment;
    uint32_t numbers;                // given to own buffers so far
    uint32_t slots_used, lines_used; // by the lower rank
    uint32_t *slot_lives; // by slot: of its present use; at the higher rank: the last that is over
    struct phi_room room;
    struct phi_unsaid unsaid[PHI_RETIRE_ASKED];
    uint32_t unsaid_count;
    bool fulls_unsaid;        // some key's `full` is
    struct ph_channel *husks; // retired, with handles left
    struct phi_spent spent;
    uint32_t exports_seen;  // above all export ids of the peer
    uint32_t *ended_unread; // ids of exports that have ended before their offers were read
    uint32_t ended_count;
    size_t ended_room;
    struct phi_key **slots; // by slot index
    struct phi_map keys;
    struct phi_map remote_exports; // by id
    bool probing, probed;          // the write-and-verify probe of the device pair: under way, done
    enum phi_reason probe_reason;  // its outcome
    struct phi_import *probe;      // kept until the end, or a reap of what a former life left:
                                   // closing could block
    uint64_t probe_seed;           // of the pattern that was written there; 0: none
    struct phi_own_flags *own_flags;    // see flags.h; kept as long
    struct phi_remote_export *flags;    // the peer's slab, or NULL
    struct ph_channel *channels;        // all, linked by `next`
    struct phi_revocation *revocations; // of the peer's releases, under way here
    bool closing;                       // some of its exports are to be closed
    _Atomic bool ended;                 // set before its channels get their code, when it is broken
    uint64_t acknowledged;              // of our messages, as passed on to the mailbox
    uint64_t filed;                     // sequence of its last message that was taken
    bool leaves;                        // as its side says;
    struct phi_net_told told_by_then;   // ... over the net
    bool ending;        // broken by the end of its connection: it may be about to exit
    uint64_t last_beat; // ... its counter then
    bool parted;        // nobody is left at the other end of wake_fd: its context is no more
    bool gone;          // the process has exited (or closed its end without leaving)
    bool released;      // broken, and no stream of ours touches anything of it any more

    // See heartbeat.h and expel.h.
    uint64_t beat;   // the peer's counter as last seen
    int64_t beat_at; // when it was last seen to change; 0: never looked
    bool suspect;
    bool expelled;          // this life was, by us or by another rank
    uint64_t expelled_life; // the latest life of the rank that is known to be expelled, or 0
};

struct ph_channel {
    struct phi_peers *peers;
    struct phi_peer *peer;
    struct phi_key *key; // NULL: retired
    struct ph_channel *next;
    uint64_t op_id;
    uint32_t handles; // of the application
    bool retired;     // of peer->husks
    bool spent;       // of peer->spent, by
    bool asked;       // the peer is asked about it, as one of those
    struct ph_channel *spent_next;
    int64_t spent_pinned; // when its flags were first found not at rest, or 0
    uint32_t look;        // number of the look for room that has seen it
    uint64_t used;        // number of the exchange call that returned it last
    uint32_t mine_number, theirs_number;
    uint32_t index; // of the lines
    uint8_t role;
    uint8_t protocol_out, protocol_in; // enum ph_protocol; 0 without the direction
    uint8_t reach, reached;            // enum phi_reason: of this end's import, of the peer's
    uint8_t local_kind, remote_kind;
    bool by_net;
    uint8_t life;               // of the line; over the net
    struct phi_stage_end stage; // over the net, where a device is involved
    struct phi_route
        route; // over the net: to the peer's buffer; no link: this end does not reach it
    uint8_t *local, *remote; // remote NULL: no import here
    size_t local_size, remote_size;
    uint64_t local_base;                     // of the allocation
    struct phi_remote_export *remote_export; // NULL: closed
    uint64_t remote_offset;                  // in it
    bool let_go;                      // revoked, and nothing will be posted for this end any more
    struct phi_net_told told_by_then; // ... over the net
    _Atomic uint32_t awaited; // words that this end has ever waited for: bit outgoing * 2 + word
    _Atomic uint32_t lifted;  // likewise: words that were set for waits that nobody will answer
    struct phi_line *mine, *theirs_line;
    uint64_t mine_device, theirs_device; // of the lines, or 0
    uint64_t own_slab, peer_slab;        // of flags, as this device knows them, or 0; see flags.h
    struct phi_flag_table table[2];      // by outgoing
    bool linked; // both buffers lie in devices that no bus is known to join, and this end has flags
    _Atomic uint32_t flagged; // 1: this end has used its flags
    _Atomic uint32_t inside; // calls between what they enqueue and their kick: its lanes, staged or
                             // by flags, stay so long
    _Atomic uint32_t lost;         // 1: what it did with them was not all counted
    _Atomic uint32_t leaves;       // go words given for copies that have not arrived
    _Atomic int status;            // 0 or why it cannot be used
    _Atomic uint32_t posted;       // bit 0: outgoing, bit 1: incoming: a post awaits its complete
    _Atomic size_t posted_size[2]; // by outgoing: of that post
    _Atomic uint32_t grouped;      // scratch of ph_group: kinds seen, by direction
    _Atomic size_t tells;          // ... and the place of the signal in its list, if it has one
    struct phi_uses uses;          // of both buffers and of the words by this end's streams
};

// The thread that tries for the service thread whether ipc serves; see attempt.h.
struct phi_trier {
    pthread_t thread;
    bool made, busy; // it is to be joined; it is not done
    struct phi_attempt *attempt;
    size_t size;
    uint8_t record[PHI_EXPORT_MAX]; // of the peer's probe allocation
};

struct phi_peers_params {
    struct phi_report *report;
    struct phi_counters *counters;
    const struct phi_config *config;
    const struct phi_table *size_table;
    struct phi_memory *memory;
    struct phi_executor *executor;
    struct phi_device *device; // NULL: host
    const struct ph_store_callbacks *callbacks;
    const char *job;
    uint64_t epoch;
    int rank, ranks;
    uint64_t incarnation; // that this life asks for (see phi_mailbox_params)
};

// So many threads enqueue groups at once without asking for memory each time.
enum { PHI_SPARE_WORK = 8 };

// What the service thread sleeps in, and what wakes it.
struct phi_events {
    int epoll, event;
    uint32_t watches; // given so far
};

struct phi_peers {
    const volatile uint8_t *life; // 1; a page of zeros in a forked child
    struct phi_report *report;
    struct phi_counters *counters;
    const struct phi_config *config;
    const struct phi_table *size_table; // of PEERHOP_TABLE, or NULL
    struct phi_memory *memory;
    struct phi_executor *executor;
    struct phi_device *device;
    struct phi_mailbox *mailbox; // has its own locks
    struct phi_service *service;
    struct phi_events events; // of the service thread
    int pidfd;                // of this process, for peers; -1: this kernel gives none
    struct phi_net *net;      // once a peer needs it; never closed before the end
    struct phi_wake net_wake; // rung when a message came over it, or a link was lost
    struct phi_way way;       // of this rank's memory over it
    bool net_opening;         // a thread opens it now, without the lock
    bool net_failed;          // it could not be opened
    int rank, ranks;
    uint64_t incarnation;
    struct phi_capabilities mine;

    pthread_mutex_t lock;
    pthread_cond_t changed; // on CLOCK_MONOTONIC
    uint64_t changes; // counts broadcasts, so that no change between a look and a wait is missed
    bool receiving;   // a thread is inside phi_mailbox_receive
    struct phi_message late; // there was no memory to file it: first of all again, before others
    bool is_late;
    bool registered;                   // peers ring: this rank's `sleepers` are counted up
    uint32_t *wanted;                  // by rank: threads that await a message of it
    bool *wanted_now;                  // the same for phi_mailbox_receive
    struct phi_peer **table;           // by rank; NULL: never named
    struct phi_peer *former;           // lives that are over: channels may still name them
    bool former_due;                   // something may be freed of them; see lives.h
    struct phi_local_export **exports; // live ones
    uint32_t exports_count;
    size_t exports_room;
    uint32_t export_ids;            // given so far
    struct phi_local_export *ended; // of no use any more, but peers may map them
    struct phi_release *releases;   // under way
    uint64_t release_ids;           // given so far
    // Staged ones with several blocks for a record; those of a life that is over end without the
    // lock.
    _Atomic uint32_t wide_channels;
    uint64_t exchange_calls;
    uint64_t keys_freed; // how often
    uint64_t passes;     // over exchanges so far, each with the lock held throughout
    int aborted;         // 0 or PH_EABORTED
    int fenced;          // 0 or PH_EFENCED
    char fenced_why[128];
    _Atomic bool fence_told; // the application knows
    bool leaving;
    struct ph_exchange_request *requests; // unfinished exchanges
    struct ph_exchange_request *spare;    // kept for the next one, or NULL
    // Streams may store what a peer reads later with no fence of system scope behind it: into host
    // memory that some channel names, or by kernels that have had a device channel. Never again
    // false.
    _Atomic bool unfenced;
    struct phi_work *_Atomic spare_work[PHI_SPARE_WORK]; // of groups, for the next ones; or NULL

    int64_t ticked;                // when the service thread last beat; 0: nobody is connected
    int64_t awake_since;           // ... and since when it has done so without a long gap
    _Atomic int64_t *silent_since; // by rank: when a SUSPECT last beat, or 0

    struct phi_probe probe; // what peers' probes write to; does not change
    struct phi_trier trier;
    struct phi_attempt *attempts; // with lives that are over, and something of them mapped

    pthread_t exchanger;          // the first thread that exchanged ...
    bool exchanged, many_threads; // ... if any has; others have as well

    // What the application has waited for last in the exchange that it finishes, or NULL: for peers
    // that ask (PHI_NODE_WAITING).
    const struct phi_pending *waiting;
};

// phi_peers_open opens mailbox and service and publishes the member record. close frees what
// destroy left; nothing may be in flight (see end.h). NULL is fine.
int phi_peers_open(const struct phi_peers_params *params, int64_t deadline,
                   struct phi_peers **peers);
void phi_peers_close(struct phi_peers *peers, int64_t deadline);

// phi_peers_forked: whether this process is a forked child of the one that made the context,
// without a system call.
static inline bool phi_peers_forked(const struct phi_peers *peers)
{
    return *peers->life == 0;
}

// phi_peers_use (takes the lock): whether this rank's buffer of a channel, or of an exchange that
// is not finished, lies in the host allocation at `base`.
bool phi_peers_use(struct phi_peers *peers, const void *base);

// All below: with the lock held.

// phi_peers_get returns the entry of a rank, made at first use; NULL: out of memory.
struct phi_peer *phi_peers_get(struct phi_peers *peers, int rank);

// phi_peers_changed wakes every thread that waits in phi_peers_wait.
void phi_peers_changed(struct phi_peers *peers);

// phi_peers_wait gives up the lock until something may have changed: a message came (and was
// filed), a peer rang, a thread of ours changed something. 0, -ETIMEDOUT, or the mailbox's error.
// Spurious returns are fine. `seen` is peers->changes as it was when the caller last looked.
int phi_peers_wait(struct phi_peers *peers, uint64_t seen, int64_t deadline);

// phi_peers_follow waits for `changed` only: what another thread of this rank does. 0 or
// -ETIMEDOUT.
int phi_peers_follow(struct phi_peers *peers, int64_t deadline);

// phi_peers_awake tells peers that nobody sleeps any more, so that they need not ring.
void phi_peers_awake(struct phi_peers *peers);

// phi_peers_want counts who awaits a message of a rank (delta +1, -1).
void phi_peers_want(struct phi_peers *peers, int rank, int delta);

// phi_peers_wanted: whether the store is to be watched for a rank: something of it is awaited, or
// it has not taken all that we sent it, which a store that restarts would forget.
bool phi_peers_wanted(const struct phi_peers *peers, int rank);

// phi_peers_drain files what the mailbox has already, without waiting.
int phi_peers_drain(struct phi_peers *peers);

// phi_peers_look is phi_peers_drain for what a rank that nobody waits for may have sent; errors
// show later.
void phi_peers_look(struct phi_peers *peers, int rank);

// Keys.
// The role of the peer with an operation in which this rank has `role`, and the other way round.
static inline uint8_t phi_role_opposite(uint8_t role)
{
    if (role == PH_ROLE_BOTH)
        return role;
    return role == PH_ROLE_SENDER ? PH_ROLE_RECEIVER : PH_ROLE_SENDER;
}
// phi_key_get finds or makes a key; NULL: *rc is -ENOSPC or -ENOMEM.
struct phi_key *phi_key_get(struct phi_peer *peer, uint64_t op_id, uint8_t role, int *rc);
struct ph_channel *phi_key_channel(const struct phi_key *key, uint32_t mine, uint32_t theirs);
int phi_key_set_slot(struct phi_key *key, uint32_t slot);
// forget_full: what was told, or is to be told, of exchanges that ended without a slot.
void phi_key_forget_full(struct phi_key *key);
// The buffer with a number, or NULL.
static inline struct phi_own_buffer *phi_key_mine(const struct phi_key *key, uint32_t number)
{
    for (uint32_t i = key->own_count; i-- > 0;)
        if (key->own[i].number == number)
            return &key->own[i];
    return NULL;
}
// Whether it was released: then it may be gone.
static inline bool phi_key_mine_released(const struct phi_key *key, uint32_t number)
{
    const struct phi_own_buffer *own = phi_key_mine(key, number);
    return own == NULL || own->released;
}
struct phi_peer_buffer *phi_key_theirs(const struct phi_key *key, uint32_t number);
// phi_key_tell files a buffer of the peer; a number that is there already keeps what it means.
// -EBADMSG, -ENOMEM.
int phi_key_tell(struct phi_key *key, const struct phi_peer_buffer *buffer);
// phi_key_disown: the key is of no use any more, and keeps no export in use. Of a peer's former
// life also one that a request still holds goes that way, when the request ends.
void phi_key_disown(struct phi_key *key);
// phi_key_free frees a key that no map and no request holds any more.
void phi_key_free(struct phi_key *key);

// phi_export_find returns a live export of this rank by id, or NULL; forget ends what a life of a
// peer was sent; free ends an export that nothing refers to.
struct phi_local_export *phi_export_find(struct phi_peers *peers, uint64_t id);
void phi_exports_forget(struct phi_peers *peers, int rank);
void phi_export_free(struct phi_local_export *e);

// phi_peer_acknowledge tells the peer which of its messages were taken, once there is a segment.
void phi_peer_acknowledge(struct phi_peer *peer);

// phi_peer_ring tells the peer that something in the segment changed. Any lock state.
void phi_peer_ring(struct phi_peer *peer);

// The side headers of this process and of the peer; state is PHI_PEER_READY or later.
struct phi_side *phi_peer_mine(const struct phi_peer *peer);
struct phi_side *phi_peer_theirs(const struct phi_peer *peer);
// phi_peer_told says in the segment, if there is one, that this application knows of the end of the
// pair.
void phi_peer_told(struct phi_peer *peer);
// phi_peer_note_told notes what the peer has said by now. phi_peer_heard: whether what it had
// posted before that is here, or lost, as it is after a second. Without a link it always is.
void phi_peer_note_told(const struct phi_peer *peer, struct phi_net_told *told);
bool phi_peer_heard(const struct phi_peer *peer, const struct phi_net_told *told);

// phi_peer_connected: whether messages reach the peer's service thread (until it ends).
static inline bool phi_peer_connected(const struct phi_peer *peer)
{
    return peer->socket >= 0 || (peer->link != NULL && peer->state >= PHI_PEER_READY);
}

// phi_peer_message fills the header of a request to the peer.
void phi_peer_message(const struct phi_peer *peer, enum phi_node_type type,
                      struct phi_node_message *message);

// phi_peer_call (without the lock) sends a request and waits for the answer; answer->status is
// checked too.
int phi_peer_call(struct phi_peer *peer, struct phi_node_message *request,
                  struct phi_node_message *answer, int *fd, int64_t deadline);

// phi_peer_tell sends a message that is not answered; -EAGAIN: later.
int phi_peer_tell(struct phi_peer *peer, const struct phi_node_message *message);

// phi_peer_failure is the code and sentence for the application where a peer is broken.
int phi_peer_failure(struct phi_peer *peer);

#endif
