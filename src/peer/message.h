// SPDX-License-Identifier: BSD-3-Clause
// Messages to the service thread of a peer, through its socket or over the link. With the lock
// held, but for what is said to be otherwise.
#ifndef PHI_PEER_MESSAGE_H
#define PHI_PEER_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "peer/hello_wire.h"
#include "peer/node.h"

struct phi_peer;

// Over a link an answer is marked as one: both ranks ask on it.
#define PHI_MESSAGE_ANSWER 0x8000u

// The state of first contact over the net; see meeting/hello.h.
struct phi_hello {
    uint64_t nonce;
    bool sent;      // through the store
    uint8_t asked;  // ... and how often its process was asked for before
    bool known;     // the peer's hello is here
    bool lost;      // the end of the link was noticed
    int64_t cut;    // when to end the link, or 0
    int64_t exited; // likewise, as the process has exited
    struct phi_hello_words theirs;
    struct phi_node_message answer; // the last that came
};

// phi_hello_tell sends a message over the link: 0, -ECONNRESET. call (without the lock) sends one
// and waits for the answer.
int phi_hello_tell(struct phi_peer *peer, const struct phi_node_message *message, bool answer);
int phi_hello_call(struct phi_peer *peer, const struct phi_node_message *request,
                   struct phi_node_message *answer, int64_t deadline);

// phi_peer_message fills the header of a request to the peer.
void phi_peer_message(const struct phi_peer *peer, enum phi_node_type type,
                      struct phi_node_message *message);

// phi_peer_call (without the lock) sends a request and waits for the answer; answer->status is
// checked too.
int phi_peer_call(struct phi_peer *peer, struct phi_node_message *request,
                  struct phi_node_message *answer, int *fd, int64_t deadline);

// phi_peer_tell sends a message that is not answered; -EAGAIN: later.
int phi_peer_tell(struct phi_peer *peer, const struct phi_node_message *message);

#endif
