// SPDX-License-Identifier: BSD-3-Clause
// A link: its endpoint, what completes on it, and the log of stores and messages.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/internal.h"

// Frames of the wire: a header, then its bytes. Between libraries of one version of this layout
// only: the two ends compare PHI_NET_VERSION before they connect.
enum frame { FRAME_STORES = 1, FRAME_MESSAGE = 2, FRAME_BYE = 3 };
struct frame_header {
    uint32_t kind, size;
};
struct store {
    uint32_t offset, size;
    uint64_t value;
};

// ---- the log

struct entry {
    uint32_t kind, size;
};

static size_t padded(uint32_t size)
{
    return (size + 7u) & ~7u;
}

int phi_log_add(struct phi_log_buffer *log, uint32_t kind, const void *bytes, uint32_t size)
{
    struct entry entry = {kind, size};
    size_t need = sizeof(entry) + padded(size);

    if (log->at > 0 && log->at == log->size)
        log->at = log->size = 0;
    if (log->size + need > log->room) {
        size_t room = log->room ? log->room * 2 : 4096;
        uint8_t *bigger;

        while (log->size + need > room)
            room *= 2;
        bigger = realloc(log->bytes, room);
        if (!bigger)
            return -ENOMEM;
        log->bytes = bigger;
        log->room = room;
    }
    memcpy(log->bytes + log->size, &entry, sizeof(entry));
    if (size)
        memcpy(log->bytes + log->size + sizeof(entry), bytes, size);
    log->size += need;
    return 0;
}

const void *phi_log_peek(const struct phi_log_buffer *log, uint32_t *kind, uint32_t *size)
{
    struct entry entry;

    if (log->at == log->size)
        return NULL;
    memcpy(&entry, log->bytes + log->at, sizeof(entry));
    *kind = entry.kind;
    *size = entry.size;
    return log->bytes + log->at + sizeof(entry);
}

void phi_log_drop(struct phi_log_buffer *log)
{
    uint32_t kind, size;

    if (phi_log_peek(log, &kind, &size))
        log->at += sizeof(struct entry) + padded(size);
}

void phi_log_free(struct phi_log_buffer *log)
{
    free(log->bytes);
    *log = (struct phi_log_buffer){0};
}

// ---- sending

static void *buffers_desc(const struct phi_link *link)
{
    return link->buffers_mr ? fi_mr_desc(link->buffers_mr) : NULL;
}

static struct phi_slot_op *free_send(struct phi_link *link)
{
    for (int i = 0; i < PHI_SENDS; i++)
        if (!link->sends[i].busy)
            return &link->sends[i];
    return NULL;
}

// Fills a frame with the oldest entry, and the stores that follow one; returns how many.
static uint32_t fill_frame(struct phi_log_buffer *log, uint8_t *frame, size_t *size)
{
    struct phi_log_buffer look = *log;
    struct frame_header header = {0};
    uint32_t kind, bytes, n = 0;
    const void *from;

    *size = sizeof(header);
    while ((from = phi_log_peek(&look, &kind, &bytes)) != NULL) {
        if (n > 0 && (kind != FRAME_STORES || *size + bytes > PHI_NET_MESSAGE_MAX))
            break;
        memcpy(frame + *size, from, bytes);
        *size += bytes;
        header.kind = kind;
        n++;
        phi_log_drop(&look);
        if (kind != FRAME_STORES)
            break;
    }
    header.size = (uint32_t)(*size - sizeof(header));
    memcpy(frame, &header, sizeof(header));
    return n;
}

