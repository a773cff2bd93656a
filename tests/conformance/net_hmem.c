// SPDX-License-Identifier: BSD-3-Clause
// A libfabric (PEERHOP_LIBFABRIC) that is the real one (or what TEST_NET_HMEM_OVER names), over
// TCP, but also takes the stand-in's device memory (FI_HMEM), as providers of hardware do. Plain
// registration of a device pointer is refused, and so is a device pointer without the descriptor of
// its region. What is written into device memory by RMA is held back, in a shadow of the region,
// until something makes it visible, of which TEST_NET_HMEM names one:
//   driver    cuFlushGPUDirectRDMAWrites, to all devices
//   read      an RMA read of the same region by its owner
//   owner     either of them, or what goes out of the region; but copies of the owner's streams see
//             it at once, as where a device has the writes of the net in their order, and no other
//             device has
//   none      nothing is held back
//   lies      nothing does: the device's memory is another one than what is written and read
// and  fails  the flush of that kind fails, but for the first one, which is the library's try
//      hangs  ... or does not end
// Of the options of an endpoint it knows FI_HMEM_P2P, or instead, with
//   permits        FI_OPT_CUDA_API_PERMITTED, and needs no CUDA
//   calls          the same, and needs CUDA
//   knows nothing  neither, like those of libfabric 1.17
// Unless it knows nothing, an endpoint for memory of devices moves what is of this process past the
// NIC, so that no read of it would flush, until FI_OPT_SHARED_MEMORY_PERMITTED forbids that: none
// is enabled before. A read by another rank makes what it reads visible, as it would on a bus; and
// what no post tells of shows to the driver's copies (cuMemcpyDtoHAsync), which the application
// enqueues when it knows by other means that it is there.
//
// Which keys are of device memory, and what was written there, all processes of a test know by a
// table in memory that they share (TEST_NET_HMEM_FD). An operation with immediate data carries the
// number of its entry in the upper half, so that its owner knows when it has come; of the others
// who wrote them says that they are delivered.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define EXPORT __attribute__((visibility("default")))
enum { CUDA_API_PERMITTED = 10, SHARED_MEMORY_PERMITTED = 11 }; // FI_OPT_*, which 1.17 lacks

#define SHADOW (1ull << 63) // in the key of a region: that of its shadow

enum { REGIONS = 4096, ENTRIES = 4096, PENDING = 4096 };
enum { FREE, POSTED, ARRIVED, STATES = 4 }; // of an entry: its generation times STATES, and this

struct shared {
    struct {
        _Atomic uint64_t key; // 0: none
        _Atomic int owner, wanted;
    } regions[REGIONS];
    struct {
        _Atomic uint32_t state;
        uint64_t key, offset, size;
        int tells;
    } entries[ENTRIES];
};

struct region {
    struct fid_mr mr; // what the library gets
    struct fid_mr *real, *hidden;
    char *base, *shadow;
    size_t size;
    int slot; // in the table
};

// A write that is under way, by its context.
struct pending {
    void *context;
    uint32_t entry, state;
};

static struct shared *shared;
static struct region *regions[REGIONS];
static struct pending pending[PENDING];
static int pending_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of regions and pending
static struct fi_ops_fabric *real_fabric;
static struct fi_ops_domain *real_domain;
static struct fi_ops_mr *real_mr;
static struct fi_ops_rma *real_rma;
static struct fi_ops *real_ep_fid;
static struct fi_ops_cq *real_cq;
static int flushes; // that were taken

typedef ssize_t (*rma_fn)(struct fid_ep *, const struct fi_msg_rma *, uint64_t);

static int is(const char *word)
{
    const char *all = getenv("TEST_NET_HMEM");
    return all && strstr(all, word) != NULL;
}

static int refuse(int rc, const char *why)
{
    fprintf(stderr, "hmem: %s\n", why);
    return rc;
}

