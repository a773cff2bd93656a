// SPDX-License-Identifier: BSD-3-Clause
#include "meeting/opener.h"

#include <errno.h>
#include <stddef.h>

#include <peerhop/error.h>

#include "base/thread.h"
#include "net/net.h"
#include "peer/self.h"
#include "peer/wake.h"
#include "transport/transport.h"
#include "transport/way.h"

static int open_net(struct phi_self *self, struct phi_net **net, struct phi_way *way)
{
    struct phi_net_params params = {
        .report = self->report,
        .config = self->config,
        .message_ring = self->net.wake.ring,
        .store_ring = phi_mailbox_wake_fd(self->mailbox),
        .devices = self->device != NULL && self->config->net_memory != PHI_MEMORY_STAGED,
        .near = phi_way_near(self->device),
    };
    params.near.home = phi_mailbox_local(self->mailbox);
    int rc = phi_net_open(&params, net);
    if (rc == 0)
        rc = phi_way_open(way, self->config, self->report, self->device, *net,
                          (char *)self->trials.memory.address +
                              (size_t)PHI_TRIAL_PATTERNS * PHI_TRIAL_SIZE);
    if (rc && *net != NULL) {
        phi_net_close(*net);
        *net = NULL;
    }
    return rc;
}

static void *opener_main(void *opaque)
{
    struct phi_self *self = opaque;
    struct phi_net *net = NULL;
    struct phi_way way = {0};
    phi_trial_thread(self->device); // a provider may call the driver
    const int rc = open_net(self, &net, &way);
    pthread_mutex_lock(&self->lock);
    self->net.way = way;
    self->net.net = net;
    self->net.failed = rc == PH_ENOPATH;
    // A provider that was too slow has not been judged: the machine may be very busy just now.
    self->net.error = self->net.failed ? 0 : rc == -ETIMEDOUT ? -EAGAIN : rc;
    self->net.opening = false;
    phi_self_changed(self);
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

// Joins the last one, which has given up the lock for good.
static void start(struct phi_self *self)
{
    phi_opener_join(self);
    const int rc = phi_thread_start(&self->net.opener, "peerhop-open", opener_main, self);
    if (rc)
        self->net.error = phi_fail(
            self->report, rc, "the thread that opens the net cannot start: %s", ph_strerror(rc));
    self->net.opener_is = self->net.opening = rc == 0;
}

int phi_opener_net(struct phi_self *self, int64_t deadline)
{
    if (self->net.net != NULL || self->net.failed)
        return 0;
    if (self->net.opening)
        return -EAGAIN; // who began it waits
    start(self);
    // The loop stops when this rank ends; the caller says so.
    while (self->net.opening && !self->end.aborted && !self->end.fenced && !self->end.leaving)
        if (phi_self_follow(self, deadline) == -ETIMEDOUT)
            return -EAGAIN;
    return self->net.opening ? -EAGAIN : self->net.error;
}

int phi_opener_wait(struct phi_self *self, int64_t deadline)
{
    while (self->net.opening)
        if (phi_self_follow(self, deadline) == -ETIMEDOUT)
            return phi_fail(self->report, -ETIMEDOUT,
                            "rank %d cannot leave: its provider of libfabric has not begun to "
                            "serve, nor failed",
                            self->rank);
    return 0;
}

void phi_opener_join(struct phi_self *self)
{
    if (self->net.opener_is)
        pthread_join(self->net.opener, NULL);
    self->net.opener_is = false;
}
