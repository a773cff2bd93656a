// SPDX-License-Identifier: BSD-3-Clause
// The end of the link to a peer over the net. With the lock held; see meeting/hello.h for its
// beginning.
#ifndef PHI_ENDING_LINK_H
#define PHI_ENDING_LINK_H

#include <stdbool.h>
#include <stddef.h>

struct phi_peer;

// phi_hello_why writes why the link has ended, or is about to; false: it has not, or by our doing.
#define PHI_HELLO_WHY 160
bool phi_hello_why(const struct phi_peer *peer, char *why, size_t size);

// phi_hello_lost returns whether the link has ended without our doing; true once. cut: the peer was
// expelled, or has a later life; cut_due ends the link and is true after ten seconds in which it
// may learn of it.
bool phi_hello_lost(struct phi_peer *peer);
void phi_hello_cut(struct phi_peer *peer);
bool phi_hello_cut_due(struct phi_peer *peer);

// phi_hello_exited: the process of a peer on this node is gone. Messages that it has sent may still
// come: the link ends by itself, or its cut is due half a second later. phi_hello_exiting returns
// whether that was told.
void phi_hello_exited(struct phi_peer *peer);
bool phi_hello_exiting(const struct phi_peer *peer);

// phi_hello_forget ends a link that was never connected, for a life that is over; drop does so
// where ending it may block, and gives up the lock; free also says bye where the peer lives.
void phi_hello_forget(struct phi_peer *peer);
void phi_hello_drop(struct phi_peer *peer);
void phi_hello_free(struct phi_peer *peer);

#endif
