// SPDX-License-Identifier: BSD-3-Clause
// A list of pages as a launch of phi_pages. What the kernel cannot read where it lies travels in
// the arguments, or in pinned memory of the context.
#ifndef PHI_SEMAPHORE_PAGE_LAUNCH_H
#define PHI_SEMAPHORE_PAGE_LAUNCH_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/kernel_args.h"
#include "cuda/driver.h"
#include "semaphore/hop.h"

struct phi_records;

// The pinned memory of one context: a ring of lists that streams have not come to.
#define PHI_LIST_BYTES   ((uint64_t)4 << 20)
#define PHI_LIST_ENTRIES 1024

struct phi_list_entry {
    uint64_t end;    // of its bytes, counted since ever
    uint64_t number; // of the operation whose launch reads it
    uint32_t index;  // of the stream's record
};

struct phi_list_memory {
    pthread_mutex_t lock; // guards all behind `records`
    uint8_t *bytes;
    uint64_t device; // address of bytes
    const struct phi_records *records;
    uint64_t head, tail; // bytes [tail, head) are in use, counted since ever
    uint32_t first, count;
    struct phi_list_entry entries[PHI_LIST_ENTRIES];
};

// The operation whose lists are to be placed: its number, and the record of its stream; captured:
// it has none.
struct phi_list_reader {
    uint64_t number;
    uint32_t index;
    bool captured;
};

// phi_pages_place finds out, before anything of an operation is enqueued, what its lists have to
// carry, and takes room for it. Errors, reported: -EAGAIN and -E2BIG (the pinned memory), -ENOTSUP
// (captured).
int phi_pages_place(const struct phi_driver *driver, struct phi_list_memory *lists,
                    const struct phi_work *work, size_t n, struct phi_list_reader reader,
                    struct phi_report *report);

// phi_pages_unplace gives back what an operation that was not enqueued has taken: its number may be
// that of no other one for long.
void phi_pages_unplace(struct phi_list_memory *lists, const struct phi_work *work, size_t n,
                       struct phi_list_reader reader);

// phi_pages_fill makes the arguments of the launch of a list that is placed, but for broken, number
// and sync. blocks: most of one that says nothing else. Returns what the driver says of its memory.
CUresult phi_pages_fill(const struct phi_driver *driver, const struct phi_list_memory *lists,
                        uint32_t blocks, const struct phi_work *work, struct phi_pages_args *args,
                        struct phi_grid *grid);

#endif
