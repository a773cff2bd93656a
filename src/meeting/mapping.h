// SPDX-License-Identifier: BSD-3-Clause
// The peer's allocations are mapped. Called with the lock held, given up while it waits.
#ifndef PHI_MEETING_MAPPING_H
#define PHI_MEETING_MAPPING_H

#include <stdint.h>

struct phi_remote_export;

// phi_contact_import tries to map an allocation of the peer: e->tried, with e->import or e->reason,
// but where the deadline cut it short.
void phi_contact_import(struct phi_remote_export *e, int64_t deadline);

#endif
