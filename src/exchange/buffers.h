// SPDX-License-Identifier: BSD-3-Clause
// Finding the buffer of this rank that a key exchanges, and the export that it lies in.
#ifndef PHI_EXCHANGE_BUFFERS_H
#define PHI_EXCHANGE_BUFFERS_H

#include <stddef.h>

struct ph_exchange_request;
struct ph_operation;
struct phi_self;
struct phi_pending;

// phi_request_bounces makes the bounce buffers that these operations still need, and gives the lock
// up meanwhile: to be called before phi_request_take. -ENOMEM, PH_EDRIVER.
int phi_request_bounces(struct phi_self *self, const struct ph_operation *ops, size_t n);

// phi_request_exports makes the exports that lists of ranges in these operations need, and gives
// the lock up meanwhile: to be called before phi_request_take. -ENOMEM, or why there is none.
int phi_request_exports(struct phi_self *self, const struct ph_operation *ops, size_t n);

// phi_request_renew gives one whose bounce buffer was given back another one, and gives the lock up
// meanwhile. -ENOMEM, PH_EDRIVER, or why it cannot be exported.
int phi_request_renew(struct phi_pending *pending);

// phi_request_take names the keys and own buffers of all operations, and holds the keys: request->n
// says of how many. -EALREADY, -ENOSPC, -ENOMEM, or why a buffer cannot be exported.
int phi_request_take(struct ph_exchange_request *request, const struct ph_operation *ops);

#endif
