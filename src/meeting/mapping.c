// SPDX-License-Identifier: BSD-3-Clause
// The probe of a pair, and mapping what a peer has offered.
#include "meeting/mapping.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "base/random.h"
#include "ending/end.h"
#include "ending/look.h"
#include "lane/flag_memory.h"
#include "meeting/reap.h"
#include "peer/keys.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/wake.h"

// A call to a service thread is answered at once or never: it waits for nothing itself.
#define CALL_DEADLINE_MS 10000

static int64_t call_deadline(int64_t deadline)
{
    int64_t soon = phi_deadline(CALL_DEADLINE_MS);
    return soon < deadline ? soon : deadline;
}

static enum phi_reason reason_of(int rc)
{
    switch (rc) {
    case -ETIMEDOUT:
        return PHI_REASON_PROBE_DEADLINE;
    case -EIO:
        return PHI_REASON_PROBE_BYTES;
    case -EBADMSG:
        return PHI_REASON_RECORD;
    case -ENOMEM:
        return PHI_REASON_MEMORY;
    case -EMFILE:
    case -ENFILE:
        return PHI_REASON_DESCRIPTORS;
    case -EEXIST:
        return PHI_REASON_STALE;
    case -EXDEV:
        return PHI_REASON_PEER_ACCESS;
    default:
        return PHI_REASON_IMPORT;
    }
}

// A driver does not always say what it lacks. While what came for the import is still open.
static enum phi_reason reason_of_import(int rc)
{
    if (rc == 0)
        return PHI_REASON_NONE;
    return phi_descriptors_lack(1) ? PHI_REASON_DESCRIPTORS : reason_of(rc);
}

// Without the lock.
static int import_from(struct phi_peer *peer, const uint8_t *record, size_t size, int fd,
                       struct phi_import **import)
{
    struct phi_self *self = peer->self;
    if (!phi_memory_own(self->memory, record, size) || phi_node_is_self(peer->to.socket))
        return phi_memory_import(self->memory, record, size, fd, import);
    return phi_fail(self->report, -EBADMSG, "rank %d claims to own memory of this process",
                    peer->rank);
}

// The cause of a call that failed is not what its reason says to both ranks.
static int call(struct phi_peer *peer, struct phi_node_message *request,
                struct phi_node_message *answer, int *fd, int64_t deadline)
{
    int rc = phi_peer_call(peer, request, answer, fd, deadline);
    if (rc)
        phi_log(peer->self->report, PH_LOG_WARN,
                "a question to rank %d through its socket \"%s\": %s", peer->rank,
                peer->theirs.socket, ph_strerror(rc));
    return rc;
}

#define ASK_AGAIN_MS 20

// ask_again calls again where no answer came in time: a process, or a device, that is busy there
// says nothing of the path. It stops at the deadline, or at the end of the peer or of this rank.
static int ask_again(struct phi_peer *peer, struct phi_node_message *request,
                     struct phi_node_message *answer, int *fd, int64_t deadline)
{
    struct phi_self *self = peer->self;
    for (;;) {
        int rc = call(peer, request, answer, fd, call_deadline(deadline));
        if (rc != -ETIMEDOUT || phi_now() >= deadline)
            return rc;
        pthread_mutex_lock(&self->lock);
        const bool over = self->end.aborted || self->end.fenced || self->end.leaving ||
                          peer->state == PHI_PEER_BROKEN;
        pthread_mutex_unlock(&self->lock);
        if (over)
            return rc;
        nanosleep(&(struct timespec){.tv_nsec = ASK_AGAIN_MS * PHI_MS}, NULL);
    }
}

// Why no descriptor came.
static enum phi_reason reason_of_call(int rc)
{
    return reason_of(rc) == PHI_REASON_DESCRIPTORS ? PHI_REASON_DESCRIPTORS : PHI_REASON_DESCRIPTOR;
}

