// SPDX-License-Identifier: BSD-3-Clause
// The domain of a context's net: how it is found, opened and closed.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "base/random.h"
#include "net/flush.h"
#include "net/link.h"
#include "net/probe.h"
#include "net/progress.h"
#include "net/provider.h"

static void close_domain(struct phi_net *net, struct phi_nic *nic)
{
    phi_links_free(net);
    if (nic->domain)
        fi_close(&nic->domain->fid);
    if (nic->fabric)
        fi_close(&nic->fabric->fid);
    nic->domain = NULL;
    nic->fabric = NULL;
}

static void close_nic(struct phi_net *net, struct phi_nic *nic)
{
    close_domain(net, nic);
    if (nic->info)
        net->library->fi_freeinfo(nic->info);
    nic->info = NULL;
}

static void drop_candidate(struct phi_net *net)
{
    for (uint32_t i = 0; i < PHI_NET_RAILS_MAX; i++)
        close_nic(net, &net->nics[i]);
    net->nic_count = 0;
}

// Endpoints of one process that meet over shm of libfabric 2 end the process (seen with 2.5). A
// user that asks for that provider has to take it as it is.
static bool may_probe(const struct phi_net *net)
{
    return !phi_provider_is_shm(net->nics[0].info) ||
           FI_VERSION_LT(net->library->version, FI_VERSION(2, 0));
}

static void describe(struct phi_net *net)
{
    const struct fi_info *info = net->nics[0].info;
    size_t most = info->ep_attr->max_msg_size, part = (size_t)net->config->net_part;

    net->nic_count = 1;
    net->provider.mr_mode = (uint64_t)info->domain_attr->mr_mode;
    net->provider.part = most < part ? most : part;
    // We do not ask for the order of writes: streams of bytes have it anyway, and it costs other
    // providers speed. The probe looks for it, as the provider's word is not enough.
    net->provider.in_order =
        may_probe(net) &&
        (info->tx_attr->msg_order & info->rx_attr->msg_order & (FI_ORDER_WAW | FI_ORDER_RMA_WAW)) &&
        info->ep_attr->max_order_waw_size >= net->provider.part;
    // shm of libfabric 1.17 counts the bytes that the peer has taken. It never says that a write of
    // no bytes was delivered, and takes nothing more then. Without the flag it says so when the
    // peer is going to find the write.
    net->provider.told = phi_provider_is_shm(info) ? 0 : FI_DELIVERY_COMPLETE;
    // A raw key is mapped once for its region, not once for each endpoint.
    net->provider.rails = net->provider.mr_mode & FI_MR_RAW ? 1 : (uint32_t)net->config->net_rails;
    net->provider.wire =
        (struct phi_net_wire){.protocol = info->ep_attr->protocol,
                              .protocol_version = info->ep_attr->protocol_version,
                              .immediate = info->domain_attr->cq_data_size >= 8 ? 8 : 4,
                              .format = info->addr_format};
    snprintf(net->provider.wire.provider, sizeof(net->provider.wire.provider), "%s",
             info->fabric_attr->prov_name);
    snprintf(net->provider.name, sizeof(net->provider.name), "%.64s %.64s",
             info->fabric_attr->prov_name, info->domain_attr->name);
    phi_provider_address(info, net->provider.address);
}

// shm names endpoints by the process's number. Another domain of this process, or a process of
// another namespace, has the same number. A name of our own keeps them apart.
static int name_endpoints(struct fi_info *info)
{
    char name[64];
    uint64_t number;

    if (!phi_provider_is_shm(info))
        return 0;
    phi_random(&number, sizeof(number));
    snprintf(name, sizeof(name), "fi_shm://peerhop-%016llx", (unsigned long long)number);
    free(info->src_addr);
    info->src_addr = strdup(name);
    info->src_addrlen = strlen(name) + 1;
    return info->src_addr ? 0 : -FI_ENOMEM;
}

static int open_domain(struct phi_net *net, struct phi_nic *nic, char *why, size_t size)
{
    int rc = net->library->fi_fabric(nic->info->fabric_attr, &nic->fabric, NULL);
    int lack;

    if (!rc)
        rc = fi_domain(nic->fabric, nic->info, &nic->domain, NULL);
    if (!rc)
        return 0;
    lack = phi_descriptors_lack(1);
    snprintf(why, size, "it cannot be opened: %s",
             lack ? ph_strerror(lack) : phi_net_error(net, rc));
    return lack ? lack : rc;
}

// A provider that does not serve takes longest, but on a very busy machine a good one takes a
// while, too. It is probed again rather than another one: ranks of one job are to choose alike, and
// another one may have an address that peers cannot reach or do not know. Each try gets a domain of
// its own, and time enough for most.
static int probe(struct phi_net *net, char *why, size_t size)
{
    static const int64_t ms[] = {3000, 9000};
    int rc = -ETIMEDOUT;

    for (size_t i = 0; i < sizeof(ms) / sizeof(ms[0]) && rc == -ETIMEDOUT; i++) {
        close_domain(net, &net->nics[0]);
        rc = open_domain(net, &net->nics[0], why, size);
        if (rc == 0 && may_probe(net))
            rc = phi_net_probe(net, ms[i], why, size);
        else if (rc == 0 && net->provider.hmem) // the provider's word is not enough for that
            rc = -EIO;
    }
    return rc;
}

