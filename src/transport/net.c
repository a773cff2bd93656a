// SPDX-License-Identifier: BSD-3-Clause
// The net path: whether it serves a pair of ranks. src/net and meeting/hello.c have how it does.
#include "transport/transport.h"

static enum phi_reason net_viable(const struct phi_capabilities *mine,
                                  const struct phi_capabilities *theirs, enum phi_kind kind)
{
    (void)kind; // any: memory that the net does not reach itself is staged
    const enum phi_reason reason = phi_net_pair(mine, theirs);
    if (reason != PHI_REASON_NONE)
        return reason;
    return phi_path_net(mine, theirs) ? PHI_REASON_NONE : PHI_REASON_NET_ASKED;
}

const struct phi_transport phi_transport_net = {.name = "net", .viable = net_viable};
