// SPDX-License-Identifier: BSD-3-Clause
// Two ranks that name roles which do not match would wait for each other for ever. So a rank that
// waits asks its peer.
#include "exchange/roles.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "exchange/pending.h"
#include "exchange/request.h"
#include "peer/keys.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/wake.h"
#include "rules/agreement.h"

// A service thread answers at once or not at all, and what else the caller waits for stands still
// meanwhile.
#define ANSWER_MS 100

static bool is_role(uint64_t role)
{
    return role >= PH_ROLE_SENDER && role <= PH_ROLE_BOTH;
}

static const char *role_name(uint8_t role)
{
    return role == PH_ROLE_SENDER     ? "PH_ROLE_SENDER"
           : role == PH_ROLE_RECEIVER ? "PH_ROLE_RECEIVER"
                                      : "PH_ROLE_BOTH";
}

void phi_roles_explain(const struct phi_wrong *wrong, char *text, size_t size)
{
    const struct phi_key *key = wrong->pending->key;
    snprintf(text, size,
             "operation %llu: rank %d names itself %s, rank %d names itself %s: one must be the "
             "sender and the other the receiver, or each both",
             (unsigned long long)key->op_id, key->peer->self->rank, role_name(key->role),
             key->peer->rank, role_name(wrong->theirs));
}

static void note(struct ph_exchange_request *request, const struct phi_pending *pending,
                 uint8_t theirs, bool sure)
{
    const bool first = request->wrong.pending == NULL;
    char text[256];
    request->wrong = (struct phi_wrong){pending, theirs, sure};
    if (sure || !first)
        return;
    phi_roles_explain(&request->wrong, text, sizeof text);
    phi_log(request->self->report, PH_LOG_WARN,
            "%s; both wait for another thread to come in the role that matches", text);
}

// No other thread of this process may come to an exchange.
static bool is_alone(const struct phi_self *self)
{
    return !self->exchanges.many_threads && phi_thread_alone();
}

void phi_roles_ask(struct ph_exchange_request *request, const struct phi_pending *pending)
{
    const struct phi_key *key = pending->key;
    struct phi_peer *peer = key->peer;
    struct phi_self *self = peer->self;
    if (peer->state != PHI_PEER_READY || peer->pulse.suspect || !phi_pending_waits(pending))
        return;
    const bool alone = is_alone(self);
    struct phi_node_message message, answer;
    int fd;
    phi_peer_message(peer, PHI_NODE_ROLES, &message);
    message.a = key->op_id;
    message.b = key->role;
    message.c = phi_request_roles(self, (uint64_t)peer->rank, key->op_id) | alone |
                (uint64_t)key->agreement.round << 32;
    pthread_mutex_unlock(&self->lock);
    int rc = phi_peer_call(peer, &message, &answer, &fd, phi_deadline(ANSWER_MS));
    if (fd >= 0)
        close(fd);
    pthread_mutex_lock(&self->lock);
    if (rc == 0 && is_role(answer.a) && answer.a != phi_role_opposite(key->role))
        note(request, pending, (uint8_t)answer.a, alone && answer.c == 1);
}

// find returns where this rank waits in the operation, in a role that does not match and whose
// match the peer has not under way; or NULL.
static const struct phi_pending *find(const struct ph_exchange_request *request,
                                      const struct phi_peer *peer,
                                      const struct phi_node_message *question)
{
    for (size_t i = 0; request->finishing && i < request->n; i++) {
        const struct phi_pending *pending = &request->pending[i];
        const struct phi_key *key = pending->key;
        const uint8_t match = phi_role_opposite(key->role);
        if (key->peer == peer && key->op_id == question->a && match != question->b &&
            (question->c >> match & 1) == 0 && phi_pending_waits(pending))
            return pending;
    }
    return NULL;
}

// has_come says whether this rank has come, in the role that matches, to the round from which the
// peer asks. The peer sees that too, but may not have seen it when it asked. By now this rank may
// wait in the operation again, some rounds later and in another role.
static bool has_come(const struct phi_peer *peer, const struct phi_node_message *question)
{
    const uint8_t match = phi_role_opposite((uint8_t)question->b);
    const struct phi_key *key = phi_key_find(peer, question->a, match);
    return key != NULL && phi_agreement_has_come(&key->agreement, (uint32_t)(question->c >> 32));
}

int phi_roles_answer(struct phi_peer *peer, const struct phi_node_message *question,
                     struct phi_node_message *answer)
{
    struct phi_self *self = peer->self;
    if (!is_role(question->b))
        return -EINVAL;
    const uint8_t theirs = (uint8_t)question->b;
    if (phi_request_roles(self, (uint64_t)peer->rank, question->a) >> phi_role_opposite(theirs) & 1)
        return 0;
    if (peer->state != PHI_PEER_READY || has_come(peer, question))
        return 0;
    for (struct ph_exchange_request *own = self->exchanges.first; own != NULL; own = own->next) {
        const struct phi_pending *pending = find(own, peer, question);
        if (pending == NULL)
            continue;
        const bool alone = is_alone(self);
        note(own, pending, theirs, alone && (question->c & 1));
        answer->a = pending->key->role;
        answer->c = alone;
        phi_self_changed(self);
        phi_mailbox_wake(self->mailbox);
        break;
    }
    return 0;
}