// Takes over the offer.
static int open_offer(struct phi_net *net, struct fi_info *offer, char *why, size_t size)
{
    int rc;

    net->nics[0].info = offer;
    if (!offer || name_endpoints(offer)) {
        snprintf(why, size, "out of memory");
        drop_candidate(net);
        return -ENOMEM;
    }
    describe(net);
    rc = probe(net, why, size);
    if (rc)
        drop_candidate(net);
    return rc;
}

// is_like_first: whether a NIC has what its rank says once for all NICs of the net.
static bool is_like_first(const struct phi_net *net, const struct fi_info *info)
{
    const struct fi_info *first = net->nics[0].info;

    return info->domain_attr->mr_mode == first->domain_attr->mr_mode &&
           info->domain_attr->cq_data_size == first->domain_attr->cq_data_size &&
           info->ep_attr->protocol == first->ep_attr->protocol &&
           info->ep_attr->protocol_version == first->ep_attr->protocol_version &&
           info->ep_attr->max_msg_size == first->ep_attr->max_msg_size;
}

// Probes a NIC as if it were the only one.
static int probe_alone(struct phi_net *net, struct phi_nic *nic, char *why, size_t size)
{
    const struct phi_nic first = net->nics[0];
    const uint32_t count = net->nic_count, rails = net->provider.rails;
    int rc;

    net->nics[0] = *nic;
    net->nic_count = net->provider.rails = 1;
    rc = probe(net, why, size);
    *nic = net->nics[0];
    net->nics[0] = first;
    net->nic_count = count;
    net->provider.rails = rails;
    return rc;
}

// Adds a NIC for the net's data. Takes over the offer.
static int add_nic(struct phi_net *net, struct fi_info *offer, char *why, size_t size)
{
    struct phi_nic nic = {.info = offer};
    const size_t used = strlen(net->provider.name);
    int rc = -EINVAL;

    if (!offer)
        snprintf(why, size, "%s",
                 net->provider.hmem ? "it does not take memory of devices, as the others do"
                                    : "out of memory");
    else if (net->provider.mr_mode & FI_MR_RAW)
        snprintf(why, size, "raw keys are of one NIC");
    else if (!is_like_first(net, offer))
        snprintf(why, size, "it works in another way than the others");
    else
        rc = probe_alone(net, &nic, why, size);
    if (rc) {
        close_nic(net, &nic);
        return rc;
    }
    snprintf(net->provider.name + used, sizeof(net->provider.name) - used, ", %.20s",
             offer->domain_attr->name);
    net->nics[net->nic_count++] = nic;
    if (net->provider.rails < net->nic_count)
        net->provider.rails = net->nic_count;
    return 0;
}

// A candidate is taken when it opens, and the probe finds that it does what it says. Further ones
// are taken when they are like the first. A provider that takes memory of devices is opened for
// that; where it does not serve so, without.
static int try_open(void *opaque, struct fi_info *info, char *why, size_t size)
{
    struct phi_net *net = opaque;
    struct fi_info *hmem;

    if (net->nic_count > 0)
        return add_nic(net,
                       net->provider.hmem ? phi_provider_hmem(net->library, info)
                                          : net->library->fi_dupinfo(info),
                       why, size);
    hmem = net->provider.devices ? phi_provider_hmem(net->library, info) : NULL;
    net->provider.hmem = hmem != NULL;
    if (hmem && open_offer(net, hmem, why, size) == 0)
        return 0;
    net->provider.hmem = false;
    return open_offer(net, net->library->fi_dupinfo(info), why, size);
}

static int try_noted(void *opaque, struct fi_info *info, char *why, size_t size)
{
    struct phi_net *net = opaque;
    int rc = try_open(net, info, why, size);

    if (rc && net->nic_count > 0)
        phi_log(net->report, PH_LOG_WARN, "no data goes over %s: %s", info->domain_attr->name, why);
    else if (rc && !net->provider.missed[0])
        snprintf(net->provider.missed, sizeof(net->provider.missed), "%.40s (%.40s): %s",
                 info->fabric_attr->prov_name, info->domain_attr->name, why);
    return rc;
}

static bool same(const struct phi_net_candidate *a, const struct phi_net_candidate *b)
{
    return strcmp(a->provider, b->provider) == 0 && strcmp(a->reason, b->reason) == 0;
}

// Writes one clause for each provider and reason. A provider that was only too slow is no failure
// of a call.
static void explain(struct phi_report *report, int rc, const struct phi_net_candidate *candidates,
                    size_t n)
{
    char text[900] = "";
    size_t used = 0;

    for (size_t i = 0; i < n && used < sizeof(text); i++) {
        size_t first = 0;

        while (!same(&candidates[first], &candidates[i]))
            first++;
        if (first == i)
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s (%s): %s",
                                     i ? "; " : "", candidates[i].provider, candidates[i].domain,
                                     candidates[i].reason);
    }
    if (rc == -ETIMEDOUT)
        phi_log(report, PH_LOG_WARN, "no provider of libfabric serves so far: %s", text);
    else
        phi_fail_line(report, "no provider of libfabric serves: %s", text);
}

