// SPDX-License-Identifier: BSD-3-Clause
// A link as the net has it: polled, and ended.
#ifndef PHI_NET_LINK_H
#define PHI_NET_LINK_H

#include "net/state.h"

// phi_link_poll takes what has completed; returns whether something did.
bool phi_link_poll(struct phi_link *link);
// phi_link_shut ends a link: closes what it has of the provider. phi_links_free: all, also those
// that nobody has freed.
void phi_link_shut(struct phi_link *link);
void phi_links_free(struct phi_net *net);

#endif
