// SPDX-License-Identifier: BSD-3-Clause
// The contract of a store backend. Each has one global ops table: phi_store_redis,
// phi_store_callbacks. A store in a directory stands behind the callbacks, too.
#ifndef PHI_STORE_BACKEND_H
#define PHI_STORE_BACKEND_H

#include "base/wake.h"
#include "store/mailbox.h"

struct phi_store; // each backend's own, beginning with struct phi_store_base

struct phi_store_base {
    const struct phi_store_ops *ops;
    const struct phi_mailbox_params *params; // lives as long as the store
};

// One raw delivery. The backend promises only that somebody put it there, whole. The mailbox opens
// the envelope. Where a value is unknown here, it believes that of the envelope.
struct phi_delivery {
    bool member;
    int rank;             // of the sender; -1 unknown (member records only)
    uint64_t incarnation; // of the sender; 0 unknown (member records only)
    uint64_t number;      // as given to put, or the backend's own count, as strictly growing
    uint8_t *bytes;       // malloc
    size_t size;
};

// Calls. Only one of announce, put, refresh and close runs at a time. take runs in one thread at a
// time beside them. consumed may come from any thread at any time. close comes last and alone.
//
// Results of announce, put, take and refresh:
// - -ETIMEDOUT: the deadline passed; what was sent may or may not be there. Reported, except by
//   take with a connection that is up: there nothing came, which is no failure.
// - -ECONNRESET: the connection was lost, so the store may have forgotten everything (a restarted
//   server). The mailbox announces again, and puts again all that is not acknowledged. The next
//   call connects again, until its deadline. Not reported.
// - PH_ESTORE: the store answered with an error or nonsense. Reported, in the store's words.
// - PH_EFENCED: a newer life of this rank writes to the same place. Reported.
struct phi_store_ops {
    size_t size; // of this struct
    const char *name;
    int (*open)(const struct phi_mailbox_params *params, int64_t deadline,
                struct phi_store **store);
    // claim enters the number of this life (params) as that of the latest life of its rank. 0.
    // -EEXIST (not reported): *latest is another life's, and not smaller. It comes after open,
    // before all else.
    int (*claim)(struct phi_store *store, uint64_t *latest, int64_t deadline);
    // announce publishes the member record. It first looks whether the same bytes are there
    // already: that is fine, too.
    int (*announce)(struct phi_store *store, const void *bytes, size_t size, int64_t deadline);
    // publish adds the record of an expulsion to the member records; once more does no harm.
    int (*publish)(struct phi_store *store, const void *bytes, size_t size, int64_t deadline);
    // put stores message `number` (> 0, strictly growing by receiver, gaps allowed). To put the
    // same number with the same bytes again is fine, and delivers at most once more. -EEXIST (not
    // reported): something else has this number or a later one. The caller takes the next number.
    int (*put)(struct phi_store *store, int peer, uint64_t number, const void *bytes, size_t size,
               int64_t deadline);
    // take waits for the next delivery. -EINTR after wake. `wanted` as in phi_mailbox_receive.
    int (*take)(struct phi_store *store, const bool *wanted, int64_t deadline,
                struct phi_delivery *delivery);
    // take listens to the wake. A ring ends it, also one by another process.
    const struct phi_wake *(*wake)(const struct phi_store *store);
    // interruptible: whether a wake ends announce and put, with -EINTR; the wake is not taken. Set
    // between calls. NULL: they cannot be interrupted.
    void (*interruptible)(struct phi_store *store, bool on);
    // doubt: the connection of take may be dead without having said so, and messages may be lost.
    // The next take begins anew, and returns -ECONNRESET as soon as it has. Called in the thread of
    // take.
    void (*doubt)(struct phi_store *store);
    // trouble copies the store's present trouble, in words, and returns the length. 0: none is
    // known. Any thread.
    size_t (*trouble)(struct phi_store *store, char *text, size_t size);
    // local: as of the mailbox. NULL: there is none. open sets it, before other threads look.
    const struct sockaddr *(*local)(const struct phi_store *store);
    // consumed: this delivery need not be kept (deleted with a later command). No I/O.
    void (*consumed)(struct phi_store *store, int rank, uint64_t incarnation, uint64_t number);
    // refresh renews expiries. It returns -ECONNRESET also where it finds that the store has
    // forgotten the member record.
    int (*refresh)(struct phi_store *store, int64_t deadline);
    // close removes keys as phi_mailbox_close says, and frees. done[peer]: the outbound mailbox to
    // that peer may go.
    void (*close)(struct phi_store *store, const bool *done, int64_t deadline);
};

extern const struct phi_store_ops phi_store_redis;
extern const struct phi_store_ops phi_store_callbacks;

#endif
