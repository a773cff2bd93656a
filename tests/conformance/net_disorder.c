// SPDX-License-Identifier: BSD-3-Clause
// The unkind half of the strict libfabric:
//   disorder  RMA operations go out in any order, some so late that others that came after them are
//             over, and what completes is told in any order, and late; only messages keep theirs
//   claims    ... although writes are said to keep theirs, too
//   large     ... and those of up to 4 KiB do
//   late      immediate data is told of 5 ms after it has come, behind messages that came meanwhile
//   hasty     a write that does not ask for its delivery is over at once, but goes out 20 ms later,
//             as do all others, in their order; what has not gone when its endpoint closes never
//             does
//   again     every call that posts is sometimes to be tried again
// and what tests ask for: an operation that ends with an error, and a peer that says nothing more.
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fi_errno.h>

#include "net_strict.h"

enum { PENDING = 512, ENTRIES = 512, QUEUES = 256, LATE_US = 2000, IMMEDIATE_US = 5000 };
enum { SMALL = 4096, HASTY_US = 20000 };

// An operation that was taken and is not with the provider yet.
struct pending {
    rma_fn fn;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fi_msg_rma message;
    struct iovec local;
    struct fi_rma_iov remote;
    void *desc;
    uint64_t flags;
    int64_t due; // not before
};

// A queue of completions: those that the provider has told of and we have not.
struct queue {
    struct fid_cq *cq;
    int made; // the how manieth it is
    struct fi_cq_data_entry entries[ENTRIES];
    int n;
    struct fi_cq_err_entry error;
    int failed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of everything here
static struct pending pending[PENDING];
static int pending_count;
// What a hasty write needs until the provider is done with it.
struct hasty {
    struct fi_context2 context; // first
    void *bytes;                // NULL: not in use
};
static struct hasty hasties[PENDING];
static struct queue queues[QUEUES];
static struct fi_ops_cq *real_cq;
static struct fi_ops *real_cq_fid;
static int fail_in, silent;
static int lose_immediate, lose_message; // in how many; 0: none
static struct {
    struct fid_cq *cq;
    struct fi_cq_data_entry entry;
    int64_t due; // not before
} late[ENTRIES]; // immediate data that has come and is not told of
static int late_count, late_on;
static int made, deaf_from; // queues; from which one on they are deaf, or 0
static int kept_from;       // ... and from which one on only `keeper` is told, or 0
static pthread_t keeper;

static unsigned any(unsigned n)
{
    static unsigned state = 88172645;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state % n;
}

static int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static struct queue *queue_of(const struct fid_cq *cq)
{
    for (int i = 0; i < QUEUES; i++)
        if (queues[i].cq == cq)
            return &queues[i];
    return NULL;
}

EXPORT void strict_fail_next(int n)
{
    pthread_mutex_lock(&lock);
    fail_in = n;
    pthread_mutex_unlock(&lock);
}

EXPORT void strict_deaf(int count)
{
    pthread_mutex_lock(&lock);
    deaf_from = count > 0 ? made - count + 1 : 0;
    pthread_mutex_unlock(&lock);
}

EXPORT void strict_keep(int count)
{
    pthread_mutex_lock(&lock);
    kept_from = count > 0 ? made - count + 1 : 0;
    keeper = pthread_self();
    for (int i = 0; i < QUEUES; i++) {
        if (!queues[i].cq || count <= 0 || queues[i].made < kept_from)
            continue;
        queues[i].failed = 1;
        queues[i].error = (struct fi_cq_err_entry){.op_context = &queues[i], .err = FI_EIO};
    }
    pthread_mutex_unlock(&lock);
}

EXPORT void strict_stray(int count)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < QUEUES; i++) {
        if (!queues[i].cq || queues[i].made <= made - count)
            continue;
        queues[i].failed = 1;
        queues[i].error = (struct fi_cq_err_entry){.err = FI_EIO};
    }
    pthread_mutex_unlock(&lock);
}

EXPORT void strict_lose(int immediate, int message)
{
    pthread_mutex_lock(&lock);
    lose_immediate = immediate;
    lose_message = message;
    pthread_mutex_unlock(&lock);
}

EXPORT void strict_late(int on)
{
    pthread_mutex_lock(&lock);
    late_on = on;
    pthread_mutex_unlock(&lock);
}

