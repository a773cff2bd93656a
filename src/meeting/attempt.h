// SPDX-License-Identifier: BSD-3-Clause
// An attempt finds out whether ipc serves two devices of one node, if no record says so
// (phi_path_doubt). Each rank maps the other's probe allocation once, before the pair has a path.
// Both ranks go by both outcomes. Neither writes there.
//
// No rank waits for the other's application. The rank that comes first asks the other's service
// thread (PHI_NODE_ATTEMPT). The service thread has a thread of its own map the allocation that
// came with the question: a driver's call may block behind others of the process, and the service
// thread must not block. Asked again, the service thread answers with the outcome. An outcome
// belongs to two lives and never changes: a rank that knows both outcomes knows what the other rank
// knows, or will know. docs/protocols.md has the rules.
#ifndef PHI_MEETING_ATTEMPT_H
#define PHI_MEETING_ATTEMPT_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"

struct phi_attempt;
struct phi_node_message;
struct phi_peer;
struct phi_self;

// phi_attempt_make (without the lock; while `preparing`) finds out, unless it is known or not to be
// found out. socket: to the peer, which has said hello. 0; -EAGAIN: the peer lives, and has not
// tried so far; or why it could not be asked, or why this rank could not try.
int phi_attempt_make(struct phi_peer *peer, int socket, int64_t deadline);
// phi_attempt_ask (likewise) only asks once: the peer may have come to its end.
int phi_attempt_ask(struct phi_peer *peer, int socket, int64_t deadline);

// All below: with the lock.

// phi_attempt_answer answers the peer's question: -EBADMSG, -ESTALE for a former life, -ENOMEM.
int phi_attempt_answer(struct phi_peer *peer, const struct phi_node_message *request,
                       struct phi_node_message *answer);

// phi_attempt_against: as above, of the two lives that are there. answered: whether the peer's life
// has answered before; waits: and has not tried. end: what its end is to those who are not
// connected, as it said itself, or 0.
enum phi_reason phi_attempt_against(const struct phi_peer *peer);
bool phi_attempt_answered(const struct phi_peer *peer);
bool phi_attempt_waits(const struct phi_peer *peer);
int phi_attempt_end(const struct phi_peer *peer);

// phi_attempt_trying: whether a thread maps now, for whatever life.
bool phi_attempt_trying(const struct phi_peer *peer);

// phi_attempt_keep: the pair is joined by ipc, and what was mapped is its probe's. renew: the
// peer's record is of another life now. reap (gives up the lock) unmaps what else was mapped, as
// phi_reap says.
void phi_attempt_keep(struct phi_peer *peer);
void phi_attempt_renew(struct phi_peer *peer);
bool phi_attempt_reap(struct phi_self *self, bool blocking);

// phi_attempt_stop (without the lock, after the service thread) waits for the thread that maps, and
// frees what is of former lives; free unmaps, too.
void phi_attempt_stop(struct phi_self *self);
void phi_attempt_free(struct phi_attempt *attempt);

#endif
