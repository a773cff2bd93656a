// SPDX-License-Identifier: BSD-3-Clause
// Staged records over a link: lanes, the records that move on them, and the credit for these.
#include "net/records.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "net/bells.h"
#include "net/lane.h"
#include "net/post.h"
#include "net/region.h"

// A lane without progress for so long is asked whether it still expects anything.
#define QUIET_NS 200000
#define SECOND   1000000000LL

// ---- immediates

// Bits: line 0-19, side 20, word 21, value 22-25, life 26-28.
#define LIFE_MASK 7u

enum { CREDIT_MOST = 15, CREDIT_GATHERED = 4 };

_Static_assert(PHI_STAGE_SLOTS <= 16, "a slot is named by four bits");

struct immediate {
    uint32_t line;
    uint8_t side, word, value, life;
};

static uint32_t encode(const struct phi_lane *lane, uint32_t value)
{
    const struct phi_lane_params *p = &lane->params;
    const uint32_t mine = (uint32_t)lane->link->staging.side;
    const uint32_t side = p->outgoing ? mine : !mine;

    return PHI_STAGED | p->line | side << 20 | (uint32_t)p->word << 21 | (value & 15u) << 22 |
           (p->life & LIFE_MASK) << 26;
}

static struct immediate decode(uint32_t immediate)
{
    return (struct immediate){
        .line = immediate & 0xfffffu,
        .side = immediate >> 20 & 1,
        .word = immediate >> 21 & 1,
        .value = immediate >> 22 & 15,
        .life = immediate >> 26 & LIFE_MASK,
    };
}

static struct phi_arrivals *arrivals_of(struct phi_link *link, uint32_t line, bool outgoing,
                                        uint32_t word)
{
    return &link->staging.arrivals[(size_t)line * PHI_LANES_PER_LINE + (outgoing ? 2 : 0) + word];
}

// ---- progress

// A slot is free again when its record was emptied, and the provider is done with the slot here.
static bool free_slots(struct phi_lane *lane)
{
    uint32_t reach = lane->reach;

    for (;;) {
        uint32_t record = reach - PHI_STAGE_SLOTS + 1;

        if ((int32_t)(lane->credited - record) < 0 || lane->ops[phi_lane_slot(record - 1)].op.busy)
            break;
        reach++;
    }
    if (reach == lane->reach)
        return false;
    phi_lane_publish(lane, reach);
    return true;
}

// may_be_loose: whether a record need not ask for its delivery. The peer would answer each such
// request by a message of its own. Where writes keep their order, the delivery of a later one (see
// assure) is that of all before it. The probe looked whether they keep it for writes of up to a
// part.
static bool may_be_loose(const struct phi_lane *lane)
{
    return PHI_STAGE_HEAD + (size_t)lane->chunk <= lane->link->net->provider.part &&
           phi_route_in_order(&lane->link->staging.route);
}

// ---- lines

static struct phi_stage_line *line_of(const struct phi_lane *lane, uint32_t record)
{
    return &lane->params.control->lines[phi_lane_slot(record - 1)];
}

static uint8_t *slot_at(const struct phi_lane *lane, uint32_t record)
{
    return lane->params.slots +
           (uint64_t)phi_lane_slot(record - 1) * (PHI_STAGE_HEAD + lane->chunk);
}

static void void_line(struct phi_lane *lane, uint32_t record)
{
    for (int i = 0; i < PHI_STAGE_LINE_WORDS; i++)
        __atomic_store_n(&line_of(lane, record)->words[i], PHI_STAGE_VOID(record),
                         __ATOMIC_RELAXED);
}

// read_line: whether the stream has filled the record's line. It reads nothing else for that. Each
// store of the stream carries the record's number, so relaxed loads will do.
static bool read_line(const struct phi_lane *lane, uint32_t record, struct phi_stage_short *what)
{
    const struct phi_stage_line *line = line_of(lane, record);
    uint32_t data[PHI_STAGE_LINE_WORDS];

    for (int i = 0; i < PHI_STAGE_LINE_WORDS; i++) {
        const uint64_t word = __atomic_load_n(&line->words[i], __ATOMIC_RELAXED);

        if ((uint32_t)(word >> 32) != record)
            return false;
        data[i] = (uint32_t)word;
    }
    memcpy(what, data, sizeof(*what));
    return true;
}

