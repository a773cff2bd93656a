// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>
#include <stddef.h>

#include "api/check.h"
#include "api/context_internal.h"
#include "api/ranges.h"
#include "base/clock.h"
#include "ending/untold.h"

static struct phi_mark mark_of(const struct ph_request *request)
{
    return (struct phi_mark){
        .done = request->done, .number = request->number, .index = request->index};
}

int ph_request_record(struct ph_context *context, void *stream, struct ph_request *request)
{
    if (context == NULL)
        return -EINVAL;
    if (phi_self_forked(context->self))
        return PH_EFORKED;
    int rc = phi_check_given(&context->report, request, "ph_request_record: request");
    struct phi_mark mark;
    if (rc == 0)
        rc = context->executor->ops->mark(context->executor, stream, &mark);
    if (rc == 0)
        *request = (struct ph_request){.context = context,
                                       .done = (const void *)mark.done,
                                       .number = mark.number,
                                       .index = mark.index};
    return rc;
}

int ph_request_test(const struct ph_request *request)
{
    if (request == NULL)
        return -EINVAL;
    if (request->context != NULL && phi_self_forked(request->context->self))
        return PH_EFORKED;
    const struct phi_mark mark = mark_of(request);
    return phi_mark_done(&mark) ? 0 : -EAGAIN;
}

int ph_request_wait(const struct ph_request *request, int64_t deadline_ms)
{
    PHI_RANGE("ph_request_wait", 0);
    int rc = ph_request_test(request);
    if (rc != -EAGAIN)
        return rc;
    struct ph_context *context = request->context;
    rc = phi_check_deadline(&context->report, deadline_ms);
    if (rc)
        return rc;
    const struct phi_mark mark = mark_of(request);
    const int64_t deadline = phi_deadline(deadline_ms ? deadline_ms : context->config.deadline_ms);
    do
        rc = phi_untold_answer(context->self,
                               context->executor->ops->await(context->executor, &mark, deadline));
    while (rc == -EINTR);
    return rc;
}

int ph_request_wait_on(const struct ph_request *request, void *stream)
{
    PHI_RANGE("ph_request_wait_on", 0);
    const int rc = ph_request_test(request);
    if (rc != -EAGAIN)
        return rc;
    const struct phi_mark mark = mark_of(request);
    struct phi_executor *executor = request->context->executor;
    return executor->ops->behind(executor, stream, &mark);
}
