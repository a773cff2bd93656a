// SPDX-License-Identifier: BSD-3-Clause
#include "direct.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "base/config.h"
#include "base/random.h"
#include "base/report.h"
#include "net/library.h"
#include "net/net.h"

// Enough to keep any provider here busy.
enum { WINDOW = 16, BATCH = 16 };

enum { TELL_FLAG = 1, TELL_FINISH = 2 };

struct bench_direct {
    const struct phi_libfabric *library;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    struct fid_mr *arena_mr, *slot_mr;
    char *arena;
    size_t arena_size;
    fi_addr_t peer;
    struct bench_direct_name theirs;
    struct fi_context2 contexts[WINDOW];
    unsigned posted; // of the contexts: taken in turn
    unsigned in_flight;
    uint64_t flags, finishes;             // that have come
    uint64_t flags_wanted, finish_wanted; // by the end of the present call
    char failure[160];
    _Alignas(64) char slot[64];
};

static int refuse(char *error, size_t size, int rc, const char *what, const char *why)
{
    snprintf(error, size, "the direct program: %s%s%s", what, *why ? ": " : "", why);
    return rc;
}

// ---- the provider

static int choose(struct phi_net_candidate *chosen, struct phi_config *config, char *error,
                  size_t error_size)
{
    struct phi_report report;
    struct phi_net_candidate candidates[64];
    const struct phi_pci_place nowhere = {0};
    char why[256] = "";
    size_t n = 0;
    phi_report_init(&report, NULL, NULL, PH_LOG_NONE);
    int rc = phi_config_read(config, NULL, &report);
    if (rc == 0)
        n = phi_net_list(&report, config, &nowhere, candidates, 64, why, sizeof(why));
    phi_report_fini(&report);
    for (size_t i = 0; i < n; i++)
        if (candidates[i].taken) {
            *chosen = candidates[i];
            return 0;
        }
    return refuse(error, error_size, rc ? rc : -ENOENT, "no provider", why);
}

// The library's wishes, but for the kinds of regions that nobody here would serve.
static struct fi_info *make_hints(const struct phi_libfabric *library,
                                  const struct phi_net_candidate *chosen)
{
    struct fi_info *hints = phi_libfabric_hints(library);
    if (!hints)
        return NULL;
    hints->domain_attr->mr_mode &= ~(FI_MR_RAW | FI_MR_ENDPOINT);
    hints->fabric_attr->prov_name = strdup(chosen->provider);
    hints->domain_attr->name = strdup(chosen->domain);
    return hints;
}

static int get_info(struct bench_direct *d, const struct phi_net_candidate *chosen)
{
    struct fi_info *hints = make_hints(d->library, chosen), *list = NULL, *best = NULL;
    if (!hints)
        return -FI_ENOMEM;
    int rc = d->library->fi_getinfo(d->library->api, NULL, NULL, 0, hints, &list);
    d->library->fi_freeinfo(hints);
    for (struct fi_info *info = list; info && !rc; info = info->next)
        if (!best || (best->addr_format == FI_SOCKADDR_IN6 && info->addr_format != FI_SOCKADDR_IN6))
            best = info;
    if (!rc)
        d->info = d->library->fi_dupinfo(best);
    if (list)
        d->library->fi_freeinfo(list);
    return rc ? rc : d->info ? 0 : -FI_ENOMEM;
}

static int open_endpoint(struct bench_direct *d)
{
    struct fi_cq_attr cq = {.size = 1024, .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE};
    struct fi_av_attr av = {.type = FI_AV_TABLE, .count = 2};
    int rc;
    if ((rc = d->library->fi_fabric(d->info->fabric_attr, &d->fabric, NULL)) ||
        (rc = fi_domain(d->fabric, d->info, &d->domain, NULL)) ||
        (rc = fi_cq_open(d->domain, &cq, &d->cq, NULL)) ||
        (rc = fi_av_open(d->domain, &av, &d->av, NULL)) ||
        (rc = fi_endpoint(d->domain, d->info, &d->ep, NULL)) ||
        (rc = fi_ep_bind(d->ep, &d->av->fid, 0)) ||
        (rc = fi_ep_bind(d->ep, &d->cq->fid, FI_TRANSMIT | FI_RECV)))
        return rc;
    return fi_enable(d->ep);
}

