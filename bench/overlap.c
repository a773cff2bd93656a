// SPDX-License-Identifier: BSD-3-Clause
// overlap: what kernels of an application and the messages of its rank cost each other. The leader
// receives and has the kernels; the other rank sends.
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "block.h"
#include "cases.h"
#include "load.h"
#include "nccl.h"
#include "shared_words.h"

#define SAMPLES      9
#define WARMUP       2          // launches, and batches of messages
#define KERNEL_NS    3000000000 // after which a kernel that has not ended is given up
#define RELEASED_NS  ((int64_t)60 * 1000000000) // ... after which the run is
#define SPIN_NS      1000000                    // without progress before there are pauses
#define NAP_US       100
#define IDLE_NS      50000000 // of warm-up on an idle device
#define BATCH        16       // messages between two marks
#define WINDOW_US    2000     // of messages that one sample is of
#define STREAMS_MOST 14       // with the others below what the ranks are started for

enum {
    EVENT_KERNEL = 0, // begin and end, of each slot
    EVENT_BATCH = 2 * BENCH_LOAD_SLOTS,
    EVENT_WINDOW = EVENT_BATCH + 2,
};
_Static_assert(EVENT_WINDOW + SAMPLES + 1 == BENCH_LOAD_EVENTS, "an event for each");

struct figures {
    double us[SAMPLES];
    size_t n;
    struct bench_load_seen seen;
    bool stuck; // the last launch did not end
};

struct overlap {
    struct bench_run *run;
    bench_row *row;
    struct bench_load *load;
    struct bench_shared_words *words;
    bool nccl;                  // who moves the messages of this step
    uint64_t step;              // both ranks count alike
    size_t refused;             // calls of a step, by -EAGAIN
    size_t batches;             // in a window
    void *graphs[STREAMS_MOST]; // -i graph: of a step's messages on each stream
    struct figures idle[BENCH_LOAD_KERNELS];
    struct bench_stats alone[2]; // us a message: by Peerhop, by NCCL
};

// Receives that wait: on each of so many streams.
struct shape {
    size_t streams, receives;
};

// Kernels, messages, or both at once, until there are samples of each.
struct session {
    struct overlap *o;
    int kernel; // enum bench_load_kernel, or -1: none
    bool messages;
    struct figures kernels, windows;
    size_t launched, ended;
    int64_t since;    // ns, when the oldest launch under way may have begun
    uint64_t batches; // enqueued
    size_t marks;     // of windows, enqueued
};

static int load_fails(struct overlap *o, int rc)
{
    return bench_fail(o->run->bench, rc, "%s", bench_load_error(o->load));
}

static int expired(struct overlap *o, int64_t since, const char *what)
{
    return bench_now_ns() - since < RELEASED_NS ? 0
                                                : bench_fail(o->run->bench, -ETIMEDOUT, "%s", what);
}

// What does not go on for a while may be waiting for a core.
static void rest(int64_t since)
{
    if (bench_now_ns() - since > SPIN_NS)
        usleep(NAP_US);
    else
        sched_yield();
}

// half: a message is two calls. By NCCL it is one.
static int half(struct overlap *o, size_t stream, bool second)
{
    struct bench_run *run = o->run;
    struct bench *bench = run->bench;
    struct ph_channel *channel = run->backward[stream];
    void *handle = bench_load_stream(o->load, stream);
    if (o->nccl)
        return second ? 0 : bench_nccl_move(run, stream, !bench->leader, handle);
    if (second)
        return ph_complete(channel, handle);
    return bench->leader ? ph_recv(channel, run->size, handle)
                         : ph_send(channel, run->size, handle);
}

// As a program would: -EAGAIN says that too many wait now.
static int patient_half(struct overlap *o, size_t stream, bool second)
{
    const int64_t start = bench_now_ns();
    int rc = half(o, stream, second);
    o->refused += rc == -EAGAIN;
    while (rc == -EAGAIN && bench_now_ns() - start < RELEASED_NS) {
        rest(start);
        rc = half(o, stream, second);
    }
    return rc ? bench_fail(o->run->bench, rc, "a message beside kernels") : 0;
}

