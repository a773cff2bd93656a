// SPDX-License-Identifier: BSD-3-Clause
#include "transport/way.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cuda/device.h"
#include "net/net.h"

// ---- what facts say

enum phi_reason phi_way_against_dmabuf(const struct phi_way_facts *facts)
{
    if (facts->asked != PHI_MEMORY_AUTO && facts->asked != PHI_MEMORY_DMABUF)
        return PHI_REASON_USER;
    if (!facts->device_dmabuf)
        return PHI_REASON_NET_NO_DMABUF;
    if (!facts->fabric_dmabuf)
        return PHI_REASON_NET_FABRIC;
    return facts->provider_hmem ? PHI_REASON_NONE : PHI_REASON_NET_PROVIDER;
}

enum phi_reason phi_way_against_hmem(const struct phi_way_facts *facts)
{
    if (facts->asked != PHI_MEMORY_AUTO && facts->asked != PHI_MEMORY_HMEM)
        return PHI_REASON_USER;
    return facts->provider_hmem ? PHI_REASON_NONE : PHI_REASON_NET_PROVIDER;
}

enum phi_flush phi_flush_choose(const struct phi_flush_facts *facts)
{
    const int need = facts->peer_reads ? PHI_ORDERING_ALL : PHI_ORDERING_OWNER;
    const enum phi_flush driver = facts->peer_reads ? PHI_FLUSH_ALL : PHI_FLUSH_OWNER;
    if (facts->staged || facts->asked == PHI_NET_FLUSH_NONE)
        return PHI_FLUSH_NONE;
    if (facts->asked != PHI_NET_FLUSH_AUTO)
        return facts->asked == PHI_NET_FLUSH_DRIVER ? driver : PHI_FLUSH_READ;
    if (facts->ordering >= need)
        return PHI_FLUSH_NONE;
    return facts->flushes & PHI_FLUSHES_BY_HOST ? driver : PHI_FLUSH_READ;
}

const char *phi_flush_name(enum phi_flush flush)
{
    static const char *const names[PHI_FLUSH_COUNT] = {"none", "driver", "driver_all", "read"};
    return names[flush];
}

// ---- the way of a rank

bool phi_way_registers(const struct phi_way *way)
{
    return way->device == NULL || way->kind != PHI_WAY_STAGED;
}

// As a DMA-BUF, or through FI_HMEM. The provider keeps what it needs of the descriptor.
static int with_memory(const struct phi_way *way, void *base, size_t size,
                       int (*take)(void *opaque, const struct phi_net_memory *memory), void *opaque)
{
    struct phi_net_memory memory = {.base = base,
                                    .size = size,
                                    .on_device = true,
                                    .device = phi_device_info(way->device)->ordinal,
                                    .dmabuf = -1};
    int rc = 0;
    if (way->kind == PHI_WAY_DMABUF)
        rc = phi_device_dmabuf(way->device, (uintptr_t)base, size, &memory.dmabuf, &memory.offset);
    if (rc)
        return rc;
    rc = take(opaque, &memory);
    if (memory.dmabuf >= 0)
        close(memory.dmabuf);
    return rc;
}

struct region {
    struct phi_link *link;
    uint32_t id;
};

static int take_region(void *opaque, const struct phi_net_memory *memory)
{
    const struct region *region = opaque;
    return phi_link_register_memory(region->link, region->id, memory);
}

int phi_way_register(const struct phi_way *way, struct phi_link *link, uint32_t id,
                     const struct phi_allocation *allocation)
{
    struct region region = {link, id};
    void *base = (void *)(uintptr_t)allocation->base; // NOLINT(performance-no-int-to-ptr)
    if (allocation->kind == PHI_KIND_HOST)
        return phi_link_register(link, id, base, allocation->size);
    return with_memory(way, base, allocation->size, take_region, &region);
}

// ---- the try

// As for the probe of a provider. Most need no second try.
static const int64_t try_ms[] = {3000, 9000};

struct way_try {
    struct phi_net *net;
    int64_t ms;
    uint8_t bytes[PHI_NET_TRY];
    char why[160];
};

static int try_link(void *opaque, const struct phi_net_memory *memory)
{
    struct way_try *a = opaque;
    return phi_net_try(a->net, memory, a->bytes, a->ms, a->why, sizeof a->why);
}

