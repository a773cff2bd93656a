// SPDX-License-Identifier: BSD-3-Clause
#include "service/service.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forked.h"
#include "base/random.h"
#include "base/thread.h"
#include "base/wake.h"
#include "ending/end.h"
#include "ending/heartbeat.h"
#include "ending/link.h"
#include "ending/look.h"
#include "ending/untold.h"
#include "meeting/hello.h"
#include "meeting/lives.h"
#include "notify/note.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "peer/wake.h"
#include "release/release.h"
#include "semaphore/segment.h"
#include "service/answer.h"
#include "service/status.h"

#define REFRESH_DEADLINE_MS 2000
#define CONNECTIONS_MAX     4096

struct connection {
    int fd; // -1: free
    struct phi_asker asker;
};

struct phi_service {
    struct phi_self *self;
    pthread_t thread;
    pthread_t refresher; // of its own each time: a store that does not answer must not hide an exit
    bool refreshing;     // it was started and not joined
    int listener;
    _Atomic bool stop;
    uint32_t refused; // connections
    struct connection *connections;
    uint32_t connections_count;
    struct phi_status_ages ages;
};

// ---- connections

static void close_connection(struct phi_service *service, uint32_t index)
{
    // We remove the entry by hand: a forked child may hold a copy of the descriptor, and the entry
    // would stay with the copy.
    epoll_ctl(service->self->serving.events.epoll, EPOLL_CTL_DEL, service->connections[index].fd,
              NULL);
    close(service->connections[index].fd);
    service->connections[index].fd = -1;
}

static struct connection *free_connection(struct phi_service *service, uint32_t *index)
{
    for (*index = 0; *index < service->connections_count; ++*index)
        if (service->connections[*index].fd < 0)
            return &service->connections[*index];
    if (service->connections_count == CONNECTIONS_MAX)
        return NULL;
    size_t size = (service->connections_count + 1) * sizeof *service->connections;
    struct connection *grown = realloc(service->connections, size);
    if (grown == NULL)
        return NULL;
    service->connections = grown;
    return &grown[service->connections_count++];
}

static void accept_one(struct phi_service *service)
{
    int fd = accept4(service->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        // Out of descriptors the listener stays ready: do not spin on it.
        int rc = -errno;
        if (rc != -EMFILE && rc != -ENFILE)
            return;
        phi_log(service->self->report, PH_LOG_WARN, "a connection waits to be accepted: %s",
                ph_strerror(rc));
        nanosleep(&(struct timespec){.tv_nsec = 10 * PHI_MS}, NULL);
        return;
    }
    phi_forked_close(fd);
    uint32_t index;
    struct connection *connection = NULL;
    bool ours = phi_node_trusts(fd);
    if (ours)
        connection = free_connection(service, &index);
    if (connection == NULL) {
        // The log is told at each power of two, so that a process that knocks without end does not
        // fill it.
        uint32_t n = ++service->refused;
        atomic_fetch_add(&service->self->serving.strangers, !ours);
        if ((n & (n - 1)) == 0)
            phi_log(service->self->report, PH_LOG_WARN,
                    "a connection of %s was refused (%u so far)",
                    ours ? "this user (too many)" : "another user", n);
        close(fd);
        return;
    }
    *connection = (struct connection){.fd = fd, .asker.rank = -1};
    if (phi_events_add(&service->self->serving.events, fd, EPOLLIN, PHI_SOURCE_CONNECTION, index))
        close_connection(service, index);
}

// ---- over the net

// A message of a peer: its answer to a question of ours, a step of first contact, or a question.
static void serve_net(struct phi_service *service, int rank, uint64_t incarnation,
                      struct phi_node_message *message)
{
    struct phi_self *self = service->self;
    struct phi_asker asker = {.rank = rank, .incarnation = incarnation};
    struct phi_node_message answer = *message;
    int fd = -1;
    answer.bytes_size = 0;
    answer.rank = self->rank;
    answer.a = answer.b = answer.c = 0;
    answer.status = phi_answer(self, &service->ages, &asker, message, &answer, &fd);
    if (!phi_node_answered(message->type))
        return;
    pthread_mutex_lock(&self->lock);
    struct phi_peer *peer = self->table[rank];
    if (peer->to.link != NULL && peer->incarnation == incarnation)
        phi_hello_tell(peer, &answer, true);
    pthread_mutex_unlock(&self->lock);
}

