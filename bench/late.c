// SPDX-License-Identifier: BSD-3-Clause
// --late: what it costs a message that one of its ends has waited for the other.
//
// A message whose receive has waited, forward:
//
//   leader                                   the other rank
//   hear                                     tell; receive
//   stand still for --late; note the time
//   send; hear; note the time                tell
//
// Both notes are of the leader's clock, as those of two devices are not the same. What lies between
// them is the message and a signal back; half a round trip of signals is taken off for that. It is
// held against the same message where both ranks stand still for --late first, and the receive is
// posted then: what had as long a rest, but waited for nothing. And against one that has no rest:
// right behind another.
//
// A send that has waited, backward:
//
//   leader                                   the other rank
//   tell                                     hear; send, more messages than may be under way
//   stand still for --late; note the time
//   receive them; note the time
//
// It is held against the same where both stand still first, and the leader then only until the
// sends have come as far as they can.
//
// All of that is one sample, which both streams have before it begins: the first thing in it keeps
// a stream until its host has enqueued the rest, and the next is a signal each way.
#include <stdlib.h>
#include <string.h>

#include "beside.h"
#include "block.h"
#include "nccl.h"

// So long after a rank has told that it will receive its receive is there.
#define JUST_US 10

// By ll two messages may be under way. The third waits for room.
#define AHEAD 3

enum {
    SIGNALS,
    MESSAGE_LATE,
    MESSAGE_ON_TIME,
    MESSAGE_WARM,
    RECEIVE_LATE,
    RECEIVE_ON_TIME,
    RECEIVE_WARM,
    FIGURES,
};
#define BEGIN(figure) (3 * (size_t)(figure))
#define END(figure)   (BEGIN(figure) + 1)
#define REST(figure)  (BEGIN(figure) + 2) // behind a rest; nobody reads it
_Static_assert(3 * FIGURES == BENCH_NOTES, "a place for each");

enum { OURS, NCCLS, WAYS };

struct late {
    struct bench_run *run;
    size_t n;           // samples
    void *graphs[WAYS]; // -i graph
    struct ph_counters before, after;
    double us[WAYS][FIGURES][BENCH_SAMPLES_MAX];
};

// note: the stream stands still for so long, then the time is noted.
static int note(struct bench *bench, unsigned index, int64_t after_us)
{
    struct bench_device *device = bench->device;
    int rc = BENCH_AGAIN(bench, device->ops->note(device, index, (uint64_t)after_us * 1000));
    return rc ? bench_fail(bench, rc, "%s", device->error) : 0;
}

static int tell(struct bench_run *run)
{
    struct bench *bench = run->bench;
    struct ph_channel *mine = bench->leader ? run->forward[0] : run->backward[0];
    return BENCH_ISSUE(bench, ph_signal(mine, bench->stream));
}

static int hear(struct bench_run *run)
{
    struct bench *bench = run->bench;
    struct ph_channel *theirs = bench->leader ? run->backward[0] : run->forward[0];
    return BENCH_ISSUE(bench, ph_wait(theirs, 0, bench->stream));
}

static int give(struct bench_run *run, struct ph_channel *channel)
{
    return run->by_nccl ? bench_nccl_move(run, 0, true, run->bench->stream)
                        : run->test->give(run, channel);
}

static int take(struct bench_run *run, struct ph_channel *channel)
{
    if (run->by_nccl)
        return bench_nccl_move(run, 0, false, run->bench->stream);
    int rc = run->test->post ? run->test->post(run, channel) : 0;
    return rc ? rc : run->test->take(run, channel);
}

static int signals(struct bench_run *run)
{
    struct bench *bench = run->bench;
    int rc = bench->leader ? note(bench, BEGIN(SIGNALS), 0) : hear(run);
    if (rc == 0)
        rc = tell(run);
    if (rc || !bench->leader)
        return rc;
    rc = hear(run);
    return rc ? rc : note(bench, END(SIGNALS), 0);
}

