// SPDX-License-Identifier: BSD-3-Clause
// The state that three files share: start.c begins releases, release.c carries them on, and
// release_wait.c looks how far they are.
#ifndef PHI_RELEASE_RELEASE_STATE_H
#define PHI_RELEASE_RELEASE_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "peer/keys.h"
#include "peer/node.h"

struct phi_peer;

// One release at one peer, of one export.
struct phi_release {
    struct phi_release *next;
    uint64_t id;
    struct phi_peer *peer;
    uint32_t export_id;
    uint64_t base;         // of the allocation
    uint64_t offset, size; // in it
    uint32_t number;       // the last of the buffers that it may be about
    bool sent, revoked, drained;
    int64_t sent_at;
    uint64_t mark; // of the link: the posts until then are awaited ...
    bool marked;   // ... if there is one
    struct phi_revoked last;
};

// The scope of a release: a range of addresses, perhaps of one export only.
struct phi_scope {
    const struct phi_local_export *export_;
    uint64_t begin, end;
};

static inline bool phi_scope_touches(const struct phi_scope *scope, uint64_t begin, uint64_t size)
{
    return begin < scope->end && scope->begin < begin + size;
}

static inline bool phi_scope_has_range(const struct phi_scope *scope,
                                       const struct phi_own_range *range)
{
    return (scope->export_ == NULL || scope->export_ == range->export_) &&
           phi_scope_touches(scope, (uintptr_t)range->address, range->size);
}

// A buffer is released as a whole, whichever of its ranges is in the scope.
static inline bool phi_scope_has(const struct phi_scope *scope, struct phi_own_buffer *own)
{
    for (uint32_t i = 0; i < own->range_count; i++)
        if (phi_scope_has_range(scope, phi_own_range(own, i)))
            return true;
    return false;
}

#endif
