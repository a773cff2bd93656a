// SPDX-License-Identifier: BSD-3-Clause
// Whether ipc serves two devices of one node where no record says (phi_path_doubt): each rank tries
// to map the other's probe allocation before the pair has a path, and both go by both outcomes.
// Neither writes there: its owner may leave meanwhile, and waits for nobody yet.
//
// An outcome stays for the two lives. Each rank tells its own with a question (PHI_NODE_ATTEMPT)
// and gets the other's with the answer, or later with the other's question: who has both knows that
// the other one has, or gets, the same two.
#ifndef PHI_CHANNEL_ATTEMPT_H
#define PHI_CHANNEL_ATTEMPT_H

#include "channel/peers.h"

// phi_attempt_make (without the lock; one thread at a time) tries, unless that was done, and tells.
// socket: to the peer, which has said hello. 0: ipc serves, or the records know all; -EXDEV: the
// net is to serve; -EINPROGRESS: the peer has not tried yet; or why it could not be asked.
int phi_attempt_make(struct phi_peer *peer, int socket, int64_t deadline);

// All below: with the lock.

// phi_attempt_file takes the peer's outcome and answers with ours; -EBADMSG.
int phi_attempt_file(struct phi_peer *peer, const struct phi_node_message *request,
                     struct phi_node_message *answer);

// phi_attempt_waits: this rank has tried, and the peer has not. against: what the two outcomes say
// against ipc, PHI_REASON_NONE where nothing, or not both are known. forget: another life comes.
bool phi_attempt_waits(const struct phi_peer *peer);
enum phi_reason phi_attempt_against(const struct phi_peer *peer);
void phi_attempt_forget(struct phi_peer *peer);

#endif
