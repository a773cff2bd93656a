// SPDX-License-Identifier: BSD-3-Clause
// Ports: what a link has of each NIC, and what completes there.
#ifndef PHI_NET_PORT_H
#define PHI_NET_PORT_H

#include "net/state.h"

// open: rc of libfabric. read takes what has completed; returns whether something
// did. check: an error that was read ends the link.
int phi_ports_open(struct phi_link *link);
bool phi_ports_read(struct phi_link *link);
void phi_ports_check(struct phi_link *link);
void phi_ports_close(struct phi_link *link);
// phi_link_calm is for a link whose descriptor says that there is something when there is not: of
// the provider "net" of libfabric 1.17 it says so after the first completion, until somebody waits
// by the library's own call, which this does for a millisecond. False: not ready, or done before
// and nothing came since.
bool phi_link_calm(struct phi_link *link);
// phi_link_check: the time of a doubt may be over.
void phi_link_check(struct phi_link *link);

#endif
