// SPDX-License-Identifier: BSD-3-Clause
// Immediate data of the peer's takes effect where it arrives.
#ifndef PHI_NET_ARRIVE_H
#define PHI_NET_ARRIVE_H

#include "net/state.h"

void phi_posts_arrive(struct phi_link *link, uint64_t data); // of an immediate

#endif
