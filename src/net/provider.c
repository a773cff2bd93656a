// SPDX-License-Identifier: BSD-3-Clause
// The choice of the provider: all that libfabric offers, in our order of preference, with the
// reasons against those that cannot serve.
#include "net/provider.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/interface.h"

// Best first. `asked`: only if the configuration names it.
struct preference {
    const char *name;
    bool asked;
};
static const struct preference preferences[] = {
    {"cxi", false},  {"efa", false},    {"verbs;ofi_rxm", false}, {"opx", false},
    {"psm3", false}, {"tcp", false},    {"net", false},           {"tcp;ofi_rxm", false},
    {"shm", true},   {"sockets", true}, {"udp;ofi_rxd", true},
};
enum { PREFERENCES = sizeof(preferences) / sizeof(preferences[0]) };

static int rank_of(const char *provider)
{
    int i = 0;

    while (i < PREFERENCES && strcmp(preferences[i].name, provider) != 0)
        i++;
    return i;
}

// is_named: whether a configured name means this provider. "tcp" also means the provider that
// libfabric 1.17 calls net, and tcp under ofi_rxm.
static bool is_named(const char *wish, const char *provider)
{
    if (strcmp(wish, provider) == 0)
        return true;
    return strcmp(wish, "tcp") == 0 &&
           (strcmp(provider, "net") == 0 || strcmp(provider, "tcp;ofi_rxm") == 0);
}

bool phi_provider_is_tcp(const struct fi_info *info)
{
    return is_named("tcp", info->fabric_attr->prov_name);
}

bool phi_provider_is_shm(const struct fi_info *info)
{
    return strcmp(info->fabric_attr->prov_name, "shm") == 0;
}

static const char *adapter_of(const struct fi_info *info)
{
    return info->nic && info->nic->device_attr ? info->nic->device_attr->name : NULL;
}

static bool is_word(const char *name, const char *word, size_t length)
{
    return name && strlen(name) == length && memcmp(name, word, length) == 0;
}

enum { NO_WISH = INT_MAX };

// wish_of returns the place of the interface's name in the list, which commas separate, or NO_WISH.
// In an empty list each has the first place.
static int wish_of(const struct fi_info *info, const char *wishes)
{
    int n = 0;

    if (*wishes == 0)
        return 0;
    for (const char *word = wishes;; n++) {
        const size_t length = strcspn(word, ",");

        if (is_word(info->domain_attr->name, word, length) ||
            is_word(adapter_of(info), word, length))
            return n;
        if (word[length] == 0)
            return NO_WISH;
        word += length + 1;
    }
}

// How far an address reaches, best first. An address of another family than IP counts as far.
// Between two that reach others the family comes last: an interface may lead there by IPv6 only.
enum reach { REACH_FAR, REACH_FAR_IPV6, REACH_CABLE, REACH_SELF };

static enum reach reach_of(const struct fi_info *info)
{
    const struct sockaddr *any = info->src_addr;
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;

    if (strcmp(info->domain_attr->name, "lo") == 0)
        return REACH_SELF;
    if (!any || info->addr_format < FI_SOCKADDR || info->addr_format > FI_SOCKADDR_IN6)
        return REACH_FAR;
    if (any->sa_family == AF_INET) {
        memcpy(&v4, any, sizeof(v4));
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127 ? REACH_SELF : REACH_FAR;
    }
    memcpy(&v6, any, sizeof(v6));
    if (IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr))
        return REACH_SELF;
    return IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr) ? REACH_CABLE : REACH_FAR_IPV6;
}

static bool is_same(const struct fi_info *a, const struct fi_info *b)
{
    return strcmp(a->fabric_attr->prov_name, b->fabric_attr->prov_name) == 0 &&
           strcmp(a->domain_attr->name, b->domain_attr->name) == 0 &&
           a->src_addrlen == b->src_addrlen &&
           (a->src_addrlen == 0 || memcmp(a->src_addr, b->src_addr, a->src_addrlen) == 0);
}

struct fi_info *phi_provider_hmem(const struct phi_libfabric *library, const struct fi_info *info)
{
    struct fi_info *hints = phi_libfabric_hints(library), *list = NULL, *found = NULL;

