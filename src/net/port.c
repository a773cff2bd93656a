// SPDX-License-Identifier: BSD-3-Clause
// Ports: a link has one for each NIC. Completions are taken here.
#include "net/port.h"

#include <poll.h>
#include <string.h>

#include "base/clock.h"
#include "net/arrive.h"
#include "net/flush.h"
#include "net/message.h"
#include "net/move.h"
#include "net/provider.h"
#include "net/rail.h"
#include "net/records.h"

static bool is_of_messages(const struct phi_link *link, const struct phi_net_op *op)
{
    return (op >= link->ops.sends && op < link->ops.sends + PHI_SENDS) ||
           (op >= link->ops.receives && op < link->ops.receives + PHI_RECEIVES);
}

static void completed(struct phi_link *link, const struct fi_cq_data_entry *entry)
{
    struct phi_net_op *op = entry->op_context;

    // The remaining data has no effect, and its lane may be gone.
    if (!link->carries && !is_of_messages(link, op))
        return;
    // Some providers set no other flag for what comes from the peer.
    if (entry->flags & FI_REMOTE_CQ_DATA) {
        phi_posts_arrive(link, entry->data);
        return;
    }
    if (!op)
        return;
    op->busy = false;
    switch (op->kind) {
    case PHI_OP_PART:
        phi_part_completed(link, op);
        break;
    case PHI_OP_POST:
        link->ops.posting--;
        break;
    case PHI_OP_SEND:
        link->rails.control.ready = true;
        link->ops.sending--;
        break;
    case PHI_OP_GREETING:
        phi_rail_greets(link, op);
        break;
    case PHI_OP_GREETED:
        phi_rail_greeted(link, op);
        break;
    case PHI_OP_RECORD:
        phi_record_completed(link, op);
        break;
    case PHI_OP_FLUSH:
        break;
    case PHI_OP_RECEIVE:
        link->rails.control.heard = true;
        if (!phi_flush_defers(link, (uint32_t)(op - link->ops.receives), entry->len))
            phi_link_received(link, (uint32_t)(op - link->ops.receives), entry->len);
        break;
    }
}

// A message that does not fit into the buffer is from somebody else, and is no error of the link. A
// process that has ended may have had the endpoint's port, and its peers may not know that yet.
static bool is_too_long(const struct fi_cq_err_entry *error)
{
    const struct phi_net_op *op = error->op_context;

    return op && (op->kind == PHI_OP_RECEIVE || op->kind == PHI_OP_GREETED) &&
           (error->err == FI_ETRUNC || error->err == -FI_ETRUNC);
}

static void drop_long(struct phi_link *link, struct phi_net_op *op)
{
    op->busy = false;
    if (op->kind == PHI_OP_GREETED)
        phi_rail_dropped(link, op);
    else
        phi_link_received(link, (uint32_t)(op - link->ops.receives), PHI_NET_MESSAGE_MAX + 1);
}

// failed handles an error. A rail that the link can do without is given up. After an error of data,
// the peer may be about to say why. The first of all other errors is kept, and fails the link
// (phi_ports_check). An error that names no operation is of data: of a write of the peer, or of a
// provider's answer to one. An error of the endpoint of messages would show in a receive, too.
static void failed(struct phi_link *link, struct phi_port *port,
                   const struct fi_cq_err_entry *error)
{
    const char *text = NULL;
    struct phi_rail *rail;
    char why[sizeof(port->why)];
    bool of_data;

    of_data = !error->op_context || !is_of_messages(link, error->op_context);
    if (of_data && !link->carries) // the endpoint is closed
        return;
    if (is_too_long(error)) {
        drop_long(link, error->op_context);
        return;
    }
    if (error->prov_errno)
        text = fi_cq_strerror(port->cq, error->prov_errno, error->err_data, NULL, 0);
    // The manual says that err is positive; with some providers it is negative.
    snprintf(why, sizeof(why), "%s%s%s%s",
             link->net->library->fi_strerror(error->err < 0 ? -error->err : error->err),
             text ? " (" : "", text ? text : "", text ? ")" : "");
    rail = phi_rail_of(link, error->op_context);
    if (port->failed || (rail && phi_rail_give_up(link, rail, why)))
        return;
    if (of_data) {
        phi_link_doubt(link, why);
        return;
    }
    port->failed = true;
    memcpy(port->why, why, sizeof(why));
}

// Takes an error out of a queue. False: there was none after all.
static bool read_error(struct phi_link *link, struct phi_port *port)
{
    struct fi_cq_err_entry error = {0};

    if (fi_cq_readerr(port->cq, &error, 0) < 0)
        return false;
    failed(link, port, &error);
    return true;
}

enum { BATCH = 16, BATCHES = 4, QUEUE = 1024 };

// Returns whether something was there. After an error there may be more.
static bool take_entries(struct phi_link *link, struct phi_port *port,
                         const struct fi_cq_data_entry *entries, ssize_t n)
{
    for (ssize_t i = 0; i < n && link->open; i++)
        completed(link, &entries[i]);
    if (n > 0) {
        port->calmed = false;
        link->came = phi_now();
    }
    return n > 0 || (n == -FI_EAVAIL && read_error(link, port));
}

