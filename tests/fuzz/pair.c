// SPDX-License-Identifier: BSD-3-Clause
#include "pair.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/random.h"
#include "exchange/offer.h"
#include "meeting/lives.h"
#include "meeting/reap.h"
#include "peer/exports.h"
#include "peer/node.h"
#include "peer/side.h"
#include "peer/wake.h"
#include "release/release.h"
#include "semaphore/flags.h"

static struct pair pair;
static struct phi_segment *segments[2]; // as the lower rank makes it, by our rank

void (*pair_acts)(void);
bool pair_busy;

static struct {
    uint8_t *bytes;
    size_t size;
} delivered;

// ---- an executor that runs nothing

static bool drained(struct phi_executor *executor, struct phi_uses *uses, char *why, size_t size)
{
    (void)executor;
    (void)uses;
    (void)why;
    (void)size;
    return !pair_busy;
}

static bool busy(struct phi_executor *executor, char *why, size_t size)
{
    return !drained(executor, NULL, why, size);
}

static void left(struct phi_executor *executor, struct phi_uses *uses, struct phi_left *left)
{
    (void)executor;
    (void)uses;
    *left = (struct phi_left){.streams = 1};
}

static bool progress(struct phi_executor *executor, uint32_t index, struct phi_progress *progress,
                     struct phi_wait_note *note)
{
    (void)executor;
    (void)index;
    (void)progress;
    (void)note;
    return false;
}

static int flush(struct phi_executor *executor, int64_t deadline)
{
    (void)executor;
    (void)deadline;
    return 0;
}

static const struct phi_executor_ops executor_ops = {.size = sizeof(executor_ops),
                                                     .name = "none",
                                                     .drained = drained,
                                                     .left = left,
                                                     .progress = progress,
                                                     .busy = busy,
                                                     .flush = flush};
static struct phi_executor executor = {.ops = &executor_ops};

// ---- a store that takes everything

static int set(void *opaque, const char *key, const void *value, size_t size, int64_t ms)
{
    (void)opaque;
    (void)key;
    (void)value;
    (void)size;
    (void)ms;
    return 0;
}

static int get(void *opaque, const char *key, void **value, size_t *size, int64_t ms)
{
    (void)opaque;
    (void)key;
    if (pair_acts)
        pair_acts();
    if (!delivered.bytes) {
        fuzz_time += (ms + 1) * PHI_MS;
        return -ETIMEDOUT;
    }
    *value = delivered.bytes;
    *size = delivered.size;
    delivered.bytes = NULL;
    return 0;
}

static const struct ph_store_callbacks callbacks = {set, get, store_drop, NULL};

void pair_deliver(struct pair *of, uint8_t *bytes, size_t size)
{
    (void)of;
    free(delivered.bytes);
    delivered.bytes = bytes;
    delivered.size = size;
}

// ---- the pair

static void make_memory(struct phi_report *report)
{
    struct phi_allocation allocation;
    uint64_t offset;
    void *address;

    HOLD(phi_memory_open(report, NULL, &pair.self.memory) == 0);
    HOLD(phi_host_alloc(pair.self.memory, 16384, &address) == 0);
    HOLD(phi_memory_describe(pair.self.memory, address, 1, &allocation, &offset) == 0);
    HOLD(phi_memory_export(pair.self.memory, &allocation, &pair.foreign) == 0);
    HOLD(phi_host_alloc(pair.self.memory, OWN_BUFFERS * OWN_BUFFER, &address) == 0);
    pair.buffers = address;
}

// What all executions share is made once.
static void make_once(void)
{
    struct fuzz_context *context = fuzz_context();
    static const volatile uint8_t life = 1;

    pair.self.life = &life;
    pair.self.report = &context->report;
    pair.self.counters = &context->counters;
    pair.self.config = &context->config;
    pair.self.executor = &executor;
    pair.self.ranks = 2;
    pair.self.incarnation = OWN_INCARNATION;
    memset(pair.self.mine.node, 1, sizeof(pair.self.mine.node));
    pair.self.mine.kinds = 1u << PHI_KIND_HOST;
    pair.self.mine.nonce = 99;
    pair.self.table = calloc(2, sizeof(*pair.self.table));
    pair.self.inbox.records = calloc(2, sizeof(*pair.self.inbox.records));
    pair.self.inbox.wanted = calloc(2, sizeof(*pair.self.inbox.wanted));
    pair.self.inbox.wanted_now = calloc(2, sizeof(*pair.self.inbox.wanted_now));
    pair.self.serving.silent_since = calloc(2, sizeof(*pair.self.serving.silent_since));
    HOLD(pair.self.table && pair.self.inbox.records && pair.self.inbox.wanted &&
         pair.self.inbox.wanted_now && pair.self.serving.silent_since);
    pthread_mutex_init(&pair.self.lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&pair.self.changes.cond, &attributes);
    make_memory(&context->report);
    HOLD(phi_events_open(&pair.self.serving.events) == 0);
    HOLD(phi_probe_open(pair.self.memory, NULL, &pair.self.trials.target) == 0);
    for (int rank = 0; rank < 2; rank++) {
        uint64_t nonce = rank == 0 ? phi_hash(OWN_INCARNATION, THEIR_INCARNATION)
                                   : phi_hash(THEIR_INCARNATION, OWN_INCARNATION);
        HOLD(phi_segment_create(&context->report, 16, nonce, &segments[rank]) == 0);
        segments[rank]->side = rank;
    }
}

