// SPDX-License-Identifier: BSD-3-Clause
// A libfabric (PEERHOP_LIBFABRIC) that is the real one, but demands what TEST_NET_STRICT names, as
// providers of hardware do, and refuses what breaks it:
//   local     every local buffer has a descriptor of an open region that covers it
//   virt      remote addresses are addresses of the owner's process, not offsets
//   prov-key  keys are the provider's to choose: none may be asked for
//   raw       keys are 16 bytes, which must be mapped at the other end, and unmapped in time, but
//             not while an operation is under way that names them
//   allocated what is registered is memory that is there
//   narrow    immediate data have 4 bytes
//   short     no operation moves more than 64 KiB
//   limited   the order of writes is said to be that of writes of up to 4 KiB
//   endpoint  a region is bound to its endpoint and enabled before it has a key or is used, serves
//             no other endpoint, neither here nor as the target, and is closed before it
//   lies      what is read (lies-read), or written (lies-write), is told and does not come; there
//             is an honest provider beside it
// and is unkind as net_disorder.c says. What is refused is counted, and said.
//
// The checks of a target need what its owner registered. That all processes of a test know by a
// table in memory that they share (TEST_NET_STRICT_FD). The real libfabric may be another of the
// tests' (TEST_NET_STRICT_OVER): net_hmem.c, which takes memory of the stand-in's devices.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "net_strict.h"

enum {
    REGIONS = 4096,
    RAW_SIZE = 16,
    RAW_KEYS = 1024,
    FLYING = 1024,
    TARGETS = 16384,
    NAME = 64, // of an endpoint
    ENDPOINTS = 256,
    SHORT = 65536,
    LIMIT = 4096,
    PAGE = 4096
};

// A region as who writes there finds it. Its number is never another one's.
struct target {
    _Atomic uint64_t key; // the provider's; 0: not yet, or no more
    uintptr_t base;
    size_t size;
    _Atomic int enabled;
    unsigned char name[NAME]; // of the endpoint that it is bound to, once it is enabled
    size_t named;
};

struct shared {
    _Atomic int count; // of targets
    _Atomic uint64_t chosen;
    struct target targets[TARGETS];
};

struct region {
    struct fid_mr mr; // what the library gets
    struct fid_mr *real;
    char *base;
    size_t size;
    struct fid_ep *ep;
    int enabled, open;
    struct target *target;
};

_Static_assert(sizeof(struct shared) <= 1 << 21, "what tests give it");

