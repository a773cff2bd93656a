// SPDX-License-Identifier: BSD-3-Clause
// A link: its life, and the calls on it. port.c takes its completions.
#include "net/link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/random.h"
#include "net/bells.h"
#include "net/ears.h"
#include "net/flush.h"
#include "net/message.h"
#include "net/move.h"
#include "net/port.h"
#include "net/post.h"
#include "net/rail.h"
#include "net/records.h"
#include "net/region.h"

// ---- its end

// Closes the endpoints of data. When the link has ended it closes also the endpoint of messages,
// and then what all are bound to.
static void close_rails(struct phi_link *link)
{
    phi_link_deafen(link);
    for (int i = 0; i < PHI_NET_RAILS_MAX; i++)
        phi_rail_close(&link->rails.list[i]);
    if (link->open)
        return;
    phi_rail_close(&link->rails.control);
    phi_ports_close(link);
}

// Regions are closed before the endpoint that they are bound to, and keys after it: operations
// under way name them. When a move has failed nothing touches its memory any more.
static void stop(struct phi_link *link)
{
    link->carries = link->hold.any = false;
    link->ops.posting = 0;
    phi_regions_close(link);
    phi_link_staging_shut(link);
    phi_flush_shut(link);
    close_rails(link);
    phi_keys_unmap(link);
    phi_moves_fail(link);
    phi_bells_end(link);
}

void phi_link_shut(struct phi_link *link)
{
    if (!link->open)
        return;
    link->open = false;
    stop(link);
}

// Ends a link that has failed. phi_link_lost says so last: a caller that knows of the end may write
// where the peer was reading.
static void end_failed(struct phi_link *link)
{
    if (!link->failing.code)
        return;
    stop(link);
    // Release: pairs with the acquire in phi_link_lost, for the sentence.
    atomic_store_explicit(&link->failing.lost, link->failing.code, memory_order_release);
    link->failing.code = 0;
    if (link->net->provider.message_ring >= 0)
        phi_wake_ring(link->net->provider.message_ring);
}

// ---- polling

// Sends data that could not be posted before, and staged records. Returns whether something went.
static bool send_data(struct phi_link *link)
{
    if (link->hold.any && link->carries)
        phi_posts_go(link);
    if (link->moves.due && link->carries)
        phi_moves_go(link);
    return link->carries && phi_staging_go(link);
}

static bool poll_link(struct phi_link *link)
{
    bool any = phi_ports_read(link);

    phi_ports_check(link);
    if (link->open)
        any = phi_flush_go(link) || any;
    // Data goes over the rails that are connected, however long others take.
    if (link->carries && !link->failing.doubt && link->rails.ungreeted > 0 &&
        phi_may_try(&link->patience.greetings))
        phi_rails_greet(link);
    if (link->carries && phi_may_try(&link->patience.data))
        any = send_data(link) || any;
    return phi_link_flush(link) || any;
}

bool phi_link_poll(struct phi_link *link)
{
    const bool any = poll_link(link);

    end_failed(link);
    return any;
}

bool phi_link_calm(struct phi_link *link)
{
    const bool calmed = phi_ports_calm(link);

    end_failed(link);
    return calmed;
}

// ---- posts

static ssize_t hold(struct phi_link *link, const struct phi_route *route, uint32_t immediate)
{
    link->hold.any = true;
    link->hold.index = immediate;
    link->hold.route = *route;
    return 0;
}

static int post_or_hold(const struct phi_route *route, uint32_t immediate, bool may_wait)
{
    struct phi_link *link = route->link;
    struct phi_net *net = link->net;
    ssize_t rc = -ECONNRESET;

    if (!phi_net_trylock(net))
        return -EAGAIN;
    if (link->carries) {
        if (may_wait && net->provider.wire.immediate == 8 && !link->hold.any)
            rc = hold(link, route, immediate);
        else
            rc = phi_post_send(link, route, immediate);
        if (rc)
            phi_link_poll(link); // makes room
    }
    if (!link->carries)
        rc = -ECONNRESET;
    pthread_mutex_unlock(&net->lock);
    return rc == 0 ? 0 : rc == -ECONNRESET ? -ECONNRESET : -EAGAIN;
}

int phi_link_post(const struct phi_route *route, uint32_t immediate)
{
    return post_or_hold(route, immediate, false);
}

int phi_link_hold(const struct phi_route *route, uint32_t immediate)
{
    return post_or_hold(route, immediate, true);
}

// ---- its life

static void name_ops(struct phi_net_op *ops, int n, enum phi_op_kind kind)
{
    for (int i = 0; i < n; i++)
        ops[i].kind = kind;
}

