// SPDX-License-Identifier: BSD-3-Clause
// Devices and what they say about themselves: an H200's attributes.
#include "standin.h"

#include <stdio.h>
#include <string.h>

#define TOTAL_MEMORY 150109880320ull

SI_EXPORT CUresult cuDeviceGetCount(int *count)
{
    CUresult result = count ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *count = si.device_count;
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = device ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    if (!si_context_of(ordinal))
        return si_end(CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    CUresult result = name && size > 0 ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    if (!si_context_of(device))
        return si_end(CUDA_ERROR_INVALID_DEVICE);
    snprintf(name, (size_t)size, "Stand-in H200");
    return si_end(CUDA_SUCCESS);
}

// The same for every process of the machine, whatever it sees: from the machine's numbering.
SI_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    CUresult result = uuid ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    if (!si_context_of(device))
        return si_end(CUDA_ERROR_INVALID_DEVICE);
    memcpy(uuid->bytes, "peerhop-standin", 15);
    uuid->bytes[15] = (char)si.devices[device].physical;
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult result = bytes ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    if (!si_context_of(device))
        return si_end(CUDA_ERROR_INVALID_DEVICE);
    *bytes = TOTAL_MEMORY;
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    CUresult result = can ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    if (!si_context_of(device) || !si_context_of(peer))
        return si_end(CUDA_ERROR_INVALID_DEVICE);
    *can = device != peer && si_peers(si.devices[device].physical, si.devices[peer].physical);
    return si_end(CUDA_SUCCESS);
}

// What connects two of the machine's devices is NVLink, unless PEERHOP_STANDIN_BUS is set.
SI_EXPORT CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute,
                                           CUdevice device, CUdevice peer)
{
    CUresult result = value ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    if (!si_context_of(device) || !si_context_of(peer) || device == peer)
        return si_end(CUDA_ERROR_INVALID_DEVICE);
    if (attribute != CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED &&
        attribute != CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)
        return si_end(CUDA_ERROR_INVALID_VALUE);
    *value = si_peers(si.devices[device].physical, si.devices[peer].physical) &&
             !(attribute == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED &&
               getenv("PEERHOP_STANDIN_BUS"));
    return si_end(CUDA_SUCCESS);
}

static const struct {
    CUdevice_attribute attribute;
    int value;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62914560},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, SI_MULTIPROCESSORS},
    {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 0},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 0},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 0},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, 0},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 100},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR},
    {CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0xff},
    {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0x1e},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 1},
};

SI_EXPORT CUresult (*si_on_flush)(int scope);

SI_EXPORT CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                              CUflushGPUDirectRDMAWritesScope scope)
{
    struct si_context *context;
    CUresult result = target == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX
                          ? si_begin(&context)
                          : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    si_end(CUDA_SUCCESS);
    return si_on_flush ? si_on_flush((int)scope) : CUDA_SUCCESS;
}

static int attribute_value(CUdevice_attribute attribute, int physical)
{
    if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
        return physical + 1;
    for (size_t i = 0; i < sizeof(attributes) / sizeof(*attributes); i++) {
        if (attributes[i].attribute == attribute)
            return attributes[i].value;
    }
    return 0; // everything the stand-in has not got
}

SI_EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    if (!value || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    if (!si_context_of(device))
        return si_end(CUDA_ERROR_INVALID_DEVICE);
    *value = attribute_value(attribute, si.devices[device].physical);
    return si_end(CUDA_SUCCESS);
}
