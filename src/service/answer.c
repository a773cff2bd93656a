// SPDX-License-Identifier: BSD-3-Clause
// Each request fills the answer and may name a descriptor (not its to close); it returns the
// status.
#include "service/answer.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "ending/expel.h"
#include "ending/look.h"
#include "exchange/pending.h"
#include "exchange/request.h"
#include "exchange/roles.h"
#include "meeting/trial.h"
#include "meeting/contact.h"
#include "notify/note.h"
#include "peer/exports.h"
#include "peer/keys.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "release/abort.h"
#include "release/ask.h"
#include "release/release.h"
#include "release/reply.h"
#include "release/revoke.h"
#include "rules/agreement.h"
#include "semaphore/segment.h"
#include "service/regions.h"
#include "service/status.h"

// The service thread serves others, too, so it looks at its trial memory for no longer than this.
// The process that asks does so again.
#define VERIFY_DEADLINE_MS 500

// other_life says whether this rank is (or was last) connected to another life of the peer. If so,
// the caller waits until that life is over.
static bool other_life(const struct phi_peer *peer, uint64_t incarnation)
{
    return (peer->state == PHI_PEER_READY || peer->state == PHI_PEER_BROKEN) &&
           peer->incarnation != incarnation;
}

static int answer_hello(struct phi_self *self, struct phi_asker *asker,
                        const struct phi_node_message *request, struct phi_node_message *answer,
                        int *fd)
{
    if (request->a != self->mine.nonce)
        return -ECONNREFUSED;
    answer->a = self->mine.nonce;
    answer->b = (uint64_t)self->config->channels;
    answer->c = (uint64_t)self->ranks;
    if (request->rank < 0 || request->rank == self->rank)
        return -EINVAL;
    if (request->rank >= self->ranks)
        return PH_EMISMATCH; // of a larger job, as it sees by the answer
    pthread_mutex_lock(&self->lock);
    struct phi_peer *peer = phi_self_peer(self, request->rank);
    bool other = peer != NULL && other_life(peer, request->from);
    pthread_mutex_unlock(&self->lock);
    if (peer == NULL || other)
        return peer ? -ESTALE : -ENOMEM;
    asker->rank = request->rank;
    asker->incarnation = request->from;
    *fd = phi_mailbox_wake_fd(self->mailbox);
    return 0;
}

// The process that asks need not be a rank. It learns how this rank does, and gets no descriptor.
static int answer_status(struct phi_self *self, struct phi_status_ages *ages,
                         const struct phi_node_message *request, struct phi_node_message *answer)
{
    struct phi_status status;
    const bool whoever = request->to == 0 && request->a == 0;
    if (!whoever && request->to != self->incarnation)
        return -ESTALE;
    if (!whoever && request->a != self->mine.nonce)
        return -ECONNREFUSED;
    phi_status_fill(self, ages, &status);
    memcpy(answer->bytes, &status, sizeof status);
    answer->bytes_size = sizeof status;
    return 0;
}

static int answer_about(const struct phi_self *self, struct phi_node_message *answer)
{
    struct phi_about about;
    phi_about_fill(self, &about);
    memcpy(answer->bytes, &about, sizeof about);
    answer->bytes_size = sizeof about;
    return 0;
}

static int answer_process(const struct phi_self *self, int *fd)
{
    *fd = self->serving.pidfd;
    return self->serving.pidfd >= 0 ? 0 : -ENOENT;
}

static int answer_segment(struct phi_self *self, struct phi_peer *peer,
                          const struct phi_node_message *request, int *fd)
{
    if (self->rank > peer->rank)
        return -EINVAL;
    if (request->a != 0 && !(peer->contact.net_refused && peer->incarnation == request->from))
        return -ESTALE; // until this rank has no segment over the net any more, and will have none
    struct phi_segment *segment;
    int rc = phi_contact_segment(peer, request->from, &segment);
    if (rc == 0)
        *fd = segment->fd;
    return rc;
}

static int answer_export(struct phi_self *self, uint64_t id, int *fd)
{
    const struct phi_local_export *e = phi_export_find(self, id);
    if (e == NULL || e->export_.fd < 0)
        return -ENOENT;
    *fd = e->export_.fd;
    return 0;
}

static int answer_trial_memory(struct phi_self *self, struct phi_node_message *answer, int *fd)
{
    const struct phi_export *e = &self->trials.memory.export_;
    memcpy(answer->bytes, e->record, e->record_size);
    answer->bytes_size = (uint32_t)e->record_size;
    *fd = e->fd;
    return 0;
}

