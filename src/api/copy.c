// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>

#include <peerhop/transfer.h>

#include "api/check.h"
#include "api/ranges.h"
#include "ending/usable.h"
#include "peer/channel.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "transfer/copy.h"
#include "transfer/issue.h"

// One end of a copy between two peers: what is to become of the peer's buffer there.
struct end {
    struct ph_channel *channel;
    bool written; // else read
    size_t offset, size;
};

static int check_role(const struct end *end)
{
    const struct ph_channel *channel = end->channel;
    if (channel->fixed.role & (end->written ? PH_ROLE_SENDER : PH_ROLE_RECEIVER))
        return 0;
    return phi_fail(channel->self->report, -EINVAL,
                    "ph_copy: operation %llu with rank %d: this rank is not its %s",
                    (unsigned long long)channel->op_id, channel->peer->rank,
                    end->written ? "sender" : "receiver");
}

// The own buffer of the channel is no part of it.
static int check_range(const struct end *end)
{
    const struct ph_channel *channel = end->channel;
    if (channel->fixed.unbound)
        return phi_check_bound(channel, "ph_copy");
    if (end->offset <= channel->fixed.theirs.size &&
        end->size <= channel->fixed.theirs.size - end->offset)
        return 0;
    return phi_fail(channel->self->report, -EINVAL,
                    "ph_copy: operation %llu with rank %d: %zu bytes at offset %zu do not fit the "
                    "peer's buffer of %zu bytes",
                    (unsigned long long)channel->op_id, channel->peer->rank, end->size, end->offset,
                    channel->fixed.theirs.size);
}

static int check_reach(const struct end *end)
{
    const struct ph_channel *channel = end->channel;
    const char *to_be = end->written ? "written" : "read";
    if (channel->fixed.stage.bells)
        return phi_fail(channel->self->report, PH_ENOPATH,
                        "ph_copy: operation %llu: rank %d's buffer, which is to be %s, is over the "
                        "net, where only a rank without a device copies for others",
                        (unsigned long long)channel->op_id, channel->peer->rank, to_be);
    if (channel->fixed.stage.is)
        return phi_fail(channel->self->report, PH_ENOPATH,
                        "ph_copy: operation %llu: rank %d's buffer, which is to be %s, is staged "
                        "over the net: it moves only when its owner's stream takes part (ph_send, "
                        "ph_put)",
                        (unsigned long long)channel->op_id, channel->peer->rank, to_be);
    if (channel->fixed.theirs.address == NULL && channel->fixed.route.link == NULL)
        return phi_fail(channel->self->report, PH_ENOPATH,
                        "ph_copy: operation %llu: rank %d's buffer, which is to be %s, is not "
                        "mapped here: %s",
                        (unsigned long long)channel->op_id, channel->peer->rank, to_be,
                        phi_reason_text(channel->fixed.own.reach));
    return 0;
}

static int check_end(const struct end *end)
{
    int rc = phi_channel_check(end->channel);
    if (rc)
        return phi_check_refused(end->channel, rc);
    rc = check_role(end);
    if (rc == 0)
        rc = phi_check_zero_sm(end->channel, false);
    if (rc == 0)
        rc = check_range(end);
    return rc ? rc : check_reach(end);
}

// Each allocation of a peer is mapped once, or has one region. So the same bytes have the same
// address. Cuts *size to what lies there in one piece.
static uint64_t address_of(const struct end *end, uint64_t done, uint64_t *size)
{
    const struct ph_channel *channel = end->channel;
    *size = end->size - done;
    if (channel->fixed.route.link != NULL)
        return channel->fixed.route.remote + end->offset + done;
    return (uintptr_t)phi_channel_at(&channel->fixed.theirs, end->offset + done, size);
}

// Returns whether a piece of one end overlaps any of the other end.
static bool overlaps_any(uint64_t at, uint64_t size, const struct end *end)
{
    uint64_t piece;
    for (uint64_t done = 0; done < end->size; done += piece) {
        const uint64_t other = address_of(end, done, &piece);
        if (at < other + piece && other < at + size)
            return true;
    }
    return false;
}

static bool overlap(const struct end *a, const struct end *b)
{
    const struct phi_route *route = &a->channel->fixed.route,
                           *other_route = &b->channel->fixed.route;
    uint64_t piece;
    if (route->link != other_route->link || route->rails[0].key != other_route->rails[0].key)
        return false;
    for (uint64_t done = 0; done < a->size; done += piece) {
        const uint64_t at = address_of(a, done, &piece);
        if (overlaps_any(at, piece, b))
            return true;
    }
    return false;
}

static int check_both(const struct end *to, const struct end *from)
{
    struct phi_report *report = to->channel->self->report;
    if (to->channel->self != from->channel->self)
        return phi_fail(report, -EINVAL, "ph_copy: the channels are of two contexts");
    int rc = check_end(to);
    if (rc == 0)
        rc = check_end(from);
    if (rc == 0 && overlap(to, from))
        rc = phi_fail(report, -EINVAL,
                      "ph_copy: %zu bytes of rank %d's memory overlap those that they are to be "
                      "copied to",
                      from->size, from->channel->peer->rank);
    return rc;
}

// given: the other channel, or NULL.
static int refuse_missing(const struct ph_channel *given, const char *missing)
{
    if (given == NULL)
        return -EINVAL;
    if (phi_self_forked(given->self))
        return PH_EFORKED;
    return phi_fail(given->self->report, -EINVAL, "ph_copy: %s is NULL", missing);
}

int ph_copy(struct ph_channel *to, size_t to_offset, struct ph_channel *from, size_t from_offset,
            size_t size, void *stream)
{
    PHI_RANGE("ph_copy", size);
    const struct end written = {to, true, to_offset, size}, read = {from, false, from_offset, size};
    const struct phi_third_party copy = {to, from, to_offset, from_offset, size};
    if (to == NULL || from == NULL)
        return refuse_missing(to ? to : from, to ? "from" : "to");
    if (phi_self_forked(to->self))
        return PH_EFORKED;
    int rc = check_both(&written, &read);
    if (rc)
        return rc;
    rc = phi_issue_copy(&copy, stream);
    if (rc == 0)
        return 0;
    // An executor that refuses does not say which of the two was revoked.
    return phi_channel_check(to) ? phi_check_refused(to, rc) : phi_check_refused(from, rc);
}
