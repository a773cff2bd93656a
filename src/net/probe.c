// SPDX-License-Identifier: BSD-3-Clause
// The probe of a domain. A provider does not always do what it says. So two links in this process
// do once all that links do, before any peer relies on it.
#include "net/probe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "base/random.h"
#include "net/state.h"

enum { WORDS = 64, BYTES = WORDS * 8 };

// The probe of the order of writes: so many writes in a round, each beginning one word after the
// one before.
enum { WRITES = 16, ROUNDS = 4 };

// Providers send small, middle and large writes in different ways.
enum { ORDER_MOST = 64 << 10, ORDER_WORDS = ORDER_MOST / 8 + WRITES };
static const size_t order_sizes[] = {8, 512, 4 << 10, 16 << 10, ORDER_MOST};

struct end {
    struct phi_link *link;
    const struct phi_net_memory *memory; // what is registered in the place of `data`, or NULL
    uint64_t data[ORDER_WORDS];          // what is registered
    _Alignas(PHI_LINE_SIZE) char line[PHI_LINE_SIZE];
    uint64_t store;
    struct phi_net_target target;
};

struct probe {
    struct phi_net *net;
    int64_t deadline;
    struct end ends[2];
    struct phi_route route; // from end 0 to end 1
    struct phi_route back;  // from end 1 to end 0
};

static int open_end(struct probe *p, int i)
{
    struct end *end = &p->ends[i];
    const struct phi_mirror mirror = {.lines = {end->line, end->line},
                                      .capacity = 1,
                                      .stores = (char *)&end->store,
                                      .stores_size = sizeof(end->store)};
    int rc = phi_link_open(p->net, -1, &mirror, &end->link);

    if (!rc && end->memory)
        rc = phi_link_register_memory(end->link, 1, end->memory);
    else if (!rc)
        rc = phi_link_register(end->link, 1, end->data, sizeof(end->data));
    if (!rc)
        phi_link_flushes(end->link, 0, end->memory ? 1 : PHI_HOST_MEMORY);
    if (!rc && !phi_link_target(end->link, 1, &end->target))
        rc = -EIO;
    return rc;
}

static int connect_end(struct probe *p, int i)
{
    size_t size;
    uint32_t rails;
    const uint8_t *address = phi_link_address(p->ends[!i].link, &size, &rails);

    return phi_link_connect(p->ends[i].link, address, size, rails);
}

static int start(struct probe *p, struct phi_move *m)
{
    int rc;

    while ((rc = phi_move_start(m)) == -EAGAIN && phi_now() < p->deadline)
        phi_net_poll(p->net);
    return rc;
}

static int finish(struct probe *p, struct phi_move *m)
{
    while (atomic_load(&m->state) == PHI_MOVE_POSTED && phi_now() < p->deadline)
        phi_net_poll(p->net);
    if (atomic_load(&m->state) == PHI_MOVE_POSTED)
        phi_link_end(m->route->link, false); // the move is on a stack
    return atomic_load(&m->state) == PHI_MOVE_DONE ? 0 : -ETIMEDOUT;
}

static int carry_out(struct probe *p, struct phi_move *m)
{
    const int rc = start(p, m);

    return rc ? rc : finish(p, m);
}

static int move(struct probe *p, bool read, size_t first, size_t size, uint32_t immediate)
{
    struct phi_move m = {.route = &p->route,
                         .local = &p->ends[0].data[first],
                         .offset = first * 8,
                         .size = size,
                         .read = read,
                         .posts = !read,
                         .immediate = immediate};

    return carry_out(p, &m);
}

static int post(struct probe *p, uint32_t immediate)
{
    int rc;

    while ((rc = phi_link_post(&p->route, immediate)) == -EAGAIN && phi_now() < p->deadline)
        phi_net_poll(p->net);
    return rc;
}

// Waits until all posts of end 0 are told to be delivered.
static bool await_posts(struct probe *p)
{
    struct phi_link *link = p->ends[0].link;
    uint64_t mark;

    while (!phi_link_mark(link, &mark) || !phi_link_delivered(link, mark)) {
        if (phi_now() >= p->deadline)
            return false;
        phi_net_poll(p->net);
    }
    return true;
}

