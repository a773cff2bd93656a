// SPDX-License-Identifier: BSD-3-Clause
// Regions: memory registered for one link.
#ifndef PHI_NET_REGION_H
#define PHI_NET_REGION_H

#include "net/state.h"

// phi_region_self makes the route to a region of this rank's own. -ENOENT: it is closed.
int phi_region_self(struct phi_link *link, uint32_t id, struct phi_route *route);

// A region is open at a rail's NIC, and at its endpoint where the provider ties it to that.
int phi_region_open(struct phi_net *net, const struct phi_rail *rail,
                    const struct phi_net_memory *memory, uint64_t access, struct fid_mr **mr);
// phi_region_register is phi_link_register_memory, with access of the caller's choice.
int phi_region_register(struct phi_link *link, uint32_t id, const struct phi_net_memory *memory,
                        uint64_t access);
void phi_regions_close(struct phi_link *link);
// phi_keys_unmap unmaps the peer's raw keys. The endpoints that used them are closed.
void phi_keys_unmap(struct phi_link *link);

#endif
