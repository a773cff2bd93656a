// SPDX-License-Identifier: BSD-3-Clause
// A round of a key for which there is no channel yet.
#ifndef PHI_EXCHANGE_MISS_H
#define PHI_EXCHANGE_MISS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct phi_key;
struct phi_pending;
struct phi_remote_export;

// phi_pending_miss carries an open round on: true when something changed. *import: an allocation to
// map first, or NULL.
bool phi_pending_miss(struct phi_pending *pending, struct phi_remote_export **import);

// phi_confirm_awaited: where the peer's confirm of a key's open round will be; NULL: this rank has
// not given its own. phi_confirm_shows: whether it is there.
const _Atomic uint64_t *phi_confirm_awaited(const struct phi_key *key);
bool phi_confirm_shows(uint64_t confirm, uint32_t round);

#endif
