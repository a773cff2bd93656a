// SPDX-License-Identifier: BSD-3-Clause
#include "peer/wake.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "peer/peer.h"
#include "peer/self.h"

int phi_events_open(struct phi_events *events)
{
    events->epoll = epoll_create1(EPOLL_CLOEXEC);
    events->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = events->epoll < 0 || events->event < 0 ? -errno : 0;
    return rc ? rc : phi_events_add(events, events->event, EPOLLIN, PHI_SOURCE_EVENT, 0);
}

void phi_events_close(struct phi_events *events)
{
    const int epoll = events->epoll, event = events->event;
    events->epoll = events->event = -1; // first: the numbers may be given to others at once
    if (epoll >= 0)
        close(epoll);
    if (event >= 0)
        close(event);
}

int phi_events_add(const struct phi_events *events, int fd, uint32_t mask, uint32_t source,
                   uint32_t index)
{
    struct epoll_event event = {.events = mask, .data.u64 = (uint64_t)source << 32 | index};
    return epoll_ctl(events->epoll, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

int phi_service_watch(struct phi_peer *peer)
{
    struct phi_events *events = &peer->self->serving.events;
    peer->to.watch = ++events->watches & (UINT32_MAX >> PHI_SOURCE_BITS);
    uint32_t life = peer->to.watch << PHI_SOURCE_BITS;
    int rc = 0;
    if (peer->to.socket >= 0) // else over the net
        rc = phi_events_add(events, peer->to.socket, EPOLLRDHUP, life | PHI_SOURCE_SOCKET,
                            (uint32_t)peer->rank);
    if (rc == 0 && peer->to.pidfd >= 0)
        rc = phi_events_add(events, peer->to.pidfd, EPOLLIN, life | PHI_SOURCE_PIDFD,
                            (uint32_t)peer->rank);
    // A peer may have sent any descriptor as its pidfd. One that tells of no end (-EPERM: a file, a
    // folder) is no pidfd.
    if (rc == -EPERM && peer->to.pidfd >= 0) {
        close(peer->to.pidfd);
        peer->to.pidfd = -1;
        rc = 0;
    }
    if (rc == 0 && peer->to.wake_fd >= 0)
        phi_events_add(events, peer->to.wake_fd, EPOLLRDHUP, life | PHI_SOURCE_WAKE,
                       (uint32_t)peer->rank);
    if (rc)
        return phi_fail(peer->self->report, rc, "cannot watch rank %d: %s", peer->rank,
                        ph_strerror(rc));
    phi_service_wake(peer->self); // it may have beaten for nobody so far
    return 0;
}

void phi_service_unwatch(struct phi_peer *peer)
{
    const struct phi_events *events = &peer->self->serving.events;
    // Descriptors whose events were seen have been taken out already.
    epoll_ctl(events->epoll, EPOLL_CTL_DEL, peer->to.socket, NULL);
    epoll_ctl(events->epoll, EPOLL_CTL_DEL, peer->to.pidfd, NULL);
    epoll_ctl(events->epoll, EPOLL_CTL_DEL, peer->to.wake_fd, NULL);
}

void phi_service_wake(struct phi_self *self)
{
    uint64_t one = 1;
    // a full counter wakes as well
    ssize_t ignored = write(self->serving.events.event, &one, sizeof one);
    (void)ignored;
}

void phi_lives_due(struct phi_peer *peer)
{
    struct phi_self *self = peer->self;
    if (self->table[peer->rank] == peer)
        return;
    self->lives.former_due = true;
    phi_service_wake(self);
}

void phi_self_changed(struct phi_self *self)
{
    self->changes.count++;
    pthread_cond_broadcast(&self->changes.cond);
}

void phi_self_want(struct phi_self *self, int rank, int delta)
{
    self->inbox.wanted[rank] = (uint32_t)((int)self->inbox.wanted[rank] + delta);
    // A thread that receives has looked before at which ranks are wanted, so it has to look again.
    if (self->inbox.receiving)
        phi_mailbox_wake(self->mailbox);
}

int phi_self_follow(struct phi_self *self, int64_t deadline)
{
    struct timespec until = {deadline / 1000000000, deadline % 1000000000};
    if (deadline == PHI_FOREVER)
        return -pthread_cond_wait(&self->changes.cond, &self->lock);
    return -pthread_cond_timedwait(&self->changes.cond, &self->lock, &until);
}