// The rest is before the receive, or while it waits.
static int message(struct bench_run *run, int figure, int64_t rest_us, bool waits)
{
    struct bench *bench = run->bench;
    int rc = waits ? 0 : note(bench, REST(figure), rest_us);
    if (!bench->leader) {
        if (rc == 0)
            rc = tell(run);
        if (rc == 0)
            rc = take(run, run->forward[0]);
        return rc ? rc : tell(run);
    }
    if (rc == 0)
        rc = hear(run);
    if (rc == 0)
        rc = note(bench, BEGIN(figure), JUST_US + (waits ? rest_us : 0));
    if (rc == 0)
        rc = give(run, run->forward[0]);
    if (rc == 0)
        rc = hear(run);
    return rc ? rc : note(bench, END(figure), 0);
}

// The rest is before the sends, or while they wait.
static int receive(struct bench_run *run, int figure, int64_t rest_us, bool waits)
{
    struct bench *bench = run->bench;
    int rc = waits ? 0 : note(bench, REST(figure), rest_us);
    if (rc == 0)
        rc = bench->leader ? tell(run) : hear(run);
    if (rc == 0 && bench->leader)
        rc = note(bench, BEGIN(figure), run->ahead_us + (waits ? rest_us : 0));
    for (int i = 0; i < AHEAD && rc == 0; i++)
        rc = bench->leader ? take(run, run->backward[0]) : give(run, run->backward[0]);
    return rc || !bench->leader ? rc : note(bench, END(figure), 0);
}

static int all_figures(struct bench_run *run)
{
    const int64_t rest_us = run->bench->options->late_us;
    int rc = bench_meet(run);
    if (rc == 0)
        rc = signals(run);
    if (rc == 0)
        rc = message(run, MESSAGE_LATE, rest_us, true);
    if (rc == 0)
        rc = message(run, MESSAGE_ON_TIME, rest_us, false);
    if (rc == 0)
        rc = message(run, MESSAGE_WARM, 0, false);
    if (rc == 0)
        rc = receive(run, RECEIVE_LATE, rest_us, true);
    if (rc == 0)
        rc = receive(run, RECEIVE_ON_TIME, rest_us, false);
    return rc ? rc : receive(run, RECEIVE_WARM, 0, false);
}

static int device_call(struct bench *bench, int rc)
{
    return rc ? bench_fail(bench, rc, "--late: %s", bench->device->error) : 0;
}

// Nobody may wait for a stream that is held: it goes on when all is enqueued.
static int enqueue(struct bench_run *run, void *graph)
{
    struct bench *bench = run->bench;
    struct bench_device *device = bench->device;
    const bool holds = device->ops->hold != NULL;
    int rc = holds ? device_call(bench, device->ops->hold(device)) : 0;
    if (rc)
        return rc;
    bench->held = holds;
    rc = graph ? device_call(bench, device->ops->launch_graph(device, graph)) : all_figures(run);
    bench->held = false;
    if (holds)
        device->ops->release(device);
    return rc;
}

// us: where the sample's figures go, BENCH_SAMPLES_MAX apart; NULL: nowhere.
static int sample(struct bench_run *run, void *graph, double *us)
{
    struct bench *bench = run->bench;
    struct bench_device *device = bench->device;
    uint64_t ns[BENCH_NOTES];
    int rc = bench_block_begin(run, true);
    if (rc || bench->peer < 0)
        return rc;
    rc = enqueue(run, graph);
    if (rc == 0)
        rc = bench_synchronize(bench);
    if (rc == 0 && bench->leader)
        rc = device_call(bench, device->ops->read_notes(device, ns));
    for (int i = 0; i < FIGURES && rc == 0 && us && bench->leader; i++)
        us[(size_t)i * BENCH_SAMPLES_MAX] = (double)(ns[END(i)] - ns[BEGIN(i)]) / 1e3;
    return rc ? rc : bench_block_end(run, true);
}

static int ways_of(const struct bench_run *run)
{
    return run->bench->nccl ? WAYS : NCCLS;
}

