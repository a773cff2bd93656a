// SPDX-License-Identifier: BSD-3-Clause
// Stream memory operations. They go on while another thread blocks in a free: no gate here.
#include "standin.h"

static size_t width_of(CUstreamBatchMemOpType type)
{
    switch (type) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        return 4;
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        return 8;
    default:
        return 0;
    }
}

static CUresult check_flags(const struct si_memop *memop)
{
    switch (memop->type) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        if (memop->flags & CU_STREAM_WAIT_VALUE_FLUSH)
            return CUDA_ERROR_NOT_SUPPORTED; // as CAN_FLUSH_REMOTE_WRITES says
        return memop->flags > CU_STREAM_WAIT_VALUE_NOR ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        // NO_MEMORY_BARRIER was measured to be refused by these versions.
        return memop->flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_BARRIER:
        return memop->flags > CU_STREAM_MEMORY_BARRIER_TYPE_GPU ? CUDA_ERROR_INVALID_VALUE
                                                                : CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        return CUDA_ERROR_NOT_SUPPORTED;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult check(const struct si_memop *memop, const struct si_context *context)
{
    CUresult result = check_flags(memop);
    size_t width = width_of(memop->type);
    if (result || !width)
        return result;
    if (memop->address % width || !si_reachable(memop->address, width, context, false))
        return CUDA_ERROR_INVALID_VALUE;
    if (memop->type == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
        memop->type == CU_STREAM_MEM_OP_WAIT_VALUE_64)
        si_check_wait(memop->address);
    return CUDA_SUCCESS;
}

static CUresult enqueue(CUstream handle, const struct si_memop *memops, unsigned count)
{
    struct CUstream_st *stream;
    CUresult result = si_begin_stream(handle, &stream);
    if (result)
        return result;
    for (unsigned i = 0; i < count && !result; i++)
        result = check(&memops[i], stream->context);
    if (result)
        return si_end(result);
    struct si_op *op = si_op_new(SI_OP_MEMOPS);
    struct si_blob *blob = op ? si_blob_new(memops, count * sizeof(*memops)) : NULL;
    if (!blob) {
        if (op)
            si_op_free(op);
        return si_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    op->blob = blob;
    op->u.memops.count = count;
    return si_end(si_enqueue(stream, op));
}

static struct si_memop convert(const CUstreamBatchMemOpParams *params)
{
    struct si_memop memop = {.type = params->operation};
    size_t width = width_of(memop.type);
    if (width) {
        // Waits and writes have one layout.
        memop.flags = params->waitValue.flags;
        memop.address = params->waitValue.address;
        memop.value = width == 8 ? params->waitValue.value64 : params->waitValue.value;
    } else {
        memop.flags = params->memoryBarrier.flags;
    }
    return memop;
}

SI_EXPORT CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count,
                                         CUstreamBatchMemOpParams *params, unsigned int flags)
{
    if (!count || count > SI_BATCH_MAX || !params || flags)
        return CUDA_ERROR_INVALID_VALUE;
    struct si_memop memops[SI_BATCH_MAX];
    for (unsigned i = 0; i < count; i++)
        memops[i] = convert(&params[i]);
    return enqueue(stream, memops, count);
}

SI_EXPORT CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                           unsigned int flags)
{
    struct si_memop memop = {.type = CU_STREAM_MEM_OP_WRITE_VALUE_32,
                             .flags = flags,
                             .address = address,
                             .value = value};
    return enqueue(stream, &memop, 1);
}

SI_EXPORT CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                           unsigned int flags)
{
    struct si_memop memop = {.type = CU_STREAM_MEM_OP_WRITE_VALUE_64,
                             .flags = flags,
                             .address = address,
                             .value = value};
    return enqueue(stream, &memop, 1);
}

SI_EXPORT CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                          unsigned int flags)
{
    struct si_memop memop = {
        .type = CU_STREAM_MEM_OP_WAIT_VALUE_32, .flags = flags, .address = address, .value = value};
    return enqueue(stream, &memop, 1);
}
