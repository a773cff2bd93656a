// SPDX-License-Identifier: BSD-3-Clause
// Regions: memory registered for one link, in every mode that a provider may ask for.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "net/internal.h"

// Keys that we choose are random: one of a former life, or a guess, opens nothing.
static uint64_t random_key(const struct phi_net *net)
{
    size_t size = net->info->domain_attr->mr_key_size;
    uint64_t key;

    phi_random(&key, sizeof(key));
    return size > 0 && size < sizeof(key) ? key & ((1ull << (8 * size)) - 1) : key;
}

enum { KEY_TRIES = 16 };

// A region that is tied to its endpoint has no key before it is bound and enabled.
static int bind_endpoint(const struct phi_link *link, struct fid_mr *mr)
{
    int rc = 0;

    if (link->net->mr_mode & FI_MR_ENDPOINT) {
        rc = fi_mr_bind(mr, &link->ep->fid, 0);
        if (!rc)
            rc = fi_mr_enable(mr);
    }
    if (rc)
        fi_close(&mr->fid);
    return rc;
}

int phi_region_open(struct phi_link *link, void *base, size_t size, uint64_t access,
                    struct fid_mr **mr)
{
    struct phi_net *net = link->net;
    int rc = -FI_ENOKEY;

    for (int i = 0; i < KEY_TRIES && rc == -FI_ENOKEY; i++) {
        uint64_t key = net->mr_mode & FI_MR_PROV_KEY ? 0 : random_key(net);

        rc = fi_mr_reg(net->domain, base, size, access, 0, key, 0, mr, NULL);
    }
    return rc ? rc : bind_endpoint(link, *mr);
}

static struct phi_net_region *find(const struct phi_link *link, uint32_t id)
{
    struct phi_net_region *region = link->regions;

    while (region && region->id != id)
        region = region->next;
    return region;
}

int phi_link_register(struct phi_link *link, uint32_t id, void *base, size_t size)
{
    const uint64_t access = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    struct phi_net *net = link->net;
    struct phi_net_region *region = calloc(1, sizeof(*region));
    int rc = 0;

    if (!region)
        return phi_fail(net->report, -ENOMEM, "out of memory for a region");
    phi_net_lock(net);
    if (!link->ep)
        rc = -ECONNRESET;
    else if (find(link, id))
        goto unlock;
    else if ((rc = phi_region_open(link, base, size, access, &region->mr)))
        rc = phi_net_fail(net, rc, "fi_mr_reg");
    if (!rc) {
        region->id = id;
        region->base = (uintptr_t)base;
        region->next = link->regions;
        link->regions = region;
        region = NULL;
    }
unlock:
    pthread_mutex_unlock(&net->lock);
    free(region);
    return rc;
}

bool phi_link_target(struct phi_link *link, uint32_t id, struct phi_net_target *target)
{
    struct phi_net *net = link->net;
    const struct phi_net_region *region;
    size_t raw_size = sizeof(target->raw);
    uint64_t raw_base = 0;
    bool found;

    *target = (struct phi_net_target){0};
    phi_net_lock(net);
    region = find(link, id);
    found = region != NULL;
    // Without FI_MR_VIRT_ADDR the peer addresses by the offset in the region.
    if (found && (net->mr_mode & FI_MR_VIRT_ADDR))
        target->base = region->base;
    if (found && (net->mr_mode & FI_MR_RAW)) {
        found = fi_mr_raw_attr(region->mr, &raw_base, target->raw, &raw_size, 0) == 0 &&
                raw_size > 0 && raw_size <= sizeof(target->raw);
        target->raw_size = (uint8_t)raw_size;
    } else if (found) {
        target->key = fi_mr_key(region->mr);
        found = target->key != FI_KEY_NOTAVAIL;
    }
    pthread_mutex_unlock(&net->lock);
    return found;
}

void phi_link_unregister(struct phi_link *link, uint32_t id)
{
    struct phi_net *net = link->net;

    phi_net_lock(net);
    for (struct phi_net_region **at = &link->regions; *at; at = &(*at)->next) {
        struct phi_net_region *region = *at;

        if (region->id != id)
            continue;
        *at = region->next;
        fi_close(&region->mr->fid);
        free(region);
        break;
    }
    pthread_mutex_unlock(&net->lock);
}

void phi_regions_close(struct phi_link *link)
{
    while (link->regions) {
        struct phi_net_region *region = link->regions;

        link->regions = region->next;
        fi_close(&region->mr->fid);
        free(region);
    }
}

int phi_link_route(struct phi_link *link, uint32_t id, const struct phi_net_target *target,
                   uint64_t offset, struct phi_route *route)
{
    struct phi_net *net = link->net;
    const struct phi_net_region *region;
    uint64_t key = target->key;
    int rc = -ENOENT;

    phi_net_lock(net);
    region = find(link, id);
    if (!link->ep)
        rc = -ECONNRESET;
    else if (region)
        rc = target->raw_size == 0
                 ? 0
                 : fi_mr_map_raw(net->domain, target->base, (uint8_t *)target->raw,
                                 target->raw_size, &key, 0);
    if (!rc)
        *route = (struct phi_route){.link = link,
                                    .desc = fi_mr_desc(region->mr),
                                    .remote = target->base + offset,
                                    .key = key};
    pthread_mutex_unlock(&net->lock);
    return rc;
}
