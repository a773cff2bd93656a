// SPDX-License-Identifier: BSD-3-Clause
// Ports: what a link has of each NIC, and what completes there.
#ifndef PHI_NET_PORT_H
#define PHI_NET_PORT_H

#include "net/state.h"

// open: rc of libfabric. read takes what has completed; returns whether something did. check: an
// error that was read, or a doubt whose time is over, fails the link. calm: see phi_link_calm.
int phi_ports_open(struct phi_link *link);
bool phi_ports_read(struct phi_link *link);
void phi_ports_check(struct phi_link *link);
bool phi_ports_calm(struct phi_link *link);
void phi_ports_close(struct phi_link *link);

#endif
