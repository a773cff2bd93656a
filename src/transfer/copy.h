// SPDX-License-Identifier: BSD-3-Clause
// A copy between the buffers of two peers.
#ifndef PHI_TRANSFER_COPY_H
#define PHI_TRANSFER_COPY_H

struct phi_third_party;

// phi_issue_copy enqueues a copy between two peers; valid (ranges, roles, reach). Errors: as
// phi_issue.
int phi_issue_copy(const struct phi_third_party *copy, void *stream);

#endif
