// SPDX-License-Identifier: BSD-3-Clause
#include "meeting/opener.h"

#include <errno.h>
#include <stddef.h>

#include <peerhop/error.h>

#include "base/thread.h"
#include "net/net.h"
#include "peer/peers.h"
#include "peer/wake.h"
#include "transport/transport.h"
#include "transport/way.h"

static int open_net(struct phi_peers *peers, struct phi_net **net, struct phi_way *way)
{
    struct phi_net_params params = {
        .report = peers->report,
        .config = peers->config,
        .message_ring = peers->net_wake.ring,
        .store_ring = phi_mailbox_wake_fd(peers->mailbox),
        .devices = peers->device != NULL && peers->config->net_memory != PHI_MEMORY_STAGED,
        .near = phi_way_near(peers->device),
    };
    params.near.home = phi_mailbox_local(peers->mailbox);
    int rc = phi_net_open(&params, net);
    if (rc == 0)
        rc = phi_way_open(way, peers->config, peers->report, peers->device, *net,
                          (char *)peers->probe.address + (size_t)PHI_PROBE_SLOTS * PHI_PROBE_SIZE);
    if (rc && *net != NULL) {
        phi_net_close(*net);
        *net = NULL;
    }
    return rc;
}

static void *opener_main(void *opaque)
{
    struct phi_peers *peers = opaque;
    struct phi_net *net = NULL;
    struct phi_way way = {0};
    phi_probe_thread(peers->device); // a provider may call the driver
    const int rc = open_net(peers, &net, &way);
    pthread_mutex_lock(&peers->lock);
    peers->way = way;
    peers->net = net;
    peers->net_failed = rc == PH_ENOPATH;
    // What was too slow has not been judged: the machine may be very busy just now.
    peers->net_error = peers->net_failed ? 0 : rc == -ETIMEDOUT ? -EAGAIN : rc;
    peers->net_opening = false;
    phi_peers_changed(peers);
    pthread_mutex_unlock(&peers->lock);
    return NULL;
}

// Joins the last one, which has given up the lock for good.
static void start(struct phi_peers *peers)
{
    phi_opener_join(peers);
    const int rc = phi_thread_start(&peers->net_opener, "peerhop-open", opener_main, peers);
    if (rc)
        peers->net_error = phi_fail(peers->report, rc,
                                    "the thread that opens the net cannot start: %s",
                                    ph_strerror(rc));
    peers->net_opener_is = peers->net_opening = rc == 0;
}

int phi_opener_net(struct phi_peers *peers, int64_t deadline)
{
    if (peers->net != NULL || peers->net_failed)
        return 0;
    if (peers->net_opening)
        return -EAGAIN; // who began it waits
    start(peers);
    // Where this rank ends the caller says so.
    while (peers->net_opening && !peers->aborted && !peers->fenced && !peers->leaving)
        if (phi_peers_follow(peers, deadline) == -ETIMEDOUT)
            return -EAGAIN;
    return peers->net_opening ? -EAGAIN : peers->net_error;
}

int phi_opener_wait(struct phi_peers *peers, int64_t deadline)
{
    while (peers->net_opening)
        if (phi_peers_follow(peers, deadline) == -ETIMEDOUT)
            return phi_fail(peers->report, -ETIMEDOUT,
                            "rank %d cannot leave: its provider of libfabric has not begun to "
                            "serve, nor failed",
                            peers->rank);
    return 0;
}

void phi_opener_join(struct phi_peers *peers)
{
    if (peers->net_opener_is)
        pthread_join(peers->net_opener, NULL);
    peers->net_opener_is = false;
}
