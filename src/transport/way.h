// SPDX-License-Identifier: BSD-3-Clause
// How device memory meets the net, and what makes visible what the net has written there. Pure
// functions of plain facts.
#ifndef PHI_TRANSPORT_WAY_H
#define PHI_TRANSPORT_WAY_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"

struct phi_net;

// Device memory may be registered with the provider, as a DMA-BUF or through FI_HMEM, or it is
// staged. This version stages all of it; what stands in the way of the others, best first:
struct phi_way_facts {
    bool fabric_dmabuf; // libfabric registers DMA-BUFs
    bool provider_hmem; // the provider takes memory of devices
    bool device_dmabuf; // the device exports its memory as one
};
struct phi_way_facts phi_way_facts_of(const struct phi_device *device, const struct phi_net *net);
enum phi_reason phi_way_against_dmabuf(const struct phi_way_facts *facts);
enum phi_reason phi_way_against_hmem(const struct phi_way_facts *facts);

// What is done before a semaphore shows that the net has written into device memory.
enum phi_flush {
    PHI_FLUSH_NONE,  // nothing: staged memory is the processor's, or the device's order covers the
                     // reader
    PHI_FLUSH_OWNER, // cuFlushGPUDirectRDMAWrites to the owner
    PHI_FLUSH_ALL,   // ... to all devices
    PHI_FLUSH_READ,  // an RMA read from the same region through the same endpoint, awaited
    PHI_FLUSH_COUNT,
};

// CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING: who sees writes of the net in their order.
enum { PHI_ORDERING_NONE = 0, PHI_ORDERING_OWNER = 100, PHI_ORDERING_ALL = 200 };
// CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: bits.
enum { PHI_FLUSHES_BY_HOST = 1, PHI_FLUSHES_BY_STREAM = 2 };

struct phi_flush_facts {
    bool staged;
    bool peer_reads;  // the next reader may be another device than the owner
    int ordering;     // PHI_ORDERING_*
    uint32_t flushes; // PHI_FLUSHES_*
};

// phi_flush_facts_of a device, for a reader on it; NULL: host memory, which is as if it were
// staged.
struct phi_flush_facts phi_flush_facts_of(const struct phi_device *device);

// phi_flush_choose. A flush by the stream is not chosen: it is promised to what follows on the same
// stream alone, and streams were enqueued before the data came.
enum phi_flush phi_flush_choose(const struct phi_flush_facts *facts);
const char *phi_flush_name(enum phi_flush flush); // "none", "driver", "driver_all", "read"

#endif
