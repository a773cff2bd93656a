// SPDX-License-Identifier: BSD-3-Clause
// What streams ask of the net for registered memory.
#ifndef PHI_NET_BELLS_H
#define PHI_NET_BELLS_H

#include "net/lane.h"

// phi_bells_go begins what was rung, and ends what has landed. Returns whether it did anything.
bool phi_bells_go(struct phi_lane *lane, uint32_t rung);

// phi_bells_over ends a lane of a link that has ended: who has rung, or rings later, sees it.
void phi_bells_over(struct phi_lane *lane);

// phi_bells_end, after the link's endpoints are closed: what was rung is over.
void phi_bells_end(struct phi_link *link);

#endif
