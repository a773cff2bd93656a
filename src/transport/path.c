// SPDX-License-Identifier: BSD-3-Clause
// The choice of the path between two ranks, and the reasons against each path, from the ranks'
// records alone.
#include "base/config.h"
#include "transport/transport.h"

enum phi_reason phi_node_reason(const struct phi_capabilities *mine,
                                const struct phi_capabilities *theirs)
{
    if (!phi_capabilities_node_known(mine) || !phi_capabilities_node_known(theirs))
        return PHI_REASON_NODE_UNKNOWN;
    return phi_capabilities_same_node(mine, theirs) ? PHI_REASON_NONE : PHI_REASON_NODE;
}

enum phi_reason phi_ipc_reach(const struct phi_capabilities *mine,
                              const struct phi_capabilities *theirs, enum phi_kind kind)
{
    if (mine->device != theirs->device)
        return PHI_REASON_DEVICE;
    if (phi_capabilities_denied(mine, theirs))
        return PHI_REASON_PEER_ACCESS;
    return mine->kinds & (1u << kind) ? PHI_REASON_NONE : PHI_REASON_KIND;
}

enum phi_reason phi_ipc_pair(const struct phi_capabilities *mine,
                             const struct phi_capabilities *theirs)
{
    if (mine->device != theirs->device)
        return PHI_REASON_DEVICE;
    if (phi_capabilities_apart(mine, theirs))
        return PHI_REASON_SOCKET;
    if (phi_capabilities_denied(mine, theirs))
        return PHI_REASON_PEER_ACCESS;
    return phi_capabilities_denied(theirs, mine) ? PHI_REASON_ACCESS_THERE : PHI_REASON_NONE;
}

enum phi_reason phi_net_pair(const struct phi_capabilities *mine,
                             const struct phi_capabilities *theirs)
{
    if (!mine->net)
        return PHI_REASON_NOT_BUILT;
    if (mine->path == PHI_PATH_IPC || theirs->path == PHI_PATH_IPC)
        return PHI_REASON_USER;
    if ((mine->device && !mine->kernels) || (theirs->device && !theirs->kernels))
        return PHI_REASON_NET_DEVICE;
    return theirs->net ? PHI_REASON_NONE : PHI_REASON_NET_THERE;
}

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
    return phi_path_only_net(mine, theirs) || (phi_net_pair(mine, theirs) == PHI_REASON_NONE &&
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

// Of any kind: memory that the net does not reach itself is staged.
static enum phi_reason net_viable(const struct phi_capabilities *mine,
                                  const struct phi_capabilities *theirs)
{
    const enum phi_reason reason = phi_net_pair(mine, theirs);
    if (reason != PHI_REASON_NONE)
        return reason;
    return phi_path_net(mine, theirs) ? PHI_REASON_NONE : PHI_REASON_NET_ASKED;
}

const char *phi_path_name(bool net)
{
    return net ? "net" : "ipc";
}

enum phi_reason phi_path_viable(bool net, const struct phi_capabilities *mine,
                                const struct phi_capabilities *theirs, enum phi_kind kind)
{
    return net ? net_viable(mine, theirs) : ipc_viable(mine, theirs, kind);
}