static void *real(const char *name)
{
    static void *library;
    const char *over = getenv("TEST_NET_HMEM_OVER");
    if (!library)
        library = dlopen(over ? over : "libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    return library ? dlsym(library, name) : NULL;
}
#define REAL(name) ((__typeof__(&(name)))real(#name))

static void *of_driver(const char *name)
{
    const char *path = getenv("PEERHOP_LIBCUDA");
    void *driver = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    return driver ? dlsym(driver, name) : NULL;
}

static int is_device(const void *address)
{
    static int (*attribute)(void *, int, unsigned long long);
    int type = 0;
    if (!attribute)
        attribute = (int (*)(void *, int, unsigned long long))of_driver("cuPointerGetAttribute");
    return attribute && attribute(&type, 2, (uintptr_t)address) == 0 && type == 2;
}

// ---- what is held back

static int slot_of(uint64_t key)
{
    for (int i = 0; i < REGIONS; i++)
        if (shared->regions[i].key == key)
            return i;
    return -1;
}

// Under the lock.
static void show(const struct region *region, int bare)
{
    for (int i = 0; i < ENTRIES; i++) {
        const uint32_t state = shared->entries[i].state;
        if (bare && shared->entries[i].tells)
            continue;
        if (state % STATES != ARRIVED ||
            shared->entries[i].key != shared->regions[region->slot].key)
            continue;
        if (!is("lies"))
            memcpy(region->base + shared->entries[i].offset,
                   region->shadow + shared->entries[i].offset, shared->entries[i].size);
        shared->entries[i].state = state - ARRIVED + FREE;
    }
}

static void show_all(int only_wanted, int bare)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < REGIONS; i++) {
        if (!regions[i] || (only_wanted && !shared->regions[i].wanted))
            continue;
        show(regions[i], bare);
        shared->regions[i].wanted = 0;
    }
    pthread_mutex_unlock(&lock);
}

// Other ranks that read.
static void *serve(void *unused)
{
    (void)unused;
    for (;;) {
        usleep(100);
        show_all(1, 0);
    }
    return NULL;
}

// What the flush does that is the right one, or its failure.
static int flush(void)
{
    const int first = __atomic_load_n(&flushes, __ATOMIC_RELAXED) == 0;
    while (is("hangs") && !first)
        usleep(10000);
    return is("fails") && !first;
}

static int on_flush(int scope)
{
    if (scope == 0 && !is("owner")) // a copy
        show_all(0, 1);
    if (scope == 0 || !(is("driver") || is("owner")))
        return 0;
    if (flush())
        return 999;   // CUDA_ERROR_UNKNOWN
    if (scope >= 200) // to all devices
        show_all(0, 0);
    flushes++;
    return 0;
}

// What has arrived and others do not see yet, over what was copied out of the region. Under the
// lock.
static void lay_over(const struct region *region, char *to, const char *from, size_t size)
{
    for (int i = 0; i < ENTRIES; i++) {
        const size_t offset = shared->entries[i].offset;
        const char *begin = region->base + offset, *end = begin + shared->entries[i].size;
        if (shared->entries[i].state % STATES != ARRIVED ||
            shared->entries[i].key != shared->regions[region->slot].key)
            continue;
        begin = begin < from ? from : begin;
        end = end > from + size ? from + size : end;
        if (begin < end)
            memcpy(to + (begin - from), region->shadow + (begin - region->base),
                   (size_t)(end - begin));
    }
}

// Of a stream of the owner; others have the region's memory at other addresses.
static void on_copy(void *to, const void *from, size_t size)
{
    pthread_mutex_lock(&lock);
    memmove(to, from, size);
    for (int i = 0; i < REGIONS; i++)
        if (regions[i])
            lay_over(regions[i], to, from, size);
    pthread_mutex_unlock(&lock);
}

static uint32_t hold_back(uint64_t key, const struct fi_rma_iov *remote, int tells)
{
    for (uint32_t i = 0;; i = (i + 1) % ENTRIES) {
        uint32_t state = shared->entries[i].state;
        if (state % STATES != FREE ||
            !atomic_compare_exchange_strong(&shared->entries[i].state, &state,
                                            state + STATES + STATES - 1))
            continue; // while it is filled in, no state of anybody's
        shared->entries[i].key = key;
        shared->entries[i].offset = remote->addr;
        shared->entries[i].size = remote->len;
        shared->entries[i].tells = tells;
        shared->entries[i].state = state + STATES + POSTED;
        return i;
    }
}

