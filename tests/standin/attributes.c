// SPDX-License-Identifier: BSD-3-Clause
// What a pointer is.
#include "standin.h"

#include <string.h>

static unsigned allowed_types(const struct si_allocation *allocation)
{
    if (allocation->pool)
        return allocation->pool->types;
    return allocation->kind == SI_MAPPING ? allocation->physical->types : 0;
}

static unsigned access_flags(const struct si_allocation *allocation)
{
    return si_accessible(allocation, si_current(), true)
               ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
               : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
}

// Of mapped memory, what was reserved, not what is mapped.
static struct si_range range_of(const struct si_allocation *allocation)
{
    if (allocation->kind == SI_MAPPING)
        return si_reservation_of(allocation->base);
    return (struct si_range){allocation->base, allocation->size};
}

// size bytes of the value go to the caller; false: not an attribute of this memory.
static bool value_of(const struct si_allocation *a, CUpointer_attribute attribute, uint64_t address,
                     void *data, size_t size)
{
    uint64_t value;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        value = a->kind == SI_MAPPING || a->pool ? 0 : (uint64_t)a->context;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        value = si_is_device(a) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        if (!si_accessible(a, si_current(), false))
            return false;
        value = address;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (si_is_device(a))
            return false;
        value = address;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        value = a->id;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        value = 0;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        value = (uint64_t)si_allocation_device(a);
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        value = a->kind == SI_LEGACY;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        value = range_of(a).base;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        value = range_of(a).size;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        value = 1;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        value = allowed_types(a);
        break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        value = a->kind == SI_LEGACY || (a->pool && a->pool->types);
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        value = access_flags(a);
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        value = (uint64_t)a->pool;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        value = a->physical ? a->physical->size : a->size;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        value = a->base - a->offset;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        value = a->physical ? a->physical->id : a->id;
        break;
    default:
        return false;
    }
    memcpy(data, &value, size);
    return true;
}

// Everything that is not an address, an id or a mask is an int, booleans too.
static size_t size_of(CUpointer_attribute attribute)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        return sizeof(int);
    default:
        return sizeof(uint64_t);
    }
}

SI_EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute,
                                         CUdeviceptr address)
{
    CUresult result = data ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    const struct si_allocation *allocation = si_find(address);
    if (!allocation || !value_of(allocation, attribute, address, data, size_of(attribute)))
        return si_end(CUDA_ERROR_INVALID_VALUE);
    return si_end(CUDA_SUCCESS);
}

// What is not known is zero, and no error.
SI_EXPORT CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes,
                                          void **data, CUdeviceptr address)
{
    if (!count || !attributes || !data)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    const struct si_allocation *allocation = si_find(address);
    for (unsigned i = 0; i < count; i++) {
        size_t size = size_of(attributes[i]);
        if (!allocation || !value_of(allocation, attributes[i], address, data[i], size))
            memset(data[i], 0, size);
    }
    return si_end(CUDA_SUCCESS);
}
