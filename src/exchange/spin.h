// SPDX-License-Identifier: BSD-3-Clause
// A short wait for a word of the segment.
#ifndef PHI_EXCHANGE_SPIN_H
#define PHI_EXCHANGE_SPIN_H

#include <stdbool.h>
#include <stdint.h>

struct phi_pending;

// phi_pending_spin (with the lock, given up meanwhile) spins until an operation may go on, for
// PEERHOP_SPIN_US at most. false: it waits for no word, or the time is over.
bool phi_pending_spin(const struct phi_pending *pending, int64_t end);

#endif
