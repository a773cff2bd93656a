// SPDX-License-Identifier: BSD-3-Clause
// Handles of allocations for other processes. A handle names the exporter's descriptor by its
// process, and the place in that memory: the next owner of a small piece that was freed has the
// same handle, as measured. Memory that is gone, or whose process is gone, does not open: an
// invalid value and an invalid handle.
#include "standin.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MAGIC 0x3163706970656572ull

_Static_assert(sizeof(struct si_handle) == sizeof(CUipcMemHandle), "travels as one");

void si_handle_fill(const struct si_allocation *allocation, struct si_handle *handle)
{
    *handle = (struct si_handle){.magic = MAGIC,
                                 .cookie = si.cookie,
                                 .id = allocation->physical->id,
                                 .size = allocation->size,
                                 .offset = allocation->offset,
                                 .pid = getpid(),
                                 .fd = allocation->physical->fd,
                                 .pool = allocation->pool ? allocation->pool->id : 0,
                                 .base = allocation->base};
}

// A process that has initialised holds a socket of this name for life.
static void life_name(uint64_t cookie, struct sockaddr_un *address, socklen_t *size)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1,
                          "peerhop-standin-%016" PRIx64, cookie);
    *size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

void si_life_begin(void)
{
    struct sockaddr_un address;
    socklen_t size;
    life_name(si.cookie, &address, &size);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size))
        abort();
}

bool si_process_lives(uint64_t cookie)
{
    struct sockaddr_un address;
    socklen_t size;
    life_name(cookie, &address, &size);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool connected = fd >= 0 && !connect(fd, (struct sockaddr *)&address, size);
    if (fd >= 0)
        close(fd);
    return connected;
}