static int open_link(struct phi_link *link)
{
    struct phi_net *net = link->net;
    int rc;

    link->open = link->carries = true;
    if ((rc = phi_flush_open(link)) || (rc = phi_ports_open(link)) ||
        (rc = phi_rail_open(link, &link->rails.control, 0)))
        return rc;
    for (; link->rails.open < net->provider.rails && !rc; link->rails.open++) {
        rc = phi_rail_open(link, &link->rails.list[link->rails.open],
                           link->rails.open % net->nic_count);
        if (!rc)
            rc = phi_rail_await(link, link->rails.open);
    }
    for (int i = 0; i < PHI_RECEIVES && !rc; i++)
        rc = phi_message_await(link, i);
    return rc ? rc : phi_rails_address(link);
}

static void free_link(struct phi_link *link)
{
    phi_log_free(&link->out);
    phi_log_free(&link->in);
    phi_link_staging_free(link);
    phi_flush_free(link);
    free(link->arrivals);
    free(link->buffers);
    free(link);
}

static struct phi_link *make_link(struct phi_net *net, int rank, const struct phi_mirror *mirror)
{
    struct phi_link *link = calloc(1, sizeof(*link));

    if (!link)
        return NULL;
    link->arrivals = calloc((size_t)mirror->capacity * 4, sizeof(*link->arrivals));
    if (posix_memalign((void **)&link->buffers, 4096, sizeof(*link->buffers)))
        link->buffers = NULL;
    if (!link->arrivals || !link->buffers) {
        free_link(link);
        return NULL;
    }
    memset(link->buffers, 0, sizeof(*link->buffers));
    link->net = net;
    link->rank = rank;
    phi_random(&link->names.token, sizeof(link->names.token));
    link->mirror = *mirror;
    link->moves.end = &link->moves.first;
    name_ops(link->ops.sends, PHI_SENDS, PHI_OP_SEND);
    name_ops(link->ops.receives, PHI_RECEIVES, PHI_OP_RECEIVE);
    name_ops(link->ops.posts, PHI_POSTS, PHI_OP_POST);
    name_ops(link->ops.parts, PHI_PARTS, PHI_OP_PART);
    name_ops(link->flush.ops, PHI_NET_RAILS_MAX, PHI_OP_FLUSH);
    return link;
}

int phi_link_open(struct phi_net *net, int rank, const struct phi_mirror *mirror,
                  struct phi_link **out)
{
    struct phi_link *link = make_link(net, rank, mirror);
    int rc;

    if (!link)
        return phi_fail(net->report, -ENOMEM, "out of memory for a link to rank %d", rank);
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
        free_link(link);
        return phi_net_fail(net, rc, "the endpoint of a link");
    }
    phi_wake_ring(net->proxy.wake.ring); // the proxy has one more to poll
    *out = link;
    return 0;
}

const uint8_t *phi_link_address(const struct phi_link *link, size_t *size, uint32_t *rails)
{
    *size = link->names.address_size;
    *rails = link->rails.open;
    return link->names.address;
}

static int connect_rails(struct phi_link *link, const uint8_t *address, size_t size, uint32_t rails)
{
    const size_t own = (link->names.address_size - PHI_NET_TOKEN_SIZE) / (1 + link->rails.open);
    int rc = phi_rail_insert(link, &link->rails.control, &link->rails.control.peer, address, size);

    link->rails.used = rails < link->rails.open ? rails : link->rails.open;
    link->rails.ungreeted = 0;
    for (uint32_t i = 0; i < link->rails.used && !rc; i++) {
        struct phi_rail *rail = &link->rails.list[i];

        link->rails.ungreeted += !rail->greets;
        if (phi_rail_insert(link, rail, &rail->peer, address + (1 + i) * size, size) &&
            !phi_rail_give_up(link, rail, "its address is refused"))
            rc = -EBADMSG;
        if (!rc && link->net->provider.flush_reads)
            rc = phi_rail_insert(link, rail, &rail->self, link->names.address + (1 + i) * own, own);
    }
    return rc;
}

int phi_link_connect(struct phi_link *link, const uint8_t *address, size_t size, uint32_t rails)
{
    struct phi_net *net = link->net;
    int rc = -ECONNRESET;

    if (rails == 0 || rails > PHI_NET_RAILS_MAX || size > PHI_NET_ADDRESS_MAX ||
        size < PHI_NET_TOKEN_SIZE || (size - PHI_NET_TOKEN_SIZE) % (1 + rails) != 0)
        return phi_fail(net->report, -EBADMSG, "rank %d has addresses of %zu bytes for %u rails",
                        link->rank, size, rails);
    phi_net_lock(net);
    if (link->open && !link->connected) {
        size -= PHI_NET_TOKEN_SIZE;
        memcpy(&link->names.peers_token, address + size, PHI_NET_TOKEN_SIZE);
        rc = connect_rails(link, address, size / (1 + rails), rails);
        link->connected = rc == 0;
        memcpy(link->names.peers_address, address, size);
        link->names.peers_names = 1 + rails;
        link->names.peers_name_size = size / link->names.peers_names;
        if (rc == 0 && link->carries)
            phi_rails_greet(link);
        end_failed(link);
    } else if (link->open) {
        rc = 0;
    }
    pthread_mutex_unlock(&net->lock);
    return rc == -EBADMSG ? phi_fail(net->report, rc, "the address of rank %d is refused by %s",
                                     link->rank, net->provider.name)
                          : rc;
}

