// SPDX-License-Identifier: BSD-3-Clause
// Kind vmm: cuMemCreate memory by POSIX file descriptors. One physical allocation is one allocation
// of ours.
//
// Its part of a record: the owner (process u64, device UUID).
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>

#include "memory/pointer.h"

// physical returns the allocation mapped at an address, or 0. Entered; the caller releases.
static CUmemGenericAllocationHandle physical(const struct phi_driver *driver, uint64_t address)
{
    CUmemGenericAllocationHandle handle = 0;
    void *pointer = (void *)(uintptr_t)address; // NOLINT(performance-no-int-to-ptr)
    if (driver->cuMemRetainAllocationHandle == NULL ||
        driver->cuMemRetainAllocationHandle(&handle, pointer) != CUDA_SUCCESS)
        return 0;
    return handle;
}

static void release(const struct phi_driver *driver, CUmemGenericAllocationHandle handle)
{
    if (handle != 0)
        driver->cuMemRelease(handle);
}

// check_physical: one physical allocation must lie behind the whole range that the driver calls an
// allocation.
static int check_physical(struct phi_memory *memory, const struct phi_allocation *allocation)
{
    const struct phi_driver *driver = phi_device_driver(memory->device);
    CUmemGenericAllocationHandle first = physical(driver, allocation->base);
    CUmemGenericAllocationHandle last = physical(driver, allocation->base + allocation->size - 1);
    int rc = 0;
    if (first == 0)
        rc = phi_fail(memory->report, PH_EKIND,
                      "device memory at 0x%llx is neither of cudaMalloc, cuMemCreate nor a pool",
                      (unsigned long long)allocation->base);
    else if (first != last)
        rc = phi_fail(
            memory->report, PH_EKIND,
            "%llu bytes at 0x%llx span several physical allocations: such a buffer cannot be "
            "exported",
            (unsigned long long)allocation->size, (unsigned long long)allocation->base);
    release(driver, last);
    release(driver, first);
    return rc;
}

static int vmm_describe(struct phi_memory *memory, const void *address, size_t size,
                        struct phi_allocation *allocation, uint64_t *offset)
{
    struct phi_allocation found;
    uint64_t at;
    void *token = NULL;
    int rc = phi_pointer_describe(memory, PHI_KIND_VMM, address, size, &found, &at);
    if (rc)
        return rc;
    rc = phi_device_enter(memory->device, &token);
    if (rc)
        return rc;
    rc = check_physical(memory, &found);
    phi_device_leave(memory->device, token);
    if (rc)
        return rc;
    *allocation = found;
    *offset = at;
    return 0;
}

static int export_entered(struct phi_memory *memory, const struct phi_allocation *allocation,
                          int *fd)
{
    const struct phi_driver *driver = phi_device_driver(memory->device);
    CUmemAllocationProp properties = {0};
    CUmemGenericAllocationHandle handle = physical(driver, allocation->base);
    int rc = 0;
    if (handle == 0)
        return phi_fail(memory->report, -EINVAL, "nothing is mapped at 0x%llx any more",
                        (unsigned long long)allocation->base);
    CUresult result = driver->cuMemGetAllocationPropertiesFromHandle(&properties, handle);
    if (result == CUDA_SUCCESS &&
        !(properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) {
        rc = phi_fail(memory->report, PH_EKIND,
                      "the VMM allocation at 0x%llx was made without "
                      "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: it cannot be exported",
                      (unsigned long long)allocation->base);
        goto release_handle;
    }
    if (result == CUDA_SUCCESS)
        result = driver->cuMemExportToShareableHandle(fd, handle,
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS)
        rc = phi_pointer_fail(memory, result, "the export", allocation);

release_handle:
    release(driver, handle);
    return rc;
}

static int vmm_encode(struct phi_memory *memory, const struct phi_allocation *allocation,
                      struct phi_writer *writer, struct phi_export *export_)
{
    void *token = NULL;
    int rc = phi_device_enter(memory->device, &token);
    if (rc)
        return rc;
    rc = export_entered(memory, allocation, &export_->fd);
    phi_device_leave(memory->device, token);
    if (rc)
        return rc;
    fcntl(export_->fd, F_SETFD, FD_CLOEXEC);
    phi_owner_put(memory, writer);
    return 0;
}

// map_handle maps `size` bytes of a physical allocation somewhere and lets this device read and
// write them.
static CUresult map_handle(struct phi_memory *memory, CUmemGenericAllocationHandle handle,
                           size_t size, CUdeviceptr *mapped)
{
    const struct phi_driver *driver = phi_device_driver(memory->device);
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                                 .id = phi_device_info(memory->device)->ordinal},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr address = 0;
    CUresult result = driver->cuMemAddressReserve(&address, size, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = driver->cuMemMap(address, size, 0, handle, 0);
    if (result != CUDA_SUCCESS)
        goto free_address;
    result = driver->cuMemSetAccess(address, size, &access, 1);
    if (result != CUDA_SUCCESS)
        goto unmap;
    *mapped = address;
    return CUDA_SUCCESS;

unmap:
    driver->cuMemUnmap(address, size);
free_address:
    driver->cuMemAddressFree(address, size);
    return result;
}

static CUresult import_entered(struct phi_memory *memory, int fd, size_t size, CUdeviceptr *mapped)
{
    const struct phi_driver *driver = phi_device_driver(memory->device);
    CUmemGenericAllocationHandle handle;
    CUresult result = driver->cuMemImportFromShareableHandle(
        &handle, (void *)(uintptr_t)fd, // NOLINT(performance-no-int-to-ptr)
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS)
        return result;
    result = map_handle(memory, handle, size, mapped);
    driver->cuMemRelease(handle); // the mapping holds it
    return result;
}

static int vmm_open(struct phi_memory *memory, const struct phi_allocation *allocation,
                    struct phi_reader *reader, int fd, struct phi_import *import)
{
    struct phi_owner owner;
    CUdeviceptr mapped = 0;
    void *token = NULL;
    phi_owner_get(reader, &owner);
    if (reader->error || reader->at != reader->size)
        return phi_fail(memory->report, -EBADMSG, "a peer's vmm record is malformed");
    int rc = phi_device_enter(memory->device, &token);
    if (rc)
        return rc;
    CUresult result = import_entered(memory, fd, allocation->size, &mapped);
    phi_device_leave(memory->device, token);
    if (result != CUDA_SUCCESS)
        return phi_pointer_fail(memory, result, "mapping a peer's descriptor", allocation);
    import->address = (void *)(uintptr_t)mapped; // NOLINT(performance-no-int-to-ptr)
    import->size = allocation->size;
    import->handle[0] = mapped;
    return 0;
}

static void vmm_close(struct phi_import *import)
{
    struct phi_device *device = import->memory->device;
    const struct phi_driver *driver = phi_device_driver(device);
    void *token = NULL;
    if (phi_device_enter(device, &token))
        return;
    CUresult result = driver->cuMemUnmap(import->handle[0], import->size);
    if (result == CUDA_SUCCESS)
        result = driver->cuMemAddressFree(import->handle[0], import->size);
    if (result != CUDA_SUCCESS)
        phi_log(import->memory->report, PH_LOG_WARN, "cuMemUnmap: %s",
                phi_cuda_name(driver, result));
    phi_device_leave(device, token);
}

const struct phi_kind_ops phi_kind_vmm = {
    .size = sizeof(struct phi_kind_ops),
    .kind = PHI_KIND_VMM,
    .describe = vmm_describe,
    .current = phi_pointer_current,
    .encode = vmm_encode,
    .open = vmm_open,
    .close = vmm_close,
    .needs_fd = true,
};