    if (!hints)
        return NULL;
    hints->caps |= FI_HMEM;
    hints->domain_attr->mr_mode |= FI_MR_HMEM;
    hints->fabric_attr->prov_name = strdup(info->fabric_attr->prov_name); // freed with the hints
    if (library->fi_getinfo(library->api, NULL, NULL, 0, hints, &list))
        list = NULL;
    library->fi_freeinfo(hints);
    for (const struct fi_info *at = list; at && !found; at = at->next)
        if (is_same(at, info) && (at->caps & FI_HMEM))
            found = library->fi_dupinfo(at);
    if (list)
        library->fi_freeinfo(list);
    return found;
}

bool phi_provider_pci(const struct fi_info *info, const char *sysfs, char device[PHI_PCI_NAME])
{
    const struct fi_bus_attr *bus = info->nic ? info->nic->bus_attr : NULL;
    const struct fi_pci_attr *pci = bus && bus->bus_type == FI_BUS_PCI ? &bus->attr.pci : NULL;
    const char *adapter = adapter_of(info);

    if (pci)
        snprintf(device, PHI_PCI_NAME, "%04x:%02x:%02x.%x", pci->domain_id, pci->bus_id,
                 pci->device_id, pci->function_id);
    return pci || (adapter && phi_pci_of(sysfs, adapter, device));
}

static size_t speed_of(const struct fi_info *info)
{
    return info->nic && info->nic->link_attr ? info->nic->link_attr->speed : 0;
}

static int distance_of(const struct fi_info *info, const struct phi_pci_place *near)
{
    char device[PHI_PCI_NAME];

    if (!near->device || !phi_provider_pci(info, near->sysfs, device))
        return PHI_PCI_UNKNOWN;
    return phi_pci_distance(near->sysfs, near->device, device);
}

struct offer {
    struct fi_info *info;
    int wish;     // its place among those that the configuration names
    int distance; // from the device
    enum phi_lead lead;
    bool tried;
};

void phi_provider_address(const struct fi_info *info, char text[INET6_ADDRSTRLEN])
{
    const struct sockaddr *any = info->src_addr;

    text[0] = 0;
    if (!any || info->addr_format < FI_SOCKADDR || info->addr_format > FI_SOCKADDR_IN6)
        return;
    if (any->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)any)->sin_addr, text, INET6_ADDRSTRLEN);
    else if (any->sa_family == AF_INET6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)any)->sin6_addr, text, INET6_ADDRSTRLEN);
}

// far_of is 0 for an address that leads to others, and larger for those that lead less far.
static int far_of(const struct offer *offer)
{
    const enum reach reach = reach_of(offer->info);

    return reach >= REACH_CABLE ? 1 + (int)reach : offer->lead == PHI_LEAD_INSIDE;
}

static bool is_before(const struct offer *a, const struct offer *b)
{
    int x = rank_of(a->info->fabric_attr->prov_name), y = rank_of(b->info->fabric_attr->prov_name);

    if (x != y)
        return x < y;
    if (a->wish != b->wish)
        return a->wish < b->wish;
    x = far_of(a);
    y = far_of(b);
    if (x != y)
        return x < y;
    if (speed_of(a->info) != speed_of(b->info))
        return speed_of(a->info) > speed_of(b->info);
    if (a->distance != b->distance)
        return a->distance < b->distance;
    if (a->lead != b->lead)
        return a->lead < b->lead;
    return reach_of(a->info) < reach_of(b->info);
}

static enum phi_lead lead_of(const struct fi_info *info, const struct phi_interfaces *interfaces)
{
    const bool ip = info->addr_format >= FI_SOCKADDR && info->addr_format <= FI_SOCKADDR_IN6;

    return phi_interfaces_lead(interfaces, info->domain_attr->name, ip ? info->src_addr : NULL);
}

bool phi_provider_near(const struct fi_info *info, const struct sockaddr *home)
{
    struct phi_interfaces interfaces;
    bool near;

    phi_interfaces_look(&interfaces, home);
    near = reach_of(info) >= REACH_CABLE || lead_of(info, &interfaces) == PHI_LEAD_INSIDE;
    phi_interfaces_fini(&interfaces);
    return near;
}

bool phi_provider_more(const struct sockaddr *home)
{
    struct phi_interfaces interfaces;
    bool more = false;

    phi_interfaces_look(&interfaces, home);
    for (const struct ifaddrs *at = interfaces.all; at; at = at->ifa_next)
        more = more || ((at->ifa_flags & IFF_UP) && !(at->ifa_flags & IFF_LOOPBACK) &&
                        phi_interfaces_lead(&interfaces, at->ifa_name, NULL) != PHI_LEAD_INSIDE);
    phi_interfaces_fini(&interfaces);
    return more;
}

