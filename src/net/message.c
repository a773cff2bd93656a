// SPDX-License-Identifier: BSD-3-Clause
// Stores and messages of a link: the frames that they travel in.
#include "net/message.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "net/rail.h"

// ---- sending

// Fills a frame with the oldest entry. If that is a store, also with the stores after it. Returns
// how many entries.
static uint32_t fill_frame(const struct phi_link *link, uint8_t *frame, size_t *size)
{
    struct phi_frame_header header = {.token = link->names.peers_token, .posts = link->counts.sent};
    struct phi_log_buffer look = link->out;
    uint32_t kind, bytes, n = 0;
    const void *from;

    *size = sizeof(header);
    while ((from = phi_log_peek(&look, &kind, &bytes)) != NULL) {
        if (n > 0 && (kind != PHI_FRAME_STORES || *size + bytes > PHI_NET_MESSAGE_MAX))
            break;
        memcpy(frame + *size, from, bytes);
        *size += bytes;
        header.kind = kind;
        n++;
        phi_log_drop(&look);
        if (kind != PHI_FRAME_STORES)
            break;
    }
    header.size = (uint32_t)(*size - sizeof(header));
    memcpy(frame, &header, sizeof(header));
    return n;
}

static void note_stall(struct phi_link *link)
{
    int64_t now = phi_now();

    if (!link->rails.control.ready || link->ops.sending > 0 || link->ops.posting > 0 ||
        link->ops.flying > 0)
        link->patience.stalled = 0;
    else if (link->patience.stalled == 0)
        link->patience.stalled = now;
    else if (now - link->patience.stalled > PHI_STALL_MS * PHI_MS)
        phi_link_fail(link, -ECONNRESET, phi_stall);
}

bool phi_link_flush(struct phi_link *link)
{
    struct phi_net_op *op;
    bool sent = false;

    if (!phi_may_try(&link->patience.messages))
        return false;
    while (link->open && link->connected && link->out.at < link->out.size &&
           (op = phi_op_free(link->ops.sends, PHI_SENDS)) != NULL) {
        size_t size;
        uint32_t entries = fill_frame(link, link->buffers->send[op - link->ops.sends], &size);
        ssize_t rc = phi_rail_send(&link->rails.control, link->buffers->send[op - link->ops.sends],
                                   size, op);

        if (rc == -FI_EAGAIN) {
            phi_was_refused(&link->patience.messages);
            note_stall(link);
            break;
        }
        if (rc) {
            phi_link_fail(link, -ECONNRESET, phi_net_error(link->net, (int)rc));
            break;
        }
        link->patience.stalled = 0;
        phi_was_taken(&link->patience.messages);
        op->busy = true;
        link->ops.sending++;
        sent = true;
        while (entries-- > 0)
            phi_log_drop(&link->out);
    }
    return sent;
}

bool phi_link_idle(const struct phi_link *link)
{
    return !link->open || !link->connected ||
           (link->out.at == link->out.size && link->ops.sending == 0 && link->ops.posting == 0 &&
            !link->hold.any);
}

// ---- receiving

int phi_message_await(struct phi_link *link, int i)
{
    return (int)fi_recv(link->rails.control.ep, link->buffers->receive[i], PHI_NET_MESSAGE_MAX,
                        phi_rail_desc(&link->rails.control), FI_ADDR_UNSPEC,
                        &link->ops.receives[i]);
}

// Everything from the peer is checked: a store at an offset outside has no effect.
static void apply_store(struct phi_link *link, const struct phi_store *store)
{
    const struct phi_mirror *mirror = &link->mirror;
    char *at = mirror->stores + store->offset;

    if (store->offset % store->size || store->offset > mirror->stores_size - store->size)
        return;
    // Applied in the order of the log. Release: a reader that acquires this sees what came before.
    if (store->size == 4)
        atomic_store((_Atomic uint32_t *)at, (uint32_t)store->value);
    else
        atomic_store((_Atomic uint64_t *)at, store->value);
}

static void apply_stores(struct phi_link *link, const uint8_t *bytes, size_t size)
{
    struct phi_store store;

    for (size_t at = 0; at + sizeof(store) <= size; at += sizeof(store)) {
        memcpy(&store, bytes + at, sizeof(store));
        if ((store.size == 4 || store.size == 8) && link->mirror.stores_size >= store.size)
            apply_store(link, &store);
    }
    if (link->net->provider.store_ring >= 0)
        phi_wake_ring(link->net->provider.store_ring);
}

// The frame is from somebody else. That is no reason to end the link.
static void drop_frame(struct phi_link *link)
{
    if (!link->names.disturbed)
        phi_log(link->net->report, PH_LOG_WARN,
                "what comes to the link with rank %d without its token is dropped", link->rank);
    link->names.disturbed = true;
}

void phi_link_received(struct phi_link *link, uint32_t index, size_t size)
{
    const uint8_t *frame = link->buffers->receive[index];
    struct phi_frame_header header = {.token = ~link->names.token};

    if (size >= sizeof(header) && size <= PHI_NET_MESSAGE_MAX)
        memcpy(&header, frame, sizeof(header));
    if (header.token != link->names.token) {
        drop_frame(link);
        goto next;
    }
    if (header.size != size - sizeof(header))
        goto malformed;
    frame += sizeof(header);
    link->counts.due = header.posts;
    if (header.kind == PHI_FRAME_STORES) {
        apply_stores(link, frame, header.size);
    } else if (header.kind == PHI_FRAME_MESSAGE) {
        if (phi_log_add(&link->in, PHI_FRAME_MESSAGE, frame, header.size))
            phi_link_fail(link, -ENOMEM, "out of memory for a message");
        else if (link->net->provider.message_ring >= 0)
            phi_wake_ring(link->net->provider.message_ring);
    } else if (header.kind == PHI_FRAME_BYE) {
        phi_link_fail(link, -ECONNRESET, "it has left");
        return;
    } else {
        goto malformed;
    }
next:
    if (link->open && phi_message_await(link, (int)index))
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
