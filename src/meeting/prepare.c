// SPDX-License-Identifier: BSD-3-Clause
#include "meeting/prepare.h"

#include <errno.h>
#include <unistd.h>

#include "base/clock.h"
#include "ending/end.h"
#include "ending/expel.h"
#include "ending/link.h"
#include "ending/look.h"
#include "lane/flag_memory.h"
#include "meeting/trial.h"
#include "meeting/contact.h"
#include "meeting/hello.h"
#include "meeting/lives.h"
#include "meeting/path.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "peer/wake.h"
#include "semaphore/segment.h"

// How long a peer that refused to be connected to is left alone.
#define RETRY_MS 100

// A peer that has not answered for so long counts as mute.
#define MUTE_MS 100

// The segment's fault was reported already. This adds whose segment it is.
static int fail_segment(const struct phi_peer *peer, int rc)
{
    char why[256];
    phi_report_copy(peer->self->report, why, sizeof why);
    return phi_fail(peer->self->report, rc, "rank %d (process %u on %s): %s", peer->rank,
                    peer->theirs.pid, peer->theirs.host, why);
}

// With the lock. The lower rank's own segment, or the one that came from it.
static int take_segment(struct phi_peer *peer, struct phi_contact *c)
{
    struct phi_segment *segment;
    if (peer->self->rank < peer->rank)
        return phi_contact_segment(peer, peer->incarnation, &segment);
    int rc = phi_segment_open(peer->self->report, c->segment_fd,
                              phi_contact_nonce(peer, peer->incarnation), &segment);
    c->segment_fd = -1; // taken over
    if (rc)
        return fail_segment(peer, rc);
    if (segment->capacity != (uint32_t)peer->self->config->channels) {
        phi_segment_close(segment);
        return phi_fail(peer->self->report, -EBADMSG,
                        "rank %d (process %u on %s) sent another segment than it said", peer->rank,
                        peer->theirs.pid, peer->theirs.host);
    }
    phi_segment_close(peer->segment); // of a contact that failed later
    peer->segment = segment;
    return 0;
}

// Gives up the lock: registering can take long, and what could end that may need the lock. Nobody
// replaces the segment meanwhile (registering).
static int map_segment(struct phi_peer *peer, struct phi_contact *c)
{
    struct phi_self *self = peer->self;
    int rc = take_segment(peer, c);
    if (rc || self->device == NULL)
        return rc;
    peer->contact.registering = true;
    pthread_mutex_unlock(&self->lock);
    rc = phi_segment_register(peer->segment, self->device);
    if (rc == 0)
        rc = phi_flag_memory_open(peer);
    pthread_mutex_lock(&self->lock);
    peer->contact.registering = false;
    return rc;
}

// Nothing of the peer's is mapped, and it has not come to us. A later life of the rank has another
// socket.
static void end_life(struct phi_peer *peer, int code)
{
    phi_hello_drop(peer);
    phi_peer_break(peer, code);
    peer->end.gone = true;
}

// end_of returns the peer's end as the contact shows it: the end that the peer answered, or
// PH_EPEER if a process that has answered before does not listen any more.
static int end_of(const struct phi_peer *peer, int rc)
{
    if (phi_trial_end(peer))
        return phi_trial_end(peer);
    return (rc == -ECONNREFUSED || rc == -ENOENT) && phi_trial_answered(peer) ? PH_EPEER : 0;
}

// note_silence notes whether the peer answered a question of the time `asked`. A caller that had no
// time to wait for an answer learns nothing.
static void note_silence(struct phi_peer *peer, int rc, int64_t asked)
{
    if (rc != -ETIMEDOUT)
        peer->contact.mute = false;
    else if (phi_now() >= asked + MUTE_MS * PHI_MS)
        peer->contact.mute = true;
}

static int fail_contact(struct phi_peer *peer, int rc, const char *socket)
{
    // -EAGAIN: the peer's backlog is full for the moment, whoever knocks there; or the peer has not
    // tried yet whether ipc serves. -ETIMEDOUT: the peer is stopped, or has no core.
    if (rc == -ECONNREFUSED || rc == -ENOENT || rc == -ECONNRESET || rc == -ESTALE ||
        rc == -EAGAIN || rc == -ETIMEDOUT) {
        // The record may be a former life's: a newer one may come. Or the peer has still to part
        // with a former life of ours.
        peer->contact.refused = true;
        peer->contact.retry = phi_deadline(RETRY_MS);
        return 0;
    }
    if (rc == PH_EMISMATCH)
        return rc; // said already
    return phi_fail(peer->self->report, rc,
                    "cannot reach rank %d (process %u on %s) through its socket \"%s\": %s%s",
                    peer->rank, peer->theirs.pid, peer->theirs.host, socket, ph_strerror(rc),
                    rc == -EPERM && phi_node_ambiguous(geteuid())
                        ? ": this process has the overflow user id, as all users whom its user "
                          "namespace does not map (uid_map), or PEERHOP_PATH=net"
                        : "");
}

