// SPDX-License-Identifier: BSD-3-Clause
#include "meeting/hello.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/random.h"
#include "ending/expel.h"
#include "ending/link.h"
#include "ending/look.h"
#include "lane/staging.h"
#include "meeting/contact.h"
#include "meeting/lives.h"
#include "meeting/opener.h"
#include "meeting/path.h"
#include "peer/hello_wire.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "peer/wake.h"
#include "semaphore/segment.h"

#define CONNECT_MS 100

static void encode(struct phi_peer *peer, enum phi_reason reason, struct phi_writer *writer)
{
    struct phi_self *self = peer->self;
    struct phi_hello_words words = {
        .version = PHI_HELLO_VERSION,
        .reason = reason,
        .nonce = peer->to.hello->nonce,
        .ranks = (uint32_t)self->ranks,
        .channels = (uint32_t)self->config->channels,
    };
    if (peer->to.link != NULL) {
        words.wire = *phi_net_wire(self->net.net);
        const uint8_t *address = phi_link_address(peer->to.link, &words.address_size, &words.rails);
        memcpy(words.address, address, words.address_size);
    }
    words.stage = phi_staging_words(peer);
    phi_hello_encode(&words, writer);
}

// ---- messages over the link

static void tell_contact(struct phi_peer *peer, enum phi_node_type type)
{
    struct phi_node_message message;
    struct phi_writer writer = {0};
    phi_peer_message(peer, type, &message);
    message.a = peer->to.hello->theirs.nonce;
    encode(peer, PHI_REASON_NONE, &writer);
    if (!writer.error && writer.size <= sizeof message.bytes) {
        memcpy(message.bytes, writer.bytes, writer.size);
        message.bytes_size = (uint32_t)writer.size;
        phi_link_tell_again(peer->to.link, &message,
                            offsetof(struct phi_node_message, bytes) + message.bytes_size);
    }
    phi_writer_fini(&writer);
}

// ---- the peer's hello

static int mismatch(struct phi_peer *peer, const struct phi_hello_words *words)
{
    struct phi_self *self = peer->self;
    if (words->ranks != (uint32_t)self->ranks)
        return phi_fail(self->report, PH_EMISMATCH,
                        "rank %d is of a job of %u ranks, rank %d of one of %d: they must be equal",
                        peer->rank, words->ranks, self->rank, self->ranks);
    if (words->channels != (uint32_t)self->config->channels)
        return phi_fail(self->report, PH_EMISMATCH,
                        "rank %d has PEERHOP_CHANNELS=%u, rank %d has %lld: they must be equal",
                        peer->rank, words->channels, self->rank, (long long)self->config->channels);
    return 0;
}

static bool same_wire(const struct phi_peer *peer, const struct phi_hello_words *words)
{
    const struct phi_net_wire *mine = phi_net_wire(peer->self->net.net);
    return words->version == PHI_HELLO_VERSION && words->wire.protocol == mine->protocol &&
           words->wire.protocol_version == mine->protocol_version &&
           words->wire.immediate == mine->immediate && words->wire.format == mine->format;
}

static enum phi_reason against(const struct phi_peer *peer, const struct phi_hello_words *words)
{
    if (peer->to.link == NULL)
        return PHI_REASON_NET_HERE;
    if (words->reason != PHI_REASON_NONE)
        return PHI_REASON_NET_THERE;
    return same_wire(peer, words) ? PHI_REASON_NONE : PHI_REASON_NET_WIRE;
}

// Gives up the lock. Both ranks come here: a hello with a reason, or two that do not match, say the
// same to both.
static void no_way(struct phi_peer *peer, enum phi_reason why)
{
    peer->contact.why = why;
    if (peer->contact.elsewhere || phi_path_only_net(&peer->self->mine, &peer->theirs)) {
        peer->contact.unreachable = true;
        return;
    }
    phi_log(peer->self->report, PH_LOG_INFO, "rank %d is not reached over the net: %s", peer->rank,
            phi_reason_text(why));
    peer->contact.net_refused = true;
    peer->contact.refused = false; // now by ipc, which may serve in one direction
    phi_hello_drop(peer);
}

