// SPDX-License-Identifier: BSD-3-Clause
// Kind cuda: cudaMalloc memory by CUDA IPC handles.
//
// Its part of a record: the owner (process u64, device UUID), the handle (64 bytes).
#include <errno.h>
#include <string.h>

#include "memory/pointer.h"

static int cuda_describe(struct phi_memory *memory, const void *address, size_t size,
                         struct phi_allocation *allocation, uint64_t *offset)
{
    return phi_pointer_describe(memory, PHI_KIND_CUDA, address, size, allocation, offset);
}

static int cuda_encode(struct phi_memory *memory, const struct phi_allocation *allocation,
                       struct phi_writer *writer, struct phi_export *export_)
{
    CUipcMemHandle handle;
    void *token = NULL;
    (void)export_; // no descriptor: the handle is bytes
    int rc = phi_device_enter(memory->device, &token);
    if (rc)
        return rc;
    CUresult result =
        phi_device_driver(memory->device)->cuIpcGetMemHandle(&handle, allocation->base);
    phi_device_leave(memory->device, token);
    if (result != CUDA_SUCCESS)
        return phi_pointer_fail(memory, result, "the IPC handle", allocation);
    phi_owner_put(memory, writer);
    phi_put_bytes(writer, &handle, sizeof handle);
    return 0;
}

static int cuda_open(struct phi_memory *memory, const struct phi_allocation *allocation,
                     struct phi_reader *reader, int fd, struct phi_import *import)
{
    struct phi_owner owner;
    CUipcMemHandle handle;
    CUdeviceptr mapped = 0;
    void *token = NULL;
    (void)fd;
    phi_owner_get(reader, &owner);
    phi_get_bytes(reader, &handle, sizeof handle);
    if (reader->error || reader->at != reader->size)
        return phi_fail(memory->report, -EBADMSG, "a peer's cuda-ipc record is malformed");
    // A handle cannot be opened in the process that made it.
    int rc = phi_owner_direct(memory, &owner, allocation, import);
    if (rc != 0)
        return rc < 0 ? rc : 0;

    // Opened in the context that is current: the importer's, whatever the calling thread had.
    rc = phi_device_enter(memory->device, &token);
    if (rc)
        return rc;
    const struct phi_driver *driver = phi_device_driver(memory->device);
    CUresult result =
        driver->cuIpcOpenMemHandle_v2(&mapped, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    const int holds =
        result == CUDA_SUCCESS ? phi_pointer_holds(memory, mapped, allocation->size) : 0;
    phi_device_leave(memory->device, token);
    if (result == CUDA_ERROR_ALREADY_MAPPED)
        return -EEXIST; // by an import of what lay there before and was freed
    if (result != CUDA_SUCCESS)
        return phi_pointer_fail(memory, result, "opening a peer's handle", allocation);
    import->handle[0] = mapped; // refused or not, it is to be closed
    if (holds < 0)
        return phi_fail(memory->report, PH_EDRIVER,
                        "cuMemGetAddressRange of a peer's memory failed");
    if (!holds)
        return phi_fail(memory->report, -EBADMSG,
                        "a peer's handle maps less than the %llu bytes of its record",
                        (unsigned long long)allocation->size);
    import->address = (void *)(uintptr_t)mapped; // NOLINT(performance-no-int-to-ptr)
    import->size = allocation->size;
    return 0;
}

static void cuda_close(struct phi_import *import)
{
    struct phi_device *device = import->memory->device;
    if (import->handle[0] != 0)
        phi_device_tell(device, phi_device_driver(device)->cuIpcCloseMemHandle(import->handle[0]),
                        "cuIpcCloseMemHandle");
}

const struct phi_kind_ops phi_kind_cuda = {
    .size = sizeof(struct phi_kind_ops),
    .kind = PHI_KIND_CUDA,
    .describe = cuda_describe,
    .current = phi_pointer_current,
    .encode = cuda_encode,
    .open = cuda_open,
    .close = cuda_close,
    .needs_fd = false,
};