// The driver reads what the net has moved: a provider that keeps another copy lies.
static int try_once(const struct phi_way *way, struct way_try *a, void *memory)
{
    uint8_t there[PHI_NET_TRY];
    int rc = with_memory(way, memory, sizeof there, try_link, a);
    if (rc)
        return rc;
    // Others wait for the device meanwhile. The device is not what may be slow.
    rc = phi_device_read(way->device, there, memory, sizeof there, phi_deadline(try_ms[0]));
    if (rc == 0 && memcmp(there, a->bytes, sizeof there) == 0)
        return 0;
    strcpy(a->why, "the driver finds other bytes than the net has written");
    return -EIO;
}

// A try that was only too slow is made again: the machine may be very busy just now.
static bool is_moved(const struct phi_way *way, struct way_try *a, void *memory)
{
    int rc = -ETIMEDOUT;
    for (size_t i = 0; i < sizeof try_ms / sizeof try_ms[0] && rc == -ETIMEDOUT; i++) {
        a->ms = try_ms[i];
        rc = try_once(way, a, memory);
    }
    return rc == 0;
}

static enum phi_reason try_way(struct phi_way *way, enum phi_way_kind kind, struct phi_net *net,
                               struct phi_report *report, void *memory)
{
    struct way_try a = {.net = net, .why = "it cannot be exported"};
    way->kind = kind;
    if (is_moved(way, &a, memory))
        return PHI_REASON_NONE;
    way->kind = PHI_WAY_STAGED;
    phi_log(report, PH_LOG_WARN, "memory of the device is not registered as %s with %s: %s",
            kind == PHI_WAY_DMABUF ? "a DMA-BUF" : "FI_HMEM", phi_net_name(net), a.why);
    return PHI_REASON_NET_TRY;
}

// The next reader may be another device, through ipc.
static enum phi_flush flush_of(const struct phi_device_info *info, const struct phi_config *config)
{
    const struct phi_flush_facts facts = {.peer_reads = true,
                                          .ordering = info->rdma_ordering,
                                          .flushes = info->rdma_flushes,
                                          .asked = config->net_flush};
    return phi_flush_choose(&facts);
}

static int flush_owner(void *opaque)
{
    return phi_device_flush(opaque, false);
}

static int flush_all(void *opaque)
{
    return phi_device_flush(opaque, true);
}

static int set_flush(const struct phi_way *way, struct phi_net *net)
{
    const struct phi_net_flush how = {.reads = way->flush == PHI_FLUSH_READ,
                                      .call = way->flush == PHI_FLUSH_ALL     ? flush_all
                                              : way->flush == PHI_FLUSH_OWNER ? flush_owner
                                                                              : NULL,
                                      .opaque = way->device};
    return phi_net_flush_by(net, &how);
}

struct phi_pci_place phi_way_near(const struct phi_device *device)
{
    const char *pci = device == NULL ? "" : phi_device_info(device)->pci;
    return (struct phi_pci_place){.device = *pci ? pci : NULL};
}

int phi_way_open(struct phi_way *way, const struct phi_config *config, struct phi_report *report,
                 struct phi_device *device, struct phi_net *net, void *memory)
{
    *way = (struct phi_way){.device = device};
    if (device == NULL)
        return 0;
    const struct phi_way_facts facts = {.fabric_dmabuf = phi_net_dmabuf(net),
                                        .provider_hmem = phi_net_hmem(net),
                                        .device_dmabuf = phi_device_info(device)->dma_buf,
                                        .asked = config->net_memory};
    way->flush = flush_of(phi_device_info(device), config);
    way->dmabuf = phi_way_against_dmabuf(&facts);
    way->hmem = phi_way_against_hmem(&facts);
    if (way->dmabuf == PHI_REASON_NONE || way->hmem == PHI_REASON_NONE) {
        int rc = set_flush(way, net);
        if (rc)
            return rc;
    }
    if (way->dmabuf == PHI_REASON_NONE)
        way->dmabuf = try_way(way, PHI_WAY_DMABUF, net, report, memory);
    if (way->kind == PHI_WAY_STAGED && way->hmem == PHI_REASON_NONE)
        way->hmem = try_way(way, PHI_WAY_HMEM, net, report, memory);
    else if (way->kind == PHI_WAY_DMABUF)
        way->hmem = PHI_REASON_PREFERRED;
    return 0;
}
