// SPDX-License-Identifier: BSD-3-Clause
// The inside of an exchange request, shared by the files that carry one through.
#ifndef PHI_CHANNEL_REQUEST_H
#define PHI_CHANNEL_REQUEST_H

#include "channel/peers.h"

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
    bool wants;      // counted in peers->wanted
    bool blocked;    // until there is room for its key or its channel
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
    struct phi_peers *peers;
    struct ph_exchange_request *next; // all of a context
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

// phi_request_take names the keys and own buffers of all operations, and holds the keys: request->n
// says of how many. -EALREADY, -ENOSPC, -ENOMEM, or why a buffer cannot be exported.
int phi_request_take(struct ph_exchange_request *request, const struct ph_operation *ops);

// phi_pending_settle ends one with a result.
void phi_pending_settle(struct phi_pending *pending, int result, struct ph_channel *channel);

// phi_pending_conclude ends the open round of one: an older round makes way for ours, ours settles.
void phi_pending_conclude(struct phi_pending *pending, int result, struct ph_channel *channel);

// phi_pending_carry carries one as far as it goes without waiting, or to where it has published its
// number: then true. *import: an allocation to map first, or NULL.
bool phi_pending_carry(struct phi_pending *pending, struct phi_remote_export **import);

// phi_pending_waits tells whether one waits for the peer's application to come to its round, which
// has not: whatever thread asks, with the lock.
bool phi_pending_waits(const struct phi_pending *pending);

// phi_pending_again ends the open round of one without a result: it goes on to the next.
void phi_pending_again(struct phi_pending *pending);

// phi_pending_miss carries an open round on: true when something changed. *import: an allocation to
// map first, or NULL.
bool phi_pending_miss(struct phi_pending *pending, struct phi_remote_export **import);

// phi_pending_wants keeps peers->wanted in step.
void phi_pending_wants(struct phi_pending *pending, bool wants);

// phi_request_give_up (with the lock, given up in between) ends every pending operation; the
// answers of the peers that this needs are awaited until the deadline.
void phi_request_give_up(struct ph_exchange_request *request, int64_t deadline);

// phi_request_ask (with the lock, given up in between) asks the peers what an earlier give-up left
// open.
void phi_request_ask(struct ph_exchange_request *request, int64_t deadline);

// phi_request_overdue is -ETIMEDOUT, PH_ECROSSED or PH_EMISMATCH with its sentence: `open`
// operations are left, of which `pending` is the first.
int phi_request_overdue(struct ph_exchange_request *request, const struct phi_pending *pending,
                        size_t open);

// phi_request_mismatch is PH_EMISMATCH with its sentence: request->wrong was not joined, or never will be.
int phi_request_mismatch(const struct ph_exchange_request *request);

// phi_request_tell is the result of an exchange of which some operations failed, where `rc` ended
// the whole (0: nothing did): the first failure's code and sentence, and how many more there were.
int phi_request_tell(struct ph_exchange_request *request, int rc);

// phi_request_roles tells in which roles (1 << role of this rank; 0: none) an operation with a rank is
// in an exchange under way.
uint32_t phi_request_roles(const struct phi_peers *peers, uint64_t rank, uint64_t op);

// phi_request_crossed (with the lock, given up in between) follows who waits for whom; where that
// leads back to this rank, and all of them wait at the same time, it writes the chain and returns
// true.
bool phi_request_crossed(struct ph_exchange_request *request, int64_t deadline, char *chain,
                         size_t size);

#endif