// messages: n on the stream, or the graph of the step, which has as many.
static int messages(struct overlap *o, size_t stream, size_t n)
{
    if (o->graphs[stream]) {
        int rc = bench_load_launch_graph(o->load, stream, o->graphs[stream]);
        return rc ? load_fails(o, rc) : 0;
    }
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = patient_half(o, stream, false);
        if (rc == 0)
            rc = patient_half(o, stream, true);
    }
    return rc;
}

static int capture(struct overlap *o, size_t stream, size_t n)
{
    int rc = bench_load_begin_graph(o->load, stream);
    if (rc)
        return load_fails(o, rc);
    for (size_t i = 0; i < 2 * n && rc == 0; i++)
        rc = half(o, stream, i % 2);
    if (rc)
        return bench_fail(o->run->bench, rc, "a message that is captured");
    rc = bench_load_end_graph(o->load, stream, &o->graphs[stream]);
    return rc ? load_fails(o, rc) : 0;
}

// The halves of all receives from *next on, of one stream after the other. Without patience it ends
// where a call says -EAGAIN.
static int post(struct overlap *o, struct shape shape, size_t *next, bool patient)
{
    for (; o->graphs[0] && *next < 2 * shape.streams * shape.receives;
         *next += 2 * shape.receives) {
        int rc = messages(o, *next / 2 / shape.receives, shape.receives);
        if (rc)
            return rc;
    }
    for (; *next < 2 * shape.streams * shape.receives; ++*next) {
        const size_t stream = *next / 2 / shape.receives;
        const bool second = *next % 2;
        int rc = patient ? patient_half(o, stream, second) : half(o, stream, second);
        if (rc == -EAGAIN && !patient) {
            o->refused++;
            return 0;
        }
        if (rc)
            return patient ? rc : bench_fail(o->run->bench, rc, "a receive that waits");
    }
    return 0;
}

static int drain(struct overlap *o, size_t streams)
{
    const int64_t start = bench_now_ns();
    for (size_t i = 0; i < streams; i++) {
        int rc = bench_load_record(o->load, EVENT_BATCH, i);
        while (rc == 0 && (rc = bench_load_passed(o->load, EVENT_BATCH)) == 0) {
            if (expired(o, start, "the messages do not end"))
                return -ETIMEDOUT;
            rest(start);
        }
        if (rc < 0)
            return load_fails(o, rc);
    }
    return 0;
}

static unsigned slot_event(size_t launch)
{
    return EVENT_KERNEL + 2 * (unsigned)(launch % BENCH_LOAD_SLOTS);
}

static int take_kernel(struct session *s)
{
    struct bench_load *load = s->o->load;
    struct figures *figures = &s->kernels;
    double us = 0;
    int rc = bench_load_between(load, slot_event(s->ended), slot_event(s->ended) + 1, &us);
    if (s->ended >= WARMUP && figures->n < SAMPLES) {
        figures->us[figures->n++] = us;
        bench_load_see(load, s->ended % BENCH_LOAD_SLOTS, &figures->seen);
    }
    s->ended++;
    s->since = bench_now_ns();
    return rc;
}

// take_kernels: those that are over.
static int take_kernels(struct session *s)
{
    struct bench_load *load = s->o->load;
    while (s->ended < s->launched) {
        int passed = bench_load_passed(load, slot_event(s->ended) + 1);
        if (passed == 0 && bench_now_ns() - s->since > KERNEL_NS && !s->kernels.stuck) {
            s->kernels.stuck = true;
            bench_load_see(load, s->ended % BENCH_LOAD_SLOTS, &s->kernels.seen);
        }
        if (passed <= 0)
            return passed;
        int rc = take_kernel(s);
        if (rc)
            return rc;
    }
    return 0;
}

