// SPDX-License-Identifier: BSD-3-Clause
// The attaching rank's side of one-sided regions: the bytes of an export, and the question to its
// owner.
#ifndef PHI_SERVICE_ATTACH_H
#define PHI_SERVICE_ATTACH_H

#include <stddef.h>
#include <stdint.h>

#include "service/regions.h"

struct ph_operation;
struct phi_self;

// What the bytes of an export say.
struct phi_region_bytes {
    struct phi_region_key key;
    uint64_t job; // a hash of its name and epoch
    int rank;
    uint64_t incarnation;
    char host[49]; // for sentences
    char socket[108];
};

// phi_attach_encode writes the bytes of a region of this rank (PH_REGION_BYTES). -ENOMEM.
int phi_attach_encode(struct phi_self *self, const struct phi_region_key *key, uint8_t *bytes);

// phi_attach_decode checks bytes, and that this rank can attach what they name: -EBADMSG, -EINVAL,
// PH_EMISMATCH.
int phi_attach_decode(struct phi_self *self, const void *bytes, size_t size,
                      struct phi_region_bytes *out);

// phi_attach_ask (without the lock) asks the owner, and fills op id, peer and role of the operation
// that both ranks exchange now.
int phi_attach_ask(struct phi_self *self, const struct phi_region_bytes *region, int64_t deadline,
                   struct ph_operation *operation);

#endif
