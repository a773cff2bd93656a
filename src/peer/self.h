// SPDX-License-Identifier: BSD-3-Clause
// The peers of a rank and all that is known of them: the state behind exchange, cache, data path
// and destroy.
//
// Locking. self->lock guards every member here that is not said to be otherwise. It is never held
// while a thread waits, calls another rank, talks to the store or maps memory. A thread that does
// so marks the object busy first (preparing, importing, key->request) and broadcasts `changed`
// afterwards. The members of struct ph_channel that the data path reads do not change after the
// channel was made, except atomics.
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
struct phi_trial;
struct phi_device;
struct phi_executor;
struct phi_local_export;
struct phi_mailbox;
struct phi_memory;
struct phi_net;
struct phi_peer;
struct phi_pending;
struct phi_regions;
struct phi_release;
struct phi_service;
struct phi_table;
struct phi_work;

// The thread that tries for the service thread whether ipc serves; see meeting/trial.h.
struct phi_trier {
    pthread_t thread;
    bool made, busy; // it is to be joined; it is not done
    struct phi_trial *trial;
    size_t size;
    uint8_t record[PHI_EXPORT_MAX]; // of the peer's trial memory
};

// So many threads enqueue groups at once without asking for memory each time.
enum { PHI_SPARE_WORK = 8 };

// The service thread sleeps in epoll; event wakes it.
struct phi_events {
    int epoll, event;
    uint32_t watches; // given so far
};

// The parts of struct phi_self. "Private to FILES" is checked (tests/headers/members.py).

struct phi_changes {
    pthread_cond_t cond; // on CLOCK_MONOTONIC
    uint64_t count;      // of broadcasts, so that no change between a look and a wait is missed
};

// Messages that come by the store.
struct phi_inbox {
    bool receiving;              // a thread is inside phi_mailbox_receive
    bool registered;             // peers ring: this rank's `sleepers` are counted up
    bool is_late;                // `late` is one
    struct phi_message late;     // there was no memory to file it: it is filed before any other
    struct phi_message *records; // by rank: its member record, while it is not in the table
    uint32_t *wanted;            // by rank: threads that await a message of it
    bool *wanted_now;            // the same for phi_mailbox_receive
};

// Peers that are not in the table.
struct phi_lives {
    struct phi_peer *loopback; // has the channels of this rank to itself; NULL: none so far
    struct phi_peer *former;   // lives that are over: channels may still name them
    bool former_due;           // something may be freed of them; see meeting/lives.h
};

// Memory of this rank that peers may map, and what is being given back.
struct phi_own_exports {
    struct phi_local_export **live;
    uint32_t count;
    size_t room;
    uint32_t ids;                   // given so far
    struct phi_local_export *ended; // of no use any more, but peers may map them
    struct phi_release *releases;   // under way
    uint64_t release_ids;           // given so far
    uint64_t offers;                // encoded so far
};

struct phi_exchanges {
    struct ph_exchange_request *first; // unfinished ones
    struct ph_exchange_request *spare; // kept for the next one, or NULL
    struct phi_bounce *bounces;        // for exchanges that are about to begin
    uint64_t calls, passes;            // so far; passes hold the lock throughout
    uint64_t keys_freed;               // how often
    pthread_t thread;                  // the first thread that exchanged ...
    bool any, many_threads;            // ... if any has; others have as well
    // The application waits for this in the exchange that it finishes, or NULL: for peers that ask
    // (PHI_NODE_WAITING).
    const struct phi_pending *waiting;
};

// The state of the rank that the data path uses.
struct phi_issuing {
    // true: streams may store data that a peer reads later, with no fence of system scope behind
    // the store: into host memory that some channel names, or by kernels that have had a device
    // channel. It never becomes false again.
    _Atomic bool unfenced;
    // The count of staged channels with several blocks for a record. Channels of a life that is
    // over end without the lock.
    _Atomic uint32_t wide_channels;
    struct phi_work *_Atomic spare[PHI_SPARE_WORK]; // of groups, for the next ones; or NULL
};

