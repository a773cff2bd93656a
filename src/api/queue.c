// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>

#include "api/check.h"
#include "api/context_internal.h"
#include "api/ranges.h"
#include "base/clock.h"
#include "ending/untold.h"

static bool forked(struct ph_queue *queue)
{
    return *phi_queue_executor(queue)->life == 0;
}

int ph_queue_create(struct ph_context *context, struct ph_queue **queue)
{
    if (context == NULL)
        return -EINVAL;
    if (phi_self_forked(context->self))
        return PH_EFORKED;
    int rc = phi_check_given(&context->report, queue, "ph_queue_create: queue");
    if (rc)
        return rc;
    if (context->device != NULL)
        return phi_fail(&context->report, -EINVAL,
                        "queues belong to host contexts; this one runs on %s: use its streams",
                        context->name);
    return phi_queue_create(context->executor, queue);
}

int ph_queue_progress(struct ph_queue *queue, uint64_t *issued, uint64_t *done)
{
    struct phi_progress progress;
    if (queue == NULL)
        return -EINVAL;
    if (forked(queue))
        return PH_EFORKED;
    phi_queue_progress(queue, &progress);
    if (issued != NULL)
        *issued = progress.issued;
    if (done != NULL)
        *done = progress.done;
    return 0;
}

static int wait_until(struct ph_queue *queue, uint64_t number, int64_t deadline_ms)
{
    int rc = phi_check_deadline(phi_queue_report(queue), deadline_ms);
    if (rc)
        return rc;
    const int64_t deadline = deadline_ms ? phi_deadline(deadline_ms) : phi_queue_deadline(queue);
    do
        rc = phi_untold_answer(phi_queue_executor(queue)->self,
                               phi_queue_wait(queue, number, deadline));
    while (rc == -EINTR);
    return rc;
}

int ph_queue_wait(struct ph_queue *queue, uint64_t number, int64_t deadline_ms)
{
    PHI_RANGE("ph_queue_wait", 0);
    uint64_t issued;
    int rc = ph_queue_progress(queue, &issued, NULL);
    if (rc)
        return rc;
    if (number > issued)
        return phi_fail(phi_queue_report(queue), -EINVAL,
                        "ph_queue_wait: operation %llu was not enqueued; %llu were",
                        (unsigned long long)number, (unsigned long long)issued);
    return wait_until(queue, number, deadline_ms);
}

int ph_queue_synchronize(struct ph_queue *queue, int64_t deadline_ms)
{
    PHI_RANGE("ph_queue_synchronize", 0);
    uint64_t issued;
    int rc = ph_queue_progress(queue, &issued, NULL);
    return rc ? rc : wait_until(queue, issued, deadline_ms);
}

int ph_queue_host(struct ph_queue *queue, void (*fn)(void *opaque), void *opaque)
{
    if (queue == NULL)
        return -EINVAL;
    if (forked(queue))
        return PH_EFORKED;
    return phi_queue_host(queue, fn, opaque);
}

int ph_queue_destroy(struct ph_queue **queue)
{
    if (queue == NULL || *queue == NULL)
        return 0;
    if (forked(*queue))
        return PH_EFORKED;
    int rc = phi_queue_destroy(*queue);
    if (rc == 0)
        *queue = NULL;
    return rc;
}
