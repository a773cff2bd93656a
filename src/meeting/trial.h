// SPDX-License-Identifier: BSD-3-Clause
// The trial finds out whether ipc serves a pair of lives. It is about one piece of memory of each
// rank, its trial memory (transport/transport.h), which the other rank maps once. It has two steps.
// docs/decisions/007-trial.md says why they are two.
//
// The try: both ranks map the other's trial memory, and write nothing there. It comes before the
// pair has a path, and only where no record says whether ipc serves (phi_path_doubt). Both ranks go
// by both outcomes.
//
// No rank waits for the other's application. The rank that comes first asks the other's service
// thread (PHI_NODE_TRIAL). The service thread has a thread of its own map the memory that came with
// the question: a driver's call may block behind others of the process, and the service thread must
// not block. Asked again, the service thread answers with the outcome. An outcome belongs to two
// lives and never changes: a rank that knows both outcomes knows what the other rank knows, or will
// know. docs/protocols.md has the rules.
//
// The verify step: a rank writes a pattern through its mapping, and the owner looks whether it has
// come. It comes before the rank maps other memory of the peer: peer access that is advertised but
// broken ends here, not in the application's data. Memory that the try has mapped is not mapped
// again.
#ifndef PHI_MEETING_TRIAL_H
#define PHI_MEETING_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"

struct phi_node_message;
struct phi_peer;
struct phi_self;

// phi_trial_try (without the lock; while `preparing`) makes the try, unless the outcomes are known
// or there is no doubt. socket: to the peer, which has said hello. 0; -EAGAIN: the peer lives, and
// has not tried so far; or why the peer could not be asked, or why this rank could not try.
int phi_trial_try(struct phi_peer *peer, int socket, int64_t deadline);

// phi_trial_ask (likewise) only asks once: the peer may have come to its end.
int phi_trial_ask(struct phi_peer *peer, int socket, int64_t deadline);

// phi_trial_verify (without the lock) makes the verify step, once for a life. One thread makes it,
// at most until its deadline; others wait for that until their own. PHI_REASON_NONE: the pattern
// has come. A step that the deadline cut short (phi_import_cut_short), or whose reason passes, is
// made again by the next call.
enum phi_reason phi_trial_verify(struct phi_peer *peer, int64_t deadline);

// All below: with the lock.

// phi_trial_answer answers the peer's question: -EBADMSG, -ESTALE for a former life, -ENOMEM.
int phi_trial_answer(struct phi_peer *peer, const struct phi_node_message *request,
                     struct phi_node_message *answer);

// Of the two lives that are there:
// phi_trial_against is the reason against ipc, as phi_outcomes_against.
// phi_trial_answered: whether the peer has answered before.
// phi_trial_waits: ... and has not tried.
// phi_trial_end is what the peer's end is to a rank that is not connected, as the peer said; or 0.
enum phi_reason phi_trial_against(const struct phi_peer *peer);
bool phi_trial_answered(const struct phi_peer *peer);
bool phi_trial_waits(const struct phi_peer *peer);
int phi_trial_end(const struct phi_peer *peer);

// phi_trial_trying: whether a thread maps now, for whatever life of the peer.
bool phi_trial_trying(const struct phi_peer *peer);

// phi_trial_join: ipc joins the pair. The mapping stays for the verify step.
void phi_trial_join(struct phi_peer *peer);

// phi_trial_renew: the peer's record is of another life now.
// phi_trial_inherit: `renewed` takes the place of `former`, whose later life may have asked
// already. Before phi_trial_renew.
void phi_trial_renew(struct phi_peer *peer);
void phi_trial_inherit(struct phi_peer *renewed, struct phi_peer *former);

// phi_trial_reap (gives up the lock) unmaps trial memory of the peer, as phi_reap says; joined:
// also that of a pair that ipc joins. phi_trial_reap_former does so for trials that were dropped.
bool phi_trial_reap(struct phi_peer *peer, bool joined, bool blocking);
bool phi_trial_reap_former(struct phi_self *self, bool blocking);

// phi_trial_stop (without the lock, after the service thread) waits for the thread that maps, and
// frees trials with former lives. phi_trial_free frees the peer's, with what they map.
void phi_trial_stop(struct phi_self *self);
void phi_trial_free(struct phi_peer *peer);

#endif
