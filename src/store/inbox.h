// SPDX-License-Identifier: BSD-3-Clause
// The inbox of one peer has what came and is not handed out yet. It puts messages in order, drops
// those that were seen, and waits for gaps and for the member record. No I/O and no locks: the
// receiving thread owns it.
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

// All zero is an inbox of a peer that is not known yet.
struct phi_inbox {
    uint64_t incarnation;  // of the newest member record, 0: none yet
    uint64_t taken;        // sequence of the last message handed out of this life
    struct phi_held *held; // by incarnation, then sequence
};
void phi_inbox_fini(struct phi_inbox *inbox);

// phi_inbox_member: a member record came. True if it is of a newer life than the known one. Then
// held messages of older ones are gone.
bool phi_inbox_member(struct phi_inbox *inbox, uint64_t incarnation);

// phi_inbox_add takes a message over, and returns 0. A second message with one sequence replaces
// the first if its number is larger (its sender withdrew the first), and the first was not handed
// out.
// Errors; the message stays the caller's:
//   -ESTALE: it is of an older life
//   -EALREADY: it was seen before
//   -ERANGE: its sequence is absurdly far ahead
int phi_inbox_add(struct phi_inbox *inbox, struct phi_held *held);

// phi_inbox_pop returns the next message in order, or NULL. It is the caller's from now on.
struct phi_held *phi_inbox_pop(struct phi_inbox *inbox);

#endif