static struct shared *shared;
static struct region regions[REGIONS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of the table
static int count, refused;

// The provider's own tables, as they were before ours took their place; taken with the first object
// of each. Ranks that are threads open at the same moment: `taking` is held until all is there.
static pthread_mutex_t taking = PTHREAD_MUTEX_INITIALIZER;
static struct fi_ops_fabric *real_fabric;
static struct fi_ops_domain *real_domain;
static struct fi_ops *real_domain_fid;
static struct fi_ops_mr *real_mr;
static struct fi_ops *real_ep_fid;
static struct fi_ops_msg *real_msg;
static struct fi_ops_rma *real_rma;
static uint64_t offered_mode; // of the real provider
static size_t offered_key_size, offered_data_size;

EXPORT int strict_refused(void)
{
    return refused;
}

static int refuse(int rc, const char *why)
{
    fprintf(stderr, "strict: %s\n", why);
    __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
    return rc;
}

int demands(const char *word)
{
    const char *all = getenv("TEST_NET_STRICT");
    return all && strstr(all, word) != NULL;
}

static uint64_t demanded(void)
{
    return (demands("local") ? FI_MR_LOCAL : 0) | (demands("virt") ? FI_MR_VIRT_ADDR : 0) |
           (demands("prov-key") ? FI_MR_PROV_KEY : 0) | (demands("raw") ? FI_MR_RAW : 0) |
           (demands("endpoint") ? FI_MR_ENDPOINT : 0) |
           (demands("allocated") ? FI_MR_ALLOCATED : 0);
}

static void *real(const char *name)
{
    static void *library;
    const char *over = getenv("TEST_NET_STRICT_OVER");
    if (!library)
        library = dlopen(over ? over : "libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    return library ? dlsym(library, name) : NULL;
}

// ---- regions

static int is_usable(const struct region *region)
{
    return region->open && (!demands("endpoint") || region->enabled);
}

static int region_close(struct fid *fid)
{
    struct region *region = (struct region *)fid;
    if (!region->open)
        return refuse(-FI_EINVAL, "a region is closed twice");
    region->open = 0;
    region->target->key = 0;
    return fi_close(&region->real->fid);
}

static int region_bind(struct fid *fid, struct fid *to, uint64_t flags)
{
    struct region *region = (struct region *)fid;
    if (to->fclass != FI_CLASS_EP || flags || region->ep)
        return refuse(-FI_EINVAL, "a region is bound twice, or to no endpoint");
    region->ep = (struct fid_ep *)to;
    return 0;
}

// A raw key is a word of ours, and the provider's key. Where it is mapped it becomes a number that
// the provider has never heard of, and that is never another one's.
static const uint64_t raw_word = 0x7261772d6b657921;
static struct {
    uint64_t number, key; // number 0: none
    const struct fid *domain;
} raw_keys[RAW_KEYS];
static struct {          // operations under way
    const void *context; // NULL: none
    const struct fid_ep *ep;
    uint64_t number; // of the key that it names
} flying[FLYING];
static uint64_t raw_numbers = 0x100;
static int unmappable;

static int raw_get(const struct region *region, struct fi_mr_raw_attr *attr)
{
    uint64_t key = fi_mr_key(region->real);
    if (*attr->key_size < RAW_SIZE || (demands("endpoint") && !region->enabled))
        return refuse(-FI_ETOOSMALL, "no room for a raw key, or none yet");
    *attr->base_addr = (uint64_t)(uintptr_t)region->base;
    *attr->key_size = RAW_SIZE;
    memcpy(attr->raw_key, &raw_word, sizeof(raw_word));
    memcpy(attr->raw_key + sizeof(raw_word), &key, sizeof(key));
    return 0;
}

EXPORT void strict_unmappable(int on)
{
    __atomic_store_n(&unmappable, on, __ATOMIC_RELAXED);
}

// Under the lock. RAW_KEYS: it has none.
static int raw_place(uint64_t number)
{
    int i = number ? 0 : RAW_KEYS;
    while (i < RAW_KEYS && raw_keys[i].number != number)
        i++;
    return i;
}

static int raw_map(const struct fid *domain, const struct fi_mr_map_raw *map)
{
    uint64_t word, key;
    int i = 0, n = 0, rc = 0;
    if (__atomic_load_n(&unmappable, __ATOMIC_RELAXED))
        return -FI_ENOMEM;
    memcpy(&word, map->raw_key, sizeof(word));
    memcpy(&key, map->raw_key + sizeof(word), sizeof(key));
    if (map->key_size != RAW_SIZE || word != raw_word || map->base_addr == 0)
        return refuse(-FI_EINVAL, "this was never a raw key");
    pthread_mutex_lock(&lock);
    for (int j = 0; j < RAW_KEYS; j++)
        n += raw_keys[j].number && raw_keys[j].key == key && raw_keys[j].domain == domain;
    if (n >= 2) // by who writes there, and in a process with links to itself by who flushes it
        rc = refuse(-FI_EBUSY, "a raw key is mapped again");
    while (i < RAW_KEYS && raw_keys[i].number)
        i++;
    if (i < RAW_KEYS) {
        raw_keys[i].number = *map->key = raw_numbers++;
        raw_keys[i].key = key;
        raw_keys[i].domain = domain;
    }
    pthread_mutex_unlock(&lock);
    return rc ? rc : i < RAW_KEYS ? 0 : -FI_ENOMEM;
}

EXPORT int strict_mapped(void)
{
    int n = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RAW_KEYS; i++)
        n += raw_keys[i].number != 0;
    pthread_mutex_unlock(&lock);
    return n;
}

static int raw_unmap(uint64_t number)
{
    int i, flies = 0;
    pthread_mutex_lock(&lock);
    i = raw_place(number);
    if (i < RAW_KEYS)
        raw_keys[i].number = 0;
    for (int j = 0; j < FLYING; j++)
        flies = flies || (flying[j].context && flying[j].number == number);
    pthread_mutex_unlock(&lock);
    if (flies)
        return refuse(-FI_EBUSY, "a key is unmapped that an operation under way names");
    return i < RAW_KEYS ? 0 : refuse(-FI_EINVAL, "no key that was mapped");
}

// The provider's key of one that an operation names.
static int raw_take(struct fi_rma_iov *remote)
{
    int i;
    if (!demands("raw"))
        return 0;
    pthread_mutex_lock(&lock);
    i = raw_place(remote->key);
    if (i < RAW_KEYS)
        remote->key = raw_keys[i].key;
    pthread_mutex_unlock(&lock);
    return i < RAW_KEYS ? 0 : refuse(-FI_EACCES, "a key that is not mapped");
}

// An operation goes out; who made the call has all queues to itself until it returns.
static void raw_flies(const struct fid_ep *ep, const void *context, uint64_t number)
{
    int i = 0;
    if (!demands("raw"))
        return;
    pthread_mutex_lock(&lock);
    while (i < FLYING && flying[i].context)
        i++;
    if (i < FLYING) {
        flying[i].context = context;
        flying[i].ep = ep;
        flying[i].number = number;
    }
    pthread_mutex_unlock(&lock);
}

void strict_landed(const void *context)
{
    if (!demands("raw"))
        return;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < FLYING; i++)
        if (flying[i].context == context)
            flying[i].context = NULL;
    pthread_mutex_unlock(&lock);
}

