// SPDX-License-Identifier: BSD-3-Clause
// Ports: a link has one for each NIC. Completions are taken here.
#ifndef PHI_NET_PORT_H
#define PHI_NET_PORT_H

#include "net/state.h"

// phi_ports_open returns the rc of libfabric.
// phi_ports_read takes what has completed. Returns whether something did.
// phi_ports_check: an error that was read, or a doubt whose time is over, fails the link.
// phi_ports_calm: see phi_link_calm.
int phi_ports_open(struct phi_link *link);
bool phi_ports_read(struct phi_link *link);
void phi_ports_check(struct phi_link *link);
bool phi_ports_calm(struct phi_link *link);
void phi_ports_close(struct phi_link *link);

#endif
