// SPDX-License-Identifier: BSD-3-Clause
// The two halves of a mailbox share this: send.c, which also opens it, and receive.c.
#ifndef PHI_STORE_MAILBOX_STATE_H
#define PHI_STORE_MAILBOX_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/backend.h"
#include "store/gate.h"
#include "store/inbox.h"
#include "store/mailbox.h"
#include "store/outbox.h"

#define PHI_JOB_MAX      100  // bytes of a job's name
#define PHI_RESEND_FIRST 1000 // ms that a receiver gives its first attempt to put again

struct phi_mailbox {
    struct phi_mailbox_params params; // job and callbacks are copies
    struct ph_store_callbacks callbacks;
    const struct phi_store_ops *ops;
    struct phi_store *store;

    struct phi_gate gate; // guards sending: the outboxes, the record, the commands of the store
    struct phi_outbox *outboxes;
    uint8_t *record;
    size_t record_size;
    bool record_stored;

    atomic_bool unstored;  // something kept is not in the store
    atomic_bool forgotten; // the store may have lost everything: no outbox knows it yet
    atomic_bool fenced;
    atomic_bool doubted; // see phi_mailbox_doubt

    // the receiver's
    struct phi_inbox *inboxes;
    struct phi_held *spare; // for the next message: what the store has given it does not give again
    int ready;              // the only inbox that may have a message to hand out
    int64_t resend_at;      // not before
    int64_t resend_ms;      // time for the next attempt
    int resend_woken;       // attempts in a row that a wake ended
    char job[PHI_JOB_MAX + 1];
};

// phi_mailbox_forget: the store may have lost everything.
void phi_mailbox_forget(struct phi_mailbox *mailbox);

// Inside the gate.
// phi_mailbox_flush brings the store up to date, through lost connections, until the deadline.
// phi_mailbox_free_acknowledged frees what was acknowledged.
int phi_mailbox_flush(struct phi_mailbox *mailbox, int64_t deadline);
void phi_mailbox_free_acknowledged(struct phi_mailbox *mailbox);

// phi_mailbox_fenced reports PH_EFENCED, and returns it.
int phi_mailbox_fenced(struct phi_mailbox *mailbox);

#endif
