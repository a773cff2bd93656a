// SPDX-License-Identifier: BSD-3-Clause
// A rank with one peer, made by hand: no threads, no sockets, a store whose messages the target
// gives. What the peer writes is the input's.
#ifndef TESTS_FUZZ_PAIR_H
#define TESTS_FUZZ_PAIR_H

#include "peer/channel.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "fuzz.h"
#include "semaphore/segment.h"

enum { OWN_INCARNATION = 1000, THEIR_INCARNATION = 2000, OWN_BUFFERS = 4, OWN_BUFFER = 1024 };

struct pair {
    struct phi_self self;
    struct phi_peer *peer;
    struct phi_export foreign; // an export of the peer: its record, and the descriptor for it
    uint8_t *buffers;          // OWN_BUFFERS of OWN_BUFFER bytes, side by side
};

// pair_open makes this rank 0 or 1 of two; the peer's record is known. With `ready` its segment is
// mapped as well.
struct pair *pair_open(int rank, bool ready);

// pair_reap is phi_reap.
void pair_reap(struct pair *pair);

// pair_close ends it, and holds that nothing is left open.
void pair_close(struct pair *pair);

// An offer of the peer's, whose export has this id there; then `count` descriptors.
void pair_offer(const struct pair *of, uint32_t id, uint32_t count, struct phi_writer *writer);

struct pair_descriptor {
    uint64_t op_id;
    uint8_t role;
    uint32_t slot, number, id;
    uint64_t offset, size;
    uint8_t protocol;
    uint8_t again; // so many ranges more, which are the same one
};
void pair_describe(const struct pair_descriptor *descriptor, struct phi_writer *writer);

// What the store delivers next, at most once; taken over.
void pair_deliver(struct pair *pair, uint8_t *bytes, size_t size);

// Called where this rank looks into the store, without its lock: the peer may do something. NULL:
// it does nothing.
extern void (*pair_acts)(void);

// Whether streams of this rank touch everything it has; false at first.
extern bool pair_busy;

#endif