static int register_memory(struct bench_direct *d, void *base, size_t size, struct fid_mr **mr,
                           uint64_t *at, uint64_t *key)
{
    const uint64_t access = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    const uint64_t mode = (uint64_t)d->info->domain_attr->mr_mode;
    uint64_t wish = 0;
    if (!(mode & FI_MR_PROV_KEY)) {
        phi_random(&wish, sizeof(wish));
        wish &= d->info->domain_attr->mr_key_size < 8 ? 0xffff : UINT64_MAX;
    }
    int rc = fi_mr_reg(d->domain, base, size, access, 0, wish, 0, mr, NULL);
    if (rc)
        return rc;
    *at = mode & FI_MR_VIRT_ADDR ? (uintptr_t)base : 0;
    *key = fi_mr_key(*mr);
    return 0;
}

static int make(struct bench_direct *d, struct bench_direct_name *mine)
{
    int rc = open_endpoint(d);
    if (rc == 0)
        rc = register_memory(d, d->arena, d->arena_size, &d->arena_mr, &mine->arena,
                             &mine->arena_key);
    if (rc == 0)
        rc =
            register_memory(d, d->slot, sizeof(d->slot), &d->slot_mr, &mine->slot, &mine->slot_key);
    size_t size = sizeof(mine->address);
    if (rc == 0)
        rc = fi_getname(&d->ep->fid, mine->address, &size);
    mine->address_size = size;
    return rc;
}

int bench_direct_open(void *arena, size_t size, struct bench_direct **direct,
                      struct bench_direct_name *mine, char *error, size_t error_size)
{
    struct phi_config config = {0};
    struct phi_net_candidate chosen;
    char why[160] = "";
    struct bench_direct *d = aligned_alloc(64, sizeof(*d));
    if (!d)
        return refuse(error, error_size, -ENOMEM, "out of memory", "");
    memset(d, 0, sizeof(*d));
    d->arena = arena;
    d->arena_size = size;
    *mine = (struct bench_direct_name){0};
    int rc = choose(&chosen, &config, error, error_size);
    if (rc == 0 && !(d->library = phi_libfabric_load(config.libfabric, why, sizeof(why))))
        rc = refuse(error, error_size, -ENOENT, "no libfabric", why);
    phi_config_fini(&config);
    if (rc == 0) {
        rc = get_info(d, &chosen);
        if (rc == 0)
            rc = make(d, mine);
        if (rc)
            refuse(error, error_size, rc, chosen.provider, d->library->fi_strerror(-rc));
    }
    if (rc)
        bench_direct_close(d);
    else
        *direct = d;
    return rc;
}

int bench_direct_connect(struct bench_direct *direct, const struct bench_direct_name *peer,
                         char *error, size_t error_size)
{
    direct->theirs = *peer;
    if (fi_av_insert(direct->av, peer->address, 1, &direct->peer, 0, NULL) != 1)
        return refuse(error, error_size, -EINVAL, "the peer's address is refused", "");
    return 0;
}

// ---- what moves

static void fail(struct bench_direct *d, const char *what, int rc)
{
    if (!*d->failure)
        snprintf(d->failure, sizeof(d->failure), "the direct program: %s: %s", what,
                 d->library->fi_strerror(rc < 0 ? -rc : rc));
}

static void take_error(struct bench_direct *d)
{
    struct fi_cq_err_entry error = {0};
    if (fi_cq_readerr(d->cq, &error, 0) > 0)
        fail(d, "a completion", error.err);
}

