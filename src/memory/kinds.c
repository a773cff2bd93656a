// SPDX-License-Identifier: BSD-3-Clause
// The kinds behind one table, and the record that an export is.
//
// A record, little-endian: magic u32, version u16, kind u16, base u64, size u64, id u64, then the
// kind's part as a blob (u32 length and bytes) that ends the record.
#include "memory/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/random.h"
#include "cuda/device.h"
#include "memory/kind.h"
#include "memory/piece.h"

#define RECORD_MAGIC 0x58454850u // "PHEX"
enum { RECORD_VERSION = 1 };

// In the order in which describe asks: the host kind answers from its own table, without the
// driver.
static const struct phi_kind_ops *const all_kinds[] = {
    &phi_kind_host,
    &phi_kind_cuda,
    &phi_kind_vmm,
    &phi_kind_pool,
};
enum { KINDS = sizeof(all_kinds) / sizeof(all_kinds[0]) };

static const struct phi_kind_ops *find_kind(unsigned kind)
{
    for (size_t i = 0; i < KINDS; i++)
        if (all_kinds[i]->kind == kind)
            return all_kinds[i];
    return NULL;
}

// Without a device there are no driver calls to make for the other kinds.
static size_t kinds_of(const struct phi_memory *memory)
{
    return memory->device ? KINDS : 1;
}

// hash_file mixes the first bytes of a small file into a hash.
static uint64_t hash_file(const char *path, uint64_t hash)
{
    FILE *file = fopen(path, "re");
    int c;

    if (!file)
        return hash;
    while ((c = fgetc(file)) != EOF)
        hash = phi_hash(hash, (uint64_t)c);
    fclose(file);
    return hash;
}

// process_start reads when this process began: the 22nd word of its stat line, the 20th after the
// name in brackets.
static uint64_t process_start(void)
{
    char line[1024];
    FILE *file = fopen("/proc/self/stat", "re");
    size_t size = file ? fread(line, 1, sizeof(line) - 1, file) : 0;
    char *word;

    if (file)
        fclose(file);
    line[size] = 0;
    word = strrchr(line, ')');
    for (int i = 0; word && i < 20; i++)
        word = strchr(word + 1, ' ');
    return word ? strtoull(word, NULL, 10) : 0;
}

uint64_t phi_process_identity(void)
{
    uint64_t hash = hash_file("/proc/sys/kernel/random/boot_id", 1);
    struct stat st;

    if (!stat("/proc/self/ns/pid", &st))
        hash = phi_hash(hash, st.st_ino);
    return phi_hash(phi_hash(hash, (uint64_t)getpid()), process_start());
}

int phi_memory_open(struct phi_report *report, struct phi_device *device,
                    struct phi_memory **memory)
{
    struct phi_memory *made = calloc(1, sizeof(*made));
    int rc;

    if (!made)
        return phi_fail(report, -ENOMEM, "no memory for the table of memory kinds");
    made->report = report;
    made->device = device;
    made->process = phi_process_identity();
    rc = phi_host_memory_open(report, &made->host);
    if (rc) {
        free(made);
        return rc;
    }
    *memory = made;
    return 0;
}

uint64_t phi_memory_device_bytes(const struct phi_memory *memory)
{
    return memory->device ? phi_device_bytes(memory->device) : 0;
}

static void free_memory(struct phi_closing *closing)
{
    free((struct phi_memory *)closing);
}

void phi_memory_close(struct phi_memory *memory)
{
    if (!memory)
        return;
    phi_host_memory_close(memory);
    memory->end.close = free_memory;
    if (memory->device) // behind imports that name it
        phi_device_hand(memory->device, &memory->end);
    else
        free_memory(&memory->end);
}

uint32_t phi_memory_kinds(const struct phi_memory *memory)
{
    uint32_t kinds = 1u << PHI_KIND_HOST;
    const struct phi_device_info *info;

    if (!memory->device)
        return kinds;
    info = phi_device_info(memory->device);
    kinds |= 1u << PHI_KIND_CUDA;
    if (info->vmm_fd)
        kinds |= 1u << PHI_KIND_VMM;
    if (info->pools)
        kinds |= 1u << PHI_KIND_POOL;
    return kinds;
}

