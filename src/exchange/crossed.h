// SPDX-License-Identifier: BSD-3-Clause
// Exchanges in crossed order: each rank waits for what the other would do after.
#ifndef PHI_EXCHANGE_CROSSED_H
#define PHI_EXCHANGE_CROSSED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ph_exchange_request;

// phi_request_crossed (with the lock, given up in between) follows which rank waits for which. If
// the chain leads back to this rank, and all its ranks wait at the same time, it writes the chain
// and returns true.
bool phi_request_crossed(struct ph_exchange_request *request, int64_t deadline, char *chain,
                         size_t size);

#endif