// A record has come. If it is short the stream takes it from its line. The peer may write the slot
// again at any time. The stream believes nothing of it.
static void fill_line(struct phi_lane *lane, uint32_t record)
{
    const uint8_t *slot = slot_at(lane, record);
    struct phi_stage_short what;
    uint32_t data[PHI_STAGE_LINE_WORDS];

    memcpy(&what.head, slot, sizeof(what.head));
    if (what.head.size > PHI_STAGE_SHORT) {
        void_line(lane, record);
        return;
    }
    memcpy(what.data, slot + PHI_STAGE_HEAD, PHI_STAGE_SHORT);
    memcpy(data, &what, sizeof(data));
    for (int i = 0; i < PHI_STAGE_LINE_WORDS; i++)
        __atomic_store_n(&line_of(lane, record)->words[i], PHI_STAGE_WORD(record, data[i]),
                         __ATOMIC_RELAXED);
}

// ---- records and credit

// Puts a record into its slot where it is in its line. The peer cannot write the stream's own
// words, so its head can be trusted. To check that it fits costs nothing.
static uint32_t pack_record(struct phi_lane *lane, uint32_t record,
                            const struct phi_stage_short *line)
{
    uint8_t *slot = slot_at(lane, record);
    struct phi_stage_record head;

    if (line) {
        memcpy(slot, &line->head, sizeof(line->head));
        memcpy(slot + PHI_STAGE_HEAD, line->data, sizeof(line->data));
    }
    memcpy(&head, slot, sizeof(head));
    return head.size < lane->chunk ? head.size : lane->chunk;
}

static ssize_t write_slot(struct phi_lane *lane, uint32_t record, const struct phi_rma *what)
{
    struct phi_link *link = lane->link;
    struct phi_rma rma = *what;
    ssize_t rc;

    rma.route = &link->staging.route;
    rma.offset = lane->params.offset + (uint64_t)(slot_at(lane, record) - lane->params.slots);
    rc = phi_rail_post(link, &rma, &lane->ops[phi_lane_slot(record - 1)].op);
    if (rc == 0) {
        link->ops.flying++;
        link->staging.writing++;
    }
    return rc;
}

// Posts the next record, where the stream has filled its line, or all blocks have filled its slot.
// `done` was read before the line. The stream stores the line before the word, so a record that is
// done and not in its line is in its slot (tests/model finds what happens otherwise).
static ssize_t send_record(struct phi_lane *lane, uint32_t done)
{
    const uint32_t record = lane->sent + 1, slot = phi_lane_slot(lane->sent);
    const bool loose = may_be_loose(lane);
    uint8_t *at = slot_at(lane, record);
    struct phi_stage_short line;
    uint32_t size;
    bool in_line;
    ssize_t rc;

    if (lane->ops[slot].op.busy || (int32_t)(lane->reach - record) < 0)
        return -FI_EAGAIN;
    in_line = read_line(lane, record, &line);
    if (!in_line && (int32_t)(done - record) < 0)
        return -FI_EAGAIN;
    size = pack_record(lane, record, in_line ? &line : NULL);
    rc = write_slot(lane, record,
                    &(struct phi_rma){.local = at,
                                      .size = PHI_STAGE_HEAD + (size_t)size,
                                      .tells = true,
                                      .immediate = encode(lane, slot),
                                      .loose = loose});
    if (rc == 0) {
        lane->sent++;
        if (!loose)
            lane->assured = record;
        void_line(lane, record);
    }
    return rc;
}

// is_assured: whether all records whose operations are over are delivered: they asked for it, or
// the peer's credit says so, or a record after them asked.
static bool is_assured(const struct phi_lane *lane)
{
    return !lane->params.outgoing || lane->chunk == 0 || lane->assured == lane->sent;
}

