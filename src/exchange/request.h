// SPDX-License-Identifier: BSD-3-Clause
// The inside of an exchange request, shared by the files that carry one through.
#ifndef PHI_EXCHANGE_REQUEST_H
#define PHI_EXCHANGE_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ph_channel;
struct phi_key;
struct phi_self;
struct phi_loopbacks;

enum phi_pending_state {
    PHI_PENDING_PEER,    // the peer is not connected yet
    PHI_PENDING_OFFER,   // our descriptor must be sent
    PHI_PENDING_PUBLISH, // our number must be published
    PHI_PENDING_LOOK,    // published: the peer's number is awaited
    PHI_PENDING_ASK,     // an old question to the peer must be asked again
    PHI_PENDING_OPEN, // the round is taken; a miss: descriptor, mapping and confirms are under way
    PHI_PENDING_DONE, // `result` and `channel`
};

struct phi_pending {
    struct phi_key *key;
    uint32_t number; // of our buffer
    uint8_t state;   // enum phi_pending_state
    bool finishing;  // an older round is brought to its end first
    bool concluded;  // the open round is ours and its outcome is `result`, at both ends
    bool wants;      // counted in self->inbox.wanted
    bool blocked;    // until there is room for its key or its channel
    // a part of flags is to be made, or told to the peer, first (lane/flag_memory.h)
    bool tells;
    bool ranges; // the tables of its channel are to be made first (peer/ranges.h)
    bool renews; // its bounce buffer was given back with a channel that has ended: it needs one
    int result;
    struct ph_channel *channel;
};

// Both ranks wait in an operation, in roles that do not match.
struct phi_wrong {
    const struct phi_pending *pending; // or NULL
    uint8_t theirs;                    // the peer's role
    bool sure;                         // no other thread may come with the role that does match
};

struct ph_exchange_request {
    struct phi_self *self;
    struct ph_exchange_request *next; // all of a context
    struct phi_loopbacks *loopbacks;  // what the API has besides (api/loopback.c), or NULL
    size_t n;                         // operations whose keys are held
    size_t capacity;                  // operations of this exchange
    size_t room;                      // operations that fit
    int64_t began;
    int64_t half;   // when to look for a crossed order next
    int64_t roles;  // when to ask the peer about its roles next
    bool stuck;     // another thread could not carry it on
    bool finishing; // its finish carries it
    bool busy;      // a thread works for it, now and then without the lock
    bool abandoned; // its finish has returned: the thread that works for it ends it
    bool crossed;
    struct phi_wrong wrong;
    size_t hits;            // operations that were in the cache
    size_t failed;          // operations that settled with a failure: the first one's
    int failure;            // ... result
    char failure_text[512]; // ... and sentence
    char chain[256];        // who waits for whom
    struct phi_pending pending[];
};

#endif
