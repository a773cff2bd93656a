// SPDX-License-Identifier: BSD-3-Clause
// What came from one peer and is not handed out yet: puts messages in order, drops what was seen,
// waits for gaps and for the member record. No I/O and no locks: the receiving thread owns it.
#ifndef PHI_STORE_INBOX_H
#define PHI_STORE_INBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct phi_held {
    struct phi_held *next;
    uint64_t incarnation; // of the sender
    uint64_t sequence;
    uint64_t number; // the backend's
    bool withdrawn;  // nothing to hand out, only a sequence to count
    uint8_t *bytes;  // envelope and payload; malloc
    size_t size;
};
void phi_held_free(struct phi_held *held);

// All zero is an inbox of a peer of which nothing is known.
struct phi_inbox {
    uint64_t incarnation;  // of the newest member record, 0: none yet
    uint64_t taken;        // sequence of the last message handed out of this life
    struct phi_held *held; // by incarnation, then sequence
};
void phi_inbox_fini(struct phi_inbox *inbox);

// phi_inbox_member: a member record came. True if it is of a newer life than known: then what was
// held of older ones is gone.
bool phi_inbox_member(struct phi_inbox *inbox, uint64_t incarnation);

// phi_inbox_add takes a message over where it returns 0. -ESTALE: of an older life; -EALREADY: seen
// before; -ERANGE: its sequence is absurdly far ahead. A second message with one sequence replaces
// the first if its number is larger (its sender withdrew the first) and the first was not handed
// out.
int phi_inbox_add(struct phi_inbox *inbox, struct phi_held *held);

// phi_inbox_pop returns the next message in order, the caller's from now on, or NULL.
struct phi_held *phi_inbox_pop(struct phi_inbox *inbox);

#endif
