// SPDX-License-Identifier: BSD-3-Clause
#include "meeting/contact.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"
#include "meeting/trial.h"
#include "meeting/path.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "semaphore/segment.h"

// A call to a service thread is answered at once or never: it waits for nothing itself. At first
// contact it is made again, so that a process that is stopped holds up nothing else.
#define CONTACT_MS 1000

int64_t phi_contact_deadline(int64_t deadline)
{
    int64_t soon = phi_deadline(CONTACT_MS);
    return soon < deadline ? soon : deadline;
}

uint64_t phi_contact_nonce(const struct phi_peer *peer, uint64_t life)
{
    bool lower = peer->self->rank < peer->rank;
    return lower ? phi_hash(peer->self->incarnation, life)
                 : phi_hash(life, peer->self->incarnation);
}

int phi_contact_segment(struct phi_peer *peer, uint64_t life, struct phi_segment **segment)
{
    if (peer->to.link != NULL)
        return -ESTALE; // what is there is the net's, of a former life or of this one
    if (peer->segment != NULL && peer->contact.life != life) {
        if (peer->state == PHI_PEER_READY || peer->state == PHI_PEER_BROKEN ||
            peer->contact.registering)
            return -ESTALE;
        phi_segment_unregister(peer->segment, peer->self->device);
        phi_segment_close(peer->segment); // made for a former life that never used it
        peer->segment = NULL;
    }
    if (peer->segment == NULL) {
        int rc = phi_segment_create(peer->self->report, (uint32_t)peer->self->config->channels,
                                    phi_contact_nonce(peer, life), &peer->segment);
        if (rc)
            return rc;
        peer->contact.life = life;
    }
    *segment = peer->segment;
    return 0;
}

void phi_contact_close(struct phi_contact *c)
{
    for (int *fd = &c->socket; fd <= &c->pidfd; fd++)
        if (*fd >= 0)
            close(*fd);
}

// compare checks the settings that both ranks must have alike, as the answer to hello gives them.
static int compare(const struct phi_peer *peer, const struct phi_node_message *answer)
{
    const struct phi_self *self = peer->self;
    if (answer->c != (uint64_t)self->ranks)
        return phi_fail(self->report, PH_EMISMATCH,
                        "rank %d is of a job of %llu ranks, rank %d of one of %d: they must be "
                        "equal",
                        peer->rank, (unsigned long long)answer->c, self->rank, self->ranks);
    if (answer->b != (uint64_t)self->config->channels)
        return phi_fail(self->report, PH_EMISMATCH,
                        "rank %d has PEERHOP_CHANNELS=%llu, rank %d has %lld: they must be equal",
                        peer->rank, (unsigned long long)answer->b, self->rank,
                        (long long)self->config->channels);
    return answer->status == PH_EMISMATCH ? -EBADMSG : 0;
}

static int other_version(const struct phi_peer *peer, const struct phi_capabilities *theirs,
                         uint32_t version)
{
    return phi_fail(peer->self->report, PH_EMISMATCH,
                    "rank %d speaks version %u of the calls between ranks, and not %d (process %u "
                    "on %s): the ranks must have one version of the library",
                    peer->rank, version, PHI_NODE_VERSION, theirs->pid, theirs->host);
}

// If the peer lacks descriptors or memory for the moment, we ask again: -EAGAIN.
static int status_of(const struct phi_node_message *answer)
{
    const int status = answer->status;
    if (status == -EMFILE || status == -ENFILE || status == -ENOMEM)
        return -EAGAIN;
    return status > 0 ? -EBADMSG : status;
}

// Without the lock.
int phi_contact_hello(struct phi_peer *peer, const struct phi_capabilities *theirs,
                      struct phi_contact *c, int64_t deadline)
{
    struct phi_node_message request, answer;
    phi_peer_message(peer, PHI_NODE_HELLO, &request);
    request.a = theirs->nonce;
    int rc =
        phi_node_call(c->socket, &request, &answer, &c->wake_fd, phi_contact_deadline(deadline));
    if (rc == -EPROTONOSUPPORT)
        return other_version(peer, theirs, answer.version);
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
    int rc = phi_node_call(socket, &request, &answer, pidfd, phi_contact_deadline(deadline));
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
static int fetch_segment(const struct phi_peer *peer, struct phi_contact *c, int64_t deadline)
{
    struct phi_node_message request, answer;
    phi_peer_message(peer, PHI_NODE_SEGMENT, &request);
    request.a = peer->contact.net_refused;
    int rc =
        phi_node_call(c->socket, &request, &answer, &c->segment_fd, phi_contact_deadline(deadline));
    if (rc == 0)
        rc = status_of(&answer);
    return rc == 0 && c->segment_fd < 0 ? -EBADMSG : rc;
}

// Without the lock.
static bool is_far(struct phi_peer *peer)
{
    pthread_mutex_lock(&peer->self->lock);
    const bool far = phi_contact_by_net(peer);
    pthread_mutex_unlock(&peer->self->lock);
    return far;
}

// Without the lock: talks to the peer's service thread. Only as far as to where it shows that ipc
// does not serve the two.
int phi_contact_make(struct phi_peer *peer, const struct phi_capabilities *theirs,
                     struct phi_contact *c, int64_t deadline)
{
    int rc = phi_node_connect(theirs->socket, &c->socket);
    if (rc == 0)
        rc = phi_contact_hello(peer, theirs, c, deadline);
    if (rc == 0)
        rc = phi_trial_try(peer, c->socket, deadline);
    if (rc == 0)
        c->far = is_far(peer);
    if (rc == 0 && peer->self->rank > peer->rank && !c->far)
        rc = fetch_segment(peer, c, deadline);
    if (rc == 0 && !c->far)
        rc = fetch_pidfd(peer, c->socket, deadline, &c->pidfd);
    return rc;
}

int phi_contact_pidfd(struct phi_peer *peer, const struct phi_capabilities *theirs,
                      int64_t deadline, int *pidfd)
{
    struct phi_contact c = PHI_NO_CONTACT;
    *pidfd = -1;
    // Its socket may have its name in another network namespace; or it has ended.
    int rc = phi_node_connect(theirs->socket, &c.socket);
    if (rc == -ECONNREFUSED || rc == -ENOENT || rc == -EPERM || rc == -EACCES || rc == -EBADMSG)
        return 0;
    if (rc == 0)
        rc = phi_contact_hello(peer, theirs, &c, deadline);
    if (rc == 0)
        rc = fetch_pidfd(peer, c.socket, deadline, pidfd);
    phi_contact_close(&c);
    return rc;
}
