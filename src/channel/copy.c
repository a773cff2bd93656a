// SPDX-License-Identifier: BSD-3-Clause
// Copies between the buffers of two peers, by this rank alone: one operation that touches two
// channels. It holds both until it is done, so that neither buffer is given back before.
#include "channel/issue.h"

int phi_issue_copy(const struct phi_third_party *copy, void *stream)
{
    struct ph_channel *to = copy->to, *from = copy->from;
    struct phi_executor *executor = to->peers->executor;
    struct phi_work work[2] = {
        phi_channel_work(to, PHI_STEP_COPY, PHI_CALL_COPY),
        phi_channel_work(from, PHI_STEP_HOLD, PHI_CALL_COPY),
    };
    bool partial = false;
    work[0].destination = to->remote + copy->to_offset;
    work[0].source = from->remote + copy->from_offset;
    work[0].size = copy->size;
    work[0].host_destination = to->remote_kind == PHI_KIND_HOST;
    work[0].host_source = from->remote_kind == PHI_KIND_HOST;
    int rc = executor->ops->issue(executor, stream, work, 2, &partial);
    if (rc && partial) {
        phi_channel_break(to);
        phi_channel_break(from);
    }
    return rc;
}
