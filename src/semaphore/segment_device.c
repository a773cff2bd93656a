// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/device.h"
#include "semaphore/segment.h"

int phi_segment_register(struct phi_segment *segment, struct phi_device *device)
{
    if (device == NULL || segment->base_device != 0)
        return 0;
    return phi_device_register(device, segment->base, segment->size, &segment->base_device);
}

void phi_segment_unregister(struct phi_segment *segment, struct phi_device *device)
{
    if (segment == NULL || device == NULL)
        return;
    phi_device_unmap(device, segment->base, segment->size);
    segment->base = NULL;
    segment->base_device = 0;
}
