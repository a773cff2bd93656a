// SPDX-License-Identifier: BSD-3-Clause
// The net path where libfabric is not built in.
#include "transport/transport.h"

static enum phi_reason net_viable(const struct phi_capabilities *mine,
                                  const struct phi_capabilities *theirs, enum phi_kind kind)
{
    (void)mine;
    (void)theirs;
    (void)kind;
    return PHI_REASON_NOT_BUILT;
}

const struct phi_transport phi_transport_net = {.name = "net", .viable = net_viable};
