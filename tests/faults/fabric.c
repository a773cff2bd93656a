// SPDX-License-Identifier: BSD-3-Clause
// Hooks before the calls of libfabric. Few of them are functions of the library; the others are
// found in tables that its objects point to. A copy of a table takes its place in each object that
// is made for libpeerhop.so.
#include "faults/inject.h"

#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

enum { TABLES = 32 }; // of one kind: those of all providers that are tried

#define FROM __builtin_return_address(0)

// Gives `failure` where this use is to fail; it is at the head of a hook.
#define MAY_FAIL(name)                                                                             \
    int error;                                                                                     \
    if (fault_hit(FAULT_CALL_##name, FROM, &error))                                                \
    return -error

// stand_for_TYPE gives the copy of a table, made when it is first met, and real_TYPE the other way.
#define TABLE(type)                                                                                \
    static void set_##type(struct type *ours);                                                     \
    static struct type##_copy {                                                                    \
        struct type ours;                                                                          \
        struct type *real;                                                                         \
    } type##_copies[TABLES];                                                                       \
    static struct type *stand_for_##type(struct type *real)                                        \
    {                                                                                              \
        struct type##_copy *copy = type##_copies;                                                  \
        while (copy->real && copy->real != real)                                                   \
            if (++copy == type##_copies + TABLES)                                                  \
                abort();                                                                           \
        if (!copy->real) {                                                                         \
            memcpy(&copy->ours, real, sizeof(copy->ours));                                         \
            copy->ours.size = sizeof(copy->ours);                                                  \
            set_##type(&copy->ours);                                                               \
            copy->real = real;                                                                     \
        }                                                                                          \
        return &copy->ours;                                                                        \
    }                                                                                              \
    static const struct type *real_##type(const struct type *ours)                                 \
    {                                                                                              \
        return ((const struct type##_copy *)ours)->real;                                           \
    }

TABLE(fi_ops)
TABLE(fi_ops_fabric)
TABLE(fi_ops_domain)
TABLE(fi_ops_mr)
TABLE(fi_ops_av)
TABLE(fi_ops_cq)
TABLE(fi_ops_cm)
TABLE(fi_ops_msg)
TABLE(fi_ops_rma)

// ---- every object

// Endpoints, and whether they are connected: they have taken a message. What would end them is not
// made to fail before: providers over TCP do not survive the end of an endpoint while they have
// accepted a connection for it and read nothing of it, and touch it once they do.
static struct endpoint {
    const struct fid *fid;
    bool connected;
} endpoints[TABLES];

static struct endpoint *endpoint_of(const struct fid *fid)
{
    for (int i = 0; i < TABLES; i++)
        if (endpoints[i].fid == fid)
            return &endpoints[i];
    return NULL;
}

static bool all_are_connected(void)
{
    for (int i = 0; i < TABLES; i++)
        if (endpoints[i].fid && !endpoints[i].connected)
            return false;
    return true;
}

// The operation of which the next look at its queue says that it has failed.
static struct {
    const struct fid *cq;
    struct fi_cq_err_entry entry;
} failed;

static int hook_close(struct fid *fid)
{
    struct endpoint *endpoint = endpoint_of(fid);
    int error, rc;

    if (endpoint)
        *endpoint = (struct endpoint){0};
    if (failed.cq == fid)
        failed.cq = NULL; // another one may come to lie there
    rc = real_fi_ops(fid->ops)->close(fid);
    return fault_hit(FAULT_CALL_fi_close, FROM, &error) ? -error : rc;
}

static int hook_bind(struct fid *fid, struct fid *to, uint64_t flags)
{
    int error, rc = real_fi_ops(fid->ops)->bind(fid, to, flags);

    return fault_hit(FAULT_CALL_fi_ep_bind, FROM, &error) ? -error : rc;
}

static int hook_control(struct fid *fid, int command, void *argument)
{
    int error;

    if (fault_hit(command == FI_ENABLE ? FAULT_CALL_fi_enable : FAULT_CALL_fi_control, FROM,
                  &error))
        return -error;
    return real_fi_ops(fid->ops)->control(fid, command, argument);
}

static void set_fi_ops(struct fi_ops *ours)
{
    ours->close = hook_close;
    ours->bind = hook_bind;
    ours->control = hook_control;
}

static void take(struct fid *fid)
{
    fid->ops = stand_for_fi_ops(fid->ops);
}

// ---- queues

static ssize_t hook_read(struct fid_cq *cq, void *buffer, size_t count)
{
    struct fi_cq_data_entry *entries = buffer;
    ssize_t n;
    MAY_FAIL(fi_cq_read);

    if (failed.cq == &cq->fid)
        return -FI_EAVAIL;
    n = real_fi_ops_cq(cq->ops)->read(cq, buffer, count);
    for (ssize_t i = 0; i < n; i++) {
        if (!entries[i].op_context || !all_are_connected() ||
            !fault_hit(FAULT_CALL_fi_completion, FROM, &error))
            continue;
        failed.cq = &cq->fid;
        failed.entry = (struct fi_cq_err_entry){.op_context = entries[i].op_context, .err = error};
        return i > 0 ? i
                     : -FI_EAVAIL; // the queue is its link's, which ends: none behind it is missed
    }
    return n;
}

static ssize_t hook_sread(struct fid_cq *cq, void *buffer, size_t count, const void *condition,
                          int timeout)
{
    MAY_FAIL(fi_cq_sread);
    return real_fi_ops_cq(cq->ops)->sread(cq, buffer, count, condition, timeout);
}

static ssize_t hook_readerr(struct fid_cq *cq, struct fi_cq_err_entry *entry, uint64_t flags)
{
    MAY_FAIL(fi_cq_readerr);
    if (failed.cq != &cq->fid)
        return real_fi_ops_cq(cq->ops)->readerr(cq, entry, flags);
    *entry = failed.entry;
    failed.cq = NULL;
    return 1;
}

static void set_fi_ops_cq(struct fi_ops_cq *ours)
{
    ours->read = hook_read;
    ours->sread = hook_sread;
    ours->readerr = hook_readerr;
}

// ---- addresses, regions

static int hook_insert(struct fid_av *av, const void *address, size_t count, fi_addr_t *to,
                       uint64_t flags, void *context)
{
    MAY_FAIL(fi_av_insert);
    return real_fi_ops_av(av->ops)->insert(av, address, count, to, flags, context);
}

static void set_fi_ops_av(struct fi_ops_av *ours)
{
    ours->insert = hook_insert;
}

static int hook_reg(struct fid *fid, const void *base, size_t size, uint64_t access,
                    uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **mr,
                    void *context)
{
    const struct fid_domain *domain = (struct fid_domain *)fid;
    int rc;
    MAY_FAIL(fi_mr_reg);

    rc = real_fi_ops_mr(domain->mr)->reg(fid, base, size, access, offset, key, flags, mr, context);
    if (!rc && fault_ours(FROM))
        take(&(*mr)->fid);
    return rc;
}

static void set_fi_ops_mr(struct fi_ops_mr *ours)
{
    ours->reg = hook_reg;
}

// ---- endpoints

static int hook_getname(struct fid *fid, void *address, size_t *size)
{
    const struct fid_ep *ep = (struct fid_ep *)fid;
    MAY_FAIL(fi_getname);

    return real_fi_ops_cm(ep->cm)->getname(fid, address, size);
}

static void set_fi_ops_cm(struct fi_ops_cm *ours)
{
    ours->getname = hook_getname;
}

static ssize_t hook_recv(struct fid_ep *ep, void *buffer, size_t size, void *desc, fi_addr_t from,
                         void *context)
{
    MAY_FAIL(fi_recv);
    return real_fi_ops_msg(ep->msg)->recv(ep, buffer, size, desc, from, context);
}

static ssize_t hook_sendmsg(struct fid_ep *ep, const struct fi_msg *message, uint64_t flags)
{
    struct endpoint *endpoint = endpoint_of(&ep->fid);
    int error;
    ssize_t rc;

    if (all_are_connected() && fault_hit(FAULT_CALL_fi_sendmsg, FROM, &error))
        return -error;
    rc = real_fi_ops_msg(ep->msg)->sendmsg(ep, message, flags);
    if (rc == 0)
        endpoint->connected = true;
    return rc;
}

static void set_fi_ops_msg(struct fi_ops_msg *ours)
{
    ours->recv = hook_recv;
    ours->sendmsg = hook_sendmsg;
}

static ssize_t hook_writemsg(struct fid_ep *ep, const struct fi_msg_rma *message, uint64_t flags)
{
    MAY_FAIL(fi_writemsg);
    return real_fi_ops_rma(ep->rma)->writemsg(ep, message, flags);
}

static ssize_t hook_readmsg(struct fid_ep *ep, const struct fi_msg_rma *message, uint64_t flags)
{
    MAY_FAIL(fi_readmsg);
    return real_fi_ops_rma(ep->rma)->readmsg(ep, message, flags);
}

static void set_fi_ops_rma(struct fi_ops_rma *ours)
{
    ours->writemsg = hook_writemsg;
    ours->readmsg = hook_readmsg;
}

// ---- the domain: what it makes for the library gets tables of ours

static int hook_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av,
                        void *context)
{
    int rc;
    MAY_FAIL(fi_av_open);

    rc = real_fi_ops_domain(domain->ops)->av_open(domain, attr, av, context);
    if (!rc && fault_ours(FROM)) {
        take(&(*av)->fid);
        (*av)->ops = stand_for_fi_ops_av((*av)->ops);
    }
    return rc;
}

static int hook_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq,
                        void *context)
{
    int rc;
    MAY_FAIL(fi_cq_open);

    rc = real_fi_ops_domain(domain->ops)->cq_open(domain, attr, cq, context);
    if (!rc && fault_ours(FROM)) {
        take(&(*cq)->fid);
        (*cq)->ops = stand_for_fi_ops_cq((*cq)->ops);
    }
    return rc;
}

static int hook_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep,
                         void *context)
{
    int rc;
    MAY_FAIL(fi_endpoint);

    rc = real_fi_ops_domain(domain->ops)->endpoint(domain, info, ep, context);
    if (!rc && fault_ours(FROM)) {
        struct endpoint *endpoint = endpoint_of(NULL);

        if (!endpoint)
            abort();
        endpoint->fid = &(*ep)->fid;
        take(&(*ep)->fid);
        (*ep)->cm = stand_for_fi_ops_cm((*ep)->cm);
        (*ep)->msg = stand_for_fi_ops_msg((*ep)->msg);
        (*ep)->rma = stand_for_fi_ops_rma((*ep)->rma);
    }
    return rc;
}

static void set_fi_ops_domain(struct fi_ops_domain *ours)
{
    ours->av_open = hook_av_open;
    ours->cq_open = hook_cq_open;
    ours->endpoint = hook_endpoint;
}

// ---- the fabric

static int hook_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain,
                       void *context)
{
    int rc;
    MAY_FAIL(fi_domain);

    rc = real_fi_ops_fabric(fabric->ops)->domain(fabric, info, domain, context);
    if (!rc && fault_ours(FROM)) {
        take(&(*domain)->fid);
        (*domain)->ops = stand_for_fi_ops_domain((*domain)->ops);
        (*domain)->mr = stand_for_fi_ops_mr((*domain)->mr);
    }
    return rc;
}

