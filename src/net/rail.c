// SPDX-License-Identifier: BSD-3-Clause
// The endpoints of a link.
#include "net/rail.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "net/region.h"

void *phi_rail_desc(const struct phi_rail *rail)
{
    return rail->buffers ? fi_mr_desc(rail->buffers) : NULL;
}

ssize_t phi_rail_send(const struct phi_rail *rail, void *bytes, size_t size, struct phi_net_op *op)
{
    struct iovec part = {.iov_base = bytes, .iov_len = size};
    void *desc = phi_rail_desc(rail);
    struct fi_msg message = {
        .msg_iov = &part, .desc = &desc, .iov_count = 1, .addr = rail->peer, .context = op};

    return fi_sendmsg(rail->ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

enum { CUDA_API_PERMITTED = 10, SHARED_MEMORY_PERMITTED = 11 }; // FI_OPT_*, which 1.17 lacks

// Where memory of devices is registered, a provider must not do some things behind our back: copy
// through memory of its own (we have such a way ourselves), call CUDA (the application may be in a
// call of its own that waits for us), or pass by the NIC to this process. A provider that moves
// such memory by itself calls no CUDA. Any other has to promise that (fi_endpoint(3): of 1.18 or
// later all that take such memory know the option; rxm says no, as it may have to buffer). Where
// the user asks for a way by name, the user promises it.
static int forbid(const struct phi_net *net, struct fid_ep *ep)
{
    int p2p = fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &(int){FI_HMEM_P2P_REQUIRED},
                        sizeof(int));
    int cuda =
        fi_setopt(&ep->fid, FI_OPT_ENDPOINT, CUDA_API_PERMITTED, &(bool){false}, sizeof(bool));

    fi_setopt(&ep->fid, FI_OPT_ENDPOINT, SHARED_MEMORY_PERMITTED, &(bool){false}, sizeof(bool));
    if (p2p != -FI_ENOPROTOOPT && p2p != -FI_ENOSYS)
        return p2p;
    return cuda == 0 || net->config->net_memory != PHI_MEMORY_AUTO ? 0 : -FI_EOPNOTSUPP;
}

int phi_rail_open(struct phi_link *link, struct phi_rail *rail, uint32_t nic)
{
    const struct phi_net_memory buffers = {.base = link->buffers, .size = sizeof(*link->buffers)};
    struct phi_net *net = link->net;
    struct phi_port *port = &link->ports[nic];
    int rc;

    rail->nic = nic;
    rail->peer = FI_ADDR_UNSPEC;
    if ((rc = fi_endpoint(net->nics[nic].domain, net->nics[nic].info, &rail->ep, NULL)) ||
        (rc = fi_ep_bind(rail->ep, &port->av->fid, 0)) ||
        (rc = fi_ep_bind(rail->ep, &port->cq->fid, FI_TRANSMIT | FI_RECV)) ||
        (net->provider.hmem && (rc = forbid(net, rail->ep))) || (rc = fi_enable(rail->ep)))
        return rc;
    if (net->provider.mr_mode & FI_MR_LOCAL)
        rc = phi_region_open(net, rail, &buffers, FI_SEND | FI_RECV | FI_READ | FI_WRITE,
                             &rail->buffers);
    return rc;
}

// Writes the addresses of all endpoints, one after the other. Names may differ in length: each gets
// the room of the longest.
int phi_rails_address(struct phi_link *link)
{
    uint8_t each[1 + PHI_NET_RAILS_MAX][PHI_NET_ADDRESS_MAX] = {0};
    const size_t room = (sizeof(link->names.address) - PHI_NET_TOKEN_SIZE) / (1 + link->rails.open);
    size_t longest = 0;

    for (uint32_t i = 0; i <= link->rails.open; i++) {
        const struct phi_rail *rail = i == 0 ? &link->rails.control : &link->rails.list[i - 1];
        size_t size = room;
        int rc = fi_getname(&rail->ep->fid, each[i], &size);

        if (rc || size > room)
            return rc ? rc : -FI_ETOOSMALL;
        longest = size > longest ? size : longest;
    }
    for (uint32_t i = 0; i <= link->rails.open; i++)
        memcpy(link->names.address + i * longest, each[i], longest);
    link->names.address_size = (1 + link->rails.open) * longest;
    memcpy(link->names.address + link->names.address_size, &link->names.token, PHI_NET_TOKEN_SIZE);
    link->names.address_size += PHI_NET_TOKEN_SIZE;
    return 0;
}

void phi_rail_close(struct phi_rail *rail)
{
    if (rail->buffers)
        fi_close(&rail->buffers->fid);
    if (rail->ep)
        fi_close(&rail->ep->fid);
    *rail = (struct phi_rail){0};
}

int phi_rail_insert(struct phi_link *link, const struct phi_rail *rail, fi_addr_t *to,
                    const uint8_t *address, size_t size)
{
    uint8_t copy[PHI_NET_ADDRESS_MAX] = {0}; // a provider may read more than the peer has sent

    memcpy(copy, address, size);
    return fi_av_insert(link->ports[rail->nic].av, copy, 1, to, 0, NULL) == 1 ? 0 : -EBADMSG;
}

// ---- greetings

// Providers connect an endpoint when it is first used. So a message that says nothing uses a rail
// at once, and its connection is there when data comes. Data goes over the rails whose message was
// delivered, and over the first. Others are given up: a NIC may not reach the peer's. Over the
// first, too, the message goes before the data: until there is a connection, the provider refuses
// the message, and that counts as no stall of the data.
#define GIVE_UP_MS 10000 // after the first one has reached it

int phi_rail_await(struct phi_link *link, uint32_t i)
{
    struct phi_rail *rail = &link->rails.list[i];

    rail->greeting.kind = PHI_OP_GREETING;
    rail->greeted.kind = PHI_OP_GREETED;
    return (int)fi_recv(rail->ep, link->buffers->greeting[i], sizeof(link->buffers->greeting[i]),
                        phi_rail_desc(rail), FI_ADDR_UNSPEC, &rail->greeted);
}

struct phi_rail *phi_rail_of(struct phi_link *link, const struct phi_net_op *op)
{
    for (uint32_t i = 0; op && i < link->rails.open; i++) {
        struct phi_rail *rail = &link->rails.list[i];

        if (op == &rail->greeted || op == &rail->greeting ||
            (op == &link->flush.ops[i] && !rail->heard))
            return rail;
    }
    return NULL;
}

void phi_rail_greets(struct phi_link *link, const struct phi_net_op *op)
{
    struct phi_rail *rail = phi_rail_of(link, op);

    rail->ready = !rail->given_up;
    if (rail == link->rails.list) {
        link->rails.reached = phi_now();
        phi_was_taken(&link->patience.data); // until now there was no connection: that is no stall
    }
}

static void await_next(struct phi_link *link, struct phi_rail *rail)
{
    static const char why[] = "its greetings cannot be received any more";

    if (phi_rail_await(link, (uint32_t)(rail - link->rails.list)) &&
        !phi_rail_give_up(link, rail, why))
        phi_link_fail(link, -ECONNRESET, why);
}

// A greeting does not prove that it is the peer's: anybody may greet first. The peer's own data
// would wait behind its greeting.
void phi_rail_greeted(struct phi_link *link, const struct phi_net_op *op)
{
    struct phi_rail *rail = phi_rail_of(link, op);

    rail->heard = true;
    await_next(link, rail);
}

void phi_rail_dropped(struct phi_link *link, const struct phi_net_op *op)
{
    await_next(link, phi_rail_of(link, op));
}

static void greets(struct phi_link *link, struct phi_rail *rail)
{
    if (!rail->greets && rail < link->rails.list + link->rails.used)
        link->rails.ungreeted--;
    rail->greets = true;
}

bool phi_rail_give_up(struct phi_link *link, struct phi_rail *rail, const char *why)
{
    if (rail == link->rails.list || rail->ready)
        return false;
    if (!rail->given_up)
        phi_log(link->net->report, PH_LOG_WARN, "no data goes over %s with rank %d: %s",
                link->net->nics[rail->nic].info->domain_attr->name, link->rank, why);
    rail->given_up = true;
    greets(link, rail);
    return true;
}

// Each rail greets for itself: one that cannot connect delays no other.
static ssize_t greet(struct phi_link *link, struct phi_rail *rail)
{
    const bool late =
        link->rails.list[0].ready && phi_now() - link->rails.reached > GIVE_UP_MS * PHI_MS;
    ssize_t rc = phi_rail_send(rail, link->buffers->nothing, 8, &rail->greeting);

    if (rc == 0)
        greets(link, rail);
    else if (rc != -FI_EAGAIN || late)
        rc = phi_rail_give_up(link, rail, phi_net_error(link->net, (int)rc)) ? 0 : rc;
    return rc;
}

void phi_rails_greet(struct phi_link *link)
{
    bool refused = false;

    for (uint32_t i = 0; link->connected && i < link->rails.used; i++) {
        ssize_t rc = link->rails.list[i].greets ? 0 : greet(link, &link->rails.list[i]);

        refused = refused || rc == -FI_EAGAIN;
        if (rc && rc != -FI_EAGAIN) {
            phi_link_fail(link, -ECONNRESET, phi_net_error(link->net, (int)rc));
            return;
        }
    }
    if (refused)
        phi_was_refused(&link->patience.greetings);
    else
        phi_was_taken(&link->patience.greetings);
}