// Writes the head of the newest record once more, and asks for the delivery of that. Until its
// credit comes both ends use the slot, and the bytes are those that lie there.
static void assure(struct phi_lane *lane)
{
    const uint32_t record = lane->sent;
    struct phi_record_op *op = &lane->ops[phi_lane_slot(record - 1)];

    if (is_assured(lane) || op->op.busy)
        return;
    if (write_slot(lane, record,
                   &(struct phi_rma){.local = slot_at(lane, record),
                                     .size = sizeof(struct phi_stage_record)}) == 0) {
        op->assures = true;
        op->record = record;
    }
}

static ssize_t send_credit(struct phi_lane *lane, uint32_t count)
{
    struct phi_link *link = lane->link;
    const struct phi_rma rma = {.route = &link->staging.route,
                                .tells = true,
                                .immediate = encode(lane, count),
                                .loose = true};
    struct phi_net_op *op = phi_op_free(link->ops.posts, PHI_POSTS);
    ssize_t rc = op ? phi_rail_post(link, &rma, op) : (ssize_t)-FI_EAGAIN;

    if (rc == 0) {
        link->ops.posting++;
        lane->sent += count;
    }
    return rc;
}

// is_sane: no stream can have done more records than there are slots. Else somebody has written its
// words, such as a peer to whose slots we gave a place over them.
static bool is_sane(const struct phi_lane *lane, uint32_t done)
{
    if (lane->chunk == 0)
        return PHI_BELLS_SANE(done, lane->credited);
    return done - lane->sent <= PHI_STAGE_SLOTS || (int32_t)(done - lane->sent) < 0;
}

// ---- progress of a lane

// credit_waits: credit for several records is one write, as long as the peer does not need it soon.
// The peer has the slots of records that are not owed, nor on their way, nor here. Any of them may
// be on its way, so a quiet lane owes nothing.
static bool credit_waits(const struct phi_lane *lane, uint32_t owed, bool quiet)
{
    const uint32_t held = lane->reach - lane->sent; // by the peer's reckoning

    return !quiet && owed < CREDIT_GATHERED && held < PHI_STAGE_SLOTS / 2;
}

static bool lane_go(struct phi_lane *lane, bool quiet)
{
    const uint32_t done = phi_lane_done(lane);
    bool any = false;

    if (!is_sane(lane, done)) {
        phi_link_fail(lane->link, -EBADMSG, "the words of a staged lane make no sense");
        return false;
    }
    if (lane->chunk == 0)
        return phi_bells_go(lane, done);

    if (lane->params.outgoing) {
        while (send_record(lane, done) == 0)
            any = true;
        return any;
    }
    while ((int32_t)(done - lane->sent) > 0) {
        const uint32_t count = done - lane->sent;

        if (credit_waits(lane, count, quiet) ||
            send_credit(lane, count < CREDIT_MOST ? count : CREDIT_MOST))
            break;
        any = true;
    }
    return any;
}

// at_rest: nothing of which this end knows is on its way.
static bool at_rest(const struct phi_lane *lane)
{
    const uint32_t done = phi_lane_done(lane);

    if (lane->chunk == 0)
        return done == lane->credited;
    if (!lane->params.outgoing)
        return done == lane->sent && done == lane->reach;
    return done == lane->sent && done == lane->credited && lane->reach == done + PHI_STAGE_SLOTS;
}

// has_more: whether the stream has filled (emptied) something that is not sent. Blocks that gave up
// may be behind records that went by a line.
static bool has_more(const struct phi_lane *lane)
{
    const uint32_t done = phi_lane_done(lane);
    struct phi_stage_short line;

    if (!lane->params.outgoing)
        return done != lane->sent;
    return (int32_t)(done - lane->sent) > 0 || read_line(lane, lane->sent + 1, &line);
}

static bool may_sleep(const struct phi_lane *lane)
{
    // busy is read first: after it says no, we see all that the stream did.
    if (lane->params.busy(lane->params.opaque))
        return false;
    return lane->chunk == 0 ? at_rest(lane) : !has_more(lane) && is_assured(lane);
}

