// SPDX-License-Identifier: BSD-3-Clause
// Memory kinds: what a pointer is, how its allocation is exported, and how a peer's is imported.
//
// A buffer is (allocation base, allocation size, driver buffer id, offset, size), never a bare
// address: free + malloc gives the same address with another buffer id. Exports and imports are of
// whole allocations.
#ifndef PHI_MEMORY_MEMORY_H
#define PHI_MEMORY_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/closer.h"
#include "base/report.h"
#include "base/wire.h"

// Values travel between processes: never renumber.
enum phi_kind {
    PHI_KIND_NONE = 0,
    PHI_KIND_HOST = 1, // memfd
    PHI_KIND_CUDA = 2, // cudaMalloc
    PHI_KIND_VMM = 3,  // cuMemCreate
    PHI_KIND_POOL = 4, // cudaMallocAsync
    PHI_KIND_COUNT,
};
const char *phi_kind_name(enum phi_kind kind);   // "host", "cuda", "vmm", "pool"
const char *phi_kind_handle(enum phi_kind kind); // "memfd", "cuda-ipc", "vmm-fd", "pool"

struct phi_allocation {
    uint8_t kind;  // enum phi_kind
    uint64_t base; // address in the owner's process
    uint64_t size; // bytes
    // of the driver (CU_POINTER_ATTRIBUTE_BUFFER_ID) or of the host registry; new for each
    // allocation
    uint64_t id;
};

static inline bool phi_allocation_equal(const struct phi_allocation *a,
                                        const struct phi_allocation *b)
{
    return a->base == b->base && a->id == b->id && a->size == b->size && a->kind == b->kind;
}

struct phi_memory; // the kinds that a context has
struct phi_device; // NULL in a host context

int phi_memory_open(struct phi_report *report, struct phi_device *device,
                    struct phi_memory **memory);
// phi_memory_device_bytes: of device memory that the library has; 0 in a host context. Any thread.
uint64_t phi_memory_device_bytes(const struct phi_memory *memory);
// close ends it; imports and exports must be closed before. What the device knows of host memory is
// left to its closer. NULL is fine.
void phi_memory_close(struct phi_memory *memory);

// describe finds the allocation that holds [address, address + size) and the offset in it.
// -EINVAL: not memory that the context knows, or past the allocation's end; PH_EKIND: managed,
// host-pinned or other memory that no peer can map, named in the sentence.
int phi_memory_describe(struct phi_memory *memory, const void *address, size_t size,
                        struct phi_allocation *allocation, uint64_t *offset);

// current looks, as cheaply as the kind allows (one attribute query, no lock), whether
// `allocation`, which describe gave earlier for this address, is still what lies there.
bool phi_memory_current(struct phi_memory *memory, const void *address,
                        const struct phi_allocation *allocation);

struct phi_piece;

// An export: a versioned, bounded record that a peer needs to map the allocation, and the
// descriptor that must travel beside it, if any.
#define PHI_EXPORT_MAX 512
struct phi_export {
    struct phi_allocation allocation;
    uint8_t record[PHI_EXPORT_MAX];
    size_t record_size;
    int fd;                  // -1: none. Owned, but for one of a piece
    struct phi_piece *piece; // of host memory: the file's descriptor serves all of its pieces
};

// PH_EKIND names the kind and why it cannot be exported (a pool without a POSIX handle, a VMM
// allocation made without CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, ...).
int phi_memory_export(struct phi_memory *memory, const struct phi_allocation *allocation,
                      struct phi_export *export_);
void phi_memory_export_close(struct phi_export *export_);

// What a record says before it is mapped; -EBADMSG for anything malformed. needs_fd: the descriptor
// must be fetched.
struct phi_record_info {
    struct phi_allocation allocation; // in the owner's terms
    bool needs_fd;
};
int phi_memory_inspect(struct phi_report *report, const uint8_t *record, size_t size,
                       struct phi_record_info *info);

// phi_memory_own: whether a record claims to be of this very process, so that import would take its
// pointer. Only a peer that is this process may say so: another one could point us at memory that
// nobody exported.
bool phi_memory_own(const struct phi_memory *memory, const uint8_t *record, size_t size);

struct phi_import {
    void *address; // of the allocation's first byte in this process
    size_t size;
    uint8_t kind;
    struct phi_memory *memory;
    uint64_t handle[4];           // private to the kind
    struct phi_closing closing;   // where the device's closer unmaps it
    void (*closed)(void *opaque); // told by close when it is unmapped, unless NULL
    void *opaque;
};

// import maps an allocation of another process (or of another context of this one). fd stays the
// caller's, who may close it afterwards; -1 where the record needs none. Bad input is -EBADMSG; a
// handle that the driver or system refuses is PH_EDRIVER or the errno, with the sentence; -EXDEV:
// no peer access between the devices; -EEXIST: an import of memory that lay there before is in the
// way. May take 20 ms for the first mapping from a device, and a second where what lay there before
// is being unmapped.
int phi_memory_import(struct phi_memory *memory, const uint8_t *record, size_t size, int fd,
                      struct phi_import **import);

// close unmaps. Of kind CUDA and POOL, and of kind HOST in a device context (where it was
// registered), that may block while any stream of the device waits: it is handed over to the
// device's closer (cuda/device.h), which calls `closed` later, without a lock; of other kinds close
// does before it returns. The memory must not be closed before. NULL is fine.
void phi_memory_import_close(struct phi_import *import);

// phi_memory_import_blocks: whether it is the closer's.
bool phi_memory_import_blocks(const struct phi_import *import);

// The kinds that this memory can import, as bits (1 << kind).
uint32_t phi_memory_kinds(const struct phi_memory *memory);

// Host memory of the context (memfds).
int phi_host_alloc(struct phi_memory *memory, size_t size, void **address);
int phi_host_register(struct phi_memory *memory, int fd, uint64_t offset, size_t size,
                      void **address);
// free: -EINVAL for an address that neither returned. In a device context the mapping goes when the
// device's closer has come to it.
int phi_host_free(struct phi_memory *memory, void *address);

// Contract of a kind: one file with one global symbol, its const table. `self` of a kind lives in
// struct phi_memory. describe returns -ENOENT for memory that is not of the kind (silent), else as
// phi_memory_describe.
struct phi_kind_ops {
    size_t size;
    enum phi_kind kind;
    int (*describe)(struct phi_memory *memory, const void *address, size_t size,
                    struct phi_allocation *allocation, uint64_t *offset);
    bool (*current)(struct phi_memory *memory, const void *address,
                    const struct phi_allocation *allocation);
    // encode writes the kind's part of the record, and the descriptor of the export, or its piece.
    int (*encode)(struct phi_memory *memory, const struct phi_allocation *allocation,
                  struct phi_writer *writer, struct phi_export *export_);
    // open maps: reads the kind's part; fd stays the caller's.
    int (*open)(struct phi_memory *memory, const struct phi_allocation *allocation,
                struct phi_reader *reader, int fd, struct phi_import *import);
    void (*close)(struct phi_import *import);
    bool needs_fd;
};

extern const struct phi_kind_ops phi_kind_host;
extern const struct phi_kind_ops phi_kind_cuda; // cuda.c, or cuda_stub.c
extern const struct phi_kind_ops phi_kind_vmm;
extern const struct phi_kind_ops phi_kind_pool;

#endif
