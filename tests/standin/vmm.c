// SPDX-License-Identifier: BSD-3-Clause
// Virtual memory management: physical memory by handle, reserved addresses, mappings. Nothing here
// waits for streams.
#include "standin.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct vmm_handle {
    struct vmm_handle *next;
    CUmemGenericAllocationHandle value;
    struct si_physical *physical;
    int count;
};
static struct vmm_handle *handles;

struct reservation {
    struct reservation *next;
    uint64_t base;
    size_t size;
};
static struct reservation *reservations;

static struct vmm_handle **handle_find(CUmemGenericAllocationHandle value)
{
    struct vmm_handle **h = &handles;
    while (*h && (*h)->value != value)
        h = &(*h)->next;
    return h;
}

// Takes the physical memory over, also on failure.
static CUresult handle_new(struct si_physical *physical, CUmemGenericAllocationHandle *out)
{
    struct vmm_handle *handle = malloc(sizeof(*handle));
    if (!handle) {
        si_physical_drop(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = (struct vmm_handle){
        .next = handles, .value = ++si.next_id, .physical = physical, .count = 1};
    handles = handle;
    *out = handle->value;
    return CUDA_SUCCESS;
}

static bool prop_valid(const CUmemAllocationProp *prop)
{
    return prop && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
           prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           !(prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

SI_EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity,
                                                 const CUmemAllocationProp *prop,
                                                 CUmemAllocationGranularity_flags option)
{
    if (!granularity || !prop_valid(prop) || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    if (!si_context_of(prop->location.id))
        return si_end(CUDA_ERROR_INVALID_DEVICE);
    *granularity = SI_BLOCK;
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                               const CUmemAllocationProp *prop, unsigned long long flags)
{
    if (!handle || !size || size % SI_BLOCK || !prop_valid(prop) || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    if (!si_context_of(prop->location.id))
        return si_end(CUDA_ERROR_INVALID_DEVICE);
    struct si_physical *physical;
    result = si_physical_create(si.devices[prop->location.id].physical, size,
                                prop->requestedHandleTypes, &physical);
    return si_end(result ? result : handle_new(physical, handle));
}

static void handle_release(struct vmm_handle **found)
{
    struct vmm_handle *handle = *found;
    if (--handle->count)
        return;
    *found = handle->next;
    si_physical_drop(handle->physical);
    free(handle);
}

SI_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle value)
{
    CUresult result = si_begin_any();
    if (result)
        return result;
    struct vmm_handle **handle = handle_find(value);
    if (!*handle)
        return si_end(CUDA_ERROR_INVALID_VALUE);
    handle_release(handle);
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    CUresult result = out ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    const struct si_allocation *allocation = si_find((uint64_t)address);
    if (!allocation || allocation->kind != SI_MAPPING)
        return si_end(CUDA_ERROR_INVALID_VALUE);
    for (struct vmm_handle *h = handles; h; h = h->next) {
        if (h->physical == allocation->physical) {
            h->count++;
            *out = h->value;
            return si_end(CUDA_SUCCESS);
        }
    }
    allocation->physical->refs++;
    return si_end(handle_new(allocation->physical, out));
}

SI_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                          CUmemGenericAllocationHandle value)
{
    CUresult result = prop ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    const struct vmm_handle *handle = *handle_find(value);
    if (!handle)
        return si_end(CUDA_ERROR_INVALID_VALUE);
    *prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .requestedHandleTypes =
                                      (CUmemAllocationHandleType)handle->physical->types,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                               .id = si_ordinal(handle->physical->physical)}};
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle value,
                                                CUmemAllocationHandleType type,
                                                unsigned long long flags)
{
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    const struct vmm_handle *handle = *handle_find(value);
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !(handle->physical->types & (unsigned)type))
        return si_end(CUDA_ERROR_INVALID_VALUE);
    int fd = fcntl(handle->physical->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return si_end(CUDA_ERROR_OPERATING_SYSTEM);
    *(int *)out = fd;
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out,
                                                  void *os_handle, CUmemAllocationHandleType type)
{
    if (!out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    struct si_physical *physical;
    int fd = fcntl((int)(intptr_t)os_handle, F_DUPFD_CLOEXEC, 0);
    result = si_physical_open(fd, &physical);
    if (result)
        return si_end(result);
    if (!(physical->types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) {
        si_physical_drop(physical);
        return si_end(CUDA_ERROR_INVALID_VALUE);
    }
    return si_end(handle_new(physical, out));
}

SI_EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t align,
                                       CUdeviceptr hint, unsigned long long flags)
{
    (void)hint;
    if (!address || !size || size % SI_BLOCK || align & (align - 1) || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    struct reservation *reservation = malloc(sizeof(*reservation));
    uint64_t base = reservation ? si_arena_take(size, align) : 0;
    if (!base) {
        free(reservation);
        return si_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *reservation = (struct reservation){.next = reservations, .base = base, .size = size};
    reservations = reservation;
    *address = base;
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    CUresult result = si_begin_any();
    if (result)
        return result;
    struct reservation **r = &reservations;
    while (*r && ((*r)->base != address || (*r)->size != size))
        r = &(*r)->next;
    const struct si_allocation *mapped = si_find_next(address);
    if (!*r || (mapped && mapped->base < address + size))
        return si_end(CUDA_ERROR_INVALID_VALUE);
    struct reservation *reservation = *r;
    *r = reservation->next;
    free(reservation);
    si_arena_give(address, size);
    return si_end(CUDA_SUCCESS);
}

struct si_range si_reservation_of(uint64_t address)
{
    const struct reservation *r = reservations;
    while (address - r->base >= r->size)
        r = r->next;
    return (struct si_range){r->base, r->size};
}

static bool reserved(uint64_t address, size_t size)
{
    for (const struct reservation *r = reservations; r; r = r->next) {
        if (address >= r->base && address - r->base <= r->size &&
            size <= r->size - (address - r->base))
            return true;
    }
    return false;
}

static CUresult map(struct si_context *context, uint64_t address, struct si_physical *physical)
{
    const struct si_allocation *next = si_find_next(address);
    if (!reserved(address, physical->size) || (next && next->base < address + physical->size))
        return CUDA_ERROR_INVALID_VALUE;
    if (!si_physical_map(physical, address, false))
        return CUDA_ERROR_MAP_FAILED;
    struct si_allocation allocation = {.base = address,
                                       .size = physical->size,
                                       .kind = SI_MAPPING,
                                       .context = context,
                                       .physical = physical};
    struct si_allocation *inserted;
    CUresult result = si_insert(&allocation, &inserted);
    if (!result)
        physical->refs++;
    return result;
}

SI_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                            CUmemGenericAllocationHandle value, unsigned long long flags)
{
    if (address % SI_BLOCK || offset || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    const struct vmm_handle *handle = *handle_find(value);
    if (!handle)
        return si_end(CUDA_ERROR_INVALID_VALUE);
    if (size != handle->physical->size)
        return si_end(CUDA_ERROR_NOT_SUPPORTED); // only whole allocations are mapped
    int ordinal = si_ordinal(handle->physical->physical);
    return si_end(map(si_context_of(ordinal < 0 ? 0 : ordinal), address, handle->physical));
}

// Whether [address, address + size) is made of whole mappings.
static bool whole_mappings(uint64_t address, size_t size)
{
    uint64_t end = address + size;
    while (address < end) {
        const struct si_allocation *a = si_find(address);
        if (!a || a->kind != SI_MAPPING || a->base != address || a->size > end - address)
            return false;
        address += a->size;
    }
    return size > 0;
}

SI_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    CUresult result = si_begin_any();
    if (result)
        return result;
    if (!whole_mappings(address, size))
        return si_end(CUDA_ERROR_INVALID_VALUE);
    for (uint64_t at = address, next; at < address + size; at = next) {
        struct si_allocation *allocation = si_find(at);
        struct si_physical *physical = allocation->physical;
        next = at + allocation->size;
        si_unmap(at, allocation->size);
        si_remove(allocation);
        si_physical_drop(physical);
    }
    return si_end(CUDA_SUCCESS);
}

static CUresult access_set(struct si_allocation *allocation, const CUmemAccessDesc *descriptor)
{
    int device = descriptor->location.id;
    if (descriptor->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !si_context_of(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!si_peers(si.devices[device].physical, allocation->physical->physical))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (descriptor->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
        allocation->access &= ~(1u << device);
    else
        allocation->access |= 1u << device;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size,
                                  const CUmemAccessDesc *descriptors, size_t count)
{
    CUresult result = descriptors && count ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    if (!whole_mappings(address, size))
        return si_end(CUDA_ERROR_INVALID_VALUE);
    for (uint64_t at = address; at < address + size && !result;) {
        struct si_allocation *allocation = si_find(at);
        for (size_t i = 0; i < count && !result; i++)
            result = access_set(allocation, &descriptors[i]);
        if (mprotect((void *)at, allocation->size,
                     allocation->access ? PROT_READ | PROT_WRITE : PROT_NONE))
            result = CUDA_ERROR_OPERATING_SYSTEM;
        at += allocation->size;
    }
    return si_end(result);
}
