// SPDX-License-Identifier: BSD-3-Clause
#include "transport/way.h"

#include "cuda/device.h"
#include "net/net.h"

struct phi_way_facts phi_way_facts_of(const struct phi_device *device, const struct phi_net *net)
{
    return (struct phi_way_facts){
        .fabric_dmabuf = phi_net_dmabuf(net),
        .provider_hmem = phi_net_hmem(net),
        .device_dmabuf = device != NULL && phi_device_info(device)->dma_buf,
    };
}

struct phi_flush_facts phi_flush_facts_of(const struct phi_device *device)
{
    if (device == NULL)
        return (struct phi_flush_facts){.staged = true};
    const struct phi_device_info *info = phi_device_info(device);
    return (struct phi_flush_facts){.ordering = info->rdma_ordering, .flushes = info->rdma_flushes};
}

enum phi_reason phi_way_against_dmabuf(const struct phi_way_facts *facts)
{
    if (!facts->device_dmabuf)
        return PHI_REASON_NET_NO_DMABUF;
    if (!facts->fabric_dmabuf)
        return PHI_REASON_NET_FABRIC;
    return phi_way_against_hmem(facts);
}

enum phi_reason phi_way_against_hmem(const struct phi_way_facts *facts)
{
    return facts->provider_hmem ? PHI_REASON_NET_LATER : PHI_REASON_NET_PROVIDER;
}

enum phi_flush phi_flush_choose(const struct phi_flush_facts *facts)
{
    const int need = facts->peer_reads ? PHI_ORDERING_ALL : PHI_ORDERING_OWNER;
    if (facts->staged || facts->ordering >= need)
        return PHI_FLUSH_NONE;
    if (facts->flushes & PHI_FLUSHES_BY_HOST)
        return facts->peer_reads ? PHI_FLUSH_ALL : PHI_FLUSH_OWNER;
    return PHI_FLUSH_READ;
}

const char *phi_flush_name(enum phi_flush flush)
{
    static const char *const names[PHI_FLUSH_COUNT] = {"none", "driver", "driver_all", "read"};
    return names[flush];
}