struct phi_own_net {
    struct phi_net *net;  // once a peer needs it; never closed before the end
    struct phi_wake wake; // rung when a message came over it, or a link was lost
    struct phi_way way;   // of this rank's memory over it
    pthread_t opener;     // the thread that opens it, or has
    bool opener_is;       // it has not been joined
    bool opening;         // it is at work, without the lock
    bool failed;          // it could not be opened
    bool told;            // that it serves where ipc was to
    int error;            // why it is opened again; -EAGAIN: its providers were too slow, or a
                          // thread could not be started
};

// How this rank comes to its end.
struct phi_own_end {
    int aborted; // 0 or PH_EABORTED
    int fenced;  // 0 or PH_EFENCED
    char fenced_why[128];
    _Atomic bool fence_told; // the application knows
    _Atomic bool untold;     // calls that wait are to tell it of an end: see ending/untold.h
    bool destroying;         // it ends its own streams' work, to leave: it is told of all ends
    bool leaving;
};

// Notifications. Private to notify.
struct phi_note;
struct phi_note_list {
    struct phi_note *first, *last;
};
struct phi_notes {
    struct phi_note_list given; // not sent: their data is not there; in the order of the calls
    struct phi_note_list come;  // not taken by the application
    struct phi_note *spare;
    int64_t since; // when one was given or sent last
    int event;     // the descriptor of ph_notifications_fd and 1, or 0
    int lost;      // a rank and 1 of whose there was no memory for one, or 0
};

struct phi_serving {
    struct phi_service *service;
    struct phi_regions *regions;   // that are exported; see service/regions.h; NULL: none ever was
    struct phi_events events;      // of the service thread
    _Atomic uint32_t strangers;    // connections of other users that it refused
    int pidfd;                     // of this process, for peers; -1: this kernel gives none
    int64_t ticked;                // when the service thread last beat; 0: nobody is connected
    int64_t awake_since;           // ... and since when it has done so without a long gap
    _Atomic int64_t *silent_since; // by rank: when a SUSPECT last beat, or 0
    struct phi_notes notes;
};

struct phi_trials {
    struct phi_trial_memory memory; // peers map it and write there; does not change
    struct phi_trier trier;
    struct phi_trial *former; // with lives that are over, and something of them mapped
};

struct phi_flag_budget {
    const struct phi_table *sizes; // of PEERHOP_TABLE, or NULL
    uint64_t used;                 // of PEERHOP_DEVICE_BYTES
};

struct phi_self {
    // These do not change. The mailbox has its own locks.
    const volatile uint8_t *life; // 1; a page of zeros in a forked child
    struct phi_report *report;
    struct phi_counters *counters;
    const struct phi_config *config;
    struct phi_memory *memory;
    struct phi_executor *executor;
    struct phi_device *device;
    struct phi_mailbox *mailbox;
    int rank, ranks;
    uint64_t incarnation;
    struct phi_capabilities mine;

    pthread_mutex_t lock;
    struct phi_changes changes; // of anything that a thread may wait for
    struct phi_peer **table;    // by rank; NULL: never named
    struct phi_lives lives;
    struct phi_inbox inbox;
    struct phi_own_exports exports;
    struct phi_exchanges exchanges;
    struct phi_issuing issuing;
    struct phi_own_net net;
    struct phi_own_end end;
    struct phi_serving serving;
    struct phi_trials trials;
    struct phi_flag_budget flags;
};

// phi_self_forked returns whether this process is a forked child of the one that made the context,
// without a system call.
static inline bool phi_self_forked(const struct phi_self *self)
{
    return *self->life == 0;
}

// phi_self_peer (with the lock) returns the entry of a rank; NULL: out of memory. The first use
// makes the entry from the record that was kept for the rank, if any.
struct phi_peer *phi_self_peer(struct phi_self *self, int rank);

// phi_self_keep (with the lock) takes over the member record of a rank that has no entry, and keeps
// it. A store may deliver the records of all ranks, and most ranks are never named.
void phi_self_keep(struct phi_self *self, struct phi_message *record);

// phi_peer_new (with the lock) makes an entry for a rank of which nothing is known; NULL: out of
// memory.
struct phi_peer *phi_peer_new(struct phi_self *self, int rank);

#endif
