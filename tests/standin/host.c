// SPDX-License-Identifier: BSD-3-Clause
// Host memory that devices reach: allocated or registered. Its device address is its host address.
#include "standin.h"

#include <stdlib.h>
#include <string.h>

SI_EXPORT CUresult cuMemHostAlloc(void **out, size_t size, unsigned int flags)
{
    struct si_context *context;
    if (!out || !size || flags & ~7u)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin(&context);
    if (result)
        return result;
    si_gate(context);
    result = si_unsafe();
    if (result)
        return si_end(result);
    void *memory;
    if (posix_memalign(&memory, 4096, (size + 4095) & ~(size_t)4095))
        return si_end(CUDA_ERROR_OUT_OF_MEMORY);
    memset(memory, 0, size);
    struct si_allocation allocation = {.base = (uint64_t)memory,
                                       .size = size,
                                       .kind = SI_HOST,
                                       .context = context,
                                       .access = UINT32_MAX};
    struct si_allocation *inserted;
    result = si_insert(&allocation, &inserted);
    if (result)
        free(memory);
    else
        *out = memory;
    return si_end(result);
}

SI_EXPORT CUresult cuMemFreeHost(void *memory)
{
    struct si_context *context;
    CUresult result = si_begin(&context);
    if (result)
        return result;
    result = si_unsafe();
    if (result)
        return si_end(result);
    struct si_allocation *allocation = si_find((uint64_t)memory);
    if (!allocation || allocation->base != (uint64_t)memory || allocation->kind != SI_HOST)
        return si_end(CUDA_ERROR_INVALID_VALUE);
    si_block(allocation->context);
    allocation = si_find((uint64_t)memory);
    if (allocation)
        si_deallocate(allocation);
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuMemHostRegister_v2(void *memory, size_t size, unsigned int flags)
{
    struct si_context *context;
    if (!memory || !size || flags & ~15u)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin(&context);
    if (result)
        return result;
    si_gate(context);
    result = si_unsafe();
    if (result)
        return si_end(result);
    uint64_t base = (uint64_t)memory;
    const struct si_allocation *next = si_find_next(base);
    if (si_find(base) || (next && next->base < base + size))
        return si_end(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    struct si_allocation allocation = {.base = base,
                                       .size = size,
                                       .kind = SI_REGISTERED,
                                       .context = context,
                                       .access = UINT32_MAX};
    struct si_allocation *inserted;
    return si_end(si_insert(&allocation, &inserted));
}

SI_EXPORT CUresult cuMemHostUnregister(void *memory)
{
    struct si_context *context;
    CUresult result = si_begin(&context);
    if (result)
        return result;
    result = si_unsafe();
    if (result)
        return si_end(result);
    struct si_allocation *allocation = si_find((uint64_t)memory);
    if (!allocation || allocation->base != (uint64_t)memory || allocation->kind != SI_REGISTERED)
        return si_end(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    si_block(allocation->context);
    allocation = si_find((uint64_t)memory);
    if (allocation)
        si_deallocate(allocation);
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *memory,
                                                unsigned int flags)
{
    if (!address || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    const struct si_allocation *allocation = si_find((uint64_t)memory);
    if (!allocation || si_is_device(allocation))
        return si_end(CUDA_ERROR_INVALID_VALUE);
    *address = (CUdeviceptr)memory;
    return si_end(CUDA_SUCCESS);
}
