// SPDX-License-Identifier: BSD-3-Clause
// Bells: streams ask the net for moves of registered memory.
#ifndef PHI_NET_BELLS_H
#define PHI_NET_BELLS_H

#include "net/lane.h"

// phi_bells_go begins bells that were rung, and ends those that have landed. Returns whether it did
// anything.
bool phi_bells_go(struct phi_lane *lane, uint32_t rung);

// phi_bells_over ends a lane of a link that has ended. A stream that has rung, or rings later, sees
// that.
void phi_bells_over(struct phi_lane *lane);

// phi_bells_end ends all that was rung. Called after the link's endpoints are closed.
void phi_bells_end(struct phi_link *link);

#endif
