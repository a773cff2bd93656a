// SPDX-License-Identifier: BSD-3-Clause
// How the threads of a rank are woken: the events that the service thread sleeps in, and the
// condition on which threads of the application wait. With the lock held, but for phi_events_*.
#ifndef PHI_PEER_WAKE_H
#define PHI_PEER_WAKE_H

#include <stdint.h>

struct phi_events;
struct phi_peer;
struct phi_self;

// The data of an epoll event names its source. The upper half has the kind, and above the kind of a
// peer's event the number of the peer's life. The lower half has a rank, or the index of a
// connection.
enum phi_source {
    PHI_SOURCE_LISTEN,
    PHI_SOURCE_EVENT,
    PHI_SOURCE_CONNECTION,
    PHI_SOURCE_PIDFD,
    PHI_SOURCE_SOCKET,
    PHI_SOURCE_WAKE,
    PHI_SOURCE_NET,
};
#define PHI_SOURCE_BITS 8

// phi_events_open: 0 or -errno. close also takes what open did not fill (-1).
int phi_events_open(struct phi_events *events);
void phi_events_close(struct phi_events *events);

// phi_events_add makes the service thread wake for `fd`. `source` is a kind of enum phi_source, of
// a peer with its life above it. 0 or -errno.
int phi_events_add(const struct phi_events *events, int fd, uint32_t mask, uint32_t source,
                   uint32_t index);

// phi_service_wake makes the service thread look at broken peers at once. The end of the thread
// calls it without the lock.
void phi_service_wake(struct phi_self *self);

// phi_service_watch makes the service thread notice the end of a peer that has just been connected
// to.
int phi_service_watch(struct phi_peer *peer);
void phi_service_unwatch(struct phi_peer *peer);

// phi_lives_due tells that the last handle on a channel was closed. It does nothing unless the peer
// is a former life.
void phi_lives_due(struct phi_peer *peer);

// phi_self_changed wakes every thread that waits in phi_self_wait.
void phi_self_changed(struct phi_self *self);

// phi_self_follow waits for `changed` only, that is, for the work of another thread of this rank. 0
// or -ETIMEDOUT.
int phi_self_follow(struct phi_self *self, int64_t deadline);

// phi_self_want counts the threads that await a message of a rank (delta +1, -1).
void phi_self_want(struct phi_self *self, int rank, int delta);

// phi_soon is the nearer of two times of the kind that phi_release_tick returns.
static inline int phi_soon(int a, int b)
{
    return a < 0 ? b : b < 0 || a < b ? a : b;
}

#endif
