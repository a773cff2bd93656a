// SPDX-License-Identifier: BSD-3-Clause
// A link as the net has it: polled, and ended.
#ifndef PHI_NET_LINK_H
#define PHI_NET_LINK_H

#include "net/state.h"

// phi_link_poll takes what has completed; returns whether something did. It ends a link that has
// failed, as all do here: see phi_link_fail.
bool phi_link_poll(struct phi_link *link);
// phi_link_calm is for a link whose descriptor says that there is something when there is not: of
// the provider "net" of libfabric 1.17 it says so after the first completion, until somebody waits
// by the library's own call, which this does for a millisecond. False: not ready, or done before
// and nothing came since.
bool phi_link_calm(struct phi_link *link);
// phi_link_shut ends a link: closes what it has of the provider. phi_links_free: all, also those
// that nobody has freed.
void phi_link_shut(struct phi_link *link);
void phi_links_free(struct phi_net *net);

#endif