static bool await32(struct probe *p, const char *at, uint32_t value)
{
    while (atomic_load_explicit((_Atomic uint32_t *)at, memory_order_acquire) != value) {
        if (phi_now() >= p->deadline)
            return false;
        phi_net_poll(p->net);
    }
    return true;
}

static bool is_ready(struct probe *p)
{
    bool ready = true;

    phi_net_lock(p->net);
    for (int i = 0; i < 2; i++)
        for (uint32_t j = 0; j < p->ends[i].link->rails.used; j++)
            ready = ready && p->ends[i].link->rails.list[j].ready;
    pthread_mutex_unlock(&p->net->lock);
    return ready;
}

#define CONNECT_MS 1000

// Waits until data may go over all rails.
static bool await_rails(struct probe *p)
{
    const int64_t deadline = phi_deadline(CONNECT_MS);

    while (!is_ready(p) && phi_now() < deadline)
        phi_net_poll(p->net);
    return is_ready(p);
}

static const char *begin(struct probe *p)
{
    struct end *a = &p->ends[0], *b = &p->ends[1];

    if (open_end(p, 0) || open_end(p, 1))
        return "no endpoint or region";
    if (connect_end(p, 0) || connect_end(p, 1))
        return "its addresses are refused";
    if (phi_link_route(a->link, 1, &b->target, 0, &p->route) ||
        phi_link_route(b->link, 1, &a->target, 0, &p->back))
        return "no route";
    return NULL;
}

// Called before a round over a rail: forgets posts that have come.
static void begin_round(struct probe *p, uint32_t rail)
{
    phi_net_lock(p->net);
    memset(p->ends[1].line, 0, 8);
    p->ends[0].link->rails.turn = p->ends[1].link->rails.turn = rail;
    pthread_mutex_unlock(&p->net->lock);
}

static size_t order_size(int round, int i)
{
    return order_sizes[(size_t)(3 * i + round) % (sizeof(order_sizes) / sizeof(order_sizes[0]))];
}

// last_ones_stay: whether each word has the value of the last write to it.
static bool last_ones_stay(const struct probe *p, int round)
{
    size_t known = 0;

    for (int i = WRITES - 1; i >= 0; i--)
        for (; known < order_size(round, i) / 8; known++)
            if (p->ends[1].data[known] != p->ends[0].data[known + (size_t)i])
                return false;
    return true;
}

// One round: writes to the same bytes, all under way together. *kept: each byte is of the last one.
static int overwrite(struct probe *p, int round, bool *kept)
{
    struct end *a = &p->ends[0];
    struct phi_move moves[WRITES];
    int rc = 0, started = 0;

    for (uint64_t i = 0; i < ORDER_WORDS; i++) // no word twice
        a->data[i] = (uint64_t)(round + 1) * ORDER_WORDS + i;
    for (; started < WRITES && rc == 0; started += rc == 0) {
        moves[started] = (struct phi_move){
            .route = &p->route, .local = &a->data[started], .size = order_size(round, started)};
        rc = start(p, &moves[started]);
    }
    for (int i = 0; i < started; i++) // all of them, as they are on this stack
        rc = finish(p, &moves[i]) || rc ? -EIO : 0;
    *kept = last_ones_stay(p, round);
    return rc;
}

// A provider that says that it keeps the order of writes is believed, as long as we see no write
// that breaks it.
static const char *watch_order(struct probe *p)
{
    for (int i = 0; i < ROUNDS && p->net->provider.in_order; i++) {
        bool kept;

        if (overwrite(p, i, &kept))
            return "writes of the same bytes are not delivered";
        p->net->provider.in_order = kept;
    }
    return NULL;
}

