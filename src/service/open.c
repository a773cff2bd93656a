// SPDX-License-Identifier: BSD-3-Clause
#include "service/open.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "exchange/request.h"
#include "meeting/attempt.h"
#include "meeting/lives.h"
#include "meeting/opener.h"
#include "peer/exports.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/peers.h"
#include "release/release.h"
#include "service/service.h"
#include "transport/bounce.h"

static int announce(struct phi_peers *peers, int64_t deadline)
{
    struct phi_writer writer = {0};
    phi_capabilities_encode(&peers->mine, &writer);
    int rc = writer.error;
    if (rc)
        phi_fail(peers->report, rc, "out of memory for the member record");
    else
        rc = phi_mailbox_announce(peers->mailbox, writer.bytes, writer.size, deadline);
    phi_writer_fini(&writer);
    return rc;
}

static int open_mailbox(struct phi_peers *peers, const struct phi_peers_params *params,
                        int64_t deadline)
{
    struct phi_mailbox_params mailbox = {
        .report = params->report,
        .counters = params->counters,
        .config = params->config,
        .callbacks = params->callbacks,
        .job = params->job,
        .epoch = params->epoch,
        .rank = params->rank,
        .ranks = params->ranks,
        .incarnation = params->incarnation,
    };
    int rc = phi_mailbox_open(&mailbox, deadline, &peers->mailbox);
    if (rc == 0)
        peers->incarnation = phi_mailbox_incarnation(peers->mailbox);
    return rc;
}

// A page that the kernel clears in a forked child: the child has neither our threads nor a right to
// our words.
static int make_life(struct phi_peers *peers)
{
    uint8_t *page = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return -errno;
    *page = 1;
    peers->life = page;
    peers->executor->life = page;
    return madvise(page, (size_t)sysconf(_SC_PAGESIZE), MADV_WIPEONFORK) == 0 ? 0 : -errno;
}

// Peers learn by it that this process has ended. Where the kernel or a policy gives none they go
// without; that none is left to be had is a failure like any other.
static int open_pidfd(struct phi_peers *peers)
{
    peers->pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0); // close-on-exec by definition
    int rc = peers->pidfd < 0 ? -errno : 0;
    if (rc != -EMFILE && rc != -ENFILE && rc != -ENOMEM)
        return 0;
    return phi_fail(peers->report, rc, "no descriptor of this process for its peers: %s",
                    ph_strerror(rc));
}

