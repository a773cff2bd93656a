// SPDX-License-Identifier: BSD-3-Clause
// --fresh: each message from another buffer, into another buffer, as of an application that
// allocates one for each step. The buffers are parts of one allocation. Today such a message needs
// an exchange of its own: the time is from the call of that until the message is complete at both
// ranks, and they begin together.
#include <stdlib.h>
#include <string.h>

#include "beside.h"
#include "block.h"

// Larger than the caches of processors and GPUs. Messages lie in so many places of it, far apart;
// after each round through them so much further that no buffer is ever the same.
#define POOL    ((size_t)512 << 20)
#define PLACES  64
#define FEWEST  4 // of large messages
#define SHIFT   256
#define SHIFTS  4096
#define TOUCHED ((size_t)4 << 20) // at once

static size_t step_of(size_t size)
{
    const size_t whole = (size + SHIFT) / SHIFT * SHIFT;
    return whole > POOL / PLACES ? whole : POOL / PLACES;
}

static size_t places_of(size_t step)
{
    return step > POOL / FEWEST ? FEWEST : POOL / step;
}

size_t bench_fresh_area(size_t size)
{
    const size_t step = step_of(size);
    return (step > POOL / FEWEST ? FEWEST * step : POOL) + (size_t)SHIFTS * SHIFT;
}

static size_t place_of(const struct bench_run *run)
{
    const size_t step = step_of(run->size), places = places_of(step);
    const size_t block = (size_t)run->bench->block; // counts samples, at all ranks alike
    return block % places * step + block / places % SHIFTS * SHIFT;
}

// First touches are in no figure, and afterwards no cache has the first places.
static int touch_all(struct bench *bench)
{
    char *zeros = calloc(1, TOUCHED), *area = (char *)bench->arena.base + bench->area_offset;
    int rc = zeros ? 0 : bench_fail(bench, -ENOMEM, "--fresh");
    for (size_t at = 0; at < bench->area_size && rc == 0; at += TOUCHED) {
        const size_t left = bench->area_size - at;
        rc = bench->device->ops->write(bench->device, area + at, zeros,
                                       left < TOUCHED ? left : TOUCHED);
        if (rc)
            bench_fail(bench, rc, "%s", bench->device->error);
    }
    free(zeros);
    return rc;
}

int bench_fresh_open(struct bench_run *run)
{
    run->channels = 1;
    run->forward = calloc(2, sizeof(struct ph_channel *));
    return run->forward ? touch_all(run->bench) : bench_fail(run->bench, -ENOMEM, "--fresh");
}

static int exchange(struct bench_run *run)
{
    struct bench *bench = run->bench;
    const bool get = strcmp(bench->options->protocol, "get") == 0;
    const struct ph_operation op = {
        .op_id = BENCH_OP_LONE,
        .peer = bench->peer,
        .role = bench->leader ? PH_ROLE_SENDER : PH_ROLE_RECEIVER,
        .protocol = get ? PH_PROTOCOL_GET : PH_PROTOCOL_PUT,
        .buffer = (char *)bench->arena.base + run->out,
        .size = run->size ? run->size : 1,
    };
    int rc = ph_exchange(bench->context, &op, 1, run->forward);
    return rc ? bench_fail(bench, rc, "ph_exchange") : 0;
}

static int message(struct bench_run *run)
{
    const struct bench_case *test = run->test;
    struct ph_channel *channel = run->forward[0];
    if (run->bench->leader)
        return test->give(run, channel);
    int rc = test->post ? test->post(run, channel) : 0;
    return rc ? rc : test->take(run, channel);
}

static int close_last(struct bench_run *run)
{
    struct ph_channel *last = run->forward[0];
    run->forward[0] = NULL;
    int rc = last ? ph_channel_close(last) : 0;
    return rc ? bench_fail(run->bench, rc, "ph_channel_close") : 0;
}

int bench_fresh_sample(struct bench_run *run, double *us)
{
    struct bench *bench = run->bench;
    *us = 0;
    run->out = run->in = bench->area_offset + place_of(run);
    int rc = close_last(run);
    if (rc == 0)
        rc = bench_block_begin(run, true);
    if (rc || bench->peer < 0)
        return rc;
    const int64_t start = bench_now_ns();
    rc = exchange(run);
    if (rc == 0)
        rc = message(run);
    if (rc == 0)
        rc = bench_synchronize(bench);
    *us = (double)(bench_now_ns() - start) / 1e3;
    return rc ? rc : bench_block_end(run, true);
}
