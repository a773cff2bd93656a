// SPDX-License-Identifier: BSD-3-Clause
// A slab is device memory of the library that a peer maps.
#ifndef PHI_TRANSPORT_SLAB_H
#define PHI_TRANSPORT_SLAB_H

#include <stddef.h>
#include <stdint.h>

#include "memory/memory.h"

struct phi_slab {
    void *address; // on the device
    struct phi_export export_;
};

// A new slab holds `lines` times the same line, then zeros up to `size`.
struct phi_slab_image {
    const void *line;
    size_t line_size, lines, size;
};

// phi_slab_open makes a slab and its export. Blocks until the deadline, not behind the
// application's streams.
// phi_slab_close ends both. The device's closer frees the memory.
int phi_slab_open(struct phi_memory *memory, struct phi_device *device,
                  const struct phi_slab_image *image, int64_t deadline, struct phi_slab *slab);
void phi_slab_close(struct phi_device *device, struct phi_slab *slab);

// phi_slab_zero writes zeros. Blocks as phi_slab_open.
int phi_slab_zero(struct phi_device *device, void *address, size_t size, int64_t deadline);

// phi_slab_read and phi_slab_write copy a part of a slab. Not beside kernels that use it.
int phi_slab_read(struct phi_device *device, uint64_t at, void *into, size_t size,
                  int64_t deadline);
int phi_slab_write(struct phi_device *device, uint64_t at, const void *from, size_t size,
                   int64_t deadline);

#endif
