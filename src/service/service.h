// SPDX-License-Identifier: BSD-3-Clause
// The service thread: answers peers whatever the application does, notices exits, releases streams
// that are stuck on a peer that is gone, beats, and has the store's keys kept alive. It never waits
// for anything but its epoll, and makes no driver call that can block behind a stream.
#ifndef PHI_SERVICE_SERVICE_H
#define PHI_SERVICE_SERVICE_H

struct phi_self;
struct phi_service;

// phi_service_open listens (the socket's name and nonce go into self->mine) and starts the thread.
int phi_service_open(struct phi_self *self, struct phi_service **service);

// phi_service_close ends the thread and closes its descriptors. NULL is fine.
void phi_service_close(struct phi_service *service);

#endif
