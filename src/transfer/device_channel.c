// SPDX-License-Identifier: BSD-3-Clause
#include "transfer/device_channel.h"

#include <assert.h>
#include <errno.h>

#include "lane/flags.h"
#include "peer/channel.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/wake.h"
#include "semaphore/flags.h"
#include "transfer/issue.h"

// The types that device.cuh calls its own describe the same memory as those of our kernels.
static_assert(sizeof(struct ph_device_lane) == sizeof(struct phi_flag_lane), "one lane");
static_assert(offsetof(struct ph_device_lane, credit) == offsetof(struct phi_flag_lane, credit),
              "one lane");
static_assert(offsetof(struct ph_device_lane, taken) == offsetof(struct phi_flag_lane, taken),
              "one lane");
static_assert(offsetof(struct ph_device_lane, full) == offsetof(struct phi_flag_lane, full),
              "one lane");
static_assert(offsetof(struct ph_device_lane, moved) == offsetof(struct phi_flag_lane, moved),
              "one lane");
static_assert(offsetof(struct ph_device_lane, go) == offsetof(struct phi_flag_lane, go),
              "one lane");
static_assert(offsetof(struct ph_device_lane, allowed) == offsetof(struct phi_flag_lane, allowed),
              "one lane");
// NOLINTBEGIN(misc-redundant-expression): they are to be the same
static_assert(PH_DEVICE_LL_MAX == PHI_LL_PIECE && PH_DEVICE_LL_SLOT == PHI_LL_SLOT &&
                  PH_DEVICE_LL_SLOTS == PHI_LL_SLOTS && PH_DEVICE_LL_REFRESH == PHI_LL_REFRESH &&
                  PH_DEVICE_BLOCKS == PHI_MOVE_BLOCKS,
              "one lane");
// NOLINTEND(misc-redundant-expression)
static_assert(PH_DEVICE_NOTED == (unsigned)PHI_BIT_NOTED &&
                  PH_DEVICE_FREE == (unsigned)PHI_BIT_FREE,
              "one word");
static_assert(PH_DEVICE_INVALID == -EINVAL && PH_DEVICE_TIMEDOUT == -ETIMEDOUT &&
                  (int)PH_DEVICE_NOPATH == (int)PH_ENOPATH &&
                  (int)PH_DEVICE_ENDED == (int)PH_EBROKEN,
              "one list of results");

static int refuse(const struct ph_channel *channel, int rc, const char *why)
{
    return phi_fail(channel->self->report, rc, "operation %llu with rank %d: no device channel: %s",
                    (unsigned long long)channel->op_id, channel->peer->rank, why);
}

// Refuses a channel that a kernel could not work with, or that is closed.
static int check(struct ph_channel *channel)
{
    if (channel->self->device == NULL)
        return refuse(channel, -ENOTSUP, "this is a host context");
    if (channel->fixed.unbound)
        return refuse(channel, -ENOTSUP, "it was exchanged without a buffer");
    if (channel->fixed.ranged)
        return refuse(channel, -ENOTSUP, "an end of it has several ranges");
    if (channel->fixed.by_net)
        return refuse(channel, PH_ENOPATH, "its data goes over the net");
    if (channel->fixed.own.kind == PHI_KIND_HOST || channel->fixed.theirs.kind == PHI_KIND_HOST)
        return refuse(channel, PH_EKIND, "a buffer of it is host memory");
    if (channel->self->end.leaving || channel->kept.retired || channel->kept.handles == 0)
        return refuse(channel, -EINVAL, "the channel or its context is closed");
    return 0;
}

static struct ph_device_way way_of(const struct ph_channel *channel, bool outgoing)
{
    const uint64_t line =
        outgoing ? channel->fixed.own.line_device : channel->fixed.theirs.line_device;
    const size_t lane = phi_flags_lane_of(channel, outgoing, PHI_WORD_NOTE);
    struct ph_device_way way = {.word = line + offsetof(struct phi_line, word) +
                                        PHI_WORD_NOTE * sizeof(uint32_t)};
    if (channel->fixed.own.flags.lanes == 0)
        return way;
    way.own = channel->fixed.own.flags.lanes + lane;
    way.peer = channel->fixed.theirs.flags.lanes + lane;
    way.slots =
        (outgoing ? &channel->fixed.theirs.flags : &channel->fixed.own.flags)->slots[PHI_WORD_NOTE];
    way.ll_max = phi_flags_signal_lines(channel, outgoing);
    way.sm_max = channel->fixed.table[outgoing].sm_max;
    return way;
}

