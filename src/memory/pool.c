// SPDX-License-Identifier: BSD-3-Clause
// Kind pool: cudaMallocAsync memory whose pool was made with POSIX descriptors. The pool travels as
// a descriptor, the allocation as the driver's export data.
//
// Its part of a record: the owner (process u64, device UUID), the export data (64 bytes).
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
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
                       struct phi_writer *writer, struct phi_export *export_)
{
    CUmemPoolPtrExportData data;
    void *token = NULL;
    int rc = phi_device_enter(memory->device, &token);
    if (rc)
        return rc;
    rc = export_entered(memory, allocation, &data, &export_->fd);
    phi_device_leave(memory->device, token);
    if (rc)
        return rc;
    phi_owner_put(memory, writer);
    phi_put_bytes(writer, &data, sizeof data);
    return 0;
}

// ---- Importing
//
// The driver gives a process one handle for a pool, however often its descriptor is imported, and
// refuses to destroy it while an allocation out of it is open. An allocation imported twice has one
// address, and the first free ends it for all; one whose place a former allocation had, which is
// still open here, comes as that one, with its size and id (measured, driver 580). So the process
// counts what it has open, for all its contexts.

struct opened {
    struct opened *next;
    CUmemoryPool pool;
    uint64_t base, size, id; // as its owner has it
    CUdeviceptr at;          // 0: not imported yet
    int uses;
    bool closing; // the last user is freeing it
};
static pthread_mutex_t opened_lock = PTHREAD_MUTEX_INITIALIZER;
static struct opened *opened;

// in_place: what is open where the allocation lies now. With the lock.
static struct opened *in_place(CUmemoryPool pool, const struct phi_allocation *allocation)
{
    struct opened *o = opened;
    while (o && (o->pool != pool || o->base >= allocation->base + allocation->size ||
                 allocation->base >= o->base + o->size))
        o = o->next;
    return o;
}

// forget: with the lock.
static void forget(const struct phi_driver *driver, struct opened *gone)
{
    bool last = true;
    for (struct opened **o = &opened; *o;) {
        if (*o == gone) {
            *o = gone->next;
            continue;
        }
        last = last && (*o)->pool != gone->pool;
        o = &(*o)->next;
    }
    if (last)
        driver->cuMemPoolDestroy(gone->pool);
    free(gone);
}

// drop ends one use. The free may block while the device is busy: without the lock.
static CUresult drop(const struct phi_driver *driver, struct opened *o)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&opened_lock);
    const bool last = --o->uses == 0;
    o->closing = last;
    pthread_mutex_unlock(&opened_lock);
    if (!last)
        return CUDA_SUCCESS;
    if (o->at) // nobody else has it
        result = driver->cuMemFree_v2(o->at);
    pthread_mutex_lock(&opened_lock);
    forget(driver, o);
    pthread_mutex_unlock(&opened_lock);
    return result;
}

// How long an import that is being freed is waited for: the device may be busy.
#define FREE_MS 1000

