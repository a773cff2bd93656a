// SPDX-License-Identifier: BSD-3-Clause
// Host memory: pieces of memory files that the library makes (ph_host_alloc) or that the caller
// hands in (ph_host_register).
//
// Every mapping has a slot in a table that only grows; its id names the slot and the slot's
// generation, so that `current` is one load without a lock. A sorted array of the slots, under the
// lock, answers `describe`.
//
// In a device context every mapping is registered with the device, for copies by its streams.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/random.h"
#include "cuda/device.h"
#include "memory/kind.h"
#include "memory/memfd.h"
#include "memory/piece.h"

enum {
    SLOT_BITS = 18, // of an id: the slot; the rest is the generation
    CHUNK = 1024,   // slots are allocated by
    CHUNKS = (1 << SLOT_BITS) / CHUNK,
};

struct slot {
    // 0 while the slot is free. Stored last (release) when a mapping is made and first when it
    // goes; `current` loads it (acquire) without the lock. Everything else is read under the lock.
    _Atomic uint64_t id;
    char *address;
    size_t size;             // as the caller asked
    struct phi_piece *piece; // held
    uint32_t index;
    struct slot *next_free;
};

struct place {
    const char *address;
    struct slot *slot;
};

struct phi_host_memory {
    pthread_mutex_t lock; // guards all but the chunk pointers and ids, which only it may change
    struct slot *_Atomic chunks[CHUNKS];
    uint32_t chunk_count;
    struct slot *free_slots;
    struct place *sorted; // slots in use, by address
    size_t count, capacity;
    uint64_t generation;
    struct phi_files files;
};

int phi_host_memory_open(struct phi_report *report, struct phi_host_memory **host)
{
    struct phi_host_memory *made = calloc(1, sizeof(*made));

    if (!made)
        return phi_fail(report, -ENOMEM, "no memory for the table of host memory");
    pthread_mutex_init(&made->lock, NULL);
    phi_files_init(&made->files);
    // A random start: ids of two contexts or of two lives of a rank do not meet.
    phi_random(&made->generation, sizeof(made->generation));
    *host = made;
    return 0;
}

