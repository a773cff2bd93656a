// SPDX-License-Identifier: BSD-3-Clause
// Sentences for exchanges that failed.
#ifndef PHI_EXCHANGE_OUTCOME_H
#define PHI_EXCHANGE_OUTCOME_H

#include <stddef.h>

struct ph_exchange_request;
struct phi_pending;

// phi_request_overdue is -ETIMEDOUT, PH_ECROSSED or PH_EMISMATCH with its sentence: `open`
// operations are left, of which `pending` is the first.
int phi_request_overdue(struct ph_exchange_request *request, const struct phi_pending *pending,
                        size_t open);

// phi_request_mismatch is PH_EMISMATCH with its sentence: request->wrong was not joined, or never
// will be.
int phi_request_mismatch(const struct ph_exchange_request *request);

// phi_request_tell is the result of an exchange of which some operations failed, where `rc` ended
// the whole (0: nothing did): the first failure's code and sentence, and how many more there were.
int phi_request_tell(struct ph_exchange_request *request, int rc);

#endif
