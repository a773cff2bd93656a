// SPDX-License-Identifier: BSD-3-Clause
// The owner's side of one-sided regions: what is exported, and the thread that exchanges it with
// ranks that attach.
//
// An attach is an ordinary exchange, of which the owner's half is made here. The rank that attaches
// asks (PHI_NODE_ATTACH), and the service thread answers with an op id, which is the region's
// number. Then both ranks exchange this operation: the one in ph_region_attach, the other on the
// thread of regions. The owner closes its handle at once: the attaching rank's alone holds the
// channel.
#ifndef PHI_SERVICE_REGIONS_H
#define PHI_SERVICE_REGIONS_H

#include <stddef.h>
#include <stdint.h>

struct ph_region;
struct phi_node_message;
struct phi_self;

enum { PHI_REGION_SECRET = 16 };

// What bytes say of a region.
struct phi_region_key {
    uint64_t id;
    uint8_t secret[PHI_REGION_SECRET];
};

// phi_regions_export (without the lock) adds a region, and starts the thread where there is none.
int phi_regions_export(struct phi_self *self, void *buffer, size_t size, uint32_t access,
                       struct phi_region_key *key, struct ph_region **region);

// phi_regions_self: whose region it is.
struct phi_self *phi_regions_self(const struct ph_region *region);

// phi_regions_end (without the lock) ends the export, and frees it.
void phi_regions_end(struct ph_region *region);

// phi_regions_release (without the lock) ends the exports that overlap a range.
void phi_regions_release(struct phi_self *self, const void *buffer, size_t size);

// phi_regions_answer (without the lock) answers PHI_NODE_ATTACH: -ESTALE, -EACCES, -EBUSY, -EINVAL.
int phi_regions_answer(struct phi_self *self, const struct phi_node_message *request,
                       struct phi_node_message *answer);

// phi_regions_stop ends the thread, gives up what it exchanges, and frees all regions.
void phi_regions_stop(struct phi_self *self);

#endif
