// SPDX-License-Identifier: BSD-3-Clause
#include "exchange/pending.h"

#include "base/clock.h"
#include "exchange/request.h"
#include "peer/channel.h"
#include "peer/keys.h"
#include "peer/self.h"
#include "peer/wake.h"
#include "rules/agreement.h"

// How long a service thread may take to answer, where the caller's deadline leaves that much.
#define ANSWER_DEADLINE_MS 1000

// The nearer of the caller's deadline and that of an answer.
int64_t phi_request_answer_by(int64_t deadline)
{
    int64_t soon = phi_deadline(ANSWER_DEADLINE_MS);
    return soon < deadline ? soon : deadline;
}

uint32_t phi_request_roles(const struct phi_self *self, uint64_t rank, uint64_t op)
{
    uint32_t roles = 0;
    for (const struct ph_exchange_request *r = self->exchanges.first; r != NULL; r = r->next)
        for (size_t i = 0; i < r->n; i++)
            if ((uint64_t)r->pending[i].key->peer->rank == rank && r->pending[i].key->op_id == op)
                roles |= 1u << r->pending[i].key->role;
    return roles;
}

void phi_pending_wants(struct phi_pending *pending, bool wants)
{
    if (pending->wants == wants)
        return;
    pending->wants = wants;
    phi_self_want(pending->key->peer->self, pending->key->peer->rank, wants ? 1 : -1);
}

void phi_pending_settle(struct phi_pending *pending, int result, struct ph_channel *channel)
{
    phi_pending_wants(pending, false);
    pending->key->refused += pending->key->slot == PHI_NO_SLOT;
    pending->state = PHI_PENDING_DONE;
    pending->result = result;
    pending->channel = channel;
    struct ph_exchange_request *request = pending->key->request;
    if (result == 0 || request->failed++ > 0)
        return;
    request->failure = result;
    phi_report_copy(request->self->report, request->failure_text, sizeof request->failure_text);
}

void phi_pending_conclude(struct phi_pending *pending, int result, struct ph_channel *channel)
{
    if (!pending->finishing) {
        pending->concluded = true; // done when the application has it: conclude in exchange.c
        phi_pending_settle(pending, result, channel);
        return;
    }
    phi_pending_again(pending); // the older round is over, whatever came of it; now ours
}

void phi_pending_again(struct phi_pending *pending)
{
    phi_agreement_done(&pending->key->agreement);
    pending->finishing = false;
    pending->state = PHI_PENDING_PUBLISH;
}

bool phi_pending_waits(const struct phi_pending *pending)
{
    if (pending->state == PHI_PENDING_LOOK)
        return !phi_agreement_shows(phi_pending_peer_word(pending->key),
                                    pending->key->agreement.round);
    return pending->state < PHI_PENDING_LOOK && !pending->blocked;
}