static void arrived(uint32_t entry, uint32_t posted)
{
    atomic_compare_exchange_strong(&shared->entries[entry].state, &posted,
                                   posted - POSTED + ARRIVED);
}

// ---- regions

static int region_close(struct fid *fid)
{
    struct region *region = (struct region *)fid;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < ENTRIES; i++)
        if (shared->entries[i].state % STATES == ARRIVED &&
            shared->entries[i].key == region->mr.key)
            shared->entries[i].state -= ARRIVED;
    regions[region->slot] = NULL;
    shared->regions[region->slot].key = 0;
    pthread_mutex_unlock(&lock);
    fi_close(&region->hidden->fid);
    int rc = fi_close(&region->real->fid);
    munmap(region->shadow, region->size);
    free(region);
    return rc;
}

static struct fi_ops region_ops = {.size = sizeof(struct fi_ops), .close = region_close};

static int enter(struct region *region)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < REGIONS; i++) {
        uint64_t none = 0;
        if (!atomic_compare_exchange_strong(&shared->regions[i].key, &none, region->mr.key))
            continue;
        shared->regions[i].owner = getpid();
        region->slot = i;
        regions[i] = region;
        pthread_mutex_unlock(&lock);
        return 0;
    }
    pthread_mutex_unlock(&lock);
    return -FI_ENOMEM;
}

static int register_both(struct fid *fid, const struct fi_mr_attr *attr, struct region *region)
{
    const uint64_t key = attr->requested_key & ~SHADOW;
    int rc =
        real_mr->reg(fid, region->base, region->size, attr->access, 0, key, 0, &region->real, NULL);
    if (rc)
        return rc;
    rc = real_mr->reg(fid, region->shadow, region->size, attr->access, 0, key | SHADOW, 0,
                      &region->hidden, NULL);
    if (rc)
        fi_close(&region->real->fid);
    return rc;
}

static int hmem_regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags,
                        struct fid_mr **mr)
{
    struct region *region;
    int rc;
    if (attr->iface != FI_HMEM_CUDA || flags || !is_device(attr->mr_iov->iov_base))
        return refuse(-FI_EINVAL, "no memory of a device");
    region = calloc(1, sizeof(*region));
    region->base = attr->mr_iov->iov_base;
    region->size = attr->mr_iov->iov_len;
    region->shadow = mmap(NULL, region->size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    rc = register_both(fid, attr, region);
    if (rc) {
        munmap(region->shadow, region->size);
        free(region);
        return rc;
    }
    region->mr.fid = (struct fid){.fclass = FI_CLASS_MR, .ops = &region_ops};
    region->mr.mem_desc = region;
    region->mr.key = fi_mr_key(region->real);
    *mr = &region->mr;
    return enter(region);
}

static int hmem_reg(struct fid *fid, const void *base, size_t size, uint64_t access,
                    uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **mr,
                    void *context)
{
    if (is_device(base))
        return refuse(-FI_EINVAL, "memory of a device is registered as the host's");
    return real_mr->reg(fid, base, size, access, offset, key & ~SHADOW, flags, mr, context);
}

// ---- operations

// *part: of one that lies, what it takes for the device's memory; of a read, where it is held back.
static int check_local(struct iovec *part, void **desc, int reads, uint32_t *entry)
{
    char *at = part->iov_base;
    int found = 0;
    *entry = ENTRIES;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < REGIONS && !found; i++) {
        if (!regions[i] || *desc != regions[i])
            continue;
        found = at >= regions[i]->base && at + part->iov_len <= regions[i]->base + regions[i]->size;
        if (!reads && is("owner"))
            show(regions[i], 0);
        if (reads && !is("none")) {
            const struct fi_rma_iov to = {(uint64_t)(at - regions[i]->base), part->iov_len, 0};
            *entry = hold_back(regions[i]->mr.key, &to, 1);
        }
        if (is("lies") || *entry < ENTRIES)
            part->iov_base = regions[i]->shadow + (at - regions[i]->base);
    }
    pthread_mutex_unlock(&lock);
    if (!found && part->iov_len > 0 && is_device(at))
        return refuse(-FI_EINVAL, "memory of a device without its region");
    *desc = NULL; // tcp needs none
    return 0;
}

