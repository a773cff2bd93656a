// SPDX-License-Identifier: BSD-3-Clause
#include "net/state.h"

#include <errno.h>

#include "base/descriptors.h"

const char *phi_net_error(const struct phi_net *net, int rc)
{
    return net->library->fi_strerror(rc < 0 ? -rc : rc);
}

int phi_net_fail(struct phi_net *net, int rc, const char *call)
{
    // Providers do not always say what they lack.
    int lack = rc == -FI_ENOMEM ? -ENOMEM : phi_descriptors_lack(1);

    return phi_fail(net->report, lack ? lack : -EIO, "%s of %s: %s", call, net->name,
                    lack ? ph_strerror(lack) : phi_net_error(net, rc));
}

const struct phi_net_wire *phi_net_wire(const struct phi_net *net)
{
    return &net->wire;
}

const char *phi_net_name(const struct phi_net *net)
{
    return net->name;
}

const char *phi_net_address(const struct phi_net *net)
{
    return net->address;
}

bool phi_net_hmem(const struct phi_net *net)
{
    return net->hmem;
}

bool phi_net_dmabuf(const struct phi_net *net)
{
#ifdef FI_MR_DMABUF
    return FI_VERSION_GE(net->library->api, FI_VERSION(1, 20));
#else
    (void)net;
    return false;
#endif
}