static int region_control(struct fid *fid, int command, void *argument)
{
    struct region *region = (struct region *)fid;
    if (command == FI_GET_RAW_MR && demands("raw"))
        return raw_get(region, argument);
    if (command != FI_ENABLE || !region->ep)
        return refuse(-FI_EINVAL, "a region is enabled before it is bound");
    region->enabled = 1;
    region->target->named = NAME;
    if (fi_getname(&region->ep->fid, region->target->name, &region->target->named))
        return refuse(-FI_EINVAL, "a region of an endpoint without a name");
    region->target->enabled = 1;
    region->mr.key = demands("raw") ? FI_KEY_NOTAVAIL : fi_mr_key(region->real);
    return 0;
}

static struct fi_ops region_ops = {.size = sizeof(struct fi_ops),
                                   .close = region_close,
                                   .bind = region_bind,
                                   .control = region_control};

static int is_there(const void *base, size_t size)
{
    unsigned char resident;
    for (uintptr_t page = (uintptr_t)base & -(uintptr_t)PAGE; page < (uintptr_t)base + size;
         page += PAGE)
        if (mincore((void *)page, PAGE, &resident))
            return 0;
    return 1;
}

static struct region *new_region(void)
{
    struct region *region;
    int target;
    pthread_mutex_lock(&lock);
    region = count < REGIONS ? &regions[count++] : NULL;
    pthread_mutex_unlock(&lock);
    target = region ? shared->count++ : TARGETS;
    if (target >= TARGETS)
        return NULL;
    region->target = &shared->targets[target];
    return region;
}

