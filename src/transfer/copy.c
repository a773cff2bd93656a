// SPDX-License-Identifier: BSD-3-Clause
// Copies between the buffers of two peers, by this rank alone: one operation that touches two
// channels. It holds both until it is done, so that neither buffer is given back before.
#include "transfer/copy.h"

#include "peer/channel.h"
#include "peer/self.h"
#include "transfer/issue.h"

// Sets the place of the bytes: an address where the buffer is mapped, else an offset over the net.
// Cuts *size to what lies there in one piece.
static void set_place(struct phi_work *work, const struct ph_channel *channel, size_t offset,
                      void **place, uint64_t *size)
{
    if (channel->fixed.route.link == NULL) {
        *place = phi_channel_at(&channel->fixed.theirs, offset, size);
    } else {
        work->remote.route = &channel->fixed.route;
        work->remote.offset = offset;
    }
}

// Adds the two items of the piece that begins `done` bytes behind the copy's begin. Returns its
// size.
static uint64_t add_piece(const struct phi_third_party *copy, uint64_t done, struct phi_work *work)
{
    struct ph_channel *to = copy->to, *from = copy->from;
    const bool net = to->fixed.route.link != NULL || from->fixed.route.link != NULL;
    uint64_t size = copy->size - done;
    void *source = NULL;
    work[0] = phi_channel_work(to, net ? PHI_STEP_RELAY : PHI_STEP_COPY, PHI_CALL_COPY);
    work[1] = phi_channel_work(from, PHI_STEP_HOLD, PHI_CALL_COPY);
    set_place(&work[0], to, copy->to_offset + done, &work[0].span.destination, &size);
    set_place(&work[1], from, copy->from_offset + done, &source, &size);
    // A copy knows both addresses; a relay looks at each end's own item.
    work[0].span.source = net ? NULL : source;
    work[1].span.source = source;
    work[0].span.size = work[1].span.size = size;
    work[0].span.host_destination = to->fixed.theirs.kind == PHI_KIND_HOST;
    work[0].span.host_source = from->fixed.theirs.kind == PHI_KIND_HOST;
    work[0].engine = to->fixed.own.zero_sm || from->fixed.own.zero_sm;
    return size;
}

// An operation of the executor has so many items of a copy that crosses ranges, two for a piece.
#define ITEMS_MAX ((size_t)16)

int phi_issue_copy(const struct phi_third_party *copy, void *stream)
{
    struct phi_executor *executor = copy->to->self->executor;
    struct phi_work work[ITEMS_MAX];
    uint64_t done = 0;
    bool partial = false, begun = false;
    int rc = 0;
    do {
        size_t n = 0;
        while (n < ITEMS_MAX && (done < copy->size || n == 0)) {
            done += add_piece(copy, done, &work[n]);
            n += 2;
        }
        work[0].continues = begun;
        rc = executor->ops->issue(executor, stream, work, n, &partial);
        begun = begun || partial || rc == 0;
    } while (rc == 0 && done < copy->size);
    if (rc && begun) {
        phi_channel_break(copy->to);
        phi_channel_break(copy->from);
    }
    if (rc == 0)
        phi_channel_reads(copy->from);
    return rc;
}
