// SPDX-License-Identifier: BSD-3-Clause
// A way is how device memory meets the net, and what makes visible what the net has written there.
#ifndef PHI_TRANSPORT_WAY_H
#define PHI_TRANSPORT_WAY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "net/pci.h"
#include "transport/transport.h"

struct phi_net;
struct phi_link;

// Device memory is registered with the provider, as a DMA-BUF or through FI_HMEM, or it is staged.
// A pure function tells what is known against the first two. PHI_REASON_NONE: it may be tried.
struct phi_way_facts {
    bool fabric_dmabuf; // libfabric registers DMA-BUFs
    bool provider_hmem; // the provider takes memory of devices
    bool device_dmabuf; // the device exports its memory as one
    int asked;          // PHI_MEMORY_*
};
enum phi_reason phi_way_against_dmabuf(const struct phi_way_facts *facts);
enum phi_reason phi_way_against_hmem(const struct phi_way_facts *facts);

// A flush comes before a semaphore shows that the net has written into device memory.
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
    int asked;        // PHI_NET_FLUSH_*
};

// phi_flush_choose does not choose a flush by the stream: that is promised only to what follows on
// the same stream, and streams were enqueued before the data came. A DMA-BUF and memory registered
// through FI_HMEM take the same flush: the same NIC writes both.
enum phi_flush phi_flush_choose(const struct phi_flush_facts *facts);
const char *phi_flush_name(enum phi_flush flush); // "none", "driver", "driver_all", "read"

// The way of this rank's memory.
enum phi_way_kind { PHI_WAY_STAGED, PHI_WAY_HMEM, PHI_WAY_DMABUF };
struct phi_way {
    enum phi_way_kind kind;
    enum phi_reason dmabuf, hmem; // against these
    enum phi_flush flush;         // of what comes into registered memory
    struct phi_device *device;    // NULL: there is only host memory, which is registered
};

// phi_way_near is the place near which a device (NULL: none) wants its NIC, for phi_net_open.
struct phi_pci_place phi_way_near(const struct phi_device *device);

// phi_way_open finds the way of a device (NULL: none), by facts and then by a try with PHI_NET_TRY
// bytes of the device's memory: what providers say of themselves is not always true. It tells the
// net which flush to use. Call it before any link.
int phi_way_open(struct phi_way *way, const struct phi_config *config, struct phi_report *report,
                 struct phi_device *device, struct phi_net *net, void *memory);

// phi_way_registers: whether memory of this rank is registered, of whatever kind.
bool phi_way_registers(const struct phi_way *way);

// phi_way_register registers an allocation of this rank for a link, under an id. It may block.
int phi_way_register(const struct phi_way *way, struct phi_link *link, uint32_t id,
                     const struct phi_allocation *allocation);

#endif
