// SPDX-License-Identifier: BSD-3-Clause
// The addresses by which kernels know memory.
#ifndef PHI_SEMAPHORE_VIEW_H
#define PHI_SEMAPHORE_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/driver.h"

// phi_view gives the address that kernels know memory of an exchange by. Only host memory has
// another one, and only for that the driver is asked.
static inline CUresult phi_view(const struct phi_driver *driver, const void *address, bool host,
                                uint64_t *device)
{
    CUdeviceptr pointer = (uintptr_t)address;
    CUresult result = CUDA_SUCCESS;
    if (host)
        result = driver->cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                               (CUdeviceptr)(uintptr_t)address);
    *device = pointer;
    return result;
}

// phi_view_any gives that address of any memory of the caller's, or 0, and whether it is host
// memory. Returns whether the driver knows the memory.
static inline bool phi_view_any(const struct phi_driver *driver, const void *address,
                                uint64_t *device, bool *host)
{
    CUmemorytype type = (CUmemorytype)0;
    CUdeviceptr pointer = 0;
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    void *values[] = {&type, &pointer};
    const CUresult result = driver->cuPointerGetAttributes(sizeof names / sizeof names[0], names,
                                                           values, (CUdeviceptr)(uintptr_t)address);
    const bool known = result == CUDA_SUCCESS && type != 0;
    *host = known && type == CU_MEMORYTYPE_HOST;
    *device = known ? pointer : 0;
    return known;
}

#endif
