// SPDX-License-Identifier: BSD-3-Clause
// How far a release is: ph_release_test and ph_release_wait. Without the lock.
#ifndef PHI_RELEASE_RELEASE_WAIT_H
#define PHI_RELEASE_RELEASE_WAIT_H

#include <stddef.h>
#include <stdint.h>

#include <peerhop/release.h>

struct phi_self;

// phi_release_test and phi_release_wait: as ph_release_test and ph_release_wait.
int phi_release_test(struct phi_self *self, const void *address, size_t size,
                     enum ph_release_state state);
int phi_release_wait(struct phi_self *self, const void *address, size_t size,
                     enum ph_release_state state, int64_t deadline);

#endif
