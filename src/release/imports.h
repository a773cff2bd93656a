// SPDX-License-Identifier: BSD-3-Clause
// The imports of a peer's exports: which may be closed, and closing them. With the lock held.
#ifndef PHI_RELEASE_IMPORTS_H
#define PHI_RELEASE_IMPORTS_H

#include <stdbool.h>
#include <stdint.h>

struct phi_peer;
struct phi_remote_export;

// A look for imports that may be closed: which ones it takes in, and which ones it leaves.
struct phi_imports_look {
    bool idle;     // also those that nobody wants: of a rank that leaves, all
    bool blocking; // also those whose closing can block
    bool left;     // there are others, that somebody uses
    bool later;    // ... that may be closed, and can block
};

// phi_imports_find: the peer's export of that id, or NULL.
struct phi_remote_export *phi_imports_find(struct phi_peer *peer, uint32_t id);

// phi_imports_tell tells the peer that nothing of an export of its is mapped here. -EAGAIN: later.
int phi_imports_tell(struct phi_peer *peer, uint32_t export_id);

// phi_imports_closable returns an import that may be closed, or NULL, and drops the exports that
// were revoked and are not imported. phi_imports_close gives up the lock while it unmaps, or while
// it hands that over to the device's closer.
struct phi_remote_export *phi_imports_closable(struct phi_peer *peer,
                                               struct phi_imports_look *look);
void phi_imports_close(struct phi_remote_export *e);

// phi_imports_tick unmaps one import of the peer at most, unless *closed, and sets that. Returns in
// how many ms to call it again, -1: when something happens.
int phi_imports_tick(struct phi_peer *peer, bool *closed);

#endif
