// SPDX-License-Identifier: BSD-3-Clause
// The ipc path: both ranks on one node, the peer's allocation mapped here, copied by the processor or by this device.
#include <errno.h>
#include <string.h>

#include "base/random.h"
#include "cuda/device.h"
#include "transport/transport.h"

enum phi_reason phi_node_reason(const struct phi_capabilities *mine, const struct phi_capabilities *theirs)
{
    if (!phi_capabilities_node_known(mine) || !phi_capabilities_node_known(theirs))
        return PHI_REASON_NODE_UNKNOWN;
    return phi_capabilities_same_node(mine, theirs) ? PHI_REASON_NONE : PHI_REASON_NODE;
}

enum phi_reason phi_ipc_reach(const struct phi_capabilities *mine, const struct phi_capabilities *theirs,
                              enum phi_kind kind)
{
    if (mine->device != theirs->device)
        return PHI_REASON_DEVICE;
    if (phi_capabilities_denied(mine, theirs))
        return PHI_REASON_PEER_ACCESS;
    return mine->kinds & (1u << kind) ? PHI_REASON_NONE : PHI_REASON_KIND;
}

enum phi_reason phi_ipc_pair(const struct phi_capabilities *mine, const struct phi_capabilities *theirs)
{
    if (mine->device != theirs->device)
        return PHI_REASON_DEVICE;
    if (phi_capabilities_apart(mine, theirs))
        return PHI_REASON_SOCKET;
    if (phi_capabilities_denied(mine, theirs))
        return PHI_REASON_PEER_ACCESS;
    return phi_capabilities_denied(theirs, mine) ? PHI_REASON_ACCESS_THERE : PHI_REASON_NONE;
}

static enum phi_reason ipc_viable(const struct phi_capabilities *mine,
                                  const struct phi_capabilities *theirs, enum phi_kind kind)
{
    enum phi_reason reason = phi_node_reason(mine, theirs);
    if (reason == PHI_REASON_NONE && phi_path_asked(mine, theirs))
        reason = PHI_REASON_USER;
    if (reason == PHI_REASON_NONE)
        reason = phi_ipc_pair(mine, theirs);
    return reason != PHI_REASON_NONE ? reason : phi_ipc_reach(mine, theirs, kind);
}

const struct phi_transport phi_transport_ipc = {.name = "ipc", .viable = ipc_viable};

int phi_probe_open(struct phi_memory *memory, struct phi_device *device, struct phi_probe *probe)
{
    const size_t size = (size_t)(PHI_PROBE_SLOTS + 1) * PHI_PROBE_SIZE;
    struct phi_allocation allocation;
    uint64_t offset;
    void *address = NULL;
    int rc = device ? phi_device_alloc(device, size, &address) : phi_host_alloc(memory, size, &address);
    if (rc)
        return rc;
    rc = phi_memory_describe(memory, address, size, &allocation, &offset);
    if (rc == 0)
        rc = phi_memory_export(memory, &allocation, &probe->export_);
    if (rc == 0)
        probe->address = address;
    else if (device)
        phi_device_free(device, address);
    else
        phi_host_free(memory, address);
    return rc;
}

void phi_probe_close(struct phi_memory *memory, struct phi_device *device, struct phi_probe *probe)
{
    if (probe->address == NULL)
        return;
    phi_memory_export_close(&probe->export_);
    if (device)
        phi_device_free(device, probe->address);
    else
        phi_host_free(memory, probe->address);
    probe->address = NULL;
}

void phi_probe_thread(struct phi_device *device)
{
    if (device != NULL)
        phi_device_thread_start(device);
}

static void fill_pattern(uint64_t pattern[PHI_PROBE_SIZE / 8], uint64_t seed)
{
    for (size_t i = 0; i < PHI_PROBE_SIZE / 8; i++)
        pattern[i] = phi_hash(seed, i);
}

int phi_probe_write(struct phi_device *device, void *mapped, uint64_t seed, int64_t deadline)
{
    uint64_t pattern[PHI_PROBE_SIZE / 8];
    fill_pattern(pattern, seed);
    if (device != NULL)
        return phi_device_write(device, mapped, pattern, sizeof pattern, deadline);
    memcpy(mapped, pattern, sizeof pattern);
    return 0;
}

int phi_probe_verify(struct phi_device *device, const void *owned, uint64_t seed, int64_t deadline)
{
    uint64_t pattern[PHI_PROBE_SIZE / 8], found[PHI_PROBE_SIZE / 8];
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