static void end_of_link(struct phi_peer *peer)
{
    struct phi_self *self = peer->self;
    char why[PHI_HELLO_WHY];
    phi_peer_look(peer);
    // If the peer has left, or was expelled, the log said so where it became known.
    if (peer->state != PHI_PEER_BROKEN && phi_hello_why(peer, why, sizeof why))
        phi_log(self->report, PH_LOG_WARN, "the link to rank %d (process %u on %s) has ended: %s",
                peer->rank, peer->theirs.pid, peer->theirs.host, why);
    phi_peer_break(peer, PH_EPEER);
    // Its endpoint here is closed, and with it the regions: nothing of it can reach us.
    phi_peer_over(peer);
}

static bool serve_link(struct phi_service *service, int rank)
{
    struct phi_self *self = service->self;
    struct phi_node_message message;
    bool question = false, more = false;
    pthread_mutex_lock(&self->lock);
    struct phi_peer *peer = self->table[rank];
    uint64_t incarnation = peer ? peer->incarnation : 0;
    if (peer != NULL && peer->to.link != NULL) {
        more = phi_hello_receive(peer, &message, &question);
        if (!more && !peer->end.gone && phi_hello_lost(peer))
            end_of_link(peer);
    }
    pthread_mutex_unlock(&self->lock);
    if (question)
        serve_net(service, rank, incarnation, &message);
    return more;
}

static void serve_links(struct phi_service *service)
{
    phi_wake_take(&service->self->net.wake);
    for (int rank = 0; rank < service->self->ranks; rank++)
        while (serve_link(service, rank))
            ;
}

// With the lock. Takes the notifications that are left in a connection which is about to be closed.
// Of a peer that writes without end, no more than it may have given.
static void take_notes(const struct connection *connection, struct phi_peer *peer)
{
    struct phi_node_message message;
    for (int i = 0; i < 4 * PH_NOTIFICATIONS_MAX; i++) {
        int received = -1;
        if (phi_node_receive(connection->fd, &message, &received))
            return;
        if (received >= 0)
            close(received);
        if (message.type == PHI_NODE_NOTIFICATION && message.rank == peer->rank &&
            message.from == peer->incarnation && message.to == peer->self->incarnation)
            phi_notes_file(peer, &message);
    }
}

static void take_last_notes(struct phi_service *service, uint32_t index)
{
    struct phi_self *self = service->self;
    const struct connection *connection = &service->connections[index];
    if (connection->asker.rank < 0)
        return;
    pthread_mutex_lock(&self->lock);
    struct phi_peer *peer = self->table[connection->asker.rank];
    if (peer->incarnation == connection->asker.incarnation)
        take_notes(connection, peer);
    pthread_mutex_unlock(&self->lock);
}

// The peer's end closes too, and both know that they have lost each other. One that closed first is
// none of our trouble.
static void lose(struct phi_service *service, uint32_t index, const char *what, int rc)
{
    const int rank = service->connections[index].asker.rank;
    char whose[32] = "an unknown process"; // which has not said who it is
    if (rank >= 0)
        snprintf(whose, sizeof whose, "rank %d", rank);
    if (rc != -ECONNRESET)
        phi_log(service->self->report, PH_LOG_WARN, "the connection of %s is given up: its %s: %s",
                whose, what, ph_strerror(rc));
    take_last_notes(service, index);
    close_connection(service, index);
}

// Whoever asks learns by the version of the answer, of which it reads no more, what is wrong.
static void refuse_version(struct phi_service *service, uint32_t index, uint32_t version)
{
    const struct phi_self *self = service->self;
    const struct phi_node_message answer = {.magic = PHI_NODE_MAGIC, .version = PHI_NODE_VERSION};
    phi_log(self->report, PH_LOG_WARN,
            "a process that asks rank %d speaks version %u of the calls between ranks, and not %d",
            self->rank, version, PHI_NODE_VERSION);
    phi_node_send(service->connections[index].fd, &answer, -1);
    close_connection(service, index);
}

static void serve(struct phi_service *service, uint32_t index)
{
    struct connection *connection = &service->connections[index];
    struct phi_node_message request;
    int received = -1;
    int rc = phi_node_receive(connection->fd, &request, &received);
    if (rc == -EAGAIN)
        return;
    if (received >= 0)
        close(received); // no request carries one
    if (rc == -EPROTONOSUPPORT) {
        refuse_version(service, index, request.version);
        return;
    }
    if (rc) {
        lose(service, index, "question", rc);
        return;
    }
    struct phi_node_message answer = request;
    answer.bytes_size = 0;
    answer.rank = service->self->rank;
    answer.a = answer.b = answer.c = 0;
    int fd = -1;
    answer.status =
        phi_answer(service->self, &service->ages, &connection->asker, &request, &answer, &fd);
    if (!phi_node_answered(request.type))
        return;
    // A peer that does not read its answers loses the connection; it never makes us wait.
    rc = phi_node_send(connection->fd, &answer, answer.status ? -1 : fd);
    if (rc)
        lose(service, index, "answer", rc);
}

