// SPDX-License-Identifier: BSD-3-Clause
// First contact over the net, and what the socket of the service thread is elsewhere.
//
// Each rank that exchanges with one it reaches over the net opens a link for it and says hello
// through the store: the link's address, what both must have alike, and a nonce. Who has the
// other's hello sends CONNECT over the link, with the nonce that it was told and its own hello
// again, every 100 ms until CONNECTED comes. Either message makes the pair ready: its sender knows
// where we are, and we where it is. A hello also says why there is no link, so that the other one
// need not wait.
//
// A hello names both incarnations (the mailbox checks them), an endpoint serves one life of a peer,
// and the nonce is new for each link: a process that comes to have a former one's address is not
// taken for it. All but phi_hello_prepare and phi_hello_call with the peers' lock held.
#ifndef PHI_CHANNEL_HELLO_H
#define PHI_CHANNEL_HELLO_H

#include "channel/offer.h"
#include "channel/peers.h"

// phi_hello_prepare (with the lock, given up in between) is phi_contact_prepare over the net: it
// opens the net and the link, says hello, and connects once the peer's hello is here. The peer is
// `refused`, to be tried again, until the service thread has made it READY.
int phi_hello_prepare(struct phi_peer *peer, int64_t deadline);

// phi_hello_is tells a hello from an offer; file takes it up (-EBADMSG).
bool phi_hello_is(const void *bytes, size_t size);
int phi_hello_file(struct phi_peer *peer, const void *bytes, size_t size);

// phi_hello_knock (with the lock, given up in between; while `preparing`) tells the peer through
// the store that nobody listens here at its socket: once for each life, which knows by it, if it
// reads it, that ipc does not join the two.
void phi_hello_knock(struct phi_peer *peer, int64_t deadline);

// phi_hello_register (with the lock, given up in between) registers the allocations of these
// descriptors for the peer's link.
int phi_hello_register(struct phi_peer *peer, const struct phi_descriptor *descriptors, size_t n);

// Messages of the service threads. tell: 0, -ECONNRESET. call (without the lock) waits for the
// answer; receive takes one of the peer; *question: it is to be answered or carried out, else it
// was about this contact and is dealt with. false: there was none.
int phi_hello_tell(struct phi_peer *peer, const struct phi_node_message *message, bool answer);
int phi_hello_call(struct phi_peer *peer, const struct phi_node_message *request,
                   struct phi_node_message *answer, int64_t deadline);
bool phi_hello_receive(struct phi_peer *peer, struct phi_node_message *message, bool *question);

// phi_hello_why: why the link has ended, or is about to; false: it has not, or by our doing.
#define PHI_HELLO_WHY 160
bool phi_hello_why(const struct phi_peer *peer, char *why, size_t size);

// phi_hello_lost: whether the link has ended without our doing; true once. cut: the peer was
// expelled, or has a later life; cut_due ends the link and is true after ten seconds in which it
// may learn of it.
bool phi_hello_lost(struct phi_peer *peer);
void phi_hello_cut(struct phi_peer *peer);
bool phi_hello_cut_due(struct phi_peer *peer);

// phi_hello_exited: the process of a peer on this node is gone. What it has sent may still come:
// the link ends by itself, or its cut is due half a second later. exiting: whether that was told.
void phi_hello_exited(struct phi_peer *peer);
bool phi_hello_exiting(const struct phi_peer *peer);

// phi_hello_forget ends a link that was never connected, for a life that is over; drop does so
// where ending it may block, and gives up the lock; free also says bye where the peer lives.
void phi_hello_forget(struct phi_peer *peer);
void phi_hello_drop(struct phi_peer *peer);
void phi_hello_free(struct phi_peer *peer);

#endif