// What comes only once is over before the first sample that counts: a graph's first launch, too.
static int get_ready(struct late *late)
{
    struct bench_run *run = late->run;
    struct bench *bench = run->bench;
    double us;
    int rc = device_call(bench, bench->device->ops->open_notes(bench->device));
    if (rc == 0)
        rc = bench_run_warm_up(run, &us);
    if (rc)
        return rc;
    run->ahead_us = JUST_US + (int64_t)(us * AHEAD / 2);
    if (bench->nccl)
        rc = bench_block_run(run, BENCH_BLOCK_RAW, 1, &us);
    for (int way = OURS; way < ways_of(run) && rc == 0; way++) {
        run->by_nccl = way == NCCLS;
        rc = sample(run, NULL, NULL);
        if (rc || bench->options->issue != BENCH_ISSUE_GRAPH)
            continue;
        rc = bench_block_capture(run, all_figures, 1, &late->graphs[way]);
        if (rc == 0)
            rc = sample(run, late->graphs[way], NULL);
    }
    return rc;
}

static int take_samples(struct late *late)
{
    struct bench_run *run = late->run;
    const struct bench_options *options = run->bench->options;
    const int64_t start = bench_now_ns();
    int rc = 0;
    late->n = options->iterations ? (size_t)options->iterations : run->test->samples;
    if (late->n > BENCH_SAMPLES_MAX)
        late->n = BENCH_SAMPLES_MAX;
    for (size_t i = 0; i < late->n && rc == 0; i++) {
        for (int way = OURS; way < ways_of(run) && rc == 0; way++) {
            run->by_nccl = way == NCCLS;
            rc = sample(run, late->graphs[way], &late->us[way][0][i]);
        }
        bench_run_progress(run->bench, i + 1, late->n, start);
    }
    return rc;
}

// Of a message, the signal behind it is taken off: half of what two take, of all samples.
static void take_off_signals(struct late *late, int way)
{
    struct bench_stats signals;
    double sorted[BENCH_SAMPLES_MAX];
    memcpy(sorted, late->us[way][SIGNALS], late->n * sizeof(*sorted));
    bench_stats_compute(sorted, late->n, false, &signals);
    for (int figure = MESSAGE_LATE; figure <= MESSAGE_WARM; figure++)
        for (size_t i = 0; i < late->n; i++)
            late->us[way][figure][i] -= signals.median / 2;
}

static int report(struct late *late, int way, int first, bench_row *row)
{
    struct bench_run *run = late->run;
    struct bench_result result = {.compared = true, .limit_of = "on_time"};
    struct bench_stats stats[3];
    int rc = bench_run_describe(run, &result);
    for (int i = 0; i < 3 && rc == 0; i++)
        rc = bench_run_gather(run, late->us[way][first + i], late->n, &stats[i]);
    if (rc)
        return rc;
    if (way == NCCLS)
        bench_nccl_describe(&result);
    else
        bench_run_describe_counters(&late->before, &late->after, &result);
    result.late = first == MESSAGE_LATE ? "message" : "receive";
    result.late_us = (uint64_t)run->bench->options->late_us;
    if (first == RECEIVE_LATE)
        result.metric = "three_messages_us";
    result.iterations = late->n;
    result.stats = stats[0];
    result.limit = stats[1].median;
    result.warm = stats[2].median;
    result.ratio = result.limit > 0 ? result.stats.median / result.limit : 0;
    row(run->bench, &result);
    return 0;
}

static int measure(struct late *late, bench_row *row)
{
    struct bench_run *run = late->run;
    struct ph_context *context = run->bench->context;
    int rc = get_ready(late);
    ph_context_counters(context, &late->before, sizeof(late->before));
    if (rc == 0)
        rc = take_samples(late);
    ph_context_counters(context, &late->after, sizeof(late->after));
    run->by_nccl = false;
    for (int way = OURS; way < ways_of(run) && rc == 0; way++) {
        take_off_signals(late, way);
        rc = report(late, way, MESSAGE_LATE, row);
        if (rc == 0)
            rc = report(late, way, RECEIVE_LATE, row);
    }
    return rc;
}

int bench_late_rows(struct bench_run *run, bench_row *row)
{
    struct bench *bench = run->bench;
    struct late *late = calloc(1, sizeof(*late));
    if (late == NULL)
        return bench_fail(bench, -ENOMEM, "--late");
    late->run = run;
    int rc = bench_live_capture(run);
    if (rc == 0)
        rc = measure(late, row);
    for (int way = OURS; way < WAYS; way++)
        if (late->graphs[way])
            bench->device->ops->destroy_graph(bench->device, late->graphs[way]);
    free(late);
    return rc;
}
