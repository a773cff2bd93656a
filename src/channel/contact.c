// SPDX-License-Identifier: BSD-3-Clause
#include "channel/contact.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"
#include "channel/expel.h"
#include "channel/hello.h"
#include "channel/leave.h"
#include "channel/lives.h"
#include "channel/release.h"
#include "channel/service.h"

// How long a peer that refused to be connected to is left alone.
#define RETRY_MS 100
// A call to a service thread is answered at once or never: it waits for nothing itself.
#define CALL_DEADLINE_MS 10000

static int64_t call_deadline(int64_t deadline)
{
    int64_t soon = phi_deadline(CALL_DEADLINE_MS);
    return soon < deadline ? soon : deadline;
}

static uint64_t pair_nonce(const struct phi_peer *peer, uint64_t life)
{
    bool lower = peer->peers->rank < peer->rank;
    return lower ? phi_hash(peer->peers->incarnation, life)
                 : phi_hash(life, peer->peers->incarnation);
}

int phi_contact_segment(struct phi_peer *peer, uint64_t life, struct phi_segment **segment)
{
    if (peer->link != NULL)
        return -ESTALE; // what is there is the net's, of a former life or of this one
    if (peer->segment != NULL && peer->segment_life != life) {
        if (peer->state == PHI_PEER_READY || peer->state == PHI_PEER_BROKEN || peer->registering)
            return -ESTALE;
        phi_segment_unregister(peer->segment, peer->peers->device);
        phi_segment_close(peer->segment); // made for a former life that never used it
        peer->segment = NULL;
    }
    if (peer->segment == NULL) {
        int rc = phi_segment_create(peer->peers->report, (uint32_t)peer->peers->config->channels,
                                    pair_nonce(peer, life), &peer->segment);
        if (rc)
            return rc;
        peer->segment_life = life;
    }
    *segment = peer->segment;
    return 0;
}

// A descriptor of the process at the other end of a socket; -1 where there is none to be had
// (another PID namespace).
static int open_pidfd(int socket)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0)
        return -1;
    return (int)syscall(SYS_pidfd_open, peer.pid, 0); // close-on-exec by definition
}

struct contact {
    int socket, wake_fd, segment_fd;
};

static void close_contact(struct contact *c)
{
    for (int *fd = &c->socket; fd <= &c->segment_fd; fd++)
        if (*fd >= 0)
            close(*fd);
}

// What both ranks must have alike, as the answer to hello says.
static int compare(const struct phi_peer *peer, const struct phi_node_message *answer)
{
    const struct phi_peers *peers = peer->peers;
    if (answer->c != (uint64_t)peers->ranks)
        return phi_fail(peers->report, PH_EMISMATCH,
                        "rank %d is of a job of %llu ranks, rank %d of one of %d: they must be "
                        "equal",
                        peer->rank, (unsigned long long)answer->c, peers->rank, peers->ranks);
    if (answer->b != (uint64_t)peers->config->channels)
        return phi_fail(peers->report, PH_EMISMATCH,
                        "rank %d has PEERHOP_CHANNELS=%llu, rank %d has %lld: they must be equal",
                        peer->rank, (unsigned long long)answer->b, peers->rank,
                        (long long)peers->config->channels);
    return answer->status == PH_EMISMATCH ? -EBADMSG : 0;
}

// Without the lock.
static int say_hello(struct phi_peer *peer, const struct phi_capabilities *theirs,
                     struct contact *c, int64_t deadline)
{
    struct phi_node_message request, answer;
    phi_peer_message(peer, PHI_NODE_HELLO, &request);
    request.a = theirs->nonce;
    int rc = phi_node_call(c->socket, &request, &answer, &c->wake_fd, deadline);
    if (rc == 0 && answer.status != PH_EMISMATCH)
        rc = answer.status > 0 ? -EBADMSG : answer.status;
    if (rc)
        return rc;
    if (answer.a != theirs->nonce || (answer.status == 0 && c->wake_fd < 0))
        return -ECONNREFUSED; // somebody else's socket
    return compare(peer, &answer);
}