// Where the caller asks about the sorted array: the first slot whose address is above `address`.
static size_t upper_bound(const struct phi_host_memory *host, const char *address)
{
    size_t low = 0, high = host->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (host->sorted[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// slot_at returns the mapping that holds `address`, or NULL. Under the lock.
static struct slot *slot_at(const struct phi_host_memory *host, const char *address)
{
    size_t above = upper_bound(host, address);
    struct slot *slot = above > 0 ? host->sorted[above - 1].slot : NULL;

    return slot && (size_t)(address - slot->address) < slot->size ? slot : NULL;
}

// slot_of returns the slot that an id names and the id is current for, or NULL. No lock: slots are
// never freed.
static struct slot *slot_of(struct phi_host_memory *host, uint64_t id)
{
    uint32_t index = (uint32_t)(id & ((1u << SLOT_BITS) - 1));
    // Pairs with the store in add_chunk: who sees the chunk sees its slots.
    struct slot *chunk = atomic_load_explicit(&host->chunks[index / CHUNK], memory_order_acquire);

    if (!chunk || id == 0)
        return NULL;
    // Pairs with the stores in publish and retire.
    return atomic_load_explicit(&chunk[index % CHUNK].id, memory_order_acquire) == id
               ? &chunk[index % CHUNK]
               : NULL;
}

static int add_chunk(struct phi_host_memory *host)
{
    struct slot *chunk;

    if (host->chunk_count == CHUNKS)
        return -ENOMEM;
    chunk = calloc(CHUNK, sizeof(*chunk));
    if (!chunk)
        return -ENOMEM;
    for (uint32_t i = CHUNK; i-- > 0;) {
        chunk[i].index = host->chunk_count * CHUNK + i;
        chunk[i].next_free = host->free_slots;
        host->free_slots = &chunk[i];
    }
    atomic_store_explicit(&host->chunks[host->chunk_count++], chunk, memory_order_release);
    return 0;
}

// reserve makes sure that publish cannot fail. Under the lock.
static int reserve(struct phi_host_memory *host)
{
    if (host->count == host->capacity) {
        size_t capacity = host->capacity ? 2 * host->capacity : 64;
        struct place *sorted = realloc(host->sorted, capacity * sizeof(*sorted));

        if (!sorted)
            return -ENOMEM;
        host->sorted = sorted;
        host->capacity = capacity;
    }
    return host->free_slots ? 0 : add_chunk(host);
}

// publish enters a mapping into the table. Under the lock, after reserve.
static void publish(struct phi_host_memory *host, const struct slot *mapping)
{
    struct slot *slot = host->free_slots;
    size_t at = upper_bound(host, mapping->address);
    uint64_t id;

    host->free_slots = slot->next_free;
    slot->address = mapping->address;
    slot->size = mapping->size;
    slot->piece = mapping->piece;
    memmove(&host->sorted[at + 1], &host->sorted[at], (host->count - at) * sizeof(*host->sorted));
    host->sorted[at] = (struct place){slot->address, slot};
    host->count++;
    // Generation 0 is left out: no id is 0, which means a free slot.
    do
        id = ++host->generation << SLOT_BITS | slot->index;
    while (id >> SLOT_BITS == 0);
    atomic_store_explicit(&slot->id, id, memory_order_release);
}

// retire takes a mapping out of the table; what it needs to be unmapped is copied out. Under the
// lock.
static void retire(struct phi_host_memory *host, struct slot *slot, struct slot *mapping)
{
    size_t at = upper_bound(host, slot->address) - 1;

    atomic_store_explicit(&slot->id, 0, memory_order_release);
    mapping->address = slot->address;
    mapping->piece = slot->piece;
    memmove(&host->sorted[at], &host->sorted[at + 1],
            (host->count - at - 1) * sizeof(*host->sorted));
    host->count--;
    slot->next_free = host->free_slots;
    host->free_slots = slot;
}

// unmap leaves what a device knows to its closer.
static void unmap(struct phi_memory *memory, void *address, size_t mapped_size)
{
    if (memory->device)
        phi_device_unmap(memory->device, address, mapped_size);
    else
        munmap(address, mapped_size);
}

// map maps whole granules of a memory file and registers them with the device, if there is one.
static int map(struct phi_memory *memory, int fd, uint64_t offset, size_t mapped_size,
               char **address)
{
    uint64_t device_address;
    void *base;
    int rc;

    base = mmap(NULL, mapped_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    if (base == MAP_FAILED)
        return phi_fail(memory->report, -errno, "mmap of %zu bytes of a memory file: %s",
                        mapped_size, ph_strerror(-errno));
    if (memory->device) {
        rc = phi_device_register(memory->device, base, mapped_size, &device_address);
        if (rc) {
            unmap(memory, base, mapped_size);
            return rc;
        }
    }
    *address = base;
    return 0;
}

void phi_host_memory_close(struct phi_memory *memory)
{
    struct phi_host_memory *host = memory->host;

    for (size_t i = 0; i < host->count; i++) {
        const struct slot *slot = host->sorted[i].slot;

        unmap(memory, slot->address, slot->piece->size);
        phi_piece_drop(slot->piece);
    }
    for (uint32_t i = 0; i < host->chunk_count; i++)
        free(atomic_load_explicit(&host->chunks[i], memory_order_relaxed));
    free(host->sorted);
    phi_files_fini(&host->files);
    pthread_mutex_destroy(&host->lock);
    free(host);
}

// adopt maps a piece and enters it; the hold on the piece becomes the table's on success.
static int adopt(struct phi_memory *memory, struct phi_piece *piece, size_t size, void **address)
{
    struct phi_host_memory *host = memory->host;
    struct slot mapping = {.piece = piece, .size = size};
    int rc = map(memory, phi_piece_fd(piece), piece->offset, piece->size, &mapping.address);

    if (rc)
        return rc;
    pthread_mutex_lock(&host->lock);
    rc = reserve(host);
    if (!rc)
        publish(host, &mapping);
    pthread_mutex_unlock(&host->lock);
    if (rc) {
        unmap(memory, mapping.address, piece->size);
        return phi_fail(memory->report, rc, "no memory for one more piece of host memory");
    }
    *address = mapping.address;
    return 0;
}

// round_up returns size as whole granules, or 0 where that overflows.
static size_t round_up(size_t size, uint64_t granule)
{
    size_t more = (size_t)(granule - 1);

    return size > SIZE_MAX - more ? 0 : (size + more) / granule * granule;
}

int phi_host_alloc(struct phi_memory *memory, size_t size, void **address)
{
    size_t mapped_size = round_up(size, (uint64_t)sysconf(_SC_PAGESIZE));
    struct phi_piece *piece;
    int rc;

    if (size == 0)
        return phi_fail(memory->report, -EINVAL, "host memory of 0 bytes");
    if (mapped_size == 0)
        return phi_fail(memory->report, -ENOMEM, "host memory of %zu bytes", size);
    rc = phi_piece_new(&memory->host->files, memory->report, mapped_size, &piece);
    if (rc)
        return rc;
    rc = adopt(memory, piece, size, address);
    if (rc)
        phi_piece_drop(piece);
    return rc;
}

// seal makes sure that the file cannot shrink: a peer that touched what was cut off would die of
// SIGBUS.
static int seal(struct phi_report *report, int fd, int seals)
{
    if (seals & F_SEAL_SHRINK || !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
        return 0;
    return phi_fail(
        report, -EINVAL,
        "the memory file may shrink and cannot be sealed: make it with MFD_ALLOW_SEALING "
        "or seal it with F_SEAL_SHRINK");
}

int phi_host_register(struct phi_memory *memory, int fd, uint64_t offset, size_t size,
                      void **address)
{
    struct phi_report *report = memory->report;
    struct phi_memfd_info info;
    struct phi_piece *piece;
    int own;
    int rc;

    if (phi_memfd_inspect(fd, &info))
        return phi_fail(report, -EINVAL, "descriptor %d is no memory file for reading and writing",
                        fd);
    if (size == 0 || offset % info.granule || offset > info.size || size > info.size - offset)
        return phi_fail(report, -EINVAL,
                        "%zu bytes at offset %llu of a memory file of %llu bytes and pages of %llu",
                        size, (unsigned long long)offset, (unsigned long long)info.size,
                        (unsigned long long)info.granule);
    rc = seal(report, fd, info.seals);
    if (rc)
        return rc;
    own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return phi_fail(report, -errno, "the descriptor cannot be duplicated: %s",
                        ph_strerror(-errno));
    rc = phi_piece_of_file(&memory->host->files, report, own, offset, round_up(size, info.granule),
                           &piece);
    if (rc) {
        close(own);
        return rc;
    }
    rc = adopt(memory, piece, size, address);
    if (rc)
        phi_piece_drop(piece);
    return rc;
}

int phi_host_free(struct phi_memory *memory, void *address)
{
    struct phi_host_memory *host = memory->host;
    struct slot mapping = {0};
    struct slot *slot;

    pthread_mutex_lock(&host->lock);
    slot = slot_at(host, address);
    if (slot && slot->address == (char *)address)
        retire(host, slot, &mapping);
    else
        slot = NULL;
    pthread_mutex_unlock(&host->lock);
    if (!slot)
        return phi_fail(memory->report, -EINVAL,
                        "%p is not what ph_host_alloc or ph_host_register returned", address);
    unmap(memory, mapping.address, mapping.piece->size);
    phi_piece_drop(mapping.piece);
    return 0;
}

static int host_describe(struct phi_memory *memory, const void *address, size_t size,
                         struct phi_allocation *allocation, uint64_t *offset)
{
    struct phi_host_memory *host = memory->host;
    struct phi_allocation found = {.kind = PHI_KIND_HOST};
    const struct slot *slot;

    pthread_mutex_lock(&host->lock);
    slot = slot_at(host, address);
    if (slot) {
        found.base = (uintptr_t)slot->address;
        found.size = slot->size;
        found.id = atomic_load_explicit(&slot->id, memory_order_relaxed);
    }
    pthread_mutex_unlock(&host->lock);
    if (!slot)
        return -ENOENT;
    if (size > found.size - ((uintptr_t)address - found.base))
        return phi_fail(memory->report, -EINVAL,
                        "%zu bytes at %p pass the end of host memory of %llu bytes at 0x%llx", size,
                        address, (unsigned long long)found.size, (unsigned long long)found.base);
    *allocation = found;
    *offset = (uintptr_t)address - found.base;
    return 0;
}

// Ids are never used twice: as long as the slot shows this one, base and size are those that
// describe gave.
static bool host_current(struct phi_memory *memory, const void *address,
                         const struct phi_allocation *allocation)
{
    return (uintptr_t)address - allocation->base < allocation->size &&
           slot_of(memory->host, allocation->id);
}

// The export keeps the memory, also where the owner frees it.
static int host_encode(struct phi_memory *memory, const struct phi_allocation *allocation,
                       struct phi_writer *writer, struct phi_export *export_)
{
    struct phi_host_memory *host = memory->host;
    struct phi_memfd_info info = {0};
    const struct slot *slot;
    int rc = -EINVAL;

    pthread_mutex_lock(&host->lock);
    slot = slot_of(host, allocation->id);
    if (slot) {
        export_->piece = slot->piece;
        export_->fd = phi_piece_fd(slot->piece);
        phi_piece_hold(slot->piece);
        rc = phi_memfd_inspect(export_->fd, &info);
    }
    pthread_mutex_unlock(&host->lock);
    if (rc)
        return phi_fail(memory->report, rc, "host memory at 0x%llx cannot be exported: %s",
                        (unsigned long long)allocation->base,
                        slot ? ph_strerror(rc) : "it was freed");
    phi_put_u64(writer, info.inode);
    phi_put_u64(writer, info.size);
    phi_put_u64(writer, export_->piece->offset);
    return 0;
}

// check compares a peer's descriptor with what its record says. Nothing is mapped that the peer
// could take away again: a file that may shrink is refused, whoever made it.
static int check(struct phi_memory *memory, const struct phi_allocation *allocation,
                 struct phi_reader *reader, int fd, uint64_t *offset, uint64_t *granule)
{
    uint64_t inode = phi_get_u64(reader);
    uint64_t file_size = phi_get_u64(reader);
    struct phi_memfd_info info;
    const char *wrong = NULL;
    int rc = phi_memfd_inspect(fd, &info);

    *offset = phi_get_u64(reader);
    if (reader->error || reader->at != reader->size)
        wrong = "its record is malformed";
    else if (rc)
        wrong = phi_memfd_trouble(rc);
    else if (info.inode != inode)
        wrong = "its descriptor is of another file";
    else if (!(info.seals & F_SEAL_SHRINK))
        wrong = "its file is not sealed against shrinking";
    else if (info.size < file_size || *offset > info.size || allocation->size > info.size - *offset)
        wrong = "its file is smaller than its record says";
    else if (*offset % info.granule)
        wrong = "its offset is not a multiple of the page size";
    if (wrong)
        return phi_fail(memory->report, rc && rc != -EINVAL ? rc : -EBADMSG,
                        "a peer's host memory of %llu bytes is refused: %s",
                        (unsigned long long)allocation->size, wrong);
    *granule = info.granule;
    return 0;
}

static int host_open(struct phi_memory *memory, const struct phi_allocation *allocation,
                     struct phi_reader *reader, int fd, struct phi_import *import)
{
    uint64_t offset = 0, granule = 1;
    char *address = NULL;
    size_t mapped_size;
    int rc = check(memory, allocation, reader, fd, &offset, &granule);

    if (rc)
        return rc;
    mapped_size = round_up(allocation->size, granule);
    rc = map(memory, fd, offset, mapped_size, &address);
    if (rc)
        return rc;
    import->address = address;
    import->size = allocation->size;
    import->handle[0] = mapped_size;
    return 0;
}

// On the closer's thread, where there is a device.
static void host_close(struct phi_import *import)
{
    if (import->memory->device)
        phi_device_unmap_now(import->memory->device, import->address, import->handle[0]);
    else
        munmap(import->address, import->handle[0]);
}

const struct phi_kind_ops phi_kind_host = {
    .size = sizeof(struct phi_kind_ops),
    .kind = PHI_KIND_HOST,
    .describe = host_describe,
    .current = host_current,
    .encode = host_encode,
    .open = host_open,
    .close = host_close,
    .needs_fd = true,
};
