// SPDX-License-Identifier: BSD-3-Clause
#include "unit/net/offers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include "net/provider.h"

static const struct offer *offered;
static size_t offered_count, opened;

// Everything of one info lies in one piece.
struct piece {
    struct fi_info info;
    struct fi_tx_attr tx;
    struct fi_rx_attr rx;
    struct fi_ep_attr ep;
    struct fi_domain_attr domain;
    struct fi_fabric_attr fabric;
    struct fid_nic nic;
    struct fi_device_attr device;
    struct fi_bus_attr bus;
    struct fi_link_attr link;
    struct sockaddr_in6 address;
    const struct offer *offer;
};

static struct fi_info *make(void)
{
    struct piece *piece = calloc(1, sizeof(*piece));

    if (!piece)
        abort();
    piece->info = (struct fi_info){.tx_attr = &piece->tx,
                                   .rx_attr = &piece->rx,
                                   .ep_attr = &piece->ep,
                                   .domain_attr = &piece->domain,
                                   .fabric_attr = &piece->fabric};
    return &piece->info;
}

static struct fi_info *fake_dupinfo(const struct fi_info *info)
{
    return info ? NULL : make(); // the hints
}

static void fake_freeinfo(struct fi_info *info)
{
    while (info) {
        struct fi_info *next = info->next;

        free(info);
        info = next;
    }
}

static void set_address(struct piece *piece, const char *text)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};

    piece->info.addr_format = FI_SOCKADDR;
    piece->info.src_addr = &piece->address;
    piece->info.src_addrlen = sizeof(piece->address);
    piece->address.sin6_family = AF_INET6;
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
        memcpy(&piece->address, &v4, sizeof(v4));
    else if (inet_pton(AF_INET6, text, &piece->address.sin6_addr) != 1)
        abort();
}

static struct fi_info *info_of(const struct offer *offer)
{
    struct fi_info *info = make();
    struct piece *piece = (struct piece *)info;

    piece->offer = offer;
    piece->fabric.prov_name = (char *)offer->provider;
    piece->domain.name = (char *)offer->domain;
    piece->domain.cq_data_size = offer->data_size;
    piece->domain.mr_key_size = offer->key_size;
    piece->domain.mr_mode = offer->raw ? FI_MR_RAW : 0;
    piece->tx.msg_order = offer->unordered ? 0 : FI_ORDER_SAS;
    if (offer->nic) {
        piece->device.name = (char *)offer->nic;
        piece->nic.device_attr = &piece->device;
        info->nic = &piece->nic;
    }
    if (offer->speed) {
        piece->link.speed = offer->speed;
        piece->nic.link_attr = &piece->link;
        info->nic = &piece->nic;
    }
    if (offer->pci) {
        struct fi_pci_attr *pci = &piece->bus.attr.pci;
        unsigned domain, bus, device, function;

        if (sscanf(offer->pci, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
            abort();
        *pci = (struct fi_pci_attr){(uint16_t)domain, (uint8_t)bus, (uint8_t)device,
                                    (uint8_t)function};
        piece->bus.bus_type = FI_BUS_PCI;
        piece->nic.bus_attr = &piece->bus;
        info->nic = &piece->nic;
    }
    if (offer->address)
        set_address(piece, offer->address);
    return info;
}

static int fake_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                        const struct fi_info *hints, struct fi_info **list)
{
    struct fi_info **end = list;

    (void)version, (void)node, (void)service, (void)flags, (void)hints;
    *list = NULL;
    for (size_t i = 0; i < offered_count; i++) {
        *end = info_of(&offered[i]);
        end = &(*end)->next;
    }
    return offered_count ? 0 : -FI_ENODATA;
}

static const char *fake_strerror(int code)
{
    return strerror(code);
}

static int try_one(void *opaque, struct fi_info *info, char *why, size_t size)
{
    const int rc = ((struct piece *)info)->offer->opens;

    (void)opaque;
    opened++;
    if (rc)
        snprintf(why, size, "it does not open");
    return rc;
}

int offers_find(const struct offer *offers, size_t n, struct phi_report *report,
                const struct phi_config *config, const struct phi_pci_place *near,
                struct phi_net_candidate *candidates, size_t room, size_t *count, size_t *tried)
{
    const struct phi_libfabric library = {.fi_getinfo = fake_getinfo,
                                          .fi_freeinfo = fake_freeinfo,
                                          .fi_dupinfo = fake_dupinfo,
                                          .fi_strerror = fake_strerror};
    int rc;

    offered = offers;
    offered_count = n;
    opened = 0;
    rc = phi_provider_find(report, config, &library, near, try_one, NULL, candidates, room, count);
    *tried = opened;
    return rc;
}
