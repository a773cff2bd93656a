// SPDX-License-Identifier: BSD-3-Clause
// Regions: memory registered for one link, in each mode that a provider may ask for.
#include "net/region.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

// Keys that we choose are random: a key of a former life, or a guess, opens nothing.
static uint64_t random_key(const struct phi_nic *nic)
{
    size_t size = nic->info->domain_attr->mr_key_size;
    uint64_t key;

    phi_random(&key, sizeof(key));
    return size > 0 && size < sizeof(key) ? key & ((1ull << (8 * size)) - 1) : key;
}

enum { KEY_TRIES = 16 };

// A region that is tied to its endpoint has no key before it is bound and enabled.
static int bind_endpoint(const struct phi_net *net, struct fid_ep *ep, struct fid_mr **mr)
{
    int rc = 0;

    if (net->provider.mr_mode & FI_MR_ENDPOINT) {
        rc = fi_mr_bind(*mr, &ep->fid, 0);
        if (!rc)
            rc = fi_mr_enable(*mr);
    }
    if (rc) {
        fi_close(&(*mr)->fid);
        *mr = NULL;
    }
    return rc;
}

static int register_device(const struct phi_nic *nic, const struct phi_net_memory *memory,
                           uint64_t access, uint64_t key, struct fid_mr **mr)
{
    const struct iovec part = {.iov_base = memory->base, .iov_len = memory->size};
    struct fi_mr_attr attr = {.mr_iov = &part,
                              .iov_count = 1,
                              .access = access,
                              .requested_key = key,
                              .iface = FI_HMEM_CUDA,
                              .device.cuda = memory->device};
    uint64_t flags = 0;
#ifdef FI_MR_DMABUF
    // base_addr is the address of the descriptor's first byte.
    const struct fi_mr_dmabuf dmabuf = {.fd = memory->dmabuf,
                                        .offset = memory->offset,
                                        .len = memory->size,
                                        .base_addr = (char *)memory->base - memory->offset};

    if (memory->dmabuf >= 0) {
        attr.dmabuf = &dmabuf;
        flags = FI_MR_DMABUF;
    }
#endif
    return fi_mr_regattr(nic->domain, &attr, flags, mr);
}

int phi_region_open(struct phi_net *net, const struct phi_rail *rail,
                    const struct phi_net_memory *memory, uint64_t access, struct fid_mr **mr)
{
    const struct phi_nic *nic = &net->nics[rail->nic];
    int rc = -FI_ENOKEY;

    for (int i = 0; i < KEY_TRIES && rc == -FI_ENOKEY; i++) {
        uint64_t key = net->provider.mr_mode & FI_MR_PROV_KEY ? 0 : random_key(nic);

        if (memory->on_device)
            rc = register_device(nic, memory, access, key, mr);
        else
            rc = fi_mr_reg(nic->domain, memory->base, memory->size, access, 0, key, 0, mr, NULL);
    }
    if (rc)
        *mr = NULL;
    return rc ? rc : bind_endpoint(net, rail->ep, mr);
}

static void close_region(struct phi_net_region *region)
{
    for (uint32_t i = 0; i < region->count; i++)
        fi_close(&region->mr[i]->fid);
    free(region);
}

static int open_region(struct phi_link *link, struct phi_net_region *region,
                       const struct phi_net_memory *memory, uint64_t access)
{
    const struct phi_net *net = link->net;
    const uint32_t count =
        net->provider.mr_mode & FI_MR_ENDPOINT ? link->rails.open : net->nic_count;
    int rc = 0;

    for (uint32_t i = 0; i < count && !rc; i++) {
        rc = phi_region_open(link->net, &link->rails.list[i], memory, access, &region->mr[i]);
        region->count += rc == 0;
    }
    return rc;
}

static struct phi_net_region *find(const struct phi_link *link, uint32_t id)
{
    struct phi_net_region *region = link->regions;

    while (region && region->id != id)
        region = region->next;
    return region;
}

int phi_region_register(struct phi_link *link, uint32_t id, const struct phi_net_memory *memory,
                        uint64_t access)
{
    struct phi_net *net = link->net;
    struct phi_net_region *region = calloc(1, sizeof(*region));
    int rc = 0;

    if (!region)
        return phi_fail(net->report, -ENOMEM, "out of memory for a region");
    phi_net_lock(net);
    if (!link->carries)
        rc = -ECONNRESET;
    else if (find(link, id))
        goto unlock;
    else if ((rc = open_region(link, region, memory, access)))
        rc = phi_net_fail(net, rc, "fi_mr_reg");
    if (!rc) {
        region->id = id;
        region->base = (uintptr_t)memory->base;
        region->next = link->regions;
        link->regions = region;
        region = NULL;
    }
unlock:
    if (region)
        close_region(region);
    pthread_mutex_unlock(&net->lock);
    return rc;
}