static int strict_regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags,
                          struct fid_mr **mr)
{
    struct fi_mr_attr plain = *attr;
    const struct iovec *part = attr->mr_iov;
    struct region *region;
    int rc;
    if (demands("prov-key") && attr->requested_key)
        return refuse(-FI_EINVAL, "a key is asked for where the provider chooses it");
    if (demands("allocated") && !is_there(part->iov_base, part->iov_len))
        return refuse(-FI_EINVAL, "memory that is not there is registered");
    region = new_region();
    if (!region)
        return -FI_ENOMEM;
    if (demands("prov-key"))
        plain.requested_key = 0x5742 + shared->chosen++;
    rc = plain.iface == FI_HMEM_SYSTEM
             ? real_mr->reg(fid, part->iov_base, part->iov_len, plain.access, plain.offset,
                            plain.requested_key, flags, &region->real, plain.context)
             : real_mr->regattr(fid, &plain, flags, &region->real);
    if (rc)
        return rc;
    region->mr.fid =
        (struct fid){.fclass = FI_CLASS_MR, .context = attr->context, .ops = &region_ops};
    region->mr.mem_desc = region;
    region->mr.key =
        demands("endpoint") || demands("raw") ? FI_KEY_NOTAVAIL : fi_mr_key(region->real);
    region->base = part->iov_base;
    region->size = part->iov_len;
    region->open = 1;
    region->target->base = (uintptr_t)region->base;
    region->target->size = region->size;
    region->target->key = fi_mr_key(region->real);
    *mr = &region->mr;
    return 0;
}

static int strict_reg(struct fid *fid, const void *base, size_t size, uint64_t access,
                      uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **mr,
                      void *context)
{
    const struct iovec part = {(void *)base, size};
    const struct fi_mr_attr attr = {.mr_iov = &part,
                                    .iov_count = 1,
                                    .access = access,
                                    .offset = offset,
                                    .requested_key = key,
                                    .context = context};
    return strict_regattr(fid, &attr, flags, mr);
}

// ---- checks of an operation

static int check_local(const struct fid_ep *ep, const struct iovec *part, void **desc)
{
    const struct region *region = desc ? *desc : NULL;
    if (!demands("local"))
        return 0;
    if (region < regions || region >= regions + REGIONS || !is_usable(region))
        return refuse(-FI_EINVAL, "a local buffer without the descriptor of a usable region");
    if (part->iov_len && ((char *)part->iov_base < region->base ||
                          (char *)part->iov_base + part->iov_len > region->base + region->size))
        return refuse(-FI_EINVAL, "a local buffer outside its region");
    if (demands("endpoint") && region->ep != ep)
        return refuse(-FI_EINVAL, "a region of another endpoint");
    return 0;
}

static const struct target *target_of(uint64_t key)
{
    for (int i = shared->count - 1; i >= 0; i--)
        if (i < TARGETS && shared->targets[i].key == key)
            return &shared->targets[i];
    return NULL;
}

// What an endpoint was bound to.
static struct {
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    int made; // the how manieth it is
    int unwelcome;
    int read; // it has read of itself
} bound[ENDPOINTS];
static int made;

// Under the lock. ENDPOINTS: it has none.
static int place_of(const struct fid_ep *ep)
{
    int i = 0;
    while (i < ENDPOINTS && bound[i].ep != ep)
        i++;
    return i;
}

static struct fid_cq *cq_of(const struct fid_ep *ep)
{
    struct fid_cq *cq;
    int i;
    pthread_mutex_lock(&lock);
    i = place_of(ep);
    cq = i < ENDPOINTS ? bound[i].cq : NULL;
    pthread_mutex_unlock(&lock);
    return cq;
}

static int endpoint_bind(struct fid *fid, struct fid *to, uint64_t flags)
{
    struct fid_ep *ep = (struct fid_ep *)fid;
    int i;
    pthread_mutex_lock(&lock);
    i = place_of(ep);
    if (i == ENDPOINTS)
        i = place_of(NULL);
    if (i < ENDPOINTS) {
        bound[i].made = bound[i].ep ? bound[i].made : ++made;
        bound[i].ep = ep;
        if (to->fclass == FI_CLASS_CQ)
            bound[i].cq = (struct fid_cq *)to;
        if (to->fclass == FI_CLASS_AV)
            bound[i].av = (struct fid_av *)to;
    }
    pthread_mutex_unlock(&lock);
    return i < ENDPOINTS ? real_ep_fid->bind(fid, to, flags) : -FI_ENOMEM;
}

