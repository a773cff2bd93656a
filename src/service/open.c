// SPDX-License-Identifier: BSD-3-Clause
#include "service/open.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "exchange/request.h"
#include "meeting/trial.h"
#include "meeting/lives.h"
#include "meeting/opener.h"
#include "notify/note.h"
#include "peer/exports.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "release/release.h"
#include "service/regions.h"
#include "service/service.h"
#include "transport/bounce.h"

static int announce(struct phi_self *self, int64_t deadline)
{
    struct phi_writer writer = {0};
    phi_capabilities_encode(&self->mine, &writer);
    int rc = writer.error;
    if (rc)
        phi_fail(self->report, rc, "out of memory for the member record");
    else
        rc = phi_mailbox_announce(self->mailbox, writer.bytes, writer.size, deadline);
    phi_writer_fini(&writer);
    return rc;
}

static int open_mailbox(struct phi_self *self, const struct phi_self_params *params,
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
    int rc = phi_mailbox_open(&mailbox, deadline, &self->mailbox);
    if (rc == 0)
        self->incarnation = phi_mailbox_incarnation(self->mailbox);
    return rc;
}

// A page that the kernel clears in a forked child: the child has neither our threads nor a right to
// our words.
static int make_life(struct phi_self *self)
{
    uint8_t *page = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return -errno;
    *page = 1;
    self->life = page;
    self->executor->life = page;
    return madvise(page, (size_t)sysconf(_SC_PAGESIZE), MADV_WIPEONFORK) == 0 ? 0 : -errno;
}

// Peers learn by it that this process has ended. Where the kernel or a policy gives none they go
// without; that none is left to be had is a failure like any other.
static int open_pidfd(struct phi_self *self)
{
    self->serving.pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0); // close-on-exec by definition
    int rc = self->serving.pidfd < 0 ? -errno : 0;
    if (rc != -EMFILE && rc != -ENFILE && rc != -ENOMEM)
        return 0;
    return phi_fail(self->report, rc, "no descriptor of this process for its peers: %s",
                    ph_strerror(rc));
}

static int make_peers(const struct phi_self_params *params, struct phi_self **out)
{
    struct phi_self *self = calloc(1, sizeof *self);
    if (self == NULL)
        return phi_fail(params->report, -ENOMEM, "out of memory for the context");
    self->report = params->report;
    self->counters = params->counters;
    self->config = params->config;
    self->flags.sizes = params->size_table;
    self->memory = params->memory;
    self->executor = params->executor;
    self->device = params->device;
    self->net.wake = (struct phi_wake){-1, -1};
    self->serving.events = (struct phi_events){.epoll = -1, .event = -1};
    self->serving.pidfd = -1;
    self->rank = params->rank;
    self->ranks = params->ranks;
    size_t ranks = (size_t)params->ranks;
    self->table = calloc(ranks, sizeof *self->table);
    self->inbox.records = calloc(ranks, sizeof *self->inbox.records);
    self->inbox.wanted = calloc(ranks, sizeof *self->inbox.wanted);
    self->inbox.wanted_now = calloc(ranks, sizeof *self->inbox.wanted_now);
    self->serving.silent_since = calloc(ranks, sizeof *self->serving.silent_since);
    self->executor->silent_since = self->serving.silent_since;
    self->executor->untold = &self->end.untold;
    self->executor->self = self;
    pthread_mutex_init(&self->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&self->changes.cond, &attributes);
    pthread_condattr_destroy(&attributes);
    *out = self;
    if (self->table == NULL || self->inbox.records == NULL || self->inbox.wanted == NULL ||
        self->inbox.wanted_now == NULL || self->serving.silent_since == NULL)
        return phi_fail(params->report, -ENOMEM, "out of memory for %d ranks", params->ranks);
    int rc = make_life(self);
    return rc ? phi_fail(params->report, rc, "no page that tells a forked child: %s",
                         ph_strerror(rc))
              : 0;
}

