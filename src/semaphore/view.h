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

#endif
