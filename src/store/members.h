// SPDX-License-Identifier: BSD-3-Clause
// The member records of a job, read from outside: by who is no member and leaves nothing behind.
#ifndef PHI_STORE_MEMBERS_H
#define PHI_STORE_MEMBERS_H

#include "store/mailbox.h"

// phi_members_read calls visit for each record of the job's epoch in params (of which report,
// counters, config, job and epoch are looked at): oldest first over Redis; of a directory in no
// order but that expulsions come last. What is malformed is passed over. A message lives as long as
// the call; one of no bytes says that the life before its incarnation was expelled. Nothing is
// changed. Not over callbacks of a user's. Errors as phi_mailbox_open.
int phi_members_read(const struct phi_mailbox_params *params, int64_t deadline,
                     void (*visit)(void *opaque, const struct phi_message *record), void *opaque);

#endif
