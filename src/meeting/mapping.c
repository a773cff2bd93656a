// SPDX-License-Identifier: BSD-3-Clause
#include "meeting/mapping.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "ending/end.h"
#include "ending/look.h"
#include "lane/flag_memory.h"
#include "meeting/import.h"
#include "meeting/reap.h"
#include "meeting/trial.h"
#include "peer/keys.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/wake.h"

// Without the lock: 0 where the peer's service thread answers. A process that ends takes its memory
// away before the last of its descriptors is closed: what failed says nothing of the path then, and
// the exchange is to fail with the peer, not with a channel that has no path.
static int ask_life(struct phi_peer *peer, int64_t deadline)
{
    struct phi_node_message request, answer;
    int fd;
    phi_peer_message(peer, PHI_NODE_WAITING, &request);
    int rc = phi_peer_call(peer, &request, &answer, &fd, deadline);
    if (fd >= 0)
        close(fd);
    return rc;
}

// How long memory that the peer has freed may take to be unmapped here, so that other memory can
// be mapped in its place.
#define STALE_MS 1000

// Without the lock. The peer tells of what it has freed when it offers what lies there now.
static int import_in_place(struct phi_remote_export *e, int fd, struct phi_import **import,
                           int64_t deadline)
{
    struct phi_self *self = e->peer->self;
    struct phi_executor *executor = self->executor;
    int64_t soon = phi_deadline(STALE_MS);
    int rc = -EEXIST;
    while (rc == -EEXIST && phi_now() < (soon < deadline ? soon : deadline)) {
        if (!executor->ops->busy(executor, NULL, 0))
            phi_reap(self, true);
        rc = phi_import_from(e->peer, e->record, e->record_size, fd, import);
        if (rc == -EEXIST) // the closer is not there yet, or another context has it open
            nanosleep(&(struct timespec){.tv_nsec = PHI_MS}, NULL);
    }
    return rc;
}

static enum phi_reason map_export(struct phi_remote_export *e, struct phi_import **import,
                                  int64_t callers)
{
    struct phi_peer *peer = e->peer;
    struct phi_self *self = peer->self;
    enum phi_kind kind = (enum phi_kind)e->info.allocation.kind;
    enum phi_reason reason = phi_ipc_reach(&self->mine, &peer->theirs, kind);
    if (reason == PHI_REASON_NONE)
        reason = phi_trial_verify(peer, callers);
    if (reason != PHI_REASON_NONE)
        return reason;
    int64_t deadline = phi_import_deadline(callers);
    int fd = -1;
    if (e->info.needs_fd) {
        struct phi_node_message request, answer;
        phi_peer_message(peer, PHI_NODE_EXPORT, &request);
        request.a = e->id;
        int rc = phi_import_call(peer, &request, &answer, &fd, deadline);
        if (rc || fd < 0)
            return phi_import_reason_of_call(rc);
    }
    int rc = phi_import_from(peer, e->record, e->record_size, fd, import);
    if (rc == -EEXIST && self->config->reap == PHI_REAP_IDLE)
        rc = import_in_place(e, fd, import, deadline);
    reason = phi_import_reason(rc == -EIO || rc == -ETIMEDOUT ? PH_EDRIVER : rc);
    if (fd >= 0)
        close(fd);
    return reason;
}

void phi_contact_import(struct phi_remote_export *e, int64_t deadline)
{
    struct phi_self *self = e->peer->self;
    struct phi_import *import = NULL;
    if (e->peer->to.link != NULL) { // nothing is mapped: the record has its region, or not
        e->tried = true;
        e->call = self->exchanges.calls;
        const bool there = e->has_target || e->peer->staging != NULL;
        e->reason = there ? PHI_REASON_NONE : PHI_REASON_NET_REGION;
        phi_count(self->counters, imports, there);
        phi_count(self->counters, import_bytes, there ? e->info.allocation.size : 0);
        return;
    }
    e->importing = true;
    pthread_mutex_unlock(&self->lock);
    enum phi_reason reason = map_export(e, &import, deadline);
    int life = import ? 0 : ask_life(e->peer, phi_import_deadline(deadline));
    bool gone = life && life != -ETIMEDOUT;
    bool tried = import != NULL || (life == 0 && !phi_import_cut_short(reason, deadline));
    pthread_mutex_lock(&self->lock);
    if (gone) { // the service thread will notice too; the exchange goes on now
        phi_peer_look(e->peer);
        phi_peer_lost(e->peer);
    }
    e->importing = false;
    e->tried = tried; // else the next exchange tries again
    e->call = self->exchanges.calls;
    e->import = import;
    e->reason = reason;
    if (import != NULL && !phi_flag_memory_is(e->id)) {
        phi_count(self->counters, imports, 1);
        phi_count(self->counters, import_bytes, import->size);
    }
    phi_log(self->report, import ? PH_LOG_DEBUG : PH_LOG_WARN,
            "allocation %u of rank %d (%s, %llu bytes): %s", e->id, e->peer->rank,
            phi_kind_name((enum phi_kind)e->info.allocation.kind),
            (unsigned long long)e->info.allocation.size,
            import  ? "mapped"
            : tried ? phi_reason_text(reason)
            : gone  ? "the peer is gone"
                    : "the deadline passed while it was being mapped");
    phi_self_changed(self);
    if (self->inbox.receiving)
        phi_mailbox_wake(self->mailbox); // another exchange may have waited for this
}
