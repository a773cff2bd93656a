// SPDX-License-Identifier: BSD-3-Clause
// The net path: whether it serves a pair of ranks. How, src/net and channel/hello.c have.
#include "base/config.h"
#include "net/net.h"
#include "transport/transport.h"

static enum phi_reason net_viable(const struct phi_capabilities *mine,
                                  const struct phi_capabilities *theirs, enum phi_kind kind)
{
    (void)kind; // any: what the net does not reach itself is staged
    if (!phi_net_built())
        return PHI_REASON_NOT_BUILT;
    if (mine->path == PHI_PATH_IPC || theirs->path == PHI_PATH_IPC)
        return PHI_REASON_USER;
    if ((mine->device && !mine->kernels) || (theirs->device && !theirs->kernels))
        return PHI_REASON_NET_DEVICE;
    return phi_path_net(mine, theirs) ? PHI_REASON_NONE : PHI_REASON_NET_ASKED;
}

const struct phi_transport phi_transport_net = {.name = "net", .viable = net_viable};

bool phi_path_net(const struct phi_capabilities *mine, const struct phi_capabilities *theirs)
{
    if (mine->path == PHI_PATH_IPC || theirs->path == PHI_PATH_IPC)
        return false;
    return mine->path == PHI_PATH_NET || theirs->path == PHI_PATH_NET ||
           !phi_capabilities_same_node(mine, theirs);
}
