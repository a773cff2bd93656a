// SPDX-License-Identifier: BSD-3-Clause
#include "meeting/path.h"

#include "base/clock.h"
#include "meeting/trial.h"
#include "peer/peer.h"
#include "peer/self.h"

enum phi_reason phi_contact_against(const struct phi_peer *peer, bool by_net, enum phi_kind kind)
{
    if (!by_net && peer->contact.net_refused)
        return peer->contact.why;
    if (by_net && phi_trial_against(peer) != PHI_REASON_NONE)
        return phi_trial_against(peer);
    if (by_net && peer->contact.elsewhere)
        return PHI_REASON_ELSEWHERE;
    return phi_path_viable(!by_net, &peer->self->mine, &peer->theirs, kind);
}

bool phi_contact_by_net(const struct phi_peer *peer)
{
    return !peer->contact.net_refused &&
           (phi_path_net(&peer->self->mine, &peer->theirs) || peer->contact.elsewhere ||
            phi_trial_against(peer) != PHI_REASON_NONE);
}

bool phi_contact_due(const struct phi_peer *peer)
{
    return peer->state == PHI_PEER_KNOWN && !peer->contact.preparing &&
           !peer->contact.unreachable &&
           (!peer->contact.refused || phi_now() >= peer->contact.retry);
}