// With the lock, given up in between.
static void finish(struct phi_peer *peer, struct phi_contact *c)
{
    phi_contact_close(c);
    peer->contact.preparing = false;
    phi_expel_settle(peer); // what came meanwhile
    phi_peer_renew(peer);
    phi_self_changed(peer->self);
}

// While we wait for a peer's hello over the net, we ask its socket whether it lives: an exited
// process never sends a hello. With the lock, given up in between.
static void look(struct phi_peer *peer, int64_t deadline)
{
    struct phi_capabilities theirs = peer->theirs;
    struct phi_contact c = PHI_NO_CONTACT;
    const int64_t now = phi_now();
    peer->contact.preparing = true;
    pthread_mutex_unlock(&peer->self->lock);
    int rc = phi_node_connect(theirs.socket, &c.socket);
    if (rc == 0)
        rc = phi_contact_hello(peer, &theirs, &c, deadline);
    if (rc == 0)
        rc = phi_trial_ask(peer, c.socket, phi_contact_deadline(deadline));
    pthread_mutex_lock(&peer->self->lock);
    note_silence(peer, rc, now);
    if (peer->state == PHI_PEER_KNOWN && end_of(peer, rc))
        end_life(peer, end_of(peer, rc));
    finish(peer, &c);
}

static int prepare_net(struct phi_peer *peer, int64_t deadline)
{
    // We do not look before the first hello is sent, as that would delay it.
    if (peer->to.link != NULL && phi_trial_against(peer) != PHI_REASON_NONE)
        look(peer, deadline);
    return phi_contact_by_net(peer) && phi_contact_due(peer) ? phi_hello_prepare(peer, deadline)
                                                             : 0;
}

static void make_ready(struct phi_peer *peer, struct phi_contact *c)
{
    struct phi_self *self = peer->self;
    peer->to.socket = c->socket;
    peer->to.wake_fd = c->wake_fd;
    peer->to.pidfd = c->pidfd;
    c->socket = c->wake_fd = c->pidfd = -1;
    phi_trial_join(peer);
    peer->state = PHI_PEER_READY;
    // Another thread may sleep for all already: this peer is to wake it as well (see
    // set_sleeping() in exchange/inbox.c).
    atomic_exchange(&phi_peer_mine(peer)->sleeping, self->inbox.registered ? 1 : 0);
}

// With the lock: what was found.
static int conclude(struct phi_peer *peer, int rc, struct phi_contact *c)
{
    struct phi_self *self = peer->self;
    const struct phi_capabilities theirs = peer->theirs;
    peer->contact.refused = false;
    if (end_of(peer, rc)) {
        end_life(peer, end_of(peer, rc));
        return 0;
    }
    if (rc)
        return fail_contact(peer, rc, theirs.socket);
    if (c->far) {
        phi_log(self->report, PH_LOG_INFO, "rank %d is not reached by ipc: %s", peer->rank,
                phi_reason_text(phi_trial_against(peer)));
        return 0; // now over the net
    }
    if ((rc = map_segment(peer, c)))
        return rc;
    make_ready(peer, c);
    rc = phi_service_watch(peer);
    // A peer that leaves or aborted before we were here told nobody: see undrained() in
    // service/leave.c.
    phi_segment_put32(peer->segment, &phi_peer_mine(peer)->mapped, 1);
    phi_peer_acknowledge(peer);
    phi_peer_look(peer);
    phi_expel_tell(peer);
    phi_log(self->report, PH_LOG_INFO, "rank %d is on this node: process %u, %s", peer->rank,
            theirs.pid, theirs.device ? theirs.device_name : "host memory");
    return rc;
}

int phi_contact_prepare(struct phi_peer *peer, int64_t deadline)
{
    struct phi_self *self = peer->self;
    if (phi_contact_by_net(peer))
        return prepare_net(peer, deadline);
    if (!phi_capabilities_same_node(&self->mine, &peer->theirs) ||
        phi_capabilities_apart(&self->mine, &peer->theirs)) {
        peer->contact.unreachable = true;
        peer->contact.why = phi_path_viable(true, &self->mine, &peer->theirs, PHI_KIND_HOST);
        return 0;
    }
    struct phi_capabilities theirs = peer->theirs;
    struct phi_contact c = PHI_NO_CONTACT;
    const int64_t now = phi_now();
    peer->contact.preparing = true;
    pthread_mutex_unlock(&self->lock);
    int rc = phi_contact_make(peer, &theirs, &c, deadline);
    pthread_mutex_lock(&self->lock);
    note_silence(peer, rc, now);
    // A live process listens, and listened before it published its record. So a refused connection
    // stays refused for this life.
    peer->contact.shut = c.socket < 0 && (rc == -ECONNREFUSED || rc == -ENOENT);
    rc = conclude(peer, rc, &c);
    if (peer->contact.shut && peer->state == PHI_PEER_KNOWN)
        phi_hello_knock(peer, deadline);
    finish(peer, &c);
    return rc;
}