int phi_link_register_memory(struct phi_link *link, uint32_t id,
                             const struct phi_net_memory *memory)
{
    return phi_region_register(link, id, memory,
                               FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE);
}

int phi_link_register(struct phi_link *link, uint32_t id, void *base, size_t size)
{
    return phi_link_register_memory(link, id, &(struct phi_net_memory){.base = base, .size = size});
}

static bool take_raw(const struct phi_net_region *region, struct phi_net_target *target)
{
    size_t size = sizeof(target->raw);

    if (fi_mr_raw_attr(region->mr[0], &target->keys[0], target->raw, &size, 0) || size == 0 ||
        size > sizeof(target->raw))
        return false;
    target->rails = 1;
    target->raw_size = (uint8_t)size;
    return true;
}

// mr_of returns the registration for a rail. All rails of a NIC may share it: rail i is on the same
// NIC as rail i % count.
static struct fid_mr *mr_of(const struct phi_net_region *region, uint32_t rail)
{
    return region->mr[rail % region->count];
}

static bool take_keys(const struct phi_link *link, const struct phi_net_region *region,
                      struct phi_net_target *target)
{
    target->rails = (uint8_t)(region->count > 1 ? link->rails.open : 1);
    for (uint32_t i = 0; i < target->rails; i++) {
        target->keys[i] = fi_mr_key(mr_of(region, i));
        if (target->keys[i] == FI_KEY_NOTAVAIL)
            return false;
    }
    return true;
}

// Without FI_MR_VIRT_ADDR writes address the offset in the region.
static bool fill_target(const struct phi_link *link, const struct phi_net_region *region,
                        struct phi_net_target *target)
{
    const struct phi_net *net = link->net;

    *target =
        (struct phi_net_target){.base = net->provider.mr_mode & FI_MR_VIRT_ADDR ? region->base : 0};
    return net->provider.mr_mode & FI_MR_RAW ? take_raw(region, target)
                                             : take_keys(link, region, target);
}

bool phi_link_target(struct phi_link *link, uint32_t id, struct phi_net_target *target)
{
    struct phi_net *net = link->net;
    const struct phi_net_region *region;
    bool found;

    *target = (struct phi_net_target){0};
    phi_net_lock(net);
    region = find(link, id);
    found = region && fill_target(link, region, target);
    pthread_mutex_unlock(&net->lock);
    return found;
}

static struct phi_raw_key *find_raw(const struct phi_link *link,
                                    const struct phi_net_target *target)
{
    struct phi_raw_key *raw = link->raw_keys;

    while (raw &&
           (raw->target.raw_size != target->raw_size || raw->target.keys[0] != target->keys[0] ||
            memcmp(raw->target.raw, target->raw, target->raw_size) != 0))
        raw = raw->next;
    return raw;
}

static int add_raw(struct phi_link *link, const struct phi_net_target *target,
                   struct phi_raw_key **added)
{
    struct phi_raw_key *raw = calloc(1, sizeof(*raw));
    int rc;

    if (!raw)
        return -FI_ENOMEM;
    raw->target = *target;
    rc = fi_mr_map_raw(link->net->nics[0].domain, target->keys[0], raw->target.raw,
                       target->raw_size, &raw->key, 0);
    if (rc) {
        free(raw);
        return rc;
    }
    raw->next = link->raw_keys;
    *added = link->raw_keys = raw;
    return 0;
}

// A raw key is mapped once, however many targets have it.
static int map_raw(struct phi_link *link, struct phi_net_target *target)
{
    struct phi_raw_key *raw = find_raw(link, target);
    int rc = raw ? 0 : add_raw(link, target, &raw);

    if (rc)
        return rc;
    raw->targets++;
    target->mapped = raw;
    return 0;
}

static void unmap_raw(struct phi_link *link, struct phi_raw_key **at)
{
    struct phi_raw_key *raw = *at;

    *at = raw->next;
    fi_mr_unmap_key(link->net->nics[0].domain, raw->key);
    free(raw);
}