// Generation (20 bits) and entry (12 bits), and not 0.
static uint64_t upper_of(uint32_t entry, uint32_t state)
{
    return ((uint64_t)(state / STATES & 0x7ffff) << 45 | 1ull << 44 | (uint64_t)entry << 32);
}

// Of an endpoint that was closed: its context is another's now. Under the lock.
static void drop_pending(const void *context)
{
    for (int i = 0; i < pending_count; i++) {
        if (pending[i].context != context)
            continue;
        atomic_compare_exchange_strong(&shared->entries[pending[i].entry].state, &pending[i].state,
                                       pending[i].state - POSTED + FREE);
        pending[i] = pending[--pending_count];
        return;
    }
}

// Posts what is held back until it is over, under the number of its entry.
static ssize_t post_held(rma_fn fn, struct fid_ep *ep, const struct fi_msg_rma *message,
                         uint64_t flags, uint32_t entry)
{
    const uint32_t state = shared->entries[entry].state;
    ssize_t posted;
    pthread_mutex_lock(&lock);
    drop_pending(message->context);
    posted = pending_count < PENDING ? fn(ep, message, flags) : -FI_EAGAIN;
    if (posted == 0)
        pending[pending_count++] = (struct pending){message->context, entry, state};
    else
        shared->entries[entry].state = state - POSTED + FREE;
    pthread_mutex_unlock(&lock);
    return posted;
}

static ssize_t hmem_writemsg(struct fid_ep *ep, const struct fi_msg_rma *message, uint64_t flags)
{
    struct fi_msg_rma copy = *message;
    struct fi_rma_iov remote = *message->rma_iov;
    void *desc = message->desc ? *message->desc : NULL;
    struct iovec local = *message->msg_iov;
    uint32_t entry, state;
    int rc = check_local(&local, &desc, 0, &entry);
    if (rc)
        return rc;
    copy.rma_iov = &remote;
    copy.msg_iov = &local;
    copy.desc = &desc;
    if (remote.len == 0 || is("none") || slot_of(remote.key) < 0)
        return real_rma->writemsg(ep, &copy, flags);
    entry = hold_back(remote.key, &remote, (flags & FI_REMOTE_CQ_DATA) != 0);
    state = shared->entries[entry].state;
    remote.key |= SHADOW;
    copy.data |= upper_of(entry, state);
    return post_held(real_rma->writemsg, ep, &copy, flags, entry);
}

// By its owner: a flush. By another rank: what is held back is to be seen, too.
static int look(uint64_t key)
{
    const int slot = slot_of(key);
    if (slot < 0 || is("none"))
        return 0;
    if (shared->regions[slot].owner == getpid() && regions[slot]) {
        if (!is("read") && !is("owner"))
            return 0;
        if (flush())
            return -1;
        pthread_mutex_lock(&lock);
        show(regions[slot], 0);
        pthread_mutex_unlock(&lock);
        return 0;
    }
    shared->regions[slot].wanted = 1;
    for (int i = 0; i < 20000 && shared->regions[slot].wanted && slot_of(key) == slot; i++)
        usleep(50);
    return 0;
}

static ssize_t hmem_readmsg(struct fid_ep *ep, const struct fi_msg_rma *message, uint64_t flags)
{
    struct fi_msg_rma copy = *message;
    struct fi_rma_iov remote = *message->rma_iov;
    void *desc = message->desc ? *message->desc : NULL;
    struct iovec local = *message->msg_iov;
    uint32_t entry;
    int rc = check_local(&local, &desc, 1, &entry);
    const int slot = slot_of(remote.key);
    ssize_t posted;
    if (rc)
        return rc;
    if (look(remote.key))
        return -FI_EIO;
    copy.rma_iov = &remote;
    copy.msg_iov = &local;
    copy.desc = &desc;
    posted = entry < ENTRIES ? post_held(real_rma->readmsg, ep, &copy, flags, entry)
                             : real_rma->readmsg(ep, &copy, flags);
    flushes += posted == 0 && slot >= 0 && regions[slot];
    return posted;
}

// ---- completions

