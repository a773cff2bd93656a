// SPDX-License-Identifier: BSD-3-Clause
// Moves: the data path.
#ifndef PHI_NET_MOVE_H
#define PHI_NET_MOVE_H

#include "net/state.h"

void phi_part_completed(struct phi_link *link, struct phi_net_op *op);
void phi_moves_go(struct phi_link *link); // posts the parts that are due
void phi_moves_fail(struct phi_link *link);
// phi_move_post is phi_move_start, of a link that carries data.
void phi_move_post(struct phi_link *link, struct phi_move *move);

#endif