static int make_hello(struct phi_peer *peer)
{
    if (peer->to.hello == NULL) {
        peer->to.hello = calloc(1, sizeof *peer->to.hello);
        if (peer->to.hello == NULL)
            return phi_fail(peer->self->report, -ENOMEM, "out of memory for rank %d", peer->rank);
        phi_random(&peer->to.hello->nonce, sizeof peer->to.hello->nonce);
    }
    return 0;
}

void phi_hello_knock(struct phi_peer *peer, int64_t deadline)
{
    struct phi_self *self = peer->self;
    const struct phi_hello_words words = {
        .version = PHI_HELLO_VERSION,
        .reason = PHI_REASON_ELSEWHERE,
        .ranks = (uint32_t)self->ranks,
        .channels = (uint32_t)self->config->channels,
    };
    const uint64_t incarnation = peer->incarnation;
    struct phi_writer writer = {0};
    if (peer->contact.knocked || phi_net_pair(&self->mine, &peer->theirs) != PHI_REASON_NONE)
        return;
    pthread_mutex_unlock(&self->lock);
    phi_hello_encode(&words, &writer);
    const bool sent = !writer.error && phi_mailbox_send(self->mailbox, peer->rank, incarnation,
                                                        writer.bytes, writer.size, deadline) == 0;
    phi_writer_fini(&writer);
    pthread_mutex_lock(&self->lock);
    peer->contact.knocked = sent; // else again, as the socket is
}

int phi_hello_file(struct phi_peer *peer, const void *bytes, size_t size)
{
    struct phi_hello_words words;
    int rc = phi_hello_decode(bytes, size, &words);
    const bool knocks = rc == 0 && words.reason == PHI_REASON_ELSEWHERE;
    if (rc || (!knocks && (rc = make_hello(peer))))
        return rc;
    // A life that writes to this one lives at the same time. One at whose socket nobody listens
    // here, or that says so of ours, runs under another kernel, or the name is not to be seen.
    if (peer->state == PHI_PEER_KNOWN && (knocks || peer->contact.shut))
        peer->contact.elsewhere = true;
    if (!knocks) {
        peer->to.hello->theirs = words;
        peer->to.hello->known = true;
    }
    peer->contact.refused = false; // its exchange goes on at once
    phi_self_changed(peer->self);
    return 0;
}

// ---- ready

// Nobody has asked for the net, and ipc would serve better between ranks of one node. Once for all
// peers: mostly all are parted by the same.
static void tell_way(struct phi_peer *peer)
{
    struct phi_self *self = peer->self;
    const struct phi_capabilities *theirs = &peer->theirs;
    const bool wanted = !phi_capabilities_same_node(&self->mine, theirs) ||
                        self->mine.device != theirs->device || phi_path_asked(&self->mine, theirs);
    phi_log(self->report, PH_LOG_INFO, "rank %d is reached over the net (%s): process %u on %s",
            peer->rank, phi_net_name(self->net.net), theirs->pid, theirs->host);
    if (wanted || self->net.told)
        return;
    self->net.told = true;
    phi_log(self->report, PH_LOG_WARN,
            "rank %d, by its record on this node, is reached over the net, and not by ipc: %s "
            "(PEERHOP_PATH=ipc makes an error of that, net says that it is wanted)",
            peer->rank, phi_reason_text(phi_contact_against(peer, true, PHI_KIND_HOST)));
}

// The peer knows our address and we know its. What follows on the link finds the pair ready.
static void make_ready(struct phi_peer *peer)
{
    if (peer->state != PHI_PEER_KNOWN || peer->end.gone)
        return;
    struct phi_self *self = peer->self;
    peer->state = PHI_PEER_READY;
    peer->contact.refused = false;
    phi_service_watch(peer); // what it cannot watch ends with the connection
    phi_link_guard(peer->to.link);
    // Nobody is ready without the other: it can be given regions of ours from now on.
    atomic_store(&phi_peer_theirs(peer)->mapped, 1);
    phi_segment_put32(peer->segment, &phi_peer_mine(peer)->mapped, 1);
    phi_peer_acknowledge(peer);
    phi_peer_look(peer);
    phi_expel_tell(peer);
    tell_way(peer);
    phi_service_wake(self); // beats for it
    phi_self_changed(self);
    phi_mailbox_wake(self->mailbox);
}