// A launch is always behind another, so that the messages see no gaps.
static int pump_kernels(struct session *s)
{
    if (s->kernel < 0)
        return 0;
    int rc = take_kernels(s);
    while (rc == 0 && !s->kernels.stuck && s->launched - s->ended < BENCH_LOAD_SLOTS) {
        if (s->launched == s->ended)
            s->since = bench_now_ns();
        rc = bench_load_launch(s->o->load, (enum bench_load_kernel)s->kernel,
                               s->launched % BENCH_LOAD_SLOTS, slot_event(s->launched));
        s->launched++;
    }
    return rc ? load_fails(s->o, rc) : 0;
}

// A batch behind the one that is under way. Both ranks.
static int pump_messages(struct session *s)
{
    struct overlap *o = s->o;
    const unsigned event = EVENT_BATCH + s->batches % 2;
    int passed = s->batches < 2 ? 1 : bench_load_passed(o->load, event);
    if (passed <= 0)
        return passed ? load_fails(o, passed) : 0;
    int rc = messages(o, 0, BATCH);
    if (rc)
        return rc;
    rc = bench_load_record(o->load, event, 0);
    s->batches++;
    if (rc == 0 && s->batches >= WARMUP && (s->batches - WARMUP) % o->batches == 0 &&
        s->marks <= SAMPLES)
        rc = bench_load_record(o->load, EVENT_WINDOW + (unsigned)s->marks++, 0);
    return rc ? load_fails(o, rc) : 0;
}

static int take_windows(struct session *s)
{
    struct figures *figures = &s->windows;
    const double messages = (double)s->o->batches * BATCH;
    while (figures->n < SAMPLES && figures->n + 1 < s->marks) {
        const unsigned first = EVENT_WINDOW + (unsigned)figures->n;
        double us = 0;
        int rc = bench_load_passed(s->o->load, first + 1);
        if (rc == 1)
            rc = bench_load_between(s->o->load, first, first + 1, &us);
        else if (rc == 0)
            return 0;
        if (rc)
            return load_fails(s->o, rc);
        figures->us[figures->n++] = us / messages;
    }
    return 0;
}

static bool enough(const struct session *s)
{
    return s->kernels.stuck || ((s->kernel < 0 || s->kernels.n == SAMPLES) &&
                                (!s->messages || s->windows.n == SAMPLES));
}

static int drive(struct session *s)
{
    int rc = 0;
    int64_t start = bench_now_ns();
    while (rc == 0 && !enough(s)) {
        const size_t had = s->ended + s->windows.n;
        rc = pump_kernels(s);
        if (rc == 0 && s->messages)
            rc = pump_messages(s);
        if (rc == 0)
            rc = take_windows(s);
        if (had != s->ended + s->windows.n)
            start = bench_now_ns();
        if (rc == 0)
            rc = expired(s->o, start, "neither kernels nor messages go on");
        rest(start);
    }
    return rc;
}

// What is under way, when nothing keeps it any more.
static int end_kernels(struct session *s)
{
    const int64_t start = bench_now_ns();
    while (s->ended < s->launched) {
        int rc = bench_load_passed(s->o->load, slot_event(s->ended) + 1);
        if (rc < 0)
            return load_fails(s->o, rc);
        s->ended += (size_t)rc;
        rc = expired(s->o, start, "the kernel does not end, though all messages have come");
        if (rc)
            return rc;
        rest(start);
    }
    return 0;
}

// A step has n messages on each stream of the part, or in each batch; 0: nothing that repeats.
static int begin_step(struct overlap *o, struct bench_run *part, size_t n)
{
    struct bench *bench = o->run->bench;
    const bool graphs = bench->options->issue == BENCH_ISSUE_GRAPH && bench->peer >= 0 && n > 0;
    bench->block++;
    o->step++;
    o->refused = 0;
    int rc = bench->options->verify && bench->peer >= 0 ? bench_block_fill(part) : 0;
    for (size_t i = 0; i < part->channels && rc == 0 && graphs; i++)
        rc = capture(o, i, n);
    return rc ? rc : bench_barrier(bench);
}

static void destroy_graphs(struct overlap *o)
{
    for (size_t i = 0; i < STREAMS_MOST; i++) {
        bench_load_destroy_graph(o->load, o->graphs[i]);
        o->graphs[i] = NULL;
    }
}

