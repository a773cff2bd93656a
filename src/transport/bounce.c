// SPDX-License-Identifier: BSD-3-Clause
#include "transport/bounce.h"

#include <errno.h>
#include <stdlib.h>

#include "cuda/device.h"
#include "cuda/kernel_args.h"
#include "memory/memory.h"
#include "transport/slab.h"

_Static_assert(PHI_BOUNCE_LARGE == PHI_RING_BYTES, "a large one may be a ring");

size_t phi_bounce_area(size_t size)
{
    return size / 2;
}

size_t phi_bounce_part(size_t mine, size_t theirs)
{
    return phi_bounce_area(mine < theirs ? mine : theirs) - PHI_BOUNCE_HEAD;
}

bool phi_bounce_is(uint64_t offset, uint64_t size)
{
    return offset % PHI_BOUNCE_HEAD == 0 && (size == PHI_BOUNCE_LARGE || size == PHI_BOUNCE_SMALL);
}

int phi_bounce_make(struct phi_memory *memory, struct phi_device *device, size_t size,
                    int64_t deadline, struct phi_bounce **out)
{
    struct phi_bounce *bounce = calloc(1, sizeof *bounce);
    if (bounce == NULL)
        return -ENOMEM;
    *bounce = (struct phi_bounce){.memory = memory, .device = device, .size = size};
    int rc = device == NULL ? phi_host_alloc(memory, size, &bounce->address)
                            : phi_device_alloc(device, size, &bounce->address);
    // A ring's slots and lanes begin at 0.
    if (rc == 0 && device != NULL && size == PHI_BOUNCE_LARGE)
        rc = phi_slab_zero(device, bounce->address, size, deadline);
    if (rc) {
        if (bounce->address != NULL && device != NULL)
            phi_device_free(device, bounce->address);
        free(bounce);
        return rc;
    }
    *out = bounce;
    return 0;
}

void phi_bounce_free(struct phi_bounce *bounce)
{
    if (bounce == NULL)
        return;
    if (bounce->device != NULL)
        phi_device_free(bounce->device, bounce->address);
    else
        phi_host_free(bounce->memory, bounce->address);
    free(bounce);
}