CUresult si_handle_open(const struct si_handle *handle, struct si_physical **out)
{
    if (handle->magic != MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (!si_process_lives(handle->cookie))
        return CUDA_ERROR_INVALID_HANDLE;
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle->pid, handle->fd);
    struct si_physical *physical;
    if (si_physical_open(open(path, O_RDWR | O_CLOEXEC), &physical))
        return CUDA_ERROR_INVALID_VALUE;
    const struct si_trailer *trailer = physical->trailer;
    if (trailer->cookie != handle->cookie || trailer->id != handle->id ||
        handle->offset > physical->size || handle->size > physical->size - handle->offset) {
        si_physical_drop(physical);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = physical;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address)
{
    struct si_context *context;
    CUresult result = out ? si_begin(&context) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    const struct si_allocation *allocation = si_find(address);
    if (!allocation || allocation->kind != SI_LEGACY)
        return si_end(CUDA_ERROR_INVALID_VALUE);
    si_check_current(allocation, "cuIpcGetMemHandle");
    struct si_handle handle;
    si_handle_fill(allocation, &handle);
    memcpy(out, &handle, sizeof(handle));
    return si_end(CUDA_SUCCESS);
}

static struct si_allocation *opened_before(struct si_context *context, const CUipcMemHandle *handle)
{
    for (struct si_allocation *a = si_find_next(0); a; a = si_find_next(a->base + 1)) {
        if (a->kind == SI_IMPORT && a->context == context &&
            !memcmp(a->handle, handle, sizeof(*handle)))
            return a;
    }
    return NULL;
}

// An import out of the same memory: one mapping serves all of them.
static struct si_allocation *mapped_before(struct si_context *context,
                                           const struct si_handle *handle)
{
    for (struct si_allocation *a = si_find_next(0); a; a = si_find_next(a->base + 1)) {
        if (a->kind == SI_IMPORT && a->context == context &&
            a->physical->trailer->cookie == handle->cookie &&
            a->physical->trailer->id == handle->id)
            return a;
    }
    return NULL;
}

// Maps what the handle names, or shares the mapping; *base is the address of the memory's first
// byte.
static CUresult map_memory(struct si_context *context, const struct si_handle *handle,
                           struct si_physical **physical, uint64_t *base)
{
    struct si_allocation *sibling = mapped_before(context, handle);
    CUresult result = si_handle_open(handle, physical);
    if (result)
        return result;
    if (sibling) {
        si_physical_drop(*physical);
        *physical = sibling->physical;
        (*physical)->refs++;
        *base = sibling->base - sibling->offset;
        return CUDA_SUCCESS;
    }
    if (!si_peers((*physical)->physical, si.devices[context->ordinal].physical)) {
        si_physical_drop(*physical);
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    }
    *base = si_arena_take((*physical)->size, SI_BLOCK);
    if (*base && si_physical_map(*physical, *base, true))
        return CUDA_SUCCESS;
    si_physical_drop(*physical);
    return CUDA_ERROR_MAP_FAILED;
}

static bool overlaps(uint64_t address, size_t size)
{
    const struct si_allocation *next = si_find_next(address);
    return si_find(address) || (next && next->base < address + size);
}

static CUresult import(struct si_context *context, const CUipcMemHandle *bytes, CUdeviceptr *out)
{
    struct si_handle handle;
    struct si_physical *physical;
    uint64_t base;
    memcpy(&handle, bytes, sizeof(handle));
    if (handle.magic == MAGIC && handle.cookie == si.cookie)
        return CUDA_ERROR_INVALID_CONTEXT; // the own process' memory
    CUresult result = map_memory(context, &handle, &physical, &base);
    if (result)
        return result;
    // A stale import of a freed piece is in the way of every other piece that lies there now, until
    // it is closed (measured, driver 580). A piece of the same place and size has the same handle,
    // which opens once more.
    if (overlaps(base + handle.offset, handle.size)) {
        si_physical_drop(physical);
        return CUDA_ERROR_ALREADY_MAPPED;
    }
    struct si_allocation allocation = {.base = base + handle.offset,
                                       .size = handle.size,
                                       .kind = SI_IMPORT,
                                       .context = context,
                                       .physical = physical,
                                       .offset = handle.offset,
                                       .access = 1u << context->ordinal,
                                       .opened = 1};
    memcpy(allocation.handle, bytes, sizeof(*bytes));
    struct si_allocation *inserted;
    result = si_insert(&allocation, &inserted);
    if (result)
        return result;
    inserted->life = *si_life_of(inserted);
    si_check_opened(inserted->base);
    *out = inserted->base;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle,
                                         unsigned int flags)
{
    struct si_context *context;
    if (!address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = si_begin(&context);
    if (result)
        return result;
    struct si_allocation *before = opened_before(context, &handle);
    if (!before)
        return si_end(import(context, &handle, address));
    before->opened++;
    before->life = *si_life_of(before); // of the place's present owner
    *address = before->base;
    return si_end(CUDA_SUCCESS);
}

void si_import_close(struct si_allocation *allocation)
{
    struct si_physical *physical = allocation->physical;
    struct si_pool *pool = allocation->pool;
    uint64_t base = allocation->base - allocation->offset;
    si_remove(allocation);
    if (physical->refs == 1) { // else the mapping serves other imports
        si_unmap(base, physical->size);
        si_arena_give(base, physical->size);
    }
    si_physical_drop(physical);
    if (pool)
        si_pool_let_go(pool);
}

static struct si_allocation *find_import(uint64_t address)
{
    struct si_allocation *allocation = si_find(address);
    return allocation && allocation->base == address && allocation->kind == SI_IMPORT ? allocation
                                                                                      : NULL;
}

SI_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    struct si_context *context;
    CUresult result = si_begin(&context);
    if (result)
        return result;
    struct si_allocation *allocation = find_import(address);
    if (!allocation) {
        si_check_close(address);
        return si_end(CUDA_ERROR_INVALID_VALUE);
    }
    si_check_current(allocation, "cuIpcCloseMemHandle");
    if (allocation->opened > 1) {
        allocation->opened--;
        return si_end(CUDA_SUCCESS);
    }
    si_block(allocation->context);
    allocation = find_import(address); // the lock was open meanwhile
    if (!allocation)
        return si_end(CUDA_ERROR_INVALID_VALUE);
    if (!--allocation->opened) {
        si_check_closed(address);
        si_import_close(allocation);
    }
    return si_end(CUDA_SUCCESS);
}