int phi_memory_describe(struct phi_memory *memory, const void *address, size_t size,
                        struct phi_allocation *allocation, uint64_t *offset)
{
    for (size_t i = 0; i < kinds_of(memory); i++) {
        int rc = all_kinds[i]->describe(memory, address, size, allocation, offset);

        if (rc != -ENOENT)
            return rc;
    }
    return phi_fail(
        memory->report, -EINVAL,
        memory->device
            ? "%p is neither device memory nor memory of ph_host_alloc or ph_host_register"
            : "%p is not memory of ph_host_alloc or ph_host_register",
        address);
}

bool phi_memory_current(struct phi_memory *memory, const void *address,
                        const struct phi_allocation *allocation)
{
    const struct phi_kind_ops *kind = find_kind(allocation->kind);

    return kind && kind->current(memory, address, allocation);
}

// write_record writes the head, then the kind's part behind a length that is known only afterwards.
static int write_record(struct phi_memory *memory, const struct phi_kind_ops *kind,
                        const struct phi_allocation *allocation, struct phi_writer *writer,
                        struct phi_export *export_)
{
    size_t length_at;
    int rc;

    phi_put_u32(writer, RECORD_MAGIC);
    phi_put_u16(writer, RECORD_VERSION);
    phi_put_u16(writer, allocation->kind);
    phi_put_u64(writer, allocation->base);
    phi_put_u64(writer, allocation->size);
    phi_put_u64(writer, allocation->id);
    length_at = writer->size;
    phi_put_u32(writer, 0);
    rc = kind->encode(memory, allocation, writer, export_);
    if (rc)
        return rc;
    phi_patch_u32(writer, length_at, (uint32_t)(writer->size - length_at - sizeof(uint32_t)));
    if (writer->error)
        return phi_fail(memory->report, writer->error, "no memory for an export record");
    if (writer->size > PHI_EXPORT_MAX)
        return phi_fail(memory->report, -ENOMEM, "an export record of %zu bytes does not fit",
                        writer->size);
    return 0;
}

int phi_memory_export(struct phi_memory *memory, const struct phi_allocation *allocation,
                      struct phi_export *export_)
{
    const struct phi_kind_ops *kind = find_kind(allocation->kind);
    struct phi_export made = {.allocation = *allocation, .fd = -1};
    struct phi_writer writer = {0};
    int rc;

    if (!kind)
        return phi_fail(memory->report, PH_EKIND, "there is no memory kind %u", allocation->kind);
    rc = write_record(memory, kind, allocation, &writer, &made);
    if (rc) {
        phi_memory_export_close(&made);
        goto free_writer;
    }
    memcpy(made.record, writer.bytes, writer.size);
    made.record_size = writer.size;
    *export_ = made;

free_writer:
    phi_writer_fini(&writer);
    return rc;
}

void phi_memory_export_close(struct phi_export *export_)
{
    if (export_->fd >= 0 && export_->piece == NULL)
        close(export_->fd);
    phi_piece_drop(export_->piece);
    *export_ = (struct phi_export){.fd = -1};
}

// read_record checks the head of a record and leaves in `part` what belongs to the kind.
static int read_record(struct phi_report *report, const uint8_t *record, size_t size,
                       struct phi_allocation *allocation, struct phi_reader *part)
{
    struct phi_reader reader;
    unsigned version, kind;
    const uint8_t *bytes;
    uint32_t magic;
    size_t length;

    phi_reader_init(&reader, record, size);
    magic = phi_get_u32(&reader);
    version = phi_get_u16(&reader);
    kind = phi_get_u16(&reader);
    allocation->base = phi_get_u64(&reader);
    allocation->size = phi_get_u64(&reader);
    allocation->id = phi_get_u64(&reader);
    bytes = phi_get_blob(&reader, PHI_EXPORT_MAX, &length);

