// SPDX-License-Identifier: BSD-3-Clause
// A link as the net sees it: it polls links and ends them.
#ifndef PHI_NET_LINK_H
#define PHI_NET_LINK_H

#include "net/state.h"

// phi_link_poll takes what has completed. Returns whether something did. It ends a link that has
// failed, as all functions here do: see phi_link_fail.
bool phi_link_poll(struct phi_link *link);
// phi_link_calm is for a link whose descriptor is ready with nothing to take. The descriptor of
// provider "net" of libfabric 1.17 stays ready after the first completion, until somebody waits by
// the library's own call. This function does so for a millisecond. False: the descriptor is not
// ready, or this was done before and nothing came since.
bool phi_link_calm(struct phi_link *link);
// phi_link_shut ends a link: it closes the link's objects of the provider.
// phi_links_free frees all links, also those that nobody has freed.
void phi_link_shut(struct phi_link *link);
void phi_links_free(struct phi_net *net);

#endif
