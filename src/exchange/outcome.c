// SPDX-License-Identifier: BSD-3-Clause
// The sentences of an exchange that failed.
#include "exchange/outcome.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "exchange/pending.h"
#include "exchange/request.h"
#include "exchange/roles.h"
#include "meeting/trial.h"
#include "meeting/path.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"

static const char *missing(const struct phi_pending *pending)
{
    const struct phi_peer *peer = pending->key->peer;
    switch (pending->state) {
    case PHI_PENDING_PEER:
        return peer->life.expelled != 0 && peer->incarnation <= peer->life.expelled
                   ? "it was expelled, and has not joined again"
               : peer->state == PHI_PEER_UNKNOWN
                   ? "no member record of it has come through the store"
               : peer->contact.mute
                   ? "its member record is there, but it does not answer at its socket: it "
                     "is stopped, or has no core"
               : peer->self->net.error == -EAGAIN && phi_contact_by_net(peer)
                   ? "this rank has no net yet: its provider of libfabric was too slow to be "
                     "judged, as on a machine that is very busy, or a thread could not be started "
                     "(the log says which)"
               : peer->self->net.opening && phi_contact_by_net(peer)
                   ? "this rank has no net yet: its provider of libfabric has not begun to serve, "
                     "nor failed"
               : peer->to.hello != NULL && phi_contact_by_net(peer)
                   ? "its hello for the net path has not come through the store, "
                     "or the two do not reach each other over the net"
               : phi_trial_waits(peer)
                   ? "it has not found out so far whether its device reaches this one by ipc"
               : peer->contact.refused
                   ? "its member record is there, but nobody listens at its socket: it "
                     "exited, or has not "
                     "started again, or lives in another network namespace "
                     "(PEERHOP_SOCKET_DIRECTORY) or on a clone of this machine"
                   : "it is being connected to";
    case PHI_PENDING_OFFER:
        return "our offer could not be sent";
    case PHI_PENDING_PUBLISH:
        return "it has not offered this operation";
    case PHI_PENDING_LOOK:
        return "it is there, but has not come to this exchange of the operation";
    case PHI_PENDING_ASK:
        return "it does not answer whether an earlier exchange took place";
    default:
        return "it came, and the buffers were not mapped and confirmed in time";
    }
}

// If a peer is not reached over the net yet, own_end says where it would have to reach this rank.
static size_t own_end(const struct phi_pending *pending, char *text, size_t size)
{
    const struct phi_peer *peer = pending->key->peer;
    const struct phi_net *net = peer->self->net.net;
    text[0] = 0;
    if (pending->state != PHI_PENDING_PEER || peer->state != PHI_PEER_KNOWN || net == NULL ||
        !phi_contact_by_net(peer))
        return 0;
    int n =
        snprintf(text, size, "; this rank's end is %s%s%s (PEERHOP_NET_INTERFACE names another)",
                 phi_net_name(net), phi_net_address(net)[0] ? ", " : "", phi_net_address(net));
    return n < (int)size ? (size_t)n : size - 1;
}

// If a peer of this node is not reached yet, beside says why the other path does not serve.
static void beside(const struct phi_pending *pending, char *text, size_t size)
{
    const struct phi_peer *peer = pending->key->peer;
    const bool net = phi_contact_by_net(peer);
    text[0] = 0;
    if (pending->state != PHI_PENDING_PEER || peer->state != PHI_PEER_KNOWN ||
        (net ? phi_path_asked(&peer->self->mine, &peer->theirs) ||
                   !phi_capabilities_same_node(&peer->self->mine, &peer->theirs)
             : !peer->contact.net_refused))
        return;
    snprintf(text, size, "; %s: %s", phi_path_name(!net),
             phi_reason_text(phi_contact_against(peer, net, PHI_KIND_HOST)));
}

// If a peer of this node is not reached, a process that we refused may have been that peer.
static void strangers(const struct phi_pending *pending, char *text, size_t size)
{
    const struct phi_peer *peer = pending->key->peer;
    const uint32_t n = atomic_load(&peer->self->serving.strangers);
    text[0] = 0;
    if (pending->state == PHI_PENDING_PEER && peer->state == PHI_PEER_KNOWN && n > 0 &&
        phi_capabilities_same_node(&peer->self->mine, &peer->theirs))
        snprintf(text, size,
                 "; a connection of another user was refused (%u so far): all ranks of a node are "
                 "of one user",
                 n);
}

int phi_request_mismatch(const struct ph_exchange_request *request)
{
    const struct phi_wrong *wrong = &request->wrong;
    const struct phi_key *key = wrong->pending->key;
    char text[256];
    phi_roles_explain(wrong, text, sizeof text);
    return phi_fail(key->peer->self->report, PH_EMISMATCH, "after %lld ms: %s",
                    (long long)((phi_now() - request->began) / PHI_MS), text);
}

int phi_request_overdue(struct ph_exchange_request *request, const struct phi_pending *pending,
                        size_t open)
{
    struct phi_self *self = request->self;
    long long ms = (phi_now() - request->began) / PHI_MS;
    const struct phi_key *key = pending->key;
    if (request->wrong.pending != NULL && phi_pending_waits(request->wrong.pending))
        return phi_request_mismatch(request);
    char suspicion[80], other_path[640], lack[128] = "";
    const int out = phi_descriptors_lack(1); // whoever connects to us is not let in
    if (out)
        snprintf(lack, sizeof lack, "; %s", ph_strerror(out));
    size_t used = own_end(pending, other_path, sizeof other_path);
    beside(pending, other_path + used, sizeof other_path - used);
    used = strlen(other_path);
    strangers(pending, other_path + used, sizeof other_path - used);
    phi_executor_suspicion(self->executor, key->peer->rank, suspicion, sizeof suspicion);
    char store[256] = "; ";
    if (pending->state > PHI_PENDING_PUBLISH ||
        phi_mailbox_trouble(self->mailbox, store + 2, sizeof store - 2) == 0)
        store[0] = 0; // it is not through the store that something is awaited, or nothing is wrong
    if (request->crossed)
        return phi_fail(self->report, PH_ECROSSED,
                        "crossed exchange order: after %lld ms rank %d waits for rank %d "
                        "(operation %llu), %s; start all "
                        "exchanges before finishing any, or use one order",
                        ms, self->rank, key->peer->rank, (unsigned long long)key->op_id,
                        request->chain);
    return phi_fail(self->report, -ETIMEDOUT,
                    "after %lld ms rank %d still waits for rank %d: operation %llu, role %d, round "
                    "%u (%zu of %zu "
                    "operations open): %s%s%s%s%s",
                    ms, self->rank, key->peer->rank, (unsigned long long)key->op_id, (int)key->role,
                    key->agreement.round, open, request->n, missing(pending), other_path, suspicion,
                    store, lack);
}

int phi_request_tell(struct ph_exchange_request *request, int rc)
{
    struct phi_report *report = request->self->report;
    // A time-out of single operations stands for what ended the whole call.
    if (rc == 0 || request->failure != -ETIMEDOUT)
        rc = request->failure;
    if (request->failed == 1)
        return phi_refuse(report, rc, "%s", request->failure_text);
    return phi_refuse(report, rc, "%s; %zu more of %zu operations failed", request->failure_text,
                      request->failed - 1, request->n);
}