    if (size > PHI_EXPORT_MAX || reader.error || reader.at != reader.size || magic != RECORD_MAGIC)
        return phi_fail(report, -EBADMSG, "an export record of %zu bytes is malformed", size);
    if (version != RECORD_VERSION)
        return phi_fail(report, -EBADMSG, "an export record has version %u, not %d", version,
                        RECORD_VERSION);
    if (!find_kind(kind))
        return phi_fail(report, -EBADMSG, "an export record names memory kind %u", kind);
    if (allocation->size == 0 || allocation->size > INT64_MAX ||
        allocation->base > UINT64_MAX - allocation->size)
        return phi_fail(report, -EBADMSG, "an export record says %llu bytes at 0x%llx",
                        (unsigned long long)allocation->size, (unsigned long long)allocation->base);
    allocation->kind = (uint8_t)kind;
    phi_reader_init(part, bytes, length);
    return 0;
}

int phi_memory_inspect(struct phi_report *report, const uint8_t *record, size_t size,
                       struct phi_record_info *info)
{
    struct phi_allocation allocation = {0};
    struct phi_reader part;
    int rc = read_record(report, record, size, &allocation, &part);

    if (rc)
        return rc;
    info->allocation = allocation;
    info->needs_fd = find_kind(allocation.kind)->needs_fd;
    return 0;
}

bool phi_memory_own(const struct phi_memory *memory, const uint8_t *record, size_t size)
{
    struct phi_allocation allocation = {0};
    struct phi_reader part;

    // The parts of all kinds with pointers of their own begin with the owner's process
    // (memory/pointer.h).
    return read_record(memory->report, record, size, &allocation, &part) == 0 &&
           allocation.kind != PHI_KIND_HOST && phi_get_u64(&part) == memory->process;
}

// open_record maps what a record describes into `import`.
static int open_record(struct phi_memory *memory, const uint8_t *record, size_t size, int fd,
                       struct phi_import *import)
{
    const struct phi_kind_ops *kind;
    struct phi_allocation allocation = {0};
    struct phi_reader part;
    int rc = read_record(memory->report, record, size, &allocation, &part);

    if (rc)
        return rc;
    kind = find_kind(allocation.kind);
    import->kind = allocation.kind;
    if (!(phi_memory_kinds(memory) & 1u << allocation.kind))
        return phi_fail(memory->report, PH_EKIND, "memory of kind %s cannot be mapped here",
                        phi_kind_name(allocation.kind));
    if (kind->needs_fd && fd < 0)
        return phi_fail(memory->report, -EBADMSG, "no descriptor came with memory of kind %s",
                        phi_kind_name(allocation.kind));
    return kind->open(memory, &allocation, &part, fd, import);
}

int phi_memory_import(struct phi_memory *memory, const uint8_t *record, size_t size, int fd,
                      struct phi_import **import)
{
    struct phi_import *made = calloc(1, sizeof(*made));
    int rc;

    if (!made)
        return phi_fail(memory->report, -ENOMEM, "no memory for an import");
    made->memory = memory;
    rc = open_record(memory, record, size, fd, made);
    if (!rc)
        *import = made;
    else if (made->handle[0]) // it was opened, and then refused
        phi_memory_import_close(made);
    else
        free(made);
    return rc;
}

bool phi_memory_import_blocks(const struct phi_import *import)
{
    switch (import->kind) {
    case PHI_KIND_HOST:
        return import->memory->device != NULL; // it was registered
    case PHI_KIND_CUDA:
    case PHI_KIND_POOL:
        return import->handle[0] != 0; // else memory of this process, which was not opened
    default:
        return false;
    }
}

static void unmap_import(struct phi_import *import)
{
    void (*closed)(void *opaque) = import->closed;
    void *opaque = import->opaque;

    find_kind(import->kind)->close(import);
    free(import);
    if (closed)
        closed(opaque);
}

static void unmap_closing(struct phi_closing *closing)
{
    unmap_import((struct phi_import *)((char *)closing - offsetof(struct phi_import, closing)));
}

void phi_memory_import_close(struct phi_import *import)
{
    if (!import)
        return;
    if (!phi_memory_import_blocks(import)) {
        unmap_import(import);
        return;
    }
    import->closing.close = unmap_closing;
    phi_device_hand(import->memory->device, &import->closing);
}
