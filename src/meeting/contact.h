// SPDX-License-Identifier: BSD-3-Clause
// First contact through the socket of a peer's service thread: what is said there, and what comes
// of it.
#ifndef PHI_MEETING_CONTACT_H
#define PHI_MEETING_CONTACT_H

#include <stdbool.h>
#include <stdint.h>

struct phi_capabilities;
struct phi_peer;
struct phi_segment;

// The descriptors that a contact has brought; -1: there is none.
struct phi_contact {
    int socket, wake_fd, segment_fd, pidfd;
    bool far; // ipc does not serve the two
};

#define PHI_NO_CONTACT ((struct phi_contact){-1, -1, -1, -1, false})

// phi_contact_pidfd (without the lock) asks the process that listens at a peer's socket for its
// pidfd. -1 where the socket does not lead to it, or it has none; what fails may be tried again.
int phi_contact_pidfd(struct phi_peer *peer, const struct phi_capabilities *theirs,
                      int64_t deadline, int *pidfd);

// phi_contact_segment returns the pair's segment, made for that life of the peer by this (lower)
// rank. With the lock.
int phi_contact_segment(struct phi_peer *peer, uint64_t life, struct phi_segment **segment);

// phi_contact_deadline: when a call of first contact is given up, at the latest.
int64_t phi_contact_deadline(int64_t deadline);

// phi_contact_nonce names the segment of this life of ours and that life of the peer.
uint64_t phi_contact_nonce(const struct phi_peer *peer, uint64_t life);

// phi_contact_close closes the descriptors that are left in it.
void phi_contact_close(struct phi_contact *c);

// phi_contact_hello (without the lock) says hello at the socket of the contact, and checks that the
// answer is of the peer of that record and that both ranks have the same settings.
int phi_contact_hello(struct phi_peer *peer, const struct phi_capabilities *theirs,
                      struct phi_contact *c, int64_t deadline);

// phi_contact_make (without the lock) talks to the peer's service thread, as far as to where it
// shows that ipc does not serve the two.
int phi_contact_make(struct phi_peer *peer, const struct phi_capabilities *theirs,
                     struct phi_contact *c, int64_t deadline);

#endif