EXPORT void strict_silence(int on)
{
    pthread_mutex_lock(&lock);
    silent = on;
    pthread_mutex_unlock(&lock);
}

int disorder_refuses(void)
{
    int refuses;
    if (!demands("again"))
        return 0;
    pthread_mutex_lock(&lock);
    refuses = any(3) == 0;
    pthread_mutex_unlock(&lock);
    return refuses;
}

// ---- going out

static ssize_t go(const struct pending *p)
{
    struct fi_msg_rma message = p->message;
    struct fi_rma_iov remote = p->remote;
    struct iovec local = p->local;
    void *desc = p->desc;
    message.msg_iov = &local;
    message.rma_iov = &remote;
    message.desc = &desc;
    return p->fn(p->ep, &message, p->flags);
}

// In order, when it is due.
static void let_go_late(const struct fid_cq *cq)
{
    for (int i = 0; i < pending_count;) {
        if (pending[i].cq != cq) {
            i++;
            continue;
        }
        if (now_us() < pending[i].due || go(&pending[i]) == -FI_EAGAIN)
            return;
        memmove(&pending[i], &pending[i + 1], (size_t)(--pending_count - i) * sizeof(pending[0]));
    }
}

// The write has its own bytes from now on, and is over for who posted it.
static void be_hasty(struct queue *queue, struct pending *p)
{
    struct hasty *hasty = hasties;
    while (hasty->bytes && hasty < hasties + PENDING - 1)
        hasty++;
    if (hasty->bytes || queue->n == ENTRIES || !(hasty->bytes = malloc(p->local.iov_len + 1)))
        return; // it is as others
    memcpy(hasty->bytes, p->local.iov_base, p->local.iov_len);
    queue->entries[queue->n++] =
        (struct fi_cq_data_entry){.op_context = p->message.context, .flags = FI_RMA | FI_WRITE};
    p->local.iov_base = hasty->bytes;
    p->message.context = hasty;
}

static int is_hasty(const void *context)
{
    return (const struct hasty *)context >= hasties &&
           (const struct hasty *)context < hasties + PENDING;
}

static int release_hasty(void *context)
{
    if (!is_hasty(context))
        return 0;
    free(((struct hasty *)context)->bytes);
    ((struct hasty *)context)->bytes = NULL;
    return 1;
}

// Without those that are over for who posted them.
static ssize_t end_hasty(struct fi_cq_data_entry *entries, ssize_t n)
{
    ssize_t kept = 0;
    for (ssize_t i = 0; i < n; i++)
        if (!release_hasty(entries[i].op_context))
            entries[kept++] = entries[i];
    return n > 0 && kept == 0 ? -FI_EAGAIN : n > 0 ? kept : n;
}

// Some of what is pending goes to the provider, in any order.
static void let_go(const struct fid_cq *cq)
{
    for (int tries = 4; tries > 0 && pending_count > 0; tries--) {
        int i = (int)any((unsigned)pending_count);
        if (pending[i].cq != cq || silent || any(4) == 0 || now_us() < pending[i].due ||
            go(&pending[i]) == -FI_EAGAIN)
            continue;
        pending[i] = pending[--pending_count];
    }
}

static ssize_t fail_it(struct queue *queue, const struct fi_msg_rma *message)
{
    queue->failed = 1;
    queue->error = (struct fi_cq_err_entry){.op_context = message->context, .err = FI_EIO};
    return 0;
}

static int is_spared(const struct fi_msg_rma *message)
{
    if (demands("hasty"))
        return 0;
    return !demands("disorder") || (demands("large") && message->msg_iov->iov_len <= SMALL);
}

ssize_t disorder_rma(rma_fn fn, struct fid_ep *ep, struct fid_cq *cq,
                     const struct fi_msg_rma *message, uint64_t flags)
{
    struct queue *queue;
    ssize_t rc = -FI_EAGAIN;
    pthread_mutex_lock(&lock);
    queue = queue_of(cq);
    if (queue && fail_in > 0 && --fail_in == 0) {
        rc = fail_it(queue, message);
    } else if (is_spared(message) && !silent) {
        rc = fn(ep, message, flags);
    } else if (pending_count < PENDING) {
        pending[pending_count++] = (struct pending){.fn = fn,
                                                    .ep = ep,
                                                    .cq = cq,
                                                    .message = *message,
                                                    .local = *message->msg_iov,
                                                    .remote = *message->rma_iov,
                                                    .desc = *message->desc,
                                                    .flags = flags,
                                                    .due = any(8) ? 0 : now_us() + any(LATE_US)};
        rc = 0;
        if (demands("hasty"))
            pending[pending_count - 1].due = now_us() + HASTY_US;
        if (demands("hasty") && strict_writes(fn) && !(flags & FI_DELIVERY_COMPLETE))
            be_hasty(queue, &pending[pending_count - 1]);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

void disorder_forget_ep(struct fid_ep *ep)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < pending_count;)
        if (pending[i].ep == ep) {
            release_hasty(pending[i].message.context);
            pending[i] = pending[--pending_count];
        } else {
            i++;
        }
    pthread_mutex_unlock(&lock);
}

