// SPDX-License-Identifier: BSD-3-Clause
// The contract of a store backend. One file each with one global symbol: phi_store_redis, phi_store_callbacks.
#ifndef PHI_STORE_BACKEND_H
#define PHI_STORE_BACKEND_H

#include "store/mailbox.h"

struct phi_store; // each backend's own, beginning with struct phi_store_base

struct phi_store_base {
    const struct phi_store_ops *ops;
    const struct phi_mailbox_params *params; // lives as long as the store
};

// One raw delivery. The backend promises only: what it delivers was put there by `put`/`announce`, whole.
struct phi_delivery {
    bool member;
    int rank;
    uint64_t incarnation; // of the sender
    uint64_t number;      // as given to put
    uint8_t *bytes;       // malloc
    size_t size;
};

// Any op may fail with -ETIMEDOUT (deadline), -ECONNRESET (the connection was lost and is made anew by the next call;
// what was sent may or may not be there), PH_ESTORE (the store answered with an error: reported by the backend).
struct phi_store_ops {
    size_t size; // of this struct
    const char *name;
    int (*open)(const struct phi_mailbox_params *params, int64_t deadline, struct phi_store **store);
    int (*announce)(struct phi_store *store, const void *bytes, size_t size, int64_t deadline);
    // put stores message `number` (> 0, strictly growing by sender, receiver and incarnation, gaps allowed).
    // Putting the same number with the same bytes again is fine and delivers at most once more.
    int (*put)(struct phi_store *store, int peer, uint64_t number, const void *bytes, size_t size,
               int64_t deadline);
    // take waits for the next delivery. -EINTR after wake. `wanted` as in phi_mailbox_receive.
    int (*take)(struct phi_store *store, const bool *wanted, int64_t deadline,
                struct phi_delivery *delivery);
    void (*wake)(struct phi_store *store);
    // consumed: deliveries of this sender up to number need not be kept (deleted with a later command).
    void (*consumed)(struct phi_store *store, int rank, uint64_t incarnation, uint64_t number);
    // lost is true once after the connection was made anew: the mailbox then puts again what is not acknowledged.
    bool (*lost)(struct phi_store *store);
    int (*refresh)(struct phi_store *store, int64_t deadline);
    // close removes keys as phi_mailbox_close says; done[peer] is true where the outbound mailbox may go.
    void (*close)(struct phi_store *store, const bool *done, int64_t deadline);
};

extern const struct phi_store_ops phi_store_redis;
extern const struct phi_store_ops phi_store_callbacks;

#endif