enum { TAKES = 1024 }; // more would be a peer that has no end

void phi_link_cut(struct phi_link *link)
{
    phi_net_lock(link->net);
    for (int i = 0; link->carries && i < TAKES && phi_ports_read(link); i++)
        ;
    if (link->carries) {
        stop(link);
        phi_flush_take(link);
    }
    end_failed(link);
    pthread_mutex_unlock(&link->net->lock);
}

void phi_link_flushes(struct phi_link *link, uint32_t line, uint32_t id)
{
    phi_net_lock(link->net);
    phi_flush_line(link, line, id);
    end_failed(link);
    pthread_mutex_unlock(&link->net->lock);
}

// So long: posts that do not come by then were lost.
#define POSTS_MS 1000

void phi_link_told(struct phi_link *link, struct phi_net_told *told)
{
    phi_net_lock(link->net);
    *told = (struct phi_net_told){.posts = link->counts.due, .until = phi_deadline(POSTS_MS)};
    pthread_mutex_unlock(&link->net->lock);
}

bool phi_link_heard(struct phi_link *link, const struct phi_net_told *told)
{
    bool has;

    phi_net_lock(link->net);
    has = !link->carries || (link->counts.come >= told->posts && link->flush.covered == 0);
    pthread_mutex_unlock(&link->net->lock);
    return has || phi_now() >= told->until;
}

int phi_link_lost(const struct phi_link *link, char *text, size_t size)
{
    int code = atomic_load_explicit((_Atomic int *)&link->failing.lost, memory_order_acquire);

    if (code)
        snprintf(text, size, "%s", link->failing.why);
    return code;
}

// key: the new entry takes the place of the newest one, where that waits and the first `key` bytes
// of both are equal; 0: never. So messages that are repeated to a peer that is cut off take no more
// room.
static int add(struct phi_link *link, uint32_t kind, const void *bytes, uint32_t size, size_t key)
{
    struct phi_net *net = link->net;
    int rc = -ECONNRESET;
    void *same;

    phi_net_lock(net);
    if (link->open) {
        same = key > 0 ? phi_log_newest(&link->out, kind, size, bytes, key) : NULL;
        rc = same ? 0 : phi_log_add(&link->out, kind, bytes, size);
        if (same)
            memcpy(same, bytes, size);
        if (rc)
            phi_link_fail(link, rc, "out of memory for what it is to be told");
        else
            phi_link_flush(link);
        end_failed(link);
    }
    pthread_mutex_unlock(&net->lock);
    return rc;
}

int phi_link_store(struct phi_link *link, uint32_t offset, const void *value, uint32_t size)
{
    struct phi_store store = {.offset = offset, .size = size};
    uint32_t small;

    if (size == 4) {
        memcpy(&small, value, sizeof(small));
        store.value = small;
    } else {
        memcpy(&store.value, value, sizeof(store.value));
    }
    return add(link, PHI_FRAME_STORES, &store, sizeof(store), offsetof(struct phi_store, value));
}

static int tell(struct phi_link *link, const void *bytes, size_t size, size_t key)
{
    if (size > PHI_NET_MESSAGE_MAX - sizeof(struct phi_frame_header))
        return -EINVAL;
    return add(link, PHI_FRAME_MESSAGE, bytes, (uint32_t)size, key);
}

int phi_link_tell(struct phi_link *link, const void *bytes, size_t size)
{
    return tell(link, bytes, size, 0);
}

int phi_link_tell_again(struct phi_link *link, const void *bytes, size_t size)
{
    return tell(link, bytes, size, size);
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
        add(link, PHI_FRAME_BYE, NULL, 0, 0);
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
    struct phi_net *net;

    if (!link)
        return;
    net = link->net;
    phi_net_lock(net);
    phi_link_shut(link);
    for (at = &net->links; *at != link; at = &(*at)->next)
        ;
    *at = link->next;
    free_link(link);
    pthread_mutex_unlock(&net->lock);
}

void phi_links_free(struct phi_net *net)
{
    struct phi_link *link;

    while ((link = net->links)) {
        net->links = link->next;
        phi_link_shut(link);
        free_link(link);
    }
}