static int hook_trywait(struct fid_fabric *fabric, struct fid **fids, int count)
{
    MAY_FAIL(fi_trywait);
    return real_fi_ops_fabric(fabric->ops)->trywait(fabric, fids, count);
}

static void set_fi_ops_fabric(struct fi_ops_fabric *ours)
{
    ours->domain = hook_domain;
    ours->trywait = hook_trywait;
}

// ---- the library's functions

static __typeof__(&fi_getinfo) getinfo;
static __typeof__(&fi_dupinfo) dupinfo;
static __typeof__(&fi_fabric) open_fabric;

static int hook_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                        const struct fi_info *hints, struct fi_info **list)
{
    MAY_FAIL(fi_getinfo);
    return getinfo(version, node, service, flags, hints, list);
}

static struct fi_info *hook_dupinfo(const struct fi_info *info)
{
    int error;

    return fault_hit(FAULT_CALL_fi_dupinfo, FROM, &error) ? NULL : dupinfo(info);
}

static int hook_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
    int rc;
    MAY_FAIL(fi_fabric);

    rc = open_fabric(attr, fabric, context);
    if (!rc) {
        take(&(*fabric)->fid);
        (*fabric)->ops = stand_for_fi_ops_fabric((*fabric)->ops);
    }
    return rc;
}

// memcpy: a function's address out of an object's.
#define HOOK(symbol, real, hook)                                                                   \
    if (strcmp(name, symbol) == 0) {                                                               \
        memcpy(&(real), &function, sizeof(real));                                                  \
        __typeof__(&(hook)) ours = hook;                                                           \
        memcpy(&found, &ours, sizeof(found));                                                      \
    }

void *fault_fabric_hook(const char *name, void *function)
{
    void *found = NULL;

    HOOK("fi_getinfo", getinfo, hook_getinfo)
    HOOK("fi_dupinfo", dupinfo, hook_dupinfo)
    HOOK("fi_fabric", open_fabric, hook_fabric)
    return found;
}
