/* SPDX-License-Identifier: BSD-3-Clause */
/* Each rank sends its number to the next rank of a ring, and receives that of the one before:

       cmake -S . -B build && cmake --build build
       peerhop-run -n 3 build/ring_c */
#include <stdio.h>
#include <stdlib.h>

#include <peerhop/peerhop.h>

static struct ph_context *context;

static void check(int rc)
{
    char text[1024] = "";
    if (rc == 0)
        return;
    ph_context_error(context, text, sizeof text);
    fprintf(stderr, "%s: %s\n", ph_strerror(rc), text);
    exit(1);
}

int main(void)
{
    char why[1024] = "";
    if (ph_context_create(
            &(struct ph_context_params){.device = "host", .error = why, .error_size = sizeof why},
            &context)) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    const int rank = ph_context_rank(context), ranks = ph_context_ranks(context);
    const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    const struct ph_operation ops[] = {{.op_id = 1, .peer = next, .role = PH_ROLE_SENDER},
                                       {.op_id = 1, .peer = before, .role = PH_ROLE_RECEIVER}};
    struct ph_channel *channels[2];
    struct ph_queue *queue;
    int received = -1;

    check(ph_exchange(context, ops, 2, channels));
    check(ph_queue_create(context, &queue));
    const struct ph_group_op group[] = {
        {.kind = PH_GROUP_SEND, .channel = channels[0], .data = (void *)&rank, .size = sizeof rank},
        {.kind = PH_GROUP_RECV,
         .channel = channels[1],
         .data = &received,
         .size = sizeof received}};
    check(ph_group(group, 2, queue));
    check(ph_queue_synchronize(queue, 0));
    check(ph_channel_status(channels[1]));
    printf("rank %d has the number of rank %d\n", rank, received);
    check(ph_queue_destroy(&queue));
    check(ph_context_destroy(&context, 0));
    return received == before ? 0 : 1;
}