static void describe_self(struct phi_self *self)
{
    int rc = phi_capabilities_fill(&self->mine, self->device, phi_memory_kinds(self->memory));
    if (rc)
        phi_log(self->report, PH_LOG_WARN,
                "rank %d cannot read the boot id of its node (%s): for it all other ranks are on "
                "other nodes",
                self->rank, ph_strerror(rc));
    self->mine.path = (uint8_t)self->config->path;
    self->mine.net = phi_net_built();
}

int phi_self_open(const struct phi_self_params *params, int64_t deadline, struct phi_self **out)
{
    struct phi_self *self = NULL;
    int rc = make_peers(params, &self);
    if (rc)
        goto close;
    describe_self(self);
    if ((rc = open_pidfd(self)))
        goto close;
    if ((rc = phi_wake_open(&self->net.wake))) {
        phi_fail(self->report, rc, "no sockets to wake the service thread by: %s", ph_strerror(rc));
        goto close;
    }
    if ((rc = phi_trial_memory_open(self->memory, self->device, &self->trials.memory)) ||
        (rc = open_mailbox(self, params, deadline)))
        goto close;
    // The service must answer before anybody can learn of it.
    if ((rc = phi_service_open(self, &self->serving.service)) || (rc = announce(self, deadline)))
        goto close;
    *out = self;
    return 0;
close:
    phi_self_close(self, deadline);
    return rc;
}

void phi_self_close(struct phi_self *self, int64_t deadline)
{
    if (self == NULL)
        return;
    phi_regions_stop(self); // its thread wakes the service thread
    phi_service_close(self->serving.service);
    phi_trial_stop(self);
    for (int rank = 0; self->table != NULL && rank < self->ranks; rank++)
        phi_peer_free(self->table[rank]);
    for (int rank = 0; self->inbox.records != NULL && rank < self->ranks; rank++)
        phi_mailbox_message_free(&self->inbox.records[rank]);
    phi_peer_free(self->lives.loopback);
    while (self->lives.former != NULL) {
        struct phi_peer *peer = self->lives.former;
        self->lives.former = peer->life.former;
        phi_peer_free(peer);
    }
    while (self->exchanges.first != NULL) {
        struct ph_exchange_request *request = self->exchanges.first;
        self->exchanges.first = request->next;
        free(request->loopbacks);
        free(request);
    }
    free(self->exchanges.spare);
    for (int i = 0; i < PHI_SPARE_WORK; i++)
        free(self->issuing.spare[i]);
    phi_opener_join(self);
    phi_trial_memory_close(self->memory, self->device, &self->trials.memory);
    for (uint32_t i = 0; i < self->exports.count; i++)
        phi_export_free(self->exports.live[i]);
    while (self->exports.ended != NULL) {
        struct phi_local_export *e = self->exports.ended;
        self->exports.ended = e->next;
        phi_export_free(e);
    }
    while (self->exchanges.bounces != NULL) {
        struct phi_bounce *bounce = self->exchanges.bounces;
        self->exchanges.bounces = bounce->next;
        phi_bounce_free(bounce);
    }
    phi_net_close(self->net.net);
    phi_wake_close(&self->net.wake);
    if (self->serving.pidfd >= 0)
        close(self->serving.pidfd);
    phi_releases_free(self);
    phi_notes_free(self);
    free(self->exports.live);
    if (self->inbox.is_late)
        phi_mailbox_message_free(&self->inbox.late);
    phi_mailbox_close(self->mailbox, deadline);
    free(self->table);
    free(self->inbox.records);
    free(self->inbox.wanted);
    free(self->inbox.wanted_now);
    self->executor->silent_since = NULL; // it outlives us
    self->executor->untold = NULL;
    self->executor->self = NULL;
    free(self->serving.silent_since);
    if (self->life != NULL)
        munmap((void *)self->life, 1);
    pthread_cond_destroy(&self->changes.cond);
    pthread_mutex_destroy(&self->lock);
    free(self);
}