// Without the lock: talks to the peer's service thread.
static int make_contact(struct phi_peer *peer, const struct phi_capabilities *theirs,
                        struct contact *c, int64_t deadline)
{
    struct phi_node_message request, answer;
    int rc = phi_node_connect(theirs->socket, &c->socket);
    if (rc == 0)
        rc = say_hello(peer, theirs, c, deadline);
    if (rc || peer->peers->rank < peer->rank)
        return rc;
    phi_peer_message(peer, PHI_NODE_SEGMENT, &request);
    request.a = peer->net_refused;
    rc = phi_node_call(c->socket, &request, &answer, &c->segment_fd, deadline);
    if (rc == 0)
        rc = answer.status > 0 ? -EBADMSG : answer.status;
    return rc == 0 && c->segment_fd < 0 ? -EBADMSG : rc;
}

// What is wrong with it was said already; here, whose it is.
static int fail_segment(const struct phi_peer *peer, int rc)
{
    char why[256];
    phi_report_copy(peer->peers->report, why, sizeof why);
    return phi_fail(peer->peers->report, rc, "rank %d (process %u on %s): %s", peer->rank,
                    peer->theirs.pid, peer->theirs.host, why);
}

// With the lock. The lower rank's own segment, or the one that came from it.
static int take_segment(struct phi_peer *peer, struct contact *c)
{
    struct phi_segment *segment;
    if (peer->peers->rank < peer->rank)
        return phi_contact_segment(peer, peer->incarnation, &segment);
    int rc = phi_segment_open(peer->peers->report, c->segment_fd,
                              pair_nonce(peer, peer->incarnation), &segment);
    c->segment_fd = -1; // taken over
    if (rc)
        return fail_segment(peer, rc);
    if (segment->capacity != (uint32_t)peer->peers->config->channels) {
        phi_segment_close(segment);
        return phi_fail(peer->peers->report, -EBADMSG,
                        "rank %d (process %u on %s) sent another segment than it said", peer->rank,
                        peer->theirs.pid, peer->theirs.host);
    }
    phi_segment_close(peer->segment); // of an attempt that failed later
    peer->segment = segment;
    return 0;
}

// Gives up the lock: registering can take long, and what could end that may need the lock. Nobody
// replaces the segment meanwhile (registering).
static int map_segment(struct phi_peer *peer, struct contact *c)
{
    struct phi_peers *peers = peer->peers;
    int rc = take_segment(peer, c);
    if (rc || peers->device == NULL)
        return rc;
    peer->registering = true;
    pthread_mutex_unlock(&peers->lock);
    rc = phi_segment_register(peer->segment, peers->device);
    if (rc == 0)
        rc = phi_flags_open(peer);
    pthread_mutex_lock(&peers->lock);
    peer->registering = false;
    return rc;
}

static int fail_contact(struct phi_peer *peer, int rc, const char *socket)
{
    // -EAGAIN: its backlog is full for the moment, of whoever knocks there.
    if (rc == -ECONNREFUSED || rc == -ENOENT || rc == -ECONNRESET || rc == -ESTALE ||
        rc == -EAGAIN) {
        // Perhaps a former life's record: a newer one may come. Or the peer has still to part with
        // a former life of ours.
        peer->refused = true;
        peer->retry = phi_deadline(RETRY_MS);
        return 0;
    }
    if (rc == PH_EMISMATCH)
        return rc; // said already
    return phi_fail(peer->peers->report, rc,
                    "cannot reach rank %d (process %u on %s) through its socket \"%s\": %s",
                    peer->rank, peer->theirs.pid, peer->theirs.host, socket, ph_strerror(rc));
}

