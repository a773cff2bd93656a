// SPDX-License-Identifier: BSD-3-Clause
// The service thread: answers peers whatever the application does, notices exits, releases streams
// that are stuck on a peer that is gone, beats, and has the store's keys kept alive. It never waits
// for anything but its epoll, and makes no driver call that can block behind a stream.
#ifndef PHI_CHANNEL_SERVICE_H
#define PHI_CHANNEL_SERVICE_H

#include "channel/peers.h"

// phi_service_open listens (the socket's name and nonce go into peers->mine) and starts the thread.
int phi_service_open(struct phi_peers *peers, struct phi_service **service);

// phi_service_close ends the thread and closes its descriptors. NULL is fine.
void phi_service_close(struct phi_service *service);

// phi_service_wake makes the thread look at broken peers at once. With the peers' lock held.
void phi_service_wake(struct phi_service *service);

// phi_service_watch makes the thread notice the end of a peer that has just been connected to.
int phi_service_watch(struct phi_service *service, struct phi_peer *peer);
void phi_service_unwatch(struct phi_service *service, struct phi_peer *peer);

#endif
