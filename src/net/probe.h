// SPDX-License-Identifier: BSD-3-Clause
// The probe of a domain.
#ifndef PHI_NET_PROBE_H
#define PHI_NET_PROBE_H

#include "net/net.h"

// phi_net_probe: whether the domain does what it promises: writes, reads, immediate data, messages.
// It takes the lock.
//   ETIMEDOUT: not within so many ms. -EIO: it does not.
int phi_net_probe(struct phi_net *net, int64_t ms, char *why, size_t size);

#endif
