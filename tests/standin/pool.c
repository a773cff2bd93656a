// SPDX-License-Identifier: BSD-3-Clause
// Memory pools. Memory is taken when the allocation is enqueued and given back when the stream
// reaches the free.
#include "standin.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC 0x6c6f6f7070656572ull

// What the descriptor of an exported pool holds.
struct pool_record {
    uint64_t magic, cookie, id;
    uint64_t physical;
};

static struct si_pool *pools;

static struct si_pool *pool_new(int device, unsigned types)
{
    struct si_pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return NULL;
    *pool = (struct si_pool){.next = pools,
                             .device = device,
                             .types = types,
                             .access = 1u << device,
                             .cookie = si.cookie,
                             .id = ++si.next_id};
    pools = pool;
    return pool;
}

static struct si_pool *pool_find(CUmemoryPool handle)
{
    struct si_pool *pool = pools;
    while (pool && (pool != (struct si_pool *)handle || pool->destroyed))
        pool = pool->next;
    return pool;
}

static void pool_free_if_done(struct si_pool *pool)
{
    if (!pool->destroyed || pool->allocations)
        return;
    struct si_pool **p = &pools;
    while (*p != pool)
        p = &(*p)->next;
    *p = pool->next;
    free(pool);
}

void si_pool_let_go(struct si_pool *pool)
{
    pool->allocations--;
    pool_free_if_done(pool);
}

SI_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
    if (!out || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        props->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    if (!si_context_of(props->location.id))
        return si_end(CUDA_ERROR_INVALID_DEVICE);
    struct si_pool *pool = pool_new(props->location.id, props->handleTypes);
    if (!pool)
        return si_end(CUDA_ERROR_OUT_OF_MEMORY);
    *out = (CUmemoryPool)pool;
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    CUresult result = si_begin_any();
    if (result)
        return result;
    struct si_pool *pool = pool_find(handle);
    if (!pool || pool->is_default || (pool->imported && pool->allocations))
        return si_end(CUDA_ERROR_INVALID_VALUE);
    pool->destroyed = true;
    pool_free_if_done(pool);
    return si_end(CUDA_SUCCESS);
}

static struct si_pool *default_pool(struct si_context *context)
{
    if (!context->pool) {
        context->pool = pool_new(context->ordinal, CU_MEM_HANDLE_TYPE_NONE);
        if (context->pool)
            context->pool->is_default = true;
    }
    return context->pool;
}

SI_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device)
{
    CUresult result = out ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    struct si_context *context = si_context_of(device);
    if (!context)
        return si_end(CUDA_ERROR_INVALID_DEVICE);
    *out = (CUmemoryPool)default_pool(context);
    return si_end(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

SI_EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count)
{
    CUresult result = map ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    struct si_pool *pool = pool_find(handle);
    if (!pool)
        return si_end(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        int device = map[i].location.id;
        if (!si_context_of(device) ||
            !si_peers(si.devices[device].physical, si.devices[pool->device].physical))
            return si_end(CUDA_ERROR_INVALID_DEVICE);
        if (map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
            pool->access &= ~(1u << device);
        else
            pool->access |= 1u << device;
    }
    // The pool's access is that of all its memory, whenever it was allocated.
    for (struct si_allocation *a = si_find_next(0); a; a = si_find_next(a->base + 1)) {
        if (a->pool == pool)
            a->access = pool->access;
    }
    return si_end(CUDA_SUCCESS);
}

static CUresult allocate(struct si_pool *pool, size_t size, CUstream handle, CUdeviceptr *address)
{
    struct si_context *context = si_context_of(pool->device);
    struct CUstream_st *stream;
    CUresult result = si_stream_find(context, handle, &stream);
    if (result)
        return result;
    if (stream->capture)
        return CUDA_ERROR_NOT_SUPPORTED; // memory nodes are not what the library captures
    result = si_unsafe();
    if (result)
        return result;
    struct si_allocation allocation = {
        .size = size, .kind = SI_POOLED, .context = context, .access = pool->access, .pool = pool};
    struct si_allocation *inserted;
    result = si_allocate_own(context, &allocation, &inserted);
    if (result)
        return result;
    pool->allocations++;
    *address = inserted->base;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream)
{
    struct si_context *context;
    CUresult result = address && size ? si_begin(&context) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    struct si_pool *pool = default_pool(context);
    return si_end(pool ? allocate(pool, size, stream, address) : CUDA_ERROR_OUT_OF_MEMORY);
}

SI_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool handle,
                                           CUstream stream)
{
    struct si_context *context;
    CUresult result = address && size ? si_begin(&context) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    struct si_pool *pool = pool_find(handle);
    if (!pool || pool->imported)
        return si_end(CUDA_ERROR_INVALID_VALUE);
    return si_end(allocate(pool, size, stream, address));
}

SI_EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle)
{
    struct CUstream_st *stream;
    CUresult result = si_begin_stream(handle, &stream);
    if (result)
        return result;
    result = si_unsafe();
    if (result)
        return si_end(result);
    struct si_allocation *allocation = si_find(address);
    if (!allocation || allocation->base != address ||
        (!allocation->pool && allocation->kind != SI_LEGACY))
        return si_end(CUDA_ERROR_INVALID_VALUE);
    struct si_op *op = si_op_new(SI_OP_FREE);
    if (!op)
        return si_end(CUDA_ERROR_OUT_OF_MEMORY);
    op->u.free.address = address;
    op->u.free.id = allocation->id;
    result = si_enqueue(stream, op);
    allocation->freeing = !result;
    return si_end(result);
}

