// SPDX-License-Identifier: BSD-3-Clause
// The net path: whether it serves a pair of ranks. How, src/net and channel/hello.c have.
#include "base/config.h"
#include "transport/transport.h"

enum phi_reason phi_net_pair(const struct phi_capabilities *mine, const struct phi_capabilities *theirs)
{
    if (!mine->net)
        return PHI_REASON_NOT_BUILT;
    if (mine->path == PHI_PATH_IPC || theirs->path == PHI_PATH_IPC)
        return PHI_REASON_USER;
    if ((mine->device && !mine->kernels) || (theirs->device && !theirs->kernels))
        return PHI_REASON_NET_DEVICE;
    return theirs->net ? PHI_REASON_NONE : PHI_REASON_NET_THERE;
}

static enum phi_reason net_viable(const struct phi_capabilities *mine,
                                  const struct phi_capabilities *theirs, enum phi_kind kind)
{
    (void)kind; // any: what the net does not reach itself is staged
    const enum phi_reason reason = phi_net_pair(mine, theirs);
    if (reason != PHI_REASON_NONE)
        return reason;
    return phi_path_net(mine, theirs) ? PHI_REASON_NONE : PHI_REASON_NET_ASKED;
}

const struct phi_transport phi_transport_net = {.name = "net", .viable = net_viable};

bool phi_path_asked(const struct phi_capabilities *mine, const struct phi_capabilities *theirs)
{
    return mine->path != PHI_PATH_IPC && theirs->path != PHI_PATH_IPC &&
           (mine->path == PHI_PATH_NET || theirs->path == PHI_PATH_NET);
}

bool phi_path_only_net(const struct phi_capabilities *mine, const struct phi_capabilities *theirs)
{
    if (mine->path == PHI_PATH_IPC || theirs->path == PHI_PATH_IPC)
        return false;
    return phi_path_asked(mine, theirs) || !phi_capabilities_same_node(mine, theirs) ||
           (phi_net_pair(mine, theirs) == PHI_REASON_NONE && phi_capabilities_apart(mine, theirs));
}

bool phi_path_net(const struct phi_capabilities *mine, const struct phi_capabilities *theirs)
{
    return phi_path_only_net(mine, theirs) ||
           (phi_net_pair(mine, theirs) == PHI_REASON_NONE &&
            phi_ipc_pair(mine, theirs) != PHI_REASON_NONE);
}

bool phi_path_doubt(const struct phi_capabilities *mine, const struct phi_capabilities *theirs)
{
    return mine->device && theirs->device && !phi_path_net(mine, theirs) &&
           phi_net_pair(mine, theirs) == PHI_REASON_NONE &&
           (phi_capabilities_contained(mine, theirs) ||
            (!phi_capabilities_same_device(mine, theirs) && !phi_capabilities_sees(mine, theirs) &&
             !phi_capabilities_sees(theirs, mine)));
}
