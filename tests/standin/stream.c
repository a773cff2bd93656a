// SPDX-License-Identifier: BSD-3-Clause
// Streams: queues of operations, and what threads do with them.
#include "standin.h"

#include <stdlib.h>

static struct CUstream_st *find_explicit(CUstream handle)
{
    for (int i = 0; i < si.device_count; i++) {
        struct CUstream_st *s = si.devices[i].context.streams;
        while (s && s != handle)
            s = s->next;
        if (s && !s->destroyed)
            return s;
    }
    return NULL;
}

static struct CUstream_st *per_thread(struct si_context *context)
{
    struct si_thread *thread = si_thread();
    struct CUstream_st **stream = &thread->streams[context->ordinal];
    if (!*stream || thread->contexts[context->ordinal] != context->id)
        *stream = si_stream_new(context, CU_STREAM_DEFAULT);
    thread->contexts[context->ordinal] = context->id;
    return *stream;
}

CUresult si_stream_find(struct si_context *context, CUstream handle, struct CUstream_st **stream)
{
    if (!handle || handle == CU_STREAM_LEGACY)
        *stream = context->legacy;
    else if (handle == CU_STREAM_PER_THREAD)
        *stream = per_thread(context);
    else
        *stream = find_explicit(handle);
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

struct CUstream_st *si_stream_new(struct si_context *context, unsigned flags)
{
    struct CUstream_st *stream = calloc(1, sizeof(*stream));
    if (!stream)
        return NULL;
    stream->context = context;
    stream->id = ++si.next_id;
    stream->index = context->stream_index++;
    stream->flags = flags;
    stream->tail = &stream->head;
    stream->next = context->streams;
    context->streams = stream;
    return stream;
}

void si_stream_reap(struct si_context *context)
{
    for (struct CUstream_st **s = &context->streams; *s;) {
        struct CUstream_st *stream = *s;
        if (!stream->destroyed || stream->head) {
            s = &stream->next;
            continue;
        }
        *s = stream->next;
        si_set_clear(&stream->last);
        si_check_fence(stream);
        free(stream);
    }
}

static void stream_destroy(struct CUstream_st *stream)
{
    if (stream->capture)
        si_capture_abandon(stream);
    stream->destroyed = true;
    // The engine may be at work on it with the lock open: then it is the engine that frees it.
    if (stream->context->engine_runs)
        pthread_cond_signal(&stream->context->work);
    else
        si_stream_reap(stream->context);
}

void si_thread_streams_drop(struct si_thread *thread)
{
    for (int i = 0; i < si.device_count; i++) {
        const struct si_context *context = &si.devices[i].context;
        if (thread->streams[i] && context->retained && thread->contexts[i] == context->id)
            stream_destroy(thread->streams[i]);
    }
}

static void append(struct CUstream_st *stream, struct si_op *op)
{
    struct si_context *context = stream->context;
    op->number = ++context->number;
    *stream->tail = op;
    stream->tail = &op->next;
    stream->depth++;
    si_engine_start(context);
    pthread_cond_signal(&context->work);
}

CUresult si_enqueue(struct CUstream_st *stream, struct si_op *op)
{
    if (stream->capture)
        return si_capture_add(stream, op);
    if (si_capture_legacy_conflict(stream)) {
        si_op_free(op);
        si_capture_legacy_break(stream);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    while (stream->depth >= SI_STREAM_DEPTH)
        pthread_cond_wait(&si.changed, &si.lock);
    append(stream, op);
    return CUDA_SUCCESS;
}

bool si_idle(const struct si_context *context, uint64_t until)
{
    for (const struct CUstream_st *s = context->streams; s; s = s->next) {
        if (s->head && s->head->number <= until)
            return false;
    }
    return true;
}

void si_wait_idle(struct si_context *context, uint64_t until)
{
    while (!si_idle(context, until))
        pthread_cond_wait(&si.changed, &si.lock);
}

CUresult si_drain(struct CUstream_st *stream)
{
    if (!stream->head && !stream->legacy)
        return CUDA_SUCCESS;
    struct si_op *op = si_op_new(SI_OP_NOTHING);
    struct si_marker *marker = op ? si_marker_new() : NULL;
    if (!marker) {
        free(op);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    op->u.marker = si_marker_hold(marker);
    append(stream, op);
    si_marker_wait(marker);
    si_marker_drop(marker);
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
    struct si_context *context;
    if (!out || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin(&context);
    if (result)
        return result;
    si_gate(context);
    struct CUstream_st *stream = si_stream_new(context, flags);
    if (!stream)
        return si_end(CUDA_ERROR_OUT_OF_MEMORY);
    *out = stream;
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuStreamDestroy_v2(CUstream handle)
{
    CUresult result = si_begin_any();
    if (result)
        return result;
    struct CUstream_st *stream = find_explicit(handle);
    if (!stream || stream->legacy)
        return si_end(CUDA_ERROR_INVALID_HANDLE);
    si_gate(stream->context);
    stream_destroy(stream);
    return si_end(CUDA_SUCCESS);
}

// A thread may not look at or wait for a stream that captures.
static CUresult may_observe(struct CUstream_st *stream)
{
    if (stream->capture) {
        si_capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (si_capture_legacy_conflict(stream)) {
        si_capture_legacy_break(stream);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return si_unsafe();
}

// The legacy stream is done when all blocking ones are.
static bool finished(const struct CUstream_st *stream)
{
    if (stream->head)
        return false;
    for (const struct CUstream_st *s = stream->legacy ? stream->context->streams : NULL; s;
         s = s->next) {
        if (s->head && !(s->flags & CU_STREAM_NON_BLOCKING))
            return false;
    }
    return true;
}

SI_EXPORT CUresult cuStreamQuery(CUstream handle)
{
    struct CUstream_st *stream;
    CUresult result = si_begin_stream(handle, &stream);
    if (result)
        return result;
    result = may_observe(stream);
    if (!result && !finished(stream))
        result = CUDA_ERROR_NOT_READY;
    else if (!result)
        si_check_fence(stream);
    return si_end(result);
}

SI_EXPORT CUresult cuStreamSynchronize(CUstream handle)
{
    struct CUstream_st *stream;
    CUresult result = si_begin_stream(handle, &stream);
    if (result)
        return result;
    result = may_observe(stream);
    if (!result)
        result = si_drain(stream);
    return si_end(result);
}

SI_EXPORT CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
    struct CUstream_st *stream;
    CUresult result = id ? si_begin_stream(handle, &stream) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    if (stream->capture) { // measured: driver 580
        si_capture_invalidate(stream->capture);
        return si_end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    *id = stream->id;
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *out)
{
    struct CUstream_st *stream;
    CUresult result = out ? si_begin_stream(handle, &stream) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *out = (CUcontext)stream->context;
    return si_end(CUDA_SUCCESS);
}
