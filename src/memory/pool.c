// SPDX-License-Identifier: BSD-3-Clause
// Kind pool: cudaMallocAsync memory whose pool was made with POSIX descriptors. The pool travels as
// a descriptor, the allocation as the driver's export data.
//
// Its part of a record: the owner (process u64, device UUID), the export data (64 bytes).
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>

#include "memory/pointer.h"

static int pool_describe(struct phi_memory *memory, const void *address, size_t size,
                         struct phi_allocation *allocation, uint64_t *offset)
{
    return phi_pointer_describe(memory, PHI_KIND_POOL, address, size, allocation, offset);
}

static int export_entered(struct phi_memory *memory, const struct phi_allocation *allocation,
                          CUmemPoolPtrExportData *data, int *fd)
{
    const struct phi_driver *driver = phi_device_driver(memory->device);
    CUmemoryPool pool = NULL;
    int made = -1;
    if (driver->cuMemPoolExportToShareableHandle == NULL || driver->cuMemPoolExportPointer == NULL)
        return phi_fail(memory->report, PH_EKIND, "the driver cannot export memory pools");
    CUresult result =
        driver->cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, allocation->base);
    if (result != CUDA_SUCCESS || pool == NULL)
        return phi_fail(memory->report, -EINVAL, "no memory of a pool is at 0x%llx any more",
                        (unsigned long long)allocation->base);
    result = driver->cuMemPoolExportToShareableHandle(&made, pool,
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS)
        return phi_fail(
            memory->report, PH_EKIND,
            "the cudaMallocAsync memory at 0x%llx lies in a pool without POSIX descriptors "
            "(the default pool has none: use cudaMemPoolCreate with "
            "cudaMemHandleTypePosixFileDescriptor): %s",
            (unsigned long long)allocation->base, phi_cuda_name(driver, result));
    result = driver->cuMemPoolExportPointer(data, allocation->base);
    if (result != CUDA_SUCCESS) {
        close(made);
        return phi_pointer_fail(memory, result, "the export", allocation);
    }
    fcntl(made, F_SETFD, FD_CLOEXEC);
    *fd = made;
    return 0;
}

static int pool_encode(struct phi_memory *memory, const struct phi_allocation *allocation,
                       struct phi_writer *writer, int *fd)
{
    CUmemPoolPtrExportData data;
    void *token = NULL;
    *fd = -1;
    int rc = phi_device_enter(memory->device, &token);
    if (rc)
        return rc;
    rc = export_entered(memory, allocation, &data, fd);
    phi_device_leave(memory->device, token);
    if (rc)
        return rc;
    phi_owner_put(memory, writer);
    phi_put_bytes(writer, &data, sizeof data);
    return 0;
}

static CUresult import_entered(struct phi_memory *memory, int fd, CUmemPoolPtrExportData *data,
                               struct phi_import *import)
{
    const struct phi_driver *driver = phi_device_driver(memory->device);
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                                 .id = phi_device_info(memory->device)->ordinal},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemoryPool pool = NULL;
    CUdeviceptr mapped = 0;
    CUresult result = driver->cuMemPoolImportFromShareableHandle(
        &pool, (void *)(uintptr_t)fd, // NOLINT(performance-no-int-to-ptr)
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = driver->cuMemPoolSetAccess(pool, &access, 1);
    if (result == CUDA_SUCCESS)
        result = driver->cuMemPoolImportPointer(&mapped, pool, data);
    if (result != CUDA_SUCCESS) {
        driver->cuMemPoolDestroy(pool);
        return result;
    }
    import->address = (void *)(uintptr_t)mapped; // NOLINT(performance-no-int-to-ptr)
    import->handle[0] = mapped;
    import->handle[1] = (uintptr_t)pool;
    return CUDA_SUCCESS;
}

static CUresult drop_import(const struct phi_driver *driver, const struct phi_import *import)
{
    CUresult result = driver->cuMemFree_v2(import->handle[0]);
    driver->cuMemPoolDestroy(
        (CUmemoryPool)(uintptr_t)import->handle[1]); // NOLINT(performance-no-int-to-ptr)
    return result;
}

static int pool_open(struct phi_memory *memory, const struct phi_allocation *allocation,
                     struct phi_reader *reader, int fd, struct phi_import *import)
{
    struct phi_owner owner;
    CUmemPoolPtrExportData data;
    void *token = NULL;
    phi_owner_get(reader, &owner);
    phi_get_bytes(reader, &data, sizeof data);
    if (reader->error || reader->at != reader->size)
        return phi_fail(memory->report, -EBADMSG, "a peer's pool record is malformed");
    // A pool cannot be imported into the process that made it.
    int rc = phi_owner_direct(memory, &owner, allocation, import);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    rc = phi_device_enter(memory->device, &token);
    if (rc)
        return rc;
    CUresult result = import_entered(memory, fd, &data, import);
    if (result == CUDA_SUCCESS &&
        phi_pointer_holds(memory, import->handle[0], allocation->size) == 0)
        rc = phi_fail(memory->report, -EBADMSG,
                      "a peer's pool memory holds less than the %llu bytes of its record",
                      (unsigned long long)allocation->size);
    if (rc)
        drop_import(phi_device_driver(memory->device), import);
    phi_device_leave(memory->device, token);
    if (result != CUDA_SUCCESS)
        return phi_pointer_fail(memory, result, "importing a peer's pool memory", allocation);
    if (rc)
        return rc;
    import->size = allocation->size;
    return 0;
}

static void pool_close(struct phi_import *import)
{
    struct phi_device *device = import->memory->device;
    const struct phi_driver *driver = phi_device_driver(device);
    void *token = NULL;
    if (import->handle[0] == 0 || phi_device_enter(device, &token))
        return;
    CUresult result = drop_import(driver, import);
    if (result != CUDA_SUCCESS)
        phi_log(import->memory->report, PH_LOG_WARN, "cuMemFree of a peer's pool memory: %s",
                phi_cuda_name(driver, result));
    phi_device_leave(device, token);
}

const struct phi_kind_ops phi_kind_pool = {
    .size = sizeof(struct phi_kind_ops),
    .kind = PHI_KIND_POOL,
    .describe = pool_describe,
    .current = phi_pointer_current,
    .encode = pool_encode,
    .open = pool_open,
    .close = pool_close,
    .needs_fd = true,
};