enum phi_reason phi_contact_against(const struct phi_peer *peer, bool by_net, enum phi_kind kind)
{
    const struct phi_transport *other = by_net ? &phi_transport_ipc : &phi_transport_net;
    if (!by_net && peer->net_refused)
        return peer->why;
    return other->viable(&peer->peers->mine, &peer->theirs, kind);
}

bool phi_contact_due(const struct phi_peer *peer)
{
    return peer->state == PHI_PEER_KNOWN && !peer->preparing && !peer->unreachable &&
           (!peer->refused || phi_now() >= peer->retry);
}

int phi_contact_prepare(struct phi_peer *peer, int64_t deadline)
{
    struct phi_peers *peers = peer->peers;
    if (phi_path_net(&peers->mine, &peer->theirs) && !peer->net_refused)
        return phi_hello_prepare(peer, deadline);
    if (!phi_capabilities_same_node(&peers->mine, &peer->theirs)) {
        peer->unreachable = true;
        peer->why = phi_transport_net.viable(&peers->mine, &peer->theirs, PHI_KIND_HOST);
        return 0;
    }
    struct phi_capabilities theirs = peer->theirs;
    struct contact c = {-1, -1, -1};
    peer->preparing = true;
    pthread_mutex_unlock(&peers->lock);
    int rc = make_contact(peer, &theirs, &c, call_deadline(deadline));
    int pidfd = rc ? -1 : open_pidfd(c.socket);
    pthread_mutex_lock(&peers->lock);
    peer->refused = false;
    if (rc)
        rc = fail_contact(peer, rc, theirs.socket);
    else if ((rc = map_segment(peer, &c)) == 0) {
        peer->socket = c.socket;
        peer->wake_fd = c.wake_fd;
        peer->pidfd = pidfd;
        peer->state = PHI_PEER_READY;
        // Another thread may sleep for all already: this peer is to wake it as well (see
        // set_sleeping).
        atomic_exchange(&phi_peer_mine(peer)->sleeping, peers->registered ? 1 : 0);
        c.socket = c.wake_fd = -1;
        pidfd = -1;
        rc = phi_service_watch(peers->service, peer);
        // A peer that leaves or aborted before we were here told nobody: see undrained().
        phi_segment_put32(peer->segment, &phi_peer_mine(peer)->mapped, 1);
        phi_peer_acknowledge(peer);
        phi_peer_look(peer);
        phi_expel_tell(peer);
        phi_log(peers->report, PH_LOG_INFO, "rank %d is on this node: process %u, %s", peer->rank,
                theirs.pid, theirs.device ? theirs.device_name : "host memory");
    }
    close_contact(&c);
    if (pidfd >= 0)
        close(pidfd);
    peer->preparing = false;
    phi_expel_settle(peer); // what came meanwhile
    phi_peer_renew(peer);
    phi_peers_changed(peers);
    return rc;
}

// ---- mapping

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
    case -EEXIST:
        return PHI_REASON_STALE;
    case -EXDEV:
        return PHI_REASON_PEER_ACCESS;
    default:
        return PHI_REASON_IMPORT;
    }
}

// Without the lock.
static int import_from(struct phi_peer *peer, const uint8_t *record, size_t size, int fd,
                       struct phi_import **import)
{
    struct phi_peers *peers = peer->peers;
    if (!phi_memory_own(peers->memory, record, size) || phi_node_is_self(peer->socket))
        return phi_memory_import(peers->memory, record, size, fd, import);
    return phi_fail(peers->report, -EBADMSG, "rank %d claims to own memory of this process",
                    peer->rank);
}

// The cause of a call that failed is not what its reason says to both ranks.
static int call(struct phi_peer *peer, struct phi_node_message *request,
                struct phi_node_message *answer, int *fd, int64_t deadline)
{
    int rc = phi_peer_call(peer, request, answer, fd, deadline);
    if (rc)
        phi_log(peer->peers->report, PH_LOG_WARN,
                "a question to rank %d through its socket \"%s\": %s", peer->rank,
                peer->theirs.socket, ph_strerror(rc));
    return rc;
}