static ssize_t send_frame(struct phi_link *link, struct phi_slot_op *slot, size_t size)
{
    struct iovec part = {.iov_base = link->buffers->send[slot - link->sends], .iov_len = size};
    void *desc = buffers_desc(link);
    struct fi_msg message = {
        .msg_iov = &part, .desc = &desc, .iov_count = 1, .addr = link->peer, .context = &slot->op};

    return fi_sendmsg(link->ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

// A peer that is gone is a connection that cannot be made again, about which providers say no more
// than "try again", for ever. One that only does not read has something of ours on its way.
#define STALL_MS 1500
#define RETRY_MS 10 // between attempts, at most

static void note_stall(struct phi_link *link)
{
    int64_t now = phi_now();

    if (!link->established || link->sending > 0 || link->posting > 0 || link->moves)
        link->stalled = 0;
    else if (link->stalled == 0)
        link->stalled = now;
    else if (now - link->stalled > STALL_MS * PHI_MS)
        phi_link_fail(link, -ECONNRESET, "its connection is gone and cannot be made again");
}

// Each message that is tried may make the provider try to connect once more. So the pauses grow
// with the time that it has been refused.
static void note_refused(struct phi_link *link)
{
    int64_t now = phi_now(), pause;

    if (link->refused == 0)
        link->refused = now;
    pause = (now - link->refused) / 8;
    link->retry = now + (pause < RETRY_MS * PHI_MS ? pause : RETRY_MS * PHI_MS);
    note_stall(link);
}

bool phi_link_flush(struct phi_link *link)
{
    struct phi_slot_op *slot;
    bool sent = false;

    if (link->refused && phi_now() < link->retry)
        return false;
    while (link->ep && link->connected && link->out.at < link->out.size &&
           (slot = free_send(link)) != NULL) {
        size_t size;
        uint32_t entries = fill_frame(&link->out, link->buffers->send[slot - link->sends], &size);
        ssize_t rc = send_frame(link, slot, size);

        if (rc == -FI_EAGAIN) {
            note_refused(link);
            break;
        }
        if (rc) {
            phi_link_fail(link, -ECONNRESET, phi_net_error(link->net, (int)rc));
            break;
        }
        link->stalled = link->refused = 0;
        slot->busy = true;
        link->sending++;
        sent = true;
        while (entries-- > 0)
            phi_log_drop(&link->out);
    }
    return sent;
}

bool phi_link_idle(const struct phi_link *link)
{
    return !link->ep || !link->connected ||
           (link->out.at == link->out.size && link->sending == 0 && link->posting == 0);
}

// ---- receiving

static int post_receive(struct phi_link *link, int i)
{
    struct phi_slot_op *slot = &link->receives[i];

    return (int)fi_recv(link->ep, link->buffers->receive[i], PHI_NET_MESSAGE_MAX,
                        buffers_desc(link), FI_ADDR_UNSPEC, &slot->op);
}

// Everything from the peer is checked: an offset outside is as good as no store.
static void apply_store(struct phi_link *link, const struct store *store)
{
    const struct phi_mirror *mirror = &link->mirror;
    char *at = mirror->stores + store->offset;

    if (store->offset % store->size || store->offset > mirror->stores_size - store->size)
        return;
    // In the order of the log; release: what came before is seen by who acquires this.
    if (store->size == 4)
        atomic_store((_Atomic uint32_t *)at, (uint32_t)store->value);
    else
        atomic_store((_Atomic uint64_t *)at, store->value);
}

static void apply_stores(struct phi_link *link, const uint8_t *bytes, size_t size)
{
    struct store store;

    for (size_t at = 0; at + sizeof(store) <= size; at += sizeof(store)) {
        memcpy(&store, bytes + at, sizeof(store));
        if ((store.size == 4 || store.size == 8) && link->mirror.stores_size >= store.size)
            apply_store(link, &store);
    }
    if (link->net->store_ring >= 0)
        phi_wake_ring(link->net->store_ring);
}

void phi_link_received(struct phi_link *link, uint32_t index, size_t size)
{
    const uint8_t *frame = link->buffers->receive[index];
    struct frame_header header;

    if (size < sizeof(header) || size > PHI_NET_MESSAGE_MAX)
        goto malformed;
    memcpy(&header, frame, sizeof(header));
    if (header.size != size - sizeof(header))
        goto malformed;
    frame += sizeof(header);
    if (header.kind == FRAME_STORES) {
        apply_stores(link, frame, header.size);
    } else if (header.kind == FRAME_MESSAGE) {
        if (phi_log_add(&link->in, FRAME_MESSAGE, frame, header.size))
            phi_link_fail(link, -ENOMEM, "out of memory for a message");
        else if (link->net->message_ring >= 0)
            phi_wake_ring(link->net->message_ring);
    } else if (header.kind == FRAME_BYE) {
        phi_link_fail(link, -ECONNRESET, "it has left");
        return;
    } else {
        goto malformed;
    }
    if (link->ep && post_receive(link, (int)index))
        phi_link_fail(link, -ECONNRESET, "its messages cannot be received any more");
    return;
malformed:
    phi_link_fail(link, -EBADMSG, "a malformed message came");
}

bool phi_link_receive(struct phi_link *link, void *bytes, size_t *size)
{
    struct phi_net *net = link->net;
    uint32_t kind, n;
    const void *from;

    phi_net_lock(net);
    from = phi_log_peek(&link->in, &kind, &n);
    if (from) {
        memcpy(bytes, from, n);
        *size = n;
        phi_log_drop(&link->in);
    }
    pthread_mutex_unlock(&net->lock);
    return from != NULL;
}

// ---- completions

static void completed(struct phi_link *link, const struct fi_cq_data_entry *entry)
{
    struct phi_net_op *op = entry->op_context;
    struct phi_slot_op *slot = entry->op_context;

    // Of what comes from the peer some providers say no more than this flag.
    if (entry->flags & FI_REMOTE_CQ_DATA) {
        phi_post_apply(link, (uint32_t)entry->data);
        return;
    }
    if (!op)
        return;
    switch (op->kind) {
    case PHI_OP_MOVE:
        phi_move_completed(entry->op_context);
        break;
    case PHI_OP_POST:
        slot->busy = false;
        link->posting--;
        break;
    case PHI_OP_SEND:
        link->established = true;
        slot->busy = false;
        link->sending--;
        break;
    case PHI_OP_RECEIVE:
        phi_link_received(link, (uint32_t)(slot - link->receives), entry->len);
        break;
    }
}

static void take_error(struct phi_link *link)
{
    struct fi_cq_err_entry error = {0};
    const char *text = NULL;
    char why[160];

    if (fi_cq_readerr(link->cq, &error, 0) < 0)
        return;
    if (error.prov_errno)
        text = fi_cq_strerror(link->cq, error.prov_errno, error.err_data, NULL, 0);
    // err is positive by the book, and negative of some providers.
    snprintf(why, sizeof(why), "%s%s%s%s",
             link->net->library->fi_strerror(error.err < 0 ? -error.err : error.err),
             text ? " (" : "", text ? text : "", text ? ")" : "");
    phi_link_fail(link, -ECONNRESET, why);
}

enum { BATCH = 16, BATCHES = 4 };

bool phi_link_poll(struct phi_link *link)
{
    struct fi_cq_data_entry entries[BATCH];
    bool any = false;
    ssize_t n = BATCH;

    for (int i = 0; i < BATCHES && n == BATCH && link->ep; i++) {
        n = fi_cq_read(link->cq, entries, BATCH);
        any = any || n > 0;
        for (ssize_t j = 0; j < n && link->ep; j++)
            completed(link, &entries[j]);
        if (n == -FI_EAVAIL)
            take_error(link);
    }
    if (any && link->moves && link->ep)
        phi_moves_go(link);
    return phi_link_flush(link) || any;
}

// ---- its life

static int open_queue(struct phi_link *link)
{
    struct phi_net *net = link->net;
    struct fi_cq_attr attr = {.size = 1024, .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD};
    bool sleeps = strcmp(net->wire.provider, "shm") != 0; // there a wait object was seen to hang
    int rc = sleeps ? fi_cq_open(net->domain, &attr, &link->cq, NULL) : -FI_ENOSYS;

    link->fd = -1;
    if (!rc && fi_control(&link->cq->fid, FI_GETWAIT, &link->fd))
        link->fd = -1;
    if (rc) {
        attr.wait_obj = FI_WAIT_NONE;
        rc = fi_cq_open(net->domain, &attr, &link->cq, NULL);
    }
    return rc;
}

static int open_endpoint(struct phi_link *link)
{
    struct phi_net *net = link->net;
    struct fi_av_attr attr = {.type = FI_AV_TABLE, .count = 4};
    int rc;

    if ((rc = open_queue(link)) || (rc = fi_av_open(net->domain, &attr, &link->av, NULL)) ||
        (rc = fi_endpoint(net->domain, net->info, &link->ep, NULL)) ||
        (rc = fi_ep_bind(link->ep, &link->av->fid, 0)) ||
        (rc = fi_ep_bind(link->ep, &link->cq->fid, FI_TRANSMIT | FI_RECV)))
        return rc;
    return fi_enable(link->ep);
}

static int open_buffers(struct phi_link *link)
{
    struct phi_net *net = link->net;
    int rc = 0;

    if (net->mr_mode & FI_MR_LOCAL)
        rc = phi_region_open(link, link->buffers, sizeof(*link->buffers),
                             FI_SEND | FI_RECV | FI_READ | FI_WRITE, &link->buffers_mr);
    for (int i = 0; i < PHI_RECEIVES && !rc; i++)
        rc = post_receive(link, i);
    return rc;
}

static void name_ops(struct phi_slot_op *ops, int n, struct phi_link *link, enum phi_op_kind kind)
{
    for (int i = 0; i < n; i++)
        ops[i].op = (struct phi_net_op){.link = link, .kind = kind};
}

static int open_link(struct phi_link *link)
{
    int rc = open_endpoint(link);

    if (!rc)
        rc = open_buffers(link);
    link->address_size = sizeof(link->address);
    if (!rc)
        rc = fi_getname(&link->ep->fid, link->address, &link->address_size);
    return rc;
}

int phi_link_open(struct phi_net *net, int rank, const struct phi_mirror *mirror,
                  struct phi_link **out)
{
    struct phi_link *link = calloc(1, sizeof(*link));
    int rc;

    if (link && posix_memalign((void **)&link->buffers, 4096, sizeof(*link->buffers)))
        link->buffers = NULL;
    if (!link || !link->buffers) {
        free(link);
        return phi_fail(net->report, -ENOMEM, "out of memory for a link to rank %d", rank);
    }
    memset(link->buffers, 0, sizeof(*link->buffers));
    link->net = net;
    link->rank = rank;
    link->mirror = *mirror;
    link->peer = FI_ADDR_UNSPEC;
    name_ops(link->sends, PHI_SENDS, link, PHI_OP_SEND);
    name_ops(link->receives, PHI_RECEIVES, link, PHI_OP_RECEIVE);
    name_ops(link->posts, PHI_POSTS, link, PHI_OP_POST);
    phi_net_lock(net);
    rc = open_link(link);
    if (rc) {
        phi_link_shut(link);
    } else {
        link->next = net->links;
        net->links = link;
    }
    pthread_mutex_unlock(&net->lock);
    if (rc) {
        free(link->buffers);
        free(link);
        return phi_net_fail(net, rc, "the endpoint of a link");
    }
    phi_wake_ring(net->wake.ring); // the proxy has one more to poll
    *out = link;
    return 0;
}

const uint8_t *phi_link_address(const struct phi_link *link, size_t *size)
{
    *size = link->address_size;
    return link->address;
}

int phi_link_connect(struct phi_link *link, const uint8_t *address, size_t size)
{
    uint8_t copy[PHI_NET_ADDRESS_MAX] = {0}; // a provider may read more than the peer has sent
    struct phi_net *net = link->net;
    int rc = -ECONNRESET;

    if (size > sizeof(copy))
        return phi_fail(net->report, -EBADMSG, "rank %d has an address of %zu bytes", link->rank,
                        size);
    memcpy(copy, address, size);
    phi_net_lock(net);
    if (link->ep && !link->connected) {
        rc = fi_av_insert(link->av, copy, 1, &link->peer, 0, NULL) == 1 ? 0 : -EBADMSG;
        link->connected = rc == 0;
    } else if (link->ep) {
        rc = 0;
    }
    pthread_mutex_unlock(&net->lock);
    return rc == -EBADMSG ? phi_fail(net->report, rc, "the address of rank %d is refused by %s",
                                     link->rank, net->name)
                          : rc;
}

// Regions before the endpoint that they are bound to, the endpoint before what it is bound to.
void phi_link_shut(struct phi_link *link)
{
    phi_regions_close(link);
    if (link->buffers_mr)
        fi_close(&link->buffers_mr->fid);
    link->buffers_mr = NULL;
    if (link->ep)
        fi_close(&link->ep->fid);
    link->ep = NULL;
    if (link->cq)
        fi_close(&link->cq->fid);
    link->cq = NULL;
    if (link->av)
        fi_close(&link->av->fid);
    link->av = NULL;
    link->fd = -1;
    phi_moves_fail(link);
}

void phi_link_fail(struct phi_link *link, int code, const char *why)
{
    if (!link->ep)
        return;
    snprintf(link->why, sizeof(link->why), "%s", why);
    phi_link_shut(link);
    // Release: pairs with the acquire in phi_link_lost, for the sentence.
    atomic_store_explicit(&link->lost, code, memory_order_release);
    if (link->net->message_ring >= 0)
        phi_wake_ring(link->net->message_ring);
}

bool phi_link_busy(struct phi_link *link)
{
    bool busy;

    phi_net_lock(link->net);
    busy = link->moves || link->posting > 0;
    pthread_mutex_unlock(&link->net->lock);
    return busy;
}

int phi_link_lost(const struct phi_link *link, char *text, size_t size)
{
    int code = atomic_load_explicit((_Atomic int *)&link->lost, memory_order_acquire);

    if (code)
        snprintf(text, size, "%s", link->why);
    return code;
}

static int add(struct phi_link *link, uint32_t kind, const void *bytes, uint32_t size)
{
    struct phi_net *net = link->net;
    int rc = -ECONNRESET;

    phi_net_lock(net);
    if (link->ep) {
        rc = phi_log_add(&link->out, kind, bytes, size);
        if (rc)
            phi_link_fail(link, rc, "out of memory for what it is to be told");
        else
            phi_link_flush(link);
    }
    pthread_mutex_unlock(&net->lock);
    return rc;
}

int phi_link_store(struct phi_link *link, uint32_t offset, const void *value, uint32_t size)
{
    struct store store = {.offset = offset, .size = size};
    uint32_t small;

    if (size == 4) {
        memcpy(&small, value, sizeof(small));
        store.value = small;
    } else {
        memcpy(&store.value, value, sizeof(store.value));
    }
    return add(link, FRAME_STORES, &store, sizeof(store));
}

int phi_link_tell(struct phi_link *link, const void *bytes, size_t size)
{
    if (size > PHI_NET_MESSAGE_MAX - sizeof(struct frame_header))
        return -EINVAL;
    return add(link, FRAME_MESSAGE, bytes, (uint32_t)size);
}

#define BYE_MS 200

static bool is_idle(struct phi_link *link)
{
    bool idle;

    phi_net_lock(link->net);
    phi_link_poll(link);
    idle = phi_link_idle(link);
    pthread_mutex_unlock(&link->net->lock);
    return idle;
}

void phi_link_end(struct phi_link *link, bool bye)
{
    int64_t deadline = phi_deadline(BYE_MS);

    if (bye) {
        add(link, FRAME_BYE, NULL, 0);
        while (!is_idle(link) && phi_now() < deadline)
            phi_pause();
    }
    phi_net_lock(link->net);
    phi_link_shut(link);
    pthread_mutex_unlock(&link->net->lock);
}

void phi_link_free(struct phi_link *link)
{
    struct phi_link **at;

    if (!link)
        return;
    phi_net_lock(link->net);
    phi_link_shut(link);
    for (at = &link->net->links; *at && *at != link;)
        at = &(*at)->next;
    if (*at)
        *at = link->next;
    pthread_mutex_unlock(&link->net->lock);
    phi_log_free(&link->out);
    phi_log_free(&link->in);
    free(link->buffers);
    free(link);
}
