// SPDX-License-Identifier: BSD-3-Clause
// The member records of a job, for a reader that is no member and leaves nothing behind.
#ifndef PHI_STORE_MEMBERS_H
#define PHI_STORE_MEMBERS_H

#include "store/mailbox.h"

// phi_members_read calls visit for each record of the job's epoch. It uses report, counters,
// config, job and epoch of params. Redis gives the oldest first. A directory has no order, except
// that expulsions come last. Malformed records are skipped. A message lives as long as the call of
// visit; one of no bytes says that the life before its incarnation was expelled. Nothing is changed
// in the store. A user's callbacks cannot be read so. Errors as phi_mailbox_open.
int phi_members_read(const struct phi_mailbox_params *params, int64_t deadline,
                     void (*visit)(void *opaque, const struct phi_message *record), void *opaque);

#endif
