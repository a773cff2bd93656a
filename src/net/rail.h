// SPDX-License-Identifier: BSD-3-Clause
// The endpoints of a link.
#ifndef PHI_NET_RAIL_H
#define PHI_NET_RAIL_H

#include "net/state.h"

// phi_rail_open returns the rc of libfabric.
// phi_rails_address fills the link's addresses.
// phi_rail_insert takes the peer's address.
// phi_rail_await posts the receive of a greeting.
// phi_rails_greet sends the greetings that are due.
// phi_rail_give_up gives up a rail. false: the link cannot do without it.
int phi_rail_open(struct phi_link *link, struct phi_rail *rail, uint32_t nic);
int phi_rails_address(struct phi_link *link);
int phi_rail_insert(struct phi_link *link, const struct phi_rail *rail, fi_addr_t *to,
                    const uint8_t *address, size_t size);
int phi_rail_await(struct phi_link *link, uint32_t i);
void phi_rails_greet(struct phi_link *link);
void phi_rail_greets(struct phi_link *link,
                     const struct phi_net_op *op); // its greeting was delivered
void phi_rail_greeted(struct phi_link *link, const struct phi_net_op *op); // one has come
void phi_rail_dropped(struct phi_link *link,
                      const struct phi_net_op *op); // what has come is somebody else's
// phi_rail_of returns the rail of a greeting, or of a read that flushes a rail over which nothing
// has come. NULL: the link cannot do without this operation.
struct phi_rail *phi_rail_of(struct phi_link *link, const struct phi_net_op *op);
bool phi_rail_give_up(struct phi_link *link, struct phi_rail *rail, const char *why);
void *phi_rail_desc(const struct phi_rail *rail); // of the link's buffers
ssize_t phi_rail_send(const struct phi_rail *rail, void *bytes, size_t size, struct phi_net_op *op);
void phi_rail_close(struct phi_rail *rail);

#endif