// ---- ends

static void end_of_peer(struct phi_service *service, enum phi_source source, struct phi_peer *peer)
{
    // Level-triggered for ever from here on: seen once is enough.
    epoll_ctl(service->self->serving.events.epoll, EPOLL_CTL_DEL,
              source == PHI_SOURCE_PIDFD  ? peer->to.pidfd
              : source == PHI_SOURCE_WAKE ? peer->to.wake_fd
                                          : peer->to.socket,
              NULL);
    if (peer->to.link != NULL) {
        phi_hello_exited(peer);
        return;
    }
    // Alone it says nothing: whatever a peer has sent as what rings at it.
    peer->end.parted = peer->end.parted || source == PHI_SOURCE_WAKE;
    if (source == PHI_SOURCE_WAKE && !peer->end.ending)
        return;
    bool left =
        peer->segment != NULL && atomic_load(&phi_peer_theirs(peer)->state) & PHI_SIDE_LEAVING;
    phi_peer_look(peer);
    // No more is to be had of a peer without its connection. One that lives is to see it too.
    phi_peer_lost(peer);
    for (uint32_t i = 0; i < service->connections_count; i++) {
        const struct connection *connection = &service->connections[i];
        if (connection->fd >= 0 && connection->asker.rank == peer->rank &&
            connection->asker.incarnation == peer->incarnation) {
            take_notes(connection, peer);
            close_connection(service, i);
        }
    }
    // The pidfd tells the end of a process: then its descriptors, and so its GPU work, are gone.
    // Without a pidfd (another PID namespace) the end of the connection stands for the end of the
    // process.
    if (source == PHI_SOURCE_PIDFD || peer->to.pidfd < 0 || left)
        phi_peer_over(peer);
    else if (peer->end.parted)
        phi_peer_parted(peer);
}

static void peer_event(struct phi_service *service, uint32_t source, int rank)
{
    struct phi_self *self = service->self;
    pthread_mutex_lock(&self->lock);
    struct phi_peer *peer = self->table[rank];
    if (peer->to.watch == source >> PHI_SOURCE_BITS) // else of a life that has been replaced since
        end_of_peer(service, (enum phi_source)(source & ((1u << PHI_SOURCE_BITS) - 1)), peer);
    pthread_mutex_unlock(&self->lock);
}

// Returns whether some peer's channels are still to be ended, its streams released, or its link
// ended.
static bool release_broken(struct phi_self *self)
{
    bool more = false;
    pthread_mutex_lock(&self->lock);
    for (int rank = 0; rank < self->ranks; rank++) {
        struct phi_peer *peer = self->table[rank];
        more = (peer != NULL && phi_peer_leaves(peer)) || more;
        if (peer != NULL && peer->to.link != NULL && !peer->end.gone && phi_hello_cut_due(peer))
            end_of_link(peer);
        if (peer != NULL && peer->to.link != NULL && !peer->end.gone)
            more = more || phi_hello_exiting(peer);
        if (peer == NULL || peer->state != PHI_PEER_BROKEN || peer->end.released)
            continue;
        peer->end.released = phi_peer_release(peer);
        more = more || !(peer->end.released || phi_peer_ending(peer));
    }
    phi_untold_note(self);
    pthread_mutex_unlock(&self->lock);
    return more;
}

static void handle(struct phi_service *service, uint64_t data)
{
    uint32_t source = (uint32_t)(data >> 32), index = (uint32_t)data;
    uint64_t count;
    switch (source & ((1u << PHI_SOURCE_BITS) - 1)) {
    case PHI_SOURCE_LISTEN:
        accept_one(service);
        break;
    case PHI_SOURCE_EVENT:
        while (read(service->self->serving.events.event, &count, sizeof count) > 0)
            ;
        break;
    case PHI_SOURCE_CONNECTION:
        if (service->connections[index].fd >= 0)
            serve(service, index);
        break;
    case PHI_SOURCE_NET:
        serve_links(service);
        break;
    case PHI_SOURCE_PIDFD:
    case PHI_SOURCE_SOCKET:
    case PHI_SOURCE_WAKE:
        peer_event(service, source, (int)index);
        break;
    }
}

// Sleeps for at most so many ms, and ns where that is not negative, or until there are events.
static int sleep_for_events(int epoll, struct epoll_event *events, int most, int timeout,
                            int64_t nap)
{
    if (nap < 0 || (timeout >= 0 && nap >= timeout * PHI_MS))
        return epoll_wait(epoll, events, most, timeout);
    struct pollfd any = {.fd = epoll, .events = POLLIN};
    if (nap == 0)
        sched_yield(); // what is looked for may need this core
    else
        ppoll(&any, 1, &(struct timespec){.tv_nsec = nap}, NULL);
    return epoll_wait(epoll, events, most, 0);
}