static int connect_link(struct phi_peer *peer)
{
    const struct phi_hello_words *theirs = &peer->to.hello->theirs;
    int rc = phi_link_connect(peer->to.link, theirs->address, theirs->address_size, theirs->rails);
    return rc ? rc : phi_staging_connect(peer, &theirs->stage);
}

static void take_contact(struct phi_peer *peer, const struct phi_node_message *message)
{
    struct phi_hello *hello = peer->to.hello;
    if (message->to != peer->self->incarnation || message->from != peer->incarnation ||
        message->rank != peer->rank || message->a != hello->nonce)
        return; // another life's
    if (message->type == PHI_NODE_CONNECT) {
        if (!hello->known && phi_hello_file(peer, message->bytes, message->bytes_size))
            return;
        if (against(peer, &hello->theirs) != PHI_REASON_NONE || connect_link(peer))
            return; // the exchange finds that out
        tell_contact(peer, PHI_NODE_CONNECTED);
    }
    if (hello->known)
        make_ready(peer);
}

bool phi_hello_receive(struct phi_peer *peer, struct phi_node_message *message, bool *question)
{
    size_t size = 0;
    uint8_t bytes[PHI_NET_MESSAGE_MAX];
    *question = false;
    if (!phi_link_receive(peer->to.link, bytes, &size))
        return false;
    const size_t head = offsetof(struct phi_node_message, bytes);
    memset(message, 0, sizeof *message);
    if (size < head || size > sizeof *message)
        return true;
    memcpy(message, bytes, size);
    if (message->magic != PHI_NODE_MAGIC || message->version != PHI_NODE_VERSION ||
        message->bytes_size != size - head)
        return true; // not ours: as if it had not come
    if (message->type == PHI_NODE_CONNECT || message->type == PHI_NODE_CONNECTED) {
        take_contact(peer, message);
    } else if (message->type & PHI_MESSAGE_ANSWER) {
        message->type &= (uint16_t)~PHI_MESSAGE_ANSWER;
        peer->to.hello->answer = *message;
        phi_self_changed(peer->self);
    } else {
        *question = true;
    }
    return true;
}

// ---- our side

static int open_link(struct phi_peer *peer)
{
    struct phi_self *self = peer->self;
    if (peer->to.link != NULL || self->net.net == NULL)
        return 0;
    struct phi_mirror mirror;
    int rc = 0;
    // One that is shared by ipc, with this life or a former one, is none to mirror.
    if (peer->segment != NULL && !peer->contact.registering) {
        phi_segment_unregister(peer->segment, self->device);
        phi_segment_close(peer->segment);
        peer->segment = NULL;
    }
    if (peer->segment == NULL)
        rc = phi_segment_mirror(self->report, (uint32_t)self->config->channels,
                                self->rank > peer->rank, phi_staging_bytes(peer), &peer->segment);
    if (rc)
        return rc;
    phi_segment_mirror_of(peer->segment, &mirror);
    rc = phi_link_open(self->net.net, peer->rank, &mirror, &peer->to.link);
    peer->segment->link = peer->to.link;
    peer->contact.life = peer->incarnation;
    return rc;
}

// This many times we ask a peer for its process, where the reason that keeps it from answering may
// pass. A life that is over never answers. Over the net it is no fault of data if no process is
// found, as a link that has ended touches nothing any more.
#define PROCESS_TRIES 5

// A process of this node that exits may leave children that hold its connections open. Gives up the
// lock; the peer is `preparing`. -EAGAIN: it is asked again.
static int see_process(struct phi_peer *peer, int64_t deadline)
{
    const struct phi_capabilities theirs = peer->theirs;
    int pidfd = -1;
    if (peer->to.link == NULL || peer->to.pidfd >= 0 || peer->contact.elsewhere ||
        !phi_capabilities_same_node(&peer->self->mine, &theirs))
        return 0;
    pthread_mutex_unlock(&peer->self->lock);
    int rc = phi_contact_pidfd(peer, &theirs, deadline, &pidfd);
    pthread_mutex_lock(&peer->self->lock);
    peer->to.pidfd = pidfd;
    if (rc == -EMFILE || rc == -ENFILE)
        return phi_fail(peer->self->report, rc, "cannot watch rank %d (process %u on %s): %s",
                        peer->rank, theirs.pid, theirs.host, ph_strerror(rc));
    const bool passes = rc == -ETIMEDOUT || rc == -ECONNRESET || rc == -ESTALE || rc == -EAGAIN;
    if (passes && peer->to.hello != NULL && ++peer->to.hello->asked < PROCESS_TRIES)
        return -EAGAIN;
    return 0; // what else is wrong with it, its hello over the net says
}

