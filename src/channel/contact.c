// SPDX-License-Identifier: BSD-3-Clause
#include "channel/contact.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"
#include "channel/attempt.h"
#include "channel/end.h"
#include "channel/expel.h"
#include "channel/hello.h"
#include "channel/lives.h"
#include "channel/wake.h"

// How long a peer that refused to be connected to is left alone.
#define RETRY_MS 100
// A call to a service thread is answered at once or never: it waits for nothing itself. At first
// contact it is made again, so that a process that is stopped holds up nothing else.
#define CONTACT_MS 1000
// Who has not answered for so long is said to be mute.
#define MUTE_MS 100

static int64_t call_deadline(int64_t deadline)
{
    int64_t soon = phi_deadline(CONTACT_MS);
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

struct contact {
    int socket, wake_fd, segment_fd, pidfd;
    bool far; // ipc does not serve the two
};
#define NO_CONTACT ((struct contact){-1, -1, -1, -1, false})

static void close_contact(struct contact *c)
{
    for (int *fd = &c->socket; fd <= &c->pidfd; fd++)
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

// What the peer lacks itself, for the moment, is asked for again: -EAGAIN.
static int status_of(const struct phi_node_message *answer)
{
    const int status = answer->status;
    if (status == -EMFILE || status == -ENFILE || status == -ENOMEM)
        return -EAGAIN;
    return status > 0 ? -EBADMSG : status;
}

// Without the lock.
static int say_hello(struct phi_peer *peer, const struct phi_capabilities *theirs,
                     struct contact *c, int64_t deadline)
{
    struct phi_node_message request, answer;
    phi_peer_message(peer, PHI_NODE_HELLO, &request);
    request.a = theirs->nonce;
    int rc = phi_node_call(c->socket, &request, &answer, &c->wake_fd, call_deadline(deadline));
    if (rc == 0 && answer.status != PH_EMISMATCH)
        rc = status_of(&answer);
    if (rc)
        return rc;
    if (answer.a != theirs->nonce || (answer.status == 0 && c->wake_fd < 0))
        return -ECONNREFUSED; // somebody else's socket
    return compare(peer, &answer);
}

// Whatever a peer has sent as one. A folder of /proc passes; see phi_service_watch.
static bool is_process(int fd)
{
    return syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0) == 0 || errno != EBADF;
}

// Without the lock, behind the hello. A descriptor of the peer's process, as it gives it itself:
// one that is opened by the process id which the socket tells may be another's by then, and there
// is none in another PID namespace. Only a peer that says so (-ENOENT) has none: without one the
// end of its connection stands for its own, so no passing failure may be taken for that.
static int fetch_pidfd(const struct phi_peer *peer, int socket, int64_t deadline, int *pidfd)
{
    struct phi_node_message request, answer;
    phi_peer_message(peer, PHI_NODE_PROCESS, &request);
    int rc = phi_node_call(socket, &request, &answer, pidfd, call_deadline(deadline));
    if (rc == 0 && answer.status == 0 && *pidfd < 0)
        return -EBADMSG;
    if (rc == 0 && *pidfd >= 0 && !is_process(*pidfd)) {
        close(*pidfd);
        *pidfd = -1;
    }
    if (rc || answer.status == -ENOENT)
        return rc;
    return status_of(&answer);
}

// Without the lock: asks the lower rank for the pair's segment.
static int fetch_segment(const struct phi_peer *peer, struct contact *c, int64_t deadline)
{
    struct phi_node_message request, answer;
    phi_peer_message(peer, PHI_NODE_SEGMENT, &request);
    request.a = peer->net_refused;
    int rc = phi_node_call(c->socket, &request, &answer, &c->segment_fd, call_deadline(deadline));
    if (rc == 0)
        rc = status_of(&answer);
    return rc == 0 && c->segment_fd < 0 ? -EBADMSG : rc;
}

// Without the lock.
static bool is_far(struct phi_peer *peer)
{
    pthread_mutex_lock(&peer->peers->lock);
    const bool far = phi_contact_by_net(peer);
    pthread_mutex_unlock(&peer->peers->lock);
    return far;
}

// Without the lock: talks to the peer's service thread. Only as far as to where it shows that ipc
// does not serve the two.
static int make_contact(struct phi_peer *peer, const struct phi_capabilities *theirs,
                        struct contact *c, int64_t deadline)
{
    int rc = phi_node_connect(theirs->socket, &c->socket);
    if (rc == 0)
        rc = say_hello(peer, theirs, c, deadline);
    if (rc == 0)
        rc = phi_attempt_make(peer, c->socket, deadline);
    if (rc == 0)
        c->far = is_far(peer);
    if (rc == 0 && peer->peers->rank > peer->rank && !c->far)
        rc = fetch_segment(peer, c, deadline);
    if (rc == 0 && !c->far)
        rc = fetch_pidfd(peer, c->socket, deadline, &c->pidfd);
    return rc;
}

int phi_contact_pidfd(struct phi_peer *peer, const struct phi_capabilities *theirs,
                      int64_t deadline, int *pidfd)
{
    struct contact c = NO_CONTACT;
    *pidfd = -1;
    // Its socket may have its name in another network namespace; or it has ended.
    int rc = phi_node_connect(theirs->socket, &c.socket);
    if (rc == -ECONNREFUSED || rc == -ENOENT || rc == -EPERM || rc == -EACCES || rc == -EBADMSG)
        return 0;
    if (rc == 0)
        rc = say_hello(peer, theirs, &c, deadline);
    if (rc == 0)
        rc = fetch_pidfd(peer, c.socket, deadline, pidfd);
    close_contact(&c);
    return rc;
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

// Nothing of the peer's is mapped, and it has not come to us. A later life of the rank has another
// socket.
static void end_life(struct phi_peer *peer, int code)
{
    phi_hello_drop(peer);
    phi_peer_break(peer, code);
    peer->gone = true;
}

// What the contact says of the peer's end: what it answers, or that a process that has answered
// does not listen any more.
static int end_of(const struct phi_peer *peer, int rc)
{
    if (phi_attempt_end(peer))
        return phi_attempt_end(peer);
    return (rc == -ECONNREFUSED || rc == -ENOENT) && phi_attempt_answered(peer) ? PH_EPEER : 0;
}

// What it answered, or did not, to who asked it at that time. One who had no time to wait for an
// answer learns nothing.
static void note_silence(struct phi_peer *peer, int rc, int64_t asked)
{
    if (rc != -ETIMEDOUT)
        peer->mute = false;
    else if (phi_now() >= asked + MUTE_MS * PHI_MS)
        peer->mute = true;
}

static int fail_contact(struct phi_peer *peer, int rc, const char *socket)
{
    // -EAGAIN: its backlog is full for the moment, of whoever knocks there; or it has not tried yet
    // whether ipc serves. -ETIMEDOUT: it is stopped, or has no core.
    if (rc == -ECONNREFUSED || rc == -ENOENT || rc == -ECONNRESET || rc == -ESTALE ||
        rc == -EAGAIN || rc == -ETIMEDOUT) {
        // Perhaps a former life's record: a newer one may come. Or the peer has still to part with
        // a former life of ours.
        peer->refused = true;
        peer->retry = phi_deadline(RETRY_MS);
        return 0;
    }
    if (rc == PH_EMISMATCH)
        return rc; // said already
    return phi_fail(peer->peers->report, rc,
                    "cannot reach rank %d (process %u on %s) through its socket \"%s\": %s%s",
                    peer->rank, peer->theirs.pid, peer->theirs.host, socket, ph_strerror(rc),
                    rc == -EPERM && phi_node_ambiguous(geteuid())
                        ? ": this process has the overflow user id, as all users whom its user "
                          "namespace does not map (uid_map), or PEERHOP_PATH=net"
                        : "");
}

enum phi_reason phi_contact_against(const struct phi_peer *peer, bool by_net, enum phi_kind kind)
{
    const struct phi_transport *other = by_net ? &phi_transport_ipc : &phi_transport_net;
    if (!by_net && peer->net_refused)
        return peer->why;
    if (by_net && phi_attempt_against(peer) != PHI_REASON_NONE)
        return phi_attempt_against(peer);
    if (by_net && peer->elsewhere)
        return PHI_REASON_ELSEWHERE;
    return other->viable(&peer->peers->mine, &peer->theirs, kind);
}

bool phi_contact_by_net(const struct phi_peer *peer)
{
    return !peer->net_refused && (phi_path_net(&peer->peers->mine, &peer->theirs) ||
                                  peer->elsewhere || phi_attempt_against(peer) != PHI_REASON_NONE);
}

bool phi_contact_due(const struct phi_peer *peer)
{
    return peer->state == PHI_PEER_KNOWN && !peer->preparing && !peer->unreachable &&
           (!peer->refused || phi_now() >= peer->retry);
}

// With the lock, given up in between.
static void finish(struct phi_peer *peer, struct contact *c)
{
    close_contact(c);
    peer->preparing = false;
    phi_expel_settle(peer); // what came meanwhile
    phi_peer_renew(peer);
    phi_peers_changed(peer->peers);
}

// Who waits for the hello of a peer to which a socket leads sees its end there. With the lock,
// given up in between.
static void look(struct phi_peer *peer, int64_t deadline)
{
    struct phi_capabilities theirs = peer->theirs;
    struct contact c = NO_CONTACT;
    const int64_t now = phi_now();
    peer->preparing = true;
    pthread_mutex_unlock(&peer->peers->lock);
    int rc = phi_node_connect(theirs.socket, &c.socket);
    if (rc == 0)
        rc = say_hello(peer, &theirs, &c, deadline);
    if (rc == 0)
        rc = phi_attempt_ask(peer, c.socket, call_deadline(deadline));
    pthread_mutex_lock(&peer->peers->lock);
    note_silence(peer, rc, now);
    if (peer->state == PHI_PEER_KNOWN && end_of(peer, rc))
        end_life(peer, end_of(peer, rc));
    finish(peer, &c);
}

static int prepare_net(struct phi_peer *peer, int64_t deadline)
{
    // Not before the first hello, which would be late by it.
    if (peer->link != NULL && phi_attempt_against(peer) != PHI_REASON_NONE)
        look(peer, deadline);
    return phi_contact_by_net(peer) && phi_contact_due(peer) ? phi_hello_prepare(peer, deadline)
                                                             : 0;
}

static void make_ready(struct phi_peer *peer, struct contact *c)
{
    struct phi_peers *peers = peer->peers;
    peer->socket = c->socket;
    peer->wake_fd = c->wake_fd;
    peer->pidfd = c->pidfd;
    c->socket = c->wake_fd = c->pidfd = -1;
    phi_attempt_keep(peer);
    peer->state = PHI_PEER_READY;
    // Another thread may sleep for all already: this peer is to wake it as well (see
    // set_sleeping).
    atomic_exchange(&phi_peer_mine(peer)->sleeping, peers->registered ? 1 : 0);
}

// With the lock: what was found.
static int conclude(struct phi_peer *peer, int rc, struct contact *c)
{
    struct phi_peers *peers = peer->peers;
    const struct phi_capabilities theirs = peer->theirs;
    peer->refused = false;
    if (end_of(peer, rc)) {
        end_life(peer, end_of(peer, rc));
        return 0;
    }
    if (rc)
        return fail_contact(peer, rc, theirs.socket);
    if (c->far) {
        phi_log(peers->report, PH_LOG_INFO, "rank %d is not reached by ipc: %s", peer->rank,
                phi_reason_text(phi_attempt_against(peer)));
        return 0; // now over the net
    }
    if ((rc = map_segment(peer, c)))
        return rc;
    make_ready(peer, c);
    rc = phi_service_watch(peer);
    // A peer that leaves or aborted before we were here told nobody: see undrained().
    phi_segment_put32(peer->segment, &phi_peer_mine(peer)->mapped, 1);
    phi_peer_acknowledge(peer);
    phi_peer_look(peer);
    phi_expel_tell(peer);
    phi_log(peers->report, PH_LOG_INFO, "rank %d is on this node: process %u, %s", peer->rank,
            theirs.pid, theirs.device ? theirs.device_name : "host memory");
    return rc;
}

int phi_contact_prepare(struct phi_peer *peer, int64_t deadline)
{
    struct phi_peers *peers = peer->peers;
    if (phi_contact_by_net(peer))
        return prepare_net(peer, deadline);
    if (!phi_capabilities_same_node(&peers->mine, &peer->theirs)) {
        peer->unreachable = true;
        peer->why = phi_transport_net.viable(&peers->mine, &peer->theirs, PHI_KIND_HOST);
        return 0;
    }
    struct phi_capabilities theirs = peer->theirs;
    struct contact c = NO_CONTACT;
    const int64_t now = phi_now();
    peer->preparing = true;
    pthread_mutex_unlock(&peers->lock);
    int rc = make_contact(peer, &theirs, &c, deadline);
    pthread_mutex_lock(&peers->lock);
    note_silence(peer, rc, now);
    // Who lives listens, and did before its record came: for this life that stays so.
    peer->shut = c.socket < 0 && (rc == -ECONNREFUSED || rc == -ENOENT);
    rc = conclude(peer, rc, &c);
    if (peer->shut && peer->state == PHI_PEER_KNOWN)
        phi_hello_knock(peer, deadline);
    finish(peer, &c);
    return rc;
}
