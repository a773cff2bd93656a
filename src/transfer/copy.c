// SPDX-License-Identifier: BSD-3-Clause
// Copies between the buffers of two peers, by this rank alone: one operation that touches two
// channels. It holds both until it is done, so that neither buffer is given back before.
#include "transfer/copy.h"

#include "peer/channel.h"
#include "peer/self.h"
#include "transfer/issue.h"

// Sets the place of the bytes: an address where the buffer is mapped, else an offset over the net.
static void set_place(struct phi_work *work, const struct ph_channel *channel, size_t offset,
                      void **place)
{
    if (channel->fixed.route.link == NULL) {
        *place = channel->fixed.theirs.address + offset;
    } else {
        work->remote.route = &channel->fixed.route;
        work->remote.offset = offset;
    }
}

int phi_issue_copy(const struct phi_third_party *copy, void *stream)
{
    struct ph_channel *to = copy->to, *from = copy->from;
    struct phi_executor *executor = to->self->executor;
    const bool net = to->fixed.route.link != NULL || from->fixed.route.link != NULL;
    struct phi_work work[2] = {
        phi_channel_work(to, net ? PHI_STEP_RELAY : PHI_STEP_COPY, PHI_CALL_COPY),
        phi_channel_work(from, PHI_STEP_HOLD, PHI_CALL_COPY),
    };
    void *source = NULL;
    bool partial = false;
    set_place(&work[0], to, copy->to_offset, &work[0].span.destination);
    set_place(&work[1], from, copy->from_offset, &source);
    // A copy knows both addresses; a relay looks at each end's own item.
    work[0].span.source = net ? NULL : source;
    work[1].span.source = source;
    work[0].span.size = work[1].span.size = copy->size;
    work[0].span.host_destination = to->fixed.theirs.kind == PHI_KIND_HOST;
    work[0].span.host_source = from->fixed.theirs.kind == PHI_KIND_HOST;
    work[0].engine = to->fixed.own.zero_sm || from->fixed.own.zero_sm;
    int rc = executor->ops->issue(executor, stream, work, 2, &partial);
    if (rc && partial) {
        phi_channel_break(to);
        phi_channel_break(from);
    }
    if (rc == 0)
        phi_channel_reads(from);
    return rc;
}
