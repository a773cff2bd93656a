// SPDX-License-Identifier: BSD-3-Clause
// Copies, fills and host functions on streams.
#include "standin.h"

#include <stdlib.h>

struct transfer {
    struct CUstream_st *stream;
    uint64_t destination, source;
    size_t size;
    const struct si_allocation *to, *from; // NULL: pageable host memory
};

static bool describe(struct transfer *t)
{
    const struct si_context *context = t->stream->context;
    t->to = si_find(t->destination);
    t->from = si_find(t->source);
    return (!t->to || si_reachable(t->destination, t->size, context, true)) &&
           (!t->from || si_reachable(t->source, t->size, context, true));
}

static bool between_devices(const struct transfer *t)
{
    return t->to && t->from && si_is_device(t->to) && si_is_device(t->from) &&
           si_allocation_device(t->to) != si_allocation_device(t->from);
}

static CUresult enqueue(const struct transfer *t)
{
    struct si_op *op = si_op_new(SI_OP_COPY);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->u.copy.destination = t->destination;
    op->u.copy.source = t->source;
    op->u.copy.size = t->size;
    op->u.copy.peer = between_devices(t);
    // A small pageable source is the caller's again when the call returns.
    if (!t->from && !t->stream->capture && t->size <= SI_PAGEABLE_INLINE) {
        op->blob = si_blob_new((const void *)t->source, t->size);
        if (!op->blob) {
            free(op);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        op->u.copy.source = (uint64_t)op->blob->data;
    }
    return si_enqueue(t->stream, op);
}

// Copies that involve pageable memory are not asynchronous.
static CUresult copy(struct transfer *t)
{
    if (!describe(t))
        return CUDA_ERROR_INVALID_VALUE;
    if (!t->size)
        return CUDA_SUCCESS;
    bool pageable = !t->to || (!t->from && t->size > SI_PAGEABLE_INLINE);
    bool capturing = t->stream->capture;
    CUresult result = enqueue(t);
    return result || capturing || !pageable ? result : si_drain(t->stream);
}

enum sides { ANY = 0, TO_DEVICE = 1, FROM_DEVICE = 2 };

static CUresult copy_call(CUstream handle, struct transfer *t, enum sides sides)
{
    CUresult result = si_begin_stream(handle, &t->stream);
    if (result)
        return result;
    si_gate(t->stream->context);
    if ((sides & TO_DEVICE && !si_find(t->destination)) ||
        (sides & FROM_DEVICE && !si_find(t->source)))
        result = CUDA_ERROR_INVALID_VALUE;
    return si_end(result ? result : copy(t));
}

SI_EXPORT CUresult cuMemcpyAsync(CUdeviceptr destination, CUdeviceptr source, size_t size,
                                 CUstream stream)
{
    struct transfer t = {.destination = destination, .source = source, .size = size};
    return copy_call(stream, &t, ANY);
}

SI_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr destination, const void *source, size_t size,
                                        CUstream stream)
{
    struct transfer t = {.destination = destination, .source = (uint64_t)source, .size = size};
    return copy_call(stream, &t, TO_DEVICE);
}

SI_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *destination, CUdeviceptr source, size_t size,
                                        CUstream stream)
{
    struct transfer t = {.destination = (uint64_t)destination, .source = source, .size = size};
    if (si_on_flush)
        si_on_flush(0);
    return copy_call(stream, &t, FROM_DEVICE);
}

SI_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr destination, CUcontext destination_context,
                                     CUdeviceptr source, CUcontext source_context, size_t size,
                                     CUstream stream)
{
    struct transfer t = {.destination = destination, .source = source, .size = size};
    if (!destination_context || !source_context)
        return CUDA_ERROR_INVALID_CONTEXT;
    return copy_call(stream, &t, TO_DEVICE | FROM_DEVICE);
}

#if CUDA_VERSION >= 13000
// A batch has no order inside: the last comes first here.
static CUresult copy_each(struct CUstream_st *stream, const CUdeviceptr *destinations,
                          const CUdeviceptr *sources, const size_t *sizes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct transfer t = {stream, destinations[i], sources[i], sizes[i], NULL, NULL};
        if (!describe(&t) || sizes[i] == 0)
            return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_SUCCESS;
    for (size_t i = n; i-- > 0 && result == CUDA_SUCCESS;) {
        struct transfer t = {stream, destinations[i], sources[i], sizes[i], NULL, NULL};
        result = copy(&t);
    }
    return result;
}

SI_EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *destinations, CUdeviceptr *sources,
                                         size_t *sizes, size_t n, CUmemcpyAttributes *attributes,
                                         size_t *first, size_t attribute_count, CUstream handle)
{
    struct CUstream_st *stream;
    CUresult result = si_begin_stream(handle, &stream);
    if (result)
        return result;
    si_gate(stream->context);
    if (n == 0 || attribute_count != 1 || first[0] != 0 || stream->legacy ||
        attributes[0].srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        return si_end(CUDA_ERROR_INVALID_VALUE);
    if (stream->capture)
        return si_end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return si_end(copy_each(stream, destinations, sources, sizes, n));
}
#endif

// The copies without Async: on the legacy stream, and waited for.
static CUresult copy_now(struct transfer *t, enum sides sides)
{
    CUresult result = copy_call(CU_STREAM_LEGACY, t, sides);
    result = result ? result : si_begin_stream(CU_STREAM_LEGACY, &t->stream);
    return result ? result : si_end(si_drain(t->stream));
}

SI_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr destination, const void *source, size_t size)
{
    struct transfer t = {.destination = destination, .source = (uint64_t)source, .size = size};
    return copy_now(&t, TO_DEVICE);
}

SI_EXPORT CUresult cuMemcpyDtoH_v2(void *destination, CUdeviceptr source, size_t size)
{
    struct transfer t = {.destination = (uint64_t)destination, .source = source, .size = size};
    return copy_now(&t, FROM_DEVICE);
}

static CUresult fill(CUstream handle, const struct si_op *what)
{
    struct CUstream_st *stream;
    CUresult result = si_begin_stream(handle, &stream);
    if (result)
        return result;
    si_gate(stream->context);
    size_t size = what->u.fill.count * what->u.fill.width;
    if (!si_reachable(what->u.fill.destination, size, stream->context, false))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result || !size)
        return si_end(result);
    struct si_op *op = si_op_new(SI_OP_FILL);
    if (!op)
        return si_end(CUDA_ERROR_OUT_OF_MEMORY);
    op->u.fill = what->u.fill;
    return si_end(si_enqueue(stream, op));
}

SI_EXPORT CUresult cuMemsetD8Async(CUdeviceptr destination, unsigned char value, size_t count,
                                   CUstream stream)
{
    struct si_op what = {
        .u.fill = {.destination = destination, .value = value, .width = 1, .count = count}};
    return fill(stream, &what);
}

SI_EXPORT CUresult cuMemsetD32Async(CUdeviceptr destination, unsigned int value, size_t count,
                                    CUstream stream)
{
    struct si_op what = {
        .u.fill = {.destination = destination, .value = value, .width = 4, .count = count}};
    return destination % 4 ? CUDA_ERROR_INVALID_VALUE : fill(stream, &what);
}

SI_EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn call, void *data)
{
    struct CUstream_st *stream;
    CUresult result = call ? si_begin_stream(handle, &stream) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    si_gate(stream->context);
    struct si_op *op = si_op_new(SI_OP_HOST);
    if (!op)
        return si_end(CUDA_ERROR_OUT_OF_MEMORY);
    op->u.host.call = call;
    op->u.host.data = data;
    return si_end(si_enqueue(stream, op));
}
