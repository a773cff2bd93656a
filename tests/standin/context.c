// SPDX-License-Identifier: BSD-3-Clause
// Primary contexts and each thread's stack of current ones.
#include "standin.h"

#include <stdlib.h>

SI_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    struct si_context *context = si_context_of(device);
    if (!context)
        return si_end(CUDA_ERROR_INVALID_DEVICE);
    if (!context->retained++) {
        context->id = ++si.next_id;
        context->legacy = si_stream_new(context, CU_STREAM_DEFAULT);
        if (!context->legacy) {
            context->retained = 0;
            return si_end(CUDA_ERROR_OUT_OF_MEMORY);
        }
        context->legacy->legacy = true;
    }
    *out = (CUcontext)context;
    return si_end(CUDA_SUCCESS);
}

// What still lies in a context that ends goes with it.
static void reset(struct si_context *context)
{
    for (struct CUstream_st *stream = context->streams; stream; stream = stream->next)
        stream->destroyed = true;
    si_engine_stop(context);
    context->legacy = NULL;
    context->peers = 0;
    struct si_allocation *next;
    for (struct si_allocation *a = si_find_next(0); a; a = next) {
        next = si_find_next(a->base + 1);
        if (a->context == context)
            si_deallocate(a);
    }
}

SI_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CUresult result = si_begin_any();
    if (result)
        return result;
    struct si_context *context = si_context_of(device);
    if (!context)
        return si_end(CUDA_ERROR_INVALID_DEVICE);
    if (!context->retained)
        return si_end(CUDA_ERROR_INVALID_CONTEXT);
    if (context->retained == 1) {
        si_wait_idle(context, context->number);
        reset(context);
    }
    context->retained--;
    return si_end(CUDA_SUCCESS);
}

static bool is_context(CUcontext handle)
{
    for (int i = 0; i < si.device_count; i++) {
        if (handle == (CUcontext)&si.devices[i].context)
            return true;
    }
    return false;
}

static CUresult push(CUcontext handle)
{
    struct si_thread *thread = si_thread();
    if (!is_context(handle) || thread->depth == SI_CONTEXT_STACK)
        return CUDA_ERROR_INVALID_CONTEXT;
    thread->stack[thread->depth++] = (struct si_context *)handle;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CUresult result = si_begin_any();
    return result ? result : si_end(push(context));
}

SI_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    CUresult result = si_begin_any();
    if (result)
        return result;
    struct si_thread *thread = si_thread();
    if (!thread->depth)
        return si_end(CUDA_ERROR_INVALID_CONTEXT);
    thread->depth--;
    if (context)
        *context = (CUcontext)thread->stack[thread->depth];
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    CUresult result = si_begin_any();
    if (result)
        return result;
    if (context && !is_context(context))
        return si_end(CUDA_ERROR_INVALID_CONTEXT);
    struct si_thread *thread = si_thread();
    if (thread->depth)
        thread->depth--;
    return si_end(context ? push(context) : CUDA_SUCCESS);
}

SI_EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    struct si_thread *thread = si_thread();
    *context = thread->depth ? (CUcontext)thread->stack[thread->depth - 1] : NULL;
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    struct si_context *context;
    CUresult result = device ? si_begin(&context) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *device = context->ordinal;
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuCtxGetId(CUcontext handle, unsigned long long *id)
{
    struct si_context *context;
    CUresult result = id ? si_begin(&context) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    if (handle && !is_context(handle))
        return si_end(CUDA_ERROR_INVALID_CONTEXT);
    *id = handle ? ((struct si_context *)handle)->id : context->id;
    return si_end(CUDA_SUCCESS);
}

static CUresult enable_peer(struct si_context *context, CUcontext handle)
{
    const struct si_context *peer = (const struct si_context *)handle;
    if (!is_context(handle) || !peer->retained)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (peer == context ||
        !si_peers(si.devices[context->ordinal].physical, si.devices[peer->ordinal].physical))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (context->peers >> peer->ordinal & 1)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    context->peers |= 1u << peer->ordinal;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    struct si_context *context;
    CUresult result = flags ? CUDA_ERROR_INVALID_VALUE : si_begin(&context);
    return result ? result : si_end(enable_peer(context, peer));
}

SI_EXPORT CUresult cuCtxSynchronize(void)
{
    struct si_context *context;
    CUresult result = si_begin(&context);
    if (result)
        return result;
    // Whatever the thread's mode: a capture of the context cannot be waited for.
    for (struct si_capture *capture = si.captures; capture; capture = capture->next) {
        if (capture->origin->context == context) {
            si_capture_invalidate(capture);
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    if (!result)
        si_wait_idle(context, context->number);
    return si_end(result);
}
