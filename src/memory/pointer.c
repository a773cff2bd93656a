// SPDX-License-Identifier: BSD-3-Clause
#include "memory/pointer.h"

#include <errno.h>
#include <string.h>

#include "base/random.h"

// This attribute changes when the physical memory behind a mapping does. Headers before 12.1 may
// lack its name.
#define MEMORY_BLOCK_ID ((CUpointer_attribute)20)

struct pointer {
    uint32_t type; // CUmemorytype, 0: nothing that the driver knows
    uint32_t managed;
    uint32_t legacy; // cuIpcGetMemHandle takes it
    int ordinal;
    CUmemoryPool pool;
};

// look_up sets p->type to 0 for an address that the driver does not know, which is no error.
static CUresult look_up(const struct phi_driver *driver, const void *address, struct pointer *p)
{
    CUpointer_attribute names[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
    };
    void *values[] = {&p->type, &p->managed, &p->ordinal, &p->pool, &p->legacy};
    const CUdeviceptr at = (CUdeviceptr)(uintptr_t)address;
    *p = (struct pointer){.ordinal = -1};
    // An attribute that does not apply stays at zero. Only an address that the driver never saw has
    // no type.
    CUresult result =
        driver->cuPointerGetAttributes(sizeof names / sizeof names[0], names, values, at);
    if (result != CUDA_SUCCESS)
        p->type = 0;
    return result == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : result;
}

static enum phi_kind kind_of(const struct pointer *p)
{
    if (p->pool != NULL)
        return PHI_KIND_POOL;
    return p->legacy ? PHI_KIND_CUDA : PHI_KIND_VMM;
}