// Takes a quiet lane out of the active ones. A kick that found it still there was given before
// `awaiting` was cleared, and after its stream got its work: then busy says so.
static bool deactivate(struct phi_lane *lane)
{
    if (!may_sleep(lane))
        return false;
    atomic_store(&lane->awaiting, 0);
    return may_sleep(lane) || atomic_exchange(&lane->awaiting, 1) != 0;
}

void phi_staging_take(struct phi_net *net)
{
    if (atomic_load_explicit(&net->proxy.kicked, memory_order_relaxed) == NULL)
        return;
    struct phi_lane *lane =
        atomic_exchange_explicit(&net->proxy.kicked, NULL, memory_order_acquire);

    while (lane) {
        struct phi_lane *next = lane->kicked;

        // A link that has ended moves nothing any more, and no kick is needed.
        if (!lane->active && lane->link->carries) {
            lane->active = true;
            lane->next = lane->link->staging.active;
            lane->link->staging.active = lane;
            net->proxy.lanes++;
        }
        lane->moved_at = phi_now();
        lane = next;
    }
}

bool phi_staging_go(struct phi_link *link)
{
    struct phi_lane **at = &link->staging.active;
    struct phi_lane *lane;
    bool any = false;
    int64_t now;

    if (!link->staging.active || !link->connected)
        return false;
    now = phi_now();
    while (link->carries && (lane = *at) != NULL) {
        const bool quiet = now - lane->moved_at > QUIET_NS;

        if (lane_go(lane, quiet)) {
            lane->moved_at = now;
            any = true;
            at = &lane->next;
            continue;
        }
        if (link->carries && quiet)
            assure(lane);
        if (link->carries && quiet && deactivate(lane)) {
            lane->active = false;
            link->net->proxy.lanes--;
            *at = lane->next;
        } else {
            at = &lane->next;
        }
    }
    return any;
}

// is_idle: whether the provider has no record of a lane, and none of its operations.
static bool is_idle(const struct phi_lane *lane)
{
    for (uint32_t i = 0; i < PHI_STAGE_SLOTS; i++)
        if (lane->ops[i].op.busy || atomic_load(&lane->moves[i].state) == PHI_MOVE_POSTED)
            return false;
    return !lane->flushing;
}

static void free_closed(struct phi_link *link, struct phi_lane *lane)
{
    struct phi_lane **at = &link->staging.closed;

    while (*at != lane)
        at = &(*at)->next;
    *at = lane->next;
    free(lane);
}

void phi_record_completed(struct phi_link *link, struct phi_net_op *op)
{
    struct phi_record_op *record = (struct phi_record_op *)op;
    struct phi_lane *lane = record->lane;

    link->ops.flying--;
    link->staging.writing--;
    if (record->assures && (int32_t)(record->record - lane->assured) > 0)
        lane->assured = record->record;
    record->assures = false;
    if (!lane->closed)
        free_slots(lane);
    else if (is_idle(lane))
        free_closed(link, lane);
}

static void arrive(struct phi_link *link, const struct immediate *im)
{
    struct phi_arrivals *a = arrivals_of(link, im->line, false, im->word);

    if (a->lane ? (a->lane->params.life & LIFE_MASK) != im->life : a->life != im->life) {
        if (a->lane)
            return; // of a channel that had the line before
        *a = (struct phi_arrivals){.life = im->life};
    }
    if (im->value >= PHI_STAGE_SLOTS)
        return;
    a->present |= (uint16_t)(1u << im->value);
    while (a->present & 1u << phi_lane_slot(a->arrived)) {
        a->present &= (uint16_t) ~(1u << phi_lane_slot(a->arrived));
        a->arrived++;
        if (a->lane && a->lane->chunk > 0)
            fill_line(a->lane, a->arrived);
    }
    if (a->lane && a->lane->chunk > 0)
        phi_lane_publish(a->lane, a->arrived);
}