static void forget(const struct fid_ep *ep)
{
    int i;
    pthread_mutex_lock(&lock);
    i = place_of(ep);
    if (i < ENDPOINTS)
        memset(&bound[i], 0, sizeof(bound[i]));
    for (i = 0; i < FLYING; i++)
        if (flying[i].ep == ep)
            flying[i].context = NULL;
    pthread_mutex_unlock(&lock);
}

// Whether an endpoint's address is that of the one with this name.
static int leads_to(const struct fid_ep *from, fi_addr_t to, const unsigned char *name,
                    size_t named)
{
    unsigned char wanted[NAME] = {0};
    size_t size = sizeof(wanted);
    int i, rc = 0, known;
    pthread_mutex_lock(&lock);
    i = place_of(from);
    known = i < ENDPOINTS && bound[i].av;
    if (known)
        rc = fi_av_lookup(bound[i].av, to, wanted, &size);
    pthread_mutex_unlock(&lock);
    return !known || (!rc && size == named && memcmp(wanted, name, size) == 0);
}

// The real provider addresses by offset: what the strict one demands is taken back.
static int check_remote(const struct fid_ep *ep, fi_addr_t to, struct fi_rma_iov *remote)
{
    const struct target *target = target_of(remote->key);
    if (!target)
        return 0; // closed meanwhile: the real one refuses it
    if (demands("endpoint") && !target->enabled)
        return refuse(-FI_EACCES, "a target region that is not bound and enabled");
    if (demands("endpoint") && !leads_to(ep, to, target->name, target->named))
        return refuse(-FI_EACCES, "a target region of another endpoint than the one addressed");
    if (!demands("virt"))
        return 0;
    if (remote->addr < target->base || remote->addr + remote->len > target->base + target->size)
        return refuse(-FI_EACCES, "a remote address outside its region");
    if (!(offered_mode & FI_MR_VIRT_ADDR))
        remote->addr -= target->base;
    return 0;
}

static void *real_desc(void *desc)
{
    struct region *region = desc;
    return region >= regions && region < regions + REGIONS ? fi_mr_desc(region->real) : NULL;
}

static int check_size(const struct iovec *part)
{
    return demands("short") && part->iov_len > SHORT
               ? refuse(-FI_EMSGSIZE, "an operation of more bytes than there may be")
               : 0;
}

static ssize_t strict_rma(rma_fn fn, struct fid_ep *ep, const struct fi_msg_rma *message,
                          uint64_t flags)
{
    struct fi_msg_rma copy = *message;
    struct iovec local = *message->msg_iov;
    struct fi_rma_iov remote = *message->rma_iov;
    void *desc = message->desc ? *message->desc : NULL;
    int rc = disorder_refuses() ? -FI_EAGAIN : check_local(ep, message->msg_iov, &desc);
    if (!rc)
        rc = check_size(message->msg_iov);
    if (!rc)
        rc = raw_take(&remote);
    if (!rc)
        rc = check_remote(ep, message->addr, &remote);
    if (rc)
        return rc;
    desc = real_desc(desc);
    if (demands(fn == real_rma->readmsg ? "lies-read" : "lies-write"))
        local.iov_len = remote.len = 0;
    copy.msg_iov = &local;
    copy.desc = &desc;
    copy.rma_iov = &remote;
    rc = (int)disorder_rma(fn, ep, cq_of(ep), &copy, flags);
    if (rc == 0)
        raw_flies(ep, message->context, message->rma_iov->key);
    return rc;
}

int strict_writes(rma_fn fn)
{
    return fn == real_rma->writemsg;
}

static ssize_t strict_writemsg(struct fid_ep *ep, const struct fi_msg_rma *message, uint64_t flags)
{
    return strict_rma(real_rma->writemsg, ep, message, flags);
}

EXPORT int strict_read(void)
{
    int n = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < ENDPOINTS; i++) {
        n += bound[i].read;
        bound[i].read = 0;
    }
    pthread_mutex_unlock(&lock);
    return n;
}

