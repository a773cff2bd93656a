// SPDX-License-Identifier: BSD-3-Clause
// Every entry point of the CUDA driver that the library uses, by its pinned symbol name: cuda.h
// redirects bare names to the newest version by macro, dlsym does not. X(symbol).
#ifndef PHI_CUDA_ENTRIES_H
#define PHI_CUDA_ENTRIES_H

#include <cuda.h>

// A driver without one of these (11.7 or older) is no device.
#define PHI_CUDA_REQUIRED(X)                                                                       \
    X(cuInit)                                                                                      \
    X(cuDriverGetVersion)                                                                          \
    X(cuGetErrorName)                                                                              \
    X(cuGetErrorString)                                                                            \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceGetCount)                                                                            \
    X(cuDeviceGetName)                                                                             \
    X(cuDeviceGetAttribute)                                                                        \
    X(cuDeviceGetUuid_v2)                                                                          \
    X(cuDeviceCanAccessPeer)                                                                       \
    X(cuDeviceGetP2PAttribute)                                                                     \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuDevicePrimaryCtxRelease_v2)                                                                \
    X(cuCtxGetCurrent)                                                                             \
    X(cuCtxPushCurrent_v2)                                                                         \
    X(cuCtxPopCurrent_v2)                                                                          \
    X(cuCtxGetDevice)                                                                              \
    X(cuModuleLoadData)                                                                            \
    X(cuModuleUnload)                                                                              \
    X(cuModuleGetFunction)                                                                         \
    X(cuFuncGetAttribute)                                                                          \
    X(cuLaunchKernel)                                                                              \
    X(cuMemAlloc_v2)                                                                               \
    X(cuMemFree_v2)                                                                                \
    X(cuMemGetAddressRange_v2)                                                                     \
    X(cuMemHostRegister_v2)                                                                        \
    X(cuMemHostUnregister)                                                                         \
    X(cuMemHostGetDevicePointer_v2)                                                                \
    X(cuMemcpyAsync)                                                                               \
    X(cuMemcpyHtoDAsync_v2)                                                                        \
    X(cuMemcpyDtoHAsync_v2)                                                                        \
    X(cuMemHostAlloc)                                                                              \
    X(cuMemFreeHost)                                                                               \
    X(cuPointerGetAttribute)                                                                       \
    X(cuPointerGetAttributes)                                                                      \
    X(cuIpcGetMemHandle)                                                                           \
    X(cuIpcOpenMemHandle_v2)                                                                       \
    X(cuIpcCloseMemHandle)                                                                         \
    X(cuStreamCreate)                                                                              \
    X(cuStreamDestroy_v2)                                                                          \
    X(cuStreamQuery)                                                                               \
    X(cuStreamIsCapturing)                                                                         \
    X(cuStreamBatchMemOp_v2)                                                                       \
    X(cuStreamWriteValue32_v2)                                                                     \
    X(cuStreamWaitValue32_v2)                                                                      \
    X(cuStreamWriteValue64_v2)                                                                     \
    X(cuThreadExchangeStreamCaptureMode)                                                           \
    X(cuUserObjectCreate)                                                                          \
    X(cuUserObjectRelease)                                                                         \
    X(cuGraphRetainUserObject)

// Headers before 13.0 do not declare these.
#if CUDA_VERSION >= 13000
#define PHI_CUDA_OPTIONAL_13(X) X(cuMemcpyBatchAsync_v2)
#else
#define PHI_CUDA_OPTIONAL_13(X)
#endif

// Only newer drivers, or only some devices, have these: NULL where absent.
#define PHI_CUDA_OPTIONAL(X)                                                                       \
    X(cuStreamGetId)                                                                               \
    X(cuStreamGetCtx)                                                                              \
    X(cuCtxEnablePeerAccess)                                                                       \
    X(cuCtxGetId)                                                                                  \
    X(cuStreamGetCaptureInfo_v2)                                                                   \
    X(cuFuncLoad)                                                                                  \
    X(cuLaunchKernelEx)                                                                            \
    X(cuMemGetAllocationGranularity)                                                               \
    X(cuMemGetAllocationPropertiesFromHandle)                                                      \
    X(cuMemRetainAllocationHandle)                                                                 \
    X(cuMemRelease)                                                                                \
    X(cuMemExportToShareableHandle)                                                                \
    X(cuMemImportFromShareableHandle)                                                              \
    X(cuMemAddressReserve)                                                                         \
    X(cuMemAddressFree)                                                                            \
    X(cuMemMap)                                                                                    \
    X(cuMemUnmap)                                                                                  \
    X(cuMemSetAccess)                                                                              \
    X(cuMemPoolExportToShareableHandle)                                                            \
    X(cuMemPoolImportFromShareableHandle)                                                          \
    X(cuMemPoolExportPointer)                                                                      \
    X(cuMemPoolImportPointer)                                                                      \
    X(cuMemPoolSetAccess)                                                                          \
    X(cuMemPoolDestroy)                                                                            \
    X(cuMemFreeAsync)                                                                              \
    X(cuMemGetHandleForAddressRange)                                                               \
    X(cuFlushGPUDirectRDMAWrites)                                                                  \
    PHI_CUDA_OPTIONAL_13(X)

// Only tests and tools use these, beside the above; the stand-in has them too.
#define PHI_CUDA_TESTS(X)                                                                          \
    X(cuCtxSetCurrent)                                                                             \
    X(cuCtxSynchronize)                                                                            \
    X(cuStreamSynchronize)                                                                         \
    X(cuStreamWaitEvent)                                                                           \
    X(cuEventCreate)                                                                               \
    X(cuEventRecord)                                                                               \
    X(cuEventQuery)                                                                                \
    X(cuEventSynchronize)                                                                          \
    X(cuEventElapsedTime)                                                                          \
    X(cuEventDestroy_v2)                                                                           \
    X(cuMemsetD8Async)                                                                             \
    X(cuMemsetD32Async)                                                                            \
    X(cuMemcpyDtoH_v2)                                                                             \
    X(cuMemcpyHtoD_v2)                                                                             \
    X(cuMemcpyPeerAsync)                                                                           \
    X(cuMemAllocAsync)                                                                             \
    X(cuMemAllocFromPoolAsync)                                                                     \
    X(cuMemPoolCreate)                                                                             \
    X(cuDeviceGetDefaultMemPool)                                                                   \
    X(cuMemCreate)                                                                                 \
    X(cuStreamBeginCapture_v2)                                                                     \
    X(cuStreamEndCapture)                                                                          \
    X(cuGraphInstantiateWithFlags)                                                                 \
    X(cuGraphLaunch)                                                                               \
    X(cuGraphExecDestroy)                                                                          \
    X(cuGraphDestroy)                                                                              \
    X(cuLaunchHostFunc)                                                                            \
    X(cuDeviceTotalMem_v2)                                                                         \
    X(cuFuncSetAttribute)

#endif
