// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>

#include "api/check.h"
#include "api/context_internal.h"
#include "base/clock.h"
#include "meeting/reap.h"
#include "peer/peers.h"
#include "release/release_wait.h"
#include "release/start.h"

static int check(struct ph_context *context, const void *buffer, size_t size)
{
    if (context == NULL)
        return -EINVAL;
    if (phi_peers_forked(context->peers))
        return PH_EFORKED;
    if (buffer == NULL || size == 0 || size > UINTPTR_MAX - (uintptr_t)buffer)
        return phi_fail(&context->report, -EINVAL, "%zu bytes at %p are no buffer", size, buffer);
    return 0;
}

static int check_state(struct ph_context *context, enum ph_release_state state)
{
    if (state >= PH_RELEASE_REVOKED && state <= PH_RELEASE_CLOSED)
        return 0;
    return phi_fail(&context->report, -EINVAL, "%d is no state of a release", (int)state);
}

int ph_release_start(struct ph_context *context, const void *buffer, size_t size)
{
    int rc = check(context, buffer, size);
    return rc ? rc : phi_release_start(context->peers, buffer, size);
}

int ph_release_test(struct ph_context *context, const void *buffer, size_t size,
                    enum ph_release_state state)
{
    int rc = check(context, buffer, size);
    if (rc || (rc = check_state(context, state)))
        return rc;
    return phi_release_test(context->peers, buffer, size, state);
}

int ph_release_wait(struct ph_context *context, const void *buffer, size_t size,
                    enum ph_release_state state, int64_t deadline_ms)
{
    int rc = check(context, buffer, size);
    if (rc || (rc = check_state(context, state)) ||
        (rc = phi_check_deadline(&context->report, deadline_ms)))
        return rc;
    int64_t ms = deadline_ms ? deadline_ms : context->config.deadline_ms;
    return phi_release_wait(context->peers, buffer, size, state, phi_deadline(ms));
}

static int in_the_way(struct ph_context *context, const char *what, const char *then)
{
    char why[256];
    phi_cuda_executor_explain(context->executor, why, sizeof why);
    return phi_fail(&context->report, -ETIMEDOUT, "%s: %s%s", what, why, then);
}

int phi_context_closed(struct ph_context *context, int64_t deadline, const char *what,
                       const char *then)
{
    struct phi_device *device = context->device;
    if (device == NULL || phi_device_ended(device, phi_device_handed(device), deadline))
        return 0;
    return in_the_way(context, what, then);
}

int ph_reap(struct ph_context *context, int64_t deadline_ms)
{
    if (context == NULL)
        return -EINVAL;
    if (phi_peers_forked(context->peers))
        return PH_EFORKED;
    int rc = phi_check_deadline(&context->report, deadline_ms);
    if (rc)
        return rc;
    const int64_t deadline = phi_deadline(deadline_ms ? deadline_ms : context->config.deadline_ms);
    const bool more = phi_reap(context->peers, context->device == NULL);
    // Before it is handed over: what the closer has, and waits with, no exchange can map again.
    if (more && !phi_cuda_executor_quiet(context->executor, deadline))
        return in_the_way(context, "not all is unmapped", "; call ph_reap again");
    if (more)
        phi_reap(context->peers, true);
    return phi_context_closed(context, deadline, "not all is unmapped yet",
                              "; it will be, behind that");
}