// ---- coming in

// Returns whether the provider has an error to tell of.
static int take_all(struct queue *queue)
{
    ssize_t n = ENTRIES - queue->n;
    if (n > 16)
        n = 16;
    if (n > 0)
        n = real_cq->read(queue->cq, &queue->entries[queue->n], (size_t)n);
    if (n > 0)
        queue->n += (int)n;
    return n == -FI_EAVAIL;
}

// Messages come in their order, other things when it pleases us.
static int is_message(const struct fi_cq_data_entry *entry)
{
    return (entry->flags & FI_RECV) && !(entry->flags & FI_REMOTE_CQ_DATA);
}

static int pick(const struct queue *queue)
{
    int i = (int)any((unsigned)queue->n);
    for (int j = 0; is_message(&queue->entries[i]) && j < i; j++)
        if (is_message(&queue->entries[j]))
            i = j;
    return i;
}

static ssize_t give(struct queue *queue, struct fi_cq_data_entry *entries, size_t count)
{
    size_t n = 0;
    while (n < count && queue->n > 0 && any(3) != 0) {
        int i = pick(queue);
        entries[n++] = queue->entries[i];
        memmove(&queue->entries[i], &queue->entries[i + 1],
                (size_t)(--queue->n - i) * sizeof(queue->entries[0]));
    }
    return n ? (ssize_t)n : -FI_EAGAIN;
}

static ssize_t give_in_order(struct queue *queue, struct fi_cq_data_entry *entries, size_t count)
{
    const int n = queue->n < (int)count ? queue->n : (int)count;
    memcpy(entries, queue->entries, (size_t)n * sizeof(*entries));
    memmove(queue->entries, &queue->entries[n], (size_t)(queue->n -= n) * sizeof(*entries));
    return n;
}

static int is_lost(const struct fi_cq_data_entry *entry)
{
    int *left = NULL;
    if (entry->flags & FI_REMOTE_CQ_DATA)
        left = &lose_immediate;
    else if (is_message(entry) && entry->len > GREETING)
        left = &lose_message;
    return left && *left > 0 && --*left == 0;
}

static ssize_t lose(struct fi_cq_data_entry *entries, ssize_t n)
{
    ssize_t kept = 0;
    for (ssize_t i = 0; i < n; i++)
        if (!is_lost(&entries[i]))
            entries[kept++] = entries[i];
    return n > 0 && kept == 0 ? -FI_EAGAIN : n > 0 ? kept : n;
}

// Of n entries, for which there is room for `count`.
static ssize_t delay(struct fid_cq *cq, struct fi_cq_data_entry *entries, ssize_t n, size_t count)
{
    ssize_t kept = 0;
    if (n < 0 && n != -FI_EAGAIN)
        return n;
    for (ssize_t i = 0; i < n; i++) {
        if ((late_on || demands("late")) && (entries[i].flags & FI_REMOTE_CQ_DATA) &&
            late_count < ENTRIES) {
            late[late_count].cq = cq;
            late[late_count].due = demands("late") ? now_us() + IMMEDIATE_US : 0;
            late[late_count++].entry = entries[i];
        } else {
            entries[kept++] = entries[i];
        }
    }
    for (int i = 0; i < late_count && !late_on && (size_t)kept < count;) {
        if (late[i].cq == cq && now_us() >= late[i].due) {
            entries[kept++] = late[i].entry;
            late[i] = late[--late_count];
        } else {
            i++;
        }
    }
    return kept ? kept : -FI_EAGAIN;
}

static int is_deaf(const struct queue *queue)
{
    return deaf_from > 0 && queue->made >= deaf_from;
}

static int is_kept(const struct queue *queue)
{
    return kept_from > 0 && queue->made >= kept_from;
}

