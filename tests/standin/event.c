// SPDX-License-Identifier: BSD-3-Clause
// Events: each record makes a new marker, which waits and queries then look at.
#include "standin.h"

#include <stdlib.h>

static struct CUevent_st *events;

static struct CUevent_st **find(CUevent handle)
{
    struct CUevent_st **e = &events;
    while (*e && *e != handle)
        e = &(*e)->next;
    return e;
}

SI_EXPORT CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
    struct si_context *context;
    if (!out || flags & ~7u)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin(&context);
    if (result)
        return result;
    si_gate(context);
    struct CUevent_st *event = calloc(1, sizeof(*event));
    if (!event)
        return si_end(CUDA_ERROR_OUT_OF_MEMORY);
    event->context = context;
    event->flags = flags;
    event->next = events;
    events = event;
    *out = event;
    return si_end(CUDA_SUCCESS);
}

static void forget(struct CUevent_st *event)
{
    if (event->marker)
        si_marker_drop(event->marker);
    event->marker = NULL;
    event->capture_id = 0;
    si_set_clear(&event->nodes);
}

SI_EXPORT CUresult cuEventDestroy_v2(CUevent handle)
{
    CUresult result = si_begin_any();
    if (result)
        return result;
    if (*find(handle))
        si_gate((*find(handle))->context);
    struct CUevent_st **e = find(handle); // the lock was open meanwhile
    struct CUevent_st *event = *e;
    if (!event)
        return si_end(CUDA_ERROR_INVALID_HANDLE);
    *e = event->next;
    forget(event);
    free(event);
    return si_end(CUDA_SUCCESS);
}

static CUresult record(struct CUstream_st *stream, struct CUevent_st *event)
{
    if (stream->capture) {
        struct si_set nodes = {0};
        if (stream->capture->invalid)
            return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        if (!si_set_copy(&nodes, &stream->last))
            return CUDA_ERROR_OUT_OF_MEMORY;
        forget(event);
        event->capture_id = stream->capture->id;
        event->nodes = nodes;
        return CUDA_SUCCESS;
    }
    struct si_op *op = si_op_new(SI_OP_RECORD);
    struct si_marker *marker = op ? si_marker_new() : NULL;
    if (!marker) {
        free(op);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    op->u.marker = si_marker_hold(marker);
    CUresult result = si_enqueue(stream, op);
    if (result) {
        si_marker_drop(marker);
        return result;
    }
    forget(event);
    event->marker = marker;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuEventRecord(CUevent handle, CUstream stream_handle)
{
    struct CUstream_st *stream;
    CUresult result = si_begin_stream(stream_handle, &stream);
    if (result)
        return result;
    si_gate(stream->context);
    struct CUevent_st *event = *find(handle);
    bool fits = event && event->context == stream->context;
    return si_end(fits ? record(stream, event) : CUDA_ERROR_INVALID_HANDLE);
}

static CUresult await(struct CUstream_st *stream, struct CUevent_st *event)
{
    if (event->capture_id)
        return si_capture_find(event->capture_id) ? si_capture_join(stream, event)
                                                  : CUDA_ERROR_INVALID_VALUE;
    if (!event->marker)
        return CUDA_SUCCESS;
    if (stream->capture) {
        si_capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    struct si_op *op = si_op_new(SI_OP_AWAIT);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->u.marker = si_marker_hold(event->marker);
    return si_enqueue(stream, op);
}

SI_EXPORT CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags)
{
    struct CUstream_st *stream;
    CUresult result =
        flags & ~1u ? CUDA_ERROR_INVALID_VALUE : si_begin_stream(stream_handle, &stream);
    if (result)
        return result;
    struct CUevent_st *event = *find(handle);
    return si_end(event ? await(stream, event) : CUDA_ERROR_INVALID_HANDLE);
}

static CUresult may_observe(const struct CUevent_st *event)
{
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!event->capture_id)
        return si_unsafe();
    struct si_capture *capture = si_capture_find(event->capture_id);
    if (!capture)
        return CUDA_ERROR_INVALID_VALUE;
    si_capture_invalidate(capture);
    return CUDA_ERROR_CAPTURED_EVENT;
}

SI_EXPORT CUresult cuEventQuery(CUevent handle)
{
    CUresult result = si_begin_any();
    if (result)
        return result;
    const struct CUevent_st *event = *find(handle);
    result = may_observe(event);
    if (!result && event->marker && !event->marker->done)
        result = CUDA_ERROR_NOT_READY;
    return si_end(result);
}

SI_EXPORT CUresult cuEventSynchronize(CUevent handle)
{
    CUresult result = si_begin_any();
    if (result)
        return result;
    const struct CUevent_st *event = *find(handle);
    result = may_observe(event);
    if (!result && event->marker) {
        struct si_marker *marker = si_marker_hold(event->marker);
        si_marker_wait(marker);
        si_marker_drop(marker);
    }
    return si_end(result);
}

static bool timed(const struct CUevent_st *event)
{
    return event && event->marker && !(event->flags & CU_EVENT_DISABLE_TIMING);
}

SI_EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to)
{
    CUresult result = milliseconds ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    const struct CUevent_st *start = *find(from), *end = *find(to);
    if (!timed(start) || !timed(end))
        return si_end(CUDA_ERROR_INVALID_HANDLE);
    if (!start->marker->done || !end->marker->done)
        return si_end(CUDA_ERROR_NOT_READY);
    const struct timespec *a = &start->marker->at, *b = &end->marker->at;
    *milliseconds =
        (float)((double)(b->tv_sec - a->tv_sec) * 1e3 + (double)(b->tv_nsec - a->tv_nsec) / 1e6);
    return si_end(CUDA_SUCCESS);
}