SI_EXPORT CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool handle,
                                                    CUmemAllocationHandleType type,
                                                    unsigned long long flags)
{
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    const struct si_pool *pool = pool_find(handle);
    if (!pool || pool->imported || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !(pool->types & (unsigned)type))
        return si_end(CUDA_ERROR_INVALID_VALUE);
    struct pool_record record = {.magic = MAGIC,
                                 .cookie = pool->cookie,
                                 .id = pool->id,
                                 .physical = (uint64_t)si.devices[pool->device].physical};
    int fd = memfd_create("peerhop-standin-pool", MFD_CLOEXEC);
    if (fd < 0 || write(fd, &record, sizeof(record)) != sizeof(record))
        return si_end(CUDA_ERROR_OPERATING_SYSTEM);
    *(int *)out = fd;
    return si_end(CUDA_SUCCESS);
}

// A process has one handle for a pool, however often it imports the descriptor (measured).
static struct si_pool *imported_before(const struct pool_record *record)
{
    struct si_pool *pool = pools;
    while (pool && (!pool->imported || pool->destroyed || pool->cookie != record->cookie ||
                    pool->id != record->id))
        pool = pool->next;
    return pool;
}

SI_EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *os_handle,
                                                      CUmemAllocationHandleType type,
                                                      unsigned long long flags)
{
    if (!out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin_any();
    if (result)
        return result;
    struct pool_record record;
    int fd = (int)(intptr_t)os_handle;
    if (pread(fd, &record, sizeof(record), 0) != sizeof(record) || record.magic != MAGIC)
        return si_end(CUDA_ERROR_UNKNOWN);
    int device = si_ordinal((int)record.physical);
    if (device < 0)
        return si_end(CUDA_ERROR_INVALID_DEVICE);
    struct si_pool *pool = imported_before(&record);
    if (!pool)
        pool = pool_new(device, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (!pool)
        return si_end(CUDA_ERROR_OUT_OF_MEMORY);
    pool->imported = true;
    pool->cookie = record.cookie;
    pool->id = record.id;
    *out = (CUmemoryPool)pool;
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr address)
{
    CUresult result = data ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    const struct si_allocation *allocation = si_find(address);
    if (!allocation || allocation->kind != SI_POOLED || !allocation->pool->types)
        return si_end(CUDA_ERROR_INVALID_VALUE);
    struct si_handle handle;
    si_handle_fill(allocation, &handle);
    memcpy(data, &handle, sizeof(handle));
    return si_end(CUDA_SUCCESS);
}

// An import out of the pool that is open where the memory lies now.
static struct si_allocation *open_in_place(const struct si_pool *pool,
                                           const struct si_handle *handle)
{
    for (struct si_allocation *a = si_find_next(0); a; a = si_find_next(a->base + 1)) {
        struct si_handle open;
        memcpy(&open, a->handle, sizeof(open));
        if (a->kind == SI_POOLED_IMPORT && a->pool == pool &&
            open.base < handle->base + handle->size && handle->base < open.base + open.size)
            return a;
    }
    return NULL;
}

static CUresult import_pointer(struct si_pool *pool, const struct si_handle *handle,
                               CUdeviceptr *address)
{
    if (handle->cookie != pool->cookie || handle->pool != pool->id)
        return CUDA_ERROR_INVALID_VALUE;
    // What is open there comes once more, as it is, and the first free ends it (measured).
    struct si_allocation *before = open_in_place(pool, handle);
    if (before) {
        *address = before->base;
        return CUDA_SUCCESS;
    }
    struct si_physical *physical;
    if (si_handle_open(handle, &physical))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t base = si_arena_take(physical->size, SI_BLOCK);
    if (!base || !si_physical_map(physical, base, true)) {
        si_physical_drop(physical);
        return CUDA_ERROR_MAP_FAILED;
    }
    struct si_allocation allocation = {.base = base,
                                       .size = handle->size,
                                       .kind = SI_POOLED_IMPORT,
                                       .context = si_context_of(pool->device),
                                       .physical = physical,
                                       .access = pool->access,
                                       .pool = pool};
    memcpy(allocation.handle, handle, sizeof(*handle));
    struct si_allocation *inserted;
    CUresult result = si_insert(&allocation, &inserted);
    if (result)
        return result;
    inserted->life = *si_life_of(inserted);
    pool->allocations++;
    *address = base;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool handle,
                                          CUmemPoolPtrExportData *data)
{
    CUresult result = address && data ? si_begin_any() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    struct si_pool *pool = pool_find(handle);
    struct si_handle exported;
    memcpy(&exported, data, sizeof(exported));
    return si_end(pool && pool->imported ? import_pointer(pool, &exported, address)
                                         : CUDA_ERROR_INVALID_VALUE);
}