// Messages come over the first NIC. They may speak of posts that were delivered before over other
// NICs. So after messages were read, and before they are taken, all that the others have is taken.
static bool drain_others(struct phi_link *link)
{
    struct fi_cq_data_entry entries[BATCH];
    bool any = false;

    for (uint32_t i = 1; i < link->net->nic_count; i++) {
        struct phi_port *port = &link->ports[i];
        ssize_t n = 1;

        // Some providers give one entry at a time.
        for (int j = 0; j < QUEUE && (n > 0 || n == -FI_EAVAIL) && link->open; j++) {
            n = fi_cq_read(port->cq, entries, BATCH);
            any = take_entries(link, port, entries, n) || any;
        }
    }
    return any;
}

// Takes entries of the first port. Returns whether there was something at any port.
static bool take_first(struct phi_link *link, const struct fi_cq_data_entry *entries, ssize_t n)
{
    const bool any = drain_others(link);

    return (link->open && take_entries(link, &link->ports[0], entries, n)) || any;
}

bool phi_ports_read(struct phi_link *link)
{
    struct fi_cq_data_entry entries[BATCH];
    bool any = false;
    ssize_t n = BATCH;

    for (int i = 0; i < BATCHES && n == BATCH && link->open; i++) {
        n = fi_cq_read(link->ports[0].cq, entries, BATCH);
        any = take_first(link, entries, n) || any;
    }
    return any;
}

static void check_doubt(struct phi_link *link)
{
    if (!link->carries || !link->failing.doubt || phi_now() < link->failing.doubt)
        return;
    phi_flush_shut(link);
    phi_flush_take(link); // the reason may be among them
    phi_link_fail(link, -ECONNRESET, link->failing.doubted);
}

// An error fails the link. A peer that leaves says so over the first NIC before it closes its
// endpoints on all. So what has come there is taken first.
void phi_ports_check(struct phi_link *link)
{
    for (uint32_t i = 0; i < link->net->nic_count && link->open; i++) {
        if (!link->ports[i].failed)
            continue;
        for (int j = 0; i > 0 && j < QUEUE && phi_ports_read(link); j++)
            ;
        phi_link_fail(link, -ECONNRESET, link->ports[i].why);
    }
    check_doubt(link);
}

static bool calm_port(struct phi_link *link, struct phi_port *port)
{
    struct pollfd fd = {.fd = port->fd, .events = POLLIN};
    struct fi_cq_data_entry entry;
    ssize_t n;

    if (!link->carries || port->fd < 0 || port->calmed || poll(&fd, 1, 0) <= 0)
        return false;
    port->calmed = true;
    n = fi_cq_sread(port->cq, &entry, 1, NULL, 1);
    if (port == link->ports)
        take_first(link, &entry, n);
    else
        take_entries(link, port, &entry, n);
    return true;
}

bool phi_ports_calm(struct phi_link *link)
{
    bool calmed = false;

    for (uint32_t i = 0; i < link->net->nic_count && !calmed; i++)
        calmed = calm_port(link, &link->ports[i]);
    phi_ports_check(link);
    return calmed;
}

// ---- open and close

static int open_queue(struct phi_port *port, const struct phi_nic *nic)
{
    struct fi_cq_attr attr = {.size = QUEUE, .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD};
    bool sleeps = !phi_provider_is_shm(nic->info); // a wait object of shm was seen to hang
    int rc = sleeps ? fi_cq_open(nic->domain, &attr, &port->cq, NULL) : -FI_ENOSYS;

    port->fd = -1;
    if (!rc && fi_control(&port->cq->fid, FI_GETWAIT, &port->fd))
        port->fd = -1;
    if (rc) {
        attr.wait_obj = FI_WAIT_NONE;
        rc = fi_cq_open(nic->domain, &attr, &port->cq, NULL);
    }
    return rc;
}

int phi_ports_open(struct phi_link *link)
{
    struct fi_av_attr attr = {.type = FI_AV_TABLE, .count = 1 + 2 * PHI_NET_RAILS_MAX};
    const struct phi_net *net = link->net;
    int rc = 0;

    for (uint32_t i = 0; i < net->nic_count && !rc; i++) {
        rc = open_queue(&link->ports[i], &net->nics[i]);
        if (!rc)
            rc = fi_av_open(net->nics[i].domain, &attr, &link->ports[i].av, NULL);
    }
    return rc;
}

void phi_ports_close(struct phi_link *link)
{
    for (uint32_t i = 0; i < PHI_NET_RAILS_MAX; i++) {
        struct phi_port *port = &link->ports[i];

        if (port->cq)
            fi_close(&port->cq->fid);
        if (port->av)
            fi_close(&port->av->fid);
        *port = (struct phi_port){.fd = -1};
    }
}
