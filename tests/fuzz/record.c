// SPDX-License-Identifier: BSD-3-Clause
// Export records: what is mapped lies in what the peer's descriptor or the driver's handle holds.
//
// Input: flags, descriptor, the driver's mood (fake_device.h), the record. Flags: 1 a device; 2 and
// 4 put what no input can know into the kind's part: the descriptor's inode, this process.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_device.h"
#include "fuzz.h"
#include "memory/kind.h"
#include "memory/memory.h"

enum { PART = 36, HOST_READ = 4096 };

static struct phi_memory *memory_of(bool device)
{
    static struct phi_memory *memories[2];

    if (!memories[device])
        HOLD(phi_memory_open(&fuzz_context()->report, device ? fake_device() : NULL,
                             &memories[device]) == 0);
    return memories[device];
}

static void check(const struct phi_import *import, unsigned which)
{
    if (import->kind != PHI_KIND_HOST) {
        HOLD(fake_holds(import->address, import->size) ||
             (import->kind == PHI_KIND_POOL && fake_silent()));
        return;
    }
    HOLD(which % DESCRIPTOR_COUNT == DESCRIPTOR_SEALED ||
         which % DESCRIPTOR_COUNT == DESCRIPTOR_SPARSE);
    // The first and the last byte are there to be touched.
    ((volatile uint8_t *)import->address)[0] = 1;
    ((volatile uint8_t *)import->address)[import->size - 1] = 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    unsigned flags = (unsigned)take(&input, 1), which = (unsigned)take(&input, 1);
    struct phi_memory *memory = memory_of(flags & 1);
    struct phi_record_info info = {0};
    struct phi_import *import = NULL;

    fake_begin((unsigned)take(&input, 1));
    uint8_t *record = copy_of(input);
    uint64_t inode = descriptor_inode(which);
    if (input.left >= PART + 8 && flags & 6)
        memcpy(record + PART, flags & 2 ? &inode : &memory->process, 8);
    int inspected = phi_memory_inspect(&fuzz_context()->report, record, input.left, &info);
    int fd = descriptor(which);
    int rc = phi_memory_import(memory, record, input.left, fd, &import);
    if (fd >= 0)
        close(fd);
    if (rc == 0) {
        HOLD(inspected == 0 && info.allocation.kind == import->kind &&
             info.allocation.size == import->size);
        check(import, which);
        phi_memory_import_close(import);
    }
    HOLD(fake_end());
    free(record);
    return 0;
}