static int answer_verify(struct phi_self *self, uint64_t offset, uint64_t seed)
{
    if (offset > (uint64_t)(PHI_TRIAL_PATTERNS - 1) * PHI_TRIAL_SIZE)
        return -EINVAL;
    return phi_trial_memory_verify(self->device, (const char *)self->trials.memory.address + offset,
                                   seed, phi_deadline(VERIFY_DEADLINE_MS));
}

static int answer_taken(struct phi_self *self, struct phi_peer *peer,
                        const struct phi_node_message *request, struct phi_node_message *answer)
{
    if (request->a >= (uint64_t)self->config->channels)
        return -EINVAL;
    const struct phi_key *key = phi_peer_slot(peer, request->a);
    answer->a = key != NULL && phi_agreement_answer(&key->agreement, (uint32_t)request->b);
    return 0;
}

// A thread that has no core has waited, and does not any more.
static int answer_waiting(struct phi_self *self, const struct phi_node_message *request,
                          struct phi_node_message *answer)
{
    const struct phi_pending *waiting = self->exchanges.waiting;
    if (waiting == NULL || self->exchanges.many_threads || !phi_pending_waits(waiting) ||
        (request->a != 0 && phi_request_roles(self, request->a - 1, request->b)))
        return 0;
    answer->a = (uint64_t)waiting->key->peer->rank + 1;
    answer->b = waiting->key->op_id;
    answer->c = self->exchanges.calls;
    return 0;
}

static int answer_locked(struct phi_self *self, const struct phi_node_message *request,
                         struct phi_node_message *answer, int *fd)
{
    struct phi_peer *peer = self->table[request->rank];
    if (other_life(peer, request->from))
        return -ESTALE;
    switch (request->type) {
    case PHI_NODE_SEGMENT:
        return answer_segment(self, peer, request, fd);
    case PHI_NODE_TRIAL:
        return phi_trial_answer(peer, request, answer);
    case PHI_NODE_EXPORT:
        return answer_export(self, request->a, fd);
    case PHI_NODE_TAKEN:
        return answer_taken(self, peer, request, answer);
    case PHI_NODE_WAITING:
        return answer_waiting(self, request, answer);
    case PHI_NODE_ROLES:
        return phi_roles_answer(peer, request, answer);
    case PHI_NODE_NOTIFY:
        phi_peer_look(peer);
        return 0;
    case PHI_NODE_NOTIFICATION:
        return phi_notes_file(peer, request);
    case PHI_NODE_REVOKE:
        return phi_revoke_file(peer, request);
    case PHI_NODE_REVOKED:
        return phi_release_revoked(peer, request);
    case PHI_NODE_LET_GO:
        return phi_revoke_let_go(peer, request);
    case PHI_NODE_ABORT:
        return phi_abort_file(peer, request);
    case PHI_NODE_UNMAPPED:
        return phi_release_unmapped(peer, request);
    case PHI_NODE_RETIRE:
        return phi_retire_file(peer, request);
    case PHI_NODE_RETIRED:
        return phi_retire_answered(peer, request);
    case PHI_NODE_REFUSED:
        return phi_retire_refusal_file(peer, request);
    case PHI_NODE_EXPELLED:
        // An expelled rank that does not know it yet has no say.
        if (request->a < (uint64_t)self->ranks && !peer->end.expelled)
            phi_expel_file(self, (int)request->a, request->b);
        return 0;
    default:
        return -EOPNOTSUPP;
    }
}

int phi_answer(struct phi_self *self, struct phi_status_ages *ages, struct phi_asker *asker,
               const struct phi_node_message *request, struct phi_node_message *answer, int *fd)
{
    if (request->type == PHI_NODE_STATUS)
        return answer_status(self, ages, request, answer);
    if (request->type == PHI_NODE_ABOUT)
        return answer_about(self, answer);
    if (request->to != self->incarnation)
        return -ESTALE;
    if (request->type == PHI_NODE_ATTACH)
        return phi_regions_answer(self, request, answer);
    if (request->type == PHI_NODE_HELLO)
        return answer_hello(self, asker, request, answer, fd);
    if (request->rank < 0 || request->rank >= self->ranks || request->rank == self->rank)
        return -EINVAL;
    if (asker->rank != request->rank || asker->incarnation != request->from)
        return -EPERM;
    if (request->type == PHI_NODE_PROCESS)
        return answer_process(self, fd);
    if (request->type == PHI_NODE_TRIAL_MEMORY)
        return answer_trial_memory(self, answer, fd);
    if (request->type == PHI_NODE_VERIFY)
        return answer_verify(self, request->a, request->b); // may take a while: without the lock
    pthread_mutex_lock(&self->lock);
    int status = answer_locked(self, request, answer, fd);
    pthread_mutex_unlock(&self->lock);
    return status;
}