static void note_read(const struct fid_ep *ep, fi_addr_t to)
{
    unsigned char own[NAME] = {0};
    size_t size = sizeof(own);
    int i;
    if (fi_getname((fid_t)&ep->fid, own, &size) || !leads_to(ep, to, own, size))
        return;
    pthread_mutex_lock(&lock);
    i = place_of(ep);
    if (i < ENDPOINTS)
        bound[i].read = 1;
    pthread_mutex_unlock(&lock);
}

static ssize_t strict_readmsg(struct fid_ep *ep, const struct fi_msg_rma *message, uint64_t flags)
{
    const ssize_t rc = strict_rma(real_rma->readmsg, ep, message, flags);
    if (rc == 0)
        note_read(ep, message->addr);
    return rc;
}

EXPORT void strict_unwelcome(int n)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < ENDPOINTS; i++)
        bound[i].unwelcome = n > 0 && (bound[i].unwelcome || bound[i].made > made - n);
    pthread_mutex_unlock(&lock);
}

static int is_unwelcome(const struct fid_ep *ep)
{
    int i, is;
    pthread_mutex_lock(&lock);
    i = place_of(ep);
    is = i < ENDPOINTS && bound[i].unwelcome;
    pthread_mutex_unlock(&lock);
    return is;
}

static int astray;

EXPORT void strict_astray(int on)
{
    __atomic_store_n(&astray, on, __ATOMIC_RELAXED);
}

static ssize_t strict_sendmsg(struct fid_ep *ep, const struct fi_msg *message, uint64_t flags)
{
    struct fi_msg copy = *message;
    void *desc = message->desc ? *message->desc : NULL;
    const int greets = message->msg_iov->iov_len == GREETING;
    int rc;
    if (greets && __atomic_load_n(&astray, __ATOMIC_RELAXED))
        return 0;
    rc = disorder_refuses() ? -FI_EAGAIN : check_local(ep, message->msg_iov, &desc);
    if (rc)
        return rc;
    if (greets && is_unwelcome(ep))
        return -FI_EAGAIN;
    desc = real_desc(desc);
    copy.desc = &desc;
    return real_msg->sendmsg(ep, &copy, flags);
}

static ssize_t strict_recv(struct fid_ep *ep, void *buffer, size_t size, void *desc, fi_addr_t from,
                           void *context)
{
    struct iovec part = {buffer, size};
    int rc = check_local(ep, &part, &desc);
    return rc ? rc : real_msg->recv(ep, buffer, size, real_desc(desc), from, context);
}

// ---- endpoints, domains, fabrics

static int endpoint_close(struct fid *fid)
{
    for (int i = 0; i < count; i++)
        if (regions[i].open && regions[i].ep == (struct fid_ep *)fid)
            return refuse(-FI_EBUSY, "an endpoint is closed before a region that is bound to it");
    disorder_forget_ep((struct fid_ep *)fid);
    forget((struct fid_ep *)fid);
    return real_ep_fid->close(fid);
}

static int strict_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep,
                           void *context)
{
    static struct fi_ops fid_ops;
    static struct fi_ops_msg msg;
    static struct fi_ops_rma rma;
    struct fi_info *plain;
    int rc;
    if (info->ep_attr->type != FI_EP_RDM) // one that the provider makes inside of ours
        return real_domain->endpoint(domain, info, ep, context);
    plain = ((__typeof__(&fi_dupinfo))real("fi_dupinfo"))(info);
    plain->domain_attr->mr_mode = (int)offered_mode;
    plain->domain_attr->mr_key_size = offered_key_size;
    plain->domain_attr->cq_data_size = offered_data_size;
    rc = real_domain->endpoint(domain, plain, ep, context);
    ((__typeof__(&fi_freeinfo))real("fi_freeinfo"))(plain);
    if (rc)
        return rc;
    pthread_mutex_lock(&taking);
    if (!real_msg) {
        real_ep_fid = (*ep)->fid.ops;
        real_msg = (*ep)->msg;
        real_rma = (*ep)->rma;
        fid_ops = *real_ep_fid;
        fid_ops.close = endpoint_close;
        fid_ops.bind = endpoint_bind;
        msg = *real_msg;
        msg.sendmsg = strict_sendmsg;
        msg.recv = strict_recv;
        rma = *real_rma;
        rma.writemsg = strict_writemsg;
        rma.readmsg = strict_readmsg;
    }
    pthread_mutex_unlock(&taking);
    (*ep)->fid.ops = &fid_ops;
    (*ep)->msg = &msg;
    (*ep)->rma = &rma;
    return 0;
}