static void credit(struct phi_link *link, const struct immediate *im)
{
    struct phi_lane *lane = arrivals_of(link, im->line, true, im->word)->lane;

    if (!lane || lane->chunk == 0 || (lane->params.life & LIFE_MASK) != im->life ||
        (int32_t)(lane->sent - (lane->credited + im->value)) < 0)
        return;
    lane->credited += im->value;
    if ((int32_t)(lane->credited - lane->assured) > 0)
        lane->assured = lane->credited;
    free_slots(lane);
}

void phi_staging_apply(struct phi_link *link, uint32_t immediate)
{
    const struct immediate im = decode(immediate);

    if (!link->staging.arrivals || im.line >= link->mirror.capacity)
        return;
    if (im.side == link->staging.side)
        credit(link, &im);
    else
        arrive(link, &im);
}

bool phi_staging_busy(const struct phi_link *link)
{
    if (link->staging.writing > 0)
        return true;
    for (const struct phi_lane *lane = link->staging.active; lane; lane = lane->next)
        if (lane->chunk == 0 ? phi_lane_done(lane) != lane->credited
                             : has_more(lane) || !is_assured(lane))
            return true;
    return false;
}

// ---- the proxy's rest

// Without progress it looks less and less often, but at least as often as the parameter says.
void phi_staging_rest(const struct phi_net *net, int64_t quiet)
{
    const int64_t most = net->config->net_backoff_us * 1000;
    int64_t pause = quiet / 16;

    if (pause > most)
        pause = most;
    if (quiet < net->config->spin_us * 1000 || pause == 0)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_sec = pause / SECOND, .tv_nsec = pause % SECOND}, NULL);
}

// ---- memory

// The ids of these two among the link's regions. Exports never have them.
#define OUT_ID (UINT32_MAX - 1)
#define IN_ID  (UINT32_MAX - 2)
_Static_assert(OUT_ID != PHI_NO_REGION && OUT_ID != PHI_HOST_MEMORY && IN_ID != PHI_NO_REGION &&
                   IN_ID != PHI_HOST_MEMORY && PHI_LENT_IDS + 255 < PHI_HOST_MEMORY,
               "what is no region is none");

int phi_link_stage(struct phi_link *link, const struct phi_staging_params *params,
                   struct phi_net_target *in)
{
    struct phi_net *net = link->net;
    const struct phi_net_memory out = {.base = params->out, .size = params->out_size};
    const struct phi_net_memory into = {.base = params->in, .size = params->in_size};
    int rc = phi_region_register(link, OUT_ID, &out, FI_WRITE);

    if (!rc)
        rc = phi_region_register(link, IN_ID, &into, FI_REMOTE_WRITE);
    if (!rc && !phi_link_target(link, IN_ID, in))
        rc = phi_fail(net->report, -EIO, "%s gives no key for slots", net->provider.name);
    if (rc)
        return rc;
    phi_net_lock(net);
    if (!link->staging.arrivals)
        link->staging.arrivals = calloc((size_t)link->mirror.capacity * PHI_LANES_PER_LINE,
                                        sizeof(*link->staging.arrivals));
    link->staging.side = params->side;
    if (!link->staging.arrivals)
        rc = phi_fail(net->report, -ENOMEM, "out of memory for the lanes of a link");
    pthread_mutex_unlock(&net->lock);
    return rc;
}

int phi_link_stage_peer(struct phi_link *link, const struct phi_net_target *theirs)
{
    struct phi_net_target target = *theirs; // not forgotten before the link ends
    struct phi_route route;
    int rc = phi_link_route(link, OUT_ID, &target, 0, &route);

    if (rc)
        return rc;
    phi_net_lock(link->net);
    link->staging.route = route;
    pthread_mutex_unlock(&link->net->lock);
    return 0;
}

void phi_link_staging_shut(struct phi_link *link)
{
    while (link->staging.active) {
        struct phi_lane *lane = link->staging.active;

        link->staging.active = lane->next;
        lane->active = false;
        link->net->proxy.lanes--;
    }
    link->staging.writing = 0;
}

void phi_link_staging_free(struct phi_link *link)
{
    while (link->staging.closed)
        free_closed(link, link->staging.closed);
    free(link->staging.arrivals);
    link->staging.arrivals = NULL;
}

