/* SPDX-License-Identifier: BSD-3-Clause */
/* All-gather in a ring: each rank has a block, and ends with the blocks of all.

       cc all_gather.c $(pkg-config --cflags --libs peerhop) -o all_gather
       peerhop-run -n 4 ./all_gather

   In each of ranks - 1 steps a rank puts the block that it got last into the next rank's buffer, at
   the place where it lies in its own. */
#include "example.h"

enum { BLOCK = 1 << 16, ROUNDS = 5 }; /* numbers of a block */

static int rank, ranks;

struct ring {
    struct ph_channel *next, *previous;
    int *buffer; /* block r of it is rank r's */
    void *stream;
};

/* A channel belongs to two ranks, and each link of the ring has its own: both ends name it by the
   rank that sends the blocks. The other direction says when a round may begin: so the role is both.
   With two ranks `next` and `previous` are one rank, and two channels. */
static void join(struct ring *ring)
{
    const size_t size = (size_t)ranks * BLOCK * sizeof *ring->buffer;
    const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    struct ph_operation links[2];
    struct ph_channel *channels[2];

    ring->buffer = memory_new(size);
    ring->stream = stream_new();
    links[0] = (struct ph_operation){.op_id = (uint64_t)rank,
                                     .peer = next,
                                     .role = PH_ROLE_BOTH,
                                     .buffer = ring->buffer,
                                     .size = size};
    links[1] = links[0];
    links[1].op_id = (uint64_t)previous;
    links[1].peer = previous;
    check(ph_exchange(context, links, 2, channels));
    ring->next = channels[0];
    ring->previous = channels[1];
}

/* What is put and what is waited for have no order among themselves: they are a group, which cannot
   deadlock. Groups follow each other on the stream, so a block has come before it is passed on. */
static void step(const struct ring *ring, int passed)
{
    const size_t size = BLOCK * sizeof *ring->buffer, place = (size_t)passed * size;
    const struct ph_group_op ops[] = {
        {.kind = PH_GROUP_PUT_SIGNAL,
         .channel = ring->next,
         .peer_offset = place,
         .local_offset = place,
         .size = size},
        {.kind = PH_GROUP_WAIT, .channel = ring->previous, .size = size}};

    check(ph_group(ops, 2, ring->stream));
}

/* Tells the rank before that its blocks were read, and waits until the next rank says so. */
static void may_write_again(const struct ring *ring)
{
    const struct ph_group_op ops[] = {{.kind = PH_GROUP_SIGNAL, .channel = ring->previous},
                                      {.kind = PH_GROUP_WAIT, .channel = ring->next}};

    check(ph_group(ops, 2, ring->stream));
}

static int number(int round, int of_rank, int i)
{
    return round * 1000000 + of_rank * 10000 + i % 9973;
}

static void all_gather(const struct ring *ring, int round, int *numbers)
{
    int *own = numbers + (size_t)rank * BLOCK;

    for (int i = 0; i < BLOCK; i++)
        own[i] = number(round, rank, i);
    copy(ring->buffer + (size_t)rank * BLOCK, own, BLOCK * sizeof *own, ring->stream);
    for (int i = 0; i < ranks - 1; i++)
        step(ring, (rank + ranks - i) % ranks);
    copy(numbers, ring->buffer, (size_t)ranks * BLOCK * sizeof *numbers, ring->stream);
    check(ph_channel_status(ring->next)); /* a stream is done also where a peer has died */
    check(ph_channel_status(ring->previous));
    may_write_again(ring);
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < BLOCK; i++)
            expect(numbers[(size_t)r * BLOCK + i] == number(round, r, i), "number");
}

int main(void)
{
    struct ring ring;
    int *numbers;

    begin(2);
    rank = ph_context_rank(context);
    ranks = ph_context_ranks(context);
    numbers = allocate((size_t)ranks * BLOCK, sizeof *numbers);
    join(&ring);
    for (int round = 0; round < ROUNDS; round++)
        all_gather(&ring, round, numbers);
    stream_wait(ring.stream);
    if (rank == 0)
        printf("%d ranks have gathered the blocks of all %d times, on %s\n", ranks, ROUNDS,
               ph_context_device(context));
    free(numbers);
    end();
    return 0;
}