static int strict_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq,
                          void *context)
{
    return disorder_cq_open(domain, attr, cq, context, real_domain->cq_open);
}

static int domain_control(struct fid *fid, int command, void *argument)
{
    if (demands("raw") && command == FI_MAP_RAW_MR)
        return raw_map(fid, argument);
    if (demands("raw") && command == FI_UNMAP_KEY)
        return raw_unmap(*(uint64_t *)argument);
    return real_domain_fid->control(fid, command, argument);
}

enum { BEGIN_US = 20000 }; // so that others come meanwhile

static void begin(void)
{
    const char *fd = getenv("TEST_NET_STRICT_FD");
    if (demands("disorder"))
        usleep(BEGIN_US);
    if (shared)
        abort(); // begun twice, that is without `taking`: what was registered would be forgotten
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
                  fd ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS, fd ? atoi(fd) : -1, 0);
    if (shared == MAP_FAILED)
        abort();
}

static int strict_domain(struct fid_fabric *fabric, struct fi_info *info,
                         struct fid_domain **domain, void *context)
{
    static struct fi_ops_domain ops;
    static struct fi_ops_mr mr;
    static struct fi_ops fid_ops;
    struct fi_info *plain = ((__typeof__(&fi_dupinfo))real("fi_dupinfo"))(info);
    int rc;
    plain->domain_attr->mr_mode = (int)offered_mode;
    plain->domain_attr->mr_key_size = offered_key_size;
    plain->domain_attr->cq_data_size = offered_data_size;
    rc = real_fabric->domain(fabric, plain, domain, context);
    ((__typeof__(&fi_freeinfo))real("fi_freeinfo"))(plain);
    if (rc)
        return rc;
    pthread_mutex_lock(&taking);
    if (!real_domain) {
        begin();
        real_domain = (*domain)->ops;
        real_mr = (*domain)->mr;
        ops = *real_domain;
        ops.endpoint = strict_endpoint;
        ops.cq_open = strict_cq_open;
        mr = *real_mr;
        mr.reg = strict_reg;
        mr.regattr = strict_regattr;
        real_domain_fid = (*domain)->fid.ops;
        fid_ops = *real_domain_fid;
        fid_ops.control = domain_control;
    }
    pthread_mutex_unlock(&taking);
    (*domain)->fid.ops = &fid_ops;
    (*domain)->ops = &ops;
    (*domain)->mr = &mr;
    return 0;
}

static int strict_trywait(struct fid_fabric *fabric, struct fid **fids, int n)
{
    return disorder_trywait(fabric, fids, n, real_fabric->trywait);
}

// ---- what the library loads

// Only the provider whose tables are copied: net, as it is called in 1.17.
static int is_ours(const struct fi_fabric_attr *attr)
{
    return strcmp(attr->prov_name, "net") == 0 || strcmp(attr->prov_name, "tcp") == 0;
}

static int is_beside(const struct fi_fabric_attr *attr)
{
    return demands("lies") && strcmp(attr->prov_name, "tcp;ofi_rxm") == 0;
}