// Returns what is wrong, or NULL.
static const char *run(struct probe *p)
{
    struct end *a = &p->ends[0], *b = &p->ends[1];
    const struct phi_net_post noted = {.word = 1, .which = 0}, ready = {.word = 0, .which = 0};
    const char *wrong = begin(p);
    uint64_t value;

    if (wrong)
        return wrong;
    phi_random(a->data, BYTES);
    if (move(p, false, 0, BYTES, phi_net_post_encode(&noted)))
        return "a write is not delivered";
    if (!await32(p, b->line + 4, 4))
        return "the immediate data of a write does not come";
    if (memcmp(a->data, b->data, BYTES) != 0)
        return "a write is told before its data has come";
    phi_random(&value, sizeof(value));
    b->data[7] = value;
    if (move(p, true, 7, 8, 0))
        return "a read does not come back";
    if (a->data[7] != value)
        return "a read brings other bytes";
    if (post(p, phi_net_post_encode(&ready)))
        return "a write of nothing with immediate data is refused";
    if (!await32(p, b->line, 1))
        return "the immediate data of a write of nothing does not come";
    if (!await_posts(p))
        return "a write of nothing is not told to be delivered";
    phi_link_store(a->link, 0, &(uint32_t){17}, 4);
    if (!await32(p, (const char *)&b->store, 17))
        return "a message does not come";
    return watch_order(p);
}

// Writes into memory of a device at end 1, as a peer does, and back from there.
static const char *run_memory(struct probe *p)
{
    struct end *a = &p->ends[0], *b = &p->ends[1];
    const struct phi_net_post noted = {.side = 1, .word = 1, .which = 0};
    struct phi_move back = {
        .route = &p->back, .local = b->memory->base, .size = PHI_NET_TRY, .offset = PHI_NET_TRY};
    const char *wrong = begin(p);

    if (wrong)
        return wrong;
    if (!await_rails(p))
        return "an endpoint does not connect";
    for (uint32_t i = 0; i < a->link->rails.used; i++) {
        begin_round(p, i);
        phi_random(a->data, PHI_NET_TRY);
        if (move(p, false, 0, PHI_NET_TRY, phi_net_post_encode(&noted)))
            return "a write into memory of the device is not delivered";
        if (!await32(p, b->line + 4, 4))
            return "what was written into memory of the device does not show";
        back.state = PHI_MOVE_IDLE;
        if (carry_out(p, &back))
            return "a write out of memory of the device is not delivered";
        if (memcmp(a->data, (char *)a->data + PHI_NET_TRY, PHI_NET_TRY) != 0)
            return "what comes out of memory of the device is not what was written there";
    }
    return NULL;
}

_Static_assert(2 * PHI_NET_TRY <= BYTES, "what is written, and what comes back");

static int probe(struct phi_net *net, const struct phi_net_memory *memory, void *bytes, int64_t ms,
                 char *why, size_t size)
{
    struct probe *p = aligned_alloc(_Alignof(struct probe), sizeof(*p));
    const char *wrong = "out of memory";
    bool late = false;
    int lack = 0;

    if (p) {
        memset(p, 0, sizeof(*p));
        p->net = net;
        p->deadline = phi_deadline(ms);
        p->ends[1].memory = memory;
        wrong = memory ? run_memory(p) : run(p);
        lack = wrong ? phi_descriptors_lack(1) : 0; // the links have them
        late = phi_now() >= p->deadline;
        phi_link_free(p->ends[0].link);
        phi_link_free(p->ends[1].link);
        if (memory)
            memcpy(bytes, p->ends[0].data, PHI_NET_TRY);
    }
    free(p);
    if (wrong)
        snprintf(why, size, "the probe: %s", lack ? ph_strerror(lack) : wrong);
    if (lack)
        return lack;
    return !wrong ? 0 : late ? -ETIMEDOUT : -EIO;
}

int phi_net_probe(struct phi_net *net, int64_t ms, char *why, size_t size)
{
    return probe(net, NULL, NULL, ms, why, size);
}

int phi_net_try(struct phi_net *net, const struct phi_net_memory *memory, void *bytes, int64_t ms,
                char *why, size_t size)
{
    return probe(net, memory, bytes, ms, why, size);
}
