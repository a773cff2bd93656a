// SPDX-License-Identifier: BSD-3-Clause
// What listens for endpoints over TCP.
#ifndef PHI_NET_EARS_H
#define PHI_NET_EARS_H

#include "net/state.h"

// phi_link_deafen: before its endpoints of data are closed, or, where it has ended, all.
// Nobody connects to them any more, and who was about to is cut off.
void phi_link_deafen(struct phi_link *link);

#endif
