// SPDX-License-Identifier: BSD-3-Clause
// Progress of a net.
#ifndef PHI_NET_PROGRESS_H
#define PHI_NET_PROGRESS_H

#include "net/state.h"

// phi_proxy_start starts the proxy, on the CPUs near the net's NIC where these are known.
int phi_proxy_start(struct phi_net *net);

#endif