#define ASK_AGAIN_MS 20

// The same, again where no answer came in time: a process, or a device, that is busy there says
// nothing of the path. Until the deadline, or the end of the peer or of this rank.
static int ask_again(struct phi_peer *peer, struct phi_node_message *request,
                     struct phi_node_message *answer, int *fd, int64_t deadline)
{
    struct phi_peers *peers = peer->peers;
    for (;;) {
        int rc = call(peer, request, answer, fd, call_deadline(deadline));
        if (rc != -ETIMEDOUT || phi_now() >= deadline)
            return rc;
        pthread_mutex_lock(&peers->lock);
        const bool over =
            peers->aborted || peers->fenced || peers->leaving || peer->state == PHI_PEER_BROKEN;
        pthread_mutex_unlock(&peers->lock);
        if (over)
            return rc;
        nanosleep(&(struct timespec){.tv_nsec = ASK_AGAIN_MS * PHI_MS}, NULL);
    }
}

// Without the lock. Writes a pattern through a mapping of the peer's probe allocation and lets its
// owner look: peer access that is advertised but broken ends here, not in the application's data.
static enum phi_reason probe(struct phi_peer *peer, int64_t deadline)
{
    struct phi_peers *peers = peer->peers;
    struct phi_node_message request, answer;
    int fd;
    int rc;
    if (peer->probe == NULL) { // else of an attempt that was cut short
        phi_peer_message(peer, PHI_NODE_PROBE, &request);
        if (ask_again(peer, &request, &answer, &fd, deadline))
            return PHI_REASON_DESCRIPTOR;
        rc = import_from(peer, answer.bytes, answer.bytes_size, fd, &peer->probe);
        if (fd >= 0)
            close(fd);
        if (rc)
            return reason_of(rc == -EIO ? PH_EDRIVER : rc);
    }
    uint64_t offset = (uint64_t)(peers->rank % PHI_PROBE_SLOTS) * PHI_PROBE_SIZE, seed;
    if (offset + PHI_PROBE_SIZE > peer->probe->size)
        return PHI_REASON_RECORD;
    if (peer->probe_seed == 0) { // else its owner may still look for that of an attempt before
        phi_random(&seed, sizeof seed);
        rc = phi_probe_write(peers->device, (char *)peer->probe->address + offset, seed | 1,
                             deadline);
        if (rc)
            return reason_of(rc);
        peer->probe_seed = seed | 1;
    }
    phi_peer_message(peer, PHI_NODE_VERIFY, &request);
    request.a = offset;
    request.b = peer->probe_seed;
    rc = ask_again(peer, &request, &answer, &fd, deadline);
    if (fd >= 0)
        close(fd);
    return rc ? reason_of(rc) : PHI_REASON_NONE;
}

// Whether an attempt was cut short by the caller's own deadline: then it says nothing of the path.
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
    struct phi_peers *peers = peer->peers;
    pthread_mutex_lock(&peers->lock);
    while (peer->probing && phi_now() < callers)
        phi_peers_follow(peers, callers);
    bool late = peer->probing, probed = peer->probed;
    peer->probing = late || !probed;
    pthread_mutex_unlock(&peers->lock);
    if (late)
        return PHI_REASON_PROBE_DEADLINE; // cut short
    if (probed)
        return peer->probe_reason;
    enum phi_reason reason = probe(peer, callers);
    pthread_mutex_lock(&peers->lock);
    peer->probing = false;
    peer->probed = !cut_short(reason, callers);
    peer->probe_reason = reason;
    phi_peers_changed(peers);
    pthread_mutex_unlock(&peers->lock);
    return reason;
}

// How long memory that the peer has freed may take to be unmapped here, so that other memory can
// be mapped in its place.
#define STALE_MS 1000

