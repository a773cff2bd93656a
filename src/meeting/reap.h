// SPDX-License-Identifier: BSD-3-Clause
// Unmapping all that may be unmapped.
#ifndef PHI_MEETING_REAP_H
#define PHI_MEETING_REAP_H

#include <stdbool.h>

struct phi_self;

// phi_reap (without the lock) unmaps all that may be unmapped; what can block, with `blocking`
// only, by the device's closer, else it returns whether there is some. Of a rank that leaves that
// is every import.
bool phi_reap(struct phi_self *self, bool blocking);

#endif
