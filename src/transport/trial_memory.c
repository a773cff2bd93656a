// SPDX-License-Identifier: BSD-3-Clause
// Trial memory: whether bytes that a peer writes there arrive.
#include <errno.h>
#include <string.h>

#include "base/random.h"
#include "cuda/device.h"
#include "transport/transport.h"

int phi_trial_memory_open(struct phi_memory *memory, struct phi_device *device,
                          struct phi_trial_memory *trial)
{
    const size_t size = (size_t)(PHI_TRIAL_PATTERNS + 1) * PHI_TRIAL_SIZE;
    struct phi_allocation allocation;
    uint64_t offset;
    void *address = NULL;
    int rc =
        device ? phi_device_alloc(device, size, &address) : phi_host_alloc(memory, size, &address);
    if (rc)
        return rc;
    rc = phi_memory_describe(memory, address, size, &allocation, &offset);
    if (rc == 0)
        rc = phi_memory_export(memory, &allocation, &trial->export_);
    if (rc == 0)
        trial->address = address;
    else if (device)
        phi_device_free(device, address);
    else
        phi_host_free(memory, address);
    return rc;
}

void phi_trial_memory_close(struct phi_memory *memory, struct phi_device *device,
                            struct phi_trial_memory *trial)
{
    if (trial->address == NULL)
        return;
    phi_memory_export_close(&trial->export_);
    if (device)
        phi_device_free(device, trial->address);
    else
        phi_host_free(memory, trial->address);
    trial->address = NULL;
}

void phi_trial_thread(struct phi_device *device)
{
    if (device != NULL)
        phi_device_thread_start(device);
}

static void fill_pattern(uint64_t pattern[PHI_TRIAL_SIZE / 8], uint64_t seed)
{
    for (size_t i = 0; i < PHI_TRIAL_SIZE / 8; i++)
        pattern[i] = phi_hash(seed, i);
}

int phi_trial_memory_write(struct phi_device *device, void *mapped, uint64_t seed, int64_t deadline)
{
    uint64_t pattern[PHI_TRIAL_SIZE / 8];
    fill_pattern(pattern, seed);
    if (device != NULL)
        return phi_device_write(device, mapped, pattern, sizeof pattern, deadline);
    memcpy(mapped, pattern, sizeof pattern);
    return 0;
}

int phi_trial_memory_verify(struct phi_device *device, const void *owned, uint64_t seed,
                            int64_t deadline)
{
    uint64_t pattern[PHI_TRIAL_SIZE / 8], found[PHI_TRIAL_SIZE / 8];
    fill_pattern(pattern, seed);
    if (device != NULL) {
        int rc = phi_device_read(device, found, owned, sizeof found, deadline);
        if (rc)
            return rc;
    } else {
        memcpy(found, owned, sizeof found);
    }
    return memcmp(found, pattern, sizeof pattern) == 0 ? 0 : -EIO;
}