// Without the lock. Writes a pattern through a mapping of the peer's probe allocation and lets its
// owner look: peer access that is advertised but broken ends here, not in the application's data.
static enum phi_reason probe(struct phi_peer *peer, int64_t deadline)
{
    struct phi_self *self = peer->self;
    struct phi_node_message request, answer;
    int fd;
    int rc;
    if (peer->trial.probe == NULL) { // else of an attempt that was cut short
        phi_peer_message(peer, PHI_NODE_PROBE, &request);
        rc = ask_again(peer, &request, &answer, &fd, deadline);
        if (rc)
            return reason_of_call(rc);
        rc = import_from(peer, answer.bytes, answer.bytes_size, fd, &peer->trial.probe);
        enum phi_reason reason = reason_of_import(rc == -EIO ? PH_EDRIVER : rc);
        if (fd >= 0)
            close(fd);
        if (reason != PHI_REASON_NONE)
            return reason;
    }
    uint64_t offset = (uint64_t)(self->rank % PHI_PROBE_SLOTS) * PHI_PROBE_SIZE, seed;
    if (offset + PHI_PROBE_SIZE > peer->trial.probe->size)
        return PHI_REASON_RECORD;
    if (peer->trial.seed == 0) { // else its owner may still look for that of an attempt before
        phi_random(&seed, sizeof seed);
        rc = phi_probe_write(self->device, (char *)peer->trial.probe->address + offset, seed | 1,
                             deadline);
        if (rc)
            return reason_of(rc);
        peer->trial.seed = seed | 1;
    }
    phi_peer_message(peer, PHI_NODE_VERIFY, &request);
    request.a = offset;
    request.b = peer->trial.seed;
    rc = ask_again(peer, &request, &answer, &fd, deadline);
    if (fd >= 0)
        close(fd);
    return rc ? reason_of(rc) : PHI_REASON_NONE;
}

// cut_short says whether the caller's own deadline cut an attempt short. Such an attempt says
// nothing of the path.
static bool cut_short(enum phi_reason reason, int64_t deadline)
{
    return (reason == PHI_REASON_PROBE_DEADLINE || reason == PHI_REASON_DESCRIPTOR) &&
           phi_now() >= deadline;
}

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

// Without the lock: one thread at a time probes a peer, at most until its caller's deadline; the
// others wait for it until their own.
static enum phi_reason probe_once(struct phi_peer *peer, int64_t callers)
{
    struct phi_self *self = peer->self;
    pthread_mutex_lock(&self->lock);
    while (peer->trial.probing && phi_now() < callers)
        phi_self_follow(self, callers);
    bool late = peer->trial.probing, probed = peer->trial.probed;
    peer->trial.probing = late || !probed;
    pthread_mutex_unlock(&self->lock);
    if (late)
        return PHI_REASON_PROBE_DEADLINE; // cut short
    if (probed)
        return peer->trial.reason;
    enum phi_reason reason = probe(peer, callers);
    pthread_mutex_lock(&self->lock);
    peer->trial.probing = false;
    peer->trial.probed = !cut_short(reason, callers) && !phi_reason_passes(reason);
    peer->trial.reason = reason;
    phi_self_changed(self);
    pthread_mutex_unlock(&self->lock);
    return reason;
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
        rc = import_from(e->peer, e->record, e->record_size, fd, import);
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
        reason = probe_once(peer, callers);
    if (reason != PHI_REASON_NONE)
        return reason;
    int64_t deadline = call_deadline(callers);
    int fd = -1;
    if (e->info.needs_fd) {
        struct phi_node_message request, answer;
        phi_peer_message(peer, PHI_NODE_EXPORT, &request);
        request.a = e->id;
        int rc = call(peer, &request, &answer, &fd, deadline);
        if (rc || fd < 0)
            return reason_of_call(rc);
    }
    int rc = import_from(peer, e->record, e->record_size, fd, import);
    if (rc == -EEXIST && self->config->reap == PHI_REAP_IDLE)
        rc = import_in_place(e, fd, import, deadline);
    reason = reason_of_import(rc == -EIO || rc == -ETIMEDOUT ? PH_EDRIVER : rc);
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
    int life = import ? 0 : ask_life(e->peer, call_deadline(deadline));
    bool gone = life && life != -ETIMEDOUT;
    bool tried = import != NULL || (life == 0 && !cut_short(reason, deadline));
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
