// SPDX-License-Identifier: BSD-3-Clause
// The CUDA driver as a table of functions, loaded at run time: nothing links to libcuda, so one
// binary runs with and without a GPU. Only for files that are built where cuda.h is.
#ifndef PHI_CUDA_DRIVER_H
#define PHI_CUDA_DRIVER_H

#include <stddef.h>

#include <cuda.h>

#include "base/report.h"
#include "cuda/device.h"
#include "cuda/entries.h"
#include "cuda/kernel_args.h"

// Headers of 12.3 and later declare only the third version of this function; drivers since 11.3
// have this one.
CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
                                           cuuint64_t *id, CUgraph *graph,
                                           const CUgraphNode **dependencies, size_t *count);

// Members have the pinned names of entries.h. Optional and tests' entries may be NULL.
struct phi_driver {
#ifdef __cplusplus
#define PHI_CUDA_MEMBER(symbol) decltype(::symbol) *symbol;
#else
#define PHI_CUDA_MEMBER(symbol) __typeof__(symbol) *symbol;
#endif
    PHI_CUDA_REQUIRED(PHI_CUDA_MEMBER)
    PHI_CUDA_OPTIONAL(PHI_CUDA_MEMBER)
    PHI_CUDA_TESTS(PHI_CUDA_MEMBER)
#undef PHI_CUDA_MEMBER
};

// phi_driver_load loads and initialises the driver of that name. It is loaded once for the life of
// the process and never changes afterwards, the only global of the library: a second name is
// refused, since two drivers cannot share a process. Where there is none, NULL, and the reason in
// why (never logged: no driver is no failure). Any thread.
const struct phi_driver *phi_driver_load(const char *library, char *why, size_t why_size);

// phi_cuda_code is what a result of the driver means for us: -ENODEV, -ENOMEM or PH_EDRIVER.
int phi_cuda_code(CUresult result);

// phi_cuda_result is the one place where a failed driver call becomes a result of ours: its
// sentence is the text, then the driver's name and description of the error. Returns
// phi_cuda_code(result).
int phi_cuda_result(struct phi_report *report, const struct phi_driver *driver, CUresult result,
                    const char *format, ...) __attribute__((format(printf, 4, 5)));

// phi_cuda_name is the driver's name of an error, e.g. "CUDA_ERROR_INVALID_VALUE"; never NULL.
const char *phi_cuda_name(const struct phi_driver *driver, CUresult result);

// phi_cuda_sticky: after this error the context runs nothing any more.
bool phi_cuda_sticky(CUresult result);

// phi_cuda_copy_together gives the copy engine n copies that have no order among themselves by one
// call; CUDA_ERROR_NOT_SUPPORTED: this build or this driver has none (before 13.0). Neither on the
// legacy stream nor while it captures. If the call fails, nobody says which copies have begun.
CUresult phi_cuda_copy_together(const struct phi_driver *driver, CUdeviceptr *to, CUdeviceptr *from,
                                size_t *sizes, size_t n, CUstream stream);

// These give the files with cuda.h what device.h does not show of a device.
const struct phi_driver *phi_device_driver(const struct phi_device *device);
CUdevice phi_device_handle(const struct phi_device *device);
CUcontext phi_device_context(const struct phi_device *device);

// phi_device_tell warns of a call of the closer's that failed, while there is somebody to tell.
void phi_device_tell(struct phi_device *device, CUresult result, const char *call);

extern const char *const phi_kernel_names[PHI_KERNEL_COUNT];
CUfunction phi_device_kernel(const struct phi_device *device, enum phi_kernel kernel); // NULL: none

#endif