// As new: what an execution before has written is gone.
static void reset_segment(struct phi_segment *segment)
{
    for (int side = 0; side < 2; side++) {
        memset(phi_segment_side(segment, side), 0, sizeof(struct phi_side));
        memset(phi_segment_slot(segment, side, 0), 0, 16 * sizeof(struct phi_slot));
        memset(phi_segment_confirm(segment, side, 0), 0, 16 * sizeof(uint64_t));
        for (uint32_t i = 0; i < 16; i++)
            *phi_segment_line(segment, side, i) = (struct phi_line){0};
    }
}

static void open_mailbox(int rank)
{
    const struct phi_mailbox_params params = {
        .report = pair.self.report,
        .counters = pair.self.counters,
        .config = pair.self.config,
        .callbacks = &callbacks,
        .job = "fuzz",
        .rank = rank,
        .ranks = 2,
        .incarnation = OWN_INCARNATION,
    };

    HOLD(phi_mailbox_open(&params, phi_deadline(1000), &pair.self.mailbox) == 0);
}

struct pair *pair_open(int rank, bool ready)
{
    if (!pair.self.report)
        make_once();
    fuzz_time = 1000 * PHI_MS; // before the real one: nothing waits for it in earnest
    pair.self.rank = rank;
    open_mailbox(rank);
    reset_segment(segments[rank]);
    descriptor_given = segments[rank]->fd;
    pair.peer = phi_self_peer(&pair.self, !rank);
    HOLD(pair.peer);
    struct phi_capabilities theirs = pair.self.mine;
    strcpy(theirs.socket, "@peerhop-000000000000000000000001");
    strcpy(theirs.host, "elsewhere");
    phi_peer_record(pair.peer, THEIR_INCARNATION, &theirs);
    if (ready) {
        pair.peer->state = PHI_PEER_READY;
        pair.peer->segment = segments[rank];
        pair.peer->contact.life = THEIR_INCARNATION;
        atomic_store(&phi_peer_theirs(pair.peer)->mapped, 1);
    }
    return &pair;
}

static void free_exports(struct phi_self *self)
{
    for (uint32_t i = 0; i < self->exports.count; i++)
        phi_export_free(self->exports.live[i]);
    while (self->exports.ended) {
        struct phi_local_export *e = self->exports.ended;
        self->exports.ended = e->next;
        phi_export_free(e);
    }
    phi_releases_free(self);
    free(self->exports.live);
    self->exports.live = NULL;
    self->exports.count = self->exports.room = self->exports.ids = 0;
}

// The segment that all executions share stays, and so what it was given to.
void pair_reap(struct pair *of)
{
    struct phi_self *self = &of->self;

    for (struct phi_peer *peer = self->lives.former; peer; peer = peer->life.former)
        peer->life.visitors += peer->segment == segments[self->rank];
    phi_reap(self, true);
    for (struct phi_peer *peer = self->lives.former; peer; peer = peer->life.former)
        peer->life.visitors -= peer->segment == segments[self->rank];
}

void pair_close(struct pair *of)
{
    struct phi_self *self = &of->self;

    HOLD(self->exchanges.first == NULL);
    free(self->exchanges.spare);
    self->exchanges.spare = NULL;
    while (self->lives.former) {
        struct phi_peer *former = self->lives.former;
        self->lives.former = former->life.former;
        if (former->segment == segments[self->rank])
            former->segment = NULL;
        phi_peer_free(former);
    }
    for (int rank = 0; rank < 2; rank++) {
        if (self->table[rank] && self->table[rank]->segment == segments[self->rank])
            self->table[rank]->segment = NULL; // kept for the next execution
        phi_peer_free(self->table[rank]);
        self->table[rank] = NULL;
        self->inbox.wanted[rank] = 0;
    }
    free_exports(self);
    phi_mailbox_close(self->mailbox, phi_deadline(10));
    pair_deliver(of, NULL, 0);
    self->mailbox = NULL;
    self->end.aborted = self->end.fenced = 0;
    self->end.leaving = self->inbox.registered = self->inbox.receiving = false;
    self->exchanges.waiting = NULL;
    self->exchanges.calls = 0;
    self->serving.ticked = self->serving.awake_since = 0;
    self->exports.release_ids = 0;
    pair_busy = false;
}

void pair_offer(const struct pair *of, uint32_t id, uint32_t count, struct phi_writer *writer)
{
    phi_put_u32(writer, PHI_OFFER_MAGIC);
    phi_put_u32(writer, PHI_OFFER_VERSION);
    phi_put_u8(writer, 0); // no slab of flags
    phi_put_u32(writer, 1);
    phi_put_u32(writer, id);
    phi_put_blob(writer, of->foreign.record, of->foreign.record_size);
    phi_put_u8(writer, 0); // no region of the net
    phi_put_u32(writer, count);
}

void pair_describe(const struct pair_descriptor *d, struct phi_writer *writer)
{
    phi_put_u64(writer, d->op_id);
    phi_put_u8(writer, d->role);
    phi_put_u32(writer, d->slot);
    phi_put_u32(writer, d->slot != PHI_NO_SLOT); // the slot's first life
    phi_put_u32(writer, d->number);
    phi_put_u32(writer, 1 + d->again);
    for (uint32_t i = 0; i <= d->again; i++) {
        phi_put_u32(writer, d->id);
        phi_put_u64(writer, d->offset);
        phi_put_u64(writer, d->size);
    }
    phi_put_u8(writer, d->protocol);
    phi_put_u64(writer, PHI_LL_PIECE + 1); // by ll
    phi_put_u64(writer, INT64_MAX);
    phi_put_u8(writer, 0); // with a buffer
    phi_put_u8(writer, 0); // kernels may take part
}