// Without the lock. The peer tells of what it has freed when it offers what lies there now.
static int import_in_place(struct phi_remote_export *e, int fd, struct phi_import **import,
                           int64_t deadline)
{
    struct phi_peers *peers = e->peer->peers;
    struct phi_executor *executor = peers->executor;
    int64_t soon = phi_deadline(STALE_MS);
    int rc = -EEXIST;
    while (rc == -EEXIST && phi_now() < (soon < deadline ? soon : deadline)) {
        if (!executor->ops->busy(executor, NULL, 0))
            phi_reap(peers);
        rc = import_from(e->peer, e->record, e->record_size, fd, import);
        if (rc == -EEXIST) // another context may have it open
            nanosleep(&(struct timespec){.tv_nsec = PHI_MS}, NULL);
    }
    return rc;
}

static enum phi_reason map_export(struct phi_remote_export *e, struct phi_import **import,
                                  int64_t callers)
{
    struct phi_peer *peer = e->peer;
    struct phi_peers *peers = peer->peers;
    enum phi_kind kind = (enum phi_kind)e->info.allocation.kind;
    enum phi_reason reason = phi_ipc_reach(&peers->mine, &peer->theirs, kind);
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
        if (call(peer, &request, &answer, &fd, deadline) || fd < 0)
            return PHI_REASON_DESCRIPTOR;
    }
    int rc = import_from(peer, e->record, e->record_size, fd, import);
    if (rc == -EEXIST && peers->config->reap == PHI_REAP_IDLE)
        rc = import_in_place(e, fd, import, deadline);
    if (fd >= 0)
        close(fd);
    return rc ? reason_of(rc == -EIO || rc == -ETIMEDOUT ? PH_EDRIVER : rc) : PHI_REASON_NONE;
}

void phi_contact_import(struct phi_remote_export *e, int64_t deadline)
{
    struct phi_peers *peers = e->peer->peers;
    struct phi_import *import = NULL;
    if (e->peer->link != NULL) { // nothing is mapped: the record has its region, or not
        e->tried = true;
        e->call = peers->exchange_calls;
        const bool there = e->has_target || e->peer->staging != NULL;
        e->reason = there ? PHI_REASON_NONE : PHI_REASON_NET_REGION;
        phi_count(peers->counters, imports, there);
        phi_count(peers->counters, import_bytes, there ? e->info.allocation.size : 0);
        return;
    }
    e->importing = true;
    pthread_mutex_unlock(&peers->lock);
    enum phi_reason reason = map_export(e, &import, deadline);
    int life = import ? 0 : ask_life(e->peer, call_deadline(deadline));
    bool gone = life && life != -ETIMEDOUT;
    bool tried = import != NULL || (life == 0 && !cut_short(reason, deadline));
    pthread_mutex_lock(&peers->lock);
    if (gone) { // the service thread will notice too; the exchange goes on now
        phi_peer_look(e->peer);
        phi_peer_lost(e->peer);
    }
    e->importing = false;
    e->tried = tried; // else the next exchange tries again
    e->call = peers->exchange_calls;
    e->import = import;
    e->reason = reason;
    if (import != NULL && e->id != PHI_FLAG_EXPORT) {
        phi_count(peers->counters, imports, 1);
        phi_count(peers->counters, import_bytes, import->size);
    }
    phi_log(peers->report, import ? PH_LOG_DEBUG : PH_LOG_WARN,
            "allocation %u of rank %d (%s, %llu bytes): %s", e->id, e->peer->rank,
            phi_kind_name((enum phi_kind)e->info.allocation.kind),
            (unsigned long long)e->info.allocation.size,
            import  ? "mapped"
            : tried ? phi_reason_text(reason)
            : gone  ? "the peer is gone"
                    : "the deadline passed while it was being mapped");
    phi_peers_changed(peers);
    if (peers->receiving)
        phi_mailbox_wake(peers->mailbox); // another exchange may have waited for this
}
