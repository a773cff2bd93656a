// SPDX-License-Identifier: BSD-3-Clause
// A bounce buffer is memory of the library in the place of a buffer, where an operation was
// exchanged without one (an unbound channel). The peer maps it as it maps any buffer.
#ifndef PHI_TRANSPORT_BOUNCE_H
#define PHI_TRANSPORT_BOUNCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct phi_device;
struct phi_memory;

// LARGE is a multiple of 2 MiB: smaller allocations share pages with others, which would be
// exported with them.
#define PHI_BOUNCE_LARGE ((size_t)2 << 20)
#define PHI_BOUNCE_SMALL ((size_t)128 << 10)

struct phi_bounce {
    struct phi_memory *memory;
    struct phi_device *device; // NULL: host memory
    void *address;
    size_t size;
    struct phi_bounce *next; // of a list of its owner's
};

// A bounce buffer has two areas. The peer fills one. Over the net this end fills the other one
// before it is moved. An area is a head (cuda/kernel_args.h) and a part of a message.
// phi_bounce_area is the size of an area.
// phi_bounce_part is how many bytes of a message go at once, at most, through the areas of two
// ends.
size_t phi_bounce_area(size_t size);
size_t phi_bounce_part(size_t mine, size_t theirs);

// phi_bounce_is: whether a bounce buffer of a peer may lie at this offset of an allocation, and
// have this size.
bool phi_bounce_is(uint64_t offset, uint64_t size);

// phi_bounce_make makes one of host memory (device NULL) or of a device; a large one of a device is
// all zeros. Blocks until the deadline, not behind the application's streams. -ENOMEM, PH_EDRIVER.
// phi_bounce_free gives the memory back, for a device by its closer. NULL is fine.
int phi_bounce_make(struct phi_memory *memory, struct phi_device *device, size_t size,
                    int64_t deadline, struct phi_bounce **bounce);
void phi_bounce_free(struct phi_bounce *bounce);

#endif