EXPORT int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
    static struct fi_ops_fabric ops;
    int rc = ((__typeof__(&fi_fabric))real("fi_fabric"))(attr, fabric, context);
    if (rc || !is_ours(attr))
        return rc;
    pthread_mutex_lock(&taking);
    if (!real_fabric) {
        real_fabric = (*fabric)->ops;
        ops = *real_fabric;
        ops.domain = strict_domain;
        ops.trywait = strict_trywait;
    }
    pthread_mutex_unlock(&taking);
    (*fabric)->ops = &ops;
    return 0;
}

// ---- a NIC: TEST_NET_PCI says where it sits

static int nic_close(struct fid *fid)
{
    (void)fid;
    return 0;
}

static int nic_control(struct fid *fid, int command, void *value)
{
    if (command != FI_DUP)
        return -FI_ENOSYS;
    *(struct fid **)value = fid; // there is one for all
    return 0;
}

static void sit(struct fi_info *info)
{
    static struct fi_ops ops = {.size = sizeof(ops), .close = nic_close, .control = nic_control};
    static struct fi_bus_attr bus = {.bus_type = FI_BUS_PCI};
    static struct fid_nic nic = {.fid.ops = &ops, .bus_attr = &bus};
    const char *text = getenv("TEST_NET_PCI");
    unsigned at[4];
    if (info->nic || !text || sscanf(text, "%x:%x:%x.%x", &at[0], &at[1], &at[2], &at[3]) != 4)
        return;
    bus.attr.pci =
        (struct fi_pci_attr){(uint16_t)at[0], (uint8_t)at[1], (uint8_t)at[2], (uint8_t)at[3]};
    info->nic = &nic;
}

EXPORT int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                      const struct fi_info *hints, struct fi_info **list)
{
    struct fi_info *first = NULL, **end = &first;
    int rc =
        ((__typeof__(&fi_getinfo))real("fi_getinfo"))(version, node, service, flags, hints, list);
    if (rc)
        return rc;
    if ((hints->domain_attr->mr_mode & (int)demanded()) != (int)demanded())
        return refuse(-FI_ENODATA, "the hints do not offer what is demanded");
    for (struct fi_info *info = *list, *next; info; info = next) {
        next = info->next;
        info->next = NULL;
        if (is_beside(info->fabric_attr)) {
            *end = info;
            end = &info->next;
            continue;
        }
        if (!is_ours(info->fabric_attr)) {
            ((__typeof__(&fi_freeinfo))real("fi_freeinfo"))(info);
            continue;
        }
        offered_mode = (uint64_t)info->domain_attr->mr_mode;
        offered_key_size = info->domain_attr->mr_key_size;
        offered_data_size = info->domain_attr->cq_data_size;
        info->domain_attr->mr_mode |= (int)demanded();
        if (demands("raw"))
            info->domain_attr->mr_key_size = RAW_SIZE;
        if (demands("narrow"))
            info->domain_attr->cq_data_size = 4;
        if (demands("short"))
            info->ep_attr->max_msg_size = SHORT;
        if (demands("disorder") && !demands("claims")) {
            info->tx_attr->msg_order &= ~(uint64_t)(FI_ORDER_WAW | FI_ORDER_RMA_WAW);
            info->rx_attr->msg_order &= ~(uint64_t)(FI_ORDER_WAW | FI_ORDER_RMA_WAW);
            info->ep_attr->max_order_waw_size = 0;
        }
        if (demands("limited"))
            info->ep_attr->max_order_waw_size = LIMIT;
        sit(info);
        *end = info;
        end = &info->next;
    }
    *list = first;
    return first ? 0 : -FI_ENODATA;
}

EXPORT void fi_freeinfo(struct fi_info *info)
{
    ((__typeof__(&fi_freeinfo))real("fi_freeinfo"))(info);
}

EXPORT struct fi_info *fi_dupinfo(const struct fi_info *info)
{
    return ((__typeof__(&fi_dupinfo))real("fi_dupinfo"))(info);
}

EXPORT uint32_t fi_version(void)
{
    return ((__typeof__(&fi_version))real("fi_version"))();
}

EXPORT const char *fi_strerror(int code)
{
    return ((__typeof__(&fi_strerror))real("fi_strerror"))(code);
}
