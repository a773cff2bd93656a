// SPDX-License-Identifier: BSD-3-Clause
// The library sends no message longer than its peers have room for: here one goes as somebody
// else's would, where this link's own messages go.
#include "conformance/net_long.h"

#include <errno.h>

#include "net/rail.h"
#include "net/state.h"

int send_long(struct phi_link *link, size_t size)
{
    static char bytes[1 << 16];
    struct phi_net *net = link->net;
    struct phi_net_op *op;
    ssize_t rc = -EINVAL;

    phi_net_lock(net);
    op = link->open && size <= sizeof(bytes) ? phi_op_free(link->ops.sends, PHI_SENDS) : NULL;
    if (op)
        rc = phi_rail_send(&link->rails.control, bytes, size, op);
    if (op && rc == 0) {
        op->busy = true;
        link->ops.sending++;
    }
    pthread_mutex_unlock(&net->lock);
    return (int)rc;
}

unsigned libfabric_major(const struct phi_link *link)
{
    return FI_MAJOR(link->net->library->fi_version());
}