enum { CANDIDATES = 64 };

static int find_once(struct phi_net *net)
{
    struct phi_net_candidate *candidates = calloc(CANDIDATES, sizeof(*candidates));
    size_t n = 0;
    int rc = -ENOMEM;

    net->provider.missed[0] = 0;
    if (candidates)
        rc = phi_provider_find(net->report, net->config, net->library, &net->provider.near,
                               try_noted, net, candidates, CANDIDATES, &n);
    if ((rc == PH_ENOPATH || rc == -ETIMEDOUT) && n > 0)
        explain(net->report, rc, candidates, n);
    free(candidates);
    return rc;
}

#define COMES_UP_MS 5000 // the kernel looks at its interfaces every second, if it has the time

// libfabric offers an interface that has just come up a little later, or at first without its
// address.
static int find(struct phi_net *net)
{
    const int64_t deadline = phi_deadline(COMES_UP_MS);

    for (;;) {
        int rc = find_once(net);

        if (rc || !phi_provider_near(net->nics[0].info, net->provider.near.home) ||
            net->config->net_interface[0] || !phi_provider_more(net->provider.near.home) ||
            phi_now() >= deadline)
            return rc;
        drop_candidate(net);
        nanosleep(&(struct timespec){.tv_nsec = 20 * PHI_MS}, NULL);
    }
}

static int make(const struct phi_net_params *params, struct phi_net **out)
{
    struct phi_net *net = calloc(1, sizeof(*net));
    char why[256] = "";

    if (!net)
        return phi_fail(params->report, -ENOMEM, "out of memory for the net");
    net->report = params->report;
    net->config = params->config;
    net->provider.message_ring = params->message_ring;
    net->provider.store_ring = params->store_ring;
    net->provider.devices = params->devices;
    net->provider.near = params->near;
    net->proxy.wake = (struct phi_wake){-1, -1};
    pthread_mutex_init(&net->lock, NULL);
    *out = net;
    net->library = phi_libfabric_load(params->config->libfabric, why, sizeof(why));
    if (!net->library)
        return phi_fail(params->report, PH_ENOPATH, "%s", why);
    return 0;
}

// A provider takes at least so many descriptors to start. Without them libfabric leaves it out, for
// the rest of the process.
enum { DESCRIPTORS = 24 };

static int have_descriptors(struct phi_report *report)
{
    int rc = phi_descriptors_lack(DESCRIPTORS);

    return rc ? phi_fail(report, rc, "the net takes %d descriptors to start: %s", DESCRIPTORS,
                         ph_strerror(rc))
              : 0;
}

bool phi_net_built(void)
{
    return true;
}

int phi_net_open(const struct phi_net_params *params, struct phi_net **out)
{
    struct phi_net *net = NULL;
    int rc = have_descriptors(params->report);

    if (!rc)
        rc = make(params, &net);
    if (!rc && (rc = phi_wake_open(&net->proxy.wake)))
        phi_fail(net->report, rc, "no sockets to wake the proxy by: %s", ph_strerror(rc));
    if (!rc)
        rc = find(net);
    if (!rc)
        rc = phi_proxy_start(net);
    if (rc) {
        phi_net_close(net);
        return rc;
    }
    // Peers for which the better provider serves do not meet this rank.
    if (net->provider.missed[0])
        phi_log(net->report, PH_LOG_WARN, "the net goes through %s, and not through %s",
                net->provider.name, net->provider.missed);
    else
        phi_log(net->report, PH_LOG_INFO, "the net goes through %s%s%s", net->provider.name,
                net->provider.address[0] ? ", " : "", net->provider.address);
    *out = net;
    return 0;
}

void phi_net_close(struct phi_net *net)
{
    if (!net)
        return;
    atomic_store(&net->proxy.stop, true);
    if (net->proxy.started) {
        phi_wake_ring(net->proxy.wake.ring);
        pthread_join(net->proxy.thread, NULL);
    }
    drop_candidate(net);
    phi_flusher_close(net);
    phi_wake_close(&net->proxy.wake);
    pthread_mutex_destroy(&net->lock);
    free(net);
}

size_t phi_net_list(struct phi_report *report, const struct phi_config *config,
                    const struct phi_pci_place *near, struct phi_net_candidate *candidates,
                    size_t n, char *why, size_t why_size)
{
    const struct phi_net_params params = {
        .report = report, .config = config, .message_ring = -1, .store_ring = -1, .near = *near};
    struct phi_net *net = NULL;
    size_t count = 0;
    int rc = make(&params, &net);

    if (!rc)
        rc = phi_wake_open(&net->proxy.wake);
    if (!rc)
        phi_provider_find(report, config, net->library, &net->provider.near, try_open, net,
                          candidates, n, &count);
    if (count == 0)
        phi_report_copy(report, why, why_size);
    phi_net_close(net);
    return count;
}
