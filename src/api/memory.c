// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>
#include <stdio.h>

#include "api/check.h"
#include "api/context_internal.h"
#include "base/clock.h"
#include "service/use.h"

int ph_host_alloc(struct ph_context *context, size_t size, void **address)
{
    if (context == NULL)
        return -EINVAL;
    if (phi_self_forked(context->self))
        return PH_EFORKED;
    int rc = phi_check_given(&context->report, address, "ph_host_alloc: address");
    if (rc)
        return rc;
    if (size == 0)
        return phi_fail(&context->report, -EINVAL, "host memory of 0 bytes was asked for");
    return phi_host_alloc(context->memory, size, address);
}

int ph_host_register(struct ph_context *context, int fd, uint64_t offset, size_t size,
                     void **address)
{
    if (context == NULL)
        return -EINVAL;
    if (phi_self_forked(context->self))
        return PH_EFORKED;
    int rc = phi_check_given(&context->report, address, "ph_host_register: address");
    return rc ? rc : phi_host_register(context->memory, fd, offset, size, address);
}

int ph_host_free(struct ph_context *context, void *address, int64_t deadline_ms)
{
    char what[80];
    if (context == NULL)
        return -EINVAL;
    if (phi_self_forked(context->self))
        return PH_EFORKED;
    int rc = phi_check_deadline(&context->report, deadline_ms);
    if (rc)
        return rc;
    if (phi_self_use(context->self, address))
        return phi_fail(&context->report, -EBUSY,
                        "host memory at %p is the buffer of a channel, or of an exchange that is "
                        "not finished",
                        address);
    rc = phi_host_free(context->memory, address);
    if (rc)
        return rc;
    snprintf(what, sizeof what, "host memory at %p is not unmapped yet", address);
    return phi_context_closed(context,
                              phi_deadline(deadline_ms ? deadline_ms : context->config.deadline_ms),
                              what, "; it will be, behind that, and is not to be used any more");
}
