// SPDX-License-Identifier: BSD-3-Clause
// The steps of a key's round.
#ifndef PHI_EXCHANGE_STEPS_H
#define PHI_EXCHANGE_STEPS_H

#include <stdbool.h>

struct phi_pending;
struct phi_remote_export;

// phi_pending_carry carries one as far as it goes without waiting, or to where it has published its
// number: then true. *import: an allocation to map first, or NULL.
bool phi_pending_carry(struct phi_pending *pending, struct phi_remote_export **import);

#endif
