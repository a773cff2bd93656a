// SPDX-License-Identifier: BSD-3-Clause
// A round of a key for which there is no channel yet.
#ifndef PHI_EXCHANGE_MISS_H
#define PHI_EXCHANGE_MISS_H

#include <stdbool.h>

struct phi_pending;
struct phi_remote_export;

// phi_pending_miss carries an open round on: true when something changed. *import: an allocation to
// map first, or NULL.
bool phi_pending_miss(struct phi_pending *pending, struct phi_remote_export **import);

#endif