static ssize_t disorder_read(struct fid_cq *cq, void *entries, size_t count)
{
    struct queue *queue;
    ssize_t rc;
    int keeps;
    pthread_mutex_lock(&lock);
    queue = queue_of(cq);
    demands("hasty") ? let_go_late(cq) : let_go(cq);
    keeps = is_kept(queue) && pthread_equal(keeper, pthread_self());
    if (is_kept(queue) && !keeps && !is_deaf(queue))
        take_all(queue);
    if (!keeps && (is_kept(queue) || is_deaf(queue)))
        rc = -FI_EAGAIN;
    else if (queue->failed)
        rc = -FI_EAVAIL;
    else if (!demands("disorder") && queue->n > 0)
        rc = give_in_order(queue, entries, count);
    else if (!demands("disorder"))
        rc = silent ? -FI_EAGAIN : end_hasty(entries, real_cq->read(cq, entries, count));
    else if (silent)
        rc = -FI_EAGAIN;
    else {
        rc = take_all(queue) ? -FI_EAVAIL : give(queue, entries, count);
    }
    rc = delay(cq, entries, lose(entries, rc), count);
    pthread_mutex_unlock(&lock);
    for (ssize_t i = 0; i < rc; i++)
        if (!(((struct fi_cq_data_entry *)entries)[i].flags & FI_REMOTE_CQ_DATA))
            strict_landed(((struct fi_cq_data_entry *)entries)[i].op_context);
    return rc;
}

static ssize_t disorder_sread(struct fid_cq *cq, void *entries, size_t count, const void *condition,
                              int timeout)
{
    (void)condition;
    usleep((useconds_t)timeout * 1000);
    return disorder_read(cq, entries, count);
}

static ssize_t disorder_readerr(struct fid_cq *cq, struct fi_cq_err_entry *entry, uint64_t flags)
{
    struct queue *queue;
    ssize_t rc = 1;
    pthread_mutex_lock(&lock);
    queue = queue_of(cq);
    if (queue->failed)
        *entry = queue->error;
    else
        rc = real_cq->readerr(cq, entry, flags);
    queue->failed = 0;
    if (rc > 0 && release_hasty(entry->op_context))
        entry->op_context = NULL;
    pthread_mutex_unlock(&lock);
    if (rc > 0)
        strict_landed(entry->op_context);
    return rc;
}

int disorder_trywait(struct fid_fabric *fabric, struct fid **fids, int count,
                     __typeof__(((struct fi_ops_fabric *)0)->trywait) real)
{
    int busy;
    pthread_mutex_lock(&lock);
    busy = pending_count > 0;
    for (int i = 0; i < QUEUES; i++)
        busy = busy || (queues[i].cq && (queues[i].n > 0 || queues[i].failed));
    pthread_mutex_unlock(&lock);
    return busy ? -FI_EAGAIN : real(fabric, fids, count);
}

static int disorder_cq_close(struct fid *fid)
{
    pthread_mutex_lock(&lock);
    struct queue *queue = queue_of((struct fid_cq *)fid);
    if (queue)
        *queue = (struct queue){0};
    for (int i = 0; i < late_count;)
        if (&late[i].cq->fid == fid)
            late[i] = late[--late_count];
        else
            i++;
    pthread_mutex_unlock(&lock);
    return real_cq_fid->close(fid);
}

int disorder_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq,
                     void *context, __typeof__(((struct fi_ops_domain *)0)->cq_open) real)
{
    static struct fi_ops_cq ops;
    static struct fi_ops fid_ops;
    int rc = real(domain, attr, cq, context);
    if (rc)
        return rc;
    pthread_mutex_lock(&lock);
    struct queue *queue = queue_of(NULL);
    if (queue) {
        if (!real_cq) {
            real_cq = (*cq)->ops;
            real_cq_fid = (*cq)->fid.ops;
            ops = *real_cq;
            ops.read = disorder_read;
            ops.sread = disorder_sread;
            ops.readerr = disorder_readerr;
            fid_ops = *real_cq_fid;
            fid_ops.close = disorder_cq_close;
        }
        *queue = (struct queue){.cq = *cq, .made = ++made};
        (*cq)->ops = &ops;
        (*cq)->fid.ops = &fid_ops;
    }
    pthread_mutex_unlock(&lock);
    return queue ? 0 : -FI_ENOMEM;
}