static int make_peers(const struct phi_peers_params *params, struct phi_peers **out)
{
    struct phi_peers *peers = calloc(1, sizeof *peers);
    if (peers == NULL)
        return phi_fail(params->report, -ENOMEM, "out of memory for the context");
    peers->report = params->report;
    peers->counters = params->counters;
    peers->config = params->config;
    peers->size_table = params->size_table;
    peers->memory = params->memory;
    peers->executor = params->executor;
    peers->device = params->device;
    peers->net_wake = (struct phi_wake){-1, -1};
    peers->events = (struct phi_events){.epoll = -1, .event = -1};
    peers->pidfd = -1;
    peers->rank = params->rank;
    peers->ranks = params->ranks;
    size_t ranks = (size_t)params->ranks;
    peers->table = calloc(ranks, sizeof *peers->table);
    peers->records = calloc(ranks, sizeof *peers->records);
    peers->wanted = calloc(ranks, sizeof *peers->wanted);
    peers->wanted_now = calloc(ranks, sizeof *peers->wanted_now);
    peers->silent_since = calloc(ranks, sizeof *peers->silent_since);
    peers->executor->silent_since = peers->silent_since;
    peers->executor->untold = &peers->untold;
    peers->executor->peers = peers;
    pthread_mutex_init(&peers->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&peers->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    *out = peers;
    if (peers->table == NULL || peers->records == NULL || peers->wanted == NULL ||
        peers->wanted_now == NULL || peers->silent_since == NULL)
        return phi_fail(params->report, -ENOMEM, "out of memory for %d ranks", params->ranks);
    int rc = make_life(peers);
    return rc ? phi_fail(params->report, rc, "no page that tells a forked child: %s",
                         ph_strerror(rc))
              : 0;
}

static void describe_self(struct phi_peers *peers)
{
    int rc = phi_capabilities_fill(&peers->mine, peers->device, phi_memory_kinds(peers->memory));
    if (rc)
        phi_log(peers->report, PH_LOG_WARN,
                "rank %d cannot read the boot id of its node (%s): for it all other ranks are on "
                "other nodes",
                peers->rank, ph_strerror(rc));
    peers->mine.path = (uint8_t)peers->config->path;
    peers->mine.net = phi_net_built();
}

int phi_peers_open(const struct phi_peers_params *params, int64_t deadline, struct phi_peers **out)
{
    struct phi_peers *peers = NULL;
    int rc = make_peers(params, &peers);
    if (rc)
        goto close;
    describe_self(peers);
    if ((rc = open_pidfd(peers)))
        goto close;
    if ((rc = phi_wake_open(&peers->net_wake))) {
        phi_fail(peers->report, rc, "no sockets to wake the service thread by: %s",
                 ph_strerror(rc));
        goto close;
    }
    if ((rc = phi_probe_open(peers->memory, peers->device, &peers->probe)) ||
        (rc = open_mailbox(peers, params, deadline)))
        goto close;
    // The service must answer before anybody can learn of it.
    if ((rc = phi_service_open(peers, &peers->service)) || (rc = announce(peers, deadline)))
        goto close;
    *out = peers;
    return 0;
close:
    phi_peers_close(peers, deadline);
    return rc;
}

void phi_peers_close(struct phi_peers *peers, int64_t deadline)
{
    if (peers == NULL)
        return;
    phi_service_close(peers->service);
    phi_attempt_stop(peers);
    for (int rank = 0; peers->table != NULL && rank < peers->ranks; rank++)
        phi_peer_free(peers->table[rank]);
    for (int rank = 0; peers->records != NULL && rank < peers->ranks; rank++)
        phi_mailbox_message_free(&peers->records[rank]);
    phi_peer_free(peers->self);
    while (peers->former != NULL) {
        struct phi_peer *peer = peers->former;
        peers->former = peer->former;
        phi_peer_free(peer);
    }
    while (peers->requests != NULL) {
        struct ph_exchange_request *request = peers->requests;
        peers->requests = request->next;
        free(request->selves);
        free(request);
    }
    free(peers->spare);
    for (int i = 0; i < PHI_SPARE_WORK; i++)
        free(peers->spare_work[i]);
    phi_opener_join(peers);
    phi_probe_close(peers->memory, peers->device, &peers->probe);
    for (uint32_t i = 0; i < peers->exports_count; i++)
        phi_export_free(peers->exports[i]);
    while (peers->ended != NULL) {
        struct phi_local_export *e = peers->ended;
        peers->ended = e->next;
        phi_export_free(e);
    }
    while (peers->bounces != NULL) {
        struct phi_bounce *bounce = peers->bounces;
        peers->bounces = bounce->next;
        phi_bounce_free(bounce);
    }
    phi_net_close(peers->net);
    phi_wake_close(&peers->net_wake);
    if (peers->pidfd >= 0)
        close(peers->pidfd);
    phi_releases_free(peers);
    free(peers->exports);
    if (peers->is_late)
        phi_mailbox_message_free(&peers->late);
    phi_mailbox_close(peers->mailbox, deadline);
    free(peers->table);
    free(peers->records);
    free(peers->wanted);
    free(peers->wanted_now);
    peers->executor->silent_since = NULL; // it outlives us
    peers->executor->untold = NULL;
    peers->executor->peers = NULL;
    free(peers->silent_since);
    if (peers->life != NULL)
        munmap((void *)peers->life, 1);
    pthread_cond_destroy(&peers->changed);
    pthread_mutex_destroy(&peers->lock);
    free(peers);
}
