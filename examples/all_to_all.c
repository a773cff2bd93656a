/* SPDX-License-Identifier: BSD-3-Clause */
/* Every rank sends other numbers to every rank, itself included, from memory that nobody has
   exchanged: an operation without a buffer names its memory in each call.

       cc -std=c11 examples/all_to_all.c $(pkg-config --cflags --libs peerhop) -o all_to_all
       peerhop-run -n 3 ./all_to_all

   With a device context `out` and `in` are device memory, and the queue is a CUDA stream. */
#include <stdio.h>
#include <stdlib.h>

#include <peerhop/peerhop.h>

enum { COUNT = 100000, ROUNDS = 3 };

static struct ph_context *context;
static struct ph_queue *queue;

static void check(int rc)
{
    char text[1024] = "";
    if (rc == 0)
        return;
    ph_context_error(context, text, sizeof text);
    fprintf(stderr, "%s: %s\n", ph_strerror(rc), text);
    exit(1);
}

static void *allocate(size_t n, size_t size)
{
    void *memory = calloc(n, size);
    if (memory == NULL) {
        perror("calloc");
        exit(1);
    }
    return memory;
}

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
    for (int peer = 0; peer < ranks; peer++) {
        group[2 * peer] = (struct ph_group_op){.kind = PH_GROUP_SEND,
                                               .channel = channels[peer],
                                               .size = COUNT * sizeof *out,
                                               .data = out + (size_t)peer * COUNT};
        group[2 * peer + 1] = (struct ph_group_op){.kind = PH_GROUP_RECV,
                                                   .channel = channels[peer],
                                                   .size = COUNT * sizeof *in,
                                                   .data = in + (size_t)peer * COUNT};
    }
    check(ph_group(group, 2 * (size_t)ranks, queue));
    free(group);
}

int main(void)
{
    const struct ph_context_params params = {.device = "host"};
    check(ph_context_create(&params, &context));
    const int rank = ph_context_rank(context), ranks = ph_context_ranks(context);
    struct ph_channel **channels = allocate((size_t)ranks, sizeof *channels);
    open_channels(ranks, channels);
    check(ph_queue_create(context, &queue));
    for (int round = 0; round < ROUNDS; round++) {
        /* Other memory each time: it needs no exchange. */
        double *out = allocate((size_t)ranks * COUNT, sizeof *out);
        double *in = allocate((size_t)ranks * COUNT, sizeof *in);
        for (int i = 0; i < ranks * COUNT; i++)
            out[i] = 1000.0 * rank + i / COUNT + round / 10.0;
        all_to_all(ranks, channels, out, in);
        check(ph_queue_synchronize(queue, 0));
        for (int i = 0; i < ranks * COUNT; i++)
            if (in[i] != 1000.0 * (i / COUNT) + rank + round / 10.0) {
                fprintf(stderr, "rank %d: wrong data from rank %d\n", rank, i / COUNT);
                return 1;
            }
        free(out);
        free(in);
    }
    for (int peer = 0; peer < ranks; peer++)
        check(ph_channel_status(channels[peer]));
    if (rank == 0)
        printf("%d ranks have sent %d numbers to each %d times\n", ranks, COUNT, ROUNDS);
    free(channels);
    check(ph_queue_destroy(&queue));
    check(ph_context_destroy(&context, 0));
    return 0;
}