// use_locked finds the pool of a descriptor and what is open of the allocation, or makes room for
// it. -EEXIST: another allocation is open in its place; -EAGAIN: and is being freed.
static int use_locked(const struct phi_driver *driver, int fd,
                      const struct phi_allocation *allocation, struct opened *made,
                      struct opened **used, CUresult *result)
{
    CUmemoryPool pool = NULL;
    *result = driver->cuMemPoolImportFromShareableHandle(
        &pool, (void *)(uintptr_t)fd, // NOLINT(performance-no-int-to-ptr)
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (*result != CUDA_SUCCESS)
        return PH_EDRIVER;
    struct opened *o = in_place(pool, allocation);
    if (o && o->closing)
        return -EAGAIN;
    if (o &&
        (o->base != allocation->base || o->size != allocation->size || o->id != allocation->id))
        return -EEXIST;
    if (!o) {
        o = made;
        *o = (struct opened){.next = opened,
                             .pool = pool,
                             .base = allocation->base,
                             .size = allocation->size,
                             .id = allocation->id};
        opened = o;
    }
    o->uses++;
    *used = o;
    return 0;
}

static int use(struct phi_memory *memory, int fd, const struct phi_allocation *allocation,
               struct opened **used)
{
    const struct phi_driver *driver = phi_device_driver(memory->device);
    struct opened *made = malloc(sizeof(*made));
    CUresult result = CUDA_SUCCESS;
    if (!made)
        return phi_fail(memory->report, -ENOMEM, "no memory for an import");
    const int64_t soon = phi_deadline(FREE_MS);
    int rc;
    for (;;) {
        pthread_mutex_lock(&opened_lock);
        rc = use_locked(driver, fd, allocation, made, used, &result);
        pthread_mutex_unlock(&opened_lock);
        if (rc != -EAGAIN || phi_now() >= soon)
            break;
        nanosleep(&(struct timespec){.tv_nsec = PHI_MS}, NULL);
    }
    if (rc || *used != made)
        free(made);
    if (rc == -EAGAIN)
        rc = -EEXIST;
    if (result != CUDA_SUCCESS)
        return phi_pointer_fail(memory, result, "importing the pool of a peer's memory",
                                allocation);
    return rc;
}

// claim notes where an import is mapped. False: another one is there, so the record of one of them
// names memory that it is not of, and the first of the two to be closed would take it from both.
static bool claim(struct opened *o, CUdeviceptr mapped)
{
    pthread_mutex_lock(&opened_lock);
    const struct opened *other = opened;
    while (other && (other == o || other->at != mapped || other->closing))
        other = other->next;
    if (!other)
        o->at = mapped;
    pthread_mutex_unlock(&opened_lock);
    return !other;
}

// import_entered: each user asks the driver, which gives all of them the same address.
static int import_entered(struct phi_memory *memory, const struct phi_allocation *allocation,
                          CUmemPoolPtrExportData *data, struct opened *o, struct phi_import *import)
{
    const struct phi_driver *driver = phi_device_driver(memory->device);
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                                 .id = phi_device_info(memory->device)->ordinal},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr mapped = 0;
    CUresult result = driver->cuMemPoolSetAccess(o->pool, &access, 1);
    if (result == CUDA_SUCCESS)
        result = driver->cuMemPoolImportPointer(&mapped, o->pool, data);
    if (result != CUDA_SUCCESS)
        return phi_pointer_fail(memory, result, "importing a peer's pool memory", allocation);
    if (!claim(o, mapped))
        return phi_fail(memory->report, -EBADMSG,
                        "a peer's record names pool memory that is mapped for another record");
    if (phi_pointer_holds(memory, mapped, allocation->size) == 0)
        return phi_fail(memory->report, -EBADMSG,
                        "a peer's pool memory holds less than the %llu bytes of its record",
                        (unsigned long long)allocation->size);
    import->address = (void *)(uintptr_t)mapped; // NOLINT(performance-no-int-to-ptr)
    import->size = allocation->size;
    return 0;
}

static int pool_open(struct phi_memory *memory, const struct phi_allocation *allocation,
                     struct phi_reader *reader, int fd, struct phi_import *import)
{
    struct phi_owner owner;
    CUmemPoolPtrExportData data;
    struct opened *o = NULL;
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
    rc = use(memory, fd, allocation, &o);
    if (o) {
        import->handle[0] = (uintptr_t)o; // imported or not, it is to be dropped
        rc = import_entered(memory, allocation, &data, o, import);
    }
    phi_device_leave(memory->device, token);
    return rc;
}

static void pool_close(struct phi_import *import)
{
    struct phi_device *device = import->memory->device;
    struct opened *o =
        (struct opened *)(uintptr_t)import->handle[0]; // NOLINT(performance-no-int-to-ptr)
    if (o)
        phi_device_tell(device, drop(phi_device_driver(device), o),
                        "cuMemFree of a peer's pool memory");
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
