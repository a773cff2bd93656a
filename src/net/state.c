// SPDX-License-Identifier: BSD-3-Clause
#include "net/state.h"

#include <errno.h>

#include "base/clock.h"
#include "base/descriptors.h"

const char *phi_net_error(const struct phi_net *net, int rc)
{
    return net->library->fi_strerror(rc < 0 ? -rc : rc);
}

int phi_net_fail(struct phi_net *net, int rc, const char *call)
{
    // Providers do not always say what they lack.
    int lack = rc == -FI_ENOMEM ? -ENOMEM : phi_descriptors_lack(1);

    return phi_fail(net->report, lack ? lack : -EIO, "%s of %s: %s", call, net->provider.name,
                    lack ? ph_strerror(lack) : phi_net_error(net, rc));
}

const struct phi_net_wire *phi_net_wire(const struct phi_net *net)
{
    return &net->provider.wire;
}

const char *phi_net_name(const struct phi_net *net)
{
    return net->provider.name;
}

const char *phi_net_address(const struct phi_net *net)
{
    return net->provider.address;
}

bool phi_net_hmem(const struct phi_net *net)
{
    return net->provider.hmem;
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

struct phi_net_op *phi_op_free(struct phi_net_op *ops, int n)
{
    for (int i = 0; i < n; i++)
        if (!ops[i].busy)
            return &ops[i];
    return NULL;
}

// ---- patience

const char phi_stall[] = "its connection is gone and cannot be made again";

#define RETRY_MS 10 // between attempts, at most
#define IDLE_MS  500

bool phi_may_try(const struct phi_patience *patience)
{
    return patience->refused == 0 || phi_now() >= patience->retry;
}

void phi_was_refused(struct phi_patience *patience)
{
    int64_t now = phi_now(), pause;

    // Not where nobody has tried for a while: this process stood still, or there was nothing to
    // send.
    if (patience->refused == 0 || now - patience->retry > IDLE_MS * PHI_MS)
        patience->refused = now;
    pause = (now - patience->refused) / 8;
    patience->retry = now + (pause < RETRY_MS * PHI_MS ? pause : RETRY_MS * PHI_MS);
}

// ---- failure and doubt

void phi_link_fail(struct phi_link *link, int code, const char *why)
{
    if (!link->open)
        return;
    snprintf(link->failing.why, sizeof(link->failing.why), "%s", why);
    link->failing.code = code;
    link->open = link->carries = false;
}

// So long, as a peer's last words take another way than its data.
#define DOUBT_MS 2000

void phi_link_doubt(struct phi_link *link, const char *why)
{
    if (!link->carries || link->failing.doubt)
        return;
    // of a probe: it has no words
    link->failing.doubt = phi_deadline(link->rank < 0 ? 0 : DOUBT_MS);
    snprintf(link->failing.doubted, sizeof(link->failing.doubted), "%s", why);
    if (link->rank >= 0)
        phi_log(link->net->report, PH_LOG_INFO, "data does not go to or from rank %d any more: %s",
                link->rank, why);
}
