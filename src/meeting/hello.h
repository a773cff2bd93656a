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
// taken for it. All with the peers' lock held.
#ifndef PHI_MEETING_HELLO_H
#define PHI_MEETING_HELLO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct phi_node_message;
struct phi_peer;

// phi_hello_prepare (with the lock, given up in between) is phi_contact_prepare over the net: it
// opens the net and the link, says hello, and connects once the peer's hello is here. The peer is
// `refused`, to be tried again, until the service thread has made it READY.
int phi_hello_prepare(struct phi_peer *peer, int64_t deadline);

// phi_hello_file takes up a hello of the peer (-EBADMSG).
int phi_hello_file(struct phi_peer *peer, const void *bytes, size_t size);

// phi_hello_knock (with the lock, given up in between; while `preparing`) tells the peer through
// the store that nobody listens here at its socket: once for each life, which knows by it, if it
// reads it, that ipc does not join the two.
void phi_hello_knock(struct phi_peer *peer, int64_t deadline);

// phi_hello_receive takes a message of the peer over the link; *question: it is to be answered or
// carried out, else it was about this contact and is dealt with. false: there was none.
bool phi_hello_receive(struct phi_peer *peer, struct phi_node_message *message, bool *question);

#endif
