// SPDX-License-Identifier: BSD-3-Clause
// A pair of sockets wakes a thread that sleeps in poll(). Another process that gets a copy of one
// end can wake it, too. It is no eventfd: all holders of an eventfd share its flags and its count,
// so one of them could make the others block in write() or read(). On a socket each call says for
// itself that it must not block, and whoever holds the ringing end can take nothing out of the
// other.
#ifndef PHI_BASE_WAKE_H
#define PHI_BASE_WAKE_H

#include <stdbool.h>

struct phi_wake {
    int listen; // readable once somebody has rung; stays here, and not in forked children
    int ring;   // to ring with; may be given to other processes
};

// phi_wake_open: 0 or -errno. phi_wake_close also takes what open did not fill (-1).
int phi_wake_open(struct phi_wake *wake);
void phi_wake_close(struct phi_wake *wake);

// phi_wake_ring rings at a descriptor that should be a `ring`, whatever a peer has sent as one. It
// never blocks, raises no signal, and writes to nothing but sockets.
void phi_wake_ring(int ring);

// phi_wake_take takes all rings so far. false: there was none.
bool phi_wake_take(const struct phi_wake *wake);

#endif