// sort is stable: among equals libfabric's own order stays.
static size_t sort(struct fi_info *list, const struct phi_config *config,
                   const struct phi_pci_place *near, struct offer *sorted, size_t room)
{
    struct phi_interfaces interfaces;
    size_t n = 0;

    phi_interfaces_look(&interfaces, near->home);

    for (struct fi_info *info = list; info && n < room; info = info->next) {
        const struct offer offer = {info, wish_of(info, config->net_interface),
                                    distance_of(info, near), lead_of(info, &interfaces), false};
        size_t at = n++;

        for (; at > 0 && is_before(&offer, &sorted[at - 1]); at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = offer;
    }
    phi_interfaces_fini(&interfaces);
    return n;
}

// is_repeated: whether a name stands in the list before `word`.
static bool is_repeated(const char *list, const char *word, size_t length)
{
    for (const char *at = list; at < word; at += strcspn(at, ",") + 1)
        if (strcspn(at, ",") == length && memcmp(at, word, length) == 0)
            return true;
    return false;
}

// Names those in the configuration's list that no usable interface has.
static void note_missing(struct phi_report *report, const struct phi_config *config,
                         const struct offer *sorted, size_t n)
{
    const char *word = config->net_interface;

    for (int wish = 0;; wish++) {
        const size_t length = strcspn(word, ",");
        size_t i = 0;

        while (i < n && !(sorted[i].wish == wish && sorted[i].tried))
            i++;
        if (i == n && length > 0 && !is_repeated(config->net_interface, word, length))
            phi_log(report, PH_LOG_WARN,
                    "PEERHOP_NET_INTERFACE: no data goes over '%.*s' (peerhop-info --net says why)",
                    (int)length, word);
        if (word[length] == 0)
            return;
        word += length + 1;
    }
}

static bool may_serve(const struct phi_config *config, const struct offer *offer, char *why,
                      size_t size)
{
    const struct fi_info *info = offer->info;
    const char *provider = info->fabric_attr->prov_name;
    const bool named = config->net_provider[0] && is_named(config->net_provider, provider);
    int place = rank_of(provider);

    *why = 0;
    if (config->net_provider[0] && !named)
        snprintf(why, size, "PEERHOP_NET_PROVIDER=%s asks for another", config->net_provider);
    else if (offer->wish == NO_WISH)
        snprintf(why, size, "PEERHOP_NET_INTERFACE=%s asks for another", config->net_interface);
    else if (!named && place == PREFERENCES)
        snprintf(why, size, "not known to serve: only where PEERHOP_NET_PROVIDER names it");
    else if (!named && preferences[place].asked)
        snprintf(why, size, "only where PEERHOP_NET_PROVIDER names it");
    else if (info->domain_attr->cq_data_size < 4)
        snprintf(why, size, "its immediate data has %zu bytes, and 4 are needed",
                 info->domain_attr->cq_data_size);
    else if (!(info->domain_attr->mr_mode & FI_MR_RAW) && info->domain_attr->mr_key_size > 8)
        snprintf(why, size, "its keys have %zu bytes", info->domain_attr->mr_key_size);
    else if (!(info->tx_attr->msg_order & FI_ORDER_SAS))
        snprintf(why, size, "its messages have no order");
    return *why == 0;
}

// is_said: whether an earlier candidate has the reason of the last one: it is another address of
// the interface.
static bool is_said(const struct phi_net_candidate *candidates, size_t filled)
{
    const struct phi_net_candidate *last = &candidates[filled - 1];

    for (size_t i = 0; i + 1 < filled; i++)
        if (!last->taken && strcmp(candidates[i].provider, last->provider) == 0 &&
            strcmp(candidates[i].domain, last->domain) == 0 &&
            (candidates[i].taken || strcmp(candidates[i].reason, last->reason) == 0))
            return true;
    return false;
}

// The NICs that are taken: the first, and others that data goes over, too.
struct taken {
    const struct offer *offers[PHI_NET_RAILS_MAX];
    uint32_t count;
    const char *slow; // the last provider that was too slow to be the first; or NULL
};

// is_same_nic: another address of a NIC, or another way to it.
static bool is_same_nic(const struct fi_info *a, const struct fi_info *b)
{
    const char *x = adapter_of(a), *y = adapter_of(b);

    return strcmp(a->domain_attr->name, b->domain_attr->name) == 0 || (x && y && strcmp(x, y) == 0);
}

// is_slow: whether the offer's provider was too slow at an address before. All offers of one
// provider stand together.
static bool is_slow(const struct taken *taken, const struct offer *offer)
{
    return taken->count == 0 && taken->slow &&
           strcmp(taken->slow, offer->info->fabric_attr->prov_name) == 0;
}

// is_one_more: the user names this NIC, or it is exactly as good as the first: as fast, and as near
// to the device.
static bool is_one_more(const struct phi_config *config, const struct taken *taken,
                        const struct offer *offer)
{
    const struct offer *first = taken->offers[0];
    bool other = true;

    for (uint32_t i = 0; i < taken->count; i++)
        other = other && !is_same_nic(taken->offers[i]->info, offer->info);
    return other && taken->count < PHI_NET_RAILS_MAX &&
           strcmp(first->info->fabric_attr->prov_name, offer->info->fabric_attr->prov_name) == 0 &&
           first->info->addr_format == offer->info->addr_format &&
           (config->net_interface[0] ||
            (offer->distance != PHI_PCI_UNKNOWN && offer->distance == first->distance &&
             speed_of(offer->info) > 0 && speed_of(offer->info) == speed_of(first->info) &&
             reach_of(offer->info) == reach_of(first->info)));
}

static void take(struct taken *taken, struct offer *offer, struct phi_net_candidate *c,
                 phi_provider_try try_one, void *opaque)
{
    int rc = try_one(opaque, offer->info, c->reason, sizeof(c->reason));

    offer->tried = true;
    c->taken = rc == 0;
    c->lack = rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM ? rc : 0;
    if (c->taken)
        taken->offers[taken->count++] = offer;
    else if (rc == -ETIMEDOUT)
        taken->slow = offer->info->fabric_attr->prov_name;
}

// lacks: whether this process lacks something. Another provider would lack the same, or be one that
// peers do not take.
static int lacks(struct phi_report *report, const struct phi_net_candidate *c)
{
    return c->lack ? phi_fail(report, c->lack, "no net through %s (%s): %s", c->provider, c->domain,
                              c->reason)
                   : 0;
}

int phi_provider_find(struct phi_report *report, const struct phi_config *config,
                      const struct phi_libfabric *library, const struct phi_pci_place *near,
                      phi_provider_try try_one, void *opaque, struct phi_net_candidate *candidates,
                      size_t n, size_t *count)
{
    struct offer sorted[128];
    struct fi_info *hints = phi_libfabric_hints(library), *list = NULL;
    size_t total, filled = 0;
    struct taken taken = {0};
    int rc;

    *count = 0;
    if (!hints)
        return phi_fail(report, -ENOMEM, "out of memory for libfabric's hints");
    rc = library->fi_getinfo(library->api, NULL, NULL, 0, hints, &list);
    library->fi_freeinfo(hints);
    if (rc)
        return phi_fail(report, PH_ENOPATH, "libfabric offers no provider with RMA: %s",
                        library->fi_strerror(-rc));
    total = sort(list, config, near, sorted, sizeof(sorted) / sizeof(sorted[0]));
    for (size_t i = 0; i < total && filled < n && !rc; i++) {
        struct phi_net_candidate *c = &candidates[filled++];

        *c = (struct phi_net_candidate){0};
        snprintf(c->provider, sizeof(c->provider), "%s", sorted[i].info->fabric_attr->prov_name);
        snprintf(c->domain, sizeof(c->domain), "%s", sorted[i].info->domain_attr->name);
        if (may_serve(config, &sorted[i], c->reason, sizeof(c->reason))) {
            if (taken.count > 0 && !is_one_more(config, &taken, &sorted[i]))
                snprintf(c->reason, sizeof(c->reason), "a better one was taken");
            else if (is_slow(&taken, &sorted[i]))
                snprintf(c->reason, sizeof(c->reason), "it was too slow at a better address");
            else
                take(&taken, &sorted[i], c, try_one, opaque);
            rc = lacks(report, c);
        }
        filled -= is_said(candidates, filled);
    }
    if (taken.count > 0)
        note_missing(report, config, sorted, total);
    else if (!rc)
        rc = taken.slow ? -ETIMEDOUT : PH_ENOPATH;
    library->fi_freeinfo(list);
    *count = filled;
    return rc;
}
