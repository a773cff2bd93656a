// SPDX-License-Identifier: BSD-3-Clause
// A rank tells its status to a process that asks from outside (peerhop-info --job). The answers are
// those to PHI_NODE_ABOUT and PHI_NODE_STATUS.
//
// Ages cost the data path nothing: at its heartbeats the service thread remembers which operation
// stands at the head of each stream, and since when it has seen it there. So an age is at least so
// much, and up to a heartbeat more.
#ifndef PHI_SERVICE_STATUS_H
#define PHI_SERVICE_STATUS_H

#include <assert.h>
#include <stdint.h>

#include <peerhop/context.h>

#include "memory/memory.h"
#include "semaphore/executor.h"

struct phi_self;

enum {
    PHI_STATUS_RANKS = 256, // states of so many ranks are told one by one
    PHI_STATUS_STATES = 7,  // of enum ph_peer_state, which has room in four bits
    PHI_STATUS_JOB = 104,   // a name of 100 bytes, ended by 0
};

// The rank whose socket a process of the same user has found. The process is not told the nonce: a
// process that names the nonce has read the store.
struct phi_about {
    char job[PHI_STATUS_JOB];
    uint64_t epoch, incarnation;
    int32_t rank;
    uint32_t process;
    char device[68]; // its name; "": none, as the rank is on host memory
};
static_assert(sizeof(struct phi_about) <= PHI_EXPORT_MAX, "travels in a message");

// Between two processes of one node. What needs the peers' lock is 0 where `locked` says that it
// could not be had in time.
struct phi_status {
    uint64_t in_flight;    // operations
    uint64_t device_bytes; // of device memory that the library has
    uint64_t oldest_op;    // of the oldest wait: the op id
    int64_t oldest_ms;     // how long at least the oldest operation is in flight; -1: none is
    uint32_t streams;      // with operations in flight
    int32_t
        oldest_peer; // rank that the oldest wait is for; -1: it is no wait, or cannot be read now
    uint32_t oldest_call; // enum phi_call
    uint32_t process;
    uint32_t ranks;
    uint32_t locked;           // 1: the peers' lock was held by somebody all the while
    uint32_t channels, held;   // kept; with handles of the application
    uint32_t exchanges;        // under way
    uint32_t releases, theirs; // under way: of own buffers, of peers' buffers that are used here
    uint32_t peers[PHI_STATUS_STATES];         // how many are in each enum ph_peer_state
    uint8_t peer_states[PHI_STATUS_RANKS / 2]; // by rank; see phi_status_state
    struct ph_counters counters;
};
static_assert(sizeof(struct phi_status) <= PHI_EXPORT_MAX, "travels in a message");

static inline unsigned phi_status_state(const struct phi_status *status, unsigned rank)
{
    return status->peer_states[rank / 2] >> (rank % 2 * 4) & 15u;
}

// The operation at the head of each stream, and since when. The service thread's own.
struct phi_status_ages {
    uint64_t number[PHI_STREAMS_MAX]; // 0: the stream was idle
    int64_t since[PHI_STREAMS_MAX];
};

// phi_status_tick looks at the heads. Takes no lock.
void phi_status_tick(struct phi_self *self, struct phi_status_ages *ages);

// phi_status_fill (takes the peers' lock if it can have it in a few ms) makes the answer.
void phi_status_fill(struct phi_self *self, struct phi_status_ages *ages,
                     struct phi_status *status);

// phi_about_fill makes the other answer. Takes no lock: nothing of it changes.
void phi_about_fill(const struct phi_self *self, struct phi_about *about);

#endif