// identity tells allocations apart that lie at one address after another: by the buffer's id, and
// for a mapping also by the memory that it maps. (The allocations of a pool share its block, which
// stays when they go.)
static CUresult identity(const struct phi_driver *driver, enum phi_kind kind, CUdeviceptr address,
                         uint64_t *id)
{
    uint64_t buffer = 0, block = 0;
    CUresult result =
        driver->cuPointerGetAttribute(&buffer, CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
    if (kind == PHI_KIND_VMM) {
        // Either is enough.
        CUresult other = driver->cuPointerGetAttribute(&block, MEMORY_BLOCK_ID, address);
        result = other == CUDA_SUCCESS ? other : result;
        buffer = phi_hash(buffer, block);
    }
    *id = buffer;
    return result;
}

// refuse tells why no peer can map memory that the driver knows.
static int refuse(struct phi_memory *memory, const void *address, const struct pointer *p)
{
    const int ordinal = phi_device_info(memory->device)->ordinal;
    if (p->managed)
        return phi_fail(memory->report, PH_EKIND,
                        "%p is managed memory (cudaMallocManaged): no peer can map it", address);
    if (p->type != CU_MEMORYTYPE_DEVICE)
        return phi_fail(memory->report, PH_EKIND,
                        "%p is host memory pinned by CUDA (cudaMallocHost, cudaHostRegister): use "
                        "ph_host_alloc or ph_host_register",
                        address);
    if (p->ordinal != ordinal)
        return phi_fail(memory->report, -EINVAL,
                        "%p is memory of device cuda:%d, the context's device is cuda:%d", address,
                        p->ordinal, ordinal);
    return 0;
}

static int describe_entered(struct phi_memory *memory, enum phi_kind kind, const void *address,
                            struct phi_allocation *allocation)
{
    const struct phi_driver *driver = phi_device_driver(memory->device);
    const CUdeviceptr at = (CUdeviceptr)(uintptr_t)address;
    struct pointer p;
    CUresult result = look_up(driver, address, &p);
    if (result != CUDA_SUCCESS)
        return phi_cuda_result(memory->report, driver, result, "cuPointerGetAttributes of %p",
                               address);
    if (p.type == 0)
        return -ENOENT;
    int rc = refuse(memory, address, &p);
    if (rc)
        return rc;
    if (kind_of(&p) != kind)
        return -ENOENT;
    CUdeviceptr base = 0;
    size_t size = 0;
    uint64_t id = 0;
    result = driver->cuMemGetAddressRange_v2(&base, &size, at);
    if (result == CUDA_SUCCESS)
        result = identity(driver, kind, at, &id);
    if (result != CUDA_SUCCESS)
        return phi_cuda_result(memory->report, driver, result, "the allocation of %p", address);
    *allocation =
        (struct phi_allocation){.kind = (uint8_t)kind, .base = base, .size = size, .id = id};
    return 0;
}

// past_the_end: a mapping that begins where the allocation ends makes it a buffer of several
// physical allocations.
static int past_the_end(struct phi_memory *memory, const void *address, size_t size,
                        const struct phi_allocation *found)
{
    const uint64_t end = found->base + found->size;
    const unsigned long long left = end - (uint64_t)(uintptr_t)address;
    struct pointer next;
    if (found->kind == PHI_KIND_VMM && size <= UINT64_MAX - (uintptr_t)address &&
        look_up(phi_device_driver(memory->device), (const void *)(uintptr_t)end,
                &next) == CUDA_SUCCESS && // NOLINT(performance-no-int-to-ptr)
        next.type != 0)
        return phi_fail(
            memory->report, PH_EKIND,
            "%zu bytes at %p span several physical allocations (this one ends after %llu): "
            "such a buffer cannot be exported",
            size, address, left);
    return phi_fail(memory->report, -EINVAL,
                    "%zu bytes at %p pass the end of their allocation (%llu bytes on)", size,
                    address, left);
}

int phi_pointer_describe(struct phi_memory *memory, enum phi_kind kind, const void *address,
                         size_t size, struct phi_allocation *allocation, uint64_t *offset)
{
    struct phi_allocation found = {0};
    void *token = NULL;
    int rc = phi_device_enter(memory->device, &token);
    if (rc)
        return rc;
    rc = describe_entered(memory, kind, address, &found);
    phi_device_leave(memory->device, token);
    if (rc)
        return rc;
    const uint64_t at = (uint64_t)(uintptr_t)address - found.base;
    if (size > found.size - at)
        return past_the_end(memory, address, size, &found);
    *allocation = found;
    *offset = at;
    return 0;
}

bool phi_pointer_current(struct phi_memory *memory, const void *address,
                         const struct phi_allocation *allocation)
{
    const struct phi_driver *driver = phi_device_driver(memory->device);
    const CUdeviceptr at = (CUdeviceptr)(uintptr_t)address;
    uint64_t id = 0;
    // Ids are never given twice, so the same id means the same allocation, base and size.
    return at - allocation->base < allocation->size &&
           identity(driver, allocation->kind, at, &id) == CUDA_SUCCESS && id == allocation->id;
}

int phi_pointer_fail(struct phi_memory *memory, CUresult result, const char *what,
                     const struct phi_allocation *allocation)
{
    int rc = phi_cuda_result(memory->report, phi_device_driver(memory->device), result,
                             "%s of %llu bytes of kind %s with cuda:%d", what,
                             (unsigned long long)allocation->size, phi_kind_name(allocation->kind),
                             phi_device_info(memory->device)->ordinal);
    return result == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED ? -EXDEV : rc;
}

void phi_owner_put(const struct phi_memory *memory, struct phi_writer *writer)
{
    phi_put_u64(writer, memory->process);
    phi_put_bytes(writer, phi_device_info(memory->device)->uuid, 16);
}

void phi_owner_get(struct phi_reader *reader, struct phi_owner *owner)
{
    owner->process = phi_get_u64(reader);
    phi_get_bytes(reader, owner->uuid, sizeof owner->uuid);
}

int phi_pointer_holds(struct phi_memory *memory, CUdeviceptr address, uint64_t size)
{
    const struct phi_driver *driver = phi_device_driver(memory->device);
    CUdeviceptr base = 0;
    size_t range = 0;
    if (driver->cuMemGetAddressRange_v2(&base, &range, address) != CUDA_SUCCESS)
        return -1;
    return address - base <= range && range - (address - base) >= size;
}

// let_in gives this memory's device access to a pointer of another device of the process.
static CUresult let_in(struct phi_memory *memory, const struct pointer *p, CUcontext owner)
{
    const struct phi_driver *driver = phi_device_driver(memory->device);
    const int ordinal = phi_device_info(memory->device)->ordinal;
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result;
    if (p->ordinal == ordinal)
        return CUDA_SUCCESS;
    if (p->pool != NULL)
        return driver->cuMemPoolSetAccess(p->pool, &access, 1);
    if (driver->cuCtxEnablePeerAccess == NULL)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    result = driver->cuCtxEnablePeerAccess(owner, 0);
    return result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? CUDA_SUCCESS : result;
}

static int direct_entered(struct phi_memory *memory, const struct phi_allocation *allocation)
{
    const struct phi_driver *driver = phi_device_driver(memory->device);
    const CUdeviceptr at = allocation->base;
    CUcontext owner = NULL;
    struct pointer p;
    uint64_t id = 0;
    // NOLINT(performance-no-int-to-ptr)
    CUresult result = look_up(driver, (const void *)(uintptr_t)at, &p);
    if (result == CUDA_SUCCESS && p.type != 0)
        result = identity(driver, allocation->kind, at, &id);
    if (result != CUDA_SUCCESS)
        return phi_pointer_fail(memory, result, "looking at memory of this process", allocation);
    const bool same = p.type != 0 && id == allocation->id;
    if (same) {
        driver->cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, at);
        result = let_in(memory, &p, owner);
        if (result != CUDA_SUCCESS)
            return phi_pointer_fail(memory, result, "sharing", allocation);
    }
    // After let_in: before it the driver tells attributes of another device's memory, but no range.
    if (!same || phi_pointer_holds(memory, at, allocation->size) != 1)
        return phi_fail(memory->report, -EBADMSG, "memory of this process at 0x%llx is gone",
                        (unsigned long long)at);
    return 0;
}

int phi_owner_direct(struct phi_memory *memory, const struct phi_owner *owner,
                     const struct phi_allocation *allocation, struct phi_import *import)
{
    void *token = NULL;
    if (owner->process != memory->process)
        return 0;
    int rc = phi_device_enter(memory->device, &token);
    if (rc)
        return rc;
    rc = direct_entered(memory, allocation);
    phi_device_leave(memory->device, token);
    if (rc)
        return rc;
    import->address = (void *)(uintptr_t)allocation->base; // NOLINT(performance-no-int-to-ptr)
    import->size = allocation->size;
    import->handle[0] = 0; // nothing to close
    return 1;
}
