// SPDX-License-Identifier: BSD-3-Clause
// The ears of endpoints over TCP: the sockets that listen for them.
#ifndef PHI_NET_EARS_H
#define PHI_NET_EARS_H

#include "net/state.h"

// phi_link_deafen is called before the link's endpoints of data are closed, or, when the link has
// ended, all of them. Nobody connects to them any more. A peer that was about to connect is cut
// off.
void phi_link_deafen(struct phi_link *link);

#endif
