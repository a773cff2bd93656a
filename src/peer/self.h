// SPDX-License-Identifier: BSD-3-Clause
// The peers of a rank and all that is known of them: the state behind exchange, cache, data path
// and destroy.
//
// Locking. self->lock guards every member here that is not said to be otherwise. It is never held
// while a thread waits, calls another rank, talks to the store or maps memory: whoever does that
// marks the object busy first (preparing, importing, key->request) and broadcasts `changed`
// afterwards. What the data path reads (struct ph_channel) does not change after the channel was
// made, except atomics.
#ifndef PHI_PEER_SELF_H
#define PHI_PEER_SELF_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/wake.h"
#include "memory/memory.h"
#include "store/mailbox.h"
#include "topology/capabilities.h"
#include "transport/transport.h"
#include "transport/way.h"

struct ph_exchange_request;
struct phi_attempt;
struct phi_device;
struct phi_executor;
struct phi_local_export;
struct phi_mailbox;
struct phi_memory;
struct phi_net;
struct phi_peer;
struct phi_pending;
struct phi_release;
struct phi_service;
struct phi_table;
struct phi_work;

// The thread that tries for the service thread whether ipc serves; see meeting/attempt.h.
struct phi_trier {
    pthread_t thread;
    bool made, busy; // it is to be joined; it is not done
    struct phi_attempt *attempt;
    size_t size;
    uint8_t record[PHI_EXPORT_MAX]; // of the peer's probe allocation
};

// So many threads enqueue groups at once without asking for memory each time.
enum { PHI_SPARE_WORK = 8 };

// What the service thread sleeps in, and what wakes it.
struct phi_events {
    int epoll, event;
    uint32_t watches; // given so far
};

struct phi_self {
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
    struct phi_events events;   // of the service thread
    _Atomic uint32_t strangers; // connections of other users that the service thread refused
    int pidfd;                  // of this process, for peers; -1: this kernel gives none
    struct phi_net *net;        // once a peer needs it; never closed before the end
    struct phi_wake net_wake;   // rung when a message came over it, or a link was lost
    struct phi_way way;         // of this rank's memory over it
    pthread_t net_opener;       // the thread that opens it, or has
    bool net_opener_is;         // it has not been joined
    bool net_opening;           // it is at work, without the lock
    bool net_failed;            // it could not be opened
    int net_error;              // why it is opened again; -EAGAIN: its providers were too slow, or
                                // a thread could not be started
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
    struct phi_peer *loopback;             // of the channels of this rank to itself; NULL: none so far
    struct phi_peer *former;           // lives that are over: channels may still name them
    bool former_due;                   // something may be freed of them; see meeting/lives.h
    struct phi_local_export **exports; // live ones
    uint32_t exports_count;
    size_t exports_room;
    uint32_t export_ids;            // given so far
    struct phi_local_export *ended; // of no use any more, but peers may map them
    struct phi_bounce *bounces;     // for exchanges that are about to begin
    uint64_t slot_bytes;            // of PEERHOP_DEVICE_BYTES that is used
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
    _Atomic bool untold;     // calls that wait are to tell it of an end: see ending/untold.h
    bool destroying;         // it ends its own streams' work, to leave: it is told of all ends
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

// phi_self_forked: whether this process is a forked child of the one that made the context,
// without a system call.
static inline bool phi_self_forked(const struct phi_self *self)
{
    return *self->life == 0;
}

// phi_self_peer (with the lock) returns the entry of a rank, made at first use; NULL: out of
// memory.
struct phi_peer *phi_self_peer(struct phi_self *self, int rank);

// phi_peer_new (with the lock) makes an entry for a rank of which nothing is known; NULL: out of
// memory.
struct phi_peer *phi_peer_new(struct phi_self *self, int rank);

#endif