uint32_t phi_net_chunk(const struct phi_net *net)
{
    const size_t most = net->nics[0].info->ep_attr->max_msg_size;

    return most > UINT32_MAX       ? UINT32_MAX
           : most > PHI_STAGE_HEAD ? (uint32_t)most - PHI_STAGE_HEAD
                                   : 0;
}

// ---- lanes

struct phi_lane *phi_lane_make(void)
{
    return calloc(1, sizeof(struct phi_lane));
}

void phi_lane_open(struct phi_lane *lane, struct phi_link *link,
                   const struct phi_lane_params *params)
{
    struct phi_net *net = link->net;
    struct phi_arrivals *a;

    lane->link = link;
    lane->params = *params;
    lane->chunk = PHI_STAGE_CHUNK(params->like);
    lane->blocks = PHI_STAGE_BLOCKS_OF(params->like);
    if (params->route)
        lane->route = *params->route;
    for (uint32_t i = 0; i < PHI_STAGE_SLOTS; i++) {
        lane->ops[i].op.kind = PHI_OP_RECORD;
        lane->ops[i].lane = lane;
    }
    phi_net_lock(net);
    a = arrivals_of(link, params->line, params->outgoing, params->word);
    if (a->lane == NULL && a->life != (params->life & LIFE_MASK))
        *a = (struct phi_arrivals){.life = params->life & LIFE_MASK};
    a->lane = lane;
    phi_lane_publish(lane, params->outgoing || lane->chunk == 0 ? PHI_STAGE_SLOTS : a->arrived);
    if (lane->chunk == 0 && !link->carries)
        phi_bells_over(lane);
    pthread_mutex_unlock(&net->lock);
}

static void unlist(struct phi_lane *lane)
{
    struct phi_lane **at = &lane->link->staging.active;

    phi_staging_take(lane->link->net); // it may be among them
    if (!lane->active)
        return;
    while (*at != lane)
        at = &(*at)->next;
    *at = lane->next;
    lane->link->net->proxy.lanes--;
}

void phi_lane_close(struct phi_lane *lane)
{
    const struct phi_lane_params *p;
    struct phi_arrivals *a;
    struct phi_net *net;

    if (!lane || !lane->link) {
        free(lane);
        return;
    }
    net = lane->link->net;
    p = &lane->params;
    phi_net_lock(net);
    unlist(lane);
    a = arrivals_of(lane->link, p->line, p->outgoing, p->word);
    // The next channel of the line has the next life.
    *a = (struct phi_arrivals){.life = (p->life + 1) & LIFE_MASK};
    lane->closed = lane->link->carries && !is_idle(lane);
    if (lane->closed) {
        lane->next = lane->link->staging.closed;
        lane->link->staging.closed = lane;
        lane = NULL;
    }
    pthread_mutex_unlock(&net->lock);
    free(lane);
}

void phi_lane_kick(struct phi_lane *lane)
{
    struct phi_net *net = lane->link->net;
    struct phi_lane *first;

    // seq_cst: pairs with deactivate().
    if (atomic_exchange(&lane->awaiting, 1))
        return;
    first = atomic_load_explicit(&net->proxy.kicked, memory_order_relaxed);
    do
        lane->kicked = first;
    while (!atomic_compare_exchange_weak(&net->proxy.kicked, &first, lane));
    // seq_cst: pairs with the proxy's store of asleep and look at the kicked.
    if (atomic_load(&net->proxy.asleep))
        phi_wake_ring(net->proxy.wake.ring);
}

static bool is_sent(struct phi_lane *lane)
{
    if (lane->chunk == 0)
        return at_rest(lane);
    if (has_more(lane))
        return false;
    assure(lane); // nobody waits until the lane is quiet
    return is_idle(lane) && is_assured(lane);
}

bool phi_lane_rests(struct phi_lane *lane, bool of_use)
{
    bool rests;

    phi_net_lock(lane->link->net);
    rests = of_use ? at_rest(lane) : !lane->link->carries || is_sent(lane);
    pthread_mutex_unlock(&lane->link->net->lock);
    return rests;
}