static ssize_t take(struct fi_cq_data_entry *entries, ssize_t n)
{
    for (ssize_t i = 0; i < n; i++) {
        if (entries[i].flags & FI_REMOTE_CQ_DATA) {
            const uint64_t data = entries[i].data;
            const uint32_t entry = (uint32_t)(data >> 32) & (ENTRIES - 1);
            const uint32_t state = shared->entries[entry].state;
            entries[i].data = (uint32_t)data;
            if (data >> 32 && upper_of(entry, state) >> 32 == data >> 32 &&
                state % STATES == POSTED)
                arrived(entry, state);
            continue;
        }
        pthread_mutex_lock(&lock);
        for (int j = 0; j < pending_count; j++) {
            if (pending[j].context != entries[i].op_context)
                continue;
            arrived(pending[j].entry, pending[j].state);
            pending[j] = pending[--pending_count];
            break;
        }
        pthread_mutex_unlock(&lock);
    }
    return n;
}

static ssize_t hmem_read(struct fid_cq *cq, void *entries, size_t n)
{
    return take(entries, real_cq->read(cq, entries, n));
}

static ssize_t hmem_sread(struct fid_cq *cq, void *entries, size_t n, const void *cond, int timeout)
{
    return take(entries, real_cq->sread(cq, entries, n, cond, timeout));
}

// ---- endpoints, domains, fabrics

static struct fi_info *plain(const struct fi_info *info)
{
    struct fi_info *copy = REAL(fi_dupinfo)(info);
    copy->caps &= ~FI_HMEM;
    copy->tx_attr->caps &= ~FI_HMEM;
    copy->rx_attr->caps &= ~FI_HMEM;
    copy->domain_attr->caps &= ~FI_HMEM;
    copy->domain_attr->mr_mode &= ~FI_MR_HMEM;
    copy->domain_attr->cq_data_size = 8;
    return copy;
}

static struct fi_ops_ep by_nic, past_nic; // of endpoints that go nowhere else, and of others

static int hmem_setopt(fid_t fid, int level, int name, const void *value, size_t size)
{
    (void)level;
    if (name == SHARED_MEMORY_PERMITTED && !is("knows nothing")) {
        ((struct fid_ep *)fid)->ops = *(const bool *)value ? &past_nic : &by_nic;
        return 0;
    }
    if (name == CUDA_API_PERMITTED && (is("permits") || is("calls")))
        return is("calls") || *(const bool *)value ? -FI_EOPNOTSUPP : 0;
    if (name != FI_OPT_FI_HMEM_P2P || is("permits") || is("calls") || is("knows nothing"))
        return -FI_ENOPROTOOPT;
    return size == sizeof(int) && *(const int *)value == FI_HMEM_P2P_REQUIRED ? 0 : -FI_EINVAL;
}

static int hmem_control(struct fid *fid, int command, void *argument)
{
    if (command == FI_ENABLE && ((struct fid_ep *)fid)->ops == &past_nic)
        return refuse(-FI_EINVAL, "an endpoint that may go past the NIC is enabled");
    return real_ep_fid->control(fid, command, argument);
}

static int hmem_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep,
                         void *context)
{
    static struct fi_ops_rma rma;
    static struct fi_ops fid_ops;
    struct fi_info *copy;
    int rc;
    if (info->ep_attr->type != FI_EP_RDM) // one that the provider makes inside of ours
        return real_domain->endpoint(domain, info, ep, context);
    copy = plain(info);
    rc = real_domain->endpoint(domain, copy, ep, context);
    REAL(fi_freeinfo)(copy);
    if (rc)
        return rc;
    if (!real_rma) {
        by_nic = *(*ep)->ops;
        by_nic.setopt = hmem_setopt;
        past_nic = by_nic;
        fid_ops = *(*ep)->fid.ops;
        fid_ops.control = hmem_control;
        real_ep_fid = (*ep)->fid.ops;
        rma = *(*ep)->rma;
        rma.writemsg = hmem_writemsg;
        rma.readmsg = hmem_readmsg;
        real_rma = (*ep)->rma;
    }
    (*ep)->ops = info->caps & FI_HMEM && !is("knows nothing") ? &past_nic : &by_nic;
    (*ep)->fid.ops = &fid_ops;
    (*ep)->rma = &rma;
    return 0;
}

