// SPDX-License-Identifier: BSD-3-Clause
// The net path: whether it serves a pair of ranks. How, src/net and channel/hello.c have.
#include "base/config.h"
#include "transport/transport.h"

static enum phi_reason net_viable(const struct phi_capabilities *mine,
                                  const struct phi_capabilities *theirs, enum phi_kind kind)
{
    if (mine->path == PHI_PATH_IPC || theirs->path == PHI_PATH_IPC)
        return PHI_REASON_USER;
    if (!phi_path_net(mine, theirs))
        return PHI_REASON_PREFERRED;
    return mine->device || theirs->device || kind != PHI_KIND_HOST ? PHI_REASON_NET_DEVICE
                                                                   : PHI_REASON_NONE;
}

const struct phi_transport phi_transport_net = {.name = "net", .viable = net_viable};

bool phi_path_net(const struct phi_capabilities *mine, const struct phi_capabilities *theirs)
{
    if (mine->path == PHI_PATH_IPC || theirs->path == PHI_PATH_IPC)
        return false;
    return mine->path == PHI_PATH_NET || theirs->path == PHI_PATH_NET ||
           !phi_capabilities_same_node(mine, theirs);
}