// Gives up the lock.
static int say(struct phi_peer *peer, int64_t deadline)
{
    struct phi_self *self = peer->self;
    struct phi_writer writer = {0};
    uint64_t incarnation = peer->incarnation;
    encode(peer, peer->to.link ? PHI_REASON_NONE : PHI_REASON_NET_HERE, &writer);
    int rc = writer.error;
    if (rc)
        phi_fail(self->report, rc, "out of memory for a hello");
    pthread_mutex_unlock(&self->lock);
    if (rc == 0)
        rc = phi_mailbox_send(self->mailbox, peer->rank, incarnation, writer.bytes, writer.size,
                              deadline);
    pthread_mutex_lock(&self->lock);
    phi_writer_fini(&writer);
    peer->to.hello->sent = rc == 0;
    return rc;
}

// Its process is looked for before it can be ready.
static int greet(struct phi_peer *peer, int64_t deadline)
{
    int rc = see_process(peer, deadline);
    if (rc)
        return rc == -EAGAIN ? 0 : rc;
    return say(peer, deadline);
}

static int meet(struct phi_peer *peer)
{
    struct phi_hello *hello = peer->to.hello;
    if (!hello->known)
        return 0;
    if (hello->theirs.reason == PHI_REASON_NONE && hello->theirs.version == PHI_HELLO_VERSION) {
        int rc = mismatch(peer, &hello->theirs);
        if (rc)
            return rc;
    }
    enum phi_reason why = against(peer, &hello->theirs);
    if (why == PHI_REASON_NET_WIRE && hello->theirs.version != PHI_HELLO_VERSION)
        phi_log(peer->self->report, PH_LOG_WARN,
                "rank %d speaks version %u of the net path, and not %d", peer->rank,
                hello->theirs.version, PHI_HELLO_VERSION);
    if (why != PHI_REASON_NONE) {
        no_way(peer, why);
        return 0;
    }
    int rc = connect_link(peer);
    if (rc == -EBADMSG)
        return rc;
    if (rc == 0)
        tell_contact(peer, PHI_NODE_CONNECT);
    return 0;
}

static int prepare(struct phi_peer *peer, int64_t deadline)
{
    struct phi_self *self = peer->self;
    enum phi_reason reason = phi_net_pair(&self->mine, &peer->theirs);
    if (reason != PHI_REASON_NONE) {
        no_way(peer, reason);
        return 0;
    }
    int rc = phi_opener_net(self, deadline);
    if (rc == -EAGAIN)
        return 0;
    if (rc || (rc = make_hello(peer)) || (rc = open_link(peer)) || (rc = phi_staging_open(peer)) ||
        (!peer->to.hello->sent && (rc = greet(peer, deadline))))
        return rc;
    if (!peer->to.hello->sent)
        return 0; // its process is asked for again
    if (peer->state == PHI_PEER_KNOWN && peer->to.link == NULL)
        no_way(peer, PHI_REASON_NET_HERE);
    else if (peer->state == PHI_PEER_KNOWN)
        rc = meet(peer);
    return rc;
}

int phi_hello_prepare(struct phi_peer *peer, int64_t deadline)
{
    struct phi_self *self = peer->self;
    uint64_t incarnation = peer->incarnation;
    peer->contact.preparing = true;
    int rc = prepare(peer, deadline);
    peer->contact.preparing = false;
    if (peer->state == PHI_PEER_KNOWN && !peer->contact.unreachable && !peer->contact.net_refused &&
        peer->incarnation == incarnation) {
        peer->contact.refused = true;
        peer->contact.retry = phi_deadline(CONNECT_MS);
    }
    phi_expel_settle(peer); // what came meanwhile
    phi_peer_renew(peer);
    phi_self_changed(self);
    return rc;
}