static void look(struct bench_direct *d)
{
    struct fi_cq_data_entry entries[BATCH];
    ssize_t n = fi_cq_read(d->cq, entries, BATCH);
    for (ssize_t i = 0; i < n; i++) {
        if (!(entries[i].flags & FI_REMOTE_CQ_DATA))
            d->in_flight--;
        else if (entries[i].data == TELL_FLAG)
            d->flags++;
        else
            d->finishes++;
    }
    if (n == -FI_EAVAIL)
        take_error(d);
    else if (n < 0 && n != -FI_EAGAIN)
        fail(d, "fi_cq_read", (int)n);
}

static bool good(const struct bench_direct *d)
{
    return *d->failure == 0;
}

static void post(struct bench_direct *d, bool read, struct iovec *local, struct fid_mr *mr,
                 struct fi_rma_iov *remote, uint64_t data)
{
    void *desc = fi_mr_desc(mr);
    struct fi_msg_rma message = {.msg_iov = local,
                                 .desc = &desc,
                                 .iov_count = 1,
                                 .addr = d->peer,
                                 .rma_iov = remote,
                                 .rma_iov_count = 1,
                                 .context = &d->contexts[d->posted % WINDOW],
                                 .data = data};
    const uint64_t flags =
        FI_COMPLETION | (read ? 0 : FI_DELIVERY_COMPLETE) | (data ? FI_REMOTE_CQ_DATA : 0);
    ssize_t rc = -FI_EAGAIN;
    while (d->in_flight == WINDOW && good(d))
        look(d);
    while (rc == -FI_EAGAIN && good(d)) {
        rc = read ? fi_readmsg(d->ep, &message, flags) : fi_writemsg(d->ep, &message, flags);
        if (rc == -FI_EAGAIN)
            look(d);
    }
    if (rc && good(d))
        fail(d, "a post", (int)rc);
    d->posted += rc == 0;
    d->in_flight += rc == 0;
}

void bench_direct_move(struct bench_direct *d, bool read, size_t local_offset, size_t peer_offset,
                       size_t size)
{
    struct iovec local = {d->arena + local_offset, size};
    struct fi_rma_iov remote = {d->theirs.arena + peer_offset, size, d->theirs.arena_key};
    post(d, read, &local, d->arena_mr, &remote, 0);
}

static void tell(struct bench_direct *d, uint64_t what)
{
    struct iovec local = {d->slot, 8};
    struct fi_rma_iov remote = {d->theirs.slot + 32, 8, d->theirs.slot_key};
    post(d, false, &local, d->slot_mr, &remote, what);
}

// The slot is written again when what it held is delivered.
static void await_flag(struct bench_direct *d)
{
    d->flags_wanted++;
    while ((d->flags < d->flags_wanted || d->in_flight > 0) && good(d))
        look(d);
}

void bench_direct_flags(struct bench_direct *d, bool leader, size_t count)
{
    for (size_t i = 0; i < count && good(d); i++) {
        if (leader)
            tell(d, TELL_FLAG);
        await_flag(d);
        if (!leader)
            tell(d, TELL_FLAG);
    }
}

void bench_direct_drain(struct bench_direct *d)
{
    while (d->in_flight > 0 && good(d))
        look(d);
}

void bench_direct_finish(struct bench_direct *d)
{
    d->finish_wanted++;
    tell(d, TELL_FINISH);
    while ((d->finishes < d->finish_wanted || d->in_flight > 0) && good(d))
        look(d);
}

const char *bench_direct_failure(const struct bench_direct *d)
{
    return good(d) ? NULL : d->failure;
}

void bench_direct_close(struct bench_direct *d)
{
    if (!d)
        return;
    struct fid *const fids[] = {d->arena_mr ? &d->arena_mr->fid : NULL,
                                d->slot_mr ? &d->slot_mr->fid : NULL,
                                d->ep ? &d->ep->fid : NULL,
                                d->av ? &d->av->fid : NULL,
                                d->cq ? &d->cq->fid : NULL,
                                d->domain ? &d->domain->fid : NULL,
                                d->fabric ? &d->fabric->fid : NULL};
    for (size_t i = 0; i < sizeof(fids) / sizeof(fids[0]); i++)
        if (fids[i])
            fi_close(fids[i]);
    if (d->info)
        d->library->fi_freeinfo(d->info);
    free(d);
}
