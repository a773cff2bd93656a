// SPDX-License-Identifier: BSD-3-Clause
// The releaser's half of a release: how it begins.
#ifndef PHI_RELEASE_START_H
#define PHI_RELEASE_START_H

#include <stddef.h>

struct phi_allocation;
struct phi_key;
struct phi_own_buffer;
struct phi_self;

// phi_release_buffer (with the lock) marks a buffer of a key, which is not released so far.
void phi_release_buffer(struct phi_key *key, struct phi_own_buffer *own);

// phi_release_start (without the lock) is ph_release_start.
int phi_release_start(struct phi_self *self, const void *address, size_t size);

// phi_release_gone (with the lock) releases what lay at an address range before: memory that was
// freed without a release.
void phi_release_gone(struct phi_self *self, const struct phi_allocation *now);

// phi_release_fail (with the lock) is the failure of an exchange of a buffer that was released
// meanwhile.
int phi_release_fail(const struct phi_key *key);

#endif