static void *refresh_store(void *opaque)
{
    const struct phi_service *service = opaque;
    phi_mailbox_refresh(service->self->mailbox, phi_deadline(REFRESH_DEADLINE_MS));
    return NULL;
}

static void end_refresh(struct phi_service *service)
{
    if (service->refreshing)
        pthread_join(service->refresher, NULL);
    service->refreshing = false;
}

static void begin_refresh(struct phi_service *service)
{
    end_refresh(service); // over since long: its deadline is shorter than any period
    int rc = phi_thread_start(&service->refresher, "peerhop-refresh", refresh_store, service);
    service->refreshing = rc == 0;
    if (rc)
        phi_log(service->self->report, PH_LOG_WARN, "no thread to refresh the store's keys: %s",
                ph_strerror(rc));
}

static void *run(void *opaque)
{
    struct phi_service *service = opaque;
    struct phi_self *self = service->self;
    phi_trial_thread(self->device);
    const int64_t period = self->config->expiry_s * 1000 / 3 * PHI_MS;
    int64_t refresh = phi_now() + period, beat = PHI_FOREVER;
    while (!atomic_load(&service->stop)) {
        struct epoll_event events[16];
        // While no peer is connected only the refresh wakes an idle process.
        int timeout = phi_remaining_ms(beat < refresh ? beat : refresh);
        int soon = phi_soon(phi_release_tick(self), phi_lives_tick(self));
        timeout = release_broken(self) ? 1 : soon >= 0 && soon < timeout ? soon : timeout;
        int n =
            sleep_for_events(self->serving.events.epoll, events, 16, timeout, phi_notes_tick(self));
        for (int i = 0; i < n; i++)
            handle(service, events[i].data.u64);
        if (beat == PHI_FOREVER || phi_now() >= beat) {
            beat = phi_heartbeat_tick(self);
            phi_status_tick(self, &service->ages);
        }
        if (phi_now() >= refresh) {
            begin_refresh(service);
            refresh = phi_now() + period;
        }
    }
    return NULL;
}

// 0: not known.
static uint32_t number_of_node(const struct phi_capabilities *mine)
{
    uint64_t halves[2];
    memcpy(halves, mine->node, sizeof halves);
    const uint32_t number = (uint32_t)phi_hash(halves[0], halves[1]);
    return phi_capabilities_node_known(mine) ? number + (number == 0) : 0;
}

int phi_service_open(struct phi_self *self, struct phi_service **out)
{
    struct phi_service *service = calloc(1, sizeof *service);
    if (service == NULL)
        return phi_fail(self->report, -ENOMEM, "out of memory for the service thread");
    service->self = self;
    phi_random(&self->mine.nonce, sizeof self->mine.nonce);
    service->listener = phi_node_listen(self->report, self->config->socket_directory,
                                        number_of_node(&self->mine), self->mine.socket);
    int rc = service->listener < 0 ? service->listener : 0;
    if (rc)
        goto free;
    rc = phi_events_open(&self->serving.events);
    if (rc == 0)
        rc =
            phi_events_add(&self->serving.events, service->listener, EPOLLIN, PHI_SOURCE_LISTEN, 0);
    if (rc == 0)
        rc = phi_events_add(&self->serving.events, self->net.wake.listen, EPOLLIN, PHI_SOURCE_NET,
                            0);
    *out = service; // the thread looks there
    if (rc == 0)
        rc = phi_thread_start(&service->thread, "peerhop-service", run, service);
    if (rc) {
        *out = NULL;
        phi_fail(self->report, rc, "cannot start the service thread: %s", ph_strerror(rc));
        goto close;
    }
    return 0;
close:
    phi_events_close(&self->serving.events);
    close(service->listener);
    phi_node_unlisten(self->mine.socket);
free:
    free(service);
    return rc;
}

void phi_service_close(struct phi_service *service)
{
    if (service == NULL)
        return;
    atomic_store(&service->stop, true);
    phi_service_wake(service->self);
    pthread_join(service->thread, NULL);
    end_refresh(service);
    for (uint32_t i = 0; i < service->connections_count; i++)
        if (service->connections[i].fd >= 0)
            close_connection(service, i);
    free(service->connections);
    close(service->listener);
    phi_node_unlisten(service->self->mine.socket);
    phi_events_close(&service->self->serving.events);
    free(service);
}