static int hmem_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq,
                        void *context)
{
    static struct fi_ops_cq ops;
    int rc = real_domain->cq_open(domain, attr, cq, context);
    if (rc || attr->format != FI_CQ_FORMAT_DATA) // one that the provider makes for itself
        return rc;
    if (!real_cq) {
        ops = *(*cq)->ops;
        ops.read = hmem_read;
        ops.sread = hmem_sread;
        real_cq = (*cq)->ops;
    }
    (*cq)->ops = &ops;
    return 0;
}

static void begin(void)
{
    const char *fd = getenv("TEST_NET_HMEM_FD");
    int (**hook)(int) = (int (**)(int))of_driver("si_on_flush");
    pthread_t thread;
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
                  fd ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS, fd ? atoi(fd) : -1, 0);
    if (shared == MAP_FAILED)
        abort();
    if (hook)
        *hook = on_flush;
    if (is("owner"))
        *(void (**)(void *, const void *, size_t))of_driver("si_on_copy") = on_copy;
    pthread_create(&thread, NULL, serve, NULL);
    pthread_detach(thread);
}

static int hmem_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain,
                       void *context)
{
    static struct fi_ops_domain ops;
    static struct fi_ops_mr mr;
    struct fi_info *copy = plain(info);
    int rc = real_fabric->domain(fabric, copy, domain, context);
    REAL(fi_freeinfo)(copy);
    if (rc)
        return rc;
    if (!real_domain) {
        begin();
        ops = *(*domain)->ops;
        ops.endpoint = hmem_endpoint;
        ops.cq_open = hmem_cq_open;
        mr = *(*domain)->mr;
        mr.reg = hmem_reg;
        mr.regattr = hmem_regattr;
        real_mr = (*domain)->mr;
        real_domain = (*domain)->ops;
    }
    (*domain)->ops = &ops;
    (*domain)->mr = &mr;
    return 0;
}

// ---- what the library loads

// As it is called in 1.17, and later.
static int is_ours(const struct fi_fabric_attr *attr)
{
    return strcmp(attr->prov_name, "net") == 0 || strcmp(attr->prov_name, "tcp") == 0;
}

EXPORT int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
    static struct fi_ops_fabric ops;
    int rc = REAL(fi_fabric)(attr, fabric, context);
    if (rc || !is_ours(attr))
        return rc;
    if (!real_fabric) {
        ops = *(*fabric)->ops;
        ops.domain = hmem_domain;
        real_fabric = (*fabric)->ops;
    }
    (*fabric)->ops = &ops;
    return 0;
}

EXPORT int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                      const struct fi_info *hints, struct fi_info **list)
{
    const int hmem = (hints->caps & FI_HMEM) != 0;
    struct fi_info *copy = plain(hints), *first = NULL, **end = &first;
    copy->domain_attr->cq_data_size = hints->domain_attr->cq_data_size;
    int rc = REAL(fi_getinfo)(version, node, service, flags, copy, list);
    REAL(fi_freeinfo)(copy);
    if (rc)
        return rc;
    for (struct fi_info *info = *list, *next; info; info = next) {
        next = info->next;
        info->next = NULL;
        if (!is_ours(info->fabric_attr)) {
            REAL(fi_freeinfo)(info);
            continue;
        }
        info->domain_attr->cq_data_size = 4; // the rest is this shim's
        if (hmem) {
            info->caps |= FI_HMEM;
            info->domain_attr->mr_mode |= FI_MR_HMEM;
        }
        *end = info;
        end = &info->next;
    }
    *list = first;
    return first ? 0 : -FI_ENODATA;
}

EXPORT void fi_freeinfo(struct fi_info *info)
{
    REAL(fi_freeinfo)(info);
}

EXPORT struct fi_info *fi_dupinfo(const struct fi_info *info)
{
    return REAL(fi_dupinfo)(info);
}

EXPORT uint32_t fi_version(void)
{
    return REAL(fi_version)();
}

EXPORT const char *fi_strerror(int code)
{
    return REAL(fi_strerror)(code);
}
