// SPDX-License-Identifier: BSD-3-Clause
// The ipc path: both ranks run on one node, and the peer's allocation is mapped here. The processor
// or this device copies.
#include "transport/transport.h"

static enum phi_reason ipc_viable(const struct phi_capabilities *mine,
                                  const struct phi_capabilities *theirs, enum phi_kind kind)
{
    enum phi_reason reason = phi_node_reason(mine, theirs);
    if (reason == PHI_REASON_NONE && phi_path_asked(mine, theirs))
        reason = PHI_REASON_USER;
    if (reason == PHI_REASON_NONE)
        reason = phi_ipc_pair(mine, theirs);
    return reason != PHI_REASON_NONE ? reason : phi_ipc_reach(mine, theirs, kind);
}

const struct phi_transport phi_transport_ipc = {.name = "ipc", .viable = ipc_viable};
