// SPDX-License-Identifier: BSD-3-Clause
// The outbox of one peer has what was sent and is not known to have been taken. No I/O. The holder
// of the mailbox's gate owns it; any thread may raise `acknowledged`.
#ifndef PHI_STORE_OUTBOX_H
#define PHI_STORE_OUTBOX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct phi_kept {
    struct phi_kept *next;
    uint64_t sequence;
    uint64_t number;
    bool stored;    // the store said so, and is not known to have forgotten it
    uint8_t *bytes; // envelope and payload; malloc
    size_t size;
};

// All zero is an empty outbox.
struct phi_outbox {
    uint64_t incarnation;   // the peer's life that the sequences count for
    uint64_t sequence;      // last given
    _Atomic uint64_t given; // the same, for a look from outside
    uint64_t number;        // last given; goes on over lives of the peer
    struct phi_kept *first, *last;
    _Atomic uint64_t acknowledged;
};
void phi_outbox_fini(struct phi_outbox *outbox);

// phi_outbox_address turns to a new life of the peer, and forgets messages for the old one. -ESTALE
// for an older life.
int phi_outbox_address(struct phi_outbox *outbox, uint64_t incarnation);

// phi_outbox_append keeps bytes (malloc, the outbox's on success) under the next sequence,
// outbox->sequence + 1, which the caller has encoded. NULL: no memory.
struct phi_kept *phi_outbox_append(struct phi_outbox *outbox, uint8_t *bytes, size_t size);

void phi_outbox_acknowledged(struct phi_outbox *outbox, uint64_t sequence); // any thread
void phi_outbox_free_acknowledged(struct phi_outbox *outbox);
void phi_outbox_forgotten(struct phi_outbox *outbox); // nothing is stored any more

#endif
