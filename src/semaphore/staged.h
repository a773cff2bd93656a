// SPDX-License-Identifier: BSD-3-Clause
// Staged steps on a host queue: what the kernel phi_hop_staged does of them on a device
// (base/stage.h).
#ifndef PHI_SEMAPHORE_STAGED_H
#define PHI_SEMAPHORE_STAGED_H

#include <stdbool.h>
#include <stddef.h>

#include "semaphore/executor.h"

// phi_staged_run does as much of a STAGE or UNSTAGE as can be done now, at most one record of data;
// *moved remembers how many records are done, for the next call. true: the step is over, and *moved
// is 0 again. A step whose `broken` is set is over when no record is there. Never blocks.
// An UNSTAGE counts the records that came with the HELP before it, too.
bool phi_staged_run(const struct phi_work *work, size_t *moved);

// phi_staged_help takes a record for a HELP while a STAGE before it cannot go on; false: there is
// none, or the end of its message has come.
bool phi_staged_help(const struct phi_work *work);

#endif
