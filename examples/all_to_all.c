/* SPDX-License-Identifier: BSD-3-Clause */
/* Every rank sends other numbers to every rank, itself included, from memory that nobody has
   exchanged: an operation without a buffer names its memory in each call.

       cc all_to_all.c $(pkg-config --cflags --libs peerhop) -o all_to_all
       peerhop-run -n 3 ./all_to_all */
#include "example.h"

enum { COUNT = 100000, ROUNDS = 3 };

static void *stream;

static void open_channels(int ranks, struct ph_channel **channels)
{
    struct ph_operation *ops = allocate((size_t)ranks, sizeof *ops);
    for (int peer = 0; peer < ranks; peer++)
        ops[peer] = (struct ph_operation){.op_id = 1, .peer = peer, .role = PH_ROLE_BOTH};
    check(ph_exchange(context, ops, (size_t)ranks, channels));
    free(ops);
}

/* Row r of `out` goes to rank r, and row r of `in` comes from it. */
static void all_to_all(int ranks, struct ph_channel **channels, double *out, double *in)
{
    struct ph_group_op *group = allocate(2 * (size_t)ranks, sizeof *group);
    for (size_t peer = 0; peer < (size_t)ranks; peer++) {
        group[2 * peer] = (struct ph_group_op){.kind = PH_GROUP_SEND,
                                               .channel = channels[peer],
                                               .size = COUNT * sizeof *out,
                                               .data = out + peer * COUNT};
        group[2 * peer + 1] = (struct ph_group_op){.kind = PH_GROUP_RECV,
                                                   .channel = channels[peer],
                                                   .size = COUNT * sizeof *in,
                                                   .data = in + peer * COUNT};
    }
    check(ph_group(group, 2 * (size_t)ranks, stream));
    free(group);
}

static double number(int round, int from, int to)
{
    return 1000.0 * from + to + round / 10.0;
}

static void do_round(int round, int rank, int ranks, struct ph_channel **channels)
{
    const size_t count = (size_t)ranks * COUNT;
    double *numbers = allocate(count, sizeof *numbers);
    /* Other memory each time: it needs no exchange. */
    double *out = memory_new(count * sizeof *out), *in = memory_new(count * sizeof *in);

    for (size_t i = 0; i < count; i++)
        numbers[i] = number(round, rank, (int)(i / COUNT));
    copy(out, numbers, count * sizeof *out, stream);
    all_to_all(ranks, channels, out, in);
    copy(numbers, in, count * sizeof *in, stream);
    for (int peer = 0; peer < ranks; peer++)
        check(ph_channel_status(channels[peer])); /* a stream is done also where a peer has died */
    for (size_t i = 0; i < count; i++)
        expect(numbers[i] == number(round, (int)(i / COUNT), rank), "number");
    free(numbers);
}

int main(void)
{
    struct ph_channel **channels;
    int ranks;

    begin(1);
    ranks = ph_context_ranks(context);
    channels = allocate((size_t)ranks, sizeof(struct ph_channel *));
    open_channels(ranks, channels);
    stream = stream_new();
    for (int round = 0; round < ROUNDS; round++)
        do_round(round, ph_context_rank(context), ranks, channels);
    if (ph_context_rank(context) == 0)
        printf("%d ranks have sent %d numbers to each %d times, on %s\n", ranks, COUNT, ROUNDS,
               ph_context_device(context));
    free(channels);
    end();
    return 0;
}