static void forget_raw(struct phi_link *link, struct phi_net_target *target)
{
    struct phi_raw_key *raw = target->mapped, **at = &link->raw_keys;

    if (!raw || --raw->targets > 0)
        return;
    while (*at != raw)
        at = &(*at)->next;
    unmap_raw(link, at);
}

void phi_link_forget(struct phi_link *link, struct phi_net_target *target)
{
    struct phi_net *net = link->net;

    phi_net_lock(net);
    if (link->carries)
        forget_raw(link, target);
    target->mapped = NULL; // else the link's end has unmapped it
    pthread_mutex_unlock(&net->lock);
}

// flush_reads_by: whether the flush under way reads by that key.
static bool flush_reads_by(const struct phi_link *link, uint64_t key)
{
    const struct phi_link_flush *flush = &link->flush;

    return !link->net->flusher && flush->covered > 0 && flush->known &&
           flush->self.rails[0].key == key;
}

// Forgets the own route to a region that is closed. A read may be under way by its own key only
// where the peer has lied that it is done: then the route stays as long as the link.
static void forget_self(struct phi_link *link, struct phi_net_region *region)
{
    const struct phi_raw_key *raw = region->self.mapped;

    if (raw && !flush_reads_by(link, raw->key))
        forget_raw(link, &region->self);
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
        forget_self(link, region);
        close_region(region);
        break;
    }
    pthread_mutex_unlock(&net->lock);
}

void phi_regions_close(struct phi_link *link)
{
    while (link->regions) {
        struct phi_net_region *region = link->regions;

        link->regions = region->next;
        close_region(region);
    }
}

void phi_keys_unmap(struct phi_link *link)
{
    while (link->raw_keys)
        unmap_raw(link, &link->raw_keys);
}

static int fill_route(struct phi_link *link, const struct phi_net_region *region,
                      struct phi_net_target *target, struct phi_route *route)
{
    int rc = target->raw_size > 0 && !target->mapped ? map_raw(link, target) : 0;
    const uint64_t key = target->mapped ? target->mapped->key : target->keys[0];

    for (uint32_t i = 0; i < link->rails.used; i++) {
        route->rails[i].desc = fi_mr_desc(mr_of(region, i));
        route->rails[i].key = i > 0 && i < target->rails ? target->keys[i] : key;
    }
    return rc;
}

int phi_region_self(struct phi_link *link, uint32_t id, struct phi_route *route)
{
    struct phi_net_region *region = find(link, id);

    if (!region)
        return -ENOENT;
    if (region->self.rails == 0 && !fill_target(link, region, &region->self))
        return -EIO;
    *route = (struct phi_route){.link = link, .remote = region->self.base};
    return fill_route(link, region, &region->self, route);
}

int phi_link_route(struct phi_link *link, uint32_t id, struct phi_net_target *target,
                   uint64_t offset, struct phi_route *route)
{
    struct phi_route made = {.link = link, .remote = target->base + offset};
    struct phi_net *net = link->net;
    const struct phi_net_region *region;
    int rc = -ENOENT;

    phi_net_lock(net);
    region = find(link, id);
    if (!link->carries)
        rc = -ECONNRESET;
    else if (region)
        rc = fill_route(link, region, target, &made);
    if (!rc)
        *route = made;
    pthread_mutex_unlock(&net->lock);
    return rc;
}

int phi_route_lend(const struct phi_route *route, uint32_t id, void *memory, size_t size,
                   struct phi_route *lent)
{
    struct phi_link *link = route->link;
    struct phi_net *net = link->net;
    const struct phi_net_region *region = NULL;
    int rc = 0;

    *lent = *route;
    for (uint32_t i = 0; i < PHI_NET_RAILS_MAX; i++)
        lent->rails[i].desc = NULL;
    if (!(net->provider.mr_mode & FI_MR_LOCAL))
        return 0;
    if (!phi_net_trylock(net))
        return -EAGAIN;
    if (link->carries)
        region = find(link, id);
    else
        rc = -ECONNRESET;
    for (uint32_t i = 0; region && i < link->rails.used; i++)
        lent->rails[i].desc = fi_mr_desc(mr_of(region, i));
    pthread_mutex_unlock(&net->lock);
    if (rc || region)
        return rc;
    rc = phi_region_register(link, id, &(struct phi_net_memory){.base = memory, .size = size},
                             FI_READ | FI_WRITE);
    return rc ? rc : -EAGAIN; // now it is found
}
