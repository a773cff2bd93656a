// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>

#include <peerhop/notify.h>

#include "api/check.h"
#include "api/context_internal.h"
#include "api/ranges.h"
#include "base/clock.h"
#include "ending/untold.h"
#include "notify/note.h"

int ph_notify(struct ph_channel *channel, const void *bytes, size_t size, void *stream)
{
    PHI_RANGE("ph_notify", size);
    const struct ph_group_op op = {
        .kind = PH_GROUP_NOTIFY, .channel = channel, .size = size, .data = (void *)bytes};
    return ph_group(&op, 1, stream);
}

static int check(struct ph_context *context, const void *list, size_t n, const size_t *count)
{
    if (context == NULL)
        return -EINVAL;
    if (phi_self_forked(context->self))
        return PH_EFORKED;
    int rc = n > 0 ? phi_check_given(&context->report, list, "notifications: list") : 0;
    return rc ? rc : phi_check_given(&context->report, count, "notifications: count");
}

int ph_notifications(struct ph_context *context, struct ph_notification *list, size_t n,
                     size_t *count)
{
    const int rc = check(context, list, n, count);
    return rc ? rc : phi_notes_read(context->self, list, n, count);
}

// Another thread may take what this one has waited for.
static int wait_and_read(struct phi_self *self, struct ph_notification *list, size_t n,
                         size_t *count, int64_t deadline)
{
    int rc;
    do {
        rc = phi_untold_answer(self, phi_notes_wait(self, deadline));
        if (rc == 0)
            rc = phi_notes_read(self, list, n, count);
    } while (rc == -EINTR || (rc == 0 && *count == 0));
    return rc;
}

int ph_notifications_wait(struct ph_context *context, struct ph_notification *list, size_t n,
                          size_t *count, int64_t deadline_ms)
{
    PHI_RANGE("ph_notifications_wait", 0);
    int rc = check(context, list, n, count);
    if (rc == 0 && n == 0)
        rc = phi_fail(&context->report, -EINVAL, "ph_notifications_wait: a list of none");
    if (rc || (rc = phi_check_deadline(&context->report, deadline_ms)))
        return rc;
    *count = 0;
    return wait_and_read(context->self, list, n, count,
                         phi_deadline(deadline_ms ? deadline_ms : context->config.deadline_ms));
}

int ph_notifications_fd(struct ph_context *context)
{
    if (context == NULL)
        return -EINVAL;
    return phi_self_forked(context->self) ? PH_EFORKED : phi_notes_descriptor(context->self);
}