static int end_step(struct overlap *o, struct bench_run *part)
{
    struct bench *bench = o->run->bench;
    destroy_graphs(o);
    return bench->options->verify && bench->peer >= 0 ? bench_block_check(part) : 0;
}

static int await_word(struct overlap *o, _Atomic uint64_t *word, uint64_t least)
{
    const int64_t start = bench_now_ns();
    int rc = 0;
    while (rc == 0 && atomic_load_explicit(word, memory_order_acquire) < least) {
        rc = expired(o, start, "the other rank of the pair says nothing");
        rest(start);
    }
    return rc;
}

static void tell(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

static void describe(const struct overlap *o, const struct session *s,
                     struct bench_overlap *overlap)
{
    const struct figures *figures = &s->kernels;
    const struct bench_load_shape *shape = bench_load_shape(o->load, s->kernel);
    *overlap = (struct bench_overlap){
        .kernel = shape->name,
        .threads = shape->threads,
        .registers = shape->registers,
        .shared = shape->shared,
        .refused = o->refused,
        .stuck = figures->stuck,
        .blocks = figures->seen.blocks,
        .begun = figures->seen.begun,
        .multiprocessors = figures->seen.multiprocessors,
        .idle_multiprocessors = o->idle[s->kernel].seen.multiprocessors,
    };
}

static int report(struct overlap *o, struct figures *figures, double limit,
                  const struct bench_overlap *overlap)
{
    struct bench *bench = o->run->bench;
    struct bench_result result = {0};
    int rc = bench_run_describe(o->run, &result);
    if (rc)
        return rc;
    if (o->nccl)
        bench_nccl_describe(&result);
    result.metric = overlap->of_messages ? "message_us" : "kernel_us";
    result.channels = overlap->streams;
    result.iterations = figures->n;
    result.overlap = overlap;
    if (figures->n > 0 && !figures->stuck) {
        bench_stats_compute(figures->us, figures->n, false, &result.stats);
        result.compared = true;
        result.limit_of = "alone";
        result.limit = limit;
        result.ratio = limit > 0 ? result.stats.median / limit : 0;
    }
    o->row(bench, &result);
    return 0;
}

static double median_of(const struct figures *figures)
{
    struct figures sorted = *figures;
    struct bench_stats stats = {0};
    if (sorted.n > 0)
        bench_stats_compute(sorted.us, sorted.n, false, &stats);
    return stats.median;
}

// The leader's half of a step with receives that wait: what it posts early is released only when
// the kernel has been measured, or has not come to its end.
static int receive_late(struct overlap *o, struct shape shape, int kernel)
{
    struct session session = {.o = o, .kernel = kernel};
    struct bench_overlap overlap;
    size_t next = 0;
    int rc = post(o, shape, &next, false);
    const size_t posted = next / 2;
    if (rc == 0)
        rc = drive(&session);
    tell(&o->words->go, o->step);
    if (rc == 0)
        rc = post(o, shape, &next, true);
    if (rc == 0)
        rc = drain(o, shape.streams);
    if (rc == 0)
        rc = end_kernels(&session);
    if (rc)
        return rc;
    describe(o, &session, &overlap);
    overlap.beside = "waiting";
    overlap.streams = shape.streams;
    overlap.receives = shape.receives;
    overlap.posted = posted;
    return report(o, &session.kernels, median_of(&o->idle[kernel]), &overlap);
}

static int send_late(struct overlap *o, struct shape shape)
{
    int rc = await_word(o, &o->words->go, o->step);
    for (size_t i = 0; i < shape.streams && rc == 0; i++)
        rc = messages(o, i, shape.receives);
    return rc ? rc : drain(o, shape.streams);
}

static int waiting(struct overlap *o, struct shape shape, int kernel)
{
    struct bench *bench = o->run->bench;
    struct bench_run part = *o->run;
    part.channels = shape.streams;
    int rc = begin_step(o, &part, shape.receives);
    if (rc == 0 && bench->peer >= 0)
        rc = bench->leader ? receive_late(o, shape, kernel) : send_late(o, shape);
    return rc ? rc : end_step(o, &part);
}

// Both ranks have enqueued some batches, and go on to the larger number. A word has the step in its
// upper half.
static int receive_rest(struct session *s)
{
    struct overlap *o = s->o;
    const uint64_t step = o->step << 32;
    tell(&o->words->stop, step | s->batches);
    int rc = await_word(o, &o->words->total, step);
    const uint64_t total = atomic_load_explicit(&o->words->total, memory_order_acquire) - step;
    const int64_t start = bench_now_ns();
    while (rc == 0 && s->batches < total) {
        rc = pump_messages(s);
        rest(start);
    }
    if (rc == 0)
        rc = drain(o, 1);
    return rc ? rc : end_kernels(s);
}

static int send_on(struct overlap *o)
{
    struct session session = {.o = o, .kernel = -1, .messages = true};
    const uint64_t step = o->step << 32;
    uint64_t stop = 0;
    const int64_t start = bench_now_ns();
    int64_t since = start;
    int rc = 0;
    while (rc == 0 && (stop < step || session.batches < stop - step)) {
        const uint64_t had = session.batches;
        rc = pump_messages(&session);
        stop = atomic_load_explicit(&o->words->stop, memory_order_acquire);
        if (rc == 0 && stop < step)
            rc = expired(o, start, "the receiving rank does not come to its end");
        since = session.batches > had ? bench_now_ns() : since;
        rest(since);
    }
    tell(&o->words->total, step | session.batches);
    return rc ? rc : drain(o, 1);
}

static int report_moving(struct overlap *o, struct session *s)
{
    struct bench_overlap overlap;
    describe(o, s, &overlap);
    overlap.beside = "moving";
    overlap.streams = 1;
    int rc = report(o, &s->kernels, median_of(&o->idle[s->kernel]), &overlap);
    overlap.of_messages = true;
    s->windows.stuck = s->kernels.stuck;
    return rc ? rc : report(o, &s->windows, o->alone[o->nccl].median, &overlap);
}

// Without a kernel: what messages take alone.
static int receive_on(struct overlap *o, int kernel)
{
    struct session session = {.o = o, .kernel = kernel, .messages = true};
    int rc = drive(&session);
    if (rc == 0)
        rc = receive_rest(&session);
    if (rc)
        return rc;
    if (kernel >= 0)
        return report_moving(o, &session);
    bench_stats_compute(session.windows.us, session.windows.n, false, &o->alone[o->nccl]);
    return 0;
}

static int moving(struct overlap *o, int kernel)
{
    struct bench *bench = o->run->bench;
    struct bench_run part = *o->run;
    part.channels = 1;
    int rc = begin_step(o, &part, BATCH);
    if (rc == 0 && bench->peer >= 0)
        rc = bench->leader ? receive_on(o, kernel) : send_on(o);
    return rc ? rc : end_step(o, &part);
}

// The first message of a stream may load and map what the later ones use.
static int warm_up(struct overlap *o)
{
    struct bench *bench = o->run->bench;
    int rc = begin_step(o, o->run, 0);
    for (size_t i = 0; i < o->run->channels && rc == 0 && bench->peer >= 0; i++) {
        rc = messages(o, i, 1);
        if (rc == 0)
            rc = drain(o, i + 1);
    }
    if (rc == 0)
        rc = end_step(o, o->run);
    o->batches = 1;
    if (rc == 0)
        rc = moving(o, -1);
    const double batch_us = o->alone[o->nccl].median * BATCH;
    o->batches = batch_us > 0 && batch_us < WINDOW_US ? (size_t)(WINDOW_US / batch_us) : 1;
    return rc ? rc : moving(o, -1);
}

static int idle_kernel(struct overlap *o, int kernel)
{
    struct session session = {.o = o, .kernel = kernel};
    int rc = drive(&session);
    if (rc == 0)
        rc = end_kernels(&session);
    if (rc == 0 && session.kernels.stuck)
        rc = bench_fail(o->run->bench, -ETIMEDOUT, "a kernel does not end on an idle device");
    o->idle[kernel] = session.kernels;
    return rc;
}

// The last figures of some: clocks rise meanwhile.
static int idle(struct overlap *o)
{
    int rc = bench_barrier(o->run->bench);
    for (int k = 0; k < BENCH_LOAD_KERNELS && o->run->bench->leader; k++) {
        const int64_t start = bench_now_ns();
        do {
            rc = rc ? rc : idle_kernel(o, k);
        } while (rc == 0 && bench_now_ns() - start < IDLE_NS);
    }
    return rc;
}

// Each by Peerhop and by NCCL in turn, where that is asked for.
static int all_steps(struct overlap *o)
{
    const struct shape shapes[] = {{1, 1}, {1, 2}, {o->run->channels, 2}};
    const size_t count = o->run->channels > 1 ? 3 : 2;
    const int ways = o->run->bench->options->compare == BENCH_COMPARE_NCCL ? 2 : 1;
    int rc = idle(o);
    for (int way = 0; way < ways && rc == 0; way++) {
        o->nccl = way;
        rc = warm_up(o);
    }
    for (size_t i = 0; i < count && rc == 0; i++)
        for (int k = 0; k < BENCH_LOAD_KERNELS; k++)
            for (int way = 0; way < ways && rc == 0; way++) {
                o->nccl = way;
                rc = waiting(o, shapes[i], k);
            }
    for (int k = 0; k < BENCH_LOAD_KERNELS; k++)
        for (int way = 0; way < ways && rc == 0; way++) {
            o->nccl = way;
            rc = moving(o, k);
        }
    return rc;
}

static int open_load(struct overlap *o, char *error, size_t error_size)
{
    if (strcmp(o->run->bench->device->ops->kind, "host") == 0) {
        snprintf(error, error_size, "on host memory there are no kernels beside messages");
        return -ENOTSUP;
    }
    if (o->run->channels > STREAMS_MOST) {
        snprintf(error, error_size, "at most %d streams (--channels)", STREAMS_MOST);
        return -EINVAL;
    }
    return bench_load_open(&o->load, o->run->channels, error, error_size);
}

// All ranks do the same, though one alone may see why not. Of a case that nobody has named that is
// no failure.
static int open_all(struct overlap *o, bool *left_out)
{
    struct bench *bench = o->run->bench;
    char error[256] = "the ranks of a pair do not see each other's processes";
    int mine = open_load(o, error, sizeof(error)), all[BENCH_RANKS_MAX];
    int rc = bench_allgather(bench, &mine, all, sizeof(mine));
    int worst = 0;
    for (int i = 0; i < bench->ranks; i++)
        worst = worst ? worst : all[i];
    if (rc == 0 && worst == 0)
        rc = worst = bench_shared_words_open(bench, &o->words);
    *left_out = worst == -ENOTSUP && bench->options->by_default;
    if (*left_out && bench->rank == 0)
        fprintf(stderr, "peerhop-perf: overlap is left out: %s\n", error);
    if (*left_out)
        return 0;
    if (worst && (mine || rc))
        return bench_fail(bench, worst, "%s", error);
    return rc ? rc : worst;
}

static int overlap_rows(struct bench_run *run, bench_row *row)
{
    struct overlap overlap = {.run = run, .row = row};
    bool left_out = false;
    int rc = open_all(&overlap, &left_out);
    if (rc == 0 && !left_out)
        rc = all_steps(&overlap);
    destroy_graphs(&overlap);
    bench_shared_words_close(overlap.words);
    bench_load_close(overlap.load, rc != 0);
    return rc;
}

const struct bench_case bench_overlap_case = {
    .name = "overlap",
    .what = "kernels of an application and receives beside each other (GPUs)",
    .metric = BENCH_KERNEL_US,
    .sizes = {1 << 20},
    .ways = BENCH_BACKWARD,
    .channels = 8,
    .samples = SAMPLES,
    .nccl = true,
    .rows = overlap_rows,
};
