// SPDX-License-Identifier: BSD-3-Clause
// Tells whether memory of the application is in use.
#ifndef PHI_SERVICE_USE_H
#define PHI_SERVICE_USE_H

#include <stdbool.h>

struct phi_self;

// phi_self_use (takes the lock): whether this rank's buffer of a channel, or of an exchange that
// is not finished, lies in the host allocation at `base`.
bool phi_self_use(struct phi_self *self, const void *base);

#endif
