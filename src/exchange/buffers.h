// SPDX-License-Identifier: BSD-3-Clause
// Finding the buffer of this rank that a key exchanges, and the export that it lies in.
#ifndef PHI_EXCHANGE_BUFFERS_H
#define PHI_EXCHANGE_BUFFERS_H

struct ph_exchange_request;
struct ph_operation;

// phi_request_take names the keys and own buffers of all operations, and holds the keys: request->n
// says of how many. -EALREADY, -ENOSPC, -ENOMEM, or why a buffer cannot be exported.
int phi_request_take(struct ph_exchange_request *request, const struct ph_operation *ops);

#endif
