// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>

#include "api/check.h"
#include "api/context_internal.h"
#include "api/ranges.h"
#include "base/clock.h"
#include "ending/untold.h"
#include "meeting/reap.h"
#include "peer/self.h"
#include "release/release_wait.h"
#include "release/start.h"
#include "service/regions.h"

// A wait for the device looks at this interval for other things to tell.
#define LOOK_MS 10

static int check_state(struct ph_context *context, enum ph_release_state state)
{
    if (state >= PH_RELEASE_REVOKED && state <= PH_RELEASE_CLOSED)
        return 0;
    return phi_fail(&context->report, -EINVAL, "%d is no state of a release", (int)state);
}

int ph_release_start(struct ph_context *context, const void *buffer, size_t size)
{
    int rc = phi_check_buffer(context, buffer, size);
    if (rc)
        return rc;
    // First the exports: else a rank could attach again behind the release.
    phi_regions_release(context->self, buffer, size);
    return phi_release_start(context->self, buffer, size);
}

int ph_release_test(struct ph_context *context, const void *buffer, size_t size,
                    enum ph_release_state state)
{
    int rc = phi_check_buffer(context, buffer, size);
    if (rc || (rc = check_state(context, state)))
        return rc;
    return phi_release_test(context->self, buffer, size, state);
}

int ph_release_wait(struct ph_context *context, const void *buffer, size_t size,
                    enum ph_release_state state, int64_t deadline_ms)
{
    PHI_RANGE("ph_release_wait", size);
    int rc = phi_check_buffer(context, buffer, size);
    if (rc || (rc = check_state(context, state)) ||
        (rc = phi_check_deadline(&context->report, deadline_ms)))
        return rc;
    int64_t ms = deadline_ms ? deadline_ms : context->config.deadline_ms;
    return phi_release_wait(context->self, buffer, size, state, phi_deadline(ms));
}

// A wait for the device: whether it is over by the deadline.
typedef bool (*wait_fn)(struct ph_context *context, uint64_t handed, int64_t deadline);

static bool is_quiet(struct ph_context *context, uint64_t handed, int64_t deadline)
{
    (void)handed;
    return phi_cuda_executor_quiet(context->executor, deadline);
}

static bool is_closed(struct ph_context *context, uint64_t handed, int64_t deadline)
{
    return phi_device_ended(context->device, handed, deadline);
}

// Waits, and looks now and then whether the application must be told of an end first: streams of
// the library's may be held until it is. what, then: as phi_context_closed.
static int await_device(struct ph_context *context, wait_fn is_over, int64_t deadline,
                        const char *what, const char *then)
{
    const uint64_t handed = phi_device_handed(context->device);
    char why[256];
    int rc = -EINTR;
    while (rc == -EINTR) {
        const int64_t look = phi_deadline(LOOK_MS);
        if (is_over(context, handed, look < deadline ? look : deadline))
            return 0;
        if (look >= deadline) {
            phi_cuda_executor_explain(context->executor, why, sizeof why);
            rc = phi_fail(&context->report, -ETIMEDOUT, "%s: %s%s", what, why, then);
        }
        if (rc == -ETIMEDOUT || phi_executor_untold(context->executor))
            rc = phi_untold_answer(context->self, rc);
    }
    return rc;
}

int phi_context_closed(struct ph_context *context, int64_t deadline, const char *what,
                       const char *then)
{
    return context->device ? await_device(context, is_closed, deadline, what, then) : 0;
}

int ph_reap(struct ph_context *context, int64_t deadline_ms)
{
    PHI_RANGE("ph_reap", 0);
    if (context == NULL)
        return -EINVAL;
    if (phi_self_forked(context->self))
        return PH_EFORKED;
    int rc = phi_check_deadline(&context->report, deadline_ms);
    if (rc)
        return rc;
    const int64_t deadline = phi_deadline(deadline_ms ? deadline_ms : context->config.deadline_ms);
    const bool more = phi_reap(context->self, context->device == NULL);
    // Before it is handed over: what the closer has, and waits with, no exchange can map again.
    if (more && (rc = await_device(context, is_quiet, deadline, "not all is unmapped",
                                   "; call ph_reap again")))
        return rc;
    if (more)
        phi_reap(context->self, true);
    return phi_context_closed(context, deadline, "not all is unmapped yet",
                              "; it will be, behind that");
}