static struct ph_device_channel describe(const struct ph_channel *channel)
{
    struct ph_device_channel device = {
        .local = (uintptr_t)channel->fixed.own.address,
        .remote = (uintptr_t)channel->fixed.theirs.address,
        .local_size = channel->fixed.own.size,
        .remote_size = channel->fixed.theirs.address != NULL ? channel->fixed.theirs.size : 0,
        .timeout_ns = (uint64_t)channel->self->config->deadline_ms * 1000000,
        .over = channel->fixed.own.line_device + offsetof(struct phi_line, flags_over),
    };
    if (channel->fixed.role & PH_ROLE_SENDER)
        device.out = way_of(channel, true);
    if (channel->fixed.role & PH_ROLE_RECEIVER)
        device.in = way_of(channel, false);
    return device;
}

// Notes the uses that the channel will have: kernels do not note their own.
static void note(struct ph_channel *channel)
{
    for (int outgoing = 0; outgoing < 2; outgoing++)
        if (channel->fixed.role & (outgoing ? PH_ROLE_SENDER : PH_ROLE_RECEIVER))
            atomic_fetch_or(&channel->live.awaited, 1u << (outgoing * 2 + PHI_WORD_NOTE));
    if (channel->fixed.role & PH_ROLE_RECEIVER)
        phi_channel_reads(channel); // any number of them, until the device channel is given back
    if (channel->fixed.own.flags.lanes != 0) {
        atomic_store(&channel->live.flagged, 1);
        atomic_store(&channel->live.lost, 1);
    }
}

int phi_device_channel_open(struct ph_channel *channel, struct ph_device_channel *device)
{
    struct phi_self *self = channel->self;
    pthread_mutex_lock(&self->lock);
    int rc = check(channel);
    if (rc == 0) {
        // The add and the load pair with the revoker's store of `revoked` and load of `devices`:
        // one sees the other.
        atomic_fetch_add(&channel->live.uses.devices, 1);
        atomic_store(&channel->self->issuing.unfenced, true);
        if (atomic_load(&channel->live.uses.revoked) != 0) {
            atomic_fetch_sub(&channel->live.uses.devices, 1);
            rc = PH_EBROKEN;
        }
    }
    if (rc == 0) {
        note(channel);
        *device = describe(channel);
    }
    pthread_mutex_unlock(&self->lock);
    return rc;
}

int phi_device_channel_release(struct ph_channel *channel)
{
    struct phi_self *self = channel->self;
    int rc = 0;
    pthread_mutex_lock(&self->lock);
    if (atomic_load(&channel->live.uses.devices) == 0) {
        rc = phi_fail(self->report, -EINVAL,
                      "operation %llu with rank %d: the channel has no device channel to give back",
                      (unsigned long long)channel->op_id, channel->peer->rank);
    } else {
        atomic_fetch_sub(&channel->live.uses.devices, 1);
        phi_service_wake(self); // for whoever waits until nothing touches the channel
    }
    pthread_mutex_unlock(&self->lock);
    return rc;
}

static const struct ph_channel *held(const struct phi_peer *peer)
{
    for (const struct ph_channel *c = peer->channels.first; c != NULL; c = c->kept.next)
        if (atomic_load(&c->live.uses.devices) != 0)
            return c;
    return NULL;
}

int phi_device_channels_none(struct phi_self *self)
{
    const struct ph_channel *found = NULL;
    pthread_mutex_lock(&self->lock);
    for (int rank = 0; rank < self->ranks && found == NULL; rank++)
        if (self->table[rank] != NULL)
            found = held(self->table[rank]);
    for (const struct phi_peer *peer = self->lives.former; peer != NULL && found == NULL;
         peer = peer->life.former)
        found = held(peer);
    const int rc = found ? phi_device_channel_busy(found, "the context cannot be destroyed") : 0;
    pthread_mutex_unlock(&self->lock);
    return rc;
}
