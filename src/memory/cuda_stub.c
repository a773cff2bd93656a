// SPDX-License-Identifier: BSD-3-Clause
// Stands for cuda.c, vmm.c and pool.c in a build without cuda.h: no memory is of these kinds.
#include <errno.h>

#include "memory/memory.h"

static int stub_describe(struct phi_memory *memory, const void *address, size_t size,
                         struct phi_allocation *allocation, uint64_t *offset)
{
    (void)memory;
    (void)address;
    (void)size;
    (void)allocation;
    (void)offset;
    return -ENOENT;
}

static bool stub_current(struct phi_memory *memory, const void *address,
                         const struct phi_allocation *allocation)
{
    (void)memory;
    (void)address;
    (void)allocation;
    return false;
}

static int stub_encode(struct phi_memory *memory, const struct phi_allocation *allocation,
                       struct phi_writer *writer, struct phi_export *export_)
{
    (void)memory;
    (void)allocation;
    (void)writer;
    (void)export_;
    return PH_EKIND;
}

static int stub_open(struct phi_memory *memory, const struct phi_allocation *allocation,
                     struct phi_reader *reader, int fd, struct phi_import *import)
{
    (void)memory;
    (void)allocation;
    (void)reader;
    (void)fd;
    (void)import;
    return PH_EKIND;
}

static void stub_close(struct phi_import *import)
{
    (void)import;
}

#define STUB(name, value, fd)                                                                      \
    const struct phi_kind_ops name = {                                                             \
        .size = sizeof(struct phi_kind_ops),                                                       \
        .kind = (value),                                                                           \
        .describe = stub_describe,                                                                 \
        .current = stub_current,                                                                   \
        .encode = stub_encode,                                                                     \
        .open = stub_open,                                                                         \
        .close = stub_close,                                                                       \
        .needs_fd = (fd),                                                                          \
    }

STUB(phi_kind_cuda, PHI_KIND_CUDA, false);
STUB(phi_kind_vmm, PHI_KIND_VMM, true);
STUB(phi_kind_pool, PHI_KIND_POOL, true);
