// SPDX-License-Identifier: BSD-3-Clause
// Giving up an exchange, and asking the peer what became of it.
#ifndef PHI_EXCHANGE_GIVE_UP_H
#define PHI_EXCHANGE_GIVE_UP_H

#include <stdint.h>

struct ph_exchange_request;

// phi_request_give_up (with the lock, given up in between) ends every pending operation; the
// answers of the peers that this needs are awaited until the deadline.
void phi_request_give_up(struct ph_exchange_request *request, int64_t deadline);

// phi_request_ask (with the lock, given up in between) asks the peers what an earlier give-up left
// open.
void phi_request_ask(struct ph_exchange_request *request, int64_t deadline);

#endif
