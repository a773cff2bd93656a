/* SPDX-License-Identifier: BSD-3-Clause */
/* A pipeline: each rank is a stage, which takes micro-batches from the rank before, computes, and
   passes them on.

       cc pipeline.c $(pkg-config --cflags --libs peerhop) -o pipeline
       peerhop-run -n 4 ./pipeline

   Each stage has two places for what comes and two for what goes, used in turn: while it computes
   one micro-batch, the next one is on its way. */
#include "example.h"

enum { NUMBERS = 1 << 16, BATCHES = 12, PLACES = 2 };
static const size_t SIZE = NUMBERS * sizeof(float);

static int rank, ranks;

struct side {
    struct ph_channel *channel[PLACES]; /* not used at the ends of the pipeline */
    float *place[PLACES];
};

/* Both ends name a place of a link by one op id. The peer of a sender names itself receiver. */
static void side_open(struct side *side, int peer, enum ph_role role)
{
    struct ph_operation ops[PLACES];

    for (int i = 0; i < PLACES; i++) {
        side->place[i] = memory_new(SIZE);
        ops[i] = (struct ph_operation){.op_id = (uint64_t)i + 1,
                                       .peer = peer,
                                       .role = role,
                                       .buffer = side->place[i],
                                       .size = SIZE};
    }
    if (peer >= 0 && peer < ranks)
        check(ph_exchange(context, ops, PLACES, side->channel));
}

/* What the first stage has for input, and what a stage makes of it. */
static float input(int batch, int i)
{
    return (float)(batch + i % 1009);
}

static float stage(int which, float x)
{
    return x + (float)(which + 1);
}

/* Here the kernels of a model go, on the same stream: then nothing waits for it in between. */
static void compute(int batch, const float *in, float *out, float *numbers, void *stream)
{
    if (rank == 0)
        for (int i = 0; i < NUMBERS; i++)
            numbers[i] = input(batch, i);
    else
        copy(numbers, in, SIZE, stream);
    for (int i = 0; i < NUMBERS; i++)
        numbers[i] = stage(rank, numbers[i]);
    copy(out, numbers, SIZE, stream);
}

static void verify(int batch, const float *out, float *numbers, void *stream)
{
    copy(numbers, out, SIZE, stream);
    for (int i = 0; i < NUMBERS; i++) {
        float right = input(batch, i);

        for (int r = 0; r < ranks; r++)
            right = stage(r, right);
        expect(numbers[i] == right, "output"); /* small whole numbers: exact */
    }
}

static void run(const struct side *in, const struct side *out, void *stream)
{
    const bool first = rank == 0, last = rank == ranks - 1;
    float *numbers = allocate(NUMBERS, sizeof *numbers);

    if (!first)
        check(ph_recv(in->channel[0], SIZE, stream)); /* the rank before may write place 0 */
    for (int batch = 0; batch < BATCHES; batch++) {
        const int now = batch % PLACES, then = (batch + 1) % PLACES;

        if (!first && batch + 1 < BATCHES)
            check(ph_recv(in->channel[then], SIZE, stream));
        if (!first)
            check(ph_complete(in->channel[now], stream)); /* waits until the batch has come */
        if (!last && batch >= PLACES)
            check(ph_complete(out->channel[now], stream)); /* until what was there has gone */
        compute(batch, in->place[now], out->place[now], numbers, stream);
        if (last)
            verify(batch, out->place[now], numbers, stream);
        else
            check(ph_send(out->channel[now], SIZE, stream));
    }
    for (int i = 0; !last && i < PLACES; i++)
        check(ph_complete(out->channel[i], stream));
    stream_wait(stream);
    free(numbers);
}

/* A stream is done also where a peer has died: the status says if all has come and gone. */
static void side_check(const struct side *side)
{
    for (int i = 0; i < PLACES; i++)
        check(ph_channel_status(side->channel[i]));
}

int main(void)
{
    struct side in = {{0}}, out = {{0}};

    begin(2);
    rank = ph_context_rank(context);
    ranks = ph_context_ranks(context);
    side_open(&in, rank - 1, PH_ROLE_RECEIVER);
    side_open(&out, rank + 1, PH_ROLE_SENDER);
    run(&in, &out, stream_new());
    if (rank > 0)
        side_check(&in);
    if (rank < ranks - 1)
        side_check(&out);
    else
        printf("%d micro-batches went through %d stages, on %s\n", BATCHES, ranks,
               ph_context_device(context));
    end();
    return 0;
}
