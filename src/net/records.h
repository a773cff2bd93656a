// SPDX-License-Identifier: BSD-3-Clause
// Staged records over a link, for the files that poll and end a link.
#ifndef PHI_NET_RECORDS_H
#define PHI_NET_RECORDS_H

#include "net/state.h"

// phi_staging_take makes kicked lanes active.
// phi_staging_go moves active lanes on. Returns whether something moved.
// phi_staging_apply takes an immediate that PHI_STAGED marks.
// phi_staging_rest lets others run when nothing has moved for `quiet` ns.
// phi_staging_busy: whether a record that was filled is not yet delivered.
// phi_record_completed: a record was delivered.
// phi_link_staging_shut: the link has ended, or was cut.
#define PHI_STAGED     (5u << 29) // where a post has its parts
#define PHI_STAGED_ALL (7u << 29)
void phi_staging_take(struct phi_net *net);
bool phi_staging_go(struct phi_link *link);
void phi_record_completed(struct phi_link *link, struct phi_net_op *op);
void phi_staging_apply(struct phi_link *link, uint32_t immediate);
void phi_staging_rest(const struct phi_net *net, int64_t quiet);
bool phi_staging_busy(const struct phi_link *link);
void phi_link_staging_shut(struct phi_link *link);
void phi_link_staging_free(struct phi_link *link);

#endif
